"""OpenEnv environments (github.com/huggingface/OpenEnv) on a server: `openenv:URL`, or `openenv:URL#reward_range=-1:1`.

Each episode is a WebSocket session. What the server says about its environment decides how the agent acts: the tools of
an MCP environment are tools, an action with one text is the text of a reply, and any other action is the tool `step`.
Tasks are those of the server's task API (`reset(split=…, index=…)`), or seeds if it has none.

If the server has no free session, an episode waits for one: a server has only one unless it is started with more.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2

from understudy.clients.endpoint import validate_proxies
from understudy.core.errors import ConfigError, RolloutError, ToolError, did_you_mean, install_hint
from understudy.core.event_loop import LoopLocal
from understudy.core.messages import ToolCall, ToolSpec
from understudy.core.tasks import Split
from understudy.envs.tools import simplify_schema
from understudy.sources.environments.gym import SEEDS, UNIT_RANGE, GymObservation, GymSource, Rows, parse_reward_range

REQUEST_SECONDS = 30.0
"""Time limit of a request for the description of an environment."""
MAX_MESSAGE_BYTES = 100 * 2**20
"""Largest message, as in OpenEnv's own client."""
RETRY_SECONDS = 0.5
"""Wait before the next try for a session, of which other programs may have the last."""
_OPTIONS = ("reward_range",)
_SPLIT_TYPES: Mapping[str, Split] = {"train": "train", "validation": "validation", "test": "test"}


def open_domain(reference: str) -> GymSource:
    """Return the tasks of the environment at `URL` or `URL#reward_range=LOW:HIGH`.

    Raise ConfigError if no OpenEnv server answers there.
    """
    url, _, fragment = reference.partition("#")
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise ConfigError(f"openenv:{reference}: give the address of a server, such as openenv:http://127.0.0.1:8000")
    options = dict(parse_qsl(fragment, keep_blank_values=True))
    for name in options.keys() - {*_OPTIONS}:
        raise ConfigError(f"openenv:{reference}: unknown option {did_you_mean(name, _OPTIONS)}")
    try:
        import websockets.asyncio.client  # noqa: F401
    except ModuleNotFoundError as e:
        raise ConfigError(f"openenv: needs websockets; {install_hint('openenv')}") from e
    server = _OpenEnvServer.describe(url.rstrip("/"))
    declared = options.get("reward_range")
    return GymSource(
        server.name,
        lambda row: _OpenEnvSession(server, row),
        server.specs,
        server.description,
        _read_tasks(server),
        UNIT_RANGE if declared is None else parse_reward_range(server.name, declared.split(":")),
    )


@dataclass(frozen=True)
class _OpenEnvServer:
    """A server, and what it says about its environment."""

    url: str
    name: str
    description: str
    specs: Sequence[ToolSpec]
    text_field: str = ""
    """The one field of an action, which is a text; empty if actions are calls."""
    is_mcp: bool = False
    slots: LoopLocal["_Slots"] = field(default_factory=lambda: LoopLocal(_Slots))

    @classmethod
    def describe(cls, url: str) -> "_OpenEnvServer":
        """Ask a server for its environment. Raise ConfigError if it does not answer as OpenEnv does."""
        about, schemas = _request(url, "/metadata"), _request(url, "/schema")
        try:
            name, action = str(about["name"]), schemas["action"]
            properties = {key: value for key, value in action["properties"].items() if key != "metadata"}
        except (KeyError, TypeError, AttributeError) as e:
            raise ConfigError(f"{url} is no OpenEnv server: its /metadata and /schema have no {e}") from e
        text = str(about.get("description") or "")
        text = "" if text == f"{name} environment" else text  # OpenEnv's default
        if not properties or {*properties} == {"type", "tool_name", "arguments"}:
            return cls(url, name, text, _list_tools(url), is_mcp=True)
        only, schema = next(iter(properties.items()))
        if len(properties) == 1 and schema.get("type") == "string" and "enum" not in schema:
            return cls(url, name, text, (), text_field=only)
        kept = {key: value for key, value in action.items() if key not in ("title", "description")}
        spec = ToolSpec(
            name="step",
            description=action.get("description", "Take an action."),
            parameters=simplify_schema({**kept, "properties": properties}),
        )
        return cls(url, name, text, (spec,))

    def to_action(self, action: str | ToolCall) -> dict[str, Any]:
        """Return the JSON of an action."""
        if isinstance(action, str):
            return {self.text_field: action}
        if self.is_mcp:
            return {"type": "call_tool", "tool_name": action.name, "arguments": action.arguments}
        return action.arguments


