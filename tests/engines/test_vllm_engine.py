"""Tests of the local engine with a real vLLM server as its sampler, with SmolLM2-135M on the CPU."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from support import vllm_server
from support.paths import ROOT, TESTS
from support.tiny_runs import score_distinct_characters
from understudy.algorithms.batch import Batch, collate
from understudy.algorithms.config import LossConfig
from understudy.core.tasks import Score
from understudy.core.trajectory import Trajectory
from understudy.engines.interface import Completion, SamplingParams
from understudy.engines.local.config import LocalEngineConfig, LoraConfig
from understudy.engines.local.engine import LocalEngine
from understudy.engines.models import find_model
from understudy.engines.vllm.sampler import VllmSampler
from understudy.engines.vllm.server import VllmServer
from understudy.runs.config import parse_config
from understudy.runs.run import Run, read_metrics
from understudy.train.loop import train

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(bool(vllm_server.unsupported_reason()), reason=vllm_server.unsupported_reason()),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),  # peft's, of transformers
]

TOLERANCE = 1e-3
"""Allowed difference of a log-probability in float32, after 30 layers."""
PROMPTS = [list(range(100 + i, 150 + 3 * i)) for i in range(3)]
SHORT = SamplingParams(max_response_tokens=8)


def config(**settings: Any) -> LocalEngineConfig:
    vllm = {"python": str(vllm_server.install()), "max_model_len": 2048}
    values = {
        "sampler": "vllm",
        "vllm": vllm,
        "dtype": "float32",
        "max_num_seqs": 8,
        "lora": LoraConfig(rank=8, alpha=16.0),
    }
    return LocalEngineConfig.model_validate(values | {"device": "cpu", "finetune": "lora"} | settings)


def sample_prompts(engine: LocalEngine, sampling: SamplingParams, stop_tokens: Sequence[int] = ()) -> list[Completion]:
    async def sample_all() -> list[Completion]:
        each = (engine.sample(p, sampling, seed, stop_tokens) for seed, p in enumerate(PROMPTS))
        return await asyncio.gather(*each)

    return asyncio.run(sample_all())


def batch_of(replies: Sequence[Completion], temperature: float = 1.0) -> Batch:
    episodes = [Trajectory(str(i), score=Score(reward=float(i % 2))) for i in range(len(replies))]
    for episode, prompt, reply in zip(episodes, PROMPTS, replies, strict=True):
        episode.observe((), prompt)
        episode.tokens += reply.tokens
        episode.mask += [True] * len(reply.tokens)
        episode.logprobs += reply.logprobs
    batch = collate(episodes, temperature=temperature)
    advantages = torch.randn(batch.tokens.shape, generator=torch.Generator().manual_seed(1)) / 20
    return batch.replace(advantages=advantages * batch.mask)


def logprob_gap(engine: LocalEngine, batch: Batch) -> float:
    """Return the largest difference between the log-probabilities of sampler and trainer."""
    return float((asyncio.run(engine.compute_logprobs(batch)).logprobs - batch.logprobs)[batch.mask].abs().max())


def update(engine: LocalEngine, batch: Batch, rate: float) -> None:
    asyncio.run(engine.update([batch], LossConfig(), rate))


def server_of(engine: LocalEngine) -> VllmServer:
    assert isinstance(engine._sampling.sampler, VllmSampler)
    assert isinstance(engine._sampling.sampler._vllm, VllmServer)
    return engine._sampling.sampler._vllm


def server_pid(server: VllmServer) -> int:
    assert server._process is not None
    return server._process.pid


async def server_metric(server: VllmServer, name: str) -> float:
    """Return one of the server's metrics."""
    text = (await server._request("GET", "/metrics", None, within=60.0)).body.decode()
    return sum(float(value) for value in re.findall(rf"^vllm:{name}(?:{{.*}})? ([\d.e+]+)$", text, re.MULTILINE))


