"""What is learned beyond the plain policy gradient: each way of it teaches a random model its one answer, the same way
each time, and what cannot be learned from is refused before anything is trained."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import test_train as kit  # noqa: E402
from test_train import SMALL, WATTS, evaluations, metrics, run_of, same, saved, silent, trajectories  # noqa: E402
from understudy.config import TrainConfig, parse  # noqa: E402
from understudy.data.preferences import Judged, Preference  # noqa: E402
from understudy.domains.base import Slice  # noqa: E402
from understudy.errors import ConfigError, TaskError  # noqa: E402
from understudy.messages import Message, ToolCall  # noqa: E402
from understudy.models import make_tiny  # noqa: E402
from understudy.records import Record  # noqa: E402
from understudy.run import Run  # noqa: E402
from understudy.train import train  # noqa: E402

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
RIGHT, WRONG = "71 W", ("17 W", "7 W", "71", "no", "711 W", "W", "77 W", "1 W")


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


def pairs() -> list[Preference]:
    specs = WATTS.slice(Slice(tools=("switch_lamp",))).specs
    return [Preference(chosen=said(RIGHT), rejected=said(wrong), tools=specs) for wrong in WRONG]


def judged() -> list[Judged]:
    specs = WATTS.slice(Slice(tools=("switch_lamp",))).specs
    answers = [answer for wrong in WRONG for answer in (RIGHT, wrong)]
    return [Judged(messages=said(answer), tools=specs, wanted=answer == RIGHT) for answer in answers]


def success(folder: Path, model: Path, *settings: str) -> dict[str, float]:
    """How often the model succeeds, by its row of the result table."""
    run = Run.create(folder, parse(TrainConfig, "", [f"model={model}", *SMALL, *LEARNING, *settings]))
    return {name: row.success.mean for name, row in train(run.config, run, silent)}


# ---- each of them learns ----


def test_imitating_its_own_successes_is_enough(tiny: Path, tmp_path: Path) -> None:
    how = ("algorithm.advantage=success", "algorithm.loss.kind=nll", "steps=12", "algorithm.learning_rate=3e-3")
    rates = success(tmp_path / "run", tiny, *how)
    assert 0.2 < rates["warm start"] < 0.7
    assert rates["trained"] > 0.9


@pytest.mark.parametrize(("kind", "rows"), [("dpo", pairs), ("kto", judged)])
def test_preferences_out_of_a_file_are_enough(
    tiny: Path, tmp_path: Path, kind: str, rows: Callable[[], list[Record]]
) -> None:
    how = ("steps=0", f"preferences.kind={kind}", "preferences.steps=12", "preferences.learning_rate=3e-3")
    rates = success(tmp_path / "run", tiny, written(tmp_path, rows()), *how)
    assert list(rates) == ["do nothing", "gold", "base model", "warm start", "preferences"]
    assert 0.2 < rates["warm start"] < 0.7
    assert rates["preferences"] > 0.9
    lines = metrics(Run.resume(tmp_path / "run"))[4:]
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert lines[-1]["wanted_margin"] > lines[-1]["unwanted_margin"]


def test_a_teacher_is_enough_without_any_reward(tiny: Path, tmp_path: Path) -> None:
    taught = run_of(tmp_path / "teacher", tiny, *LEARNING, "sft.steps=30", "steps=0")
    teacher = taught.folder / "model"
    how = ("algorithm.advantage=none", "algorithm.kl_coefficient=1", "steps=16", "algorithm.learning_rate=2e-3")
    where = ("algorithm.reference.kind=model", f"algorithm.reference.model={teacher}")
    rates = success(tmp_path / "run", tiny, *how, *where)
    assert 0.2 < rates["warm start"] < 0.7
    assert rates["trained"] > 0.9
