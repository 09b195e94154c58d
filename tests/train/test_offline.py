"""Tests of DPO, KTO, success imitation and distillation: learning, resume and rejected settings."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from support.groups import make_group
from support.tiny_runs import (
    SMALL,
    WATTS,
    InterruptAtStep,
    equal_values,
    evaluations,
    ignore_progress,
    load_checkpoint_files,
    make_episodes,
    run_episodes,
    step_metrics,
    train_tiny_run,
)
from support.viewer_episodes import request_route
from understudy.algorithms.batch import collate
from understudy.core.errors import ConfigError, TaskError
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.records import Record
from understudy.core.trajectory import Trajectory, read_numbered_trajectories, read_trajectories
from understudy.data.conversations.examples import LabeledExample, PreferencePair
from understudy.engines.models import make_tiny_model
from understudy.envs.task_source import Slice
from understudy.runs.config import (
    parse_config,
)
from understudy.runs.run import Run, episode_file
from understudy.runs.storage.trained_episodes import read_trained_episodes
from understudy.train.loop import train
from understudy.train.phases import preferences
from understudy.train.phases.rl import compute_advantages
from understudy.train.reference import validate_reference
from understudy.viewer.library import RunLibrary

LEARNING = (
    "domain=support.tiny_runs:WATTS",
    "sampling.max_response_tokens=8",
    "save_every=0",
    "eval.trials=20",
    "eval.tasks=6",
    "sft.steps=4",
    "sft.batch_size=4",
    "sft.num_demonstrations=8",
    "sft.learning_rate=1e-2",
    "algorithm.groups_per_batch=4",
    "algorithm.group_size=16",
    "algorithm.max_resampled_groups=0",
)
RIGHT, WRONG = "71 W", ("17 W", "7 W", "no", "711 W")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def prompt_messages() -> tuple[Message, ...]:
    """Return the messages before the agent's answer."""
    domain = WATTS.slice(Slice(domain_policy="brief", tools=("switch_lamp",)))
    task = next(domain.stream("train"))
    return asyncio.run(domain.environment(task).start()).messages


def conversation(text: str) -> tuple[Message, ...]:
    return (*prompt_messages(), Message(role="assistant", content=text))


def write_rows(folder: Path, records: Sequence[Record]) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(record.model_dump_json(exclude_defaults=True) + "\n" for record in records))
    return f"preferences.dataset_file={path}"


def agent_tools() -> Sequence[ToolSpec]:
    """Return the agent's tools."""
    return WATTS.slice(Slice(tools=("switch_lamp",))).tool_specs


def preference_pairs() -> list[PreferencePair]:
    return [
        PreferencePair(chosen=conversation(RIGHT), rejected=conversation(wrong), tools=agent_tools()) for wrong in WRONG
    ]


def labeled_examples() -> list[LabeledExample]:
    answers = [answer for wrong in WRONG for answer in (RIGHT, wrong)]
    return [
        LabeledExample(messages=conversation(answer), tools=agent_tools(), label=answer == RIGHT) for answer in answers
    ]


def success_rates(folder: Path, model: Path, *settings: str) -> dict[str, float]:
    """Train a run and return the success rate of each row of its result table."""
    run = Run.create(folder, parse_config("", [f"model={model}", *SMALL, *LEARNING, *settings]))
    return {
        name: row.success_rate.mean for name, row in train(run.config, run, ignore_progress).held_out.results.items()
    }


