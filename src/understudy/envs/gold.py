"""Turns of the gold agent: calls, texts, proposals, changes and instructions."""

from typing import Any

from understudy.core.foreign_names import explained_arguments
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import UserAction


@explained_arguments(positional="name the arguments of the tool, as in gold_call('get_order', order_id='W1')")
def gold_call(tool: str, /, **arguments: Any) -> Message:
    """Return a message of the gold agent with one call."""
    return Message(role="assistant", tool_calls=(ToolCall(name=tool, arguments=arguments),))


def gold_text(text: str) -> Message:
    """Return a message of the gold agent with a text."""
    return Message(role="assistant", content=text)


def gold_proposal(proposal: str) -> Message:
    """Return a gold text that proposes a change and asks for the user's consent."""
    return gold_text(f"I will {proposal}. Do you confirm?")


def gold_change(proposal: str, action: Message, report: str) -> tuple[Message, ...]:
    """Return the gold turns of a change: proposal, call and report."""
    return gold_proposal(proposal), action, gold_text(f"Done. {report}")


def gold_instruction(text: str, *user_actions: UserAction) -> tuple[Message, ...]:
    """Return a gold text that instructs the user, followed by the calls of the user's own tools."""
    return gold_text(text), *(Message(role="user", tool_calls=(action.call,)) for action in user_actions)
