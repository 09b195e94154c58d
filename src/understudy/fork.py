"""Fork: a stored episode up to one of the agent's turns, to go on from there otherwise.

The episode is played again with its seed, reply by reply: so the database, the user and what has been spent of their
patience are as they were. A fork that comes out otherwise than the record before its turn is a TaskError.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from understudy.agent import Agent, EngineAgent
from understudy.errors import ConfigError, TaskError
from understudy.messages import Message, ToolSpec
from understudy.retold import tell
from understudy.tasks import Scenario, Task
from understudy.tools import Device
from understudy.trajectory import Stop, Trajectory
from understudy.users import Cast, MakeUser, RecordedUser, RelayedUser, User


@dataclass(frozen=True, slots=True)
class Fork:
    """Where an episode is left: before the agent's reply number `turn`, from 1."""

    episode: Trajectory
    turn: int
    cast: Cast
    """Who plays the users."""
    own: bool
    """Whether a model that goes on is the one that began, so that it has the episode's own tokens before it."""

    @property
    def before(self) -> Sequence[Message]:
        """The messages up to the turn, what the agent is then shown among them."""
        replies = [place for place, message in enumerate(self.episode.messages) if message.role == "assistant"]
        return self.episode.messages[: replies[self.turn - 1] if self.turn <= len(replies) else None]

    @property
    def past(self) -> Sequence[Message]:
        """The messages up to the agent's last reply before the turn."""
        after = itertools.dropwhile(lambda message: message.role != "assistant", reversed(self.before))
        return list(after)[::-1]

    def users(self, then: MakeUser | None = None) -> MakeUser:
        """Makes users who say what was said before the turn, and from there on what `then` or the cast makes of them.

        A scripted one does again what was done with tools of their own; of others that is not in the record.
        """
        words = [message.content for message in self.before if message.role == "user"]

        def user(scenario: Scenario, seed: int, device: Device | None) -> User:
            if not self.cast.scripted and scenario.deeds:
                raise TaskError("what the user did with tools of their own is not in the record; it cannot be forked")
            mine = self.cast(scenario, seed, device)
            first = mine if self.cast.scripted else RecordedUser(words)
            return RelayedUser(first, len(words), then(scenario, seed, device) if then else mine)

        return user

    def agent(self, then: Agent) -> Agent:
        """Says what was said before the turn, and then acts as `then`."""
        return _Forked(self, then)


def fork_at(episode: Trajectory, turn: int, cast: Cast, own: bool) -> Fork:
    """The fork of an episode before a turn of its agent, from 1; a `ConfigError` where it has no such turn."""
    last = episode.turns + (episode.stop is not Stop.DONE)
    if not 1 <= turn <= last:
        raise ConfigError(f"the episode of task {episode.task} has no turn {turn} to fork from; it has 1 to {last}")
    return Fork(episode, turn, cast, own)


class _Forked:
    """The recorded agent, then another."""

    def __init__(self, fork: Fork, then: Agent) -> None:
        self._record, self._turn, self._then = fork.episode, fork.turn, then
        self._format = then.format if isinstance(then, EngineAgent) else None
        self._spans = list(fork.episode.spans()) if self._format and fork.own else []

    async def act(
        self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Message | None:
        turn = episode.turns + 1
        if turn <= self._turn:
            _refuse_other(self._record.messages[len(episode.messages) :], new, turn)
        if turn >= self._turn:
            return await self._then.act(task, episode, new, tools)
        reply = self._record.messages[len(episode.messages) + len(new)]
        if self._format and not self._spans:
            if any(call.malformed for call in reply.tool_calls):
                raise ConfigError(
                    f"turn {turn} has a call that could not be read, which another model cannot be given as its own; "
                    f"fork at turn {turn} or before"
                )
            tell(episode, new, reply, tools, self._format)
        else:
            self._again(episode, new, reply)
        return reply

    def _again(self, episode: Trajectory, new: Sequence[Message], reply: Message) -> None:
        """What the model was shown and what it sampled, to the token."""
        seen = len(episode.tokens)
        start, end = self._spans[episode.turns] if self._spans else (seen, seen)
        episode.observe(new, self._record.tokens[seen:start])
        episode.act(reply, self._record.tokens[start:end], self._record.logprobs[start:end])


def _refuse_other(recorded: Sequence[Message], new: Sequence[Message], turn: int) -> None:
    """A TaskError where the agent is not shown what it was shown; what it is told of its job may be another."""
    for then, now in zip(recorded, new, strict=False):
        if then != now and then.role != "system":
            told = f"the {then.role} said {then.content!r:.100} before turn {turn}, and now says {now.content!r:.100}"
            raise TaskError(f"the episode comes out otherwise when it is played again: {told}")