@pytest.fixture(scope="module")
def sft_run(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose model is that of its SFT, with episodes sampled from it."""
    folder = tmp_path_factory.mktemp("warm") / "run"
    return train_tiny_run(
        folder, tiny, *LEARNING, "steps=1", "algorithm.groups_per_batch=16", "algorithm.learning_rate=1e-9"
    )


def sampled_episodes(run: Run) -> tuple[list[Trajectory], list[Trajectory]]:
    """Return the run's successful episodes, and its failed ones that can be encoded."""
    (path,) = (run.folder / "trajectories").iterdir()
    played, _ = read_trajectories(path)
    right = [episode for episode in played if episode.reward >= 1.0]
    wrong = [episode for episode in played if episode.reward < 1.0 and not episode.messages[2].tool_calls]
    assert len(right) > 20 < len(wrong)
    return right, wrong


@pytest.mark.slow
def test_dpo_learns_from_pairs_of_own_episodes(sft_run: Run, tmp_path: Path) -> None:
    right, wrong = sampled_episodes(sft_run)
    rows = [
        PreferencePair(chosen=better.messages[:3], rejected=worse.messages[:3], tools=agent_tools())
        for better, worse in zip(itertools.cycle(right), wrong, strict=False)
    ]
    assert_learns_from(sft_run, tmp_path, rows, "preferences.kind=dpo", "preferences.learning_rate=3e-3")


@pytest.mark.slow
def test_kto_learns_from_labeled_own_episodes(sft_run: Run, tmp_path: Path) -> None:
    right, wrong = sampled_episodes(sft_run)
    rows = [
        LabeledExample(messages=e.messages[:3], tools=agent_tools(), label=e.reward >= 1.0) for e in (*right, *wrong)
    ]
    assert_learns_from(
        sft_run, tmp_path, rows, "preferences.kind=kto", "preferences.beta=0.05", "preferences.learning_rate=5e-3"
    )


def assert_learns_from(warm: Run, folder: Path, rows: Sequence[Record], *settings: str) -> None:
    """Train on these rows alone and check that the success rate rises above 0.9."""
    how = ("sft.steps=0", "steps=0", "preferences.steps=40", "preferences.batch_size=32")
    rates = success_rates(folder / "run", warm.folder / "model", write_rows(folder, rows), *how, *settings)
    assert list(rates) == ["noop", "gold", "base", "preferences"]
    assert 0.2 < rates["base"] < 0.7
    assert rates["preferences"] > 0.9
    lines = step_metrics(Run.resume(folder / "run"))
    assert lines[0]["train/chosen_log_ratio"] == lines[0]["train/rejected_log_ratio"] == 0.0, (
        "it is compared with where it started"
    )
    assert lines[-1]["train/chosen_log_ratio"] - lines[-1]["train/rejected_log_ratio"] > 5.0


@pytest.mark.slow
def test_distillation_learns_without_rewards(tiny: Path, tmp_path: Path) -> None:
    taught = train_tiny_run(tmp_path / "teacher", tiny, *LEARNING, "sft.steps=30", "steps=0")
    teacher = taught.folder / "model"
    how = ("algorithm.advantage_estimator=zero", "algorithm.kl_coef=1", "steps=16", "algorithm.learning_rate=2e-3")
    where = ("algorithm.reference.kind=model", f"algorithm.reference.model={teacher}")
    rates = success_rates(tmp_path / "run", tiny, *how, *where)
    assert 0.2 < rates["sft"] < 0.7
    assert rates["rl"] > 0.9
    kl = [line["train/kl"] for line in step_metrics(Run.resume(tmp_path / "run"))[4:]]
    assert kl[-1] < kl[0] / 2, "and it comes nearer to the teacher"


SHORT = ("sft.steps=1", "preferences.steps=3", "preferences.batch_size=3", "steps=1", "preferences.learning_rate=1e-3")


@pytest.mark.parametrize(
    ("kind", "rows", "families"),
    [("dpo", preference_pairs, ["chosen", "rejected"]), ("kto", labeled_examples, ["desirable", "undesirable"])],
)
def test_weights_of_preferences_are_stored_and_shown(
    tiny: Path, tmp_path: Path, kind: str, rows: Callable[[], list[Record]], families: list[str]
) -> None:
    settings = (write_rows(tmp_path, rows()), f"preferences.kind={kind}", "preferences.steps=1", "sft.steps=0")
    run = train_tiny_run(tmp_path / "run", tiny, *settings, "steps=0", "preferences.batch_size=4")
    library = RunLibrary([run.folder])
    trained = read_trained_episodes(run.folder, 1)
    episodes, _ = read_numbered_trajectories(episode_file(run.folder, 1))
    assert sorted({episode.family for episode in episodes.values()}) == families
    assert trained.keys() == episodes.keys()
    for number, episode in episodes.items():
        (weight,) = trained[number].advantages
        assert weight is not None
        assert (weight > 0) == (episode.family == families[0]), "wanted conversations become likelier"
        where = {"key": "run", "step": "1", "number": str(number)}
        shown = request_route(library, "/api/episode/{key}/{step}/{number}", **where)
        assert (shown["training"]["advantages"], shown["training"]["is_preference"]) == ([weight], True)
        assert shown["group_size"] == (2 if kind == "dpo" else 1)
        tokens = request_route(library, "/api/episode/{key}/{step}/{number}/tokens", **where)
        assert {value for value in tokens["advantages"] if value is not None} == {weight}
        assert all(value < 0 for value in tokens["logprobs"] if value is not None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "rows", "finetune"), [("dpo", preference_pairs, "lora"), ("kto", labeled_examples, "full")]
)
@pytest.mark.parametrize("at", [("train", 2), ("train", 4)])
def test_run_interrupted_around_preferences_resumes_to_the_same_result(
    tiny: Path, tmp_path: Path, kind: str, rows: Callable[[], list[Record]], finetune: str, at: tuple[str, int]
) -> None:
    """Interrupted after step 2 of 5, and after the last preference step, where RL sets another reference."""
    settings = (write_rows(tmp_path, rows()), f"preferences.kind={kind}", f"engine.finetune={finetune}", *SHORT)
    settings += (
        "domain=support.tiny_runs:WATTS",
        "save_every=0",
        "algorithm.kl_coef=0.1",
        "algorithm.advantage_estimator=zero",
    )
    whole = train_tiny_run(tmp_path / "whole", tiny, *settings)
    with pytest.raises(KeyboardInterrupt, match=rf"\bstep {at[1]}\b"):
        train_tiny_run(tmp_path / "parts", tiny, *settings, report=InterruptAtStep(*at))
    resumed = Run.resume(tmp_path / "parts")
    if at[1] < 4:
        path = tmp_path / "rows.jsonl"
        text = path.read_text()
        path.write_text(text + text.splitlines()[0] + "\n")
        with pytest.raises(ConfigError, match=r"rows\.jsonl\b.*\bparts\b"):
            train(resumed.config, resumed, ignore_progress)
        path.write_text(text)
    train(resumed.config, resumed, ignore_progress)
    assert step_metrics(resumed) == step_metrics(whole)
    assert [line["step"] for line in step_metrics(whole)] == [1, 2, 3, 4, 5]
    assert equal_values(load_checkpoint_files(resumed), load_checkpoint_files(whole))
    assert run_episodes(resumed) == run_episodes(whole)
    names = ["000000 base", "000001 sft", "000004 preferences", "000005 rl"]
    assert sorted(evaluations(whole)) == names
    assert evaluations(resumed) == evaluations(whole)


