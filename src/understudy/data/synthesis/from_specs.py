"""Make tasks of dependent specs: rows of call sequences that are proved, which every command takes.

With an MCP environment, the calls of each task run on its servers: references become the values that the servers
return, the results are stored in the rows, and gold must earn 1.0 and doing nothing 0.0. Without one, the tasks are
those of a `CallMatching` source, with the recorded or made-up results.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from understudy.core.errors import ConfigError, TaskError
from understudy.core.items import Item, RowError, items_or_raise
from understudy.data.checks.verify import find_reward_issue
from understudy.data.synthesis.synthesis_files import ProgressTracker
from understudy.data.writer import open_output, validate_output_path
from understudy.envs.task_source import TaskSource
from understudy.sources.loading import load_source
from understudy.sources.readers import read_rows
from understudy.sources.task_files.call_matching import match_calls
from understudy.sources.task_files.call_sequences import CallSequence, SequenceSource, read_sequences, to_sequence_row
from understudy.sources.task_files.task_row import TaskRow


@dataclass(frozen=True)
class SpecsResult:
    """What became of the tasks of a file of specs."""

    written: int
    refused: Sequence[RowError]

    def __str__(self) -> str:
        """Return the counts in one line."""
        counts = Counter(error.kind for error in self.refused)
        reasons = f"; refused: {', '.join(f'{kind} {n}' for kind, n in counts.most_common())}" if counts else ""
        return f"kept {self.written} of {self.written + len(self.refused)} tasks{reasons}"


async def write_spec_rows(specs: Path, reference: str, out: Path, track: ProgressTracker, resume: bool) -> SpecsResult:
    """Write the tasks of specs that are proved, as rows. `reference` is that of an MCP environment, or "".

    Raise TaskError if an item of the file is invalid or if no task is proved, and write nothing.
    """
    validate_output_path(out, resume)
    source = _open_servers(reference) if reference else None
    rows = (_read(item, f"{specs.stem}/{number}") for number, item in enumerate(read_rows(specs)))
    sequences = list(items_or_raise(found for row in track(rows, "reading") for found in row))
    if not sequences:
        raise TaskError(f"{specs} holds no tasks")
    progress = track(sequences, "checking")
    if source is None:
        proved = _prove_by_calls(list(progress), specs.stem)
    else:
        proved = [await _prove_on_servers(item, *source) for item in progress]
    refused = [each for each in proved if isinstance(each, RowError)]
    if len(refused) == len(proved):
        raise TaskError(f"{specs}: none of {len(proved)} tasks can be played; the first: {refused[0]}")
    with open_output(out, resume=resume) as made:
        for each in proved:
            if isinstance(each, Item):
                made.write(to_sequence_row(each.value))
    return SpecsResult(len(proved) - len(refused), refused)


def _read(item: Item[object] | RowError, identity: str) -> Iterable[Item[CallSequence] | RowError]:
    return (item,) if isinstance(item, RowError) else read_sequences(item, identity)


def _open_servers(reference: str) -> tuple[TaskSource, SequenceSource]:
    """Return an MCP environment, by both of its protocols. Raise ConfigError for any other source."""
    source = load_source(reference)
    if not isinstance(source, SequenceSource):
        raise ConfigError(f"{reference!r} is no MCP environment; the calls of specs run on mcp:FILE, or on no server")
    return source, source


def _prove_by_calls(sequences: Sequence[Item[CallSequence]], name: str) -> list[Item[CallSequence] | RowError]:
    """Return each task, or why it cannot be played by comparing calls."""
    tasks, refused = list[Item[TaskRow]](), dict[str, RowError]()
    for item in sequences:
        try:
            tasks.append(Item(item.location, item.value.to_task_row(name)))
        except ValueError as e:  # a recorded result lacks a field that a later call refers to
            refused[item.location] = RowError(item.location, "tool_sequence", str(e))
    refused |= {error.location: error for error in match_calls(name, tasks).refused}
    return [refused.get(item.location, item) for item in sequences]


async def _prove_on_servers(
    item: Item[CallSequence], source: TaskSource, servers: SequenceSource
) -> Item[CallSequence] | RowError:
    """Make the calls on the servers of `source`, which is given by both of its protocols, and play the task."""
    try:
        recorded = await servers.record_sequence(item.value)
        task = servers.add_task(recorded, recorded.split or "train")
    except TaskError as e:
        return RowError(item.location, "tool_sequence", str(e), "gold refused")
    issue = await find_reward_issue(source, task)
    return issue.at(item.location) if issue else Item(item.location, recorded)
