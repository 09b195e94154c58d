"""Checkpoints that are written while the next step plays its episodes."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import understudy.engines.local.checkpoint as checkpoint
from support.tiny_runs import (
    distinct_character_rewards,
    equal_values,
    ignore_progress,
    load_checkpoint_files,
    step_metrics,
    tiny,
    train_tiny_run,
)
from understudy.core.errors import ConfigError
from understudy.engines.local.engine import LocalEngine
from understudy.runs.run import Run
from understudy.train.background import BackgroundWriter
from understudy.train.loop import train

__all__ = ["distinct_character_rewards", "tiny"]
TIMEOUT = 60.0
SETTINGS = "sft.steps=0", "steps=3", "save_every=1", "eval.every=0"


@pytest.fixture
def whole(tiny: Path, tmp_path: Path, distinct_character_rewards: None) -> Run:
    """A run whose checkpoints were written without delay."""
    return train_tiny_run(tmp_path / "whole", tiny, *SETTINGS)


@pytest.mark.slow
def test_next_step_plays_while_a_checkpoint_is_written_and_changes_it_not(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Run
) -> None:
    """Each checkpoint is written only after the engine has sampled for the next step."""
    sample, update, save, sampled, events = LocalEngine.sample, LocalEngine.update, checkpoint.save_file, [0], []
    played = threading.Condition()

    def save_after_sampling(*args: Any) -> None:
        step, before = len([event for event in events if event == "written"]) + 1, sampled[0]
        with played:
            assert step == 3 or played.wait_for(lambda: sampled[0] > before, TIMEOUT)
        save(*args)
        events.append("written")

    async def counting_sample(self: LocalEngine, *args: Any) -> Any:
        completion = await sample(self, *args)
        with played:
            sampled[0] += 1
            played.notify_all()
        return completion

    async def recording_update(self: LocalEngine, *args: Any) -> Any:
        metrics = await update(self, *args)
        events.append("updated")
        return metrics

    monkeypatch.setattr(checkpoint, "save_file", save_after_sampling)
    monkeypatch.setattr(LocalEngine, "sample", counting_sample)
    monkeypatch.setattr(LocalEngine, "update", recording_update)
    run = train_tiny_run(tmp_path / "run", tiny, *SETTINGS)
    assert events == ["updated", "written"] * 3
    assert step_metrics(run) == step_metrics(whole)
    for step in (2, 3):
        assert equal_values(load_checkpoint_files(run, step), load_checkpoint_files(whole, step))


@pytest.mark.slow
def test_full_disk_ends_the_run_after_the_next_step_and_keeps_the_last_checkpoint(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Run
) -> None:
    save, calls = checkpoint.save_file, list[Path]()

    def fail_in_step_2(tensors: Any, path: Path, about: Any) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(tensors, path, about)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", fail_in_step_2)
        with pytest.raises(ConfigError, match=r"No space left.*understudy train --resume"):
            train_tiny_run(tmp_path / "run", tiny, *SETTINGS)
    resumed = Run.resume(tmp_path / "run")
    assert resumed.step == 1
    train(resumed.config, resumed, ignore_progress)
    assert step_metrics(resumed) == step_metrics(whole)
    assert equal_values(load_checkpoint_files(resumed), load_checkpoint_files(whole))


def test_second_ctrl_c_does_not_wait_for_the_checkpoint_and_other_errors_do() -> None:
    release, done = threading.Event(), list[int]()

    def write() -> None:
        release.wait(TIMEOUT)
        done.append(1)

    def start_and_raise(writer: BackgroundWriter, write: Callable[[], None], error: BaseException) -> None:
        with writer:
            writer.start(1, write)
            raise error

    with pytest.raises(KeyboardInterrupt):
        start_and_raise(BackgroundWriter(), write, KeyboardInterrupt())
    assert done == []
    release.set()
    with pytest.raises(ValueError, match="a fault"):
        start_and_raise(BackgroundWriter(), lambda: done.append(2), ValueError("a fault"))
    assert 2 in done
