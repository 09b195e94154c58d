"""Each mistake in one's own tools, reward or domain is told once, with its place, the value and what to write."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import toy
from support.program import Call, call
from understudy.cli.play import select_task
from understudy.core.errors import ConfigError, TaskError, did_you_mean
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Score, Task
from understudy.data.checks.check import check
from understudy.envs.domain import Domain
from understudy.envs.domain_validation import validate_domain
from understudy.envs.task_source import Slice
from understudy.evaluation.evaluate import find_noop_refusal, validate_train_tasks
from understudy.sources.readers import read_rows
from understudy.sources.references import load_reference
from understudy.sources.task_files.source_matching import load_episode_class
from understudy.sources.tool_dataset import ToolDataset, ToolEpisode, ToolExample

__all__ = ["call"]  # a fixture
HERE = Path(__file__).name
Reward = Callable[[ToolEpisode, Sequence[Message]], Any]


def example(name: str = "look", **fields: Any) -> ToolExample:
    given = {"prompt": f"Look. {name}", "answer": "Done.", "gold_calls": (ToolCall(name=name),), **fields}
    return ToolExample.model_validate(given)


def problems_of(reward: Reward, *examples: ToolExample) -> tuple[str, ...]:
    def look(self: ToolEpisode) -> str:
        """Look."""
        return "seen"

    episode_class = type("Looking", (ToolEpisode,), {"look": look, "reward": reward})
    return check(ToolDataset("looking", "Help.", examples or [example()], episode_class)).problems


@pytest.mark.parametrize(
    ("reward", "hint"),
    [
        (lambda self, transcript: transcript[-1]["content"], "message.content"),
        (lambda self, transcript: float("Done" in transcript[-1]), "message.content"),
        (lambda self, transcript: transcript[-1].get("content"), "message.content"),
        (lambda self, transcript: float(transcript[-1]), "message.content"),
        (lambda self, transcript: json.loads(transcript[-1]), "message.content"),
        (lambda self, transcript: transcript.content, "transcript[-1].content"),
        (lambda self, transcript: self.example["answer"], "example.answer"),
        (lambda self, transcript: [m.tool_calls for m in transcript][2][0]["name"], "call.arguments"),
    ],
)
def test_an_object_that_is_read_as_a_dict_or_a_text_says_how_to_read_it(reward: Reward, hint: str) -> None:
    problem = problems_of(reward)[0]
    assert HERE in problem
    assert hint in problem


def returns_nothing(self: ToolEpisode, transcript: Sequence[Message]) -> None:
    assert transcript


def reward_nothing(transcript: Sequence[Message], example: ToolExample) -> None:
    assert transcript


def grade_nothing(*_: object) -> Score:
    return None  # type: ignore[return-value]


def line_of(function: Callable[..., Any]) -> str:
    return f"{HERE}:{function.__code__.co_firstlineno}"


def test_a_reward_without_a_value_names_the_function() -> None:
    for problem in problems_of(returns_nothing):
        assert line_of(returns_nothing) in problem
        assert "`return`" in problem
    of_file = load_episode_class(f"{__name__}:reward_nothing")
    assert line_of(reward_nothing) in problems_of(of_file.reward)[0]
    domain = Domain("toy", toy.build_house, toy.LampTools, toy.generate, ("one", "two"), grade=grade_nothing)  # type: ignore[arg-type]
    assert all(line_of(grade_nothing) in problem for problem in check(domain).problems)


@pytest.mark.parametrize("place", ["dataset", "domain"])
def test_a_wrong_gold_tool_is_told_once_for_each_task(place: str) -> None:
    if place == "dataset":
        problems = problems_of(lambda self, transcript: float(bool(transcript[-1].content)), example("lok"))
    else:
        (task,) = toy.DOMAIN.tasks("train")[:1]
        calls = [turn if not turn.tool_calls else call_of("swich_lamp") for turn in task.gold]
        listed = [task.replace(gold=tuple(calls))]
        problems = check(Domain("toy", toy.build_house, toy.LampTools, task_list=listed, policy="p")).problems
    (problem,) = problems
    assert "did you mean 'look'" in problem or "did you mean 'switch_lamp'" in problem


def call_of(name: str) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(name=name, arguments={"lamp_id": "L1", "on": True}),))


PROJECT = """
from understudy import ToolCall, ToolDataset, ToolEpisode, ToolExample

