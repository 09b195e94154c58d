"""Test that every command exits with code 2 and one error line for an invalid name or file.

A command of the program that `ARGUMENTS` lacks fails the test.
"""

import errno
import importlib.util
import io
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import BaseModel, field_serializer
from pydantic_core import PydanticSerializationError

import understudy
from support.program import Call, call
from understudy.cli import main as cli
from understudy.engines.models import find_model
from understudy.runs.storage.checkpoints import list_checkpoints
from understudy.runs.storage.status import read_run_status

__all__ = ["call"]

ARGUMENTS = {
    "list": (),
    "check": ("{file}", "mcp:{file}", "tau-bench:{file}#retail", "tau2:{name}#retail", "mix:retail,{name}"),
    "play": ("{name}", "mcp:{name}", "toy:DOMAIN --task {name}", "toy:DOMAIN --agent {name}"),
    "chat": (
        *("{name}", "tiny {name}", "mcp:{name}", "toy:DOMAIN --agent {name}", "toy:DOMAIN --agent gold --task {name}"),
        *("toy:DOMAIN --model {name}", "toy:DOMAIN --agent gold --out broken.json"),
        "toy:DOMAIN --agent gold --out broken.json/new",
    ),
    "eval": (
        *("{file} --agent gold", "toy:DOMAIN --agent {name}", "toy:DOMAIN --agent gold --split {name}"),
        *("--resume {file}", "--resume binary.toml", "toy:DOMAIN --agent gold --out broken.json"),
        "toy:DOMAIN --agent gold --out broken.json/new",
    ),
    "score": ("{file}", "{file} domain={name}"),
    "train": (
        *("{file}", "--resume {file}", "domain={name} --out new --dry-run", "seed={name}", "--num-processes {name}"),
        "--dry-run --out broken.json",
    ),
    "bench": ("{name} --quick", "smollm2-135m {name}"),
    "doctor": ("{file}", "engine.sampler={name}"),
    "serve": ("{name}", "smollm2-135m {name}"),
    "serve-env": ("{name}", "retail --port {name}"),
    "export": ("{name} --out new", "smollm2-135m {name} --out new"),
    "certify": ("{name}", "smollm2-135m {name}"),
    "parse": ("--tools {file}", "--tool-parser {name}"),
    "view": (
        *("{file} --text", "nowhere --export new.html", "folder --export new.html"),
        *("{name} --text --export new.html", "{name} --episode 0"),
    ),
    "compare": ("{file} {file}", "{name} {name}"),
    "data synthesize": ("{name} --out new.jsonl", "--from-specs {file} --out new.jsonl"),
    "data convert": ("{file} new.jsonl", "{file} new.jsonl data.sources={name}"),
    "data export": ("trl {file} --out new", "llamafactory {name} --model tiny --out new", "verifiers {name} --out new"),
    "data split": ("{file} --out new", "retail --out new --ratios {name}"),
    "data stats": ("{file}",),
    "data validate": ("{file}",),
    "data freeze": ("{name}", "mcp:{name}"),
    "data collect": ("{file} --sft new.jsonl", "toy:DOMAIN --agent {name} --sft new.jsonl"),
    "mcp serve": ("{name}", "retail --task {name}", "retail --tools {name}"),
    "mcp tools": ("{name}", "x --env {name}"),
    "mcp call": ("{name} tool", "x tool --env {name}"),
    **dict.fromkeys(
        ("new environment", "new dataset", "new mcp", "new reward", "new user", "new algorithm", "new config"), ()
    ),
}
"""Arguments to test by command: `{name}` stands for each of NAMES, `{file}` for each of FILES."""
NAMES = ("nowhere", "folder", "broken.json", "~no-such-user/x", 300 * "n")
FILES = (*NAMES, "nowhere.toml", "folder.toml", "folder.jsonl", "broken.toml", "broken.jsonl")
FILES += ("binary.toml", "binary.jsonl", "binary.parquet", "loop.toml", "loop.jsonl")


def command_lines(command: str) -> Iterator[list[str]]:
    for form in ARGUMENTS[command]:
        for what in FILES if "{file}" in form else NAMES:
            yield [*command.split(), *form.format(name=what, file=what).split()]


