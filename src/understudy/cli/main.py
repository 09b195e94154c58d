"""The command line. Each verb calls functions of the library and imports them when it runs."""

import atexit
import contextlib
import errno
import functools
import gc
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import Field
from pydantic_core import PydanticSerializationError
from typer.core import TyperGroup

from understudy.cli import data, env_file, evaluation, mcp, new
from understudy.cli.arguments import (
    JsonOption,
    ModelArgument,
    SettingWords,
    SplitName,
    TargetWords,
    print_file_summaries,
    print_unused_data_settings,
)
from understudy.cli.collect import collect
from understudy.cli.grammar import Options, validate_unused_options, verb
from understudy.cli.messages import print_message, print_result
from understudy.cli.view import view
from understudy.core.errors import ConfigError, LimitReachedError, RolloutError, TaskError
from understudy.core.interruption import handle_sigterm_as_interrupt
from understudy.core.secrets import mask_secrets
from understudy.core.version import __version__
from understudy.serve.options import ServeConfig
from understudy.train.processes import TERMINATED_STATUS

if TYPE_CHECKING:
    from understudy.data.checks.adversarial.suite import AdversarialReport
    from understudy.data.checks.check import AdversarialOptions, DomainReport, ProblemGroup, ProgressTracker
    from understudy.envs.task_source import TaskSource
    from understudy.runs.config import TrainConfig
    from understudy.runs.weights import ModelWeights

EPILOG = """\
--key VALUE and key=VALUE are the same, for the options of a command and for the keys of a config file:
slice.families=cancel,return --algorithm.group-size 16 seed=1. An option wins over a key of the same name.
`understudy train --print-config` prints and explains every key.

Exit codes: 0 success; 1 a problem was found (an unsound task, a failed check) or the run was stopped (health, faults, a
limit); 2 a wrong argument or setting, in one line; 130 Ctrl-C; 143 SIGTERM, which stops as Ctrl-C does.
"""

INTERRUPTED_STATUS = 130
"""The exit status of a command that Ctrl-C ended."""
_FULL_DISK = {errno.ENOSPC, errno.EDQUOT}
MAX_PROBLEMS = 20
"""The largest number of groups of problems of a domain that are printed."""
MAX_WATCHED = 3
"""The largest number of strategies whose command to watch them is printed."""

_STOPPED = "understudy: stopped"


class _CommandGroup(TyperGroup):
    """All commands. One that does not handle Ctrl-C itself prints one line."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Parse the words before the command."""
        with _interruptible():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with _interruptible():
            return super().invoke(ctx)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Print one line at Ctrl-C. typer would exit without a word."""
    try:
        yield
    except KeyboardInterrupt as e:
        print_message(_STOPPED, "red")
        raise typer.Exit(INTERRUPTED_STATUS) from e


app = typer.Typer(
    cls=_CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Train language models to use tools in conversations.\n\n"
    "Start with `understudy train`: it trains a small model on easy tasks and reports how much better it got.",
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)

verb(data.app)(collect)
app.add_typer(data.app, name="data")
app.add_typer(mcp.app, name="mcp")
app.add_typer(new.app, name="new")

CheckpointArgument = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT",
        help="The folder of a run, a checkpoint, an evaluation or a model, or a model of `understudy list`.",
    ),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"understudy {__version__}")
        raise typer.Exit


@app.callback()
def global_options(
    env_path: Annotated[
        Path | None, typer.Option("--env-file", help="A file of API keys, NAME=value. Default: .env in this folder.")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Read API keys that are not in the environment."""
    env_file.load_env_file(env_path)


class ListOptions(Options):
    """Options of `list`."""

    as_json: JsonOption = False


@verb(app, "list")
def list_components(options: ListOptions) -> None:
    """List domains, models, formats, engines, algorithms and presets."""
    from understudy.cli.listing import format_available, list_available

    found = list_available()
    print_result(json.dumps(found, indent=1) if options.as_json else format_available(found))


