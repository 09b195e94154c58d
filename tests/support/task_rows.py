"""Rows of every kind that a file of tasks may have, and files of every kind with such rows."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pyarrow.ipc as ipc
import pyarrow.parquet as parquet

from support.call_rows import ACTIONS, skyrl_row
from toy import DOMAIN
from understudy.core.messages import Message
from understudy.core.tasks import Task
from understudy.sources.task_files.skyrl_rows import to_skyrl_row
from understudy.sources.tool_dataset import ToolEpisode, ToolExample

Row = dict[str, Any]
TOY = "data.sources=toy:DOMAIN"
_NAMES = ["amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "inlet", "jetty", "knoll", "ledge"]


def tasks() -> list[Task]:
    """Return eight training tasks and four validation tasks of the toy domain."""
    return [*DOMAIN.tasks("train")[:8], *DOMAIN.tasks("validation")[:4]]


def own_rows() -> list[Row]:
    return [json.loads(task.model_dump_json(exclude_defaults=True)) for task in tasks()]


def skyrl_rows() -> list[Row]:
    return [json.loads(to_skyrl_row(task, "Switch lamps.", "toy:DOMAIN").model_dump_json()) for task in tasks()]


def tau_rows() -> list[Row]:
    """Return tasks in the form of tau-bench, over the tools of the toy domain. They name no split."""
    return [
        {
            "user_id": name,
            "instruction": f"You are {name}. {task.scenario.instructions}",
            "actions": [{"name": call.name, "kwargs": call.arguments} for call in task.gold_calls],
            "outputs": [],
            "domain": "toy",
        }
        for name, task in zip(_NAMES, tasks(), strict=True)
    ]


def call_rows() -> list[Row]:
    """Return rows with calls and no world, of several domains."""
    rows = []
    for number, name in enumerate(_NAMES):
        domain = sorted(ACTIONS)[number % 3]
        row = skyrl_row(domain)
        calls = [{**each, "kwargs": _numbered(each["kwargs"], number)} for each in ACTIONS[domain]]
        row["reward_spec"]["ground_truth"] = {**row["reward_spec"]["ground_truth"], "actions": calls}
        ids = ", ".join(str(value) for call in calls for value in call["kwargs"].values())
        row["extra_info"] = {"domain": domain, "instruction": f"I am {name}, and need: {ids}."}
        rows.append({**row, "user_strategy": "scripted"})
    return rows


def sequence_rows() -> list[Row]:
    """Return sequences of calls, in which a call uses the result of an earlier one."""
    return [
        {
            "data_source": "market",
            "env_class": "MCPToolEnv",
            "prompt": [{"role": "user", "content": f"Send the price of {name} to the channel {name}."}],
            "reward_spec": {
                "method": "rule",
                "ground_truth": {"task_id": name, "complexity": "simple", **_steps(name)},
            },
        }
        for name in _NAMES
    ]


def spec_rows() -> list[Row]:
    """Return dependent specs."""
    return [
        {
            "scenario": "market",
            "turns": 4,
            "tasks": [
                {
                    "task_id": name,
                    "complexity": "simple",
                    "conversation": [{"role": "user", "message": f"Send the price of {name} to the channel {name}."}],
                    "solution": _steps(name),
                }
            ],
        }
        for name in _NAMES
    ]


def conversation_rows() -> list[Row]:
    """Return recorded conversations whose calls only read."""
    rows = []
    for number, name in enumerate(_NAMES):
        price = f"{21 + number}.50"
        call = {"name": "get_price", "arguments": json.dumps({"item": name})}
        messages = [
            {"role": "user", "content": f"What does {name} cost, and what is {name}?"},
            {"role": "assistant", "tool_calls": [{"id": "c1", "function": call}]},
            {"role": "tool", "tool_call_id": "c1", "content": f"{name}: {price} a piece"},
            {"role": "assistant", "content": f"It costs {price}."},
        ]
        rows.append({"task_id": name, "messages": messages})
    return rows


def episode_rows() -> list[Row]:
    """Return episodes as tau-bench stores them: one of each task."""
    return [
        {
            "task_id": number,
            "trial": 0,
            "reward": float(number % 2),
            "info": {"task": {"instruction": f"I am {name}. Do {number}.", "actions": [_wave(name)], "outputs": []}},
            "traj": [{"role": "user", "content": f"Hello, I am {name}."}, {"role": "assistant", "content": "No."}],
        }
        for number, name in enumerate(_NAMES)
    ]


def prompt_rows() -> list[Row]:
    return [{"question": f"How many letters has {name}?", "answer": str(len(name) + 20)} for name in _NAMES]


def reward_answer(transcript: Sequence[Message], example: ToolExample) -> float:
    """Return 1.0 for the answer of the example."""
    return float(transcript[-1].content == example.answer)


class Answering(ToolEpisode):
    def reward(self, transcript: Sequence[Message]) -> float:
        return reward_answer(transcript, self.example)


def reward_nothing(transcript: Sequence[Message], example: ToolExample) -> float:
    """Return 0.0 for every answer."""
    return 0.0


def verl_reward(data_source: str, solution_str: str, ground_truth: str, extra_info: object = None) -> float:
    """Have the signature of verl's reward functions."""
    return float(ground_truth in solution_str)


