"""Run by SkyRL's own Python: our environments by skyrl-gym alone, without its trainer.

python tests/skyrl_gym_alone.py        prints JSON: what is refused, and how users behind an endpoint are asked
"""

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import skyrl_gym

from endpoint import Answer, says, serving
from understudy.data.rows import to_row
from understudy.domains.retail import DOMAIN
from understudy.errors import ConfigError, RolloutError, TaskError
from understudy.integrations import skyrl_gym as ours

EPISODES = 24
TASK = DOMAIN.tasks("train")[0]
ROW = to_row(TASK, DOMAIN.policy, "retail").model_dump()


def refused(act: Callable[[], object]) -> str:
    """The one line of an error."""
    try:
        act()
    except (ConfigError, TaskError, RolloutError) as e:
        return f"{type(e).__name__}: {e}"
    return ""


def made(extras: Mapping[str, Any] = ROW, **settings: Any) -> Any:
    """An environment as SkyRL's generator makes it."""
    return skyrl_gym.make("tau_bench", env_config={}, extras={**extras, "max_turns": 4, **settings})


def asked(delay: float, status: int = 200, retries: int = 5) -> dict[str, Any]:
    """Many episodes at once, each with one turn of a user behind an endpoint."""
    answer = Answer(says("Yes, please.").body, status, delay=delay)
    with serving(lambda request: answer) as endpoint:
        chat = {"model": "m", "base_url": endpoint.url, "concurrency": EPISODES, "retries": retries, "backoff": 0.1}
        config = {"user": {"kind": "llm", "attempts": 1, "chat": chat}}

        def episode(_: int) -> str:
            env = skyrl_gym.make("tau_bench", env_config=config, extras={**ROW, "max_turns": 4})
            env.init(list(ROW["prompt"]))
            said = refused(lambda: env.step("What is your order number?"))
            env.close()
            return said

        with ThreadPoolExecutor(EPISODES) as threads:
            errors = list(threads.map(episode, range(EPISODES)))
        return {"at_once": endpoint.most_at_once, "errors": sorted(set(errors))}


if __name__ == "__main__":
    ours.register(dialect="json")
    env = made()
    prompt, _ = env.init(list(ROW["prompt"]))
    found = {
        "prompt": [said["content"] for said in prompt],
        "setting": refused(lambda: ours.register(dialekt="json")),
        "value": refused(lambda: ours.register(seed="x")),
        "human": refused(lambda: ours.register(user={"kind": "human"})),
        "row": refused(lambda: made({})),
        "task": refused(lambda: made({**ROW, "reward_spec": {"ground_truth": "{}"}})),
        "source": refused(lambda: made({**ROW, "extra_info": {"source": "retial"}}).init([])),
        "early": refused(lambda: made().step("Hello.")),
        "users": asked(1.0),
        "fault": asked(0.0, status=500, retries=0),
    }
    print(json.dumps(found))
