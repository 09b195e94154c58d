"""`understudy data …`. What a verb needs is imported when it runs.

No verb overwrites a file. After Ctrl-C, --resume completes the partial output.
"""

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import Field

from understudy.cli.arguments import JsonOption, SplitName
from understudy.cli.grammar import Options, validate_unused_options, verb
from understudy.cli.messages import print_message, print_result
from understudy.core.errors import ConfigError, TaskError
from understudy.sources.task_files.config import RowConfig

if TYPE_CHECKING:
    from understudy.core.items import RowError
    from understudy.core.tasks import Difficulty
    from understudy.data.conversations.export import ExportTarget as ExportTarget
    from understudy.data.convert import ConvertOutput, ProgressTracker
    from understudy.data.task_input import TaskInput
    from understudy.envs.task_source import TaskSource

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Create, convert, split and check files of tasks and conversations.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

DatasetArgument = Annotated[
    str,
    typer.Argument(
        metavar="PATH|DOMAIN",
        help="A file of tasks, SkyRL rows or tau-bench tasks; a folder of such files; or a domain (also "
        "module:attribute, mcp:FILE, tau-bench:PATH#NAME, tau2:PATH#NAME). If a name is also a path, write ./NAME for "
        "the path.",
    ),
]


class DatasetOptions(Options):
    """Options of the commands that read tasks."""

    dataset: DatasetArgument
    data: RowConfig = RowConfig()


class CheckedDatasetOptions(DatasetOptions):
    """Options of the commands that play the gold calls of tasks."""

    skip_validation: bool = False
    """Check only the form of questions, and of tasks of an unknown domain."""
    skip_invalid: bool = False
    """Leave out invalid items instead of failing; the exit code is then 1."""


class RowFileOptions(CheckedDatasetOptions):
    """Options of the commands that write files of tasks."""

    skip_unfindable: bool = False
    """Leave out tasks whose gold calls need a value that nothing shows before; the exit code is then 1."""
    seed: int = Field(default=0, ge=0)
    """The seed of random choices."""
    format: Literal["parquet", "jsonl"] = "parquet"
    """The format of the files of a folder of SkyRL rows."""
    domain_policy: Path | None = None
    """A file with the domain policy for rows of an unknown domain."""
    resume: bool = False
    """Resume an interrupted attempt."""


MAX_ROW_ERRORS = 20
"""Number of invalid rows that are printed. `validate --skip-invalid` prints all."""
_OF_A_MODEL = ("base_url", "api_key_var", "temperature")
"""Options of `synthesize` that have an effect only with --model."""
_OF_NEW_TASKS = (
    *("model", "count", "split", "seed", "families", "difficulties", "max_calls", "max_tools", "max_turns"),
    *("min_reads", "max_attempts"),
)
"""Options of `synthesize` that have no effect on --from-specs."""
_OF_TASKS = (
    "split",
    "domain",
    "train_ratio",
    "seed",
    "format",
    "domain_policy",
    "model",
    "skip_validation",
    "skip_unfindable",
)
"""Options of `convert` that have no effect on conversations."""


class SynthesizeOptions(Options):
    """Options of `data synthesize`."""

    sources: Annotated[tuple[str, ...], typer.Argument(metavar="SOURCE")] = ()
    """What the tasks are for, one or several: a domain, module:attribute, mcp:FILE or tau-bench:PATH#NAME. Commas
    separate too."""
    out: Path = Path("tasks.jsonl")
    """The file to write: .jsonl, or .parquet (SkyRL rows). Without a suffix: a folder with a new environment of one MCP
    server."""
    count: int = Field(default=100, ge=1)
    """Number of tasks."""
    split: SplitName | None = None
    """The split whose users and rows the tasks use. Default: train; for a folder, all."""
    seed: int = Field(default=0, ge=0)
    """The seed of random choices."""
    families: tuple[str, ...] = ()
    """Only tasks of these families, separated by commas."""
    difficulties: str = ""
    """Only these difficulties, separated by commas; with shares as easy=2,hard=1."""
    max_calls: int | None = Field(default=None, ge=1)
    """The largest number of gold calls of a task. With --model: 12."""
    max_tools: int | None = Field(default=None, ge=1)
    """The largest number of different tools of a task's gold calls."""
    max_turns: int | None = Field(default=None, ge=1)
    """The largest number of gold messages of a task. With --model: 24."""
    min_reads: int = Field(default=0, ge=0)
    """The smallest number of reads without which a task cannot be solved."""
    max_attempts: int = Field(default=10, ge=1)
    """Give up after this many proposals times --count."""
    model: str = ""
    """A language model that proposes tasks, behind --base-url."""
    base_url: str = "http://127.0.0.1:8000/v1"
    """The URL of an OpenAI-compatible server."""
    api_key_var: str = ""
    """The environment variable that holds the endpoint's key."""
    temperature: float | None = Field(default=None, ge=0.0)
    """The model's sampling temperature. Default: the endpoint's."""
    from_specs: Path | None = None
    """Write the tasks of this JSON file of dependent specs. Their calls run on the MCP environment that is given as
    SOURCE (mcp:FILE). Without one they are compared with the agent's calls."""
    resume: bool = False
    """Resume an interrupted attempt."""


