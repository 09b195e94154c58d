"""A custom reward for an existing domain, combined with the domain's own. A recipe: see docs/extending.md.

understudy check brevity_reward:BREVITY
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from understudy.core.messages import Message
from understudy.core.tasks import Score, Task
from understudy.envs.environment import ConsentGate
from understudy.envs.grading import score_episode
from understudy.envs.state import State
from understudy.sources.references import load_domain

MAX_LENGTH = 600
"""Maximum number of characters of a reply."""


def grade_brevity(
    task: Task,
    state: State,
    gold_changes: Mapping[str, Any],
    gate: ConsentGate,
    transcript: Sequence[Message],
    ended: bool,
) -> Score:
    """Return the domain's score, with reward 0 if a reply is longer than `MAX_LENGTH`."""
    strict = score_episode(task, state, gold_changes, gate, transcript, ended)
    brevity = float(all(len(message.content) <= MAX_LENGTH for message in transcript if message.role == "assistant"))
    return strict.replace(reward=strict.reward * brevity, parts={**strict.parts, "brevity": brevity})


BREVITY = replace(load_domain("retail"), grade=grade_brevity)
