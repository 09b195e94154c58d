"""Test that the page "Anatomy of a task" has all fields, and quotes what `check` says about a wrong task."""

import re
from pathlib import Path
from typing import Any

import pytest

from toy import LampTools, build_house
from understudy.core.messages import ToolCall
from understudy.core.tasks import Scenario, Task, UserAction, UserGoal
from understudy.data.checks.check import check
from understudy.envs.domain import Domain
from understudy.envs.gold import gold_call, gold_text

PAGE = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")
GOAL = UserGoal(text="Please switch on lamp L1.", required_terms=("L1",))
SCENARIO = Scenario(instructions=GOAL.text, opening=GOAL.text, goals=(GOAL,))
ASK, CALL = gold_text("I will switch on lamp L1. Shall I go ahead?"), gold_call("switch_lamp", lamp_id="L1", on=True)
SOUND = Task(id="t", split="train", scenario=SCENARIO, gold=(ASK, CALL, gold_text("Done.")))


def problems(*listed: Task, **fields: Any) -> str:
    return "\n".join(check(Domain("lamps", build_house, LampTools, task_list=listed, **fields)).problems)


def test_each_record_of_a_task_is_on_the_page() -> None:
    records = {"Task", "Scenario", "UserGoal", "Fact", "UserAction", "SuccessCheck"}
    assert set(re.findall(r"<!-- fields: core\.tasks\.(\w+) -->", PAGE)) == records


def test_sound_task_has_no_problems() -> None:
    assert problems(SOUND) == ""


@pytest.mark.parametrize(
    ("listed", "quoted"),
    [
        ([SOUND.replace(gold=(ASK, gold_text("Done.")))], "doing nothing earns 1"),
        ([SOUND.replace(outputs=("1999",))], "its gold turns earn 0 instead of 1.0; failed: facts_told"),
        (
            [SOUND.replace(gold=(gold_text("Shall I switch it on?"), CALL, gold_text("Done.")))],
            "its gold turns earn 0 instead of 1.0; failed: state_match",
        ),
        ([SOUND.replace(gold=(ASK, gold_call("dim", lamp_id="L1")))], "which is not one of the agent's tools"),
        ([SOUND.replace(gold=(ASK, gold_call("switch_lamp", lamp_id="L999", on=True)))], "is refused"),
        ([SOUND.replace(setup={"lamp": {}})], "its setup does not fit"),
        ([SOUND.replace(setup={"lamps": {"L1": {"on": "bright"}}})], "its setup does not fit"),
        ([SOUND, SOUND], "the id is also that of a task in"),
        ([SOUND, SOUND.replace(id="u", split="test")], "it shares"),
        ([SOUND.replace(scenario=SCENARIO.replace(opening="Yes, do it."))], "would count as consent to a change"),
        (
            [
                SOUND.replace(
                    scenario=SCENARIO.replace(
                        user_actions=(UserAction(call=ToolCall(name="restart"), required_terms=("restart",)),)
                    )
                )
            ],
            "has no user_tools",
        ),
    ],
)
def test_check_says_what_the_page_quotes(listed: list[Task], quoted: str) -> None:
    assert f"| {quoted} |" in PAGE
    assert quoted in problems(*listed)


def test_check_names_an_unknown_family() -> None:
    assert "| the domain has no family |" in PAGE
    assert "the domain has no family 'task'" in problems(SOUND, families=("other",))
