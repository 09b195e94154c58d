"""Chat templates as Python functions.

Templates come with the weights and are untrusted, so they run in Jinja's sandbox.
"""

import json
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from understudy.core.errors import ConfigError, install_hint
from understudy.core.messages import Message, ToolSpec, tool_to_openai

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
ChatTemplate = Callable[..., str]
"""Function of messages and tools that returns text. With `prompt`, the text ends with the opening of an assistant's
turn."""


def chat_template_file(folder: Path) -> Path | None:
    """Return the file of a folder's chat template for tools, or None if `tokenizer_config.json` holds it."""
    files = folder / "additional_chat_templates" / "tool_use.jinja", folder / "chat_template.jinja"
    return next((file for file in files if file.is_file()), None)


def read_chat_template(folder: Path) -> str:
    """Return the Jinja source of a folder's chat template, from where transformers reads it.

    Of several named templates, `tool_use` comes first, then `default`. Raise ConfigError if there is none
    that can be read.
    """
    file = chat_template_file(folder)
    try:
        if file:
            return file.read_text(encoding="utf-8")
    except ValueError as error:
        raise ConfigError(f"{file} is not UTF-8 ({error}); download it again") from error
    try:
        template = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8")).get("chat_template")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} has no readable tokenizer_config.json: {error}") from error
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("tool_use") or named.get("default")
    if not isinstance(template, str):
        raise ConfigError(f"{folder} has no chat template; use the model's instruct version")
    return template


def compile_template(
    folder: Path,
    source: str,
    *,
    enable_thinking: bool | None = False,
    arguments_as_text: bool = False,
    today: date | None = None,
) -> ChatTemplate:
    """Compile a chat template to a function. The function raises ConfigError if the template fails.

    `enable_thinking` is passed under the two names that templates use; None leaves the template's default. With
    `arguments_as_text`, the template gets the arguments of calls as JSON text, as in the API, for templates that do not
    accept an object. `today` is the date for templates that write it.
    """
    try:
        from jinja2 import TemplateError, nodes
        from jinja2.exceptions import SecurityError
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ModuleNotFoundError as error:
        raise ConfigError(f"{folder} needs {error.name}; {install_hint('train')}") from error

    def raise_template_error(text: str) -> None:
        raise TemplateError(text)

    class GenerationTag(Extension):
        """The tag `{% generation %}`, which marks an assistant's text for loss masks. It renders what it contains."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    extensions = [loopcontrols, GenerationTag]
    jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    jinja.filters["tojson"] = _tojson
    jinja.globals.update(raise_exception=raise_template_error, strftime_now=(today or date.today()).strftime)
    thinking = {} if enable_thinking is None else {"enable_thinking": enable_thinking, "thinking": enable_thinking}
    variables: dict[str, Any] = {**read_special_tokens(folder), **thinking}
    try:
        template = jinja.from_string(source)
    except TemplateError as error:
        raise ConfigError(f"{folder} has a chat template that fails: {error}") from error

    def render(messages: Sequence[Message], tools: Sequence[ToolSpec] = (), prompt: bool = True) -> str:
        wire_messages = _to_wire(messages, arguments_as_text)
        wire_tools = [tool_to_openai(tool) for tool in tools] or None
        try:
            return template.render(messages=wire_messages, tools=wire_tools, add_generation_prompt=prompt, **variables)
        except SecurityError as error:
            reason = f"{str(error).removesuffix('.')}, also in transformers"
            if "of 'list' object" in reason:
                reason += "; in chat_template.jinja, replace ns.ids.append(x) by {% set ns.ids = ns.ids + [x] %}"
            raise ConfigError(f"{folder} has a chat template that fails: {reason}") from error
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            raise ConfigError(f"{folder} has a chat template that fails: {error}") from error

    return render


def read_special_tokens(folder: Path) -> dict[str, str]:
    """Return the special tokens that templates refer to by name, such as `bos_token`.

    They are those of transformers, "" if missing, and those that tokenizer_config.json defines.
    """
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    extra = config.get("extra_special_tokens")
    named = {key: value for key, value in config.items() if key.endswith("_token")}
    tokens = {**dict.fromkeys(_SPECIAL_TOKENS), **named, **(extra if isinstance(extra, dict) else {})}
    texts = {name: token.get("content") if isinstance(token, dict) else token for name, token in tokens.items()}
    return {name: text if isinstance(text, str) else "" for name, text in texts.items()}


def _tojson(value: Any, **options: Any) -> str:
    return json.dumps(value, **({"ensure_ascii": False} | options))


def _to_wire(messages: Sequence[Message], arguments_as_text: bool) -> list[dict[str, Any]]:
    """Return messages as templates expect them: wire format, with arguments as objects and tool names in results."""
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
                        "arguments": _tojson(call.arguments) if arguments_as_text else call.arguments,
                    },
                }
                for call in message.tool_calls
            ]
        if message.role == "tool":
            wire |= {"tool_call_id": message.tool_call_id, "name": names.get(message.tool_call_id, "")}
        wires.append(wire)
    return wires
