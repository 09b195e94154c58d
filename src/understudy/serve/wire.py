"""Requests as the chat completions API takes them, checked whole before anything is done; refusals in its error shape.

Source: https://platform.openai.com/docs/api-reference/chat. What cannot be done is refused and never ignored: forced
calls, JSON modes, the likeliest other tokens. Parameters without an effect here (`user`, `metadata`) are taken.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from understudy.engines.base import Sampling
from understudy.messages import Message, ToolSpec, from_wire
from understudy.records import Record

DEEPEST = 64
"""How deep a request's JSON may be nested."""
_NEUTRAL: Mapping[str, Sequence[Any]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "store": (False,),
    "service_tier": ("auto", "default"),
}
"""Parameters whose effect is not offered, each with the values that ask for none."""
_NO_OBJECT = {"$ref", "enum", "const", "anyOf", "oneOf", "allOf"}
_NO_PARAMETERS = {"type": "object", "properties": {}}
_WITHOUT_EFFECT = ("user", "metadata", "safety_identifier", "prompt_cache_key")


class Refusal(Exception):
    """A request that is answered with an error; never raised beyond the server."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    @property
    def body(self) -> dict[str, Any]:
        """As the API words errors."""
        kinds = {401: "authentication_error", 429: "rate_limit_error", 503: "server_error"}
        kind = kinds.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


class _Wire(Record):
    model_config = ConfigDict(strict=True)


class Schema(_Wire):
    """What a tool's JSON Schema must be for a format to show it; other keywords pass."""

    model_config = ConfigDict(extra="allow")

    type: str | Annotated[list[str], Field(min_length=1)] | None = None
    description: str | None = None
    properties: "dict[str, Schema | bool] | None" = None
    required: list[str] | None = None
    items: "Schema | bool | None" = None
    enum: Annotated[list[Any], Field(min_length=1)] | None = None
    anyOf: "Annotated[list[Schema | bool], Field(min_length=1)] | None" = None
    oneOf: "Annotated[list[Schema | bool], Field(min_length=1)] | None" = None
    allOf: "Annotated[list[Schema | bool], Field(min_length=1)] | None" = None
    additionalProperties: "Schema | bool | None" = None
    defs: "dict[str, Schema | bool] | None" = Field(default=None, alias="$defs")
    ref: str | None = Field(default=None, alias="$ref")


class _Parameters(Schema):
    type: Literal["object"] = "object"

    @model_validator(mode="before")
    @classmethod
    def _is_plain(cls, value: Any) -> Any:
        if isinstance(value, dict) and (other := sorted(value.keys() & _NO_OBJECT)):
            raise ValueError(f"{other[0]} is not taken at the top of a tool's parameters, only properties")
        return value


