"""Tests of forks: an episode is replayed up to a turn and then continued by any agent or user."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.run_evaluations import write_run_evaluation
from support.script import Script
from support.terminal import scripted_player
from toy import DOMAIN
from understudy.cli.play import play_interactively, select_task
from understudy.clients.chat import EndpointConfig
from understudy.clients.cost import CostTracker
from understudy.core.errors import ConfigError, TaskError
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Task
from understudy.core.trajectory import Branch, Trajectory, read_trajectories
from understudy.engines.interface import SamplingParams
from understudy.engines.models import tiny_model
from understudy.engines.scripted import ScriptedSampler
from understudy.envs.domain import Domain
from understudy.envs.users import UserConfig, UserSimulatorFactory
from understudy.envs.users.consent import gives_consent
from understudy.evaluation.forks import resolve_fork
from understudy.evaluation.runner import EvalContext, load_eval_tasks, run_eval
from understudy.formats import load_chat_format
from understudy.rollouts.agent import Agent, EngineAgent, GoldAgent
from understudy.rollouts.fork import Fork, fork_at
from understudy.rollouts.group import Group
from understudy.rollouts.rollout import EpisodeLimits, rollout
from understudy.runs.config import EvalConfig, TrainConfig
from understudy.runs.eval_spec import EvalSpec
from understudy.runs.run import Run
from understudy.runs.targets import find_target, resolve
from understudy.sources.loading import load_source
from understudy.sources.references import list_domains

CONFIG = TrainConfig(domain="toy:DOMAIN", model="tiny")
USERS = UserSimulatorFactory(UserConfig())


def play(domain: Domain, task: Task, agent: Agent, seed: int = 5) -> Trajectory:
    return asyncio.run(rollout(task, domain.environment(task, seed=seed), agent, EpisodeLimits(max_turns=60), seed))


def resume_fork(domain: Domain, task: Task, fork: Fork, then: Agent) -> Trajectory:
    return play(domain.with_users(fork.make_user_factory()), task, fork.make_agent(then), fork.episode.seed)


@pytest.fixture(scope="module", params=list_domains())
def domain(request: pytest.FixtureRequest) -> Domain:
    return load_source(request.param)  # type: ignore[return-value]


class RecordingAgent(Script):
    """An agent that replies with empty messages and records the messages it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[Message] = []

    async def act(self, task: Task, episode: Any, new: Sequence[Message], tools: Any) -> Message:
        self.shown += new
        return await super().act(task, episode, new, tools)


@pytest.mark.sweep
def test_gold_forked_at_some_turn_earns_the_gold_reward(domain: Domain) -> None:
    for number, task in enumerate(domain.tasks("train")[::150]):
        gold = play(domain, task, GoldAgent())
        for turn in {1, *range(2 + number, gold.num_turns, 3), gold.num_turns}:
            again = resume_fork(domain, task, Fork(gold, turn, USERS, same_model=True), GoldAgent())
            assert again.reward == 1.0, (task.id, turn)
            assert again.messages == gold.messages


@pytest.mark.parametrize("most", [1, 2])
def test_fork_after_a_turn_limit_starts_with_the_last_messages(most: int) -> None:
    task = select_task(DOMAIN)
    cut = asyncio.run(rollout(task, DOMAIN.environment(task, seed=5), GoldAgent(), EpisodeLimits(max_turns=most), 5))
    fork = Fork(cut, most + 1, USERS, same_model=True)
    assert (fork.messages_before_turn, fork.messages_up_to_last_reply) == (cut.messages, cut.messages[:-1])
    assert resume_fork(DOMAIN, task, fork, GoldAgent()).messages == play(DOMAIN, task, GoldAgent()).messages


def test_fork_replays_all_turns_before_the_forked_turn(domain: Domain) -> None:
    task = max(domain.tasks("train")[:40], key=lambda task: len(task.gold_turns))
    gold = play(domain, task, GoldAgent())
    after = RecordingAgent()
    other = resume_fork(domain, task, Fork(gold, 3, USERS, same_model=True), after)
    place = [i for i, message in enumerate(gold.messages) if message.role == "assistant"][2]
    assert other.messages[:place] == gold.messages[:place]
    assert other.messages[place] == Message(role="assistant")
    assert after.shown[0] == gold.messages[[i for i in range(place) if gold.messages[i].role == "assistant"][-1] + 1]
    assert other.reward == 0.0


def test_fork_raises_when_the_replay_differs_from_the_record(domain: Domain) -> None:
    task = domain.tasks("train")[0]
    gold = play(domain, task, GoldAgent())
    place = next(i for i, message in enumerate(gold.messages) if message.role == "user")
    gold.messages[place] = gold.messages[place].replace(content="something else")
    with pytest.raises(TaskError, match=r"'something else'.*\bturn 1\b"):
        resume_fork(domain, task, Fork(gold, 2, USERS, same_model=True), GoldAgent())


