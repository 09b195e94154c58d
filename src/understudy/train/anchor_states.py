"""Anchor states (GiGPO): the successful tool calls so far and the latest messages, before each reply of the agent.

Episodes of one task that are in the same anchor state can be compared, even if their words differ.
"""

import json
from collections.abc import Hashable, Iterator, Sequence

from understudy.core.messages import Message, ToolCall
from understudy.envs.rewards import is_failure
from understudy.rollouts.group import Group


def anchor_states(messages: Sequence[Message]) -> Iterator[Hashable]:
    """Yield the anchor state before each assistant message.

    A state is the set of successful calls so far with their results, and the messages since the last reply. Earlier
    failed calls and the agent's own words are ignored, so conversations with and without a detour reach the same
    state. A state does not depend on the reply that follows it, so the mean reward of its episodes is a valid
    baseline. As a value of one conversation this mean is an estimate, because the state omits a part of the
    conversation.
    """
    done: frozenset[str] = frozenset()
    calls: dict[str, ToolCall] = {}
    latest: list[tuple[str, str]] = []
    for message in messages:
        if message.role == "assistant":
            yield done, tuple(latest)
            calls, latest = {call.id: call for call in message.tool_calls}, []
            continue
        latest.append((message.role, message.content))
        call = calls.get(message.tool_call_id) if message.role == "tool" else None
        if call and not is_failure(message):
            done |= {json.dumps([call.name, call.arguments, message.content], sort_keys=True)}


def index_anchor_states(groups: Sequence[Group]) -> list[list[int]]:
    """Return an integer id of the anchor state for each token of each sequence of each episode.

    All tokens of a reply have the id of the anchor state before that reply. Tokens outside replies have -1. Episodes
    of different groups share no id.
    """
    known: dict[Hashable, int] = {}
    rows = []
    for number, group in enumerate(groups):
        for sequence in (sequence for episode in group.episodes for sequence in episode.sequences):
            row = [-1] * len(sequence.tokens)
            given_replies = set(sequence.given_replies)  # they have a state, and no span
            places = [i for i, message in enumerate(sequence.messages) if message.role == "assistant"]
            replies = zip(places, anchor_states(sequence.messages), strict=True)
            states = [state for place, state in replies if place not in given_replies]
            for span, state in zip(sequence.reply_spans(), states, strict=True):
                index = known.setdefault((number, state), len(known))
                row[slice(*span)] = [index] * (span[1] - span[0])
            rows.append(row)
    return rows
