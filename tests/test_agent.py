"""Agents: what a model is shown and says goes token by token into the record, and nothing is tokenized twice."""

import asyncio
import math
from collections.abc import Collection, Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toy import DOMAIN
from understudy import formats
from understudy.agent import DemonstrationAgent, EngineAgent, GoldAgent, HumanAgent, SilentAgent
from understudy.engines.base import Completion, Sampling, no_room
from understudy.engines.scripted import ScriptedSampler
from understudy.errors import ConfigError, TaskError
from understudy.formats import ChatFormat
from understudy.messages import Message, ToolCall, ToolSpec
from understudy.models import make_tiny
from understudy.rollout import Limits, rollout
from understudy.tasks import Task
from understudy.trajectory import Stop, Trajectory

TASK = DOMAIN.tasks("train")[0]
END = 258
"""`<|im_end|>` of the tiny model; its other tokens are bytes."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def chat(tiny: Path) -> ChatFormat:
    return formats.find(tiny)


def closed(text: str) -> list[int]:
    return [*text.encode(), END]


def play(agent: EngineAgent, task: Task = TASK, **limits: int) -> Trajectory:
    environment = DOMAIN.environment(task)
    return asyncio.run(rollout(task, environment, agent, Limits.model_validate(limits), seed=5))


def texts(task: Task, chat: ChatFormat) -> list[str]:
    """A task's gold turns as a model would write them."""
    return [bytes(chat.render(turn)[:-1]).decode() for turn in task.gold]


def call(text: str) -> str:
    return f"<tool_call>\n{text}\n</tool_call>"


# ---- tokens ----


def test_prompts_are_only_appended_to(chat: ChatFormat) -> None:
    sampler = ScriptedSampler(texts(TASK, chat), closed)
    episode = play(EngineAgent(sampler, chat, Sampling()))
    assert episode.reward == 1.0
    assert episode.stop is Stop.DONE
    replies = [closed(text) for text in texts(TASK, chat)]
    for prompt, reply, following in zip(sampler.prompts, replies, sampler.prompts[1:], strict=False):
        assert following[: len(prompt) + len(reply)] == prompt + reply
    assert episode.tokens == sampler.prompts[-1] + replies[-1]
    spans = list(episode.spans())
    assert [episode.tokens[start:end] for start, end in spans] == replies
    assert [start for start, _ in spans] == [len(prompt) for prompt in sampler.prompts]
    assert [p for p, m in zip(episode.logprobs, episode.mask, strict=True) if m] == [math.log(0.5)] * sum(episode.mask)
    assert not any(p for p, m in zip(episode.logprobs, episode.mask, strict=True) if not m)


class Narrow(ScriptedSampler):
    """Has no room for a reply after a prompt of so many tokens."""

    def __init__(self, texts: Sequence[str], context: int) -> None:
        super().__init__(texts, closed)
        self._context = context

    async def sample(
        self, prompt: Sequence[int], sampling: Sampling, seed: int, stop_tokens: Collection[int] = ()
    ) -> Completion:
        if len(prompt) >= self._context:
            return no_room(version=3)
        return await super().sample(prompt, sampling, seed, stop_tokens)


def test_an_episode_ends_where_the_context_is_full(chat: ChatFormat) -> None:
    gold = texts(TASK, chat)
    whole = ScriptedSampler(gold, closed)
    play(EngineAgent(whole, chat, Sampling()))
    sampler = Narrow(gold, context=len(whole.prompts[-1]))
    episode = play(EngineAgent(sampler, chat, Sampling()))
    assert (episode.stop, episode.reward, episode.turns) == (Stop.MAX_TOKENS, 0.0, len(gold) - 1)
    assert episode.score is not None
    assert not episode.score.parts["ended"]
    assert episode.messages[-1].role in ("tool", "user"), "what it was shown last is told"
    assert episode.tokens == sampler.prompts[-1] + closed(gold[-2]), "and has no tokens"
    assert episode.mask[-1]


