"""Who acts: an agent turns what it is shown into a reply, and records both in the trajectory.

`EngineAgent` is token exact: it appends the format's tokens and the sampler's, and nothing is ever tokenized twice.
`ChatAgent` is any model behind an API; without tokens its episodes are scored and never trained on. `GoldAgent`,
`SilentAgent`, `RefusingAgent`, `HastyAgent` and `HumanAgent` need no model; the first two are the oracle and the floor
of every score.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from understudy.chat import ChatModel, Usage
from understudy.engines.base import Sampler, Sampling
from understudy.errors import ConfigError, RolloutError, TaskError
from understudy.formats import ChatFormat, Parsed
from understudy.formats.base import ParseStatus, settled
from understudy.messages import Message, ToolSpec, identified
from understudy.retold import tell
from understudy.tasks import Task
from understudy.trajectory import Trajectory

MOST_PENALTY = 0.5
"""What an episode's repairs cost at most."""
TURNS = 1009
"""A reply's seed is the episode's times this, plus its turn: so it tells which episode it belongs to."""


class Agent(Protocol):
    """Who acts in an episode. One agent may play many at once: all that is an episode's is in its trajectory."""

    async def act(
        self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Message | None:
        """Append `new` and the reply to the episode, and return the reply; None where there is no room for one."""


class EngineAgent:
    """A model behind an engine, through its chat format.

    `repair_penalty` is taken off the reward to train on for each reply that was repaired, `MOST_PENALTY` at most: an
    episode that succeeds with repairs still earns more than one that fails without.
    """

    def __init__(self, engine: Sampler, format: ChatFormat, sampling: Sampling, *, repair_penalty: float = 0.0) -> None:
        self._engine, self._format, self._sampling = engine, format, sampling
        self._repair_penalty = repair_penalty

    @property
    def format(self) -> ChatFormat:
        """The model's dialect."""
        return self._format

    async def act(
        self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Message | None:
        """Sample one reply. Its seed depends on the episode's seed and the turn alone.

        Where the context is full, `new` is in the episode without tokens, which nothing could be learned from. An
        opening that leaves no room is a `ConfigError`.
        """
        shown = self._format.encode(new, tools, episode.tokens)
        episode.observe(new)
        prompt, seed = [*episode.tokens, *shown], _turn_seed(episode)
        completion = await self._engine.sample(prompt, self._sampling, seed, self._format.stop_tokens)
        if completion.full:
            _refuse_full_opening(task, episode, len(prompt))
            return None
        episode.observe((), shown)
        parsed = self._format.parse(completion.tokens, tools)
        for event, count in _events(parsed, cut=completion.finish == "length"):
            _count(episode, event, count)
        stopped = self._sampling.stop and completion.finish == "stop"
        if stopped and completion.tokens[-1] not in self._format.stop_tokens:
            _count(episode, "stop_string", 1)
        if parsed.repairs:
            episode.penalty = min(MOST_PENALTY, episode.penalty + self._repair_penalty)
        message = identified(settled(parsed, completion.finish == "length"), episode.turns)
        episode.act(message, completion.tokens, completion.logprobs)
        episode.version = completion.version
        return message


class ChatAgent:
    """A model behind a chat completions endpoint, with its own tool calls or, if `chat.tools` says so, in its text."""

    def __init__(self, model: ChatModel) -> None:
        self._model = model

    @property
    def usage(self) -> Usage:
        """What the model was asked so far."""
        return self._model.usage

    async def act(
        self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Message | None:
        """The endpoint's reply to all of the episode; a refusal is what the agent says."""
        episode.observe(new)
        try:
            reply = await self._model.reply(episode.messages, tools, _turn_seed(episode) % 2**31)
        except RolloutError as e:
            if not e.full or not episode.turns:
                raise
            return None
        said = Message(role="assistant", content=reply.refusal) if reply.refusal else reply.message
        parsed = Parsed(said, _status(said, reply.repairs), reply.other_side, reply.repairs, reply.faults)
        for event, count in _events(parsed, cut=reply.finish == "length"):
            _count(episode, event, count)
        episode.act(message := identified(said, episode.turns))
        return message


def _refuse_full_opening(task: Task, episode: Trajectory, count: int) -> None:
    if not episode.turns:
        raise ConfigError(
            f"task {task.id}: policy, tools and opening are {count} tokens, which leaves no room for a reply in the "
            "model's context; narrow slice.tools, set slice.policy=brief, or raise engine.vllm.max_model_len"
        )


def _events(parsed: Parsed, cut: bool) -> Iterator[tuple[str, int]]:
    """What is counted of a reply: its status, and each repair and each malformed call by kind."""
    yield "cut" if cut else parsed.status, 1
    if parsed.other_side:
        yield "other_side", 1
    yield from ((f"repaired/{kind}", count) for kind, count in parsed.repairs.items())
    yield from ((f"malformed/{kind}", count) for kind, count in parsed.faults.items())


class GoldAgent:
    """Plays a task's gold turns in order: the oracle. Past its script it says nothing."""

    async def act(self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """The next gold turn."""
        episode.observe(new)
        turn = episode.turns
        reply = task.turns[turn] if turn < len(task.turns) else Message(role="assistant")
        episode.act(message := identified(reply, turn))
        return message


class DemonstrationAgent:
    """Plays the gold turns in a model's own tokens: episodes for a warm start to imitate."""

    def __init__(self, format: ChatFormat) -> None:
        self._format = format

    async def act(self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """The next gold turn, with the tokens that the model would have sampled for it."""
        turn = episode.turns
        if turn >= len(task.turns):
            raise TaskError(f"task {task.id}: the user still speaks after the {turn} gold turns")
        tell(episode, new, message := identified(task.turns[turn], turn), tools, self._format)
        return message


class SilentAgent:
    """Says nothing, whatever it is told: the do-nothing floor."""

    async def act(self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """An empty reply."""
        episode.observe(new)
        episode.act(message := Message(role="assistant"))
        return message


class RefusingAgent:
    """Says no to everything: what a refusal earns that has looked at nothing."""

    async def act(self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """The same refusal each time."""
        episode.observe(new)
        episode.act(message := Message(role="assistant", content="I am sorry, but that is not possible."))
        return message


class HastyAgent:
    """Makes gold's calls at once, says gold's last words, and asks nobody: what knowing the answer alone earns."""

    async def act(self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """The next gold turn that calls, then gold's last text, then nothing."""
        episode.observe(new)
        turn, calling = episode.turns, [message for message in task.turns if message.tool_calls]
        said = [message for message in task.turns if not message.tool_calls][-1:]
        turns = [*calling, *said]
        episode.act(message := identified(turns[turn] if turn < len(turns) else Message(role="assistant"), turn))
        return message


class HumanAgent:
    """A person at a prompt. `ask` shows the new messages and gives the person's reply."""

    def __init__(self, ask: Callable[[Sequence[Message], Sequence[ToolSpec]], Message]) -> None:
        self._ask = ask

    async def act(self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """What the person answers."""
        episode.observe(new)
        episode.act(message := identified(self._ask(new, tools), episode.turns))
        return message


def _turn_seed(episode: Trajectory) -> int:
    return episode.seed * TURNS + episode.turns


def _count(episode: Trajectory, event: str, count: int = 1) -> None:
    episode.counts[event] = episode.counts.get(event, 0) + count


def _status(message: Message, repairs: Mapping[str, int]) -> ParseStatus:
    if any(call.malformed for call in message.tool_calls):
        return "malformed"
    if message.tool_calls:
        return "repaired" if repairs else "calls"
    return "text" if message.content.strip() else "empty"
