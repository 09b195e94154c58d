"""Measure the speed and memory of `understudy data`. Each command runs in its own process.

    python benchmarks/data.py [--rows 100000] [--keep FOLDER] [--json]

The input is one JSON object of tau-style retail tasks, built from the domain's generator and its initial state. The
timed commands convert it to parquet in two splits, parquet to tasks, and tasks to rows in one file. The first one runs
every task's gold calls and never divides a group of tasks between splits. Near-duplicates are searched among a tenth
as many generated tasks.

Memory is the peak of the process (VmHWM). If other programs use the same cores, CPU seconds are the fairer measure.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from understudy.core.errors import TaskError
from understudy.core.tasks import Task
from understudy.envs.domain import Domain
from understudy.sources.loading import load_source

# The child reports its own memory, because the peak of wait4 includes the parent's memory before exec.
PROGRAM = """
import atexit, sys
from understudy.cli.main import main
from understudy.engines.local.machine import peak_memory_bytes
atexit.register(lambda: print(peak_memory_bytes("cpu"), file=sys.stderr))
main()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000, help="number of tasks (default: %(default)s)")
    parser.add_argument(
        "--keep", type=Path, help="write the files to this new folder and keep them (default: a temporary folder)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per command")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        write_tau(folder / "tau.json", options.rows)
        for name, arguments in runs(folder, options.rows):
            result = measure(name, arguments)
            print(json.dumps(result) if options.json else as_line(result), flush=True)


def runs(folder: Path, rows: int) -> Iterator[tuple[str, list[str]]]:
    tau, parts, tasks = folder / "tau.json", folder / "parts", folder / "tasks.jsonl"
    yield "tau-style JSON to rows", ["convert", f"{tau}", f"{parts}", "--domain", "retail", "--train-ratio", "0.9"]
    yield "rows to tasks", ["convert", f"{parts / 'train.parquet'}", f"{tasks}"]
    yield "tasks to rows", ["convert", f"{tasks}", f"{folder / 'rows.parquet'}"]
    yield "generate tasks", ["synthesize", "retail", "--count", f"{rows // 10}", "--out", f"{folder / 'made.jsonl'}"]
    yield "stats, near-duplicates", ["stats", f"{folder / 'made.jsonl'}"]


def measure(name: str, arguments: list[str]) -> dict[str, Any]:
    started = time.perf_counter()
    command = [sys.executable, "-c", PROGRAM, "data", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, f"{name}: exit status {status}: {errors}"
    seconds = time.perf_counter() - started
    cpu, memory = usage.ru_utime + usage.ru_stime, int(errors.split()[-1]) / 2**20
    return {"run": name, "seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1), "megabytes": round(memory)}


def as_line(result: dict[str, Any]) -> str:
    return "{run:<24}{seconds:>8.1f} s{cpu_seconds:>8.1f} CPU s{megabytes:>7} MB peak".format(**result)


def write_tau(path: Path, count: int) -> None:
    tasks = itertools.islice(tau_tasks(load_source("retail")), count)
    with path.open("w", encoding="utf-8") as file:
        file.write('{"tasks": [')
        for number, task in enumerate(tasks):
            file.write((",\n" if number else "\n") + json.dumps(task))
        file.write("\n]}\n")


def tau_tasks(domain: Domain) -> Iterator[dict[str, Any]]:
    """Yield generated tasks whose gold works on the initial state, because tau-style tasks have no setup."""
    for task in domain.stream("train", seed=1):
        bare = task.replace(setup={})
        if works(domain, bare):
            yield {
                "user_id": task.gold_calls[0].arguments.get("email", ""),
                "instruction": task.scenario.instructions,
                "actions": [{"name": call.name, "kwargs": call.arguments} for call in task.gold_calls],
                "outputs": list(task.outputs),
                "domain": domain.name,
                "complexity": min(3, len(task.scenario.goals)),
            }


def works(domain: Domain, task: Task) -> bool:
    try:
        return bool(domain.gold_changes(task))
    except TaskError:
        return False


if __name__ == "__main__":
    main()
