"""Test that `check` finds each kind of problem in a domain's tasks and names the task."""

import asyncio
import dataclasses
import itertools
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import toy
from understudy.core.errors import TaskError
from understudy.core.messages import Message, ToolCall
from understudy.core.records import Record
from understudy.core.tasks import Scenario, Score, Split, Task, UserAction
from understudy.data.checks.check import DomainReport, check, check_async
from understudy.data.checks.probe import CHECK_STEP_SECONDS, check_limits
from understudy.domains.retail import DOMAIN, GENERATOR
from understudy.envs.domain import Domain
from understudy.envs.grading import GradeEpisode
from understudy.envs.state import State, Table
from understudy.envs.task_source import Slice
from understudy.envs.tools import Toolkit
from understudy.sources.tool_dataset import ToolDataset, ToolEpisode, ToolExample


@dataclass(frozen=True)
class FixedTasksDomain(Domain):
    """The retail domain with a given list of tasks for each split."""

    tasks_by_split: Mapping[Split, list[Task]] = field(default_factory=dict)

    def tasks(self, split: Split) -> list[Task]:
        return self.tasks_by_split.get(split, [])


def check_tasks(*tasks: Task, part: Slice | None = None, **others: list[Task]) -> DomainReport:
    tasks_by_split = {"train": list(tasks), **others}
    fields = {
        name: getattr(DOMAIN, name)
        for name in ("module_name", "build_world", "toolkit", "generate", "families", "shared_tables")
    }
    return check(FixedTasksDomain(**fields, task_slice=part or DOMAIN.task_slice, tasks_by_split=tasks_by_split))  # type: ignore[arg-type]


TASK = next(t for t in (GENERATOR.make_task("train", 0, "cancel", "easy", n) for n in range(20)) if not t.outputs)
REFUSED = next(t for t in (GENERATOR.make_task("train", 0, "cancel", "easy", n) for n in range(20)) if t.outputs)
CALL = next(m for m in TASK.gold if m.tool_calls and m.tool_calls[0].name == "cancel_order")


def remove_gold(task: Task, *left_out: Message) -> Task:
    return task.replace(gold=tuple(m for m in task.gold if m not in left_out))


def test_valid_tasks_have_no_problems() -> None:
    report = check_tasks(TASK, REFUSED)
    assert report.problems == ()
    (train, *others) = report.splits
    assert (train.tasks, train.families, train.noop_reward, train.gold_reward) == (2, {"cancel": 2}, 0.0, 1.0)
    assert train.gold_turns == (len(TASK.gold) + len(REFUSED.gold)) / 2
    assert [split.tasks for split in others] == [0, 0]
    assert "get_product" in report.unused_tools
    assert "cancel_order" not in report.unused_tools


def test_domain_without_tools_is_a_warning() -> None:
    class NoTools(Toolkit):
        """A toolkit without tools."""

    silent = FixedTasksDomain(toy.__name__, toy.build_house, NoTools, toy.generate, ("one", "two"))
    assert any("no tools" in text for text in check(silent).warnings)
    assert not any("no tools" in text for text in check_tasks(TASK).warnings)


def test_gold_call_refused_by_a_tool_is_reported() -> None:
    broken = TASK.replace(gold=(CALL, *TASK.gold))
    (problem,) = check_tasks(broken).problems
    assert problem.startswith(f"task {TASK.id}: ")
    assert re.search(r"cancel_order\(.*: find the customer first", problem)


def test_gold_without_user_confirmation_is_reported() -> None:
    proposal = TASK.gold[TASK.gold.index(CALL) - 1]
    (problem,) = check_tasks(remove_gold(TASK, proposal)).problems
    assert re.match(rf"task {TASK.id}: .*\b0\b.*\b1\.0\b.*: state_match, policy_compliance; ", problem)
    assert re.search(r"orders/\S+/status: 'pending', gold 'cancelled'$", problem)


def test_gold_that_omits_a_required_output_is_reported() -> None:
    (problem,) = check_tasks(REFUSED.replace(outputs=("pink",))).problems
    assert re.match(rf"task {REFUSED.id}: .*\b0\b.*\b1\.0\b.*: facts_told; passed: .*; not told: 'pink'$", problem)


def test_reward_for_doing_nothing_is_reported() -> None:
    nothing = TASK.replace(gold=(Message(role="assistant", content="I cannot do that."),))
    (problem,) = check_tasks(nothing).problems
    assert re.match(rf"task {TASK.id}: .*\b1; .*outputs$", problem)


