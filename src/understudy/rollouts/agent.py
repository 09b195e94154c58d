"""Agents: each turns new messages into a reply and appends both to the trajectory.

`EngineAgent` is token-exact: it appends the tokens of the chat format and of the sampler, and tokenizes no text twice.
`APIAgent` calls a model behind an API. Its episodes have no tokens, so they are scored and never trained on.
`GoldAgent`, `NoopAgent`, `RefusingAgent`, `GoldCallsFirstAgent` and `HumanAgent` use no model. `GoldAgent` and
`NoopAgent` are the upper and lower baselines of every score.
"""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from understudy.clients.chat import ChatModel, ModelUsage
from understudy.core.errors import ConfigError, RolloutError, TaskError
from understudy.core.messages import Message, ToolSpec, assign_call_ids
from understudy.core.tasks import Task
from understudy.core.trajectory import Trajectory
from understudy.engines.interface import Sampler, SamplingParams
from understudy.formats import ChatFormat, ParsedMessage
from understudy.formats.chat_format import mark_truncated_call, reply_events, reply_status
from understudy.rollouts.supervised import append_rendered_turn

MAX_REPAIR_PENALTY = 0.5
"""Maximum total repair penalty of an episode."""
TURN_SEED_STRIDE = 1009
"""Factor in the seed of a reply, which is the episode's seed times this factor plus the turn. So a reply's seed
identifies its episode.
"""


