"""Export conversations for other trainers: a folder with a JSONL file of each kind, and the trainer's other files.

A target (`llamafactory`, `trl`, `openai`) converts a conversation, or says why it cannot. All of these trainers accept
less than the records of `examples` can hold, so two kinds are reduced:

    a pair             becomes a pair of single replies: the first ones in which the two episodes differ
    a labeled example  becomes one row for each reply of the episode, with the episode's label
"""

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Protocol

from understudy.core.errors import ConfigError, TaskError
from understudy.core.files import RETRY_HINT, os_errors_as_config_errors
from understudy.core.items import Item
from understudy.core.messages import Message
from understudy.core.records import Record
from understudy.data.conversations.conversations import TrainingExample, read_conversations, valid_examples
from understudy.data.conversations.examples import LabeledExample, PreferencePair
from understudy.data.conversations.outcomes import ReadingNotes
from understudy.data.conversations.shapes import Use

SFT_FILE, DPO_FILE, KTO_FILE = "sft.jsonl", "dpo.jsonl", "kto.jsonl"


class UnsupportedExample(Exception):
    """Raised for a conversation that a target does not support. Its text is the reason in `ExportSummary.skipped`."""


class ExportTarget(Protocol):
    """A trainer that conversations are written for."""

    def rows(self, example: TrainingExample) -> Iterable[tuple[str, Record]]:
        """Yield the rows of a conversation, each with the name of its file. Raise UnsupportedExample."""

    def files(self, counts: Mapping[str, int]) -> Mapping[str, str]:
        """Return further files by name, after all rows are written. `counts` has the number of rows by file."""

    def notes(self) -> Sequence[str]:
        """Return notes about what was written."""


@dataclass
class ExportSummary:
    """The result of an export."""

    num_read: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    """Number of conversations left out, by reason."""
    notes: ReadingNotes = field(default_factory=ReadingNotes)
    """What was left out when the files were read."""

    def __str__(self) -> str:
        lines = [f"{name}: {count:,}" for name, count in sorted(self.rows.items())]
        return "\n".join(lines + [f"left out: {count:,}, {why}" for why, count in self.skipped.most_common()])


def export_examples(
    paths: Sequence[Path],
    out: Path,
    target: ExportTarget,
    skip_invalid: bool = False,
    use: Use | None = None,
    min_reward: float | None = None,
) -> ExportSummary:
    """Write the conversations of these files to the new folder `out`, as `read_conversations` reads them.

    Raise TaskError and write nothing if the target does not support a conversation, unless `skip_invalid` is set.
    """
    done = ExportSummary()
    with create_output_folder(out) as folder, contextlib.ExitStack() as files:
        opened: dict[str, IO[str]] = {}
        for item in _items(paths, use, min_reward, done.notes):
            done.num_read += 1
            for name, line in _lines(item, target, done):
                if name not in opened:
                    opened[name] = files.enter_context((folder / name).open("w", encoding="utf-8"))
                opened[name].write(line + "\n")
                done.rows[name] += 1
        if done.skipped and not skip_invalid:
            why = "; ".join(f"{count} of {done.num_read} have {why}" for why, count in done.skipped.most_common())
            raise TaskError(f"nothing was written: {why}; --skip-invalid leaves them out")
        if not done.rows:
            raise TaskError(f"{' '.join(map(str, paths))}: no conversation to write")
        for name, text in target.files(done.rows).items():
            (folder / name).write_text(text, encoding="utf-8")
    return done


def _items(
    paths: Sequence[Path], use: Use | None, min_reward: float | None, notes: ReadingNotes
) -> Iterator[Item[TrainingExample]]:
    for path in paths:
        yield from valid_examples(read_conversations(path, use, min_reward, notes), path)


def _lines(item: Item[TrainingExample], target: ExportTarget, done: ExportSummary) -> list[tuple[str, str]]:
    try:
        return [(name, row.model_dump_json(by_alias=True)) for name, row in target.rows(item.value)]
    except UnsupportedExample as e:
        done.skipped[str(e)] += 1
        return []


@contextlib.contextmanager
def create_output_folder(out: Path) -> Iterator[Path]:
    """Yield a temporary folder, and move it to `out` if the block succeeds. Raise ConfigError if `out` exists."""
    if out.exists():
        raise ConfigError(f"{out} already exists; choose another name, or remove it")
    if not out.parent.is_dir():
        raise ConfigError(f"{out} cannot be written: there is no folder {out.parent}; create it")
    with (
        os_errors_as_config_errors(out, RETRY_HINT),
        TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as staging,
    ):
        (folder := Path(staging) / "made").mkdir()
        yield folder
        os.replace(folder, out)


def split_last_reply(messages: Sequence[Message], *, allow_weights: bool = False) -> tuple[Sequence[Message], Message]:
    """Return the last reply to train on and the messages before it.

    Raise UnsupportedExample if a reply before it has `weight` 0, unless `allow_weights` is set.
    """
    last = max(i for i, message in enumerate(messages) if message.role == "assistant" and message.weight)
    if not allow_weights and not all(message.weight for message in messages[:last]):
        raise UnsupportedExample("replies with weight 0, which this trainer does not read")
    return _validate_messages(messages[:last], messages[last])


def split_first_difference(pair: PreferencePair) -> tuple[Sequence[Message], Message, Message]:
    """Return the common beginning of two episodes, and the first replies that differ, the better one first."""
    together = zip(pair.chosen, pair.rejected, strict=False)
    at = next(
        (i for i, (one, other) in enumerate(together) if _without_call_ids(one) != _without_call_ids(other)), None
    )
    if at is None:
        raise UnsupportedExample("two episodes of which one is the beginning of the other")
    chosen, rejected = pair.chosen[at], pair.rejected[at]
    if {chosen.role, rejected.role} != {"assistant"}:
        raise UnsupportedExample("two episodes whose first difference is not a reply")
    _validate_messages((), rejected)
    return (*_validate_messages(pair.chosen[:at], chosen), rejected)


def iter_replies(example: LabeledExample) -> Iterator[tuple[Sequence[Message], Message]]:
    """Yield each reply of an episode with the messages before it."""
    split_last_reply(example.messages)  # raises for an unsupported message before the first reply is yielded
    for at, message in enumerate(example.messages):
        if message.role == "assistant":
            yield example.messages[:at], message


def _validate_messages(before: Sequence[Message], reply: Message) -> tuple[Sequence[Message], Message]:
    """Return `before` and `reply` unchanged.

    Raise UnsupportedExample if a call is unparsable, or if the results do not follow their calls in order.
    """
    if any(call.parse_error for message in (*before, reply) for call in message.tool_calls):
        raise UnsupportedExample("calls that could not be read")
    asked: list[str] = []
    for message in (*before, reply):
        if message.role == "tool":
            if not asked or message.tool_call_id != asked.pop(0):
                raise UnsupportedExample("results that do not answer the calls before them in order")
        elif asked:
            raise UnsupportedExample("calls without results")
        else:
            asked = [call.id for call in message.tool_calls]
    return before, reply


def _without_call_ids(message: Message) -> Any:
    """Return a message without the ids of its calls, which no model writes."""
    return message.role, message.content, [(c.name, c.arguments, c.parse_error) for c in message.tool_calls]