@verb(app)
def synthesize(options: SynthesizeOptions) -> None:
    """Write new tasks by rules or by a language model, or the tasks of dependent specs.

    Each task is played before it is kept: gold earns 1.0 and doing nothing 0.0.
    """
    from understudy.core.event_loop import run_async
    from understudy.data.synthesis import synthesis_files
    from understudy.data.synthesis.limits import SynthesisConfig

    out, model = options.out, options.model
    if options.from_specs is not None:
        synthesis_files.validate_jsonl_path(out)
        validate_unused_options(options, (*_OF_NEW_TASKS, *_OF_A_MODEL))
        return _write_spec_rows(options.from_specs, options.sources, out, options.resume)
    if not model:
        validate_unused_options(options, _OF_A_MODEL)
    names, shares, wanted = (
        _source_names(options.sources),
        _shares(options.difficulties),
        tuple(sorted(options.families)),
    )
    output = synthesis_files.TaskOutput(out, _sliced_sources(names, wanted, tuple(shares), bool(model)), names)
    limits = options.model_dump(
        include={"count", "seed", "max_calls", "max_tools", "max_turns", "min_reads", "max_attempts"}
    )
    split = options.split or (None if output.is_folder else "train")
    config = SynthesisConfig(split=split, families=wanted, difficulties=shares, **limits)
    chat = None
    if model:
        chat = synthesis_files.open_chat_client(model, options.base_url, options.api_key_var, options.temperature)
    with progress_display() as watch:
        counts = run_async(synthesis_files.write_new_tasks(output, chat, config, watch, options.resume))
    if model or counts.total() > counts["kept"]:
        print(synthesis_files.format_proposal_counts(counts))
    _print_written(out, counts["kept"])


def _write_spec_rows(specs: Path, references: Sequence[str], out: Path, resume: bool) -> None:
    from understudy.core.event_loop import run_async
    from understudy.data.synthesis.from_specs import write_spec_rows

    if len(references) > 1:
        raise ConfigError(f"{', '.join(references)}: specs are played by one MCP environment, or by none; give one")
    with progress_display() as watch:
        done = run_async(write_spec_rows(specs, next(iter(references), ""), out, watch, resume))
    report = _RowErrorPrinter()
    for error in done.refused:
        report(error)
    print(done)
    _print_written(out, done.written)


class ConvertOptions(RowFileOptions):
    """Options of `data convert`."""

    out: Annotated[Path, typer.Argument(metavar="OUT")]
    """The file to write (.parquet or .jsonl), or a folder (no suffix) that gets a file for each split."""
    split: SplitName | None = None
    """Only tasks of this split."""
    domain: tuple[str, ...] = ()
    """Only tasks of these domains, separated by commas, as the rows name them."""
    train_ratio: float | None = None
    """Split distinct tasks into train and validation, with this share for train."""
    to: Literal["skyrl", "tasks", "sft", "dpo", "kto"] | None = None
    """Default: skyrl, or tasks if the input is SkyRL rows. Of conversations: what their rows are for; `dpo` pairs a
    success with a failure of the same task, `kto` labels both."""
    min_reward: float | None = None
    """Conversations with a reward: the smallest one of a success. 0 imitates failures too. Default: 1."""
    model: str = ""
    """Count the longest prompt's tokens with this model's chat template."""
    tools: str = ""
    """Conversations that describe no tools: give them those of this domain, MCP file or other source of tasks."""


