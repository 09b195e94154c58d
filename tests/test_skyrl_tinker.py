"""The engine `tinker` with a real server: SkyRL's, whose JAX backend computes a tiny Qwen3 on the CPU.

Its weights move as the local engine's; sampler and trainer agree, before and after an update; our loop learns through
it, also where the server dies on the way; what was learned is a model for everybody; two Ray actors compute the same.
"""

import asyncio
import gc
import importlib
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import skyrl_server

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402
from torch import Tensor  # noqa: E402

from test_tinker import batch_of  # noqa: E402
from test_train import Watts, question  # noqa: E402
from toy import house  # noqa: E402
from understudy.algorithms.options import Loss  # noqa: E402
from understudy.batch import Batch, collate  # noqa: E402
from understudy.config import TrainConfig  # noqa: E402
from understudy.engines.base import Sampling  # noqa: E402
from understudy.engines.local.config import LocalConfig  # noqa: E402
from understudy.engines.local.engine import LocalEngine  # noqa: E402
from understudy.engines.tinker.engine import TinkerEngine  # noqa: E402
from understudy.errors import ConfigError, RolloutError  # noqa: E402
from understudy.messages import Message  # noqa: E402
from understudy.models import make_tiny  # noqa: E402
from understudy.players import open_model  # noqa: E402
from understudy.run import Run  # noqa: E402
from understudy.settings import parse  # noqa: E402
from understudy.tasks import Score  # noqa: E402
from understudy.tools import Toolkit  # noqa: E402
from understudy.train import train  # noqa: E402
from understudy.trajectory import Trajectory  # noqa: E402
from understudy.weights import export, find_weights  # noqa: E402

pytestmark = [
    pytest.mark.skyrl,
    pytest.mark.usefixtures("tinker"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),  # peft's, of transformers
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # the client library closes no connection
]
LORA = {"rank": 8, "alpha": 32.0}
RATE = 1e-2
NEAR = 1e-3
"""How far two steps on a server may end from the same ones here: the norm of the difference over that of the moves."""


class Silent(Toolkit):
    """No tools: their descriptions are most of a short prompt, and a token is a byte here."""


ASKED = Watts("toy", house, Silent, question, ("one", "two"))
PROMPT = list(b"How much does a lamp draw?")
ANY = Sampling(max_tokens=8)
DEATH = 10
LEARNING = (
    "domain=test_skyrl_tinker:ASKED",
    "slice.policy=brief",
    "sampling.max_tokens=8",
    "limits.max_turns=2",
    "eval.tasks=6",
    "eval.trials=4",
    "eval.temperature=1.0",
    "sft.steps=6",
    "sft.batch_size=4",
    "sft.demonstrations=8",
    "sft.learning_rate=5e-3",
    "steps=10",
    "save_every=4",
    "algorithm.tasks_per_step=2",
    "algorithm.group_size=16",
    "algorithm.refill=0",
    "algorithm.learning_rate=3e-3",
    "certify.every=0",  # its talks are long; see test_sampler_and_trainer_agree_before_an_update_and_after
)


@pytest.fixture(scope="module")
def tinker() -> Iterator[None]:
    """The client library."""
    folder = str(skyrl_server.client())
    sys.path.append(folder)
    importlib.import_module("tinker")
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it closes no connection
        gc.collect()
    sys.path.remove(folder)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"), architecture="qwen3")


