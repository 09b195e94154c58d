"""Run TRL's GRPOTrainer on lamps, with this package's tools and rewards.

With an `environment_factory` TRL plays several turns itself: it generates, calls the methods that the reply requests,
appends their results, and continues until a reply has no call. With a `rollout_func` this package would have to do
that. On a CPU, replies come from transformers' `generate`, whose rows wait for each other. vLLM is not needed.
"""

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lamps import DOMAIN

from understudy.core.messages import Message, ToolCall, message_to_openai
from understudy.core.tasks import Task
from understudy.envs.environment import Environment
from understudy.runs.config import TrainConfig

if TYPE_CHECKING:
    from time_to_success import Clock

LOOP = asyncio.Runner()


class Episode:
    """An episode of lamps as an environment of TRL.

    TRL describes each method without a leading `_` to the model, from its name, type hints and docstring. The methods
    have no return type, so that transformers derives exactly the schema that this package derives from the toolkit.
    The model that both sides start from was fine-tuned on that schema.
    """

    def reset(self, task: str, **_: object):
        """Start the episode of a row of the dataset."""
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
        """Return the reward, given the last message. Only a text without calls ends the episode."""
        if last["role"] != "assistant" or last.get("tool_calls"):
            return LOOP.run(self._episode.grade(ended=False)).reward
        step = LOOP.run(self._episode.step(Message(role="assistant", content=last["content"])))
        return step.score.reward if step.score else 0.0


def rewards(completions: Sequence[Sequence[dict[str, Any]]], environments: Sequence[Episode], **_: object):
    """Return the reward of each episode of a batch."""
    return [episode._reward(said[-1]) for episode, said in zip(environments, completions, strict=True)]


def rows(config: TrainConfig) -> dict[str, list[Any]]:
    """Return the training tasks in this package's order, each with the start of its episode."""
    count = config.steps * config.algorithm.groups_per_batch
    tasks = list(itertools.islice(DOMAIN.slice(config.slice).stream("train", config.seed), count))
    begun = [LOOP.run(DOMAIN.environment(task).start()).messages for task in tasks]
    return {
        "prompt": [[message_to_openai(message) for message in messages] for messages in begun],
        "task": [task.model_dump_json() for task in tasks],
    }


def settings(config: TrainConfig, folder: Path) -> dict[str, Any]:
    """Return GRPOConfig's arguments: those of `config`, and settings that make TRL fast on a CPU."""
    algorithm, optimizer = config.algorithm, config.engine.optimizer
    return {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": config.engine.dtype == "bfloat16",  # autocast over float32 weights, like this package's master weights
        "gradient_checkpointing": False,
        "per_device_train_batch_size": algorithm.group_size,  # all rows at once need more than 24 GB
        "gradient_accumulation_steps": algorithm.groups_per_batch,
        "num_generations": algorithm.group_size,
        "max_completion_length": config.limits.max_episode_tokens,
        "generation_kwargs": {"max_new_tokens": config.sampling.max_response_tokens},  # per reply, as in this package
        "max_tool_calling_iterations": config.limits.max_turns - 1,
        "temperature": config.sampling.temperature,
        "loss_type": "dapo",  # the mean over all tokens, like `algorithm.loss_aggregation = "token_mean"`
        "scale_rewards": "none",  # like `algorithm.advantage_estimator = "group_mean"`
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


def train(config: TrainConfig, folder: Path, clock: "Clock") -> None:
    """Train to the end, and show the clock the weights before the first step and at regular steps after it."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    from trl.chat_template_utils import qwen3_template

    class Shown(TrainerCallback):
        def on_train_begin(self, *_: object, **__: object) -> None:
            clock.show(0, Path(config.model))

        def on_step_end(self, _: object, state: Any, *__: object, **___: object) -> None:
            if state.global_step % config.save_every == 0:
                with clock.write_weights():
                    trainer.save_model(str(folder / f"step_{state.global_step}"))
                clock.show(state.global_step, folder / f"step_{state.global_step}")

    tokenizer = AutoTokenizer.from_pretrained(config.model)
    tokenizer.response_template = qwen3_template  # makes TRL parse Hermes calls; it recognizes only exact templates
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
