"""Test the benchmarks that train: the rules of the speedrun, and both whole, with the preset `smoke`."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.paths import ROOT

sys.path.append(str(ROOT / "benchmarks"))

import speedrun

import algorithms
from understudy.algorithms.presets import algorithm_presets
from understudy.runs.config import load_config
from understudy.runs.run import read_run_config

STANDARD = speedrun.split_settings(test=False)


def broken(*settings: str) -> list[str]:
    """Return the first word of each line about a rule that an attempt breaks."""
    config, standard = (load_config(speedrun.PRESET, [*STANDARD, *given]) for given in (settings, ()))
    return [line.partition(":")[0] for line in speedrun.broken_rules(config, standard)]


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ("slice.families=price", "slice"),
        ("limits.max_turns=9", "limits"),
        ("model=tiny", "model"),
        ("reward.policy=off", "reward"),
        ("eval.temperature=1", "eval"),
        ("sft.steps=90 sft.num_demonstrations=360", "sft"),
        ("sft.dataset_file=more.jsonl", "sft"),
    ],
)
def test_what_is_learned_and_measured_stays_fixed(settings: str, part: str) -> None:
    assert broken(*settings.split()) == [part]


def test_settings_of_training_are_free() -> None:
    assert broken("steps=3", "algorithm.preset=grpo", "algorithm.learning_rate=1e-3", "sampling.temperature=1") == []
    assert broken() == []
    assert broken("sft.steps=90", f"sft.num_demonstrations={speedrun.MAX_DEMONSTRATIONS}") == []


def test_every_algorithm_with_a_preset_is_compared() -> None:
    assert set(algorithm_presets()) <= set(algorithms.ALGORITHMS)


@pytest.mark.slow
def test_speedrun_prints_success_gain_and_seconds(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(speedrun, "PRESET", "smoke")
    monkeypatch.setattr(speedrun, "SEEDS", (0,))
    monkeypatch.setattr(speedrun, "HELD_OUT_TASKS", 2)
    run_main(monkeypatch, speedrun, ["--out", str(tmp_path / "runs")])
    table = capfd.readouterr().out.partition("|  | SFT")[2]
    assert "| seed 0 | 0.000 [" in table
    assert "no result" in table
    with pytest.raises(SystemExit) as stopped:
        run_main(monkeypatch, speedrun, ["--out", str(tmp_path / "runs")])
    assert stopped.value.code == 2


@pytest.mark.slow
def test_algorithms_train_from_one_sft_checkpoint_and_continue(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(algorithms, "PRESET", "smoke")
    words = ["preset", "--seeds", "0", "--tasks", "2", "--out", str(tmp_path)]
    run_main(monkeypatch, algorithms, words)
    first = capfd.readouterr().out.partition("|  | success")[2]
    assert "| preset | 0.000 [" in first
    run = tmp_path / "validation2" / "preset-seed0"
    assert read_run_config(run).model == str(tmp_path / "validation2" / "sft-seed0" / algorithms.MODEL)
    seconds = algorithms.step_seconds(run)
    run_main(monkeypatch, algorithms, words)
    assert capfd.readouterr().out.partition("|  | success")[2] == first
    assert algorithms.step_seconds(run) == seconds


def run_main(monkeypatch: pytest.MonkeyPatch, module: object, words: Sequence[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmark", *words])
    module.main()  # type: ignore[attr-defined]
