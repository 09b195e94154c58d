"""The command line: verbs only. Each is a function of the library of the same name; what it needs is imported late."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import understudy
from understudy import envfile
from understudy.assess import cli as assess
from understudy.collect.cli import collect
from understudy.data import cli as data
from understudy.errors import ConfigError, RolloutError, TaskError
from understudy.mcp import cli as mcp
from understudy.viewer.cli import view

if TYPE_CHECKING:
    from understudy.check import Report
    from understudy.config import TrainConfig

EPILOG = """\
Settings are key=value, the keys of a config file: slice.families=cancel,return algorithm.group_size=16 seed=1.
`understudy train --keys` prints all of them with what they mean.

Exit codes: 0 done; 1 done or stopped, and something is bad (an unsound task, a failed check, a run that health, faults
or a cap ended); 2 a mistake in what was asked for, told in one line; 130 ended by Ctrl-C.
"""

MOST_SHOWN = 20
"""Problems of a domain that are printed as text."""

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Train language models to use tools in conversations, by reinforcement learning that really executes them.\n\n"
    "Begin with `understudy train`: it trains the embedded model on the default tasks and says how much better it got.",
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)

data.app.command("collect")(collect)
app.add_typer(data.app, name="data")
app.add_typer(mcp.app, name="mcp")

What = Annotated[
    str,
    typer.Argument(
        metavar="DOMAIN", help="A domain, module:attribute, mcp:FILE, a preset, a config.toml, a run or an evaluation."
    ),
]
Checkpoint = Annotated[
    str,
    typer.Argument(metavar="CHECKPOINT", help="A run, one of its checkpoints, a model's folder, or a model's name."),
]
Settings = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Such as slice.policy=brief.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"understudy {understudy.__version__}")
        raise typer.Exit


@app.callback()
def settings_of_all(
    env_file: Annotated[
        Path | None, typer.Option(help="A file of keys, NAME=value; .env in this folder if not given.")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Read keys that the environment does not have."""
    envfile.load(env_file)


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List domains, models, formats, engines, algorithms and presets."""
    from understudy.available import as_text, available

    found = available()
    print(json.dumps(found, indent=1) if as_json else as_text(found))


@app.command()
def check(
    what: Annotated[str, typer.Argument(metavar="DOMAIN", help="As for eval; every shipped domain if not given.")] = "",
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Prove that a domain's tasks are sound.

    Gold earns 1.0 and doing nothing 0.0 on each task, and all else holds that training relies on.
    """
    from understudy import check as checks
    from understudy.domains.base import find, names

    configs = [_config(each, settings) for each in ([what] if what else names())]
    reports = [checks.check(find(config.domain).slice(config.slice)) for config in configs]
    dumped = [report.model_dump() for report in reports]
    print(json.dumps(dumped[0] if what else dumped, indent=1) if as_json else "\n\n".join(map(_report_text, reports)))
    raise typer.Exit(1 if any(report.problems for report in reports) else 0)


