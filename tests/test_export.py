"""Export: transformers and peft load the folder as it is and compute what the engine computes; names of weights."""

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor

from understudy import formats
from understudy.cli import main
from understudy.config import TrainConfig
from understudy.engines.local.cache import Prefix
from understudy.engines.local.engine import LocalEngine
from understudy.engines.local.passes import PrefixFill
from understudy.errors import ConfigError
from understudy.models import make_tiny
from understudy.run import Run
from understudy.serve.options import ServeConfig
from understudy.serve.server import open_served
from understudy.settings import parse
from understudy.weights import Weights, export, find_weights

# peft reads a property that transformers has renamed
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
TEXT = list(b"What was learned is in the weights.")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"), architecture="qwen2")


def trained(folder: Path, base: Path, *settings: str) -> tuple[Run, LocalEngine]:
    """A run with two checkpoints, each with weights of its own, and the engine as it was at the last."""
    config = parse(TrainConfig, "", [f"model={base}", "engine.dtype=float32", *settings])
    engine = LocalEngine(base, config.engine)
    run = Run.create(folder, config)
    generator = torch.Generator().manual_seed(1)
    for step in (1, 2):
        for master in engine._optimizer.masters.values():
            master += 0.05 * torch.randn(master.shape, generator=generator)
        engine._optimizer.publish()
        with run.checkpoint(step) as checkpoint:
            engine.save(checkpoint)
    return run, engine


def logits_of(folder: Path, base: Path | None = None) -> Tensor:
    """As transformers computes them; with a base, of peft's adapters on it."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(base or folder)
    if base:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, folder)
    with torch.no_grad():
        found: Tensor = model.eval()(torch.tensor([TEXT])).logits[0]
    return found


def computed(engine: LocalEngine) -> Tensor:
    """As the engine computes them."""
    layout = PrefixFill(Prefix(TEXT, 0))
    with torch.inference_mode():
        hidden = engine._model.hidden(torch.tensor([TEXT]), torch.arange(len(TEXT))[None], layout)
        return engine._model.logits(hidden).clone()


LORA = ("engine.finetune=lora", "engine.lora.rank=3", "engine.lora.alpha=9", "engine.lora.targets=q_proj,down_proj")


@pytest.mark.parametrize("settings", [(), LORA], ids=["full", "lora"])
def test_transformers_loads_what_was_trained(tiny: Path, tmp_path: Path, settings: tuple[str, ...]) -> None:
    run, engine = trained(tmp_path / "run", tiny, *settings)
    before, expected = computed(LocalEngine(tiny, run.config.engine)), computed(engine)
    assert (expected - before).abs().max() > 0.1
    export(find_weights(str(run.folder)), tmp_path / "out")
    assert (logits_of(tmp_path / "out") - expected).abs().max() < 1e-4
    served = open_served(find_weights(str(run.folder)), ServeConfig(concurrency=2))
    assert torch.equal(computed(served.sampler), expected)  # type: ignore[arg-type]
    export(find_weights(str(run.folder / "checkpoints" / "step_000001")), tmp_path / "first")
    assert (logits_of(tmp_path / "first") - expected).abs().max() > 0.01
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    assert not any("adapter" in name for name in names)
    assert "understudy" not in (tmp_path / "out" / "config.json").read_text()
    found = find_weights(str(tmp_path / "out"))
    assert (found.name, found.checkpoint) == ("out", None)
    assert formats.find(tmp_path / "out").encode([], (), ()) == formats.find(tiny).encode([], (), ())
    assert (
        computed(LocalEngine(tmp_path / "out", parse(TrainConfig, "", ["engine.dtype=float32"]).engine)) - expected
    ).abs().max() < 1e-4


def test_peft_loads_the_adapters_and_merging_leaves_the_engine_alone(tiny: Path, tmp_path: Path) -> None:
    run, engine = trained(tmp_path / "run", tiny, *LORA)
    expected = computed(engine)
    export(find_weights(str(run.folder)), tmp_path / "adapters", adapter=True)
    assert (logits_of(tmp_path / "adapters", base=tiny) - expected).abs().max() < 1e-4
    engine.export(tmp_path / "merged", merged=True)
    assert torch.equal(computed(engine), expected)
    assert (logits_of(tmp_path / "merged") - expected).abs().max() < 1e-4
    with pytest.raises(ConfigError, match="holds adapters only; name the run instead"):
        find_weights(str(tmp_path / "adapters"))


def test_nothing_is_overwritten_and_nothing_half_done_is_left(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(ConfigError, match=r"out is there already; give another --out"):
        export(find_weights(str(tiny)), out)
    assert list(out.iterdir()) == []
    with pytest.raises(ConfigError, match=r"has no adapters: engine\.finetune is 'full'"):
        export(find_weights(str(tiny)), tmp_path / "new", adapter=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_what_weights_are_called(tiny: Path, tmp_path: Path) -> None:
    run, _ = trained(tmp_path / "retail-001", tiny)
    last, first = (run.folder / "checkpoints" / f"step_00000{step}" for step in (2, 1))
    found = find_weights(str(run.folder), ["seed=5"])
    assert (found.name, found.checkpoint, found.config.seed) == ("retail-001", last, 5)
    assert find_weights(str(first)).name == "retail-001/step_000001"
    assert find_weights("tiny") == Weights(name="tiny", config=parse(TrainConfig, "", ["model=tiny"]))
    (last / "optimizer.safetensors").write_bytes(b"x")
    found = find_weights(str(run.folder))
    assert found.checkpoint == first
    assert "step_000002 is damaged" in found.warnings[0]
    with pytest.raises(ConfigError, match=r"step_000002 is damaged .*; name another one"):
        find_weights(str(last))
    (run.folder / "checkpoints").rename(run.folder / "lost")
    with pytest.raises(ConfigError, match="has no checkpoint yet"):
        find_weights(str(run.folder))


def test_the_command(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for code in (0, 2):
        monkeypatch.setattr(sys, "argv", ["understudy", "export", str(tiny), "--out", str(tmp_path / "a" / "model.v2")])
        with pytest.raises(SystemExit) as done:
            main()
        assert done.value.code == code
    said = capsys.readouterr()
    assert said.out == f"{tiny} is in {tmp_path / 'a' / 'model.v2'}\n"
    assert len(said.err.splitlines()) == 1
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["model.v2"]
