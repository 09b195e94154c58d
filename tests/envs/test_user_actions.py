"""Tests of scripted users with tools: recognized instructions, their results, and goals with a success check."""

import asyncio
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toy import DOMAIN as TOY
from toy import House
from understudy.core.errors import TaskError, ToolError
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.tasks import Fact, Scenario, SuccessCheck, Task, UserAction, UserGoal
from understudy.envs.domain import Domain
from understudy.envs.gold import gold_instruction, gold_text
from understudy.envs.tools import Toolkit
from understudy.envs.user_actions import (
    MAX_ACTIONS_PER_MESSAGE,
    MAX_NEW_RESULTS,
    REJECTED_ACTION_TURNS,
    UserToolExecutor,
)
from understudy.envs.users import ScriptedUser
from understudy.envs.users.consent import declines, gives_consent
from understudy.rollouts.agent import GoldAgent
from understudy.rollouts.rollout import EpisodeLimits, rollout


def declines_and_repeats_goal(answer: str | None) -> bool:
    """Return whether the user declines and repeats the goal."""
    return answer is not None and declines(answer) and answer.endswith(INTERNET.text)


def user_action(tool: str, *names: str, looks: bool = False, **arguments: object) -> UserAction:
    return UserAction(call=ToolCall(name=tool, arguments=arguments), required_terms=names, read_only=looks)


AIRPLANE = user_action("airplane", "airplane mode", "off|disable|turning off", on=False)
DATA = user_action("data", "mobile data", "on|enable", on=True)
RESTART = user_action("restart", "restart|reboot|restarting")
STATUS = user_action("status", "status bar|signal|airplane mode", looks=True)
PAY = user_action("pay", "pay", "request|bill")
ACTIONS = (AIRPLANE, DATA, RESTART, STATUS, PAY)
WORKS = SuccessCheck(call=ToolCall(name="works"), expected_output="works")
INTERNET = UserGoal(text="I have no internet.", accepted_steps=(("resume|reactivate", "L1"),), success_check=WORKS)
PLAN = UserGoal(text="Change my plan to Max.", required_terms=("plan", "Max"))
PLACE = Fact(text="I am in Denver.", keywords=("where", "which city"))


class Phone:
    """A phone with two faults: airplane mode is on, mobile data is off."""

    def __init__(self) -> None:
        self.airplane, self.data, self.done = True, False, list[str]()

    def specs(self) -> tuple[ToolSpec, ...]:
        return ()

    def call_sync(self, call: ToolCall) -> str:
        self.done.append(call.name)
        return str(getattr(self, f"_{call.name}")())

    def _airplane(self) -> str:
        self.airplane = False
        return "Airplane mode is off."

    def _data(self) -> str:
        self.data = True
        return "Mobile data is on."

    def _restart(self) -> str:
        return "It has restarted."

    def _status(self) -> str:
        return f"Airplane {self.airplane}, data {self.data}."

    def _works(self) -> str:
        return "fails" if self.airplane or not self.data else "works"

    def _pay(self) -> str:
        raise ToolError("there is no request")


def make_user(*goals: UserGoal, phone: Phone | None = None, patience: int = 3, **fields: Any) -> ScriptedUser:
    scenario = Scenario(
        instructions="", opening="Hi.", goals=goals or (INTERNET,), user_actions=ACTIONS, patience=patience, **fields
    )
    return ScriptedUser(scenario, 0, phone)


def instructed(text: str) -> list[str]:
    return [action.call.name for action in UserToolExecutor(ACTIONS, Phone().call_sync).find_instructed(text)]


