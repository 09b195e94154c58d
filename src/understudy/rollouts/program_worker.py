"""Play episodes with one function, one after another. It runs with the program's own Python, which has no understudy.

    python program_worker.py MODULE:ATTRIBUTE --check     imports the function
    python program_worker.py MODULE:ATTRIBUTE             reads episodes as JSON lines, and writes their answers

Answers are written to the file that was stdout. Everything else that is printed goes to stderr. The process ends, with
all that it has started, when its input ends.
"""

import asyncio
import importlib
import inspect
import json
import os
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

_THREAD = ThreadPoolExecutor(max_workers=1)
"""The thread of functions that are no coroutines: clients that a framework keeps belong to the event loop of one."""
_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


@dataclass(frozen=True)
class ProgramEpisode:
    """What a program gets for one episode."""

    task: str
    """The id of the task."""
    prompt: Sequence[Mapping[str, Any]]
    """The first messages, in the form of chat completions: the policy, if there is one, and the user's message."""
    base_url: str
    """Address of the model's endpoint, for clients of the OpenAI API."""
    api_key: str
    """The key of the episode."""
    mcp_url: str
    """Address of the MCP server with the tools of the episode."""
    result_url: str
    """Address to which the program may post a reward, as the JSON `{"reward": 0.5}`."""

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of a command."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "UNDERSTUDY_TASK": self.task,
            "UNDERSTUDY_PROMPT": _to_json(self.prompt),
            "UNDERSTUDY_MCP_URL": self.mcp_url,
            "UNDERSTUDY_RESULT_URL": self.result_url,
        }


def _to_json(value: object) -> str:
    """Return a value as short JSON, as the size of a variable is limited. Lone surrogates, which no variable can have,
    are replaced."""
    return json.dumps(value, ensure_ascii=False).encode(errors="replace").decode()


def import_function(reference: str) -> Any:
    """Return the function that `module:attribute` names. The current folder is searched last."""
    own = os.path.dirname(os.path.abspath(__file__))  # its modules must not hide the program's
    sys.path[:] = [folder for folder in sys.path if folder != own]
    sys.path.append(os.getcwd())
    module, _, attribute = reference.partition(":")
    function = getattr(importlib.import_module(module), attribute)
    if not callable(function):
        raise TypeError(f"{reference} is of the type {type(function).__name__}, not a function")
    return function


async def play(reference: str, episode: ProgramEpisode) -> dict[str, Any]:
    """Return the answer of a function, or its exception.

    Environment variables and the working folder are put back, and tasks that it has left in the event loop are ended.
    The function is imported in the first episode, so that its module may read that episode's variables.
    """

    async def answer() -> object:
        function = import_function(reference)
        if inspect.iscoroutinefunction(function):
            return await function(episode)
        result = await asyncio.get_running_loop().run_in_executor(_THREAD, call, function)
        return await result if inspect.isawaitable(result) else result

    def call(function: Any) -> object:
        try:
            return function(episode)
        except StopIteration as e:  # a future cannot hold it
            raise RuntimeError("the function raised StopIteration").with_traceback(e.__traceback__) from e

    variables, folder, tasks = dict(os.environ), os.getcwd(), asyncio.all_tasks()
    os.environ.update(episode.variables)
    (result,) = await asyncio.gather(answer(), return_exceptions=True)  # the user's code may raise anything
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    for task in asyncio.all_tasks() - tasks:
        task.cancel()
    if isinstance(result, BaseException):
        traceback.print_exception(type(result), result, result.__traceback__)
        return {"error": f"raised {describe(result)}"}
    if result is None or isinstance(result, str):
        return {"text": result}
    return {"error": f"returned {result!r:.100}; return a text, or None"}


def describe(error: BaseException) -> str:
    """Return the type and text of an exception, and the last place outside of installed packages."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((*_INSTALLED, os.path.abspath(__file__), "<"))]
    place = f" ({os.path.basename(own[-1].filename)}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {error}{place}"


async def serve(reference: str, answers: Any) -> None:
    """Play the episodes that are read."""
    loop, requests = asyncio.get_running_loop(), asyncio.Queue[str]()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(requests.put_nowait, line)
        os.killpg(os.getpgrp(), signal.SIGKILL)  # also what the program has started

    threading.Thread(target=read, daemon=True).start()
    while True:
        answer = await play(reference, ProgramEpisode(**json.loads(await requests.get())))
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    """Run the program."""
    reference = sys.argv[1]
    if "--check" in sys.argv:
        import_function(reference)
        return
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    asyncio.run(serve(reference, answers))


if __name__ == "__main__":
    main()
