"""Resources servers of NeMo Gym (github.com/NVIDIA-NeMo/Gym): `nemo-gym:URL#ROWS`, or `…#ROWS&reward_range=-1:1`.

ROWS is a file or a folder of the server's rows, or `hf:owner/name`. Each episode is a session, which the server's
cookies name: `/seed_session` gets the row, a call of the tool NAME is a request to `/NAME`, and `/verify` gets the row
with all that the agent wrote, and returns the reward, also if a limit ends the episode. The loop is that of NeMo Gym's
`simple_agent`: the first reply without calls ends the episode. Sampling settings of rows have
no effect, and thoughts of earlier turns are not shown.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2

from understudy.clients.endpoint import validate_proxies
from understudy.core.errors import ConfigError, RolloutError, ToolError, did_you_mean
from understudy.core.items import InvalidField, Item, RowError, items_or_raise
from understudy.core.messages import Message, ToolCall, ToolSpec, message_from_openai
from understudy.core.tasks import SPLITS, Split, assign_splits
from understudy.envs.tools import simplify_schema
from understudy.sources.environments.graded import GradedSource, list_specs
from understudy.sources.environments.gym import UNIT_RANGE, Rows, parse_reward_range
from understudy.sources.row_messages import normalize_messages, normalize_tool
from understudy.sources.task_files.files import list_row_files

REQUEST_SECONDS = 30.0
"""Time limit of the request for the description of a server."""
PREFIX = "nemo-gym:"
_OWN_PATHS = ("verify", "seed_session", "close_session", "aggregate_metrics", "reverify_mode", "mcp")
_TOOL_NAME = re.compile(r"\w[\w.-]*")
_PARAMS = "responses_create_params"


def open_domain(reference: str) -> GradedSource:
    """Return the tasks of `URL#ROWS`. Raise ConfigError for a wrong row, and if no resources server answers there."""
    url, _, rest = reference.partition("#")
    path, _, listed = rest.partition("&")
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname or not path:
        raise ConfigError(
            f"{PREFIX}{reference}: give the address of a resources server and a file of its rows, such as "
            f"{PREFIX}http://127.0.0.1:8000#train.jsonl"
        )
    options = dict(parse_qsl(listed, keep_blank_values=True))
    for option in options.keys() - {"reward_range"}:
        raise ConfigError(f"{PREFIX}{reference}: unknown option {did_you_mean(option, ('reward_range',))}")
    url = url.rstrip("/")
    _require_resources_server(url)
    name, rows = f"nemo-gym-{Path(path).stem}", _read_rows(path)
    declared = options.get("reward_range")
    return GradedSource(
        name,
        lambda row: _NemoGymSession(url, row),
        list_specs([_NemoGymSession(url, row) for each in rows.values() for row in each.values()]),
        rows=rows,
        reward_range=UNIT_RANGE if declared is None else parse_reward_range(name, declared.split(":")),
    )


class _NemoGymSession:
    """A session of the server."""

    def __init__(self, url: str, row: Mapping[str, Any]) -> None:
        self.row, self._url = row, url
        self._client: httpx2.AsyncClient | None = None

    def specs(self) -> Sequence[ToolSpec]:
        """Return the tools of the row."""
        return _read_tools(self.row)

    def prompt(self) -> Sequence[Message]:
        """Return the messages of the row."""
        return _read_messages(self.row)

    def gold(self) -> Sequence[Message]:
        """Return nothing: only the server knows what earns the reward."""
        return ()

    async def start(self) -> None:
        """Open the session with the row."""
        self._client = httpx2.AsyncClient(timeout=None, verify=self._url.startswith("https"))
        await self._request("seed_session", self.row, "environment")

    async def call(self, call: ToolCall) -> str:
        """Return the text of the response. Raise `ToolError` if the server refuses the call."""
        response = await self._post(call.name, call.arguments, "environment")
        if not response.is_success:
            is_invalid = response.status_code == httpx2.codes.UNPROCESSABLE_CONTENT
            raise ToolError(response.text, "invalid_arguments" if is_invalid else "refused")
        return response.text

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """Return None, which ends the episode."""
        return None

    async def grade(self, written: Sequence[Message]) -> float:
        """Return the reward. Raise RolloutError if the server has none, as when its judge fails."""
        given = self.row[_PARAMS]
        response = {
            "id": "resp_0",
            "object": "response",
            "created_at": 0,
            "model": "understudy",
            "output": [item for place, message in enumerate(written) for item in _output_items(place, message)],
            "tools": given.get("tools") or [],
            "tool_choice": given.get("tool_choice") or "auto",
            "parallel_tool_calls": given.get("parallel_tool_calls", True),
        }
        result = await self._request("verify", {**self.row, "response": response}, "grader")
        try:
            if result.get("mask_sample") or result.get("_ng_failure_class"):
                reason = result.get("failure_reason") or result.get("failure_kind") or result.get("_ng_failure_class")
                raise self._fault(f"/verify gives no reward: {reason}", "grader")
            return float(result["reward"])
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            raise self._fault(f"/verify returned no reward: {result!r:.200}", "grader") from e

    async def _request(self, path: str, body: Any, component: Any) -> Any:
        """Return the JSON of a response. Raise RolloutError if the server refuses the request."""
        response = await self._post(path, body, component)
        try:
            return response.raise_for_status().json()
        except (httpx2.HTTPError, ValueError) as e:
            raise self._fault(f"/{path}: status {response.status_code}: {response.text:.300}", component) from e

    async def close(self) -> None:
        """Close the connection. The server keeps the session."""
        if self._client is not None:
            await self._client.aclose()

    async def _post(self, path: str, body: Any, component: Any) -> httpx2.Response:
        assert self._client is not None
        try:
            return await self._client.post(f"{self._url}/{path}", json=body)
        except httpx2.HTTPError as e:
            raise self._fault(f"/{path}: {type(e).__name__} {e}", component) from e

    def _fault(self, problem: str, component: Any) -> RolloutError:
        return RolloutError(f"NeMo Gym server at {self._url}: {problem}", component)


def _require_resources_server(url: str) -> None:
    validate_proxies()
    try:
        with httpx2.Client(timeout=REQUEST_SECONDS) as client:
            paths = client.get(f"{url}/openapi.json").raise_for_status().json()["paths"]
    except (httpx2.HTTPError, ValueError, KeyError, TypeError) as e:
        problem = f"{url}/openapi.json does not answer as a server of NeMo Gym: {type(e).__name__} {e}"
        raise ConfigError(f"{problem}; start the resources server, and give its address") from e
    if "/step" in paths and "/reset" in paths:
        raise ConfigError(f"{url} is a Gymnasium server of NeMo Gym (/reset, /step), which is not supported")
    if missing := [path for path in ("/seed_session", "/verify") if path not in paths]:
        raise ConfigError(f"{url} is no resources server of NeMo Gym: it has no {missing[0]}; give the address of one")


def _read_rows(reference: str) -> Rows:
    """Return the rows by split and by name. The name of a file gives the split of its rows, else a hash of theirs."""
    files = list_row_files(reference)
    rows, given = dict[str, Mapping[str, Any]](), dict[str, Split | None]()
    for file in files:
        prefix = f"{Path(file.name).stem}-" if len(files) > 1 else ""
        for number, item in enumerate(items_or_raise(map(_validate_row, file.rows()))):
            rows[f"{prefix}{number}"], given[f"{prefix}{number}"] = item.value, file.split
    if not rows:
        raise ConfigError(f"{PREFIX}…#{reference} has no rows; name another file or folder")
    splits = assign_splits(given)
    return {split: {name: row for name, row in rows.items() if splits[name] == split} for split in SPLITS}


def _validate_row(item: Item[Any] | RowError) -> Item[Any] | RowError:
    if isinstance(item, RowError):
        return item
    try:
        if not isinstance(item.value, dict) or not isinstance(item.value.get(_PARAMS), dict):
            raise InvalidField(_PARAMS, "it is missing; give a row of NeMo Gym, with its prompt filled in")
        messages = _read_messages(item.value)
        if not any(message.role == "user" for message in messages) or messages[-1].role == "assistant":
            raise InvalidField(f"{_PARAMS}.input", "it must have a message of the user, and end before a reply")
        _read_tools(item.value)
    except InvalidField as e:
        return RowError(item.location, e.field, e.problem, e.kind)
    return item


def _read_messages(row: Mapping[str, Any]) -> list[Message]:
    """Return the conversation before the first reply. Raise InvalidField for an item that is not text or a call."""
    given = row[_PARAMS]
    items = given.get("input")
    items = [{"role": "user", "content": items}] if isinstance(items, str) else items
    if not isinstance(items, list):
        raise InvalidField(f"{_PARAMS}.input", "it must be a text or a list of items")
    system = [{"role": "system", "content": given["instructions"]}] if given.get("instructions") else []
    located = [(f"{_PARAMS}.input.{place}", item) for place, item in enumerate(items)]
    wire = [_to_wire(item, field) for field, item in located if not _is_thought(item)]
    return [message_from_openai(message) for message in normalize_messages([*system, *wire])]


def _is_thought(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "reasoning"


def _to_wire(item: Any, field: str) -> Any:
    """Return an item of the Responses API as a message of chat completions."""
    kind = item.get("type", "message") if isinstance(item, dict) else None
    try:
        if kind == "message":
            return {"role": item["role"], "content": item["content"]}
        if kind == "function_call":
            call = {"id": item["call_id"], "function": {"name": item["name"], "arguments": item["arguments"]}}
            return {"role": "assistant", "content": "", "tool_calls": [call]}
        if kind == "function_call_output":
            return {"role": "tool", "content": item["output"], "tool_call_id": item["call_id"]}
    except KeyError as e:
        raise InvalidField(field, f"it has no {e}") from e
    raise InvalidField(field, f"items of type {kind!r:.40} are not supported, only messages, calls and their results")


def _read_tools(row: Mapping[str, Any]) -> list[ToolSpec]:
    """Return the tools of a row. Raise InvalidField for one that is no function, or no path of the server."""
    specs = list[ToolSpec]()
    for place, given in enumerate(row[_PARAMS].get("tools") or ()):
        field, tool = f"{_PARAMS}.tools.{place}", normalize_tool(given)
        if not isinstance(tool, dict) or given.get("type") != "function" or not isinstance(tool["parameters"], dict):
            raise InvalidField(field, "it must be a function with a name and parameters")
        name = tool.get("name")
        if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name) or name in _OWN_PATHS:
            raise InvalidField(f"{field}.name", f"it is {name!r:.60}; it must be a name, and no path of the server")
        parameters = simplify_schema(tool["parameters"])
        specs.append(ToolSpec(name=name, description=str(tool["description"]), parameters=parameters))
    return specs


def _output_items(place: int, message: Message) -> Iterator[dict[str, Any]]:
    """Yield a message that was added to the conversation as items of a response."""
    if message.role == "tool":
        yield {"type": "function_call_output", "call_id": message.tool_call_id, "output": message.content}
        return
    if message.content or not message.tool_calls:
        part = {"type": "output_text", "text": message.content, "annotations": []}
        yield {
            "type": "message",
            "id": f"msg_{place}",
            "role": "assistant",
            "status": "completed",
            "content": [part],
        }
    for number, call in enumerate(message.tool_calls):
        yield {
            "type": "function_call",
            "id": f"fc_{place}_{number}",
            "call_id": call.id,
            "name": call.name,
            "arguments": json.dumps(call.arguments),
            "status": "completed",
        }
