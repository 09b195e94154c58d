"""Tests of the scripted user: its replies, its patience, and when it gives consent."""

import asyncio
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.core.messages import Message
from understudy.core.tasks import Fact, Scenario, UserGoal
from understudy.domains.retail import DOMAIN
from understudy.envs.users import MAX_PROPOSAL_ITEMS, OpeningOnlyUser, ScriptedUser, asks_for_consent, gives_consent
from understudy.envs.users.scripted import SILENCE_TEXTS

EMAIL = Fact(text="My email is amy@mail.com.", keywords=("email", "e-mail"))
WRONG = Fact(text="It is order W2.", keywords=("which order", "order number"))
RIGHT = Fact(text="Sorry, it is order W1.", keywords=WRONG.keywords)
CANCEL = UserGoal(
    text="I want to cancel order W1.",
    required_terms=("W1", "cancel|cancelling|cancellation"),
    facts=(WRONG, RIGHT, Fact(text="I do not need it.", keywords=("why", "reason"))),
)
PRICE = UserGoal(text="How much was the lamp?", kind="number")
STATUS = UserGoal(text="Where is order W3?", kind="text")
GOOD = "I will cancel order W1. Do you confirm?"


def make_user(*goals: UserGoal, facts: tuple[Fact, ...] = (EMAIL,), patience: int = 3, **fields: Any) -> ScriptedUser:
    scenario = Scenario(
        instructions="", opening="Hi.", facts=facts, goals=goals or (CANCEL,), patience=patience, **fields
    )
    return ScriptedUser(scenario, seed=0)


def replies_to(speaker: ScriptedUser, *texts: str) -> list[str | None]:
    return [speaker.respond_to(text) for text in texts]


def test_user_starts_with_opening() -> None:
    assert asyncio.run(make_user().reply(())) == "Hi."
    said = Message(role="assistant", content="What is your email?")
    assert asyncio.run(make_user().reply([said])) == EMAIL.text


def test_opening_only_user_sends_one_message() -> None:
    assert asyncio.run(OpeningOnlyUser("Go.").reply(())) == "Go."
    assert asyncio.run(OpeningOnlyUser("Go.").reply([Message(role="assistant", content="x")])) is None


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
def test_fact_is_given_when_asked(text: str) -> None:
    assert make_user().respond_to(text) == EMAIL.text


@pytest.mark.parametrize("text", ["I sent an email.", "Hello!", "Which colour?"])
def test_fact_is_not_given_unasked(text: str) -> None:
    assert make_user().respond_to(text) == CANCEL.text


def test_several_facts_are_given_in_one_reply() -> None:
    assert make_user().respond_to("What are your email and your order number?") == f"{EMAIL.text} {WRONG.text}"


def test_wrong_fact_is_corrected_when_asked_again() -> None:
    ask = "Which order is it?"
    assert replies_to(make_user(), ask, ask, ask, ask) == [WRONG.text, RIGHT.text, RIGHT.text, RIGHT.text]
    assert replies_to(make_user(patience=1), ask, ask, ask) == [WRONG.text, RIGHT.text, None]


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        "Order W1 is pending. I can cancel it, reason: no longer needed. Would you like me to go ahead?",
        "This cannot be undone. I will cancel order W1. Shall I proceed?",
        "I will cancel order W1, which cannot be undone. Shall I proceed?",
        "To proceed with the cancellation of order W1, please confirm.",
        "**Order W1**: cancellation, refund $20.00 to card_1. Is that correct?",
        "Unfortunately, it is accepted already, so I will cancel order W1 for a fee of 5.00. Do you confirm?",
        "I'm unable to change it, but I can cancel order W1. Shall I proceed?",
        "I will cancel order W1, after which it can no longer be changed. Shall I proceed?",
        "I will cancel order W1 of 2025-05-19 12:00 and 2025-05-22 13:55 (10.50, 20.75 and 31.25). Shall I proceed?",
    ],
)
def test_user_consents_to_matching_proposal(text: str) -> None:
    answer = make_user().respond_to(text)
    assert answer is not None
    assert gives_consent(answer)
    assert asks_for_consent(text)


