"""RL in one page: tasks, rollouts, advantages, updates, evaluation. A recipe: see docs/extending.md.

    python examples/recipes/rl_loop.py

A model of 135M parameters learns to call a tool and to report its result. This takes a few minutes on two CPU cores and
needs no network. `understudy train` runs the same loop with checkpoints, metrics, health checks and many options.
"""

import asyncio
import time
from collections.abc import Sequence
from itertools import islice

from understudy import Message, Task, ToolCall, ToolDataset, ToolEpisode, ToolExample, evaluate, rollout
from understudy.algorithms.advantages import episode_advantages, token_weights
from understudy.algorithms.batch import collate
from understudy.algorithms.config import LossConfig
from understudy.core.trajectory import Trajectory
from understudy.engines.factory import open_engine
from understudy.engines.interface import SamplingParams
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.models import find_model
from understudy.formats import load_chat_format
from understudy.rollouts.agent import Agent, DemonstrationAgent, EngineAgent
from understudy.rollouts.rollout import EpisodeLimits

MODEL = "smollm2-135m"  # or a folder, or owner/name on Hugging Face
SEED = 0
NUM_DEMONSTRATIONS = 8  # per SFT step
SFT_STEPS = 2
SFT_LEARNING_RATE = 2e-4
GROUPS_PER_BATCH = 8  # tasks per RL step
GROUP_SIZE = 8  # episodes per task
RL_STEPS = 8
RL_LEARNING_RATE = 2e-5
EVAL_TASKS = 40
SAMPLING = SamplingParams(max_response_tokens=48, temperature=1.0)
LIMITS = EpisodeLimits(max_turns=3, max_episode_tokens=1000)


class Product(ToolEpisode):
    """An episode. Its public methods are the model's tools, except `reward`, which grades the conversation."""

    def multiply(self, a: int, b: int) -> int:
        """Multiply two whole numbers."""
        return a * b

    def reward(self, transcript: Sequence[Message]) -> float:
        """Return 1 if the last message is the right answer, otherwise 0."""
        return float(transcript[-1].content.strip() == self.example.answer)


def make_example(a: int, b: int) -> ToolExample:
    """Return an example: a prompt, and the calls and the answer of a perfect episode."""
    call = ToolCall(name="multiply", arguments={"a": a, "b": b})
    return ToolExample(prompt=f"What is {a} times {b}?", answer=f"It is {a * b}.", gold_calls=(call,))


EXAMPLES = [make_example(a, b) for a in range(12, 52) for b in range(31, 41)]
SOURCE = ToolDataset("products", "Multiply by the tool. Answer in one sentence.", EXAMPLES, Product)
"""Tasks and their environments, in three splits. `load("retail_easy")` is another such source."""


async def play(agent: Agent, tasks: Sequence[Task], seed: int = 0) -> list[Trajectory]:
    """Play one episode of each task. Concurrent episodes share the engine's batches."""
    episodes = (rollout(task, SOURCE.environment(task), agent, LIMITS, seed + i) for i, task in enumerate(tasks))
    return await asyncio.gather(*episodes)


async def train(model: str = MODEL, sft_steps: int = SFT_STEPS, rl_steps: int = RL_STEPS) -> list[float]:
    """Return the success rate on held-out tasks at the start, after SFT and after RL."""
    folder = find_model(model)
    engine, chat_format = open_engine(folder, LocalEngineConfig(), SEED), load_chat_format(folder)
    student, teacher = EngineAgent(engine, chat_format, SAMPLING), DemonstrationAgent(chat_format)
    train_tasks, success_rates = SOURCE.stream("train", SEED), list[float]()

    async def evaluate_student(stage: str) -> None:
        result = await evaluate(SOURCE, student, SOURCE.tasks("test")[:EVAL_TASKS], LIMITS)
        rate = result.success_rate
        print(f"{stage:<10} success on held-out tasks {rate.mean:.3f} ({rate.low:.3f} to {rate.high:.3f})", flush=True)
        success_rates.append(rate.mean)

    await evaluate_student("at start")

    for step in range(sft_steps):  # without demonstrations, no episode would succeed, and RL would have no signal
        batch = collate(await play(teacher, list(islice(train_tasks, NUM_DEMONSTRATIONS))))
        batch = batch.replace(advantages=token_weights(batch.mask, "token_mean"))  # the loss: mean over reply tokens
        metrics = await engine.update([batch], LossConfig(kind="nll"), SFT_LEARNING_RATE)
        print(f"SFT {step + 1}/{sft_steps}    loss {metrics['loss']:.3f}", flush=True)
    engine.reset_optimizer()
    await evaluate_student("after SFT")

    for step in range(rl_steps):
        started = time.perf_counter()
        tasks = [task for task in islice(train_tasks, GROUPS_PER_BATCH) for _ in range(GROUP_SIZE)]
        episodes = await play(student, tasks, seed=(step + 1) * len(tasks))
        played = time.perf_counter()
        batch = collate(episodes, group_ids=[i // GROUP_SIZE for i in range(len(episodes))])
        advantages = episode_advantages("group_mean", batch.rewards, batch.group_ids)  # [B], 0 in a group of equals
        weights = token_weights(batch.mask, "token_mean")  # [B, T], 0 for tokens that the model did not sample
        batch = batch.replace(advantages=advantages[:, None] * weights)
        metrics = await engine.update([batch], LossConfig(kind="ppo"), RL_LEARNING_RATE)
        print(
            f"RL {step + 1}/{rl_steps}     success {batch.rewards.mean():.3f}  grad norm {metrics['grad_norm']:.3f}  "
            f"rollouts {played - started:.1f} s  update {time.perf_counter() - played:.1f} s",
            flush=True,
        )
    await evaluate_student("after RL")
    return success_rates


if __name__ == "__main__":
    asyncio.run(train())
