"""Write what adversarial strategies earn in each shipped domain to docs/strategies.json, for the page of strategies.

python benchmarks/strategies.py [NUM_TASKS]
"""

import asyncio
import json
import sys
from pathlib import Path

from understudy.data.checks.adversarial.suite import play_strategies
from understudy.sources.references import list_domains, load_domain

OUTPUT = Path(__file__).parents[1] / "docs" / "strategies.json"
SEED = 0


def measure(num_tasks: int) -> dict[str, object]:
    """Return the reward over doing nothing of each strategy, by domain. Strategies that do not apply are left out."""
    earned = dict[str, dict[str, float]]()
    for name in list_domains():
        report = asyncio.run(play_strategies(load_domain(name), num_tasks, SEED))
        earned[name] = {result.strategy: round(result.over_floor, 4) for result in report.results}
    return {"num_tasks": num_tasks, "seed": SEED, "over_floor": earned}


if __name__ == "__main__":
    found = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
    OUTPUT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
