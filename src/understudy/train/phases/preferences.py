"""Preference training (DPO, KTO) on the conversations of `preferences.dataset_file`, between SFT and RL.

Each step computes the log-probabilities of its batch under the model and under the reference, which is the model at the
start of the phase. They determine the weight of each conversation in the update (see `algorithms.preferences`).
"""

import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from torch import Tensor

from understudy.algorithms.advantages import token_weights
from understudy.algorithms.batch import Batch, collate
from understudy.algorithms.config import LossConfig
from understudy.algorithms.preference_config import PreferenceConfig
from understudy.algorithms.preferences import dpo_weights, kto_weights, sequence_log_ratios
from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolSpec
from understudy.core.tasks import Score
from understudy.core.trajectory import StopReason, Trajectory
from understudy.data.conversations.conversations import read_examples, valid_examples
from understudy.data.conversations.examples import LabeledExample, PreferencePair
from understudy.data.conversations.outcomes import ReadingNotes
from understudy.engines.interface import Trainer, require_reference
from understudy.formats import ChatFormat
from understudy.rollouts.supervised import build_supervised_example
from understudy.runs.config import TrainConfig
from understudy.runs.run import Run
from understudy.train.metrics import learning_rate
from understudy.train.phases.sft import DrawnOrder, shuffled_epochs
from understudy.train.state import UPDATE, Metrics, TrainingContext
from understudy.train.trained_batch import TrainedBatch

PreferenceUnit = tuple[Trajectory, ...]
"""The two conversations of a DPO pair, the chosen one first, or the single conversation of a KTO example.

Its reward is 1 if it is chosen or desirable, else 0."""

_SIDES = {"dpo": ("rejected", "chosen"), "kto": ("undesirable", "desirable")}
"""The family of a stored conversation: that of an unwanted one, then that of a wanted one."""


def read_preferences(config: TrainConfig, format: ChatFormat) -> tuple[list[PreferenceUnit], list[str]]:
    """Return the conversations of the file as token sequences, and notes on what is left out of the file.

    Raise TaskError or ConfigError at an invalid row.
    """
    preferences = config.preferences
    if not preferences.dataset_file:
        raise ConfigError(
            "preferences.dataset_file is empty; name a file or folder of conversations, or set preferences.steps=0"
        )
    if preferences.kind == "kto" and preferences.batch_size < 2:
        raise ConfigError("preferences.batch_size = 1: kto compares the conversations of a batch; set at least 2")
    path, units = Path(os.path.expanduser(preferences.dataset_file)), list[PreferenceUnit]()
    read = ReadingNotes()
    names = _SIDES[preferences.kind]
    most, too_long = config.limits.max_episode_tokens, list[tuple[str, int]]()
    for number, (where, sides, tools) in enumerate(_read_conversations(path, preferences, read), 1):
        try:
            unit = tuple(
                dataclasses.replace(
                    _to_trajectory(messages, tools, format, wanted),
                    task_id=f"{path.stem}/{number}",
                    family=names[wanted],
                )
                for messages, wanted in sides
            )
        except ConfigError as e:
            raise ConfigError(f"{where}: {e}") from e
        longest = max(len(episode.tokens) for episode in unit)
        if longest > most:
            too_long.append((where, longest))
        else:
            units.append(unit)
    notes = read.lines("preferences.min_reward")
    if too_long:
        enough = max(length for _, length in too_long)
        text = (
            f"{len(too_long)} of {len(too_long) + len(units)} rows are longer than limits.max_episode_tokens = {most} "
            f"(the first: {too_long[0][0]}); limits.max_episode_tokens={enough} keeps all"
        )
        if not units:
            raise ConfigError(f"{preferences.dataset_file}: {text}")
        notes.append(f"{text}; they are left out")
    return units, [f"{preferences.dataset_file}: {line}" for line in notes]


class PreferencePhase:
    """Trains on preferences: pairs of conversations (DPO), or single ones that are desirable or not (KTO)."""

    def __init__(self, context: TrainingContext, units: Sequence[PreferenceUnit]) -> None:
        self._context, self._units = context, units
        drawn = shuffled_epochs([""] * len(units), context.config.seed)
        self._order = DrawnOrder(drawn, context.config.preferences.batch_size)

    def start(self) -> None:
        """Reset the optimizer, and take the current weights as the reference."""
        self._context.engine.reset_optimizer()
        require_reference(self._context.engine).set_reference()

    async def run_step(self, step: int) -> Metrics:
        """Train on one batch of units."""
        config, started = self._context.config.preferences, time.perf_counter()
        self._context.report(UPDATE, 0, 1, {})
        number = step - self._context.config.sft.steps
        units = [self._units[i] for i in self._order.take_batch(number)]
        batch, weight_metrics = await _weighted_batch(self._context, units)
        _save_weights(self._context.run, step, [episode for unit in units for episode in unit], batch)
        rate = learning_rate(number, config.steps, config.learning_rate, config.warmup_steps, min_lr_ratio=0.1)
        metrics = await self._context.engine.update([batch], LossConfig(kind="nll"), rate)
        return metrics | weight_metrics | {"learning_rate": rate, "step_seconds": time.perf_counter() - started}


