"""How long `understudy view` takes for runs with many episodes: to take them up, and to answer what the page asks.

    python benchmarks/viewer.py [--episodes 100000] [--step 640] [--tokens 700] [--folder FOLDER] [--json]

Episodes are gold episodes of retail with as many tokens as a small model's have, written in steps of `--step`. Each
question is asked six times; told are the first answer, when ids are not yet kept, and the slowest of the others. CPU
seconds are beside those on the clock, for machines that do other things too.
"""

import argparse
import asyncio
import json
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from understudy.agent import GoldAgent
from understudy.domains.base import find
from understudy.rollout import Limits, play
from understudy.trajectory import Trajectory
from understudy.viewer import query
from understudy.viewer.index import Index

QUESTIONS: dict[str, dict[str, str]] = {
    "the newest": {},
    "the last page of all": {"offset": "-100"},
    "a family, by reward": {"family": "cancel", "sort": "-reward"},
    "a tool that was called": {"tool": "get_order", "outcome": "success"},
    "a word": {"text": "refund"},
    "a phrase, without a word": {"text": '"do you confirm" -refund'},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--step", type=int, default=640, help="episodes of a step")
    parser.add_argument("--tokens", type=int, default=700, help="tokens of an episode")
    parser.add_argument("--folder", type=Path, help="where to write them; a temporary folder, removed, if not given")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="understudy-viewer-"))
    try:
        size = write(folder, options.episodes, options.step, options.tokens)
        found = measure(folder, options.episodes) | {"episodes_gb": round(size / 1e9, 2)}
    finally:
        if not options.folder:
            shutil.rmtree(folder)
    print(json.dumps(found, indent=1) if options.json else "\n".join(f"{name:<44}{found[name]}" for name in found))


def write(folder: Path, count: int, step: int, tokens: int) -> int:
    """Write the episodes, each a variation of one of 200; their bytes."""
    draw, templates = random.Random(0), [_template(tokens, seed) for seed in range(200)]
    (folder / "trajectories").mkdir(parents=True, exist_ok=True)
    size = 0
    for number in range(0, count, step):
        lines = []
        for i in range(number, min(number + step, count)):
            line = draw.choice(templates).replace(b"@TASK@", b"%d" % (i // 8))
            lines.append(line.replace(b'"reward":1.0', b'"reward":%.1f' % draw.choice((0.0, 1.0))))
        path = folder / "trajectories" / f"step_{number // step + 1:06}.jsonl"
        size += path.write_bytes(b"".join(lines))
    return size


def _template(tokens: int, seed: int) -> bytes:
    domain, draw = find("retail"), random.Random(seed)
    task = domain.sample("train", 1, seed=seed)[0]
    episode = asyncio.run(play(domain, task, GoldAgent(), Limits(max_turns=60), seed))
    episode.task = f"{task.id}@TASK@"
    episode.tokens = [draw.randrange(49_000) for _ in range(tokens)]
    episode.mask = [i > tokens * 3 // 4 for i in range(tokens)]
    episode.logprobs = [-draw.random() if sampled else 0.0 for sampled in episode.mask]
    return TypeAdapter(Trajectory).dump_json(episode, exclude_defaults=True) + b"\n"


def measure(folder: Path, count: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        index = Index(folder, Path(place) / "index.sqlite")
        seconds, cpu, first = taking_up(index)
        found: dict[str, Any] = {
            "episodes": count,
            "index: seconds": round(seconds, 1),
            "index: CPU seconds": round(cpu, 1),
            "index: seconds until the first page": round(first, 2),
            "index: MB": round(index.path.stat().st_size / 1e6),
        }
        for name, values in QUESTIONS.items():
            values = {**values, **({"offset": str(max(0, count - 100))} if values.get("offset") else {})}
            found[f"rows, {name}: ms first, then"] = timed(lambda values=values: query.rows(index, values))
            found[f"counts, {name}: ms first, then"] = timed(lambda values=values: query.facets(index, values))
    found["peak memory, MB"] = round(
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2)
    )
    return found


def taking_up(index: Index) -> tuple[float, float, float]:
    """Seconds and CPU seconds that it takes, as requests do it, and seconds until there is something to see."""
    started, cpu, first = time.perf_counter(), time.process_time(), 0.0
    progress = index.refresh(0.25)
    while progress.done < progress.of:
        first = first or time.perf_counter() - started
        progress = index.refresh(0.25)
    return time.perf_counter() - started, time.process_time() - cpu, first


def timed(ask: Callable[[], object]) -> str:
    """Milliseconds of the first answer, and of the slowest of five more."""
    spent = []
    for _ in range(6):
        started = time.perf_counter()
        ask()
        spent.append(1000 * (time.perf_counter() - started))
    return f"{spent[0]:.0f}, {max(spent[1:]):.0f}"


if __name__ == "__main__":
    main()
