"""Tests of the agents: token-exact episodes, repair of tool calls, and agents without a model."""

import asyncio
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toy import DOMAIN
from understudy import formats
from understudy.core.errors import ConfigError, TaskError
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.tasks import Task
from understudy.core.trajectory import StopReason, Trajectory
from understudy.engines.interface import Completion, SamplingParams, context_full_completion
from understudy.engines.models import make_tiny_model
from understudy.engines.scripted import ScriptedSampler
from understudy.formats import ChatFormat
from understudy.rollouts.agent import DemonstrationAgent, EngineAgent, GoldAgent, HumanAgent, NoopAgent
from understudy.rollouts.rollout import EpisodeLimits, rollout

TASK = DOMAIN.tasks("train")[0]
END = 258
"""`<|im_end|>` of the tiny model; its other tokens are bytes."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def chat(tiny: Path) -> ChatFormat:
    return formats.load_chat_format(tiny)


def encode_with_end(text: str) -> list[int]:
    return [*text.encode(), END]


def play(agent: EngineAgent, task: Task = TASK, **limits: int) -> Trajectory:
    environment = DOMAIN.environment(task)
    return asyncio.run(rollout(task, environment, agent, EpisodeLimits.model_validate(limits), seed=5))


def gold_texts(task: Task, chat: ChatFormat) -> list[str]:
    """Return a task's gold turns as a model writes them."""
    return [bytes(chat.encode_reply(turn)[:-1]).decode() for turn in task.gold]


def tool_call_text(text: str) -> str:
    return f"<tool_call>\n{text}\n</tool_call>"


def test_each_prompt_extends_the_previous_prompt_and_reply(chat: ChatFormat) -> None:
    sampler = ScriptedSampler(gold_texts(TASK, chat), encode_with_end)
    episode = play(EngineAgent(sampler, chat, SamplingParams()))
    assert episode.reward == 1.0
    assert episode.stop_reason is StopReason.DONE
    replies = [encode_with_end(text) for text in gold_texts(TASK, chat)]
    for prompt, reply, following in zip(sampler.prompts, replies, sampler.prompts[1:], strict=False):
        assert following[: len(prompt) + len(reply)] == prompt + reply
    assert episode.tokens == sampler.prompts[-1] + replies[-1]
    spans = list(episode.reply_spans())
    assert [episode.tokens[start:end] for start, end in spans] == replies
    assert [start for start, _ in spans] == [len(prompt) for prompt in sampler.prompts]
    assert [p for p, m in zip(episode.logprobs, episode.mask, strict=True) if m] == [math.log(0.5)] * sum(episode.mask)
    assert not any(p for p, m in zip(episode.logprobs, episode.mask, strict=True) if not m)


class WrongLogprobSampler(ScriptedSampler):
    """A sampler whose last log-probability is wrong."""

    def __init__(self, texts: Sequence[str], logprob: float) -> None:
        super().__init__(texts, encode_with_end)
        self.logprob = logprob

    async def sample(
        self, prompt: Sequence[int], sampling: SamplingParams, seed: int, stop_tokens: Collection[int] = ()
    ) -> Completion:
        completion = await super().sample(prompt, sampling, seed, stop_tokens)
        return replace(completion, logprobs=[*completion.logprobs[:-1], self.logprob])


@pytest.mark.parametrize("logprob", [math.nan, math.inf, -math.inf])
def test_logprob_that_is_no_finite_number_is_a_fault_of_the_engine(chat: ChatFormat, logprob: float) -> None:
    sampler = WrongLogprobSampler(gold_texts(TASK, chat), logprob)
    episode = play(EngineAgent(sampler, chat, SamplingParams()))
    assert (episode.stop_reason, episode.fault, episode.score) == (StopReason.FAULT, "engine", None)


class LimitedContextSampler(ScriptedSampler):
    """A sampler that reports a full context for prompts of `context` or more tokens."""

    def __init__(self, texts: Sequence[str], context: int) -> None:
        super().__init__(texts, encode_with_end)
        self._context = context

    async def sample(
        self, prompt: Sequence[int], sampling: SamplingParams, seed: int, stop_tokens: Collection[int] = ()
    ) -> Completion:
        if len(prompt) >= self._context:
            return context_full_completion(weights_version=3)
        return await super().sample(prompt, sampling, seed, stop_tokens)


