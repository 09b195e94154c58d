"""A user with tools of their own: what is taken for an order, what is done and said, and when a wish is fulfilled."""

import asyncio
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.toy import DOMAIN as TOY
from tests.toy import House

from understudy.agent import GoldAgent
from understudy.deeds import MOST, OFTEN, REFUSED, Hands
from understudy.domains.base import Domain
from understudy.domains.drafts import instruct, say
from understudy.errors import TaskError, ToolError
from understudy.messages import Message, ToolCall, ToolSpec
from understudy.rollout import Limits, rollout
from understudy.tasks import Deed, Fact, Proof, Scenario, Task, Wish
from understudy.tools import Toolkit
from understudy.users import ScriptedUser


def deed(tool: str, *names: str, looks: bool = False, **arguments: object) -> Deed:
    return Deed(call=ToolCall(name=tool, arguments=arguments), names=names, looks=looks)


AIRPLANE = deed("airplane", "airplane mode", "off|disable|turning off", on=False)
DATA = deed("data", "mobile data", "on|enable", on=True)
RESTART = deed("restart", "restart|reboot|restarting")
STATUS = deed("status", "status bar|signal|airplane mode", looks=True)
PAY = deed("pay", "pay", "request|bill")
DEEDS = (AIRPLANE, DATA, RESTART, STATUS, PAY)
WORKS = Proof(call=ToolCall(name="works"), shows="works")
INTERNET = Wish(says="I have no internet.", agrees=(("resume|reactivate", "L1"),), proof=WORKS)
PLAN = Wish(says="Change my plan to Max.", names=("plan", "Max"))
PLACE = Fact(says="I am in Denver.", cues=("where", "which city"))


class Phone:
    """A phone with two faults: airplane mode is on, mobile data is off."""

    def __init__(self) -> None:
        self.airplane, self.data, self.done = True, False, list[str]()

    def specs(self) -> tuple[ToolSpec, ...]:
        return ()

    def run(self, call: ToolCall) -> str:
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


def user(*wishes: Wish, phone: Phone | None = None, patience: int = 3, **fields: Any) -> ScriptedUser:
    scenario = Scenario(
        instructions="", opening="Hi.", wishes=wishes or (INTERNET,), deeds=DEEDS, patience=patience, **fields
    )
    return ScriptedUser(scenario, 0, phone)


def told(text: str) -> list[str]:
    return [deed.call.name for deed in Hands(DEEDS, Phone().run).told(text)]


# ---- what is an order ----

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
def test_what_is_told_is_done(text: str, names: list[str]) -> None:
    assert told(text) == names


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
def test_what_is_not_told_is_not_done(text: str) -> None:
    assert told(text) == []


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(_WORDS) | st.text(max_size=6), max_size=14).map(" ".join))
def test_only_what_a_text_names_is_done(text: str) -> None:
    """Whatever is said: no deed without all of its names, in one of their forms, somewhere in the text."""
    words = f" {re.sub(r'[^a-z0-9]', ' ', text.casefold())} "
    for deed in Hands(DEEDS, Phone().run).told(text):
        assert all(any(f" {form} " in words for form in name.split("|")) for name in deed.names)


def test_deeds_and_proofs_without_tools_are_a_fault_of_the_task() -> None:
    with pytest.raises(TaskError, match="no tools to do 'airplane' with"):
        user()
    bare = ScriptedUser(Scenario(instructions="", opening="Hi.", wishes=(INTERNET,)))
    assert bare.hear("Please restart your phone?") == INTERNET.says
    with pytest.raises(TaskError, match="no tools to try 'works' with"):
        bare.hear("Please restart your phone.")


# ---- what is said and noticed ----


def test_a_deed_is_done_and_its_result_is_said() -> None:
    phone = Phone()
    assert user(phone=phone).hear("Please look at the status bar.") == "Airplane True, data False."
    assert user(phone=phone).hear("Please turn off airplane mode.") == f"Airplane mode is off. {WORKS.fails}"
    assert not phone.airplane


def test_several_deeds_are_done_in_the_order_of_the_text() -> None:
    phone = Phone()
    answer = user(PLAN, phone=phone).hear("Turn on mobile data and turn off airplane mode.")
    assert answer == "Mobile data is on. Airplane mode is off."
    assert phone.done == ["data", "airplane"]


