"""Test that a real vLLM server loads an exported model and samples the same tokens as the local engine."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from support import vllm_server
from support.endpoint import KEY

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(bool(vllm_server.unsupported_reason()), reason=vllm_server.unsupported_reason()),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
]

HELLO = "Tell me about the sea."


def save_random_lora_checkpoint(run: Path) -> Any:
    """Save a checkpoint of SmolLM2 with random LoRA adapters and return its engine."""
    import torch

    from understudy.engines.local.engine import LocalEngine
    from understudy.engines.models import find_model
    from understudy.runs.config import parse_config
    from understudy.runs.run import Run

    config = parse_config("", ["engine.finetune=lora", "engine.dtype=float32", "engine.lora.rank=4"])
    engine = LocalEngine(find_model(config.model), config.engine)
    generator = torch.Generator().manual_seed(2)
    for master in engine._optimizer.masters.values():
        master += 0.01 * torch.randn(master.shape, generator=generator)
    engine._optimizer.copy_to_model()
    with Run.create(run, config).write_checkpoint(1) as checkpoint:
        engine.save(checkpoint)
    return engine


def test_vllm_matches_the_local_engine_on_an_exported_model(tmp_path: Path) -> None:
    import openai

    from understudy.core.messages import Message
    from understudy.engines.interface import SamplingParams
    from understudy.formats import FormatTokenizer, load_chat_format
    from understudy.runs.weights import export_model, resolve_weights

    engine = save_random_lora_checkpoint(tmp_path / "run")
    export_model(resolve_weights(str(tmp_path / "run")), out := tmp_path / "out")
    format, vocabulary = load_chat_format(out), FormatTokenizer.load(out / "tokenizer.json")
    prompt = format.encode([Message(role="user", content=HELLO)], (), ())
    ours = asyncio.run(
        engine.sample(prompt, SamplingParams(max_response_tokens=4, temperature=0.0), 0, format.stop_token_ids)
    )
    with (
        vllm_server.serve_vllm(out, "ours", tmp_path / "log", KEY) as url,
        openai.OpenAI(base_url=url, api_key=KEY) as api,
    ):
        theirs: Any = api.chat.completions.create(
            model="ours", messages=[{"role": "user", "content": HELLO}], temperature=0, max_tokens=4, logprobs=True
        )
    assert theirs.usage.prompt_tokens == len(prompt)
    sampled = theirs.choices[0].logprobs.content
    assert [token.token for token in sampled] == [vocabulary.decode([token]) for token in ours.tokens]
    assert [token.logprob for token in sampled] == pytest.approx(ours.logprobs, abs=0.1)
