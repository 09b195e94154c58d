"""Several processes train as one does: the same gradients, episodes, metrics and weights, whole or divided; and where
one of them dies, all end, with one line that says so. Two processes over gloo; nothing here is faster for it."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from crew_script import ENGINES, RUNS, opened, play, use  # noqa: E402
from test_train import SMALL, rewarded  # noqa: E402
from understudy.checkpoints import last_checkpoint  # noqa: E402
from understudy.config import TrainConfig  # noqa: E402
from understudy.crew import ALONE, Crew  # noqa: E402
from understudy.engines.local.choice import choose  # noqa: E402
from understudy.engines.local.config import LocalConfig  # noqa: E402
from understudy.engines.local.model import Model  # noqa: E402
from understudy.engines.local.ranks import agree_on_device, refuse_apart  # noqa: E402
from understudy.errors import ConfigError, RolloutError  # noqa: E402
from understudy.models import make_tiny  # noqa: E402
from understudy.processes import GRACE, SHUTDOWN  # noqa: E402
from understudy.run import Run, read_metrics  # noqa: E402
from understudy.settings import dump, parse  # noqa: E402
from understudy.shaping import Judge  # noqa: E402
from understudy.train.metrics import marked  # noqa: E402

HERE = Path(__file__).parent
PATIENCE = 400  # seconds for what takes about forty


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def done(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process does, in `alone`, and two together: started once for all tests."""
    folder = tmp_path_factory.mktemp("done")
    alone = folder / "alone"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("understudy.domains.base.score", rewarded)
        for name in ENGINES:
            use(alone, tiny, name, ALONE)
        use(alone / "resumed", tiny, "full", ALONE, alone / "full")
        for name in RUNS:
            play(lambda name=name: opened(alone / name, tiny, name), ALONE)  # type: ignore[misc]
    shutil.copytree(alone / "whole", alone / "begun")
    for later in (4, 5):
        shutil.rmtree(alone / "begun" / "checkpoints" / f"step_{later:06}")
    command = [sys.executable, str(HERE / "crew_script.py"), str(folder), str(tiny)]
    together = f"import sys; from understudy.processes import run_together; sys.exit(run_together({command!r}, 2))"
    subprocess.run([sys.executable, "-c", together], check=True, timeout=PATIENCE)
    return folder


def found(folder: Path, name: str) -> dict[str, Any]:
    return load_file(folder / name / "found.safetensors")


def gradients(folder: Path, name: str) -> dict[str, Any]:
    """Of the first update: what the first moment, begun at 0, has taken of them."""
    saved = load_file(folder / name / "first" / "optimizer.safetensors")
    return {key: value / 0.1 for key, value in saved.items() if "exp_avg." in key}


# ---- an engine ----


@pytest.mark.parametrize("name", [name for name in ENGINES if "bfloat16" not in name])
def test_gradients_are_those_of_one_process(done: Path, name: str) -> None:
    one, two = gradients(done / "alone", name), gradients(done, name)
    assert one.keys() == two.keys()
    assert max(float(gradient.abs().max()) for gradient in one.values()) > 0.01
    for key, gradient in one.items():
        torch.testing.assert_close(two[key], gradient, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in ENGINES if "bfloat16" not in name])
