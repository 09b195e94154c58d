"""What is learned beyond the plain policy gradient: each way of it teaches a random model its one answer, the same way
each time, and what cannot be learned from is refused before anything is trained."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from test_train import (  # noqa: E402
    SMALL,
    WATTS,
    Stopper,
    episodes,
    evaluations,
    metrics,
    run_of,
    same,
    saved,
    silent,
    trajectories,
)
from understudy.batch import collate  # noqa: E402
from understudy.config import TrainConfig  # noqa: E402
from understudy.data.preferences import Judged, Preference  # noqa: E402
from understudy.domains.base import Slice  # noqa: E402
from understudy.errors import ConfigError, TaskError  # noqa: E402
from understudy.messages import Message, ToolCall, ToolSpec  # noqa: E402
from understudy.models import make_tiny  # noqa: E402
from understudy.records import Record  # noqa: E402
from understudy.run import Run  # noqa: E402
from understudy.settings import parse  # noqa: E402
from understudy.train import preferences, train, with_advantages  # noqa: E402
from understudy.train.lessons import lesson  # noqa: E402
from understudy.trajectory import Trajectory, read_trajectories  # noqa: E402

LEARNING = (
    "domain=test_train:WATTS",
    "sampling.max_tokens=8",
    "save_every=0",
    "eval.trials=20",
    "eval.tasks=6",
    "sft.steps=4",
    "sft.batch_size=4",
    "sft.demonstrations=8",
    "sft.learning_rate=1e-2",
    "algorithm.tasks_per_step=4",
    "algorithm.group_size=16",
    "algorithm.refill=0",
)
RIGHT, WRONG = "71 W", ("17 W", "7 W", "no", "711 W")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


def asked() -> tuple[Message, ...]:
    """What the agent is shown before its answer."""
    domain = WATTS.slice(Slice(policy="brief", tools=("switch_lamp",)))
    task = next(domain.stream("train"))
    return asyncio.run(domain.environment(task).start()).messages


def said(text: str) -> tuple[Message, ...]:
    return (*asked(), Message(role="assistant", content=text))


def written(folder: Path, records: Sequence[Record]) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(record.model_dump_json(exclude_defaults=True) + "\n" for record in records))
    return f"preferences.file={path}"


def shown() -> Sequence[ToolSpec]:
    """The tools that the agent is shown."""
    return WATTS.slice(Slice(tools=("switch_lamp",))).specs


def pairs() -> list[Preference]:
    return [Preference(chosen=said(RIGHT), rejected=said(wrong), tools=shown()) for wrong in WRONG]


def judged() -> list[Judged]:
    answers = [answer for wrong in WRONG for answer in (RIGHT, wrong)]
    return [Judged(messages=said(answer), tools=shown(), wanted=answer == RIGHT) for answer in answers]


def success(folder: Path, model: Path, *settings: str) -> dict[str, float]:
    """How often the model succeeds, by its row of the result table."""
    run = Run.create(folder, parse(TrainConfig, "", [f"model={model}", *SMALL, *LEARNING, *settings]))
    return {name: row.success.mean for name, row in train(run.config, run, silent)["evaluations"]}


# ---- each of them learns ----


@pytest.fixture(scope="module")
def warm(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that ends where its warm start did, and the episodes that it then played."""
    folder = tmp_path_factory.mktemp("warm") / "run"
    return run_of(folder, tiny, *LEARNING, "steps=1", "algorithm.tasks_per_step=16", "algorithm.learning_rate=1e-9")


def sampled(run: Run) -> tuple[list[Trajectory], list[Trajectory]]:
    """Its episodes that succeeded, and those that did not and can be written."""
    (path,) = (run.folder / "trajectories").iterdir()
    played, _ = read_trajectories(path)
    right = [episode for episode in played if episode.reward >= 1.0]
    wrong = [episode for episode in played if episode.reward < 1.0 and not episode.messages[2].tool_calls]
    assert len(right) > 20 < len(wrong)
    return right, wrong


def test_pairs_of_its_own_episodes_are_enough(warm: Run, tmp_path: Path) -> None:
    right, wrong = sampled(warm)
    rows = [
        Preference(chosen=better.messages[:3], rejected=worse.messages[:3], tools=shown())
        for better, worse in zip(itertools.cycle(right), wrong, strict=False)
    ]
    learn_from(warm, tmp_path, rows, "preferences.kind=dpo", "preferences.learning_rate=3e-3")


def test_its_own_episodes_that_are_wanted_or_not_are_enough(warm: Run, tmp_path: Path) -> None:
    right, wrong = sampled(warm)
    rows = [Judged(messages=e.messages[:3], tools=shown(), wanted=e.reward >= 1.0) for e in (*right, *wrong)]
    learn_from(warm, tmp_path, rows, "preferences.kind=kto", "preferences.beta=0.05", "preferences.learning_rate=5e-3")