class CheckOptions(Options):
    """Options of `check`."""

    target: TargetWords = ()
    adversarial: bool = False
    """Also play strategies that must earn nothing, such as guessing."""
    tasks: int | None = Field(default=None, ge=1)
    """Number of tasks for --adversarial. Default: 100, or 4 if episodes start servers."""
    seed: int = Field(default=0, ge=0)
    """The seed of the tasks that --adversarial plays."""
    strategy: tuple[str, ...] = ()
    """module:attribute of a strategy of your own for --adversarial. May be given several times."""
    as_json: JsonOption = False


@verb(app)
def check(options: CheckOptions) -> None:
    """Check that the tasks of TARGET are sound.

    On each task, the reference solution (gold) must earn 1.0 and doing nothing (noop) 0.0. Then tools and rewards are
    tried with unknown ids, wrong types, huge values and garbled replies; nothing may raise. With --adversarial,
    scripted strategies that do not do the task are played on sampled tasks; none may earn more than 0.02 over doing
    nothing. The last line says whether `train` accepts TARGET, with its model, limits, users and eval tasks. The exit
    code is 1 if there is a problem, or if `train` refuses the tasks. Without TARGET, every shipped domain is checked.
    """
    from understudy.core.event_loop import run_async
    from understudy.data.checks.adversarial.custom import load_strategies
    from understudy.data.checks.check import AdversarialOptions, DomainReport
    from understudy.runs.targets import has_target, resolve
    from understudy.sources.references import list_domains

    if not options.adversarial:
        validate_unused_options(options, ("tasks", "seed", "strategy"), needs="--adversarial")
    adversarial = None
    if options.adversarial:
        adversarial = AdversarialOptions(options.tasks, options.seed, load_strategies(options.strategy))
    given = options.target
    one = has_target(given)
    configs = [resolve(each).config for each in ([given] if one else [[name, *given] for name in list_domains()])]

    sources = [config.open_source() for config in configs]
    for source in sources:
        print_file_summaries(source)
    print_unused_data_settings(configs[0])

    async def check_all(track: "ProgressTracker") -> list[DomainReport]:
        return [
            await _check_one(source, config, adversarial, track)
            for source, config in zip(sources, configs, strict=True)
        ]

    with data.progress_display(writes=False) as track:
        reports = run_async(check_all(track))
    dumped = [report.model_dump() for report in reports]
    print_result(
        json.dumps(dumped[0] if one else dumped, indent=1)
        if options.as_json
        else "\n\n".join(
            _format_domain_report(report, shlex.join(given) if one else report.domain) for report in reports
        )
    )
    if any(report.problems or (report.refused_for_tasks and _num_tasks(report)) for report in reports):
        raise typer.Exit(1)
    if empty := [report.domain for report in reports if not _num_tasks(report)]:
        raise ConfigError(
            f"{', '.join(empty)}: there are 0 tasks in this slice, so nothing was checked; set another slice.families "
            "or slice.difficulties, or add tasks"
        )


class PlayOptions(Options):
    """Options of `play`."""

    target: TargetWords = ()
    role: Annotated[Literal["agent", "user"], typer.Option("--as")] = "agent"
    """Your role."""
    watch: bool = False
    """Take no role; watch the agent."""
    task: str = ""
    """Id of the task. Default: the first task of --split."""
    split: SplitName = "train"
    """The split of the task."""
    agent: str = "gold"
    """The agent, if you are not the agent: gold, model, api, or module:attribute."""
    model: str = ""
    """A model as the agent, instead of --agent."""
    strategy: str = ""
    """With --watch: a strategy of `check --adversarial` as the agent."""
    fork: Annotated[str, typer.Option("--fork", metavar="STEP/NUMBER@TURN")] = ""
    """Continue a stored episode of the run TARGET before this turn of its agent. If TARGET is an evaluation:
    NUMBER@TURN."""


