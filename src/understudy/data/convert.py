"""Convert tasks from one form to another, into one file or several splits, in two streaming passes.

The first pass checks every task and groups them for splits; the second writes. So nothing is written if a task is
invalid, unless invalid tasks are skipped, and the split of a task is known before its first row is written.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from understudy.core.errors import ConfigError, TaskError
from understudy.core.items import Item, RowError
from understudy.core.messages import Message
from understudy.core.records import Record
from understudy.core.tasks import SPLITS, Split, Task
from understudy.data.checks.verify import play_tasks, validate_gold_calls
from understudy.data.task_input import TaskInput, find_named_source
from understudy.data.writer import FileFormat, open_output, validate_output_path
from understudy.envs.task_source import find_policy
from understudy.formats import FormatTokenizer
from understudy.formats.jinja import compile_template, read_chat_template
from understudy.sources.task_files.prompt_rows import PromptRow
from understudy.sources.task_files.skyrl_rows import SkyRLRow, to_skyrl_row
from understudy.sources.task_files.splits import TaskGroups, assign_splits
from understudy.sources.tool_dataset import ExampleSource

ProgressTracker = Callable[[Iterable[Item[Task] | RowError], str], Iterable[Item[Task] | RowError]]
"""Passes items through and shows progress. The text names the step."""

RowEncoder = Callable[[Task], Record]
_TEMPLATE_BYTES = 256
"""Upper bound of the tokens that a chat template adds to a policy and an opening."""


@dataclass(frozen=True)
class ConvertOutput:
    """The output of a conversion."""

    path: Path
    encode: RowEncoder
    format: FileFormat
    splits: tuple[Split, ...] = ()
    """The files of the folder `path`; empty if `path` is one file."""
    resume: bool = False


@dataclass
class ScanResult:
    """The results of the first pass."""

    num_valid: int = 0
    invalid_positions: set[int] = field(default_factory=set)
    """Positions of invalid items in the stream."""
    num_unfindable: int = 0
    """Number of invalid items whose gold needs a value that nothing shows."""


def scan_items(
    items: Iterable[Item[Task] | RowError],
    groups: TaskGroups | None = None,
    report: Callable[[RowError], None] = lambda bad: None,
) -> ScanResult:
    """Check all items. Valid ones are added to `groups`, invalid ones are reported."""
    found = ScanResult()
    for number, item in enumerate(items):
        if isinstance(item, RowError):
            found.invalid_positions.add(number)
            found.num_unfindable += item.kind == "unshown value"
            report(item)
            continue
        found.num_valid += 1
        if groups is not None:
            groups.add(item.value)
    return found


def convert_tasks(
    source: TaskInput,
    output: ConvertOutput,
    *,
    skip_validation: bool = False,
    groups: TaskGroups | None = None,
    ratios: Sequence[float] = (),
    seed: int = 0,
    skip_invalid: bool = False,
    skip_unfindable: bool = False,
    track: ProgressTracker = lambda items, what: items,
    report: Callable[[RowError], None] = lambda bad: None,
) -> tuple[dict[str, int], int]:
    """Write the tasks of a source. Return the number of tasks in each split, and of invalid tasks.

    With `groups`, tasks are assigned to splits by `ratios`, and their `split` is set; otherwise their own `split`
    decides. Invalid tasks are reported. Raise TaskError and write nothing if there are any, unless `skip_invalid` is
    set. With `skip_unfindable`, tasks are played, and those that need a value which nothing shows are left out.
    """
    validate_output_path(output.path, output.resume)
    validate = play_tasks if skip_unfindable else validate_gold_calls
    checked = validate(source.items(), source.sources(), skip_validation)
    found = scan_items(track(checked, "checking"), groups, report)
    num_invalid = len(found.invalid_positions) - found.num_unfindable
    if num_invalid and not skip_invalid:
        some = f"{num_invalid} of {found.num_valid + len(found.invalid_positions)}"
        raise TaskError(
            f"{source.name}: {some} tasks are invalid, so nothing was written; --skip-invalid leaves them out"
        )
    if not found.num_valid:
        raise TaskError(f"{source.name} has no tasks")
    dealt = assign_splits(groups, ratios, seed) if groups is not None else None
    good = _good(track(source.items(), "writing"), found.invalid_positions)
    with open_output(output.path, parts=output.splits, format=output.format, resume=output.resume) as made:
        for number, task in enumerate(good):
            assigned = task if dealt is None else task.replace(split=output.splits[dealt[number]])
            made.write(output.encode(assigned), assigned.split if output.splits else "")
    return made.counts, len(found.invalid_positions)


def make_row_encoder(source: TaskInput, out: Path, domain_policy: str = "") -> RowEncoder:
    """Return the function that converts a task to its row in the file or folder `out`.

    `domain_policy` is the policy of unknown domains.
    """
    sources, references = source.sources(), source.references(out)

    def encode(task: Task) -> Record:
        player = find_named_source(sources, task.domain)
        if player is None and not domain_policy:
            raise ConfigError(
                f"the domain policy of {task.domain!r} is not known, and a row's prompt needs it; give --domain-policy"
            )
        policy = find_policy(player, task) if player else domain_policy
        is_sequence = task.id in source.sequence_ids
        return to_skyrl_row(task, policy, references.get(task.domain, task.domain), is_sequence)

    return encode


def _has_bytes(value: object) -> bool:
    if isinstance(value, dict | list):
        return any(map(_has_bytes, value.values() if isinstance(value, dict) else value))
    return isinstance(value, bytes)


def make_prompt_row_encoder(source: TaskInput) -> RowEncoder:
    """Return the encoder of questions: each row is written as it was read, with the split and id of its task."""
    sources = source.sources()

    def encode(task: Task) -> Record:
        player = sources.get(task.domain)
        if player is None or not isinstance(player, ExampleSource):
            raise ConfigError(f"task {task.id} is not a question, as the first row is; put such rows into another file")
        example = player.find_example(task)
        row = {**example.info, "split": task.split}
        if "id" in row and str(row["id"]) != example.id:  # ids of several files can be equal
            row["id"] = example.id
        if column := next((name for name, value in row.items() if _has_bytes(value)), ""):
            raise ConfigError(f"task {task.id}: the column {column} has bytes, which JSONL cannot hold; remove it")
        return PromptRow.model_validate(row)

    return encode


PromptMeasure = Callable[[SkyRLRow], int]


def measure_prompt_bytes(row: SkyRLRow) -> int:
    """Return an upper bound of a prompt's tokens for every model: its bytes, and an allowance for a chat template."""
    return sum(len(message.content.encode()) for message in row.prompt) + _TEMPLATE_BYTES


