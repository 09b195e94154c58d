"""What SkyRL is told of a run, and what it is given: without SkyRL. Beside the real one: test_skyrl_train."""

import ast
import asyncio
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")

from understudy.agent import TURNS  # noqa: E402
from understudy.algorithms.options import Loss  # noqa: E402
from understudy.batch import Batch, collate  # noqa: E402
from understudy.config import TrainConfig  # noqa: E402
from understudy.engines.base import Sampling  # noqa: E402
from understudy.engines.local.config import LocalConfig, Lora  # noqa: E402
from understudy.engines.local.engine import LocalEngine  # noqa: E402
from understudy.errors import ConfigError, RolloutError  # noqa: E402
from understudy.formats import Vocabulary  # noqa: E402
from understudy.integrations.skyrl import mapping  # noqa: E402
from understudy.integrations.skyrl.journal import Journal, translated  # noqa: E402
from understudy.integrations.skyrl.mapping import skyrl_keys  # noqa: E402
from understudy.integrations.skyrl.rows import as_rows, rewards_of  # noqa: E402
from understudy.integrations.skyrl.sampler import SkyrlSampler  # noqa: E402
from understudy.integrations.skyrl.slots import Slots  # noqa: E402
from understudy.messages import Message  # noqa: E402
from understudy.models import make_tiny  # noqa: E402
from understudy.players import open_model  # noqa: E402
from understudy.run import MODEL, Run, read_metrics  # noqa: E402
from understudy.settings import dump, parse  # noqa: E402
from understudy.tasks import Score  # noqa: E402
from understudy.train.state import Training  # noqa: E402
from understudy.trajectory import Stop, Trajectory  # noqa: E402
from understudy.users import Cast  # noqa: E402

