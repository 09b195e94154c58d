"""`understudy data collect`: training data from an agent's episodes."""

import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from understudy.cli.arguments import TargetArguments, print_file_summaries
from understudy.cli.data import validate_unused_options
from understudy.cli.messages import print_message
from understudy.core.errors import ConfigError

if TYPE_CHECKING:
    from understudy.clients.chat import ModelUsage
    from understudy.core.trajectory import Trajectory
    from understudy.runs.eval_spec import EvalSpec
    from understudy.runs.targets import ResolvedTarget

_PLAY_OPTIONS = ("tasks", "trials", "split", "concurrency", "resume")


def collect(
    ctx: typer.Context,
    target: TargetArguments = None,
    agent: Annotated[
        str,
        typer.Option(
            help="The agent: gold (the default unless TARGET is a run), model, api, noop, or module:attribute."
        ),
    ] = "",
    sft: Annotated[Path | None, typer.Option(help="Write SFT examples, the successful episodes, to this file.")] = None,
    dpo: Annotated[
        Path | None,
        typer.Option(help="Write DPO pairs, a successful and a failed episode of one task each, to this file."),
    ] = None,
    kto: Annotated[
        Path | None, typer.Option(help="Write KTO examples, all episodes with a label, to this file.")
    ] = None,
    tasks: Annotated[int, typer.Option(min=1, help="Number of tasks to play.")] = 100,
    trials: Annotated[int, typer.Option(min=1, help="Episodes of each task; pairs need two or more.")] = 1,
    split: Annotated[Literal["train", "validation", "test"], typer.Option(help="The split of the tasks.")] = "train",
    allow_test_data: Annotated[
        bool,
        typer.Option(
            "--allow-test-data", help="Allow validation and test tasks, on which the trained model cannot be evaluated."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="The seed of tasks, users and random choices.")] = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="Number of episodes at once.")] = 16,
    max_per_group: Annotated[
        int, typer.Option(min=0, help="The largest number of examples of each --balance-by group; 0 means no limit.")
    ] = 0,
    balance_by: Annotated[
        Literal["domain", "family", "difficulty"], typer.Option(help="The groups that --max-per-group limits.")
    ] = "family",
    max_pairs_per_task: Annotated[int, typer.Option(min=1, help="The largest number of DPO pairs of one task.")] = 4,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted attempt.")] = False,
) -> None:
    """Write training conversations from episodes.

    The episodes are played now by an agent on the tasks of TARGET, or were stored by a run.

    TARGET is the preset `retail_quick` if it is not given. If TARGET is a run, its stored episodes are used, unless
    --agent is given.
    """
    from understudy.data.collect import collect as collecting
    from understudy.runs.endpoints import cost_limit_of
    from understudy.runs.episodes import validate_no_partial
    from understudy.runs.targets import resolve

    outputs = {name: path for name, path in {"sft": sft, "dpo": dpo, "kto": kto}.items() if path}
    if not outputs:
        raise ConfigError(
            "no output is given; give --sft, --dpo or --kto with a file to write, such as --sft sft.jsonl"
        )
    validate_unused_options(
        ctx, (*(() if dpo else ("max_pairs_per_task",)), *(() if max_per_group else ("balance_by",)))
    )
    collecting.validate_output_files(outputs.values())
    resolved = resolve(target or ())
    source = resolved.config.open_source()
    print_file_summaries(source)
    first_output = next(iter(outputs.values()))
    usage: Mapping[str, ModelUsage] = {}
    plays = bool(agent) or resolved.target.kind != "run"
    if plays:
        collecting.refuse_eval_split(split, allow_test_data)
        validate_no_partial(first_output, resume)
        spec = _make_spec(resolved, agent, target or (), split=split, tasks=tasks, trials=trials, seed=seed)
        cost_limit = cost_limit_of(spec.agent, resolved.config)
        episodes, usage = _play(spec, first_output, resolved, concurrency, cost_limit)
    else:
        validate_unused_options(ctx, (*_PLAY_OPTIONS, *(() if max_per_group else ("seed",))))
        episodes = collecting.read_run_episodes(resolved.target.path, allow_test_data)
    selection = collecting.SelectionConfig(
        max_pairs_per_task=max_pairs_per_task, max_per_group=max_per_group, balance_by=balance_by, seed=seed
    )
    text, complete = collecting.write_examples(episodes, source, outputs, selection)
    print("\n".join([text, *(f"{role}: {spent}" for role, spent in usage.items())]))
    if plays:
        collecting.remove_partial_episodes(first_output)
    raise typer.Exit(0 if complete else 1)


def _make_spec(
    resolved: "ResolvedTarget", agent: str, settings: Sequence[str], **eval_settings: str | int
) -> "EvalSpec":
    """Return the spec of the episodes to play. The temperature is that of training, so trials of one task differ."""
    from understudy.runs.endpoints import validate_endpoint_overrides
    from understudy.runs.eval_spec import EvalSpec

    if resolved.target.kind == "evaluation" and not agent:
        raise ConfigError(f"{resolved.target.text} is an evaluation; give a run, or --agent to play its tasks")
    config, agent = resolved.config, agent or "gold"
    validate_endpoint_overrides(agent, config, settings)
    played = config.eval.replace(temperature=config.sampling.temperature, **eval_settings)
    # A spec cannot change when it is resumed, but the cost limit may.
    return EvalSpec(name=agent, agent=agent, config=config.replace(eval=played, cost_limit=Decimal(0)))


def _play(
    spec: "EvalSpec", out: Path, resolved: "ResolvedTarget", concurrency: int, cost_limit: Decimal
) -> "tuple[list[Trajectory], dict[str, ModelUsage]]":
    """Play the episodes. Ctrl-C prints one line and exits with 130."""
    from understudy.data.collect.collect import play_and_store
    from understudy.runs.episodes import partial_folder
    from understudy.runs.storage.locking import folder_lock
    from understudy.runs.weights import target_weights

    weights = target_weights(resolved) if spec.agent == "model" else None
    for warning in weights.warnings if weights else ():
        print_message(warning, "yellow")
    checkpoint = weights.checkpoint if weights else None
    spec = spec.replace(checkpoint=str(checkpoint.resolve()) if checkpoint else "")
    try:
        with folder_lock(partial_folder(out)):
            return play_and_store(spec, out, concurrency, _progress, cost_limit)
    except KeyboardInterrupt as e:
        print_message("stopped; finished episodes are kept: --resume plays the missing ones", "yellow")
        raise typer.Exit(130) from e


def _progress(done: int, of: int) -> None:
    if sys.stderr.isatty():
        print(f"\repisode {done}/{of} ", end="" if done < of else "\n", file=sys.stderr, flush=True)
