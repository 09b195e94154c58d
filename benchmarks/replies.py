"""Count the replies whose calls are parsed exactly and in order: python benchmarks/replies.py PATH [--show]

PATH is a JSONL file. Each row has `text`, the reply, and `expected_calls`, a list of {"name", "kwargs"}. The list is
empty if no call is expected, and null if the expected calls are unknown; such rows are not counted.
"""

import argparse
import json
import time
from pathlib import Path

from understudy.formats.parsing.parse import ParsedReply, parse_reply


def is_correct(row: dict, reading: ParsedReply) -> bool:
    made = [(call.name, call.arguments) for call in reading.calls if not call.parse_error]
    return made == [(call["name"], call["kwargs"]) for call in row["expected_calls"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="JSONL file of labelled replies")
    parser.add_argument(
        "--show", action="store_true", help="print the parse of each reply that does not match its label"
    )
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.path.read_text(encoding="utf-8").splitlines()]
    start = time.perf_counter()
    readings = [parse_reply(row["text"]) for row in rows]
    seconds = time.perf_counter() - start
    labelled = [
        (row, reading) for row, reading in zip(rows, readings, strict=True) if row["expected_calls"] is not None
    ]
    for name, some in (("with calls", True), ("without calls", False)):
        kind = [is_correct(row, reading) for row, reading in labelled if bool(row["expected_calls"]) is some]
        print(f"{name}: {sum(kind)} of {len(kind)} parsed as labelled ({sum(kind) / max(1, len(kind)):.4f})")
    print(f"{len(rows)} replies parsed in {seconds:.2f} s")
    for number, row in enumerate(rows, 1):
        if options.show and row["expected_calls"] is not None and not is_correct(row, readings[number - 1]):
            print(f"line {number}: {readings[number - 1]}")


if __name__ == "__main__":
    main()
