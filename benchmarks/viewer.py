"""Measure `understudy view` on runs with many episodes: loading them, and answering the page's requests.

    python benchmarks/viewer.py [--episodes 100000] [--step 640] [--tokens 700] [--folder FOLDER] [--json]

The episodes are gold episodes of retail with as many tokens as those of a small model, in steps of `--step` episodes.
Each request is sent six times. Reported are the first answer, before ids are cached, and the slowest of the others.
CPU seconds are reported beside wall-clock seconds, for machines that run other programs too.
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

from understudy.core.trajectory import Trajectory
from understudy.rollouts.agent import GoldAgent
from understudy.rollouts.rollout import EpisodeLimits, play_episode
from understudy.sources.loading import load_source
from understudy.viewer import query
from understudy.viewer.index import EpisodeIndex

QUESTIONS: dict[str, dict[str, str]] = {
    "newest first": {},
    "last page": {"offset": "-100"},
    "one family, sorted by reward": {"family": "cancel", "sort": "-reward"},
    "successes with a call of one tool": {"tool": "get_order", "outcome": "success"},
    "episodes with a word": {"text": "refund"},
    "episodes with a phrase and without a word": {"text": '"do you confirm" -refund'},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=100_000, help="number of episodes (default: %(default)s)")
    parser.add_argument("--step", type=int, default=640, help="episodes per step (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=700, help="tokens per episode (default: %(default)s)")
    parser.add_argument(
        "--folder", type=Path, help="write the episodes to this folder and keep them (default: a temporary folder)"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="understudy-viewer-"))
    try:
        size = write(folder, options.episodes, options.step, options.tokens)
        found = measure(folder, options.episodes) | {"episodes_gb": round(size / 1e9, 2)}
    finally:
        if not options.folder:
            shutil.rmtree(folder)
    print(json.dumps(found, indent=1) if options.json else "\n".join(f"{name:<60}{found[name]}" for name in found))


def write(folder: Path, count: int, step: int, tokens: int) -> int:
    """Write the episodes, each a variation of one of 200. Return their bytes."""
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
    domain, draw = load_source("retail"), random.Random(seed)
    task = domain.sample("train", 1, seed=seed)[0]
    episode = asyncio.run(play_episode(domain, task, GoldAgent(), EpisodeLimits(max_turns=60), seed))
    episode.task_id = f"{task.id}@TASK@"
    episode.tokens = [draw.randrange(49_000) for _ in range(tokens)]
    episode.mask = [i > tokens * 3 // 4 for i in range(tokens)]
    episode.logprobs = [-draw.random() if sampled else 0.0 for sampled in episode.mask]
    return TypeAdapter(Trajectory).dump_json(episode, exclude_defaults=True) + b"\n"


def measure(folder: Path, count: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        index = EpisodeIndex(folder, Path(place) / "index.sqlite")
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
            found[f"rows, {name}"] = timed(lambda values=values: query.query_rows(index, values))
            found[f"counts, {name}"] = timed(lambda values=values: query.query_facets(index, values))
    found["peak memory, MB"] = round(
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2)
    )
    return found


def taking_up(index: EpisodeIndex) -> tuple[float, float, float]:
    """Return the seconds and CPU seconds of loading by requests, and the seconds until there is something to show."""
    started, cpu, first = time.perf_counter(), time.process_time(), 0.0
    progress = index.refresh(0.25)
    while progress.done_bytes < progress.total_bytes:
        first = first or time.perf_counter() - started
        progress = index.refresh(0.25)
    return time.perf_counter() - started, time.process_time() - cpu, first


def timed(ask: Callable[[], object]) -> str:
    """Return as text the milliseconds of the first answer, and of the slowest of five more."""
    spent = []
    for _ in range(6):
        started = time.perf_counter()
        ask()
        spent.append(1000 * (time.perf_counter() - started))
    return f"first {spent[0]:.0f} ms, later at most {max(spent[1:]):.0f} ms"


if __name__ == "__main__":
    main()
