"""A real vLLM loads what was exported, and computes with it what our engine does."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import vllm_server
from endpoint import KEY

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(bool(vllm_server.unsupported()), reason=vllm_server.unsupported()),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
]

HELLO = "Tell me about the sea."


def moved(run: Path) -> Any:
    """A checkpoint of SmolLM2 with LoRA adapters that are not as they began, and its engine."""
    import torch

    from understudy.config import TrainConfig
    from understudy.engines.local.engine import LocalEngine
    from understudy.models import find_model
    from understudy.run import Run
    from understudy.settings import parse

    config = parse(TrainConfig, "", ["engine.finetune=lora", "engine.dtype=float32", "engine.lora.rank=4"])
    engine = LocalEngine(find_model(config.model), config.engine)
    generator = torch.Generator().manual_seed(2)
    for master in engine._optimizer.masters.values():
        master += 0.01 * torch.randn(master.shape, generator=generator)
    engine._optimizer.publish()
    with Run.create(run, config).checkpoint(1) as checkpoint:
        engine.save(checkpoint)
    return engine


def test_vllm_computes_what_was_trained(tmp_path: Path) -> None:
    import openai

    from understudy.engines.base import Sampling
    from understudy.formats import Vocabulary, find
    from understudy.messages import Message
    from understudy.weights import export, find_weights

    engine = moved(tmp_path / "run")
    export(find_weights(str(tmp_path / "run")), out := tmp_path / "out")
    format, vocabulary = find(out), Vocabulary.load(out / "tokenizer.json")
    prompt = format.encode([Message(role="user", content=HELLO)], (), ())
    ours = asyncio.run(engine.sample(prompt, Sampling(max_tokens=4, temperature=0.0), 0, format.stop_tokens))
    with (
        vllm_server.serving(out, "ours", tmp_path / "log", KEY) as url,
        openai.OpenAI(base_url=url, api_key=KEY) as api,
    ):
        theirs: Any = api.chat.completions.create(
            model="ours", messages=[{"role": "user", "content": HELLO}], temperature=0, max_tokens=4, logprobs=True
        )
    assert theirs.usage.prompt_tokens == len(prompt)
    sampled = theirs.choices[0].logprobs.content
    assert [token.token for token in sampled] == [vocabulary.decode([token]) for token in ours.tokens]
    assert [token.logprob for token in sampled] == pytest.approx(ours.logprobs, abs=0.1)
