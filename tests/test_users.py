"""The scripted user: what it reacts to, and what no text of an agent can get out of it."""

import asyncio
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.domains.retail import DOMAIN
from understudy.messages import Message
from understudy.tasks import Fact, Scenario, Wish
from understudy.users import LONGEST_PROPOSAL, NoUser, ScriptedUser, asks_consent, consents

EMAIL = Fact(says="My email is amy@mail.com.", cues=("email", "e-mail"))
WRONG = Fact(says="It is order W2.", cues=("which order", "order number"))
RIGHT = Fact(says="Sorry, it is order W1.", cues=WRONG.cues)
CANCEL = Wish(
    says="I want to cancel order W1.",
    names=("W1", "cancel|cancelling|cancellation"),
    facts=(WRONG, RIGHT, Fact(says="I do not need it.", cues=("why", "reason"))),
)
PRICE = Wish(says="How much was the lamp?", kind="number")
STATUS = Wish(says="Where is order W3?", kind="text")
GOOD = "I will cancel order W1. Do you confirm?"


def user(*wishes: Wish, facts: tuple[Fact, ...] = (EMAIL,), patience: int = 3, **fields: Any) -> ScriptedUser:
    scenario = Scenario(
        instructions="", opening="Hi.", facts=facts, wishes=wishes or (CANCEL,), patience=patience, **fields
    )
    return ScriptedUser(scenario, seed=0)


def talk(speaker: ScriptedUser, *texts: str) -> list[str | None]:
    return [speaker.hear(text) for text in texts]


def test_the_opening_comes_first() -> None:
    assert asyncio.run(user().reply(())) == "Hi."
    said = Message(role="assistant", content="What is your email?")
    assert asyncio.run(user().reply([said])) == EMAIL.says


def test_no_user_says_one_thing() -> None:
    assert asyncio.run(NoUser("Go.").reply(())) == "Go."
    assert asyncio.run(NoUser("Go.").reply([Message(role="assistant", content="x")])) is None


@pytest.mark.parametrize(
    "text",
    [
        "What is your email?",
        "Could you please provide your e-mail address, so that I can find your account?",
        "I would be happy to help! Please tell me the email of your account.",
        "To find you I need your email.",
        "Can you confirm your email?",
    ],
)
def test_facts_are_told_when_asked(text: str) -> None:
    assert user().hear(text) == EMAIL.says


@pytest.mark.parametrize("text", ["I sent an email.", "Hello!", "Which colour?"])
def test_facts_are_not_told_unasked(text: str) -> None:
    assert user().hear(text) == CANCEL.says


def test_several_facts_at_once() -> None:
    assert user().hear("What are your email and your order number?") == f"{EMAIL.says} {WRONG.says}"


def test_wrong_information_is_corrected_on_asking_again() -> None:
    ask = "Which order is it?"
    assert talk(user(), ask, ask, ask, ask) == [WRONG.says, RIGHT.says, RIGHT.says, RIGHT.says]
    assert talk(user(patience=1), ask, ask, ask) == [WRONG.says, RIGHT.says, None]


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        "Order W1 is pending. I can cancel it, reason: no longer needed. Would you like me to go ahead?",
        "This cannot be undone. I will cancel order W1. Shall I proceed?",
        "I will cancel order W1, which cannot be undone. Shall I proceed?",
        "To proceed with the cancellation of order W1, please confirm.",
        "**Order W1**: cancellation, refund $20.00 to card_1. Is that correct?",
    ],
)
def test_yes_to_a_right_proposal(text: str) -> None:
    answer = user().hear(text)
    assert answer is not None
    assert consents(answer)
    assert asks_consent(text)


@pytest.mark.parametrize(
    "text",
    [
        "I will cancel order W2. Do you confirm?",
        "I will return order W1. Do you confirm?",
        "I will cancel order W11. Do you confirm?",
        "Do you confirm?",
        "I cannot cancel order W1. Would you like to return it?",
        "I will cancel order W1.",
        "Cancel order W1?",
        "I will cancel " + ", ".join(f"W{n}" for n in range(1, LONGEST_PROPOSAL + 2)) + ". Do you confirm?",
    ],
)
def test_no_yes_to_anything_else(text: str) -> None:
    answer = user().hear(text)
    assert answer is None or not consents(answer)


def test_a_wrong_proposal_is_corrected() -> None:
    wrong = "I will cancel order W2. Do you confirm?"
    assert talk(user(), wrong, wrong, wrong) == [f"No. {CANCEL.says}", f"No. {CANCEL.says}", None]


def test_the_user_leaves_when_all_is_settled() -> None:
    yes, end = talk(user(), GOOD, "Done. The order is cancelled. Is there anything else I can help with?")
    assert yes is not None
    assert end is None


def test_the_next_wish_comes_after_the_report() -> None:
    speaker = user(CANCEL, PRICE, STATUS)
    yes, *rest = talk(speaker, GOOD, "Done, 20.00 is refunded.", "It was 9.90.", "Order W3 is shipped.")
    assert yes is not None
    assert rest == [PRICE.says, STATUS.says, None]


def test_one_yes_for_one_wish() -> None:
    other = Wish(says="Cancel W2, too.", names=("W2", "cancel"))
    speaker = user(CANCEL, other)
    both = "I will cancel W1 and W2. Do you confirm?"
    first, again, report, last = talk(speaker, both, both, "Done.", "Done.")
    assert first is not None
    assert again is not None
    assert consents(first)
    assert consents(again)
    assert (report, last) == (None, None)