def test_passes_and_metrics_are_those_of_one_process(done: Path, name: str) -> None:
    one, two = found(done / "alone", name), found(done, name)
    torch.testing.assert_close(two["before"], one["before"], rtol=0, atol=1e-5)
    torch.testing.assert_close(two["reference"], one["before"], rtol=0, atol=1e-5)
    torch.testing.assert_close(two["after"], one["after"], rtol=0, atol=1e-3)
    assert (one["after"] - one["before"]).abs().max() > 0.1
    told = [json.loads((folder / name / "metrics.json").read_text()) for folder in (done / "alone", done)]
    for alone, shared in zip(*told, strict=True):
        del shared["computed_tokens"], alone["computed_tokens"]
        assert shared == pytest.approx(alone, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("name", ENGINES)
def test_replies_are_sampled_from_the_weights_that_trained_last(done: Path, name: str) -> None:
    for rank in ("", " 1"):
        two = found(done, name + rank)
        torch.testing.assert_close(two["said"], two["read"], rtol=0, atol=0.1 if "bfloat16" in name else 1e-4)


@pytest.mark.parametrize("name", ENGINES)
def test_a_checkpoint_and_the_model_are_written_once_and_whole(done: Path, name: str) -> None:
    assert not (done / f"{name} 1" / "optimizer.safetensors").exists()
    assert not any((done / f"{name} 1" / "model").iterdir())
    one, two = (load_file(folder / name / "optimizer.safetensors") for folder in (done / "alone", done))
    assert {key: value.shape for key, value in one.items()} == {key: value.shape for key, value in two.items()}
    one, two = ({p.name for p in (folder / name / "model").iterdir()} for folder in (done / "alone", done))
    assert one == two
    file = "adapter_model" if "lora" in name else "model"
    masters = load_file(done / name / "optimizer.safetensors")
    weights = load_file(done / name / "model" / f"{file}.safetensors")
    for key, weight in weights.items():
        master = masters.get(f"master.{key.removeprefix('base_model.model.').replace('.weight', '.default.weight')}")
        master = masters.get(f"master.{key}") if master is None else master
        if master is not None:
            assert torch.equal(weight, master.to(weight.dtype))
        else:
            assert "full" in name or "embed" in key or "norm" in key


def test_a_checkpoint_goes_on_with_any_number_of_processes(done: Path, tiny: Path, tmp_path: Path) -> None:
    expected = found(done / "alone" / "resumed", "full")
    use(tmp_path, tiny, "full, divided", ALONE, done / "full, divided")
    for two in (found(done / "resumed", "full, divided"), found(tmp_path, "full, divided")):
        torch.testing.assert_close(two["before"], expected["before"], rtol=0, atol=1e-3)
        torch.testing.assert_close(two["after"], expected["after"], rtol=0, atol=1e-3)


class Second(Crew):
    """The second of two processes, of which the first has said something."""

    rank, size = 1, 2

    def __init__(self, said: object) -> None:
        self._said = said

    def gather(self, value: Any) -> list[Any]:
        return [self._said, value]


def test_processes_that_cannot_be_a_crew_are_refused() -> None:
    agree_on_device(Second("cpu"), torch.device("cpu"))
    with pytest.raises(ConfigError, match="1 of 2 processes have a GPU: start no more processes than there are GPUs"):
        agree_on_device(Second("cuda"), torch.device("cpu"))
    with pytest.raises(ConfigError, match="it cannot be shared by processes"):
        agree_on_device(Second("mps"), torch.device("mps"))


def test_processes_that_come_to_different_weights_stop() -> None:
    refuse_apart(Second("a"), "a")
    with pytest.raises(RolloutError, match="different weights: sums a, b"):
        refuse_apart(Second("a"), "b")


class Asked(Judge):
    """A judge who was asked so often."""

    def __init__(self, often: float) -> None:
        self._often = often

    def taken(self) -> dict[str, float]:
        return {"judge/asked": self._often}


def test_what_a_judge_was_asked_is_told_of_all_processes() -> None:
    assert marked(Asked(3.0), Second(Asked(4.0).taken())) == {"judge/asked": 7.0}
    assert marked(None, Second({})) == {}


@pytest.mark.parametrize("settings", [{"url": "http://127.0.0.1:9"}, {"in_process": True}])
def test_several_processes_do_not_share_one_vllm(tiny: Path, settings: dict[str, Any]) -> None:
    config = LocalConfig.model_validate({"device": "cpu", "dtype": "float32", "vllm": settings})
    model = Model(tiny, config)
    assert "2 processes each start a server of their own" in choose(model, config, 2).why
    with pytest.raises(ConfigError, match="2 processes each start a server of their own"):
        choose(model, config.replace(sampler="vllm"), 2)


# ---- a run ----


def lines(folder: Path) -> list[dict[str, Any]]:
    """The metrics of all steps, but for how long they took, what sharing saved, and the size of rounding."""
    left = ("timing/", "train/computed_tokens", "certify/")
    return [{k: v for k, v in line.items() if not k.startswith(left)} for line in read_metrics(folder)]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_that_of_one_process(done: Path, name: str) -> None:
    one, two = lines(done / "alone" / name), lines(done / name)
    assert len(two) == len(one) > 2
    for alone, shared in zip(one, two, strict=True):
        assert shared == pytest.approx(alone, rel=1e-2, abs=1e-4)
    first = [played(folder / name, 3) for folder in (done / "alone", done)]
    assert len(first[0]) >= 6
    assert first[0] == first[1]
    files = [sorted(str(p.relative_to(f / name)) for p in (f / name).rglob("*")) for f in (done / "alone", done)]
    assert files[0] == files[1]


def played(folder: Path, step: int) -> list[dict[str, Any]]:
    """The episodes of a step, but for rounding and for how long they took."""
    text = (folder / "trajectories" / f"step_{step:06}.jsonl").read_text()
    return [
        {k: v for k, v in json.loads(line).items() if k not in ("seconds", "logprobs")} for line in text.splitlines()
    ]


@pytest.mark.parametrize("name", ["alone/begun", "stopped"])
def test_a_run_goes_on_with_another_number_of_processes(done: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "stopped":
        monkeypatch.setattr("understudy.domains.base.score", rewarded)
        play(lambda: Run.resume(done / name), ALONE)
    whole, resumed = lines(done / "alone" / "whole"), lines(done / name)
    assert [line["step"] for line in resumed] == [0, 1, 2, 3, 4, 5]
    for alone, shared in zip(whole, resumed, strict=True):
        assert shared == pytest.approx(alone, rel=1e-2, abs=1e-4)
    assert played(done / name, 4) == played(done / "alone" / "whole", 4)


def test_a_run_of_which_a_process_is_killed_ends_at_once_and_says_so(tiny: Path, tmp_path: Path) -> None:
    before = psutil.Process().children(recursive=True)
    folder = tmp_path / "run"
    config = tmp_path / "lamp.toml"
    config.write_text(
        dump(parse(TrainConfig, "", [f"model={tiny}", *SMALL, "certify.every=0", "sft.steps=0", "steps=1000"]))
    )
    arguments = [str(config), "--processes", "2", "--out", str(folder)]
    command = [sys.executable, "-m", "understudy", "train", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=HERE) as launcher:
        until = time.monotonic() + PATIENCE
        while not (folder / "checkpoints" / "step_000001" / "manifest.json").exists():
            assert time.monotonic() < until
            assert launcher.poll() is None
            time.sleep(0.2)
        second = next(p for p in psutil.Process(launcher.pid).children() if p.environ()["RANK"] == "1")
        second.kill()
        _, said = launcher.communicate(timeout=GRACE + SHUTDOWN + 10)
    assert launcher.returncode == 128 + signal.SIGKILL
    assert said.splitlines()[-1] == "understudy: process 2 of 2 was killed by signal 9"
    assert "Traceback" not in said
    assert last_checkpoint(folder)[0] is not None
    assert set(psutil.Process().children(recursive=True)) <= set(before)
