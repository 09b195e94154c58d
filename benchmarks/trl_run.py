"""A run of TRL's GRPOTrainer on lamps: our tools are its environment's methods, and our grade is its reward.

TRL plays several turns by itself where it is given an `environment_factory`: it generates, calls the methods that the
reply asks for, appends what they say, and goes on until a reply calls none. (Its `rollout_func` would leave all of that
to us.) On a CPU replies come from transformers' generate, in rows that wait for each other; vLLM is not needed.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lamps import DOMAIN

from understudy.config import TrainConfig
from understudy.environment import Environment
from understudy.messages import Message, ToolCall, to_wire
from understudy.tasks import Task

LOOP = asyncio.Runner()


class Episode:
    """An episode of lamps as TRL wants it. It shows methods without `_` to the model, by name, hints and docstring.

    They have no return type, so that transformers makes the schema of them that understudy makes of the toolkit, to the
    byte: the model that both sides begin with has seen that one.
    """

    def reset(self, task: str, **_: object):
        """Begin the episode of a row of the dataset."""
        self._episode: Environment = DOMAIN.environment(Task.model_validate_json(task))
        LOOP.run(self._episode.start())

    def read(self, room: str, time: str):
        """Read how bright the lamp of a room is in the morning, at noon, in the evening or at night.

        Args:
            room: its number
            time: of the day
        """
        call = ToolCall(name="read", arguments={"room": room, "time": time})
        return LOOP.run(self._episode.step(Message(role="assistant", tool_calls=(call,)))).messages[0].content

    def _reward(self, last: dict[str, Any]) -> float:
        """What the episode earned, given its last message: only a text without calls ends it."""
        if last["role"] != "assistant" or last.get("tool_calls"):
            return LOOP.run(self._episode.grade(ended=False)).reward
        step = LOOP.run(self._episode.step(Message(role="assistant", content=last["content"])))
        return step.score.reward if step.score else 0.0


def rewards(completions: Sequence[Sequence[dict[str, Any]]], environments: Sequence[Episode], **_: object):
    """What each episode of a batch earned."""
    return [episode._reward(said[-1]) for episode, said in zip(environments, completions, strict=True)]


def rows(config: TrainConfig) -> dict[str, list[Any]]:
    """The training tasks in our order, each with what its episode begins with."""
    count = config.steps * config.algorithm.tasks_per_step
    tasks = list(itertools.islice(DOMAIN.slice(config.slice).stream("train", config.seed), count))
    begun = [LOOP.run(DOMAIN.environment(task).start()).messages for task in tasks]
    return {
        "prompt": [[to_wire(message) for message in messages] for messages in begun],
        "task": [task.model_dump_json() for task in tasks],
    }


def settings(config: TrainConfig, folder: Path) -> dict[str, Any]:
    """GRPOConfig's arguments: what our config says, in TRL's words, and what makes it fast on a CPU."""
    algorithm, optimizer = config.algorithm, config.engine.optimizer
    return {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": config.engine.dtype == "bfloat16",  # autocast over float32 weights, as ours keeps masters
        "gradient_checkpointing": False,
        "per_device_train_batch_size": algorithm.group_size,  # all at once needs more than 24 GB
        "gradient_accumulation_steps": algorithm.tasks_per_step,
        "num_generations": algorithm.group_size,
        "max_completion_length": config.limits.max_tokens,
        "generation_kwargs": {"max_new_tokens": config.sampling.max_tokens},  # of each reply, as ours
        "max_tool_calling_iterations": config.limits.max_turns - 1,
        "temperature": config.sampling.temperature,
        "loss_type": "dapo",  # the mean over all tokens, as `algorithm.per = "token"`
        "scale_rewards": "none",  # as `algorithm.advantage = "group"`
        "beta": 0.0,
        "learning_rate": algorithm.learning_rate,
        "lr_scheduler_type": "constant",
        "weight_decay": optimizer.weight_decay,
        "adam_beta1": optimizer.beta1,
        "adam_beta2": optimizer.beta2,
        "max_grad_norm": optimizer.max_grad_norm,
        "max_steps": config.steps,
        "seed": config.seed,
        "shuffle_dataset": False,
        "dataloader_pin_memory": False,
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "report_to": [],
    }


def train(config: TrainConfig, folder: Path, show: Callable[[int, Path], None]) -> None:
    """Train to the end; `show` is called with the weights before the first step and after each so many."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    from trl.chat_template_utils import qwen3_template

    class Shown(TrainerCallback):
        def on_train_begin(self, *_: object, **__: object) -> None:
            show(0, Path(config.model))

        def on_step_end(self, _: object, state: Any, *__: object, **___: object) -> None:
            if state.global_step % config.save_every == 0:
                trainer.save_model(str(folder / f"step_{state.global_step}"))
                show(state.global_step, folder / f"step_{state.global_step}")

    tokenizer = AutoTokenizer.from_pretrained(config.model)
    tokenizer.response_template = qwen3_template  # how TRL reads Hermes calls; it knows templates by their text alone
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(config.model, dtype="float32"),
        reward_funcs=rewards,
        args=GRPOConfig(**settings(config, folder)),
        train_dataset=Dataset.from_dict(rows(config)),
        processing_class=tokenizer,
        callbacks=[Shown()],
        environment_factory=Episode,
    )
    trainer.train()