def test_what_is_asked_about_consent_is_not_done() -> None:
    phone = Phone()
    assert user(phone=phone).hear("Shall I have you restart your phone?") == f"No. {INTERNET.says}"
    assert "restart" not in phone.done


def test_too_much_at_once_is_not_done() -> None:
    phone = Phone()
    text = "Turn off airplane mode. Turn on mobile data. Restart your phone."
    answer = user(phone=phone).hear(text)
    assert answer is not None
    assert answer.startswith("That is too much")
    assert user(phone=phone, patience=1).hear(text) is None
    assert phone.done == []
    assert len(Hands(DEEDS, phone.run).told(text)) == MOST + 1


def test_what_shows_nothing_new_costs_patience() -> None:
    text = "Please look at the status bar."
    speaker = user(phone=Phone())
    assert [speaker.hear(text) is None for _ in range(4)] == [False, False, False, True]


def test_a_refusal_of_the_device_is_said() -> None:
    assert user(PLAN, phone=Phone()).hear("Please pay the request.") == "I cannot do that: there is no request."


def test_each_refusal_of_the_device_costs_patience() -> None:
    speaker = user(PLAN, phone=Phone(), patience=2 * REFUSED)
    assert speaker.hear("Please restart your phone, and pay the request.") is not None
    assert speaker.hear("Please pay the request.") is None


def test_facts_come_before_a_look_and_after_an_order() -> None:
    speaker = user(phone=Phone(), facts=(PLACE,))
    assert speaker.hear("In which city are you, and what signal do you have?") == PLACE.says
    ordered = user(phone=Phone(), facts=(PLACE,)).hear("Please restart your phone where you are.")
    assert ordered == f"It has restarted. {WORKS.fails}"


def test_the_user_notices_that_it_works() -> None:
    speaker = user(phone=Phone())
    assert speaker.hear("Please turn off airplane mode.") == f"Airplane mode is off. {WORKS.fails}"
    assert speaker.hear("Please turn on mobile data.") == f"Mobile data is on. {WORKS.says}"
    assert speaker.hear("I am glad.") is None


def test_what_does_not_work_is_not_settled_by_words() -> None:
    speaker = user(phone=Phone())
    said = [speaker.hear("Done. It works again.") for _ in range(4)]
    assert said == [WORKS.fails] * 3 + [None]


def test_it_costs_no_patience_to_notice_by_oneself_that_it_does_not_work() -> None:
    speaker = user(phone=Phone(), patience=1)
    assert speaker.hear("Please look at the status bar.") == "Airplane True, data False."
    assert speaker.hear("Please turn off airplane mode.") == f"Airplane mode is off. {WORKS.fails}"
    assert speaker.hear("Does it work now?") == WORKS.fails
    assert speaker.hear("Does it work now?") is None


def test_a_wish_is_tried_when_the_agent_reports() -> None:
    phone = Phone()
    speaker = user(INTERNET, PLAN, phone=phone)
    assert speaker.hear("Let me look it up.") == INTERNET.says
    phone.airplane, phone.data = False, True
    assert speaker.hear("I have repaired it.") == f"{WORKS.says} {PLAN.says}"
    assert speaker.hear("Done.") == PLAN.says


@pytest.mark.parametrize(
    "text", ["Does it work now?", "Please let me know if it works now.", "Can you confirm that it is working again?"]
)
def test_the_user_tries_when_asked_whether_it_works(text: str) -> None:
    phone = Phone()
    speaker = user(phone=phone)
    assert speaker.hear(text) == WORKS.fails
    phone.airplane, phone.data = False, True
    assert speaker.hear(text) == WORKS.says
    assert speaker.hear("I am glad.") is None


def test_a_proposal_to_make_it_work_is_no_question_whether_it_does() -> None:
    phone = Phone()
    text = "I will repair line L2 so that it works again. Do you confirm?"
    assert user(phone=phone).hear(text) == f"No. {INTERNET.says}"
    assert phone.done == []


