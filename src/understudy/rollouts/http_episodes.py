"""Episodes over plain HTTP, for the tasks that `data/harbor_tasks.py` writes. Clients choose the names of episodes.

    POST /episodes/NAME/call  {task, lock, tool, arguments} -> {result} or {error}
    POST /episodes/NAME/grade {task, key}                   -> {reward}

The first request starts the episode. A call without a tool returns the user's first message. `lock` is the SHA-256
digest of the key, so that a client that plays an episode cannot read its reward.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from understudy.core.errors import RolloutError, ToolError
from understudy.core.messages import ToolCall
from understudy.core.tasks import SPLITS, Task
from understudy.envs.task_source import TaskSource
from understudy.rollouts.exposed_episode import ExposedEpisode


@dataclass
class _OpenEpisode:
    episode: ExposedEpisode
    task: str
    lock: str
    opening: str
    is_graded: bool = False


class HTTPEpisodes:
    """The episodes of a source. At most `max_episodes` wait for their grade."""

    def __init__(self, source: TaskSource, max_episodes: int) -> None:
        self._source, self._max_episodes = source, max_episodes
        self._tasks: dict[str, Task] = {task.id: task for split in SPLITS for task in source.tasks(split)}
        self._open = dict[str, _OpenEpisode]()
        self._opening = asyncio.Lock()

    @property
    def routes(self) -> Sequence[Route]:
        """The routes of the server."""
        paths = {"/episodes/{name}/call": self._call, "/episodes/{name}/grade": self._grade}
        return [Route(path, answer, methods=["POST"]) for path, answer in paths.items()]

    async def _call(self, request: Request) -> JSONResponse:
        body = await _read_texts(request, "task", "lock", "tool")
        opened = await self._find(request, body["task"], body["lock"])
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
        opened = await self._find(request, body["task"], hashlib.sha256(body["key"].encode()).hexdigest())
        try:
            score = await opened.episode.grade()
        except RolloutError as e:
            raise HTTPException(500, str(e)) from e
        opened.is_graded = True
        return JSONResponse({"reward": score.reward})

    async def _find(self, request: Request, task: str, lock: str) -> _OpenEpisode:
        """Return the episode of a request, which this starts if it is new."""
        name = request.path_params["name"]
        async with self._opening:
            if name not in self._open:
                self._open[name] = await self._start(task, lock)
        found = self._open[name]
        if found.task != task or not hmac.compare_digest(found.lock.encode(), lock.encode()):
            raise HTTPException(403, f"the episode {name} has another task or key")
        return found

    async def _start(self, task: str, lock: str) -> _OpenEpisode:
        if task not in self._tasks:
            raise HTTPException(404, f"{self._source.name} has no task {task!r}")
        if len(self._open) >= self._max_episodes:
            ended = next((name for name, opened in self._open.items() if opened.is_graded), None)
            if ended is None:
                raise HTTPException(503, f"{self._max_episodes} episodes are open; raise --concurrency")
            await self._open.pop(ended).episode.close()
        episode = ExposedEpisode(self._source, self._tasks[task])
        try:
            return _OpenEpisode(episode, task, lock, await episode.start())
        except RolloutError as e:
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
