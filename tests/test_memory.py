"""Memory plans: parts worked by hand, shapes as the engine has them, and a plan beside the peak of a real process."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from machine import ELSEWHERE  # noqa: E402
from understudy.algorithms.options import Loss  # noqa: E402
from understudy.batch import collate  # noqa: E402
from understudy.config import TrainConfig  # noqa: E402
from understudy.engines.local import cache, head  # noqa: E402
from understudy.engines.local.config import LocalConfig  # noqa: E402
from understudy.engines.local.engine import LocalEngine  # noqa: E402
from understudy.engines.local.machine import Machine, find_machine, peak_bytes  # noqa: E402
from understudy.engines.local.model import Model  # noqa: E402
from understudy.errors import ConfigError  # noqa: E402
from understudy.memory import (  # noqa: E402
    GROWTH,
    LOGITS,
    Load,
    Plan,
    as_text,
    beside,
    checkpoint_bytes,
    load_of,
    plan,
    planned,
    read_shape,
)
from understudy.messages import Message  # noqa: E402
from understudy.models import make_tiny  # noqa: E402
from understudy.settings import parse  # noqa: E402
from understudy.tasks import Score  # noqa: E402
from understudy.trajectory import Trajectory  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's, of transformers
MACHINE = Machine(device="cpu", item=4, fused=True, packs=False, taken=1000, total=1 << 30)
LOAD = Load(longest=300, prompt=100, turn=50, group=4, live=8, reference=False)
VLLM = "engine.vllm.url=http://127.0.0.1:8000"
BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "memory.py"


def config(**settings: Any) -> LocalConfig:
    return LocalConfig.model_validate({"device": "cpu", "dtype": "float32", "sequences": 8} | settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


def sizes(found: Plan) -> dict[str, int]:
    return {part.name: part.size for part in found.parts}


def test_what_the_plan_repeats_of_the_engine_is_the_engines() -> None:
    assert (LOGITS, GROWTH) == (head.CHUNK, cache.GROWTH)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"train_embeddings": True},
        {"finetune": "lora", "lora": {"rank": 3}},
        {"finetune": "lora", "lora": {"rank": 3, "targets": ["all-linear"]}},
        {"finetune": "lora", "lora": {"targets": ["q_proj", "o_proj"]}},
    ],
)
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_weights_and_what_is_trained_are_counted_as_the_model_has_them(
    tmp_path: Path, architecture: Any, settings: dict[str, Any]
) -> None:
    model = Model(make_tiny(tmp_path, architecture=architecture), config(**settings))
    found = sizes(plan(read_shape(tmp_path), config(**settings), LOAD, MACHINE))
    trained = sum(p.numel() for p in model.trainable().values())
    assert found["weights"] + found.get("adapters", 0) == sum(p.nbytes for p in model.network.parameters())
    assert (found["master weights"], found["gradients"], found["optimizer moments"]) == (
        4 * trained,
        4 * trained,
        8 * trained,
    )
    assert checkpoint_bytes(read_shape(tmp_path), TrainConfig(engine=config(**settings)), 2) == 12 * trained


@pytest.mark.parametrize(
    ("settings", "item"),
    [
        ((), 0),
        (("algorithm.kl_coefficient=0.1",), 2),
        (("algorithm.kl_coefficient=0.1", "algorithm.reference.kind=ema"), 4),
        (("algorithm.kl_coefficient=0.1", "algorithm.reference.kind=model", "algorithm.reference.model=tiny"), 0),
        (("preferences.steps=1",), 2),
    ],
)
def test_a_checkpoint_is_as_large_as_it_is_reckoned(tmp_path: Path, settings: tuple[str, ...], item: int) -> None:
    found = parse(TrainConfig, "", ["engine.device=cpu", "engine.dtype=bfloat16", *settings])
    engine = LocalEngine(make_tiny(tmp_path / "model"), found.engine)
    shape = read_shape(tmp_path / "model")
    if found.algorithm.kl_coefficient or found.preferences.steps:
        engine.keep_reference(found.algorithm.reference)
    episode = Trajectory("t", score=Score(reward=1.0))
    episode.observe([], [1])
    episode.act(Message(role="assistant"), [2, 3], [-1.0, -1.0])
    batch = collate([episode])
    step = batch.with_(advantages=batch.mask.float())
    asyncio.run(engine.update([step], Loss(kind="nll"), 1e-3))  # there are no moments before
    engine.save(tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    reckoned = checkpoint_bytes(shape, found, 2)
    assert reckoned == (12 + item) * (shape.parameters - shape.embeddings)
    assert reckoned <= file.stat().st_size < reckoned + 15_000, "names, of a reference too, and the count of steps"


def test_the_cache_has_room_for_every_sequence(folder: Path) -> None:
    found = sizes(plan(read_shape(folder), config(), LOAD, MACHINE))
    token = 2 * 2 * 2 * 16 * 4  # keys and values, 2 layers, 2 key heads of 16 numbers
    assert found["keys and values"] == token * (8 * 256 + 2 * 100)  # 200 own tokens are rounded up; two groups' prompts


def test_activations_are_those_of_a_full_micro_batch(folder: Path) -> None:
    """Two rows of 200 own tokens and their prompt fit into 550: 500 tokens are computed."""
    found = sizes(plan(read_shape(folder), config(tokens_per_microbatch=550), LOAD, MACHINE))
    width = 4 * 64 + 3 * 64 + 3 * 32 + 3 * 192
    attention = 4 * 400 * 300  # 4 heads, 400 queries, of which each may see 300 tokens
    assert found["activations"] == 2 * 4 * (500 * width + attention)
    saved = sizes(plan(read_shape(folder), config(tokens_per_microbatch=550, checkpointing=True), LOAD, MACHINE))
    assert saved["activations"] == 2 * 4 * 500 * 64 + 4 * (500 * width + attention)


def test_sampling_and_training_take_turns(folder: Path) -> None:
    found = plan(read_shape(folder), config(), LOAD, MACHINE)
    sampling, training = found.sum("sampling"), found.sum("training")
    assert found.peak == found.sum("always") + max(sampling, training)
    through_vllm = plan(read_shape(folder), config(), LOAD.replace(here=False), MACHINE)
    assert through_vllm.sum("sampling") == 0
    assert plan(read_shape(folder), config(), LOAD.replace(reference=True), MACHINE).peak > found.peak
    half = MACHINE.replace(item=2)
    frozen, average = (
        sizes(plan(read_shape(folder), config(), LOAD.replace(reference=True, averaged=each), half))["reference"]
        for each in (False, True)
    )
    assert average / frozen == 6 / 4, "an average is in float32, and the current weights are beside either"


def test_weights_in_4_bits_take_an_eighth(folder: Path) -> None:
    shape = read_shape(folder)
    whole, small = (sizes(plan(shape, config(finetune=way), LOAD, MACHINE)) for way in ("lora", "qlora"))
    linear = sum(x.inputs * x.outputs for x in shape.linear)
    saved = whole["weights"] - small["weights"]
    assert saved == pytest.approx(linear * (4 - 0.516), rel=1e-3)


def test_a_plan_that_does_not_fit_says_what_to_turn_down(folder: Path) -> None:
    text = as_text(plan(read_shape(folder), config(), LOAD, MACHINE.replace(total=1 << 20)))
    assert "more than there is; lower engine.tokens_per_microbatch, or set engine.checkpointing" in text
    fits = plan(read_shape(folder), config(), LOAD, MACHINE)
    assert "more than there is" not in as_text(fits)
    assert beside(fits, 1 << 29) == f"memory at its peak: 0.50 GiB; the plan allowed for {fits.peak / 2**30:.2f}"


def test_the_load_is_what_the_config_allows_at_most() -> None:
    found = parse(
        TrainConfig,
        "",
        ["engine.sampler=torch", "limits.max_tokens=1000", "sampling.max_tokens=60", "limits.max_turns=5"],
    )
    assert load_of(found) == Load(longest=1060, prompt=0, turn=212, group=8, live=48, reference=False)
    few = parse(TrainConfig, "", ["engine.sequences=4", "algorithm.kl_coefficient=0.1"])
    assert (load_of(few).live, load_of(few).reference) == (4, True)
    for settings, here in ((["engine.sampler=vllm"], False), (["engine.sampler=torch"], True), ([VLLM], False)):
        assert load_of(parse(TrainConfig, "", settings)).here == here


def test_a_process_of_several_has_its_share_of_every_group() -> None:
    """48 episodes of 6 tasks: two processes have 24 each, 4 of every task; five have 10 at most, 2 of a task."""
    alone = parse(TrainConfig, "", ["algorithm.tasks_per_step=6", "algorithm.group_size=8"])
    assert [(load_of(alone, n).live, load_of(alone, n).group) for n in (1, 2, 5)] == [
        (48, 8),
        (24, 4),
        (10, 2),
    ]


def test_replicas_take_as_much_as_one_process_each_and_a_cpu_has_to_hold_them_all(folder: Path) -> None:
    shape = read_shape(folder)
    alone, each = (plan(shape, config(), LOAD, MACHINE, n) for n in (1, 3))
    assert (each.parts, each.needed) == (alone.parts, 3 * alone.peak)
    room = MACHINE.replace(total=2 * alone.peak)
    assert plan(shape, config(), LOAD, room).fits
    text = as_text(plan(shape, config(), LOAD, room, 3))
    assert text.startswith("planned memory of the cpu, for each of 3 processes\n")
    together = f"{3 * alone.peak / 2**30:.3f} GiB of {2 * alone.peak / 2**30:.3f} GiB: more than there is"
    assert text.splitlines()[-1].split(maxsplit=2)[:2] == ["all", "processes"]
    assert together in text.splitlines()[-1]
    assert text.endswith("engine.checkpointing, or start fewer processes")
    on_gpus = plan(shape, config(), LOAD, room.replace(device="cuda"), 3)
    assert on_gpus.fits  # each has one of its own
    assert "all processes" not in as_text(on_gpus)
    assert beside(on_gpus, 1 << 29).startswith("memory of the first process at its peak: 0.50 GiB")


def test_of_divided_layers_a_process_keeps_its_shard(folder: Path) -> None:
    shape = read_shape(folder)
    layers, ends = shape.parameters - shape.embeddings, shape.embeddings
    found = sizes(plan(shape, config(sharding="fsdp", train_embeddings=True), LOAD, MACHINE, 2))
    assert found["weights"] == 4 * (layers // 2 + ends)
    assert (found["gradients"], found["optimizer moments"]) == (4 * (layers // 2 + ends), 8 * (layers // 2 + ends))
    assert (found["layers, gathered"], found["a layer, gathered"]) == (4 * layers, 4 * layers // 2)
    lora = {"finetune": "lora", "lora": {"rank": 3}}
    whole, half = (sizes(plan(shape, config(sharding="fsdp", **lora), LOAD, MACHINE, n)) for n in (1, 2))
    assert half["master weights"] == whole["master weights"] // 2
    assert half["layers, gathered"] == 4 * layers + whole["adapters"]
    assert "layers, gathered" not in whole


def test_the_plan_of_a_run_is_for_its_processes(folder: Path) -> None:
    settings = parse(TrainConfig, "", ["engine.sampler=torch", "engine.device=cpu", "engine.sequences=64"])
    alone, (each,) = planned(settings, folder, MACHINE), planned(settings, folder, MACHINE, 4)
    assert (alone[0].processes, each.processes) == (1, 4)
    assert each.sum("sampling") < alone[0].sum("sampling")


def test_a_config_without_sizes_is_one_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": 4}))
    with pytest.raises(ConfigError, match=r"config\.json says no 'num_hidden_layers'"):
        read_shape(tmp_path)


def test_the_machine_is_the_one_that_the_model_runs_on(folder: Path) -> None:
    machine = find_machine(config())
    assert (machine.device, machine.item) == ("cpu", 4)
    assert 50e6 < machine.taken < 1.02 * peak_bytes("cpu") < machine.total  # the kernel counts the two apart


@pytest.mark.skipif(sys.platform != "linux", reason=f"{ELSEWHERE}the plan of the heap is Linux's")
@pytest.mark.parametrize("case", ["full", "lora"])
def test_the_plan_is_within_a_quarter_of_what_is_measured(case: str, tmp_path: Path) -> None:
    """A process of its own, whose peak is its own; without what it took before there was a model."""
    model = make_tiny(tmp_path, hidden=256, layers=4)
    names = {"longest": 384, "microbatch": 1536, "case": case, "model": model}
    command = [sys.executable, "-W", "ignore", str(BENCHMARK), *(f"--{k}={v}" for k, v in names.items())]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["measured"] > 100e6
    assert found["planned"] == pytest.approx(found["measured"], rel=0.25)
