"""`understudy eval`, `score` and `compare`. What they need is imported when they run."""

import contextlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import Field

from understudy.cli.arguments import (
    JsonOption,
    MarkdownOption,
    TargetWords,
    print_file_summaries,
    print_unused_data_settings,
)
from understudy.cli.grammar import Options, validate_unused_options
from understudy.cli.messages import print_message, print_result
from understudy.core.errors import ConfigError
from understudy.core.files import RETRY_HINT, os_errors_as_config_errors, write_text

if TYPE_CHECKING:
    from understudy.evaluation.comparison import Comparison
    from understudy.evaluation.reports.report import EvalReport
    from understudy.rollouts.agent import Agent
    from understudy.runs.config import TrainConfig
    from understudy.runs.eval_spec import EvalSpec
    from understudy.runs.targets import ResolvedTarget

SCRIPTED_AGENTS = ("gold", "noop", "refusing", "hasty")
"""Agents without a model. Their episodes are cheap to play again, so they are stored only if --out is given."""
_SEED_SUFFIX = re.compile(r"-seed\d+/?$")
_NEW_EVAL_OPTIONS = ("agent", "model", "repeats", "prompt_variants", "judge_failures", "out")
"""Options that cannot change when an evaluation is resumed."""


_TRAINING_KEYS = {
    *("algorithm", "allow_noop_solvable", "certify", "curriculum", "epochs", "health", "keep_checkpoints", "ood_slice"),
    *("preferences", "save_every", "sft", "steps", "trackers", "tracking"),
}
"""Keys and sections of the config that only training reads."""
_MAX_TURNS = "set limits.max_turns=N, the largest number of the agent's replies in an episode"
_TRIALS = "set --trials N, the number of episodes of each task"
_OTHER_MEANINGS = {
    "max_steps": f"in tau2 it limits the messages of an episode, and for training it is steps; {_MAX_TURNS}",
    "steps": f"eval does not train; {_MAX_TURNS}",
    **dict.fromkeys(("message_limit", "max_messages", "turn_limit"), _MAX_TURNS),
    "token_limit": "set limits.max_episode_tokens=N, the largest number of tokens of an episode",
    **dict.fromkeys(("time_limit", "working_limit"), "set limits.max_step_seconds=N, the seconds of one step"),
    **dict.fromkeys(("epochs", "rollouts_per_example", "num_generations", "n_samples", "-r"), _TRIALS),
    "-n": "set --tasks N, the number of tasks",
    **dict.fromkeys(("retry_on_error", "max_retries"), "set limits.max_retries=N, the new attempts after a fault"),
    "temperature": "set eval.temperature, or endpoints.NAME.temperature for the model of an endpoint",
    "max_tokens": "set sampling.max_response_tokens, or endpoints.NAME.max_tokens for the model of an endpoint",
    "timeout": "set endpoints.NAME.timeout, the seconds of a request, or limits.max_step_seconds, those of a step",
    "batch_size": "set --concurrency N, the number of episodes at once",
    "user": "set user.kind=llm for a user played by the model of an endpoint (tau2: user_simulator), or "
    "user.kind=scripted (docs/users.md)",
    **dict.fromkeys(("task_split", "task_split_name"), "set --split train, validation or test"),
    **dict.fromkeys(
        ("sample_id", "task_id", "task"),
        "slice.families, slice.difficulties and --tasks choose tasks; understudy play TARGET --task ID plays one",
    ),
    **dict.fromkeys(("system_message", "system_prompt"), "the system message is the policy of TARGET's tasks"),
    **dict.fromkeys(
        ("log_level", "log_format", "verbose", "display"),
        "leave it out; each episode is stored in the folder of the evaluation, and understudy view FOLDER shows it",
    ),
    **dict.fromkeys(
        ("model_args", "model_base_url", "base_url", "-M", "-b"),
        "set the keys of the endpoint, such as --agent api endpoints.default.base_url=URL endpoints.default.model=NAME",
    ),
    **dict.fromkeys(("env_args", "-T", "-a"), "TARGET and the keys of the config name the tasks and their environment"),
    **dict.fromkeys(("output", "-o"), "set --out FOLDER"),
    **dict.fromkeys(("no_score", "score"), "each episode is scored; understudy score FOLDER scores it again"),
}
"""Options of tau2, inspect_ai, verifiers and lm-eval, and keys of training."""


