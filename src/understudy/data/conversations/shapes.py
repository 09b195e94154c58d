"""Shapes of rows: which keys a row needs to be read, and what it can be used for.

A row has the first shape of `SHAPES` of which it has all keys; nulls count as missing, and other keys are ignored.
Sources: OpenAI's guides "Supervised fine-tuning" and "Direct preference optimization"; TRL, "Dataset formats and
types"; LLaMA-Factory, data/README.md (ShareGPT, Alpaca); verl, "Prepare Data for Post-Training".
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from understudy.core.items import InvalidField, describe_row
from understudy.sources.row_messages import Row, WireMessage, text_message
from understudy.sources.sharegpt import messages_from_sharegpt

Use = Literal["sft", "dpo", "kto", "reward"]
USES: dict[Use, str] = {"sft": "SFT", "dpo": "DPO", "kto": "KTO", "reward": "a reward function"}
"""What each use is called in errors and docs."""


@dataclass(frozen=True, slots=True)
class RowParts:
    """The messages of a row: a prompt, and its continuations."""

    prompt: list[Any]
    continuations: list[list[Any]]
    """None, one, or two with the better one first."""


@dataclass(frozen=True, slots=True)
class RowShape:
    """A shape of rows."""

    keys: tuple[str, ...]
    uses: tuple[Use, ...]
    split: Callable[[Row], RowParts]
    """Returns the messages of a row. Raises InvalidField."""


_PAIR = ("chosen", "rejected")
_CONTINUATIONS = (*_PAIR, "completion", "messages")


def find_shape(value: Any, uses: Sequence[Use] = ("sft", "dpo", "kto")) -> tuple[RowShape, Row]:
    """Return the shape of a row, and the row's columns that are not null.

    Raise InvalidField if the row has no known shape, or none of these uses. Its text describes the row and lists the
    shapes.
    """
    columns = _columns(value) if isinstance(value, dict) else {}
    found = next((shape for shape in SHAPES if columns.keys() >= {*shape.keys}), None)
    if found is None:
        raise InvalidField("", f"unknown shape {describe_row(value)}; {list_shapes(uses)}")
    if not set(found.uses) & set(uses):
        names = " and ".join(USES[use] for use in found.uses)
        raise InvalidField("", f"it has the shape {_keys(found)}, which is for {names}; {list_shapes(uses)}")
    return found, columns


def list_shapes(uses: Sequence[Use]) -> str:
    """Return the keys of all shapes with one of these uses."""
    names = ", ".join(USES[use] for use in uses)
    return f"shapes for {names}: {' | '.join(_keys(shape) for shape in SHAPES if set(shape.uses) & set(uses))}"


def _keys(shape: RowShape) -> str:
    return f"{{{', '.join(shape.keys)}}}"


def _columns(row: Row) -> dict[str, Any]:
    """Return the columns of a row without nulls and without texts beside lists of messages.

    Raise InvalidField if the row has half a pair, or two continuations that are no pair.
    """
    columns = {key: value for key, value in row.items() if value is not None}
    if "kto_tag" in columns:
        columns["label"] = columns.pop("kto_tag")
    there = [name for name in _CONTINUATIONS if name in columns]
    texts = [name for name in there if isinstance(columns[name], str)]
    if len(texts) < len(there):
        columns = {key: value for key, value in columns.items() if key not in texts}
        there = [name for name in there if name in columns]
    if set(_PAIR) <= set(there):
        return columns
    if half := set(_PAIR) & set(there):
        name = half.pop()
        other = " and ".join(each for each in there if each != name) or "nothing"
        raise InvalidField(name, f"a pair needs both chosen and rejected, but beside {name} there is {other}")
    if len(there) > 1:
        raise InvalidField(there[0], f"it has {' and '.join(there)}; only one of them is allowed")
    return columns


def _split_sharegpt(row: Row) -> RowParts:
    turns = _message_list(row, "conversations")
    ends = [[row[name]] for name in _PAIR] if "chosen" in row else [[]]
    return RowParts(_system_messages(row), [messages_from_sharegpt([*turns, *end]) for end in ends])


def _system_messages(row: Row) -> list[WireMessage]:
    system = row.get("system")
    return [text_message("system", system)] if isinstance(system, str) and system else []


def _split_openai_pair(row: Row) -> RowParts:
    shown = row["input"] if isinstance(row["input"], dict) else {}
    replies = [_message_list(row, name) for name in ("preferred_output", "non_preferred_output")]
    return RowParts(_message_list(shown, "messages"), replies)


def _split_messages(row: Row) -> RowParts:
    prompt = row.get("prompt")  # with text as its prompt, the first user message is there twice
    return _join(prompt if isinstance(prompt, list) else [], [_message_list(row, "messages")])


def _split_continued(row: Row) -> RowParts:
    names = _PAIR if "chosen" in row else ("completion",)
    if "prompt" not in row and isinstance(row[names[0]], str):
        raise InvalidField(names[0], "a list of messages is needed, because there is no prompt")
    ends = [_reply_messages(row, name) for name in names]
    prompt = row.get("prompt", [])
    if isinstance(prompt, str) and all(_role(end) not in ("assistant", "") for end in ends):
        return _join([], ends)  # whole conversations, whose first user message the prompt repeats
    return _join(_prompt_messages(prompt, "prompt"), ends)


def _split_alpaca(row: Row) -> RowParts:
    parts = [_text(row, "instruction"), _text(row, "input") if "input" in row else ""]
    asked = text_message("user", "\n".join(filter(None, parts)))
    names = _PAIR if "chosen" in row else ("output",)
    replies = [[text_message("assistant", _text(row, name))] for name in names]
    return RowParts([*_system_messages(row), *_history(row), asked], replies)


def _history(row: Row) -> Iterator[WireMessage]:
    history = row.get("history") or []
    if not isinstance(history, list):
        raise InvalidField("history", "a list of pairs of texts is needed")
    for number, pair in enumerate(history):
        if not isinstance(pair, list) or [type(text) for text in pair] != [str, str]:
            raise InvalidField(f"history.{number}", "a pair of texts is needed: of the user and of the assistant")
        yield from (text_message(role, text) for role, text in zip(("user", "assistant"), pair, strict=True))


def _split_question(row: Row) -> RowParts:
    name = "question" if "question" in row else "prompt"
    return RowParts(_prompt_messages(row[name], name), _answers(row["answer"]))


def _split_verl(row: Row) -> RowParts:
    graded = row["reward_model"]
    answers = _answers(graded.get("ground_truth")) if isinstance(graded, dict) else []
    return RowParts(_prompt_messages(row["prompt"], "prompt"), answers)


def _answers(answer: Any) -> list[list[Any]]:
    """Return an answer as a continuation; none if it is neither text nor number."""
    is_text = isinstance(answer, str | int | float) and not isinstance(answer, bool)
    return [[text_message("assistant", str(answer))]] if is_text else []


def _join(prompt: list[Any], ends: list[list[Any]]) -> RowParts:
    """Return a prompt and its continuations. Continuations that begin with the prompt are whole conversations."""
    return RowParts([] if all(end[: len(prompt)] == prompt for end in ends) else prompt, ends)


def _prompt_messages(prompt: Any, field: str) -> list[Any]:
    if isinstance(prompt, str):
        return [text_message("user", prompt)]
    if not isinstance(prompt, list):
        raise InvalidField(field, "a text or a list of messages is needed")
    return prompt


def _reply_messages(row: Row, name: str) -> list[Any]:
    if isinstance(row[name], str):
        return [text_message("assistant", row[name])]
    return [row[name]] if isinstance(row[name], dict) else _message_list(row, name)


def _role(messages: Sequence[Any]) -> Any:
    return messages[0].get("role") if messages and isinstance(messages[0], dict) else ""


def _message_list(row: Row, name: str) -> list[Any]:
    if not isinstance(row.get(name), list):
        raise InvalidField(name, "a list of messages is needed")
    return list(row[name])


def _text(row: Row, name: str) -> str:
    text = row[name]
    if not isinstance(text, str):
        raise InvalidField(name, "a text is needed")
    return text


SHAPES = (
    RowShape(("conversations", "chosen", "rejected"), ("dpo",), _split_sharegpt),
    RowShape(("conversations", "label"), ("kto",), _split_sharegpt),
    RowShape(("conversations",), ("sft",), _split_sharegpt),
    RowShape(("input", "preferred_output", "non_preferred_output"), ("dpo",), _split_openai_pair),
    RowShape(("instruction", "chosen", "rejected"), ("dpo",), _split_alpaca),
    RowShape(("prompt", "chosen", "rejected"), ("dpo",), _split_continued),
    RowShape(("chosen", "rejected"), ("dpo",), _split_continued),
    RowShape(("messages", "label"), ("kto",), _split_messages),
    RowShape(("messages",), ("sft",), _split_messages),
    RowShape(("prompt", "completion", "label"), ("kto",), _split_continued),
    RowShape(("prompt", "completion"), ("sft",), _split_continued),
    RowShape(("instruction", "output", "label"), ("kto",), _split_alpaca),
    RowShape(("instruction", "output"), ("sft",), _split_alpaca),
    RowShape(("prompt", "reward_model"), ("reward",), _split_verl),
    RowShape(("question", "answer"), ("sft", "reward"), _split_question),
    RowShape(("prompt", "answer"), ("sft", "reward"), _split_question),
)
"""All shapes, more specific ones first. docs/data.md has an example row of each."""
