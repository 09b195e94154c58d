"""Tests of memory plans for GPUs that this machine does not have, and of the formulas behind them."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as flex

from support.paths import ROOT
from support.program import Call, call
from understudy.algorithms.batch import Batch
from understudy.core.errors import ConfigError
from understudy.engines.local import attention
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.cpu import kernel_library
from understudy.engines.local.machine import GPU_MEMORY, planned_gpu
from understudy.engines.local.model import LocalModel
from understudy.engines.local.packing import GpuTree
from understudy.engines.models import Architecture, find_model_config, make_tiny_model
from understudy.runs.config import load_config, parse_config
from understudy.train.planning.gpu import plan_for_gpu, plan_shape_for_gpu
from understudy.train.planning.memory import (
    MAX_SCORES,
    VLLM_PART,
    MaxPassSizes,
    MemoryPlan,
    _gpu_width,
    format_measured_peak,
    model_shape_of_config,
    plan_memory,
    read_model_shape,
)

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's, of transformers
__all__ = ["call"]
PARAMETERS = {
    "Qwen2.5-3B": 3_085_938_688,
    "Qwen3-4B": 4_022_468_096,
    "Qwen2.5-7B": 7_615_616_512,
    "Llama-3.1-8B": 8_030_261_248,
}
"""Numbers of parameters of the published models."""


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_memory", ROOT / "benchmarks" / "gpu_memory.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder with the config.json of a tiny model, and nothing else."""
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "config.json").write_bytes((make_tiny_model(tmp_path / "whole") / "config.json").read_bytes())
    return folder


def sizes_of(plan: MemoryPlan) -> dict[str, int]:
    return {part.name: part.num_bytes for part in plan.parts}