def test_steps_are_agreed_to_once_and_settle_nothing() -> None:
    speaker = user(phone=Phone())
    assert speaker.hear("I will resume line L2. Do you confirm?") == f"No. {INTERNET.says}"
    yes = speaker.hear("I will resume line L1. Do you confirm?")
    assert yes is not None
    assert yes.startswith("Yes")
    assert speaker.hear("It is resumed.") == WORKS.fails


def test_no_proposal_fulfils_a_wish_that_has_to_work() -> None:
    assert user(phone=Phone()).hear("I will do all you want. Do you confirm?") == f"No. {INTERNET.says}"


def test_a_refusal_is_accepted_though_it_does_not_work() -> None:
    assert user(phone=Phone()).hear("There is an outage, I cannot help you now.") is None


_TEXTS = st.sampled_from(
    [
        *("Turn off airplane mode.", "Turn on mobile data.", "Look at the status bar.", "Restart your phone."),
        *("Pay the request.", "Do you confirm?", "I will resume L1. Do you confirm?", "Done.", "Where are you?", ""),
    ]
)


class Flickering(Phone):
    """A phone that never shows the same twice."""

    def run(self, call: ToolCall) -> str:
        return f"{super().run(call)} {len(self.done)}"

    def _works(self) -> str:
        return "fails"


@settings(max_examples=60, deadline=None)
@given(st.lists(_TEXTS, min_size=1, max_size=8))
def test_a_conversation_ends_even_if_the_phone_always_shows_something_new(texts: list[str]) -> None:
    speaker = user(INTERNET, PLAN, phone=Flickering(), facts=(PLACE,))
    bound = OFTEN * (len(DEEDS) + 1) + 12
    assert None in [speaker.hear(texts[i % len(texts)]) for i in range(bound)]


# ---- in a domain ----


class Switches(Toolkit):
    """What the people in the house can do themselves."""

    _state: House

    def push(self, lamp_id: str) -> str:
        """Push the switch of a lamp."""
        self._state.lamps[lamp_id] = self._state.lamps[lamp_id].replace(on=True)
        return f"Lamp {lamp_id} is on."


PUSH = deed("push", "switch|button", lamp_id="L1")
PUSHED = Domain(TOY.package, TOY.world, TOY.toolkit, TOY.generate, TOY.families, device=Switches)


def dark() -> Task:
    told = instruct("Please push the switch.", PUSH)
    wish = Wish(says="It is dark.", kind="text")
    scenario = Scenario(instructions="", opening="It is dark.", wishes=(wish,), deeds=(PUSH,))
    return Task(
        id="toy/dark",
        domain="toy",
        split="train",
        family="one",
        difficulty="easy",
        scenario=scenario,
        gold=(*told, say("Good.")),
    )


def play(domain: Domain, task: Task) -> Any:
    return asyncio.run(rollout(task, domain.environment(task), GoldAgent(), Limits()))


def test_the_goal_contains_what_the_user_does() -> None:
    task = dark()
    assert PUSHED.goal(task)["lamps"]["L1"].on
    assert [message.role for message in task.gold] == ["assistant", "user", "assistant"]
    assert task.turns == (say("Please push the switch."), say("Good."))
    assert task.actions == ()


def test_agent_and_user_act_on_one_state() -> None:
    episode = play(PUSHED, dark())
    assert [m.content for m in episode.messages if m.role == "user"] == ["It is dark.", "Lamp L1 is on."]
    assert episode.score.parts["state"] == 1.0
    assert episode.score.reward == 1.0


def test_what_the_user_does_needs_no_consent_and_is_no_violation() -> None:
    assert play(PUSHED, dark()).score.parts["policy"] == 1.0


def test_calls_of_a_user_without_tools_are_a_fault_of_the_task() -> None:
    with pytest.raises(TaskError, match=r"task toy/dark: the user calls push, but toy has no tools for users"):
        TOY.goal(dark())


def test_a_refused_call_of_the_user_is_a_fault_of_the_task() -> None:
    wrong = dark().replace(id="toy/pull", gold=(Message(role="user", tool_calls=(ToolCall(name="pull"),)),))
    with pytest.raises(TaskError, match="the gold call pull"):
        PUSHED.goal(wrong)