def trl_reward(completions: Sequence[str], answer: Sequence[str]) -> list[float]:
    """Have the signature of TRL's reward functions."""
    return [float(text == right) for text, right in zip(completions, answer, strict=True)]


ROWS: dict[str, tuple[Callable[[], list[Row]], tuple[str, ...]]] = {
    "tasks": (own_rows, (TOY,)),
    "SkyRL rows": (skyrl_rows, (TOY,)),
    "tau tasks": (tau_rows, (TOY,)),
    "call rows": (call_rows, ()),
    "sequences": (sequence_rows, ()),
    "tasks of specs": (spec_rows, ()),
    "conversations": (conversation_rows, ()),
    "episodes": (episode_rows, ()),
    "prompts": (prompt_rows, ("data.reward=support.task_rows:reward_answer",)),
}
"""Kinds of rows, each with its rows and the settings that it needs."""
CONVERSATION_KINDS = ("conversations", "episodes", "prompts")
"""Those that `data convert` takes for training conversations."""


def write_jsonl(folder: Path, rows: list[Row]) -> Path:
    path = folder / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_json(folder: Path, rows: list[Row]) -> Path:
    path = folder / "mine.json"
    path.write_text(json.dumps(rows))
    return path


def write_parquet(folder: Path, rows: list[Row]) -> Path:
    path = folder / "mine.parquet"
    parquet.write_table(arrow.Table.from_pylist(rows), path)
    return path


def write_python(folder: Path, rows: list[Row]) -> Path:
    path = folder / "mine.py"
    path.write_text(f"TASKS = {rows!r}\n")
    return path


def write_folder(folder: Path, rows: list[Row]) -> Path:
    (folder / "mine").mkdir()
    for name, part in (("a", rows[:5]), ("b", rows[5:])):
        (folder / "mine" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    return folder / "mine"


def write_saved(folder: Path, rows: list[Row]) -> Path:
    """Write a data set as `Dataset.save_to_disk` does."""
    (folder / "mine").mkdir()
    (folder / "mine" / "state.json").write_text("{}")
    table = arrow.Table.from_pylist(rows)
    with ipc.new_stream(str(folder / "mine" / "data-00000-of-00001.arrow"), table.schema) as stream:
        stream.write_table(table)
    return folder / "mine"


FILES: dict[str, Callable[[Path, list[Row]], Path]] = {
    ".jsonl": write_jsonl,
    ".json": write_json,
    ".parquet": write_parquet,
    ".py": write_python,
    "folder": write_folder,
    "saved data set": write_saved,
}
"""Kinds of files, each with its writer."""


def _wave(name: str) -> Row:
    return {"name": "wave", "kwargs": {"to": name}}


def _numbered(arguments: Row, number: int) -> Row:
    return {key: f"{value}{number}" if isinstance(value, str) else value for key, value in arguments.items()}


def _steps(name: str) -> Row:
    return {
        "tool_sequence": [
            {"step": 1, "server": "fmp", "tool": "get_quote", "params": {"symbol": name}},
            {
                "step": 2,
                "server": "slack",
                "tool": "send_message",
                "params": {"channel": name, "text": "${step1.price}"},
            },
        ]
    }
