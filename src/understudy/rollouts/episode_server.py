"""A server of episodes for a loop in another Python, which `data export verifiers` writes.

    python -m understudy.rollouts.episode_server retail

prints `{"port": …}`, and ends when its stdin is closed. Requests need the key in the variable `KEY_VARIABLE`. Messages
and tools are those of chat completions:

    GET  /tasks?split=train             -> [{id, policy, opening}]
    POST /start {task, seed}            -> {episode, messages, tools, reward}
    POST /step  {episode, message}      -> {messages, reward}       the reward is null while the episode continues
    POST /grade {episode}               -> {reward}                 of an episode that a limit of the loop ends
    POST /close {episode}
"""

import asyncio
import hmac
import itertools
import json
import os
import socket
import sys
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from understudy.core.errors import ConfigError, RolloutError, TaskError
from understudy.core.event_loop import run_async
from understudy.core.messages import message_from_openai, message_to_openai, tool_to_openai
from understudy.core.tasks import SPLITS, Task
from understudy.core.trajectory import Trajectory
from understudy.core.user_code import user_code
from understudy.envs.environment import Environment, StepResult
from understudy.envs.task_source import TaskSource, find_policy
from understudy.rollouts.rollout import DEFAULT_LIMITS, EpisodeEnvironment
from understudy.sources.loading import load_source

KEY_VARIABLE = "UNDERSTUDY_EPISODES_KEY"


class EpisodeServer:
    """The episodes of a source that are played now."""

    def __init__(self, source: TaskSource, key: str) -> None:
        self._source, self._key = source, key
        self._tasks: dict[str, Task] = {task.id: task for split in SPLITS for task in source.tasks(split)}
        self._open = dict[str, tuple[Environment, EpisodeEnvironment]]()
        self._numbers = itertools.count(1)

    @property
    def app(self) -> Starlette:
        """The ASGI application."""
        answers = {"/start": self._start, "/step": self._step, "/grade": self._grade, "/close": self._close}
        posts = [Route(path, self._answering(answer), methods=["POST"]) for path, answer in answers.items()]
        return Starlette(routes=[Route("/tasks", self._answering(self._list)), *posts])

    def _answering(self, answer: Any) -> Any:
        async def respond(request: Request) -> JSONResponse:
            given = request.headers.get("authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {self._key}".encode()):
                raise HTTPException(401, f"the key of {KEY_VARIABLE} is needed")
            body = {**request.query_params} if request.method == "GET" else await request.json()
            try:
                return JSONResponse(await answer(body))
            except KeyError as e:
                raise HTTPException(404, f"{request.url.path} needs a known {e}") from e
            except (RolloutError, TaskError, ConfigError) as e:
                raise HTTPException(500, str(e)) from e

        return respond

    async def _list(self, body: Any) -> Any:
        tasks = [task for task in self._tasks.values() if task.split == body["split"]]
        return [
            {"id": task.id, "policy": find_policy(self._source, task), "opening": task.scenario.opening}
            for task in tasks
        ]

    async def _start(self, body: Any) -> Any:
        task = self._tasks[body["task"]]
        with user_code("environment", "the environment", self._source):
            environment = self._source.environment(task, seed=body["seed"])
        played = EpisodeEnvironment(environment, DEFAULT_LIMITS, Trajectory(task.id))
        try:
            step = await played.start()
        except RolloutError:
            await environment.close()
            raise
        number = str(next(self._numbers))
        self._open[number] = environment, played
        return {"episode": number, "tools": list(map(tool_to_openai, played.tools)), **_to_wire(step)}

    async def _step(self, body: Any) -> Any:
        return _to_wire(await self._open[body["episode"]][1].step(message_from_openai(body["message"])))

    async def _grade(self, body: Any) -> Any:
        return {"reward": (await self._open[body["episode"]][1].grade(ended=False)).reward}

    async def _close(self, body: Any) -> Any:
        await self._open.pop(body["episode"])[0].close()
        return {}


def _to_wire(step: StepResult) -> dict[str, Any]:
    reward = step.score.reward if step.score else None
    return {"messages": list(map(message_to_openai, step.messages)), "reward": reward}


async def serve(source: TaskSource, key: str) -> None:
    """Serve the episodes of a source until stdin is closed."""
    listener = socket.create_server(("127.0.0.1", 0))
    app = EpisodeServer(source, key).app
    # The agent's model may think for longer than the default, after which an idle connection would be closed.
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_keep_alive=75))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await serving


def main() -> int:
    """Run the program. Return the exit code 2, with one line on stderr, for a source that cannot be loaded."""
    try:
        run_async(serve(load_source(sys.argv[1]), os.environ[KEY_VARIABLE]))
    except (ConfigError, TaskError) as e:
        print(e, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
