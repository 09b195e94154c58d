"""What is said to a server of the Tinker API, and what is refused before that; test_skyrl_tinker has a real one."""

import asyncio
import concurrent.futures
import io
import math
import sys
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import Tensor  # noqa: E402

from toy import DOMAIN  # noqa: E402, F401
from understudy.algorithms import losses  # noqa: E402
from understudy.algorithms.options import Critic, Loss  # noqa: E402
from understudy.batch import Batch, collate  # noqa: E402
from understudy.cli import main  # noqa: E402
from understudy.config import TrainConfig  # noqa: E402
from understudy.engines.base import Sampling  # noqa: E402
from understudy.engines.local.config import LocalConfig  # noqa: E402
from understudy.engines.local.engine import LocalEngine  # noqa: E402
from understudy.engines.opening import open_engine  # noqa: E402
from understudy.engines.tinker import adapters, server  # noqa: E402
from understudy.engines.tinker.config import TinkerConfig  # noqa: E402
from understudy.engines.tinker.engine import TinkerEngine  # noqa: E402
from understudy.engines.tinker.rows import coefficients, received, sent  # noqa: E402
from understudy.engines.tinker.server import Server  # noqa: E402
from understudy.errors import ConfigError, RolloutError  # noqa: E402
from understudy.messages import Message  # noqa: E402
from understudy.models import make_tiny  # noqa: E402
from understudy.settings import dump, load, parse  # noqa: E402
from understudy.tasks import Score  # noqa: E402
from understudy.train.preparation import prepare  # noqa: E402
from understudy.trajectory import Trajectory  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's, of transformers
NOWHERE = "http://127.0.0.1:9"
AT = ("engine.kind=tinker", f"engine.tinker.base_url={NOWHERE}", "engine.tinker.server=skyrl-jax")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"), architecture="qwen3")


def config(*overrides: str) -> TrainConfig:
    return parse(TrainConfig, "", ["domain=toy:DOMAIN", "model=tiny", "free_tasks=true", *AT, *overrides])


# ---- what is refused ----