@pytest.mark.parametrize(
    "text",
    [
        "I will cancel order W2. Do you confirm?",
        "I will return order W1. Do you confirm?",
        "I will cancel order W11. Do you confirm?",
        "Do you confirm?",
        "I cannot cancel order W1. Would you like to return it?",
        "I will cancel order W1.",
        "Unfortunately, I cannot cancel order W1, so I will transfer you. Do you confirm?",
        "I can see order W1. I'm afraid I can't cancel it. Do you confirm?",
        "I can cancel order W1 or W2. Which one would you like?",
        "I will cancel " + ", ".join(f"W{n}" for n in range(1, MAX_PROPOSAL_ITEMS + 2)) + ". Do you confirm?",
    ],
)
def test_user_does_not_consent_to_other_texts(text: str) -> None:
    answer = make_user().respond_to(text)
    assert answer is None or not gives_consent(answer)


def test_user_corrects_wrong_proposal() -> None:
    wrong = "I will cancel order W2. Do you confirm?"
    *answers, last = replies_to(make_user(), wrong, wrong, wrong)
    assert all(answer.startswith("No") and answer.endswith(f" {CANCEL.text}") for answer in answers)
    assert last is None


def test_user_leaves_after_all_goals_are_settled() -> None:
    yes, end = replies_to(make_user(), GOOD, "Done. The order is cancelled. Is there anything else I can help with?")
    assert yes is not None
    assert end is None


def test_next_goal_follows_report_of_previous_goal() -> None:
    speaker = make_user(CANCEL, PRICE, STATUS)
    yes, *rest = replies_to(speaker, GOOD, "Done, 20.00 is refunded.", "It was 9.90.", "Order W3 is shipped.")
    assert yes is not None
    assert rest == [PRICE.text, STATUS.text, None]


def test_user_consents_once_for_each_goal() -> None:
    other = UserGoal(text="Cancel W2, too.", required_terms=("W2", "cancel"))
    speaker = make_user(CANCEL, other)
    both = "I will cancel W1 and W2. Do you confirm?"
    first, again, report, last = replies_to(speaker, both, both, "Done.", "Done.")
    assert first is not None
    assert again is not None
    assert gives_consent(first)
    assert gives_consent(again)
    assert (report, last) == (None, None)


def test_repeated_proposal_costs_patience() -> None:
    assert [a is None for a in replies_to(make_user(), GOOD, GOOD, GOOD, GOOD)] == [False, False, False, True]


@pytest.mark.parametrize(
    "text",
    [
        "Order W1 is delivered, so I cannot cancel it.",
        "Unfortunately, order W1 is no longer eligible for cancellation.",
        "Only orders with the status 'pending' can be cancelled. Would you like to return it instead?",
        "I'm unable to cancel order W1 as it has shipped. Is there anything else I can do?",
        "I won't be able to cancel order W1.",
        "Our policy does not allow me to cancel order W1.",
        "I am not authorized to cancel order W1.",
        "It has shipped, so I must decline.",
        "Order W1 is delivered, which is why I can't cancel it.",
        "Order W1 can no longer be cancelled.",
        "Order W1 has shipped, so no changes are possible.",
        "Order W1 doesn't qualify for this.",
    ],
)
def test_user_accepts_refusal(text: str) -> None:
    assert make_user().respond_to(text) is None
    assert make_user(CANCEL, PRICE).respond_to(text) == PRICE.text


def test_contesting_user_contests_refusal_once() -> None:
    contested, accepted = replies_to(make_user(CANCEL.replace(contests_refusal=True)), *["I cannot cancel it."] * 2)
    assert contested is not None
    assert "exception" in contested
    assert accepted is None


def test_refusal_after_consent_does_not_settle_next_goal() -> None:
    _, after, end = replies_to(make_user(CANCEL, PRICE), GOOD, "I cannot cancel it, it is shipped.", "It was 9.90.")
    assert (after, end) == (PRICE.text, None)


@pytest.mark.parametrize("text", ["Let me look it up.", "Order W1 has it.", "Is it the blue one?", "Thank you."])
def test_question_is_repeated_until_answer_has_number(text: str) -> None:
    assert make_user(PRICE).respond_to(text) == PRICE.text


def test_announcement_does_not_count_as_answer() -> None:
    assert replies_to(make_user(STATUS), "Let me check that.", "It is shipped.") == [STATUS.text, None]


