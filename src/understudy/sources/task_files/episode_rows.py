"""Read stored episodes of tau-bench: `info.task` is the task, and its conversation gives the policy.

    {"task_id": 0, "trial": 1, "reward": 0.0, "info": {"task": {instruction, actions, outputs}}, "traj": […]}

Episodes of one task are one task, whether they succeeded or not. An episode without `info.task` is a conversation
(`conversation_rows`).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from understudy.sources.task_files.conversation_rows import find_conversation
from understudy.sources.task_files.task_row import TaskRow, decode_columns, messages_of
from understudy.sources.task_files.tau_rows import read_tau_row


def is_episode_row(row: Mapping[str, Any]) -> bool:
    """Return whether a row is an episode with its task."""
    return "reward" in row and _task(row).keys() >= {"instruction", "actions"}


def read_episode_row(row: Mapping[str, Any], identity: str) -> TaskRow:
    """Return the task of an episode. `identity` is the id of a task without one."""
    file = identity.rpartition("/")[0]
    task_row = read_tau_row(_task(row), f"{file}/{row['task_id']}" if "task_id" in row else identity)
    found = find_conversation(decode_columns(row))
    system = next((text for role, text in messages_of(found[1] if found else []) if role == "system"), "")
    return replace(task_row, domain_policy=system)


def _task(row: Mapping[str, Any]) -> Mapping[str, Any]:
    info = decode_columns(row).get("info")
    task = info.get("task") if isinstance(info, dict) else None
    return task if isinstance(task, dict) else {}
