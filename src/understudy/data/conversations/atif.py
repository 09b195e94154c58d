"""ATIF 1.7, the format of agent trajectories of Harbor, NeMo Gym and OpenEnv: one trajectory for each conversation.

A reply and the results of its calls are one step. A reply that is not trained on is copied context. Tokens and
log-probabilities are not part of conversations. Pairs are not supported, and a label is in `extra`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from understudy.core.messages import Message, assign_call_ids, tool_to_openai
from understudy.core.records import Record
from understudy.core.version import __version__
from understudy.data.conversations.conversations import TrainingExample
from understudy.data.conversations.examples import PreferencePair
from understudy.data.conversations.export import UnsupportedExample

ATIF_FILE = "trajectories.jsonl"
VERSION = "ATIF-v1.7"


class ATIFTrajectory(Record):
    """A row of the file."""

    schema_version: str = VERSION
    session_id: str
    agent: dict[str, Any]
    steps: tuple[dict[str, Any], ...]
    extra: dict[str, Any]


class ATIFTarget:
    """Export target for ATIF."""

    def rows(self, example: TrainingExample) -> Iterator[tuple[str, Record]]:
        """Yield the trajectory of a conversation."""
        if isinstance(example, PreferencePair):
            raise UnsupportedExample("a pair, which is no trajectory")
        agent: dict[str, Any] = {"name": "understudy", "version": __version__}
        if example.tools:
            agent["tool_definitions"] = list(map(tool_to_openai, example.tools))
        label = getattr(example, "label", None)
        yield (
            ATIF_FILE,
            ATIFTrajectory(
                session_id=example.task or "conversation",
                agent=agent,
                steps=tuple(_to_steps(example.messages)),
                extra={"task": example.task} | ({} if label is None else {"label": label}),
            ),
        )

    def files(self, counts: Mapping[str, int]) -> Mapping[str, str]:
        """Return no further files."""
        return {}

    def notes(self) -> Sequence[str]:
        """Return no notes."""
        return ()


def _to_steps(messages: Sequence[Message]) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool":
            if not waiting:
                raise UnsupportedExample("more results than calls before them")
            result = {"source_call_id": waiting.pop(0), "content": message.content}
            steps[-1].setdefault("observation", {"results": []})["results"].append(result)
            continue
        source = "agent" if message.role == "assistant" else message.role
        step: dict[str, Any] = {"step_id": len(steps) + 1, "source": source, "message": message.content}
        if not message.weight:
            step["is_copied_context"] = True
        if message.reasoning_content:
            step["reasoning_content"] = message.reasoning_content
        calls = assign_call_ids(message, len(steps)).tool_calls
        if calls:
            step["tool_calls"] = [
                {"tool_call_id": call.id, "function_name": call.name, "arguments": call.arguments} for call in calls
            ]
        waiting = [call.id for call in calls]
        steps.append(step)
    return steps
