"""Tests of anchor states and of the turn-level advantages computed from them."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.groups import make_group
from understudy.algorithms.advantages import anchor_state_values, turn_advantages
from understudy.algorithms.batch import collate
from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Score
from understudy.core.trajectory import Trajectory
from understudy.runs.config import (
    AlgorithmConfig,
    parse_config,
)
from understudy.train.anchor_states import anchor_states, index_anchor_states
from understudy.train.phases.rl import collate_groups, compute_advantages

USER_MESSAGE = Message(role="user", content="Where is W1?")
OPENING = (Message(role="system", content="A shop."), USER_MESSAGE)
Turn = tuple[Message, ...]


def text_turn(text: str) -> Turn:
    return (Message(role="assistant", content=text),)


def tool_turn(name: str, answer: str, **arguments: str) -> Turn:
    call = ToolCall(name=name, arguments=arguments, id="call_1")
    return Message(role="assistant", tool_calls=(call,)), Message(role="tool", content=answer, tool_call_id="call_1")


FIND_USER = tool_turn("find_user", "Ann", email="a@b.c")
GET_ORDER = tool_turn("get_order", "pending", order_id="W1")
FAILED_CALL = tool_turn("get_order", "Error: find the customer first", order_id="W1")


def test_anchor_state_ignores_wording_and_past_failures_but_not_results() -> None:
    straight = list(anchor_states(OPENING + FIND_USER + GET_ORDER + text_turn("It is pending.")))
    detour = list(anchor_states(OPENING + FAILED_CALL + FIND_USER + GET_ORDER + text_turn("W1 has not left us.")))
    assert detour == [straight[0], detour[1], *straight[1:]]
    assert detour[1] not in straight, "a failure is seen at once"
    assert len(set(straight)) == 3
    other = list(
        anchor_states(OPENING + tool_turn("find_user", "Bob", email="b@b.c") + GET_ORDER + text_turn("It is pending."))
    )
    assert set(other) & set(straight) == {straight[0]}
    swapped = list(anchor_states(OPENING + GET_ORDER + FIND_USER + text_turn("It is pending.")))
    assert swapped[-1] != straight[-1], "the same is known, but another thing was last"
    assert swapped[-1][0] == straight[-1][0]  # type: ignore[index]


def test_anchor_state_depends_on_the_last_user_message() -> None:
    yes, no = (Message(role="user", content=text) for text in ("Yes.", "No."))
    one, two = (
        list(anchor_states((*OPENING, *text_turn("Shall I?"), answer, *text_turn("Well.")))) for answer in (yes, no)
    )
    assert one[0] == two[0]
    assert one[1] != two[1]


def episode(*turns: Turn, reward: float = 0.0) -> Trajectory:
    """Return an episode whose replies have two tokens and whose other messages have one."""
    trajectory = Trajectory(task_id="t")
    trajectory.observe(OPENING, [1, 1])
    for message in (message for turn in turns for message in turn):
        if message.role == "assistant":
            trajectory.act(message, [2, 2], [-0.1, -0.2])
        else:
            trajectory.observe([message], [3])
    trajectory.score = Score(reward=reward)
    return trajectory


def test_anchor_state_ids_are_per_reply_and_distinct_between_groups() -> None:
    rows = index_anchor_states(
        [make_group([episode(FIND_USER, GET_ORDER), episode(FAILED_CALL, FIND_USER)]), make_group([episode(FIND_USER)])]
    )
    assert rows == [[-1, -1, 0, 0, -1, 1, 1, -1], [-1, -1, 0, 0, -1, 2, 2, -1], [-1, -1, 3, 3, -1]]


def test_greeting_of_the_environment_has_no_anchor_state() -> None:
    greeting = Message(role="assistant", content="Hello!")
    greeted = Trajectory("t")
    greeted.observe([OPENING[0], greeting, USER_MESSAGE], [1, 1, 1])
    greeted.act(FIND_USER[0], [2, 2], [-0.1, -0.2])
    assert index_anchor_states([make_group([greeted])]) == [[-1, -1, -1, 0, 0]]


def test_message_of_the_environment_in_the_agents_place_has_no_anchor_state() -> None:
    noted = Trajectory("t")
    noted.observe([*OPENING[:1], USER_MESSAGE], [1, 1])
    noted.act(FIND_USER[0], [2, 2], [-0.1, -0.2])
    noted.observe([*FIND_USER[1:], Message(role="assistant", content="[handed over]"), USER_MESSAGE], [1])
    noted.act(GET_ORDER[0], [2], [-0.1])
    plain = episode(FIND_USER)
    assert (noted.num_turns, noted.reply_indices) == (2, [2, len(noted.messages) - 1])
    rows = index_anchor_states([make_group([noted, plain])])
    assert rows[0] == [-1, -1, 0, 0, -1, 1]


def group() -> list[Trajectory]:
    """Return four episodes with the same opening. Two find the customer; one of these reads the order and earns 1."""
    return [
        episode(FIND_USER, GET_ORDER, reward=1.0),
        episode(FIND_USER, text_turn("It is lost."), reward=0.0),
        episode(FAILED_CALL, text_turn("It is lost."), reward=0.0),
        episode(text_turn("Who?"), reward=1.0),
    ]


def reply_advantages(episodes: Sequence[Trajectory], *given: str) -> list[list[float]]:
    """Return the advantage of each reply of each episode."""
    chosen = parse_config("", ["algorithm.advantage_estimator=turn", *given])
    batch = collate_groups([make_group(episodes)], chosen)
    found = compute_advantages(batch, chosen).advantages
    assert found is not None
    assert not found[~batch.mask].any()
    rows = []
    for episode, row in zip(episodes, found, strict=True):
        assert all(row[start] == row[end - 1] for start, end in episode.reply_spans())
        rows.append([float(row[start]) for start, _ in episode.reply_spans()])
    return rows


def test_turn_advantages_match_hand_computed_values() -> None:
    # All four start in the same state: mean 1/2. Two have found the customer: mean 1/2. The other two share no state.
    assert reply_advantages(group()) == [[0.5, 0.5], [-0.5, -0.5], [-0.5, 0.0], [0.5]]
    # With lambda 0, finding the customer gets the mean of the next state, 1/2, minus 1/2.
    assert reply_advantages(group(), "algorithm.turn.gae_lambda=0") == [[0.0, 0.5], [0.0, -0.5], [-0.5, 0.0], [0.5]]
    # With lambda 1/2, an advantage counts half for the reply before it.
    assert reply_advantages(group(), "algorithm.turn.gae_lambda=0.5") == [
        [0.25, 0.5],
        [-0.25, -0.5],
        [-0.5, 0.0],
        [0.5],
    ]


def test_anchor_state_value_counts_a_returning_episode_once() -> None:
    around = episode(FAILED_CALL, FAILED_CALL, FAILED_CALL, reward=0.0)
    rows = index_anchor_states([make_group([around, episode(FAILED_CALL, reward=1.0)])])
    batch = collate([around, episode(FAILED_CALL, reward=1.0)], [0, 0], anchor_states=rows)
    assert batch.anchor_states is not None
    values = anchor_state_values(batch.rewards, batch.anchor_states)
    assert values[0, batch.mask[0]].tolist() == [0.5, 0.5, 0.0, 0.0, 0.0, 0.0]
    assert values[1, batch.mask[1]].tolist() == [0.5, 0.5]


CONTINUE = Message(role="user", content="Go on.")
turns = st.lists(
    st.sampled_from(
        [FIND_USER, GET_ORDER, FAILED_CALL, (*text_turn("Hm."), CONTINUE), (*text_turn("Well."), CONTINUE)]
    ),
    min_size=1,
    max_size=6,
)
groups = st.lists(st.tuples(turns, st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=8)


@given(drawn=groups, lam=st.sampled_from([0.0, 0.3, 1.0]))
@settings(deadline=None, derandomize=True)
def test_turn_advantages_are_bounded_and_add_up_to_reward_minus_mean(
    drawn: list[tuple[list[Turn], float]], lam: float
) -> None:
    episodes = [episode(*turns, reward=reward) for turns, reward in drawn]
    mean = math.fsum(reward for _, reward in drawn) / len(drawn)
    found = reply_advantages(episodes, f"algorithm.turn.gae_lambda={lam}")
    if len(drawn) == 1:
        assert not any(found[0])
    assert math.fsum(row[0] for row in found) == pytest.approx(0.0, abs=1e-5) or lam < 1
    for row, (_, reward) in zip(found, drawn, strict=True):
        assert max(map(abs, row)) <= 1.0 + 1e-6
        if lam == 0.0:
            assert math.fsum(row) == pytest.approx(reward - mean, abs=1e-5), "what a reward is shared out as adds up"
        if lam == 1.0:
            assert row[0] == pytest.approx(reward - mean, abs=1e-6), "all begin in the same situation"


def test_turn_advantages_are_zero_for_equal_rewards() -> None:
    episodes = [episode(FIND_USER, GET_ORDER, reward=0.5), episode(FAILED_CALL, reward=0.5)]
    assert reply_advantages(episodes) == [[0.0, 0.0], [0.0]]


def test_turn_estimator_rejects_group_size_1() -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.group_size = 1.*algorithm\.advantage_estimator = 'turn'"):
        AlgorithmConfig(advantage_estimator="turn", group_size=1)


def test_turn_advantages_follow_the_order_of_rows() -> None:
    numbers = [0, 0, 0, 0]
    batch = collate(group(), numbers, anchor_states=index_anchor_states([make_group(group())]))
    assert batch.anchor_states is not None
    order = [2, 0, 3, 1]
    moved = batch.select(order)
    assert moved.anchor_states is not None
    expected = turn_advantages(batch.rewards, batch.anchor_states, batch.mask, 0.5)[order]
    assert torch.equal(turn_advantages(moved.rewards, moved.anchor_states, moved.mask, 0.5), expected)