@verb(app)
def play(options: PlayOptions) -> None:
    """Play an episode as the agent or the user, or watch one."""
    from understudy.cli import play as plays
    from understudy.cli.evaluation import fit_limits_to_model
    from understudy.envs.users import UserSimulatorFactory
    from understudy.evaluation import forks
    from understudy.evaluation.evaluate import replace_users
    from understudy.runs.agents import make_agent
    from understudy.runs.targets import resolve
    from understudy.runs.weights import target_weights

    role, watch, task, agent, model = options.role, options.watch, options.task, options.agent, options.model
    if watch and role == "user":
        raise ConfigError("--watch and --as user exclude each other; give one of them")
    if options.strategy and not (watch and not model and agent == "gold"):
        raise ConfigError(f"--strategy {options.strategy} needs --watch, and no other agent")
    plays_agent = role == "agent" and not watch
    if plays_agent and (model or agent != "gold"):
        given = f"--model {model}" if model else f"--agent {agent}"
        raise ConfigError(f"{given} has no effect when you are the agent; add --as user or --watch")
    resolved = resolve([*options.target, *([f"model={model}"] if model else ())])
    left = forks.resolve_fork(resolved.target, options.fork, resolved.config, task) if options.fork else None
    plays_model = not plays_agent and (model or agent == "model")
    config = left.config if left else fit_limits_to_model(resolved) if plays_model else resolved.config
    source = config.open_source()
    print_file_summaries(source)
    source = replace_users(source, UserSimulatorFactory(config.user, config.endpoints))
    played = left.task if left else plays.select_task(source, task, options.split)
    checkpoint = target_weights(resolved).checkpoint if agent == "model" and not model and not plays_agent else None
    other = make_agent("model" if model else agent, config, checkpoint) if not plays_agent else None
    if options.strategy:
        from understudy.data.checks.adversarial.custom import StrategyAgent, find_strategy

        other = StrategyAgent(find_strategy(options.strategy), source)
    plays.play_interactively(
        source, played, role, other, watch=watch, fork=left.fork if left else None, limits=config.limits
    )


class ChatOptions(Options):
    """Options of `chat`."""

    target: Annotated[
        tuple[str, ...],
        typer.Argument(
            metavar="TARGET|MODEL|KEY=VALUE",
            help="TARGET is what `understudy eval` takes. MODEL is the folder of a model or a model of `understudy "
            "list`; TARGET may follow it, and is then where the model works.",
        ),
    ] = ()
    task: str = ""
    """Id of the task. Default: the first task of --split."""
    split: SplitName = "train"
    """The split of the task."""
    agent: str = "model"
    """The agent: model, api (an endpoint), gold, or module:attribute (your own)."""
    model: str = ""
    """A model, instead of TARGET's; also owner/model on Hugging Face."""
    out: Path | None = None
    """A new folder for the episode, which `understudy view` shows."""


@verb(app)
def chat(options: ChatOptions) -> None:
    """Talk to a model as its user, and see its tool calls and what they change.

    The last checkpoint of a run talks. The instructions of a task are shown as a hint; you may say anything. /end or
    Ctrl-D ends the conversation, and shows the grade and the reasons for it. Ctrl-C leaves without a grade. TARGET is
    the preset `retail_quick` if it is not given.
    """
    from understudy.cli.chat import run_chat

    episode = run_chat(options.target, options.task, options.split, options.agent, options.model, options.out)
    if episode and episode.score is None:
        raise typer.Exit(1)


verb(app, "eval")(evaluation.evaluate)
verb(app)(evaluation.score)
verb(app)(evaluation.compare)


class TrainOptions(Options):
    """Options of `train`."""

    target: TargetWords = ()
    out: Path | None = None
    """The run's folder. Default: the next free runs/NAME-001, runs/NAME-002, …"""
    resume: Path | None = None
    """Resume the run in this folder. Settings given here override its config (e.g. steps=40)."""
    print_config: bool = False
    """Print the config, with every key and its documentation, and exit."""
    keys: bool = False
    """The same, or only a section: --keys algorithm."""
    num_processes: int = Field(default=1, ge=1)
    """Number of processes, with one GPU each."""
    dry_run: bool = False
    """Check everything and forecast time and memory, without training."""
    plan_for: Annotated[str, typer.Option("--plan-for", metavar="GPU")] = ""
    """With --dry-run: plan only the memory, for a100 (80 GB), h100 or h200. This needs the model's config.json, but
    neither its weights nor the GPU."""
    as_json: Annotated[bool, typer.Option("--json", help="Print the result of --dry-run as JSON.")] = False
    debug: bool = False
    """Log each episode and retry in the run's run.log."""


