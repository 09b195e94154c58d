"""Reads that gold does not make must not cost reward."""

import asyncio
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import toy
from understudy import load
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Difficulty, Score, Split, Task
from understudy.data.checks.check import check
from understudy.data.checks.further_reads import find_costly_read
from understudy.data.checks.probe import FixedRepliesAgent
from understudy.envs.grading import score_episode


def generate_with_reads(
    split: Split, seed: int, families: Sequence[str], difficulties: Sequence[Difficulty]
) -> Iterator[Task]:
    for task in toy.generate(split, seed, families, difficulties):
        read = ToolCall(name="find_lamp", arguments={"room": f"room{task.gold_calls[0].arguments['lamp_id'][1:]}"})
        yield task.replace(domain="read", gold=(Message(role="assistant", tool_calls=(read,)), *task.gold))


def grade_short_episodes(task: Task, *rest: Any) -> Score | float:
    transcript = rest[3]
    used = sum(message.role == "tool" for message in transcript)
    return 0.0 if used > len(task.gold_calls) else score_episode(task, *rest)


READING = dataclasses.replace(
    toy.DOMAIN,
    own_name="read",
    generate=generate_with_reads,
    task_list=tuple(itertools.islice(generate_with_reads("train", 0, ("one",), ("easy",)), 2)),
)


def reads_warnings(source: Any) -> list[str]:
    return [text for text in check(source).warnings if "find_lamp(room=" in text]


def test_a_reward_that_counts_calls_is_named_with_the_reads() -> None:
    (warning,) = reads_warnings(dataclasses.replace(READING, grade=grade_short_episodes))
    assert "gold earns 0 for 1" in warning
    assert warning.count("find_lamp(") == 1


def test_rewards_of_the_final_state_are_not_named() -> None:
    assert reads_warnings(READING) == []


@pytest.mark.parametrize("name", ["airline", "retail", "telecom", "healthcare", "doordash"])
def test_no_domain_charges_for_further_reads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[str]()
    act = FixedRepliesAgent.act

    async def count(agent: FixedRepliesAgent, *given: Any) -> Message:
        reply = await act(agent, *given)
        calls.extend(call.name for call in reply.tool_calls)
        return reply

    monkeypatch.setattr(FixedRepliesAgent, "act", count)
    source = load(name)
    tasks = source.tasks("test")
    assert asyncio.run(find_costly_read(source, tasks)) == ""
    families = {task.family: task for task in reversed(tasks)}
    assert len(calls) > 2 * sum(len(task.gold_calls) for task in families.values())
