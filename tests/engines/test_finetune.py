"""Tests of fine-tuning options: LoRA target modules, dropout, gradient checkpointing and 4-bit weights."""

import asyncio
import importlib
import itertools
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from support.cpu_kernels import needs_kernels
from support.software import bitsandbytes_packages
from understudy.algorithms.batch import Batch, collate
from understudy.algorithms.config import LossConfig
from understudy.core.errors import ConfigError
from understudy.core.messages import Message
from understudy.core.tasks import Score
from understudy.core.trajectory import Trajectory
from understudy.engines.interface import SamplingParams
from understudy.engines.local import model
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.engine import LocalEngine
from understudy.engines.models import make_tiny_model

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's, of transformers
LORA_WITH_DROPOUT = {"finetune": "lora", "lora": {"rank": 4, "dropout": 0.4}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), hidden_size=64)


def engine_of(folder: Path, seed: int = 0, **settings: Any) -> LocalEngine:
    values = {"device": "cpu", "dtype": "float32", "lora": {"rank": 4}} | settings
    return LocalEngine(folder, LocalEngineConfig.model_validate(values), seed)


def sample_batch(engine: LocalEngine, prompts: Sequence[bytes] = (b"Order 1.", b"Order 2, please.", b"No")) -> Batch:
    """Return sampled replies as a batch with random advantages."""

    async def reply(i: int, prompt: bytes) -> Trajectory:
        episode = Trajectory("t", score=Score(reward=float(i % 2)))
        episode.observe([], [*prompt])
        done = await engine.sample(episode.tokens, SamplingParams(max_response_tokens=12, temperature=0.8), i)
        episode.act(Message(role="assistant"), done.tokens, done.logprobs)
        return episode

    async def sample_all() -> list[Trajectory]:
        return await asyncio.gather(*(reply(i, prompt) for i, prompt in enumerate(prompts)))

    batch = collate(asyncio.run(sample_all()), temperature=0.8)
    advantages = torch.randn(batch.tokens.shape, generator=torch.Generator().manual_seed(1)) / 50
    return batch.replace(advantages=advantages * batch.mask)


def update(engine: LocalEngine, batch: Batch, rate: float = 0.01) -> dict[str, float]:
    return asyncio.run(engine.update([batch], LossConfig(), rate))


def trainer_logprobs(engine: LocalEngine, batch: Batch) -> Tensor:
    return asyncio.run(engine.compute_logprobs(batch)).logprobs


def trainable_weights(engine: LocalEngine) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in engine._model.trainable_parameters().items()}


def equal_weights(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def max_logprob_gap(one: Tensor, other: Tensor, batch: Batch) -> float:
    return float((one - other)[batch.mask].abs().max())


def test_all_linear_targets_every_linear_module_except_the_head(folder: Path) -> None:
    named = engine_of(folder, finetune="lora")
    every = engine_of(folder, finetune="lora", lora={"rank": 4, "target_modules": ["all-linear"]})
    assert trainable_weights(every).keys() == trainable_weights(named).keys()
    assert len(trainable_weights(every)) == 2 * 7 * 2
    with pytest.raises(ConfigError, match=r"'nope'.*'all-linear'"):
        engine_of(folder, finetune="lora", lora={"target_modules": ["nope"]})


def test_exported_adapter_config_keeps_the_order_of_target_modules(folder: Path, tmp_path: Path) -> None:
    engine = engine_of(folder, finetune="lora", lora={"target_modules": ["v_proj", "q_proj", "down_proj"]})
    engine.export(tmp_path)
    exported = json.loads((tmp_path / "adapter_config.json").read_text())
    assert exported["target_modules"] == ["v_proj", "q_proj", "down_proj"]


@pytest.mark.parametrize("finetune", ["full", "lora"])
def test_an_export_keeps_a_head_of_its_own_although_the_config_ties_it(
    folder: Path, tmp_path: Path, finetune: str
) -> None:
    shutil.copytree(folder, tmp_path / "model")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"]
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].roll(1, 0).clone()
    save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    engine = engine_of(tmp_path / "model", finetune=finetune)
    engine.export(tmp_path / "out", merge_adapters=True)
    exported = load_file(tmp_path / "out" / "model.safetensors")
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        assert torch.equal(exported[name], weights[name])
    assert not json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"]
    batch = sample_batch(engine)
    again = trainer_logprobs(engine_of(tmp_path / "out"), batch)
    assert max_logprob_gap(trainer_logprobs(engine, batch), again, batch) < 1e-4


