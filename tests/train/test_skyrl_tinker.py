"""Tests of the Tinker engine against SkyRL's Tinker server, which computes a tiny Qwen3 with JAX on the CPU."""

import asyncio
import gc
import importlib
import json
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support import skyrl_server
from support.random_batches import random_batch
from support.tiny_runs import Watts, watts_tasks
from toy import build_house
from understudy.algorithms.batch import Batch, collate
from understudy.algorithms.config import LossConfig
from understudy.core.errors import ConfigError, RolloutError
from understudy.core.messages import Message
from understudy.core.tasks import Score
from understudy.core.trajectory import Trajectory
from understudy.engines.interface import SamplingParams
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.engine import LocalEngine
from understudy.engines.models import make_tiny_model
from understudy.engines.tinker.config import TinkerEngineConfig
from understudy.engines.tinker.engine import TinkerEngine
from understudy.envs.tools import Toolkit
from understudy.runs.agents import open_model
from understudy.runs.config import (
    TrainConfig,
    parse_config,
)
from understudy.runs.run import Run
from understudy.runs.weights import export_model, resolve_weights
from understudy.train.loop import train

pytestmark = [
    pytest.mark.skyrl,
    pytest.mark.usefixtures("tinker"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),  # peft's, of transformers
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # the client library closes no connection
]
LORA = {"rank": 8, "alpha": 32.0}
RATE = 1e-2
TOLERANCE = 1e-3
"""Largest relative difference between adapters after two steps on the server and on the local engine."""


class NoTools(Toolkit):
    """A toolkit without tools, since a token is a byte and tool descriptions would fill the prompt."""


WATTS_WITHOUT_TOOLS = Watts("toy", build_house, NoTools, watts_tasks, ("one", "two"))
PROMPT = list(b"How much does a lamp draw?")
SHORT = SamplingParams(max_response_tokens=8)
KILL_STEP = 10
LEARNING = (
    "domain=test_skyrl_tinker:WATTS_WITHOUT_TOOLS",
    "slice.domain_policy=brief",
    "sampling.max_response_tokens=8",
    "limits.max_turns=2",
    "eval.tasks=6",
    "eval.trials=4",
    "eval.temperature=1.0",
    "sft.steps=6",
    "sft.batch_size=4",
    "sft.num_demonstrations=8",
    "sft.learning_rate=5e-3",
    "steps=10",
    "save_every=4",
    "algorithm.groups_per_batch=2",
    "algorithm.group_size=16",
    "algorithm.max_resampled_groups=0",
    "algorithm.learning_rate=3e-3",
    "certify.every=0",  # its conversations are long; another test compares the log-probabilities
)


@pytest.fixture(scope="module")
def tinker() -> Iterator[None]:
    """Import the client library."""
    folder = str(skyrl_server.client_packages())
    sys.path.append(folder)
    importlib.import_module("tinker")
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the client library closes no connection
        gc.collect()
    sys.path.remove(folder)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), architecture="qwen3")


