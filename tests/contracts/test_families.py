"""Every family of causal language models trains and samples like transformers' own plain forward pass.

Each family is a tiny random model: two layers, of which one is the family's unusual one, and windows of a few tokens.
Rows are longer than a window, and the edges of windows fall into prefixes that rows share.
"""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from support.gradients import assert_all_close, compute_gradients
from understudy.algorithms import losses
from understudy.algorithms.batch import Batch
from understudy.algorithms.config import LossConfig
from understudy.core.errors import ConfigError
from understudy.engines.interface import SamplingParams
from understudy.engines.local.config import LocalEngineConfig, LoraConfig
from understudy.engines.local.engine import LocalEngine
from understudy.train.planning.memory import read_model_shape

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
MLA = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}
ROUTED = {
    "first_k_dense_replace": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
}
WINDOW = {"head_dim": 8, "sliding_window": 6}
LINEAR = {
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
PACKED: dict[str, dict[str, Any]] = {
    "apertus": {},
    "arcee": {},
    "cohere": {},
    "cohere2": WINDOW,
    "deepseek_v2": {**MLA, **ROUTED},
    "deepseek_v3": {**MLA, **ROUTED},
    "ernie4_5": {},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16, "moe_layer_start_index": 0},
    "exaone4": WINDOW,
    "flex_olmo": {"num_experts": 4, "num_experts_per_tok": 2},
    "gemma": {"head_dim": 8},
    "gemma2": {**WINDOW, "final_logit_softcapping": 0.5},
    "gemma3_text": WINDOW,
    "gemma3n_text": {
        **WINDOW,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "vocab_size_per_layer_input": 96,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 4,
        "altup_num_inputs": 2,
        "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
    },
    "gemma4_text": {
        **WINDOW,
        "global_head_dim": 16,
        "vocab_size_per_layer_input": 96,
        "hidden_size_per_layer_input": 8,
    },
    "glm4": {"head_dim": 8},
    "glm4_moe": {"head_dim": 8, **ROUTED},
    "gpt2": {},
    "gpt_neox": {},
    "gpt_oss": {**WINDOW, **LOCAL_EXPERTS, "layer_types": ["sliding_attention", "full_attention"]},
    "granite": {"logits_scaling": 3.0},
    "granite_swa": WINDOW,
    "granitemoe": LOCAL_EXPERTS,
    "helium": {"head_dim": 8},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8, "num_experts": 4, "moe_topk": 2},
    "llama": {},
    "llama4_text": {
        "head_dim": 8,
        "num_local_experts": 2,
        "intermediate_size_mlp": 48,
        "attention_chunk_size": 6,
        "layer_types": ["chunked_attention", "full_attention"],
    },
    "minimax_m2": {"head_dim": 8, **LOCAL_EXPERTS},
    "ministral": WINDOW,
    "ministral3": {"head_dim": 8},
    "mistral": {},
    "mixtral": LOCAL_EXPERTS,
    "olmo2": {},
    "olmo3": {"sliding_window": 6},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "opt": {"word_embed_proj_dim": 32, "ffn_dim": 48},
    "phi": {},
    "phi3": {},
    "phimoe": LOCAL_EXPERTS,
    "qwen2": {},
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 16},
    "qwen3": {"head_dim": 8},
    "qwen3_moe": {"head_dim": 8, **EXPERTS},
    "seed_oss": {"head_dim": 8},
    "smollm3": {},
    "starcoder2": {},
}
PADDED: dict[str, dict[str, Any]] = {
    "bamba": {"mamba_d_head": 16, "mamba_n_heads": 4, "attn_layer_indices": [1]},
    "bloom": {"n_layer": 2, "n_head": 4},
    "falcon": {},
    "falcon_h1": {"mamba_d_head": 16, "mamba_n_heads": 4, "mamba_d_ssm": 64, "mamba_d_state": 16},
    "falcon_mamba": {},
    "glm_moe_dsa": {**MLA, **ROUTED},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"],
        "mamba_n_heads": 4,
        "mamba_d_head": 16,
        "num_local_experts": 0,
        "shared_intermediate_size": 48,
    },
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2},
    "kimi_linear": {
        **MLA,
        **EXPERTS,
        "q_lora_rank": None,
        "linear_num_heads": 4,
        "linear_head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], **EXPERTS, "num_dense_layers": 1},
    "lfm3": {"layer_types": ["conv", "full_attention"]},
    "mamba": {},
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 16, "n_groups": 1},
    "minimax": {"head_dim": 8, **LOCAL_EXPERTS},
    "nemotron": {},
    "nemotron_h": {
        "head_dim": 8,
        "n_routed_experts": 4,
        "moe_intermediate_size": 16,
        "moe_shared_expert_intermediate_size": 16,
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "n_groups": 2,
        "ssm_state_size": 16,
    },
    "olmo_hybrid": {},
    "qwen3_5_text": LINEAR,
    "qwen3_next": {**LINEAR, **EXPERTS, "shared_expert_intermediate_size": 16},
    "stablelm": {},
}
TOOL_FORMATS = {
    **dict.fromkeys(("granitemoehybrid", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), "hermes"),
    **dict.fromkeys(("qwen3_5_text", "qwen3_next", "nemotron_h", "seed_oss"), "qwen3_coder"),
    **dict.fromkeys(("llama4_text", "lfm2", "lfm2_moe", "lfm3", "olmo3"), "pythonic"),
    **dict.fromkeys(("mistral", "ministral", "ministral3", "mixtral"), "mistral"),
    **dict.fromkeys(("cohere2", "phi3"), "json"),
    "llama": "llama3",
    "gpt_oss": "harmony",
    "deepseek_v3": "deepseek",
    "kimi_linear": "deepseek",
    "glm4_moe": "glm",
    "glm_moe_dsa": "glm",
    "gemma4_text": "gemma",
    "minimax_m2": "dsml",
    "apertus": "apertus",
}
"""The syntax of calls of the models of a family, if it has one (`docs/formats.md`)."""
EVERYWHERE = {"qwen3_moe", "phi", "gemma2", "gpt_oss", "qwen3_next", "mamba2", "deepseek_v3"}
"""One family of each kind. `make test` runs these, and `make test-families` all."""
PROMPT = [1, *range(20, 34)]
ROWS = (
    [*PROMPT, 40, 41, 42, 43, 44],
    [*PROMPT, 40, 41, 42, 50, 51, 52, 53],
    [*PROMPT, 40, 41, 60],
    [*PROMPT[:6], 70, 71, 72],
)
"""A tree of several levels, deeper than a window."""


