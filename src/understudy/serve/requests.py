"""Requests of the chat completions API, validated completely before anything is sampled.

Source: https://platform.openai.com/docs/api-reference/chat. Errors have the API's format. Features that are not
supported are refused and never ignored: top log-probabilities, penalties. Parameters without an effect
here (`user`, `metadata`) are accepted.
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

from understudy.core.errors import did_you_mean
from understudy.core.json_values import replace_surrogates
from understudy.core.messages import Message, ToolSpec, message_from_openai, order_tool_results
from understudy.core.records import Record
from understudy.engines.interface import MAX_TOKEN_COUNT, MinP, SamplingParams, Temperature, TopK, TopP

MAX_DEPTH = 64
"""Largest nesting depth of a request's JSON."""
_NEUTRAL: Mapping[str, Sequence[Any]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "modalities": (["text"],),
    "store": (False,),
    "service_tier": ("auto", "default"),
}
"""Unsupported parameters, each with the values that have no effect and are accepted."""
_NO_OBJECT = {"$ref", "enum", "const", "anyOf", "oneOf", "allOf"}
_NO_PARAMETERS = {"type": "object", "properties": {}}
_WITHOUT_EFFECT = ("user", "metadata", "safety_identifier", "prompt_cache_key")


class ApiError(Exception):
    """A request error that the server answers with. It never leaves the server."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    @property
    def body(self) -> dict[str, Any]:
        """The error in the API's format."""
        kinds = {401: "authentication_error", 429: "rate_limit_error", 503: "server_error"}
        kind = kinds.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


class _Wire(Record):
    model_config = ConfigDict(strict=True)


class JsonSchema(_Wire):
    """The part of a tool's JSON Schema that chat formats need to be valid. Other keywords are accepted unchecked."""

    model_config = ConfigDict(extra="allow")

    type: str | Annotated[list[str], Field(min_length=1)] | None = None
    description: str | None = None
    properties: "dict[str, JsonSchema | bool] | None" = None
    required: list[str] | None = None
    items: "JsonSchema | bool | None" = None
    enum: Annotated[list[Any], Field(min_length=1)] | None = None
    anyOf: "Annotated[list[JsonSchema | bool], Field(min_length=1)] | None" = None
    oneOf: "Annotated[list[JsonSchema | bool], Field(min_length=1)] | None" = None
    allOf: "Annotated[list[JsonSchema | bool], Field(min_length=1)] | None" = None
    additionalProperties: "JsonSchema | bool | None" = None
    defs: "dict[str, JsonSchema | bool] | None" = Field(default=None, alias="$defs")
    ref: str | None = Field(default=None, alias="$ref")


class _Parameters(JsonSchema):
    type: Literal["object"] = "object"

    @model_validator(mode="before")
    @classmethod
    def _is_plain(cls, value: Any) -> Any:
        if isinstance(value, dict) and (other := sorted(value.keys() & _NO_OBJECT)):
            raise ValueError(f"{other[0]} is not allowed at the top level of a tool's parameters; use properties")
        return value