class _Slots:
    """The sessions that the server accepts at once, as far as it has said. An episode waits for a free one."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._num_open, self._limit = 0, 2**31

    async def take(self) -> None:
        """Wait for a session that may be free."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._num_open < self._limit)
            self._num_open += 1

    async def give_back(self, limit: int | None = None) -> None:
        """Give a session back. `limit` is the number that the server has named when it refused it."""
        async with self._changed:
            self._num_open -= 1
            self._limit = max(1, limit) if limit else self._limit
            self._changed.notify()


class _OpenEnvSession:
    """One episode: a WebSocket connection."""

    def __init__(self, server: _OpenEnvServer, row: Mapping[str, Any]) -> None:
        self._server, self._row = server, row
        self._socket: Any = None

    async def reset(self) -> GymObservation:
        """Open a session, and return the first observation."""
        while True:
            await self._server.slots.get().take()
            answer: Mapping[str, Any] = {}
            try:
                answer = await self._open()
            finally:
                if not answer or answer.get("type") == "error":
                    await self._close_socket()
                    await self._server.slots.get().give_back(answer.get("data", {}).get("max_sessions"))
            if answer.get("type") != "error":
                return self._observe(answer)
            if answer["data"].get("code") != "CAPACITY_REACHED":
                raise self._fault(f"reset failed: {answer['data'].get('message')}")
            await asyncio.sleep(RETRY_SECONDS)

    async def step(self, action: str | ToolCall) -> GymObservation:
        """Return the observation after an action. Raise `ToolError` if its fields are wrong, or if its tool fails."""
        answer = await self._ask({"type": "step", "data": self._server.to_action(action)})
        if answer["type"] == "error":
            data = answer["data"]
            if data.get("code") == "VALIDATION_ERROR":
                raise ToolError(_explain_errors(data), "invalid_arguments")
            raise self._fault(f"step failed: {data.get('message')}")
        if error := answer["data"]["observation"].get("error") if self._server.is_mcp else None:
            raise ToolError(str(error.get("message", error)) if isinstance(error, dict) else str(error))
        return self._observe(answer)

    async def close(self) -> None:
        """Close the session."""
        if self._socket is not None:
            await self._close_socket()
            await self._server.slots.get().give_back()

    async def _open(self) -> Mapping[str, Any]:
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException

        address = f"ws{self._server.url.removeprefix('http')}/ws"
        try:
            self._socket = await connect(address, max_size=MAX_MESSAGE_BYTES, open_timeout=REQUEST_SECONDS)
        except (OSError, TimeoutError, WebSocketException) as e:
            raise self._fault(f"no session: {type(e).__name__} {e}") from e
        return await self._ask({"type": "reset", "data": dict(self._row)})

    async def _close_socket(self) -> None:
        from websockets.exceptions import WebSocketException

        socket, self._socket = self._socket, None
        if socket is not None:
            with suppress(OSError, WebSocketException):
                await socket.send(json.dumps({"type": "close"}))
            await socket.close()

    async def _ask(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        from websockets.exceptions import ConnectionClosed, WebSocketException

        try:
            with suppress(ConnectionClosed):  # a server without a free session says so, and closes, before it is asked
                await self._socket.send(json.dumps(message))
            answer = json.loads(await self._socket.recv())
            if answer["type"] == "error":
                return {"type": "error", "data": answer["data"]}
            return {"type": "observation", "data": {**answer["data"], "observation": {**answer["data"]["observation"]}}}
        except (OSError, WebSocketException) as e:
            raise self._fault(f"the connection is lost: {type(e).__name__} {e}") from e
        except (ValueError, KeyError, TypeError) as e:
            raise self._fault(f"an answer is not of OpenEnv's protocol: {type(e).__name__} {e}") from e

    def _observe(self, answer: Mapping[str, Any]) -> GymObservation:
        data = answer["data"]
        return GymObservation(
            _to_text(data["observation"]), float(data.get("reward") or 0.0), bool(data.get("done", False))
        )

    def _fault(self, problem: str) -> RolloutError:
        return RolloutError(f"OpenEnv environment at {self._server.url}: {problem}", "environment")


def _request(url: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """Return the JSON of a response. Raise ConfigError if the server cannot be reached or refuses the request."""
    validate_proxies()
    try:
        with httpx2.Client(timeout=REQUEST_SECONDS) as client:
            answer = client.get(url + path) if body is None else client.post(url + path, json=body)
            return answer.raise_for_status().json()
    except (httpx2.HTTPError, ValueError) as e:
        raise ConfigError(
            f"{url}{path} does not answer as an OpenEnv server: {e}; start the server, and give its address"
        ) from e


def _list_tools(url: str) -> tuple[ToolSpec, ...]:
    answer = _request(url, "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})
    try:
        return tuple(
            ToolSpec(
                name=tool["name"],
                description=tool.get("description") or "",
                parameters=simplify_schema(tool.get("inputSchema") or tool["input_schema"]),
            )
            for tool in answer["result"]["tools"]
        )
    except (KeyError, TypeError) as e:
        raise ConfigError(f"{url}/mcp lists no tools: {json.dumps(answer)[:200]}") from e


def _read_tasks(server: _OpenEnvServer) -> Rows:
    """Return the tasks of the task API, which a server without one refuses with status 501 or 404."""
    with httpx2.Client(timeout=REQUEST_SECONDS) as client:
        listed = client.get(f"{server.url}/list_environments")
        path = f"/{listed.json()[0]}" if listed.is_success else ""
        if not path or client.get(f"{server.url}{path}/splits").status_code in (404, 501):
            return SEEDS
    rows: dict[Split, dict[str, Mapping[str, Any]]] = {}
    for split in _request(server.url, f"{path}/splits"):
        count = _request(server.url, f"{path}/num_tasks", {"split": split["name"]})["num_tasks"]
        named = {f"{split['name']}-{index}": {"split": split["name"], "index": index} for index in range(count)}
        rows.setdefault(_SPLIT_TYPES.get(split["type"], "validation"), {}).update(named)
    return rows


def _to_text(observation: Mapping[str, Any]) -> str:
    """Return an observation as the agent reads it: its only text, or JSON of what is not empty."""
    shown = {key: value for key, value in observation.items() if key != "metadata" and value not in (None, "", [], {})}
    if "tool_name" in shown and "result" in shown:
        shown = {"result": _result_text(shown["result"])}
    shown = shown or dict(observation.get("metadata") or {})
    (only,) = shown.values() if len(shown) == 1 else (None,)
    return only if isinstance(only, str) else json.dumps(shown, ensure_ascii=False)


def _result_text(result: Any) -> Any:
    """Return the text of an MCP result, or the result itself if it is none."""
    content = result.get("content") if isinstance(result, dict) else None
    parts = content if isinstance(content, list) else []
    found = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return "\n".join(found) if found else result


def _explain_errors(data: Mapping[str, Any]) -> str:
    errors = [error for error in data.get("errors") or () if isinstance(error, dict)]
    found = (f"{'.'.join(map(str, error.get('loc', ())))}: {error.get('msg')}" for error in errors)
    return "; ".join(found) or str(data.get("message"))