def test_keys_that_a_server_decides_are_its_own_by_default() -> None:
    engine = config().engine
    assert (engine.finetune, engine.lora.alpha, engine.optimizer.max_grad_norm) == ("lora", 32.0, math.inf)
    assert config("engine.lora.rank=4").engine.lora.rank == 4
    assert parse(TrainConfig, dump(config())) == config()
    assert parse(TrainConfig, "").engine.finetune == "full"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("engine.tinker.base_url=", "engine.tinker.base_url is empty"),
        ("engine.tinker.server=", "one of skyrl-jax, skyrl-train, hosted"),
        ("engine.finetune=full", "LoRA adapters are trained"),
        ("engine.lora.alpha=64", "engine.lora.alpha = 64.0: servers of the Tinker API have 32.0"),
        ("engine.lora.dropout=0.1", "engine.lora.dropout = 0.1"),
        ("engine.lora.targets=q_proj", "engine.lora.targets"),
        (
            "engine.optimizer.max_grad_norm=1",
            "engine.optimizer.max_grad_norm = 1.0: engine.tinker.server",
        ),
        ("engine.optimizer.weight_decay=0.1", "engine.optimizer.weight_decay = 0.1"),
        ("engine.dtype=float32", "engine.dtype = 'float32': with engine.kind = 'tinker' that is up to the server"),
        ("engine.sampler=vllm", "engine.sampler = 'vllm'"),
        ("engine.vllm.url=http://h:1", "engine.vllm"),
        ("sampling.temperature=0.7", "sampling.temperature = 0.7"),
        ("eval.temperature=0.5", "eval.temperature = 0.5"),
        ("sampling.min_p=0.1", "sampling.min_p = 0.1: the Tinker API has no such option"),
        ("sampling.repetition_penalty=1.1", "sampling.repetition_penalty = 1.1"),
        ("algorithm.advantage=gae", "a critic cannot be trained"),
    ],
)
def test_what_a_server_cannot_do_is_refused_before_it_is_asked(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        prepare(config(override))


def test_references_other_than_the_policy_as_it_was_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.reference\.kind = 'ema'"):
        prepare(config("algorithm.kl_coefficient=0.1", "algorithm.reference.kind=ema"))


def test_a_server_with_an_optimizer_of_its_own_takes_one_phase() -> None:
    train = "engine.tinker.server=skyrl-train"
    with pytest.raises(ConfigError, match="cannot forget the optimizer's moments"):
        prepare(config(train))
    prepare(config(train, "sft.steps=0"))
    with pytest.raises(ConfigError, match=r"engine\.optimizer\.beta1"):
        prepare(config(train, "sft.steps=0", "engine.optimizer.beta1=0.5"))


def test_the_example_asks_for_nothing_that_its_server_lacks() -> None:
    path = Path(__file__).parent.parent / "examples" / "tinker.toml"
    assert prepare(load(TrainConfig, path, ["model=tiny"]))


def test_a_hosted_service_clips_and_decays() -> None:
    prepare(
        config("engine.tinker.server=hosted", "engine.optimizer.max_grad_norm=1", "engine.optimizer.weight_decay=1")
    )


def test_the_engine_has_no_critic_and_works_alone(tiny: Path) -> None:
    engine = open_engine(tiny, config().engine)
    assert isinstance(engine, TinkerEngine)
    with pytest.raises(ConfigError, match="critic"):
        engine.add_critic(Critic())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (AT[:1], "engine.tinker.base_url is empty"),
        (AT, f"the Tinker server at {NOWHERE} does not answer (ConnectError)"),
        (("engine.kind=tinker", "engine.tinker.base_url=ftp://h"), "engine.tinker.base_url has to be like"),
        (("engine.kind=tinkr",), "engine.kind: unknown value 'tinkr'; did you mean 'tinker'?"),
    ],
)
def test_no_server_is_one_line_and_no_run(
    arguments: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    (tmp_path / "bare.toml").write_text("")
    settings = (str(tmp_path / "bare.toml"), "model=tiny", "domain=toy:DOMAIN", "free_tasks=true", *arguments)
    monkeypatch.setattr(sys, "argv", ["understudy", "train", *settings, "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


# ---- what is sent ----


def batch_of(lengths: list[tuple[int, int]]) -> Batch:
    """Rows of so many given and sampled tokens."""
    draw = torch.Generator().manual_seed(len(lengths))
    episodes = []
    for given_, sampled in lengths:
        episode = Trajectory("t", score=Score(reward=0.0))
        tokens = torch.randint(0, 256, (given_ + sampled,), generator=draw).tolist()
        episode.observe([], tokens[:given_])
        odds = (-3 * torch.rand(sampled, generator=draw)).tolist()
        episode.act(Message(role="assistant"), tokens[given_:], odds)
        episode.observe([], [0])  # what comes after the last reply
        episodes.append(episode)
    batch = collate(episodes)
    return batch.with_(advantages=torch.randn(batch.tokens.shape, generator=draw) * batch.mask)


def test_rows_by_hand() -> None:
    episode = Trajectory("t", score=Score(reward=0.0))
    episode.observe([], [5, 6])
    episode.act(Message(role="assistant"), [7, 8], [-1.0, -2.0])
    episode.observe([], [9])
    batch = collate([episode])
    advantages = torch.tensor([[9.0, 9.0, 0.5, 0.25, 9.0]])
    (row,) = sent(batch, advantages)
    assert (row.inputs, row.targets) == ([5, 6, 7], [6, 7, 8])
    assert (row.weights, row.logprobs, row.advantages) == ([0, 1, 1], [0, -1, -2], [0, 0.5, 0.25])
    (row,) = sent(batch, advantages, sums=False)
    assert row.advantages == [0, 1.0, 0.5]  # of two trained tokens in one row
    assert received(batch, [row], [[-7.0, -8.0, -9.0]]).tolist() == [[0, 0, -8, -9, 0]]
    with pytest.raises(RolloutError, match="2 odds of 3 tokens"):
        received(batch, [row], [[-7.0, -8.0]])


SHAPES = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5)), min_size=1, max_size=5)
KINDS: list[Any] = ["policy", "cispo", "gspo", "nll"]


