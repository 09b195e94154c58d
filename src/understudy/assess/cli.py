"""`understudy eval` and `understudy compare`: verbs only; what they need is imported late."""

import asyncio
import contextlib
import json
import re
import shutil
import sys
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from understudy.disk import AGAIN, write_text, writing
from understudy.errors import ConfigError

if TYPE_CHECKING:
    from understudy.agent import Agent
    from understudy.assess.sitting import Sitting
    from understudy.config import TrainConfig
    from understudy.outcome import Outcome

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Markdown = Annotated[Path | None, typer.Option("--markdown", help="Write the same as Markdown to this file.")]
FREE = ("gold", "silent", "refusing", "hasty")
"""Agents whose episodes cost nothing to play again: they are kept only where --out says so."""
_BEGINNING = ("agent", "model", "split", "tasks", "trials", "seed", "reruns", "judge", "out")
"""What is settled when an evaluation begins."""
What = Annotated[
    str,
    typer.Argument(
        metavar="[DOMAIN]",
        help="A domain, module:attribute, mcp:FILE, mix:A,B, a preset, a config.toml, a run or a checkpoint. None with "
        "--resume and --rescore.",
    ),
]
Settings = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Such as slice.policy=brief.")]
Seed = Annotated[int | None, typer.Option(help="Of tasks, users and samples; that of the config if not given.")]
Out = Annotated[
    Path | None, typer.Option(help="The evaluation's folder; evals/NAME-001 and so on for agents with a model.")
]
Rescore = Annotated[
    Path | None, typer.Option(help="Score the episodes in this folder, or of this run, again; play none.")
]
Concurrency = Annotated[int, typer.Option(min=0, help="Episodes at once; engine.sequences if not given.")]
CostCap = Annotated[
    str,
    typer.Option(
        help="Stop once agent, users and judge have cost so much, in the currency of their prices; 0 sets no limit, "
        "and without it that is the config's cost_cap."
    ),
]


