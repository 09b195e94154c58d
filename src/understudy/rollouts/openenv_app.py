"""A source of tasks as a server of OpenEnv 0.10.

    app = openenv_app(understudy.load("retail"))        # or in a shell: understudy serve-env retail

It is an MCP environment, whose tools are those of the source, and `send_message` to the user. Each WebSocket is an
episode, of the task that `reset` names by `split` and `index`, `task_id` or `seed`. The last step has the reward.
"""

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from understudy.core.errors import ConfigError, RolloutError, TaskError, ToolError, install_hint
from understudy.core.messages import ToolCall, ToolSpec
from understudy.core.tasks import SPLITS, Task
from understudy.envs.task_source import TaskSource, find_policy
from understudy.rollouts.exposed_episode import ExposedEpisode, find_message_tool
from understudy.serve.access import AccessMiddleware
from understudy.serve.options import ServeConfig
from understudy.serve.server import make_server, open_socket

_ACTION = {
    "type": "object",
    "title": "CallToolAction",
    "properties": {
        "metadata": {"type": "object"},
        "type": {"const": "call_tool", "type": "string"},
        "tool_name": {"type": "string"},
        "arguments": {"type": "object"},
    },
    "required": ["tool_name"],
}
_OBSERVATION = {"type": "object", "properties": {"tool_name": {"type": "string"}, "result": {}, "error": {}}}


def openenv_app(source: TaskSource, max_concurrent_envs: int = 64) -> Starlette:
    """Return the ASGI application. At most `max_concurrent_envs` episodes are played at once."""
    server = _EpisodeServer(source, max_concurrent_envs)
    environment = f"/{source.name}"
    return Starlette(
        routes=[
            Route("/health", _answers({"status": "healthy"})),
            Route("/metadata", _answers({"name": source.name, "description": source.domain_policy or source.name})),
            Route("/schema", _answers({"action": _ACTION, "observation": _OBSERVATION, "state": {"type": "object"}})),
            Route("/list_environments", _answers([source.name])),
            Route(f"{environment}/splits", _answers([{"name": split, "type": split} for split in SPLITS])),
            Route(f"{environment}/num_tasks", server.num_tasks, methods=["POST"]),
            Route(f"{environment}/tasks", server.list_tasks, methods=["POST"]),
            Route(f"{environment}/task", server.get_task, methods=["POST"]),
            Route("/mcp", server.list_tools, methods=["POST"]),
            WebSocketRoute("/ws", server.play),
        ]
    )


async def serve_openenv(source: TaskSource, config: ServeConfig, on_message: Callable[[str], None]) -> None:
    """Serve a source until interrupted. `on_message` receives the address. Raise ConfigError without websockets."""
    if not importlib.util.find_spec("websockets"):
        raise ConfigError(f"a server of OpenEnv needs websockets; {install_hint('openenv')}")
    await serve_app(source.name, openenv_app(source, config.concurrency), config, on_message, ws="websockets-sansio")


async def serve_app(
    name: str,
    app: Starlette,
    config: ServeConfig,
    on_message: Callable[[str], None],
    ws: Literal["none", "websockets-sansio"] = "none",
) -> None:
    """Serve the episodes of a source until interrupted. `on_message` receives the address."""
    with open_socket(config) as listener:
        if not config.is_loopback:
            on_message(f"anyone who can reach {config.host} can play in this environment")
        host = f"[{config.host}]" if ":" in config.host else config.host
        on_message(f"{name} is served at http://{host}:{listener.getsockname()[1]}; press Ctrl-C to stop")
        await make_server(AccessMiddleware(app, config, ""), ws=ws).serve([listener])


def _answers(value: Any) -> Any:
    async def answer(request: Request) -> JSONResponse:
        return JSONResponse(value)

    return answer


class _EpisodeServer:
    def __init__(self, source: TaskSource, max_sessions: int) -> None:
        self._source, self._max_sessions = source, max_sessions
        self._tasks: Mapping[str, Sequence[Task]] = {split: source.tasks(split) for split in SPLITS}
        self._specs = [*source.tool_specs, find_message_tool(source.tool_specs)]
        self._num_sessions = 0

    async def num_tasks(self, request: Request) -> JSONResponse:
        return JSONResponse({"num_tasks": len(await self._find_split(request))})

    async def list_tasks(self, request: Request) -> JSONResponse:
        tasks = await self._find_split(request)
        return JSONResponse({"tasks": [_describe(task) for task in tasks], "env_name": self._source.name})

    async def get_task(self, request: Request) -> JSONResponse:
        tasks, index = await self._find_split(request), (await _read_body(request)).get("index")
        if not isinstance(index, int) or not 0 <= index < len(tasks):
            raise HTTPException(400, "Invalid task index")
        return JSONResponse({"task": _describe(tasks[index])})

    async def _find_split(self, request: Request) -> Sequence[Task]:
        split = (await _read_body(request)).get("split")
        if not isinstance(split, str) or split not in self._tasks:
            raise HTTPException(400, f"unknown split {split!r}; allowed: {', '.join(SPLITS)}")
        return self._tasks[split]

    async def list_tools(self, request: Request) -> JSONResponse:
        body = await _read_body(request)
        answer = {"jsonrpc": "2.0", "id": body.get("id")}
        if body.get("method") == "tools/list":
            return JSONResponse({**answer, "result": {"tools": [_wire_tool(spec) for spec in self._specs]}})
        problem = "only tools/list is served here; call tools by steps of a session"
        return JSONResponse({**answer, "error": {"code": -32601, "message": problem}})

    async def play(self, socket: WebSocket) -> None:
        """Play the episodes of a session, up to its end."""
        await socket.accept()
        if self._num_sessions >= self._max_sessions:
            data = {"message": "no free session", "active_sessions": self._num_sessions}
            await _refuse(socket, "CAPACITY_REACHED", {**data, "max_sessions": self._max_sessions})
            await socket.close()
            return
        self._num_sessions += 1
        session = _EpisodeSession(self._source, self._tasks, self._specs)
        try:
            while await session.answer(socket, await socket.receive_text()):
                pass
            await socket.close()
        except WebSocketDisconnect:
            pass
        finally:
            self._num_sessions -= 1
            await session.close()


