"""A format beside the model's own template, as transformers applies it: another implementation of the same text."""

import json
import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from understudy.errors import ConfigError
from understudy.messages import Message, ToolSpec, spec_to_wire

NO_TOOLS = "the template knows no tools: they are signatures in the system message, and a call is text"
THOUGHTS = "thoughts stay where they were sampled, and so does what opens a turn; the template drops them"
TRIMMED = "a reply that was cut off stays as it was sampled; the template trims it"
LOOK_ALIKES = "text that looks like a control token stays text; in the template it becomes that token"
_THOUGHT = re.compile(r"<think>(?:(?!<\|).)*?</think>\s*", re.DOTALL)  # it does not reach across a control token
_OPENED = re.compile(r"(?:<think>\s*|</think>\s*)\Z")
_DATE = re.compile(r"""strftime_now\(\s*(?P<quote>['"])(?P<pattern>.*?)(?P=quote)\s*\)""")


class Template:
    """The chat template of a model folder. Only transformers and the tokenizer are asked, nothing of `formats`.

    `today` is what it says where it tells the date.
    """

    def __init__(self, folder: Path, thinking: bool = False, today: date | None = None) -> None:
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._thinking = thinking
        self._day = today if today != date.today() else None

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """The tokens of a conversation that the assistant is to go on with. `ConfigError` where it is refused."""
        from jinja2 import TemplateError

        shown = [spec_to_wire(tool) for tool in tools] or None
        try:
            ids: list[int] = self._tokenizer.apply_chat_template(
                [_wire(message) for message in messages],
                tools=shown,
                add_generation_prompt=True,
                return_dict=False,
                enable_thinking=self._thinking,
                thinking=self._thinking,
                chat_template=self._dated(shown),
            )
        except TemplateError as error:
            raise ConfigError(f"the model's template fails: {error}") from error
        return ids

    def _dated(self, tools: Sequence[Any] | None) -> str | None:
        """The template as of another day; None, which is transformers' own choice of it, for today's.

        transformers tells today's date by `strftime_now`, and lets nobody say which day that is.
        """
        if self._day is None:
            return None
        strftime, text = self._day.strftime, str(self._tokenizer.get_chat_template(tools=tools))
        return _DATE.sub(lambda told: json.dumps(strftime(told["pattern"])), text)

    def refuses(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> bool:
        """Whether it fails on a conversation."""
        try:
            self.prompt(messages, tools)
        except ConfigError:
            return True
        return False

    def knows(self, tools: Sequence[ToolSpec]) -> bool:
        """Whether tools make a difference to it."""
        talk = [Message(role="user", content="hello")]
        return self.prompt(talk, tools) != self.prompt(talk, ())

    def round_trip(self, text: str) -> str:
        """The text as it comes back out of the model's own tokenizer: some normalize."""
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        return str(self._tokenizer.decode(ids, clean_up_tokenization_spaces=False))


def _wire(message: Message) -> dict[str, Any]:
    """The message as templates take it: arguments as an object."""
    wire: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        function = {"name", "arguments"}
        wire["tool_calls"] = [
            {"type": "function", "id": call.id, "function": call.model_dump(include=function)}
            for call in message.tool_calls
        ]
    return wire


def thoughtless(text: str) -> str:
    """The text without thoughts."""
    return _THOUGHT.sub("", text)


def unopened(prompt: str) -> str:
    """The prompt without what it opens a turn with: the beginning of a thought, or the end of none."""
    return _OPENED.sub("", prompt)
