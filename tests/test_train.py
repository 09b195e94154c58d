"""Training, whole, with a random model of 115 thousand parameters and one lamp: it learns, the same way each time,
and a run that was interrupted ends as one that was not."""

import asyncio
import dataclasses
import itertools
import json
import math
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from toy import LampTools, house, task  # noqa: E402
from understudy import launch  # noqa: E402
from understudy.assess.stored import open_stored  # noqa: E402
from understudy.assess.why import why  # noqa: E402
from understudy.batch import collate  # noqa: E402
from understudy.config import TrainConfig  # noqa: E402
from understudy.domains.base import Domain, interleave  # noqa: E402
from understudy.engines.base import Completion  # noqa: E402
from understudy.engines.local.engine import LocalEngine  # noqa: E402
from understudy.environment import ToolEnvironment  # noqa: E402
from understudy.errors import ConfigError, RolloutError, TaskError  # noqa: E402
from understudy.evaluation import Evaluation  # noqa: E402
from understudy.messages import Message  # noqa: E402
from understudy.models import find_model, make_tiny  # noqa: E402
from understudy.rollout import Limits  # noqa: E402
from understudy.run import Run, evaluation_files, read_metrics  # noqa: E402
from understudy.settings import parse  # noqa: E402
from understudy.tasks import Difficulty, Score, Split, Task  # noqa: E402
from understudy.train import (  # noqa: E402
    Report,
    Training,
    evaluation,
    learning_rate,
    optimizer_steps,
    summarize,
    train,
    with_advantages,
)
from understudy.train.lessons import lessons  # noqa: E402
from understudy.train.preparation import cut_short  # noqa: E402
from understudy.trajectory import Stop, Trajectory, read_trajectories  # noqa: E402
from understudy.users import NoUser, User  # noqa: E402
from understudy.weights import export, find_weights  # noqa: E402

EPISODES, GROUPS = "generation/episodes", "generation/groups"


class OneLamp(Domain):
    """Always the same lamp, and a user of always the same words."""

    def tasks(self, split: Split) -> list[Task]:
        """None are frozen."""
        return []

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> ToolEnvironment:
        return super().environment(task, FaultyUser() if LOST and LOST.pop() else user, 0)


class FaultyUser:
    """Is not there."""

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        raise RolloutError("the line is dead", "user")


LOST: list[bool] = []
"""Which of the next episodes lose their user, the last first."""


def lamp(split: Split, seed: int, families: Sequence[str], difficulties: Sequence[Difficulty]) -> Iterator[Task]:
    for family, difficulty, index in interleave(families, difficulties):
        yield task(f"{split}/{seed}/{family}/{difficulty}/{index}", split, family, difficulty, ["L7"])


def question(split: Split, seed: int, families: Sequence[str], difficulties: Sequence[Difficulty]) -> Iterator[Task]:
    """Tasks that a few letters answer: all that so small a model can learn in seconds."""
    for each in lamp(split, seed, families, difficulties):
        scenario = each.scenario.replace(opening="How much does a lamp draw?", wishes=())
        yield each.replace(scenario=scenario, gold=(Message(role="assistant", content="71 W"),), outputs=("71",))


class Watts(OneLamp):
    """The user hears one answer and goes."""

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> ToolEnvironment:
        return super().environment(task, user or NoUser(task.scenario.opening), 0)


