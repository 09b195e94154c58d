"""Read the data files of three predecessor projects, and print what becomes of each file.

    python benchmarks/predecessors.py [--tau CHECKOUT] [--mcp CHECKOUT] [--research CHECKOUT] [--run-tools] [--json]

The checkouts are those of the repositories CTU-Agent-v0 (`--tau`), multi_mcp_rl (`--mcp`) and skyrl-mcp-project
(`--research`). A file with the bytes of an earlier one is left out.

Each file is read as tasks (`check`: refused rows, tasks whose gold nobody can find, means of gold and noop), and as
training conversations. With `--run-tools`, the rows of tau-bench are also played against the databases of the checkout.
This runs the tools in the checkout, so read them first.
"""

import argparse
import functools
import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from understudy import check, load
from understudy.core.errors import ConfigError, RolloutError, TaskError
from understudy.core.items import Item, RowError
from understudy.data.checks.check import DomainReport
from understudy.data.conversations.conversations import read_conversations
from understudy.data.conversations.outcomes import ReadingNotes
from understudy.sources.dataset_files import DATASET_SUFFIXES
from understudy.sources.references import load_reference
from understudy.sources.task_files.files import list_row_files
from understudy.sources.task_files.opening import InputFile, open_task_files, read_files

PATTERNS = {
    "tau": (
        "training/data/*/*.parquet",
        "novel_datasets/*tasks*.py",
        "tau_bench/data/*.json",
        "tau_bench/envs/*/tasks_*.py",
        "tau_bench_new/envs/*/tasks_*.py",
        "historical_trajectories/*.json",
        "qwen_results/**/*.json",
        "testing_new/*/qwen_results/**/*.json",
        "testing_new/*/testing_results/*/*_full_results.json",
        "sft/LLaMA-Factory/data/*demo.json*",
        "sft/LLaMA-Factory/data/identity.json",
    ),
    "mcp": ("data/inputs/*.json", "data/processed/*.json", "data/raw/**/*.json", "data/sample_trajectories/*.json"),
    "research": ("data/inputs/*.json", "data/processed/*.json", "src/dataset/llm/data/test/*.json"),
}
"""The data files of each checkout."""
REPOSITORIES = {"tau": "CTU-Agent-v0", "mcp": "multi_mcp_rl", "research": "skyrl-mcp-project"}
DATABASES = {
    "training/data/tau_bench_retail/train.parquet": "retail",
    "training/data/tau_bench_retail/validation.parquet": "retail",
    "training/data/tau_bench_test/retail_test.parquet": "retail",
    "training/data/tau_bench_test/airline_test.parquet": "airline",
}
"""The domain of the checkout's tau-bench that each file is played against."""
ERRORS = (ConfigError, TaskError, RolloutError, OSError, ValueError)
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in PATTERNS:
        parser.add_argument(f"--{name}", type=Path, help=f"a checkout of {REPOSITORIES[name]}")
    parser.add_argument("--run-tools", action="store_true", help="also play rows with the tools of --tau")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args()
    rows = list[Row]()
    for name in PATTERNS:
        if checkout := getattr(options, name):
            rows += read_checkout(name, checkout)
    if options.tau and options.run_tools:
        rows += (play_with_database(options.tau, file, domain) for file, domain in DATABASES.items())
    if not rows:
        parser.error("no data file was found; give the folder of a checkout, as in --tau CTU-Agent-v0")
    show(rows, as_json=options.json)


def read_checkout(name: str, checkout: Path) -> Iterator[Row]:
    """Yield what was read from each data file of a checkout."""
    seen = dict[bytes, str]()
    for path in sorted({path for pattern in PATTERNS[name] for path in checkout.glob(pattern) if path.is_file()}):
        digest = hashlib.sha256(path.read_bytes()).digest()
        if digest not in seen:
            seen[digest] = str(path)
            started = time.perf_counter()
            row = {"file": f"{name}: {path.relative_to(checkout)}", **read_tasks(path), **read_demonstrations(path)}
            yield {**row, "seconds": round(time.perf_counter() - started, 1)}