_WORDS = [
    *("please", "turn", "off", "on", "airplane mode", "mobile data", "restart", "pay", "request", "status bar", "and"),
    *("I", "you", "then", "check", "do not", "if", "shall I", "?", ".", ",", "\n", "try", "restarting", "is", "now"),
]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Please turn off airplane mode.", ["airplane"]),
        ("Turn airplane mode off, then restart your phone.", ["airplane", "restart"]),
        ("Could you please disable airplane mode?", ["airplane"]),
        ("Can you restart it?", ["restart"]),
        ("Try turning off airplane mode.", ["airplane"]),
        ("Would you mind restarting your phone?", ["restart"]),
        ("Next, go to the settings of airplane mode, and switch it off.", ["airplane"]),
        ("1. Turn off airplane mode\n2. Turn on mobile data", ["airplane", "data"]),
        ("**Restart** your phone.", ["restart"]),
        ("Please turn off airplane mode and turn on mobile data.", ["airplane", "data"]),
        ("If airplane mode is on, please turn it off.", ["airplane"]),
        ("If you do not see a signal, restart your phone.", ["restart"]),
        ("I see that airplane mode is on, please turn it off.", ["airplane"]),
        ("I need you to restart your phone.", ["restart"]),
        ("I have resumed your line. Now restart your phone.", ["restart"]),
        ("You should restart your phone now.", ["restart"]),
        ("It looks like airplane mode is on. Please turn it off.", ["airplane"]),
        ("Mobile data is off, and so is airplane mode. Please turn it on.", ["data"]),
        ("I would recommend restarting your phone.", ["restart"]),
        ("If mobile data is off, please turn it on and check the signal.", ["data", "status"]),
        ("What do you see in the status bar, and is the signal good?", ["status"]),
        ("Please look at the status bar.", ["status"]),
        ("What does the status bar show?", ["status"]),
        ("Is airplane mode on?", ["status"]),
        ("Please check that airplane mode is off.", ["status"]),
        ("Make sure that airplane mode is off.", ["status"]),
        ("Please confirm what the status bar shows.", ["status"]),
        ("Turn off airplane mode and tell me what the status bar shows.", ["airplane", "status"]),
    ],
)
def test_instructions_are_recognized(text: str, names: list[str]) -> None:
    assert instructed(text) == names


@pytest.mark.parametrize(
    "text",
    [
        "Airplane mode is off now.",
        "I have turned off airplane mode.",
        "I will turn off airplane mode and restart your phone.",
        "We restart the phone for you.",
        "Shall I turn off airplane mode?",
        "Would you like to restart your phone?",
        "Do you want me to restart your phone?",
        "Please do not restart your phone.",
        "Don't turn off airplane mode.",
        "There is no need to restart the phone.",
        "Once you restart the phone, it works.",
        "Did you restart your phone?",
        "This will restart your phone.",
        "Airplane mode is off. Does it work now?",
        "Airplane mode is on. The line is fine. Please turn it off.",
        "Your phone was restarted, and mobile data is on.",
        "The status bar is at the top.",
        "Please wait.",
        "",
    ],
)
def test_other_texts_are_not_instructions(text: str) -> None:
    assert instructed(text) == []


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(_WORDS) | st.text(max_size=6), max_size=14).map(" ".join))
def test_recognized_actions_are_named_in_text(text: str) -> None:
    """A text has to contain every required term of an action, in one of its forms."""
    words = f" {re.sub(r'[^a-z0-9]', ' ', text.casefold())} "
    for action in UserToolExecutor(ACTIONS, Phone().call_sync).find_instructed(text):
        assert all(any(f" {form} " in words for form in name.split("|")) for name in action.required_terms)


def test_actions_or_checks_without_tools_raise_task_error() -> None:
    with pytest.raises(TaskError, match="'airplane'"):
        make_user()
    bare = ScriptedUser(Scenario(instructions="", opening="Hi.", goals=(INTERNET,)))
    assert bare.respond_to("Please restart your phone?") == INTERNET.text
    with pytest.raises(TaskError, match="'works'"):
        bare.respond_to("Please restart your phone.")


def test_user_runs_action_and_reports_result() -> None:
    phone = Phone()
    assert make_user(phone=phone).respond_to("Please look at the status bar.") == "Airplane True, data False."
    assert (
        make_user(phone=phone).respond_to("Please turn off airplane mode.")
        == f"Airplane mode is off. {WORKS.failure_text}"
    )
    assert not phone.airplane


def test_actions_run_in_order_of_text() -> None:
    phone = Phone()
    answer = make_user(PLAN, phone=phone).respond_to("Turn on mobile data and turn off airplane mode.")
    assert answer == "Mobile data is on. Airplane mode is off."
    assert phone.done == ["data", "airplane"]


def test_proposed_action_is_not_run() -> None:
    phone = Phone()
    assert declines_and_repeats_goal(make_user(phone=phone).respond_to("Shall I have you restart your phone?"))
    assert "restart" not in phone.done


def test_too_many_actions_in_one_message_are_rejected() -> None:
    phone = Phone()
    text = "Turn off airplane mode. Turn on mobile data. Restart your phone."
    answer = make_user(phone=phone).respond_to(text)
    assert answer is not None
    assert answer.startswith("That is too much")
    assert make_user(phone=phone, patience=1).respond_to(text) is None
    assert phone.done == []
    assert len(UserToolExecutor(ACTIONS, phone.call_sync).find_instructed(text)) == MAX_ACTIONS_PER_MESSAGE + 1


