"""Tests of the Tinker engine without a server: config checks, requests, waiting and adapters."""

import asyncio
import concurrent.futures
import io
import math
import re
import sys
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.paths import ROOT
from support.random_batches import random_batch
from toy import DOMAIN  # noqa: F401
from understudy.algorithms import losses
from understudy.algorithms.batch import Batch, collate
from understudy.algorithms.config import LossConfig
from understudy.cli.main import main
from understudy.core.errors import ConfigError, RolloutError
from understudy.core.messages import Message
from understudy.core.settings import dump_toml
from understudy.core.tasks import Score
from understudy.core.trajectory import Trajectory
from understudy.engines.factory import open_engine
from understudy.engines.interface import SamplingParams, require_critic, require_reference
from understudy.engines.local.config import LocalEngineConfig, LoraConfig
from understudy.engines.local.engine import LocalEngine
from understudy.engines.models import make_tiny_model
from understudy.engines.tinker import adapters, client, wire
from understudy.engines.tinker.capabilities import SERVER_CAPABILITIES, native_loss_name
from understudy.engines.tinker.client import TinkerClient
from understudy.engines.tinker.config import TinkerEngineConfig
from understudy.engines.tinker.engine import TinkerEngine
from understudy.engines.tinker.rows import linear_coefficients, to_logprobs, to_tinker_rows
from understudy.runs.config import (
    TrainConfig,
    load_config,
    parse_config,
)
from understudy.train.preparation import prepare_run

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's, of transformers
DEAD_URL = "http://127.0.0.1:9"
TINKER = ("engine.kind=tinker", f"engine.base_url={DEAD_URL}", "engine.server_kind=skyrl-jax")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), architecture="qwen3")


def config(*overrides: str) -> TrainConfig:
    return parse_config("", ["domain=toy:DOMAIN", "model=tiny", "allow_noop_solvable=true", *TINKER, *overrides])