def table(batch: Batch) -> Tensor:
    """Log-probabilities of current weights, near those that sampled."""
    draw = torch.Generator().manual_seed(7)
    return (batch.logprobs + 0.3 * torch.randn(batch.tokens.shape, generator=draw)) * batch.mask


def gradient(value: Tensor, leaf: Tensor) -> Tensor:
    return torch.autograd.grad(value, [leaf])[0] if value.requires_grad else torch.zeros_like(leaf)


@settings(deadline=None)
@given(SHAPES, st.sampled_from(KINDS))
def test_a_linear_loss_has_the_gradient_of_any(lengths: list[tuple[int, int]], kind: Any) -> None:
    batch, loss = batch_of(lengths), Loss(kind=kind)
    leaf = table(batch).requires_grad_()
    assert batch.advantages is not None
    value, _ = losses.compute(loss, leaf, batch.logprobs, batch.advantages, batch.mask)
    assert torch.allclose(coefficients(loss, leaf.detach(), batch), -gradient(value, leaf), atol=1e-6)


@settings(deadline=None)
@given(SHAPES)
def test_a_mean_of_means_is_undone(lengths: list[tuple[int, int]]) -> None:
    """The loss as SkyRL's JAX backend computes it from the rows that it gets, beside the sum that it is to be."""
    batch = batch_of(lengths)
    assert batch.advantages is not None
    leaf = table(batch).requires_grad_()
    means = []
    rows = sent(batch, batch.advantages, sums=False)
    for row in rows:
        n = len(row.targets)
        weights, old, advantages = (torch.tensor(x) for x in (row.weights, row.logprobs, row.advantages))
        ratio = (leaf[row.row, 1 : n + 1] - old).exp()
        clipped = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        means.append((-clipped * weights).sum() / weights.sum())
    theirs = torch.stack(means).sum() / len(rows) if rows else leaf.sum() * 0
    ours, _ = losses.policy_loss(leaf, batch.logprobs, batch.advantages, batch.mask, 0.2, 0.2)
    assert torch.allclose(gradient(theirs, leaf), gradient(ours, leaf), atol=1e-5)


# ---- waiting ----


def test_waiting_for_a_dead_server_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "POLL", 0.02)
    monkeypatch.setattr(server, "PULSE", 0.05)
    gone = Server(TinkerConfig(base_url=NOWHERE, patience=0.2))
    never: concurrent.futures.Future[int] = concurrent.futures.Future()
    started = time.monotonic()
    with pytest.raises(RolloutError, match=f"the Tinker server at {NOWHERE} is gone"):
        gone.wait(never, "a reply")
    assert never.cancelled()
    with pytest.raises(RolloutError, match="is gone"):
        asyncio.run(gone.settled(concurrent.futures.Future(), "a reply"))
    assert time.monotonic() - started < 5
    slow = Server(TinkerConfig(base_url=NOWHERE, timeout=0.1))
    with pytest.raises(RolloutError, match=r"no answer to a reply within 0.1 s \(engine.tinker.timeout\)"):
        asyncio.run(slow.settled(concurrent.futures.Future(), "a reply"))


