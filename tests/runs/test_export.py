"""Test `export`: transformers and peft load the folder and compute the engine's logits; and weight targets."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from understudy import formats
from understudy.cli.main import main
from understudy.core.errors import ConfigError
from understudy.engines.local.engine import LocalEngine
from understudy.engines.local.sampling.layouts import PrefixFillLayout
from understudy.engines.local.sampling.sequence_cache import CachedPrefix
from understudy.engines.models import find_model, make_tiny_model
from understudy.runs.config import parse_config
from understudy.runs.eval_spec import EvalSpec
from understudy.runs.run import Run
from understudy.runs.serving import load_served_model
from understudy.runs.storage.episode_store import SPEC_FILE
from understudy.runs.weights import ModelWeights, export_model, hides_tools, resolve_weights
from understudy.serve.options import ServeConfig

# peft reads a property that transformers has renamed
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
TEXT = list(b"What was learned is in the weights.")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), architecture="qwen2")


def make_trained_run(folder: Path, base: Path, *settings: str) -> tuple[Run, LocalEngine]:
    """Return a run with two different checkpoints, and the engine in the state of the last one."""
    config = parse_config("", [f"model={base}", "engine.dtype=float32", *settings])
    engine = LocalEngine(base, config.engine)
    run = Run.create(folder, config)
    generator = torch.Generator().manual_seed(1)
    for step in (1, 2):
        for master in engine._optimizer.masters.values():
            master += 0.05 * torch.randn(master.shape, generator=generator)
        engine._optimizer.copy_to_model()
        with run.write_checkpoint(step) as checkpoint:
            engine.save(checkpoint)
    return run, engine


def transformers_logits(folder: Path, base: Path | None = None) -> Tensor:
    """Compute logits with transformers; with `base`, of the peft adapters in `folder` on it."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(base or folder)
    if base:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, folder)
    with torch.no_grad():
        found: Tensor = model.eval()(torch.tensor([TEXT])).logits[0]
    return found


def engine_logits(engine: LocalEngine) -> Tensor:
    """Compute logits with the engine."""
    layout = PrefixFillLayout(CachedPrefix(TEXT, 0))
    with torch.inference_mode():
        hidden = engine._model.hidden_states(torch.tensor([TEXT]), torch.arange(len(TEXT))[None], layout)
        return engine._model.logits(hidden).clone()


LORA = (
    "engine.finetune=lora",
    "engine.lora.rank=3",
    "engine.lora.alpha=9",
    "engine.lora.target_modules=q_proj,down_proj",
)