def test_defaults_of_keys_that_the_server_decides() -> None:
    engine = config().engine
    assert isinstance(engine, TinkerEngineConfig)
    assert (engine.finetune, engine.server_lora.alpha, engine.optimizer.max_grad_norm) == ("lora", 32.0, math.inf)
    assert config("engine.optimizer.beta1=0.5").engine.optimizer.max_grad_norm == math.inf
    assert config("engine.lora.rank=4").engine.lora.rank == 4
    assert parse_config(dump_toml(config())) == config()
    assert parse_config("").engine.finetune == "full"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("engine.base_url=", r"engine\.base_url"),
        ("engine.server_kind=", "skyrl-jax, skyrl-train, hosted"),
        (
            "engine.optimizer.max_grad_norm=1",
            r"engine\.optimizer\.max_grad_norm = 1\.0\b.*engine\.server",
        ),
        ("engine.optimizer.weight_decay=0.1", "engine.optimizer.weight_decay = 0.1"),
        ("sampling.temperature=0.7", "sampling.temperature = 0.7"),
        ("eval.temperature=0.5", "eval.temperature = 0.5"),
        ("sampling.min_p=0.1", "sampling.min_p = 0.1"),
        ("sampling.repetition_penalty=1.1", "sampling.repetition_penalty = 1.1"),
        ("sampling.frequency_penalty=0.5", "sampling.frequency_penalty = 0.5"),
        ("sampling.presence_penalty=0.5", "sampling.presence_penalty = 0.5"),
        ("algorithm.advantage_estimator=gae", "critic"),
    ],
)
def test_unsupported_settings_are_rejected_before_contacting_the_server(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        asyncio.run(prepare_run(config(override)))


def test_ema_reference_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.reference\.kind = 'ema'"):
        asyncio.run(prepare_run(config("algorithm.kl_coef=0.1", "algorithm.reference.kind=ema")))


def test_skyrl_train_server_rejects_sft_and_optimizer_settings() -> None:
    train = "engine.server_kind=skyrl-train"
    with pytest.raises(ConfigError, match="optimizer"):
        asyncio.run(prepare_run(config(train)))
    asyncio.run(prepare_run(config(train, "sft.steps=0")))
    with pytest.raises(ConfigError, match=r"engine\.optimizer\.beta1"):
        asyncio.run(prepare_run(config(train, "sft.steps=0", "engine.optimizer.beta1=0.5")))


def test_tinker_example_config_is_supported() -> None:
    path = ROOT / "examples" / "tinker.toml"
    assert (
        asyncio.run(prepare_run(load_config(path, ["model=tiny", "limits.max_episode_tokens=20000"]))).domain.name
        == "retail"
    )


def test_hosted_server_supports_clipping_and_weight_decay() -> None:
    for setting in ("engine.optimizer.max_grad_norm=1", "engine.optimizer.weight_decay=1"):
        with pytest.raises(ConfigError, match=re.escape(setting.partition("=")[0])):
            asyncio.run(prepare_run(config("engine.server_kind=skyrl-jax", setting)))
        assert asyncio.run(prepare_run(config("engine.server_kind=hosted", setting))).domain.name == "toy"


def test_no_server_has_dual_clip_itself() -> None:
    for able in SERVER_CAPABILITIES.values():
        assert native_loss_name(LossConfig(dual_clip=3.0), able) == ""
    assert native_loss_name(LossConfig(), SERVER_CAPABILITIES["hosted"]) == "ppo"


def test_tinker_engine_supports_a_reference_but_no_critic(tiny: Path) -> None:
    engine = open_engine(tiny, config().engine)
    assert isinstance(engine, TinkerEngine)
    assert require_reference(engine) is engine
    with pytest.raises(ConfigError, match=r"algorithm\.advantage_estimator.*TinkerEngine"):
        require_critic(engine)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (TINKER[:1], "engine.base_url"),
        (TINKER, rf"{DEAD_URL}\b.*ConnectError"),
        (("engine.kind=tinker", "engine.base_url=ftp://h"), "engine.base_url"),
        (("engine.kind=tinkr",), "engine.kind: .*'tinkr'.*'tinker'"),
    ],
)
def test_unreachable_server_is_reported_and_creates_no_run(
    arguments: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    (tmp_path / "bare.toml").write_text("")
    settings = (str(tmp_path / "bare.toml"), "model=tiny", "domain=toy:DOMAIN", "allow_noop_solvable=true", *arguments)
    monkeypatch.setattr(sys, "argv", ["understudy", "train", *settings, "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert re.search(said, capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


def test_tinker_rows_match_hand_computed_values() -> None:
    episode = Trajectory("t", score=Score(reward=0.0))
    episode.observe([], [5, 6])
    episode.act(Message(role="assistant"), [7, 8], [-1.0, -2.0])
    episode.observe([], [9])
    batch = collate([episode])
    advantages = torch.tensor([[9.0, 9.0, 0.5, 0.25, 9.0]])
    (row,) = to_tinker_rows(batch, advantages)
    assert (row.inputs, row.targets) == ([5, 6, 7], [6, 7, 8])
    assert (row.weights, row.logprobs, row.advantages) == ([0, 1, 1], [0, -1, -2], [0, 0.5, 0.25])
    (row,) = to_tinker_rows(batch, advantages, sums_losses=False)
    assert row.advantages == [0, 1.0, 0.5]  # scaled by the two trained tokens of the one row
    assert to_logprobs(batch, [row], [[-7.0, -8.0, -9.0]]).tolist() == [[0, 0, -8, -9, 0]]
    with pytest.raises(RolloutError, match=r"\b2\b.*\b3\b"):
        to_logprobs(batch, [row], [[-7.0, -8.0]])
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(RolloutError) as caught:
            to_logprobs(batch, [row], [[-7.0, bad, -9.0]])
        assert caught.value.fault == "engine"


@pytest.mark.parametrize(
    ("tokens", "logprobs"),
    [([5], [math.nan]), ([5], [None]), ([10**6], [-0.1]), ([5, 6], [-0.1]), ([], []), ([5], None)],
)
def test_reply_that_cannot_be_trained_on_is_an_engine_fault(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, tokens: list[int], logprobs: Any
) -> None:
    for name in ("to_sampling_params", "to_model_input"):
        monkeypatch.setattr(wire, name, lambda *_: None)
    sequence = SimpleNamespace(tokens=tokens, logprobs=logprobs)

    async def answer(*_: Any) -> Any:
        return SimpleNamespace(sequences=[sequence])

    engine = open_engine(tiny, config().engine)
    assert isinstance(engine, TinkerEngine)
    engine._sampler = SimpleNamespace(sample=lambda *_: None)
    engine._server.wait_async = answer  # type: ignore[method-assign]
    with pytest.raises(RolloutError) as caught:
        asyncio.run(engine.sample([1], SamplingParams(), 0))
    assert caught.value.fault == "engine"


SHAPES = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5)), min_size=1, max_size=5)
KINDS: list[Any] = ["ppo", "cispo", "gspo", "nll"]


