"""Episodes over plain HTTP, for the tasks that `data/harbor_tasks.py` writes. Clients choose the names of episodes.

    POST /episodes/NAME/call  {task, tool, arguments} -> {result} or {error}
    POST /episodes/NAME/grade {task, key}             -> {reward}

The first request starts the episode. A call without a tool returns the user's first message. Only `grade` tells a
reward, to those who have the key: agents have not.
"""

import asyncio
import hmac
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from understudy.core.errors import ConfigError, RolloutError, TaskError, ToolError
from understudy.core.messages import ToolCall
from understudy.core.tasks import SPLITS, Task
from understudy.envs.task_source import TaskSource
from understudy.rollouts.exposed_episode import ExposedEpisode


@dataclass
class _OpenEpisode:
    episode: ExposedEpisode
    task: str
    opening: str
    is_graded: bool = False


class HTTPEpisodes:
    """The episodes of a source. At most `max_episodes` wait for their grade."""

    def __init__(self, source: TaskSource, key: str, max_episodes: int = 64) -> None:
        self._source, self._key, self._max_episodes = source, key, max_episodes
        self._tasks: dict[str, Task] = {task.id: task for split in SPLITS for task in source.tasks(split)}
        self._open = dict[str, _OpenEpisode]()
        self._opening = asyncio.Lock()

    @property
    def app(self) -> Starlette:
        """The ASGI application."""
        paths = {"/episodes/{name}/call": self._call, "/episodes/{name}/grade": self._grade}
        return Starlette(routes=[Route(path, answer, methods=["POST"]) for path, answer in paths.items()])

    async def _call(self, request: Request) -> JSONResponse:
        body = await _read_texts(request, "task", "tool")
        opened = await self._find(request, body["task"])
        if not body["tool"]:
            return JSONResponse({"result": opened.opening})
        arguments = body.get("arguments", {})
        if not isinstance(arguments, dict):
            return JSONResponse({"error": "arguments must be a JSON object"})
        try:
            return JSONResponse({"result": await opened.episode.call(ToolCall(name=body["tool"], arguments=arguments))})
        except ToolError as e:
            return JSONResponse({"error": str(e)})

    async def _grade(self, request: Request) -> JSONResponse:
        body = await _read_texts(request, "task", "key")
        if not hmac.compare_digest(body["key"].encode(), self._key.encode()):
            raise HTTPException(403, "the key is another one; export the tasks and serve them with the same folder")
        opened = await self._find(request, body["task"])
        try:
            score = await opened.episode.grade()
        except (ConfigError, RolloutError, TaskError) as e:
            raise HTTPException(500, str(e)) from e
        opened.is_graded = True
        return JSONResponse({"reward": score.reward})

    async def _find(self, request: Request, task: str) -> _OpenEpisode:
        """Return the episode of a request, which this starts if it is new."""
        name = request.path_params["name"]
        async with self._opening:
            if name not in self._open:
                self._open[name] = await self._start(task)
        found = self._open[name]
        if found.task != task:
            raise HTTPException(403, f"the episode {name} is of another task")
        return found

    async def _start(self, task: str) -> _OpenEpisode:
        if task not in self._tasks:
            raise HTTPException(404, f"{self._source.name} has no task {task!r}")
        if len(self._open) >= self._max_episodes:
            ended = next((name for name, opened in self._open.items() if opened.is_graded), None)
            if ended is None:
                raise HTTPException(503, f"{self._max_episodes} episodes are open; raise --concurrency")
            await self._open.pop(ended).episode.close()
        episode = ExposedEpisode(self._source, self._tasks[task])
        try:
            return _OpenEpisode(episode, task, await episode.start())
        except (ConfigError, RolloutError, TaskError) as e:
            await episode.close()
            raise HTTPException(500, str(e)) from e


async def _read_texts(request: Request, *keys: str) -> dict[str, Any]:
    """Return the JSON object of a request, in which these keys have texts."""
    try:
        body = await request.json()
    except (ValueError, RecursionError) as e:
        raise HTTPException(400, f"the body must be JSON: {e}") from e
    if not isinstance(body, dict) or not all(isinstance(body.get(key), str) for key in keys):
        raise HTTPException(400, f"the body must be an object with the texts {', '.join(keys)}")
    return body