def test_setup_with_an_unknown_table_is_reported() -> None:
    (problem,) = check_tasks(TASK.replace(setup={"order": {}})).problems
    assert re.match(rf"task {TASK.id}: .*'order'.*'orders'", problem)


def test_gold_call_outside_the_slice_is_reported() -> None:
    problems = check_tasks(TASK, part=Slice(tools=("find_user", "get_order"))).problems
    assert any(re.match(rf"task {TASK.id}: .*\bcancel_order\b", problem) for problem in problems)


def test_repeated_ids_are_problems_and_near_duplicates_are_warnings() -> None:
    assert any(re.match(rf"task {TASK.id}: .*\btrain\b", problem) for problem in check_tasks(TASK, TASK).problems)
    twin = TASK.replace(id="twin", scenario=TASK.scenario.replace(persona="chatty"))
    same = re.compile(rf"1 of 2 tasks .* such as twin and {TASK.id}$")
    report = check_tasks(TASK, twin)
    assert report.problems == ()
    assert len([text for text in report.warnings if same.match(text)]) == 1
    reworded = twin.replace(scenario=twin.scenario.replace(opening="Quite other words.", facts=(), goals=()))
    assert any(same.match(text) for text in check_tasks(TASK, reworded).warnings), "by its calls"
    (leak,) = [t for t in check_tasks(TASK, test=[twin.replace(split="test")]).warnings if same.match(t)]
    assert "another split" in leak


@pytest.mark.parametrize("kind", ["scenario", "orders", "users"])
def test_rows_and_scenarios_shared_by_splits_are_reported(kind: str) -> None:
    leaked = TASK.replace(id="leak", split="test")
    if kind != "scenario":
        leaked = leaked.replace(scenario=TASK.scenario.replace(opening="Hi."))
    problems = check_tasks(TASK, test=[leaked]).problems
    assert any(p.startswith("task leak: ") and kind in p for p in problems)
    assert (kind == "scenario") == any("its scenario" in p for p in problems)


def test_shared_tables_are_not_reported_as_a_leak() -> None:
    first, second = (
        GENERATOR.make_task("train", 0, "stock", "easy", 0),
        GENERATOR.make_task("test", 0, "stock", "easy", 0),
    )
    product = first.gold[-2].tool_calls
    again = second.replace(gold=(*second.gold[:-2], second.gold[-2].replace(tool_calls=product), second.gold[-1]))
    assert not any("shares" in problem for problem in check_tasks(first, test=[again]).problems)


def test_wrong_split_and_unknown_family_are_reported() -> None:
    wrong = TASK.replace(family="gossip", split="test")
    place, family = check_tasks(wrong).problems
    assert re.match(rf"task {TASK.id}: .*retail/train\b.*retail/test\b", place)
    assert re.match(rf"task {TASK.id}: .*'gossip'", family)


def test_opening_that_reads_as_consent_is_reported() -> None:
    opening = f"Sure. {TASK.scenario.opening}"
    (problem,) = check_tasks(TASK.replace(scenario=TASK.scenario.replace(opening=opening))).problems
    assert re.match(rf"task {TASK.id}: .*{re.escape(repr(opening))}", problem)


def test_user_action_without_a_tool_or_with_a_consenting_reply_is_reported() -> None:
    action = UserAction(call=ToolCall(name="fly"), required_terms=("fly",), reply_template="Sure, I fly.")
    nobody, words = check_tasks(TASK.replace(scenario=TASK.scenario.replace(user_actions=(action,)))).problems
    assert re.match(rf"task {TASK.id}: .*'Sure, I fly\.'", words)
    assert re.match(rf"task {TASK.id}: .*\bretail\b", nobody)


def test_unknown_tool_in_gold_is_reported() -> None:
    gold = (Message(role="assistant", tool_calls=(ToolCall(name="fly"),)), *TASK.gold)
    problems = check_tasks(TASK.replace(gold=gold)).problems
    assert any(re.match(rf"task {TASK.id}: .*\bfly\b", problem) for problem in problems)


def test_check_does_not_import_torch() -> None:
    code = "import sys, understudy.data.checks.check, understudy.domains.retail; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class Loan(Record):
    books: list[str] = []


class Library(State):
    loans: Table[Loan]


