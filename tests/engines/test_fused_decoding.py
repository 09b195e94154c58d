"""Tests of decoding passes by one call of the C kernels, against the passes of PyTorch that other models take."""

import asyncio
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from support.cpu_kernels import needs_kernels
from understudy.algorithms.batch import Batch
from understudy.engines.interface import SamplingParams
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.cpu import fuse
from understudy.engines.local.engine import LocalEngine
from understudy.engines.local.reference import FrozenReference
from understudy.engines.local.sampling.fused_decoding import supports_fused_decoding
from understudy.engines.local.sampling.passes import FlatPasses
from understudy.engines.models import find_model
from understudy.engines.reference_config import ReferenceConfig

pytestmark = [
    needs_kernels,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),  # peft's, of transformers
]
LORA = {"finetune": "lora", "lora": {"rank": 3, "alpha": 5}}
FAMILIES = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {},  # biases of queries, keys and values
    "qwen3": {"head_dim": 64},  # norms of queries and keys
    "mistral": {"sliding_window": 7, "head_dim": 32},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for family, settings in FAMILIES.items():
        made[family] = folder = tmp_path_factory.mktemp(family)
        shutil.copytree(find_model("tiny"), folder, dirs_exist_ok=True)
        sizes = {"hidden_size": 96, "intermediate_size": 130, "num_hidden_layers": 2, "vocab_size": 264}
        heads = {"num_attention_heads": 3 if family == "llama" else 2, "num_key_value_heads": 1}
        if family == "qwen2":
            sizes["hidden_size"] = 128
        torch.manual_seed(0)
        network = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes, **heads, **settings))
        for name, parameter in network.named_parameters():
            torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.2)
        network.save_pretrained(folder)
    return made


def engine_of(folder: Path, **settings: Any) -> LocalEngine:
    engine = LocalEngine(folder, LocalEngineConfig.model_validate({"device": "cpu", "max_num_seqs": 12} | settings))
    with torch.no_grad():
        for name, parameter in engine._model.trainable_parameters().items():
            if ".lora_" in name:
                torch.nn.init.normal_(parameter, std=0.3)
    return engine


def decoded(
    engine: LocalEngine, *, fused: bool = True, between: Callable[[], object] = lambda: None
) -> tuple[Tensor, Tensor]:
    """Return hidden states and all cached keys after two passes over rows with three prefixes, drafts, and rows without
    a prefix. `between` is called before each pass."""
    passes, rng = FlatPasses(engine._model, 12), random.Random(0)
    assert passes._fuses
    passes._fuses = fused
    found = []
    with torch.inference_mode():
        slots = []
        for length, rows in ((21, 9), (50, 1), (0, 2)):
            prefix = passes.cache.add_prefix([rng.randrange(250) for _ in range(length)]) if length else None
            if prefix:
                passes.compute_prefix(prefix)
            for _ in range(rows):
                slot = passes.cache.evict()
                slot.prefix, slot.tokens = prefix, list(prefix.tokens) if prefix else []
                slots.append(slot)
        new = [[rng.randrange(250) for _ in range(1 + i % 7)] for i in range(len(slots))]
        passes.prefill(slots, new)
        for drafts in (0, 2):
            for slot, tokens in zip(slots, new, strict=True):
                slot.tokens += tokens
            new = [[rng.randrange(250) for _ in range(1 + i % (drafts + 1))] for i in range(len(slots))]
            between()
            found.append(passes.decode(slots, new).float())
    return torch.cat(found), torch.stack([*passes.cache.keys.values(), *passes.cache.values.values()]).float()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("settings", [{}, LORA], ids=["full", "lora"])
def test_hidden_states_and_cache_are_those_of_the_other_passes(
    family: str, dtype: str, settings: dict[str, Any], folders: dict[str, Path]
) -> None:
    engine = engine_of(folders[family], dtype=dtype, **settings)
    pairs = zip(decoded(engine, fused=True), decoded(engine, fused=False), strict=True)
    tolerance = 1e-4 if dtype == "float32" else 2**-5
    for one, other in pairs:
        assert float((one - other).abs().max()) < tolerance * float(other.abs().max())


@pytest.mark.parametrize("settings", [{}, LORA], ids=["full", "lora"])
def test_new_weights_are_used_after_they_change(settings: dict[str, Any], folders: dict[str, Path]) -> None:
    engine = engine_of(folders["qwen2"], dtype="float32", **settings)
    sampler = engine._sampling.sampler
    prompt, params = list(b"An order of lamps, please."), SamplingParams(max_response_tokens=6)

    def gap() -> float:
        done = asyncio.run(engine.sample(prompt, params, 0))
        mask = [False] * len(prompt) + [True] * len(done.tokens)
        batch = Batch.from_rows([[*prompt, *done.tokens]], [mask])
        found = asyncio.run(engine.compute_logprobs(batch)).logprobs[0, len(prompt) :]
        return float((found - torch.tensor(done.logprobs)).abs().max())

    assert gap() < 1e-4
    with torch.no_grad():
        for parameter in engine._model.trainable_parameters().values():
            parameter += 0.1 * torch.randn(parameter.shape)
    sampler.set_weights_version(1)
    assert gap() < 1e-4


def test_own_weights_are_used_after_a_pass_with_a_references_weights(folders: dict[str, Path]) -> None:
    engine = engine_of(folders["llama"], dtype="float32")
    reference, batch = (
        FrozenReference(ReferenceConfig(), engine._model),
        Batch.from_rows([[5, 6, 7]], [[False, True, True]]),
    )
    with torch.no_grad():
        for parameter in engine._model.trainable_parameters().values():
            parameter *= 1.5

    def score_by_reference() -> None:
        with reference.activate():
            asyncio.run(engine.compute_logprobs(batch))

    assert all(map(torch.equal, decoded(engine, between=score_by_reference), decoded(engine)))


def test_other_models_take_the_other_passes(folders: dict[str, Path]) -> None:
    assert supports_fused_decoding(engine_of(folders["llama"], dtype="float32")._model)
    padded = engine_of(folders["llama"], dtype="float32", batching="padded")
    narrow = engine_of(find_model("tiny"), dtype="float32")  # heads of 16 numbers
    assert not supports_fused_decoding(padded._model)
    assert not supports_fused_decoding(narrow._model)


def test_packed_weights_stay_at_their_address(folders: dict[str, Path]) -> None:
    """The structures of the kernels contain it, and prefill renews the weights."""
    head = engine_of(folders["llama"], dtype="float32")._model.network.get_output_embeddings()
    before, _ = fuse.packed_weights(head, (head,))
    old, address = before.clone(), before.data_ptr()
    with torch.no_grad():
        head.weight *= 2
    after, _ = fuse.packed_weights(head, (head,))
    assert after.data_ptr() == address
    assert torch.equal(after, 2 * old)


@pytest.mark.parametrize(("inputs", "dtype"), [(7, "bfloat16"), (8, "bfloat16"), (8, "float32")])
def test_linear_layers_of_any_width_and_dtype_of_weights(inputs: int, dtype: str) -> None:
    network = torch.nn.Sequential(torch.nn.Linear(inputs, 5, dtype=getattr(torch, dtype)))
    x = torch.randn(3, inputs).to(getattr(torch, dtype))
    want = network(x).detach()
    fuse.fuse_modules(network)
    with torch.no_grad():
        torch.testing.assert_close(network(x), want)
        with pytest.raises(RuntimeError, match="dtype"):
            network(x.to(torch.float32 if dtype == "bfloat16" else torch.bfloat16))