def running_processes(group: int) -> list[str]:
    """Return the states of a group's running processes, without zombies."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process may end meanwhile
            state, _, of, *_ = path.read_text().rpartition(")")[2].split()
            found += [state] * (int(of) == group and state not in "ZX")
    return found


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in vllm_server.ON_CPU.items():
            patch.setenv(name, value)
        engine = LocalEngine(find_model("smollm2-135m"), config())
        yield engine
        engine.close()


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_logprobs_match_the_trainer(engine: LocalEngine, temperature: float) -> None:
    replies = sample_prompts(engine, SamplingParams(max_response_tokens=8, temperature=temperature))
    assert logprob_gap(engine, batch_of(replies, temperature or 1.0)) < TOLERANCE
    assert [len(reply.tokens) for reply in replies] == [8, 8, 8]


def test_logprobs_match_the_trainer_after_an_update(engine: LocalEngine) -> None:
    version = engine.weights_version
    before = batch_of(sample_prompts(engine, SHORT))
    update(engine, before, 2e-3)
    assert logprob_gap(engine, before) > 100 * TOLERANCE
    replies = sample_prompts(engine, SHORT)
    assert {reply.weights_version for reply in replies} == {version + 1}
    assert logprob_gap(engine, batch_of(replies)) < TOLERANCE


def test_replies_end_at_the_given_stop_tokens_only(engine: LocalEngine) -> None:
    free = sample_prompts(engine, SHORT)
    stop = free[0].tokens[3]
    first = sample_prompts(engine, SHORT, [stop])[0]
    assert first.tokens == free[0].tokens[: free[0].tokens.index(stop) + 1]
    assert (first.finish_reason, free[0].finish_reason) == ("stop", "length")
    assert len(first.logprobs) == len(first.tokens)


def test_sampling_is_deterministic_for_a_seed(engine: LocalEngine) -> None:
    one, again = sample_prompts(engine, SHORT), sample_prompts(engine, SHORT)
    assert [reply.tokens for reply in one] == [reply.tokens for reply in again]
    assert one[0].tokens != asyncio.run(engine.sample(PROMPTS[0], SHORT, 99)).tokens


def test_prefix_cache_is_reset_with_new_weights(engine: LocalEngine) -> None:
    async def reply_and_hits() -> tuple[Completion, float]:
        before = await server_metric(server_of(engine), "prefix_cache_hits_total")
        reply = await engine.sample(list(range(200, 500)), SamplingParams(max_response_tokens=2, temperature=0.0), 0)
        return reply, await server_metric(server_of(engine), "prefix_cache_hits_total") - before

    first, _ = asyncio.run(reply_and_hits())
    again, hits = asyncio.run(reply_and_hits())
    assert again.tokens == first.tokens
    assert hits >= 128, "a block of vLLM's on a CPU"
    update(engine, batch_of(sample_prompts(engine, SHORT)), 2e-3)
    other, hits = asyncio.run(reply_and_hits())
    assert hits == 0
    assert other.logprobs != first.logprobs


def test_prompts_beyond_the_token_limit_of_a_pass_are_sampled(engine: LocalEngine) -> None:
    """The prompts have 2,070 new tokens; a pass of vLLM on a CPU takes 2,048 and must not split a prompt."""
    started = server_pid(server_of(engine))

    async def sample_all() -> list[Completion]:
        prompts = [list(range(690 * i + 1000, 690 * i + 1690)) for i in range(3)]
        return await asyncio.gather(
            *(engine.sample(p, SamplingParams(max_response_tokens=1), seed) for seed, p in enumerate(prompts))
        )

    assert [len(reply.tokens) for reply in asyncio.run(sample_all())] == [1] * 3
    assert server_pid(server_of(engine)) == started


def test_killed_server_restarts_with_the_current_weights(engine: LocalEngine) -> None:
    sampling = SamplingParams(max_response_tokens=48)
    before, server = sample_prompts(engine, sampling), server_of(engine)
    old = server_pid(server)

    async def kill_while_sampling() -> list[Completion]:
        each = [asyncio.ensure_future(engine.sample(p, sampling, seed)) for seed, p in enumerate(PROMPTS)]
        while not await server_metric(server, "num_requests_running"):
            assert not all(call.done() for call in each), "they end before they are seen running"
        os.killpg(old, signal.SIGKILL)
        return await asyncio.gather(*each)

    after = asyncio.run(kill_while_sampling())
    assert server_pid(server) != old
    assert [reply.tokens for reply in after] == [reply.tokens for reply in before]
    assert logprob_gap(engine, batch_of(after)) < TOLERANCE


def test_closed_engine_ends_the_server_process(engine: LocalEngine) -> None:
    server = server_of(engine)
    process = server_pid(server)
    engine.close()
    deadline = time.monotonic() + 60  # a killed process with gigabytes of memory takes a moment to end
    while running_processes(process) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running_processes(process)


RUN = (
    "domain=support.tiny_runs:ONE_LAMP",
    "slice.domain_policy=brief",
    "slice.tools=switch_lamp",
    "model=smollm2-135m",
    "engine.sampler=vllm",
    "engine.device=cpu",
    "engine.dtype=float32",
    "engine.max_num_seqs=8",
    "engine.vllm.max_model_len=2048",
    "sampling.max_response_tokens=12",
    "limits.max_turns=2",
    "eval.tasks=1",
    "sft.steps=0",
    "steps=2",
    "algorithm.groups_per_batch=2",
    "algorithm.group_size=2",
    "algorithm.max_resampled_groups=0",
    "algorithm.learning_rate=1e-4",
    "allow_noop_solvable=true",
)


def test_grpo_run_with_the_vllm_sampler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With full fine-tuning, so that step 2 samples from the weights of step 1."""
    for name, value in vllm_server.ON_CPU.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("understudy.envs.domain.score_episode", score_distinct_characters)
    config = parse_config("", [*RUN, f"engine.vllm.python={vllm_server.install()}"])
    phases: list[str] = []
    run = Run.create(tmp_path / "run", config)
    rows = train(config, run, lambda phase, done, total, metrics: phases.append(phase)).held_out.results
    metrics = [line for line in read_metrics(run.folder) if line["step"]]
    assert any(re.search(r"\bvLLM: .*engine\.sampler", each) for each in phases)
    assert list(rows) == ["noop", "gold", "base", "rl"]
    assert [step["rollout/episodes"] for step in metrics] == [4.0, 4.0]
    assert all(step["train/trained_tokens"] > 0 and step["train/grad_norm"] > 0 for step in metrics)
    assert all(step["train/logprob_abs_diff"] < TOLERANCE for step in metrics)


def test_in_process_vllm_matches_the_trainer(tmp_path: Path) -> None:
    """Runs in vLLM's own Python, where `auto` finds it."""
    script = str(TESTS / "support" / "vllm_inside.py")
    command = [str(vllm_server.install()), "-P", script, str(find_model("smollm2-135m"))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **vllm_server.ON_CPU}
    with (tmp_path / "log").open("w") as log:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, env=environment, text=True, check=False)
    assert done.returncode == 0, (tmp_path / "log").read_text()[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert "by vLLM: " in found["choice"]
    assert found["before"] < TOLERANCE
    assert found["moved"] > 10 * TOLERANCE
    assert found["after"] < TOLERANCE