def play_with_database(checkout: Path, file: str, domain: str) -> Row:
    """Return what becomes of a file of tau-bench's rows that the checkout's own database plays."""
    started = time.perf_counter()
    base = functools.partial(load_reference, f"tau-bench:{checkout}#{domain}")
    row = {"file": f"tau: {file}, with its database", **read_tasks(checkout / file, base)}
    return {**row, "seconds": round(time.perf_counter() - started, 1)}


def read_tasks(path: Path, *sources: Any) -> Row:
    """Return the figures of a file of tasks, or why there are none."""
    try:
        named = {path.stem: [(None, str(path))]}
        source = open_task_files(named, beside=[make() for make in sources])[0] if sources else load(str(path))
        return task_figures(check(source))
    except ERRORS as e:
        return refused_figures(path, e)


def task_figures(report: DomainReport) -> Row:
    splits = [split for split in report.splits if split.tasks]
    tasks = sum(split.tasks for split in splits)
    (summary,) = report.files
    return {
        "rows": sum(summary.rows.values()),
        "tasks": tasks,
        "refused": dict(summary.refused),
        "unfindable": report.unsound.get("unshown value", 0),
        "gold": round(sum(split.gold_reward * split.tasks for split in splits) / tasks, 3),
        "noop": round(sum(split.noop_reward * split.tasks for split in splits) / tasks, 3),
        "first_refusal": summary.refusals[0] if summary.refusals else "",
    }


def refused_figures(path: Path, error: Exception) -> Row:
    """Return the figures of a file without a task: its rows, and why they are refused."""
    refusals = list[RowError]()
    try:
        files = [InputFile(path.stem, file) for file in list_row_files(str(path))]
        refusals = [row.item for row in read_files(files).rows if isinstance(row.item, RowError)]
    except ERRORS as e:
        error = e
    kinds = Counter(item.kind for item in refusals) or {"file": 1}
    first = str(refusals[0]) if refusals else str(error)
    return {"rows": len(refusals), "tasks": 0, "refused": dict(kinds), "first_refusal": first}


def read_demonstrations(path: Path) -> Row:
    """Return the number of rows that are read as conversations, and why others are refused."""
    if path.suffix not in DATASET_SUFFIXES:
        return {}
    notes = ReadingNotes()
    try:
        items = list(read_conversations(path, notes=notes))
    except ERRORS as e:
        return {"conversations": 0, "refused_conversations": {"file": 1}, "first_refused_conversation": str(e)}
    kinds = Counter(type(item.value).__name__ for item in items if isinstance(item, Item))
    refused = [item for item in items if isinstance(item, RowError)]
    failures = notes.failures.total()
    return {
        "conversations": kinds.total(),
        "kinds": dict(kinds),
        "failures": failures,
        "refused_conversations": dict(Counter(error.kind for error in refused)),
        "first_refused_conversation": str(refused[0]) if refused else "",
    }


def show(rows: Iterable[Row], *, as_json: bool) -> None:
    listed = list(rows)
    if as_json:
        print(json.dumps(listed, indent=1))
        return
    columns = ["file", "rows", "tasks", "refused", "unfindable", "gold", "noop", "conversations", "failures"]
    columns += ["refused_conversations", "seconds"]
    table, console = Table(), Console(width=160)
    for column in columns:
        table.add_column(column, justify="left" if column in ("file", "refused") else "right", overflow="fold")
    for row in listed:
        table.add_row(*(_cell(row.get(column, "")) for column in columns))
    console.print(table)
    for row in listed:
        if not row["tasks"] and not row.get("conversations"):
            reason = row["first_refusal"].rpartition(row["file"].partition(": ")[2])[2] or row["first_refusal"]
            console.print(f"{row['file']}{reason[:240]}", markup=False, highlight=False)


def _cell(value: Any) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in value.items()) if isinstance(value, dict) else str(value)


if __name__ == "__main__":
    main()
