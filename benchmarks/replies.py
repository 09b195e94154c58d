"""How many labelled calls are read, exactly and in order: python benchmarks/replies.py PATH [--show]

PATH is JSONL; each line has `text`, the reply, and `expected_calls`, a list of {"name", "kwargs"} (empty where none is
expected; null where nobody knows, which is not counted).
"""

import json
import sys
import time
from pathlib import Path

from understudy.formats.parse import Reading, parse


def right(row: dict, reading: Reading) -> bool:
    made = [(call.name, call.arguments) for call in reading.calls if not call.malformed]
    return made == [(call["name"], call["kwargs"]) for call in row["expected_calls"]]


def main() -> None:
    if len(sys.argv) < 2:
        return print(__doc__.partition("\n")[0])
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    start = time.perf_counter()
    readings = [parse(row["text"]) for row in rows]
    seconds = time.perf_counter() - start
    labelled = [
        (row, reading) for row, reading in zip(rows, readings, strict=True) if row["expected_calls"] is not None
    ]
    for name, some in (("with calls", True), ("without calls", False)):
        kind = [right(row, reading) for row, reading in labelled if bool(row["expected_calls"]) is some]
        print(f"{name}: {sum(kind)} of {len(kind)} as labelled ({sum(kind) / max(1, len(kind)):.4f})")
    print(f"{len(rows)} replies in {seconds:.2f} s")
    for number, row in enumerate(rows, 1):
        if "--show" in sys.argv and row["expected_calls"] is not None and not right(row, readings[number - 1]):
            print(f"line {number}: {readings[number - 1]}")


if __name__ == "__main__":
    main()