def evaluate(
    ctx: typer.Context,
    what: What = "",
    settings: Settings = None,
    agent: Annotated[
        str, typer.Option(help=f"model, native, chat, human, module:attribute, or without a model: {', '.join(FREE)}.")
    ] = "model",
    model: Annotated[str, typer.Option(help="An embedded model, a folder, or owner/model on Hugging Face.")] = "",
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "",
    tasks: Annotated[int, typer.Option(min=0, help="How many tasks.")] = 0,
    trials: Annotated[int, typer.Option(min=0, help="Episodes of each task; shows pass^k for k up to this.")] = 0,
    seed: Seed = None,
    reruns: Annotated[int, typer.Option(min=1, help="Evaluate so often, with other seeds, to see the noise.")] = 1,
    out: Out = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the evaluation in this folder.")] = None,
    rescore: Rescore = None,
    against: Annotated[Path | None, typer.Option(help="Compare with this evaluation or run.")] = None,
    concurrency: Concurrency = 0,
    cost_cap: CostCap = "",
    judge: Annotated[bool, typer.Option("--judge", help="Ask judge.model about each failure, too.")] = False,
    markdown: Markdown = None,
    inspect: Annotated[Path | None, typer.Option(help="Write a log that Inspect reads to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure how often an agent succeeds.

    Shown with its 95% interval, beside the do-nothing floor and the gold oracle, with why episodes failed. Ctrl-C, or a
    kill, loses no episode that has ended: --resume goes on.
    """
    from understudy.data.cli import refuse

    _refuse_unwritable(markdown)
    if rescore is not None:
        refuse(ctx, (*_BEGINNING, "resume", "concurrency", "cost_cap", "against", "inspect"))
        return _rescore(rescore, [*([what] if what else []), *(settings or ())], markdown, as_json)
    folder: Path | None = resume
    if resume is not None:
        refuse(ctx, _BEGINNING)
        sitting = _resumed(resume, what)
    else:
        asked = {"model": model, "eval.split": split, "eval.tasks": tasks or "", "eval.trials": trials or ""}
        given = asked | {"eval.seed": "" if seed is None else seed}
        chosen = [f"{key}={value}" for key, value in given.items() if value != ""]
        sitting = _sitting(what, [*(settings or ()), *chosen], agent, model, reruns, judge)
        folder = _folder(sitting, out)
    if inspect is not None:
        _refuse_log(folder, inspect)
    earlier = _read(against) if against is not None else None
    outcome = _play(sitting, folder, _cap(cost_cap, sitting), concurrency, earlier)
    _tell(outcome, folder, earlier, markdown, as_json)
    if inspect is not None and folder is not None:
        from understudy.assess.inspect_log import write_log

        write_log(folder, inspect)
    if not outcome.scored:
        typer.secho("no episode has a result; the table of causes says what failed", fg="yellow", err=True)
        raise typer.Exit(1)


def compare(
    old: Annotated[Path, typer.Argument(help="A run, an evaluation's folder, or JSON that either wrote.")],
    new: Annotated[Path, typer.Argument(help="The one that may be better.")],
    markdown: Markdown = None,
    as_json: AsJson = False,
) -> None:
    """Compare two runs or evaluations, task by task: is NEW better than OLD, or is that chance?

    Of a run it is the last evaluation.
    """
    _refuse_unwritable(markdown)
    _tell_comparison(_read(new), _read(old), markdown, as_json)


def _sitting(what: str, settings: list[str], agent: str, model: str, reruns: int, judged: bool) -> "Sitting":
    from understudy.assess.sitting import Sitting
    from understudy.players import refuse_idle_chat
    from understudy.weights import config_of, find_weights

    if not what:
        raise ConfigError("name a domain, a config or a run, or give --resume or --rescore a folder")
    if model and agent != "model":
        raise ConfigError(f"--model {model} is what --agent model plays; leave it out (an endpoint's is chat.model)")
    refuse_idle_chat(agent, settings)
    stored = Path(what, "config.toml").is_file() or Path(what).parent.name == "checkpoints"
    weights = find_weights(what, settings) if stored and agent == "model" else None
    for warning in weights.warnings if weights else ():
        typer.secho(warning, fg="yellow", err=True)
    config = weights.config if weights else config_of(what, settings)
    return Sitting(
        name=model or _called(agent, config),
        agent=agent,
        checkpoint=str(weights.checkpoint.resolve()) if weights and weights.checkpoint else "",
        reruns=reruns,
        judged=judged,
        config=config,
    )


def _called(agent: str, config: "TrainConfig") -> str:
    """What an agent is called in tables: a model behind an endpoint by its name, so that two of them are told apart."""
    if agent not in ("native", "chat"):
        return agent
    dialect = config.chat.tools
    return config.chat.model if dialect == "native" else f"{config.chat.model} {dialect}"


def _read(path: Path) -> "Outcome":
    from understudy import outcome

    return outcome.read(path)


def _refuse_unwritable(file: Path | None) -> None:
    """What could not be written in the end is said before anything is played."""
    if file is not None and (file.is_dir() or not file.parent.is_dir()):
        why = "that is a folder" if file.is_dir() else f"there is no folder {file.parent}"
        raise ConfigError(f"--markdown {file}: {why}; name a file in a folder that is there")


def _refuse_log(folder: Path | None, file: Path) -> None:
    """See `_refuse_unwritable`."""
    from understudy.assess.inspect_log import refuse_file

    if folder is None:
        raise ConfigError("--inspect takes the episodes out of the evaluation's folder; give --out one")
    refuse_file(file)


def _folder(sitting: "Sitting", out: Path | None) -> Path | None:
    from understudy.assess.sitting import refuse_taken
    from understudy.run import free_folder

    if out is not None:
        refuse_taken(out)
        return out
    if sitting.agent in FREE:
        return None
    return free_folder(re.sub(r"[^\w.]+", "-", f"{sitting.config.domain}-{sitting.name}").strip("-"), Path("evals"))


def _resumed(folder: Path, what: str) -> "Sitting":
    from understudy.assess.sitting import begun

    if what:
        raise ConfigError(f"--resume goes on with what {folder} holds; leave {what!r} out")
    return begun(folder)


def _play(
    sitting: "Sitting", folder: Path | None, cap: Decimal, concurrency: int, earlier: "Outcome | None"
) -> "Outcome":
    """The evaluation; an interruption is one line and exit code 130, and what has ended is kept.

    A folder that was begun now is removed again where a mistake ended all before anything had.
    """
    from understudy.assess.sitting import assess, set_up
    from understudy.hold import held
    from understudy.kept import HEAD, worth_resuming

    with held(folder) if folder else contextlib.nullcontext():
        new = folder and not (folder / HEAD).exists()
        human = _person() if sitting.agent == "human" else None
        desk = set_up(sitting, folder, cap, concurrency or sitting.config.engine.sequences, human, earlier)
        try:
            return asyncio.run(assess(sitting, desk, folder, _progress))
        except (KeyboardInterrupt, EOFError) as e:
            kept = f"; the episodes that ended are kept: understudy eval --resume {folder}" if folder else ""
            typer.secho(f"stopped{kept}", fg="yellow", err=True)
            raise typer.Exit(130) from e
        except ConfigError as e:
            if folder and worth_resuming(folder):
                raise ConfigError(f"{e}; what has ended is kept, go on with: understudy eval --resume {folder}") from e
            if folder and new:
                shutil.rmtree(folder)
            raise


def _person() -> "Agent":
    from understudy.agent import HumanAgent
    from understudy.play import Person

    return HumanAgent(Person().act)


def _tell(
    outcome: "Outcome", folder: Path | None, earlier: "Outcome | None", markdown: Path | None, as_json: bool
) -> None:
    from understudy import outcome as outcomes
    from understudy.assess import compare as comparing

    values, text, page = outcomes.as_json(outcome), outcomes.as_text(outcome), outcomes.markdown(outcome)
    if earlier is not None:
        comparison = comparing.compare(outcome, earlier)
        values["against"] = comparing.as_json(comparison)
        text, page = f"{text}\n\n{comparison}", f"{page}\n{comparison}\n"
    print(json.dumps(values, indent=1) if as_json else text)
    if markdown is not None:
        write_text(markdown, page)
    if folder is not None:
        typer.echo(f"the evaluation is in {folder}", err=True)


def _tell_comparison(new: "Outcome", old: "Outcome", markdown: Path | None, as_json: bool) -> None:
    from understudy import results
    from understudy.assess import compare as comparing

    comparison = comparing.compare(new, old)
    rows = comparing.rows(comparison, [row for row in new.rows if row.evaluation.kind != "agent"])
    text = f"{results.as_text(rows)}\n{comparison.beside}"
    print(json.dumps(comparing.as_json(comparison), indent=1) if as_json else text)
    if markdown is not None:
        write_text(markdown, f"{results.markdown(rows)}\n{comparison.beside}\n")


def _rescore(folder: Path, settings: list[str], markdown: Path | None, as_json: bool) -> None:
    from understudy import results
    from understudy.assess.rescore import FILE
    from understudy.assess.rescore import rescore as rescoring
    from understudy.disk import write_whole

    found = asyncio.run(rescoring(folder, settings))
    with writing(folder, AGAIN):
        write_whole(folder / FILE, found.model_dump_json(indent=1) + "\n")
    print(found.model_dump_json(indent=1) if as_json else f"{results.as_text(found.outcome.pairs)}\n{found}")
    if markdown is not None:
        write_text(markdown, f"{results.markdown(found.outcome.pairs)}\n{found}\n")


def _cap(text: str, sitting: "Sitting") -> Decimal:
    """What the command line says, or else the config."""
    from understudy.players import cap_of

    if not text:
        return cap_of(sitting.agent, sitting.config, sitting.judged)
    try:
        amount = Decimal(text)
    except InvalidOperation as e:
        raise ConfigError(f"--cost-cap {text!r} is no amount; give a number such as 2.50, or 0 for no cap") from e
    if not amount.is_finite() or amount < 0:
        raise ConfigError(f"--cost-cap {text}: it should be 0, for no cap, or more")
    return amount


def _progress(done: int, of: int) -> None:
    if sys.stderr.isatty():
        print(f"\repisode {done}/{of} ", end="" if done < of else "\n", file=sys.stderr, flush=True)