@pytest.mark.parametrize("settings", [(), LORA], ids=["full", "lora"])
def test_exported_weights_give_equal_logits_in_transformers(
    tiny: Path, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    run, engine = make_trained_run(tmp_path / "run", tiny, *settings)
    before, expected = engine_logits(LocalEngine(tiny, run.config.engine)), engine_logits(engine)
    assert (expected - before).abs().max() > 0.1
    export_model(resolve_weights(str(run.folder)), tmp_path / "out")
    assert (transformers_logits(tmp_path / "out") - expected).abs().max() < 1e-4
    served = load_served_model(resolve_weights(str(run.folder)), ServeConfig(concurrency=2))
    assert torch.equal(engine_logits(served.sampler), expected)  # type: ignore[arg-type]
    export_model(resolve_weights(str(run.folder / "checkpoints" / "step_000001")), tmp_path / "first")
    assert (transformers_logits(tmp_path / "first") - expected).abs().max() > 0.01
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    assert not any("adapter" in name for name in names)
    assert "understudy" not in (tmp_path / "out" / "config.json").read_text()
    found = resolve_weights(str(tmp_path / "out"))
    assert (found.name, found.checkpoint) == ("out", None)
    assert formats.load_chat_format(tmp_path / "out").encode([], (), ()) == formats.load_chat_format(tiny).encode(
        [], (), ()
    )
    assert (
        engine_logits(LocalEngine(tmp_path / "out", parse_config("", ["engine.dtype=float32"]).engine)) - expected
    ).abs().max() < 1e-4


def test_peft_loads_adapters_and_merging_leaves_the_engine_unchanged(tiny: Path, tmp_path: Path) -> None:
    run, engine = make_trained_run(tmp_path / "run", tiny, *LORA)
    expected = engine_logits(engine)
    export_model(resolve_weights(str(run.folder)), tmp_path / "adapters", adapters_only=True)
    assert (transformers_logits(tmp_path / "adapters", base=tiny) - expected).abs().max() < 1e-4
    engine.export(tmp_path / "merged", merge_adapters=True)
    assert torch.equal(engine_logits(engine), expected)
    assert (transformers_logits(tmp_path / "merged") - expected).abs().max() < 1e-4
    with pytest.raises(ConfigError, match="adapters"):
        resolve_weights(str(tmp_path / "adapters"))


@pytest.mark.parametrize("settings", [(), LORA], ids=["full", "lora"])
def test_gguf_file_has_the_trained_weights(
    tiny: Path, tmp_path: Path, settings: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNDERSTUDY_CACHE", str(tmp_path / "cache"))
    base = shutil.copytree(tiny, tmp_path / "base")
    tokenizer = json.loads((base / "tokenizer.json").read_text())  # llama.cpp has no name for the tiny one's pieces
    vocabulary = tokenizer["model"]["vocab"] | {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    tokenizer["model"] |= {"vocab": vocabulary | {"ĠĠ": len(vocabulary)}, "merges": [["Ġ", "Ġ"]]}
    tokenizer["pre_tokenizer"]["use_regex"] = True
    (base / "tokenizer.json").write_text(json.dumps(tokenizer))
    run, engine = make_trained_run(tmp_path / "run", base, *settings)
    file = tmp_path / "out" / "trained.gguf"
    monkeypatch.setattr(sys, "argv", ["understudy", "export", str(run.folder), "--gguf", "f32", "--out", str(file)])
    with pytest.raises(SystemExit) as done:
        main()
    assert not done.value.code
    assert [path.name for path in file.parent.iterdir()] == ["trained.gguf"]
    assert (transformers_logits(find_model(str(file))) - engine_logits(engine)).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("out", "options", "named"), [("a.bin", (), r"a\.bin.*\.gguf"), ("a.gguf", ("--adapter-only",), "--adapter-only")]
)
def test_mistakes_of_a_gguf_export_are_named(
    tiny: Path,
    tmp_path: Path,
    out: str,
    options: tuple[str, ...],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    words = ["export", str(tiny), "--gguf", "q8_0", "--out", str(tmp_path / out), *options]
    monkeypatch.setattr(sys, "argv", ["understudy", *words])
    with pytest.raises(SystemExit) as done:
        main()
    assert done.value.code == 2
    assert re.search(named, capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_failed_export_overwrites_and_leaves_nothing(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(ConfigError, match=r"\bout\b.*--out"):
        export_model(resolve_weights(str(tiny)), out)
    assert list(out.iterdir()) == []
    with pytest.raises(ConfigError, match=r"engine\.finetune.*'full'"):
        export_model(resolve_weights(str(tiny)), tmp_path / "new", adapters_only=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_resolve_weights_names_runs_checkpoints_and_models(tiny: Path, tmp_path: Path) -> None:
    run, _ = make_trained_run(tmp_path / "retail-001", tiny)
    last, first = (run.folder / "checkpoints" / f"step_00000{step}" for step in (2, 1))
    found = resolve_weights(str(run.folder), ["seed=5"])
    assert (found.name, found.checkpoint, found.config.seed) == ("retail-001", last, 5)
    assert resolve_weights(str(first)).name == "retail-001/step_000001"
    assert resolve_weights("tiny") == ModelWeights(name="tiny", config=parse_config("", ["model=tiny"]))
    (last / "optimizer.safetensors").write_bytes(b"x")
    found = resolve_weights(str(run.folder))
    assert found.checkpoint == first
    assert "step_000002 is damaged" in found.warnings[0]
    with pytest.raises(ConfigError, match="step_000002"):
        resolve_weights(str(last))
    (run.folder / "checkpoints").rename(run.folder / "lost")
    with pytest.raises(ConfigError, match="checkpoint"):
        resolve_weights(str(run.folder))


def test_export_command_writes_once_and_rejects_existing_output(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for code in (0, 2):
        monkeypatch.setattr(sys, "argv", ["understudy", "export", str(tiny), "--out", str(tmp_path / "a" / "model.v2")])
        with pytest.raises(SystemExit) as done:
            main()
        assert done.value.code == code
    captured = capsys.readouterr()
    assert captured.out.startswith(f"{tiny} is in {tmp_path / 'a' / 'model.v2'}\n")
    assert f"understudy serve {tmp_path / 'a' / 'model.v2'}" in captured.out
    assert len(captured.err.splitlines()) == 1
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["model.v2"]
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "a" / "model.v2").iterdir()}
    plain = tmp_path / "plain"
    plain.touch()
    assert modes == {plain.stat().st_mode & 0o777}, "other users can read what they can read of other files"


def test_export_and_serve_say_which_step_they_take_if_the_last_checkpoint_is_damaged(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    run, _ = make_trained_run(tmp_path / "run", tiny)
    (run.folder / "checkpoints" / "step_000002" / "optimizer.safetensors").write_bytes(b"x")
    monkeypatch.setattr("understudy.runs.serving.serve_model", lambda *arguments: None)
    for command in (["export", str(run.folder), "--out", str(tmp_path / "out")], ["serve", str(run.folder)]):
        monkeypatch.setattr(sys, "argv", ["understudy", *command])
        with pytest.raises(SystemExit) as done:
            main()
        assert not done.value.code
        said = capsys.readouterr().err
        assert "step_000002 is damaged" in said
        assert "step_000001" in said


def test_a_chat_template_without_tools_is_named(tiny: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    shutil.copytree(tiny, plain)
    assert not hides_tools(plain)
    (plain / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert hides_tools(plain)


def test_adapters_of_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing-run"):
        export_model(resolve_weights("missing-run"), tmp_path / "out", adapters_only=True)


def test_evaluation_of_an_agent_without_a_model_has_no_weights(tmp_path: Path) -> None:
    spec = EvalSpec(name="gold", agent="gold", config=parse_config(""))
    (tmp_path / SPEC_FILE).write_text(spec.model_dump_json())
    with pytest.raises(ConfigError, match="the agent gold, which has no weights"):
        resolve_weights(str(tmp_path))
