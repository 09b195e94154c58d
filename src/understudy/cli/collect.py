"""`understudy data collect`: training data from an agent's episodes."""

import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer
from pydantic import Field

from understudy.cli.arguments import SplitName, TargetWords, print_file_summaries
from understudy.cli.evaluation import fit_limits_to_model
from understudy.cli.grammar import Options, validate_unused_options
from understudy.cli.messages import print_message
from understudy.core.errors import ConfigError

if TYPE_CHECKING:
    from understudy.clients.chat import ModelUsage
    from understudy.core.messages import ToolSpec
    from understudy.core.trajectory import Trajectory
    from understudy.runs.eval_spec import EvalSpec
    from understudy.runs.targets import ResolvedTarget

_PLAY_OPTIONS = ("tasks", "trials", "split", "concurrency", "resume")


class CollectOptions(Options):
    """Options of `data collect`."""

    target: TargetWords = ()
    agent: str = ""
    """The agent: gold (the default unless TARGET is a run or a log), model, api, noop, or module:attribute."""
    sft: Path | None = None
    """Write SFT examples, the successful episodes, to this file."""
    dpo: Path | None = None
    """Write DPO pairs, a successful and a failed episode of one task each, to this file."""
    kto: Path | None = None
    """Write KTO examples, all episodes with a label, to this file."""
    tasks: int = Field(default=100, ge=1)
    """Number of tasks to play."""
    trials: int = Field(default=1, ge=1)
    """Episodes of each task; pairs need two or more."""
    split: SplitName = "train"
    """The split of the tasks."""
    allow_test_data: bool = False
    """Allow validation and test tasks, on which the trained model cannot be evaluated."""
    seed: int = Field(default=0, ge=0)
    """The seed of tasks, users and random choices."""
    concurrency: int = Field(default=16, ge=1)
    """Number of episodes at once."""
    max_per_group: int = Field(default=0, ge=0)
    """The largest number of examples of each --balance-by group; 0 means no limit."""
    balance_by: Literal["domain", "family", "difficulty"] = "family"
    """The groups that --max-per-group limits."""
    max_pairs_per_task: int = Field(default=4, ge=1)
    """The largest number of DPO pairs of one task."""
    resume: bool = False
    """Resume an interrupted attempt."""


def collect(options: CollectOptions) -> None:
    """Write training conversations from episodes.

    The episodes are played now by an agent on the tasks of TARGET, or were stored by a run or a server.

    TARGET is the preset `retail_quick` if it is not given. If TARGET is a run, its stored episodes are used, unless
    --agent is given. If it is a log of `serve --log`, its conversations are used.
    """
    from understudy.data.collect import collect as collecting
    from understudy.envs.task_source import find_tool_specs
    from understudy.evaluation.request_logs import is_request_log
    from understudy.runs.endpoints import cost_limit_of
    from understudy.runs.episodes import validate_no_partial
    from understudy.runs.targets import resolve

    outputs = {name: path for name in ("sft", "dpo", "kto") if (path := getattr(options, name))}
    if not outputs:
        raise ConfigError(
            "no output is given; give --sft, --dpo or --kto with a file to write, such as --sft sft.jsonl"
        )
    no_effect = () if options.max_per_group else ("balance_by",)
    validate_unused_options(options, no_effect if options.dpo else ("max_pairs_per_task", *no_effect))
    collecting.validate_output_files(outputs.values())
    resolved = resolve(options.target)
    first_output = next(iter(outputs.values()))
    usage: Mapping[str, ModelUsage] = {}
    is_log = is_request_log(resolved.target.path) and not options.agent
    plays = not is_log and (bool(options.agent) or resolved.target.kind != "run")
    if not is_log:
        source = resolved.config.open_source()
        print_file_summaries(source)

    def tools_of(domain: str) -> "Sequence[ToolSpec]":
        return () if is_log else find_tool_specs(source, domain)  # a log has the tools of each request

    if plays:
        collecting.refuse_eval_split(options.split, options.allow_test_data)
        validate_no_partial(first_output, options.resume)
        spec = _make_spec(resolved, options)
        cost_limit = cost_limit_of(spec.agent, resolved.config)
        episodes, usage = _play(spec, first_output, resolved, options.concurrency, cost_limit)
    else:
        validate_unused_options(options, (*_PLAY_OPTIONS, *(() if options.max_per_group else ("seed",))))
        path = resolved.target.path
        if is_log:
            episodes = collecting.read_log_episodes(path, bool({"dpo", "kto"} & outputs.keys()), print_message)
        else:
            episodes = collecting.read_run_episodes(path, options.allow_test_data)
    selection = options.model_dump(include={*collecting.SelectionConfig.model_fields})
    text, complete = collecting.write_examples(episodes, tools_of, outputs, collecting.SelectionConfig(**selection))
    print("\n".join([text, *(f"{role}: {spent}" for role, spent in usage.items())]))
    if plays:
        collecting.remove_partial_episodes(first_output)
    raise typer.Exit(0 if complete else 1)


def _make_spec(resolved: "ResolvedTarget", options: CollectOptions) -> "EvalSpec":
    """Return the spec of the episodes to play. The temperature is that of training, so trials of one task differ."""
    from understudy.runs.endpoints import validate_endpoint_overrides
    from understudy.runs.eval_spec import EvalSpec

    if resolved.target.kind == "evaluation" and not options.agent:
        raise ConfigError(f"{resolved.target.text} is an evaluation; give a run, or --agent to play its tasks")
    agent = options.agent or "gold"
    config = fit_limits_to_model(resolved) if agent == "model" else resolved.config
    validate_endpoint_overrides(agent, config, options.target)
    settings = options.model_dump(include={"tasks", "trials", "split", "seed"})
    played = config.eval.replace(temperature=config.sampling.temperature, **settings)
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
