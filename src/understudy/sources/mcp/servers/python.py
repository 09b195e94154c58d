"""Tool that runs Python code in a sandboxed interpreter. `understudy.sources.sandbox` describes the sandbox."""

import os
from typing import Annotated

from pydantic import Field

from understudy.core.errors import ConfigError
from understudy.envs.tools import Alias, AsyncToolkit
from understudy.sources.sandbox.confine import SandboxLimits
from understudy.sources.sandbox.interpreter import Interpreter

SECONDS, MEMORY = "SANDBOX_SECONDS", "SANDBOX_MEMORY_MB"


class PythonTools(AsyncToolkit):
    """One tool, `execute_python`. Each object serves one episode."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter

    async def execute_python(
        self,
        code: Annotated[
            str,
            Alias("python_code", "script", "python"),
            Field(max_length=100_000, description="Python 3 code."),
        ],
        description: Annotated[str, Field(max_length=2000, description="What the code does. It has no effect.")] = "",
    ) -> str:
        """Run Python code. Return its printed output and the value of its last expression.

        Variables, imports and files in the working directory persist between calls. The standard library is available,
        and numpy and pandas where they are installed. The code has no network access and no access to other files. It
        cannot create directories, processes or threads.
        """
        return await self._interpreter.run(code) or "(no output)"


def interpreter_from_env() -> Interpreter:
    """Return an interpreter with the limits in the environment variables SANDBOX_SECONDS and SANDBOX_MEMORY_MB."""
    seconds, memory = _number(SECONDS, 10, 1, 3600), _number(MEMORY, 512, 64, 65536)
    return Interpreter(seconds, SandboxLimits(cpu_seconds=max(60, 6 * seconds), memory_bytes=memory << 20))


def _number(variable: str, default: int, least: int, most: int) -> int:
    text = os.environ.get(variable, "") or str(default)
    if not text.isdecimal() or not least <= int(text) <= most:
        allowed = f"set it to a whole number from {least} to {most}"
        raise ConfigError(f"the environment variable {variable} is {text!r}; {allowed}")
    return int(text)