ONE_LAMP = OneLamp("toy", house, LampTools, lamp, ("one",))
WATTS = Watts("toy", house, LampTools, question, ("one", "two"))
SMALL = (
    "domain=test_train:ONE_LAMP",
    "slice.policy=brief",
    "slice.tools=switch_lamp",
    "engine.device=cpu",
    "engine.dtype=float32",
    "engine.train_embeddings=true",
    "sampling.max_tokens=12",
    "limits.max_turns=2",
    "eval.tasks=2",
    "eval.temperature=1.0",
    "sft.steps=2",
    "sft.batch_size=2",
    "sft.demonstrations=3",
    "steps=3",
    "save_every=1",
    "keep=0",
    "algorithm.tasks_per_step=2",
    "algorithm.group_size=3",
    "algorithm.refill=1",
    "algorithm.learning_rate=1e-3",
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewards that untrained models differ in: the share of spaces in what they say."""

    monkeypatch.setattr("understudy.domains.base.score", rewarded)


def rewarded(task: Task, state: Any, goal: Any, gate: Any, transcript: Sequence[Message], ended: bool) -> Score:
    said = "".join(m.content for m in transcript if m.role == "assistant")
    gold = any(m.content == task.gold[0].content for m in transcript)
    return Score(reward=1.0 if gold else min(1.0, len(set(said)) / 25))


def config(model: Path, *settings: str) -> TrainConfig:
    return parse(TrainConfig, "", [f"model={model}", *SMALL, *settings])


def silent(phase: str, done: int, of: int, metrics: Mapping[str, float]) -> None:
    pass


def run_of(folder: Path, model: Path, *settings: str, report: Report = silent) -> Run:
    run = Run.create(folder, config(model, *settings))
    train(run.config, run, report)
    return run


def metrics(run: Run) -> list[dict[str, Any]]:
    """Those of the steps, without how long they took; step 0 is the evaluation of the base model."""
    return [line for line in all_metrics(run) if line["step"]]


def all_metrics(run: Run) -> list[dict[str, Any]]:
    lines = read_metrics(run.folder)
    measured = ("timing/", "certify/seconds", "train/peak_memory_gib")
    return [{k: v for k, v in line.items() if not k.startswith(measured)} for line in lines]


def saved(run: Run, step: int | None = None) -> dict[str, Any]:
    folder = run.folder / "checkpoints" / f"step_{run.step if step is None else step:06}"
    progress = json.loads((folder / "progress.json").read_text())
    del progress["metrics"]  # which hold how long things took
    return load_file(folder / "optimizer.safetensors") | {"progress": progress}


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    equal = (torch.equal(one[k], other[k]) if isinstance(one[k], torch.Tensor) else one[k] == other[k] for k in one)
    return one.keys() == other.keys() and all(equal)


def trajectories(run: Run) -> list[str]:
    """All episodes of a run, without how long they took."""
    lines = [line for p in sorted((run.folder / "trajectories").iterdir()) for line in p.read_text().splitlines()]
    return [json.dumps({k: v for k, v in json.loads(line).items() if k != "seconds"}) for line in lines]


def evaluations(run: Run) -> dict[str, str]:
    return {path.name: path.read_text() for path in (run.folder / "evaluations").iterdir()}


# ---- pieces ----


def test_learning_rate_by_hand() -> None:
    rates = [learning_rate(step, 6, 2.0, 2, final=0.1) for step in range(1, 7)]
    assert rates == pytest.approx([1.0, 2.0, 1.55, 1.1, 0.65, 0.2])
    assert [learning_rate(step, 3, 2.0, 0, final=1.0) for step in (1, 2, 3)] == [2.0, 2.0, 2.0]
    assert [learning_rate(step, 2, 1.0, 4, final=0.1) for step in (1, 2)] == [0.25, 0.5]


def episodes(*rewards: float | None, tokens: int = 2) -> list[Trajectory]:
    found = []
    for i, reward in enumerate(rewards):
        score = None if reward is None else Score(reward=reward)
        stop = Stop.DONE if score else Stop.FAULT
        episode = Trajectory("t", score=score, stop=stop, fault=None if score else "user", counts={"text": 1})
        episode.observe([], [1])
        episode.act(Message(role="assistant", content="x"), [2] * (tokens + i), [-1.0] * (tokens + i))
        found.append(episode)
    return found


def test_summary_by_hand() -> None:
    groups = [episodes(0.0, 1.0), episodes(0.5, 0.5), episodes(1.0, None)]
    found = summarize(groups, "group")
    assert found == {
        "reward": 3 / 5,
        "success": 2 / 5,
        "episodes": 6,
        "groups": 3,
        "equal_groups": 2,
        "turns": 1,
        "sampled_tokens": 2 + 3 + 2 + 3 + 2,
        "episode_tokens": (5 + 12) / 5,
        "replies/text": 1,
        "stop/done": 5 / 6,
        "stop/fault": 1 / 6,
        "fault/user": 1 / 6,
    }
    for advantage, idle in (("turn", 2), ("success", 1), ("none", 0)):
        assert summarize(groups, advantage)["equal_groups"] == idle, "those of no lesson"  # type: ignore[arg-type]


def test_advantages_and_steps_of_a_batch(tiny: Path) -> None:
    batch = collate(episodes(0.0, 1.0, 1.0, 0.0), [0, 0, 1, 1])
    settings = config(tiny, "algorithm.advantage=group", "algorithm.per=constant")
    whole = with_advantages(batch, settings)
    assert whole.advantages is not None
    assert whole.advantages[:, 1].tolist() == [-0.5, 0.5, 0.5, -0.5]
    assert not whole.advantages[~batch.mask].any()
    penalized = with_advantages(
        batch.with_(ref_logprobs=batch.logprobs - 2.0),
        settings.replace(algorithm=settings.algorithm.replace(kl_coefficient=0.1)),
    )
    assert penalized.advantages is not None
    assert penalized.advantages[:, 1].tolist() == pytest.approx([-0.7, 0.3, 0.3, -0.7])
    parts = optimizer_steps(whole, 2, settings)
    assert [part.group.tolist() for part in parts] == [[0, 1], [0, 1]]
    # Constant: over 2 episodes of a part, at most 2 turns of 12 tokens each.
    assert [part.advantages[:, 1].tolist() for part in parts] == [  # type: ignore[index]
        pytest.approx([-0.5 / 48, 0.5 / 48]),
        pytest.approx([0.5 / 48, -0.5 / 48]),
    ]
    assert len(optimizer_steps(whole, 9, settings)) == 4


def test_a_group_that_teaches_nothing_may_be_a_part_of_what_a_step_learns_from(tiny: Path) -> None:
    """Of a whole batch's deviation, or of what a penalty or a teacher judges; by its reward it is worth nothing."""
    mixed, equal, lost = episodes(0.0, 1.0), episodes(0.3, 0.3), episodes(None, None)

    def learned(groups: Sequence[list[Trajectory]], *settings: str) -> list[list[Trajectory]]:
        return lessons(groups, config(tiny, *settings).algorithm)

    every = [mixed, equal, lost]
    assert learned(every, "algorithm.advantage=turn") == [mixed]
    assert learned(every, "algorithm.kl_coefficient=0.1") == [mixed, equal]
    assert learned(every, "algorithm.advantage=batch_std") == [mixed, equal]
    assert learned([equal, lost], "algorithm.advantage=batch_std") == []
    rows, numbers, places = [*mixed, *equal], [0, 0, 1, 1], [[-1, 0, 0], [-1, 0, 0, 0], [-1, 1, 1], [-1, 1, 1, 1]]
    for advantage in ("group", "group_std", "leave_one_out", "batch_std", "turn"):
        batch = collate(rows, numbers, situations=places if advantage == "turn" else None)
        found = with_advantages(batch, config(tiny, f"algorithm.advantage={advantage}")).advantages
        assert found is not None
        assert found[0, 1] < 0 < found[1, 1]
        assert not found[2:].any(), advantage
        if advantage == "batch_std":
            assert found[1, 1] == pytest.approx(0.5 / (0.5 / 3) ** 0.5, rel=1e-4), "-0.5, 0.5, 0, 0: variance 0.5 / 3"


# ---- whole runs ----


def test_a_random_model_learns_from_a_few_demonstrations_and_then_from_reward(tiny: Path, tmp_path: Path) -> None:
    learning = ("domain=test_train:WATTS", "sampling.max_tokens=8", "save_every=0", "eval.trials=20", "eval.tasks=6")
    warm = ("sft.steps=4", "sft.batch_size=4", "sft.demonstrations=8", "sft.learning_rate=1e-2")
    groups = ("algorithm.tasks_per_step=4", "algorithm.group_size=16", "algorithm.refill=0")
    run = Run.create(
        tmp_path / "run", config(tiny, *learning, *warm, *groups, "steps=16", "algorithm.learning_rate=2e-3")
    )
    rates = {name: evaluation.success for name, evaluation in train(run.config, run, silent)["evaluations"]}
    assert rates.keys() == {"do nothing", "gold", "base model", "warm start", "trained"}
    assert [rates[name].mean for name in ("do nothing", "gold", "base model")] == [0.0, 1.0, 0.0]
    assert 0.2 < rates["warm start"].mean < 0.7
    assert rates["trained"].mean > 0.9
    name = "reward/average_reward"
    rewards = [line[name] for line in metrics(run) if name in line]
    assert sum(rewards[-4:]) / 4 > 0.9 > 0.6 > sum(rewards[:2]) / 2


@pytest.mark.usefixtures("short")
def test_the_same_seed_gives_the_same_run_and_another_seed_another(tiny: Path, tmp_path: Path) -> None:
    one, other, third = (run_of(tmp_path / str(i), tiny, f"seed={seed}") for i, seed in enumerate((0, 0, 1)))
    assert metrics(one) == metrics(other)
    assert same(saved(one), saved(other))
    assert trajectories(one) == trajectories(other)
    assert evaluations(one) == evaluations(other)
    assert trajectories(one) != trajectories(third)
    assert [line["step"] for line in metrics(one)] == [1, 2, 3, 4, 5]
    assert sorted(evaluations(one)) == ["000000 base model.json", "000002 warm start.json", "000005 trained.json"]
    moments = [{float(v) for k, v in saved(one, step).items() if k.startswith("step.")} for step in range(1, 6)]
    assert moments == [{1}, {2}, {1}, {2}, {3}], "reinforcement begins with moments of its own"
    lines = metrics(one)
    assert lines[1]["loss/nll"] < lines[0]["loss/nll"]
    assert all(line[EPISODES] == 3 * line[GROUPS] and 2 <= line[GROUPS] <= 3 for line in lines[2:])
    used = 3 + sum(line[GROUPS] for line in lines[2:])
    assert saved(one)["progress"] == {"rates": ANY, "tasks_used": used}


@pytest.mark.usefixtures("short")
def test_the_trained_model_is_written_as_others_read_it(tiny: Path, tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", tiny)
    folder = find_model(str(run.folder / "model"))
    weights = load_file(folder / "model.safetensors")
    masters = {k.removeprefix("master."): v for k, v in saved(run).items() if k.startswith("master.")}
    assert masters
    assert all(torch.equal(weights[name], master) for name, master in masters.items())
    again = run_of(tmp_path / "again", folder, "sft.steps=0", "steps=0")
    before, after = (
        evaluations(r)[name] for r, name in ((run, "000005 trained.json"), (again, "000000 base model.json"))
    )
    assert before == after
    adapted = run_of(tmp_path / "lora", tiny, "engine.finetune=lora", "steps=1")
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= {
        path.name for path in (adapted.folder / "model").iterdir()
    }


class Stopper:
    """A report that presses Ctrl-C when a phase has got so far."""

    def __init__(self, phase: str, done: int) -> None:
        self._at = (phase, done)

    def __call__(self, phase: str, done: int, of: int, metrics: Mapping[str, float]) -> None:
        if (phase, done) == self._at:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("phase", "done", "after"),
    [
        ("train", 1, 1),
        ("train", 4, 4),
        ("evaluate base model", 1, 0),
        ("evaluate warm start", 1, 2),
        ("evaluate warm start", 2, 2),
        ("evaluate step 4", 1, 4),
        ("evaluate trained", 1, 5),
    ],
)
def test_a_run_that_was_interrupted_ends_as_one_that_was_not(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str, done: int, after: int
) -> None:
    monkeypatch.setattr(evaluation, "PATIENCE", 0.0 if done == 1 else 60.0)  # the second episode is the last
    settings = ("save_every=0", "eval.every=2", "algorithm.kl_coefficient=0.05", "engine.finetune=lora")
    whole = run_of(tmp_path / "whole", tiny, *settings)
    assert "000004 step 4.json" in evaluations(whole)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match=f"stopped after step {after}; go on with: understudy train --resume"):
        run_of(tmp_path / "parts", tiny, *settings, report=Stopper(phase, done))
    assert signal.getsignal(signal.SIGINT) is before
    resumed = Run.resume(tmp_path / "parts")
    assert resumed.step == after
    train(resumed.config, resumed, silent)
    assert metrics(resumed) == metrics(whole)
    assert same(saved(resumed), saved(whole))
    assert trajectories(resumed) == trajectories(whole)
    assert evaluations(resumed) == evaluations(whole)


