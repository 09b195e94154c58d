"""Test that settings are fitted to pretended machines, and that a run that does not fit is refused."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from support.tiny_runs import SMALL
from understudy.cli import launch
from understudy.cli.main import app
from understudy.core.errors import ConfigError
from understudy.engines.local.machine import Machine
from understudy.engines.models import find_model
from understudy.runs.config import TrainConfig, parse_config
from understudy.runs.run import Run, read_run_config
from understudy.train.loop import train
from understudy.train.planning import fitting, preflight
from understudy.train.planning.fitting import MEMORY_SHARE, FittedRun, fit_to_memory

MEGABYTE = 1 << 20
SETTINGS = ("model=tiny", "engine.sampler=torch", "limits.max_episode_tokens=900", "sampling.max_response_tokens=64")
RUN = (*SMALL, *SETTINGS, "steps=0", "sft.steps=1", "certify.every=0", "limits.max_turns=7")


def machine(megabytes: float) -> Machine:
    return Machine(
        device="cpu",
        dtype_bytes=4,
        fused_kernels=True,
        packs_weights=False,
        memory_used=0,
        memory_total=int(megabytes * MEGABYTE),
    )


def fit(megabytes: float, *settings: str) -> FittedRun:
    return fit_to_memory(parse_config("", [*SETTINGS, *settings]), find_model("tiny"), machine(megabytes))


def fitted_keys(found: FittedRun) -> tuple[int, bool, int]:
    engine = found.config.engine.export_engine_config
    return engine.max_tokens_per_microbatch, engine.gradient_checkpointing, engine.max_num_seqs


def needed(phase: str, *settings: str) -> float:
    """Return the megabytes of a machine of which the fitted share is what one phase of a run plans."""
    plan = fit(1e6, *settings).plan
    assert plan is not None
    return plan.required_bytes_in(phase) / MEMORY_SHARE / MEGABYTE + 0.1  # type: ignore[arg-type]


def test_config_that_fits_is_unchanged() -> None:
    found = fit(1e6)
    assert (found.config, found.changes, found.misfit) == (parse_config("", SETTINGS), "", "")
    assert fitted_keys(found) == (4096, False, 64)


def test_trained_control_tokens_store_all_layers() -> None:
    """The backward pass then reaches the embeddings, whatever `trainable_layers` says."""
    parts = {}
    for which in ("none", "all"):
        plan = fit(1e6, "engine.trainable_layers=1", f"engine.train_control_tokens={which}").plan
        assert plan is not None
        parts[which] = {part.name: part.num_bytes for part in plan.parts}["activations"]
    assert parts["all"] == 2 * parts["none"]  # of two layers


def test_microbatches_have_room_for_two_episodes_if_they_fit() -> None:
    long = ("limits.max_episode_tokens=3100", "sampling.max_response_tokens=100", "engine.max_num_seqs=1")
    assert fitted_keys(fit(1e6, *long)) == (8192, False, 1)
    assert "max_tokens_per_microbatch = 8192" in fit(1e6, *long).changes
    one = needed("training", *long, "engine.max_tokens_per_microbatch=4096")
    assert fitted_keys(fit(one, *long)) == (4096, False, 1)
    assert fitted_keys(fit(one - 1, *long))[1], "checkpointing comes before a microbatch for less than an episode"
    assert fitted_keys(fit(1, *long)) == (2048, True, 1)
    assert fitted_keys(fit(1e6, *long, "engine.max_tokens_per_microbatch=2048")) == (2048, False, 1)


def test_microbatches_shrink_before_checkpointing_begins() -> None:
    few = "engine.max_num_seqs=1"
    half = needed("training", few, "engine.max_tokens_per_microbatch=2048")
    assert fitted_keys(fit(half, few)) == (2048, False, 1)
    recomputed = needed("training", few, "engine.gradient_checkpointing=true")
    found = fit(recomputed, few)
    assert found.config.engine.export_engine_config.gradient_checkpointing or recomputed > half
    small = needed("training", few, "engine.gradient_checkpointing=true", "engine.max_tokens_per_microbatch=1024")
    assert fitted_keys(fit(small, few)) == (1024, True, 1)
    assert re.search(r"max_tokens_per_microbatch = 1024, engine.gradient_checkpointing = true", fit(small, few).changes)


def test_fewer_sequences_are_sampled_at_once() -> None:
    frugal = ("engine.max_tokens_per_microbatch=1024", "engine.gradient_checkpointing=true")
    found = fit(needed("sampling", *frugal, "engine.max_num_seqs=16"), *frugal)
    assert fitted_keys(found) == (1024, True, 16)
    assert "engine.max_num_seqs = 16" in found.changes
    assert "max_tokens_per_microbatch" not in found.changes


def test_given_settings_stay_and_a_misfit_names_them() -> None:
    given = ("engine.max_tokens_per_microbatch=4096", "engine.gradient_checkpointing=false", "engine.max_num_seqs=64")
    found = fit(8, *given)
    assert fitted_keys(found) == (4096, False, 64)
    assert not found.changes
    assert re.search(r"does not fit.*GiB.*lower limits\.max_episode_tokens", found.misfit)


def test_machine_that_is_too_small_for_the_least_is_a_misfit() -> None:
    assert fit(1).misfit
    assert fitted_keys(fit(1))[1:] == (True, 1)


def test_misfit_names_only_settings_that_need_less_memory() -> None:
    needs = [
        (),
        ("engine.gradient_checkpointing=true",),
        ("engine.gradient_checkpointing=true", "engine.max_tokens_per_microbatch=512", "engine.finetune=lora"),
    ]
    named = ("gradient_checkpointing", "max_tokens_per_microbatch", "finetune")
    texts = [fit(1, *settings, "engine.max_num_seqs=1").misfit for settings in needs]
    # without settings, fitting has turned checkpointing on and made the microbatch as small as it can
    found = [[name for name in named if name in text.partition("lower ")[2]] for text in texts]
    assert found == [["max_tokens_per_microbatch", "finetune"]] * 2 + [[]]


def test_engines_elsewhere_are_not_fitted() -> None:
    config = parse_config("", ["engine.kind=skyrl"])
    assert fit_to_memory(config, Path("nowhere"), machine(1)) == FittedRun(config, None)


@pytest.mark.parametrize("by_command", [True, False])
def test_fitted_values_are_stored_and_a_resumed_run_keeps_them(
    by_command: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [*RUN, "engine.max_num_seqs=1"]
    size = needed("training", *settings, "engine.max_tokens_per_microbatch=2048")
    monkeypatch.setattr(fitting, "detect_machine", lambda config: machine(size))
    folder, told = tmp_path / "run", list[str]()
    if by_command:
        launch.run_training(settings, folder)
        told = (folder / "run.log").read_text().splitlines()
    else:
        run = Run.create(folder, parse_config("", settings))
        train(run.config, run, lambda line, *_: told.append(line))
    stored = read_run_config(folder)
    assert stored.engine.export_engine_config.max_tokens_per_microbatch == 2048
    for text in ("engine.max_tokens_per_microbatch = 2048", "GiB planned", "peak memory"):
        assert sum(text in line for line in told) == 1
    monkeypatch.setattr(fitting, "detect_machine", lambda config: machine(1e6))
    launch.run_training(["steps=1"], None, folder)
    assert read_run_config(folder) == stored.replace(steps=1)


def test_run_that_does_not_fit_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "detect_machine", lambda config: machine(1))
    with pytest.raises(ConfigError, match="does not fit"):
        launch.run_training(RUN, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("megabytes", "status"), [(1, 1), (1e6, 0)])
def test_dry_run_says_first_that_a_run_does_not_fit(
    megabytes: float, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "detect_machine", lambda config: machine(megabytes))
    found = CliRunner().invoke(app, ["train", "toy:DOMAIN", *SETTINGS, "limits.max_episode_tokens=6000", "--dry-run"])
    assert found.exit_code == status, found.output
    assert ("does not fit" in found.output.splitlines()[0]) == bool(status)


def test_algorithm_alone_fits_into_24_gib() -> None:
    config = parse_config('[algorithm]\npreset = "dapo"\n')
    assert isinstance(config, TrainConfig)
    found = fit_to_memory(config, find_model("smollm2-135m"), machine(24 * 1024))
    assert found.plan is not None
    assert found.plan.required_bytes <= MEMORY_SHARE * found.plan.device_bytes
    assert found.config.limits == config.limits
