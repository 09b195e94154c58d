"""Tests of TaskSource: what a subclass of only the required members has, and how a source that lacks one is refused."""

import importlib
import itertools
import re
import sys
from pathlib import Path

import pytest

from support.shelves import SHELVES
from understudy.core.errors import ConfigError
from understudy.core.tasks import Scenario, Split, Task
from understudy.data.checks.check import check
from understudy.envs.environment import Environment
from understudy.envs.rewards import SHOWN_ONLY
from understudy.envs.task_source import (
    FULL_SLICE,
    REQUIRED_MEMBERS,
    PolicyRewardConfig,
    Slice,
    TaskSource,
    find_missing_facts,
    find_policy,
    find_source,
    find_task,
    list_sources,
    with_reward_policy,
)
from understudy.envs.users import ScriptedUser, User
from understudy.sources.loading import load_source
from understudy.sources.mixture import Mixture


class Quiz(TaskSource):
    """A source with no more than the required members."""

    name = "quiz"
    tool_specs = ()
    domain_policy = "Answer."

    def tasks(self, split: Split) -> list[Task]:
        tasks = (make_task(f"quiz/{number}", family) for number, family in enumerate(("sums", "sums", "words")))
        return [task for task in tasks if task.split == split]

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> Environment:
        raise NotImplementedError


QUIZ = Quiz()


def make_task(id: str, family: str) -> Task:
    return Task(
        id=id,
        domain="quiz",
        family=family,
        scenario=Scenario(instructions="1 + 1?", opening="1 + 1?"),
        gold=(),
        outputs=("2",),
    )


def test_a_source_of_five_members_has_neutral_defaults() -> None:
    (task, *_) = QUIZ.tasks("train")
    assert QUIZ.families == ("sums", "words")
    assert [task.id for task in itertools.islice(QUIZ.stream("train", seed=1), 6)] == [
        task.id for task in itertools.islice(QUIZ.stream("train", seed=1), 6)
    ]
    assert {task.id for task in itertools.islice(QUIZ.stream("train"), 3)} == {"quiz/0", "quiz/1", "quiz/2"}
    assert list(QUIZ.stream("test")) == []
    assert (QUIZ.split_row_keys(task), QUIZ.find_changed_rows(), QUIZ.gold_writes(task)) == ((), (), ())
    assert not QUIZ.has_brief_policy
    assert not QUIZ.reports_writes
    assert QUIZ.fact_rules(task) is SHOWN_ONLY
    assert find_missing_facts(QUIZ, task, ()) == ["2"]
    assert find_task(QUIZ, "quiz/1") == QUIZ.tasks("train")[1]
    assert find_task(QUIZ, "quiz/9") is None
    assert find_policy(QUIZ, task) == "Answer."
    assert with_reward_policy(QUIZ, PolicyRewardConfig(policy="off")) is QUIZ
    assert list_sources(QUIZ) == (QUIZ,)
    assert find_source(QUIZ, "quiz") is QUIZ


def test_a_source_without_slices_and_users_of_its_own_refuses_them() -> None:
    assert QUIZ.slice(FULL_SLICE) is QUIZ
    with pytest.raises(ConfigError, match=r"quiz\b.*\bslice\b"):
        QUIZ.slice(Slice(families=("sums",)))
    with pytest.raises(ConfigError, match=r"quiz\b.*\bwith_users\b"):
        QUIZ.with_users(ScriptedUser)


def test_a_source_of_five_members_is_part_of_a_mixture() -> None:
    mixture = Mixture((QUIZ, SHELVES), (1.0, 1.0))
    assert {task.domain for task in mixture.tasks("train")} == {"quiz", SHELVES.name}
    narrow = mixture.slice(Slice(families=(f"{SHELVES.name}/{SHELVES.families[0]}",)))
    assert find_source(narrow, "quiz") is QUIZ


