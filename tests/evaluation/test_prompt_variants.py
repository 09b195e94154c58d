"""Other wordings of the system message."""

import asyncio

import pytest

from toy import DOMAIN
from understudy import load
from understudy.evaluation.prompt_variants import AS_WRITTEN, WORDINGS, RewordedPrompts
from understudy.rollouts.agent import GoldAgent
from understudy.rollouts.rollout import DEFAULT_LIMITS, play_episode

POLICY = """# Support

You are an agent. You do not
guess.

## Orders
- **Cancel** only pending orders,
  before they are sent.
- It is allowed once.
"""

PLAIN = """Support:

You are an agent. You do not
guess.

Orders:
Cancel only pending orders,
  before they are sent.
It is allowed once.
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (AS_WRITTEN, POLICY),
        ("plain text", PLAIN),
        ("numbered lists", POLICY.replace("- **", "1. **").replace("- It", "2. It").rstrip("\n")),
        ("unwrapped", POLICY.replace("not\nguess", "not guess").replace("orders,\n  before", "orders, before")),
        ("in tags", f"<instructions>\n{POLICY.strip()}\n</instructions>\nFollow these instructions."),
    ],
)
def test_wordings_change_the_form_only(name: str, expected: str) -> None:
    assert WORDINGS[name](POLICY) == expected


def test_shipped_wordings_differ_from_each_other_on_shipped_policies() -> None:
    policy = load("retail").domain_policy
    assert len({reword(policy) for reword in WORDINGS.values()}) == len(WORDINGS)


@pytest.mark.parametrize("name", WORDINGS)
def test_gold_earns_1_under_each_wording(name: str) -> None:
    task = DOMAIN.tasks("train")[0]
    episode = asyncio.run(play_episode(RewordedPrompts(DOMAIN, name), task, GoldAgent(), DEFAULT_LIMITS, 0))
    assert episode.reward == 1.0
    assert episode.messages[0].content == WORDINGS[name](DOMAIN.domain_policy)
