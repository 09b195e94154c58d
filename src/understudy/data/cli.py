"""`understudy data …`: verbs only; what they need is imported late.

No verb writes over anything. Ctrl-C leaves a partial output behind that --resume goes on with.
"""

import asyncio
import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from understudy.errors import ConfigError, TaskError

if TYPE_CHECKING:
    from understudy.data.convert import Target, Watch
    from understudy.data.export import Target as ExportTarget
    from understudy.data.items import Bad
    from understudy.data.source import Source
    from understudy.data.verify import Domains
    from understudy.domains.base import Domain

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Make, convert, split, describe and check files of tasks.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

SplitName = Literal["train", "validation", "test"]
What = Annotated[
    str,
    typer.Argument(metavar="PATH|DOMAIN", help="A file of tasks, rows or tau-style tasks; a folder of them; a domain."),
]
DomainOption = Annotated[str, typer.Option("--domain", help="The tasks' domain, or module:attribute for your own.")]
Unchecked = Annotated[
    bool, typer.Option("--unchecked", help="Take tasks of a domain that is not at hand by their shape alone.")
]
Policy = Annotated[
    Path | None, typer.Option(help="What the agent is told, for the rows of a domain that is not at hand.")
]
KeepGoing = Annotated[bool, typer.Option("--keep-going", help="Leave out what is bad, and go on; exit code 1.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where an interrupted attempt has ended.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same output.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Files = Annotated[Literal["parquet", "jsonl"], typer.Option("--format", help="The files of a folder of rows.")]


_OF_A_MODEL = ("url", "key_variable", "max_tools", "max_turns", "attempts")
"""Options of `synthesize` that only --by-model has a use for."""
_OF_TASKS = ("domain", "split", "train_ratio", "seed", "to", "format", "policy", "unchecked")
"""Options of `convert` that conversations have no use for."""


@app.command()
def synthesize(
    ctx: typer.Context,
    domains: Annotated[
        list[str] | None, typer.Argument(metavar="[DOMAIN]...", help="Names, or module:attribute.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The JSONL file to write.")] = Path("tasks.jsonl"),
    count: Annotated[int, typer.Option(min=1, help="How many tasks.")] = 100,
    split: Annotated[SplitName, typer.Option(help="Whose users and rows the tasks are about.")] = "train",
    seed: Seed = 0,
    families: Annotated[str, typer.Option(help="Only these, with commas.")] = "",
    difficulties: Annotated[str, typer.Option(help="Only these, with commas.")] = "",
    by_model: Annotated[str, typer.Option(metavar="MODEL", help="A language model that proposes tasks.")] = "",
    url: Annotated[str, typer.Option(help="Its endpoint.")] = "http://127.0.0.1:8000/v1",
    key_variable: Annotated[str, typer.Option(help="The environment variable that holds the endpoint's key.")] = "",
    max_tools: Annotated[int, typer.Option(min=1, help="Gold calls of a proposed task.")] = 12,
    max_turns: Annotated[int, typer.Option(min=1, help="Gold messages of a proposed task.")] = 24,
    attempts: Annotated[int, typer.Option(min=1, help="Proposals for each task before giving up.")] = 10,
    from_specs: Annotated[Path | None, typer.Option(help="Make compact samples of these dependent specs.")] = None,
    resume: Resume = False,
) -> None:
    """Make tasks, by a domain's generator, a language model, or from specs."""
    from understudy.data import making
    from understudy.data.synthesize import Wanted

    making.lines_file(out)
    if from_specs is not None:
        refuse(ctx, ("domains", "by_model", "count", "split", "seed", "families", "difficulties", *_OF_A_MODEL))
        with _watched() as watch:
            made = making.from_specs(from_specs, out, watch, resume)
        return _wrote(out, made)
    chosen = _domains(domains or [], families, difficulties)
    if not by_model:
        refuse(ctx, _OF_A_MODEL)
        with _watched() as watch:
            made = making.generate(chosen, out, split, count, seed, watch, resume)
        return _wrote(out, made)
    chat = making.endpoint(by_model, url, key_variable)
    wanted = Wanted(split=split, count=count, seed=seed, max_calls=max_tools, max_turns=max_turns, attempts=attempts)
    with _watched() as watch:
        yields = asyncio.run(making.propose(chat, chosen, out, wanted, watch, resume))
    print(making.as_text(yields))
    _wrote(out, yields["kept"])


@app.command()
def convert(
    ctx: typer.Context,
    what: What,
    out: Annotated[Path, typer.Argument(help="rows.parquet, rows.jsonl, tasks.jsonl, or a folder of parts.")],
    domain: DomainOption = "",
    split: Annotated[SplitName | None, typer.Option(help="Only tasks of this split.")] = None,
    train_ratio: Annotated[float | None, typer.Option(help="Deal distinct tasks to train and validation.")] = None,
    seed: Seed = 0,
    to: Annotated[Literal["rows", "tasks"] | None, typer.Option(help="Rows, if the input is no rows.")] = None,
    format: Files = "parquet",
    policy: Policy = None,
    unchecked: Unchecked = False,
    keep_going: KeepGoing = False,
    resume: Resume = False,
) -> None:
    """Convert tasks to SkyRL rows, or rows to tasks; or conversations of any form to ours.

    Every task's gold calls are run first: one that would teach to do nothing is refused.
    """
    from understudy.data.conversations import is_conversations
    from understudy.data.convert import parts_for
    from understudy.data.parts import Distinct
    from understudy.data.write import FILES

    if is_conversations(Path(what)):
        refuse(ctx, _OF_TASKS)
        return _convert_conversations(Path(what), out, keep_going, resume)
    refuse(ctx, (*(("seed",) if train_ratio is None else ()), *(("format",) if out.suffix in FILES else ())))
    source, domains = _source(what, domain, unchecked, split)
    groups = None if train_ratio is None else Distinct()
    ratios = () if train_ratio is None else (train_ratio, 1 - train_ratio)
    target = _target(out, source, domains, to, format, policy, parts_for(2) if groups else (), resume)
    _convert(source, target, domains, keep_going, groups=groups, ratios=ratios, seed=seed)


@app.command()
def export(
    ctx: typer.Context,
    target: Annotated[Literal["llamafactory", "trl", "openai"], typer.Argument(help="Whom they are for.")],
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Conversations, of any form.")],
    out: Annotated[Path, typer.Option(help="The folder to write, which must not be there yet.")],
    model: Annotated[str, typer.Option(help="LLaMA-Factory: the model that is trained, a folder or a name.")] = "",
    template: Annotated[str, typer.Option(help="LLaMA-Factory: its template; by the model, if not given.")] = "",
    cutoff: Annotated[int, typer.Option(min=0, help="LLaMA-Factory: cutoff_len; 0 cuts no conversation.")] = 0,
    split_calls: Annotated[
        bool, typer.Option("--split-calls", help="LLaMA-Factory: tell several calls of a turn one after the other.")
    ] = False,
    keep_going: KeepGoing = False,
) -> None:
    """Write conversations for another trainer, with what it needs beside them."""
    from understudy.data import export as exporting

    if target != "llamafactory":
        refuse(ctx, ("model", "template", "cutoff", "split_calls"))
    writer = _target_of(target, model, template, split_calls, cutoff)
    done = exporting.export(files, out, writer, keep_going)
    print(done, *writer.notes(), sep="\n")
    raise typer.Exit(1 if done.unfit else 0)


@app.command()
def split(
    what: What,
    out: Annotated[Path, typer.Option(help="The folder to write the parts to.")],
    ratios: Annotated[str, typer.Option(help="Of train, validation and test; two leave out test.")] = "0.8,0.1,0.1",
    seed: Seed = 0,
    domain: DomainOption = "",
    format: Files = "parquet",
    policy: Policy = None,
    unchecked: Unchecked = False,
    keep_going: KeepGoing = False,
    resume: Resume = False,
) -> None:
    """Split tasks by family and difficulty; no near-duplicates in two parts."""
    from understudy.data.convert import parts_for
    from understudy.data.parts import Near

    shares = _numbers(ratios)
    source, domains = _source(what, domain, unchecked, None)
    to: Literal["rows", "tasks"] = "rows" if source.form() == "rows" else "tasks"
    target = _target(out, source, domains, to, format, policy, parts_for(len(shares)), resume)
    _convert(source, target, domains, keep_going, groups=Near(), ratios=shares, seed=seed)


@app.command()
def stats(
    what: What,
    domain: DomainOption = "",
    model: Annotated[str, typer.Option(help="Count tokens as this model's format makes them.")] = "",
    plots: Annotated[Path | None, typer.Option(help="Write a picture (SVG) of each into this folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Describe tasks: lengths, tools, families, duplicates, leaks between splits, bad rows."""
    from understudy.data import describe
    from understudy.data.plots import write_pictures

    source, domains = _source(what, domain, True, None)
    measure = describe.token_lengths(_format(model), domains) if model else lambda task: {}
    with _watched(writes=False) as watch:
        found = describe.describe(watch(source.items(), "reading"), domains, measure)
    if found.bad and not found.tasks:
        raise TaskError(f"{source.name}: all {found.bad} rows are bad, the first {found.first_bad}")
    written = write_pictures(found, plots) if plots else []
    print(found.model_dump_json(indent=1) if as_json else describe.as_text(found))
    for path in written if not as_json else ():
        print(path)


@app.command()
def validate(
    what: What,
    domain: DomainOption = "",
    unchecked: Unchecked = False,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Name every bad row; exit code 1.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check every row: its shape, and that its gold earns 1.0 and doing nothing 0.0."""
    from understudy.data.convert import survey
    from understudy.data.items import strict
    from understudy.data.verify import proven

    source, domains = _source(what, domain, unchecked, None)
    bad: list[str] = []
    with _watched(writes=False) as watch:
        items = proven(watch(source.items(), "checking"), domains)
        report = (lambda item: bad.append(str(item))) if as_json else _report
        found = survey(items if keep_going else strict(items), report=report)
    told = {"source": source.name, "sound": found.good, "bad": bad}
    print(json.dumps(told, indent=1) if as_json else f"{source.name}: {found.good} sound, {len(found.refused)} bad")
    raise typer.Exit(1 if found.refused else 0)


def _target_of(target: str, model: str, template: str, split_calls: bool, cutoff: int) -> "ExportTarget":
    from understudy.data.llamafactory import LlamaFactory, template_of
    from understudy.data.openai import OpenAI
    from understudy.data.trl import Trl

    if target != "llamafactory":
        return Trl() if target == "trl" else OpenAI()
    if not model:
        raise ConfigError("LLaMA-Factory's files are for one model; give --model, a folder or a name on Hugging Face")
    return LlamaFactory(*template_of(model, template), split=split_calls, cutoff=cutoff)


def _convert_conversations(source: Path, out: Path, keep_going: bool, resume: bool) -> None:
    from understudy.data.conversations import convert

    if out.suffix != ".jsonl":
        raise ConfigError(f"{out}: conversations are written as .jsonl")
    with _watched() as watch:
        written, refused = convert(source, out, keep_going, resume, watch, _report)
    _wrote(out, written)
    if refused:
        print(f"{refused} left out")
        raise typer.Exit(1)


def _convert(source: "Source", target: "Target", domains: "Domains", keep_going: bool, **dealing: Any) -> None:
    from understudy.data.convert import convert

    with _watched() as watch:
        counts, refused = convert(
            source, target, domains, keep_going=keep_going, watch=watch, report=_report, **dealing
        )
    for part, count in counts.items():
        _wrote(target.out / f"{part}.{target.format}" if part else target.out, count)
    if refused:
        print(f"{refused} left out")
        raise typer.Exit(1)


def _source(what: str, domain: str, unchecked: bool, split: SplitName | None) -> "tuple[Source, Domains]":
    from understudy.data.source import source
    from understudy.data.verify import Domains

    found = source(what, split=split)
    domains = Domains(what if found.domain and not domain else domain, unchecked)
    return source(what, domains.given, split), domains


def _target(
    out: Path,
    source: "Source",
    domains: "Domains",
    to: Literal["rows", "tasks"] | None,
    format: Literal["parquet", "jsonl"],
    policy: Path | None,
    parts: tuple[SplitName, ...],
    resume: bool,
) -> "Target":
    """Where to write what: by the name of the output and the form of the input."""
    from understudy.data.convert import Target, rows_encoder
    from understudy.data.write import FILES
    from understudy.tasks import SPLITS

    form = source.form()
    to = to or ("tasks" if form == "rows" else "rows")
    one = out.suffix in FILES
    if one and parts:
        raise ConfigError(f"{out} is one file; parts are written to a folder, such as {out.with_suffix('')}")
    if not one and not parts and form == "tau":
        raise ConfigError("tau-style tasks say no split; give --train-ratio, or one file to write to")
    form_of_files = out.suffix[1:] if one else "jsonl" if to == "tasks" else format
    if to == "tasks" and form_of_files == "parquet":
        raise ConfigError(f"{out}: tasks are written as .jsonl; parquet holds rows (--to rows)")
    text = _text(policy) if policy else ""
    encode = rows_encoder(domains, text) if to == "rows" else lambda task: task
    of_folder = parts or ((source.split,) if source.split else SPLITS)
    return Target(out, encode, "parquet" if form_of_files == "parquet" else "jsonl", () if one else of_folder, resume)


def refuse(ctx: typer.Context, names: Sequence[str]) -> None:
    """Options that would do nothing here are not taken."""
    for name in names:
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and ctx.params[name] not in (None, []):
            option = name if name == "domains" else f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option} has no effect beside the other options; leave it out")


def _domains(names: list[str], families: str, difficulties: str) -> "list[Domain]":
    from understudy.domains.base import Slice, find_domain
    from understudy.tasks import DIFFICULTIES

    if not names:
        raise ConfigError("a domain is needed, such as: understudy data synthesize retail")
    wanted = _words(difficulties)
    for wrong in sorted(wanted - set(DIFFICULTIES)):
        raise ConfigError(f"unknown difficulty {wrong!r}; allowed: {', '.join(DIFFICULTIES)}")
    part = Slice(families=tuple(sorted(_words(families))), difficulties=tuple(d for d in DIFFICULTIES if d in wanted))
    return [find_domain(name).slice(part) for name in names]


def _format(model: str) -> Any:
    from understudy import formats
    from understudy.models import find_model

    return formats.find(find_model(model))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path} cannot be read: {e}") from e


def _words(text: str) -> set[str]:
    return {word.strip() for word in text.split(",") if word.strip()}


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError as e:
        raise ConfigError(f"ratios {text!r}: numbers with commas are needed, such as 0.8,0.1,0.1") from e


@contextlib.contextmanager
def _watched(writes: bool = True) -> "Iterator[Watch]":
    """Shows progress on a terminal; an interruption is one line and exit code 130."""
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description} {task.completed:,}"), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:

            def watch(items: Iterable[Any], what: str) -> Iterator[Any]:
                shown = progress.add_task(what, total=None)
                for number, item in enumerate(items, 1):
                    if number < 32 or number % 32 == 0:
                        progress.update(shown, completed=number)
                    yield item

            yield watch
    except KeyboardInterrupt as e:
        kept = "; what is written is kept, and --resume goes on with it" if writes else ""
        typer.secho(f"stopped{kept}", fg="yellow", err=True)
        raise typer.Exit(130) from e


def _report(bad: "Bad") -> None:
    typer.secho(str(bad), fg="yellow", err=True)


def _wrote(path: Path, count: int) -> None:
    print(f"{path}: {count:,}")
