"""Conversations in a model's own tokens: the tokens and the mask that an episode has in which the model said the same.

The one way for all that is imitated: gold turns as they are played (`agent.DemonstrationAgent`), and conversations out
of files (`retold`). Prompts come from the format's `encode`, as those of episodes that are sampled; replies from its
`render`, which writes a message in one way. So what a model once sampled comes back as it was but for what a message
does not hold: thoughts, white space around texts and in calls, and how a call was written before it was repaired.
"""

from collections.abc import Sequence

from understudy.errors import ConfigError
from understudy.formats import ChatFormat
from understudy.messages import Message, ToolSpec
from understudy.trajectory import Trajectory


def tell(
    episode: Trajectory, new: Sequence[Message], reply: Message, tools: Sequence[ToolSpec], format: ChatFormat
) -> None:
    """Append what the agent is shown and its reply, with the tokens that the model would have sampled for it."""
    episode.observe(new, format.encode(new, tools, episode.tokens))
    tokens = format.render(reply)
    episode.act(reply, tokens, [0.0] * len(tokens))


def retold(messages: Sequence[Message], tools: Sequence[ToolSpec], format: ChatFormat, task: str = "") -> Trajectory:
    """The episode of a conversation. Messages after the last reply are in it without tokens: nothing is learned there.

    Raises ConfigError for what cannot be written: a call that could not be read, or more than the chat template takes.
    """
    episode, new = Trajectory(task), list[Message]()
    for message in messages:
        if message.role != "assistant":
            new.append(message)
            continue
        for call in message.tool_calls:
            if call.malformed:
                raise ConfigError(f"reply {episode.turns + 1} has a call that could not be read ({call.malformed})")
        tell(episode, new, message, tools, format)
        new = []
    episode.observe(new)
    return episode