class Shop(ToolEpisode):
    def order(self) -> str:
        "Order."
        return "ordered"
    def reward(self, transcript):
        return float(transcript[-1].content == "Done.")

def example(n):
    return ToolExample(prompt=f"Order {n}", gold_calls=(ToolCall(name="ordr"),), answer="Done.", id=f"stock/P{n}")

SHOP = ToolDataset("shop", "Order.", [example(n) for n in range(20)], Shop)
"""


def test_the_text_of_check_has_a_wrong_tool_in_one_line_and_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    (tmp_path / "wrong_tool_shop.py").write_text(PROJECT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    code, text, _ = call("check", "wrong_tool_shop:SHOP", "model=tiny")
    lines = text.splitlines()
    assert code == 1
    assert [line.partition(" ")[0] for line in lines if "ordr" in line] == ["blocks", "train"]
    assert not any("no gold episode calls" in line for line in lines)
    code, _, error = call("play", "wrong_tool_shop:SHOP", "--task", "P7")
    assert (code, "'P7'; did you mean 'stock/P7'?" in error) == (2, True)
    _, _, error = call("check", "wrong_tool_shop:Shop")
    assert "did you mean 'wrong_tool_shop:SHOP'?" in error
    _, _, error = call("check", "wrong_tool_shop:example")
    assert "did you mean 'wrong_tool_shop:SHOP'?" in error


@pytest.mark.parametrize(
    ("rewards", "named", "left_out"),
    [
        ([("a", 1.0), ("a", 1.0)], ["check"], ["slice.families", "allow_noop_solvable"]),
        ([("a", 1.0), ("a", 0.0)], ["check", "allow_noop_solvable=true"], ["slice.families"]),
        ([("a", 1.0), ("b", 0.0), ("c", 0.0)], ["slice.families=b,c", "allow_noop_solvable=true"], []),
    ],
)
def test_only_remedies_that_help_are_named_for_tasks_that_noop_solves(
    rewards: list[tuple[str, float]], named: list[str], left_out: list[str]
) -> None:
    task = toy.DOMAIN.tasks("train")[0]
    given: list[tuple[Task, float | None]] = [(task.replace(family=family), reward) for family, reward in rewards]
    text = find_noop_refusal("toy", given, "")
    assert text
    assert all(each in text for each in named)
    assert not any(each in text for each in left_out)


def test_a_missing_answer_names_the_column_to_rename() -> None:
    given = example(answer="", gold_calls=(), info={"question": "Look.", "label": "4", "note": 1})
    (problem,) = problems_of(lambda self, transcript: float(transcript[-1].content == self.example.answer), given)
    assert problem.endswith("rename the column label to answer")


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ('[\n {"question": "a"},\n {"question": "b"}\n]\n', "rename the file to rows.json"),
        ('{\n "question": "a"\n}\n', "json.dumps(row), without indent"),
    ],
)
def test_a_jsonl_file_of_several_lines_a_value_is_one_error(tmp_path: Path, text: str, remedy: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    (error,) = read_rows(path)
    assert remedy in str(error)


def lamp_domain(*tasks: Task, **fields: Any) -> Domain:
    given = {"toolkit": toy.LampTools, "policy": "p", **fields}
    return Domain("toy", toy.build_house, task_list=tasks, **given)


@pytest.mark.parametrize(
    ("proposal", "named"),
    [
        ("I will switch it on. Do you want me to proceed?", "lacks the required_terms 'L"),
        ("I will switch on the lamp.", "asks no question"),
        ("", "no text proposes it"),
    ],
)
def test_a_proposal_that_the_user_does_not_accept_says_what_it_lacks(proposal: str, named: str) -> None:
    task = next(task for task in toy.DOMAIN.tasks("train") if task.family == "one")
    first = [task.gold[0].replace(content=proposal)] if proposal else []
    problems = check(lamp_domain(task.replace(gold=(*first, *task.gold[1:])))).problems
    assert any(named in problem for problem in problems)


def test_mistakes_of_a_domain_are_one_line_each() -> None:
    task = toy.DOMAIN.tasks("train")[0]
    cases: list[tuple[Domain, str]] = [
        (lamp_domain(task, task), f"entries 0 and 1 of task_list have the same id '{task.id}'"),
        (lamp_domain(task.replace(id=""), task.replace(id="")), "entries 0 and 1 of task_list are equal"),
        (lamp_domain(task, policy="policy.md"), "from pathlib import Path"),
        (lamp_domain(task, user_tools=toy.LampTools(toy.build_house())), "user_tools=LampTools"),
        (lamp_domain(task, grade=0.5), "grade of toy is 0.5"),
        (lamp_domain(task, user_factory="llm"), "user_factory of toy is 'llm'"),
    ]
    for domain, named in cases:
        with pytest.raises(TaskError) as caught:
            validate_domain(domain)
        assert named in str(caught.value)
        assert "\n" not in str(caught.value)


def test_an_unknown_reference_suggests_the_only_source_of_its_module() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'toy:DOMAIN'\?"):
        load_reference("toy:Domain")


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("repair_bike", ["order_repair", "get_customer"], "order_repair"),
        ("fetchRoom", ["book_room", "cancel"], "book_room"),
        ("retial", ["retail", "airline"], "retail"),
        ("x", ["book", "cancel"], ""),
    ],
)
def test_near_names_share_letters_or_words(name: str, known: list[str], meant: str) -> None:
    text = did_you_mean(name, known)
    assert (f"did you mean {meant!r}?" in text) if meant else "did you mean" not in text
    assert text.endswith(f"allowed: {', '.join(sorted(known))}")


@pytest.mark.parametrize("value", [None, [0.0, 1.0], 2.0, "1"])
def test_a_wrong_reward_is_one_problem_of_each_task(value: object) -> None:
    problems = problems_of(lambda self, transcript: value, example(), example(prompt="Look again."))
    assert len(problems) == 2
    assert all(f"it is {value!r}" in problem and HERE in problem for problem in problems)


def test_a_reward_that_compares_a_message_with_the_answer_says_what_to_compare() -> None:
    (problem,) = problems_of(lambda self, transcript: float(transcript[-1] == self.example.answer))
    assert "a Message never equals a text: compare .content" in problem


def test_a_tool_that_returns_nothing_is_a_warning() -> None:
    class Silent(ToolEpisode):
        def look(self) -> None:
            """Look."""

        def reward(self, transcript: Sequence[Message]) -> float:
            return float(transcript[-1].content == "Done.")

    (warning,) = (text for text in check(ToolDataset("s", "p", [example()], Silent)).warnings if "None" in text)
    assert "look" in warning


def test_swapped_arguments_of_a_dataset_and_a_foreign_toolkit_are_named() -> None:
    with pytest.raises(TaskError, match=r"examples and episode_class of looking are swapped"):
        ToolDataset("looking", "Help.", ToolEpisode, [example()])  # type: ignore[arg-type]

    class Tools:
        pass

    with pytest.raises(TaskError, match=r"class Tools, which is no toolkit: write `class Tools\(Toolkit\):`"):
        validate_domain(lamp_domain(toy.DOMAIN.tasks("train")[0], toolkit=Tools))


def test_another_slice_is_advised_only_if_there_is_one() -> None:
    task = toy.DOMAIN.tasks("test")[0]
    only_test = lamp_domain(task)
    with pytest.raises(ConfigError, match=r"toy has no train tasks; give some of its 1 test tasks the split train$"):
        validate_train_tasks(only_test)
    with pytest.raises(ConfigError, match=r"in this slice; .*, or set another slice$"):
        validate_train_tasks(only_test.slice(Slice(difficulties=(task.difficulty,))))
    with pytest.raises(ConfigError, match=r"toy has no train tasks; give --split test$"):
        select_task(only_test)


def test_objects_and_classes_in_place_of_each_other_are_named() -> None:
    with pytest.raises(TaskError, match=r"pass the class LampTools itself, without \(\)"):
        toy.LampTools()

    class Tools:
        """No function."""

    with pytest.raises(TaskError, match=r"the tool Tools is a class"):
        ToolDataset("s", "p", [example()], ToolEpisode, tools=[Tools])