@pytest.mark.usefixtures("short")
def test_a_run_that_is_made_longer_ends_as_one_that_was_long_from_the_start(tiny: Path, tmp_path: Path) -> None:
    whole = run_of(tmp_path / "whole", tiny, "steps=4", "eval.every=2")
    run_of(tmp_path / "parts", tiny, "steps=2", "eval.every=2")
    longer = launch.open_run(["steps=4"], None, tmp_path / "parts")
    tables = train(longer.config, longer, silent)
    assert metrics(longer) == metrics(whole)
    assert same(saved(longer), saved(whole))
    assert trajectories(longer) == trajectories(whole)
    assert evaluations(longer) == evaluations(whole)
    names = ["do nothing", "gold", "base model", "warm start", "step 4", "trained"]
    assert [name for name, _ in tables["evaluations"]] == names


@pytest.mark.usefixtures("short")
def test_a_new_run_begins_with_the_weights_of_another(tiny: Path, tmp_path: Path) -> None:
    """As the refusal of another config says: `export`, then `train RUN KEY=VALUE model=MODEL sft.steps=0`."""
    run = run_of(tmp_path / "run", tiny, "steps=1", "sft.steps=0")
    model = tmp_path / "model"
    export(find_weights(str(run.folder)), model)
    launch.train(
        [str(run.folder), "algorithm.learning_rate=1e-4", f"model={model}", "sft.steps=0"], out=tmp_path / "new"
    )
    ((_, trained),) = [(n, e) for n, e in evaluations(run).items() if n.endswith("trained.json")]
    base = evaluations(Run.resume(tmp_path / "new"))["000000 base model.json"]
    assert Evaluation.model_validate_json(base).results == Evaluation.model_validate_json(trained).results