@verb(app)
def convert(options: ConvertOptions) -> None:
    """Convert tasks to SkyRL rows or back, or conversations.

    Conversations in the format of another trainer are converted to understudy's; so are rows with questions and
    answers, unless data.reward is given. The gold calls of every task are run first; a task that rewards doing nothing
    is an error. For SkyRL rows, the length of the longest prompt is printed, and the setting with which SkyRL drops no
    row.
    """
    from understudy.data.conversations.conversations import is_conversation_input
    from understudy.data.convert import LongestPrompt, measure_prompt_bytes, measure_prompt_tokens, split_names
    from understudy.data.writer import FILE_SUFFIXES
    from understudy.engines.models import find_model
    from understudy.sources.task_files.splits import ExactGroups

    out, ratio, to = options.out, options.train_ratio, options.to
    is_use = to in ("sft", "dpo", "kto")
    if is_use or (to is None and not options.data.reward and is_conversation_input(Path(options.dataset))):
        if options.data != RowConfig():
            raise ConfigError(
                f"{_data_settings(options)} has no effect on conversations; leave it out. "
                "To convert questions as tasks, give data.reward=module:attribute"
            )
        validate_unused_options(options, _OF_TASKS)
        return _convert_conversations(options, to if to in ("sft", "dpo", "kto") else None)
    validate_unused_options(options, ("min_reward", "tools"))
    if out.suffix and out.suffix not in FILE_SUFFIXES:
        raise ConfigError(
            f"{out}: unknown suffix {out.suffix!r}; allowed: {', '.join(FILE_SUFFIXES)}, or no suffix for a folder"
        )
    validate_unused_options(
        options, (*(("seed",) if ratio is None else ()), *(("format",) if out.suffix in FILE_SUFFIXES else ()))
    )
    source = _source(options, options.split, options.domain)
    groups = None if ratio is None else ExactGroups()
    ratios = () if ratio is None else (ratio, 1 - ratio)
    of_tasks: Literal["skyrl", "tasks"] | None = "skyrl" if to == "skyrl" else "tasks" if to == "tasks" else None
    output = _convert_output(options, out, source, of_tasks, split_names(2) if groups else ())
    if to == "tasks" or (to is None and source.detect_form() in ("skyrl", "questions")):
        validate_unused_options(options, ("model",))
    measure = measure_prompt_tokens(find_model(options.model)) if options.model else measure_prompt_bytes
    longest = LongestPrompt(measure)
    output = replace(output, encode=longest.measuring(output.encode))
    refused = _convert(source, output, options, groups=groups, ratios=ratios, seed=options.seed)
    if longest.length:
        print(longest)
    raise typer.Exit(1 if refused else 0)


class ExportConversationsOptions(Options):
    """Options of `data export`."""

    trainer: Annotated[
        Literal["llamafactory", "trl", "openai", "atif", "verifiers", "harbor"], typer.Argument(metavar="TRAINER")
    ]
    """The trainer that reads the files, `atif` for trajectories, `verifiers` or `harbor` for environments."""
    files: Annotated[tuple[str, ...], typer.Argument(metavar="FILE")]
    """Files or folders of conversations, of any shape that the page Data lists. For environments: a source of tasks."""
    out: Path
    """The folder to write. It must not exist."""
    model: str = ""
    """LLaMA-Factory: the model to train, a folder or owner/model. Required."""
    template: str = ""
    """LLaMA-Factory: its template. Default: found by the model."""
    cutoff_len: int = Field(default=0, ge=0)
    """LLaMA-Factory: cutoff_len in tokens; 0 cuts nothing."""
    split_parallel_calls: bool = False
    """LLaMA-Factory: write parallel calls as successive turns."""
    url: str = ""
    """Harbor: the address at which its containers reach `understudy serve-env --harbor`. Required."""
    to: Literal["sft", "dpo", "kto"] | None = None
    """What all rows are for. Default: what each is for. `dpo` and `kto` also take conversations with a reward."""
    min_reward: float | None = None
    """Conversations with a reward: the smallest one of a success. 0 imitates failures too. Default: 1."""
    skip_invalid: bool = False
    """Leave out invalid items instead of failing; the exit code is then 1."""