def test_what_was_missed_before_nobody_looked_for_long_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0, found="")
    monkeypatch.setattr(server, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(server, "unreachable", lambda config: clock.found)
    there = Server(TinkerConfig(base_url=NOWHERE, patience=20.0))

    def look(now: float, found: str = "does not answer") -> None:
        clock.now, clock.found = now, found
        there._look("a reply", now)

    look(10.0)
    with there._looking:  # after a long time in which nothing was waited for; somebody else looks already
        look(1000.0, found="")
    look(1000.0)  # the second miss, and not 990 seconds of them
    look(1010.0)
    with pytest.raises(RolloutError, match="has not answered for 21 s"):
        look(1021.0)


# ---- adapters ----


@pytest.fixture
def drawn(tiny: Path) -> dict[str, Tensor]:
    """Random adapters of the tiny model."""
    local = LocalEngine(tiny, LocalConfig(device="cpu", dtype="float32", finetune="lora", lora=config().engine.lora))
    draw = torch.Generator().manual_seed(0)
    shapes = {adapters.peft_name(name): weight.shape for name, weight in local._model.trainable().items()}
    return {name: 0.1 * torch.randn(shape, generator=draw) for name, shape in shapes.items()}


def archive(files: dict[str, bytes]) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as tar:
        for name, content in files.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return whole.getvalue()


def test_adapters_come_out_of_an_archive_and_nothing_else(drawn: dict[str, Tensor], tmp_path: Path) -> None:
    from safetensors.torch import save

    content = save(drawn)
    packed = archive({"../../evil": b"x", "a/adapter_model.safetensors": content})
    assert adapters.unpacked(packed).keys() == drawn.keys()
    assert list(tmp_path.iterdir()) == []
    for bad in (b"no archive", archive({"adapter_config.json": b"{}"}), archive({adapters.WEIGHTS: b"no tensors"})):
        with pytest.raises(RolloutError, match="holds no adapters"):
            adapters.unpacked(bad)


def test_adapters_and_the_merged_model_are_the_same_to_peft(
    tiny: Path, drawn: dict[str, Tensor], tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    lora = config().engine.lora
    adapters.save(drawn, lora, tiny, tmp_path / "adapters")
    adapters.save_merged(drawn, lora, tiny, tmp_path / "merged")
    assert (tmp_path / "adapters" / "tokenizer.json").is_file()
    base = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    tokens = torch.arange(40)[None]
    plain = base(tokens).logits
    theirs = PeftModel.from_pretrained(base, tmp_path / "adapters")(tokens).logits
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)(tokens).logits
    assert torch.allclose(theirs, merged, atol=1e-4)
    assert float((theirs - plain).detach().abs().max()) > 0.1


def test_a_checkpoint_is_exported_without_a_server(tiny: Path, drawn: dict[str, Tensor], tmp_path: Path) -> None:
    adapters.save(drawn, config().engine.lora, tiny, tmp_path / "step" / "adapters")
    (tmp_path / "step" / "tinker.json").write_text('{"version": 3, "state": "tinker://m/weights/w"}')
    engine = TinkerEngine(tiny, config().engine)
    engine.load(tmp_path / "step")
    assert engine.version == 3
    engine.export(tmp_path / "out")
    assert torch.equal(adapters.kept(tmp_path / "out")["base_model.model.model.layers.0.mlp.up_proj.lora_B.weight"],
                       drawn["base_model.model.model.layers.0.mlp.up_proj.lora_B.weight"])  # fmt: skip
    (tmp_path / "step" / "tinker.json").write_text("{}")
    with pytest.raises(ConfigError, match="not a checkpoint of a Tinker server"):
        engine.load(tmp_path / "step")


def test_sampling_of_another_temperature_is_refused_by_the_engine_too(tiny: Path) -> None:
    engine = TinkerEngine(tiny, config().engine)
    with pytest.raises(ConfigError, match=r"temperature = 0\.7"):
        asyncio.run(engine.sample([1], Sampling(temperature=0.7), 0))


def test_a_full_context_is_not_put_before_the_server(tiny: Path) -> None:
    engine = TinkerEngine(tiny, config().engine)
    assert asyncio.run(engine.sample([1] * engine.context, Sampling(), 0)).full
