"""Write what adversarial strategies earn, and what honest texts lose, in each shipped domain to docs/strategies.json.

PYTHONPATH=tests python benchmarks/strategies.py [NUM_TASKS]

`NUM_TASKS` is for each domain and seed. The texts of `tests/support` come in two halves: the rules were made on `tuned`.
"""

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.honest_texts import honest_replies
from support.hostile_texts import violations
from support.wordings import HALVES

from understudy.data.checks.adversarial.knowledge import Strategy
from understudy.data.checks.adversarial.suite import STRATEGIES, StrategyResult, play_strategies
from understudy.sources.references import list_domains, load_domain

OUTPUT = Path(__file__).parents[1] / "docs" / "strategies.json"
SEEDS = (0, 1, 7)


def play(name: str, num_tasks: int, strategies: Sequence[Strategy]) -> Mapping[str, Sequence[StrategyResult]]:
    """Return the results of each strategy, one for each seed, on a domain."""
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
    found: dict[str, object] = {"num_tasks": num_tasks, "seeds": SEEDS}
    gains = {name: play(name, num_tasks, STRATEGIES) for name in list_domains()}
    found["over_floor"] = {name: {key: mean_gain(r) for key, r in of.items()} for name, of in gains.items()}
    for half in HALVES:
        hostile = {name: play(name, num_tasks, violations(half)) for name in list_domains()}
        honest = {name: play(name, num_tasks, honest_replies(half)) for name in list_domains()}
        found[half] = {
            "hostile": {name: {key: mean_gain(r) for key, r in of.items()} for name, of in hostile.items()},
            "honest": {name: {key: mean_loss(r) for key, r in of.items()} for name, of in honest.items()},
        }
    return found


if __name__ == "__main__":
    measured = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
    OUTPUT.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