@pytest.mark.slow
def test_teacher_and_ema_references_are_restored_on_resume(tiny: Path, tmp_path: Path) -> None:
    teacher = make_tiny_model(tmp_path / "teacher", seed=7, hidden_size=32)
    for name, how in (
        ("model", (f"algorithm.reference.model={teacher}",)),
        ("ema", ("algorithm.reference.sync_steps=1", "algorithm.reference.ema_decay=0.9")),
    ):
        settings = (
            f"algorithm.reference.kind={name}",
            *how,
            "algorithm.kl_coef=0.5",
            "algorithm.advantage_estimator=zero",
        )
        settings += ("domain=support.tiny_runs:WATTS", "sft.steps=1", "steps=3", "save_every=0")
        whole = train_tiny_run(tmp_path / f"{name}-whole", tiny, *settings)
        with pytest.raises(KeyboardInterrupt):
            train_tiny_run(tmp_path / f"{name}-parts", tiny, *settings, report=InterruptAtStep("train", 3))
        resumed = Run.resume(tmp_path / f"{name}-parts")
        train(resumed.config, resumed, ignore_progress)
        assert step_metrics(resumed) == step_metrics(whole)
        assert equal_values(load_checkpoint_files(resumed), load_checkpoint_files(whole))


def test_trainable_episodes_depend_on_the_advantage_estimator() -> None:
    rewards = ((1.0, 1.0), (0.0, 1.0, 0.5), (0.0, None, 0.0))
    equal, unequal, lost = (make_group(make_episodes(*each)) for each in rewards)
    assert [len(group.trainable_episodes("group_mean")) for group in (equal, unequal, lost)] == [0, 3, 0]
    assert [len(group.trainable_episodes("success_indicator")) for group in (equal, unequal, lost)] == [2, 1, 0]
    assert [len(group.trainable_episodes("zero")) for group in (equal, unequal, lost)] == [2, 3, 2]


