"""Test what `check` says about training: it agrees with the checks at the start of a run."""

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.program import Call, call
from understudy.core.errors import ConfigError, TaskError
from understudy.core.messages import Message
from understudy.data.checks.check import DomainReport, TrainDemands, check_async
from understudy.evaluation.evaluate import validate_noop_reward
from understudy.runs.config import TrainConfig, parse_config
from understudy.sources.tool_dataset import ToolDataset, ToolEpisode, ToolExample
from understudy.train.phases.sft import play_gold
from understudy.train.preparation import prepare_run

__all__ = ["call"]


class Adding(ToolEpisode):
    def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    def reward(self, transcript: Sequence[Message]) -> float:
        if self.example.info.get("free"):
            return float(self.example.info["free"])
        if transcript[-1].content and self.example.info.get("gold"):
            return float(self.example.info["gold"])
        return float(self.example.answer in transcript[-1].content and bool(transcript[-1].content))


def example(number: int, **fields: object) -> ToolExample:
    given = {"prompt": f"What is {number} plus 1000?", "answer": str(number + 1000), "split": "train", **fields}
    return ToolExample.model_validate(given)


def report(*examples: ToolExample, **demands: object) -> tuple[DomainReport, ToolDataset]:
    source = ToolDataset("adding", "", examples, Adding)
    return asyncio.run(check_async(source, demands=TrainDemands(**demands))), source  # type: ignore[arg-type]


def is_accepted(source: ToolDataset, allow: bool = False) -> bool:
    try:
        asyncio.run(validate_noop_reward(source, 0, allow))
    except (ConfigError, TaskError):
        return False
    return True


def test_source_with_advice_is_accepted() -> None:
    found, source = report(example(1), example(2, info={"free": 0.5}))
    assert [group.kind for group in found.problem_groups] == ["noop_rewarded", "gold_not_rewarded"]
    assert not any(group.blocks_training for group in found.problem_groups)
    assert (found.train_refusal, found.num_blocking_tasks, found.num_advised_tasks) == ("", 0, 1)
    assert is_accepted(source)


def test_task_that_doing_nothing_solves_blocks_training_unless_it_is_allowed() -> None:
    given = (example(1), example(2, info={"free": 1.0}), example(3, info={"free": 0.5}))
    found, source = report(*given)
    assert "allow_noop_solvable=true" in found.train_refusal
    assert (found.num_blocking_tasks, found.num_advised_tasks) == (1, 1)
    assert found.problem_groups[0].blocks_training
    assert not is_accepted(source)
    allowed, source = report(*given, allow_noop_solvable=True)
    assert allowed.train_refusal == ""
    assert is_accepted(source, allow=True)


def test_source_without_train_tasks_is_refused_with_its_splits() -> None:
    found, source = report(example(1, split="test"))
    assert "1 test" in found.train_refusal
    assert not is_accepted(source)


@pytest.mark.parametrize("fields", [{"answer": ""}, {"info": {"free": 0.5}}])
def test_demonstration_that_fails_blocks_only_training_with_demonstrations(fields: dict[str, object]) -> None:
    given = (example(1), example(2, **fields))
    assert report(*given)[0].train_refusal == ""
    found, _ = report(*given, num_gold_episodes=2)
    assert "sft.steps=0" in found.train_refusal
    assert found.num_blocking_tasks == 1


def test_reward_above_1_is_named() -> None:
    found, _ = report(example(1, info={"gold": 10.0}), num_gold_episodes=1)
    assert "it is 10.0" in found.train_refusal
    assert "sft.steps" not in found.train_refusal


def test_key_without_effect_is_named_by_check_and_eval(call: Call) -> None:
    given = ("support.train_verdict:ADDING", "data.reward=support.task_rows:reward_nothing")
    for command in (("check", *given), ("eval", *given, "--agent", "noop", "--tasks", "1")):
        assert "data.reward = 'support.task_rows:reward_nothing': no effect" in call(*command)[2], command


def test_accepted_tasks_with_problems_are_to_be_corrected(call: Call) -> None:
    given = ("support.train_verdict:TYPED", "model=tiny", "format.tool_format=qwen3_coder", "sft.steps=0")
    code, text, _ = call("check", *given)
    assert (code, text.splitlines()[-1].endswith("correct the problems above first")) == (1, True)