@verb(app)
def export(options: ExportConversationsOptions) -> None:
    """Write conversations in the format of another trainer, or tasks as environments of verifiers or Harbor.

    The folder has the data files, and the trainer's config files.
    """
    from understudy.data.conversations import export as exporting

    if options.trainer != "llamafactory":
        validate_unused_options(options, ("model", "template", "cutoff_len", "split_parallel_calls"))
    if options.trainer != "harbor":
        validate_unused_options(options, ("url",))
    if options.trainer in ("verifiers", "harbor"):
        validate_unused_options(options, ("to", "min_reward", "skip_invalid"))
        return _write_environment(options)
    writer = _export_target(options)
    done = exporting.export_examples(
        [Path(file) for file in options.files],
        options.out,
        writer,
        options.skip_invalid,
        options.to,
        options.min_reward,
    )
    print(done, *done.notes.lines("--min-reward 0"), *writer.notes(), sep="\n")
    raise typer.Exit(1 if done.skipped else 0)


def _write_environment(options: ExportConversationsOptions) -> None:
    from understudy.data.harbor_tasks import write_harbor_tasks
    from understudy.data.verifiers_package import write_verifiers_package

    if len(options.files) > 1:
        raise ConfigError(f"{', '.join(options.files)}: an environment has one source of tasks; give one")
    source = options.files[0]
    if options.trainer == "verifiers":
        write_verifiers_package(source, options.out)
        print(f"{options.out} is an environment of verifiers. In its Python: pip install {options.out}")
        return
    counts = write_harbor_tasks(source, options.out, options.url)
    print(*(f"{options.out}/{split}: {count} tasks" for split, count in counts.items()), sep="\n")
    serving = f"understudy serve-env {source} --harbor {options.out} --host ADDRESS"
    print(f"Harbor's containers play them at {options.url}. Start it with: {serving}")


class SplitOptions(RowFileOptions):
    """Options of `data split`."""

    out: Path
    """The folder to write; it gets a file for each split."""
    ratios: tuple[float, ...] = (0.8, 0.1, 0.1)
    """The shares of train, validation and test; two numbers leave out test."""


@verb(app)
def split(options: SplitOptions) -> None:
    """Split tasks into train, validation and test.

    The splits are stratified by family and difficulty. Near-duplicates stay in one split. Tasks with a domain policy
    of their own are written as SkyRL rows, other rows as tasks.
    """
    from understudy.data.convert import split_names
    from understudy.sources.task_files.splits import NearDuplicateGroups

    source = _source(options)
    form = source.detect_form()
    as_rows = form == "skyrl" or source.num_policies > 0
    if not as_rows and options.format == "parquet":
        validate_unused_options(options, ("format",))
    to: Literal["skyrl", "tasks"] | None = None if form == "questions" else "skyrl" if as_rows else "tasks"
    output = _convert_output(options, options.out, source, to, split_names(len(options.ratios)))
    groups = NearDuplicateGroups()
    refused = _convert(source, output, options, groups=groups, ratios=options.ratios, seed=options.seed)
    raise typer.Exit(1 if refused else 0)


class StatsOptions(DatasetOptions):
    """Options of `data stats`."""

    model: str = ""
    """Count tokens with this model's chat format."""
    plots: Path | None = None
    """Write plots (SVG) into this folder."""
    as_json: JsonOption = False


@verb(app)
def stats(options: StatsOptions) -> None:
    """Print statistics of tasks.

    They are lengths, tools, families, reads and writes of gold, duplicates, leaks between splits, and the number of
    invalid tasks.
    """
    from understudy.data import stats as describe
    from understudy.data.plots import write_plots

    source = _source(options)
    sources = source.sources()
    chat_format = _format(options.model) if options.model else None
    measure = describe.measure_tokens(chat_format, sources) if chat_format else lambda task: {}
    count_tokens = describe.count_result_tokens(chat_format) if chat_format else None
    with progress_display(writes=False) as watch:
        items = watch(source.items(), "reading")
        found = describe.compute_stats(items, sources, measure, describe.measure_evidence(sources), count_tokens)
    if not found.tasks and not found.num_invalid:
        raise _no_tasks(source)
    if found.num_invalid and not found.tasks:
        raise TaskError(f"{source.name}: none of the {found.num_invalid} rows is valid; the first: {found.first_error}")
    written = write_plots(found, options.plots) if options.plots else []
    print_result(found.model_dump_json(indent=1) if options.as_json else describe.format_stats(found))
    for path in written if not options.as_json else ():
        print(path)


