"""A reward of your own for a domain that is there, beside the strict one. A recipe: see docs/extending.md.

understudy check brief:BRIEF
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from understudy.domains.base import find_domain, score
from understudy.environment import ConsentGate
from understudy.messages import Message
from understudy.state import State
from understudy.tasks import Score, Task

LONGEST = 600
"""Characters that a text may have."""


def brief(
    task: Task, state: State, goal: Mapping[str, Any], gate: ConsentGate, transcript: Sequence[Message], ended: bool
) -> Score:
    """What the domain gives, and nothing where a text was longer: a part that fails fails the episode."""
    strict = score(task, state, goal, gate, transcript, ended)
    kept = float(all(len(message.content) <= LONGEST for message in transcript if message.role == "assistant"))
    return strict.replace(reward=strict.reward * kept, parts={**strict.parts, "brief": kept})


BRIEF = replace(find_domain("retail"), grade=brief)