@verb(app)
def train(options: TrainOptions) -> None:
    """Train a model, and report how much better it got.

    The phases are SFT on gold demonstrations, preference training if the config names a file of preferences, and RL;
    then the result table is printed. TARGET is the preset `retail_quick`, a slice of retail, if it is not given. If
    TARGET is a domain, the run uses all of its tasks and the default of every key. Presets, algorithms and config files
    may follow TARGET; later ones win. If TARGET is a run, a checkpoint or an evaluation, the new run uses its config.

    Several seeds, such as seed=0,1,2, are one run after the other, in OUT-seed0, OUT-seed1, … Without --out, OUT is
    runs/NAME. Then the table of all seeds is printed. The same command again resumes the runs that are unfinished.
    """
    from understudy.cli import launch, seed_runs
    from understudy.train.planning import preflight

    target, seeds = seed_runs.split_seeds(options.target)
    out, resume, num_processes = options.out, options.resume, options.num_processes
    if options.as_json and not options.dry_run:
        raise ConfigError("--json needs --dry-run; add it, or read the result of the run in its result.json")
    if options.plan_for and (not options.dry_run or resume is not None):
        raise ConfigError(f"--plan-for {options.plan_for} needs --dry-run, without --resume; add or leave it out")
    if options.print_config or options.keys:
        return print(launch.format_keys(target) if options.keys else launch.format_config(target))
    if options.plan_for:
        planned = launch.plan_for_gpu(target, options.plan_for, num_processes)
        print_result(planned.model_dump_json(indent=1) if options.as_json else planned)
        raise typer.Exit(1 if planned.misfit else 0)
    if seeds and resume is not None:
        raise ConfigError(
            f"--resume {resume} resumes one run, but {len(seeds)} seeds are given; repeat the first command instead, "
            "which resumes the runs of all seeds"
        )
    if options.dry_run:
        planned_runs = seed_runs.plan_seed_runs(target, seeds, out)
        found = launch.dry_run(target, seed_runs.first_new_folder(planned_runs, out), resume, num_processes)
        found = found.replace(notes=(*found.notes, *seed_runs.describe_runs(planned_runs)))
        print_result(json.dumps(preflight.preflight_to_dict(found), indent=1) if options.as_json else found)
        raise typer.Exit(1 if found.misfit else 0)
    if seeds:
        raise typer.Exit(seed_runs.train_seeds(target, seeds, out, num_processes, options.debug))
    try:
        if num_processes > 1:
            raise typer.Exit(launch.launch_processes(num_processes, target, out, resume, options.debug))
        if text := launch.run_training(target, out, resume, options.debug):
            print(text)
    except KeyboardInterrupt as e:
        typer.echo(str(e) or _STOPPED, err=True)
        raise typer.Exit(INTERRUPTED_STATUS) from e


class BenchOptions(Options):
    """Options of `bench`."""

    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A model of `understudy list`, a folder, or owner/model on Hugging Face. Default: smollm2-135m.",
        ),
    ] = ""
    settings: SettingWords = ()
    quick: bool = False
    """Measure for a second or two and save nothing."""
    as_json: JsonOption = False


@verb(app)
def bench(options: BenchOptions) -> None:
    """Measure how fast this machine samples from a model and trains it."""
    from understudy.cli import launch
    from understudy.train.planning import bench as benches

    speeds = launch.run_bench(options.model, options.settings, options.quick)
    print_result(speeds.model_dump_json(indent=1) if options.as_json else benches.format_result(speeds))


