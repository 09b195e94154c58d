"""Shapes of rows: which keys a row needs to be read, and what it can be used for.

A row has the first shape of `SHAPES` of which it has all keys; nulls count as missing, and other keys are not used.
Before that, a conversation under another key, or as JSON text, is put under the key of its shape.
Sources: OpenAI's guides "Supervised fine-tuning" and "Direct preference optimization"; TRL, "Dataset formats and
types"; LLaMA-Factory, data/README.md (ShareGPT, Alpaca); verl, "Prepare Data for Post-Training".
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import from_json

from understudy.core.items import InvalidField, describe_row
from understudy.sources.atif import conversation_of_atif, is_atif
from understudy.sources.outcomes import OUTCOME_COLUMNS
from understudy.sources.row_messages import (
    SYSTEM_COLUMNS,
    TOOL_COLUMNS,
    Row,
    WireMessage,
    decode_list,
    find_system,
    text_message,
    unknown_message_keys,
    unknown_tool_keys,
)
from understudy.sources.sharegpt import messages_from_sharegpt
from understudy.sources.task_files.prompt_rows import QUESTION_COLUMNS, rename_hint

Use = Literal["sft", "dpo", "kto", "reward"]
USES: dict[Use, str] = {"sft": "SFT", "dpo": "DPO", "kto": "KTO", "reward": "a reward function"}
"""What each use is called in errors and docs."""
_KIND_HINTS: Mapping[Use, str] = {
    "dpo": "set preferences.kind=dpo (`data convert`: --to dpo)",
    "kto": "set preferences.kind=kto (`data convert`: --to kto)",
}


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
_CONVERSATIONS = ("conversation", "traj", "trajectory", "original_conversation")
"""Other names of `conversations`."""
_HOLDERS: Mapping[str, tuple[str, ...]] = {
    "episode_results": ("trajectory", *OUTCOME_COLUMNS),
    "extra_info": ("original_conversation",),
    "task_metadata": ("user_query",),
    "reward_spec.ground_truth.actual_performance": OUTCOME_COLUMNS,
    "reward_spec.ground_truth.final_state": OUTCOME_COLUMNS,
}
"""Places of objects, and what of a conversation may be in them."""
_REQUESTS = ("prompt", "question", "user_query", "query")
"""Columns with what the user asks in the first message of steps without messages."""
_FURTHER_COLUMNS = {
    *("input", "request", "history", "task", "label", "kto_tag", *_HOLDERS, *OUTCOME_COLUMNS),
    *("id", "task_id", "uid", "index", "trial", "split", "source", "data_source", "parallel_tool_calls"),
}
"""Columns that are read beside those of a shape, or that only name a row."""
_EPISODE_KEYS = {"choices": {"message"}, "steps": {"action", "messages"}}
"""Columns of episodes that questions have too, with keys of their objects."""
_JSON_COLUMNS = (
    *(*_CONVERSATIONS, "conversations", "messages", "prompt", *_PAIR, "completion", "history", "steps", "choices"),
    *("input", "request", "preferred_output", "non_preferred_output"),
)
"""Columns with messages, which may be JSON text."""


def find_shape(value: Any, uses: Sequence[Use] = ("sft", "dpo", "kto")) -> tuple[RowShape, Row]:
    """Return the shape of a row, and the row's columns that are not null.

    Raise InvalidField if the row has no known shape, or none of these uses. Its text describes the row and lists the
    shapes.
    """
    columns = _columns(value)
    found = next((shape for shape in SHAPES if columns.keys() >= {*shape.keys}), None)
    if found is None:
        if renamed := rename_hint(value):
            raise InvalidField("", f"{renamed}: the shape {describe_row(value)} is unknown")
        raise InvalidField("", f"unknown shape {describe_row(value)}; {list_shapes(uses)}")
    if not set(found.uses) & set(uses):
        names = " and ".join(USES[use] for use in found.uses)
        hint = "".join(f"{_KIND_HINTS[use]}; " for use in found.uses if use in _KIND_HINTS and "sft" not in uses)
        raise InvalidField("", f"it has the shape {_keys(found)}, which is for {names}; {hint}{list_shapes(uses)}")
    return found, columns


def list_shapes(uses: Sequence[Use]) -> str:
    """Return the keys of all shapes with one of these uses."""
    names = ", ".join(USES[use] for use in uses)
    keys = " | ".join(_keys(shape) for shape in SHAPES if set(shape.uses) & set(uses))
    return f"shapes for {names}: {keys}; docs/conversations.md has an example of each"


def _keys(shape: RowShape) -> str:
    return f"{{{', '.join(shape.keys)}}}"


def unused_columns(value: Any, shape: RowShape) -> list[str]:
    """Return the columns of a row of a shape that are not used, and those of its messages and tools."""
    given = [str(name) for name, each in value.items() if each is not None] if isinstance(value, dict) else []
    if is_atif(value if isinstance(value, dict) else {}):
        given = []
    known = {*shape.keys, *_FURTHER_COLUMNS, *_CONVERSATIONS, *_PAIR, "messages", "prompt", *_REQUESTS}
    unused = [name for name in given if name not in known and name not in (*TOOL_COLUMNS, *SYSTEM_COLUMNS)]
    row = _columns(value)
    names = ("conversations", "messages", "prompt", *_PAIR, "completion", "preferred_output", "non_preferred_output")
    lists = ((name, row[name]) for name in names if name in row)
    inner = [f"{name}.{key}" for name, turns in lists if _is_turns(turns) for key in unknown_message_keys(turns)]
    return unused + inner + [f"tools.{key}" for key in unknown_tool_keys(row)]


def with_system_message(row: Row, messages: list[Any]) -> list[Any]:
    """Return messages that begin with the row's system message, unless they have one."""
    text, _ = find_system(row)
    if not text or _role(messages) in ("system", "developer"):
        return messages
    return [text_message("system", text), *messages]


