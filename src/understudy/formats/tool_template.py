"""A chat template that shows tools, for programs that render prompts with the template of an exported model.

A format may list the tools in the system message by its own text, and write calls as text. The model's own template
shows neither. The template made here begins with `tool_list.jinja`, which rewrites `messages` as the format does, and
ends with the model's own template. It is used only if it renders a conversation as the format does.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.formats.chat_format import ChatFormat
from understudy.formats.chatml import END, SIGNATURES, START
from understudy.formats.jinja import ChatTemplate, chat_template_file, compile_template, read_chat_template
from understudy.formats.loading import OWN_TEMPLATE, chat_format_from_config
from understudy.formats.options import FormatConfig
from understudy.formats.tokenizer import FormatTokenizer
from understudy.formats.tool_parsers import hermes

_TOOL_LIST = Path(__file__).with_name("tool_list.jinja")
_SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "A city."},
        "unit": {"enum": ["C", None]},
        "days": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/Day"}}, {"type": "null"}]},
    },
    "required": ["city", "days"],
    "$defs": {"Day": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
}
_TOOLS = (
    ToolSpec(name="forecast", description="Return the\nweather.", parameters=_SCHEMA),
    ToolSpec(name="now", description="", parameters={"type": "object", "properties": {}}),
)
_CALLS = (
    ToolCall(name="forecast", arguments={"city": "Köln", "days": None}, id="call00000"),
    ToolCall(name="now", arguments={}, id="call00001"),
)
_SYSTEM = Message(role="system", content="Be brief.")
_TALK = (
    Message(role="user", content="Rain?"),
    Message(role="assistant", content="I look.", tool_calls=_CALLS),
    Message(role="tool", content="dry", tool_call_id="call00000"),
    Message(role="tool", content="12:00", tool_call_id="call00001"),
    Message(role="assistant", content="No rain."),
    Message(role="user", content="Thanks."),
)


def write_tool_template(folder: Path, config: FormatConfig) -> None:
    """Replace the chat template of a model's folder by one that shows tools and calls as the config's format does.

    Do nothing if the model's own template does, or if no template can.
    """
    try:
        template = _find_template(folder, config)
    except ConfigError:  # a base model, whose format has another error where it is needed
        return
    file, tokenizer = chat_template_file(folder), folder / "tokenizer_config.json"
    if template and file:
        file.write_text(template, encoding="utf-8")
    elif template:
        fields = json.loads(tokenizer.read_text(encoding="utf-8")) | {"chat_template": template}
        tokenizer.write_text(json.dumps(fields, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _find_template(folder: Path, config: FormatConfig) -> str:
    """Return the template that shows what the format does, or nothing."""
    own = read_chat_template(folder).rpartition(OWN_TEMPLATE)[2]
    render = compile_template(folder, own, enable_thinking=config.enable_thinking)
    prompt = render(_TALK[:1])
    if not config.tool_format and render(_TALK[:1], _TOOLS) != prompt:
        return ""
    format = chat_format_from_config(folder, config)
    vocabulary = FormatTokenizer.load(folder / "tokenizer.json")
    for settings in _settings(config.tool_format or "hermes", prompt):
        values = {name: "none" if value is None else json.dumps(value) for name, value in settings.items()}
        head = "".join(f"{{%- set {name} = {value} -%}}\n" for name, value in values.items())
        template = head + _TOOL_LIST.read_text(encoding="utf-8") + OWN_TEMPLATE + own
        show = compile_template(folder, template, enable_thinking=config.enable_thinking)
        if all(_is_shown_alike(format, vocabulary, show, talk) for talk in (_TALK, (_SYSTEM, *_TALK))):
            return template
    return ""


def _settings(tool_format: str, prompt: str) -> Iterator[Mapping[str, Any]]:
    """Yield the variables of `tool_list.jinja` for each way in which formats show tools by their own text.

    `prompt` is what the model's own template renders without a system message.
    """
    margins = {"hermes": (f"{hermes.OPEN}\n", f"\n{hermes.CLOSE}"), "json": ("", "")}
    if tool_format not in margins:
        return
    start = f"{START}system\n"
    chatml = {
        "hint": SIGNATURES[1],
        "call_start": hermes.OPEN,
        "call_end": hermes.CLOSE,
        "calls_are_text": True,
        "result_start": None,
        "result_end": "",
        "merges_users": False,
        "takes_system": True,
        "default_system": prompt.removeprefix(start).partition(END)[0] if prompt.startswith(start) else None,
    }
    yield chatml
    listed = {
        **chatml,
        "hint": "\nTo use a tool, reply with only\n",
        "call_start": margins[tool_format][0],
        "call_end": margins[tool_format][1],
        "default_system": None,
    }
    texts = {"result_start": f"{hermes.RESULT}\n", "result_end": f"\n{hermes.RESULT_END}", "merges_users": True}
    yield {**listed, **texts}
    yield {**listed, **texts, "takes_system": False}
    yield {**listed, "calls_are_text": False}
    yield {**listed, "calls_are_text": False, "merges_users": True, "takes_system": False}


def _is_shown_alike(
    format: ChatFormat, vocabulary: FormatTokenizer, render: ChatTemplate, talk: Sequence[Message]
) -> bool:
    """Return whether a template renders a conversation as the format does in an episode."""
    tokens, new = list[int](), list[Message]()
    for message in talk:
        if message.role == "assistant":
            tokens += [*format.encode(new, _TOOLS, tokens)]
            tokens += format.encode_reply(message)
            new = []
        else:
            new.append(message)
    tokens += format.encode(new, _TOOLS, tokens)
    try:
        return vocabulary.decode(tokens) == render(talk, _TOOLS)
    except ConfigError:
        return False
