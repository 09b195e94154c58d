"""Test that the memory of layers that is measured without weights is what they use with weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from understudy.engines.local.gradient_checkpointing import decoder_layers, model_body
from understudy.train.planning.layer_memory import measure_layers

TOKENS = 40
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 96,
    "max_position_embeddings": 128,
    "layer_types": ["conv", "full_attention"] * 2,
}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}


def stored_bytes(network: Any) -> int:
    """Return the bytes that autograd stores in a pass over one row, without the weights."""
    weights = {parameter.untyped_storage()._cdata for parameter in network.parameters()}
    found: dict[int, torch.UntypedStorage] = {}

    def store(x: torch.Tensor) -> torch.Tensor:
        found[x.untyped_storage()._cdata] = x.untyped_storage()
        return x

    with torch.autograd.graph.saved_tensors_hooks(store, lambda x: x):
        model_body(network)(input_ids=torch.arange(TOKENS)[None], use_cache=False)
    return sum(storage.nbytes() for key, storage in found.items() if key not in weights)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("lfm2", {}),
        pytest.param("qwen3_5_text", LINEAR, marks=pytest.mark.slow),
    ],
)
def test_layers_store_what_they_store_with_weights(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    network = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES | settings))
    network.config.save_pretrained(tmp_path)
    found = measure_layers(tmp_path, TOKENS, torch.float32)
    assert len(found) == len(decoder_layers(network))
    assert sum(layer.stored for layer in found) == pytest.approx(stored_bytes(network), rel=0.15)
    assert found[1].cached == found[3].cached == 4 * TOKENS * 2 * 2 * 8, "keys and values of two heads"
    assert 0 < found[0].cached < found[1].cached, "states do not grow with the tokens"
    assert all(layer.backward > 0 and layer.inference > 0 for layer in found)


def test_model_that_needs_numbers_is_not_measured(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "unknown"}')
    assert measure_layers(tmp_path, TOKENS, torch.float32) == ()