def _save_weights(run: Run, step: int, episodes: Sequence[Trajectory], batch: Batch) -> None:
    """Store the conversations of a step, with the model's log-probabilities, and their weights as advantages."""
    assert batch.advantages is not None
    logprobs = [row[: len(episode.tokens)] for row, episode in zip(batch.logprobs.tolist(), episodes, strict=True)]
    stored = [dataclasses.replace(episode, logprobs=row) for episode, row in zip(episodes, logprobs, strict=True)]
    run.save_episodes(step, stored)
    run.save_trained_episodes(step, TrainedBatch(stored, batch, 1).trained_episodes(stored))


async def _weighted_batch(context: TrainingContext, units: Sequence[PreferenceUnit]) -> tuple[Batch, Metrics]:
    """Return the batch of some units and metrics. The advantage of a token is its weight in the loss."""
    config, engine = context.config.preferences, context.engine
    numbers = [number for number, unit in enumerate(units) for _ in unit]
    episodes = [episode for unit in units for episode in unit]
    batch = await _with_ref_logprobs(engine, collate(episodes, numbers))
    wanted, margin = batch.rewards > 0.5, _margins(batch)
    if config.kind == "dpo":
        weights, metrics = dpo_weights(margin, batch.group_ids, wanted, config.beta)
    else:
        mismatched = await _with_ref_logprobs(
            engine, collate(_mismatched_for_kl(episodes, context.config.limits.max_episode_tokens))
        )
        kl = float(_margins(mismatched).mean())
        weights, metrics = kto_weights(margin, wanted, config.beta, kl, config.undesirable_weight)
    sides = {"chosen_log_ratio": margin[wanted], "rejected_log_ratio": margin[~wanted]}
    metrics |= {name: float(side.mean()) for name, side in sides.items() if len(side)}
    imitated = config.rpo_alpha * token_weights(batch.mask & wanted[:, None], "token_mean")
    return batch.replace(advantages=weights[:, None] * batch.mask + imitated), metrics


async def _with_ref_logprobs(engine: Trainer, batch: Batch) -> Batch:
    return await require_reference(engine).compute_ref_logprobs(await engine.compute_logprobs(batch))


def _margins(batch: Batch) -> Tensor:
    assert batch.ref_logprobs is not None
    return sequence_log_ratios(batch.logprobs, batch.ref_logprobs, batch.mask)


def _mismatched_for_kl(episodes: Sequence[Trajectory], most: int) -> list[Trajectory]:
    """Return the episodes of the KTO estimate of the KL divergence from the reference.

    Each pairs the prompt of one episode with the replies of the next, and has at most `most` tokens.
    """
    following = [*episodes[1:], episodes[0]]
    return [_spliced(prompt, source, most) for prompt, source in zip(episodes, following, strict=True)]


def _spliced(prompt: Trajectory, source: Trajectory, most: int) -> Trajectory:
    """Return the tokens of `prompt` up to its first reply, then those of `said` from its first reply on."""
    cut, start = prompt.mask.index(True), source.mask.index(True)
    end = start + most - cut
    spliced = Trajectory(prompt.task_id, score=source.score)
    spliced.tokens = prompt.tokens[:cut] + source.tokens[start:end]
    spliced.mask = prompt.mask[:cut] + source.mask[start:end]
    spliced.logprobs = prompt.logprobs[:cut] + source.logprobs[start:end]
    return spliced


LabeledConversations = tuple[tuple[tuple[Message, ...], bool], ...]
"""Conversations, each with True if it is chosen or desirable."""


def _read_conversations(
    path: Path, config: PreferenceConfig, notes: ReadingNotes
) -> Iterator[tuple[str, LabeledConversations, tuple[ToolSpec, ...]]]:
    """Yield the location, the conversations and the tools of each row."""
    if config.kind == "dpo":
        for pair in valid_examples(read_examples(path, PreferencePair, config.min_reward, notes), path):
            yield pair.location, ((pair.value.chosen, True), (pair.value.rejected, False)), pair.value.tools
    else:
        for row in valid_examples(read_examples(path, LabeledExample, config.min_reward, notes), path):
            yield row.location, ((row.value.messages, row.value.label),), row.value.tools


def _to_trajectory(
    messages: Sequence[Message], tools: Sequence[ToolSpec], format: ChatFormat, wanted: bool
) -> Trajectory:
    episode = build_supervised_example(messages, tools, format)
    episode.score, episode.stop_reason = Score(reward=float(wanted)), StopReason.DONE
    return episode
