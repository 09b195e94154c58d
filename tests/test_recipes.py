"""The recipes of docs/extending.md (`examples/recipes`) do what the page says, and hold what they must."""

import asyncio
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_kit import values
from endpoint import says, serving
from understudy.agent import Agent, DemonstrationAgent, EngineAgent, GoldAgent
from understudy.check import check
from understudy.config import TrainConfig
from understudy.domains.base import Slice, TaskSource, find, find_domain
from understudy.engines.base import Sampling
from understudy.engines.scripted import ScriptedSampler
from understudy.errors import ToolError
from understudy.evaluate import evaluate
from understudy.messages import Message, ToolCall, ToolSpec
from understudy.players import named_agent
from understudy.rollout import Limits, rollout
from understudy.settings import load, parse
from understudy.tasks import Score, Task
from understudy.trajectory import Trajectory

RECIPES = Path(__file__).parents[1] / "examples" / "recipes"
sys.path.insert(0, str(RECIPES))

from brief import BRIEF, LONGEST  # noqa: E402
from caller import HURRIED, PATIENCE  # noqa: E402
from careful import REMINDER  # noqa: E402
from guess import GUESS, MOST  # noqa: E402
from hotel import DOMAIN  # noqa: E402
from lines import END, Lines  # noqa: E402
from sums import SUMS  # noqa: E402