def current_logprobs(batch: Batch) -> Tensor:
    """Return log-probabilities of current weights, near those of the sampler."""
    draw = torch.Generator().manual_seed(7)
    return (batch.logprobs + 0.3 * torch.randn(batch.tokens.shape, generator=draw)) * batch.mask


def gradient(value: Tensor, leaf: Tensor) -> Tensor:
    return torch.autograd.grad(value, [leaf])[0] if value.requires_grad else torch.zeros_like(leaf)


@settings(deadline=None)
@given(SHAPES, st.sampled_from([*(LossConfig(kind=kind) for kind in KINDS), LossConfig(dual_clip=1.1)]))
def test_linear_coefficients_have_the_gradient_of_each_loss(lengths: list[tuple[int, int]], loss: LossConfig) -> None:
    batch = random_batch(lengths)
    leaf = current_logprobs(batch).requires_grad_()
    assert batch.advantages is not None
    value, _ = losses.compute_loss(loss, leaf, batch.logprobs, batch.advantages, batch.mask)
    assert torch.allclose(linear_coefficients(loss, leaf.detach(), batch), -gradient(value, leaf), atol=1e-6)


@settings(deadline=None)
@given(SHAPES)
def test_rows_for_a_mean_of_means_have_the_gradient_of_the_sum(lengths: list[tuple[int, int]]) -> None:
    """Compares the loss that SkyRL's JAX backend computes from the rows with the sum over tokens."""
    batch = random_batch(lengths)
    assert batch.advantages is not None
    leaf = current_logprobs(batch).requires_grad_()
    means = []
    rows = to_tinker_rows(batch, batch.advantages, sums_losses=False)
    for row in rows:
        n = len(row.targets)
        weights, old, advantages = (torch.tensor(x) for x in (row.weights, row.logprobs, row.advantages))
        ratio = (leaf[row.row, 1 : n + 1] - old).exp()
        clipped = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        means.append((-clipped * weights).sum() / weights.sum())
    theirs = torch.stack(means).sum() / len(rows) if rows else leaf.sum() * 0
    ours, _ = losses.ppo_loss(leaf, batch.logprobs, batch.advantages, batch.mask, 0.2, 0.2)
    assert torch.allclose(gradient(theirs, leaf), gradient(ours, leaf), atol=1e-5)


def test_waiting_for_a_dead_or_slow_server_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(client, "HEALTH_INTERVAL", 0.05)
    gone = TinkerClient(TinkerEngineConfig(base_url=DEAD_URL, outage_timeout=0.2))
    never: concurrent.futures.Future[int] = concurrent.futures.Future()
    started = time.monotonic()
    with pytest.raises(RolloutError, match=DEAD_URL):
        gone.wait(never, "a reply")
    assert never.cancelled()
    with pytest.raises(RolloutError, match=DEAD_URL):
        asyncio.run(gone.wait_async(concurrent.futures.Future(), "a reply"))
    assert time.monotonic() - started < 60
    slow = TinkerClient(TinkerEngineConfig(base_url=DEAD_URL, timeout=0.1))
    with pytest.raises(RolloutError, match=r"\b0\.1 s\b.*engine\.timeout"):
        asyncio.run(slow.wait_async(concurrent.futures.Future(), "a reply"))