def test_confirming_the_same_again_costs_patience() -> None:
    assert [a is None for a in talk(user(), GOOD, GOOD, GOOD, GOOD)] == [False, False, False, True]


@pytest.mark.parametrize(
    "text",
    [
        "Order W1 is delivered, so I cannot cancel it.",
        "Unfortunately, order W1 is no longer eligible for cancellation.",
        "Only orders with the status 'pending' can be cancelled. Would you like to return it instead?",
        "I'm unable to cancel order W1 as it has shipped. Is there anything else I can do?",
    ],
)
def test_a_refusal_is_accepted(text: str) -> None:
    assert user().hear(text) is None
    assert user(CANCEL, PRICE).hear(text) == PRICE.says


def test_some_contest_a_refusal_once() -> None:
    contested, accepted = talk(user(CANCEL.replace(contests=True)), *["I cannot cancel it."] * 2)
    assert contested is not None
    assert "exception" in contested
    assert accepted is None


def test_a_refusal_after_a_yes_does_not_settle_the_next_wish() -> None:
    _, after, end = talk(user(CANCEL, PRICE), GOOD, "I cannot cancel it, it is shipped.", "It was 9.90.")
    assert (after, end) == (PRICE.says, None)


@pytest.mark.parametrize("text", ["Let me look it up.", "Order W1 has it.", "Is it the blue one?", "Thank you."])
def test_what_is_no_answer(text: str) -> None:
    assert user(PRICE).hear(text) == PRICE.says


def test_an_announcement_is_no_answer() -> None:
    assert talk(user(STATUS), "Let me check that.", "It is shipped.") == [STATUS.says, None]


@pytest.mark.parametrize("text", ["You are being transferred to a human agent.", "I am transferring you now."])
def test_the_user_leaves_on_a_handover(text: str) -> None:
    assert user(CANCEL, PRICE).hear(text) is None


@pytest.mark.parametrize("text", ["Shall I transfer you to a human agent?", "The refund is transferred to your card."])
def test_talk_of_transfers_is_no_handover(text: str) -> None:
    assert user().hear(text) is not None


def test_silence_costs_patience() -> None:
    assert talk(user(), "", " ", "\n") == ["Are you still there?"] * 2 + [None]


def test_personas() -> None:
    chatty = user(persona="chatty").hear("What is your email?")
    assert chatty is not None
    assert chatty.endswith(EMAIL.says)
    assert chatty != EMAIL.says
    assert user(persona="terse").hear(GOOD) == "Yes."


# ---- whatever an agent says ----

SCENARIOS = [t.scenario for t in DOMAIN.sample("train", 84, seed=7)]
_FRAGMENTS = [
    *("Do you confirm?", "Shall I proceed?", "I cannot do that.", "This cannot be undone.", "Done.", "Let me check."),
    *("What is your email?", "Which order is it?", "Why?", "the new address", "which item", "order number", "please"),
    *("I will", "cancel", "return", "exchange", "change", "refund", "order", "confirm", "yes", "?", ".", "9.90"),
    *("anything else?", "transfer", "human agent"),
]


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Scenario, list[str]]:
    """A scenario, and texts that are made of just the words which its user listens to."""
    scenario = draw(st.sampled_from(SCENARIOS))
    names = [alternative for wish in scenario.wishes for name in wish.names for alternative in name.split("|")]
    cues = [cue for wish in scenario.wishes for fact in wish.facts for cue in fact.cues]
    fragment = st.sampled_from([*_FRAGMENTS, *names, *cues]) | st.text(max_size=8)
    texts = st.lists(fragment, max_size=12).map(" ".join)
    return scenario, draw(st.lists(texts, min_size=1, max_size=60))


def _names_a_wish(scenario: Scenario, text: str) -> bool:
    """What `names` says, put differently: every name is there in one of its forms, not inside a longer word."""
    words = f" {re.sub(r'[^a-z0-9_ ]', ' ', text.casefold())} "
    return any(
        wish.kind == "action" and all(any(_within(form, words) for form in name.split("|")) for name in wish.names)
        for wish in scenario.wishes
    )


def _within(form: str, words: str) -> bool:
    return all(f" {part} " in words for part in re.sub(r"[^a-z0-9_ ]", " ", form.casefold()).split())


@settings(max_examples=200, deadline=None)
@given(conversations(), st.integers(0, 3))
def test_no_text_gets_a_yes_without_a_right_proposal(conversation: tuple[Scenario, list[str]], seed: int) -> None:
    scenario, texts = conversation
    speaker = ScriptedUser(scenario, seed)
    for text in texts:
        answer = speaker.hear(text)
        if answer is None:
            break
        assert not consents(answer) or (_names_a_wish(scenario, text) and asks_consent(text))


@settings(max_examples=100, deadline=None)
@given(conversations())
def test_a_conversation_ends_whatever_the_agent_says(conversation: tuple[Scenario, list[str]]) -> None:
    scenario, texts = conversation
    speaker = ScriptedUser(scenario)
    facts = len(scenario.facts) + sum(len(wish.facts) for wish in scenario.wishes)
    bound = facts + 4 * len(scenario.wishes) + scenario.patience
    answers = [speaker.hear(texts[i % len(texts)]) for i in range(bound)]
    assert None in answers


@settings(max_examples=50, deadline=None)
@given(conversations(), st.integers(0, 3))
def test_the_same_seed_gives_the_same_words(conversation: tuple[Scenario, list[str]], seed: int) -> None:
    scenario, texts = conversation
    assert talk(ScriptedUser(scenario, seed), *texts) == talk(ScriptedUser(scenario, seed), *texts)
