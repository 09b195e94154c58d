"""The chat template of a model as transformers applies it: an independent reference for the format checks."""

import json
import re
from collections.abc import Sequence
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolSpec, tool_to_openai

TOOLS_UNSUPPORTED = "the template has no tools: they are signatures in the system message, and calls are text"
THOUGHTS_KEPT = "earlier thoughts and the tokens that open a turn stay in the prompt; the template removes them"
BORDERS_KEPT = "prompt and reply are encoded separately, as they were sampled; the template encodes them as one text"
CUT_REPLY_KEPT = "a truncated reply stays as it was sampled; the template trims it"
RESULTS_KEPT = "the model reads the error that answers a truncated call; the template drops results without a call"
STRINGS_ESCAPED = (
    "quotes, backslashes and line breaks in strings of calls are escaped; the template writes them as they are"
)
CONTROL_TEXT_KEPT = "text that looks like a control token stays text; the template turns it into that token"
_THOUGHT = re.compile(r"<think>(?:(?!<\|).)*?</think>\s*", re.DOTALL)  # does not extend over a control token
_ESCAPED = {r"\n": "\n", r"\r": "\r"}
_ESCAPE = re.compile(r"""\\[\\'"nr]""")
_OPENED = re.compile(r"(?:<think>\s*|</think>\s*)\Z")
_DATE = re.compile(r"""strftime_now\(\s*(?P<quote>['"])(?P<pattern>.*?)(?P=quote)\s*\)""")


class ModelTemplate:
    """The chat template of a model folder. It uses only transformers and the tokenizer, and nothing of `formats`.

    `thinking` allows the model to think. `today` is the date that the template prints, by default the current one.
    Raise ConfigError if transformers cannot load the tokenizer. Code in the folder is not run.
    """

    def __init__(self, folder: Path, thinking: bool = False, today: date | None = None) -> None:
        from huggingface_hub.errors import StrictDataclassError
        from transformers import AutoTokenizer

        try:
            self._tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        except (AttributeError, KeyError, OSError, TypeError, ValueError, StrictDataclassError) as error:
            reason = " ".join(str(error).split())
            raise ConfigError(
                f"transformers cannot load the tokenizer of {folder}: {reason:.300}; correct the files of the model"
            ) from error
        self._thinking = thinking
        self._day = today if today != date.today() else None

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Return the tokens of a conversation up to the assistant's next reply.

        Raise ConfigError if the template refuses the conversation.
        """
        from jinja2 import TemplateError

        tool_schemas = [tool_to_openai(tool) for tool in tools] or None
        try:
            ids: list[int] = self._tokenizer.apply_chat_template(
                [_wire(message) for message in messages],
                tools=tool_schemas,
                add_generation_prompt=True,
                return_dict=False,
                enable_thinking=self._thinking,
                thinking=self._thinking,
                chat_template=self._dated(tool_schemas),
            )
        except (TemplateError, TypeError) as error:  # TypeError: DeepSeek's template takes arguments only as text
            raise ConfigError(f"the model's template fails: {error}") from error
        return ids

    def _dated(self, tools: Sequence[Any] | None) -> str | None:
        """Return the template's text with the date of `today`, or None if `today` is not set.

        None makes transformers apply its own template with the current date. In transformers, `strftime_now` always
        prints the current date. Each call of it is therefore replaced by a date in the template's text.
        """
        if self._day is None:
            return None
        strftime, text = self._day.strftime, str(self._tokenizer.get_chat_template(tools=tools))
        return _DATE.sub(lambda match: json.dumps(strftime(match["pattern"])), text)

    def drops_text(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> bool:
        """Return whether the template leaves out the text of a reply with calls, or writes it after their results."""
        for after, (reply, result) in enumerate(pairwise(messages), 2):
            if reply.tool_calls and reply.content and result.role == "tool":
                text = str(self._tokenizer.decode(self.prompt(messages[:after], tools)))
                if not 0 <= text.rfind(reply.content.strip()) < text.rfind(result.content):
                    return True
        return False

    def rejects(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> bool:
        """Return whether the template refuses a conversation."""
        try:
            self.prompt(messages, tools)
        except ConfigError:
            return True
        return False

    def supports_tools(self, tools: Sequence[ToolSpec]) -> bool:
        """Return whether tools change the prompt."""
        talk = [Message(role="user", content="hello")]
        return self.prompt(talk, tools) != self.prompt(talk, ())

    @property
    def tokenizer_class(self) -> str:
        """Name of the class that transformers chose for the tokenizer."""
        return type(self._tokenizer).__name__

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text without special tokens."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def tokenizer_round_trip(self, text: str) -> str:
        """Return the text after encoding and decoding with the model's own tokenizer, which may normalize it."""
        return str(self._tokenizer.decode(self.encode(text), clean_up_tokenization_spaces=False))


def _wire(message: Message) -> dict[str, Any]:
    """Return a message as templates expect it, with the arguments of calls as an object."""
    wire: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        function = {"name", "arguments"}
        wire["tool_calls"] = [
            {"type": "function", "id": call.id, "function": call.model_dump(include=function)}
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        wire["tool_call_id"] = message.tool_call_id  # Gemma 4 finds the name of the tool by it
    return wire


def strip_thoughts(text: str) -> str:
    """Return the text without thoughts."""
    return _THOUGHT.sub("", text)


def strip_escapes(text: str) -> str:
    """Return the text with each escaped quote, backslash and line break replaced by what it stands for."""
    return _ESCAPE.sub(lambda escape: _ESCAPED.get(escape[0], escape[0][1]), text)


def strip_turn_opening(prompt: str) -> str:
    """Return the prompt without a `<think>` or `</think>` at its end, which opens the assistant's turn."""
    return _OPENED.sub("", prompt)
