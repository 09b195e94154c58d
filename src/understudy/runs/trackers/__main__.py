"""The process of one tracker: `python -m understudy.runs.trackers NAME`.

Its standard input starts with one line, a `TrackerRunInfo` as JSON. It sends each record of metrics.jsonl once, also
if the run is resumed. It ends when its input ends and all records are sent. An error ends it with a traceback; the run
reports the last line.
"""

import importlib
import json
import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from understudy.runs.metrics import METRICS_FILE
from understudy.runs.trackers.config import TrackerRunInfo
from understudy.runs.trackers.processes import state_file

POLL_SECONDS = 1.0  # interval in which the file is read


def main(name: str) -> None:
    """Send the run's metrics to the tracker of this name until the run ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the run, which then ends its trackers
    about = TrackerRunInfo.model_validate_json(_first_line())
    sink = importlib.import_module(f"understudy.runs.trackers.{name}").start_tracker(about)
    state = state_file(about.folder, name)
    sent = tuple(json.loads(state.read_text(encoding="utf-8"))["sent"]) if state.exists() else (-1, 0)
    step, number = -1, 0
    for line in _lines(about.folder / METRICS_FILE):
        number = number + 1 if line["step"] == step else 1  # a resumed run repeats a step's records in the same order
        step = line.pop("step")
        if (step, number) > sent:
            sink.log(step, {key: value for key, value in line.items() if isinstance(value, int | float)})
            partial = state.with_suffix(".partial")
            partial.write_text(json.dumps({"sent": [step, number]}), encoding="utf-8")
            partial.replace(state)
    sink.close()


def _first_line() -> bytes:
    """Read the first line of the input and nothing after it, so that `select` notices the end of the input."""
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 1 << 16)
        if not part:
            sys.exit("the input ended before its first line, a TrackerRunInfo as JSON")
        line += part
    return line


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a growing JSONL file until the input has ended."""
    position, ended = 0, False
    while not ended:
        ended = bool(select.select([0], [], [], POLL_SECONDS)[0])
        if not path.exists():
            continue
        with path.open("rb") as file:
            file.seek(position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        position += len(whole)
        yield from map(json.loads, whole.splitlines())


if __name__ == "__main__":
    main(sys.argv[1])