@app.command()
def play(
    what: What,
    settings: Settings = None,
    role: Annotated[
        Literal["agent", "user", "nobody"], typer.Option("--as", help="Whom you play; as nobody you look on.")
    ] = "agent",
    task: Annotated[str, typer.Option(help="Id of the task; the first of the split if not given.")] = "",
    split: Annotated[Literal["train", "validation", "test"], typer.Option(help="Where the task is from.")] = "train",
    agent: Annotated[
        str, typer.Option(help="The agent where you are not: gold, model, native, chat, or module:attribute.")
    ] = "gold",
    model: Annotated[str, typer.Option(help="The model that is the agent, instead of --agent.")] = "",
    fork: Annotated[
        str,
        typer.Option(
            metavar="STEP/NUMBER@TURN",
            help="Go on with a stored episode from a turn of its agent; in an evaluation's folder NUMBER@TURN.",
        ),
    ] = "",
) -> None:
    """Play an episode yourself, as agent or as user, or look on; also from a turn of one that is stored."""
    from understudy import play as plays
    from understudy.assess import forks
    from understudy.assess.stored import config_of_stored, weights_of_stored
    from understudy.domains.base import find
    from understudy.evaluate import inhabited
    from understudy.players import named_agent
    from understudy.users import Cast

    if role == "agent" and (model or agent != "gold"):
        given = f"--model {model}" if model else f"--agent {agent}"
        raise ConfigError(f"{given}: you are the agent; meet that one by --as user, or look on by --as nobody")
    config = config_of_stored(what, [*(settings or ()), *([f"model={model}"] if model else ())])
    left = forks.find_fork(what, fork, config, task) if fork else None
    config = left.config if left else config
    domain = inhabited(find(config.domain).slice(config.slice), Cast(config.user))
    played = left.task if left else plays.find_task(domain, task, split)
    trained = weights_of_stored(what) if agent == "model" and not model and role != "agent" else None
    player = named_agent("model" if model else agent, config, trained) if role != "agent" else None
    plays.play(domain, played, role, player, fork=left.fork if left else None, limits=config.limits)


app.command("eval")(assess.evaluate)
app.command()(assess.compare)


@app.command()
def train(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WHAT|KEY=VALUE", help="A domain, a preset, a config.toml, or a run, whose config it is, first."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; runs/NAME-001 and so on if not given.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with the run in this folder, also longer: steps=40.")
    ] = None,
    keys: Annotated[bool, typer.Option("--keys", help="Print the config with every key, and do nothing.")] = False,
    processes: Annotated[int, typer.Option(min=1, help="Number of processes, one GPU of this machine each.")] = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, say how long it would take and how much memory.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what a dry run says as JSON.")] = False,
) -> None:
    """Train a model, and say how much better it got.

    A warm start on gold demonstrations, preferences where there are any, then reinforcement learning; at the end, the
    result table. Without WHAT it is the preset default, a slice of retail, and domain=retail is that slice, too; `train
    retail`, or any other domain, is the whole of it with every key's default. A run as WHAT begins a new one.
    """
    from understudy import launch, preflight

    if as_json and not dry_run:
        raise ConfigError("--json is for --dry-run; a run's result is in its result.json")
    if keys:
        return print(launch.keys(settings or ()))
    if dry_run:
        found = launch.dry_run(settings or (), out, resume, processes)
        return print(json.dumps(preflight.as_json(found), indent=1) if as_json else found)
    try:
        if processes > 1:
            raise typer.Exit(launch.train_together(processes, settings or (), out, resume))
        if text := launch.train(settings or (), out, resume):
            print(text)
    except KeyboardInterrupt as e:
        typer.echo(str(e), err=True)
        raise typer.Exit(130) from e


