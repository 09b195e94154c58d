"""Test the recipes of docs/extending.md in `examples/recipes`."""

import asyncio
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.data_kit import json_values
from support.endpoint import make_completion, serve_answers
from support.paths import ROOT
from understudy.core.errors import ToolError
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.tasks import Score, Task
from understudy.core.trajectory import Trajectory
from understudy.data.checks.adversarial.custom import load_strategies
from understudy.data.checks.adversarial.knowledge import sample_tasks
from understudy.data.checks.adversarial.suite import play_strategies
from understudy.data.checks.check import check
from understudy.engines.interface import SamplingParams
from understudy.engines.scripted import ScriptedSampler
from understudy.envs.task_source import Slice, TaskSource
from understudy.evaluation.evaluate import evaluate
from understudy.rollouts.agent import Agent, DemonstrationAgent, EngineAgent, GoldAgent
from understudy.rollouts.rollout import EpisodeLimits, rollout
from understudy.runs.agents import make_agent
from understudy.runs.config import load_config, parse_config
from understudy.sources.loading import load_source
from understudy.sources.references import load_domain

RECIPES = ROOT / "examples" / "recipes"
sys.path.insert(0, str(RECIPES))

from brevity_reward import BREVITY, MAX_LENGTH  # noqa: E402
from careful_agent import REMINDER  # noqa: E402
from guessing_game import GUESSING_GAME, MAX_GUESSES  # noqa: E402
from hotel import DOMAIN  # noqa: E402
from impatient_user import IMPATIENT, MAX_MESSAGES  # noqa: E402
from line_format import END, LineFormat  # noqa: E402
from sums import SUMS  # noqa: E402