class EvalOptions(Options):
    """Options of `eval`."""

    abbreviations = {key: f"eval.{key}" for key in ("split", "tasks", "trials", "seed")}
    other_meanings = _OTHER_MEANINGS

    target: TargetWords = ()
    agent: str = "model"
    """The agent: model (see --model), api (an endpoint), human (you), module:attribute (your own), or one without a
    model: gold (reference solution), noop (empty replies), refusing (refuses everything), hasty (makes the gold calls
    at once)."""
    model: str = ""
    """A model of `understudy list`, a folder, or owner/model on Hugging Face. Default: TARGET's."""
    repeats: int = Field(default=1, ge=1)
    """Number of evaluations with different seeds, to measure the noise."""
    prompt_variants: str = ""
    """Repeat the evaluation with other wordings of the system message: a number from 2 to 8 of shipped ones, or a text
    file of your own between lines of ---, where {prompt} stands for the message as written."""
    out: Path | None = None
    """The evaluation's folder. Default for agents with a model: the next free evals/DOMAIN-NAME-001, …, where NAME is
    --model, the endpoint's model, or --agent."""
    resume: Path | None = None
    """Resume the evaluation in this folder."""
    baseline: Path | None = None
    """Compare with this evaluation or run."""
    concurrency: int | None = Field(default=None, ge=1)
    """Number of episodes at once. Default: engine.max_num_seqs."""
    cost_limit: Decimal | None = Field(default=None, ge=0)
    """Stop once agent, user simulator and judge have cost this much, in the currency of the endpoints' prices; 0 means
    no limit. Default: cost_limit of the config."""
    judge_failures: bool = False
    """Let the model of eval.failure_judge_endpoint explain each failure."""
    markdown: MarkdownOption = None
    inspect_log: Path | None = None
    """Write a log in inspect_ai's format to this file."""
    as_json: JsonOption = False


def evaluate(options: EvalOptions) -> None:
    """Measure how often an agent succeeds on the tasks of TARGET.

    TARGET is the preset `retail_quick` if it is not given. The table shows 95% intervals, the noop and gold baselines,
    and why episodes failed. Finished episodes survive Ctrl-C and a kill: --resume plays the missing ones.
    """
    from understudy.runs.endpoints import cost_limit_of

    _validate_writable(options.markdown)
    folder: Path | None = options.resume
    if options.resume is not None:
        validate_unused_options(options, _NEW_EVAL_OPTIONS)
        spec = _resumed(options.resume, options.target)
    else:
        limit = [] if options.cost_limit is None else [f"cost_limit={options.cost_limit}"]
        spec = make_spec(
            [*options.target, *limit], options.agent, options.model, options.repeats, options.judge_failures
        )
        if options.prompt_variants:
            spec = _with_wordings(spec, options.prompt_variants)
        folder = _folder(spec, options.out)
    if options.inspect_log is not None:
        _validate_log_file(folder, options.inspect_log)
    baseline = _read(options.baseline) if options.baseline is not None else None
    cost_limit = options.cost_limit
    if cost_limit is None:
        cost_limit = cost_limit_of(spec.agent, spec.config, spec.judge_failures)
    report = _play(spec, folder, cost_limit, options.concurrency, baseline)
    _print_report(report, folder, baseline, options)
    if options.inspect_log is not None and folder is not None:
        from understudy.evaluation.inspect_log import write_inspect_log

        write_inspect_log(folder, options.inspect_log)
    if report.fault_count:
        _report_faults(report, spec.config.max_fault_rate, folder)


class CompareOptions(Options):
    """Options of `compare`."""

    groups: Annotated[tuple[str, ...], typer.Argument(metavar="OLD NEW")]
    """Each is a run, an evaluation's folder, the saved output of `eval --json`, or a quoted pattern of several that
    differ only in their seeds, such as 'runs/a-*'."""
    markdown: MarkdownOption = None
    as_json: JsonOption = False


def compare(options: CompareOptions) -> None:
    """Compare runs or evaluations, task by task.

    The result says whether NEW is better than OLD beyond chance. For a run, its last evaluation is compared. A quoted
    pattern names a group of runs with other seeds. Groups are paired by seed and task, and there may be one or several.
    """
    from understudy.evaluation.reports.files import find_evaluated

    _validate_writable(options.markdown)
    found = {text: find_evaluated(text) for text in options.groups}
    patterns = list(dict.fromkeys(_SEED_SUFFIX.sub("-*", text) for text in options.groups))
    if len(options.groups) > 2 and len(patterns) < len(options.groups):
        raise ConfigError(
            f"{len(options.groups)} runs are given, and each would be a group of its own; a pattern needs quotes: "
            f"understudy compare {' '.join(map(repr, patterns))}"
        )
    if [*map(len, found.values())] == [1]:
        raise ConfigError(f"{options.groups[0]} is one evaluation; give another one, or a quoted pattern of several")
    if len(options.groups) == 2 and len(patterns) == 1 and len(found) == 2:
        seeds = " and ".join(options.groups)
        print_message(
            f"{seeds} are two seeds of one setting, so their difference is noise; for their mean and its noise: "
            f"understudy compare '{patterns[0]}'",
            "yellow",
        )
    if len(options.groups) == 2 and [*map(len, found.values())] in ([1], [1, 1]):
        old, new = (found[text][0] for text in options.groups)
        return _compare_two(old, new, options.markdown, options.as_json)
    print_groups(found, options.markdown, options.as_json)