def test_action_without_new_output_costs_patience() -> None:
    text = "Please look at the status bar."
    speaker = make_user(phone=Phone())
    assert [speaker.respond_to(text) is None for _ in range(4)] == [False, False, False, True]


def test_user_reports_tool_error() -> None:
    assert (
        make_user(PLAN, phone=Phone()).respond_to("Please pay the request.") == "I cannot do that: there is no request."
    )


def test_each_tool_error_costs_patience() -> None:
    speaker = make_user(PLAN, phone=Phone(), patience=2 * REJECTED_ACTION_TURNS)
    assert speaker.respond_to("Please restart your phone, and pay the request.") is not None
    assert speaker.respond_to("Please pay the request.") is None


def test_fact_precedes_read_action_and_instruction_precedes_fact() -> None:
    speaker = make_user(phone=Phone(), facts=(PLACE,))
    assert speaker.respond_to("In which city are you, and what signal do you have?") == PLACE.text
    ordered = make_user(phone=Phone(), facts=(PLACE,)).respond_to("Please restart your phone where you are.")
    assert ordered == f"It has restarted. {WORKS.failure_text}"


def test_user_reports_success_after_actions() -> None:
    speaker = make_user(phone=Phone())
    assert speaker.respond_to("Please turn off airplane mode.") == f"Airplane mode is off. {WORKS.failure_text}"
    assert speaker.respond_to("Please turn on mobile data.") == f"Mobile data is on. {WORKS.success_text}"
    assert speaker.respond_to("I am glad.") is None


def test_report_does_not_settle_goal_while_check_fails() -> None:
    speaker = make_user(phone=Phone())
    said = [speaker.respond_to("Done. It works again.") for _ in range(4)]
    assert said == [WORKS.failure_text] * 3 + [None]


def test_failed_check_after_action_costs_no_patience() -> None:
    speaker = make_user(phone=Phone(), patience=1)
    assert speaker.respond_to("Please look at the status bar.") == "Airplane True, data False."
    assert speaker.respond_to("Please turn off airplane mode.") == f"Airplane mode is off. {WORKS.failure_text}"
    assert speaker.respond_to("Does it work now?") == WORKS.failure_text
    assert speaker.respond_to("Does it work now?") is None


def test_report_triggers_success_check() -> None:
    phone = Phone()
    speaker = make_user(INTERNET, PLAN, phone=phone)
    assert speaker.respond_to("Let me look it up.") == INTERNET.text
    phone.airplane, phone.data = False, True
    assert speaker.respond_to("I have repaired it.") == f"{WORKS.success_text} {PLAN.text}"
    assert speaker.respond_to("Done.") == PLAN.text


@pytest.mark.parametrize(
    "text", ["Does it work now?", "Please let me know if it works now.", "Can you confirm that it is working again?"]
)
def test_question_triggers_success_check(text: str) -> None:
    phone = Phone()
    speaker = make_user(phone=phone)
    assert speaker.respond_to(text) == WORKS.failure_text
    phone.airplane, phone.data = False, True
    assert speaker.respond_to(text) == WORKS.success_text
    assert speaker.respond_to("I am glad.") is None


def test_proposal_does_not_trigger_success_check() -> None:
    phone = Phone()
    text = "I will repair line L2 so that it works again. Do you confirm?"
    assert declines_and_repeats_goal(make_user(phone=phone).respond_to(text))
    assert phone.done == []


def test_accepted_step_gets_consent_but_does_not_settle_goal() -> None:
    speaker = make_user(phone=Phone())
    assert declines_and_repeats_goal(speaker.respond_to("I will resume line L2. Do you confirm?"))
    yes = speaker.respond_to("I will resume line L1. Do you confirm?")
    assert yes is not None
    assert gives_consent(yes)
    assert speaker.respond_to("It is resumed.") == WORKS.failure_text


def test_unspecific_proposal_is_declined_for_goal_with_check() -> None:
    assert declines_and_repeats_goal(make_user(phone=Phone()).respond_to("I will do all you want. Do you confirm?"))


def test_user_accepts_refusal_while_check_fails() -> None:
    assert make_user(phone=Phone()).respond_to("There is an outage, I cannot help you now.") is None


_TEXTS = st.sampled_from(
    [
        *("Turn off airplane mode.", "Turn on mobile data.", "Look at the status bar.", "Restart your phone."),
        *("Pay the request.", "Do you confirm?", "I will resume L1. Do you confirm?", "Done.", "Where are you?", ""),
    ]
)


