"""From a model folder to its chat format.

What a format must know of a template beyond its family (the default system message, how the assistant's turn opens) is
read off what the template renders. Before a format is handed out, it is compared with the template on a short
conversation: a template that only looks like a known one is refused, where its model would be trained on a prompt that
it does not know. Templates come with the weights and are not trusted: they run in Jinja's sandbox.
"""

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from understudy.errors import ConfigError
from understudy.formats.base import ChatFormat
from understudy.formats.chatml import END, QWEN_TOOLS, START, ChatML, wire_text
from understudy.formats.template import TemplateFormat
from understudy.formats.vocabulary import Vocabulary
from understudy.messages import Message, ToolCall, ToolSpec, spec_to_wire

Template = Callable[..., str]

_TALK = tuple(Message(role=role, content=f"{role} text") for role in ("system", "user", "assistant", "user"))
_CALLS = (
    Message(role="assistant", content="a", tool_calls=(ToolCall(name="f", arguments={"x": "y"}),) * 2),
    Message(role="tool", content="one"),
    Message(role="tool", content="two"),
)
_TOOLS = tuple(ToolSpec(name=name, description="d", parameters={"type": "object", "properties": {}}) for name in "fg")


def find(folder: Path, *, thinking: bool = False, tolerant: bool = True) -> ChatFormat:
    """The format of the model in `folder`; `thinking` lets a model think that can be told not to.

    A `tolerant` format repairs calls that are broken, and reads those of other dialects.

    Raises ConfigError for a model of no supported family, and for `thinking` where the model does not think.
    """
    source = _source(folder)
    if START not in source or END not in source or "<function=" in source:
        return _derived(folder, source, thinking, tolerant)
    if thinking and "<think>" not in source:
        raise ConfigError(f"{folder} is a model that does not think; leave out thinking")
    render = partial(_compiled(folder, source), enable_thinking=thinking)
    tools = _TOOLS if render(_TALK, _TOOLS) != render(_TALK) else ()
    vocabulary = Vocabulary.load(folder / "tokenizer.json")
    format = _chatml(vocabulary, render, tools, tolerant)
    talk = (*_TALK, *_CALLS) if tools else _TALK
    for messages, shown in ((talk, tools), (talk[1:], tools), (talk[1:2], ())):
        _compare(folder, vocabulary.decode(format.encode(messages, shown, ())), render(messages, shown))
    return format


def _derived(folder: Path, source: str, thinking: bool, tolerant: bool) -> ChatFormat:
    """A format for a template of no family that is known by name."""
    if thinking or not tolerant:
        raise ConfigError(f"{folder} is not ChatML with Hermes calls; leave out thinking and format.tolerant=false")
    render = partial(_compiled(folder, source), **_special(folder))
    try:
        return TemplateFormat(Vocabulary.load(folder / "tokenizer.json"), render)
    except ConfigError as error:
        raise ConfigError(f"{folder} has {error}") from error


def _special(folder: Path) -> dict[str, str]:
    """The tokens that templates call by name."""
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    tokens = {name: config.get(name) or "" for name in ("bos_token", "eos_token")}
    return {name: token["content"] if isinstance(token, dict) else token for name, token in tokens.items()}


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


def _source(folder: Path) -> str:
    """The Jinja text of the chat template, where transformers would take it from."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    try:
        template = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8")).get("chat_template")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} has no tokenizer_config.json that can be read: {error}") from error
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("tool_use") or named.get("default")
    if not isinstance(template, str):
        raise ConfigError(f"{folder} has no chat template; take the model's instruct version")
    return template


def _compiled(folder: Path, source: str) -> Template:
    """The template as a function of messages and tools. It fails as ConfigError."""
    try:
        from jinja2 import TemplateError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ModuleNotFoundError as error:
        raise ConfigError(f"{folder} needs {error.name}; run pip install 'understudy[train]'") from error

    def refuse(text: str) -> None:
        raise TemplateError(text)

    jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    jinja.filters["tojson"] = lambda value, **how: json.dumps(value, **({"ensure_ascii": False} | how))
    jinja.globals.update(raise_exception=refuse, strftime_now=lambda how: datetime.now().strftime(how))

    def render(messages: Sequence[Message], tools: Sequence[ToolSpec] = (), prompt: bool = True, **options: Any) -> str:
        wire = {"messages": [_wire(m) for m in messages], "tools": [spec_to_wire(tool) for tool in tools] or None}
        try:
            return jinja.from_string(source).render(wire, add_generation_prompt=prompt, **options)
        except TemplateError as error:
            raise ConfigError(f"{folder} has a chat template that fails: {error}") from error

    return render


def _wire(message: Message) -> dict[str, Any]:
    """The message as templates take it: arguments are an object and not its text."""
    calls = [{"type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in message.tool_calls]
    return {"role": message.role, "content": message.content} | ({"tool_calls": calls} if calls else {})
