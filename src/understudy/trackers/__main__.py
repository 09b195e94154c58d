"""The process of one tracker: `python -m understudy.trackers NAME`, told of the run by one line on standard input.

It sends every line of metrics.jsonl once, also over several starts, and ends when its input does and all is sent.
Whatever goes wrong ends it with a traceback, whose last line the run tells its user.
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

from understudy.metrics import FILE
from understudy.trackers.follow import state_file
from understudy.trackers.options import About

PAUSE = 1.0  # seconds between two looks at the file


def main(name: str) -> None:
    """Follow the run until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the run, which then ends its trackers
    about = About.model_validate_json(_first_line())
    sink = importlib.import_module(f"understudy.trackers.{name}").start(about)
    state = state_file(about.folder, name)
    sent = json.loads(state.read_text(encoding="utf-8"))["sent"] if state.exists() else -1
    for line in _lines(about.folder / FILE):
        step = line.pop("step")
        if step > sent:
            sink.log(step, {key: value for key, value in line.items() if isinstance(value, int | float)})
            partial = state.with_suffix(".partial")
            partial.write_text(json.dumps({"sent": step}), encoding="utf-8")
            partial.replace(state)
    sink.close()


def _first_line() -> bytes:
    """The first line of the input, and nothing beyond it, so that `select` tells when the input ends."""
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 1 << 16)
        if not part:
            sys.exit("the input ended before it told of a run")
        line += part
    return line


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a file that grows, until the input has ended."""
    position, ended = 0, False
    while not ended:
        ended = bool(select.select([0], [], [], PAUSE)[0])
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