class SharedRowTools(Toolkit):
    """Tools that change a list in a row, which all episodes share."""

    _state: Library

    def lend(self, member: str, book: str) -> str:
        """Lend a book."""
        self._state.loans[member].books.append(book)
        return "lent"


class NewRowTools(Toolkit):
    _state: Library

    def lend(self, member: str, book: str) -> str:
        """Lend a book."""
        self._state.loans[member] = Loan(books=[*self._state.loans[member].books, book])
        return "lent"


def make_library(tools: type[Toolkit], grade: GradeEpisode | None = None) -> Domain:
    gold = Message(role="assistant", tool_calls=(ToolCall(name="lend", arguments={"member": "Ada", "book": "Emma"}),))
    scenario = Scenario(instructions="Lend Emma to Ada.", opening="Lend Emma to Ada.")
    task = Task(id="lend", domain="library", split="train", family="lend", scenario=scenario, gold=(gold,))
    return Domain(
        "library",
        lambda: Library(loans={"Ada": Loan()}),
        tools,
        task_list=[task],
        policy="p",
        confirm_writes=False,
        grade=grade,
    )


def test_tool_that_changes_a_shared_row_in_place_is_reported() -> None:
    groups = {group.kind: group.example for group in check(make_library(SharedRowTools)).problem_groups}
    assert "loans.Ada" in groups["shared_rows"]
    assert check(make_library(NewRowTools)).problems == ()


def test_world_that_differs_each_time_is_not_blamed_on_tools() -> None:
    numbers = itertools.count()
    domain = dataclasses.replace(
        make_library(NewRowTools), build_world=lambda: Library(loans={"Ada": Loan(books=[str(next(numbers))])})
    )
    groups = {group.kind: group.example for group in check(domain).problem_groups}
    assert "build_world" in groups["unstable"]
    assert "loans.Ada" in groups["unstable"]
    assert "shared_rows" not in groups


def test_family_that_does_not_draw_with_rng_only_is_named() -> None:
    number = itertools.count()

    def lend(rng: random.Random) -> Task:
        book = f"Book {rng.random()}"
        calls = (ToolCall(name="lend", arguments={"member": "Ada", "book": book}),)
        scenario = Scenario(instructions=f"Lend {book} to Ada.", opening=f"Lend {book} to Ada.")
        return Task(scenario=scenario, gold=(Message(role="assistant", tool_calls=calls),))

    def drift(rng: random.Random) -> Task:
        return lend(random.Random(next(number)))

    domain = dataclasses.replace(
        make_library(NewRowTools), generate={"lend": lend, "drift": drift}, task_list=(), families=("lend", "drift")
    )
    (problem,) = domain.find_unstable_parts()
    assert re.search(r"family drift .* library/drift/0-\d+; .*rng", problem)
    assert dataclasses.replace(domain, generate={"lend": lend}, families=("lend",)).find_unstable_parts() == []


def test_families_that_always_make_the_same_task_are_warnings() -> None:
    def lend(rng: random.Random) -> Task:
        calls = (ToolCall(name="lend", arguments={"member": "Ada", "book": "Emma"}),)
        scenario = Scenario(instructions="Lend Emma to Ada.", opening="Lend Emma to Ada.")
        return Task(scenario=scenario, gold=(Message(role="assistant", tool_calls=calls),))

    domain = dataclasses.replace(
        make_library(NewRowTools), generate={"lend": lend, "again": lend}, task_list=(), families=("lend", "again")
    )
    same = [text for text in check(domain).warnings if "same task" in text]
    assert [name for name in ("lend", "again") if sum(f"family {name} " in text for text in same) == 1] == [
        "lend",
        "again",
    ]


class RaisingTools(Toolkit):
    def lend(self, member: str, book: str) -> str:
        """Lend a book."""
        raise KeyError(book)


def test_exception_of_a_gold_call_has_its_file_and_line() -> None:
    problems = check(make_library(RaisingTools)).problems
    assert any(re.search(r"raises KeyError: 'Emma' \(test_check\.py:\d+\)", problem) for problem in problems)


def test_rows_that_two_splits_share_name_the_remedies() -> None:
    domain = make_library(NewRowTools)
    (task,) = domain.tasks("train")
    both = Domain(
        "library",
        lambda: Library(loans={"Ada": Loan()}),
        NewRowTools,
        task_list=[task, task.replace(id="again", split="test")],
        policy="p",
        confirm_writes=False,
    )
    shared = [problem for problem in check(both).problems if "loans" in problem]
    assert shared
    assert all("shared_tables" in problem and "split" in problem for problem in shared)