class FixedReplies:
    """An agent that gives fixed replies, and then repeats the last one."""

    def __init__(self, *replies: Message) -> None:
        self._replies = replies

    async def act(self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        episode.observe(new)
        episode.act(reply := self._replies[min(episode.num_turns, len(self._replies) - 1)])
        return reply


def agent_that_says(*texts: str) -> FixedReplies:
    return FixedReplies(*(Message(role="assistant", content=text) for text in texts))


def first_task_result(source: TaskSource, agent: Agent) -> tuple[float, int]:
    """Return an agent's reward on the first training task, and its number of replies."""
    task = source.tasks("train")[0]
    episode = asyncio.run(rollout(task, source.environment(task), agent, EpisodeLimits()))
    return episode.reward, episode.num_turns


@pytest.mark.parametrize("name", ["sums:SUMS", "guessing_game:GUESSING_GAME", "rl_loop:SOURCE"])
def test_question_recipes_pass_the_check(name: str) -> None:
    report = check(load_source(name))
    assert (report.problems, report.unused_tools) == ((), ())
    assert [(split.noop_reward, split.gold_reward) for split in report.splits] == [(0.0, 1.0)] * 3


@pytest.mark.parametrize("name", ["sums:SUMS", "guessing_game:GUESSING_GAME", "hotel:DOMAIN", "rl_loop:SOURCE"])
def test_no_strategy_is_rewarded_in_a_recipe(name: str) -> None:
    report = asyncio.run(play_strategies(load_source(name), num_tasks=4))
    assert len(report.results) > 20
    assert {result.strategy: result.over_floor for result in report.failures} == {}


@pytest.mark.slow
def test_own_strategy_is_played_and_earns_nothing() -> None:
    strategies = load_strategies(["hotel_strategy:always_breakfast"])
    report = asyncio.run(play_strategies(DOMAIN, num_tasks=8, strategies=strategies))
    mine = report.results[-1]
    bookings = [task for task in sample_tasks(DOMAIN, 8, seed=0) if task.family == "book" and task.difficulty == "easy"]
    assert (mine.strategy, mine.num_tasks, mine.reward) == ("always_breakfast", len(bookings), 0.0)


def test_sum_is_accepted_in_any_number_format() -> None:
    product = float(SUMS.find_example(SUMS.tasks("train")[0]).info["product"])
    assert first_task_result(SUMS, agent_that_says(f"That makes {product:,.1f}, I think.")) == (1.0, 1)
    assert first_task_result(SUMS, agent_that_says(f"That makes {product + 1:.0f}.")) == (0.0, 1)


def test_guessing_game_can_be_won_and_lost() -> None:
    low = int(GUESSING_GAME.tasks("train")[0].scenario.opening.split()[3])

    class BinarySearchAgent:
        async def act(self, task: Task, episode: Trajectory, new: Sequence[Message], tools: object) -> Message:
            episode.observe(new)
            least, most = low, low + 19
            for guess, answer in itertools.pairwise(episode.messages[2:]):
                if answer.content == "It is higher.":
                    least = int(guess.content) + 1
                elif answer.content == "It is lower.":
                    most = int(guess.content) - 1
            episode.act(reply := Message(role="assistant", content=str((least + most) // 2)))
            return reply

    reward, turns = first_task_result(GUESSING_GAME, BinarySearchAgent())
    assert reward == 1.0
    assert turns <= MAX_GUESSES
    assert first_task_result(GUESSING_GAME, agent_that_says("I do not know.")) == (0.0, MAX_GUESSES)


def test_custom_reward_is_part_of_the_score() -> None:
    task = BREVITY.tasks("test")[0]

    class WordyGoldAgent(GoldAgent):
        async def act(self, task: Task, episode: Trajectory, new: Sequence[Message], tools: object) -> Message:
            reply = await super().act(task, episode, new, ())
            return reply if reply.tool_calls else reply.replace(content=f"{reply.content}{' ' * MAX_LENGTH}.")

    for agent, brevity in ((GoldAgent(), 1.0), (WordyGoldAgent(), 0.0)):
        episode = asyncio.run(rollout(task, BREVITY.environment(task), agent, EpisodeLimits()))
        assert episode.score is not None
        assert (episode.reward, episode.score.parts["brevity"], episode.score.parts["state_match"]) == (
            brevity,
            brevity,
            1.0,
        )


def test_custom_reward_gives_gold_full_success() -> None:
    tasks = BREVITY.tasks("test")[:20]
    assert [asyncio.run(evaluate(BREVITY, GoldAgent(), tasks)).success_rate.mean] == [1.0]


def test_impatient_user_ends_the_episode() -> None:
    assert first_task_result(IMPATIENT, GoldAgent())[0] == 1.0
    assert (
        first_task_result(IMPATIENT, agent_that_says("One moment, please. Would you like to hear about our offers?"))[1]
        <= MAX_MESSAGES
    )


def test_careful_agent_adds_one_reminder() -> None:
    config = parse_config("", ["endpoints.default.model=m", "endpoints.default.max_retries=0"])
    with serve_answers(lambda _: make_completion("I am sorry.")) as endpoint:
        agent = make_agent(
            "careful_agent:CarefulAgent",
            config.replace(endpoints={"default": config.endpoints["default"].replace(base_url=endpoint.url)}),
        )
        first_task_result(DOMAIN, agent)
        seen = [[m["content"] for m in request["messages"] if m["role"] == "system"] for request in endpoint.requests]
    assert len(seen) > 1
    assert all(len(each) == 1 and each[0].endswith(REMINDER) for each in seen)
    assert all(each[0].startswith(DOMAIN.domain_policy) for each in seen)


def test_hotel_domain_passes_the_check() -> None:
    report = check(load_source("hotel:DOMAIN"))
    assert (report.problems, report.unused_tools) == ((), ())
    assert [(split.noop_reward, split.gold_reward) for split in report.splits] == [(0.0, 1.0)] * 3


def test_refused_call_does_not_change_state() -> None:
    hotel = DOMAIN.build_world()
    tools = DOMAIN.toolkit(hotel)
    with pytest.raises(ToolError, match="room 15 is taken"):
        tools.call_sync(ToolCall(name="book_room", arguments={"number": "15", "guest": "Ada"}))
    with pytest.raises(ToolError, match="is not Ada's"):
        tools.call_sync(ToolCall(name="cancel_stay", arguments={"number": "15", "guest": "Ada"}))
    assert not hotel.changes()


def test_unused_tool_is_reported() -> None:
    assert check(DOMAIN.slice(Slice(families=("book",)))).unused_tools == ("cancel_stay",)


objects = st.dictionaries(st.text(max_size=12), json_values, max_size=3)


def test_line_format_mask_covers_exactly_the_replies() -> None:
    task = load_domain("hotel:DOMAIN").tasks("train")[0]
    episode = asyncio.run(rollout(task, DOMAIN.environment(task), DemonstrationAgent(LineFormat()), EpisodeLimits()))
    assert episode.score is not None
    assert episode.score.reward == 1.0
    text = bytes(episode.tokens).decode().split("\0")
    assert text[0].startswith("system: ")
    assert text[1].startswith("tools: ")
    sampled = [token for token, chosen in zip(episode.tokens, episode.mask, strict=True) if chosen]
    assert sampled == [token for turn in task.gold_turns for token in LineFormat().encode_reply(turn)]


def test_scripted_sampler_of_gold_turns_earns_full_reward() -> None:
    task, lines = DOMAIN.tasks("test")[1], LineFormat()
    texts = (bytes(lines.encode_reply(turn)[:-1]).decode() for turn in task.gold_turns)
    agent = EngineAgent(
        ScriptedSampler(texts, lambda text: [*text.encode(), END]), lines, SamplingParams(max_response_tokens=400)
    )
    episode = asyncio.run(rollout(task, DOMAIN.environment(task), agent, EpisodeLimits()))
    assert episode.score is not None
    assert episode.score.reward == 1.0


@given(st.lists(st.builds(ToolCall, name=st.sampled_from(["f", "g"]), arguments=objects), max_size=3))
def test_parsing_inverts_rendering(calls: list[ToolCall]) -> None:
    reply = Message(role="assistant", content="" if calls else "Hello.", tool_calls=tuple(calls))
    assert LineFormat().parse(LineFormat().encode_reply(reply)).message == reply


@given(st.lists(st.integers(0, 300)))
def test_arbitrary_tokens_are_parsed(tokens: list[int]) -> None:
    assert LineFormat().parse(tokens).message.role == "assistant"


def test_algorithm_recipe_is_a_valid_config() -> None:
    algorithm = load_config(RECIPES / "best.toml").algorithm
    assert (algorithm.advantage_estimator, algorithm.loss.clip_high, algorithm.max_resampled_groups) == (
        "rloo",
        0.28,
        4,
    )


def test_advantage_estimator_by_hand_and_on_a_bandit() -> None:
    torch = pytest.importorskip("torch")
    from best import best_of_group

    from understudy.algorithms.batch import Batch
    from understudy.algorithms.losses import ppo_loss

    def make_batch(rewards: list[float], group_ids: list[int]) -> Batch:
        return Batch.from_rows([[1, 2]] * len(rewards), [[False, True]] * len(rewards), None, rewards, group_ids)

    batch = make_batch([1.0, 0.0, 0.0, 1.0, 1.0, 1.0], [0, 0, 0, 1, 1, 1])
    assert torch.allclose(best_of_group(batch), torch.tensor([2 / 3, 0, 0, 0, 0, 0]))
    permuted = [3, 1, 5, 0, 4, 2]
    assert torch.equal(best_of_group(batch.select(permuted)), best_of_group(batch)[permuted])
    logits, generator = torch.zeros(4, requires_grad=True), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    for _ in range(100):
        chances = logits.log_softmax(-1)
        arms = chances.exp().multinomial(8, replacement=True, generator=generator)
        advantages = best_of_group(make_batch((arms == 2).float().tolist(), [0] * 8))
        old, mask = chances[arms].detach(), torch.ones(8, dtype=torch.bool)
        optimizer.zero_grad()
        ppo_loss(chances[arms], old, advantages, mask, 0.2, 0.2)[0].backward()
        optimizer.step()
    assert logits.softmax(-1)[2] > 0.9


@pytest.mark.slow
def test_rl_loop_trains_by_sft_and_rl(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    import rl_loop

    rates = asyncio.run(rl_loop.train("tiny", sft_steps=3, rl_steps=2))
    assert rates == [0.0, 0.0, 0.0]  # a random model
    lines = capsys.readouterr().out.splitlines()
    losses = [float(line.split()[-1]) for line in lines if "loss" in line]
    assert losses == sorted(losses, reverse=True)
    assert [line.split("  ")[0] for line in lines if line.startswith("RL")] == ["RL 1/2", "RL 2/2"]


@pytest.mark.slow
def test_rl_loop_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewards replies that begin with a frequent byte, which a random model learns in a few steps."""
    pytest.importorskip("torch")
    import rl_loop

    def begins_low(episode: object, transcript: Sequence[Message]) -> float:
        return float(transcript[-1].content[:1] < "a")

    monkeypatch.setattr(rl_loop.Product, "reward", begins_low)
    monkeypatch.setattr(rl_loop, "RL_LEARNING_RATE", 3e-2)
    monkeypatch.setattr(rl_loop, "SAMPLING", rl_loop.SAMPLING.replace(max_response_tokens=4))
    before, _, after = asyncio.run(rl_loop.train("tiny", sft_steps=0, rl_steps=20))
    assert after > before + 0.2


def sample_batch(engine: object, temperature: float = 0.7) -> object:
    """Return four episodes of two replies each as a batch with advantages."""
    import torch

    from understudy.algorithms.batch import collate

    async def sample_episode(seed: int) -> Trajectory:
        episode = Trajectory("t", seed=seed, score=Score(reward=0.0))
        for turn in range(2):
            episode.observe([], [1, 2, turn])
            reply = await engine.sample(
                episode.tokens, SamplingParams(max_response_tokens=6, temperature=temperature), seed, {0}
            )  # type: ignore[attr-defined]
            episode.act(Message(role="assistant"), reply.tokens, reply.logprobs)
        return episode

    async def sample_concurrently() -> list[Trajectory]:
        return list(await asyncio.gather(*(sample_episode(seed) for seed in range(4))))

    batch = collate(asyncio.run(sample_concurrently()), temperature=temperature)
    lead = torch.tensor([0.5, -0.5, 0.3, -0.3])[:, None]
    return batch.replace(advantages=lead * batch.mask)


def test_bigram_engine_logprobs_sampling_and_checkpoints(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from bigram_engine import BigramEngine

    from understudy.algorithms.config import LossConfig

    async def update_engine(engine: BigramEngine, *steps: object) -> None:
        await engine.update(steps, LossConfig(), 0.05)  # type: ignore[arg-type]

    engine = BigramEngine(12)
    for _ in range(2):  # before an update, and after it
        batch = sample_batch(engine)
        again = asyncio.run(engine.compute_logprobs(batch))  # type: ignore[arg-type]
        assert torch.allclose(again.logprobs, batch.logprobs, atol=engine.tolerance.max_diff)  # type: ignore[attr-defined]
        assert torch.equal(sample_batch(engine).tokens, batch.tokens)  # type: ignore[attr-defined]
        asyncio.run(update_engine(engine, batch))
    engine.save(tmp_path)
    other = BigramEngine(12)
    other.load(tmp_path)
    batch = sample_batch(engine)
    for each in (engine, other):
        asyncio.run(update_engine(each, batch))
    assert torch.equal(engine._table, other._table)


def test_splitting_a_batch_does_not_change_gradients() -> None:
    torch = pytest.importorskip("torch")
    from bigram_engine import BigramEngine, _logprobs

    from understudy.algorithms.config import LossConfig
    from understudy.algorithms.losses import compute_loss

    def gradient(parts: list[list[int]]) -> object:
        engine = BigramEngine(12)
        whole = sample_batch(engine)
        for rows in parts:
            part = whole.select(rows)  # type: ignore[attr-defined]
            loss, _ = compute_loss(
                LossConfig(), _logprobs(engine._table, part), part.logprobs, part.advantages, part.mask
            )
            loss.backward()
        return engine._table.grad

    assert torch.allclose(gradient([[0, 1, 2, 3]]), gradient([[0], [1, 2], [3]]), atol=1e-7)


@pytest.mark.parametrize(("direction", "places", "reward"), [("left", 5, 1.0), ("right", 5, 0.0)])
def test_taxi_pays_for_the_passenger(direction: str, places: int, reward: float) -> None:
    drive = ToolCall(id="1", name="step", arguments={"direction": direction, "places": places})
    agent = FixedReplies(Message(role="assistant", tool_calls=(drive,)), Message(role="assistant", content="Here."))
    assert first_task_result(load_source("taxi:Taxi"), agent) == (reward, 1 if reward else 2)
