"""Situations: what is known and done in a conversation, and what was said last, before each reply of the agent.

Episodes of one task that are in the same situation can be compared there, whatever words brought them to it.
"""

import json
from collections.abc import Hashable, Iterator, Sequence

from understudy.environment import ERROR
from understudy.messages import Message, ToolCall
from understudy.trajectory import Trajectory


def situations(messages: Sequence[Message]) -> Iterator[Hashable]:
    """One for each assistant message: the calls that succeeded so far, with their results, and the messages since the
    last reply.

    Failed calls and the agent's own words count only while they are the last thing that happened. So two conversations
    are in one situation although one of them took a detour, and what an agent can still earn may differ between them:
    a situation is fit for a baseline, which any function of the past is, and a guess as a value.
    """
    done: frozenset[str] = frozenset()
    asked: dict[str, ToolCall] = {}
    latest: list[tuple[str, str]] = []
    for message in messages:
        if message.role == "assistant":
            yield done, tuple(latest)
            asked, latest = {call.id: call for call in message.tool_calls}, []
            continue
        latest.append((message.role, message.content))
        call = asked.get(message.tool_call_id) if message.role == "tool" else None
        if call and not message.content.startswith(ERROR):
            done |= {json.dumps([call.name, call.arguments, message.content], sort_keys=True)}


def numbered(episodes: Sequence[Trajectory], groups: Sequence[int]) -> list[list[int]]:
    """For each token of each episode the number of the situation in which its reply was begun; -1 where none was.

    Only episodes with one number of `groups` share situations.
    """
    known: dict[Hashable, int] = {}
    rows = []
    for episode, group in zip(episodes, groups, strict=True):
        row = [-1] * len(episode.tokens)
        for span, where in zip(episode.spans(), situations(episode.messages), strict=True):
            number = known.setdefault((group, where), len(known))
            row[slice(*span)] = [number] * (span[1] - span[0])
        rows.append(row)
    return rows
