"""A task of the toy domain, and correct and incorrect turns of an agent."""

from toy import DOMAIN
from understudy.core.messages import Message, ToolCall

ONE = next(task for task in DOMAIN.tasks("train") if task.family == "one")
LAMP = ONE.gold_calls[0].arguments["lamp_id"]
OTHER = "L1" if LAMP != "L1" else "L2"
ASK = f"I will switch on lamp {LAMP}. Do you want me to proceed?"


def text_reply(text: str) -> Message:
    """Return a reply without a call."""
    return Message(role="assistant", content=text)


def call_reply(name: str = "switch_lamp", malformed: str = "", **arguments: object) -> Message:
    """Return a reply that makes one call."""
    call = ToolCall(name=name, arguments=arguments, parse_error=malformed, id=f"{name}{len(arguments)}")
    return Message(role="assistant", tool_calls=(call,))


RIGHT = call_reply(lamp_id=LAMP, on=True)
WRONG = call_reply(lamp_id=OTHER, on=True)
