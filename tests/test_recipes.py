"""The recipes of docs/extending.md (`examples/recipes`) do what the page says, and hold what they must."""

import asyncio
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_kit import values
from understudy.agent import DemonstrationAgent, EngineAgent
from understudy.check import check
from understudy.config import TrainConfig, load
from understudy.domains.base import Slice, find, find_domain
from understudy.engines.base import Sampling
from understudy.engines.scripted import ScriptedSampler
from understudy.errors import ToolError
from understudy.messages import Message, ToolCall
from understudy.rollout import Limits, rollout
from understudy.tasks import Score
from understudy.trajectory import Trajectory

RECIPES = Path(__file__).parents[1] / "examples" / "recipes"
sys.path.insert(0, str(RECIPES))

from hotel import DOMAIN  # noqa: E402
from lines import END, Lines  # noqa: E402

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