class DoctorOptions(Options):
    """Options of `doctor`."""

    target: TargetWords = ()
    as_json: JsonOption = False


@verb(app)
def doctor(options: DoctorOptions) -> None:
    """Check that this machine has what a config needs.

    The output says how to fix what is missing. TARGET is the preset `retail_quick` if it is not given.
    """
    from understudy.cli import doctor as doctors
    from understudy.runs.targets import resolve

    resolved = resolve(options.target)
    target = resolved.target
    if target.kind in ("tasks", "domain") and not target.text.startswith("hf:"):  # nothing is downloaded
        print_file_summaries(resolved.config.open_source())
    findings = doctors.run_checks(resolved.config)
    dumped = [finding.model_dump() for finding in findings]
    print_result(json.dumps(dumped, indent=1) if options.as_json else doctors.format_checks(findings))
    raise typer.Exit(0 if doctors.all_required_passed(findings) else 1)


class ServeOptions(ServeConfig, Options):
    """Options of `serve`."""

    model: CheckpointArgument
    settings: SettingWords = ()
    served_model_name: str = ""
    """The model's name for clients. Default: its own name."""


@verb(app)
def serve(options: ServeOptions) -> None:
    """Serve a model, with tool calls, as a chat-completions endpoint."""
    from understudy.runs.agents import missing_package_error

    weights = _resolve_weights(options.model, options.settings)
    try:
        from understudy.runs.serving import serve_model as serve_until_interrupted
    except ModuleNotFoundError as e:
        raise missing_package_error(e, "a server") from e
    named = weights.replace(name=options.served_model_name or weights.name)
    serve_until_interrupted(named, options, lambda line: typer.echo(line, err=True))