@pytest.fixture(scope="module")
def url(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with skyrl_server.serving(tiny, tmp_path_factory.mktemp("server")) as server:
        yield server.url


def remote(url: str, **tinker: Any) -> LocalConfig:
    served = {"base_url": url, "server": "skyrl-jax", "patience": 5.0} | tinker
    return LocalConfig.model_validate({"kind": "tinker", "lora": LORA, "tinker": served})


def steps() -> list[Batch]:
    """Two optimizer steps of rows of different lengths, weighed differently."""
    first, second = batch_of([(3, 9), (8, 2), (5, 14)]), batch_of([(2, 17), (11, 3)])
    return [batch.with_(advantages=batch.advantages * scale) for batch, scale in ((first, 1.0), (second, 0.1))]


def written(engine: Any, folder: Path) -> dict[str, Tensor]:
    engine.export(folder)
    return load_file(folder / "adapter_model.safetensors")


def local_beside(tiny: Path, adapters: Mapping[str, Tensor], folder: Path) -> LocalEngine:
    """The local engine with a server's adapters."""
    names = {name.removeprefix("base_model.model."): weight for name, weight in adapters.items()}
    masters = {
        f"master.{name.replace('.lora_A.', '.lora_A.default.').replace('.lora_B.', '.lora_B.default.')}": weight
        for name, weight in names.items()
    }
    folder.mkdir()
    save_file(masters, folder / "optimizer.safetensors", {"version": "0"})
    settings = {"device": "cpu", "dtype": "float32", "finetune": "lora", "lora": LORA}
    config = LocalConfig.model_validate(settings | {"optimizer": {"max_grad_norm": float("inf")}})
    engine = LocalEngine(tiny, config)
    engine.load(folder)
    return engine


def apart(theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> float:
    """Of all second factors, which are 0 at first: SkyRL's q, k and v share their first one, ours do not."""
    names = [name for name in ours if ".lora_B." in name]
    one, other = (torch.cat([adapters[name].flatten() for name in names]) for adapters in (theirs, ours))
    return float((one - other).norm() / other.norm())


def moved(theirs: TinkerEngine, ours: LocalEngine, loss: Loss, folder: Path) -> float:
    """How far apart two steps end on a server and here. What they tell of themselves is compared as well."""
    for number, batch in enumerate(steps()):
        there, here = (asyncio.run(engine.update([batch], loss, RATE)) for engine in (theirs, ours))
        names = ["loss", "trained_tokens", *(() if loss.kind == "nll" else ("ratio", "approx_kl", "clip_fraction"))]
        # Later on shared first factors have one gradient in place of three.
        for name in [*names, *(() if number else ("grad_norm",))]:
            assert there[name] == pytest.approx(here[name], rel=1e-3, abs=1e-5), name
    return apart(written(theirs, folder / "theirs"), written(ours, folder / "ours"))


@pytest.mark.parametrize("kind", ["policy", "cispo", "gspo", "nll"])
def test_weights_move_as_those_of_the_local_engine(kind: Any, tiny: Path, url: str, tmp_path: Path) -> None:
    theirs = TinkerEngine(tiny, remote(url))
    ours = local_beside(tiny, written(theirs, tmp_path / "before"), tmp_path / "local")
    assert moved(theirs, ours, Loss(kind=kind), tmp_path) < NEAR
    theirs.close()


def test_sampler_and_trainer_agree_before_an_update_and_after(tiny: Path, url: str) -> None:
    engine = TinkerEngine(tiny, remote(url))

    async def sampled() -> Batch:
        prompts = [PROMPT, PROMPT[:9], [*PROMPT, 1, 2, 3]]
        replies = await asyncio.gather(*(engine.sample(p, ANY, seed) for seed, p in enumerate(prompts)))
        assert {reply.version for reply in replies} == {engine.version}
        episodes = [Trajectory("t", score=Score(reward=0.0)) for _ in prompts]
        for episode, prompt, reply in zip(episodes, prompts, replies, strict=True):
            episode.observe([], prompt)
            episode.act(Message(role="assistant"), reply.tokens, reply.logprobs)
        return collate(episodes)

    for version in range(2):
        batch = asyncio.run(sampled())
        read = asyncio.run(engine.forward(batch)).logprobs
        assert float((read - batch.logprobs).abs().max()) < engine.tolerance.largest / 10
        if not version:
            asyncio.run(engine.update([batch.with_(advantages=batch.mask / 8)], Loss(kind="nll"), RATE))
            assert float((asyncio.run(engine.forward(batch)).logprobs - read).abs().max()) > 0.1
    assert engine.version == 1
    engine.close()


def test_replies_end_where_they_are_to(tiny: Path, url: str) -> None:
    engine = TinkerEngine(tiny, remote(url))

    async def asked(*each: tuple[Sampling, int, Sequence[int]]) -> list[Any]:
        return await asyncio.gather(*(engine.sample(PROMPT, sampling, seed, stop) for sampling, seed, stop in each))

    free, same, other = asyncio.run(asked((ANY, 1, ()), (ANY, 1, ()), (ANY, (1 << 40) + 2, ())))
    assert free == same != other
    assert (len(free.tokens), free.finish, free.version) == (ANY.max_tokens, "length", 0)
    third = free.tokens[2]
    stopped, said = asyncio.run(asked((ANY, 1, [third]), (ANY.replace(stop=(chr(97),)), 3, ())))
    assert stopped.tokens == free.tokens[: free.tokens.index(third) + 1]
    assert stopped.finish == "stop"
    assert 97 not in said.tokens[:-1]
    narrow = [reply.tokens for reply in asyncio.run(asked(*((ANY.replace(top_k=1), seed, ()) for seed in range(3))))]
    greedy = asyncio.run(asked((ANY.replace(temperature=0.0), 0, ())))[0].tokens
    assert narrow == [greedy] * 3
    engine.close()


def test_a_checkpoint_goes_on_as_if_nothing_had_happened(tiny: Path, url: str, tmp_path: Path) -> None:
    first, second = steps()
    one, other = TinkerEngine(tiny, remote(url)), TinkerEngine(tiny, remote(url))
    asyncio.run(one.update([first], Loss(), RATE))
    one.keep_reference()
    one.save(tmp_path)
    as_it_was = asyncio.run(one.forward(second)).logprobs
    asyncio.run(one.update([second], Loss(), RATE))
    other.load(tmp_path)
    assert other.version == 1
    asyncio.run(other.update([second], Loss(), RATE))
    assert other.version == one.version == 2
    end, again = written(one, tmp_path / "one"), written(other, tmp_path / "other")
    assert apart(again, end) < NEAR, apart(again, end)
    for engine in (one, other):
        assert torch.allclose(asyncio.run(engine.reference(second)).ref_logprobs, as_it_was, atol=1e-5)
        assert not torch.allclose(asyncio.run(engine.forward(second)).logprobs, as_it_was, atol=1e-3)
        engine.close()


def test_moments_are_forgotten_by_a_step_that_moves_nothing(tiny: Path, url: str, tmp_path: Path) -> None:
    first, second = steps()
    engine = TinkerEngine(tiny, remote(url))
    asyncio.run(engine.update([first], Loss(), RATE))
    before = written(engine, tmp_path / "before")
    engine.fresh_optimizer()
    engine.forget()
    asyncio.run(engine.forward(second))
    asyncio.run(engine.update([second.with_(advantages=0 * second.mask)], Loss(), RATE))  # no gradient, no moments
    still = written(engine, tmp_path / "still")
    assert all(torch.equal(before[name], still[name]) for name in before)
    engine.close()


def test_a_server_of_another_kind_is_found_out_before_a_weight_moves(
    tiny: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-for-tests")
    engine = TinkerEngine(tiny, remote(url, server="hosted"))
    before = written(engine, tmp_path / "before")
    with pytest.raises(ConfigError, match="answers as one that does not"):
        asyncio.run(engine.update(steps(), Loss(), RATE))
    after = written(engine, tmp_path / "after")
    assert all(torch.equal(before[name], after[name]) for name in before)
    with pytest.raises(ConfigError, match="the server has no model 'other'"):
        _ = TinkerEngine(tiny, remote(url, model="other")).choice
    engine.close()


class Killer:
    """A report that kills the server when training has come to a step."""

    def __init__(self, server: skyrl_server.Serving, step: int) -> None:
        self._server, self._step = server, step

    def __call__(self, phase: str, done: int, of: int, metrics: Mapping[str, float]) -> None:
        if (phase, done) == ("train", self._step):
            self._server.kill()


def silent(phase: str, done: int, of: int, metrics: Mapping[str, float]) -> None:
    pass


def test_a_random_model_learns_though_its_server_dies_and_is_a_model_for_everybody(tmp_path: Path) -> None:
    # Adapters cannot scale tied embeddings: a narrower model can be sure of no token.
    tiny = make_tiny(tmp_path / "tiny", architecture="qwen3", hidden=128)
    config = parse(TrainConfig, "", [f"model={tiny}", *LEARNING])
    with skyrl_server.serving(tiny, tmp_path / "server") as server:
        run = Run.create(tmp_path / "run", config.replace(engine=remote(server.url)))
        with pytest.raises(RolloutError, match="is gone"):
            train(run.config, run, Killer(server, DEATH))
    assert sorted((run.folder / "checkpoints").iterdir())[-1].name == f"step_{DEATH - 2:06}"
    assert (run.folder / "metrics.jsonl").is_file()
    with skyrl_server.serving(tiny, tmp_path / "server") as server:
        run = Run.resume(run.folder, config.replace(engine=remote(server.url)))
        rates = {name: evaluation.success for name, evaluation in train(run.config, run, silent)["evaluations"]}
        assert rates["base model"].mean == 0.0
        assert rates["trained"].mean > 0.9
        served = greedy(run.config, find_weights(str(run.folder)).checkpoint)
    export(find_weights(str(run.folder)), tmp_path / "model")
    local = parse(TrainConfig, "", [f"model={tmp_path / 'model'}", "engine.device=cpu", "engine.dtype=float32"])
    assert greedy(local, None) == served


def greedy(config: TrainConfig, checkpoint: Path | None) -> list[int]:
    """What a model says when it takes the most likely token each time."""
    engine, _ = open_model(config, checkpoint)
    reply = asyncio.run(engine.sample(PROMPT, Sampling(temperature=0.0, max_tokens=24), 0))
    engine.close()
    return reply.tokens


def test_two_actors_of_ray_move_weights_alike(tiny: Path, tmp_path: Path) -> None:
    spread = {"use_ray": True, "num_processes": 2, "fully_sharded_data_parallel_size": 2, "train_micro_batch_size": 2}
    with skyrl_server.serving(tiny, tmp_path / "server", **spread) as server:
        theirs = TinkerEngine(tiny, remote(server.url))
        ours = local_beside(tiny, written(theirs, tmp_path / "before"), tmp_path / "local")
        assert moved(theirs, ours, Loss(), tmp_path) < NEAR
        reply = asyncio.run(theirs.sample(PROMPT, ANY, 0))
        assert reply.version == 2
        theirs.close()