def families(*names: str) -> list[Any]:
    chosen = names or tuple(PACKED | PADDED)
    return [pytest.param(name, marks=[] if name in EVERYWHERE else pytest.mark.families) for name in chosen]


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random model of the family of the test."""
    target = tmp_path_factory.mktemp(request.param)
    write_random_model(request.param, target)
    return target


def write_random_model(kind: str, folder: Path) -> None:
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES | (PACKED | PADDED)[kind]))
    for parameter in network.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.1)
    network.save_pretrained(folder)


def load_plain(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def make_config(**settings: Any) -> LocalEngineConfig:
    return LocalEngineConfig.model_validate({"device": "cpu", "dtype": "float32", "sampler": "torch"} | settings)


def make_batch() -> Batch:
    masks = [
        [False] * min(len(PROMPT), len(row) - 3) + [True] * (len(row) - min(len(PROMPT), len(row) - 3)) for row in ROWS
    ]
    batch = Batch.from_rows([list(row) for row in ROWS], masks)
    draw = torch.Generator().manual_seed(1)
    advantages = torch.randn(batch.tokens.shape, generator=draw) * batch.mask
    return batch.replace(advantages=advantages, logprobs=-4.5 * batch.mask)


def plain_logprobs(network: Any, batch: Batch) -> Tensor:
    rows = []
    for tokens, length in zip(batch.tokens, batch.lengths.tolist(), strict=True):
        logits = network(input_ids=tokens[None, :length]).logits[0, :-1].float()
        found = logits.log_softmax(-1).gather(-1, tokens[1:length, None])[:, 0]
        rows.append(nn.functional.pad(found, (1, batch.tokens.shape[1] - length)))
    return torch.stack(rows) * batch.mask


def plain_gradients(network: Any, batch: Batch, names: Any) -> dict[str, Tensor]:
    network.zero_grad()
    current = plain_logprobs(network, batch)
    assert batch.advantages is not None
    row, column = batch.mask.nonzero().T
    value, _ = losses.compute_loss(
        LossConfig(),
        current[row, column],
        batch.logprobs[row, column],
        batch.advantages[row, column],
        sequence_ids=row,
    )
    value.backward()
    parameters = dict(network.named_parameters())
    return {
        name: torch.zeros_like(parameters[name]) if parameters[name].grad is None else parameters[name].grad
        for name in names
    }


@pytest.mark.parametrize("folder", families(), indirect=True)
def test_family_samples_and_trains_as_transformers_computes(
    folder: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    kind, network, batch = request.node.callspec.params["folder"], load_plain(folder), make_batch()
    with closing(LocalEngine(folder, make_config(train_embeddings=True))) as engine:
        assert (engine._model.padded is None) == (kind in PACKED)
        assert read_model_shape(folder).pads_rows == (kind in PADDED)
        for prompt, tokens, logprobs in sample_conversations(engine):
            with torch.no_grad():
                scores = network(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0].log_softmax(-1)
            expected = [float(scores[len(prompt) - 1 + i, token]) for i, token in enumerate(tokens)]
            assert logprobs == pytest.approx(expected, abs=1e-4)
        found = asyncio.run(engine.compute_logprobs(batch)).logprobs
        with torch.no_grad():
            torch.testing.assert_close(found * batch.mask, plain_logprobs(network, batch), rtol=0, atol=1e-4)
        gradients, _ = compute_gradients(engine, batch)
        assert_all_close(gradients, plain_gradients(network, batch, gradients), 2e-4)
        asyncio.run(engine.update([batch], LossConfig(), 1e-3))
        trained = asyncio.run(engine.compute_logprobs(batch)).logprobs
        assert float((trained - found).abs().max()) > 1e-4
        (tmp_path / "checkpoint").mkdir()
        engine.save(tmp_path / "checkpoint")
        engine.export(tmp_path / "exported")
    with torch.no_grad():
        exported = plain_logprobs(load_plain(tmp_path / "exported"), batch)
    torch.testing.assert_close(exported, trained * batch.mask, rtol=0, atol=1e-4)
    with closing(LocalEngine(folder, make_config(train_embeddings=True))) as resumed:
        resumed.load(tmp_path / "checkpoint")
        again = asyncio.run(resumed.compute_logprobs(batch)).logprobs
    assert torch.equal(again, trained)


def sample_conversations(engine: LocalEngine) -> list[tuple[list[int], list[int], list[float]]]:
    """Sample conversations of two turns with prompts of several lengths at once. Return all replies."""
    replies = []

    async def converse(number: int, prompt: list[int]) -> None:
        for _ in range(2):
            found = await engine.sample(prompt, SamplingParams(max_response_tokens=5 + number), number)
            replies.append((prompt, found.tokens, found.logprobs))
            prompt = [*prompt, *found.tokens, 7, 8, 9]

    async def converse_all() -> None:
        prompts = [PROMPT, PROMPT[:4], [*PROMPT, 35], PROMPT]
        await asyncio.gather(*(converse(i, list(prompt)) for i, prompt in enumerate(prompts)))

    asyncio.run(converse_all())
    return replies


@pytest.mark.parametrize("folder", families(), indirect=True)
def test_family_trains_adapters_as_transformers_computes(folder: Path) -> None:
    """The gradient of an adapter's second matrix, which is 0 at first, is that of the weight times the first matrix."""
    batch, network = make_batch(), load_plain(folder)
    config = make_config(finetune="lora", lora=LoraConfig(rank=4, alpha=8.0))
    with closing(LocalEngine(folder, config)) as engine:
        found, _ = compute_gradients(engine, batch)
        masters = {name: master.detach() for name, master in engine._optimizer.masters.items()}
    second = {name: gradient for name, gradient in found.items() if ".lora_B." in name}
    names = {name: name.replace(".lora_B.default", "") for name in second}
    weights = plain_gradients(network, batch, names.values())
    transposed = {"gpt2"} & {folder.name[:-1]}
    expected = {
        name: 2.0
        * (weights[names[name]].T if transposed else weights[names[name]])
        @ masters[name.replace("lora_B", "lora_A")].T
        for name in second
    }
    assert_all_close(second, expected, 2e-4)


