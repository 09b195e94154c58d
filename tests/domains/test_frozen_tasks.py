"""Tests of all frozen tasks of the shipped domains."""

import pytest

from support import script
from understudy.core.tasks import SPLITS
from understudy.rollouts.agent import GoldAgent, NoopAgent
from understudy.sources.references import list_domains, load_domain


@pytest.mark.slow
@pytest.mark.parametrize("name", list_domains())
def test_gold_earns_all_and_noop_nothing_on_every_task(name: str) -> None:
    domain = load_domain(name)
    tasks = [task for split in SPLITS for task in domain.tasks(split)]
    earned = {
        task.id: [script.play(domain, task, agent)[0].reward for agent in (GoldAgent(), NoopAgent())] for task in tasks
    }
    assert {task: rewards for task, rewards in earned.items() if rewards != [1.0, 0.0]} == {}