class ServeEnvOptions(Options):
    """Options of `serve-env`."""

    target: TargetWords
    host: str = ServeConfig.model_fields["host"].default
    """The address to listen on. On 127.0.0.1, only this machine can connect."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    concurrency: int = Field(default=64, ge=1)
    """Largest number of episodes at once. Further clients are refused."""
    harbor: Path | None = None
    """Serve the tasks of this folder, which `data export harbor` wrote, instead of an environment of OpenEnv."""


@verb(app, "serve-env")
def serve_env(options: ServeEnvOptions) -> None:
    """Serve the tasks of TARGET as an environment of OpenEnv, or for Harbor, until Ctrl-C.

    Each session plays episodes, in which the tools of TARGET and send_message are called by steps.
    """
    from understudy.core.event_loop import run_async
    from understudy.data.harbor_tasks import read_key
    from understudy.envs.users import UserSimulatorFactory
    from understudy.evaluation.evaluate import replace_users
    from understudy.rollouts.http_episodes import HTTPEpisodes
    from understudy.rollouts.openenv_app import serve_app, serve_openenv
    from understudy.runs.targets import resolve

    config = resolve(options.target).config
    source = config.open_source()
    print_file_summaries(source)
    source = replace_users(source, UserSimulatorFactory(config.user, config.endpoints))
    served = ServeConfig(host=options.host, port=options.port, concurrency=options.concurrency)
    show = functools.partial(typer.echo, err=True)
    if options.harbor:
        app = HTTPEpisodes(source, read_key(options.harbor), options.concurrency).app
        serving = serve_app(source.name, app, served, show)
    else:
        serving = serve_openenv(source, served, show)
    with contextlib.suppress(KeyboardInterrupt):
        run_async(serving)


class ExportOptions(Options):
    """Options of `export`."""

    model: CheckpointArgument
    settings: SettingWords = ()
    out: Path
    """The folder to write, or the file for --gguf. It must not exist."""
    adapter_only: bool = False
    """Write only the LoRA adapters, in the format of peft."""
    gguf: Literal["f32", "f16", "bf16", "q8_0"] | None = None
    """Write one GGUF file, for llama.cpp and Ollama, with weights of this type."""


@verb(app)
def export(options: ExportOptions) -> None:
    """Write a model as a folder that transformers and vLLM load.

    LoRA adapters are merged into its weights, unless --adapter-only is given.
    """
    from understudy.runs import weights

    if options.gguf and options.adapter_only:
        raise ConfigError("--gguf and --adapter-only exclude each other; give one of them")
    exported = _resolve_weights(options.model, options.settings)
    if options.gguf:
        weights.export_gguf(exported, options.out, options.gguf)
        print(f"{options.model} is in {options.out}\nNext:\n  llama-server --jinja -m {options.out}")
        return
    weights.export_model(exported, options.out, options.adapter_only)
    print(f"{options.model} is in {options.out}")
    if options.adapter_only:
        return
    tool_format = exported.config.format.tool_format
    setting = f" format.tool_format={tool_format}" if tool_format else ""
    print(f"Next:\n  understudy serve {options.out}{setting}    # an endpoint with tool calls")
    if weights.hides_tools(options.out):
        typer.echo(
            "its chat template shows no tools: programs that use the template, such as vLLM, send a prompt without "
            "them; understudy serve puts them into the prompt",
            err=True,
        )
    else:
        print(f"  vllm serve {options.out}")


def _resolve_weights(model: str, settings: Sequence[str]) -> "ModelWeights":
    """Return the weights that a command uses. Say which step they are of if later checkpoints are damaged."""
    from understudy.runs.weights import resolve_weights

    weights = resolve_weights(model, settings)
    for warning in weights.warnings:
        typer.echo(f"understudy: {warning}", err=True)
    if weights.warnings and weights.checkpoint:
        typer.echo(f"understudy: the weights are those of {weights.checkpoint}", err=True)
    return weights


class CertifyOptions(Options):
    """Options of `certify`."""

    model: ModelArgument
    settings: SettingWords = ()
    as_json: JsonOption = False


@verb(app)
def certify(options: CertifyOptions) -> None:
    """Check that a model is trained on exactly what it samples.

    Token ids, masks and log-probabilities of sampler and trainer are compared. If they differ, a diff is printed.
    """
    from understudy.cli import launch

    certificate, text = launch.run_certify(options.model, options.settings)
    print_result(json.dumps(certificate, indent=1) if options.as_json else text)
    raise typer.Exit(0 if certificate["passed"] else 1)


class ParseOptions(Options):
    """Options of `parse`."""

    tool_parser: str = ""
    """The format of the tool calls, such as hermes. Default: any of them."""
    tools: Path | None = None
    """A JSON file: a list of tools in OpenAI's format."""
    jsonl: bool = False
    """Each line is a reply: a JSON string, or an object with the key "text"."""


@verb(app)
def parse(options: ParseOptions) -> None:
    """Parse the tool calls of replies from standard input.

    They are printed as JSON. The whole input is one reply; with --jsonl, each line is one.
    """
    from understudy.cli import parse as parsing

    tools = parsing.load_tools(options.tools) if options.tools else ()
    for line in parsing.parse_replies(sys.stdin.buffer, options.tool_parser, tools, options.jsonl):
        print(line)


verb(app)(view)


