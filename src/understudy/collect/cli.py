"""`understudy data collect`: episodes of an agent as conversations to learn from."""

import sys
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from understudy.data.cli import refuse
from understudy.errors import ConfigError

if TYPE_CHECKING:
    from understudy.chat import Usage
    from understudy.collect.episodes import Played
    from understudy.domains.base import TaskSource
    from understudy.kept import Kept
    from understudy.trajectory import Trajectory

_OF_PLAYING = ("tasks", "trials", "split", "concurrency", "resume")


def collect(
    ctx: typer.Context,
    what: Annotated[
        str, typer.Argument(metavar="DOMAIN|CONFIG|RUN", help="Where to play; of a run, its stored episodes.")
    ],
    settings: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="As for eval.")] = None,
    agent: Annotated[
        str,
        typer.Option(help="Who plays: gold (unless WHAT is a run), model, native, chat, silent, or module:attribute."),
    ] = "",
    out: Annotated[Path | None, typer.Option(help="The file of demonstrations: episodes that were won.")] = None,
    preferences: Annotated[Path | None, typer.Option(help="The file of pairs of a task, one won and one lost.")] = None,
    judged: Annotated[Path | None, typer.Option(help="The file of all episodes, wanted or not.")] = None,
    tasks: Annotated[int, typer.Option(min=1, help="How many tasks to play.")] = 100,
    trials: Annotated[int, typer.Option(min=1, help="Episodes of each task; pairs need two or more.")] = 1,
    split: Annotated[Literal["train", "validation", "test"], typer.Option(help="Whose tasks.")] = "train",
    even_held_out: Annotated[
        bool, typer.Option("--even-held-out", help="Take validation or test tasks, which then measure nothing.")
    ] = False,
    seed: Annotated[int, typer.Option(help="The same seed gives the same tasks and choices.")] = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes at once.")] = 16,
    most: Annotated[int, typer.Option(min=0, help="Take at most so many of each --by; 0 takes all.")] = 0,
    by: Annotated[Literal["domain", "family", "difficulty"], typer.Option(help="What --most counts.")] = "family",
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of a task, at most.")] = 4,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where an interrupted attempt has ended.")] = False,
) -> None:
    """Collect conversations to learn from: episodes of any agent, played now, or stored by a run."""
    from understudy.collect import collect as collecting
    from understudy.collect.episodes import Played, refuse_unfinished
    from understudy.domains.base import find
    from understudy.players import cap_of, refuse_idle_chat
    from understudy.weights import config_of

    outputs = {name: path for name, path in zip(_NAMES, (out, preferences, judged), strict=True) if path}
    if not outputs:
        raise ConfigError("give --out, --preferences or --judged a file to write")
    refuse(ctx, (*(() if preferences else ("pairs",)), *(() if most else ("by",))))
    collecting.refuse_existing_outputs(outputs.values())
    config = config_of(what, settings or ())
    source = find(config.domain).slice(config.slice)
    kept: Kept[Played] | None = None
    spent: dict[str, Usage] = {}
    if _is_run(what) and not agent:
        refuse(ctx, (*_OF_PLAYING, *(() if most else ("seed",))))
        episodes = collecting.of_run(Path(what), source, even_held_out)
    else:
        collecting.refuse_held_out(split, even_held_out)
        first = next(iter(outputs.values()))
        refuse_unfinished(first, resume)
        who, uncapped = agent or "gold", config.replace(cost_cap=Decimal(0))
        refuse_idle_chat(who, settings or ())
        playing = Played(agent=who, split=split, tasks=tasks, trials=trials, seed=seed, config=uncapped)
        kept, episodes, spent = _played(playing, source, first, what, concurrency, cap_of(who, config))
    how = collecting.Selection(pairs=pairs, most=most, by=by, seed=seed)
    text, whole = collecting.write(episodes, source, outputs, how)
    print("\n".join([text, *(f"{who}: {usage}" for who, usage in spent.items())]))
    if kept is not None:
        kept.remove()
    raise typer.Exit(0 if whole else 1)


_NAMES = ("out", "preferences", "judged")


def _is_run(what: str) -> bool:
    return Path(what, "config.toml").is_file()


def _played(
    what: "Played", source: "TaskSource", out: Path, where: str, concurrency: int, cap: Decimal
) -> "tuple[Kept[Played], list[Trajectory], dict[str, Usage]]":
    """The episodes that are played now; an interruption is one line and exit code 130."""
    from understudy.collect.collect import play_now
    from understudy.collect.episodes import unfinished
    from understudy.hold import held
    from understudy.weights import find_weights

    weights = find_weights(where) if _is_run(where) and what.agent == "model" else None
    for warning in weights.warnings if weights else ():
        typer.secho(warning, fg="yellow", err=True)
    checkpoint = weights.checkpoint if weights else None
    what = what.replace(checkpoint=str(checkpoint.resolve()) if checkpoint else "")
    try:
        with held(unfinished(out)):
            return play_now(what, source, out, checkpoint, concurrency, _progress, cap)
    except KeyboardInterrupt as e:
        typer.secho("stopped; the episodes that ended are kept, and --resume goes on with them", fg="yellow", err=True)
        raise typer.Exit(130) from e


def _progress(done: int, of: int) -> None:
    if sys.stderr.isatty():
        print(f"\repisode {done}/{of} ", end="" if done < of else "\n", file=sys.stderr, flush=True)