def test_outage_time_excludes_pauses_between_health_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0, found="")
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(client, "health_problem", lambda config: clock.found)
    there = TinkerClient(TinkerEngineConfig(base_url=DEAD_URL, outage_timeout=20.0))

    def check(now: float, found: str = "does not answer") -> None:
        clock.now, clock.found = now, found
        there._look("a reply", now)

    check(10.0)
    with there._check_lock:  # another waiter holds the check after a long pause
        check(1000.0, found="")
    check(1000.0)  # counted as a second failure, not as an outage of 990 seconds
    check(1010.0)
    with pytest.raises(RolloutError, match=r"\b21 s\b"):
        check(1021.0)


@pytest.fixture
def random_adapters(tiny: Path) -> dict[str, Tensor]:
    """Return random adapters of the tiny model."""
    local = LocalEngine(
        tiny,
        LocalEngineConfig(
            device="cpu", dtype="float32", finetune="lora", lora=LoraConfig(rank=config().engine.lora.rank, alpha=32.0)
        ),
    )
    draw = torch.Generator().manual_seed(0)
    shapes = {adapters.to_peft_name(name): weight.shape for name, weight in local._model.trainable_parameters().items()}
    return {name: 0.1 * torch.randn(shape, generator=draw) for name, shape in shapes.items()}


def archive(files: dict[str, bytes]) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as tar:
        for name, content in files.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return whole.getvalue()


def test_adapter_archive_is_read_without_extracting_files(random_adapters: dict[str, Tensor], tmp_path: Path) -> None:
    from safetensors.torch import save

    content = save(random_adapters)
    packed = archive({"../../evil": b"x", "a/adapter_model.safetensors": content})
    assert adapters.read_adapter_archive(packed).keys() == random_adapters.keys()
    assert list(tmp_path.iterdir()) == []
    for bad in (
        b"no archive",
        archive({"adapter_config.json": b"{}"}),
        archive({adapters.ADAPTER_FILE: b"no tensors"}),
    ):
        with pytest.raises(RolloutError, match="adapters"):
            adapters.read_adapter_archive(bad)


def test_saved_adapters_and_merged_model_give_the_same_logits(
    tiny: Path, random_adapters: dict[str, Tensor], tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    lora = config().engine.server_lora
    adapters.save_adapters(random_adapters, lora, tiny, tmp_path / "adapters")
    adapters.save_merged_model(random_adapters, lora, tiny, tmp_path / "merged")
    assert (tmp_path / "adapters" / "tokenizer.json").is_file()
    base = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    tokens = torch.arange(40)[None]
    plain = base(tokens).logits
    theirs = PeftModel.from_pretrained(base, tmp_path / "adapters")(tokens).logits
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)(tokens).logits
    assert torch.allclose(theirs, merged, atol=1e-4)
    assert float((theirs - plain).detach().abs().max()) > 0.1


def test_checkpoint_is_loaded_and_exported_without_a_server(
    tiny: Path, random_adapters: dict[str, Tensor], tmp_path: Path
) -> None:
    adapters.save_adapters(random_adapters, config().engine.server_lora, tiny, tmp_path / "step" / "adapters")
    (tmp_path / "step" / "tinker.json").write_text('{"version": 3, "state": "tinker://m/weights/w"}')
    engine = TinkerEngine(tiny, config().engine)
    engine.load(tmp_path / "step")
    assert engine.weights_version == 3
    engine.export(tmp_path / "out")
    name = "base_model.model.model.layers.0.mlp.up_proj.lora_B.weight"
    assert torch.equal(adapters.load_adapters(tmp_path / "out")[name], random_adapters[name])
    (tmp_path / "step" / "tinker.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"tinker\.json"):
        engine.load(tmp_path / "step")


def test_engine_rejects_sampling_at_another_temperature(tiny: Path) -> None:
    engine = TinkerEngine(tiny, config().engine)
    with pytest.raises(ConfigError, match=r"temperature = 0\.7"):
        asyncio.run(engine.sample([1], SamplingParams(temperature=0.7), 0))


def test_full_context_is_reported_without_a_request(tiny: Path) -> None:
    engine = TinkerEngine(tiny, config().engine)
    assert asyncio.run(engine.sample([1] * engine.context_length, SamplingParams(), 0)).context_full
