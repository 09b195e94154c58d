"""Ways of fine-tuning: dropout, checkpointing, weights in 4 bits. What is compared is exact, gradients are the same."""

import asyncio
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from torch import Tensor, nn  # noqa: E402

from understudy.algorithms.options import Loss  # noqa: E402
from understudy.batch import Batch, collate  # noqa: E402
from understudy.engines.base import Sampling  # noqa: E402
from understudy.engines.local.config import LocalConfig  # noqa: E402
from understudy.engines.local.engine import LocalEngine  # noqa: E402
from understudy.errors import ConfigError  # noqa: E402
from understudy.messages import Message  # noqa: E402
from understudy.models import make_tiny  # noqa: E402
from understudy.tasks import Score  # noqa: E402
from understudy.trajectory import Trajectory  # noqa: E402
from venvs import packages  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's, of transformers
BITSANDBYTES = "bitsandbytes==0.50.2"
DROPPING = {"finetune": "lora", "lora": {"rank": 4, "dropout": 0.4}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"), hidden=64)


def engine_of(folder: Path, seed: int = 0, **settings: Any) -> LocalEngine:
    values = {"device": "cpu", "dtype": "float32", "lora": {"rank": 4}} | settings
    return LocalEngine(folder, LocalConfig.model_validate(values), seed)


def sampled(engine: LocalEngine, prompts: Sequence[bytes] = (b"Order 1.", b"Order 2, please.", b"No")) -> Batch:
    """Replies as a batch with advantages."""

    async def reply(i: int, prompt: bytes) -> Trajectory:
        episode = Trajectory("t", score=Score(reward=float(i % 2)))
        episode.observe([], [*prompt])
        done = await engine.sample(episode.tokens, Sampling(max_tokens=12, temperature=0.8), i)
        episode.act(Message(role="assistant"), done.tokens, done.logprobs)
        return episode

    async def all_of_them() -> list[Trajectory]:
        return await asyncio.gather(*(reply(i, prompt) for i, prompt in enumerate(prompts)))

    batch = collate(asyncio.run(all_of_them()), temperature=0.8)
    advantages = torch.randn(batch.tokens.shape, generator=torch.Generator().manual_seed(1)) / 50
    return batch.with_(advantages=advantages * batch.mask)


def trained(engine: LocalEngine, batch: Batch, rate: float = 0.01) -> dict[str, float]:
    return asyncio.run(engine.update([batch], Loss(), rate))


def read(engine: LocalEngine, batch: Batch) -> Tensor:
    return asyncio.run(engine.forward(batch)).logprobs


def adapters(engine: LocalEngine) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in engine._model.trainable().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def apart(one: Tensor, other: Tensor, batch: Batch) -> float:
    return float((one - other)[batch.mask].abs().max())


# ---- adapters ----


def test_all_linear_is_every_linear_module_but_the_head(folder: Path) -> None:
    named = engine_of(folder, finetune="lora")
    every = engine_of(folder, finetune="lora", lora={"rank": 4, "targets": ["all-linear"]})
    assert adapters(every).keys() == adapters(named).keys()
    assert len(adapters(every)) == 2 * 7 * 2
    with pytest.raises(ConfigError, match=r"no module 'nope' in this model; it has .*'all-linear' alone names all"):
        engine_of(folder, finetune="lora", lora={"targets": ["nope"]})


def test_dropout_changes_updates_and_nothing_that_is_compared(folder: Path) -> None:
    engine, without = engine_of(folder, **DROPPING), engine_of(folder, finetune="lora")
    for _ in range(2):
        batch = sampled(engine)
        assert apart(read(engine, batch), batch.logprobs, batch) < 1e-4
        assert torch.equal(read(engine, batch), read(engine, batch))
        trained(engine, batch)
    first = sampled(without)
    again = engine_of(folder, **DROPPING)
    for each in (without, again):
        trained(each, first)
        trained(each, first)  # a first update moves B alone: what A makes of dropped inputs counts from the second on
    assert not same(adapters(without), adapters(again))
    assert not any(module.training for module in again._model.network.modules() if isinstance(module, nn.Dropout))


def test_what_is_dropped_follows_from_the_seed_and_the_version(folder: Path, tmp_path: Path) -> None:
    """The same run twice to the bit, and one that is resumed in between; another seed drops other inputs."""
    batch = sampled(engine_of(folder, **DROPPING))

    def run(seed: int, resumed: bool = False) -> dict[str, Tensor]:
        engine = engine_of(folder, seed, **DROPPING)
        engine.load(start)
        trained(engine, batch)
        if resumed:
            engine.save(tmp_path)
            engine = engine_of(folder, seed, **DROPPING)
            torch.manual_seed(99)
            engine.load(tmp_path)
        trained(engine, batch)
        return adapters(engine)

    start = tmp_path / "start"
    start.mkdir()
    engine_of(folder, **DROPPING).save(start)
    engine = engine_of(folder, **DROPPING)
    state = torch.random.get_rng_state()
    trained(engine, batch)
    assert torch.equal(state, torch.random.get_rng_state()), "the process's own numbers stay"
    once = run(0)
    assert same(once, run(0))
    assert same(once, run(0, resumed=True))
    assert not same(once, run(1))


# ---- checkpointing ----


@pytest.mark.parametrize("settings", [{"finetune": "full", "train_embeddings": True}, DROPPING], ids=["full", "lora"])
def test_checkpointing_gives_the_same_weights_to_the_bit_and_computes_layers_again(
    folder: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, saving = engine_of(folder, **settings), engine_of(folder, checkpointing=True, **settings)
    batch = sampled(plain)
    assert torch.equal(sampled(saving).logprobs, batch.logprobs)
    layer = saving._model.body.layers[0].mlp  # type: ignore[index, union-attr]
    calls, forward = [0], layer.forward
    monkeypatch.setattr(layer, "forward", lambda x: calls.__setitem__(0, calls[0] + 1) or forward(x))
    for _ in range(2):
        assert trained(plain, batch) == trained(saving, batch)
        assert same(adapters(plain), adapters(saving))
    assert calls == [4], "forward, and again in the backward pass, of each of two updates"


def test_checkpointing_keeps_of_a_layer_what_goes_into_it(tmp_path: Path) -> None:
    deep = make_tiny(tmp_path, layers=6)
    held = {}
    for checkpointing in (False, True):
        engine = engine_of(deep, finetune="full", checkpointing=checkpointing)
        batch, sizes = sampled(engine), list[int]()
        with torch.autograd.graph.saved_tensors_hooks(lambda t, sizes=sizes: sizes.append(t.nbytes) or t, lambda t: t):
            trained(engine, batch)
        held[checkpointing] = sum(sizes)
    assert held[True] < held[False] / 3, "the tensors that wait for the backward pass"


# ---- 4 bits ----


def test_without_bitsandbytes_one_line_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ConfigError, match=r"needs bitsandbytes; run pip install -e '\.\[qlora\]' in the clone"):
        engine_of(folder, finetune="qlora")


@pytest.fixture(scope="module")
def bitsandbytes() -> Any:
    """The real one, in a folder of its own: its wheel holds kernels for every GPU."""
    target = packages(BITSANDBYTES, BITSANDBYTES)
    sys.path.append(str(target))
    yield importlib.import_module("bitsandbytes")
    sys.path.remove(str(target))


@pytest.mark.qlora
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_of_4_bits_sampler_and_trainer_and_what_is_exported_agree(
    folder: Path, bitsandbytes: Any, dtype: str, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    engine = engine_of(folder, finetune="qlora", dtype=dtype)
    allowed = 1e-4 if dtype == "float32" else 0.08
    for version in range(2):
        batch = sampled(engine)
        assert apart(read(engine, batch), batch.logprobs, batch) < allowed
        engine.export(tmp_path / str(version), merged=True)
        whole = AutoModelForCausalLM.from_pretrained(tmp_path / str(version), dtype=torch.float32).eval()
        with torch.no_grad():
            logits = whole(batch.tokens[:1, : batch.lengths[0]]).logits[0, :-1] / 0.8
        expected = logits.log_softmax(-1).gather(-1, batch.tokens[0, 1 : batch.lengths[0], None])[:, 0]
        found, mask = batch.logprobs[0, 1 : batch.lengths[0]], batch.mask[0, 1 : batch.lengths[0]]
        assert float((found - expected)[mask].abs().max()) < allowed
        trained(engine, batch, 0.02)
        assert apart(read(engine, batch), batch.logprobs, batch) > 3 * allowed if dtype == "float32" else True


@pytest.mark.qlora
def test_4_bits_take_less_memory_and_are_those_of_bitsandbytes(folder: Path, bitsandbytes: Any) -> None:
    whole, small = engine_of(folder, finetune="lora"), engine_of(folder, finetune="qlora")
    linear = small._model.body.layers[0].mlp.up_proj.base_layer  # type: ignore[index, union-attr]
    original = whole._model.body.layers[0].mlp.up_proj.base_layer.weight  # type: ignore[index, union-attr]
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
def test_of_4_bits_the_base_stays_and_a_checkpoint_resumes_to_the_bit(
    folder: Path, bitsandbytes: Any, tmp_path: Path
) -> None:
    settings = {"finetune": "qlora", "checkpointing": True, "lora": {"rank": 4, "dropout": 0.2}}
    engine = engine_of(folder, **settings)
    batch = sampled(engine)
    trained(engine, batch)
    engine.save(tmp_path)
    other = engine_of(folder, **settings)
    other.load(tmp_path)
    assert trained(engine, batch) == trained(other, batch)
    assert same(adapters(engine), adapters(other))
    assert all("lora" in name for name in adapters(engine))


@pytest.mark.qlora
def test_vllm_would_sample_from_other_weights(folder: Path, bitsandbytes: Any) -> None:
    with pytest.raises(ConfigError, match="not those in 4 bits"):
        engine_of(folder, finetune="qlora", sampler="vllm", vllm={"url": "http://127.0.0.1:1"})
