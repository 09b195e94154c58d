"""Write what adversarial strategies earn, and what honest texts lose, in each shipped domain to docs/strategies.json.

PYTHONPATH=tests python benchmarks/strategies.py [NUM_TASKS]

`NUM_TASKS` is for each domain and seed. The texts of `tests/support` come in two halves: the rules were made
on `tuned`. They were mended after the first measurement of the third set, `chat_style`. A fourth set, written without
knowledge of the rules, has halves of its own, `deployed_tuned` and `deployed_reported`.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from support.chat_style_texts import chat_style_honest, chat_style_hostile
from support.deployed_texts import deployed_honest, deployed_hostile
from support.honest_texts import honest_replies
from support.hostile_texts import violations
from support.wordings import HALVES
from understudy.data.checks.adversarial.suite import STRATEGIES, StrategyResult, play_strategies
from understudy.sources.references import list_domains, load_domain

OUTPUT = Path(__file__).parents[1] / "docs" / "strategies.json"
CHAT_STYLE = "chat_style"
SETS = (*HALVES, CHAT_STYLE, *(f"deployed_{half}" for half in HALVES))
SEEDS = (0, 1, 7)
NUM_PROCESSES = 2


def play(name: str, kind: str, num_tasks: int) -> Mapping[str, Sequence[StrategyResult]]:
    """Return the results of each strategy of a kind, one for each seed, on a domain."""
    strategies = {
        "suite": STRATEGIES,
        **{f"hostile {half}": violations(half) for half in HALVES},
        **{f"honest {half}": honest_replies(half) for half in HALVES},
        f"hostile {CHAT_STYLE}": chat_style_hostile(),
        f"honest {CHAT_STYLE}": chat_style_honest(),
        **{f"hostile deployed_{half}": deployed_hostile(half) for half in HALVES},
        **{f"honest deployed_{half}": deployed_honest(half) for half in HALVES},
    }[kind]
    results = dict[str, list[StrategyResult]]()
    for seed in SEEDS:
        report = asyncio.run(play_strategies(load_domain(name), num_tasks, seed, strategies))
        for result in report.results:
            results.setdefault(result.strategy, []).append(result)
    return results


def mean_gain(results: Sequence[StrategyResult]) -> float:
    """Return the mean reward over doing nothing."""
    return round(sum(r.over_floor * r.num_tasks for r in results) / sum(r.num_tasks for r in results), 4)


def mean_loss(results: Sequence[StrategyResult]) -> float:
    """Return the mean reward that gold earns and these episodes do not."""
    return round(1 - sum(r.reward * r.num_tasks for r in results) / sum(r.num_tasks for r in results), 4)


def measure(num_tasks: int) -> dict[str, object]:
    """Return the gains of strategies and of hostile texts, and the losses of honest texts, by domain."""
    kinds = ["suite", *(f"{side} {half}" for half in SETS for side in ("hostile", "honest"))]
    with ProcessPoolExecutor(NUM_PROCESSES) as pool:
        played = {(kind, name): pool.submit(play, name, kind, num_tasks) for kind in kinds for name in list_domains()}

    def summarize(kind: str, mean: Callable[[Sequence[StrategyResult]], float]) -> dict[str, dict[str, float]]:
        return {name: {k: mean(r) for k, r in played[kind, name].result().items()} for name in list_domains()}

    found: dict[str, object] = {"num_tasks": num_tasks, "seeds": SEEDS, "over_floor": summarize("suite", mean_gain)}
    for half in SETS:
        hostile, honest = summarize(f"hostile {half}", mean_gain), summarize(f"honest {half}", mean_loss)
        found[half] = {"hostile": hostile, "honest": honest}
    return found


if __name__ == "__main__":
    measured = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
    OUTPUT.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