def test_persistent_buffers_are_exported_from_shards() -> None:
    network = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    network[1].register_buffer("table", torch.zeros(2), persistent=False)
    assert dict(model._whole_weights(network)).keys() == network.state_dict().keys()


def test_dropout_affects_updates_but_not_logprobs(folder: Path) -> None:
    engine, without = engine_of(folder, **LORA_WITH_DROPOUT), engine_of(folder, finetune="lora")
    for _ in range(2):
        batch = sample_batch(engine)
        assert max_logprob_gap(trainer_logprobs(engine, batch), batch.logprobs, batch) < 1e-4
        assert torch.equal(trainer_logprobs(engine, batch), trainer_logprobs(engine, batch))
        update(engine, batch)
    first = sample_batch(without)
    again = engine_of(folder, **LORA_WITH_DROPOUT)
    for each in (without, again):
        update(each, first)
        update(each, first)  # the first update moves only lora_B, so dropout matters from the second on
    assert not equal_weights(trainable_weights(without), trainable_weights(again))
    assert not any(module.training for module in again._model.network.modules() if isinstance(module, nn.Dropout))


def test_dropout_is_deterministic_for_a_seed_and_after_resume(folder: Path, tmp_path: Path) -> None:
    """Equal seeds give equal weights, also after a resume; another seed gives others."""
    batch = sample_batch(engine_of(folder, **LORA_WITH_DROPOUT))

    def train_twice(seed: int, resumed: bool = False) -> dict[str, Tensor]:
        engine = engine_of(folder, seed, **LORA_WITH_DROPOUT)
        engine.load(start)
        update(engine, batch)
        if resumed:
            engine.save(tmp_path)
            engine = engine_of(folder, seed, **LORA_WITH_DROPOUT)
            torch.manual_seed(99)
            engine.load(tmp_path)
        update(engine, batch)
        return trainable_weights(engine)

    start = tmp_path / "start"
    start.mkdir()
    engine_of(folder, **LORA_WITH_DROPOUT).save(start)
    engine = engine_of(folder, **LORA_WITH_DROPOUT)
    state = torch.random.get_rng_state()
    update(engine, batch)
    assert torch.equal(state, torch.random.get_rng_state()), "the process's own numbers stay"
    once = train_twice(0)
    assert equal_weights(once, train_twice(0))
    assert equal_weights(once, train_twice(0, resumed=True))
    assert not equal_weights(once, train_twice(1))


