"""Conversations for other trainers: a folder with a JSONL file of each kind, and what their trainer needs beside it.

A target (`llamafactory`, `trl`, `openai`) says how a conversation is written, or why it cannot be. What these trainers
take is less than what `preferences` holds, in two ways that all of them share:

    a preference    is one reply against another, so it is that of the first reply in which the two episodes differ
    a judgement     is of one reply, so each reply of an episode is a row of its own, judged as the episode is
"""

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Protocol

from understudy.data.conversations import Lesson, conversations
from understudy.data.items import Item, strict
from understudy.data.preferences import Judged, Preference
from understudy.disk import AGAIN, writing
from understudy.errors import ConfigError, TaskError
from understudy.messages import Message
from understudy.records import Record

SFT, DPO, KTO = "sft.jsonl", "dpo.jsonl", "kto.jsonl"


class Unfit(Exception):
    """A conversation cannot be written for a target; the text says why, and is what is counted."""


class Target(Protocol):
    """A trainer that conversations are written for."""

    def rows(self, lesson: Lesson) -> Iterable[tuple[str, Record]]:
        """The rows of a conversation, each with the name of its file. Raises Unfit."""

    def files(self, counts: Mapping[str, int]) -> Mapping[str, str]:
        """Further files by name, when all rows are written; `counts` has the rows of each file."""

    def notes(self) -> Sequence[str]:
        """What to know of what was written."""


@dataclass
class Exported:
    """What became of the conversations."""

    read: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    unfit: Counter[str] = field(default_factory=Counter)
    """Conversations left out, by reason."""

    def __str__(self) -> str:
        lines = [f"{name}: {count:,}" for name, count in sorted(self.rows.items())]
        return "\n".join(lines + [f"left out: {count:,}, {why}" for why, count in self.unfit.most_common()])


def export(paths: Sequence[Path], out: Path, target: Target, keep_going: bool = False) -> Exported:
    """Write the conversations of these files into the folder `out`, which must not be there.

    Those that the target cannot hold are a `TaskError`, and nothing is written, unless `keep_going` leaves them out.
    """
    done = Exported()
    with new_folder(out) as folder, contextlib.ExitStack() as files:
        opened: dict[str, IO[str]] = {}
        for item in _items(paths):
            done.read += 1
            for name, line in _lines(item, target, done):
                if name not in opened:
                    opened[name] = files.enter_context((folder / name).open("w", encoding="utf-8"))
                opened[name].write(line + "\n")
                done.rows[name] += 1
        if done.unfit and not keep_going:
            why = "; ".join(f"{count} of {done.read} have {why}" for why, count in done.unfit.most_common())
            raise TaskError(f"nothing is written: {why}; --keep-going leaves them out")
        if not done.rows:
            raise TaskError(f"{' '.join(map(str, paths))}: no conversation to write")
        for name, text in target.files(done.rows).items():
            (folder / name).write_text(text, encoding="utf-8")
    return done


def _items(paths: Sequence[Path]) -> Iterator[Item[Lesson]]:
    for path in paths:
        yield from strict(conversations(path))


def _lines(item: Item[Lesson], target: Target, done: Exported) -> list[tuple[str, str]]:
    try:
        return [(name, row.model_dump_json(by_alias=True)) for name, row in target.rows(item.value)]
    except Unfit as e:
        done.unfit[str(e)] += 1
        return []


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder that takes its place when the block ends without an error; what is there is never written over."""
    if out.exists():
        raise ConfigError(f"{out} is there already; give another name, or remove it")
    if not out.parent.is_dir():
        raise ConfigError(f"there is no folder {out.parent} to write {out.name} to")
    with writing(out, AGAIN), TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as staging:
        (folder := Path(staging) / "made").mkdir()
        yield folder
        os.replace(folder, out)


def last_reply(messages: Sequence[Message]) -> tuple[Sequence[Message], Message]:
    """A conversation as its last reply and what stands before it; what is shown after that teaches nothing."""
    last = max(i for i, message in enumerate(messages) if message.role == "assistant")
    return _sound(messages[:last], messages[last])


def first_difference(pair: Preference) -> tuple[Sequence[Message], Message, Message]:
    """What both episodes begin with, and the first replies in which they differ, the better one first."""
    together = zip(pair.chosen, pair.rejected, strict=False)
    at = next((i for i, (one, other) in enumerate(together) if _bare(one) != _bare(other)), None)
    if at is None:
        raise Unfit("two episodes of which one is the beginning of the other")
    chosen, rejected = pair.chosen[at], pair.rejected[at]
    if {chosen.role, rejected.role} != {"assistant"}:
        raise Unfit("two episodes in which something else than a reply differs first")
    _sound((), rejected)
    return (*_sound(pair.chosen[:at], chosen), rejected)


def each_reply(judged: Judged) -> Iterator[tuple[Sequence[Message], Message]]:
    """Each reply of an episode with what stands before it."""
    last_reply(judged.messages)  # all of it is sound, or none of it is taken
    for at, message in enumerate(judged.messages):
        if message.role == "assistant":
            yield judged.messages[:at], message


def _sound(before: Sequence[Message], reply: Message) -> tuple[Sequence[Message], Message]:
    """Both as they are. Raises Unfit where calls could not be read, or results do not follow each call in order."""
    if any(call.malformed for message in (*before, reply) for call in message.tool_calls):
        raise Unfit("calls that could not be read")
    asked: list[str] = []
    for message in (*before, reply):
        if message.role == "tool":
            if not asked or message.tool_call_id != asked.pop(0):
                raise Unfit("results that do not answer the calls before them in order")
        elif asked:
            raise Unfit("calls without results")
        else:
            asked = [call.id for call in message.tool_calls]
    return before, reply


def _bare(message: Message) -> Any:
    """A message without the ids of its calls, which no model writes."""
    return message.role, message.content, [(c.name, c.arguments, c.malformed) for c in message.tool_calls]