PLAIN = ("engine.kind=skyrl", "sft.steps=0", "engine.train_embeddings=true", "algorithm.refill=0")
ALGORITHM = "trainer.algorithm."
ON_CPU = LocalConfig(device="cpu", dtype="float32", train_embeddings=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


def keys_of(model: Path, *settings: str) -> dict[str, Any]:
    config = parse(TrainConfig, "", [f"model={model}", *PLAIN, *settings])
    return skyrl_keys(config, model, Path("/runs/one"))


# ---- the journal ----


def test_a_step_that_ends_the_run_has_the_line_of_its_evaluation(tmp_path: Path) -> None:
    config = parse(TrainConfig, "", ["health.halt_on=groups", "health.window=1"])
    run, none = Run.create(tmp_path / "run", config), cast(Any, None)
    training = Training(config, run, none, none, none, lambda *_: None, Cast(config.user), none, ())
    journal = Journal(training)
    journal.played([[Trajectory("t", score=Score(reward=0.0), stop=Stop.DONE) for _ in range(2)]], 1)
    journal.examined({"eval/toy/success_rate": 0.5})
    with pytest.raises(RolloutError, match=r"health\.halt_on has groups"):
        journal.log({}, 1, commit=True)
    (line,) = read_metrics(run.folder)
    assert (line["step"], line["health/groups"], line["eval/toy/success_rate"]) == (1, 1.0, 0.5)


# ---- the config ----


def test_keys_are_tables_or_dotted_and_come_back(tmp_path: Path) -> None:
    text = "[skyrl.trainer.placement]\ncolocate_all = true\n[skyrl.generator]\ninference_engine.num_engines = 8\n"
    config = parse(TrainConfig, text, ["skyrl.trainer.placement.colocate_all=false"])
    keys = {"trainer.placement.colocate_all": False, "generator.inference_engine.num_engines": 8}
    assert config.skyrl.keys == keys
    assert parse(TrainConfig, dump(config)) == config


@pytest.mark.parametrize("override", ["skyrl.trainer=3", "skyrl.workers.x=3", "skyrl.data.x=3"])
def test_what_is_no_key_of_skyrls_is_refused(override: str) -> None:
    with pytest.raises(ConfigError, match="skyrl"):
        parse(TrainConfig, "", [override])


def test_a_run_may_be_resumed_with_other_engines_and_not_with_another_loss(tmp_path: Path) -> None:
    config = parse(TrainConfig, "", [*PLAIN])
    run = Run.create(tmp_path / "run", config)
    engines = parse(TrainConfig, "", [*PLAIN, "skyrl.generator.inference_engine.num_engines=2"])
    assert Run.resume(run.folder, engines).config == engines
    other = parse(TrainConfig, "", [*PLAIN, "skyrl.trainer.algorithm.policy_loss_type=dppo"])
    with pytest.raises(ConfigError, match=r"skyrl\.trainer\.algorithm\.policy_loss_type: None and 'dppo'"):
        Run.resume(run.folder, other)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (("algorithm.advantage=group_std",), {"advantage_estimator": "grpo", "grpo_norm_by_std": True}),
        (("algorithm.advantage=group",), {"advantage_estimator": "grpo", "grpo_norm_by_std": False}),
        (("algorithm.advantage=leave_one_out",), {"advantage_estimator": "rloo"}),
        (("algorithm.advantage=batch_std",), {"advantage_batch_normalize": True, "grpo_norm_by_std": False}),
        (
            ("algorithm.advantage=gae", "algorithm.critic.lam=0.9", "algorithm.critic.clip=0"),
            {"advantage_estimator": "gae", "lambd": 0.9, "gamma": 1.0, "value_clip": None},
        ),
        (("algorithm.loss.kind=gspo", "algorithm.per=sequence"), {"policy_loss_type": "gspo"}),
        (
            ("algorithm.loss.kind=cispo", "algorithm.loss.clip_low=1", "algorithm.loss.clip_high=4"),
            {"policy_loss_type": "cispo", "cispo.cispo_eps_clip_low": 1.0, "cispo.cispo_eps_clip_high": 4.0},
        ),
        (("algorithm.loss.clip_high=0.28",), {"policy_loss_type": "regular", "eps_clip_high": 0.28}),
        (("algorithm.per=token",), {"loss_reduction": "token_mean", "max_seq_len": None}),
        (("algorithm.per=sequence",), {"loss_reduction": "sequence_mean"}),
        (
            ("algorithm.per=constant", "limits.max_turns=4", "sampling.max_tokens=100"),
            {"loss_reduction": "seq_mean_token_sum_norm", "max_seq_len": 400},
        ),
        (("algorithm.kl_coefficient=0",), {"use_kl_loss": False, "use_kl_in_reward": False}),
        (
            ("algorithm.kl_coefficient=0.04", "algorithm.kl_kind=k3"),
            {"use_kl_loss": True, "use_kl_in_reward": False, "kl_loss_coef": 0.04, "kl_estimator_type": "k3"},
        ),
        (
            ("algorithm.kl_coefficient=0.02", "algorithm.kl_kind=k1"),
            {"use_kl_loss": False, "use_kl_in_reward": True, "kl_estimator_type": "k1"},
        ),
        (
            ("algorithm.importance_cap=2",),
            {"off_policy_correction.tis_ratio_type": "token", "off_policy_correction.token_tis_ratio_clip_high": 2.0},
        ),
    ],
)
def test_algorithms_are_skyrls(tiny: Path, settings: tuple[str, ...], expected: dict[str, Any]) -> None:
    found = keys_of(tiny, *settings)
    assert {name: found[ALGORITHM + name] for name in expected} == expected


def test_batches_optimizer_and_adapters_are_skyrls(tiny: Path) -> None:
    steps = ("algorithm.tasks_per_step=8", "algorithm.updates_per_step=4", "algorithm.epochs=2", "algorithm.warmup=3")
    adapters = ("engine.finetune=lora", "engine.lora.rank=16", "engine.lora.targets=q_proj,v_proj")
    found = keys_of(tiny, *steps, *adapters, "algorithm.group_size=5", "engine.optimizer.beta2=0.95")
    assert found["trainer.train_batch_size"] == 8
    assert found["trainer.policy_mini_batch_size"] == 2
    assert found["trainer.update_epochs_per_batch"] == 2
    assert found["trainer.policy.optimizer_config.num_warmup_steps"] == 3 * 4 * 2
    assert found["trainer.policy.optimizer_config.adam_betas"] == [0.9, 0.95]
    assert found["generator.n_samples_per_prompt"] == 5
    assert found["trainer.policy.model.lora.rank"] == 16
    assert found["trainer.policy.model.lora.target_modules"] == ["q_proj", "v_proj"]
    everywhere = keys_of(tiny, "engine.finetune=lora", "engine.lora.targets=all-linear")
    assert everywhere["trainer.policy.model.lora.target_modules"] == "all-linear"