def _as_sent(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Validate a value and return it unchanged, because the model sees its keys in the order of the request."""
    validate(value)
    return value


class _Cached(_Wire):
    cache_control: Any = None
    """Ignored, as the prompts of a local model need no marks to be cached. Agents and proxies write it."""


class _Function(_Cached):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
    description: str = ""
    parameters: Annotated[_Parameters, WrapValidator(_as_sent)] | None = None
    strict: bool | None = None
    """Accepted, because agent SDKs set it, and not enforced: free replies are not constrained."""


class _Tool(_Cached):
    type: Literal["function"]
    function: _Function


class _Text(_Cached):
    type: Literal["text"]
    text: str


def _parts(content: Any) -> Any:
    """Return a plain text as a list of one text part."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


_Content = Annotated[list[_Text], BeforeValidator(_parts)]


def _reply_parts(content: Any) -> Any:
    """Return a reply's content as parts. A refusal is a text."""
    parts = _parts(content)
    if not isinstance(parts, list):
        return parts
    return [
        {"type": "text", "text": part.get("refusal")}
        if isinstance(part, dict) and part.get("type") == "refusal"
        else part
        for part in parts
    ]


class _CalledFunction(_Wire):
    name: str
    arguments: str
    parsed_arguments: Any = None
    """Ignored, as are `parsed` and `index`: the helpers of OpenAI's client add them to what they send back."""


class _Call(_Wire):
    id: Annotated[str, Field(min_length=1)]
    type: Literal["function"] = "function"
    function: _CalledFunction
    malformed: str = ""
    index: int = 0


class _MessageBase(_Cached):
    name: str = ""
    """Name of the speaker or the tool. No supported chat template shows it."""


class _PromptMessage(_MessageBase):
    role: Literal["system", "developer", "user"]
    content: _Content


class _AssistantMessage(_MessageBase):
    role: Literal["assistant"]
    content: Annotated[list[_Text], BeforeValidator(_reply_parts)] = []
    tool_calls: list[_Call] = []
    annotations: Annotated[list[Any], Field(max_length=0)] = []
    parsed: Any = None
    refusal: str = ""
    """Ignored. A model's refusal is text here."""
    reasoning_content: str = ""
    """Ignored: thoughts of earlier replies are known from the tokens of the conversation, or left out."""
    reasoning: Any = None
    provider_specific_fields: Any = None
    """Ignored, as is `reasoning`: vLLM, OpenRouter and LiteLLM add them to replies, and clients send them back."""


class _ToolMessage(_MessageBase):
    role: Literal["tool"]
    content: _Content
    tool_call_id: str


class _StreamOptions(_Wire):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class _FunctionName(_Wire):
    name: str


class _NamedTool(_Wire):
    type: Literal["function"]
    function: _FunctionName


class _TextFormat(_Wire):
    type: Literal["text"] = "text"


class _ObjectFormat(_Wire):
    type: Literal["json_object"]


class _NamedSchema(_Wire):
    name: str = ""
    description: str = ""
    json_schema: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class _SchemaFormat(_Wire):
    type: Literal["json_schema"]
    json_schema: _NamedSchema


_TokenLimit = Annotated[int, Field(ge=1, le=MAX_TOKEN_COUNT)]


class ChatCompletionRequest(_Wire):
    """A validated request, created by `parse_request`."""

    model: str
    messages: Annotated[
        list[Annotated[_PromptMessage | _AssistantMessage | _ToolMessage, Field(discriminator="role")]],
        Field(min_length=1, max_length=4096),
    ]
    tools: Annotated[list[_Tool], Field(max_length=512)] = []
    tool_choice: Literal["none", "auto", "required"] | _NamedTool = "auto"
    response_format: Annotated[_TextFormat | _ObjectFormat | _SchemaFormat, Field(discriminator="type")] = _TextFormat()
    parallel_tool_calls: bool = True
    n: int = Field(default=1, ge=1, le=128)
    temperature: Annotated[Temperature, Field(le=2.0)] = 1.0
    top_p: TopP = 1.0
    top_k: Annotated[TopK, Field(ge=-1)] = 0
    min_p: MinP = 0.0
    repetition_penalty: float = Field(default=1.0, ge=0.01, le=2.0)
    max_tokens: _TokenLimit | None = None
    max_completion_tokens: _TokenLimit | None = None
    stop: Annotated[list[Annotated[str, Field(min_length=1, max_length=256)]], Field(max_length=4)] = []
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    logprobs: bool = False
    stream: bool = False
    stream_options: _StreamOptions | None = None

    def validate_lengths(self, max_chars: int) -> None:
        """Raise ApiError if a message, with the arguments of its calls, has more than `max_chars` characters."""
        for i, message in enumerate(self.messages):
            calls = message.tool_calls if isinstance(message, _AssistantMessage) else []
            texts = [part.text for part in message.content] + [call.function.arguments for call in calls]
            if (length := sum(map(len, texts))) > max_chars:
                param = f"messages[{i}]"
                raise ApiError(
                    f"{param}: it has {length:,} characters; this server reads at most {max_chars:,} of one message "
                    "(--max-message-chars)",
                    param,
                    "string_above_max_length",
                )

    @property
    def max_reply_tokens(self) -> int | None:
        """Largest number of tokens in a reply, or None if the request sets no limit."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def sampling(self, max_tokens: int) -> SamplingParams:
        """Return the sampling parameters for replies of at most `max_tokens` tokens.

        Stop strings are not included, because the parser of the reply detects them.
        """
        return SamplingParams(
            max_response_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(0, self.top_k),
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            keep_sampling_mask=False,
        )

    @property
    def forced_tool(self) -> str:
        """The name of the tool that the reply must call; "" if it may choose."""
        return self.tool_choice.function.name if isinstance(self.tool_choice, _NamedTool) else ""

    @property
    def response_schema(self) -> Mapping[str, Any] | None:
        """The JSON schema that the text of the reply must match, or None."""
        match self.response_format:
            case _SchemaFormat(json_schema=named):
                return named.json_schema
            case _ObjectFormat():
                return {"type": "object"}
        return None

    @property
    def is_constrained(self) -> bool:
        """Whether the reply must be a call, or JSON."""
        return bool(self.forced_tool) or self.tool_choice == "required" or self.response_schema is not None

    @cached_property
    def conversation(self) -> list[Message]:
        """The messages, each with its text parts joined, and results in the order of their calls."""
        return order_tool_results([_message(message.model_dump()) for message in self.messages])

    @cached_property
    def callable_tools(self) -> tuple[ToolSpec, ...]:
        """The tools that the model may call."""
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
    return message_from_openai({**wire, "role": role, "content": text})


def parse_request(body: Mapping[str, Any]) -> ChatCompletionRequest:
    """Validate the body of a request. Raise ApiError with the problem, its parameter and what is allowed."""
    wire = dict(body)
    for key, allowed in _NEUTRAL.items():
        if key in wire and wire.pop(key) not in (None, *allowed):
            raise ApiError(
                f"{key} is not supported; leave it out, or set it to {json.dumps(allowed[0])}", key, "unsupported_value"
            )
    if isinstance(wire.get("stop"), str):
        wire["stop"] = [wire["stop"]]
    wire = _without_nulls({key: value for key, value in wire.items() if key not in _WITHOUT_EFFECT})
    try:
        request = ChatCompletionRequest.model_validate(wire)
    except ValidationError as e:
        raise _validation_error(e, wire) from e
    _check(request)
    return request


def read_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body, without lone surrogates, which programs send that cut a text within a
    character. Raise ApiError if it is none, or too deep.
    """
    try:
        wire = json.loads(body, parse_constant=_reject_constant)
        text = json.dumps(wire, ensure_ascii=False)
        if (clean := replace_surrogates(text)) != text:
            wire = json.loads(clean)
    except (ValueError, RecursionError) as e:
        raise ApiError(f"the body is not JSON: {str(e)[:200]}") from e
    if not isinstance(wire, dict):
        raise ApiError("the body is not a JSON object")
    if _too_deep(wire):
        raise ApiError(f"the body is nested more than {MAX_DEPTH} deep")
    return wire


def _reject_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for parent in level for child in _children(parent)]
    return bool(level)