@pytest.mark.parametrize(
    "settings", [{"finetune": "full", "train_embeddings": True}, LORA_WITH_DROPOUT], ids=["full", "lora"]
)
def test_gradient_checkpointing_gives_identical_weights_and_recomputes(
    folder: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, saving = engine_of(folder, **settings), engine_of(folder, gradient_checkpointing=True, **settings)
    batch = sample_batch(plain)
    assert torch.equal(sample_batch(saving).logprobs, batch.logprobs)
    layer = saving._model.backbone.layers[0].mlp  # type: ignore[index, union-attr]
    calls, forward = [0], layer.forward
    monkeypatch.setattr(layer, "forward", lambda x: calls.__setitem__(0, calls[0] + 1) or forward(x))
    for _ in range(2):
        assert update(plain, batch) == update(saving, batch)
        assert equal_weights(trainable_weights(plain), trainable_weights(saving))
    assert calls == [4], "forward, and again in the backward pass, of each of two updates"


def most_memory(work: Callable[[], object]) -> int:
    """Return the most bytes that are allocated at once during the work, beyond those before it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(itertools.accumulate(changes))


def long_batch(engine: LocalEngine) -> Batch:
    return sample_batch(engine, [b"Cancel order %d, please. " % i * 20 for i in range(3)])


@pytest.mark.slow
def test_gradient_checkpointing_takes_less_memory(tmp_path: Path) -> None:
    deep = make_tiny_model(tmp_path, num_layers=8)
    used = {}
    for checkpointing in (False, True):
        engine = engine_of(deep, finetune="full", gradient_checkpointing=checkpointing)
        batch = long_batch(engine)
        update(engine, batch)  # which allocates the optimizer's state
        used[checkpointing] = most_memory(lambda engine=engine, batch=batch: update(engine, batch))
    assert used[True] < 0.6 * used[False]


@pytest.mark.slow
@needs_kernels
@pytest.mark.parametrize("settings", [{"finetune": "full"}, {"finetune": "lora"}], ids=["full", "lora"])
def test_recomputed_activations_take_less_memory_and_give_identical_weights(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = make_tiny_model(tmp_path, num_layers=8)
    saving = engine_of(deep, **settings)
    fuse_modules = model.fuse_modules
    monkeypatch.setattr(model, "fuse_modules", lambda network, recompute: fuse_modules(network, recompute=False))
    plain = engine_of(deep, **settings)
    batch = long_batch(plain)
    for _ in range(2):
        update(plain, batch)
        update(saving, batch)
        assert equal_weights(trainable_weights(plain), trainable_weights(saving))
    assert most_memory(lambda: update(saving, batch)) < 0.85 * most_memory(lambda: update(plain, batch))


@pytest.mark.parametrize("finetune", ["full", "lora"])
def test_only_the_last_layers_are_trained(tmp_path: Path, finetune: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients of the trained layers are those of a full run, and less is stored for the backward pass."""
    deep = make_tiny_model(tmp_path / "model", num_layers=8)
    whole = engine_of(deep, finetune=finetune)
    last = engine_of(deep, finetune=finetune, trainable_layers=2)
    batch = sample_batch(whole)
    assert torch.equal(sample_batch(last).logprobs, batch.logprobs)
    names = {name for name in trainable_weights(whole) if ".layers.6." in name or ".layers.7." in name}
    assert trainable_weights(last).keys() == names | {name for name in trainable_weights(whole) if "layers" not in name}
    for name in names:  # adapters are initialized with other random numbers if there are fewer
        last._model.trainable_parameters()[name].data.copy_(whole._model.trainable_parameters()[name])
    gradients = []
    for engine in (whole, last):
        optimizer = engine._optimizer
        with monkeypatch.context() as patched:
            patched.setattr(
                optimizer,
                "step",
                lambda rate, of=optimizer: gradients.append(dict(of._gradients())) or torch.tensor(0.0),
            )
            update(engine, batch)
    for name in names:
        assert gradients[1][name].any() or ".lora_A." in name, name
        torch.testing.assert_close(gradients[0][name], gradients[1][name], msg=name)
    before = {name: p.detach().clone() for name, p in last._model.network.named_parameters()}
    for _ in range(2):
        update(last, batch)
    changed = {name for name, p in last._model.network.named_parameters() if not torch.equal(p, before[name])}
    assert changed == trainable_weights(last).keys()
    assert max_logprob_gap(trainer_logprobs(last, sample_batch(last)), sample_batch(last).logprobs, batch) < 1e-4
    (tmp_path / "saved").mkdir()
    last.save(tmp_path / "saved")
    resumed = engine_of(deep, finetune=finetune, trainable_layers=2)
    resumed.load(tmp_path / "saved")
    assert equal_weights(trainable_weights(last), trainable_weights(resumed))
    long = long_batch(last)
    assert most_memory(lambda: update(last, long)) < 0.6 * most_memory(lambda: update(whole, long))


@pytest.mark.parametrize("finetune", ["full", "lora"])
def test_more_trainable_layers_than_the_model_has_are_all_of_them(folder: Path, finetune: str) -> None:
    whole = trainable_weights(engine_of(folder, finetune=finetune))
    assert trainable_weights(engine_of(folder, finetune=finetune, trainable_layers=3)).keys() == whole.keys()


def test_qlora_without_bitsandbytes_raises_with_install_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ConfigError, match=r"bitsandbytes.*pip install 'understudy-rl\[qlora\]'"):
        engine_of(folder, finetune="qlora")