def test_a_critic_and_a_teacher_are_models_of_their_own(tiny: Path) -> None:
    assert "trainer.critic.model.path" not in keys_of(tiny)
    assert keys_of(tiny, "algorithm.advantage=gae")["trainer.critic.model.path"] == str(tiny)
    teacher = ("algorithm.kl_coefficient=1", "algorithm.reference.kind=model", "algorithm.reference.model=a/b")
    assert keys_of(tiny, *teacher)["trainer.ref.model.path"] == "a/b"


def test_sequences_are_as_long_as_an_episode_can_be_and_the_model_allows(tiny: Path) -> None:
    longest = "generator.inference_engine.engine_init_kwargs.max_model_len"
    assert keys_of(tiny, "limits.max_tokens=1000", "sampling.max_tokens=64")[longest] == 1064
    assert keys_of(tiny, "limits.max_tokens=9000")[longest] == 8192


def test_what_skyrl_is_told_goes_before_what_it_is_mapped_to(tiny: Path) -> None:
    given = "skyrl.trainer.algorithm.policy_loss_type=rollout_is"
    assert keys_of(tiny, given)[ALGORITHM + "policy_loss_type"] == "rollout_is"


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (("sft.steps=3",), "sft.steps"),
        (("steps=0",), "steps"),
        (("sampling.temperature=0",), "sampling.temperature"),
        (("certify.every=2",), "certify"),
        (("algorithm.advantage=success",), "algorithm.advantage"),
        (("algorithm.loss.kind=nll",), "algorithm.loss.kind"),
        (("algorithm.kl_coefficient=1", "algorithm.reference.kind=ema"), "algorithm.reference.kind"),
        (("algorithm.decay=0.1",), "algorithm.decay"),
        (("algorithm.tasks_per_step=6", "algorithm.updates_per_step=4"), "algorithm.updates_per_step"),
        (("algorithm.advantage=gae", "algorithm.critic.step=turn"), "algorithm.critic.step"),
        (("algorithm.advantage=gae", "algorithm.critic.warmup=2"), "algorithm.critic.warmup"),
        (("algorithm.refill=2", "skyrl.trainer.algorithm.dynamic_sampling.type=filter"), "algorithm.refill"),
        (("engine.finetune=qlora",), "engine.finetune"),
        (("engine.finetune=lora", "skyrl.workers=cpu"), "engine.finetune"),
        (("engine.checkpointing=true", "skyrl.workers=cpu"), "engine.checkpointing"),
        (("engine.train_embeddings=false",), "engine.train_embeddings"),
        (("engine.finetune=lora", "engine.lora.alpha=1.5"), "engine.lora.alpha"),
        (("algorithm.refill=1", "skyrl.trainer.fully_async.enabled=true"), "algorithm.refill"),
        (("curriculum.success=true", "skyrl.trainer.fully_async.enabled=true"), "curriculum"),
        (("skyrl.trainer.ckpt_path=/tmp",), "skyrl.trainer.ckpt_path"),
        (("skyrl.generator.n_samples_per_prompt=2",), "skyrl.generator.n_samples_per_prompt"),
    ],
)
def test_what_skyrl_has_no_equal_to_is_refused(tiny: Path, settings: tuple[str, ...], name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        keys_of(tiny, *settings)
    assert str(caught.value).startswith((f"{name} = ", f"{name}: "))


def test_the_page_names_all_that_is_refused() -> None:
    page = (Path(__file__).parents[1] / "docs" / "cluster.md").read_text(encoding="utf-8")
    refused = page.partition("Refused, each with the reason")[2].partition("\n\nAn episode")[0]
    yields = [node.value for node in ast.walk(ast.parse(inspect.getsource(mapping))) if isinstance(node, ast.Yield)]
    keys = [value.elts[0] for value in yields if isinstance(value, ast.Tuple)]
    names = {ast.literal_eval(key) for key in keys if isinstance(key, ast.Constant)}
    assert len(names) > 12
    assert [name for name in sorted(names) if not re.search(rf"[`\[]{re.escape(name)}\b", refused)] == []


def test_every_algorithm_by_name_is_mapped_or_refused_for_what_it_is(tiny: Path) -> None:
    for name in ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp", "ppo"):
        updates = ("algorithm.tasks_per_step=8", f"algorithm.preset={name}")
        assert keys_of(tiny, *updates)[ALGORITHM + "advantage_estimator"]
    with pytest.raises(ConfigError, match=r"algorithm\.advantage = 'success'"):
        keys_of(tiny, "algorithm.preset=rft")


# ---- episodes as rows ----


def episode(*turns: tuple[int, int], reward: float | None = 1.0, stop: Stop = Stop.DONE) -> Trajectory:
    """Of turns (tokens shown, tokens sampled): the shown are 100 and up, the sampled 200 and up."""
    made, shown, sampled = Trajectory("t", seed=7), 100, 200
    for before, after in turns:
        made.observe([], range(shown, shown + before))
        tokens = list(range(sampled, sampled + after))
        made.act(Message(role="assistant"), tokens, [-0.5 * token for token in tokens])
        shown, sampled = shown + before, sampled + after
    made.score, made.stop = (Score(reward=reward) if reward is not None else None), stop
    return made


def test_rows_are_what_was_sampled_from_and_sampled() -> None:
    rows = as_rows([[episode((3, 2), (2, 1))]], [[0.25]])
    assert rows["prompt_token_ids"] == [[100, 101, 102]]
    assert rows["response_ids"] == [[200, 201, 103, 104, 202]]
    assert rows["loss_masks"] == [[1, 1, 0, 0, 1]]
    assert rows["rollout_logprobs"] == [[-100.0, -100.5, 0.0, 0.0, -101.0]]
    assert rows["rewards"] == [0.25]
    assert rows["stop_reasons"] == ["stop"]


def test_what_is_shown_after_the_last_reply_is_left_out() -> None:
    cut = episode((3, 2), stop=Stop.MAX_TURNS)
    cut.observe([], [150, 151])
    rows = as_rows([[cut]], [[0.0]])
    assert rows["response_ids"] == [[200, 201]]
    assert rows["stop_reasons"] == ["length"]


def test_an_episode_that_the_machinery_failed_weighs_nothing_and_moves_no_mean() -> None:
    failed = episode((3, 2), reward=None, stop=Stop.FAULT)
    group = [episode((3, 2), reward=1.0), failed, episode((3, 2), reward=0.0)]
    rewards = rewards_of(group, [0.0, 0.0, 0.0])
    assert rewards == [1.0, 0.5, 0.0]
    rows = as_rows([group], [rewards])
    assert rows["loss_masks"] == [[1, 1], [0, 0], [1, 1]]


def test_an_episode_without_a_reply_is_a_row_all_the_same() -> None:
    nothing, shown = (
        Trajectory("t", stop=Stop.FAULT),
        Trajectory("t", tokens=[5, 6], mask=[False] * 2, logprobs=[0.0] * 2),
    )
    rows = as_rows([[nothing, shown]], [[0.0, 0.0]])
    assert rows["prompt_token_ids"] == [[0], [5]]
    assert rows["response_ids"] == [[0], [5]]
    assert rows["loss_masks"] == [[0], [0]]


def test_penalties_are_taken_off() -> None:
    assert rewards_of([episode((1, 1)), episode((1, 1))], [0.25, 0.0]) == [0.75, 1.0]


def test_slots_are_dealt_out_once_each() -> None:
    slots = Slots(3)
    dealt = slots.collate_fn([slots[place] for place in (2, 0, 1)])
    assert [row["env_extras"]["slot"] for row in dealt] == [0, 1, 2], "in order, whatever place the loader draws"
    with pytest.raises(IndexError):
        slots[3]


def test_metrics_have_the_names_that_are_known_here() -> None:
    told = {
        "policy/grad_norm": 2,
        "policy/policy_entropy": 0.5,
        "generate/avg_num_tokens": 3.0,
        "reward/avg_raw_reward": 1,
    }
    assert translated({**told, "timing/step": 4.0, "text": "no number"}) == {
        "train/grad_norm": 2.0,
        "train/entropy": 0.5,
        "train/generate/avg_num_tokens": 3.0,
        "reward/avg_raw_reward": 1.0,
        "timing/step_seconds": 4.0,
    }


def test_what_is_measured_while_training_stands_for_what_was_not_measured_before() -> None:
    instead = {f"policy/minibatch_rollout_logprobs_abs_diff_{name}": 0.5 for name in ("mean", "max")}
    assert translated(instead) == {"certify/logprob_mean": 0.5, "certify/logprob_max": 0.5}
    both = translated(instead | {"policy/rollout_train_logprobs_abs_diff_mean": 0.25})
    assert (both["certify/logprob_mean"], both["certify/logprob_max"]) == (0.25, 0.5)


# ---- what it leaves behind ----


def batch() -> Batch:
    episodes = [episode((3, 4), (2, 5)), episode((4, 6))]
    return collate(episodes, [0, 1]).with_(advantages=torch.ones(2, 14), logprobs=torch.full((2, 14), -5.0))


def likelihoods(engine: Any) -> torch.Tensor:
    return asyncio.run(engine.forward(batch())).logprobs


def opened(model: Path, checkpoint: Path, *settings: str) -> Any:
    config = parse(TrainConfig, "", [f"model={model}", *PLAIN, "engine.device=cpu", "engine.dtype=float32", *settings])
    return open_model(config, checkpoint)[0]


def test_a_checkpoint_with_a_whole_model_is_opened_as_that_model(tiny: Path, tmp_path: Path) -> None:
    other = make_tiny(tmp_path / "step" / MODEL, seed=1)
    found = likelihoods(opened(tiny, tmp_path / "step"))
    assert torch.equal(found, likelihoods(LocalEngine(other, ON_CPU)))
    assert not torch.allclose(found, likelihoods(LocalEngine(tiny, ON_CPU)))


def test_a_checkpoint_with_adapters_is_opened_as_the_model_with_these(tiny: Path, tmp_path: Path) -> None:
    trained = LocalEngine(tiny, ON_CPU.replace(finetune="lora", lora=Lora(rank=4, alpha=8)))
    before = likelihoods(trained)
    asyncio.run(trained.update([batch()], Loss(), 1e-2))
    (tmp_path / "step" / MODEL).mkdir(parents=True)
    trained.export(tmp_path / "step" / MODEL)
    lora = ("engine.finetune=lora", "engine.lora.alpha=8")
    found = likelihoods(opened(tiny, tmp_path / "step", *lora, "engine.lora.rank=4"))
    assert torch.allclose(found, likelihoods(trained), atol=1e-5)
    assert not torch.allclose(found, before, atol=1e-3)
    for others in (("engine.lora.rank=8",), ("engine.lora.rank=4", "engine.lora.targets=q_proj")):
        with pytest.raises(ConfigError, match="adapter"):
            opened(tiny, tmp_path / "step", *lora, *others)


# ---- sampling ----


class Gone(Exception):
    pass


class FakeClient:
    """Answers with what it is told to, and keeps what it was asked."""

    weight_version = 3

    def __init__(self, reply: Callable[[], dict[str, Any]]) -> None:
        self.reply, self.asked, self.finished = reply, list[tuple[dict[str, Any], str | None]](), list[str]()

    async def generate(self, input_batch: dict[str, Any], model: str | None = None) -> dict[str, Any]:
        self.asked.append((input_batch, model))
        return self.reply()

    async def finish_session(self, session_id: str) -> None:
        self.finished.append(session_id)


def replying(tokens: list[int], logprobs: list[float] | None) -> Callable[[], dict[str, Any]]:
    return lambda: {"response_ids": [tokens], "response_logprobs": None if logprobs is None else [logprobs]}


def sampler(tiny: Path, reply: Callable[[], dict[str, Any]], context: int = 100) -> tuple[SkyrlSampler, FakeClient]:
    made = SkyrlSampler(lambda: Vocabulary.load(tiny / "tokenizer.json"), (Gone,))
    client = FakeClient(reply)
    made.client, made.context, made.model = client, context, "policy"
    return made, client


def test_replies_are_sampled_token_by_token(tiny: Path) -> None:
    made, client = sampler(tiny, replying([65, 258], [-0.1, -0.2]))
    found = asyncio.run(made.sample([1, 2], Sampling(max_tokens=9, top_k=4), 7 * TURNS + 5, {258, 256}))
    assert (found.tokens, found.logprobs, found.finish, found.version) == ([65, 258], [-0.1, -0.2], "stop", 3)
    ((asked, model),) = client.asked
    assert model == "policy"
    assert asked["prompt_token_ids"] == [[1, 2]]
    params = asked["sampling_params"]
    assert (params["max_tokens"], params["top_k"], params["seed"]) == (9, 4, 7 * TURNS + 5)
    assert (params["stop_token_ids"], params["ignore_eos"], params["logprobs"]) == ([256, 258], True, 0)


def test_all_replies_of_an_episode_have_one_session_which_is_finished(tiny: Path) -> None:
    made, client = sampler(tiny, replying([65], [-0.1]))
    for turn in (0, 1):
        asyncio.run(made.sample([1], Sampling(), 7 * TURNS + turn))
    asyncio.run(made.sample([1], Sampling(), 8 * TURNS))
    sessions = [asked["session_ids"][0] for asked, _ in client.asked]
    assert sessions[0] == sessions[1] != sessions[2]
    asyncio.run(made.finish([7]))
    assert client.finished == sessions[:1]


def test_replies_leave_no_more_than_the_context_and_are_cut_at_stop_strings(tiny: Path) -> None:
    made, client = sampler(tiny, replying(list(b"abcd"), [-1.0] * 4), context=12)
    found = asyncio.run(made.sample([1] * 10, Sampling(max_tokens=9, stop=("bc",)), 0))
    assert client.asked[0][0]["sampling_params"]["max_tokens"] == 2
    assert (bytes(found.tokens), found.logprobs, found.finish) == (b"abc", [-1.0] * 3, "stop")
    assert asyncio.run(made.sample([1] * 12, Sampling(), 0)).full
    assert len(client.asked) == 1, "what has no room is not asked for"


def test_salted_prefixes_are_of_one_version_of_the_weights(tiny: Path) -> None:
    made, client = sampler(tiny, replying([65], [-0.1]))
    made.salted = True
    asyncio.run(made.sample([1], Sampling(), 0))
    assert client.asked[0][0]["cache_salt"] == "3"


@pytest.mark.parametrize(("tokens", "logprobs"), [([65], None), ([65, 66], [-0.1]), ([], [])])
def test_a_reply_that_is_not_whole_is_the_engines_fault(tiny: Path, tokens: list[int], logprobs: Any) -> None:
    made, _ = sampler(tiny, replying(tokens, logprobs))
    with pytest.raises(RolloutError) as caught:
        asyncio.run(made.sample([1], Sampling(), 0))
    assert caught.value.fault == "engine"


def test_an_engine_that_is_gone_fails_the_episode_and_not_the_model(tiny: Path) -> None:
    def gone() -> dict[str, Any]:
        raise Gone("connection refused")

    made, _ = sampler(tiny, gone)
    with pytest.raises(RolloutError, match="connection refused") as caught:
        asyncio.run(made.sample([1], Sampling(), 0))
    assert caught.value.fault == "engine"