def print_groups(groups: Mapping[str, Sequence[Path]], markdown: Path | None = None, as_json: bool = False) -> None:
    """Print the comparison of groups of runs, given by their names."""
    from understudy.evaluation.reports import run_groups as reports
    from understudy.evaluation.reports.files import read_group
    from understudy.evaluation.run_groups import compare_groups

    report = compare_groups([read_group(name, paths) for name, paths in groups.items()])
    values = reports.group_report_to_dict(report)
    print_result(json.dumps(values, indent=1) if as_json else reports.group_report_to_text(report))
    if markdown is not None:
        write_text(markdown, reports.group_report_to_markdown(report))


def _compare_two(old: Path, new: Path, markdown: Path | None, as_json: bool) -> None:
    from understudy.core.settings import config_differences
    from understudy.evaluation.comparison import compare as compare_reports
    from understudy.evaluation.reports.files import are_same_report, read_evaluated_config

    before, after = _read(old), _read(new)
    if are_same_report(old, new):
        raise ConfigError(f"{old} and {new} are the same evaluation; give two different ones")
    configs = read_evaluated_config(old), read_evaluated_config(new)
    settings = config_differences(configs[0], configs[1]) if configs[0] and configs[1] else []
    _print_comparison(compare_reports(after, before, (str(new), str(old))), after, settings, markdown, as_json)


def _with_wordings(spec: "EvalSpec", given: str) -> "EvalSpec":
    from understudy.evaluation.prompt_variants import read_wordings

    if spec.repeats > 1:
        raise ConfigError(
            "--prompt-variants repeats the evaluation, each time with another wording; leave out --repeats"
        )
    wordings = read_wordings(given)
    return spec.replace(wordings=wordings, repeats=len(wordings))


def make_spec(arguments: Sequence[str], agent: str, model: str, repeats: int, judge_failures: bool) -> "EvalSpec":
    """Return the spec of an evaluation from the arguments of a command. Print warnings about damaged checkpoints.

    A `model` replaces that of TARGET, without its checkpoint.
    """
    from understudy.core.settings import with_full_key
    from understudy.runs.config import TrainConfig
    from understudy.runs.endpoints import validate_endpoint_overrides
    from understudy.runs.eval_spec import EvalSpec
    from understudy.runs.targets import resolve, split_arguments
    from understudy.runs.weights import target_weights

    if model and agent != "model":
        raise ConfigError(
            f"--model {model} has no effect with --agent {agent}; leave one of them out "
            "(the model of an endpoint is set by endpoints.NAME.model)"
        )
    arguments = [*arguments, *([f"model={model}"] if model else ())]
    resolved = resolve(arguments)
    weights = target_weights(resolved) if agent == "model" and not model else None
    for warning in weights.warnings if weights else ():
        print_message(warning, "yellow")
    config = fit_limits_to_model(resolved) if agent == "model" else resolved.config
    validate_endpoint_overrides(agent, config, arguments, judge_failures)
    for setting in split_arguments(arguments)[1]:
        if with_full_key(TrainConfig, setting).partition("=")[0].partition(".")[0] in _TRAINING_KEYS:
            print_message(f"{setting} has no effect: only training reads it; leave it out", "yellow")
    print_unused_data_settings(config)
    return EvalSpec(
        name=model or _display_name(agent, config),
        agent=agent,
        checkpoint=str(weights.checkpoint.resolve()) if weights and weights.checkpoint else "",
        repeats=repeats,
        judge_failures=judge_failures,
        config=config,
    )


def fit_limits_to_model(resolved: "ResolvedTarget") -> "TrainConfig":
    """Return the config with a preset's limits in tokens of the model, as a run would have them. Print what changed."""
    from understudy.train.token_limits import fit_token_limits

    config, line = fit_token_limits(resolved.config)
    if line:
        print_message(line)
    return config