def main() -> None:
    """Run the program. A mistake of the user is printed as one line with exit code 2.

    Ctrl-C exits with 130. SIGTERM stops a command as Ctrl-C does, and exits with 143.
    """
    atexit.register(gc.freeze)  # without it, Python's last garbage collection takes seconds after torch was imported
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # texts of models may have characters that the terminal does not
            if stream in (sys.__stdout__, sys.__stderr__):
                vars(stream)["close"] = stream.flush  # a tool that closes it must not end the command
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    is_terminated = handle_sigterm_as_interrupt()
    try:
        status = app(prog_name="understudy", standalone_mode=False) or 0  # None at the end of a command
        sys.exit(TERMINATED_STATUS if is_terminated() and status == INTERRUPTED_STATUS else status)
    except typer.TyperException as e:  # a wrong option or argument; without a subcommand, the help
        text, context = e.format_message().rstrip("."), vars(e).get("ctx")
        help_hint = f"; see {context.command_path} --help" if context else ""
        is_help = type(e).__name__ == "NoArgsIsHelpError"  # by name, because typer does not export this class
        print_message(text if is_help else f"understudy: {text}{help_hint}", None if is_help else "red")
        sys.exit(e.exit_code)
    except (ConfigError, TaskError, RolloutError) as e:
        print_message(f"understudy: {mask_secrets(str(e))}", "red")
        sys.exit(1 if isinstance(e, RolloutError | LimitReachedError) else 2)
    except OSError as e:  # a full disk can end any write, also one of a library
        if e.errno == errno.ENAMETOOLONG:
            print_message(f"understudy: {str(e.filename)[:60]}…: the name of a file is too long", "red")
            sys.exit(2)
        if e.errno not in _FULL_DISK:
            raise
        where = f"{e.filename}: " if e.filename else ""
        print_message(f"understudy: {where}{e.strerror}; free some space, then run the same command again", "red")
        sys.exit(2)
    except MemoryError:
        print_message("understudy: out of memory; close other programs, or use a smaller model", "red")
        sys.exit(2)
    except (KeyboardInterrupt, PydanticSerializationError) as e:  # Ctrl-C before a command handles it
        # pydantic replaces KeyboardInterrupt by an error with its name while it serializes.
        if isinstance(e, PydanticSerializationError) and KeyboardInterrupt.__name__ not in str(e):
            raise
        print_message(_STOPPED, "red")
        sys.exit(TERMINATED_STATUS if is_terminated() else INTERRUPTED_STATUS)


def _given_step_seconds(config: "TrainConfig") -> float | None:
    """Return `limits.max_step_seconds` if the config or a setting gives it."""
    is_given = "max_step_seconds" in config.limits.model_fields_set
    return config.limits.max_step_seconds if is_given else None


async def _check_one(
    source: "TaskSource",
    config: "TrainConfig",
    adversarial: "AdversarialOptions | None",
    track: "ProgressTracker",
) -> "DomainReport":
    """Check a source, and whether training with the config accepts it: its tasks, users, eval sets and calls."""
    from understudy.data.checks.check import TrainDemands, check_async
    from understudy.engines.models import find_local_model
    from understudy.formats import chat_format_from_config
    from understudy.rollouts.supervised import validate_source_tools
    from understudy.train.eval_sets import make_eval_sets
    from understudy.train.users import make_users

    folder, format, unknown, refusal = None, None, "", ""
    try:
        folder = find_local_model(config.model)
    except ConfigError as e:
        unknown = str(e)
    try:
        eval_sets = make_eval_sets(config, source)
        make_users(config, source)
        if folder:
            format = chat_format_from_config(folder, config.format)
            validate_source_tools(format, [each.source for each in eval_sets])
    except (ConfigError, TaskError) as e:
        refusal = str(e)
    gold = config.sft.num_gold_episodes
    reply = config.sampling.max_response_tokens if config.steps else 0
    demands = TrainDemands(config.seed, gold, config.allow_noop_solvable, config.limits, reply, format)
    report = await check_async(source, track, adversarial, _given_step_seconds(config), demands)
    return report.replace(train_refusal=refusal or report.train_refusal, format_unknown=unknown)