def test_a_dataclass_may_have_required_members_as_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
    from dataclasses import dataclass
    from understudy.envs.task_source import TaskSource

    @dataclass
    class Rows(TaskSource):
        name: str
        domain_policy: str
        tool_specs: tuple

        def tasks(self, split):
            return []

        def environment(self, task, user=None, seed=0):
            raise NotImplementedError

    SOURCE = Rows("rows", "Answer.", ())
    """
    write_module(tmp_path, monkeypatch, "rows_source", text)
    source = load_source("rows_source:SOURCE")
    assert (source.name, source.domain_policy, source.tool_specs) == ("rows", "Answer.", ())


def test_a_source_that_lacks_members_is_refused_with_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
    from understudy.envs.task_source import TaskSource

    class Half(TaskSource):
        name = "half"

        def tasks(self, split):
            return []

    class Lookalike:
        name = "lookalike"

    class Uncalled(Half):
        domain_policy = "Answer."
        environment = tasks = Half.tasks

        def tool_specs(self):
            return ()

    HALF, LOOKALIKE, UNCALLED = Half(), Lookalike(), Uncalled()
    """
    write_module(tmp_path, monkeypatch, "half_source", text)
    with pytest.raises(
        ConfigError,
        match=r"'half_source:HALF': Half \(half_source.py:\d+\) .*\bdomain_policy, environment, tool_specs$",
    ):
        load_source("half_source:HALF")
    with pytest.raises(
        ConfigError, match=r"'half_source:UNCALLED': tool_specs\b.*\bUncalled \(half_source.py:\d+\) is a method\b"
    ):
        load_source("half_source:UNCALLED")
    with pytest.raises(ConfigError, match=r"'half_source:LOOKALIKE'.*\bLookalike\b.*\bTaskSource\b"):
        load_source("half_source:LOOKALIKE")
    assert {*REQUIRED_MEMBERS} == {"name", "tool_specs", "domain_policy", "tasks", "environment"}


@pytest.mark.parametrize(
    ("member", "error"),
    [
        ("name = None", r"name\b.* None\b.*\btext"),
        ("domain_policy = ['Answer.']", r"domain_policy\b.*\['Answer.'\].*\btext"),
        ("tool_specs = [{'name': 'add'}]", r"tool_specs\b.*'add'.*\blist of ToolSpec"),
        (
            "async def environment(self, task, user=None, seed=0): pass",
            r"environment\b.*\bcoroutine\b.*\bwithout async",
        ),
        ("def tasks(self, split): yield", r"tasks\b.*\bgenerator\b.*\blist\(\.\.\.\)"),
        ("def tasks(self, split): return map(str, ())", r"tasks\b.*\bmap\b.*\blist\(\.\.\.\)"),
        ("async def tasks(self, split): return []", r"tasks\b.*\bcoroutine\b.*\bwithout async"),
        ("def tasks(self, split): pass", r"tasks\b.* None\b.*\blist of Task"),
        ("def tasks(self, split): return [{'id': 1}]", r"tasks\b.*\{'id': 1\}.*\blist of Task"),
    ],
)
def test_a_member_of_the_wrong_type_is_refused_with_its_class_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, member: str, error: str
) -> None:
    text = f"""
    from understudy.envs.task_source import TaskSource

    class Wrong(TaskSource):
        name, tool_specs, domain_policy = "wrong", (), "Answer."
        def tasks(self, split): return []
        def environment(self, task, user=None, seed=0): pass
        {member}

    SOURCE = Wrong()
    """
    write_module(tmp_path, monkeypatch, "wrong_source", text)
    monkeypatch.delitem(sys.modules, "wrong_source", raising=False)
    with pytest.raises(ConfigError, match=error) as raised:
        load_source("wrong_source:SOURCE")
    assert "of Wrong (wrong_source.py:4) " in str(raised.value)
    with pytest.raises(ConfigError, match=error):
        check(importlib.import_module("wrong_source").SOURCE)


def test_a_class_instead_of_a_source_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"\bQuiz \(test_task_source.py:\d+\) is a class\b.* Quiz\(\.\.\.\)"):
        check(Quiz)  # type: ignore[arg-type]


def write_module(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(re.sub(r"^    ", "", text, flags=re.MULTILINE), encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
