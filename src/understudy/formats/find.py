"""From a model folder to its chat format.

What a format must know of a template beyond its family (the default system message, how the assistant's turn opens) is
read off what the template renders. Before a format is handed out, it is compared with the template on a short
conversation: a template that only looks like a known one is refused, where its model would be trained on a prompt that
it does not know. Templates come with the weights and are not trusted: they run in Jinja's sandbox.
"""

import json
from collections.abc import Callable, Sequence
from datetime import date
from functools import partial
from pathlib import Path

from understudy.errors import ConfigError
from understudy.formats.base import ChatFormat
from understudy.formats.chatml import END, QWEN_TOOLS, START, ChatML, wire_text
from understudy.formats.jinja import Template, compiled, source, special
from understudy.formats.options import FormatConfig
from understudy.formats.template import TemplateFormat
from understudy.formats.told import shown, told
from understudy.formats.vocabulary import Vocabulary
from understudy.messages import Message, ToolCall, ToolSpec

_KEPT = ("[AVAILABLE_TOOLS]", "<｜tool▁calls▁begin｜>")
"""Marks of families whose templates rewrite earlier turns, which stay as they were here.

Mistral's (up to version 11 of its tokenizer) move the tools and the system text to the last user message. DeepSeek's
leave out the marks around calls and results from the second round of them on.
"""

_TALK = tuple(Message(role=role, content=f"{role} text") for role in ("system", "user", "assistant", "user"))
_CALLS = (
    Message(role="assistant", content="a", tool_calls=(ToolCall(name="f", arguments={"x": "y"}),) * 2),
    Message(role="tool", content="one"),
    Message(role="tool", content="two"),
)
_TOOLS = tuple(ToolSpec(name=name, description="d", parameters={"type": "object", "properties": {}}) for name in "fg")


def configured(folder: Path, config: FormatConfig, today: date | None = None) -> ChatFormat:
    """The format of the model in `folder`, as the config wants it. Raises ConfigError as `find` does."""
    dialect = config.dialect or ""
    return find(folder, thinking=config.thinking, tolerant=config.tolerant, dialect=dialect, today=today)


def find(
    folder: Path, *, thinking: bool = False, tolerant: bool = True, dialect: str = "", today: date | None = None
) -> ChatFormat:
    """The format of the model in `folder`; `thinking` lets a model think that can be told not to.

    A `tolerant` format repairs calls that are broken, and reads those of other dialects. A `dialect` is how calls are
    written instead of the template's way; "" is the template's. `today` is what templates that tell the date say.

    Raises ConfigError for a model of no supported family, and for `thinking` where the model does not think.
    """
    text = source(folder)
    if thinking and "think" not in text:
        raise ConfigError(f"{folder} is a model that does not think; leave out thinking")
    vocabulary = Vocabulary.load(folder / "tokenizer.json")
    make = partial(compiled, folder, text, thinking=thinking, today=today)
    if not dialect and START in text and END in text and "<function=" not in text:
        try:
            return _known(folder, vocabulary, make(), tolerant)
        except ConfigError as error:
            if not tolerant:
                raise
            return _otherwise(folder, vocabulary, text, make, error)
    if not tolerant:
        raise ConfigError(f"{folder} is not read as ChatML with Hermes calls; leave out format.tolerant=false")
    if dialect:
        return _told(folder, vocabulary, make(), dialect)
    return _derived(folder, vocabulary, text, make)


def _otherwise(
    folder: Path, vocabulary: Vocabulary, text: str, make: Callable[..., Template], error: ConfigError
) -> ChatFormat:
    """ChatML that says things of its own, if that can be derived; the error of ChatML says more than the other one."""
    try:
        return _derived(folder, vocabulary, text, make)
    except ConfigError:
        raise error from None


def _known(folder: Path, vocabulary: Vocabulary, render: Template, tolerant: bool) -> ChatFormat:
    """ChatML, compared with the template."""
    tools = _TOOLS if render(_TALK, _TOOLS) != render(_TALK) else ()
    format = _chatml(vocabulary, render, tools, tolerant)
    talk = (*_TALK, *_CALLS) if tools else _TALK
    for messages, offered in ((talk, tools), (talk[1:], tools), (talk[1:2], ())):
        _compare(folder, vocabulary.decode(format.encode(messages, offered, ())), render(messages, offered))
    return format


def _derived(folder: Path, vocabulary: Vocabulary, text: str, make: Callable[..., Template]) -> ChatFormat:
    """What can be derived of a template of no family that is known by name."""
    kept = any(mark in text for mark in _KEPT)
    errors = []
    for text_arguments in (False, True):
        render = make(text_arguments=text_arguments)
        try:
            format = TemplateFormat(vocabulary, render, ends=_ends(folder, vocabulary), kept=kept)
            if format.shows_tools:
                return format
            told_of = shown(render, format.dialect)
            deviation = "tools are told in words, which the template does not show"
            return TemplateFormat(vocabulary, told_of, ends=_ends(folder, vocabulary), kept=kept, deviation=deviation)
        except ConfigError as error:
            errors.append(error)
    raise ConfigError(f"{folder} has {errors[0]}; format.dialect=json tells tools and calls in text") from errors[0]


def _told(folder: Path, vocabulary: Vocabulary, render: Template, dialect: str) -> ChatFormat:
    """A format whose template is shown nothing but text."""
    try:
        return TemplateFormat(
            vocabulary,
            told(render, dialect),
            dialect=dialect,
            ends=_ends(folder, vocabulary),
            deviation=f"tools, calls and results are text, as format.dialect={dialect} wants",
        )
    except ConfigError as error:
        raise ConfigError(f"{folder} has {error}") from error


def _ends(folder: Path, vocabulary: Vocabulary) -> set[int]:
    """Tokens that end replies whatever the template says: the folder's, and Llama's end of a message with calls."""
    file = folder / "generation_config.json"
    stated = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id") if file.is_file() else None
    names = (special(folder)["eos_token"], "<|eom_id|>", "<|eom|>")
    named = {vocabulary.added[name] for name in names if name in vocabulary.added}
    return named | set([stated] if isinstance(stated, int) else stated or [])


def _chatml(vocabulary: Vocabulary, render: Template, tools: Sequence[ToolSpec], tolerant: bool) -> ChatML:
    """ChatML with what this template says where templates differ."""
    bare, system, turn = render(_TALK[1:2]), f"{START}system\n", f"{START}assistant\n"
    return ChatML(
        vocabulary,
        "json" if tools else "signature",
        system=bare.removeprefix(system).partition(END)[0] if bare.startswith(system) else None,
        prefill=bare.rpartition(turn)[2],
        around=_around(render, tools) if tools else QWEN_TOOLS,
        tolerant=tolerant,
    )


def _around(render: Template, tools: Sequence[ToolSpec]) -> tuple[str, str]:
    """What the template puts before and after the tools; its wording differs even among Qwen2.5's models."""
    system = render(_TALK[:2], tools).partition(_TALK[0].content)[2].partition(END)[0]
    before, found, after = system.partition("\n".join(map(wire_text, tools)))
    return (before.removeprefix("\n\n"), after) if found else QWEN_TOOLS


def _compare(folder: Path, ours: str, theirs: str) -> None:
    if ours == theirs:
        return
    pairs = zip(ours, theirs, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
    text = f"{folder} has a ChatML template that is not supported so far: it says {theirs[at : at + 40]!r}"
    raise ConfigError(f"{text} where Hermes tools, or no tools, would make it {ours[at : at + 40]!r}")
