"""Preferences: conversations out of a file, better ones and worse ones, between the warm start and reinforcement.

Each step reads its batch twice, under the policy and under the reference, which is the policy that the phase started
from; what comes of it are the weights of one more pass (see `algorithms.preferences`).
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from torch import Tensor

from understudy.algorithms.advantages import token_weights
from understudy.algorithms.options import Loss
from understudy.algorithms.preferences import dpo_weights, kto_weights, margins
from understudy.batch import Batch, collate
from understudy.config import TrainConfig
from understudy.data.items import strict
from understudy.data.preferences import Judged, Preference, rows
from understudy.engines.base import Engine
from understudy.errors import ConfigError
from understudy.formats import ChatFormat
from understudy.messages import Message, ToolSpec
from understudy.retold import retold
from understudy.tasks import Score
from understudy.train.imitation import order
from understudy.train.metrics import learning_rate
from understudy.train.state import Metrics, Training
from understudy.trajectory import Stop, Trajectory

Unit = tuple[Trajectory, ...]
"""What is drawn as one: a pair, the better one first, or a single conversation. A reward of 1 is a wanted one."""


def read_preferences(config: TrainConfig, format: ChatFormat) -> list[Unit]:
    """The conversations of the file in the model's tokens; the first row that cannot be learned from is refused."""
    preferences = config.preferences
    if not preferences.file:
        raise ConfigError("preferences.file is empty; name a JSONL file of conversations, or set preferences.steps=0")
    if preferences.kind == "kto" and preferences.batch_size < 2:
        raise ConfigError("preferences.batch_size = 1: kto compares conversations with each other; give at least 2")
    path, units = Path(preferences.file).expanduser(), list[Unit]()
    for where, sides, tools in _sides(path, preferences.kind):
        try:
            unit = tuple(_rated(messages, tools, format, wanted) for messages, wanted in sides)
        except ConfigError as e:
            raise ConfigError(f"{where}: {e}") from e
        longest = max(len(episode.tokens) for episode in unit)
        if longest > config.limits.max_tokens:
            raise ConfigError(
                f"{where}: a conversation of {longest} tokens, where limits.max_tokens is {config.limits.max_tokens}; "
                "raise it, or leave the row out"
            )
        units.append(unit)
    if not units:
        raise ConfigError(f"preferences.file {preferences.file} holds no rows")
    return units


def begin(training: Training) -> None:
    """Forget imitation's momentum, and remember the weights that the policy is compared with."""
    training.engine.fresh_optimizer()
    training.engine.keep_reference()


async def preference_step(training: Training, step: int) -> Metrics:
    """Learn from one batch of pairs, or of single conversations."""
    config, started = training.config.preferences, time.perf_counter()
    number = step - training.config.sft.steps
    drawn = order(len(training.preferences), training.config.seed)
    chosen = itertools.islice(drawn, (number - 1) * config.batch_size, number * config.batch_size)
    batch, found = await _weighed(training, [training.preferences[i] for i in chosen])
    rate = learning_rate(number, config.steps, config.learning_rate, config.warmup, final=0.1)
    metrics = await training.engine.update([batch], Loss(kind="nll"), rate)
    return metrics | found | {"learning_rate": rate, "seconds": time.perf_counter() - started}


async def _weighed(training: Training, units: Sequence[Unit]) -> tuple[Batch, Metrics]:
    """The batch of some units with what each token weighs, and what the batch came to."""
    config, engine = training.config.preferences, training.engine
    numbers = [number for number, unit in enumerate(units) for _ in unit]
    episodes = [episode for unit in units for episode in unit]
    batch = await _compared(engine, collate(episodes, numbers))
    wanted, margin = batch.rewards > 0.5, _margins(batch)
    if config.kind == "dpo":
        weights, metrics = dpo_weights(margin, batch.group, wanted, config.beta)
    else:
        mismatched = await _compared(engine, collate(_mismatched(episodes, training.config.limits.max_tokens)))
        kl = float(_margins(mismatched).mean())
        weights, metrics = kto_weights(margin, wanted, config.beta, kl, config.unwanted_weight)
    sides = {"wanted_margin": margin[wanted], "unwanted_margin": margin[~wanted]}
    metrics |= {name: float(side.mean()) for name, side in sides.items() if len(side)}
    imitated = config.imitation * token_weights(batch.mask & wanted[:, None], "token")
    return batch.with_(advantages=weights[:, None] * batch.mask + imitated), metrics


async def _compared(engine: Engine, batch: Batch) -> Batch:
    return await engine.reference(await engine.forward(batch))


def _margins(batch: Batch) -> Tensor:
    assert batch.ref_logprobs is not None
    return margins(batch.logprobs, batch.ref_logprobs, batch.mask)


def _mismatched(episodes: Sequence[Trajectory], most: int) -> list[Trajectory]:
    """Each prompt with what was said to the next one's, of at most so many tokens.

    That is what KTO estimates the divergence from the reference by.
    """
    following = [*episodes[1:], episodes[0]]
    return [_spliced(prompt, said, most) for prompt, said in zip(episodes, following, strict=True)]


def _spliced(prompt: Trajectory, said: Trajectory, most: int) -> Trajectory:
    """The one's tokens up to its first reply, then the other's from its first reply on."""
    cut, start = prompt.mask.index(True), said.mask.index(True)
    end = start + most - cut
    spliced = Trajectory(prompt.task, score=said.score)
    spliced.tokens = prompt.tokens[:cut] + said.tokens[start:end]
    spliced.mask = prompt.mask[:cut] + said.mask[start:end]
    spliced.logprobs = prompt.logprobs[:cut] + said.logprobs[start:end]
    return spliced


Sides = tuple[tuple[tuple[Message, ...], bool], ...]
"""Conversations, and whether each is wanted."""


def _sides(path: Path, kind: str) -> Iterator[tuple[str, Sides, tuple[ToolSpec, ...]]]:
    """Where each row is, its conversations, and its tools."""
    if kind == "dpo":
        for pair in strict(rows(path, Preference)):
            yield pair.where, ((pair.value.chosen, True), (pair.value.rejected, False)), pair.value.tools
    else:
        for row in strict(rows(path, Judged)):
            yield row.where, ((row.value.messages, row.value.wanted),), row.value.tools


def _rated(messages: Sequence[Message], tools: Sequence[ToolSpec], format: ChatFormat, wanted: bool) -> Trajectory:
    episode = retold(messages, tools, format)
    episode.score, episode.stop = Score(reward=float(wanted)), Stop.DONE
    return episode
