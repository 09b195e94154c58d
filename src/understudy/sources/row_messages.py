"""Convert the messages and tools of a row to the form that `examples` reads: that of the chat completions API.

Also read: the content blocks of Anthropic's Messages API, the text parts of OpenAI's Responses API, the calls of
LangChain, the roles of ms-swift, and lists or objects that are JSON text.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from understudy.core.items import InvalidField
from understudy.core.messages import ERROR_PREFIX, join_text_parts
from understudy.formats.parsing.thoughts import split_thought
from understudy.sources.readers import without_nulls

Row = Mapping[str, Any]
WireMessage = dict[str, Any]
"""A message of the chat completions API."""

_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_OPEN_CALL = re.compile(r"^[ \t]*<tool_call>", re.MULTILINE)
_RESULT = re.compile(r"<tool_response>\s*(.*?)\s*</tool_response>", re.DOTALL)
_THOUGHT = re.compile(r"^[ \t]*<think>(.*?)(?:</think>|\Z)", re.DOTALL | re.MULTILINE)
_TEXT_CALL = re.compile(r'\s*\{\s*"(function_call|tool_calls?)"\s*:')
_TEXT_RESULT = re.compile(r"\s*(?:Function result:|\[tool[-_ ]response\])\s*", re.IGNORECASE)
_MEDIA = ("image", "video", "audio")

_CALL_NAMES = ("name", "tool")
ARGUMENT_KEYS = ("arguments", "params", "parameters", "kwargs", "args", "input")
"""Names of a call's arguments."""
_CALL_LABELS = {"id", "type", "server"}
"""Keys of a call in a text, beside one of its name and one of its arguments."""
_ROLES = {
    "developer": "system",
    **dict.fromkeys(("function", "tool_response"), "tool"),
    **dict.fromkeys(("function_call", "tool_call", "gpt", "model"), "assistant"),
    "human": "user",
}
"""Other names of roles: OpenAI's newer name of the system message, older and ms-swift's ones of results and calls, and
those of ShareGPT and Gemini."""
ROLES = ("system", "user", "assistant", "tool")
_CALL_ROLES = ("function_call", "tool_call")
_MESSAGE_KEYS = ("role", "content", "tool_calls", "tool_call_id", "reasoning_content")
_IGNORED = ("name", "cache_control")
"""Columns of a message that no model sees."""
_IGNORED_IF_EMPTY = ("annotations", "audio", "parsed", "refusal")
"""Columns of a reply in the SDK of OpenAI."""
_THOUGHT_NAMES = ("reasoning", "thinking")
"""Other names of `reasoning_content`: of OpenRouter and newer versions of vLLM, and of Ollama."""
_READ_KEYS = {*_MESSAGE_KEYS, *_IGNORED, *_IGNORED_IF_EMPTY, *_THOUGHT_NAMES, "function_call"}
_CONTENT_NAMES = ("value", "text", "message")
"""Other names of a message's `content`."""
_TEXT_PARTS = ("text", "input_text", "output_text")
_BLOCKS = ("tool_use", "tool_result", "thinking", "redacted_thinking")
"""Types of content blocks in Anthropic's Messages API, besides text."""
_PARTS = (*_TEXT_PARTS, *_BLOCKS, "image", "image_url", "input_audio")
TOOL_COLUMNS = (
    *("tools", "tool_defs", "tool_definitions", "tool_schemas", "tools_schema", "tool_specs", "available_tools"),
    *("functions", "function_definitions"),
)
"""Columns with the descriptions of tools, and their other names."""
SYSTEM_COLUMNS = ("system", "system_prompt", "system_message")
"""Columns with the system message."""
_TOOL_KEYS = ("name", "description", "parameters", "aliases", "name_aliases")
_IGNORED_TOOL_KEYS = ("strict", "type", "cache_control")
_SCHEMA_NAMES = ("input_schema", "inputSchema", "parameters_json_schema")
"""Other names of a tool's `parameters`: of Anthropic, of MCP and of Gemini."""
_TRAINING = re.compile(
    r"(?:(?:is|message|messages|token|tokens|turn|reply|response|assistant|completion|sample)_)*"
    r"(?:loss|losses|masks?|masked|train|trained|training|trainable|weights?|labels)"
    r"(?:_(?:masks?|weights?|scales?|details?|flags?|history|prompt|on_\w+))*"
)
"""Matches the names of columns that say what is trained on, and how much."""
_UNTRAINED = re.compile(r"(?:\w+_)?masked|mask_\w+|train_on_(?:prompts?|inputs?|history)")
"""Matches those whose value is false for what is trained on."""