def is_recorded(value: Any) -> bool:
    """Return whether a row holds a conversation with replies, even if it describes a task too."""
    try:
        shape, row = find_shape(value)
    except InvalidField:
        return False
    if shape.keys == ("choices",):
        return _request_messages(row) is not None
    listed = next((row[name] for name in ("conversations", "messages") if name in shape.keys), ())
    return shape.keys == ("steps",) or _has_replies(listed)


def _columns(value: Any) -> dict[str, Any]:
    """Return the columns of a row without nulls and without texts beside lists of messages.

    A conversation has the key of its shape. Raise InvalidField if the row has half a pair, or two continuations that
    are no pair.
    """
    columns = _with_usual_keys(value)
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


def _with_usual_keys(value: Any) -> dict[str, Any]:
    """Return the columns of a row that are not null, with a conversation under the key of its shape."""
    if _is_turns(value):
        return {"conversations": value}
    if not isinstance(value, dict):
        return {}
    columns = {key: each for key, each in value.items() if each is not None}
    if is_atif(columns):
        return conversation_of_atif(columns)
    if "kto_tag" in columns:
        columns["label"] = columns.pop("kto_tag")
    for path, taken in _HOLDERS.items():
        holder = functools.reduce(_member, path.split("."), columns)
        columns = {key: holder[key] for key in taken if key in holder} | columns
    columns = {key: _decoded(each) if key in _JSON_COLUMNS else each for key, each in columns.items()}
    if "answer" in columns:
        columns = {key: each for key, each in columns.items() if key not in _EPISODE_KEYS or _is_episode(key, each)}
    if columns.keys() & {"conversations", *_CONTINUATIONS}:
        return columns
    if name := next((name for name in _CONVERSATIONS if _is_turns(columns.get(name)) or columns.get(name) == []), ""):
        return columns | {"conversations": columns[name]}
    steps = columns.get("steps", columns.get("trajectory"))
    if isinstance(steps, list):
        return _total_reward(steps) | columns | {"steps": steps}
    prompt = columns.get("prompt")
    if (
        isinstance(prompt, list)
        and _has_replies(prompt)
        and _role(prompt[-1:]) in ("assistant", "tool", "function")
        and "answer" not in columns
    ):
        return {key: each for key, each in columns.items() if key != "prompt"} | {"messages": prompt}
    return columns


def _is_episode(key: str, value: Any) -> bool:
    """Return whether a value is of an episode, not the choices or the worked steps of a question."""
    listed = value if isinstance(value, list) else []
    return bool(listed) and all(isinstance(each, dict) and _EPISODE_KEYS[key] & each.keys() for each in listed)


def _member(value: dict[str, Any], name: str) -> dict[str, Any]:
    """Return an object in an object; an empty one if there is none."""
    inner = value.get(name)
    return inner if isinstance(inner, dict) else {}


def _total_reward(steps: Sequence[Any]) -> dict[str, Any]:
    """Return the sum of the rewards of steps as a column; nothing if a step has no reward."""
    rewards = [step.get("reward") if isinstance(step, dict) else None for step in steps]
    numbers = [reward for reward in rewards if isinstance(reward, int | float)]
    return {"total_reward": sum(numbers)} if numbers and len(numbers) == len(steps) else {}


def _decoded(value: Any) -> Any:
    """Return the messages, or the object with them, of JSON text; anything else unchanged.

    Messages of a list may be JSON texts too.
    """
    read = decode_list(value)
    if isinstance(read, list):
        read = [decode_list(each) for each in read]
    are_objects = isinstance(read, list) and bool(read) and all(isinstance(each, dict) for each in read)
    is_object = isinstance(read, dict) and bool(read.keys() & {"role", "from", "messages", "action", "message"})
    return read if are_objects or is_object else value


def _is_turns(value: Any) -> bool:
    """Return whether a value is a list of messages or of ShareGPT's turns."""
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(turn, dict) and ("role" in turn or "from" in turn) for turn in value)


