"""Tests of memory plans: hand-computed parts, the sizes of a real engine, and the measured peak of a process."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.machine import ELSEWHERE
from support.paths import ROOT
from understudy.algorithms.batch import collate
from understudy.algorithms.config import LossConfig
from understudy.core.errors import ConfigError
from understudy.core.messages import Message
from understudy.core.settings import parse_toml
from understudy.core.tasks import Score
from understudy.core.trajectory import Trajectory
from understudy.engines.local import token_logprobs
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.cpu import tree
from understudy.engines.local.engine import LocalEngine
from understudy.engines.local.machine import Machine, detect_machine, peak_memory_bytes
from understudy.engines.local.model import LocalModel
from understudy.engines.local.sampling import kv_cache
from understudy.engines.models import make_tiny_model
from understudy.runs.config import (
    TrainConfig,
    parse_config,
)
from understudy.train.planning.layer_memory import measure_shape
from understudy.train.planning.memory import (
    CACHE_GROWTH,
    CHUNK_LOGITS,
    LOGIT_CHUNK,
    QUERIES_AT_ONCE,
    LayerMemory,
    MaxPassSizes,
    MemoryPlan,
    checkpoint_bytes,
    explain_misfit,
    format_measured_peak,
    format_memory_plan,
    max_pass_sizes,
    plan_memory,
    read_model_shape,
    summarize_memory_plan,
)

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's, of transformers
MACHINE = Machine(
    device="cpu", dtype_bytes=4, fused_kernels=True, packs_weights=False, memory_used=1000, memory_total=1 << 30
)
WORKLOAD = MaxPassSizes(
    max_episode_tokens=300,
    prompt_tokens=100,
    max_turn_tokens=50,
    group_size=4,
    concurrent_episodes=8,
    has_reference=False,
)
VLLM = "engine.vllm.base_url=http://127.0.0.1:8000"
BENCHMARK = ROOT / "benchmarks" / "memory.py"


def config(**settings: Any) -> LocalEngineConfig:
    return LocalEngineConfig.model_validate({"device": "cpu", "dtype": "float32", "max_num_seqs": 8} | settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def part_sizes(found: MemoryPlan) -> dict[str, int]:
    return {part.name: part.num_bytes for part in found.parts}


def test_plan_constants_equal_those_of_the_engine() -> None:
    assert (LOGIT_CHUNK, CHUNK_LOGITS) == (token_logprobs.LOGIT_CHUNK, token_logprobs.CHUNK_LOGITS)
    assert (CACHE_GROWTH, QUERIES_AT_ONCE) == (kv_cache.CACHE_GROWTH, tree.QUERIES_AT_ONCE)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"train_embeddings": True},
        {"finetune": "lora", "lora": {"rank": 3}},
        {"finetune": "lora", "lora": {"rank": 3, "target_modules": ["all-linear"]}},
        {"finetune": "lora", "lora": {"target_modules": ["q_proj", "o_proj"]}},
        {"finetune": "lora", "lora": {"rank": 3}, "trainable_layers": 1},
    ],
)
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_planned_weights_and_optimizer_state_match_the_model(
    tmp_path: Path, architecture: Any, settings: dict[str, Any]
) -> None:
    model = LocalModel(make_tiny_model(tmp_path, architecture=architecture), config(**settings))
    found = part_sizes(plan_memory(read_model_shape(tmp_path), config(**settings), WORKLOAD, MACHINE))
    trained = sum(p.numel() for p in model.trainable_parameters().values())
    assert found["weights"] + found.get("adapters", 0) == sum(p.nbytes for p in model.network.parameters())
    assert (found["master weights"], found["gradients"], found["optimizer moments"]) == (
        4 * trained,
        4 * trained,
        8 * trained,
    )
    assert checkpoint_bytes(read_model_shape(tmp_path), TrainConfig(engine=config(**settings)), 2) == 12 * trained


@pytest.mark.parametrize(
    ("settings", "item"),
    [
        ((), 0),
        (("algorithm.kl_coef=0.1",), 2),
        (("algorithm.kl_coef=0.1", "algorithm.reference.kind=ema"), 4),
        (("algorithm.kl_coef=0.1", "algorithm.reference.kind=model", "algorithm.reference.model=tiny"), 0),
        (("preferences.steps=1",), 2),
    ],
)
def test_planned_checkpoint_size_matches_the_file(tmp_path: Path, settings: tuple[str, ...], item: int) -> None:
    found = parse_config("", ["engine.device=cpu", "engine.dtype=bfloat16", *settings])
    engine = LocalEngine(make_tiny_model(tmp_path / "model"), found.engine)
    shape = read_model_shape(tmp_path / "model")
    if found.algorithm.kl_coef or found.preferences.steps:
        engine.set_reference(found.algorithm.reference)
    episode = Trajectory("t", score=Score(reward=1.0))
    episode.observe([], [1])
    episode.act(Message(role="assistant"), [2, 3], [-1.0, -1.0])
    batch = collate([episode])
    step = batch.replace(advantages=batch.mask.float())
    asyncio.run(engine.update([step], LossConfig(kind="nll"), 1e-3))  # optimizer moments exist only after an update
    engine.save(tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    expected_size = checkpoint_bytes(shape, found, 2)
    assert expected_size == (12 + item) * (shape.parameters - shape.embeddings)
    assert expected_size <= file.stat().st_size < expected_size + 15_000, (
        "names, of a reference too, and the count of steps"
    )


def test_planned_kv_cache_holds_every_sequence(folder: Path) -> None:
    found = part_sizes(plan_memory(read_model_shape(folder), config(), WORKLOAD, MACHINE))
    token = 2 * 2 * 2 * 16 * 4  # keys and values, 2 layers, 2 KV heads of dimension 16
    assert found["KV cache"] == token * (
        8 * 256 + 2 * 100
    )  # 200 own tokens rounded up to 256; the prompts of two groups


def test_planned_activations_are_those_of_a_full_microbatch(folder: Path) -> None:
    """Two rows of 200 own tokens and their shared prompt fit into 550: 500 tokens are computed."""
    shape, settings = read_model_shape(folder), config(max_tokens_per_microbatch=550)
    found, plain = (
        part_sizes(plan_memory(shape, settings, WORKLOAD, MACHINE.model_copy(update={"fused_kernels": fused})))
        for fused in (True, False)
    )
    width = 2 * 64 + 2 * 64 + 2 * 32 + 2 * 192
    scores = 4 * 128 * 500  # 4 heads, 128 queries at once, each with up to 500 keys
    assert found["activations"] == 2 * 4 * 500 * width
    assert found["a layer's gradients"] == 4 * 500 * (4 * 192 + 4 * 64), "the kernels store no probabilities"
    assert plain["a layer's gradients"] == 4 * 6 * scores, "probabilities, their gradients and what leads to them"
    saved = part_sizes(
        plan_memory(
            read_model_shape(folder),
            config(max_tokens_per_microbatch=550, gradient_checkpointing=True),
            WORKLOAD,
            MACHINE,
        )
    )
    assert saved["activations"] == 2 * 4 * 500 * 64 + 4 * 500 * (width + 2 * 64 + 192)


def test_fewer_trainable_layers_store_less(folder: Path) -> None:
    shape = read_model_shape(folder)
    whole, half = (
        part_sizes(plan_memory(shape, config(trainable_layers=count), WORKLOAD, MACHINE)) for count in (0, 1)
    )
    assert shape.layers == 2
    for name in ("activations", "master weights", "gradients", "optimizer moments"):
        assert half[name] == whole[name] // 2
    both = part_sizes(plan_memory(shape, config(trainable_layers=1, train_embeddings=True), WORKLOAD, MACHINE))
    assert both["activations"] == whole["activations"], "the backward pass goes to the embeddings"


def test_padded_rows_store_scores_and_linear_attention(folder: Path) -> None:
    """Worked by hand for 300 tokens of 4 heads, in float32: two copies of the scores and one in 4 bytes."""
    shape, one = read_model_shape(folder), config(max_tokens_per_microbatch=300, batching="padded")
    load = WORKLOAD.replace(prompt_tokens=0)

    def activations(**changes: Any) -> int:
        return part_sizes(plan_memory(shape.replace(**changes), one, load, MACHINE))["activations"]

    plain = activations()
    assert activations(stores_scores=True) - plain == shape.layers * 300 * 4 * 300 * 12
    assert activations(linear_layers=1, linear_width=32) - plain == 300 * 16 * 32 * 4
    assert activations(used_experts=3) - plain == shape.layers * 300 * 2 * 3 * shape.hidden * 4
    assert activations(norms=4) - plain == shape.layers * 300 * 2 * shape.hidden * 8


def test_scaled_or_capped_logits_are_stored_twice(folder: Path) -> None:
    shape, load = read_model_shape(folder).replace(vocabulary=100_000), WORKLOAD.replace(prompt_tokens=0)
    plain, capped = (
        part_sizes(
            plan_memory(shape.replace(has_plain_head=plain), config(), load, MACHINE.replace(fused_kernels=False))
        )
        for plain in (True, False)
    )
    assert capped["logits of a chunk"] == 2 * plain["logits of a chunk"]


def test_measured_layers_replace_the_formulas(folder: Path) -> None:
    """Two rows of 300 tokens in a microbatch, eight sequences at once, and prefills of 4,096 tokens at most."""
    layers = (
        LayerMemory(stored=1000, backward=70, inference=30_000, cached=5),
        LayerMemory(stored=3000, backward=50_000_000, inference=60, cached=6),
    )
    shape = read_model_shape(folder).replace(measured=layers)
    settings = {"max_tokens_per_microbatch": 700, "batching": "padded"}

    def sizes(**more: Any) -> dict[str, int]:
        return part_sizes(plan_memory(shape, config(**settings, **more), WORKLOAD, MACHINE))

    found, one, recomputed = sizes(), sizes(trainable_layers=1), sizes(gradient_checkpointing=True)
    assert (found["activations"], one["activations"]) == (2 * 4000, 2 * 3000)
    assert recomputed["activations"] == 2 * 600 * shape.hidden * 4 + 2 * 3000
    assert found["a layer's gradients"] == 2 * 50_000_000
    assert found["KV cache"] == 3 * WORKLOAD.concurrent_episodes * 11
    assert measure_shape(shape, folder, config(), 300, MACHINE) == shape, "a packed model has formulas"


def test_packed_weights_include_the_output_head(folder: Path) -> None:
    shape, packing = read_model_shape(folder), MACHINE.replace(packs_weights=True, dtype_bytes=2)
    linear = sum(x.inputs * x.outputs for x in shape.linear)
    found = part_sizes(plan_memory(shape, config(), WORKLOAD, packing))
    assert found["packed weights"] == 2 * (linear + shape.vocabulary * shape.hidden)
    assert found["oneDNN primitives"] == 256 << 20
    wide = part_sizes(plan_memory(shape, config(), WORKLOAD, packing.replace(dtype_bytes=4)))
    assert wide["packed weights"] == 2 * found["packed weights"]
    assert "oneDNN primitives" not in wide


def test_heap_of_a_cpu_keeps_the_memory_of_sampling(folder: Path) -> None:
    shape = read_model_shape(folder)
    for machine, load in ((MACHINE, WORKLOAD), (MACHINE, WORKLOAD.replace(samples_locally=False))):
        found = plan_memory(shape, config(), load, machine)
        assert part_sizes(found).get("kept after sampling", 0) == found.bytes_in("sampling")
    on_gpu = plan_memory(shape, config(), WORKLOAD, MACHINE.replace(device="cuda"))
    assert on_gpu.bytes_in("sampling")
    assert "kept after sampling" not in part_sizes(on_gpu)


def test_peak_is_the_larger_of_sampling_and_training(folder: Path) -> None:
    found = plan_memory(read_model_shape(folder), config(), WORKLOAD, MACHINE)
    sampling, training = found.bytes_in("sampling"), found.bytes_in("training")
    assert found.peak_bytes == found.bytes_in("always") + max(sampling, training)
    through_vllm = plan_memory(read_model_shape(folder), config(), WORKLOAD.replace(samples_locally=False), MACHINE)
    assert through_vllm.bytes_in("sampling") == 0
    assert (
        plan_memory(read_model_shape(folder), config(), WORKLOAD.replace(has_reference=True), MACHINE).peak_bytes
        > found.peak_bytes
    )
    half = MACHINE.replace(dtype_bytes=2)
    frozen, average = (
        part_sizes(
            plan_memory(
                read_model_shape(folder), config(), WORKLOAD.replace(has_reference=True, has_ema_reference=each), half
            )
        )["reference"]
        for each in (False, True)
    )
    assert average / frozen == 6 / 4, "an average is in float32, and the current weights are beside either"


def test_qlora_plan_has_4_bit_weights(folder: Path) -> None:
    shape = read_model_shape(folder)
    whole, small = (
        part_sizes(plan_memory(shape, config(finetune=way), WORKLOAD, MACHINE)) for way in ("lora", "qlora")
    )
    linear = sum(x.inputs * x.outputs for x in shape.linear)
    saved = whole["weights"] - small["weights"]
    assert saved == pytest.approx(linear * (4 - 0.516), rel=1e-3)


def test_plan_that_does_not_fit_suggests_settings(folder: Path) -> None:
    small = plan_memory(read_model_shape(folder), config(), WORKLOAD, MACHINE.replace(memory_total=1 << 20))
    assert re.search(
        r"engine\.max_tokens_per_microbatch.*engine\.gradient_checkpointing", explain_misfit(small, LocalEngineConfig())
    )
    fits = plan_memory(read_model_shape(folder), config(), WORKLOAD, MACHINE)
    assert explain_misfit(fits, LocalEngineConfig()) == ""
    assert re.fullmatch(rf".*\b{fits.peak_bytes / 2**30:.2f} GiB\b.*\bcpu\b.*", summarize_memory_plan(fits)), "a line"
    tight = fits.replace(device_bytes=round(fits.peak_bytes * 1.1))
    assert tight.fits
    assert summarize_memory_plan(tight) == format_memory_plan(tight)
    assert re.search(rf"\b0\.50 GiB\b.*\b{fits.peak_bytes / 2**30:.2f}", format_measured_peak(fits, 1 << 29))


def test_workload_is_the_maximum_that_the_config_allows() -> None:
    found = parse_toml(
        TrainConfig,
        "",
        [
            "engine.sampler=torch",
            "limits.max_episode_tokens=1000",
            "sampling.max_response_tokens=60",
            "limits.max_turns=5",
        ],
    )
    assert max_pass_sizes(found) == MaxPassSizes(
        max_episode_tokens=1060,
        prompt_tokens=0,
        max_turn_tokens=212,
        group_size=8,
        concurrent_episodes=48,
        has_reference=False,
    )
    few = parse_config("", ["engine.max_num_seqs=4", "algorithm.kl_coef=0.1"])
    assert (max_pass_sizes(few).concurrent_episodes, max_pass_sizes(few).has_reference) == (4, True)
    for settings, here in ((["engine.sampler=vllm"], False), (["engine.sampler=torch"], True), ([VLLM], False)):
        assert max_pass_sizes(parse_config("", settings)).samples_locally == here


def plan_config_memory(config: TrainConfig, folder: Path, processes: int = 1) -> MemoryPlan:
    sizes = max_pass_sizes(config, processes)
    return plan_memory(read_model_shape(folder), config.engine, sizes, MACHINE, processes)


def test_plan_counts_the_weights_of_a_teacher(folder: Path) -> None:
    settings = ["engine.sampler=torch", "engine.device=cpu", "algorithm.kl_coef=1"]
    teacher = ["algorithm.reference.kind=model", f"algorithm.reference.model={folder}"]
    frozen, taught = (
        part_sizes(plan_config_memory(parse_config("", [*settings, *more]), folder)) for more in ([], teacher)
    )
    assert taught["teacher"] == frozen["weights"] == taught["weights"]
    assert "reference" in frozen
    assert "reference" not in taught
    both = parse_config("", [*settings, *teacher, "preferences.steps=1"])
    assert part_sizes(plan_config_memory(both, folder))["reference"] == frozen["reference"]


def test_workload_is_divided_among_processes() -> None:
    """Of 48 episodes of 6 tasks, 2 processes have 24 each, 4 per task; 5 have at most 10 each, 2 per task."""
    alone = parse_config("", ["algorithm.groups_per_batch=6", "algorithm.group_size=8"])
    assert [(max_pass_sizes(alone, n).concurrent_episodes, max_pass_sizes(alone, n).group_size) for n in (1, 2, 5)] == [
        (48, 8),
        (24, 4),
        (10, 2),
    ]


def test_replicas_on_one_cpu_add_up_and_on_gpus_do_not(folder: Path) -> None:
    shape = read_model_shape(folder)
    alone, each = (plan_memory(shape, config(), WORKLOAD, MACHINE, n) for n in (1, 3))
    assert (each.parts, each.required_bytes) == (alone.parts, 3 * alone.peak_bytes)
    room = MACHINE.replace(memory_total=2 * alone.peak_bytes)
    assert plan_memory(shape, config(), WORKLOAD, room).fits
    three = plan_memory(shape, config(), WORKLOAD, room, 3)
    text = format_memory_plan(three)
    assert re.match(r".*\bcpu\b.*\b3 processes\n", text)
    together = f"{3 * alone.peak_bytes / 2**30:.3f} GiB of {2 * alone.peak_bytes / 2**30:.3f} GiB"
    assert text.splitlines()[-1].split(maxsplit=2)[:2] == ["all", "processes"]
    assert together in text.splitlines()[-1]
    assert re.search(
        r"3 processes.*engine\.gradient_checkpointing.*processes$", explain_misfit(three, LocalEngineConfig())
    )
    on_gpus = plan_memory(shape, config(), WORKLOAD, room.replace(device="cuda"), 3)
    assert on_gpus.fits  # each process has its own GPU
    assert "all processes" not in format_memory_plan(on_gpus)
    assert re.search(r"\b0\.50 GiB\b", format_measured_peak(on_gpus, 1 << 29))


def test_fsdp_plan_divides_the_layers_among_processes(folder: Path) -> None:
    shape = read_model_shape(folder)
    layers, ends = shape.parameters - shape.embeddings, shape.embeddings
    found = part_sizes(plan_memory(shape, config(sharding="fsdp", train_embeddings=True), WORKLOAD, MACHINE, 2))
    assert found["weights"] == 4 * (layers // 2 + ends)
    assert (found["gradients"], found["optimizer moments"]) == (4 * (layers // 2 + ends), 8 * (layers // 2 + ends))
    assert (found["gathered layers"], found["gathered layer"]) == (4 * layers, 4 * layers // 2)
    lora = {"finetune": "lora", "lora": {"rank": 3}}
    whole, half = (
        part_sizes(plan_memory(shape, config(sharding="fsdp", **lora), WORKLOAD, MACHINE, n)) for n in (1, 2)
    )
    assert half["master weights"] == whole["master weights"] // 2
    assert half["gathered layers"] == 4 * layers + whole["adapters"]
    assert "gathered layers" not in whole


def test_run_plan_is_for_its_number_of_processes(folder: Path) -> None:
    settings = parse_config("", ["engine.sampler=torch", "engine.device=cpu", "engine.max_num_seqs=64"])
    alone, each = plan_config_memory(settings, folder), plan_config_memory(settings, folder, 4)
    assert (alone.processes, each.processes) == (1, 4)
    assert each.bytes_in("sampling") < alone.bytes_in("sampling")


def test_model_config_without_sizes_raises(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": 4}))
    with pytest.raises(ConfigError, match=r"config\.json.*num_hidden_layers"):
        read_model_shape(tmp_path)


def test_detected_machine_is_the_configured_device(folder: Path) -> None:
    machine = detect_machine(config())
    assert (machine.device, machine.dtype_bytes) == ("cpu", 4)
    assert (
        50e6 < machine.memory_used < 1.02 * peak_memory_bytes("cpu") < machine.memory_total
    )  # the kernel counts current and peak memory separately


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({"model_type": "llama"}, {"has_kernels": True, "has_plain_head": True, "stores_scores": False}),
        ({"model_type": "gemma2", "attn_logit_softcapping": 50.0}, {"stores_scores": True, "pads_rows": False}),
        ({"model_type": "gemma2", "final_logit_softcapping": 30.0}, {"has_kernels": False, "has_plain_head": False}),
        ({"model_type": "gemma3n_text", "intermediate_size": [48, 96]}, {"intermediate": 96, "pads_rows": False}),
        ({"model_type": "falcon_h1"}, {"pads_rows": True}),
        ({"model_type": "qwen3_moe", "num_experts_per_tok": 4}, {"used_experts": 4, "has_kernels": False}),
        (
            {
                "layer_types": ["linear_attention", "full_attention"],
                "linear_num_value_heads": 3,
                "linear_value_head_dim": 5,
            },
            {"linear_layers": 1, "linear_width": 15, "cached_layers": 1, "pads_rows": True},
        ),
    ],
)
def test_shape_knows_what_the_config_says(tmp_path: Path, about: dict[str, Any], expected: dict[str, Any]) -> None:
    made = make_tiny_model(tmp_path)
    own = json.loads((made / "config.json").read_text(encoding="utf-8"))
    (made / "config.json").write_text(json.dumps(own | about), encoding="utf-8")
    found = read_model_shape(made)
    assert {name: getattr(found, name) for name in expected} == expected
    assert found.norms == 2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason=f"{ELSEWHERE}the plan of the heap is Linux's")
@pytest.mark.parametrize("case", ["full", "lora"])
def test_planned_peak_is_within_25_percent_of_the_measured_peak(case: str, tmp_path: Path) -> None:
    """Runs in a new process, so that the peak, less the memory used before loading, is the model's."""
    model = make_tiny_model(tmp_path, hidden_size=256, num_layers=4)
    names = {"longest": 384, "microbatch": 1536, "case": case, "model": model}
    command = [sys.executable, "-W", "ignore", str(BENCHMARK), *(f"--{k}={v}" for k, v in names.items())]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["measured"] > 100e6
    assert found["planned"] == pytest.approx(found["measured"], rel=0.25)