class Agent(Protocol):
    """The model's side of an episode. One agent can play many episodes at once: their state is in the trajectories."""

    async def act(
        self, task: Task, episode: Trajectory, new_messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Message | None:
        """Append `new_messages` and the reply to the episode. Return the reply, or None if the context is full."""


class EngineAgent:
    """An agent that samples replies from an engine through a chat format.

    `repair_penalty` is subtracted from the training reward for each repaired reply, `MAX_REPAIR_PENALTY` at most. So an
    episode that succeeds with repairs earns more than one that fails without repairs.
    """

    def __init__(
        self, engine: Sampler, format: ChatFormat, sampling: SamplingParams, *, repair_penalty: float = 0.0
    ) -> None:
        self._engine = engine
        self._format = format
        self._sampling = sampling
        self._repair_penalty = repair_penalty

    @property
    def format(self) -> ChatFormat:
        """The chat format of the model."""
        return self._format

    async def act(
        self, task: Task, episode: Trajectory, new_messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Message | None:
        """Sample one reply, with a seed that depends only on the episode's seed and the turn.

        If the context is full, append `new_messages` without tokens and return None. Raise ConfigError if the first
        prompt already leaves no room for a reply, and RolloutError if a log-probability is not a finite number.
        """
        new_tokens = self._format.encode(new_messages, tools, episode.tokens)
        episode.observe(new_messages)
        prompt = [*episode.tokens, *new_tokens]
        seed = _turn_seed(episode)
        completion = await self._engine.sample(prompt, self._sampling, seed, self._format.stop_token_ids)
        if completion.context_full:
            _validate_opening_fits(task, episode, len(prompt))
            return None
        if not all(map(math.isfinite, completion.logprobs)):
            raise RolloutError("the sampler gave a log-probability that is not a finite number", "engine")
        episode.observe((), new_tokens)
        truncated = completion.finish_reason == "length"
        parsed = self._format.parse(completion.tokens, tools)
        for event, count in reply_events(parsed, truncated):
            _count(episode, event, count)
        may_have_stop_string = bool(self._sampling.stop) and completion.finish_reason == "stop"
        cut = may_have_stop_string and completion.tokens[-1] not in self._format.stop_token_ids
        if cut:
            _count(episode, "stop_string", 1)
        if parsed.repairs:
            episode.penalty = min(MAX_REPAIR_PENALTY, episode.penalty + self._repair_penalty)
        message = assign_call_ids(mark_truncated_call(parsed, truncated or cut), episode.num_turns)
        episode.act(message, completion.tokens, completion.logprobs, completion.sampling_masks)
        episode.weights_version = completion.weights_version
        return message


class APIAgent:
    """An agent that calls a chat-completions endpoint, with the tool protocol of the endpoint's `tool_format`."""

    def __init__(self, model: ChatModel) -> None:
        self._model = model

    @property
    def usage(self) -> ModelUsage:
        """Requests, tokens and cost of the model so far."""
        return self._model.usage

    async def act(
        self, task: Task, episode: Trajectory, new_messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Message | None:
        """Request one reply to the messages of the episode; a refusal becomes the text of the reply.

        Return None if the context is full. Raise RolloutError if the endpoint fails, or if the context is full at the
        first turn.
        """
        episode.observe(new_messages)
        try:
            reply = await self._model.generate(episode.messages, tools, _turn_seed(episode) % 2**31)
        except RolloutError as e:
            if not e.context_full or not episode.num_turns:
                raise
            return None
        raw_message = Message(role="assistant", content=reply.refusal) if reply.refusal else reply.message
        status = reply_status(raw_message, reply.repairs)
        parsed = ParsedMessage(raw_message, status, reply.hallucinated_turn, reply.repairs, reply.parse_errors)
        for event, count in reply_events(parsed, truncated=reply.finish_reason == "length"):
            _count(episode, event, count)
        message = assign_call_ids(raw_message, episode.num_turns)
        episode.act(message)
        return message


def _validate_opening_fits(task: Task, episode: Trajectory, num_tokens: int) -> None:
    """Raise ConfigError if the episode has no reply yet: its first prompt fills the context."""
    if not episode.num_turns:
        raise ConfigError(
            f"task {task.id}: the first prompt (domain policy, tools, opening messages) has {num_tokens} tokens and "
            "leaves no room for a reply in the model's context; select fewer tools with slice.tools, set "
            "slice.domain_policy=brief, or raise engine.vllm.max_model_len"
        )


class GoldAgent:
    """An agent that plays a task's gold turns in order, then empty replies."""

    async def act(
        self, task: Task, episode: Trajectory, new_messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Message:
        """Append and return the next gold turn, or an empty reply after the last one."""
        episode.observe(new_messages)
        turn = episode.num_turns
        reply = task.gold_turns[turn] if turn < len(task.gold_turns) else Message(role="assistant")
        message = assign_call_ids(reply, turn)
        episode.act(message)
        return message


class DemonstrationAgent:
    """An agent that plays the gold turns with the tokens of a chat format, for SFT."""

    def __init__(self, format: ChatFormat) -> None:
        self._format = format

    async def act(
        self, task: Task, episode: Trajectory, new_messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Message:
        """Append and return the next gold turn, with the tokens that a model would have sampled for it.

        Raise TaskError if there is no gold turn left.
        """
        turn = episode.num_turns
        if turn >= len(task.gold_turns):
            raise TaskError(_describe_unfinished(task, new_messages))
        message = assign_call_ids(task.gold_turns[turn], turn)
        append_rendered_turn(episode, new_messages, message, tools, self._format)
        return message


class NoopAgent:
    """An agent whose replies are empty: the do-nothing baseline."""

    async def act(
        self, task: Task, episode: Trajectory, new_messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Message:
        """Append and return an empty reply."""
        episode.observe(new_messages)
        message = Message(role="assistant")
        episode.act(message)
        return message


class RefusingAgent:
    """An agent that refuses every request without calling a tool: the baseline of refusing."""

    async def act(
        self, task: Task, episode: Trajectory, new_messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Message:
        """Append and return the refusal."""
        episode.observe(new_messages)
        message = Message(role="assistant", content="I am sorry, but that is not possible.")
        episode.act(message)
        return message


class GoldCallsFirstAgent:
    """An agent that makes all gold calls first and asks the user nothing: the baseline of knowing the solution."""

    async def act(
        self, task: Task, episode: Trajectory, new_messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Message:
        """Append and return the next gold turn with tool calls, then the last gold text, then empty replies."""
        episode.observe(new_messages)
        turn = episode.num_turns
        call_turns = [message for message in task.gold_turns if message.tool_calls]
        text_turns = [message for message in task.gold_turns if not message.tool_calls]
        turns = [*call_turns, *text_turns[-1:]]
        reply = turns[turn] if turn < len(turns) else Message(role="assistant")
        message = assign_call_ids(reply, turn)
        episode.act(message)
        return message


class HumanAgent:
    """A person at a prompt. `ask` shows the new messages and the tools, and returns the person's reply."""

    def __init__(self, ask: Callable[[Sequence[Message], Sequence[ToolSpec]], Message]) -> None:
        self._ask = ask

    async def act(
        self, task: Task, episode: Trajectory, new_messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Message:
        """Append and return the person's reply."""
        episode.observe(new_messages)
        message = assign_call_ids(self._ask(new_messages, tools), episode.num_turns)
        episode.act(message)
        return message


def _turn_seed(episode: Trajectory) -> int:
    return episode.seed * TURN_SEED_STRIDE + episode.num_turns


def _count(episode: Trajectory, event: str, count: int = 1) -> None:
    episode.event_counts[event] = episode.event_counts.get(event, 0) + count


def _describe_unfinished(task: Task, messages: Sequence[Message]) -> str:
    """Return what gold lacks. `messages` follow its last turn."""
    last = messages[-1] if messages else None
    if last and last.role == "tool":
        return f"task {task.id}: gold ends with a call; add a gold text that tells the user the result"
    said = f" with {last.content!r:.100}" if last else ""
    return (
        f"task {task.id}: the user continues{said} after the {len(task.gold_turns)} gold turns; add the missing gold "
        "turns"
    )
