"""Tests of training and evaluating a program that has helpers, edits its history and uses tools."""

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client

from support.tiny_runs import tiny, train_tiny_run
from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolCall
from understudy.core.trajectory import read_numbered_trajectories
from understudy.evaluation.runner import prepare_eval, run_eval
from understudy.rollouts.program import ProgramEpisode
from understudy.runs.agents import make_agent
from understudy.runs.config import parse_config
from understudy.runs.eval_spec import EvalSpec
from understudy.runs.run import episode_file, read_metrics
from understudy.runs.storage.trained_episodes import read_trained_episodes
from understudy.sources.tool_dataset import ToolDataset, ToolEpisode, ToolExample
from understudy.train.engine_support import unsupported_settings

__all__ = ["tiny"]


class LetterEpisode(ToolEpisode):
    """An episode whose reward is the share of lower-case letters in the answer."""

    def look_up(self, name: str) -> int:
        """Return a number by its name."""
        return len(name)

    def reward(self, transcript: Sequence[Message]) -> float:
        text = transcript[-1].content
        return sum("a" <= letter <= "z" for letter in text) / max(1, len(text))


CALL = ToolCall(name="look_up", arguments={"name": "a"})
EXAMPLES = [
    ToolExample(prompt=f"Word {i}?", answer="yes", gold_calls=(CALL,), split=split)
    for i, split in enumerate(["train"] * 8 + ["validation"] * 2)
]
LETTERS = ToolDataset("letters", "", EXAMPLES, LetterEpisode)


async def program(given: ProgramEpisode) -> str:
    """Ask two helpers at once, call a tool, continue one helper, and ask again with a rewritten history."""
    async with httpx2.AsyncClient(verify=False, trust_env=False, timeout=300) as client:

        async def ask(*messages: Any, **more: Any) -> Any:
            answer = await client.post(
                f"{given.base_url}/chat/completions",
                json={"model": "any", "messages": list(messages), **more},
                headers={"Authorization": f"Bearer {given.api_key}"},
            )
            return answer.raise_for_status().json()["choices"][0]["message"]

        helpers = [[{"role": "system", "content": f"Helper {i}."}, *given.prompt] for i in range(2)]
        first, second = await asyncio.gather(*(ask(*helper) for helper in helpers))
        async with Client(given.mcp_url) as tools:
            await tools.call_tool("look_up", {"name": "abc"})
        more = await ask(*helpers[0], first, {"role": "user", "content": "And?"}, temperature=0.1)
        texts = [message.get("content") or "" for message in (first, second, more)]
        summary = await ask({"role": "user", "content": f"Combine: {texts}"}, tool_choice="none")
    return "".join([*texts, summary.get("content") or ""])


SETTINGS = (
    f"domain={__name__}:LETTERS",
    f"agent.function={__name__}:program",
    *("slice.tools=", "slice.domain_policy=full", "sft.steps=0", "steps=2", "limits.max_turns=8"),
    *("limits.max_episode_tokens=4000", "certify.every=1", "algorithm.group_size=4"),
)


@pytest.mark.slow
def test_program_is_trained_and_evaluated(tiny: Path, tmp_path: Path) -> None:
    run = train_tiny_run(tmp_path / "run", tiny, *SETTINGS)
    for step, metrics in enumerate(read_metrics(run.folder, "train"), 1):
        assert metrics["rollout/sequences"] == 3
        assert metrics["rollout/turns"] == 4
        assert metrics["certify/logprob_diff_max"] < 1e-3
        episodes, damaged = read_numbered_trajectories(episode_file(run.folder, step))
        assert not damaged
        trained = read_trained_episodes(run.folder, step)
        assert trained
        for number, data in trained.items():
            episode = episodes[number]
            assert sorted(len(sequence.reply_indices) for sequence in episode.sequences) == [1, 1, 2]
            assert episode.event_counts["program/overridden"] == 1
            assert len(data.logprobs) == episode.num_sampled_tokens
            sampled = [
                logprob
                for sequence in episode.sequences
                for logprob, mask in zip(sequence.logprobs, sequence.mask, strict=True)
                if mask
            ]
            assert list(data.logprobs) == pytest.approx(sampled, abs=1e-3)
    spec = EvalSpec(name="x", agent="model", checkpoint=str(run.last_checkpoint), config=run.config)
    context = prepare_eval(spec, None, run.config.cost_limit, 4)
    report = asyncio.run(run_eval(spec, context))
    (row,) = report.agent_rows
    assert row.result.mean_turns == 4
    assert not math.isnan(row.result.success_rate.mean)


@pytest.mark.parametrize(
    ("setting", "key"),
    [("algorithm.preset=ppo", "algorithm.advantage_estimator"), ("engine.kind=skyrl", "agent")],
)
def test_what_programs_do_not_support_is_refused(setting: str, key: str) -> None:
    config = parse_config("", ["agent.command=python agent.py", setting])
    assert key in [unsupported.key for unsupported in unsupported_settings(config)]


def test_program_gives_no_single_replies() -> None:
    config = parse_config("", ["agent.command=python agent.py"])
    with pytest.raises(ConfigError, match=r"\bpython agent\.py\b.*agent\.command"):
        make_agent("model", config)