def text_message(role: str, text: str) -> WireMessage:
    """Return a message with a text."""
    return {"role": role, "content": text}


def parse_field(text: str, field: str, problem: str) -> Any:
    """Return the value of a JSON text. Raise InvalidField with `problem` if it is not JSON."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as e:
        raise InvalidField(field, f"{problem}: {e}") from e


def normalize_messages(
    messages: Sequence[Any], *, allow_empty_replies: bool = False, allow_weights: bool = False
) -> list[WireMessage]:
    """Return messages without null columns. Calls without ids get ids, and so do their results.

    Thoughts of the assistant, `<think>…</think>`, become `reasoning_content`. Neighbouring messages of the assistant
    are one reply, whose texts are joined by an empty line. A thought that no reply follows at the end is left out.
    With `allow_weights`, a reply that is not trained on has `weight` 0; no other message has a weight.
    Columns of messages that are not understood are left out; `unknown_message_keys` names them.

    Calls and results that are written as texts become calls and results: those in the tags of Hermes (`<tool_call>`,
    `<tool_response>`), and a text that is nothing but the JSON of a call, such as {"function_call": {name, arguments}}.

    Raise InvalidField for a message of another form, for an empty reply unless it is allowed, and for other weights.
    """
    located = [
        (f"messages.{i}", _normalize_message(part, f"messages.{i}", allow_weights))
        for i, message in enumerate(messages)
        for part in _split_blocks(message, f"messages.{i}")
    ]
    located = _merge_replies(_with_results(located))
    last = located[-1][1] if located else {}
    if _is_empty_reply(last) and last.get("reasoning_content") and not allow_empty_replies:
        located.pop()
    for field, message in located:
        if _is_empty_reply(message) and not allow_empty_replies:
            raise InvalidField(field, "neither content nor tool_calls")
    return _with_call_ids([part for _, message in located for part in _split_results(message)])


def normalize_tools(row: Row) -> list[Any]:
    """Return the tools of a row without their wrappers.

    They are in one of `TOOL_COLUMNS` of the row, or of its `input` or `request`. They may be JSON text.
    """
    return [normalize_tool(tool) for tool in _listed_tools(row)]


def without_padding(row: Row) -> Row:
    """Return a row without the nulls in its objects if they are padding: if a tool has a property that is null.

    No schema has such a property. Arrow pads each object with the keys of all others, and `Dataset.to_json` writes
    that.
    """
    return without_nulls(row) if any(map(_has_null_property, _listed_tools(row))) else row


def _has_null_property(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(map(_has_null_property, schema))
    if not isinstance(schema, dict):
        return False
    properties = schema.get("properties")
    is_padded = isinstance(properties, dict) and None in properties.values()
    return is_padded or any(map(_has_null_property, schema.values()))


def _listed_tools(row: Row) -> list[Any]:
    holders = [row, *(row[name] for name in ("input", "request") if isinstance(row.get(name), dict))]
    found = ((name, holder[name]) for holder in holders for name in TOOL_COLUMNS if holder.get(name))
    name, tools = next(found, ("tools", []))
    tools = parse_field(tools, name, "not JSON") if isinstance(tools, str) else tools
    if not isinstance(tools, list):
        raise InvalidField(name, "a list of tools is needed")
    listed = [decode_list(tool) for tool in tools]
    for number, tool in enumerate(listed):
        if not isinstance(tool, dict):
            problem = f"{tool!r:.50} describes no tool; write {{name, description, parameters}}"
            raise InvalidField(f"{name}.{number}", problem)
    return listed


def find_system(row: Row) -> tuple[str, str]:
    """Return the system message that a row has beside its conversation, and its column; empty texts if there is none.

    Raise InvalidField if it is no text.
    """
    name = next((name for name in SYSTEM_COLUMNS if row.get(name)), "")
    if not name:
        return "", ""
    value = row[name]
    text = join_text_parts(decode_list(value) if str(value).lstrip().startswith("[{") else value)
    if not isinstance(text, str):
        raise InvalidField(name, "a text is needed")
    return text, name


def unknown_message_keys(messages: Sequence[Any]) -> list[str]:
    """Return the columns of messages that are not understood. `normalize_messages` leaves them out."""
    found = dict[str, None]()
    for message in messages:
        keys = _given(message) if isinstance(message, dict) else {}
        renamed = ("from", "value") if "from" in keys else () if "content" in keys else _CONTENT_NAMES
        unknown = (key for key in keys if key not in _READ_KEYS and not _TRAINING.fullmatch(key))
        found |= dict.fromkeys(key for key in unknown if key not in renamed)
    return list(found)


def unknown_tool_keys(row: Row) -> list[str]:
    """Return the columns of a row's tools that are not understood. `normalize_tools` leaves them out."""
    known = {*_TOOL_KEYS, *_IGNORED_TOOL_KEYS, *_SCHEMA_NAMES}
    functions = (tool.get("function", tool) for tool in _listed_tools(row) if isinstance(tool, dict))
    keys = (key for function in functions if isinstance(function, dict) for key in _given(function))
    return list(dict.fromkeys(key for key in keys if key not in known))


