"""Chat templates as functions. They come with the weights and are not trusted: they run in Jinja's sandbox."""

import json
from collections.abc import Callable, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from understudy.errors import ConfigError, installation
from understudy.messages import Message, ToolSpec, spec_to_wire

Template = Callable[..., str]
"""The text of messages and tools; `prompt`: an assistant's turn is opened at the end."""


def source(folder: Path) -> str:
    """The Jinja text of the chat template, where transformers would take it from. Raises ConfigError without one."""
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


def compiled(
    folder: Path, source: str, *, thinking: bool = False, text_arguments: bool = False, today: date | None = None
) -> Template:
    """The template as a function. Where it fails, that is a ConfigError.

    Two names for thinking are in use. `text_arguments` gives the arguments of calls as the text of their JSON, which is
    what the API has, to templates that do not take the object. `today` is what templates that tell the date say.
    """
    try:
        from jinja2 import TemplateError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ModuleNotFoundError as error:
        raise ConfigError(f"{folder} needs {error.name}; {installation('train')}") from error

    def refuse(text: str) -> None:
        raise TemplateError(text)

    jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    jinja.filters["tojson"] = _tojson
    jinja.globals.update(raise_exception=refuse, strftime_now=(today or date.today()).strftime)
    wired = partial(_wire, text_arguments=text_arguments)
    fixed = special(folder) | {"enable_thinking": thinking, "thinking": thinking}
    try:
        template = jinja.from_string(source)
    except TemplateError as error:
        raise ConfigError(f"{folder} has a chat template that fails: {error}") from error

    def render(messages: Sequence[Message], tools: Sequence[ToolSpec] = (), prompt: bool = True) -> str:
        shown = [spec_to_wire(tool) for tool in tools] or None
        try:
            return template.render(messages=wired(messages), tools=shown, add_generation_prompt=prompt, **fixed)
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            raise ConfigError(f"{folder} has a chat template that fails: {error}") from error

    return render


def special(folder: Path) -> dict[str, str]:
    """The tokens that templates call by name."""
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    tokens = {name: config.get(name) or "" for name in ("bos_token", "eos_token")}
    return {name: token["content"] if isinstance(token, dict) else token for name, token in tokens.items()}


def _tojson(value: Any, **how: Any) -> str:
    return json.dumps(value, **({"ensure_ascii": False} | how))


def _wire(messages: Sequence[Message], text_arguments: bool) -> list[dict[str, Any]]:
    """Messages as templates take them: in the API's format, but with objects for arguments, and names of results."""
    names: dict[str, str] = {}
    wires = []
    for message in messages:
        wire: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            names |= {call.id: call.name for call in message.tool_calls}
            wire["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.name,
                        "arguments": _tojson(call.arguments) if text_arguments else call.arguments,
                    },
                }
                for call in message.tool_calls
            ]
        if message.role == "tool":
            wire |= {"tool_call_id": message.tool_call_id, "name": names.get(message.tool_call_id, "")}
        wires.append(wire)
    return wires