def commands(group: Any, path: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}"


@pytest.fixture(scope="module", autouse=True)
def _model() -> None:
    """The model is converted before the tests, because this is said on standard error."""
    find_model("smollm2-135m")


@pytest.fixture
def invalid_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a folder of invalid files: folders, broken and binary files, and symlink loops."""
    for name in ("folder", "folder.toml", "folder.jsonl"):
        (tmp_path / name).mkdir()
    (tmp_path / "broken.toml").write_text("seed = [1,")
    (tmp_path / "broken.json").write_text('[{"name": ')
    (tmp_path / "broken.jsonl").write_text('{"id": 1}\n{"id": \n')
    for name in ("binary.toml", "binary.jsonl", "binary.parquet"):
        (tmp_path / name).write_bytes(bytes(range(255, -1, -1)))
    for name in ("loop.toml", "loop.jsonl"):
        os.symlink(tmp_path / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_arguments_cover_every_command() -> None:
    assert set(commands(typer.main.get_command(cli.app))) == ARGUMENTS.keys()


@pytest.mark.parametrize("command", [command for command in ARGUMENTS if ARGUMENTS[command]])
def test_invalid_name_or_file_exits_with_code_2(
    command: str, invalid_files: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for words in command_lines(command):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a reply")))
        monkeypatch.setattr(sys, "argv", ["understudy", *words])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capfd.readouterr()
        assert stop.value.code == 2, (words, out, err)
        assert err.strip(), words
        *rows, last = err.splitlines()
        assert last.startswith("understudy: "), (words, err)
        assert not rows or words[0] == "data", (words, err)  # which lists invalid rows
    assert not list(invalid_files.glob("new*"))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("eval --tasks 0", "eval.tasks"),
        ("eval tasks=0", "eval.tasks"),
        ("data synthesize retail --count 0", "count"),
        ("data synthesize retail --count true", "count"),
        ("data synthesize retail --cuont 2", "--count"),
        ("data synthesize retail cuont=2", "count=VALUE"),
        ("view", "RUN"),
        ("view x --prot 0", "--port"),
        ("data split x", "--out"),
        ("compare a b c", "a: "),
        ("compare a", "a is one"),
        ("compare 'runs/a-*'", "runs/a-*"),
        ("list --no-json=true", "--no-json"),
        ("list -x", "-x"),
        ("train smoke --steps", "--steps"),
        ("train smoke steps 20", "steps=VALUE"),
        ("serve", "CHECKPOINT"),
        ("serve runs/nowhere", "runs/nowhere"),
        ("train --resume runs/nowhere", "runs/nowhere"),
        ("nowhere", "nowhere"),
        ("train python -m understudy train retail", "'python'"),
        ("train understudy train retail", "'understudy'"),
        ("train retail # a comment", "'#'"),
        ("check mcp:npx -y server", "understudy new mcp"),
        ("mcp tools npx -y server", "'npx …'"),
        ("mcp tools python server.py", "'python …'"),
        ("train retail lora_rank: 0", "lora_rank=VALUE"),
        ("check my_tasks", "my_tasks:NAME"),
        ("check my_tasks.TASKS", "my_tasks:TASKS"),
        ("check ./my_tasks.py:TASKS", "my_tasks:TASKS"),
        ("check my_tasks.py:TASKS", "my_tasks:TASKS"),
        ("check my_task.toml", "my_tasks.py"),
        ("eval --resume run", "understudy train --resume run"),
        ("eval smoke --max-steps 10", "limits.max_turns"),
        ("eval smoke steps=10", "limits.max_turns"),
        ("eval smoke --epochs 2", "--trials"),
        ("eval smoke --user user_simulator", "user.kind=llm"),
        ("eval smoke --max-tokens 10", "sampling.max_response_tokens"),
        ("train smoke user=llm", "user.kind"),
        ("train smoke --max-tokens 10", "sampling.max_response_tokens"),
        ("mcp tools mcp.json", "command or URL"),
        ("new environment my_tasks", "my_tasks.py"),
        ("play smoke --strategy facts_unread", "--watch"),
        ("train unquoted.toml", 'model = "tiny"'),
        ("doctor my_tasks:TASKS", "'TASKS'"),
        ("check mcp.json", "understudy new mcp"),
        ("check lines.jsonl", ".json"),
        ("check servers.toml", "[servers.command]"),
        ("check mcp:mcp.json", "understudy new mcp NAME"),
        ("check made.py", "made:TASKS"),
        ("check repository", "its folders: data"),
        ("certify tiny servers.toml", "config files"),
    ],
)
def test_wrong_option_or_argument_is_one_line(
    words: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_tasks.py").write_text("TASK = []\n")
    (tmp_path / "repository" / "data").mkdir(parents=True)
    (tmp_path / "repository" / "data" / "train-00000.jsonl").write_text('{"question": "a", "answer": "b"}\n')
    (tmp_path / "made.py").write_text("TASKS = make()\n")
    (tmp_path / "unquoted.toml").write_text("model = tiny\n")
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"notes": {"command": "python"}}}')
    (tmp_path / "lines.jsonl").write_text('[{"question": "a", "answer": "b"}]\n')
    (tmp_path / "servers.toml").write_text('[servers]\ncommand = "python server.py"\n')
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("")
    monkeypatch.setattr(sys, "argv", ["understudy", *words.split()])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    assert (stop.value.code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("understudy: ")
    assert named in err


def start_program(folder: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    """Start the program as a process that prints `here` when `main` handles Ctrl-C."""
    source = os.pathsep.join([str(Path(cli.__file__).parents[2]), str(Path(__file__).parents[1])])
    code = (
        "import sys; sys.argv[0] = 'understudy'; from understudy.cli import main as cli; app = cli.app\n"
        "cli.app = lambda **how: print('here', flush=True) or app(**how)\n"
        "cli.main()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": source, **variables},
        cwd=folder,
    )


INTERRUPTED = ("check", "eval retail --agent gold --tasks 5000", "mcp serve toy:DOMAIN", "parse")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "after"), [*itertools.product(INTERRUPTED, (0.0, 1.5)), ("mcp serve toy:DOMAIN", 6.0)]
)
def test_ctrl_c_exits_with_130_and_no_traceback(command: str, after: float, tmp_path: Path) -> None:
    running = start_program(tmp_path, *command.split())
    assert running.stdout is not None
    assert running.stdout.readline() == "here\n"
    time.sleep(after)
    running.send_signal(signal.SIGINT)
    code = running.wait(timeout=900)  # while its standard input is still open
    out, err = running.communicate()
    assert code == 130, (out, err)
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "status"),
    [("check", 143), ("eval retail --agent gold --tasks 5000", 143), ("serve tiny", 0)],
)
def test_sigterm_stops_a_command_without_a_traceback(command: str, status: int, tmp_path: Path) -> None:
    running = start_program(tmp_path, *command.split())
    assert running.stdout is not None
    assert running.stdout.readline() == "here\n"
    if status:
        time.sleep(1.5)  # at any moment
    else:
        assert running.stderr is not None
        while "http://" not in running.stderr.readline():
            assert running.poll() is None
    running.send_signal(signal.SIGTERM)
    code = running.wait(timeout=900)
    out, err = running.communicate()
    assert code == status, (out, err)
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--num-processes", "2"]], ids=["one process", "two processes"])
def test_sigterm_stops_training_with_a_checkpoint(options: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    running = start_program(tmp_path, "train", "smoke", "steps=5000", "--out", str(folder), *options)
    until = time.monotonic() + 120
    while not (folder / "status.json").exists() or not read_run_status(folder).step:
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < until
        time.sleep(0.1)
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=900)
    status = read_run_status(folder)
    assert running.returncode == 128 + signal.SIGTERM
    assert status.state == "stopped"
    assert f"--resume {folder}" in status.reason
    assert list_checkpoints(folder)[-1][0] == status.step
    assert "Traceback" not in err


def test_help_documents_the_exit_codes() -> None:
    exit_code_help = " ".join((typer.main.get_command(cli.app).epilog or "").split())
    for code in ("0", "1", "2", "130", "143"):
        assert re.search(rf"\b{code}\b", exit_code_help), code


def test_version_and_shell_completion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["understudy", "--version"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert (stop.value.code, capsys.readouterr().out) == (0, f"understudy {understudy.__version__}\n")
    completion = {"_UNDERSTUDY_COMPLETE": "complete_bash", "COMP_WORDS": "understudy data val", "COMP_CWORD": "2"}
    assert start_program(tmp_path, **completion).communicate(timeout=900)[0].split() == ["here", "validate"]


def test_commands_that_print_values_have_a_json_option() -> None:
    root = typer.main.get_command(cli.app)
    printing = (
        "list",
        "check",
        "eval",
        "score",
        "compare",
        "bench",
        "doctor",
        "certify",
        "data stats",
        "data validate",
        "mcp tools",
    )
    for path in printing:
        command: Any = root
        for name in path.split():
            command = command.commands[name]
        assert "--json" in {option for each in command.params for option in each.opts}, path


@pytest.mark.parametrize("command", ["serve tiny", "serve-env toy:DOMAIN"])
def test_used_port_is_one_line_with_the_option(command: str, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)  # of websockets
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = call(*command.split(), "--port", str(port))
    assert (code, err.count("\n")) == (2, 1)
    assert str(port) in err
    assert "--port" in err


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), MemoryError()])
def test_full_disk_and_memory_end_any_command_in_one_line(
    call: Call, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("understudy.cli.listing.list_available", fail)
    code, out, err = call("list")
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_characters_that_the_output_cannot_encode_are_replaced() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from understudy.cli.main import main; main()", "parse"],
        input="Tōkyō".encode(),
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=True,
    )
    assert b"T?ky?" in done.stdout


@pytest.mark.parametrize(("raised", "code"), [(KeyboardInterrupt, 130), (TypeError, None)])
def test_ctrl_c_while_pydantic_serializes_ends_as_anywhere(
    call: Call, monkeypatch: pytest.MonkeyPatch, raised: type[BaseException], code: int | None
) -> None:
    class Interrupted(BaseModel):
        value: int = 1

        @field_serializer("value")
        def interrupt(self, value: int) -> int:
            raise raised

    monkeypatch.setattr("understudy.cli.listing.list_available", lambda: Interrupted().model_dump_json())
    if code is None:
        with pytest.raises(PydanticSerializationError):
            call("list")
    else:
        found, out, err = call("list")
        assert (found, out, err.count("\n")) == (code, "", 1)


@pytest.mark.parametrize(
    ("is_terminal", "no_color", "is_red"), [(True, "", True), (True, "1", False), (False, "", False)]
)
def test_error_is_red_only_on_a_terminal_without_no_color(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, no_color: str, is_red: bool
) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(sys, "argv", ["understudy", "check", "nosuch"])
    monkeypatch.setenv("NO_COLOR", no_color)
    with pytest.raises(SystemExit):
        cli.main()
    assert "nosuch" in shown.getvalue()
    assert ("\x1b[31m" in shown.getvalue()) == is_red


def test_other_os_errors_are_not_hidden(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("understudy.cli.listing.list_available", fail)
    with pytest.raises(OSError, match="Input/output error"):
        call("list")


def test_windows_is_refused_in_one_line_before_any_import() -> None:
    script = "import sys; sys.platform = 'win32'; import understudy.cli.main"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "WSL" in done.stderr


def test_ctrl_c_before_the_first_episode_of_an_evaluation(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("understudy.evaluation.runner.run_eval", interrupt)
    code, out, err = call("eval", "toy:DOMAIN", "--agent", "gold", "--out", str(tmp_path / "new"))
    assert (code, out, err) == (130, "", "stopped before the first episode ended\n")
    assert not (tmp_path / "new").exists()


def test_ctrl_c_before_a_command_begins_is_one_line(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("understudy.cli.main.TyperGroup.make_context", interrupt)
    assert call("list") == (130, "", "understudy: stopped\n")