def learn_from(warm: Run, folder: Path, rows: Sequence[Record], *settings: str) -> None:
    """Learn from the rows alone, and see that it was enough."""
    how = ("sft.steps=0", "steps=0", "preferences.steps=40", "preferences.batch_size=32")
    rates = success(folder / "run", warm.folder / "model", written(folder, rows), *how, *settings)
    assert list(rates) == ["do nothing", "gold", "base model", "preferences"]
    assert 0.2 < rates["base model"] < 0.7
    assert rates["preferences"] > 0.9
    lines = metrics(Run.resume(folder / "run"))
    assert lines[0]["train/wanted_margin"] == lines[0]["train/unwanted_margin"] == 0.0, (
        "it is compared with where it started"
    )
    assert lines[-1]["train/wanted_margin"] - lines[-1]["train/unwanted_margin"] > 5.0


def test_a_teacher_is_enough_without_any_reward(tiny: Path, tmp_path: Path) -> None:
    taught = run_of(tmp_path / "teacher", tiny, *LEARNING, "sft.steps=30", "steps=0")
    teacher = taught.folder / "model"
    how = ("algorithm.advantage=none", "algorithm.kl_coefficient=1", "steps=16", "algorithm.learning_rate=2e-3")
    where = ("algorithm.reference.kind=model", f"algorithm.reference.model={teacher}")
    rates = success(tmp_path / "run", tiny, *how, *where)
    assert 0.2 < rates["warm start"] < 0.7
    assert rates["trained"] > 0.9
    apart = [line["train/reference_kl"] for line in metrics(Run.resume(tmp_path / "run"))[4:]]
    assert apart[-1] < apart[0] / 2, "and it comes nearer to the teacher"


# ---- the same way each time ----

SHORT = ("sft.steps=1", "preferences.steps=3", "preferences.batch_size=3", "steps=1", "preferences.learning_rate=1e-3")


@pytest.mark.parametrize(("kind", "rows", "finetune"), [("dpo", pairs, "lora"), ("kto", judged, "full")])
@pytest.mark.parametrize("at", [("train", 2), ("train", 4)])
def test_a_run_that_was_interrupted_in_its_preferences_ends_as_one_that_was_not(
    tiny: Path, tmp_path: Path, kind: str, rows: Callable[[], list[Record]], finetune: str, at: tuple[str, int]
) -> None:
    """After the second of five steps, and after the last of preferences; a KL penalty takes another reference then."""
    settings = (written(tmp_path, rows()), f"preferences.kind={kind}", f"engine.finetune={finetune}", *SHORT)
    settings += ("domain=test_train:WATTS", "save_every=0", "algorithm.kl_coefficient=0.1", "algorithm.advantage=none")
    whole = run_of(tmp_path / "whole", tiny, *settings)
    with pytest.raises(KeyboardInterrupt, match=f"stopped after step {at[1]};"):
        run_of(tmp_path / "parts", tiny, *settings, report=Stopper(*at))
    resumed = Run.resume(tmp_path / "parts")
    if at[1] < 4:
        path = tmp_path / "rows.jsonl"
        text = path.read_text()
        path.write_text(text + text.splitlines()[0] + "\n")
        with pytest.raises(ConfigError, match=r"rows\.jsonl has changed since .*parts was begun with it"):
            train(resumed.config, resumed, silent)
        path.write_text(text)
    train(resumed.config, resumed, silent)
    assert metrics(resumed) == metrics(whole)
    assert [line["step"] for line in metrics(whole)] == [1, 2, 3, 4, 5]
    assert same(saved(resumed), saved(whole))
    assert trajectories(resumed) == trajectories(whole)
    names = ["000000 base model.json", "000001 warm start.json", "000004 preferences.json", "000005 trained.json"]
    assert sorted(evaluations(whole)) == names
    assert evaluations(resumed) == evaluations(whole)


def test_a_teacher_and_an_average_come_back_on_resuming(tiny: Path, tmp_path: Path) -> None:
    teacher = make_tiny(tmp_path / "teacher", seed=7, hidden=32)
    for name, how in (
        ("model", (f"algorithm.reference.model={teacher}",)),
        ("ema", ("algorithm.reference.every=1", "algorithm.reference.decay=0.9")),
    ):
        settings = (
            f"algorithm.reference.kind={name}",
            *how,
            "algorithm.kl_coefficient=0.5",
            "algorithm.advantage=none",
        )
        settings += ("domain=test_train:WATTS", "sft.steps=1", "steps=3", "save_every=0")
        whole = run_of(tmp_path / f"{name}-whole", tiny, *settings)
        with pytest.raises(KeyboardInterrupt):
            run_of(tmp_path / f"{name}-parts", tiny, *settings, report=Stopper("train", 3))
        resumed = Run.resume(tmp_path / f"{name}-parts")
        train(resumed.config, resumed, silent)
        assert metrics(resumed) == metrics(whole)
        assert same(saved(resumed), saved(whole))


# ---- what a step learns from ----


