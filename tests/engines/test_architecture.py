"""Tests of the probe that finds models whose rows cannot be packed."""

import asyncio
import logging
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from understudy.algorithms.batch import Batch
from understudy.core.errors import ConfigError
from understudy.engines.interface import SamplingParams
from understudy.engines.local.architecture import probe_packing
from understudy.engines.local.attention_interface import ATTENTION_NAME
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.engine import LocalEngine
from understudy.engines.local.model import LocalModel
from understudy.engines.local.output_head import has_plain_head
from understudy.engines.models import make_tiny_model

CONFIG = LocalEngineConfig(device="cpu", dtype="float32", sampler="torch")
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 64,
    "max_position_embeddings": 128,
}


def save_random_model(folder: Path, kind: str, **settings: Any) -> Path:
    """Write a random model of an architecture of transformers."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES | settings))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "settings", "problem"),
    [
        ("nemotron", {}, "pass further arguments"),
        ("stablelm", {}, "pass further arguments"),
        ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}, "attention interface"),
        ("bloom", {"n_layer": 2, "n_head": 4}, "attention interface"),
        ("lfm2", {"layer_types": ["conv", "full_attention"]}, "'conv'"),
        ("phimoe", {"num_local_experts": 2, "sliding_window": 6}, "does not get its window of 6 tokens"),
    ],
)
def test_model_that_cannot_be_packed_is_padded_and_the_reason_is_known(
    tmp_path: Path, kind: str, settings: dict[str, Any], problem: str
) -> None:
    folder = save_random_model(tmp_path, kind, **settings)
    assert re.search(problem, LocalModel(folder, CONFIG).padding_reason)
    with pytest.raises(ConfigError, match=f"engine.batching.*{problem}.*engine.batching=padded"):
        LocalModel(folder, CONFIG.replace(batching="packed"))


def test_damaged_weights_are_named(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path, "llama")
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][:] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match=r"not finite.*engine\.dtype=float32"):
        LocalModel(folder, CONFIG)


@pytest.mark.parametrize("kind", ["qwen3_next", "qwen3_5_text"])
def test_advice_to_install_kernels_for_a_gpu_is_hidden_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    shown = list[str]()
    logger = logging.getLogger("transformers.integrations.hub_kernels")
    monkeypatch.setattr(logger, "handle", lambda record: shown.append(record.getMessage()))
    transformers_logging.warning_once.cache_clear()
    before = transformers_logging.get_verbosity()
    heads = {f"linear_{name}": 8 for name in ("key_head_dim", "value_head_dim")} | {
        f"linear_num_{name}_heads": 2 for name in ("key", "value")
    }
    layers = ["linear_attention", "full_attention"]
    folder = save_random_model(tmp_path, kind, head_dim=8, layer_types=layers, **heads)
    engine = LocalEngine(folder, CONFIG)
    reply = asyncio.run(engine.sample([5, 6, 7], SamplingParams(max_response_tokens=3), 0))
    assert len(reply.tokens) == 3
    assert not shown
    assert transformers_logging.get_verbosity() == before


def test_padding_that_is_set_gives_the_same_logprobs_as_packing(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path, "qwen3", pad_token_id=0, num_key_value_heads=2)
    rows = [[5, 6, 7, 8, 9, 10], [5, 6, 7, 11, 12]]
    batch = Batch.from_rows(rows, [[False] + [True] * (len(row) - 1) for row in rows])
    packed, padded = (
        LocalEngine(folder, CONFIG.replace(batching=way), trainable=False) for way in ("packed", "padded")
    )
    assert padded._model.padding_reason == "set by engine.batching"
    found, expected = (engine._compute_logprobs(engine._model, batch) for engine in (padded, packed))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "kind", ["llama", "qwen2", "qwen3", "mistral", "phi3", "smollm3", "granite", "gemma", "glm4", "olmo2", "starcoder2"]
)
def test_supported_architecture_gives_the_logprobs_of_transformers(tmp_path: Path, kind: str) -> None:
    folder = save_random_model(tmp_path, kind, pad_token_id=0, num_key_value_heads=2)
    rows = [[5, 6, 7, 8, 9, 10], [5, 6, 7, 11, 12]]
    batch = Batch.from_rows(rows, [[False] + [True] * (len(row) - 1) for row in rows])
    engine = LocalEngine(folder, CONFIG, trainable=False)
    found = engine._compute_logprobs(engine._model, batch)
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    for row, values in zip(rows, found, strict=True):
        with torch.no_grad():
            scores = network(input_ids=torch.tensor([row])).logits[0, :-1].log_softmax(-1)
        expected = scores.gather(-1, torch.tensor(row[1:])[:, None])[:, 0]
        torch.testing.assert_close(values[1 : len(row)], expected, rtol=0, atol=1e-4)


def load_tiny_network(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(make_tiny_model(folder), attn_implementation=ATTENTION_NAME)


@pytest.mark.parametrize("part", ["mixer", "positions"])
def test_probe_finds_what_the_config_does_not_tell(tmp_path: Path, part: str) -> None:
    network = load_tiny_network(tmp_path)
    assert not probe_packing(network)[0]
    if part == "mixer":  # a layer that adds the tokens before, as in RWKV
        network.model.layers[0].mlp.register_forward_hook(lambda module, inputs, out: out.cumsum(1))
    else:  # positions count from the start of the flat sequence
        network.model.register_forward_pre_hook(
            lambda module, args, named: (args, named | {"position_ids": torch.arange(8)[None] ** 2}), with_kwargs=True
        )
    assert "other rows" in probe_packing(network)[0]


def test_scaled_and_capped_logits_are_found(tmp_path: Path) -> None:
    network = load_tiny_network(tmp_path)
    assert has_plain_head(network)
    for change in (lambda x: x / 2, lambda x: 30 * torch.tanh(x / 30)):
        handle = network.register_forward_hook(lambda module, inputs, out, f=change: type(out)(logits=f(out.logits)))
        assert not has_plain_head(network)
        handle.remove()


def test_probe_is_cheap_and_skips_models_without_weights(tmp_path: Path) -> None:
    network = load_tiny_network(tmp_path)
    started = time.process_time()
    probe_packing(network)
    assert time.process_time() - started < 2.0
    assert not probe_packing(network.to("meta"))[0]


@pytest.mark.parametrize(
    ("kind", "settings", "head_dim", "kv_bytes"),
    [
        ("qwen3", {"head_dim": 16, "num_key_value_heads": 2}, 16, 2 * 2 * 2 * 16 * 4),
        ("gpt2", {"n_embd": 32, "n_head": 4, "n_layer": 2}, 8, 2 * 2 * 4 * 8 * 4),
        (
            "gemma4_text",
            {"head_dim": 8, "global_head_dim": 16, "layer_types": ["sliding_attention", "full_attention"]},
            16,
            2 * 4 * (8 + 16) * 4,
        ),
    ],
)
def test_sizes_of_heads(tmp_path: Path, kind: str, settings: dict[str, Any], head_dim: int, kv_bytes: int) -> None:
    model = LocalModel(save_random_model(tmp_path, kind, **settings), CONFIG)
    assert (model.head_dim, model.kv_bytes_per_token) == (head_dim, kv_bytes)