@app.command()
def bench(
    model: Annotated[str, typer.Argument(metavar="[MODEL]", help="As for certify; smollm2-135m if not given.")] = "",
    settings: Settings = None,
    quick: Annotated[bool, typer.Option("--quick", help="Measure for a second or two, and keep nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure how fast this machine samples from a model and trains it."""
    from understudy import bench as benches
    from understudy import launch

    speeds = launch.measure(model, settings or (), quick)
    print(speeds.model_dump_json(indent=1) if as_json else benches.as_text(speeds))


@app.command()
def doctor(
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="WHAT|KEY=VALUE", help="As for train: what it needs is looked for.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look whether what a config needs is here, and say what to do where it is not."""
    from understudy import doctor as doctors
    from understudy import launch

    findings = doctors.examine(launch.read(settings or ())[1])
    dumped = [finding.model_dump() for finding in findings]
    print(json.dumps(dumped, indent=1) if as_json else doctors.as_text(findings))
    raise typer.Exit(0 if doctors.healthy(findings) else 1)


@app.command()
def serve(
    what: Checkpoint,
    settings: Settings = None,
    host: Annotated[str, typer.Option(help="Where to listen; on loopback only this machine can ask.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    name: Annotated[str, typer.Option(help="What clients call the model; its own name if not given.")] = "",
    key_variable: Annotated[str, typer.Option(help="The environment variable with the key to ask for.")] = "",
    concurrency: Annotated[int, typer.Option(min=1, help="Replies that are made at once.")] = 16,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of the largest request.")] = 4 << 20,
) -> None:
    """Serve a model as a chat completions endpoint, with its tool calls."""
    from understudy.players import not_installed
    from understudy.serve.options import ServeConfig
    from understudy.weights import find_weights

    weights = find_weights(what, settings or ())
    config = ServeConfig(host=host, port=port, key_variable=key_variable, concurrency=concurrency, max_body=max_body)
    try:
        from understudy.serve.server import serve as serve_until_interrupted
    except ModuleNotFoundError as e:
        raise not_installed(e, "a server") from e
    named = weights.replace(name=name or weights.name)
    serve_until_interrupted(named, config, lambda line: typer.echo(line, err=True))


@app.command()
def export(
    what: Checkpoint,
    out: Annotated[Path, typer.Option(help="The folder to write, which must not be there yet.")],
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Of LoRA, the adapters alone, as peft reads them.")
    ] = False,
    settings: Settings = None,
) -> None:
    """Write a model as a plain folder that transformers and vLLM load, with LoRA's adapters merged into it."""
    from understudy import weights

    weights.export(weights.find_weights(what, settings or ()), out, adapter)
    print(f"{what} is in {out}")


@app.command()
def certify(
    model: Annotated[str, typer.Argument(help="An embedded model, a folder, or owner/model on Hugging Face.")],
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Prove that what a model samples is what it would be trained on.

    Ids, masks and log-probabilities of its template and engine, sampler against trainer; a diff where they differ.
    """
    from understudy import launch

    certificate, text = launch.certify(model, settings or ())
    print(json.dumps(certificate, indent=1) if as_json else text)
    raise typer.Exit(0 if certificate["ok"] else 1)


@app.command()
def parse(
    format: Annotated[str, typer.Option(help="The dialect that was asked for; any if not given.")] = "",
    tools: Annotated[Path | None, typer.Option(help="A JSON file: a list of tools in OpenAI's format.")] = None,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Each line is a reply: a JSON string, or has a text.")] = False,
) -> None:
    """Read replies from standard input and print what they call, as JSON.

    The whole input is one reply; with --jsonl each line is one.
    """
    from understudy import readings

    for line in readings.read(sys.stdin.buffer, format, readings.load_tools(tools) if tools else (), jsonl):
        print(line)


app.command()(view)


def main() -> None:
    """The program. What the user got wrong is one line and exit code 2; Ctrl-C is 130."""
    try:
        app()
    except (ConfigError, TaskError, RolloutError) as e:
        typer.secho(f"understudy: {e}", fg="red", err=True)
        sys.exit(1 if isinstance(e, RolloutError) else 2)
    except KeyboardInterrupt:  # before there is a command to end
        typer.secho("understudy: stopped", fg="red", err=True)
        sys.exit(130)


def _config(what: str, settings: list[str] | None) -> "TrainConfig":
    from understudy.weights import config_of

    return config_of(what, settings or ())


def _report_text(report: "Report") -> str:
    head = f"{report.domain:<12} tasks  families  floor  oracle  gold turns"
    body = [
        f"{s.split:<12}{s.tasks:>6}{len(s.families):>10}{s.floor:>7.2f}{s.oracle:>8.2f}{s.gold_turns:>12.1f}"
        for s in report.splits
    ]
    unused = [f"tools that no gold episode calls: {', '.join(report.unused_tools)}"] if report.unused_tools else []
    verdict = f"{len(report.problems)} problems" if report.problems else "sound: gold earns 1.0 and doing nothing 0.0"
    more = len(report.problems) - MOST_SHOWN
    cut = [f"… and {more} more; --json lists all"] if more > 0 else []
    return "\n".join([head, *body, *unused, *report.problems[:MOST_SHOWN], *cut, verdict])