class _EpisodeSession:
    def __init__(self, source: TaskSource, tasks: Mapping[str, Sequence[Task]], specs: Sequence[ToolSpec]) -> None:
        self._source, self._tasks, self._specs = source, tasks, specs
        self._episode: ExposedEpisode | None = None
        self._task: Task | None = None
        self._num_steps = 0

    async def close(self) -> None:
        if self._episode is not None:
            await self._episode.close()

    async def answer(self, socket: WebSocket, text: str) -> bool:
        """Answer a message. Return False if it ends the session."""
        try:
            message = _read_object(text)
            data = message.get("data") or {}
            if not isinstance(data, dict):
                raise _InvalidError("data must be an object")
            match message.get("type"):
                case "close":
                    return False
                case "reset":
                    await _send(socket, "observation", await self._reset(data))
                case "step":
                    await _send(socket, "observation", await self._step(data))
                case "state":
                    state = {"episode_id": self._task.id if self._task else None, "step_count": self._num_steps}
                    await _send(socket, "state", state)
                case unknown:
                    await _refuse(socket, "UNKNOWN_TYPE", {"message": f"Unknown message type: {unknown}"})
        except _InvalidError as e:
            await _refuse(socket, "VALIDATION_ERROR", {"message": str(e), "errors": [{"loc": [], "msg": str(e)}]})
        except (ConfigError, RolloutError, TaskError) as e:
            await _refuse(socket, "EXECUTION_ERROR", {"message": str(e)})
        return True

    async def _reset(self, data: Mapping[str, Any]) -> dict[str, Any]:
        seed = data.get("seed") or 0
        if not isinstance(seed, int):
            raise _InvalidError(f"seed must be a whole number, and not {seed!r:.60}")
        task = self._find_task(data, seed)
        await self.close()
        self._task = task
        self._episode = ExposedEpisode(self._source, task, seed)
        self._num_steps = 0
        message = await self._episode.start()
        policy = find_policy(self._source, task)
        shown = {"system": policy, "message": message}
        return self._observe({key: value for key, value in shown.items() if value})

    def _find_task(self, data: Mapping[str, Any], seed: int) -> Task:
        if "task_id" in data:
            found = [task for tasks in self._tasks.values() for task in tasks if task.id == data["task_id"]]
            if not found:
                raise _InvalidError(f"unknown task {data['task_id']!r}")
            return found[0]
        tasks = self._tasks.get(str(data.get("split", "train")), ())
        index = data["index"] if "index" in data else seed % max(1, len(tasks))
        if not isinstance(index, int) or not 0 <= index < len(tasks):
            raise _InvalidError(f"there is no task {index!r} of the split {data.get('split', 'train')!r}")
        return tasks[index]

    async def _step(self, data: Mapping[str, Any]) -> dict[str, Any]:
        if self._episode is None:
            raise _InvalidError("send a reset first")
        if data.get("type") == "list_tools":
            return self._observe({"tools": [_wire_tool(spec, "input_schema") for spec in self._specs]})
        name, arguments = data.get("tool_name"), data.get("arguments") or {}
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise _InvalidError("an action has a tool_name, and arguments by their names")
        self._num_steps += 1
        result: dict[str, Any] = {"tool_name": name, "result": None, "error": None}
        try:
            result["result"] = await self._episode.call(ToolCall(name=name, arguments=arguments))
        except ToolError as e:
            result["error"] = {"error_type": "execution_error", "message": str(e)}
        if self._episode.failure:
            raise self._episode.failure
        return self._observe(result)

    def _observe(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        score = self._episode.score if self._episode else None
        return {"observation": observation, "reward": score.reward if score else None, "done": score is not None}


class _InvalidError(Exception):
    """A message of a client is not valid."""


def _read_object(text: str | bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise _InvalidError(f"a message must be JSON: {e}") from e
    if not isinstance(value, dict):
        raise _InvalidError("a message must be a JSON object")
    return value


async def _read_body(request: Request) -> dict[str, Any]:
    try:
        return _read_object(await request.body())
    except _InvalidError as e:
        raise HTTPException(400, str(e)) from e


async def _send(socket: WebSocket, type: str, data: Mapping[str, Any]) -> None:
    await socket.send_text(json.dumps({"type": type, "data": data}))


async def _refuse(socket: WebSocket, code: str, data: Mapping[str, Any]) -> None:
    await _send(socket, "error", {"code": code, **data})


def _wire_tool(spec: ToolSpec, key: str = "inputSchema") -> dict[str, Any]:
    return {"name": spec.name, "description": spec.description, key: spec.parameters}


def _describe(task: Task) -> dict[str, Any]:
    return {"id": task.id, "family": task.family, "difficulty": task.difficulty}
