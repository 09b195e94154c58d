"""Tests of the token limits of presets with a model whose tokenizer needs more tokens than SmolLM2's."""

import asyncio
import itertools
from pathlib import Path

import pytest

from support.tiny_runs import tiny
from understudy.cli.evaluation import make_spec
from understudy.cli.launch import dry_run, open_run, plan_for_gpu
from understudy.core.errors import ConfigError
from understudy.core.settings import dump_toml
from understudy.evaluation.evaluate import play_demonstrations
from understudy.formats import load_chat_format
from understudy.runs.config import TrainConfig, load_config, parse_config
from understudy.runs.presets import MODEL_PARAMETERS, preset_names
from understudy.runs.run import Run, read_run_config
from understudy.runs.targets import resolve
from understudy.train.completion import complete_config
from understudy.train.loop import train
from understudy.train.planning.preflight import run_preflight
from understudy.train.token_limits import fit_token_limits

__all__ = ["tiny"]
SHORT = ["steps=0", "sft.steps=1", "sft.batch_size=1", "sft.num_demonstrations=1", "eval.tasks=1"]
OWN_LIMITS = ["limits.max_episode_tokens=900", "sampling.max_response_tokens=90"]


def tokens(config: TrainConfig) -> tuple[int, int]:
    return config.limits.max_episode_tokens, config.sampling.max_response_tokens


def test_limits_of_a_preset_fit_gold_in_the_models_tokens(tiny: Path) -> None:
    config = load_config("retail_quick", [f"model={tiny}"])
    fitted, line = fit_token_limits(config)
    source = config.open_source()
    tasks = itertools.islice(source.stream("train", config.seed), 64)
    gold = asyncio.run(play_demonstrations(source, tasks, load_chat_format(tiny), fitted.limits, config.seed))
    longest = max(len(episode.tokens) for episode in gold)
    reply = max(end - start for episode in gold for start, end in episode.reply_spans())
    assert tokens(config) == (640, 64)
    assert 0 <= tokens(fitted)[0] - longest * 10 / 9 < 64
    assert 0 <= tokens(fitted)[1] - reply * 10 / 9 < 16
    for key, value, before in zip(
        ("limits.max_episode_tokens", "sampling.max_response_tokens"), tokens(fitted), tokens(config), strict=True
    ):
        assert f"{key} = {value} (the preset has {before})" in line
    assert fitted.replace(limits=config.limits, sampling=config.sampling) == config


@pytest.mark.parametrize("name", [name for name in preset_names() if load_config(name).model in MODEL_PARAMETERS])
def test_preset_with_its_own_model_keeps_its_limits(name: str) -> None:
    config = load_config(name)
    assert fit_token_limits(config) == (config, "")


@pytest.mark.parametrize("setting", ["limits.max_episode_tokens=100", "sampling.max_response_tokens=8"])
def test_limits_of_the_user_stay(tiny: Path, setting: str) -> None:
    config = load_config("retail_quick", [f"model={tiny}", setting])
    fitted, _ = fit_token_limits(config)
    kept = 0 if setting.startswith("limits") else 1
    assert tokens(fitted)[kept] == tokens(config)[kept]
    assert tokens(fitted)[1 - kept] > tokens(config)[1 - kept]


def test_config_without_a_preset_keeps_its_limits(tiny: Path) -> None:
    config = load_config("retail_quick", [f"model={tiny}"])
    stored = parse_config(dump_toml(config))
    assert stored == config
    assert (stored.presets, config.presets) == ((), ("retail_quick",))
    assert fit_token_limits(stored) == (stored, "")
    assert fit_token_limits(load_config("smoke")) == (load_config("smoke"), "")


@pytest.mark.parametrize(
    ("names", "presets"),
    [
        (["retail_quick"], ("retail_quick",)),
        ([], ("retail_quick",)),
        (["retail", "five_quick"], ("five_quick",)),
        (["retail_quick", "dapo", "telecom_quick", "seed=3"], ("retail_quick", "telecom_quick")),
        (["retail", "dapo"], ()),
    ],
)
def test_config_of_a_command_knows_its_presets(names: list[str], presets: tuple[str, ...]) -> None:
    config = resolve(names).config
    assert config.presets == presets
    assert config.replace(seed=9).presets == presets


