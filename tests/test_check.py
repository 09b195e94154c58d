"""Check finds what is planted, and names the task."""

import dataclasses
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import toy
from understudy.check import Report, check
from understudy.domains.base import Domain, Slice
from understudy.domains.retail import DOMAIN
from understudy.domains.retail.tasks import make
from understudy.errors import TaskError
from understudy.messages import Message, ToolCall
from understudy.tasks import Deed, Split, Task


@dataclass(frozen=True)
class Planted(Domain):
    """Retail with given tasks."""

    given: Mapping[Split, list[Task]] = field(default_factory=dict)

    def tasks(self, split: Split) -> list[Task]:
        return self.given.get(split, [])


def planted(*tasks: Task, part: Slice | None = None, **others: list[Task]) -> Report:
    given = {"train": list(tasks), **others}
    fields = {name: getattr(DOMAIN, name) for name in ("package", "world", "toolkit", "generate", "families", "shared")}
    return check(Planted(**fields, part=part or DOMAIN.part, given=given))  # type: ignore[arg-type]


TASK = next(t for t in (make("train", 0, "cancel", "easy", n) for n in range(20)) if not t.outputs)
REFUSED = next(t for t in (make("train", 0, "cancel", "easy", n) for n in range(20)) if t.outputs)
CALL = next(m for m in TASK.gold if m.tool_calls and m.tool_calls[0].name == "cancel_order")


def without(task: Task, *left_out: Message) -> Task:
    return task.replace(gold=tuple(m for m in task.gold if m not in left_out))


def test_a_sound_task_has_no_problems() -> None:
    report = planted(TASK, REFUSED)
    assert report.problems == ()
    (train, *others) = report.splits
    assert (train.tasks, train.families, train.floor, train.oracle) == (2, {"cancel": 2}, 0.0, 1.0)
    assert train.gold_turns == (len(TASK.gold) + len(REFUSED.gold)) / 2
    assert [split.tasks for split in others] == [0, 0]
    assert "get_product" in report.unused_tools
    assert "cancel_order" not in report.unused_tools


def test_gold_that_a_tool_refuses() -> None:
    broken = TASK.replace(gold=(CALL, *TASK.gold))
    (problem,) = planted(broken).problems
    assert problem.startswith(f"task {TASK.id}: the gold call cancel_order(")
    assert "is refused: find the customer first" in problem


def test_gold_that_is_not_confirmed() -> None:
    proposal = TASK.gold[TASK.gold.index(CALL) - 1]
    (problem,) = planted(without(TASK, proposal)).problems
    assert problem == f"task {TASK.id}: its gold turns earn 0 instead of 1.0; failed: state, policy, turns"


def test_gold_that_does_not_tell() -> None:
    (problem,) = planted(REFUSED.replace(outputs=("pink",))).problems
    assert problem == f"task {REFUSED.id}: its gold turns earn 0 instead of 1.0; failed: said"


def test_doing_nothing_that_is_rewarded() -> None:
    nothing = TASK.replace(gold=(Message(role="assistant", content="I cannot do that."),))
    (problem,) = planted(nothing).problems
    assert problem == f"task {TASK.id}: doing nothing earns 1"


def test_a_setup_that_does_not_fit() -> None:
    (problem,) = planted(TASK.replace(setup={"order": {}})).problems
    assert problem.startswith(
        f"task {TASK.id}: its setup does not fit: there is no table 'order'; did you mean 'orders'"
    )


def test_gold_outside_the_slice() -> None:
    problems = planted(TASK, part=Slice(tools=("find_user", "get_order"))).problems
    assert f"task {TASK.id}: its gold calls cancel_order, which is not among the tools shown" in problems


def test_duplicates() -> None:
    assert f"task {TASK.id}: the id is also that of a task in train" in planted(TASK, TASK).problems
    twin = TASK.replace(id="twin", scenario=TASK.scenario.replace(persona="chatty"))
    assert planted(TASK, twin).problems == (f"task twin: it is nearly the same as {TASK.id}",)
    reworded = twin.replace(scenario=twin.scenario.replace(opening="Quite other words.", facts=(), wishes=()))
    assert f"task twin: it is nearly the same as {TASK.id}" in planted(TASK, reworded).problems, "by its calls"
    elsewhere = planted(TASK, test=[twin.replace(split="test")]).problems
    assert f"task twin: it is nearly the same as {TASK.id}" in elsewhere


@pytest.mark.parametrize("kind", ["scenario", "orders", "users"])
def test_leaks_between_splits(kind: str) -> None:
    leaked = TASK.replace(id="leak", split="test")
    if kind != "scenario":
        leaked = leaked.replace(scenario=TASK.scenario.replace(opening="Hi."))
    problems = planted(TASK, test=[leaked]).problems
    assert any(p.startswith("task leak: it shares ") and kind in p for p in problems)
    assert (kind == "scenario") == any("its scenario" in p for p in problems)


def test_the_catalogue_is_shared() -> None:
    first, second = (make("train", 0, "stock", "easy", 0), make("test", 0, "stock", "easy", 0))
    product = first.gold[-2].tool_calls
    again = second.replace(gold=(*second.gold[:-2], second.gold[-2].replace(tool_calls=product), second.gold[-1]))
    assert not any("shares" in problem for problem in planted(first, test=[again]).problems)


def test_tasks_in_the_wrong_place() -> None:
    wrong = TASK.replace(family="gossip", split="test")
    assert planted(wrong).problems == (
        f"task {TASK.id}: it is in retail/train but says retail/test",
        f"task {TASK.id}: the domain has no family 'gossip'",
    )


def test_words_that_would_be_taken_for_a_yes() -> None:
    opening = f"Sure. {TASK.scenario.opening}"
    (problem,) = planted(TASK.replace(scenario=TASK.scenario.replace(opening=opening))).problems
    assert problem == f"task {TASK.id}: the user's words {opening!r} would be taken for a yes"


def test_deeds_that_nobody_can_do_and_whose_words_are_a_yes() -> None:
    deed = Deed(call=ToolCall(name="fly"), names=("fly",), says="Sure, I fly.")
    assert planted(TASK.replace(scenario=TASK.scenario.replace(deeds=(deed,)))).problems == (
        f"task {TASK.id}: the user's words 'Sure, I fly.' would be taken for a yes",
        f"task {TASK.id}: its user has deeds to do, but retail has no tools for users",
    )


def test_an_unknown_tool_is_no_crash() -> None:
    gold = (Message(role="assistant", tool_calls=(ToolCall(name="fly"),)), *TASK.gold)
    problems = planted(TASK.replace(gold=gold)).problems
    assert f"task {TASK.id}: its gold calls fly, which is not among the tools shown" in problems


def test_check_needs_no_torch() -> None:
    code = "import sys, understudy.check, understudy.domains.retail; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("part", ["policy.md", "policy_brief.md", "tasks/test.jsonl"])
def test_a_folder_that_lacks_a_part(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.domains.base.resources.files", lambda package: tmp_path / "toy")
    shutil.copytree(Path(toy.__file__).parent, tmp_path / "toy")
    (tmp_path / "toy" / part).unlink()
    with pytest.raises(TaskError, match=re.escape(part)):
        check(dataclasses.replace(toy.DOMAIN))