class ValidateOptions(CheckedDatasetOptions):
    """Options of `data validate`."""

    skip_invalid: bool = False
    """Report every invalid task, not only the first; the exit code is then 1."""
    as_json: JsonOption = False


@verb(app)
def validate(options: ValidateOptions) -> None:
    """Check that every task is sound.

    A sound task is well-formed; on it the reference solution (gold) earns 1.0 and doing nothing 0.0.
    """
    from understudy.core.items import items_or_raise
    from understudy.data.checks.verify import play_tasks
    from understudy.data.convert import scan_items

    source = _source(options)
    errors: list[str] = []
    with progress_display(writes=False) as watch:
        items = play_tasks(watch(source.items(), "checking"), source.sources(), options.skip_validation)
        report = (lambda item: errors.append(str(item))) if options.as_json else _print_row_error
        found = scan_items(items if options.skip_invalid else items_or_raise(items), report=report)
    if not found.num_valid and not found.invalid_positions:
        raise _no_tasks(source)
    values = {"source": source.name, "num_valid": found.num_valid, "errors": errors}
    print_result(
        json.dumps(values, indent=1)
        if options.as_json
        else f"{source.name}: {found.num_valid} sound, {len(found.invalid_positions)} bad"
    )
    raise typer.Exit(1 if found.invalid_positions else 0)


class FreezeOptions(Options):
    """Options of `data freeze`."""

    domain: Annotated[str, typer.Argument(metavar="DOMAIN")]
    """A domain: module:attribute."""
    out: Path | None = None
    """Write to this new folder instead. The domain does not read it."""


@verb(app)
def freeze(options: FreezeOptions) -> None:
    """Write a domain's generated splits to files, so that later changes of its code do not change them.

    The files are in the folder `tasks` of the domain's package, or `NAME_tasks` beside its module. Delete this folder
    to generate the splits again. With --out, they are a copy for other uses, such as to share or to compare them.
    """
    from understudy.core.tasks import SPLITS, read_tasks
    from understudy.envs.domain_definition import find_domain_folder
    from understudy.sources.references import load_domain

    source, out = load_domain(options.domain), options.out
    folder = find_domain_folder(source.module_name, source.own_name)
    if out is not None and out.exists():
        raise ConfigError(f"{out} exists; give another --out")
    if out is None and folder and folder.tasks.exists():
        raise ConfigError(f"{folder.tasks} exists: the tasks of {source.name} are frozen; delete it to freeze new ones")
    written = source.write_frozen_tasks(out=out)
    counts = {split: len(read_tasks(written / f"{split}.jsonl")) for split in SPLITS}
    print(f"{written}: " + ", ".join(f"{count} {split}" for split, count in counts.items()))


def _export_target(options: ExportConversationsOptions) -> "ExportTarget":
    from understudy.data.conversations.atif import ATIFTarget
    from understudy.data.conversations.llamafactory import LlamaFactoryTarget, resolve_template
    from understudy.data.conversations.openai import OpenAITarget
    from understudy.data.conversations.trl import TRLTarget

    if options.trainer != "llamafactory":
        targets: dict[str, Callable[[], ExportTarget]] = {"trl": TRLTarget, "openai": OpenAITarget, "atif": ATIFTarget}
        return targets[options.trainer]()
    if not options.model:
        raise ConfigError(
            "no model is given, and LLaMA-Factory's files are for one model; give --model, a folder or owner/model"
        )
    return LlamaFactoryTarget(
        *resolve_template(options.model, options.template),
        split_parallel_calls=options.split_parallel_calls,
        cutoff_len=options.cutoff_len,
    )


