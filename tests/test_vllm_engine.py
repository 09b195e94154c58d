"""The local engine with a real vLLM as its sampler: SmolLM2-135M-Instruct on the CPU.

Token ids in and out, with the trainer's log-probabilities before and after an update, for adapters and whole weights; a
server that is killed comes back with the current weights, and no reply is lost; a GRPO run goes through it.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import vllm_server

torch = pytest.importorskip("torch")

from test_train import rewarded  # noqa: E402
from understudy.algorithms.options import Loss  # noqa: E402
from understudy.batch import Batch, collate  # noqa: E402
from understudy.config import TrainConfig  # noqa: E402
from understudy.engines.base import Completion, Sampling  # noqa: E402
from understudy.engines.local.config import LocalConfig, Lora  # noqa: E402
from understudy.engines.local.engine import LocalEngine  # noqa: E402
from understudy.engines.vllm.sampler import VllmSampler  # noqa: E402
from understudy.engines.vllm.server import Server  # noqa: E402
from understudy.models import find_model  # noqa: E402
from understudy.run import Run, read_metrics  # noqa: E402
from understudy.settings import parse  # noqa: E402
from understudy.tasks import Score  # noqa: E402
from understudy.train import train  # noqa: E402
from understudy.trajectory import Trajectory  # noqa: E402

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(bool(vllm_server.unsupported()), reason=vllm_server.unsupported()),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),  # peft's, of transformers
]

TOLERANCE = 1e-3
"""Of a log-probability in float32, after 30 layers."""
PROMPTS = [list(range(100 + i, 150 + 3 * i)) for i in range(3)]
ANY = Sampling(max_tokens=8)
LONG = Sampling(max_tokens=24)


def config(**settings: Any) -> LocalConfig:
    vllm = {"python": str(vllm_server.install()), "max_model_len": 2048}
    values = {"sampler": "vllm", "vllm": vllm, "dtype": "float32", "sequences": 8, "lora": Lora(rank=8, alpha=16.0)}
    return LocalConfig.model_validate(values | {"device": "cpu", "finetune": "lora"} | settings)


def ask(engine: LocalEngine, sampling: Sampling, stop_tokens: Sequence[int] = ()) -> list[Completion]:
    async def all_of_them() -> list[Completion]:
        each = (engine.sample(p, sampling, seed, stop_tokens) for seed, p in enumerate(PROMPTS))
        return await asyncio.gather(*each)

    return asyncio.run(all_of_them())


def batch_of(replies: Sequence[Completion], temperature: float = 1.0) -> Batch:
    episodes = [Trajectory(str(i), score=Score(reward=float(i % 2))) for i in range(len(replies))]
    for episode, prompt, reply in zip(episodes, PROMPTS, replies, strict=True):
        episode.observe((), prompt)
        episode.tokens += reply.tokens
        episode.mask += [True] * len(reply.tokens)
        episode.logprobs += reply.logprobs
    batch = collate(episodes, temperature=temperature)
    advantages = torch.randn(batch.tokens.shape, generator=torch.Generator().manual_seed(1)) / 20
    return batch.with_(advantages=advantages * batch.mask)


def gap(engine: LocalEngine, batch: Batch) -> float:
    """How far the sampler's log-probabilities are from the trainer's."""
    return float((asyncio.run(engine.forward(batch)).logprobs - batch.logprobs)[batch.mask].abs().max())


def move(engine: LocalEngine, batch: Batch, rate: float) -> None:
    asyncio.run(engine.update([batch], Loss(), rate))


def server_of(engine: LocalEngine) -> Server:
    assert isinstance(engine._sampler, VllmSampler)
    assert isinstance(engine._sampler._vllm, Server)
    return engine._sampler._vllm


def pid(server: Server) -> int:
    assert server._process is not None
    return server._process.pid


async def counted(server: Server, name: str) -> float:
    """One of the server's own counts."""
    text = (await server._request("GET", "/metrics", None, within=60.0)).text
    return sum(float(value) for value in re.findall(rf"^vllm:{name}(?:{{.*}})? ([\d.e+]+)$", text, re.MULTILINE))