def test_episode_ends_with_a_score_when_the_context_is_full(chat: ChatFormat) -> None:
    gold = gold_texts(TASK, chat)
    whole = ScriptedSampler(gold, encode_with_end)
    play(EngineAgent(whole, chat, SamplingParams()))
    sampler = LimitedContextSampler(gold, context=len(whole.prompts[-1]))
    episode = play(EngineAgent(sampler, chat, SamplingParams()))
    assert (episode.stop_reason, episode.reward, episode.num_turns) == (StopReason.MAX_TOKENS, 0.0, len(gold) - 1)
    assert episode.score is not None
    assert not episode.score.parts["within_limits"]
    assert episode.messages[-1].role in ("tool", "user"), "what it was shown last is told"
    assert episode.tokens == sampler.prompts[-1] + encode_with_end(gold[-2]), "and has no tokens"
    assert episode.mask[-1]


def test_first_prompt_longer_than_the_context_raises(chat: ChatFormat) -> None:
    with pytest.raises(ConfigError, match=rf"{TASK.id}: .*\b\d+ tokens\b"):
        play(EngineAgent(LimitedContextSampler([], context=30), chat, SamplingParams()))


class RandomSampler:
    """A sampler of random tokens that records its requests. A stop token comes only at the end of a reply."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.requests: list[tuple[list[int], SamplingParams, int, frozenset[int]]] = []

    async def sample(
        self, prompt: Sequence[int], sampling: SamplingParams, seed: int, stop_tokens: Sequence[int] = ()
    ) -> Completion:
        self.requests.append((list(prompt), sampling, seed, frozenset(stop_tokens)))
        bits = [*b'<tool_call>\n{"name": "switch_lamp", "arguments": {}}\n</tool_call>']
        tokens = [self._random.choice([*range(256), *bits]) for _ in range(self._random.randrange(12))]
        tokens = self._random.choice([tokens, bits, bits + bits, tokens + bits, bits + tokens])
        finish = self._random.choice(["stop", "length"]) if tokens else "stop"
        tokens = [*tokens, self._random.choice(sorted(stop_tokens))] if finish == "stop" else tokens
        return Completion(tokens, [-self._random.random() for _ in tokens], finish, weights_version=7)  # type: ignore[arg-type]


@settings(deadline=None, derandomize=True, max_examples=50)
@given(seed=st.integers(0, 10**6))
def test_sampled_tokens_are_recorded_unchanged(chat: ChatFormat, seed: int) -> None:
    sampler = RandomSampler(Random(seed))
    episode = play(EngineAgent(sampler, chat, SamplingParams()), max_turns=6)
    prompts = [prompt for prompt, *_ in sampler.requests]
    for prompt, following, (start, end) in zip(
        prompts, [*prompts[1:], episode.tokens], episode.reply_spans(), strict=True
    ):
        assert start == len(prompt)
        assert following[:end] == episode.tokens[:end]
    assert episode.weights_version == 7
    assert len(episode.tokens) == len(episode.mask) == len(episode.logprobs)
    assert not episode.mask[0]
    assert (
        sum(episode.event_counts[status] for status in ("text", "tool_calls", "malformed", "empty", "truncated"))
        == episode.num_turns
    )
    ids = [c.id for message in episode.messages for c in message.tool_calls]
    assert len(ids) == len(set(ids))
    answered = [message.tool_call_id for message in episode.messages if message.role == "tool"]
    assert answered == ids[: len(answered)]


def test_each_turn_is_sampled_with_its_own_seed_and_the_stop_tokens(chat: ChatFormat) -> None:
    samplers = [RandomSampler(Random(1)), RandomSampler(Random(1))]
    for sampler in samplers:
        play(EngineAgent(sampler, chat, SamplingParams(temperature=0.5)), max_turns=6)
    seeds = [seed for _, _, seed, _ in samplers[0].requests]
    assert len(set(seeds)) == len(seeds) > 2
    assert samplers[0].requests == samplers[1].requests
    assert {stops for *_, stops in samplers[0].requests} == {chat.stop_token_ids}
    assert {sampling for _, sampling, *_ in samplers[0].requests} == {SamplingParams(temperature=0.5)}


def test_local_engine_episodes_match_the_trainer_logprobs(tiny: Path, chat: ChatFormat) -> None:
    from understudy.algorithms.batch import collate
    from understudy.engines.local.config import LocalEngineConfig
    from understudy.engines.local.engine import LocalEngine

    engine = LocalEngine(tiny, LocalEngineConfig(device="cpu", dtype="float32"))
    agent = EngineAgent(engine, chat, SamplingParams(max_response_tokens=8))

    async def play_all() -> list[Trajectory]:
        tasks = DOMAIN.tasks("train")[:4]
        plays = (
            rollout(task, DOMAIN.environment(task), agent, EpisodeLimits(max_turns=4), i)
            for i, task in enumerate(tasks)
        )
        return await asyncio.gather(*plays)

    episodes = asyncio.run(play_all())
    batch = collate(episodes)
    trainer = asyncio.run(engine.compute_logprobs(batch)).logprobs
    assert float((trainer - batch.logprobs).abs().max()) < 1e-4
    for episode in episodes:
        assert sum(episode.mask) > 0
        shown = [m for m in episode.messages if m.role != "assistant"]
        first = chat.encode(shown[:2], DOMAIN.tool_specs, [])
        assert episode.tokens[: len(first)] == first
        assert next(episode.reply_spans())[0] == len(first)


@pytest.mark.parametrize(
    ("text", "status", "error", "answer"),
    [
        (
            tool_call_text('{"name": "switch_lamp", "arguments": {'),
            "malformed",
            "malformed",
            "Error: the call is not JSON",
        ),
        (tool_call_text('["switch_lamp"]'), "malformed", "malformed", "Error: the call is not a JSON object"),
        ("Sure. <tool_call>", "malformed", "malformed", "Error: the call is not closed"),
        (
            tool_call_text('{"name": "swich_lamp", "arguments": {}}'),
            "tool_calls",
            "unknown_tool",
            "did you mean 'switch_lamp'",
        ),
        (
            tool_call_text('{"name": "switch_lamp", "arguments": {"on": true}}'),
            "tool_calls",
            "invalid_arguments",
            "lamp_id",
        ),
        (
            tool_call_text('{"name": "find_lamp", "arguments": {"room": "x"}}'),
            "tool_calls",
            "refused",
            "Error: no lamp in room x",
        ),
    ],
)
def test_invalid_call_returns_a_tool_error_and_skips_the_user(
    chat: ChatFormat, text: str, status: str, error: str, answer: str
) -> None:
    sampler = ScriptedSampler([text, *gold_texts(TASK, chat)], encode_with_end)
    episode = play(EngineAgent(sampler, chat, SamplingParams()))
    assert episode.reward == 1.0, "the user went on as if nothing had been said"
    _, _, reply, result, *rest = episode.messages
    assert (reply.role, result.role) == ("assistant", "tool")
    assert answer in result.content
    assert result.tool_call_id == reply.tool_calls[0].id == "call_0_0"
    assert rest[0].role == "assistant"
    assert episode.event_counts[status] >= 1
    assert episode.event_counts[error] >= 1


def test_repaired_call_keeps_its_sampled_tokens(chat: ChatFormat) -> None:
    written = gold_texts(TASK, chat)
    broken = [text.replace("}}", "}").replace("</tool_call>", "") for text in written]
    assert broken != written
    sampler = ScriptedSampler(broken, encode_with_end)
    episode = play(EngineAgent(sampler, chat, SamplingParams(), repair_penalty=0.2))
    assert episode.score is not None
    assert (episode.score.reward, episode.reward) == (1.0, 0.8)
    assert episode.event_counts["repaired"] == 1
    assert (episode.event_counts["repaired/brackets"], episode.event_counts["repaired/tags"]) == (1, 1)
    assert [episode.tokens[start:end] for start, end in episode.reply_spans()] == [
        encode_with_end(text) for text in broken
    ]


def test_call_cut_off_at_the_length_limit_is_not_executed(chat: ChatFormat) -> None:
    text = '<tool_call>{"name": "find_lamp", "arguments": {"room": "x"'
    cut = play(
        EngineAgent(ScriptedSampler([text + " " * 100], encode_with_end), chat, SamplingParams(max_response_tokens=70)),
        max_turns=1,
    )
    ended = play(EngineAgent(ScriptedSampler([text], encode_with_end), chat, SamplingParams()), max_turns=1)
    assert "cut off" in cut.messages[2].tool_calls[0].parse_error
    assert (cut.event_counts["truncated"], cut.event_counts["refused"]) == (1, 0)
    assert ended.messages[2].tool_calls[0].arguments == {"room": "x"}
    assert (ended.event_counts["repaired"], ended.event_counts["refused"]) == (1, 1)


def test_repair_penalty_is_capped_at_half_of_the_reward(chat: ChatFormat) -> None:
    broken = [tool_call_text('{"name": "find_lamp", "arguments": {}')] * 4
    episode = play(
        EngineAgent(ScriptedSampler(broken, encode_with_end), chat, SamplingParams(), repair_penalty=0.3), max_turns=4
    )
    assert (episode.event_counts["repaired"], episode.penalty) == (4, 0.5)
    free = play(EngineAgent(ScriptedSampler(broken, encode_with_end), chat, SamplingParams()), max_turns=4)
    assert (free.event_counts["repaired"], free.penalty) == (4, 0.0)


def test_event_counts_match_the_replies(chat: ChatFormat) -> None:
    both = tool_call_text('{"name": "switch_lamp", "arguments": {}}') + tool_call_text(
        '{"name": "nothing", "arguments": {}}'
    )
    replies_as_text = ["Hello.", both, tool_call_text("{"), both + "x" * 100, both + "<tool_response>"]
    episode = play(
        EngineAgent(ScriptedSampler(replies_as_text, encode_with_end), chat, SamplingParams(max_response_tokens=150)),
        max_turns=5,
    )
    assert episode.stop_reason is StopReason.MAX_TURNS
    replies = {"text": 1, "tool_calls": 2, "malformed": 1 + 1, "truncated": 1, "hallucinated_turn": 1}
    kinds = {"malformed/shape": 1, "repaired/brackets": 1}
    assert episode.event_counts == replies | kinds | {"invalid_arguments": 3, "unknown_tool": 3}
    ids = [c.id for message in episode.messages for c in message.tool_calls]
    assert ids == [f"call_{turn}_{i}" for turn, count in ((1, 2), (2, 1), (3, 2), (4, 2)) for i in range(count)]


def test_rewards_of_gold_noop_and_demonstration_agents(chat: ChatFormat) -> None:
    gold = play(GoldAgent())  # type: ignore[arg-type]
    demonstrated = play(DemonstrationAgent(chat))  # type: ignore[arg-type]
    assert (gold.reward, play(NoopAgent()).reward, demonstrated.reward) == (1.0, 0.0, 1.0)  # type: ignore[arg-type]
    assert gold.tokens == []
    assert demonstrated.messages == gold.messages
    replies = [demonstrated.tokens[start:end] for start, end in demonstrated.reply_spans()]
    assert replies == [chat.encode_reply(turn) for turn in TASK.gold]


def test_demonstration_tokens_equal_those_of_sampling_the_same_texts(chat: ChatFormat) -> None:
    sampled = play(EngineAgent(ScriptedSampler(gold_texts(TASK, chat), encode_with_end), chat, SamplingParams()))
    demonstrated = play(DemonstrationAgent(chat))  # type: ignore[arg-type]
    assert (demonstrated.tokens, demonstrated.mask) == (sampled.tokens, sampled.mask)


def test_demonstration_raises_when_the_gold_turns_run_out(chat: ChatFormat) -> None:
    short = TASK.replace(gold=TASK.gold[:1])
    with pytest.raises(TaskError, match=r"\b1\b"):
        play(DemonstrationAgent(chat), short)  # type: ignore[arg-type]


def test_human_agent_sees_new_messages_and_its_calls_get_ids() -> None:
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


def test_existing_tool_call_id_is_kept() -> None:
    mine = ToolCall(id="mine", name="find_lamp", arguments={"room": "x"})
    other = ToolCall(name="find_lamp", arguments={"room": "x"})
    task = TASK.replace(gold=(Message(role="assistant", tool_calls=(mine, other)),))
    episode = asyncio.run(rollout(task, DOMAIN.environment(TASK), GoldAgent(), EpisodeLimits(max_turns=1)))
    assert [c.id for m in episode.messages for c in m.tool_calls] == ["mine", "call_0_1"]