def _convert_conversations(options: ConvertOptions, use: Literal["sft", "dpo", "kto"] | None) -> None:
    from understudy.data.conversations.conversations import convert_conversations
    from understudy.sources.loading import load_source

    if options.out.suffix != ".jsonl":
        raise ConfigError(f"{options.out}: conversations are written as .jsonl")
    tools = [spec.without_aliases() for spec in load_source(options.tools).tool_specs] if options.tools else []
    with progress_display() as watch:
        written, refused, notes = convert_conversations(
            Path(options.dataset),
            options.out,
            options.skip_invalid,
            options.resume,
            watch,
            _RowErrorPrinter(),
            use,
            options.min_reward,
            tools,
        )
    _print_written(options.out, written)
    for line in notes.lines("--min-reward 0"):
        print(line)
    if refused:
        print(f"{refused} left out")
        raise typer.Exit(1)


def _convert(source: "TaskInput", output: "ConvertOutput", options: RowFileOptions, **dealing: Any) -> int:
    """Write the tasks, print the counts, and return the number of invalid tasks."""
    from understudy.data.convert import convert_tasks

    with progress_display() as watch:
        counts, refused = convert_tasks(
            source,
            output,
            skip_validation=options.skip_validation,
            skip_invalid=options.skip_invalid,
            skip_unfindable=options.skip_unfindable,
            track=watch,
            report=_RowErrorPrinter(),
            **dealing,
        )
    for part, count in counts.items():
        _print_written(output.path / f"{part}.{output.format}" if part else output.path, count)
    if refused:
        print(f"{refused} left out")
    for warning in source.warnings():
        typer.echo(f"warning: {warning}", err=True)
    return refused


def _source(options: DatasetOptions, split: SplitName | None = None, domains: tuple[str, ...] = ()) -> "TaskInput":
    from understudy.data.task_input import open_task_input

    source = open_task_input(options.dataset, options.data, split, domains)
    for note in source.notes():
        print_message(note, "yellow")
    if source.domain and options.data != RowConfig():
        given = _data_settings(options)
        raise ConfigError(f"{given} has no effect on tasks of the domain {options.dataset}; leave it out")
    return source


def _data_settings(options: DatasetOptions) -> str:
    changed = options.data.model_dump(exclude_defaults=True).items()
    return " ".join(f"data.{key}={','.join(value) if isinstance(value, tuple) else value}" for key, value in changed)


def _no_tasks(source: "TaskInput") -> ConfigError:
    return ConfigError(f"{source.name} has no tasks; name another file, folder or domain")


def _convert_output(
    options: RowFileOptions,
    out: Path,
    source: "TaskInput",
    to: Literal["skyrl", "tasks"] | None,
    parts: tuple[SplitName, ...],
) -> "ConvertOutput":
    """Return the output's files and format, by its name and by the form of the input."""
    from understudy.core.tasks import SPLITS
    from understudy.data.convert import ConvertOutput, make_prompt_row_encoder, make_row_encoder
    from understudy.data.writer import FILE_SUFFIXES

    form = source.detect_form()
    if form == "questions" and to:
        raise ConfigError(f"--to {to}: rows with questions keep their form, and only get their split; leave --to out")
    to = to or ("tasks" if form in ("skyrl", "questions") else "skyrl")
    one = out.suffix in FILE_SUFFIXES
    if one and parts:
        raise ConfigError(
            f"{out} is one file, but each split gets its own; give a folder, such as {out.with_suffix('')}"
        )
    if not one and not parts and form in ("questions", "other") and not source.has_several_splits:
        raise ConfigError(f"the rows of {source.name} name no splits; give --train-ratio, or one output file")
    form_of_files = out.suffix[1:] if one else "jsonl" if to == "tasks" else options.format
    if to == "tasks" and form_of_files == "parquet":
        raise ConfigError(
            f"{out}: {'questions' if form == 'questions' else 'tasks'} are written as JSONL; give a name that ends "
            f"in .jsonl{'' if form == 'questions' else ', or --to skyrl for parquet rows'}"
        )
    if to == "tasks" and source.num_policies:
        print_message(
            f"{source.num_policies} tasks have a domain policy of their own, which this file does not hold; "
            "--to skyrl keeps it",
            "yellow",
        )
    text = _text(options.domain_policy) if options.domain_policy else ""
    if form == "questions":
        encode = make_prompt_row_encoder(source)
    else:
        encode = make_row_encoder(source, out, text) if to == "skyrl" else lambda task: task
    of_folder = parts or ((source.split,) if source.split else SPLITS)
    return ConvertOutput(
        out, encode, "parquet" if form_of_files == "parquet" else "jsonl", () if one else of_folder, options.resume
    )