class Says:
    """An agent that gives these replies, and then the last of them again."""

    def __init__(self, *replies: Message) -> None:
        self._replies = replies

    async def act(self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        episode.observe(new)
        episode.act(reply := self._replies[min(episode.turns, len(self._replies) - 1)])
        return reply


def says_so(*texts: str) -> Says:
    return Says(*(Message(role="assistant", content=text) for text in texts))


def earned(source: TaskSource, agent: Agent) -> tuple[float, int]:
    """What an agent earns on the first train task, and in how many replies."""
    task = source.tasks("train")[0]
    episode = asyncio.run(rollout(task, source.environment(task), agent, Limits()))
    return episode.reward, episode.turns


# ---- data, tools and a reward ----


@pytest.mark.parametrize("name", ["sums:SUMS", "guess:GUESS"])
def test_questions_are_sound(name: str) -> None:
    report = check(find(name))
    assert (report.problems, report.unused_tools) == ((), ())
    assert [(split.floor, split.oracle) for split in report.splits] == [(0.0, 1.0)] * 3


def test_a_sum_is_right_however_it_is_written() -> None:
    product = float(SUMS.question(SUMS.tasks("train")[0]).info["product"])
    assert earned(SUMS, says_so(f"That makes {product:,.1f}, I think.")) == (1.0, 1)
    assert earned(SUMS, says_so(f"That makes {product + 1:.0f}.")) == (0.0, 1)


def test_a_game_can_be_won_by_halves_and_lost() -> None:
    low = int(GUESS.tasks("train")[0].scenario.opening.split()[3])

    class Halves:
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

    reward, turns = earned(GUESS, Halves())
    assert reward == 1.0
    assert turns <= MOST
    assert earned(GUESS, says_so("I do not know.")) == (0.0, MOST)


# ---- a reward for a domain, a user, an agent ----


def test_a_reward_of_ones_own_is_part_of_the_score() -> None:
    task = BRIEF.tasks("test")[0]

    class Wordy(GoldAgent):
        async def act(self, task: Task, episode: Trajectory, new: Sequence[Message], tools: object) -> Message:
            reply = await super().act(task, episode, new, ())
            return reply if reply.tool_calls else reply.replace(content=f"{reply.content}{' ' * LONGEST}.")

    for agent, brief in ((GoldAgent(), 1.0), (Wordy(), 0.0)):
        episode = asyncio.run(rollout(task, BRIEF.environment(task), agent, Limits()))
        assert episode.score is not None
        assert (episode.reward, episode.score.parts["brief"], episode.score.parts["state"]) == (brief, brief, 1.0)


def test_that_reward_is_sound() -> None:
    tasks = BRIEF.tasks("test")[:20]
    assert [asyncio.run(evaluate(BRIEF, GoldAgent(), tasks)).success.mean] == [1.0]


def test_a_user_who_hangs_up() -> None:
    assert earned(HURRIED, GoldAgent())[0] == 1.0
    assert earned(HURRIED, says_so("One moment, please. Would you like to hear about our offers?"))[1] <= PATIENCE


def test_an_agent_reminds_the_model_once() -> None:
    config = parse(TrainConfig, "", ["chat.model=m", "chat.retries=0"])
    with serving(lambda _: says("I am sorry.")) as endpoint:
        agent = named_agent("careful:Careful", config.replace(chat=config.chat.replace(base_url=endpoint.url)))
        earned(DOMAIN, agent)
        seen = [[m["content"] for m in request["messages"] if m["role"] == "system"] for request in endpoint.requests]
    assert len(seen) > 1
    assert all(len(each) == 1 and each[0].endswith(REMINDER) for each in seen)
    assert all(each[0].startswith(DOMAIN.policy) for each in seen)


# ---- a domain, and its tools ----


def test_the_domain_is_sound() -> None:
    report = check(find("hotel:DOMAIN"))
    assert (report.problems, report.unused_tools) == ((), ())
    assert [(split.floor, split.oracle) for split in report.splits] == [(0.0, 1.0)] * 3


def test_a_refused_call_changes_nothing() -> None:
    hotel = DOMAIN.world()
    tools = DOMAIN.toolkit(hotel)
    with pytest.raises(ToolError, match="room 15 is taken"):
        tools.run(ToolCall(name="book_room", arguments={"number": "15", "guest": "Ada"}))
    with pytest.raises(ToolError, match="is not Ada's"):
        tools.run(ToolCall(name="free_room", arguments={"number": "15", "guest": "Ada"}))
    assert not hotel.changes()


def test_a_tool_that_no_task_needs_is_named() -> None:
    assert check(DOMAIN.slice(Slice(families=("book",)))).unused_tools == ("free_room",)


# ---- a format ----

objects = st.dictionaries(st.text(max_size=12), values, max_size=3)


def test_what_is_appended_changes_nothing_and_masks_cover_what_is_sampled() -> None:
    task = find_domain("hotel:DOMAIN").tasks("train")[0]
    episode = asyncio.run(rollout(task, DOMAIN.environment(task), DemonstrationAgent(Lines()), Limits()))
    assert episode.score is not None
    assert episode.score.reward == 1.0
    text = bytes(episode.tokens).decode().split("\0")
    assert text[0].startswith("system: ")
    assert text[1].startswith("tools: ")
    sampled = [token for token, chosen in zip(episode.tokens, episode.mask, strict=True) if chosen]
    assert sampled == [token for turn in task.turns for token in Lines().render(turn)]


def test_a_sampler_that_says_the_gold_turns_earns_the_whole_reward() -> None:
    task, lines = DOMAIN.tasks("test")[1], Lines()
    texts = (bytes(lines.render(turn)[:-1]).decode() for turn in task.turns)
    agent = EngineAgent(ScriptedSampler(texts, lambda text: [*text.encode(), END]), lines, Sampling(max_tokens=400))
    episode = asyncio.run(rollout(task, DOMAIN.environment(task), agent, Limits()))
    assert episode.score is not None
    assert episode.score.reward == 1.0


@given(st.lists(st.builds(ToolCall, name=st.sampled_from(["f", "g"]), arguments=objects), max_size=3))
def test_parsing_inverts_rendering(calls: list[ToolCall]) -> None:
    reply = Message(role="assistant", content="" if calls else "Hello.", tool_calls=tuple(calls))
    assert Lines().parse(Lines().render(reply)).message == reply


@given(st.lists(st.integers(0, 300)))
def test_any_tokens_can_be_read(tokens: list[int]) -> None:
    assert Lines().parse(tokens).message.role == "assistant"


# ---- an algorithm ----


def test_the_row_is_a_config() -> None:
    algorithm = load(TrainConfig, RECIPES / "best.toml").algorithm
    assert (algorithm.advantage, algorithm.loss.clip_high, algorithm.refill) == ("leave_one_out", 0.28, 4)


def test_the_estimator_by_hand_and_on_a_bandit() -> None:
    torch = pytest.importorskip("torch")
    from best import best_of_group

    from understudy.algorithms.losses import policy_loss

    rewards, group = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 1.0]), torch.tensor([0, 0, 0, 1, 1, 1])
    assert torch.allclose(best_of_group(rewards, group), torch.tensor([2 / 3, 0, 0, 0, 0, 0]))
    permuted = torch.tensor([3, 1, 5, 0, 4, 2])
    assert torch.equal(best_of_group(rewards[permuted], group[permuted]), best_of_group(rewards, group)[permuted])
    logits, generator = torch.zeros(4, requires_grad=True), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    for _ in range(100):
        chances = logits.log_softmax(-1)
        arms = chances.exp().multinomial(8, replacement=True, generator=generator)
        advantages = best_of_group((arms == 2).float(), torch.zeros(8, dtype=torch.long))
        old, mask = chances[arms].detach(), torch.ones(8, dtype=torch.bool)
        optimizer.zero_grad()
        policy_loss(chances[arms], old, advantages, mask, 0.2, 0.2)[0].backward()
        optimizer.step()
    assert logits.softmax(-1)[2] > 0.9


