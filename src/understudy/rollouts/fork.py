"""Forks: replay a stored episode up to one of the agent's turns, then continue with another agent or user.

The replay uses the episode's seed and replies, so it restores the state, the user simulator and its remaining patience.
A fork raises TaskError if the replay differs from the record before the turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from understudy.core.errors import ConfigError, TaskError
from understudy.core.messages import Message, ToolSpec
from understudy.core.tasks import Scenario, Task
from understudy.core.trajectory import StopReason, Trajectory
from understudy.envs.tools import UserTools
from understudy.envs.users import ReplayUser, SwitchingUser, User, UserFactory, UserSimulatorFactory
from understudy.rollouts.agent import Agent, EngineAgent
from understudy.rollouts.supervised import append_rendered_turn


@dataclass(frozen=True, slots=True)
class Fork:
    """A stored episode and the point to continue from: before the agent's reply number `turn`, counted from 1."""

    episode: Trajectory
    turn: int
    user_factory: UserSimulatorFactory
    """Factory of the user simulators of the episode."""
    same_model: bool
    """Whether the continuing model is the one that sampled the episode. If so, its prompt reuses the stored tokens."""

    @property
    def messages_before_turn(self) -> Sequence[Message]:
        """The messages before the agent's reply number `turn`, including the messages that this reply answers."""
        replies = self.episode.reply_indices
        if self.turn > len(replies):
            return self.episode.messages[:]
        return self.episode.messages[: replies[self.turn - 1]]

    @property
    def messages_up_to_last_reply(self) -> Sequence[Message]:
        """The messages up to and including the agent's last reply before the turn."""
        replies = self.episode.reply_indices[: self.turn - 1]
        return self.episode.messages[: replies[-1] + 1] if replies else []

    def make_user_factory(self, user_after: UserFactory | None = None) -> UserFactory:
        """Return a factory of users that repeat the record before the turn, then act as `user_after` or the
        simulator.

        A scripted user also repeats the actions of its own tools. If the user is not scripted and the scenario has
        such actions, the factory raises TaskError, because the record does not contain them.
        """
        texts = [message.content for message in self.messages_before_turn if message.role == "user"]

        def user(scenario: Scenario, seed: int, user_tools: UserTools | None) -> User:
            if not self.user_factory.is_scripted and scenario.user_actions:
                raise TaskError(
                    "the episode cannot be forked: the record does not contain the actions of the user's own tools; "
                    "fork an episode with a scripted user"
                )
            simulator = self.user_factory(scenario, seed, user_tools)
            before = simulator if self.user_factory.is_scripted else ReplayUser(texts)
            after = user_after(scenario, seed, user_tools) if user_after else simulator
            return SwitchingUser(before, len(texts), after)

        return user

    def make_agent(self, agent_after: Agent) -> Agent:
        """Return an agent that repeats the recorded replies before the turn, then acts as `agent_after`."""
        return _ForkedAgent(self, agent_after)


def fork_at(episode: Trajectory, turn: int, user_factory: UserSimulatorFactory, same_model: bool) -> Fork:
    """Return the fork of an episode before the agent's reply number `turn`, counted from 1.

    Raise ConfigError if the episode has no such turn, or several sequences.
    """
    if episode.branches:
        raise ConfigError(
            f"the episode of task {episode.task_id} has {len(episode.sequences)} token sequences; "
            "fork an episode that has one"
        )
    last = episode.num_turns + (episode.stop_reason is not StopReason.DONE)
    if not 1 <= turn <= last:
        raise ConfigError(f"the episode of task {episode.task_id} has no turn {turn}; choose a turn from 1 to {last}")
    return Fork(episode, turn, user_factory, same_model)


class _ForkedAgent:
    """An agent that repeats the recorded replies before the turn, then acts as another agent."""

    def __init__(self, fork: Fork, agent_after: Agent) -> None:
        self._record = fork.episode
        self._turn = fork.turn
        self._agent_after = agent_after
        self._format = agent_after.format if isinstance(agent_after, EngineAgent) else None
        self._spans = list(fork.episode.reply_spans()) if self._format and fork.same_model else []

    async def act(
        self, task: Task, episode: Trajectory, new_messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Message | None:
        turn = episode.num_turns + 1
        if turn <= self._turn:
            replies = self._record.reply_indices
            end = replies[turn - 1] if turn <= len(replies) else None
            recorded = self._record.messages[len(episode.messages) : end]
            _validate_same_history(recorded, new_messages, turn, is_whole=end is not None)
        if turn >= self._turn:
            return await self._agent_after.act(task, episode, new_messages, tools)
        reply = self._record.messages[len(episode.messages) + len(new_messages)]
        if self._format and not self._spans:
            if any(call.parse_error for call in reply.tool_calls):
                raise ConfigError(
                    f"turn {turn} has a tool call with a parse error, which cannot be rendered for another model; "
                    f"fork at turn {turn} or before"
                )
            append_rendered_turn(episode, new_messages, reply, tools, self._format, exactly=False)
        else:
            self._append_recorded(episode, new_messages, reply)
        return reply

    def _append_recorded(self, episode: Trajectory, new_messages: Sequence[Message], reply: Message) -> None:
        """Append the recorded prompt tokens and sampled tokens of the turn."""
        num_tokens = len(episode.tokens)
        start, end = self._spans[episode.num_turns] if self._spans else (num_tokens, num_tokens)
        episode.observe(new_messages, self._record.tokens[num_tokens:start])
        first, record = sum(self._record.mask[:start]), self._record
        masks = record.sampling_masks[first : first + end - start]
        episode.act(reply, record.tokens[start:end], record.logprobs[start:end], masks)


def _validate_same_history(
    recorded: Sequence[Message], new: Sequence[Message], turn: int, is_whole: bool = False
) -> None:
    """Raise TaskError if the new messages differ from the recorded ones. System messages may differ.

    If the record is whole, there must be as many new ones.
    """
    if is_whole and len(recorded) != len(new):
        raise TaskError(
            f"the replay differs from the record: before turn {turn} there were {len(recorded)} messages, and now "
            f"there are {len(new)}"
        )
    for then, now in zip(recorded, new, strict=False):
        if then != now and then.role != "system":
            raise TaskError(
                f"the replay differs from the record: the {then.role} said {then.content!r:.100} "
                f"before turn {turn}, and now says {now.content!r:.100}"
            )