def _source_names(given: Sequence[str]) -> list[str]:
    """Return the names of sources, separated by commas or spaces."""
    names = [name.strip() for each in given for name in ([each] if each.startswith("mix:") else each.split(","))]
    names = [name for name in names if name]
    if not names:
        raise ConfigError("no source is given; give at least one, such as: understudy data synthesize retail")
    for name in names:
        if name.startswith("mix:"):
            raise ConfigError(f"{name} is a mixture; give its sources, separated by commas, such as retail,telecom")
        if names.count(name) > 1:
            raise ConfigError(f"{name} is given {names.count(name)} times; give it once")
    return names


def _sliced_sources(
    names: list[str], families: "tuple[str, ...]", difficulties: "tuple[Difficulty, ...]", by_model: bool
) -> "list[TaskSource]":
    """Return the sources. A domain makes tasks of its families; a model gets examples of a source's families."""
    from understudy.data.synthesis.synthesize import is_domain
    from understudy.envs.task_source import Slice
    from understudy.sources.loading import load_source

    sources = []
    for source in map(load_source, names):
        if is_domain(source):
            source = source.slice(Slice(families=families, difficulties=difficulties))
        elif by_model and families:
            source = source.slice(Slice(families=families))
        sources.append(source)
    return sources


def _shares(text: str) -> "dict[Difficulty, float]":
    """Parse difficulties with optional shares: easy=2,hard."""
    from understudy.core.tasks import DIFFICULTIES

    shares: dict[Difficulty, float] = {}
    for word in filter(None, map(str.strip, text.split(","))):
        name, equals, number = word.partition("=")
        level = next((each for each in DIFFICULTIES if each == name.strip()), None)
        if level is None:
            raise ConfigError(f"unknown difficulty {name.strip()!r}; allowed: {', '.join(DIFFICULTIES)}")
        try:
            share = float(number) if equals else 1.0
        except ValueError:
            share = 0.0
        if not 0 < share < 1e6 or level in shares:
            raise ConfigError(
                f"--difficulties {text!r}: each at most once, with a share above 0, such as easy=2,hard=1"
            )
        shares[level] = share
    return {level: shares[level] for level in DIFFICULTIES if level in shares}


def _format(model: str) -> Any:
    from understudy.engines.models import find_model
    from understudy.formats import load_chat_format

    return load_chat_format(find_model(model))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path} cannot be read: {e}") from e


@contextlib.contextmanager
def progress_display(writes: bool = True) -> "Iterator[ProgressTracker]":
    """Show progress on a terminal. Ctrl-C prints one line and exits with 130."""
    if not sys.stderr.isatty():
        with _ctrl_c_as_one_line(writes):
            yield lambda items, what: items
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description} {task.completed:,}"), TimeElapsedColumn())
    console = Console(stderr=True)
    with _ctrl_c_as_one_line(writes), Progress(*columns, console=console, transient=True) as progress:

        def watch(items: Iterable[Any], what: str) -> Iterator[Any]:
            shown = progress.add_task(what, total=None)
            for number, item in enumerate(items, 1):
                if number < 32 or number % 32 == 0:
                    progress.update(shown, completed=number)
                yield item

        yield watch


@contextlib.contextmanager
def _ctrl_c_as_one_line(writes: bool) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as e:
        hint = "; the partial output is kept, and --resume completes it" if writes else ""
        print_message(f"stopped{hint}", "yellow")
        raise typer.Exit(130) from e


def _print_row_error(bad: "RowError") -> None:
    print_message(str(bad), "yellow")


class _RowErrorPrinter:
    """Prints the first `MAX_ROW_ERRORS` errors, and then that there are more."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, bad: "RowError") -> None:
        """Print an error, or leave it out."""
        self._count += 1
        if self._count <= MAX_ROW_ERRORS:
            _print_row_error(bad)
        elif self._count == MAX_ROW_ERRORS + 1:
            print_message(
                "… further errors are not shown; `understudy data validate --skip-invalid` shows all", "yellow"
            )


def _print_written(path: Path, count: int) -> None:
    print(f"{path}: {count:,}")