def _children(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else ()


def _without_nulls(wire: dict[str, Any]) -> dict[str, Any]:
    """Return the request without null parameters, also in messages and tools: clients send back what they received."""
    present = {key: value for key, value in wire.items() if value is not None}
    for key in ("messages", "tools", "tool_calls"):
        if isinstance(present.get(key), list):
            present[key] = [_without_nulls(item) if isinstance(item, dict) else item for item in present[key]]
    for key in ("function", "response_format", "json_schema"):
        if isinstance(present.get(key), dict):
            present[key] = _without_nulls(present[key])
    return present


def _validation_error(error: ValidationError, wire: dict[str, Any]) -> ApiError:
    """Return the first validation error as an ApiError, in the API's words where it has some."""
    first = error.errors(include_url=False)[0]
    missing = first["type"] == "missing"
    where = _path(wire, first["loc"][:-1] if missing else first["loc"])
    if missing:
        where = f"{where}.{first['loc'][-1]}".lstrip(".")
        return ApiError(f"missing required parameter: {where}", where, "missing_required_parameter")
    if first["type"] == "extra_forbidden":
        return ApiError(f"unrecognized request argument: {where}", where, "unknown_parameter")
    return ApiError(f"{where}: {first['msg']}", where, "invalid_value")


def _path(value: Any, places: Sequence[int | str]) -> str:
    """Return the path of a value in the request, such as `messages[0].content`. pydantic's path also has type names."""
    path = ""
    for place in places:
        if isinstance(value, dict) and place in value:
            path, value = f"{path}.{place}", value[place]
        elif isinstance(value, list) and isinstance(place, int):
            path, value = f"{path}[{place}]", value[place]
    return path.lstrip(".")


def _check(request: ChatCompletionRequest) -> None:
    """Validate what concerns several fields. Raise ApiError."""
    names = [tool.function.name for tool in request.tools]
    if len(set(names)) < len(names):
        raise ApiError("tools: two tools have the same name; names must be unique", "tools", "invalid_value")
    if request.max_tokens is not None and request.max_completion_tokens not in (None, request.max_tokens):
        raise ApiError("give max_tokens or max_completion_tokens, not both", "max_tokens", "invalid_value")
    names = [tool.name for tool in request.callable_tools]
    if request.forced_tool and request.forced_tool not in names:
        raise ApiError(f"tool_choice: no tool is named {did_you_mean(request.forced_tool, names)}", "tool_choice")
    if request.tool_choice == "required" and not names:
        raise ApiError("tool_choice: required needs at least one tool in tools", "tool_choice", "invalid_value")
    if request.response_schema is not None and (request.forced_tool or request.tool_choice == "required"):
        raise ApiError("response_format cannot be combined with a tool_choice that forces a call", "response_format")
    if request.stream_options and not request.stream:
        raise ApiError("stream_options is only allowed with stream=true", "stream_options", "invalid_value")
    open_calls: set[str] = set()
    for i, message in enumerate(request.messages):
        if isinstance(message, _AssistantMessage):
            open_calls |= {call.id for call in message.tool_calls}
            _check_arguments(message, f"messages[{i}]")
        elif isinstance(message, _ToolMessage) and message.tool_call_id not in open_calls:
            where = f"messages[{i}].tool_call_id"
            raise ApiError(f"{where}: no earlier call has the id {message.tool_call_id!r}", where, "invalid_value")
    if isinstance(request.messages[-1], _AssistantMessage):
        raise ApiError("messages: the last message is the assistant's; end with a user or tool message", "messages")


def _check_arguments(message: _AssistantMessage, where: str) -> None:
    """Raise ApiError if a call has the arguments of no call, which the prompt could not show.

    A call that this server could not parse has the reason in their place, and may be sent back.
    """
    for i, call in enumerate(_message(message.model_dump()).tool_calls):
        sent = message.tool_calls[i]
        if call.parse_error and not sent.malformed and sent.function.arguments.lstrip()[:1] in ("{", "["):
            param = f"{where}.tool_calls[{i}].function.arguments"
            raise ApiError(f"{param}: {call.parse_error}", param, "invalid_value")