def _display_name(agent: str, config: "TrainConfig") -> str:
    """Return the agent's name in tables; an endpoint's agent is named after its model.

    The baselines noop and gold have scripted users, and agents with other users must not take their names.
    """
    if agent in ("noop", "gold") and config.user.kind != "scripted":
        return f"{agent}, {config.user.kind} user"
    if agent != "api":
        return agent
    from understudy.clients.chat import find_endpoint

    endpoint = find_endpoint(config.endpoints, config.agent_endpoint, "agent_endpoint")
    return endpoint.model if endpoint.tool_format == "native" else f"{endpoint.model} {endpoint.tool_format}"


def _read(path: Path) -> "EvalReport":
    from understudy.evaluation.reports.files import read_report

    return read_report(path)


def _validate_writable(file: Path | None) -> None:
    """Raise ConfigError, before anything is played, if the file could not be written."""
    if file is not None and (file.is_dir() or not file.parent.is_dir()):
        why = "that is a folder" if file.is_dir() else f"there is no folder {file.parent}"
        raise ConfigError(f"--markdown {file}: {why}; give a file in a folder that exists")


def _validate_log_file(folder: Path | None, file: Path) -> None:
    """Raise ConfigError, before anything is played, if no log could be written."""
    from understudy.evaluation.inspect_log import validate_log_path

    if folder is None:
        raise ConfigError("--inspect-log reads the episodes in the evaluation's folder; give --out FOLDER too")
    validate_log_path(file)


def _folder(spec: "EvalSpec", out: Path | None) -> Path | None:
    from understudy.evaluation.runner import validate_new_eval_folder
    from understudy.runs.run import next_run_folder
    from understudy.sources.loading import list_names
    from understudy.sources.task_files.files import is_task_file

    if out is not None:
        validate_new_eval_folder(out)
        return out
    if spec.agent in SCRIPTED_AGENTS:
        return None
    domain = "-".join(Path(part).stem if is_task_file(part) else part for part in list_names(spec.config.domain))
    return next_run_folder(re.sub(r"[^\w.]+", "-", f"{domain}-{spec.name}").strip("-"), Path("evals"))


def _resumed(folder: Path, arguments: Sequence[str]) -> "EvalSpec":
    from understudy.runs.eval_spec import read_spec
    from understudy.runs.run import find_run, is_run_folder
    from understudy.runs.storage.episode_store import REPORT_FILE
    from understudy.runs.weights import validate_checkpoint

    if arguments:
        raise ConfigError(f"--resume uses the config stored in {folder}; leave out {' '.join(arguments)}")
    if run := find_run(folder):
        raise ConfigError(f"{folder} belongs to the run {run}; resume the run: understudy train --resume {run}")
    if is_run_folder(folder):
        raise ConfigError(f"{folder} is a run and no evaluation; resume it: understudy train --resume {folder}")
    spec = read_spec(folder)
    if spec.checkpoint and not (folder / REPORT_FILE).is_file():
        validate_checkpoint(Path(spec.checkpoint), "an evaluation is resumed with the weights that it began with")
    return spec


def _play(
    spec: "EvalSpec", folder: Path | None, cost_limit: Decimal, concurrency: int | None, baseline: "EvalReport | None"
) -> "EvalReport":
    """Play the evaluation. Ctrl-C prints one line and exits with 130; finished episodes are kept.

    If Ctrl-C or a ConfigError ends the evaluation before any episode has finished, its new folder is removed.
    """
    from understudy.cli.live import EvalView
    from understudy.core.event_loop import run_async
    from understudy.core.terminal import PersonLeft
    from understudy.evaluation.runner import prepare_eval, run_eval
    from understudy.runs.storage.episode_store import SPEC_FILE, has_progress
    from understudy.runs.storage.locking import folder_lock

    with folder_lock(folder) if folder else contextlib.nullcontext():
        new = folder and not (folder / SPEC_FILE).exists()
        human = _human_agent() if spec.agent == "human" else None
        context = prepare_eval(
            spec, folder, cost_limit, concurrency or spec.config.engine.max_num_seqs, human, baseline
        )
        print_file_summaries(context.source)
        for warning in context.warnings:
            print_message(warning, "yellow")
        if len(context.tasks) < spec.config.eval.tasks and "tasks" in spec.config.eval.model_fields_set:
            asked = spec.config.eval.tasks
            print_message(
                f"eval.tasks = {asked}, but {spec.config.domain_text} has {len(context.tasks)} such tasks", "yellow"
            )
        view = EvalView(spec.config)
        context.on_episode = view.add_episode
        try:
            return run_async(run_eval(spec, context, folder, view.report))
        except (KeyboardInterrupt, PersonLeft) as e:
            hint = ""
            if folder and has_progress(folder):
                hint = f"; finished episodes are kept, resume with: understudy eval --resume {folder}"
            elif folder:
                hint = " before the first episode ended"
                if new:
                    shutil.rmtree(folder)
            print_message(f"stopped{hint}", "yellow")
            raise typer.Exit(130) from e
        except ConfigError as e:
            if folder and has_progress(folder):
                raise type(e)(  # the cost limit has its own exit code
                    f"{e}; finished episodes are kept, resume with: understudy eval --resume {folder}"
                ) from e
            if folder and new:
                shutil.rmtree(folder)
            raise