def living(group: int) -> list[str]:
    """The processes of a group that run; ended ones may wait to be collected."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ends while it is looked at
            state, _, of, *_ = path.read_text().rpartition(")")[2].split()
            found += [state] * (int(of) == group and state not in "ZX")
    return found


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        engine = LocalEngine(find_model("smollm2-135m"), config())
        yield engine
        engine.close()


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_log_probabilities_are_the_trainers(engine: LocalEngine, temperature: float) -> None:
    replies = ask(engine, Sampling(max_tokens=8, temperature=temperature))
    assert gap(engine, batch_of(replies, temperature or 1.0)) < TOLERANCE
    assert [len(reply.tokens) for reply in replies] == [8, 8, 8]


def test_after_an_update_they_are_the_trainers_again(engine: LocalEngine) -> None:
    version = engine.version
    before = batch_of(ask(engine, ANY))
    move(engine, before, 2e-3)
    assert gap(engine, before) > 100 * TOLERANCE
    replies = ask(engine, ANY)
    assert {reply.version for reply in replies} == {version + 1}
    assert gap(engine, batch_of(replies)) < TOLERANCE


def test_replies_end_at_stop_tokens_of_the_format_and_no_others(engine: LocalEngine) -> None:
    free = ask(engine, ANY)
    stop = free[0].tokens[3]
    first = ask(engine, ANY, [stop])[0]
    assert first.tokens == free[0].tokens[: free[0].tokens.index(stop) + 1]
    assert (first.finish, free[0].finish) == ("stop", "length")
    assert len(first.logprobs) == len(first.tokens)


def test_seeds_decide_what_is_sampled(engine: LocalEngine) -> None:
    one, again = ask(engine, ANY), ask(engine, ANY)
    assert [reply.tokens for reply in one] == [reply.tokens for reply in again]
    assert one[0].tokens != asyncio.run(engine.sample(PROMPTS[0], ANY, 99)).tokens


def test_prefixes_are_cached_and_forgotten_with_their_weights(engine: LocalEngine) -> None:
    async def reply_and_hits() -> tuple[Completion, float]:
        before = await counted(server_of(engine), "prefix_cache_hits_total")
        reply = await engine.sample(list(range(200, 500)), Sampling(max_tokens=2, temperature=0.0), 0)
        return reply, await counted(server_of(engine), "prefix_cache_hits_total") - before

    first, _ = asyncio.run(reply_and_hits())
    again, hits = asyncio.run(reply_and_hits())
    assert again.tokens == first.tokens
    assert hits >= 128, "a block of vLLM's on a CPU"
    move(engine, batch_of(ask(engine, ANY)), 2e-3)
    other, hits = asyncio.run(reply_and_hits())
    assert hits == 0
    assert other.logprobs != first.logprobs


def test_more_prompts_than_one_pass_takes(engine: LocalEngine) -> None:
    """2,070 new tokens at once, where a pass of vLLM on a CPU takes 2,048: no prompt may be cut in two there."""
    started = pid(server_of(engine))

    async def all_of_them() -> list[Completion]:
        prompts = [list(range(690 * i + 1000, 690 * i + 1690)) for i in range(3)]
        return await asyncio.gather(*(engine.sample(p, Sampling(max_tokens=1), seed) for seed, p in enumerate(prompts)))

    assert [len(reply.tokens) for reply in asyncio.run(all_of_them())] == [1] * 3
    assert pid(server_of(engine)) == started


def test_a_server_that_is_killed_comes_back_with_the_current_weights(engine: LocalEngine) -> None:
    before, server = ask(engine, LONG), server_of(engine)
    old = pid(server)

    async def kill_it_while_it_samples() -> list[Completion]:
        each = [asyncio.ensure_future(engine.sample(p, LONG, seed)) for seed, p in enumerate(PROMPTS)]
        while await counted(server, "num_requests_running") < len(PROMPTS):
            pass
        os.killpg(old, signal.SIGKILL)
        return await asyncio.gather(*each)

    after = asyncio.run(kill_it_while_it_samples())
    assert pid(server) != old
    assert [reply.tokens for reply in after] == [reply.tokens for reply in before]
    assert gap(engine, batch_of(after)) < TOLERANCE


def test_a_closed_server_is_gone(engine: LocalEngine) -> None:
    server = server_of(engine)
    process = pid(server)
    engine.close()
    assert not living(process)


RUN = (
    "domain=test_train:ONE_LAMP",
    "slice.policy=brief",
    "slice.tools=switch_lamp",
    "model=smollm2-135m",
    "engine.sampler=vllm",
    "engine.device=cpu",
    "engine.dtype=float32",
    "engine.sequences=8",
    "engine.vllm.max_model_len=2048",
    "sampling.max_tokens=12",
    "limits.max_turns=2",
    "eval.tasks=1",
    "sft.steps=0",
    "steps=2",
    "algorithm.tasks_per_step=2",
    "algorithm.group_size=2",
    "algorithm.refill=0",
    "algorithm.learning_rate=1e-4",
    "free_tasks=true",
)


def test_a_grpo_run_samples_through_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whole weights: the gap of the second step is that of the weights which the first has made."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setattr("understudy.domains.base.score", rewarded)
    config = parse(TrainConfig, "", [*RUN, f"engine.vllm.python={vllm_server.install()}"])
    said: list[str] = []
    run = Run.create(tmp_path / "run", config)
    rows = train(config, run, lambda phase, done, total, metrics: said.append(phase))["evaluations"]
    metrics = [line for line in read_metrics(run.folder) if line["step"]]
    assert "replies are sampled by vLLM: engine.sampler asks for it" in said
    assert [name for name, _ in rows] == ["do nothing", "gold", "base model", "trained"]
    assert [step["generation/episodes"] for step in metrics] == [4.0, 4.0]
    assert all(step["train/trained_tokens"] > 0 and step["train/grad_norm"] > 0 for step in metrics)
    assert all(step["train/logprob_gap"] < TOLERANCE for step in metrics)


def test_vllm_inside_the_process(tmp_path: Path) -> None:
    """In vLLM's own Python, where `auto` finds it."""
    source = Path(__file__).parent
    command = [str(vllm_server.install()), str(source / "vllm_inside.py"), str(find_model("smollm2-135m"))]
    environment = {**os.environ, "PYTHONPATH": str(source.parent / "src"), "VLLM_CPU_KVCACHE_SPACE": "1"}
    with (tmp_path / "log").open("w") as log:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, env=environment, text=True, check=False)
    assert done.returncode == 0, (tmp_path / "log").read_text()[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["choice"] == "replies are sampled by vLLM: it is installed, and the model fits"
    assert found["before"] < TOLERANCE
    assert found["moved"] > 10 * TOLERANCE
    assert found["after"] < TOLERANCE