# ---- an engine ----


def batch_of(engine: object, temperature: float = 0.7) -> object:
    """Four episodes of two replies each, as a batch with advantages."""
    import torch

    from understudy.batch import collate

    async def played(seed: int) -> Trajectory:
        episode = Trajectory("t", seed=seed, score=Score(reward=0.0))
        for turn in range(2):
            episode.observe([], [1, 2, turn])
            reply = await engine.sample(episode.tokens, Sampling(max_tokens=6, temperature=temperature), seed, {0})  # type: ignore[attr-defined]
            episode.act(Message(role="assistant"), reply.tokens, reply.logprobs)
        return episode

    async def all_of_them() -> list[Trajectory]:
        return list(await asyncio.gather(*(played(seed) for seed in range(4))))

    batch = collate(asyncio.run(all_of_them()), temperature=temperature)
    lead = torch.tensor([0.5, -0.5, 0.3, -0.3])[:, None]
    return batch.with_(advantages=lead * batch.mask)


def test_the_engine_holds_what_engines_hold(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from bigram import Bigram

    from understudy.algorithms.options import Loss

    async def updated(engine: Bigram, *steps: object) -> None:
        await engine.update(steps, Loss(), 0.05)  # type: ignore[arg-type]

    engine = Bigram(12)
    for _ in range(2):  # before an update, and after it
        batch = batch_of(engine)
        again = asyncio.run(engine.forward(batch))  # type: ignore[arg-type]
        assert torch.allclose(again.logprobs, batch.logprobs, atol=engine.tolerance.largest)  # type: ignore[attr-defined]
        assert torch.equal(batch_of(engine).tokens, batch.tokens)  # type: ignore[attr-defined]
        asyncio.run(updated(engine, batch))
    engine.save(tmp_path)
    other = Bigram(12)
    other.load(tmp_path)
    batch = batch_of(engine)
    for each in (engine, other):
        asyncio.run(updated(each, batch))
    assert torch.equal(engine._table, other._table)


def test_a_split_of_a_batch_changes_no_gradient() -> None:
    torch = pytest.importorskip("torch")
    from bigram import Bigram, _logprobs

    from understudy.algorithms.losses import compute
    from understudy.algorithms.options import Loss

    def gradient(parts: list[list[int]]) -> object:
        engine = Bigram(12)
        whole = batch_of(engine)
        for rows in parts:
            part = whole.rows(rows)  # type: ignore[attr-defined]
            loss, _ = compute(Loss(), _logprobs(engine._table, part), part.logprobs, part.advantages, part.mask)
            loss.backward()
        return engine._table.grad

    assert torch.allclose(gradient([[0, 1, 2, 3]]), gradient([[0], [1, 2], [3]]), atol=1e-7)
