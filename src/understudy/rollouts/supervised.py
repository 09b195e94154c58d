"""Supervised examples: conversations as trajectories with the tokens and the mask of sampled episodes.

`agent.DemonstrationAgent` uses this module for gold turns, `build_supervised_example` for conversations from files.
Prompts come from the format's `encode`, as in sampled episodes. Replies come from `encode_reply`, which renders a
message in one way. The tokens of a sampled reply are reproduced except for what a `Message` does not store: reasoning,
white space around texts and in calls, and the form of a call before its repair.
"""

from collections.abc import Iterable, Sequence

from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolSpec
from understudy.core.trajectory import Trajectory
from understudy.envs.task_source import TaskSource, list_sources
from understudy.formats import ChatFormat
from understudy.formats.round_trip import validate_reply, validate_tools


def validate_source_tools(format: ChatFormat, sources: Iterable[TaskSource]) -> None:
    """Raise ConfigError if the format cannot read an example call of a tool of the sources."""
    for leaf in {id(leaf): leaf for source in sources for leaf in list_sources(source)}.values():
        validate_tools(format, leaf.tool_specs)


def append_rendered_turn(
    episode: Trajectory,
    new_messages: Sequence[Message],
    reply: Message,
    tools: Sequence[ToolSpec],
    format: ChatFormat,
    exactly: bool = True,
) -> None:
    """Append `new_messages` and `reply` to the episode, with the tokens that a model would sample for the reply.

    Raise ConfigError if the format does not read its own tokens as the calls of the reply; see `validate_reply`.
    """
    episode.observe(new_messages, format.encode(new_messages, tools, episode.tokens))
    tokens = format.encode_reply(reply)
    validate_reply(format, reply, tokens, tools, exactly)
    episode.act(reply, tokens, [0.0] * len(tokens))


def build_supervised_example(
    messages: Sequence[Message], tools: Sequence[ToolSpec], format: ChatFormat, task_id: str = ""
) -> Trajectory:
    """Return the trajectory of a conversation. Replies with `weight` 0 are part of the prompt.

    Messages after the last other reply have no tokens and are not trained on.

    Raise ConfigError if a tool call has a parse error, if the chat template cannot render a message, or if the format
    does not read the calls that it writes.
    """
    episode = Trajectory(task_id)
    new_messages: list[Message] = []
    for message in messages:
        if message.role != "assistant" or not message.weight:
            new_messages.append(message)
            continue
        for call in message.tool_calls:
            if call.parse_error:
                raise ConfigError(
                    f"reply {episode.num_turns + 1} has a tool call with a parse error ({call.parse_error}); "
                    "correct the call or remove the conversation"
                )
        append_rendered_turn(episode, new_messages, message, tools, format, exactly=False)
        new_messages = []
    episode.observe(new_messages)
    return episode