class Slow(ToolEpisode):
    async def look(self) -> str:
        """Look."""
        await asyncio.sleep(600)
        return ""

    def reward(self, transcript: Sequence[Message]) -> float:
        return float(transcript[-1].content == self.example.answer)


def test_hanging_tool_ends_the_check_and_is_named() -> None:
    examples = [ToolExample(prompt=str(n), answer="done", gold_calls=(ToolCall(name="look"),)) for n in range(9)]
    with pytest.raises(TaskError, match=r"the tool look.*limits\.max_step_seconds"):
        asyncio.run(check_async(ToolDataset("slow", "p", examples, Slow), max_step_seconds=0.2))


class SlowForWrongOrders(Slow):
    async def look(self, order: str = "W1") -> str:
        """Look."""
        await asyncio.sleep(0 if order == "W1" else 600)
        return ""


class SlowThenRaising(SlowForWrongOrders):
    async def look(self, order: str = "W1") -> str:
        """Look."""
        await asyncio.sleep(0.4)
        return ""

    def reward(self, transcript: Sequence[Message]) -> float:
        if len(transcript) > 3:
            raise KeyError("level")
        return 0.0


def test_call_that_hangs_on_invented_arguments_ends_the_check() -> None:
    examples = [ToolExample(prompt=str(n), answer="done", gold_calls=(ToolCall(name="look"),)) for n in range(9)]
    with pytest.raises(TaskError, match="the tool look"):
        asyncio.run(check_async(ToolDataset("slow", "p", examples, SlowForWrongOrders), max_step_seconds=0.2))


def test_slow_episode_that_fails_is_no_hanging_call() -> None:
    calls = (ToolCall(name="look"),) * 3
    examples = [ToolExample(prompt="1", answer="done", gold_calls=calls)]
    source = ToolDataset("slow", "p", examples, SlowThenRaising)
    report = asyncio.run(check_async(source, max_step_seconds=1.0))
    assert any("KeyError: 'level'" in problem for problem in report.problems)


class Strict(ToolEpisode):
    def reward(self, transcript: Sequence[Message]) -> float:
        return float(transcript[-1].content == "yes")


def test_examples_without_a_reference_are_a_warning() -> None:
    examples = [ToolExample(prompt=str(number)) for number in range(3)]
    report = check(ToolDataset("open", "p", examples, Strict))
    assert not [problem for problem in report.problems if "gold" in problem]
    assert any(warning.startswith("3 tasks have no answer") for warning in report.warnings)
    assert report.unsound == {}


def test_time_limit_of_a_check() -> None:
    assert check_limits(toy.DOMAIN).max_step_seconds == CHECK_STEP_SECONDS
    assert check_limits(toy.DOMAIN, 1800.0).max_step_seconds == 1800.0


def test_part_of_an_own_score_below_1_is_no_problem() -> None:
    def grade(task: Task, state: State, *_: object) -> Score:
        return Score(reward=float(bool(state.changes())), parts={"brevity": 0.5})

    assert check(make_library(NewRowTools, grade)).problems == ()


def test_gold_with_half_a_reward_is_reported_with_the_parts_that_passed() -> None:
    def grade(task: Task, state: State, *_: object) -> Score:
        return Score(reward=0.5 * bool(state.changes()), parts={"state": 1.0})

    (problem,) = check(make_library(NewRowTools, grade)).problems
    assert problem.endswith("its gold turns earn 0.5 instead of 1.0; passed: state, policy_compliance")


def test_missing_split_of_frozen_tasks_raises_task_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(Path(toy.__file__).parent, tmp_path / "toy")
    (tmp_path / "toy" / "tasks" / "test.jsonl").unlink()
    monkeypatch.setattr(toy, "__file__", str(tmp_path / "toy" / "__init__.py"))
    with pytest.raises(TaskError, match=re.escape("tasks/test.jsonl")):
        check(dataclasses.replace(toy.DOMAIN))


def test_a_missing_reward_function_is_not_reported_as_failing_gold_calls() -> None:
    dataset = ToolDataset("no_reward", "policy", [ToolExample(prompt="1+1?", answer="2")], ToolEpisode)
    report = check(dataset)
    assert [group.kind for group in report.problem_groups] == ["task_fails"]
    assert "ToolEpisode" in report.problem_groups[0].example