def test_success_and_teacher_advantages_match_hand_computed_values(tiny: Path) -> None:
    batch = collate(make_episodes(0.0, 1.0, 0.5), [0, 0, 0])
    imitating = parse_config("", [f"model={tiny}", "algorithm.advantage_estimator=success_indicator"])
    advantages = compute_advantages(batch, imitating).advantages
    assert advantages is not None
    assert advantages[:, 1].tolist() == [0.0, 1.0, 0.0]
    taught = parse_config("", [f"model={tiny}", "algorithm.advantage_estimator=zero", "algorithm.kl_coef=1"])
    teacher = batch.logprobs + torch.tensor([[0.5], [-2.0], [0.0]])
    advantages = compute_advantages(batch.replace(ref_logprobs=teacher), taught).advantages
    assert advantages is not None
    assert advantages[:, 1].tolist() == [0.5, -2.0, 0.0], "what the teacher finds likelier is worth more"
    assert not advantages[~batch.mask].any()


def test_kto_mismatched_episode_joins_a_prompt_with_the_next_replies() -> None:
    one, other = make_episodes(1.0, 0.0)
    one.tokens[0], other.tokens[0] = 8, 9
    spliced, last = preferences._mismatched_for_kl([one, other], 9)
    assert (spliced.tokens, spliced.mask) == ([8, 2, 2, 2], [False, True, True, True])
    assert (last.tokens, last.mask) == ([9, 2, 2], [False, True, True])
    cut, last = preferences._mismatched_for_kl([one, other], 3)
    assert (cut.tokens, cut.mask, len(cut.logprobs)) == ([8, 2, 2], [False, True, True], 3)
    assert last.tokens == [9, 2, 2]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (("algorithm.advantage_estimator=zero",), r"algorithm\.advantage_estimator = 'zero'"),
        (("algorithm.reference.kind=ema",), r"'ema'.*algorithm\.kl_coef\b.*\b0\b"),
        (("preferences.steps=1",), r"preferences\.dataset_file\b"),
        (
            ("preferences.dataset_file=x.jsonl",),
            r"preferences\.dataset_file\b.*\bpreferences\.steps\b.*\b0\b",
        ),
        (("preferences.steps=1", "preferences.dataset_file=none.jsonl"), r"none\.jsonl"),
        (
            ("preferences.steps=1", "preferences.kind=kto", "preferences.batch_size=1", "preferences.dataset_file=x"),
            r"\b2\b",
        ),
    ],
)
def test_settings_without_effect_are_rejected_in_one_line(
    tiny: Path, tmp_path: Path, settings: tuple[str, ...], why: str
) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        train_tiny_run(tmp_path / "run", tiny, *settings)
    assert "\n" not in str(caught.value)