def _report_faults(report: "EvalReport", max_rate: float, folder: Path | None) -> None:
    """Say how many episodes have no score, and how to play them again. Exit with 1 if they are too many."""
    too_many = report.fault_rate > max_rate or not report.has_scores
    lost = f"{report.fault_count} episodes ({report.fault_rate:.0%}) have no score, because a component failed"
    limit = f", more than max_fault_rate = {max_rate}" if report.fault_rate > max_rate else ""
    hint = f"; play them again with: understudy eval --resume {folder}" if folder else ""
    print_message(f"{lost}{limit}{hint}", "yellow")
    if too_many:
        raise typer.Exit(1)


def _human_agent() -> "Agent":
    from understudy.cli.play import TerminalPlayer
    from understudy.rollouts.agent import HumanAgent

    return HumanAgent(TerminalPlayer().act)


def _print_report(
    report: "EvalReport", folder: Path | None, baseline: "EvalReport | None", options: EvalOptions
) -> None:
    from understudy.evaluation.comparison import compare
    from understudy.evaluation.reports.as_json import report_to_dict
    from understudy.evaluation.reports.markdown import report_to_markdown
    from understudy.evaluation.reports.text import report_to_text

    values = report_to_dict(report)
    text = report_to_text(report)
    page = report_to_markdown(report)
    if baseline is not None:
        comparison = compare(report, baseline, (str(folder or "new"), str(options.baseline)))
        values["comparison"] = comparison.to_dict()
        text, page = f"{text}\n\n{comparison}", f"{page}\n{comparison}\n"
    print_result(json.dumps(values, indent=1) if options.as_json else text)
    if options.markdown is not None:
        write_text(options.markdown, page)
    if folder is not None:
        typer.echo(f"the evaluation is in {folder}", err=True)


def _print_comparison(
    comparison: "Comparison", new: "EvalReport", settings: Sequence[str], markdown: Path | None, as_json: bool
) -> None:
    from understudy.evaluation.reports.markdown import report_to_markdown
    from understudy.evaluation.reports.text import report_to_text

    report = comparison.to_report([row for row in new.rows if row.result.kind != "agent"])
    details = f"{comparison.details}\nSettings that differ: {'; '.join(settings)}." if settings else comparison.details
    values = comparison.to_dict() | {"settings": settings}
    print_result(json.dumps(values, indent=1) if as_json else f"{report_to_text(report)}\n{details}")
    if markdown is not None:
        write_text(markdown, f"{report_to_markdown(report)}\n{details}\n")


class ScoreOptions(Options):
    """Options of `score`."""

    folder: Annotated[Path, typer.Argument(metavar="FOLDER")]
    """An evaluation's folder, or a run."""
    settings: Annotated[tuple[str, ...], typer.Argument(metavar="KEY=VALUE")] = ()
    """Settings that differ from the stored config, such as data.reward=my_rewards:reward."""
    markdown: MarkdownOption = None
    as_json: JsonOption = False


def score(options: ScoreOptions) -> None:
    """Score the stored episodes of an evaluation or a run again.

    The current graders are used. Nothing is played."""
    from understudy.core.event_loop import run_async
    from understudy.core.files import atomic_write
    from understudy.evaluation.reports.markdown import report_to_markdown
    from understudy.evaluation.reports.text import report_to_text
    from understudy.evaluation.rescore import RESCORED_FILE, rescore_episodes

    rescored = run_async(rescore_episodes(options.folder, options.settings))
    with os_errors_as_config_errors(options.folder, RETRY_HINT):
        atomic_write(options.folder / RESCORED_FILE, rescored.model_dump_json(indent=1) + "\n")
    print_result(
        rescored.model_dump_json(indent=1) if options.as_json else f"{report_to_text(rescored.report)}\n{rescored}"
    )
    if options.markdown is not None:
        write_text(options.markdown, f"{report_to_markdown(rescored.report)}\n{rescored}\n")
