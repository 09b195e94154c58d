"""Test the grammar of all commands: `--key VALUE` is `key=VALUE`, for options and for keys of the config."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer

from understudy.cli import main as cli
from understudy.cli.collect import CollectOptions
from understudy.cli.data import ConvertOptions, ExportConversationsOptions, SplitOptions, SynthesizeOptions
from understudy.cli.evaluation import EvalOptions
from understudy.cli.grammar import Options, parse_words, validate_unused_options
from understudy.cli.main import (
    BenchOptions,
    CertifyOptions,
    CheckOptions,
    ExportOptions,
    PlayOptions,
    TrainOptions,
)
from understudy.cli.mcp import MCPCallOptions
from understudy.cli.view import ViewOptions
from understudy.core.errors import ConfigError
from understudy.runs.config import parse_config
from understudy.sources.task_files.config import RowConfig


def parsed(options: type[Options], line: str) -> dict[str, Any]:
    """Return the fields that a command line sets."""
    return parse_words(options, line.split()).model_dump(exclude_unset=True)


@pytest.mark.parametrize(
    ("options", "lines", "fields"),
    [
        (
            SynthesizeOptions,
            ("retail --max-calls 3", "retail --max_calls=3", "max_calls=3 retail", "retail max-calls=3"),
            {"sources": ("retail",), "max_calls": 3},
        ),
        (SynthesizeOptions, ("--families a,b", "families=a,b", "--families a --families b"), {"families": ("a", "b")}),
        (
            CheckOptions,
            ("x --json", "x json=true", "x --json true", "x --json=true", "json=true x"),
            {"target": ("x",), "as_json": True},
        ),
        (CheckOptions, ("--no-json", "json=false", "--json false"), {"as_json": False}),
        (
            EvalOptions,
            ("x --tasks 20", "x tasks=20", "x eval.tasks=20", "x --eval.tasks 20", "x --limit 20"),
            {"target": ("x", "eval.tasks=20")},
        ),
        (EvalOptions, ("x --seed 3", "x seed=3"), {"target": ("x", "eval.seed=3")}),
        (CollectOptions, ("x --seed 3", "x seed=3"), {"target": ("x",), "seed": 3}),
        (TrainOptions, ("x --seed 3", "x seed=3"), {"target": ("x", "seed=3")}),
        (
            TrainOptions,
            ("--algorithm.learning-rate 1e-5", "algorithm.learning_rate=1e-5", "algorithm.learning-rate=1e-5"),
            {"target": ("algorithm.learning_rate=1e-5",)},
        ),
        (
            TrainOptions,
            ("--allow-noop-solvable", "allow_noop_solvable=true"),
            {"target": ("allow_noop_solvable=true",)},
        ),
        (
            TrainOptions,
            ("--endpoints.my-llm.base-url u", "endpoints.my-llm.base_url=u"),
            {"target": ("endpoints.my-llm.base_url=u",)},
        ),
        (TrainOptions, ("a --config b.toml", "a config=b.toml", "a b.toml"), {"target": ("a", "b.toml")}),
        (TrainOptions, ("--out 12", "out=12"), {"out": Path("12")}),
        (TrainOptions, ("--keys algorithm.loss",), {"target": ("algorithm.loss",), "keys": True}),
        (PlayOptions, ("x --as user", "x as=user"), {"target": ("x",), "role": "user"}),
        (
            CertifyOptions,
            ("tiny steps=3", "--model tiny --steps 3", "steps=3 tiny"),
            {"model": "tiny", "settings": ("steps=3",)},
        ),
        (BenchOptions, ("engine.device=cpu",), {"settings": ("engine.device=cpu",)}),
        (
            ConvertOptions,
            ("a b --data.sources x:Y", "a b data.sources=x:Y", "a b sources=x:Y", "dataset=a out=b sources=x:Y"),
            {"dataset": "a", "out": Path("b"), "data": {"sources": ("x:Y",)}},
        ),
        (
            ExportConversationsOptions,
            ("trl a b --out c", "out=c trl a b"),
            {"trainer": "trl", "files": ("a", "b"), "out": Path("c")},
        ),
        (
            SplitOptions,
            ("a --out b --ratios 0.9,0.1", "a out=b ratios=[0.9,0.1]"),
            {"dataset": "a", "out": Path("b"), "ratios": (0.9, 0.1)},
        ),
        (ViewOptions, ("a b --no-open", "a b open=false"), {"paths": (Path("a"), Path("b")), "browser": False}),
        (ViewOptions, ("--port 0 -- --a",), {"paths": (Path("--a"),), "port": 0}),
        (
            MCPCallOptions,
            ("s t timeout=3 --env A=1 --env B=x=y",),
            {"server": "s", "tool": "t", "arguments": ("timeout=3",), "env": {"A": "1", "B": "x=y"}},
        ),
    ],
)
def test_spellings_of_one_command_line_are_equal(
    options: type[Options], lines: tuple[str, ...], fields: Mapping[str, object]
) -> None:
    for line in lines:
        assert parsed(options, line) == fields, line


@pytest.mark.parametrize(
    ("options", "line", "words"),
    [
        (EvalOptions, "x --taks 3", ("--taks", "--tasks")),
        (EvalOptions, "x taks=3", ("'taks'", "tasks=VALUE")),
        (TrainOptions, "--stesp 3", ("--stesp", "--steps", "understudy train --keys")),
        (SynthesizeOptions, "x --cuont 3", ("--cuont", "--count")),
        (SynthesizeOptions, "x --seed", ("--seed", "seed=VALUE")),
        (SynthesizeOptions, "x --seed --count 2", ("--seed", "seed=VALUE")),
        (SynthesizeOptions, "x count=0", ("count = 0", "greater than or equal to 1")),
        (SynthesizeOptions, "x split=tset", ("split", "'tset'", "'test'")),
        (SynthesizeOptions, "x seed=true", ("seed", "number")),
        (SplitOptions, "a", ("--out is missing",)),
        (SplitOptions, "a b --out c", ("'b'",)),
        (CertifyOptions, "--json", ("MODEL is missing",)),
        (CertifyOptions, "tiny model=x", ("model is given twice", "tiny", "model=x")),
        (ExportOptions, "--model x tiny seed=2 --out y", ("model is given twice", "tiny", "model=x")),
        (CheckOptions, "--json=maybe", ("as_json", "'maybe'")),
        (CheckOptions, "--no-json=true", ("--no-json", "'true'")),
        (ConvertOptions, "a b --data.tests x", ("data.tests",)),
        (MCPCallOptions, "s t --env A", ("env.NAME=VALUE",)),
    ],
)
def test_mistakes_name_the_option_and_what_is_allowed(
    options: type[Options], line: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as error:
        parse_words(options, line.split(), "understudy x")
    assert all(word in str(error.value) for word in words), error.value
    assert "\n" not in str(error.value)


def test_file_with_an_equals_sign_is_an_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a=b").touch()
    assert parsed(ViewOptions, "a=b") == {"paths": (Path("a=b"),)}


def test_dashes_in_settings_of_a_config_are_underscores() -> None:
    assert parse_config("", ["algorithm.learning-rate=2", "group-size=4"]).algorithm.group_size == 4
    assert "my-llm" in parse_config("", ["endpoints.my-llm.base-url=http://x"]).endpoints


def test_unset_fields_keep_their_defaults() -> None:
    assert parse_words(ConvertOptions, ["a", "b"]).data == RowConfig()


def commands(group: Any) -> list[Any]:
    return [
        each
        for command in group.commands.values()
        for each in (commands(command) if hasattr(command, "commands") else [command])
    ]


def test_every_option_of_every_command_has_help() -> None:
    for command in commands(typer.main.get_command(cli.app)):
        if command.name == "chaos":
            continue
        command.get_help(typer.Context(command))
        undocumented = [each.name for each in command.params if not each.help and each.name not in ("target", "words")]
        assert undocumented == [], command.name


def test_name_of_another_library_is_named_with_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_words(EvalOptions, ["retail", "--max-concurrency", "3"]).concurrency == 3
    assert capsys.readouterr().err == "--max-concurrency is --concurrency here\n"


def test_option_that_needs_another_one_names_it() -> None:
    with pytest.raises(ConfigError, match=r"--tasks has no effect without --adversarial"):
        validate_unused_options(CheckOptions(tasks=3), ("tasks",), needs="--adversarial")