def measure_prompt_tokens(folder: Path) -> PromptMeasure:
    """Return SkyRL's measure of prompts: tokens of the model's chat template with its default settings, without tools.

    Raise ConfigError if the folder has no chat template, or it fails.
    """
    render = compile_template(folder, read_chat_template(folder), enable_thinking=None)
    FormatTokenizer.load(folder / "tokenizer.json")  # raises ConfigError if it cannot be read
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))  # reads the template's special tokens as tokens

    def measure(row: SkyRLRow) -> int:
        text = render([Message(role=m.role, content=m.content) for m in row.prompt])
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    return measure


@dataclass
class LongestPrompt:
    """The longest prompt of the rows. SkyRL drops rows whose prompt is longer than `trainer.max_prompt_length`."""

    measure: PromptMeasure
    length: int = 0

    def measuring(self, encode: RowEncoder) -> RowEncoder:
        """Return an encoder that also measures the rows for SkyRL."""

        def encode_and_measure(task: Task) -> Record:
            row = encode(task)
            if isinstance(row, SkyRLRow):
                self.length = max(self.length, self.measure(row))
            return row

        return encode_and_measure

    def __str__(self) -> str:
        """Return the length, and the setting of SkyRL with which no row is dropped."""
        bound = self.measure is measure_prompt_bytes
        found = f"at most {self.length:,} tokens (--model counts them)" if bound else f"{self.length:,} tokens"
        return f"longest prompt: {found}; for SkyRL: trainer.max_prompt_length={self.length}"


def split_names(count: int) -> tuple[Split, ...]:
    """Return the names of `count` splits."""
    if not 2 <= count <= len(SPLITS):
        raise ConfigError(f"{count} ratios: two (train, validation) or three (and test) are needed")
    return SPLITS[:count]


def _good(items: Iterable[Item[Task] | RowError], refused: set[int]) -> Iterator[Task]:
    for number, item in enumerate(items):
        if isinstance(item, Item) and number not in refused:
            yield item.value