def test_an_opening_that_fills_the_context_is_refused(chat: ChatFormat) -> None:
    with pytest.raises(ConfigError, match=rf"task {TASK.id}: policy, tools and opening are \d+ tokens, .* no room"):
        play(EngineAgent(Narrow([], context=30), chat, Sampling()))


class Wild:
    """Samples any tokens at all, stop tokens where they are given at the end only, and remembers how it was asked."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.asked: list[tuple[list[int], Sampling, int, frozenset[int]]] = []

    async def sample(
        self, prompt: Sequence[int], sampling: Sampling, seed: int, stop_tokens: Sequence[int] = ()
    ) -> Completion:
        self.asked.append((list(prompt), sampling, seed, frozenset(stop_tokens)))
        bits = [*b'<tool_call>\n{"name": "switch_lamp", "arguments": {}}\n</tool_call>']
        tokens = [self._random.choice([*range(256), *bits]) for _ in range(self._random.randrange(12))]
        tokens = self._random.choice([tokens, bits, bits + bits, tokens + bits, bits + tokens])
        finish = self._random.choice(["stop", "length"]) if tokens else "stop"
        tokens = [*tokens, self._random.choice(sorted(stop_tokens))] if finish == "stop" else tokens
        return Completion(tokens, [-self._random.random() for _ in tokens], finish, version=7)  # type: ignore[arg-type]


@settings(deadline=None, derandomize=True, max_examples=50)
@given(seed=st.integers(0, 10**6))
def test_whatever_is_sampled_stays_as_it_was_sampled(chat: ChatFormat, seed: int) -> None:
    sampler = Wild(Random(seed))
    episode = play(EngineAgent(sampler, chat, Sampling()), max_turns=6)
    prompts = [prompt for prompt, *_ in sampler.asked]
    for prompt, following, (start, end) in zip(prompts, [*prompts[1:], episode.tokens], episode.spans(), strict=True):
        assert start == len(prompt)
        assert following[:end] == episode.tokens[:end]
    assert episode.version == 7
    assert len(episode.tokens) == len(episode.mask) == len(episode.logprobs)
    assert not episode.mask[0]
    assert sum(episode.counts[status] for status in ("text", "calls", "malformed", "empty", "cut")) == episode.turns
    ids = [c.id for message in episode.messages for c in message.tool_calls]
    assert len(ids) == len(set(ids))
    answered = [message.tool_call_id for message in episode.messages if message.role == "tool"]
    assert answered == ids[: len(answered)]


def test_each_turn_has_a_seed_of_its_own_and_the_formats_stop_tokens(chat: ChatFormat) -> None:
    samplers = [Wild(Random(1)), Wild(Random(1))]
    for sampler in samplers:
        play(EngineAgent(sampler, chat, Sampling(temperature=0.5)), max_turns=6)
    seeds = [seed for _, _, seed, _ in samplers[0].asked]
    assert len(set(seeds)) == len(seeds) > 2
    assert samplers[0].asked == samplers[1].asked
    assert {stops for *_, stops in samplers[0].asked} == {chat.stop_tokens}
    assert {sampling for _, sampling, *_ in samplers[0].asked} == {Sampling(temperature=0.5)}


def test_prompts_are_only_appended_to_by_the_engine_too(tiny: Path, chat: ChatFormat) -> None:
    from understudy.batch import collate
    from understudy.engines.local.config import LocalConfig
    from understudy.engines.local.engine import LocalEngine

    engine = LocalEngine(tiny, LocalConfig(device="cpu", dtype="float32"))
    agent = EngineAgent(engine, chat, Sampling(max_tokens=8))

    async def together() -> list[Trajectory]:
        tasks = DOMAIN.tasks("train")[:4]
        plays = (rollout(task, DOMAIN.environment(task), agent, Limits(max_turns=4), i) for i, task in enumerate(tasks))
        return await asyncio.gather(*plays)

    episodes = asyncio.run(together())
    batch = collate(episodes)
    trainer = asyncio.run(engine.forward(batch)).logprobs
    assert float((trainer - batch.logprobs).abs().max()) < 1e-4
    for episode in episodes:
        assert sum(episode.mask) > 0
        shown = [m for m in episode.messages if m.role != "assistant"]
        first = chat.encode(shown[:2], DOMAIN.specs, [])
        assert episode.tokens[: len(first)] == first
        assert next(episode.spans())[0] == len(first)


# ---- replies ----


@pytest.mark.parametrize(
    ("text", "status", "error", "answer"),
    [
        (call('{"name": "switch_lamp", "arguments": {'), "malformed", "malformed", "Error: the call is not JSON"),
        (call('["switch_lamp"]'), "malformed", "malformed", "Error: the call is not a JSON object"),
        ("Sure. <tool_call>", "malformed", "malformed", "Error: the call is not closed"),
        (call('{"name": "swich_lamp", "arguments": {}}'), "calls", "unknown_tool", "did you mean 'switch_lamp'"),
        (call('{"name": "switch_lamp", "arguments": {"on": true}}'), "calls", "bad_arguments", "lamp_id"),
        (call('{"name": "find_lamp", "arguments": {"room": "x"}}'), "calls", "refused", "Error: no lamp in room x"),
    ],
)
def test_a_broken_call_comes_back_as_a_tool_error_and_no_user_hears_of_it(
    chat: ChatFormat, text: str, status: str, error: str, answer: str
) -> None:
    sampler = ScriptedSampler([text, *texts(TASK, chat)], closed)
    episode = play(EngineAgent(sampler, chat, Sampling()))
    assert episode.reward == 1.0, "the user went on as if nothing had been said"
    _, _, reply, result, *rest = episode.messages
    assert (reply.role, result.role) == ("assistant", "tool")
    assert answer in result.content
    assert result.tool_call_id == reply.tool_calls[0].id == "call_0_0"
    assert rest[0].role == "assistant"
    assert episode.counts[status] >= 1
    assert episode.counts[error] >= 1


def test_a_broken_call_is_repaired_and_its_tokens_stay(chat: ChatFormat) -> None:
    written = texts(TASK, chat)
    broken = [text.replace("}}", "}").replace("</tool_call>", "") for text in written]
    assert broken != written
    sampler = ScriptedSampler(broken, closed)
    episode = play(EngineAgent(sampler, chat, Sampling(), repair_penalty=0.2))
    assert episode.score is not None
    assert (episode.score.reward, episode.reward) == (1.0, 0.8)
    assert episode.counts["repaired"] == 1
    assert (episode.counts["repaired/brackets"], episode.counts["repaired/tags"]) == (1, 1)
    assert [episode.tokens[start:end] for start, end in episode.spans()] == [closed(text) for text in broken]


def test_a_call_that_the_length_limit_cut_off_is_not_run(chat: ChatFormat) -> None:
    text = '<tool_call>{"name": "find_lamp", "arguments": {"room": "x"'
    cut = play(EngineAgent(ScriptedSampler([text + " " * 100], closed), chat, Sampling(max_tokens=70)), max_turns=1)
    ended = play(EngineAgent(ScriptedSampler([text], closed), chat, Sampling()), max_turns=1)
    assert "cut off at the length limit" in cut.messages[2].tool_calls[0].malformed
    assert (cut.counts["cut"], cut.counts["refused"]) == (1, 0)
    assert ended.messages[2].tool_calls[0].arguments == {"room": "x"}
    assert (ended.counts["repaired"], ended.counts["refused"]) == (1, 1)


def test_repairs_cost_at_most_half_of_the_reward(chat: ChatFormat) -> None:
    broken = [call('{"name": "find_lamp", "arguments": {}')] * 4
    episode = play(EngineAgent(ScriptedSampler(broken, closed), chat, Sampling(), repair_penalty=0.3), max_turns=4)
    assert (episode.counts["repaired"], episode.penalty) == (4, 0.5)
    free = play(EngineAgent(ScriptedSampler(broken, closed), chat, Sampling()), max_turns=4)
    assert (free.counts["repaired"], free.penalty) == (4, 0.0)


def test_what_is_not_tolerant_repairs_nothing(tiny: Path) -> None:
    strict = formats.find(tiny, tolerant=False)
    parsed = strict.parse(closed(call('{"name": "f", "arguments": {}')))
    assert (parsed.status, parsed.faults) == ("malformed", {"strict": 1})
    assert strict.parse(closed("```json\n{}\n```\nUser: hi")).status == "text"


def test_what_is_counted(chat: ChatFormat) -> None:
    both = call('{"name": "switch_lamp", "arguments": {}}') + call('{"name": "nothing", "arguments": {}}')
    said = ["Hello.", both, call("{"), both + "x" * 100, both + "<tool_response>"]
    episode = play(EngineAgent(ScriptedSampler(said, closed), chat, Sampling(max_tokens=150)), max_turns=5)
    assert episode.stop is Stop.MAX_TURNS
    replies = {"text": 1, "calls": 2, "malformed": 1 + 1, "cut": 1, "other_side": 1}
    kinds = {"malformed/shape": 1, "repaired/brackets": 1}
    assert episode.counts == replies | kinds | {"bad_arguments": 3, "unknown_tool": 3}
    ids = [c.id for message in episode.messages for c in message.tool_calls]
    assert ids == [f"call_{turn}_{i}" for turn, count in ((1, 2), (2, 1), (3, 2), (4, 2)) for i in range(count)]


# ---- agents without a model ----


def test_gold_silence_and_demonstrations(chat: ChatFormat) -> None:
    gold = play(GoldAgent())  # type: ignore[arg-type]
    demonstrated = play(DemonstrationAgent(chat))  # type: ignore[arg-type]
    assert (gold.reward, play(SilentAgent()).reward, demonstrated.reward) == (1.0, 0.0, 1.0)  # type: ignore[arg-type]
    assert gold.tokens == []
    assert demonstrated.messages == gold.messages
    replies = [demonstrated.tokens[start:end] for start, end in demonstrated.spans()]
    assert replies == [chat.render(turn) for turn in TASK.gold]


def test_demonstrations_are_the_tokens_that_sampling_the_same_texts_would_give(chat: ChatFormat) -> None:
    sampled = play(EngineAgent(ScriptedSampler(texts(TASK, chat), closed), chat, Sampling()))
    demonstrated = play(DemonstrationAgent(chat))  # type: ignore[arg-type]
    assert (demonstrated.tokens, demonstrated.mask) == (sampled.tokens, sampled.mask)


def test_a_user_who_outlasts_the_gold_turns_is_a_task_error(chat: ChatFormat) -> None:
    short = TASK.replace(gold=TASK.gold[:1])
    with pytest.raises(TaskError, match=r"the user still speaks after the 1 gold turns"):
        play(DemonstrationAgent(chat), short)  # type: ignore[arg-type]


def test_a_person_is_asked_and_their_calls_get_ids() -> None:
    shown: list[tuple[list[Message], int]] = []
    turns = iter(TASK.gold)

    def ask(new: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        shown.append((list(new), len(tools)))
        return next(turns)

    episode = play(HumanAgent(ask))  # type: ignore[arg-type]
    assert episode.reward == 1.0
    assert [[m.role for m in new] for new, _ in shown] == [["system", "user"], ["user"], ["tool"]]
    assert {count for _, count in shown} == {2}
    assert [c.id for m in episode.messages for c in m.tool_calls] == ["call_1_0"]


def test_an_id_that_a_call_brings_is_kept() -> None:
    mine = ToolCall(id="mine", name="find_lamp", arguments={"room": "x"})
    other = ToolCall(name="find_lamp", arguments={"room": "x"})
    task = TASK.replace(gold=(Message(role="assistant", tool_calls=(mine, other)),))
    episode = asyncio.run(rollout(task, DOMAIN.environment(TASK), GoldAgent(), Limits(max_turns=1)))
    assert [c.id for m in episode.messages for c in m.tool_calls] == ["mine", "call_0_1"]
