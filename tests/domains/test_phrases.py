"""Tests of the sampling of task wording: it does not affect content, and the test split has its own phrases."""

import random
import tomllib
from pathlib import Path

import pytest

from understudy import domains, load
from understudy.core.tasks import Split, Task
from understudy.domains.authoring.phrases import PhraseSampler
from understudy.domains.authoring.task_builder import TaskBuilder
from understudy.envs.domain import Domain
from understudy.sources.references import list_domains

DOMAINS = Path(domains.__file__).parent
PHRASES = tuple(f"phrase {i}" for i in range(7))


def draw_phrases(split: Split, texts: tuple[str, ...] = PHRASES) -> set[str]:
    return {PhraseSampler(f"task/{i}", split).choose(texts) for i in range(200)}


def test_every_third_phrase_occurs_in_the_test_split_only() -> None:
    assert draw_phrases("test") == {"phrase 2", "phrase 5"}
    assert draw_phrases("train") == draw_phrases("validation") == set(PHRASES) - draw_phrases("test")
    assert draw_phrases("test", PHRASES[:3]) == {"phrase 2"}


def test_every_split_uses_all_phrases_when_fewer_than_three() -> None:
    for split in ("train", "validation", "test"):
        assert draw_phrases(split, PHRASES[:2]) == set(PHRASES[:2])
        assert draw_phrases(split, PHRASES[:1]) == set(PHRASES[:1])


@pytest.mark.parametrize("name", list_domains())
def test_each_list_of_phrases_is_used_and_hides_none_that_all_domains_share(name: str) -> None:
    own = tomllib.loads((DOMAINS / name / "phrases.toml").read_text())
    shared = tomllib.loads((DOMAINS / "authoring" / "phrases.toml").read_text())
    assert own.keys().isdisjoint(shared)
    code = "".join(path.read_text() for folder in (name, "authoring") for path in (DOMAINS / folder).rglob("*.py"))
    assert [key for key in own if f'"{key}"' not in code and f"'{key}'" not in code and f"{key}.{{" not in code] == []


def test_wording_depends_only_on_task_id() -> None:
    first, second = (PhraseSampler("retail/train/cancel/easy/0-0", "train") for _ in range(2))
    assert [first.choose(PHRASES) for _ in range(20)] == [second.choose(PHRASES) for _ in range(20)]


def task_content(task: Task) -> tuple[object, ...]:
    """Return setup, gold calls and outputs of a task. The summary of a transfer is left out: it repeats the wording."""
    calls = [call for message in task.gold for call in message.tool_calls]
    return task.setup, [(call.name, {**call.arguments, "summary": ""}) for call in calls], task.outputs


@pytest.mark.parametrize("name", ["airline", "retail", "telecom", "healthcare", "doordash"])
def test_wording_does_not_change_task_content(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    domain = load(name)
    assert isinstance(domain, Domain)
    assert domain.make_task
    ids = [task.id for task in domain.tasks("test")]

    def make_tasks() -> list[Task]:
        assert domain.make_task
        parts = (task_id.split("/") for task_id in random.Random(0).sample(ids, 25))
        return [
            domain.make_task("test", int(last.split("-")[0]), family, level, int(last.split("-")[1]))  # type: ignore[arg-type]
            for _, _, family, level, last in parts
        ]

    before = make_tasks()
    monkeypatch.setattr(TaskBuilder, "phrase", _fill_longest_phrase)
    after = make_tasks()
    assert [task_content(task) for task in after] == [task_content(task) for task in before]
    assert [task.scenario.opening for task in after] != [task.scenario.opening for task in before]


def _fill_longest_phrase(builder: TaskBuilder, list_name: str, /, **words: str) -> str:
    builder.phrases.rng.random()
    text = max(builder.phrases.texts[list_name], key=len)
    for name, word in words.items():
        text = text.replace(f"{{{name}}}", word)
    return text
