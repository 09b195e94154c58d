"""Runs in SkyRL's Python: SkyRL's own generator plays our environments, with a real tokenizer.

PYTHONPATH=tests python -m support.skyrl_gym_inside OUT.json TOKENIZER_FOLDER gold|noop MAX_ENV_WORKERS ROWS.parquet...

The engine is a script. It replies with the task's gold turns as tokenized text, or with empty texts. The output of
SkyRL's generator is written as JSON.
"""

import asyncio
import json
import sys
import threading
import time
import typing
from collections import Counter
from pathlib import Path
from typing import Any

import typing_extensions

typing.TypedDict = typing_extensions.TypedDict  # type: ignore[misc,assignment]  # SkyRL 0.3.0 needs it on Python 3.11

from skyrl.train.config import GeneratorConfig, SkyRLGymConfig  # noqa: E402
from skyrl.train.dataset.dataset import PromptDataset  # noqa: E402
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator  # noqa: E402
from skyrl.train.generators.utils import prepare_generator_input  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

from understudy.core.tasks import Task  # noqa: E402
from understudy.formats.parsing.parse import render_reply  # noqa: E402
from understudy.sources import skyrl_gym  # noqa: E402


class ScriptedEngine:
    """An engine that replies to each session with its script. It has the part of SkyRL's interface that the generator
    uses.
    """

    model_name, weight_version = "scripted", 0

    def __init__(self, tokenizer: Any, scripts: dict[str, list[str]]) -> None:
        self._tokenizer, self._scripts = tokenizer, scripts
        self._turns: Counter[str] = Counter()
        self.finished: list[str] = []
        self.threads = 0

    async def generate(self, batch: Any, model: str | None = None) -> dict[str, Any]:
        """Return one reply of a session, as ids and as text without special tokens."""
        (session,) = batch["session_ids"]
        self.threads = max(self.threads, sum(t.name.startswith("skyrl-gym-env-") for t in threading.enumerate()))
        script, turn = self._scripts[session.partition("_")[0]], self._turns[session]
        self._turns[session] += 1
        await asyncio.sleep(0.001)
        text = script[turn] if turn < len(script) else ""
        ids = [*self._tokenizer.encode(text, add_special_tokens=False), self._tokenizer.eos_token_id]
        said = self._tokenizer.decode(ids, skip_special_tokens=True)
        return {
            "responses": [said],
            "response_ids": [ids],
            "stop_reasons": ["stop"],
            "response_logprobs": [[-0.5] * len(ids)],
        }

    async def finish_session(self, session: str) -> None:
        """Record the end of an episode."""
        self.finished.append(session)


def make_scripts(items: list[dict[str, Any]], replies: str) -> dict[str, list[str]]:
    """Return the agent's replies for each row's episodes."""
    tasks = {item["uid"]: Task.model_validate_json(item["env_extras"]["reward_spec"]["ground_truth"]) for item in items}
    made = {
        uid: [render_reply(t.content, t.tool_calls, "hermes") for t in task.gold_turns] for uid, task in tasks.items()
    }
    return {uid: texts if replies == "gold" else [] for uid, texts in made.items()}


def run_generator(folder: str, replies: str, workers: int, paths: list[str]) -> dict[str, Any]:
    """Return the output of SkyRL's generator and its statistics."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = PromptDataset(paths, tokenizer, max_prompt_length=100_000, num_workers=1)
    items = rows.collate_fn([rows[number] for number in range(len(rows))])
    skyrl_gym.register()
    engine = ScriptedEngine(tokenizer, make_scripts(items, replies))
    config = GeneratorConfig(max_turns=30, max_input_length=16_384)
    generator = SkyRLGymGenerator(config, SkyRLGymConfig(max_env_workers=workers), engine, tokenizer)
    given, _ = prepare_generator_input(items, 1, {"logprobs": 0, "max_tokens": 512}, "none", "train", 0)
    began = time.perf_counter()
    made = asyncio.run(generator.generate(given, disable_tqdm=True))
    return {
        "seconds": time.perf_counter() - began,
        "threads": engine.threads,
        "finished": len(set(engine.finished)),
        "env_classes": given["env_classes"],
        "tasks": [extras["extra_info"]["task"] for extras in given["env_extras"]],
        "metrics": made["rollout_metrics"],
        **{
            name: made[name]
            for name in ("prompt_token_ids", "response_ids", "loss_masks", "rewards", "rollout_logprobs")
        },
    }


if __name__ == "__main__":
    out, folder, replies, workers, *paths = sys.argv[1:]
    Path(out).write_text(json.dumps(run_generator(folder, replies, int(workers), paths)))
