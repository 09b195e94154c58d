"""Loading of a model folder's chat format.

Templates of one family differ in details: the default system message, the start of the assistant's turn. These details
are read from what the template renders. Before a format is returned, it is compared with the template on a short
conversation. A template that only resembles a known one is refused, because its model would be trained on prompts that
it does not know. Templates come with the weights and are untrusted, so they run in Jinja's sandbox.
"""

import json
from collections.abc import Callable, Sequence
from datetime import date
from functools import partial
from pathlib import Path

from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.formats.chat_format import ChatFormat
from understudy.formats.chatml import END, QWEN_TOOLS, START, ChatML, tool_json
from understudy.formats.jinja import ChatTemplate, compile_template, read_chat_template, read_special_tokens
from understudy.formats.options import FormatConfig
from understudy.formats.prompted_tools import template_with_listed_tools, template_with_text_tools
from understudy.formats.template import TemplateFormat
from understudy.formats.tokenizer import FormatTokenizer

OWN_TEMPLATE = "{#- The model's own template follows. -#}\n"
"""What `tool_template` writes before the model's own template."""
_REWRITING = ("[AVAILABLE_TOOLS]", "<｜tool▁calls▁begin｜>")
"""Markers of families whose templates rewrite earlier turns. Formats of these families leave earlier turns unchanged.
"""

_TALK = tuple(Message(role=role, content=f"{role} text") for role in ("system", "user", "assistant", "user"))
_CALLS = (
    Message(role="assistant", content="a", tool_calls=(ToolCall(name="f", arguments={"x": "y"}),) * 2),
    Message(role="tool", content="one"),
    Message(role="tool", content="two"),
)
_TOOLS = tuple(ToolSpec(name=name, description="d", parameters={"type": "object", "properties": {}}) for name in "fg")


def chat_format_from_config(folder: Path, config: FormatConfig, today: date | None = None) -> ChatFormat:
    """Return the format of the model in `folder`, with the config's options.

    Raise ConfigError as `load_chat_format` does.
    """
    tool_format = config.tool_format or ""
    return load_chat_format(folder, enable_thinking=config.enable_thinking, tool_format=tool_format, today=today)


def load_chat_format(
    folder: Path, *, enable_thinking: bool = False, tool_format: str = "", today: date | None = None
) -> ChatFormat:
    """Return the chat format of the model in `folder`.

    `enable_thinking` turns thinking on where the template can switch it. `tool_format` is the syntax of calls; "" uses
    the template's. `today` is the date for templates that write it.

    Raise ConfigError if the template is not supported, or if `enable_thinking` is set and the model does not think.
    """
    text = read_chat_template(folder).rpartition(OWN_TEMPLATE)[2]
    if enable_thinking and "think" not in text:
        raise ConfigError(f"{folder}: the chat template has no thinking; leave out format.enable_thinking")
    vocabulary = FormatTokenizer.load(folder / "tokenizer.json")
    make = partial(compile_template, folder, text, enable_thinking=enable_thinking, today=today)
    if not tool_format and START in text and END in text and "<function=" not in text:
        try:
            return _load_chatml(folder, vocabulary, make())
        except ConfigError as chatml_error:
            try:
                return _derive_format(folder, vocabulary, text, make)
            except ConfigError:
                raise chatml_error from None  # more specific than the error of the derived format
    if tool_format:
        return _load_prompted(folder, vocabulary, make(), tool_format)
    return _derive_format(folder, vocabulary, text, make)


def _load_chatml(folder: Path, vocabulary: FormatTokenizer, render: ChatTemplate) -> ChatFormat:
    """Return a ChatML format. Raise ConfigError if it renders a conversation differently from the template."""
    tools = _TOOLS if render(_TALK, _TOOLS) != render(_TALK) else ()
    format = _make_chatml(vocabulary, render, tools)
    conversation = (*_TALK, *_CALLS) if tools else _TALK
    for messages, shown_tools in ((conversation, tools), (conversation[1:], tools), (conversation[1:2], ())):
        ours = vocabulary.decode(format.encode(messages, shown_tools, ()))
        _compare(folder, ours, render(messages, shown_tools))
    return format


