"""Test environments of verifiers, which it plays with our sampler: its rewards, its tools, and every sampled token."""

import asyncio
import sys
from pathlib import Path

import pytest

from support.replying import ReplySampler
from support.software import verifiers_python
from support.tiny_runs import make_tiny_model
from understudy.core.errors import ConfigError, RolloutError
from understudy.core.event_loop import gather_or_cancel, run_async
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import SPLITS
from understudy.core.trajectory import StopReason, Trajectory
from understudy.engines.interface import SamplingParams
from understudy.envs.task_source import TaskSource
from understudy.formats import FormatTokenizer
from understudy.rollouts.agent import Agent, NoopAgent, RefusingAgent
from understudy.rollouts.program import ProgramAgent, ProgramEpisode
from understudy.rollouts.rollout import EpisodeLimits, Player, play_episode
from understudy.runs.config import parse_config
from understudy.runs.targets import load
from understudy.serve.generation import ServedModel
from understudy.sources.environments import verifiers

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


FAKE = """\
#!{python}
import json, sys
config = json.loads(sys.argv[3])["env"]["taskset"]
if "--list" in sys.argv:
    print(json.dumps({{"prompt": "Say a.", "system": ""}}))
    print(json.dumps({{"end": True}}))
    sys.exit()
requests = [json.loads(sys.stdin.readline()) for _ in range(int(config.get("waits", 1)))]
if "broken" in config and not __import__("os").path.exists("broken"):
    open("broken", "w").close()
    print("x" * 10, file=sys.stderr)
    sys.stdout.write(config["broken"] * int(config["count"]) + "\\n")
    sys.stdout.flush()
    sys.stdin.read()
while True:
    for request in requests:
        print(json.dumps({{"number": request["number"], "reward": float(config.get("level", 1))}}), flush=True)
    requests = [json.loads(sys.stdin.readline())]
"""
"""A Python that answers as the runner does, without verifiers."""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the beginning of a reference to an environment of FAKE."""
    monkeypatch.chdir(tmp_path)
    python = tmp_path / "fake-python"
    python.write_text(FAKE.format(python=sys.executable))
    python.chmod(0o755)
    return f"verifiers:{python}#game"


async def play_with(source: TaskSource) -> float:
    """Return the reward of an episode, as its program gets it."""
    (task,) = [task for split in SPLITS for task in source.tasks(split)]
    environment = source.environment(task)
    await environment.start()
    text = await verifiers.play(ProgramEpisode(task.id, (), "http://127.0.0.1/v1", "key", "", ""))
    score = (await environment.step(Message(role="assistant", content=text))).score
    assert score
    return score.reward


def test_environments_of_one_name_keep_their_options(fake: str) -> None:
    first, second = (load(f"{fake}&taskset.level={level}") for level in ("1", "0.25"))

    async def play_all() -> list[float]:
        return await gather_or_cancel(play_with(source) for source in (first, second, first))

    assert run_async(play_all()) == [1.0, 0.25, 1.0]


@pytest.mark.parametrize(("text", "count"), [("x", 2**24 + 9), ("[", 1), ("5", 1)], ids=["long", "no JSON", "number"])
def test_broken_result_fails_the_waiting_episodes_at_once(text: str, count: int, fake: str) -> None:
    source = load(f"{fake}&taskset.waits=2&taskset.broken={text}&taskset.count={count}")

    async def play_all() -> list[float | BaseException]:
        failed = await asyncio.gather(play_with(source), play_with(source), return_exceptions=True)
        return [*failed, *await gather_or_cancel([play_with(source), play_with(source)])]

    *failed, third, fourth = run_async(play_all())
    for error in failed:
        assert isinstance(error, RolloutError)
        assert error.fault == "environment"
        assert f"{2**24:,} bytes: xxxxxxxxxx" in str(error)
    assert (third, fourth) == (1.0, 1.0)


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
