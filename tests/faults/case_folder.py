"""The files of a run with faults beside its folder: its plan, its config, and what the config names."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.faults.cases import FaultCase
from tests.faults.injection import HANG, FaultPlan
from tests.faults.sources import MODULE_NAME, MODULE_TEXT
from understudy.core.settings import dump_toml
from understudy.runs.config import TrainConfig, parse_config

CONFIG_FILE = "config.toml"
_ROOT = Path(__file__).parents[2]
_COUNTER = """\
domain_policy = "You keep a count."
tasks = "tasks.jsonl"

[server]
command = [{python}, "-m", "tests.faults.tool_server", {folder}]
protocol = "legacy"
env = {{PYTHONPATH = {path}}}
read_only_tools = ["count"]
call_timeout = {seconds}
max_start_attempts = 1
max_retries = 0
"""
_TRACKER = """\
import os
import signal
import time
from pathlib import Path

from tests.faults.injection import FaultInjector

INJECTOR = FaultInjector(Path(__file__).parent)


class SummaryWriter:
    def __init__(self, *args, **options): ...

    def add_scalar(self, name, value, step):
        fault = INJECTOR.find_fault("trackers", f"{name} {step}")
        if fault == "exception":
            raise ConnectionError("the injected server refuses")
        if fault == "death":
            os._exit(9)
        if fault == "slow":
            time.sleep(0.005)
        if fault == "hang":
            signal.pause()

    def flush(self): ...

    def close(self): ...
"""
"""A package `tensorboardX` whose writer fails by the plan."""


def write_case_folder(folder: Path, config: TrainConfig, case: FaultCase, plan: FaultPlan, address: str) -> None:
    """Write the folder of a run with the settings of a case. `address` is the address of its endpoint."""
    folder.mkdir(parents=True)
    plan.write(folder)
    setup = case.setup
    settings = [setting.format(address=address) for setting in (*setup.settings, *case.own_settings)]
    own = parse_config(dump_toml(config), [*settings, f"domain={MODULE_NAME}:SOURCE"])
    (folder / CONFIG_FILE).write_text(dump_toml(own), encoding="utf-8")
    (folder / f"{MODULE_NAME}.py").write_text(MODULE_TEXT, encoding="utf-8")
    if "tensorboard" in own.trackers:
        (folder / "tensorboardX.py").write_text(_TRACKER, encoding="utf-8")
    if setup.source == "counter":
        _write_counter(folder, call_timeout=2 if ("MCP server", HANG) in plan.faults else 60)


def _write_counter(folder: Path, call_timeout: int) -> None:
    """Write an MCP environment of one counter."""
    words = {"python": sys.executable, "folder": str(folder), "path": str(_ROOT)}
    text = _COUNTER.format(seconds=call_timeout, **{name: json.dumps(value) for name, value in words.items()})
    (folder / "counter.toml").write_text(text, encoding="utf-8")
    tasks = [_counter_task(number, split) for split in ("train", "validation", "test") for number in range(3, 9)]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks), encoding="utf-8")


def _counter_task(number: int, split: str) -> Mapping[str, Any]:
    return {
        "id": f"count/{split}/{number}",
        "prompt": f"Add {number} to the count.",
        "split": split,
        "gold": [{"tool": "add", "arguments": {"amount": number}}],
        "check": {"calls": {"required": [{"tool": "add", "arguments": {"amount": number}}]}},
    }