@pytest.mark.parametrize("text", ["You are being transferred to a human agent.", "I am transferring you now."])
def test_user_leaves_on_transfer(text: str) -> None:
    assert make_user(CANCEL, PRICE).respond_to(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "Shall I transfer you to a human agent?",
        "The refund is transferred to your card.",
        "I have transferred the prescription to Elm Pharmacy for you.",
    ],
)
def test_mention_of_transfer_does_not_end_conversation(text: str) -> None:
    assert str(make_user().respond_to(text)).endswith(CANCEL.text)


def test_empty_reply_costs_patience() -> None:
    first, second, last = replies_to(make_user(), "", " ", "\n")
    assert {first, second} <= set(SILENCE_TEXTS)
    assert last is None


def test_persona_changes_wording_of_reply() -> None:
    chatty = make_user(persona="chatty").respond_to("What is your email?")
    assert chatty is not None
    assert chatty.endswith(EMAIL.text)
    assert chatty != EMAIL.text
    assert gives_consent(make_user(persona="terse").respond_to(GOOD) or "")


SCENARIOS = [t.scenario for t in DOMAIN.sample("train", 84, seed=7)]
_FRAGMENTS = [
    *("Do you confirm?", "Shall I proceed?", "I cannot do that.", "This cannot be undone.", "Done.", "Let me check."),
    *("What is your email?", "Which order is it?", "Why?", "the new address", "which item", "order number", "please"),
    *("I will", "cancel", "return", "exchange", "change", "refund", "order", "confirm", "yes", "?", ".", "9.90"),
    *("anything else?", "transfer", "human agent"),
]


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Scenario, list[str]]:
    """Draw a scenario and agent texts composed of the words that its user reacts to."""
    scenario = draw(st.sampled_from(SCENARIOS))
    names = [alternative for goal in scenario.goals for name in goal.required_terms for alternative in name.split("|")]
    cues = [cue for goal in scenario.goals for fact in goal.facts for cue in fact.keywords]
    fragment = st.sampled_from([*_FRAGMENTS, *names, *cues]) | st.text(max_size=8)
    texts = st.lists(fragment, max_size=12).map(" ".join)
    return scenario, draw(st.lists(texts, min_size=1, max_size=60))


def _matches_goal(scenario: Scenario, text: str) -> bool:
    """Return whether a text contains every required term of an action goal as whole words."""
    words = f" {re.sub(r'[^a-z0-9_ ]', ' ', text.casefold())} "
    return any(
        goal.kind == "action"
        and all(any(_contains_words(form, words) for form in name.split("|")) for name in goal.required_terms)
        for goal in scenario.goals
    )


def _contains_words(form: str, words: str) -> bool:
    return all(f" {part} " in words for part in re.sub(r"[^a-z0-9_ ]", " ", form.casefold()).split())


@settings(max_examples=200, deadline=None)
@given(conversations(), st.integers(0, 3))
def test_consent_always_requires_matching_proposal(conversation: tuple[Scenario, list[str]], seed: int) -> None:
    scenario, texts = conversation
    speaker = ScriptedUser(scenario, seed)
    for text in texts:
        answer = speaker.respond_to(text)
        if answer is None:
            break
        assert not gives_consent(answer) or (_matches_goal(scenario, text) and asks_for_consent(text))


@settings(max_examples=100, deadline=None)
@given(conversations())
def test_conversation_ends_for_any_agent_texts(conversation: tuple[Scenario, list[str]]) -> None:
    scenario, texts = conversation
    speaker = ScriptedUser(scenario)
    facts = len(scenario.facts) + sum(len(goal.facts) for goal in scenario.goals)
    bound = facts + 4 * len(scenario.goals) + scenario.patience
    answers = [speaker.respond_to(texts[i % len(texts)]) for i in range(bound)]
    assert None in answers


@settings(max_examples=50, deadline=None)
@given(conversations(), st.integers(0, 3))
def test_same_seed_gives_same_replies(conversation: tuple[Scenario, list[str]], seed: int) -> None:
    scenario, texts = conversation
    assert replies_to(ScriptedUser(scenario, seed), *texts) == replies_to(ScriptedUser(scenario, seed), *texts)