@pytest.mark.parametrize("kind", ["rwkv", "xlstm"])
def test_model_that_no_pass_can_run_is_refused_with_the_reason(tmp_path: Path, kind: str) -> None:
    settings = {"attention_hidden_size": 32, "context_length": 64} if kind == "rwkv" else {}
    AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES | settings)).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="cache ends with"):
        LocalEngine(tmp_path, make_config())


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads are slower than one for models of this size."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("folder", [x for x in families() if not x.marks], indirect=True)
def test_gradient_checkpointing_changes_no_gradient(folder: Path) -> None:
    batch, found = make_batch(), []
    for checkpointing in (False, True):
        config = make_config(gradient_checkpointing=checkpointing, max_tokens_per_microbatch=40)
        with closing(LocalEngine(folder, config)) as engine:
            found.append(compute_gradients(engine, batch)[0])
    assert_all_close(*found, 2e-4)


def test_model_without_attention_has_no_heads_and_no_keys(tmp_path: Path) -> None:
    sizes = {key: value for key, value in SIZES.items() if "attention_heads" not in key and "key_value" not in key}
    AutoModelForCausalLM.from_config(AutoConfig.for_model("mamba", **sizes)).save_pretrained(tmp_path)
    with closing(LocalEngine(tmp_path, make_config(), trainable=False)) as engine:
        assert (engine._model.head_dim, engine._model.kv_bytes_per_token) == (0, 0)
