"""Forks: an episode up to a turn is what it was, to the token, the database and the user; then it goes on otherwise."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from script import Script
from test_play import person
from toy import DOMAIN
from understudy.agent import Agent, EngineAgent, GoldAgent
from understudy.assess.forks import find_fork
from understudy.assess.sitting import Desk, Sitting, assess
from understudy.assess.stored import config_of_stored
from understudy.chat import ChatConfig
from understudy.config import EvalConfig, TrainConfig
from understudy.domains.base import Domain, find, names
from understudy.engines.base import Sampling
from understudy.engines.scripted import ScriptedSampler
from understudy.errors import ConfigError, TaskError
from understudy.fork import Fork
from understudy.formats import find as find_format
from understudy.messages import Message, ToolCall
from understudy.models import tiny_model
from understudy.play import find_task, play
from understudy.purse import Purse
from understudy.rollout import Limits, rollout
from understudy.run import Run
from understudy.tasks import Task
from understudy.trajectory import Trajectory, read_trajectories
from understudy.users import Cast, UserConfig

CONFIG = TrainConfig(domain="toy:DOMAIN", model="tiny")
CAST = Cast(UserConfig())


def played(domain: Domain, task: Task, agent: Agent, seed: int = 5) -> Trajectory:
    return asyncio.run(rollout(task, domain.environment(task, seed=seed), agent, Limits(max_turns=60), seed))


def went_on(domain: Domain, task: Task, fork: Fork, then: Agent) -> Trajectory:
    return played(domain.with_users(fork.users()), task, fork.agent(then), fork.episode.seed)


@pytest.fixture(scope="module", params=names())
def domain(request: pytest.FixtureRequest) -> Domain:
    return find(request.param)  # type: ignore[return-value]


class After(Script):
    """Says nothing, but remembers what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[Message] = []

    async def act(self, task: Task, episode: Any, new: Sequence[Message], tools: Any) -> Message:
        self.shown += new
        return await super().act(task, episode, new, tools)


def test_gold_forked_at_any_turn_earns_what_gold_earns(domain: Domain) -> None:
    for task in domain.tasks("train")[::90]:
        gold = played(domain, task, GoldAgent())
        for turn in range(1, gold.turns + 1):
            again = went_on(domain, task, Fork(gold, turn, CAST, own=True), GoldAgent())
            assert again.reward == 1.0, (task.id, turn)
            assert again.messages == gold.messages


@pytest.mark.parametrize("most", [1, 2])
def test_a_fork_after_a_limit_begins_with_what_was_shown_last(most: int) -> None:
    task = find_task(DOMAIN)
    cut = asyncio.run(rollout(task, DOMAIN.environment(task, seed=5), GoldAgent(), Limits(max_turns=most), 5))
    fork = Fork(cut, most + 1, CAST, own=True)
    assert (fork.before, fork.past) == (cut.messages, cut.messages[:-1])
    assert went_on(DOMAIN, task, fork, GoldAgent()).messages == played(DOMAIN, task, GoldAgent()).messages


def test_the_turn_is_the_first_that_may_differ(domain: Domain) -> None:
    task = max(domain.tasks("train")[:40], key=lambda task: len(task.turns))
    gold = played(domain, task, GoldAgent())
    after = After()
    other = went_on(domain, task, Fork(gold, 3, CAST, own=True), after)
    place = [i for i, message in enumerate(gold.messages) if message.role == "assistant"][2]
    assert other.messages[:place] == gold.messages[:place]
    assert other.messages[place] == Message(role="assistant")
    assert after.shown[0] == gold.messages[[i for i in range(place) if gold.messages[i].role == "assistant"][-1] + 1]
    assert other.reward == 0.0


def test_a_record_that_comes_out_otherwise_is_refused(domain: Domain) -> None:
    task = domain.tasks("train")[0]
    gold = played(domain, task, GoldAgent())
    place = next(i for i, message in enumerate(gold.messages) if message.role == "user")
    gold.messages[place] = gold.messages[place].replace(content="something else")
    with pytest.raises(TaskError, match="the user said 'something else' before turn 1, and now says"):
        went_on(domain, task, Fork(gold, 2, CAST, own=True), GoldAgent())


def sampled(task: Task, replies: Sequence[Message]) -> Trajectory:
    """An episode of the toy domain whose tokens a sampler gave."""
    return played(DOMAIN, task, model_that_says(replies))


def model_that_says(replies: Sequence[Message]) -> EngineAgent:
    format = find_format(tiny_model())
    tokens = [format.render(reply) for reply in replies]
    sampler = ScriptedSampler(map(str, range(len(tokens))), lambda text: tokens[int(text)])
    return EngineAgent(sampler, format, Sampling(max_tokens=1000))


def test_the_same_model_goes_on_with_its_own_tokens() -> None:
    task = find_task(DOMAIN)
    before = sampled(task, task.turns)
    after = went_on(DOMAIN, task, Fork(before, 2, CAST, own=True), model_that_says(task.turns[1:]))
    assert after.reward == 1.0
    assert (after.tokens, after.mask, after.messages) == (before.tokens, before.mask, before.messages)


def test_another_model_goes_on_with_tokens_of_its_own() -> None:
    task = find_task(DOMAIN)
    gold = played(DOMAIN, task, GoldAgent())  # it has none
    after = went_on(DOMAIN, task, Fork(gold, 2, CAST, own=False), model_that_says(task.turns[1:]))
    assert after.reward == 1.0
    assert after.tokens == sampled(task, task.turns).tokens