def test_what_is_learned_from_depends_on_the_advantage() -> None:
    equal, unequal, lost = episodes(1.0, 1.0), episodes(0.0, 1.0, 0.5), episodes(0.0, None, 0.0)
    assert [len(lesson(group, "group")) for group in (equal, unequal, lost)] == [0, 3, 0]
    assert [len(lesson(group, "success")) for group in (equal, unequal, lost)] == [2, 1, 0]
    assert [len(lesson(group, "none")) for group in (equal, unequal, lost)] == [2, 3, 2]


def test_advantages_of_successes_and_of_a_teacher_by_hand(tiny: Path) -> None:
    batch = collate(episodes(0.0, 1.0, 0.5), [0, 0, 0])
    imitating = parse(TrainConfig, "", [f"model={tiny}", "algorithm.advantage=success"])
    weighed = with_advantages(batch, imitating).advantages
    assert weighed is not None
    assert weighed[:, 1].tolist() == [0.0, 1.0, 0.0]
    taught = parse(TrainConfig, "", [f"model={tiny}", "algorithm.advantage=none", "algorithm.kl_coefficient=1"])
    teacher = batch.logprobs + torch.tensor([[0.5], [-2.0], [0.0]])
    weighed = with_advantages(batch.with_(ref_logprobs=teacher), taught).advantages
    assert weighed is not None
    assert weighed[:, 1].tolist() == [0.5, -2.0, 0.0], "what the teacher finds likelier is worth more"
    assert not weighed[~batch.mask].any()


def test_a_mismatched_conversation_is_the_next_ones_replies_after_the_own_prompt() -> None:
    one, other = episodes(1.0, 0.0)
    one.tokens[0], other.tokens[0] = 8, 9
    spliced, last = preferences._mismatched([one, other], 9)
    assert (spliced.tokens, spliced.mask) == ([8, 2, 2, 2], [False, True, True, True])
    assert (last.tokens, last.mask) == ([9, 2, 2], [False, True, True])
    cut, last = preferences._mismatched([one, other], 3)
    assert (cut.tokens, cut.mask, len(cut.logprobs)) == ([8, 2, 2], [False, True, True], 3)
    assert last.tokens == [9, 2, 2]


# ---- what is refused ----


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (("algorithm.advantage=none",), "algorithm.advantage = 'none': no episode is worth more than another"),
        (("algorithm.reference.kind=ema",), "'ema': nothing is compared with it while algorithm.kl_coefficient is 0"),
        (("preferences.steps=1",), "preferences.file is empty"),
        (
            ("preferences.file=x.jsonl",),
            "nothing is learned from it while preferences.steps is 0; set both, or neither",
        ),
        (("preferences.steps=1", "preferences.file=none.jsonl"), "there is no file none.jsonl"),
        (
            ("preferences.steps=1", "preferences.kind=kto", "preferences.batch_size=1", "preferences.file=x"),
            "at least 2",
        ),
    ],
)
def test_what_does_nothing_is_refused_in_one_line(
    tiny: Path, tmp_path: Path, settings: tuple[str, ...], why: str
) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        run_of(tmp_path / "run", tiny, *settings)
    assert "\n" not in str(caught.value)


def test_a_teacher_with_another_vocabulary_is_refused_before_the_run(tiny: Path, tmp_path: Path) -> None:
    teacher = make_tiny(tmp_path / "teacher")
    path = teacher / "tokenizer.json"
    path.write_text(path.read_text(encoding="utf-8").replace("<|im_end|>", "<|over|>"), encoding="utf-8")
    settings = ("algorithm.kl_coefficient=1", "algorithm.reference.kind=model", f"algorithm.reference.model={teacher}")
    with pytest.raises(ConfigError, match=r"has another vocabulary: token \d+ is '<\|im_end\|>' in") as caught:
        run_of(tmp_path / "run", tiny, *settings)
    assert "\n" not in str(caught.value)


def test_rows_that_cannot_be_learned_from_are_named(tiny: Path, tmp_path: Path) -> None:
    broken = Message(role="assistant", tool_calls=(ToolCall(name="switch_lamp", malformed="not JSON"),))
    rows = (pairs()[0], Preference(chosen=said(RIGHT), rejected=(*asked(), broken)))
    settings = ("preferences.steps=1", written(tmp_path, rows))
    with pytest.raises(ConfigError, match=r"rows\.jsonl:2: .*a call that could not be read \(not JSON\)"):
        run_of(tmp_path / "broken", tiny, *settings)
    with pytest.raises(
        ConfigError, match=r"rows\.jsonl:1: a conversation of \d+ tokens, where limits.max_tokens is 50"
    ):
        run_of(tmp_path / "long", tiny, *settings, "limits.max_tokens=50")
    with pytest.raises(TaskError, match=r"rows\.jsonl:1: messages: Field required"):
        run_of(tmp_path / "kind", tiny, *settings, "preferences.kind=kto")
    with pytest.raises(ConfigError, match="holds no rows"):
        run_of(tmp_path / "empty", tiny, "preferences.steps=1", written(tmp_path, ()))