def _given(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the columns that are not null."""
    return {str(key): value for key, value in values.items() if value is not None}


def read_weight(values: Mapping[str, Any], is_reply: bool, field: str, *, may_be_zero: bool = False) -> int:
    """Return 1 for a row, or a reply that is trained on, and 0 for another message, or a reply that is left out.

    Raise InvalidField for another weight, and for a reply that is left out unless `may_be_zero`. `field` is the place
    of the message; it is empty for a row.
    """
    prefix, weight = f"{field}." if field else "", int(is_reply)
    for key, value in _given(values).items():
        is_inverse = bool(_UNTRAINED.fullmatch(key))
        # Trainers differ in what `mask` says: here only false means nothing.
        usual = False if key == "mask" else is_reply != is_inverse
        if not _TRAINING.fullmatch(key) or value == usual:
            continue
        if may_be_zero and is_reply and value == 0 and not is_inverse:
            weight = 0
            continue
        allowed = "1, or 0 to leave it out" if may_be_zero else "1; only demonstrations may leave replies out"
        problem = f"the weight of a reply is {allowed}" if is_reply else "only replies are trained on"
        raise InvalidField(f"{prefix}{key}", f"{value!r:.50} is not supported: {problem}")
    return weight


def _normalize_message(message: Any, field: str, allow_weights: bool) -> WireMessage:
    if not isinstance(message, dict):
        raise InvalidField(field, "it is not an object")
    bare = {key: value for key, value in _given(message).items() if key not in _IGNORED}
    role = bare.get("role")
    if isinstance(role, str):
        bare["role"] = _ROLES.get(role, role)
    is_reply = bare.get("role") == "assistant"
    weight = read_weight(bare, is_reply, field, may_be_zero=allow_weights)
    for key in _IGNORED_IF_EMPTY:
        if not bare.get(key, True):
            del bare[key]
    for name in _THOUGHT_NAMES:
        if name in bare:
            bare.setdefault("reasoning_content", bare.pop(name))
    if isinstance(bare.get("function_call"), dict) and not bare.get("tool_calls"):  # OpenAI's older form
        bare["tool_calls"] = [bare.pop("function_call")]
    if bare.get("tool_calls") in ([], {}):
        del bare["tool_calls"]
    elif isinstance(bare.get("tool_calls"), list):
        bare["tool_calls"] = [_normalize_call(call) for call in bare["tool_calls"]]
    if name := next((name for name in _CONTENT_NAMES if isinstance(bare.get(name), str | list)), ""):
        bare.setdefault("content", bare[name])
    unknown = [key for key in bare if key not in _READ_KEYS and not _TRAINING.fullmatch(key)]
    if unknown and "content" not in bare and "tool_calls" not in bare:
        raise InvalidField(field, f"neither content nor tool_calls, but {', '.join(unknown)}")
    bare = {key: value for key, value in bare.items() if key in _READ_KEYS}
    if "content" in bare:
        bare["content"] = _text_of(bare["content"], field)
    if bare.get("role") == "user" and isinstance(bare.get("content"), str):
        _refuse_media(bare["content"], field)
    if is_reply and isinstance(bare.get("content"), str):
        bare = _normalize_reply(bare, field, is_call=role in _CALL_ROLES)
    return {"content": ""} | bare | ({"weight": 0} if is_reply and not weight else {})


def _text_of(content: Any, field: str) -> Any:
    """Return the text of a message's content. Raise InvalidField if it has an image or another part that is no text."""
    parts = content if isinstance(content, list) else ()
    kinds = [part.get("type") for part in parts if isinstance(part, dict)]
    if other := next((kind for kind in kinds if isinstance(kind, str) and kind not in _TEXT_PARTS), ""):
        raise InvalidField(f"{field}.content", f"a part of type {other!r:.50} is not supported, only text")
    return join_text_parts(content)


def _split_blocks(message: Any, field: str) -> list[Any]:
    """Return a message whose content has blocks of calls, results or thoughts as messages without such blocks.

    Lists that are JSON text are decoded, except for what a tool returned.
    """
    if not isinstance(message, dict):
        return [message]
    content, is_result = message.get("content"), message.get("role") in ("tool", "function", "tool_response")
    decoded = [] if is_result else decode_list(content)
    is_list = isinstance(decoded, list) and bool(decoded)
    if is_list and all(isinstance(part, dict) and part.get("type") in _PARTS for part in decoded):
        content = decoded
    columns = {"content": content} if "content" in message else {}
    columns |= {key: decode_list(message[key]) for key in ("tool_calls", "function_call") if key in message}
    message = {**message, **columns}
    blocks = content if isinstance(content, list) else []
    kinds = [block.get("type") for block in blocks if isinstance(block, dict)]
    if len(kinds) < len(blocks) or not set(kinds) & {*_BLOCKS}:
        return [message]
    results = [_result_of(block, field) for block in blocks if block["type"] == "tool_result"]
    thoughts = [str(block.get("thinking", "")) for block in blocks if block["type"] == "thinking"]
    calls = [
        {key: block.get(key) for key in ("id", "name", "input")} for block in blocks if block["type"] == "tool_use"
    ]
    rest = [block for block in blocks if block["type"] not in _BLOCKS]
    if results and (calls or message.get("role") == "assistant"):
        raise InvalidField(f"{field}.content", "a tool_result in a message of the assistant; the user's message has it")
    if results and not rest:
        return results
    columns = {"content": rest} | ({"tool_calls": calls} if calls else {})
    columns |= {"reasoning_content": "\n".join(thoughts)} if thoughts else {}
    return [*results, {**message, **columns}]


def _result_of(block: Mapping[str, Any], field: str) -> WireMessage:
    """Return the message of a block of the type tool_result. That of a failed call begins as errors do here."""
    content = _text_of(block.get("content") or "", field)
    if block.get("is_error") and not str(content).startswith(ERROR_PREFIX):
        content = f"{ERROR_PREFIX}{content}"
    return {"role": "tool", "content": content, "tool_call_id": block.get("tool_use_id")}


def decode_list(value: Any) -> Any:
    """Return the list or object that a JSON text holds; anything else unchanged."""
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        try:
            read = from_json(value, allow_inf_nan=False)
        except ValueError:
            return value
        return read
    return value


def _refuse_media(text: str, field: str) -> None:
    """Raise InvalidField for a text with the mark of a file, such as `<image>`, which is no element of XML."""
    for kind in _MEDIA:
        if f"<{kind}>" in text and f"</{kind}>" not in text:
            raise InvalidField(f"{field}.content", f"<{kind}> stands for a file; only texts are supported")


def _normalize_reply(message: WireMessage, field: str, is_call: bool) -> WireMessage:
    """Return a reply with the thoughts and calls of its text in their own columns."""
    thought, text = _split_thoughts(message["content"])
    if thought:
        earlier = message.get("reasoning_content")
        message |= {"content": text, "reasoning_content": f"{earlier}\n{thought}" if earlier else thought}
    if message.get("tool_calls"):
        return message
    if calls := _calls_in_text(text):
        return message | {"content": "", "tool_calls": calls}
    if is_call or _TEXT_CALL.match(text):
        parse_field(text, field, "a function_call that is not JSON")
        raise InvalidField(field, "a function_call without a name and arguments")
    message |= _tagged_calls(text, field)
    if _OPEN_CALL.search(message["content"]):
        raise InvalidField(field, "a <tool_call> without </tool_call>")
    return message


def _split_thoughts(text: str) -> tuple[str, str]:
    """Return the thoughts of a reply, and the rest of its text. A thought without an end extends to the first call."""
    thoughts, rest = list[str](), text
    while (parts := split_thought(rest))[2]:
        thoughts, rest = [*thoughts, parts[1]], parts[3]
    if "</think>" in rest and "<think>" not in rest:  # the chat template opened the thought
        opened, _, rest = rest.partition("</think>")
        thoughts.append(opened)
    while match := _THOUGHT.search(rest):
        is_open = not match[0].endswith("</think>")
        end = match.start(1) + match[1].find("<tool_call>") if is_open and "<tool_call>" in match[1] else match.end()
        thoughts.append(rest[match.start(1) : min(end, match.end(1))])
        rest = rest[: match.start()] + rest[end:]
    return ("\n".join(filter(None, map(str.strip, thoughts))), rest.strip()) if rest != text else ("", text)


def _calls_in_text(text: str) -> list[WireMessage]:
    """Return the calls of a text that is nothing but their JSON; nothing for any other text."""
    if not text.lstrip().startswith(("{", "[")):
        return []
    try:
        return _calls_of(from_json(text, allow_inf_nan=False))
    except ValueError:
        return []


def _calls_of(value: Any) -> list[WireMessage]:
    """Return the calls of a JSON value: a call, an object with only a call or calls, or a list of calls."""
    if isinstance(value, list):
        found = [_calls_of(each) for each in value]
        return [call for calls in found for call in calls] if all(found) else []
    if not isinstance(value, dict):
        return []
    if len(value) == 1 and (inner := next(iter(value))) in ("function_call", "tool_call", "tool_calls"):
        return _calls_of(value[inner])
    if isinstance(value.get("function"), dict) and value.keys() <= {"function", *_CALL_LABELS}:
        return _calls_of(value["function"])
    name = next((value[key] for key in _CALL_NAMES if key in value), None)
    given = [key for key in ARGUMENT_KEYS if key in value]
    arguments = value[given[0]] if len(given) == 1 else None
    is_call = isinstance(name, str) and isinstance(arguments, dict | str) and name
    if not is_call or len(value.keys() - _CALL_LABELS) != 2 or (isinstance(arguments, str) and arguments[:1] != "{"):
        return []
    return [{"function": {"name": name, "arguments": arguments}}]


def _with_results(located: Sequence[tuple[str, WireMessage]]) -> list[tuple[str, WireMessage]]:
    """Return the messages with results that are written as texts as results: those that only a call can precede."""
    read = list[tuple[str, WireMessage]]()
    for field, message in located:
        text, role = message["content"], message.get("role")
        is_after_call = bool(read) and (bool(read[-1][1].get("tool_calls")) or read[-1][1].get("role") == "tool")
        has_id = bool(message.get("tool_call_id"))  # then its text is what the tool returned
        if isinstance(text, str) and is_after_call and role in ("user", "tool") and not has_id:
            is_tagged = _RESULT.search(text) and not _RESULT.sub("", text).strip()
            marked = _TEXT_RESULT.match(text)
            if is_tagged or marked or role == "tool":
                content = _unwrap_result(text[marked.end() :] if marked else text)
                message = message | {"role": "tool", "content": content}
        read.append((field, message))
    return read


def _unwrap_result(text: str) -> str:
    """Return the result of a text {"function_name", "result"}; any other text unchanged."""
    if '"function_name"' not in text:
        return text
    try:
        value = from_json(text)
    except ValueError:
        return text
    is_wrapped = isinstance(value, dict) and value.keys() == {"function_name", "result"}
    return value["result"] if is_wrapped and isinstance(value["result"], str) else text


def _merge_replies(located: Sequence[tuple[str, WireMessage]]) -> list[tuple[str, WireMessage]]:
    """Return the messages, neighbouring replies of one weight as one. Raise InvalidField if a text follows a call."""
    merged = list[tuple[str, WireMessage]]()
    for field, message in located:
        before = merged[-1][1] if merged else {}
        is_weighed_alike = before.get("weight") == message.get("weight")
        if not (is_weighed_alike and _is_readable_reply(before) and _is_readable_reply(message)):
            merged.append((field, message))
            continue
        texts = list(dict.fromkeys(each["content"] for each in (before, message) if each["content"]))
        if before.get("tool_calls") and message["content"]:
            raise InvalidField(field, "it follows a call that has no result")
        thoughts = [each["reasoning_content"] for each in (before, message) if each.get("reasoning_content")]
        calls = [*before.get("tool_calls", ()), *message.get("tool_calls", ())]
        columns: WireMessage = {"content": "\n\n".join(texts)}
        columns |= {"reasoning_content": "\n".join(map(str, thoughts))} if thoughts else {}
        columns |= {"tool_calls": calls} if calls else {}
        merged[-1] = (field, before | message | columns)
    return merged


def _is_readable_reply(message: WireMessage) -> bool:
    calls = message.get("tool_calls", [])
    listed = calls if isinstance(calls, list) else [calls]
    functions = [call.get("function", call) if isinstance(call, dict) else call for call in listed]
    are_calls = all(isinstance(function, dict) and "name" in function for function in functions)
    is_known = message.keys() <= {"role", "content", "reasoning_content", "tool_calls", "weight"}
    return message.get("role") == "assistant" and isinstance(message.get("content"), str) and are_calls and is_known


def _is_empty_reply(message: WireMessage) -> bool:
    """Return whether a message is the assistant's and says and calls nothing."""
    return message.get("role") == "assistant" and message.get("content") == "" and not message.get("tool_calls")


def _tagged_calls(text: str, field: str) -> WireMessage:
    """Return the text and the calls of a reply that has calls in the tags of Hermes; nothing if it has none."""
    calls = [_parse_call(match[1], field) for match in _CALL.finditer(text)]
    if not calls:
        return {}
    return {"content": "\n".join(filter(None, map(str.strip, _CALL.split(text)[::2]))), "tool_calls": calls}


def _parse_call(text: str, field: str) -> WireMessage:
    calls = _calls_of(parse_field(text, field, "a <tool_call> that is not JSON"))
    if len(calls) != 1:
        raise InvalidField(field, "a <tool_call> without a name and arguments")
    return calls[0]


def _split_results(message: WireMessage) -> list[WireMessage]:
    """Return one message for each result in the tags of Hermes; the message itself if it has no such tags.

    A result with the id of its call is never split: its tags are what the tool returned.
    """
    content = message.get("content")
    is_result = message.get("role") == "tool" and not message.get("tool_call_id")
    results = _RESULT.findall(content) if is_result and isinstance(content, str) else []
    if not results or _RESULT.sub("", str(content)).strip():
        return [message]
    return [{**message, "content": result} for result in results]


def _normalize_call(call: Any) -> Any:
    """Return a call with its name and arguments under `function`. Calls as understudy writes them do not change."""
    call = decode_list(call)
    if not isinstance(call, dict):
        return call
    if isinstance(call.get("function"), str) and (function := decode_list(call["function"])) is not call["function"]:
        call = {**call, "function": function}
    if "function" not in call and "arguments" not in call:
        given = [key for key in ARGUMENT_KEYS if call.get(key) is not None]
        call = {**call, "arguments": call[given[0]] if given else {}}
        call = {key: value for key, value in call.items() if key not in given}
    if isinstance(call.get("arguments"), str) and "function" not in call:
        return {
            "id": call.get("id") or "",
            "function": {key: call[key] for key in ("name", "arguments") if key in call},
        }
    if "function" not in call:
        return {key: value for key, value in call.items() if key != "type" and value is not None}
    return call


def normalize_tool(tool: Any) -> Any:
    """Return a tool without its wrapper and without what no model sees. Its description may be missing."""
    function = tool.get("function", tool) if isinstance(tool, dict) else tool
    if not isinstance(function, dict):
        return function
    given = _given(function)
    if name := next((name for name in _SCHEMA_NAMES if name in given), ""):
        given.setdefault("parameters", given[name])
    given = {key: value for key, value in given.items() if key in _TOOL_KEYS}
    given |= {"parameters": decode_list(given["parameters"])} if "parameters" in given else {}
    return {"description": "", "parameters": {"type": "object", "properties": {}}} | given


def _with_call_ids(messages: Sequence[WireMessage]) -> list[WireMessage]:
    """Give ids to calls without ids, and to the results after them in order."""
    turn, asked, named = 0, list[str](), list[WireMessage]()
    for message in messages:
        calls = message.get("tool_calls")
        if message.get("role") == "assistant":
            if isinstance(calls, list) and all(isinstance(call, dict) for call in calls):
                calls = [c if c.get("id") else c | {"id": f"call_{turn}_{i}"} for i, c in enumerate(calls)]
                message = message | {"tool_calls": calls}
                asked = [call["id"] for call in calls]
            turn += 1
        elif message.get("role") == "tool" and asked:
            given = message.get("tool_call_id")
            place = asked.index(given) if given in asked else 0
            message = message | {"tool_call_id": given or asked[place]}
            del asked[place]
        named.append(message)
    return named