def _has_replies(messages: Any) -> bool:
    speakers = ("assistant", "gpt", "function_call")
    return _is_turns(messages) and any(turn.get("role", turn.get("from")) in speakers for turn in messages)


def _split_sharegpt(row: Row) -> RowParts:
    turns = _message_list(row, "conversations")
    ends = [[row[name]] for name in _PAIR] if "chosen" in row else [[]]
    return RowParts([], [messages_from_sharegpt([*turns, *end]) for end in ends])


def _split_steps(row: Row) -> RowParts:
    """Return the messages of steps with {messages, action}, whose last one has all, or with {action, observation}."""
    steps = row["steps"]
    if not isinstance(steps, list) or not steps or not all(isinstance(step, dict) for step in steps):
        raise InvalidField("steps", "a list of objects is needed")
    actions = [_action_message(step, f"steps.{number}.action") for number, step in enumerate(steps)]
    if "messages" not in steps[-1]:
        turns = [[action, *_observation(step)] for step, action in zip(steps, actions, strict=True)]
        asked = next((row[name] for name in _REQUESTS if isinstance(row.get(name), str)), None)
        if asked is None:
            raise InvalidField("steps", f"what the user asks is missing; put it into {', '.join(_REQUESTS)}")
        return RowParts([text_message("user", asked)], [[m for turn in turns for m in turn]])
    shown = _message_list(steps[-1], "messages")
    said = [message.get("content") for message in shown if isinstance(message, dict)]
    if missing := [number for number, action in enumerate(actions[:-1]) if action["content"] not in said]:
        raise InvalidField(f"steps.{missing[0]}.action", "the messages of the last step do not contain it")
    return RowParts(shown, [actions[-1:]])


def _action_message(step: Row, field: str) -> WireMessage:
    """Return what the agent says in a step; of {"final_answer": text}, the text."""
    action = step.get("action")
    if not isinstance(action, str):
        raise InvalidField(field, "a text is needed")
    if "final_answer" in action:
        try:
            read = from_json(action)
        except ValueError:
            read = None
        if isinstance(read, dict) and read.keys() == {"final_answer"} and isinstance(read["final_answer"], str):
            action = read["final_answer"]
    return text_message("assistant", action)


def _observation(step: Row) -> list[WireMessage]:
    text = step.get("observation")
    return [text_message("user", text)] if isinstance(text, str) and text else []


def _request_messages(row: Row) -> Any:
    """Return the messages that a chat completion answers; None if the row has none."""
    request = row.get("request")
    return next((each["messages"] for each in (row, request) if isinstance(each, dict) and "messages" in each), None)


def _split_completion(row: Row) -> RowParts:
    """Return a chat completion after the messages of its request."""
    choices, shown = row["choices"], _request_messages(row)
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise InvalidField("choices", "a list of one choice is needed")
    if choices[0].get("finish_reason") == "length":
        raise InvalidField("choices.0.finish_reason", "'length': the reply is cut off")
    if not isinstance(shown, list):
        raise InvalidField("choices", "a reply without the messages that it answers; put them beside it as `messages`")
    return RowParts(shown, [[choices[0].get("message")]])


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
    return RowParts([*_history(row), asked], replies)


def _history(row: Row) -> Iterator[WireMessage]:
    history = row.get("history") or []
    if not isinstance(history, list):
        raise InvalidField("history", "a list of pairs of texts is needed")
    for number, pair in enumerate(history):
        if not isinstance(pair, list) or [type(text) for text in pair] != [str, str]:
            raise InvalidField(f"history.{number}", "a pair of texts is needed: of the user and of the assistant")
        yield from (text_message(role, text) for role, text in zip(("user", "assistant"), pair, strict=True))


def _split_question(row: Row) -> RowParts:
    name = next(column for column in QUESTION_COLUMNS if column in row)
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
    RowShape(("choices",), ("sft",), _split_completion),
    RowShape(("input", "preferred_output", "non_preferred_output"), ("dpo",), _split_openai_pair),
    RowShape(("instruction", "chosen", "rejected"), ("dpo",), _split_alpaca),
    RowShape(("prompt", "chosen", "rejected"), ("dpo",), _split_continued),
    RowShape(("chosen", "rejected"), ("dpo",), _split_continued),
    RowShape(("messages", "label"), ("kto",), _split_messages),
    RowShape(("messages",), ("sft",), _split_messages),
    RowShape(("steps",), ("sft",), _split_steps),
    RowShape(("prompt", "completion", "label"), ("kto",), _split_continued),
    RowShape(("prompt", "completion"), ("sft",), _split_continued),
    RowShape(("instruction", "output", "label"), ("kto",), _split_alpaca),
    RowShape(("instruction", "output"), ("sft",), _split_alpaca),
    RowShape(("prompt", "reward_model"), ("reward",), _split_verl),
    RowShape(("question", "answer"), ("sft", "reward"), _split_question),
    RowShape(("prompt", "answer"), ("sft", "reward"), _split_question),
)
"""All shapes, more specific ones first. docs/conversations.md has an example row of each."""
