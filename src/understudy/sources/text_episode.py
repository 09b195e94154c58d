"""TextEpisode: an episode for frameworks whose environments exchange only text, such as skyrl-gym.

The system message lists the tools, calls are parsed from the text of replies, and results are sent as user messages.
With the tool format `hermes` the text equals the output of the Qwen2.5 and Qwen3 templates for tools, calls and
results, so the model sees the tokens that it was trained on.

The framework tokenizes the text, and turns control tokens in it into tokens. So text of the policy, the user, the tools
and their results that looks like one is escaped (`escape_control_text`), `<tool_response>` included.

Such frameworks do not report if a reply was cut off at its length limit, so an incomplete last call is never run.
`agent.EngineAgent`, which knows the tokens, repairs the incomplete call of a finished reply.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from understudy.core.messages import Message, ToolSpec, assign_call_ids
from understudy.core.tasks import Score
from understudy.envs.environment import Environment
from understudy.formats.chat_format import mark_truncated_call
from understudy.formats.chatml import QWEN_TOOLS, tool_json
from understudy.formats.control_text import escape_control_text
from understudy.formats.options import ToolFormat
from understudy.formats.parsing.parse import parse_message
from understudy.formats.prompted_tools import render_as_text
from understudy.formats.tool_parsers.hermes import RESULT, RESULT_END

TextMessage = dict[str, str]
"""A message: its `role`, one of system, user and assistant, and its `content`."""


class TextEpisode:
    """One episode. After `max_turns` replies it is graded as cut off by a limit."""

    def __init__(self, environment: Environment, *, tool_format: ToolFormat, max_turns: int) -> None:
        self.score: Score | None = None
        """The score; None until the episode is over."""
        self.num_turns = 0
        """Number of replies so far."""
        self.reply_counts: Counter[str] = Counter()
        """Replies by parse status: `calls`, `text`, `repaired`, `malformed`, `empty`."""
        self.error_counts: Counter[str] = Counter()
        """Failed calls by `ToolError.kind`."""
        self._environment, self._dialect, self._max_turns = environment, tool_format, max_turns

    async def start(self) -> list[TextMessage]:
        """Return the system message with the policy, if there is one, and the tools, and the user's first message."""
        step = await self._environment.start()
        return render_messages(step.messages, self._environment.tools, self._dialect)

    async def step(self, text: str) -> list[TextMessage]:
        """Return the answer to a reply; empty if the reply ends the episode."""
        found = parse_message(text, self._dialect, self._environment.tools)
        reply = assign_call_ids(mark_truncated_call(found, truncated=True), self.num_turns)
        self.num_turns += 1
        step = await self._environment.step(reply)
        self.reply_counts[found.status] += 1
        self.error_counts.update(step.error_kinds)
        self.score = step.score
        if self.score is None and self.num_turns >= self._max_turns:
            self.score = await self._environment.grade(ended=False)
        return [] if self.score else render_messages(step.messages, (), self._dialect)

    async def close(self) -> None:
        """Release the resources of the episode."""
        await self._environment.close()


def render_messages(
    messages: Sequence[Message], tools: Sequence[ToolSpec], tool_format: ToolFormat
) -> list[TextMessage]:
    """Return messages as plain text messages, with the tools at the end of the system message."""
    messages = [message.replace(content=escape_control_text(message.content)) for message in messages]
    tools = [ToolSpec.model_validate_json(escape_control_text(tool.model_dump_json())) for tool in tools]
    if tool_format == "hermes":
        messages, tools = [*_as_qwen(messages, tools)], ()
    return [
        {"role": message.role, "content": message.content} for message in render_as_text(messages, tools, tool_format)
    ]


def _as_qwen(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Iterator[Message]:
    """Yield messages in Qwen's text form; consecutive tool results become one user message."""
    before, after = QWEN_TOOLS
    block = before + "\n".join(map(tool_json, tools)) + after
    if tools and all(message.role != "system" for message in messages):
        yield Message(role="system", content=block)
    for role, group in groupby(messages, key=lambda message: message.role):
        if role == "system":
            yield from (m.replace(content=f"{m.content}\n\n{block}") if tools else m for m in group)
        elif role == "tool":
            results = (f"{RESULT}\n{message.content}\n{RESULT_END}" for message in group)
            yield Message(role="user", content="\n".join(results))
        else:
            yield from group