# settings of the run, texts of the last line
CASES: Sequence[tuple[Sequence[str], Sequence[str]]] = [
    ([], ()),
    (["limits.max_turns=1"], ("limits.max_turns=",)),
    (["limits.max_turns=1", "sft.steps=0"], ()),
    (["limits.max_episode_tokens=50"], ("limits.max_episode_tokens=",)),
    (["limits.max_episode_tokens=50", "sft.steps=0"], ("limits.max_episode_tokens=",)),
    (["domain=support.train_verdict:NO_GOLD", "sft.steps=0", "limits.max_episode_tokens=50"], ("the first prompt",)),
    (["domain=support.train_verdict:ODD_NAME", "format.tool_format=glm"], ("'add up'", "format.tool_format")),
    (["domain=support.train_verdict:ODD_NAME"], ()),
    (["domain=support.train_verdict:TYPED", "format.tool_format=qwen3_coder"], ("its argument code", "hermes")),
    (["domain=support.train_verdict:TYPED", "format.tool_format=qwen3_coder", "sft.steps=0"], ()),
    (["domain=support.train_verdict:TYPED"], ()),
    (["domain=support.train_verdict:NO_USERS"], ("user.kind=instruction",)),
    (["domain=support.train_verdict:NO_USERS", "user.kind=instruction"], ()),
    (["user.kind=human"], ("user.kind",)),
    (["user.kind=llm"], ("endpoints.default.model",)),
    (["domain=support.train_verdict:ONLY_TEST"], ("no train tasks",)),
    (["domain=support.train_verdict:ONLY_TRAIN"], ("eval.split",)),
]


@pytest.mark.parametrize(("settings", "parts"), CASES)
def test_last_line_of_check_agrees_with_train(settings: Sequence[str], parts: Sequence[str], call: Call) -> None:
    base = ["domain=support.train_verdict:ADDING", "model=tiny", "sft.steps=2", "sft.batch_size=2"]
    given = [*base, "sft.num_demonstrations=4", *settings]
    code, text, _ = call("check", *given)
    last = text.splitlines()[-1]
    refusal = refusal_of_train(parse_config("", given))
    accepts = "train will accept these tasks"
    assert last == f"train will refuse: {refusal}" if refusal else last.startswith(accepts)
    assert refusal or (code == 0) == (last == accepts)
    assert bool(parts) == bool(refusal)
    assert all(part in last for part in parts)


def refusal_of_train(config: TrainConfig) -> str:
    """Return why the start of a run refuses, before its model is loaded."""

    async def start() -> None:
        prepared = await prepare_run(config)
        await play_gold(config, prepared.domain, prepared.format)

    try:
        asyncio.run(start())
    except (ConfigError, TaskError) as e:
        return str(e)
    return ""


def test_gold_call_of_a_task_that_the_format_cannot_express_is_advice_or_blocks(call: Call) -> None:
    given = ["support.train_verdict:TYPED", "model=tiny", "format.tool_format=qwen3_coder", "--json"]
    for settings, blocks in (["sft.steps=0"], False), (["sft.num_demonstrations=4", "sft.steps=2"], True):
        code, text, _ = call("check", *given, *settings)
        groups = [group for group in json.loads(text)["problem_groups"] if group["kind"] == "inexpressible_call"]
        assert (code, [group["blocks_training"] for group in groups][:1]) == (1, [blocks])


def test_without_its_model_check_says_what_it_has_not_tried(call: Call) -> None:
    last = call("check", "support.train_verdict:ADDING", "model=nobody/nothing")[1].splitlines()[-1]
    assert last.startswith("train will accept these tasks, if")
    assert "nobody/nothing" in last


def test_eval_refuses_tools_and_names_gold_calls_that_the_format_cannot_express(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["model=tiny", "eval.split=train", "eval.tasks=3", "sampling.max_response_tokens=4", "limits.max_turns=1"]
    code, _, error = call("eval", "support.train_verdict:ODD_NAME", *given, "format.tool_format=glm", "--json")
    assert (code, "'add up'" in error) == (2, True)
    for tool_format, named in ("qwen3_coder", True), ("hermes", False):
        code, _, error = call(
            "eval", "support.train_verdict:TYPED", *given, f"format.tool_format={tool_format}", "--json"
        )
        assert code == 0
        assert (re.search(r"^3 of 3 tasks.*argument code", error, re.MULTILINE) is not None) == named