@pytest.fixture(scope="module")
def bitsandbytes() -> Any:
    target = bitsandbytes_packages()
    sys.path.append(str(target))
    yield importlib.import_module("bitsandbytes")
    sys.path.remove(str(target))


@pytest.mark.qlora
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_qlora_sampler_trainer_and_merged_export_agree(
    folder: Path, bitsandbytes: Any, dtype: str, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    engine = engine_of(folder, finetune="qlora", dtype=dtype)
    allowed = 1e-4 if dtype == "float32" else 0.08
    for version in range(2):
        batch = sample_batch(engine)
        assert max_logprob_gap(trainer_logprobs(engine, batch), batch.logprobs, batch) < allowed
        engine.export(tmp_path / str(version), merge_adapters=True)
        whole = AutoModelForCausalLM.from_pretrained(tmp_path / str(version), dtype=torch.float32).eval()
        with torch.no_grad():
            logits = whole(batch.tokens[:1, : batch.lengths[0]]).logits[0, :-1] / 0.8
        expected = logits.log_softmax(-1).gather(-1, batch.tokens[0, 1 : batch.lengths[0], None])[:, 0]
        found, mask = batch.logprobs[0, 1 : batch.lengths[0]], batch.mask[0, 1 : batch.lengths[0]]
        assert float((found - expected)[mask].abs().max()) < allowed
        update(engine, batch, 0.02)
        assert (
            max_logprob_gap(trainer_logprobs(engine, batch), batch.logprobs, batch) > 3 * allowed
            if dtype == "float32"
            else True
        )


@pytest.mark.qlora
def test_qlora_weights_use_less_memory_and_dequantize_correctly(folder: Path, bitsandbytes: Any) -> None:
    whole, small = engine_of(folder, finetune="lora"), engine_of(folder, finetune="qlora")
    linear = small._model.backbone.layers[0].mlp.up_proj.base_layer  # type: ignore[index, union-attr]
    original = whole._model.backbone.layers[0].mlp.up_proj.base_layer.weight  # type: ignore[index, union-attr]
    error = (linear.weight - original).abs().mean() / original.abs().mean()
    assert 0.01 < error < 0.12, "4 bits of a normal distribution"
    assert linear.packed.dtype == torch.uint8
    assert linear.packed.numel() == original.numel() / 2
    assert small._model.weight_bytes < 0.6 * whole._model.weight_bytes
    x = torch.randn(3, linear.in_features, requires_grad=True)
    linear(x).square().sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad, 2 * (x @ linear.weight.T).detach() @ linear.weight, atol=1e-4)


@pytest.mark.qlora
def test_qlora_checkpoint_resumes_to_identical_adapters(folder: Path, bitsandbytes: Any, tmp_path: Path) -> None:
    settings = {"finetune": "qlora", "gradient_checkpointing": True, "lora": {"rank": 4, "dropout": 0.2}}
    engine = engine_of(folder, **settings)
    batch = sample_batch(engine)
    update(engine, batch)
    engine.save(tmp_path)
    other = engine_of(folder, **settings)
    other.load(tmp_path)
    assert update(engine, batch) == update(other, batch)
    assert equal_weights(trainable_weights(engine), trainable_weights(other))
    assert all("lora" in name for name in trainable_weights(engine))


@pytest.mark.qlora
def test_qlora_rejects_the_vllm_sampler(folder: Path, bitsandbytes: Any) -> None:
    with pytest.raises(ConfigError, match="qlora"):
        engine_of(folder, finetune="qlora", sampler="vllm", vllm={"base_url": "http://127.0.0.1:1"})