def test_state_in_a_module_is_found_by_playing_gold_twice() -> None:
    left = itertools.count(98, -1)

    class Shop(ToolEpisode):
        def buy(self, thing: str) -> int:
            """Buy a thing. Return how many are left."""
            return next(left)

        def reward(self, transcript: Sequence[Message]) -> float:
            return float(any(message.tool_calls for message in transcript))

    calls = (ToolCall(name="buy", arguments={"thing": "mug"}),)
    report = check(ToolDataset("shop", "p", [ToolExample(prompt="Buy.", answer="Done.", gold_calls=calls)], Shop))
    (problem,) = report.problems
    assert re.search(r"\bbuy\b.*'98', then '97'", problem)
    assert [group.kind for group in report.problem_groups] == ["shared_rows"]


def test_shared_state_that_no_result_shows_is_named() -> None:
    bought, shelf = dict[str, int](), [3, 3]

    class Shop(ToolEpisode):
        def buy(self, thing: str) -> str:
            """Buy a thing."""
            bought[thing] = shelf[0]
            return "bought"

        def reward(self, transcript: Sequence[Message]) -> float:
            return float(any(message.tool_calls for message in transcript))

    def example(thing: str) -> ToolExample:
        call = ToolCall(name="buy", arguments={"thing": thing})
        return ToolExample(prompt=f"Buy {thing}.", answer="Done.", gold_calls=(call,))

    report = check(ToolDataset("shop", "p", [example(thing) for thing in ("tea", "jam", "oil")], Shop))
    (problem,) = report.problems
    assert re.search(r"Shop\.buy\.bought .*__init__", problem)
    assert "shelf" not in problem
    assert [group.kind for group in report.problem_groups] == ["shared_rows"]


def test_tools_without_docstring_are_one_warning() -> None:
    class Bare(ToolEpisode):
        def get(self) -> int:
            return 1

        def put(self) -> int:
            return 2

        def reward(self, transcript: Sequence[Message]) -> float:
            return float(any(message.tool_calls for message in transcript))

    calls = (ToolCall(name="get"),)
    report = check(ToolDataset("bare", "p", [ToolExample(prompt="Get.", answer="1", gold_calls=calls)], Bare))
    assert report.problems == ()
    (warning,) = (text for text in report.warnings if "docstring" in text)
    assert ": get, put;" in warning


def test_parameter_of_a_docstring_that_the_tool_lacks_is_a_warning() -> None:
    class Sums(ToolEpisode):
        def add(self, a: int, b: int) -> int:
            """Add two numbers.

            Args:
                a: A number.
                bb: Another.
            """
            return a + b

        def reward(self, transcript: Sequence[Message]) -> float:
            return float(any(message.tool_calls for message in transcript))

    calls = (ToolCall(name="add", arguments={"a": 1, "b": 2}),)
    report = check(ToolDataset("sums", "p", [ToolExample(prompt="Add.", answer="3", gold_calls=calls)], Sums))
    (warning,) = (text for text in report.warnings if "docstring" in text)
    assert re.search(r"\badd\b.*'bb'.*did you mean 'b'", warning)


@pytest.mark.parametrize(("wanted", "is_named"), [(3, True), ("3", False)])
def test_reward_that_compares_text_with_a_number_names_the_types(wanted: object, is_named: bool) -> None:
    class Sums(ToolEpisode):
        def add(self, a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        def reward(self, transcript: Sequence[Message]) -> float:
            return float(transcript[-1].content == self.example.info["answer"])

    example = ToolExample(prompt="Add 1 and 2.", answer="3", info={"answer": wanted})
    problems = [problem for problem in check(ToolDataset("sums", "p", [example], Sums)).problems if "earn" in problem]
    assert bool(problems) == is_named
    assert all(re.search(r"\(str\).*3 \(int\).*one type", problem) for problem in problems)


def test_other_names_of_the_state_are_answered_with_its_tables() -> None:
    class Wrong(Toolkit):
        _state: Library

        def lend(self, member: str, book: str) -> str:
            """Lend a book."""
            return str(self.db)  # type: ignore[attr-defined]

    problem = " ".join(check(make_library(Wrong)).problems)
    assert "'db'" in problem
    assert "self._state.loans" in problem
