"""Tests of what follows from the size of the model: learning rates that are `auto`, and notes on presets."""

from pathlib import Path

import pytest

from support.tiny_runs import tiny, tiny_config
from understudy.cli.launch import open_run
from understudy.core.settings import load_toml
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.models import find_model
from understudy.runs.config import TrainConfig, load_config, parse_config
from understudy.runs.presets import MODEL_PARAMETERS, preset_names, preset_text
from understudy.runs.run import CONFIG_FILE, read_run_config
from understudy.train import model_size
from understudy.train.completion import complete_config
from understudy.train.metrics import learning_rate
from understudy.train.model_size import (
    LARGE,
    SMALL,
    fit_preset_to_size,
    resolve_learning_rates,
    sft_learning_rate,
)
from understudy.train.planning.memory import read_model_shape

__all__ = ["tiny"]
QUICK = ("algorithm.min_lr_ratio=0.1", "sft.steps=2", "steps=2", "preferences.steps=2")


def rates(config: TrainConfig) -> tuple[float | str, float | str, float | str]:
    return config.sft.learning_rate, config.algorithm.learning_rate, config.preferences.learning_rate


def resolved(parameters: int, monkeypatch: pytest.MonkeyPatch, *settings: str) -> tuple[float | str, ...]:
    monkeypatch.setattr(model_size, "_count_parameters", lambda _: parameters)
    return rates(resolve_learning_rates(parse_config("", settings))[0])


@pytest.mark.parametrize(
    ("parameters", "settings", "expected"),
    [
        (SMALL, (), (2e-4, 4e-5, 1e-5)),  # the presets *_quick
        (SMALL, ("algorithm.min_lr_ratio=1",), (2e-4, 2e-5, 1e-5)),  # the presets *_easy
        (SMALL, ("engine.finetune=lora", "algorithm.min_lr_ratio=1"), (2e-3, 2e-4, 1e-4)),
        (LARGE, ("engine.finetune=lora",), (2e-4, 4e-5, 1e-5)),
        (LARGE, ("engine.finetune=qlora",), (2e-4, 4e-5, 1e-5)),
        (LARGE, (), (2e-5, 4e-6, 1e-6)),
        (7_000_000_000, ("engine.finetune=lora",), (2e-4, 4e-5, 1e-5)),
        (100_000, (), (2e-4, 4e-5, 1e-5)),
        (LARGE, ("sft.learning_rate=3e-3", "algorithm.learning_rate=7e-7"), (3e-3, 7e-7, 1e-6)),
        (LARGE, ("sft.steps=0", "preferences.steps=0"), ("auto", 4e-6, "auto")),
    ],
)
def test_measured_rates_follow_from_the_size(
    parameters: int,
    settings: tuple[str, ...],
    expected: tuple[float | str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert resolved(parameters, monkeypatch, *QUICK, *settings) == expected


def test_rates_between_the_two_sizes_fall_as_a_power() -> None:
    middle = sft_learning_rate(round((SMALL * LARGE) ** 0.5), uses_lora=False)
    assert middle == pytest.approx((2e-4 * 2e-5) ** 0.5, rel=1e-6)


def test_new_run_records_numbers_and_says_where_they_come_from(tiny: Path, tmp_path: Path) -> None:
    model = [f"model={tiny}", "engine.device=cpu"]
    run = open_run(["smoke", "sft.learning_rate=auto", *model], tmp_path / "run", None)
    stored = load_toml(TrainConfig, tmp_path / "run" / CONFIG_FILE)
    assert rates(stored) == (2e-4, 2e-5, "auto")
    (line,) = [line for line in run.warnings if "sft.learning_rate = 0.0002" in line]
    assert "from the model" in line
    assert "algorithm.learning_rate = 2e-05" in line


def test_resumed_run_keeps_its_rates(tiny: Path, tmp_path: Path) -> None:
    settings = ["smoke", f"model={tiny}", "engine.device=cpu"]
    open_run([*settings, "algorithm.learning_rate=3e-3"], tmp_path / "run", None)
    open_run([*settings, "steps=3"], None, tmp_path / "run")
    assert rates(read_run_config(tmp_path / "run"))[:2] == (5e-3, 3e-3)


def test_unresolved_rate_is_no_number(tiny: Path) -> None:
    assert tiny_config(tiny).sft.learning_rate == "auto"
    with pytest.raises(ValueError, match="auto"):
        learning_rate(1, 2, "auto", 0, 1.0)


def test_preset_for_another_size_is_named(tiny: Path) -> None:
    config, (note,) = fit_preset_to_size(load_config("five_quick", [f"model={tiny}"]))
    assert "five_quick" in note
    assert "135 million" in note
    assert "0.1 million" in note
    assert config == load_config("five_quick", [f"model={tiny}"])
    unchanged = load_config("smoke", [f"model={tiny}"])
    assert fit_preset_to_size(unchanged) == (unchanged, [])
    assert fit_preset_to_size(load_config("five_quick")) == (load_config("five_quick"), [])


@pytest.mark.parametrize(
    ("preset", "parameters", "settings", "finetune"),
    [
        ("retail_quick", LARGE, (), "lora"),
        ("retail_quick", 7_000_000_000, (), "lora"),
        ("retail_quick", LARGE, ("engine.finetune=full",), "full"),
        ("retail_quick", LARGE, ("engine.finetune=qlora",), "qlora"),
        ("retail_quick", LARGE, ("engine.train_embeddings=true",), "full"),
        ("retail_quick", SMALL, (), "full"),
        ("ood", 7_000_000_000, (), "lora"),
        ("ood", 7_000_000_000, ("engine.finetune=full",), "full"),
    ],
)
def test_much_larger_models_than_that_of_a_preset_get_adapters(
    preset: str, parameters: int, settings: tuple[str, ...], finetune: str
) -> None:
    given = load_config(preset, ["model=other", *settings])
    config, lines = fit_preset_to_size(given, parameters)
    assert isinstance(config.engine, LocalEngineConfig)
    assert config.engine.finetune == finetune
    assert config == given.replace(engine=config.engine)
    assert any("engine.finetune = lora" in line for line in lines) == (config != given)


def test_kind_of_fine_tuning_is_chosen_before_the_learning_rates(monkeypatch: pytest.MonkeyPatch, tiny: Path) -> None:
    monkeypatch.setattr(model_size, "_count_parameters", lambda _: LARGE)
    config, _ = complete_config(load_config("retail_quick", [f"model={tiny}"]))
    assert isinstance(config.engine, LocalEngineConfig)
    assert config.engine.finetune == "lora"
    assert rates(config)[:2] == (2e-4, 4e-5)
    assert complete_config(config) == (config, [])


def test_size_of_each_model_of_a_preset_is_known() -> None:
    named = {parse_config(preset_text(name)).model for name in preset_names()}
    assert named == {*MODEL_PARAMETERS, "tiny"}
    assert read_model_shape(find_model("smollm2-135m")).parameters == MODEL_PARAMETERS["smollm2-135m"] == SMALL