def test_fork_raises_when_the_replay_lacks_a_message_of_the_record(domain: Domain) -> None:
    task = domain.tasks("train")[0]
    gold = play(domain, task, GoldAgent())
    place = gold.reply_indices[1]
    gold.messages.insert(place, Message(role="user", content="One more thing."))
    with pytest.raises(TaskError, match=r"before turn 2 there were \d+ messages, and now there are \d+"):
        resume_fork(domain, task, Fork(gold, 3, USERS, same_model=True), GoldAgent())


def sampled_episode(task: Task, replies: Sequence[Message]) -> Trajectory:
    """Return an episode of the toy domain with the tokens of a scripted sampler."""
    return play(DOMAIN, task, scripted_model(replies))


def scripted_model(replies: Sequence[Message]) -> EngineAgent:
    format = load_chat_format(tiny_model())
    tokens = [format.encode_reply(reply) for reply in replies]
    sampler = ScriptedSampler(map(str, range(len(tokens))), lambda text: tokens[int(text)])
    return EngineAgent(sampler, format, SamplingParams(max_response_tokens=1000))


def test_fork_with_the_same_model_keeps_its_tokens() -> None:
    task = select_task(DOMAIN)
    before = sampled_episode(task, task.gold_turns)
    sampled = [token for token, is_sampled in zip(before.tokens, before.mask, strict=True) if is_sampled]
    before.sampling_masks = [(token, 300 + i) for i, token in enumerate(sampled)]
    after = resume_fork(DOMAIN, task, Fork(before, 2, USERS, same_model=True), scripted_model(task.gold_turns[1:]))
    assert after.reward == 1.0
    assert (after.tokens, after.mask, after.messages) == (before.tokens, before.mask, before.messages)
    start, end = next(before.reply_spans())
    replayed = end - start
    assert after.sampling_masks[:replayed] == before.sampling_masks[:replayed]
    assert after.sampling_masks[replayed:] == [()] * (len(sampled) - replayed), "the other turns were sampled anew"


def test_fork_with_another_model_retokenizes_the_messages() -> None:
    task = select_task(DOMAIN)
    gold = play(DOMAIN, task, GoldAgent())  # the gold agent has no tokens
    after = resume_fork(DOMAIN, task, Fork(gold, 2, USERS, same_model=False), scripted_model(task.gold_turns[1:]))
    assert after.reward == 1.0
    assert after.tokens == sampled_episode(task, task.gold_turns).tokens


