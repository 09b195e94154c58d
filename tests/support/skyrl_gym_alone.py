"""Runs in SkyRL's Python: our environments with skyrl-gym alone, without SkyRL's trainer.

    PYTHONPATH=tests python -m support.skyrl_gym_alone

It prints as JSON the errors of refused arguments, and the results of users behind an endpoint.
"""

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import skyrl_gym

from support.endpoint import Answer, make_completion, serve_answers
from understudy.core.errors import ConfigError, RolloutError, TaskError
from understudy.domains.retail import DOMAIN
from understudy.sources import skyrl_gym as ours
from understudy.sources.task_files.skyrl_rows import to_skyrl_row

EPISODES = 24
TASK = DOMAIN.tasks("train")[0]
ROW = to_skyrl_row(TASK, DOMAIN.domain_policy, "retail").model_dump()


def error_text(act: Callable[[], object]) -> str:
    """Return the error's text, which must be one line."""
    try:
        act()
    except (ConfigError, TaskError, RolloutError) as e:
        return f"{type(e).__name__}: {e}"
    return ""


def make_environment(extras: Mapping[str, Any] = ROW, **settings: Any) -> Any:
    """Return an environment, created as SkyRL's generator does it."""
    return skyrl_gym.make("tau_bench", env_config={}, extras={**extras, "max_turns": 4, **settings})


def play_with_endpoint_users(delay: float, status: int = 200, max_retries: int = 5) -> dict[str, Any]:
    """Play many concurrent episodes, each with one turn of a user behind an endpoint."""
    answer = Answer(make_completion("Yes, please.").body, status, delay=delay)
    with serve_answers(lambda request: answer) as endpoint:
        user_endpoint = {
            "model": "m",
            "base_url": endpoint.url,
            "max_concurrency": EPISODES,
            "max_retries": max_retries,
            "backoff": 0.1,
        }
        config = {
            "user": {"kind": "llm", "max_attempts": 1, "endpoint": "user"},
            "endpoints": {"user": user_endpoint},
        }

        def episode(_: int) -> str:
            env = skyrl_gym.make("tau_bench", env_config=config, extras={**ROW, "max_turns": 4})
            env.init(list(ROW["prompt"]))
            said = error_text(lambda: env.step("What is your order number?"))
            env.close()
            return said

        with ThreadPoolExecutor(EPISODES) as threads:
            errors = list(threads.map(episode, range(EPISODES)))
        return {"at_once": endpoint.most_at_once, "errors": sorted(set(errors))}


if __name__ == "__main__":
    ours.register(tool_format="json")
    env = make_environment()
    prompt, _ = env.init(list(ROW["prompt"]))
    found = {
        "prompt": [said["content"] for said in prompt],
        "setting": error_text(lambda: ours.register(tool_fromat="json")),
        "value": error_text(lambda: ours.register(seed="x")),
        "human": error_text(lambda: ours.register(user={"kind": "human"})),
        "row": error_text(lambda: make_environment({})),
        "task": error_text(lambda: make_environment({**ROW, "reward_spec": {"ground_truth": "{}"}})),
        "source": error_text(lambda: make_environment({**ROW, "extra_info": {"source": "retial"}}).init([])),
        "early": error_text(lambda: make_environment().step("Hello.")),
        "users": play_with_endpoint_users(1.0),
        "fault": play_with_endpoint_users(0.0, status=500, max_retries=0),
    }
    print(json.dumps(found))