@pytest.fixture(scope="module")
def url(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with skyrl_server.serve_skyrl(tiny, tmp_path_factory.mktemp("server")) as server:
        yield server.url


def tinker_config(url: str, **tinker: Any) -> TinkerEngineConfig:
    served = {"base_url": url, "server_kind": "skyrl-jax", "outage_timeout": 15.0} | tinker
    return TinkerEngineConfig.model_validate({"lora": {"rank": LORA["rank"]}, **served})


def two_batches() -> list[Batch]:
    """Return the batches of two optimizer steps, with rows of different lengths and scales."""
    first, second = random_batch([(3, 9), (8, 2), (5, 14)]), random_batch([(2, 17), (11, 3)])
    return [batch.replace(advantages=batch.advantages * scale) for batch, scale in ((first, 1.0), (second, 0.1))]


def export_adapters(engine: Any, folder: Path) -> dict[str, Tensor]:
    engine.export(folder)
    return load_file(folder / "adapter_model.safetensors")


def local_engine_with(tiny: Path, adapters: Mapping[str, Tensor], folder: Path) -> LocalEngine:
    """Return the local engine with a server's adapters."""
    names = {name.removeprefix("base_model.model."): weight for name, weight in adapters.items()}
    masters = {
        f"master.{name.replace('.lora_A.', '.lora_A.default.').replace('.lora_B.', '.lora_B.default.')}": weight
        for name, weight in names.items()
    }
    folder.mkdir()
    save_file(masters, folder / "optimizer.safetensors", {"about": json.dumps({"version": 0})})
    settings = {"device": "cpu", "dtype": "float32", "finetune": "lora", "lora": LORA}
    config = LocalEngineConfig.model_validate(settings | {"optimizer": {"max_grad_norm": float("inf")}})
    engine = LocalEngine(tiny, config)
    engine.load(folder)
    return engine


def adapter_difference(theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> float:
    """Return the relative difference of the lora_B weights; only in SkyRL do q, k and v share lora_A."""
    names = [name for name in ours if ".lora_B." in name]
    one, other = (torch.cat([adapters[name].flatten() for name in names]) for adapters in (theirs, ours))
    return float((one - other).norm() / other.norm())


def difference_after_two_steps(theirs: TinkerEngine, ours: LocalEngine, loss: LossConfig, folder: Path) -> float:
    """Take two steps on the server and locally, compare their metrics, and return the difference of the adapters."""
    for number, batch in enumerate(two_batches()):
        there, here = (asyncio.run(engine.update([batch], loss, RATE)) for engine in (theirs, ours))
        names = ["loss", "trained_tokens", *(() if loss.kind == "nll" else ("ratio", "approx_kl", "clip_fraction"))]
        # From step 2 on, SkyRL's shared lora_A has one gradient instead of three.
        for name in [*names, *(() if number else ("grad_norm",))]:
            assert there[name] == pytest.approx(here[name], rel=1e-3, abs=1e-5), name
    return adapter_difference(export_adapters(theirs, folder / "theirs"), export_adapters(ours, folder / "ours"))


@pytest.mark.parametrize("kind", ["ppo", "cispo", "gspo", "nll"])
def test_updates_match_the_local_engine(kind: Any, tiny: Path, url: str, tmp_path: Path) -> None:
    theirs = TinkerEngine(tiny, tinker_config(url))
    ours = local_engine_with(tiny, export_adapters(theirs, tmp_path / "before"), tmp_path / "local")
    assert difference_after_two_steps(theirs, ours, LossConfig(kind=kind), tmp_path) < TOLERANCE
    theirs.close()


def test_sampler_and_trainer_agree_before_and_after_an_update(tiny: Path, url: str) -> None:
    engine = TinkerEngine(tiny, tinker_config(url))

    async def sample_batch() -> Batch:
        prompts = [PROMPT, PROMPT[:9], [*PROMPT, 1, 2, 3]]
        replies = await asyncio.gather(*(engine.sample(p, SHORT, seed) for seed, p in enumerate(prompts)))
        assert {reply.weights_version for reply in replies} == {engine.weights_version}
        episodes = [Trajectory("t", score=Score(reward=0.0)) for _ in prompts]
        for episode, prompt, reply in zip(episodes, prompts, replies, strict=True):
            episode.observe([], prompt)
            episode.act(Message(role="assistant"), reply.tokens, reply.logprobs)
        return collate(episodes)

    for version in range(2):
        batch = asyncio.run(sample_batch())
        read = asyncio.run(engine.compute_logprobs(batch)).logprobs
        assert float((read - batch.logprobs).abs().max()) < engine.tolerance.max_diff / 10
        if not version:
            asyncio.run(engine.update([batch.replace(advantages=batch.mask / 8)], LossConfig(kind="nll"), RATE))
            assert float((asyncio.run(engine.compute_logprobs(batch)).logprobs - read).abs().max()) > 0.1
    assert engine.weights_version == 1
    engine.close()


def test_seeds_stop_conditions_and_greedy_sampling(tiny: Path, url: str) -> None:
    engine = TinkerEngine(tiny, tinker_config(url))

    async def sample_all(*each: tuple[SamplingParams, int, Sequence[int]]) -> list[Any]:
        return await asyncio.gather(*(engine.sample(PROMPT, sampling, seed, stop) for sampling, seed, stop in each))

    free, same, other = asyncio.run(sample_all((SHORT, 1, ()), (SHORT, 1, ()), (SHORT, (1 << 40) + 2, ())))
    assert free == same != other
    assert (len(free.tokens), free.finish_reason, free.weights_version) == (SHORT.max_response_tokens, "length", 0)
    third = free.tokens[2]
    stopped, said = asyncio.run(sample_all((SHORT, 1, [third]), (SHORT.replace(stop=(chr(97),)), 3, ())))
    assert stopped.tokens == free.tokens[: free.tokens.index(third) + 1]
    assert stopped.finish_reason == "stop"
    assert 97 not in said.tokens[:-1]
    narrow = [
        reply.tokens for reply in asyncio.run(sample_all(*((SHORT.replace(top_k=1), seed, ()) for seed in range(3))))
    ]
    greedy = asyncio.run(sample_all((SHORT.replace(temperature=0.0), 0, ())))[0].tokens
    assert narrow == [greedy] * 3
    engine.close()


def test_checkpoint_resumes_to_the_same_weights_and_reference(tiny: Path, url: str, tmp_path: Path) -> None:
    first, second = two_batches()
    one, other = TinkerEngine(tiny, tinker_config(url)), TinkerEngine(tiny, tinker_config(url))
    asyncio.run(one.update([first], LossConfig(), RATE))
    one.set_reference()
    one.save(tmp_path)
    as_it_was = asyncio.run(one.compute_logprobs(second)).logprobs
    asyncio.run(one.update([second], LossConfig(), RATE))
    other.load(tmp_path)
    assert other.weights_version == 1
    asyncio.run(other.update([second], LossConfig(), RATE))
    assert other.weights_version == one.weights_version == 2
    end, again = export_adapters(one, tmp_path / "one"), export_adapters(other, tmp_path / "other")
    assert adapter_difference(again, end) < TOLERANCE, adapter_difference(again, end)
    for engine in (one, other):
        assert torch.allclose(asyncio.run(engine.compute_ref_logprobs(second)).ref_logprobs, as_it_was, atol=1e-5)
        assert not torch.allclose(asyncio.run(engine.compute_logprobs(second)).logprobs, as_it_was, atol=1e-3)
        engine.close()


def test_reset_optimizer_clears_the_moments(tiny: Path, url: str, tmp_path: Path) -> None:
    first, second = two_batches()
    engine = TinkerEngine(tiny, tinker_config(url))
    asyncio.run(engine.update([first], LossConfig(), RATE))
    before = export_adapters(engine, tmp_path / "before")
    engine.reset_optimizer()
    engine.reset_prefix_cache()
    asyncio.run(engine.compute_logprobs(second))
    asyncio.run(engine.update([second.replace(advantages=0 * second.mask)], LossConfig(), RATE))  # no gradient
    still = export_adapters(engine, tmp_path / "still")
    assert before
    assert all(torch.equal(before[name], still[name]) for name in before)
    engine.close()


def test_wrong_server_kind_is_detected_before_an_update(
    tiny: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-for-tests")
    engine = TinkerEngine(tiny, tinker_config(url, server_kind="hosted"))
    before = export_adapters(engine, tmp_path / "before")
    with pytest.raises(ConfigError, match=r"engine\.server_kind"):
        asyncio.run(engine.update(two_batches(), LossConfig(), RATE))
    after = export_adapters(engine, tmp_path / "after")
    assert before
    assert all(torch.equal(before[name], after[name]) for name in before)
    with pytest.raises(ConfigError, match="'other'"):
        _ = TinkerEngine(tiny, tinker_config(url, model="other")).sampler_choice
    engine.close()


class ServerKiller:
    """A progress report that kills the server at a training step."""

    def __init__(self, server: skyrl_server.SkyRLServer, step: int) -> None:
        self._server, self._step = server, step

    def __call__(self, phase: str, done: int, of: int, metrics: Mapping[str, float]) -> None:
        if (phase, done) == ("train", self._step):
            self._server.kill()


def silent(phase: str, done: int, of: int, metrics: Mapping[str, float]) -> None:
    pass


def test_run_learns_resumes_after_a_server_crash_and_exports(tmp_path: Path) -> None:
    # Adapters cannot scale tied embeddings, so a narrower model cannot give a token a high probability.
    tiny = make_tiny_model(tmp_path / "tiny", architecture="qwen3", hidden_size=128)
    config = parse_config("", [f"model={tiny}", *LEARNING])
    with skyrl_server.serve_skyrl(tiny, tmp_path / "server") as server:
        run = Run.create(tmp_path / "run", config.replace(engine=tinker_config(server.url)))
        with pytest.raises(RolloutError, match=re.escape(server.url)):
            train(run.config, run, ServerKiller(server, KILL_STEP))
    assert sorted((run.folder / "checkpoints").iterdir())[-1].name == f"step_{KILL_STEP - 2:06}"
    assert (run.folder / "metrics.jsonl").is_file()
    with skyrl_server.serve_skyrl(tiny, tmp_path / "server") as server:
        run = Run.resume(run.folder, config.replace(engine=tinker_config(server.url)))
        rates = {name: found.success_rate for name, found in train(run.config, run, silent).held_out.results.items()}
        assert rates["base"].mean == 0.0
        assert rates["rl"].mean > 0.9
        served = greedy_reply(run.config, resolve_weights(str(run.folder)).checkpoint)
    export_model(resolve_weights(str(run.folder)), tmp_path / "model")
    local = parse_config("", [f"model={tmp_path / 'model'}", "engine.device=cpu", "engine.dtype=float32"])
    assert greedy_reply(local, None) == served


def greedy_reply(config: TrainConfig, checkpoint: Path | None) -> list[int]:
    """Return the tokens of a greedy reply."""
    engine, _ = open_model(config, checkpoint)
    reply = asyncio.run(engine.sample(PROMPT, SamplingParams(temperature=0.0, max_response_tokens=24), 0))
    engine.close()
    return reply.tokens


def test_updates_of_two_ray_actors_match_the_local_engine(tiny: Path, tmp_path: Path) -> None:
    spread = {"use_ray": True, "num_processes": 2, "fully_sharded_data_parallel_size": 2, "train_micro_batch_size": 2}
    with skyrl_server.serve_skyrl(tiny, tmp_path / "server", **spread) as server:
        theirs = TinkerEngine(tiny, tinker_config(server.url))
        ours = local_engine_with(tiny, export_adapters(theirs, tmp_path / "before"), tmp_path / "local")
        assert difference_after_two_steps(theirs, ours, LossConfig(), tmp_path) < TOLERANCE
        reply = asyncio.run(theirs.sample(PROMPT, SHORT, 0))
        assert reply.weights_version == 2
        theirs.close()