class ChangingPhone(Phone):
    """A phone whose output is different at every call."""

    def call_sync(self, call: ToolCall) -> str:
        return f"{super().call_sync(call)} {len(self.done)}"

    def _works(self) -> str:
        return "fails"


@settings(max_examples=60, deadline=None)
@given(st.lists(_TEXTS, min_size=1, max_size=8))
def test_conversation_ends_when_tool_output_always_changes(texts: list[str]) -> None:
    speaker = make_user(INTERNET, PLAN, phone=ChangingPhone(), facts=(PLACE,))
    bound = MAX_NEW_RESULTS * (len(ACTIONS) + 1) + 12
    assert None in [speaker.respond_to(texts[i % len(texts)]) for i in range(bound)]


class SwitchTools(Toolkit):
    """The tools of the user."""

    _state: House

    def push(self, lamp_id: str) -> str:
        """Push the switch of a lamp."""
        self._state.lamps[lamp_id] = self._state.lamps[lamp_id].replace(on=True)
        return f"Lamp {lamp_id} is on."


PUSH = user_action("push", "switch|button", lamp_id="L1")
PUSHED = Domain(TOY.module_name, TOY.build_world, TOY.toolkit, TOY.generate, TOY.families, user_tools=SwitchTools)


def push_task() -> Task:
    turns = gold_instruction("Please push the switch.", PUSH)
    goal = UserGoal(text="It is dark.", kind="text")
    scenario = Scenario(instructions="", opening="It is dark.", goals=(goal,), user_actions=(PUSH,))
    return Task(
        id="toy/dark",
        domain="toy",
        split="train",
        family="one",
        difficulty="easy",
        scenario=scenario,
        gold=(*turns, gold_text("Good.")),
    )


def play(domain: Domain, task: Task) -> Any:
    return asyncio.run(rollout(task, domain.environment(task), GoldAgent(), EpisodeLimits()))


def test_gold_includes_user_actions() -> None:
    task = push_task()
    assert PUSHED.gold_changes(task)["lamps"]["L1"].on
    assert [message.role for message in task.gold] == ["assistant", "user", "assistant"]
    assert task.gold_turns == (gold_text("Please push the switch."), gold_text("Good."))
    assert task.gold_calls == ()


def test_agent_and_user_share_one_state() -> None:
    episode = play(PUSHED, push_task())
    assert [m.content for m in episode.messages if m.role == "user"] == ["It is dark.", "Lamp L1 is on."]
    assert episode.score.parts["state_match"] == 1.0
    assert episode.score.reward == 1.0


def test_user_actions_need_no_consent() -> None:
    assert play(PUSHED, push_task()).score.parts["policy_compliance"] == 1.0


def test_user_calls_without_user_tools_raise_task_error() -> None:
    with pytest.raises(TaskError, match=r"toy/dark: .*\bpush\b.*\btoy\b"):
        TOY.gold_changes(push_task())


def test_unknown_user_call_in_gold_raises_task_error() -> None:
    wrong = push_task().replace(id="toy/pull", gold=(Message(role="user", tool_calls=(ToolCall(name="pull"),)),))
    with pytest.raises(TaskError, match=r"\bpull\b"):
        PUSHED.gold_changes(wrong)


@pytest.mark.parametrize(
    ("tool", "terms", "text", "acts"),
    [
        ("sync_reader", ("sync",), "Please sync the reader now.", True),
        ("sync_reader", ("sync",), "Sync the reader now.", True),
        ("sync_reader", ("sync|syncing",), "Could you try syncing it?", True),
        ("press_button", ("button",), "Please press the button.", True),
        ("press_button", ("button",), "Now press the red button, please.", True),
        ("scan_code", ("code",), "You should scan the code on the box.", True),
        ("update", ("install", "update"), "Please install the update.", True),
        ("charge_phone", ("phone",), "Please look at the phone, then charge the phone for an hour.", True),
        ("sync_reader", ("sync",), "The sync is done every night.", False),
        ("sync_reader", ("sync",), "Sync is complete now.", False),
        ("sync_reader", ("sync",), "Please do not sync the reader.", False),
        ("sync_reader", ("sync",), "I will sync the reader now.", False),
        ("sync_reader", ("sync",), "Shall I sync the reader now?", False),
        ("press_button", ("button",), "Once you press the button, it starts.", False),
    ],
)
def test_words_of_the_task_are_verbs_of_instructions(tool: str, terms: tuple[str, ...], text: str, acts: bool) -> None:
    action = user_action(tool, *terms)
    executor = UserToolExecutor([action], lambda call: "done")
    assert executor.find_instructed(text) == ([action] if acts else [])