def test_ctrl_c_in_an_evaluation_is_noticed_at_once(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def endless(*_: object, **named: object) -> None:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        await asyncio.sleep(3600)

    monkeypatch.setattr(evaluation, "episodes", endless)
    with pytest.raises(KeyboardInterrupt, match="stopped after step 0"):
        run_of(tmp_path / "run", tiny)
    assert not evaluations(Run.resume(tmp_path / "run"))


@pytest.mark.usefixtures("short")
def test_a_kl_penalty_changes_the_update_and_pulls_back(tiny: Path, tmp_path: Path) -> None:
    free, bound = (run_of(tmp_path / k, tiny, f"algorithm.kl_coefficient={k}") for k in ("0.0", "0.5"))
    weights = [saved(run) for run in (free, bound)]
    moved = [
        sum(float((w[k] - v).square().sum()) for k, v in saved(run, 2).items() if k.startswith("master."))
        for run, w in zip((free, bound), weights, strict=True)
    ]
    assert moved[0] > 0
    assert not same(
        {k: v for k, v in weights[0].items() if k.startswith("master.")},
        {k: v for k, v in weights[1].items() if k.startswith("master.")},
    )
    reference = {k.removeprefix("reference."): v for k, v in weights[1].items() if k.startswith("reference.")}
    assert reference, "the reference is in the checkpoint"
    warm = saved(bound, 2)
    assert all(torch.equal(v, warm[f"master.{k}"]) for k, v in reference.items()), "and it is the warm start"
    assert not any(k.startswith("reference.") for k in weights[0])


@pytest.mark.usefixtures("short")
def test_a_sampler_that_is_not_the_trainer_is_made_up_for(tiny: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Without the cap the update would hear of a ratio; with it the ratio is a weight, and the update is on policy."""
    honest = LocalEngine.sample

    async def biased(self: LocalEngine, *args: Any, **kwargs: Any) -> Completion:
        completion = await honest(self, *args, **kwargs)
        return dataclasses.replace(completion, logprobs=[x - 1.0 for x in completion.logprobs])

    monkeypatch.setattr(LocalEngine, "sample", biased)
    trusted, corrected = (
        run_of(tmp_path / cap, tiny, f"algorithm.importance_cap={cap}", "steps=1", "sft.steps=0", "certify.every=0")
        for cap in ("0", "2")
    )
    (first,), (second,) = metrics(trusted), metrics(corrected)
    assert first["train/ratio"] == pytest.approx(math.e, rel=1e-3)
    assert second["train/ratio"] == pytest.approx(1.0, abs=1e-5)
    assert second["train/sampler_ratio"] == pytest.approx(math.e, rel=1e-3), "and it is said how far they were apart"
    assert second["train/sampler_ratio_error"] == pytest.approx((math.e - 1) ** 2, rel=1e-2)
    assert (second["train/importance_capped"], second["health/ratio"]) == (1.0, 1.0)
    assert second["loss/total"] != pytest.approx(first["loss/total"])


def test_equal_groups_teach_nothing(tiny: Path, tmp_path: Path) -> None:
    """A random model never switches the lamp: no reward, no update, and it is said so."""
    run = run_of(tmp_path / "run", tiny, "sft.steps=0", "steps=2")
    lines = metrics(run)
    assert [line["generation/equal_groups"] for line in lines] == [3, 3]
    assert [line[GROUPS] for line in lines] == [3, 3]
    assert [line["reward/average_reward"] for line in lines] == [0.0, 0.0]
    assert all("train/grad_norm" not in line for line in lines)
    before, after = saved(run, 1), saved(run, 2)
    assert same(
        {k: v for k, v in before.items() if k != "progress"}, {k: v for k, v in after.items() if k != "progress"}
    )
    assert (before["progress"]["tasks_used"], after["progress"]["tasks_used"]) == (3, 6)
    assert sorted(evaluations(run)) == ["000000 base model.json", "000002 trained.json"]


@pytest.mark.parametrize("advantage", ["group", "turn"])
def test_a_teacher_teaches_where_all_fail(tiny: Path, tmp_path: Path, advantage: str) -> None:
    """By reward alone nothing is learned there, as above; the penalty is of every episode."""
    teacher = make_tiny(tmp_path / "teacher", seed=7)
    reference = ("algorithm.kl_coefficient=1", "algorithm.reference.kind=model", f"algorithm.reference.model={teacher}")
    lines = metrics(
        run_of(tmp_path / "run", tiny, "sft.steps=0", "steps=2", f"algorithm.advantage={advantage}", *reference)
    )
    assert all(line["generation/equal_groups"] == line[GROUPS] for line in lines)
    assert all(line["train/reference_kl"] > 0 < line["train/grad_norm"] for line in lines)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(("lost", "stops"), [(1, False), (3, True)])
def test_a_run_with_too_many_faults_stops(tiny: Path, tmp_path: Path, lost: int, stops: bool) -> None:
    """Of six episodes, `lost` have no user; a third may fail."""
    settings = ("sft.steps=0", "steps=1", "limits.retries=0", "max_fault_rate=0.34", "algorithm.refill=0")

    def report(phase: str, done: int, of: int, metrics: Mapping[str, float]) -> None:
        if (phase, done) == ("evaluate base model", 2):
            LOST.extend([True] * lost)

    LOST.clear()
    if not stops:
        run = run_of(tmp_path / "run", tiny, *settings, report=report)
        (line,) = metrics(run)
        assert (line[EPISODES], line["generation/stop/fault"], line["fault/user"]) == (6, 1 / 6, 1 / 6)
        assert line["reward/average_reward"] > 0.0, "and it is no reward of 0"
        return
    with pytest.raises(RolloutError, match=r"3 of 6 episodes failed, more than max_fault_rate = 0.34; .*line is dead"):
        run_of(tmp_path / "run", tiny, *settings, report=report)
    assert len(trajectories(Run(tmp_path / "run", config(tiny)))) == 6, "they can be looked at"


def test_a_demonstration_that_earns_less_than_1_is_refused(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("understudy.domains.base.score", lambda *_: Score(reward=0.5))
    told = r"the gold episode of task train/0/one/easy/0 earns 0\.5; "
    with pytest.raises(TaskError, match=f"{told}limits.max_turns is too low for it"):
        run_of(tmp_path / "cut", tiny)
    with pytest.raises(TaskError, match=f"{told}see: understudy check"):
        run_of(tmp_path / "whole", tiny, "limits.max_turns=4")


# ---- curriculum, and domains that are not trained on ----


@pytest.mark.usefixtures("short")
def test_a_resumed_run_goes_on_with_its_curriculum(tiny: Path, tmp_path: Path) -> None:
    settings = (
        "curriculum.difficulty=true",
        "curriculum.success=true",
        "curriculum.least=0.3",
        "curriculum.memory=0.5",
    )
    whole = run_of(tmp_path / "whole", tiny, *settings)
    assert sum(line["generation/left_out"] for line in metrics(whole)[2:]) > 0
    assert saved(whole)["progress"]["rates"]
    played = [episode.difficulty for step in (3, 4, 5) for episode in read_trajectories(episodes_of(whole, step))[0]]
    assert played[0] == "easy"
    assert len(set(played)) > 1
    with pytest.raises(KeyboardInterrupt):
        run_of(tmp_path / "parts", tiny, *settings, report=Stopper("train", 4))
    resumed = Run.resume(tmp_path / "parts")
    train(resumed.config, resumed, silent)
    assert trajectories(resumed) == trajectories(whole)
    assert saved(resumed)["progress"] == saved(whole)["progress"]


def test_what_is_longer_than_the_context_is_told() -> None:
    config = TrainConfig(limits=Limits(max_tokens=9000))
    assert cut_short(config, 9000) == []
    (line,) = cut_short(config, 8192)
    assert line.startswith("limits.max_tokens = 9000, and the model's context is 8192")


def test_no_task_is_made_anew_in_a_later_step() -> None:
    made = []

    class Endless:
        def stream(self, split: Split, seed: int) -> Iterator[Task]:
            for index in itertools.count():
                made.append(index)
                yield task(str(index), split, "one", "easy", ["L7"])

    nobody: Any = None
    training = Training(TrainConfig(), nobody, Endless(), *[nobody] * 6)  # type: ignore[arg-type]
    found = []
    for _ in range(4):
        tasks = training.supply(0.0)
        found += [next(tasks).id for _ in range(3)]
        training.tasks_used = tasks.used
    assert (found, made) == ([str(index) for index in range(12)], list(range(12)))
    training.tasks_used = 5
    assert next(training.supply(0.0)).id == "5", "where it is to go on from elsewhere, as at the start of a phase"


def test_domains_that_are_not_trained_on_have_a_table_of_their_own(tiny: Path, tmp_path: Path) -> None:
    others = ("eval.tests=retail,telecom", "eval.test_tasks=2", "test_slice.policy=brief")
    run = Run.create(
        tmp_path / "run", config(tiny, "domain=test_train:WATTS", "sft.steps=1", "steps=0", *others, *NARROW)
    )
    tables = train(run.config, run, silent)
    names = ["do nothing", "gold", "base model", "warm start"]
    assert {folder: [name for name, _ in rows] for folder, rows in tables.items()} == {
        "evaluations": names,
        "tests": names,
    }
    floor, oracle, *_ = (evaluation for _, evaluation in tables["tests"])
    assert [(r.domain, r.family) for r in oracle.results] == [("retail", "cancel")] * 2 + [("telecom", "suspend")] * 2
    assert (floor.success.mean, oracle.success.mean) == (0.0, 1.0)
    assert sorted(path.name for path in (run.folder / "tests").iterdir()) == [
        "000000 base model.json",
        "000001 warm start.json",
    ]
    stages = ["000000 base model", "000000 base model of tests", "000001 warm start", "000001 warm start of tests"]
    assert list(evaluation_files(run.folder)) == stages
    for stage, (_, came) in zip(stages[1::2], tables["tests"][2:], strict=True):
        stored = open_stored(run.folder, stage)
        earned = [reward for result in came.results for reward in result.rewards]
        assert [episode.score and episode.score.reward for episode in stored.episodes.values()] == earned
        failures = why(stored)
        assert sorted(failures) == [number for number, reward in enumerate(earned, 1) if reward != 1.0]
        assert {failure.domain for failure in failures.values()} <= {"retail", "telecom"}


def test_a_domain_that_is_trained_on_is_no_test(tiny: Path, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", config(tiny, "eval.tests=retail,toy:DOMAIN"))
    with pytest.raises(ConfigError, match=r"eval\.tests: toy is trained on"):
        train(run.config, run, silent)


NARROW = (
    "test_slice.families=retail/cancel,telecom/suspend",
    "test_slice.difficulties=easy",
    "test_slice.tools=find_user,get_order,cancel_order,find_customer,get_line,suspend_line",
)


def episodes_of(run: Run, step: int) -> Path:
    return run.folder / "trajectories" / f"step_{step:06}.jsonl"