def test_another_model_is_not_given_a_call_that_could_not_be_read() -> None:
    task = find_task(DOMAIN)
    broken = Message(role="assistant", tool_calls=(ToolCall(name="f", malformed="no JSON", id="call_0_0"),))
    record = played(DOMAIN, task, Script(broken, *task.turns))
    agent = model_that_says(task.turns)
    with pytest.raises(ConfigError, match=r"turn 1 has a call that could not be read.*fork at turn 1 or before"):
        went_on(DOMAIN, task, Fork(record, 3, CAST, own=False), agent)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    task = find_task(DOMAIN)
    run = Run.create(tmp_path / "run", CONFIG)
    run.keep(4, [played(DOMAIN, task, Script(task.turns[0])), played(DOMAIN, task, GoldAgent())])
    return run.folder


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("4", "is not like 21/5@3"),
        ("4/1@x", "is not like 21/5@3"),
        ("7/1", "keeps no episodes of step 7; it does of: 4"),
        ("4/3", "has no episode 3 of step 4; it has 1 to 2"),
        ("4/2@0", "has no turn 0 to fork from; it has 1 to 3"),
        ("4/2@4", "has no turn 4 to fork from; it has 1 to 3"),
    ],
)
def test_what_cannot_be_forked(run: Path, reference: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        find_fork(str(run), reference, CONFIG)


def test_the_episodes_of_evaluations_are_forked_too(run: Path, tmp_path: Path) -> None:
    config, folder = CONFIG.replace(eval=EvalConfig(split="test", tasks=2)), tmp_path / "evals"
    asyncio.run(assess(Sitting(name="gold", agent="gold", config=config), Desk(Purse(), GoldAgent(), CAST), folder))
    episodes, _ = read_trajectories(folder / "episodes.jsonl")
    left = find_fork(str(folder), "2@2", config_of_stored(str(folder)))
    assert (left.fork.episode, left.task.id, left.task.split) == (episodes[1], episodes[1].task, "test")
    assert went_on(DOMAIN, left.task, left.fork, GoldAgent()).messages == episodes[1].messages
    with pytest.raises(ConfigError, match="whose episodes are of no step; leave out '4'"):
        find_fork(str(folder), "4/2@2", CONFIG)
    Run(run, CONFIG).keep_evaluation("000004 trained", episodes)
    assert find_fork(str(run), "000004 trained/1", CONFIG).fork.episode == episodes[0]
    with pytest.raises(ConfigError, match="keeps no episodes of '000005 trained'; it does of: 000004 trained; 4"):
        find_fork(str(run), "000005 trained/1", CONFIG)


def test_what_is_forked_in_domains_that_are_never_trained_on_goes_on_there(tmp_path: Path) -> None:
    config = TrainConfig(domain="retail", model="tiny", eval=EvalConfig(tests=("toy:DOMAIN",)))
    run, task = Run.create(tmp_path / "run", config), DOMAIN.tasks("test")[0]
    run.keep_evaluation("000000 base model of tests", [played(DOMAIN, task, GoldAgent())])
    left = find_fork(str(run.folder), "000000 base model of tests/1@2", config)
    assert (left.task, left.config.domain, left.config.slice) == (task, "mix:toy:DOMAIN", config.test_slice)
    again = find(left.config.domain).with_users(left.fork.users())
    assert asyncio.run(rollout(task, again.environment(task, seed=5), left.fork.agent(GoldAgent()), Limits(), 5)).reward


def test_a_fork_needs_a_run_and_names_its_own_task(run: Path) -> None:
    with pytest.raises(ConfigError, match="toy:DOMAIN is neither; name its folder"):
        find_fork("toy:DOMAIN", "4/1", CONFIG)
    with pytest.raises(ConfigError, match="leave out --task some"):
        find_fork(str(run), "4/1", CONFIG, "some")


def test_a_person_goes_on_as_the_agent(run: Path) -> None:
    left = find_fork(str(run), "4/1@2", CONFIG)
    fork, task = left.fork, left.task
    lamp = task.actions[0].arguments["lamp_id"]
    someone, shown = person([f"switch_lamp lamp_id={lamp} on=true", f"Lamp {lamp} is on."])
    episode = play(DOMAIN, task, person=someone, fork=fork)
    assert episode is not None
    assert episode.reward == 1.0
    assert episode.seed == fork.episode.seed
    assert task.turns[0].content in shown[0]
    assert "Yes" in shown[1], "what the agent is shown at its turn"


def test_a_person_goes_on_as_the_user(run: Path) -> None:
    left = find_fork(str(run), "4/2@2", CONFIG)
    fork, task = left.fork, left.task
    someone, shown = person([""])
    episode = play(DOMAIN, task, "user", person=someone, fork=fork)
    assert episode is not None
    assert episode.reward == 1.0, "gold went on"
    assert any(text.startswith("\nagent | Lamp") for text in shown)


def test_nobody_looks_on(run: Path) -> None:
    task = find_task(DOMAIN)
    someone, shown = person([])
    episode = play(DOMAIN, task, "nobody", person=someone)
    assert episode is not None
    assert episode.reward == 1.0
    assert sum(task.turns[0].content in text for text in shown) == 1
    assert "reward 1" in shown[-1]


def test_users_whom_a_model_plays_say_what_they_said(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = []

    class Model:
        async def reply(self, transcript: Sequence[Message]) -> str | None:
            said.append(transcript[-1].content)
            return None

    cast = Cast(UserConfig(kind="llm", chat=ChatConfig(model="any")))
    monkeypatch.setattr(Cast, "__call__", lambda *_: Model())
    fork = find_fork(str(run), "4/2@3", CONFIG).fork
    episode = went_on(DOMAIN, find_task(DOMAIN, fork.episode.task), Fork(fork.episode, 3, cast, own=True), GoldAgent())
    assert episode.messages == fork.episode.messages
    assert said == [fork.episode.messages[-1].content], "it is asked after the turn alone"
