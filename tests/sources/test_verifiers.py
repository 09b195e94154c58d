"""Test environments of verifiers, which it plays with our sampler: its rewards, its tools, and every sampled token."""

from pathlib import Path

import pytest

from support.replying import ReplySampler
from support.software import verifiers_python
from support.tiny_runs import make_tiny_model
from understudy.core.errors import ConfigError
from understudy.core.event_loop import gather_or_cancel, run_async
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import SPLITS
from understudy.core.trajectory import StopReason, Trajectory
from understudy.engines.interface import SamplingParams
from understudy.formats import FormatTokenizer
from understudy.rollouts.agent import Agent, NoopAgent, RefusingAgent
from understudy.rollouts.program import ProgramAgent
from understudy.rollouts.rollout import EpisodeLimits, Player, play_episode
from understudy.runs.config import parse_config
from understudy.runs.targets import load
from understudy.serve.generation import ServedModel

LIMITS = EpisodeLimits(max_retries=0)
ENVIRONMENTS = Path(__file__).parents[1] / "support" / "verifiers_envs"


@pytest.mark.parametrize("reference", ["letters", "no-such-python#letters", "python3#", "python3#letters&harnes=null"])
def test_wrong_references_are_refused(reference: str) -> None:
    with pytest.raises(ConfigError, match=r"verifiers:"):
        load(f"verifiers:{reference}")


def test_its_program_plays_the_model() -> None:
    config = parse_config('domain = "verifiers:python3#letters"', ["agent.concurrency=3"])
    assert (config.agent.function, config.agent.concurrency) == ("understudy.sources.environments.verifiers:play", 3)
    with pytest.raises(ConfigError, match="agent"):
        parse_config('domain = "verifiers:python3#letters"', ["agent.command=python3 x.py"])
    with pytest.raises(ConfigError, match="alone"):
        parse_config('domain = ["verifiers:python3#letters", "retail"]', [])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def play(tiny: Path, target: str, *games: tuple[int, Message | Agent, EpisodeLimits]) -> list[Trajectory]:
    """Play tasks at once, each given by its number, with the model's replies or another agent.

    Check that each sampled token is in one mask.
    """
    source, config = load(target), parse_config(f'domain = "{target}"', []).agent
    tasks = {task.id: task for split in SPLITS for task in source.tasks(split)}
    vocabulary = FormatTokenizer.load(tiny / "tokenizer.json")
    samplers = list[ReplySampler]()

    def player(reply: Message | Agent) -> Player:
        if not isinstance(reply, Message):
            return reply
        samplers.append(sampler := ReplySampler(tiny, lambda prompt, seed: reply))
        return ProgramAgent(config, ServedModel("tiny", sampler, sampler.format, vocabulary), SamplingParams())

    async def playing() -> list[Trajectory]:
        return await gather_or_cancel(
            play_episode(source, tasks[f"{source.name}/{number}"], player(reply), limits, seed=3)
            for number, reply, limits in games
        )

    episodes = run_async(playing())
    sampled = sum(len(tokens) for sampler in samplers for _, tokens in sampler.calls)
    assert sum(episode.num_sampled_tokens for episode in episodes) == sampled
    return episodes


@pytest.fixture
def environments(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the beginning of a reference to one of the environments in the current folder."""
    monkeypatch.chdir(ENVIRONMENTS)
    return f"verifiers:{verifiers_python()}#"


@pytest.mark.environments
def test_rewards_and_tokens_of_a_talk(tiny: Path, environments: str) -> None:
    letter, short = Message(role="assistant", content="a letter"), LIMITS.replace(max_turns=1)
    right, wrong, partly, failed, cut, noop, foreign = play(
        tiny,
        f"{environments}letters&taskset.letters=abcdefghij",
        (0, letter, LIMITS),
        (5, letter, LIMITS),
        (4, letter, LIMITS),
        (9, letter, LIMITS),
        (0, letter, short),
        (0, NoopAgent(), LIMITS),
        (0, RefusingAgent(), LIMITS),
    )
    assert [episode.reward for episode in (right, wrong, partly, cut, noop)] == [1.0, 0.0, 1.0, 0.0, 0.0]
    assert [len(episode.sequences) for episode in (right, wrong, partly)] == [1, 1, 1]
    assert [message.content for message in right.messages] == ["Spell.", "Say a.", "a letter", "Again.", "a letter"]
    assert (failed.stop_reason, failed.fault) == (StopReason.FAULT, "environment")
    assert "j has no reward" in failed.error
    assert cut.stop_reason == StopReason.MAX_TURNS
    assert (foreign.fault, foreign.error.startswith("the episodes of letters are played by verifiers")) == (
        "agent",
        True,
    )


@pytest.mark.environments
def test_tools_with_state_and_a_range_of_rewards(tiny: Path, environments: str) -> None:
    calls = [Message(role="assistant", tool_calls=(ToolCall(id="1", name="add", arguments={"n": n}),)) for n in (7, 2)]
    much, little = play(tiny, f"{environments}counter&reward_range=-1:1", *((0, reply, LIMITS) for reply in calls))
    assert [episode.reward for episode in (much, little)] == [1.0, 0.0]
    assert [message.content for message in little.messages if message.role == "tool"] == ["2", "4", "6"]


@pytest.mark.environments
def test_what_verifiers_cannot_load_is_named(environments: str) -> None:
    with pytest.raises(ConfigError, match="no_such_taskset"):
        load(f"{environments}no_such_taskset").tasks("train")
