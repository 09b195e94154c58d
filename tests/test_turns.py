"""Advantages of replies: which situations are one, what they are worth, and what that leaves of a reward."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from understudy.algorithms.advantages import situation_values, turn_advantages  # noqa: E402
from understudy.batch import collate  # noqa: E402
from understudy.config import Algorithm, TrainConfig  # noqa: E402
from understudy.errors import ConfigError  # noqa: E402
from understudy.messages import Message, ToolCall  # noqa: E402
from understudy.settings import parse  # noqa: E402
from understudy.tasks import Score  # noqa: E402
from understudy.train import with_advantages  # noqa: E402
from understudy.train.situations import numbered, situations  # noqa: E402
from understudy.trajectory import Trajectory  # noqa: E402

ASKED = Message(role="user", content="Where is W1?")
GREETED = (Message(role="system", content="A shop."), ASKED)
Talk = tuple[Message, ...]


def said(text: str) -> Talk:
    return (Message(role="assistant", content=text),)


def called(name: str, answer: str, **arguments: str) -> Talk:
    call = ToolCall(name=name, arguments=arguments, id="call_1")
    return Message(role="assistant", tool_calls=(call,)), Message(role="tool", content=answer, tool_call_id="call_1")


FOUND = called("find_user", "Ann", email="a@b.c")
READ = called("get_order", "pending", order_id="W1")
FAILED = called("get_order", "Error: find the customer first", order_id="W1")


def test_words_and_failures_are_forgotten_and_what_was_found_is_not() -> None:
    straight = list(situations(GREETED + FOUND + READ + said("It is pending.")))
    detour = list(situations(GREETED + FAILED + FOUND + READ + said("W1 has not left us.")))
    assert detour == [straight[0], detour[1], *straight[1:]]
    assert detour[1] not in straight, "a failure is seen at once"
    assert len(set(straight)) == 3
    other = list(situations(GREETED + called("find_user", "Bob", email="b@b.c") + READ + said("It is pending.")))
    assert set(other) & set(straight) == {straight[0]}
    swapped = list(situations(GREETED + READ + FOUND + said("It is pending.")))
    assert swapped[-1] != straight[-1], "the same is known, but another thing was last"
    assert swapped[-1][0] == straight[-1][0]  # type: ignore[index]


def test_what_the_user_said_last_tells_situations_apart() -> None:
    yes, no = (Message(role="user", content=text) for text in ("Yes.", "No."))
    one, two = (list(situations((*GREETED, *said("Shall I?"), answer, *said("Well.")))) for answer in (yes, no))
    assert one[0] == two[0]
    assert one[1] != two[1]


def episode(*talks: Talk, reward: float = 0.0) -> Trajectory:
    """Every reply is of two tokens, everything else of one."""
    made = Trajectory(task="t")
    made.observe(GREETED, [1, 1])
    for message in (message for talk in talks for message in talk):
        if message.role == "assistant":
            made.act(message, [2, 2], [-0.1, -0.2])
        else:
            made.observe([message], [3])
    made.score = Score(reward=reward)
    return made


def test_tokens_have_the_situation_of_their_reply_and_groups_share_none() -> None:
    rows = numbered([episode(FOUND, READ), episode(FAILED, FOUND), episode(FOUND)], [0, 0, 1])
    assert rows == [[-1, -1, 0, 0, -1, 1, 1, -1], [-1, -1, 0, 0, -1, 2, 2, -1], [-1, -1, 3, 3, -1]]


def group() -> list[Trajectory]:
    """Four episodes that begin alike: two find the customer, one of which then reads the order and earns 1."""
    return [
        episode(FOUND, READ, reward=1.0),
        episode(FOUND, said("It is lost."), reward=0.0),
        episode(FAILED, said("It is lost."), reward=0.0),
        episode(said("Who?"), reward=1.0),
    ]


def advantages(episodes: Sequence[Trajectory], *given: str) -> list[list[float]]:
    """Of each reply of each episode, which all its tokens have."""
    numbers = [0] * len(episodes)
    batch = collate(episodes, numbers, situations=numbered(episodes, numbers))
    chosen = parse(TrainConfig, "", ["algorithm.advantage=turn", *given])
    found = with_advantages(batch, chosen).advantages
    assert found is not None
    assert not found[~batch.mask].any()
    rows = []
    for episode, row in zip(episodes, found, strict=True):
        assert all(row[start] == row[end - 1] for start, end in episode.spans())
        rows.append([float(row[start]) for start, _ in episode.spans()])
    return rows


def test_advantages_of_replies_by_hand() -> None:
    # All four begin in one situation: mean 1/2. Two have found the customer: mean 1/2. The other two are alone then.
    assert advantages(group()) == [[0.5, 0.5], [-0.5, -0.5], [-0.5, 0.0], [0.5]]
    # With lam 0 finding the customer is worth what its two episodes earned, 1/2, less 1/2.
    assert advantages(group(), "algorithm.turn.lam=0") == [[0.0, 0.5], [0.0, -0.5], [-0.5, 0.0], [0.5]]
    # Between them: what comes later counts by half a reply earlier.
    assert advantages(group(), "algorithm.turn.lam=0.5") == [[0.25, 0.5], [-0.25, -0.5], [-0.5, 0.0], [0.5]]


def test_a_situation_that_an_episode_comes_back_to_counts_it_once() -> None:
    around = episode(FAILED, FAILED, FAILED, reward=0.0)
    rows = numbered([around, episode(FAILED, reward=1.0)], [0, 0])
    batch = collate([around, episode(FAILED, reward=1.0)], [0, 0], situations=rows)
    assert batch.situations is not None
    values = situation_values(batch.rewards, batch.situations)
    assert values[0, batch.mask[0]].tolist() == [0.5, 0.5, 0.0, 0.0, 0.0, 0.0]
    assert values[1, batch.mask[1]].tolist() == [0.5, 0.5]


GO_ON = Message(role="user", content="Go on.")
talks = st.lists(
    st.sampled_from([FOUND, READ, FAILED, (*said("Hm."), GO_ON), (*said("Well."), GO_ON)]), min_size=1, max_size=6
)
groups = st.lists(st.tuples(talks, st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=8)


@given(drawn=groups, lam=st.sampled_from([0.0, 0.3, 1.0]))
@settings(deadline=None, derandomize=True)
def test_for_any_group(drawn: list[tuple[list[Talk], float]], lam: float) -> None:
    episodes = [episode(*talk, reward=reward) for talk, reward in drawn]
    mean = math.fsum(reward for _, reward in drawn) / len(drawn)
    found = advantages(episodes, f"algorithm.turn.lam={lam}")
    if len(drawn) == 1:
        assert not any(found[0])
    assert math.fsum(row[0] for row in found) == pytest.approx(0.0, abs=1e-5) or lam < 1
    for row, (_, reward) in zip(found, drawn, strict=True):
        assert max(map(abs, row)) <= 1.0 + 1e-6
        if lam == 0.0:
            assert math.fsum(row) == pytest.approx(reward - mean, abs=1e-5), "what a reward is shared out as adds up"
        if lam == 1.0:
            assert row[0] == pytest.approx(reward - mean, abs=1e-6), "all begin in the same situation"


def test_equal_rewards_are_worth_nothing_anywhere() -> None:
    episodes = [episode(FOUND, READ, reward=0.5), episode(FAILED, reward=0.5)]
    assert advantages(episodes) == [[0.0, 0.0], [0.0]]


def test_a_group_of_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"algorithm.group_size = 1: algorithm.advantage = 'turn' compares"):
        Algorithm(advantage="turn", group_size=1)


def test_rows_of_any_device_and_order_have_their_values() -> None:
    numbers = [0, 0, 0, 0]
    batch = collate(group(), numbers, situations=numbered(group(), numbers))
    assert batch.situations is not None
    order = [2, 0, 3, 1]
    moved = batch.rows(order)
    assert moved.situations is not None
    expected = turn_advantages(batch.rewards, batch.situations, batch.mask, 0.5)[order]
    assert torch.equal(turn_advantages(moved.rewards, moved.situations, moved.mask, 0.5), expected)