def _as_sent(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Checked, and in the order in which it was sent: that is what the model is shown."""
    validate(value)
    return value


class _Function(_Wire):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
    description: str = ""
    parameters: Annotated[_Parameters, WrapValidator(_as_sent)] | None = None
    strict: Literal[False] = False


class _Tool(_Wire):
    type: Literal["function"]
    function: _Function


class _Text(_Wire):
    type: Literal["text"]
    text: str


def _parts(content: Any) -> Any:
    """A plain text as the only part."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


_Content = Annotated[list[_Text], BeforeValidator(_parts)]


class _Called(_Wire):
    name: str
    arguments: str


class _Call(_Wire):
    id: Annotated[str, Field(min_length=1)]
    type: Literal["function"] = "function"
    function: _Called
    malformed: str = ""


class _Named(_Wire):
    name: str = ""
    """Who speaks, or which tool: no template here shows it."""


class _Said(_Named):
    role: Literal["system", "developer", "user"]
    content: _Content


class _Replied(_Named):
    role: Literal["assistant"]
    content: _Content = []
    tool_calls: list[_Call] = []
    annotations: Annotated[list[Any], Field(max_length=0)] = []


class _Result(_Named):
    role: Literal["tool"]
    content: _Content
    tool_call_id: str


class _StreamOptions(_Wire):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class Request(_Wire):
    """One request. `read` makes it."""

    model: str
    messages: Annotated[
        list[Annotated[_Said | _Replied | _Result, Field(discriminator="role")]], Field(min_length=1, max_length=4096)
    ]
    tools: Annotated[list[_Tool], Field(max_length=512)] = []
    tool_choice: Literal["none", "auto"] = "auto"
    parallel_tool_calls: bool = True
    n: int = Field(default=1, ge=1, le=128)
    temperature: float = Field(default=1.0, ge=0.0, le=2.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=0, ge=-1)
    min_p: float = Field(default=0.0, ge=0.0, lt=1.0)
    repetition_penalty: float = Field(default=1.0, gt=0.0, le=2.0)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stop: Annotated[list[Annotated[str, Field(min_length=1, max_length=256)]], Field(max_length=4)] = []
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    logprobs: bool = False
    stream: bool = False
    stream_options: _StreamOptions | None = None

    @property
    def longest(self) -> int | None:
        """The most tokens of a reply, where the request says so."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def sampling(self, longest: int) -> Sampling:
        """How replies of at most `longest` tokens are sampled. Stop strings are for who reads them."""
        return Sampling(
            max_tokens=longest,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(0, self.top_k),
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
        )

    @cached_property
    def conversation(self) -> list[Message]:
        """The messages, with their parts of text joined."""
        return [_message(message.model_dump()) for message in self.messages]

    @cached_property
    def shown(self) -> tuple[ToolSpec, ...]:
        """The tools that may be called."""
        if self.tool_choice == "none":
            return ()
        functions = (tool.function for tool in self.tools)
        return tuple(
            ToolSpec(name=f.name, description=f.description, parameters=f.parameters or _NO_PARAMETERS)
            for f in functions
        )


def _message(wire: dict[str, Any]) -> Message:
    text = "".join(part["text"] for part in wire["content"])
    role = "system" if wire["role"] == "developer" else wire["role"]
    return from_wire({**wire, "role": role, "content": text})


def read(body: bytes) -> Request:
    """The request in a body. Raises `Refusal`, which says what is wrong, where, and what is allowed."""
    wire = _object(body)
    if wire.get("tool_choice") not in (None, "none", "auto"):
        raise Refusal(
            "tool_choice: replies are sampled freely, so no call can be forced; use auto or none", "tool_choice"
        )
    for key, allowed in _NEUTRAL.items():
        if key in wire and wire.pop(key) not in (None, *allowed):
            raise Refusal(
                f"{key} is not offered; leave it out, or give {json.dumps(allowed[0])}", key, "unsupported_value"
            )
    if isinstance(wire.get("stop"), str):
        wire["stop"] = [wire["stop"]]
    wire = _without_nulls({key: value for key, value in wire.items() if key not in _WITHOUT_EFFECT})
    try:
        request = Request.model_validate(wire)
    except ValidationError as e:
        raise _explained(e, wire) from e
    _check(request)
    return request


def _object(body: bytes) -> dict[str, Any]:
    try:
        wire = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as e:
        raise Refusal(f"the body is not JSON: {str(e)[:200]}") from e
    if not isinstance(wire, dict):
        raise Refusal("the body is not a JSON object")
    if _too_deep(wire):
        raise Refusal(f"the body is nested more than {DEEPEST} deep")
    return wire


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number in JSON")


def _too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for outer in level for inner in _inside(outer)]
    return bool(level)


def _inside(value: Any) -> Sequence[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()


def _without_nulls(wire: dict[str, Any]) -> dict[str, Any]:
    """The request without parameters that are null; in messages and tools too, as clients send back what they got."""
    kept = {key: value for key, value in wire.items() if value is not None}
    for key in ("messages", "tools", "tool_calls"):
        if isinstance(kept.get(key), list):
            kept[key] = [_without_nulls(item) if isinstance(item, dict) else item for item in kept[key]]
    if isinstance(kept.get("function"), dict):
        kept["function"] = _without_nulls(kept["function"])
    return kept


def _explained(error: ValidationError, wire: dict[str, Any]) -> Refusal:
    """The first of pydantic's complaints, in the API's words where it has some."""
    first = error.errors(include_url=False)[0]
    missing = first["type"] == "missing"
    where = _path(wire, first["loc"][:-1] if missing else first["loc"])
    if missing:
        where = f"{where}.{first['loc'][-1]}".lstrip(".")
        return Refusal(f"missing required parameter: {where}", where, "missing_required_parameter")
    if first["type"] == "extra_forbidden":
        return Refusal(f"unrecognized request argument: {where}", where, "unknown_parameter")
    return Refusal(f"{where}: {first['msg']}", where, "invalid_value")


def _path(value: Any, places: Sequence[int | str]) -> str:
    """Where in the request something is, as in `messages[0].content`; pydantic puts names of types in between."""
    path = ""
    for place in places:
        if isinstance(value, dict) and place in value:
            path, value = f"{path}.{place}", value[place]
        elif isinstance(value, list) and isinstance(place, int):
            path, value = f"{path}[{place}]", value[place]
    return path.lstrip(".")


def _check(request: Request) -> None:
    """What concerns several fields."""
    names = [tool.function.name for tool in request.tools]
    if len(set(names)) < len(names):
        raise Refusal("tools: two tools have the same name", "tools", "invalid_value")
    if request.max_tokens is not None and request.max_completion_tokens not in (None, request.max_tokens):
        raise Refusal("give max_tokens or max_completion_tokens, not both", "max_tokens", "invalid_value")
    if request.stream_options and not request.stream:
        raise Refusal("stream_options: only with stream=true", "stream_options", "invalid_value")
    open_calls: set[str] = set()
    for i, message in enumerate(request.messages):
        if isinstance(message, _Replied):
            open_calls |= {call.id for call in message.tool_calls}
        elif isinstance(message, _Result) and message.tool_call_id not in open_calls:
            where = f"messages[{i}].tool_call_id"
            raise Refusal(f"{where}: {message.tool_call_id!r} is the id of no call before it", where, "invalid_value")
    if isinstance(request.messages[-1], _Replied):
        raise Refusal("messages: the last is the assistant's, so there is nothing to reply to", "messages")