def saved_bytes(folder: Path, layers: int, engine: LocalEngineConfig, tokens: int) -> int:
    """Return the bytes that autograd stores in a pass over one row, without the weights."""
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(about | {"num_hidden_layers": layers}))
    model = LocalModel(folder, engine)
    weights = {x.untyped_storage().data_ptr() for x in model.network.parameters()}
    row = [i % 200 + 1 for i in range(tokens)]
    layout = GpuTree(Batch.from_rows([row], [[True] * tokens]), [0], torch.device("cpu"))
    found, kept = {}, []

    def store(x: Any) -> Any:
        kept.append(x)  # so that no address is used twice
        storage = x.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(store, lambda x: x):
        model.hidden_states(layout.tokens, layout.positions, layout)
    return sum(found.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("llama", {}),
        ("qwen2", {"dtype": "float32"}),
        ("qwen3", {}),
        ("qwen3", {"finetune": "lora", "lora": {"rank": 8}}),
    ],
)
def test_planned_activations_are_the_tensors_that_autograd_stores(
    architecture: Architecture, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The difference of two layers and one, since the first layer stores less: the embeddings are not trained."""
    monkeypatch.setattr(kernel_library, "kernels_available", lambda *_: False)
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    folder = make_tiny_model(tmp_path, architecture=architecture)
    engine = LocalEngineConfig.model_validate({"device": "cpu", "dtype": "bfloat16"} | settings)
    machine = planned_gpu("h100", engine.replace(device="auto"))
    shape = read_model_shape(folder)
    one, two = (saved_bytes(folder, layers, engine, 256) for layers in (1, 2))
    assert two - one == 256 * _gpu_width(shape, engine, machine)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_update_on_a_gpu_takes_at_most_twice_the_memory_for_twice_the_tokens(
    benchmark: ModuleType, checkpointing: bool
) -> None:
    """On other devices it takes more, because a layer's attention probabilities are computed at once."""
    engine = LocalEngineConfig(gradient_checkpointing=checkpointing)
    machine = planned_gpu("h200", engine)

    def update_bytes(tokens: int, device: str) -> int:
        sizes = MaxPassSizes(
            max_episode_tokens=tokens,
            prompt_tokens=0,
            max_turn_tokens=tokens // 8,
            group_size=8,
            concurrent_episodes=8,
            has_reference=False,
        )
        config = engine.replace(max_tokens_per_microbatch=tokens)
        return plan_memory(benchmark.shape_of("Qwen2.5-7B"), config, sizes, machine.replace(device=device)).bytes_in(
            "training"
        )

    for tokens in (8_192, 16_384, 32_768):
        for device in ("cuda", "mps"):  # one with kernels, one without
            assert 1.9 < update_bytes(2 * tokens, device) / update_bytes(tokens, device) <= 2
    gib = update_bytes(32_768, "cuda") / 2**30
    assert gib < (25 if checkpointing else 250)


def test_prefill_of_a_long_prompt_stores_part_of_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_SCORES == attention.MAX_SCORES
    draw = torch.Generator().manual_seed(0)
    shapes = (2, 3, 10, 16), (2, 5, 16), (2, 5, 16), (2, 3, 7, 16), (2, 3, 7, 16)
    inputs = [torch.randn(shape, generator=draw) for shape in shapes]  # two query heads for each key head
    stops = torch.randint(6, 13, (3, 5), generator=draw, dtype=torch.int32)
    for starts in (None, torch.randint(0, 5, (3, 5), generator=draw, dtype=torch.int32)):
        seen, spec = attention.Visible(starts, stops), attention.AttentionSpec(0.3)
        whole = attention.attend(*inputs, seen, spec)
        with monkeypatch.context() as patched:
            patched.setattr(
                attention, "_queries_at_once", lambda q, length, keys: 2 if (length, keys) == (5, 12) else 0
            )
            assert (attention.attend(*inputs, seen, spec) - whole).abs().max() < 1e-6


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_shapes_of_a_config_are_those_of_the_weights(architecture: Architecture, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, architecture=architecture)
    assert model_shape_of_config(folder) == read_model_shape(folder)
    assert read_model_shape(folder).normalizes_heads == (architecture == "qwen3")


def test_sizes_of_the_table_are_those_of_the_published_models(benchmark: ModuleType) -> None:
    assert {model: benchmark.shape_of(model).parameters for model in benchmark.MODELS} == PARAMETERS


@pytest.mark.parametrize(("table", "page"), [("summary", "gpus.md"), ("table", "archive/memory.md")])
def test_table_of_the_documentation_is_the_current_plan(table: str, page: str, benchmark: ModuleType) -> None:
    assert getattr(benchmark, table)() in (ROOT / "docs" / page).read_text(), "run benchmarks/gpu_memory.py"


def test_vllm_takes_its_share_of_the_gpu_and_must_hold_an_episode(benchmark: ModuleType) -> None:
    shape = benchmark.shape_of("Llama-3.1-8B")
    settings = ["engine.finetune=lora", "engine.sampler=vllm", "engine.vllm.gpu_memory_utilization=0.25"]

    def plan(*more: str) -> Any:
        return plan_shape_for_gpu(parse_config("", [*settings, *more]), shape, "h100")

    found = plan("limits.max_episode_tokens=8000")
    share = int(0.25 * GPU_MEMORY["h100"])
    assert sizes_of(found.memory)[VLLM_PART] == found.memory.vllm_bytes == share
    assert found.vllm_cache_tokens == (share - 2 * shape.parameters) // (2 * 32 * 8 * 128 * 2)
    assert found.misfit == ""
    assert f"{(found.memory.peak_bytes - share) / 2**30:.2f} GiB" in format_measured_peak(found.memory, 0)
    long = plan("limits.max_episode_tokens=60000")
    assert "engine.vllm.gpu_memory_utilization" in long.misfit
    assert found.vllm_cache_tokens == long.vllm_cache_tokens < 60_000
    elsewhere = plan("engine.vllm.base_url=http://127.0.0.1:8000").memory
    assert (elsewhere.vllm_bytes, VLLM_PART in sizes_of(elsewhere)) == (0, False)


def test_misfit_on_a_gpu_names_what_vllm_takes_and_sharding(benchmark: ModuleType) -> None:
    shape = benchmark.shape_of("Llama-3.1-8B")

    def remedies(*settings: str) -> list[str]:
        config = parse_config("", ["limits.max_episode_tokens=32000", *settings])
        named = ("engine.vllm.gpu_memory_utilization", "engine.sharding=fsdp", "engine.finetune=lora")
        return [name for name in named if name in plan_shape_for_gpu(config, shape, "h100").misfit]

    assert remedies("engine.sampler=vllm") == [
        "engine.vllm.gpu_memory_utilization",
        "engine.sharding=fsdp",
        "engine.finetune=lora",
    ]
    assert remedies("engine.sampler=torch") == ["engine.sharding=fsdp", "engine.finetune=lora"]
    assert remedies("engine.sampler=vllm", "engine.finetune=lora") == []
    assert remedies("engine.sampler=vllm", "engine.finetune=lora", "engine.vllm.gpu_memory_utilization=0.8") == [
        "engine.vllm.gpu_memory_utilization"
    ]


def test_qlora_is_planned_with_pytorch_as_its_sampler(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.train.planning.memory.vllm_installed", lambda _: True)
    shape = benchmark.shape_of("Qwen2.5-3B")
    plans = {
        way: sizes_of(plan_shape_for_gpu(parse_config("", [f"engine.finetune={way}"]), shape, "h100").memory)
        for way in ("lora", "qlora")
    }
    assert (VLLM_PART in plans["lora"], "KV cache" in plans["lora"]) == (True, False)
    assert (VLLM_PART in plans["qlora"], "KV cache" in plans["qlora"]) == (False, True)
    assert plans["qlora"]["dequantized weight"] == 2 * 2048 * 11008


def test_plan_for_a_gpu_needs_only_a_config(bare: Path, call: Call) -> None:
    assert find_model_config(str(bare)) == bare
    settings = ("retail", f"model={bare}", "engine.sampler=torch", "--dry-run")
    code, out, err = call("train", *settings, "--plan-for", "h200", "--num-processes", "2")
    assert (code, err) == (0, "")
    assert "139.000 GiB" in out
    code, out, _ = call("train", *settings, "--plan-for", "h100", "--json")
    plain = json.loads(out)
    assert (code, plain["gpu"], plain["memory"]["device"], plain["misfit"]) == (0, "h100", "cuda", "")
    assert plain["memory"]["parts"]
    code, out, _ = call("train", *settings, "--plan-for", "h100", "limits.max_episode_tokens=900000000")
    assert code == 1
    assert "does not fit" in out.splitlines()[0]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (("--plan-for", "h101", "--dry-run"), "h100"),
        (("--plan-for", "h100"), "--dry-run"),
        (("--plan-for", "h100", "--dry-run", "engine.device=cpu"), "engine.device"),
        (("--plan-for", "h100", "--dry-run", "engine.kind=skyrl"), "engine.kind"),
        (("--plan-for", "h100", "--dry-run", "model=./nowhere"), "nowhere"),
    ],
)
def test_plans_for_a_gpu_that_cannot_be_made_are_refused(settings: tuple[str, ...], named: str, call: Call) -> None:
    code, _, err = call("train", "retail", "model=tiny", *settings)
    assert (code, len(err.splitlines())) == (2, 1)
    assert named in err


def test_config_of_an_unknown_architecture_is_refused(bare: Path) -> None:
    (bare / "config.json").write_text('{"model_type": "no_such_model"}')
    with pytest.raises(ConfigError, match=r"config\.json"):
        plan_for_gpu(parse_config("", [f"model={bare}"]), "h100")


def test_plan_for_a_gpu_trains_adapters_of_a_model_that_is_much_larger_than_that_of_the_preset(bare: Path) -> None:
    about = json.loads((bare / "config.json").read_text())
    about |= {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "vocab_size": 32000}
    (bare / "config.json").write_text(json.dumps(about))
    settings = [f"model={bare}", "engine.sampler=torch"]
    for given, finetune in (([], "lora"), (["engine.finetune=full"], "full")):
        found = plan_for_gpu(load_config("retail_quick", [*settings, *given]), "h100")
        assert isinstance(found.config.engine, LocalEngineConfig)
        assert found.config.engine.finetune == finetune
        assert any("engine.finetune = lora" in note for note in found.notes) == (finetune == "lora")