def test_python_and_the_command_complete_a_config_alike(tiny: Path, tmp_path: Path) -> None:
    settings = [f"model={tiny}", "engine.device=cpu", *SHORT]
    opened = open_run(["retail_quick", *settings], tmp_path / "command", None)
    config = load_config("retail_quick", settings)
    told: list[str] = []
    run = Run.create(tmp_path / "python", config)
    train(config, run, lambda line, *_: told.append(line))
    trained, commanded = read_run_config(run.folder), opened.config
    assert (trained.limits, trained.sampling, trained.sft) == (commanded.limits, commanded.sampling, commanded.sft)
    assert tokens(trained)[0] > 640
    assert any(f"limits.max_episode_tokens = {tokens(trained)[0]}" in line for line in told)
    resumed = Run.resume(run.folder)
    assert resumed.config == trained
    assert not any("edited" in line for line in resumed.warnings)


def test_functions_of_commands_complete_a_bare_config(tiny: Path, tmp_path: Path) -> None:
    words = [
        "retail_quick",
        f"model={tiny}",
        "engine.device=cpu",
        *SHORT,
        "algorithm.group_size=2",
    ]
    expected, lines = complete_config(resolve(words).config)
    found = asyncio.run(run_preflight(resolve(words).config, tmp_path / "run"))
    assert tokens(found.config) == tokens(expected)
    assert set(lines) <= set(found.notes)


def test_run_of_a_preset_opens_in_a_running_event_loop(tiny: Path, tmp_path: Path) -> None:
    async def open_in_a_notebook() -> TrainConfig:
        return open_run(["retail_quick", f"model={tiny}", "engine.device=cpu"], tmp_path / "run", None).config

    expected, _ = fit_token_limits(load_config("retail_quick", [f"model={tiny}"]))
    assert tokens(asyncio.run(open_in_a_notebook())) == tokens(expected)


def test_run_records_raised_limits_and_resumes_with_its_command(tiny: Path, tmp_path: Path) -> None:
    words = ["retail_quick", f"model={tiny}", "engine.device=cpu", "algorithm.min_lr_ratio=1"]
    opened = open_run(words, tmp_path / "run", None)
    stored = read_run_config(tmp_path / "run")
    assert tokens(stored)[0] > 640
    assert any(f"limits.max_episode_tokens = {tokens(stored)[0]}" in line for line in opened.warnings)
    assert dry_run(words, tmp_path / "other").config.limits == stored.limits
    resumed = open_run([*words, "steps=9"], None, tmp_path / "run").config
    assert (resumed.steps, resumed.limits, resumed.sampling) == (9, stored.limits, stored.sampling)
    with pytest.raises(ConfigError, match=r"limits\.max_episode_tokens"):
        open_run([*words, "limits.max_episode_tokens=99"], None, tmp_path / "run")


def test_evaluation_of_a_preset_has_the_limits_of_its_runs(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected, line = fit_token_limits(load_config("retail_quick", [f"model={tiny}"]))
    spec = make_spec(["retail_quick", f"model={tiny}"], "model", "", 1, judge_failures=False)
    assert tokens(spec.config) == tokens(expected)
    assert line in capsys.readouterr().err
    scripted = make_spec(["retail_quick", f"model={tiny}"], "gold", "", 1, judge_failures=False)
    assert tokens(scripted.config) == (640, 64)


def test_plan_for_a_gpu_has_the_limits_of_its_runs(tiny: Path, tmp_path: Path) -> None:
    words = ["retail_quick", f"model={tiny}", "engine.sampler=torch"]
    expected, line = fit_token_limits(load_config("retail_quick", words[1:]))
    planned = plan_for_gpu(words, "h100")
    assert tokens(planned.config) == tokens(expected)
    assert line in planned.notes
    (tmp_path / "config.json").write_bytes((tiny / "config.json").read_bytes())
    bare = plan_for_gpu([words[0], f"model={tmp_path}", words[2]], "h100")
    assert tokens(bare.config) == (640, 64)
    assert any(note.startswith("the token limits are those of the preset") for note in bare.notes)
    own = plan_for_gpu([words[0], f"model={tmp_path}", words[2], *OWN_LIMITS], "h100")
    assert not any(note.startswith("the token limits") for note in own.notes)