def test_fork_with_another_model_rejects_an_unparsed_call() -> None:
    task = select_task(DOMAIN)
    broken = Message(role="assistant", tool_calls=(ToolCall(name="f", parse_error="no JSON", id="call_0_0"),))
    record = play(DOMAIN, task, Script(broken, *task.gold_turns))
    agent = scripted_model(task.gold_turns)
    with pytest.raises(ConfigError, match=r"\bturn 1\b"):
        resume_fork(DOMAIN, task, Fork(record, 3, USERS, same_model=False), agent)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    task = select_task(DOMAIN)
    run = Run.create(tmp_path / "run", CONFIG)
    episodes = [play(DOMAIN, task, Script(task.gold_turns[0])), play(DOMAIN, task, GoldAgent())]
    run.save_groups(4, [Group(task, episodes)])
    return run.folder


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("4", "21/5@3"),
        ("4/1@x", "21/5@3"),
        ("7/1", r"\bstep 7\b.*: 4"),
        ("4/3", r"\b3 of step 4\b.*\b1 to 2\b"),
        ("4/2@0", r"\bturn 0\b.*\b1 to 3\b"),
        ("4/2@4", r"\bturn 4\b.*\b1 to 3\b"),
    ],
)
def test_invalid_fork_references_raise(run: Path, reference: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        resolve_fork(find_target(str(run)), reference, CONFIG)


def test_evaluation_episodes_can_be_forked(run: Path, tmp_path: Path) -> None:
    config, folder = CONFIG.replace(eval=EvalConfig(split="test", tasks=2)), tmp_path / "evals"
    asyncio.run(
        run_eval(
            EvalSpec(name="gold", agent="gold", config=config),
            EvalContext(CostTracker(), GoldAgent(), USERS, *load_eval_tasks(config)),
            folder,
        )
    )
    episodes, _ = read_trajectories(folder / "episodes.jsonl")
    resolved = resolve([str(folder)])
    left = resolve_fork(resolved.target, "2@2", resolved.config)
    assert (left.fork.episode, left.task.id, left.task.split) == (episodes[1], episodes[1].task_id, "test")
    assert resume_fork(DOMAIN, left.task, left.fork, GoldAgent()).messages == episodes[1].messages
    with pytest.raises(ConfigError, match="'4'"):
        resolve_fork(find_target(str(folder)), "4/2@2", CONFIG)
    inside = write_run_evaluation(Run(run, CONFIG), 4, "rl", episodes=episodes, tasks=DOMAIN.tasks("test"))
    assert resolve_fork(find_target(str(run)), "000004 rl/1", CONFIG).fork.episode == episodes[0]
    assert resolve_fork(find_target(str(inside)), "1", CONFIG).fork.episode == episodes[0]
    with pytest.raises(ConfigError, match=r"'000005 rl'.*: 000004 rl; 4"):
        resolve_fork(find_target(str(run)), "000005 rl/1", CONFIG)


def test_fork_of_an_ood_episode_uses_the_ood_domain(tmp_path: Path) -> None:
    config = TrainConfig(domain="retail", model="tiny", eval=EvalConfig(ood_domains=("toy:DOMAIN",)))
    run, task = Run.create(tmp_path / "run", config), DOMAIN.tasks("test")[0]
    ood = config.replace(domain="mix:toy:DOMAIN", slice=config.ood_slice)
    write_run_evaluation(
        run, 0, "base", episodes=[play(DOMAIN, task, GoldAgent())], tasks=[task], eval_set="ood", config=ood
    )
    left = resolve_fork(find_target(str(run.folder)), "000000 base ood/1@2", config)
    assert (left.task, left.config.domain, left.config.slice) == (task, "mix:toy:DOMAIN", config.ood_slice)
    again = load_source(left.config.domain).with_users(left.fork.make_user_factory())
    assert asyncio.run(
        rollout(task, again.environment(task, seed=5), left.fork.make_agent(GoldAgent()), EpisodeLimits(), 5)
    ).reward


def test_fork_rejects_a_domain_target_and_a_task_option(run: Path) -> None:
    with pytest.raises(ConfigError, match="toy:DOMAIN"):
        resolve_fork(find_target("toy:DOMAIN"), "4/1", CONFIG)
    with pytest.raises(ConfigError, match="--task some"):
        resolve_fork(find_target(str(run)), "4/1", CONFIG, "some")


def test_human_continues_a_fork_as_the_agent(run: Path) -> None:
    left = resolve_fork(find_target(str(run)), "4/1@2", CONFIG)
    fork, task = left.fork, left.task
    lamp = task.gold_calls[0].arguments["lamp_id"]
    someone, shown = scripted_player([f"switch_lamp lamp_id={lamp} on=true", f"Lamp {lamp} is on."])
    episode = play_interactively(DOMAIN, task, person=someone, fork=fork)
    assert episode is not None
    assert episode.reward == 1.0
    assert episode.seed == fork.episode.seed
    assert task.gold_turns[0].content in shown[0]
    assert gives_consent(shown[1].split("|")[-1]), "what the agent is shown at its turn"


def test_human_continues_a_fork_as_the_user(run: Path) -> None:
    left = resolve_fork(find_target(str(run)), "4/2@2", CONFIG)
    fork, task = left.fork, left.task
    someone, shown = scripted_player([""])
    episode = play_interactively(DOMAIN, task, "user", person=someone, fork=fork)
    assert episode is not None
    assert episode.reward == 1.0, "gold went on"
    assert any(text.startswith("\nagent | Lamp") for text in shown)


def test_episode_of_several_sequences_is_not_forked(run: Path) -> None:
    fork = resolve_fork(find_target(str(run)), "4/2@3", CONFIG).fork
    several = replace(fork.episode, branches=[Branch()])
    with pytest.raises(ConfigError, match=r"\b2 token sequences\b"):
        fork_at(several, 2, USERS, same_model=True)


def test_watch_mode_prints_the_episode(run: Path) -> None:
    task = select_task(DOMAIN)
    someone, shown = scripted_player([])
    episode = play_interactively(DOMAIN, task, person=someone, watch=True)
    assert episode is not None
    assert episode.reward == 1.0
    assert sum(task.gold_turns[0].content in text for text in shown) == 1
    assert "reward 1" in shown[-1]


def test_fork_replays_the_messages_of_simulated_users(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model_prompts = []

    class Model:
        async def reply(self, transcript: Sequence[Message]) -> str | None:
            model_prompts.append(transcript[-1].content)
            return None

    users = UserSimulatorFactory(UserConfig(kind="llm"), {"default": EndpointConfig(model="any")})
    monkeypatch.setattr(UserSimulatorFactory, "__call__", lambda *_: Model())
    fork = resolve_fork(find_target(str(run)), "4/2@3", CONFIG).fork
    episode = resume_fork(
        DOMAIN, select_task(DOMAIN, fork.episode.task_id), Fork(fork.episode, 3, users, same_model=True), GoldAgent()
    )
    assert episode.messages == fork.episode.messages
    assert model_prompts == [fork.episode.messages[-1].content], "it is asked after the turn alone"