def _derive_format(
    folder: Path, vocabulary: FormatTokenizer, text: str, make: Callable[..., ChatTemplate]
) -> ChatFormat:
    """Return a format derived from the template. Raise ConfigError if that is impossible."""
    rewrites = any(mark in text for mark in _REWRITING)
    stop_ids = _read_stop_ids(folder, vocabulary)
    errors = []
    for text_arguments in (False, True):
        render = make(arguments_as_text=text_arguments)
        try:
            format = TemplateFormat(vocabulary, render, extra_stop_ids=stop_ids, allow_rewrites=rewrites)
            if format.shows_tools:
                return format
            return TemplateFormat(
                vocabulary,
                template_with_listed_tools(render, format.tool_format),
                extra_stop_ids=stop_ids,
                allow_rewrites=rewrites,
                template_deviation="tools are listed in the system message, because the template does not show them",
            )
        except ConfigError as error:
            errors.append(error)
    reason = str(errors[0]).removeprefix(f"{folder} has ")
    raise ConfigError(f"{folder} has {reason}; set format.tool_format=json to write tools and calls as text") from (
        errors[0]
    )


def _load_prompted(folder: Path, vocabulary: FormatTokenizer, render: ChatTemplate, tool_format: str) -> ChatFormat:
    """Return a format in which tools, calls and results are plain text to the template."""
    try:
        return TemplateFormat(
            vocabulary,
            template_with_text_tools(render, tool_format),
            tool_format=tool_format,
            extra_stop_ids=_read_stop_ids(folder, vocabulary),
            template_deviation=f"tools, calls and results are text, because format.tool_format={tool_format} is set",
        )
    except ConfigError as error:
        raise ConfigError(f"{folder} has {error}") from error


def _read_stop_ids(folder: Path, vocabulary: FormatTokenizer) -> set[int]:
    """Return the stop tokens that the folder names, and Llama's token that ends a message with calls."""
    file = folder / "generation_config.json"
    eos_ids = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id") if file.is_file() else None
    names = (read_special_tokens(folder)["eos_token"], "<|eom_id|>", "<|eom|>")
    named_ids = {vocabulary.added_tokens[name] for name in names if name in vocabulary.added_tokens}
    if isinstance(eos_ids, int):
        eos_ids = [eos_ids]
    return named_ids | set(eos_ids or [])


def _make_chatml(vocabulary: FormatTokenizer, render: ChatTemplate, tools: Sequence[ToolSpec]) -> ChatML:
    """Return the ChatML format of a template.

    ChatML templates differ in the default system message, in the start of the assistant's turn and in the text around
    the tools. These are read from what the template renders.
    """
    prompt = render(_TALK[1:2])
    system_start = f"{START}system\n"
    default_system = None
    if prompt.startswith(system_start):
        default_system = prompt.removeprefix(system_start).partition(END)[0]
    return ChatML(
        vocabulary,
        "json" if tools else "signature",
        default_system=default_system,
        prefill=prompt.rpartition(f"{START}assistant\n")[2],
        tool_block=_find_tool_block(render, tools) if tools else QWEN_TOOLS,
    )


def _find_tool_block(render: ChatTemplate, tools: Sequence[ToolSpec]) -> tuple[str, str]:
    """Return the template's text before and after the tools, which differs even among the Qwen2.5 models."""
    system = render(_TALK[:2], tools).partition(_TALK[0].content)[2].partition(END)[0]
    before, found, after = system.partition("\n".join(map(tool_json, tools)))
    return (before.removeprefix("\n\n"), after) if found else QWEN_TOOLS


def _compare(folder: Path, ours: str, theirs: str) -> None:
    if ours == theirs:
        return
    pairs = zip(ours, theirs, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
    text = f"{folder} has an unsupported ChatML template: it renders {theirs[at : at + 40]!r}"
    raise ConfigError(f"{text} where ChatML with Hermes tools, or without tools, has {ours[at : at + 40]!r}")
