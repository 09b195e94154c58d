"""Reads ATIF, the format of agent trajectories of Harbor, NeMo Gym and OpenEnv, as conversations.

A step of the agent is a reply, and the results of its observation are those of its calls. A result without a call is a
message of the user. A reply that is copied from another trajectory is not trained on.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from understudy.core.items import InvalidField


def is_atif(columns: Mapping[str, Any]) -> bool:
    """Return whether a row is a trajectory."""
    return str(columns.get("schema_version", "")).startswith("ATIF-") and isinstance(columns.get("steps"), list)


def conversation_of_atif(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a trajectory's conversation. Raise InvalidField for what a conversation cannot hold."""
    agent, extra = columns.get("agent") or {}, columns.get("extra") or {}
    messages = [message for number, step in enumerate(columns["steps"]) for message in _to_messages(number, step)]
    tools = {"tools": agent["tool_definitions"]} if agent.get("tool_definitions") else {}
    return {"messages": messages, **tools, **{key: extra[key] for key in ("task", "label") if key in extra}}


def _to_messages(number: int, step: Any) -> Iterator[dict[str, Any]]:
    where = f"steps.{number}"
    if not isinstance(step, dict) or step.get("source") not in ("system", "user", "agent"):
        raise InvalidField(f"{where}.source", "system, user or agent is needed")
    role = "assistant" if step["source"] == "agent" else step["source"]
    message: dict[str, Any] = {"role": role, "content": _text(step.get("message"), f"{where}.message")}
    if step.get("is_copied_context") and role == "assistant":
        message["weight"] = 0
    if step.get("reasoning_content"):
        message["reasoning_content"] = step["reasoning_content"]
    if calls := step.get("tool_calls"):
        message["tool_calls"] = [_to_call(call, f"{where}.tool_calls.{i}") for i, call in enumerate(calls)]
    yield message
    observation = step.get("observation") or {}
    results = observation.get("results") if isinstance(observation, dict) else None
    if observation and not (isinstance(results, list) and all(isinstance(result, dict) for result in results)):
        raise InvalidField(f"{where}.observation", "an object with a list of results is needed")
    for place, result in enumerate(results or ()):
        if result.get("subagent_trajectory_ref"):
            raise InvalidField(f"{where}.observation.results.{place}", "trajectories of other agents are not read")
        text = _text(result.get("content") or "", f"{where}.observation.results.{place}.content")
        call = result.get("source_call_id")
        yield {"role": "tool", "tool_call_id": call, "content": text} if call else {"role": "user", "content": text}


def _to_call(call: Any, field: str) -> dict[str, Any]:
    if not isinstance(call, dict) or not {"tool_call_id", "function_name", "arguments"} <= call.keys():
        raise InvalidField(field, "an object with tool_call_id, function_name and arguments is needed")
    function = {"name": call["function_name"], "arguments": call["arguments"]}
    return {"id": call["tool_call_id"], "type": "function", "function": function}


def _text(content: Any, field: str) -> str:
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
        raise InvalidField(field, "a text is needed; images and sounds are not read")
    return "\n".join(part["text"] for part in parts)
