"""Python: run code in a sandbox, and keep its results between the calls of one episode. See `understudy.sandbox`."""

import os
from typing import Annotated

from pydantic import Field

from understudy.errors import ConfigError
from understudy.sandbox.confine import Limits
from understudy.sandbox.interpreter import Interpreter
from understudy.tools import Alias, Service

SECONDS, MEMORY = "SANDBOX_SECONDS", "SANDBOX_MEMORY_MB"


class Python(Service):
    """One tool; an object serves one episode."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter

    async def execute_python(
        self, code: Annotated[str, Alias("python_code"), Field(max_length=100_000, description="Python 3 code.")]
    ) -> str:
        """Run Python code: what it prints, and the value of an expression that stands last.

        Variables, imports and files in the current folder stay for the next call. There are the standard library and
        no network, no other files, no folders, no processes and no threads.
        """
        return await self._interpreter.run(code) or "(no output)"


def interpreter_of_environment() -> Interpreter:
    """An interpreter with the limits that the environment sets."""
    seconds, memory = _number(SECONDS, 10, 1, 3600), _number(MEMORY, 512, 64, 65536)
    return Interpreter(seconds, Limits(cpu_seconds=max(60, 6 * seconds), memory=memory << 20))


def _number(variable: str, default: int, least: int, most: int) -> int:
    text = os.environ.get(variable, "") or str(default)
    if not text.isdecimal() or not least <= int(text) <= most:
        allowed = f"it has to be a number from {least} to {most}"
        raise ConfigError(f"the environment variable {variable} is {text!r}; {allowed}")
    return int(text)
