"""How fast task files convert, and in how much memory: whole runs of `understudy data`, each in a process of its own.

    python benchmarks/data.py [--rows 100000] [--keep FOLDER] [--json]

The input is one JSON object of tau-style retail tasks, made of the domain's generator and its untouched world. What is
timed runs every task's gold calls, deals the tasks to two parts without tearing a task apart, and writes parquet; then
it goes back from parquet to tasks, and from tasks to rows in one file. Near-duplicates are looked for among a tenth as
many generated tasks. Memory is the peak of the process (VmHWM). Where other programs want the same cores, CPU seconds
are the fairer measure.
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

from understudy.domains.base import Domain, find
from understudy.errors import TaskError
from understudy.tasks import Task

# It says itself what it took: of a child, wait4 tells the memory of its parent, where that had more before it began.
PROGRAM = """
import atexit, sys
from understudy.cli import main
from understudy.engines.local.machine import peak_bytes
atexit.register(lambda: print(peak_bytes("cpu"), file=sys.stderr))
main()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--keep", type=Path, help="a new folder for the files, instead of a temporary one")
    parser.add_argument("--json", action="store_true")
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
    yield "tau to rows, in parts", ["convert", f"{tau}", f"{parts}", "--domain", "retail", "--train-ratio", "0.9"]
    yield "rows to tasks", ["convert", f"{parts / 'train.parquet'}", f"{tasks}"]
    yield "tasks to rows", ["convert", f"{tasks}", f"{folder / 'rows.parquet'}"]
    yield "tasks made", ["synthesize", "retail", "--count", f"{rows // 10}", "--out", f"{folder / 'made.jsonl'}"]
    yield "near-duplicates", ["stats", f"{folder / 'made.jsonl'}"]


def measure(name: str, arguments: list[str]) -> dict[str, Any]:
    started = time.perf_counter()
    command = [sys.executable, "-c", PROGRAM, "data", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    told = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, f"{name}: status {status}: {told}"
    seconds = time.perf_counter() - started
    cpu, memory = usage.ru_utime + usage.ru_stime, int(told.split()[-1]) / 2**20
    return {"run": name, "seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1), "megabytes": round(memory)}


def as_line(result: dict[str, Any]) -> str:
    return "{run:<24}{seconds:>8.1f} s{cpu_seconds:>8.1f} s of CPU{megabytes:>7} MB".format(**result)


def write_tau(path: Path, count: int) -> None:
    tasks = itertools.islice(tau_tasks(find("retail")), count)
    with path.open("w", encoding="utf-8") as file:
        file.write('{"tasks": [')
        for number, task in enumerate(tasks):
            file.write((",\n" if number else "\n") + json.dumps(task))
        file.write("\n]}\n")


def tau_tasks(domain: Domain) -> Iterator[dict[str, Any]]:
    """Generated tasks whose gold works on the world as it is: tau-style tasks have no setup."""
    for task in domain.stream("train", seed=1):
        bare = task.replace(setup={})
        if works(domain, bare):
            yield {
                "user_id": task.actions[0].arguments.get("email", ""),
                "instruction": task.scenario.instructions,
                "actions": [{"name": call.name, "kwargs": call.arguments} for call in task.actions],
                "outputs": list(task.outputs),
                "domain": domain.name,
                "complexity": min(3, len(task.scenario.wishes)),
            }


def works(domain: Domain, task: Task) -> bool:
    try:
        return bool(domain.goal(task))
    except TaskError:
        return False


if __name__ == "__main__":
    main()