def _format_domain_report(report: "DomainReport", target: str) -> str:
    head = f"{report.domain:<12} tasks  families   noop    gold  gold turns"
    body = [
        f"{s.split:<12}{s.tasks:>6}{len(s.families):>10}{s.noop_reward:>7.2f}{s.gold_reward:>8.2f}{s.gold_turns:>12.1f}"
        if s.tasks
        else f"{s.split:<12}{0:>6}{'-':>10}{'-':>7}{'-':>8}{'-':>12}"
        for s in report.splits
    ]
    groups = report.problem_groups
    unused = (
        [
            f"warning: tools that no gold episode calls: {', '.join(report.unused_tools)}; if one is a "
            "helper and no tool, begin its name with _"
        ]
        if report.unused_tools and not any(group.kind == "gold_fails" for group in groups)
        else []
    )
    blocking = {(group.kind, group.family) for group in groups if group.blocks_training and group.family}
    shown = [group for group in groups if group.blocks_training or (group.kind, group.family) not in blocking]
    cut = [f"… and {len(shown) - MAX_PROBLEMS} more; --json lists all"] if len(shown) > MAX_PROBLEMS else []
    warnings = [f"warning: {text}" for text in report.warnings]
    attacks = [_format_adversarial_report(attack) for attack in report.adversarial]
    attacks += [
        f"see it: understudy play {target} --watch --strategy {result.strategy} --task {result.examples[0]}"
        for attack in report.adversarial
        for result in attack.failures[:MAX_WATCHED]
    ]
    failing = next((g for g in groups if g.kind in ("gold_not_rewarded", "gold_fails") and g.example_task), None)
    watch = [f"see it: understudy play {target} --watch --task {failing.example_task}"] if failing else []
    problems = [_format_group(group, groups) for group in shown[:MAX_PROBLEMS]]
    counts = (
        [f"{report.num_blocking_tasks} tasks block training; {report.num_advised_tasks} other tasks have advice"]
        if groups
        else []
    )
    accepts = "train will accept these tasks" + (", but correct the problems above first" if report.problems else "")
    if report.format_unknown:
        accepts += f", if the model's chat format can express their calls ({report.format_unknown})"
    if report.train_refusal:
        accepts = f"train will refuse: {report.train_refusal}"
    return "\n".join(
        [head, *body, *attacks, *unused, *problems, *cut, *watch, *warnings, _verdict(report), *counts, accepts]
    )


def _format_group(group: "ProblemGroup", groups: Sequence["ProblemGroup"]) -> str:
    """Return a line on a group, with the number of the tasks that have its problem and do not block training."""
    others = [each for each in groups if each.family and (each.kind, each.family) == (group.kind, group.family)]
    count = sum(each.num_tasks for each in others if not each.blocks_training)
    if not group.blocks_training:
        return f"advice: {group}"
    return f"blocks training{f' (advice for {count} other tasks)' if count else ''}: {group}"


def _format_adversarial_report(report: "AdversarialReport") -> str:
    """Return a table: what each strategy earns, and what that is over doing nothing."""
    width = max((len(result.strategy) for result in report.results), default=8)
    head = (
        f"{'strategy':<{width}}  tasks  earns  over noop  limit      {report.source}: {report.num_tasks} sampled tasks"
    )
    rows = (
        f"{r.strategy:<{width}}{r.num_tasks:>7}{r.reward:>7.3f}{r.over_floor:>11.3f}{r.limit:>7g}  "
        f"{'OK ' if r.is_ok else 'BAD'}  {r.description}{f' ({r.num_lost} episodes lost)' if r.num_lost else ''}"
        for r in report.results
    )
    return "\n".join([head, *rows])


def _num_tasks(report: "DomainReport") -> int:
    return sum(split.tasks for split in report.splits)


def _verdict(report: "DomainReport") -> str:
    if report.problems:
        found = f"{len(report.problems)} problem{'s' * (len(report.problems) > 1)}; --json lists each"
        if not report.unsound:
            return found
        loaded = _num_tasks(report)
        reasons = ", ".join(f"{count} {kind}" for kind, count in report.unsound.items())
        num_sound = loaded - sum(report.unsound.values())
        return f"{found}; {num_sound} of {loaded} tasks are sound, not sound are: {reasons}"
    if not _num_tasks(report):
        return "no tasks, so nothing was checked"
    sound = f"{'' if report.refused_for_tasks else 'sound: '}gold earns 1.0 and doing nothing 0.0"
    if not report.probe_episodes:
        return f"{sound}; no unusual calls were tried"
    tried = f"{report.probe_calls:,} unusual calls and {report.probe_episodes:,} unusual episodes"
    return f"{sound}; {tried} raised {'only the warnings above' if report.warnings else 'nothing'}"