def test_teacher_with_another_vocabulary_is_rejected(tiny: Path, tmp_path: Path) -> None:
    teacher = make_tiny_model(tmp_path / "teacher")
    path = teacher / "tokenizer.json"
    path.write_text(path.read_text(encoding="utf-8").replace("<|im_end|>", "<|over|>"), encoding="utf-8")
    settings = ("algorithm.kl_coef=1", "algorithm.reference.kind=model", f"algorithm.reference.model={teacher}")
    with pytest.raises(ConfigError, match=r"\b\d+\b.*'<\|im_end\|>'.*'<\|over\|>'") as caught:
        train_tiny_run(tmp_path / "run", tiny, *settings)
    assert "\n" not in str(caught.value)


def test_teacher_with_a_shorter_context_than_the_episodes_is_rejected(tiny: Path, tmp_path: Path) -> None:
    teacher = make_tiny_model(tmp_path / "teacher")
    config = json.loads((teacher / "config.json").read_text(encoding="utf-8"))
    (teacher / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}), encoding="utf-8")
    settings = (
        "algorithm.kl_coef=1",
        "algorithm.reference.kind=model",
        f"algorithm.reference.model={teacher}",
        "sampling.max_response_tokens=48",
    )
    for limit in (2000, 2001):
        found = parse_config("", [f"model={tiny}", *settings, f"limits.max_episode_tokens={limit}"])
        if limit == 2000:
            validate_reference(found, tiny)
        else:
            with pytest.raises(ConfigError, match=r"= 2001\b.*\b2049 tokens.*\b2048\b.*teacher.*at most 2000"):
                validate_reference(found, tiny)
    validate_reference(parse_config("", [*settings, "limits.max_episode_tokens=9999"]), teacher)


@pytest.mark.parametrize(("batching", "is_allowed"), [("auto", False), ("padded", True)])
def test_teacher_with_padded_rows_has_its_whole_context(
    tiny: Path, tmp_path: Path, batching: str, is_allowed: bool
) -> None:
    teacher = make_tiny_model(tmp_path / "teacher")
    config = json.loads((teacher / "config.json").read_text(encoding="utf-8"))
    (teacher / "config.json").write_text(json.dumps(config | {"sliding_window": 512}), encoding="utf-8")
    reference = ("algorithm.kl_coef=1", "algorithm.reference.kind=model", f"algorithm.reference.model={teacher}")
    found = parse_config("", [f"model={tiny}", f"engine.batching={batching}", *reference])
    with contextlib.nullcontext() if is_allowed else pytest.raises(ConfigError, match=r"context of 512\b"):
        validate_reference(found, tiny)


def test_teacher_of_an_unknown_architecture_is_named(tiny: Path, tmp_path: Path) -> None:
    teacher = make_tiny_model(tmp_path / "teacher")
    about = json.loads((teacher / "config.json").read_text(encoding="utf-8"))
    (teacher / "config.json").write_text(json.dumps(about | {"model_type": "unheard"}), encoding="utf-8")
    settings = ("algorithm.kl_coef=1", "algorithm.reference.kind=model", f"algorithm.reference.model={teacher}")
    with pytest.raises(ConfigError, match=r"\bunheard\b"):
        validate_reference(parse_config("", [f"model={tiny}", *settings]), tiny)


def test_invalid_preference_rows_are_named_in_the_error(tiny: Path, tmp_path: Path) -> None:
    broken = Message(role="assistant", tool_calls=(ToolCall(name="switch_lamp", parse_error="not JSON"),))
    rows = (preference_pairs()[0], PreferencePair(chosen=conversation(RIGHT), rejected=(*prompt_messages(), broken)))
    settings = ("preferences.steps=1", write_rows(tmp_path, rows))
    with pytest.raises(ConfigError, match=r"rows\.jsonl:2: .*not JSON"):
        train_tiny_run(tmp_path / "broken", tiny, *settings)
    with pytest.raises(TaskError, match=r"rows\.jsonl:1: .*{chosen, rejected}.*DPO.*KTO: {"):
        train_tiny_run(tmp_path / "kind", tiny, *settings, "preferences.kind=kto")
    with pytest.raises(ConfigError, match=r"rows\.jsonl"):
        train_tiny_run(tmp_path / "empty", tiny, "preferences.steps=1", write_rows(tmp_path, ()))
