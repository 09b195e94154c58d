"""An adversarial strategy for the hotel. A recipe: see docs/database.md.

understudy check hotel:DOMAIN --adversarial --strategy hotel_strategy:always_breakfast
"""

from understudy.core.messages import Message
from understudy.data.checks.adversarial.knowledge import TaskKnowledge


def always_breakfast(task: TaskKnowledge) -> list[Message] | None:
    """Plays gold, and books breakfast for guests who have not asked for it."""
    if task.task.family != "book" or "breakfast" in task.task.scenario.instructions:
        return None
    replies = []
    for turn in task.turns:
        calls = (call.replace(arguments={**call.arguments, "board": "breakfast"}) for call in turn.tool_calls)
        books = any(call.name == "book_room" for call in turn.tool_calls)
        replies.append(turn.replace(tool_calls=tuple(calls)) if books else turn)
    return replies
