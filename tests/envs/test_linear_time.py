"""Test that reading a text takes time linear in its length, for texts that models can be made to write."""

import time
from collections.abc import Callable

import pytest

from support.proposals import CANCEL, after_proposal, call, kinds, say, user
from understudy import load
from understudy.clients.completions import ChatCompletion
from understudy.core.messages import Message
from understudy.envs.environment import ConfirmedWrite
from understudy.envs.users import consent, draft
from understudy.envs.users.scripted import ScriptedUser

SIZE = 200_000
PARTS = 8
SECONDS = 1.0
"""The part of the time that does not count. Quadratic time would be at least ten seconds."""
SENTENCES = "".join(f"I cannot do {k}. " for k in range(8_000))
"""Different refusals."""
STARTS = ("", "Please confirm: ", "Please tell me ", "I cannot ")
UNITS = ("a", "1", " ", "_", "é", ",", "yes, ", "'", '"', "#", "<think>", "I ", "transfer ", "only ")


def hear(text: str) -> None:
    ScriptedUser(load("retail").tasks("train")[0].scenario).respond_to(text)


def read_as_user(text: str) -> None:
    draft.parse_user_message(ChatCompletion(message=Message(role="assistant", content=text)))


def find_violations_of_proposal(text: str) -> None:
    after_proposal(f"I will cancel order W1, {text}")


def find_violations_of_claim(text: str) -> None:
    """Compare a claim with the refund that a write's result shows."""
    start = [user("Please help."), say("I will cancel order W1. Shall I?"), user("Yes.")]
    transcript = [*start, *call(CANCEL, '{"refund": "31.25"}'), say(f"I did refund {text}")]
    kinds(transcript, [ConfirmedWrite(CANCEL, 3, 2)])


def find_contradictions(text: str) -> None:
    kinds([user("How many?"), say(f"The number is 1. {text}")], outputs=["1"])


READERS: tuple[Callable[[str], object], ...] = (
    hear,
    read_as_user,
    draft.strip_thinking,
    consent.asks_for_consent,
    consent.gives_consent,
    consent.declines,
    find_violations_of_proposal,
)


def seconds(read: Callable[[str], object], text: str) -> float:
    begin = time.process_time()
    read(text)
    return time.process_time() - begin


def is_linear(read: Callable[[str], object], text: str) -> bool:
    """Return whether a text takes at most twice as long as its length says, compared with its first eighth here and
    now: machines differ, and other programs slow them."""
    part = seconds(read, text[: len(text) // PARTS])
    return seconds(read, text) < 2 * PARTS * part + SECONDS


def test_scripted_user_hears_different_refusals_in_linear_time() -> None:
    assert is_linear(hear, SENTENCES)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (hear, "Please confirm: " + "a" * SIZE),
        (draft.strip_thinking, "<think>" * (SIZE // 7)),
        (read_as_user, "#" * SIZE),
        (read_as_user, "### " * (SIZE // 4)),
        (find_violations_of_proposal, "\n" * SIZE),
        (find_violations_of_proposal, "and " * (SIZE // 40)),
        (find_violations_of_proposal, "and refund 12.50 " * (SIZE // 50)),
        (find_violations_of_claim, "$1" + ",1" * (SIZE // 20)),
        (find_violations_of_claim, "$1,1,1,1," * (SIZE // 36)),
        (find_violations_of_claim, "and i have refunded 12.50 " * (SIZE // 260)),
        (find_violations_of_claim, "and i did refund 12.50 " * (SIZE // 230)),
        (find_violations_of_claim, "and i have cancelled order w1, w2 and the apron for 31.25. " * (SIZE // 250)),
        (find_violations_of_claim, "500.00 back to your card and a free gift " * (SIZE // 200)),
        (find_violations_of_proposal, "the order before that, (and W2) " * (SIZE // 200)),
        (find_contradictions, "1,1,1,1," * (SIZE // 80)),
        (find_contradictions, "$1or" * (SIZE // 40)),
        (find_contradictions, "word " * (SIZE // 50)),
    ],
)
def test_long_text_is_read_in_linear_time(read: Callable[[str], object], text: str) -> None:
    assert is_linear(read, text)


@pytest.mark.slow
@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("start", STARTS)
def test_long_runs_are_read_in_linear_time(read: Callable[[str], object], start: str) -> None:
    for unit in UNITS:
        assert is_linear(read, start + unit * (50_000 // len(unit))), unit


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("<think>a</think>b", "b"),
        ("a<think>b</thinking>c<THINK>d</think>e", "ace"),
        ("<think>a<think>b</think>c", "c"),
        ("a</think>b<think>c", "a</think>b<think>c"),
        ("<think>a", "<think>a"),
    ],
)
def test_thinking_is_stripped(text: str, left: str) -> None:
    assert draft.strip_thinking(text) == left
