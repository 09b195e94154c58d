"""What a run needs before its model is loaded: all that can be wrong with a config shows here."""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from understudy import formats
from understudy.agent import SilentAgent
from understudy.config import TrainConfig
from understudy.domains.base import TaskSource, find
from understudy.engines.tinker import refusals
from understudy.errors import ConfigError
from understudy.evaluate import refuse_free
from understudy.formats import ChatFormat
from understudy.models import find_model
from understudy.rollout import Limits, play
from understudy.shaping import Shaped, Shaping
from understudy.train.exam import Exam, exams
from understudy.train.files import Files, read_files
from understudy.train.lessons import judge_of, refuse_idle
from understudy.users import Cast

_PROBED = 8
"""Tasks whose scores are looked at: several, because a mixture's domains score apart."""


@dataclass(frozen=True)
class Prepared:
    """The parts of a run, but for its engine."""

    folder: Path
    """Of the model."""
    format: ChatFormat
    domain: TaskSource
    exams: Sequence[Exam]
    users: Cast
    floor: float
    """What doing nothing earns on tasks of the training split."""
    files: Files


def prepare(config: TrainConfig, today: date | None = None, done: int = 0) -> Prepared:
    """Find and check what a config names, for a run that has done so many steps.

    `today` is what templates that tell the date say.

    Raises ConfigError, and TaskError for tasks that doing nothing earns.
    """
    folder = find_model(config.model)
    domain = find(config.domain).slice(config.slice)
    examined = exams(config, domain)
    if config.user.kind == "human":
        raise ConfigError("user.kind = 'human': no person can play the users of a training run; choose another kind")
    refuse_idle(config.algorithm, folder)
    _refuse_idle_cap(config)
    _refuse_idle_files(config)
    judge_of(config)  # at its first mark the warm start would be over
    _refuse_of_a_server(config)
    users = Cast(config.user)
    floor = asyncio.run(refuse_free(domain, config.seed, allowed=config.free_tasks))
    if config.steps and config.algorithm.shaping.progress:
        asyncio.run(_refuse_untold(config, domain))
    format = formats.configured(folder, config.format, today)
    files = read_files(config, domain, format, done)
    return Prepared(folder, format, domain, examined, users, floor, files)


def doubts(config: TrainConfig) -> list[str]:
    """What a run can do, and its user should know of: a line each."""
    if not config.steps:
        return []
    sampling, lines = config.sampling, []
    if sampling.temperature == 0:
        lines.append(
            "sampling.temperature = 0: episodes of a group differ by their users alone, and gradients are those of "
            "temperature 1; see docs/sampling.md"
        )
    if sampling.filtered:
        on = sampling.model_dump(include={"top_p", "top_k", "min_p", "repetition_penalty"}, exclude_defaults=True)
        named = ", ".join(f"sampling.{name} = {value}" for name, value in on.items())
        lines.append(f"{named}: replies are drawn from other odds than those that are trained; see docs/sampling.md")
    reference = config.algorithm.reference
    if reference.kind == "ema" and reference.every >= config.steps:
        lines.append(
            f"algorithm.reference.every = {reference.every}, and there are {config.steps} steps: the average stays as "
            "it begins, as kind=frozen does"
        )
    return lines


def cut_short(config: TrainConfig, context: int) -> list[str]:
    """A line where episodes may be longer than the model's context, in which they end."""
    longest = config.limits.max_tokens
    if longest <= context:
        return []
    return [f"limits.max_tokens = {longest}, and the model's context is {context}: episodes end there"]


def _refuse_of_a_server(config: TrainConfig) -> None:
    """What a server of the Tinker API cannot do for this run: a `ConfigError`, before anything is asked of it."""
    if config.engine.kind != "tinker":
        return
    refusals.abilities(config.engine)
    refusals.refuse_sampling(config.sampling, "sampling")
    refusals.refuse_sampling(config.sampling.replace(temperature=config.eval.temperature), "eval")
    if config.algorithm.valued:
        raise refusals.no_values()
    if config.algorithm.kl_coefficient:
        refusals.refuse_reference(config.algorithm.reference)
    steps = (config.sft.steps, config.preferences.steps, config.steps)
    refusals.refuse_second_phase(config.engine, sum(count > 0 for count in steps))


async def _refuse_untold(config: TrainConfig, domain: TaskSource) -> None:
    """Progress that pays, where scores do not tell it: a `ConfigError`, which an episode of doing nothing comes to."""
    shaped = Shaped(domain, Shaping(progress=config.algorithm.shaping.progress))
    for task in itertools.islice(domain.stream("train", config.seed), _PROBED):
        await play(shaped, task, SilentAgent(), Limits(), config.seed)


def _refuse_idle_files(config: TrainConfig) -> None:
    for name, phase in (("sft", config.sft), ("preferences", config.preferences)):
        if phase.file and not phase.steps:
            raise ConfigError(
                f"{name}.file = {phase.file!r}: nothing is learned from it while {name}.steps is 0; "
                "set both, or neither"
            )


def _refuse_idle_cap(config: TrainConfig) -> None:
    users = [config.user.chat] if config.user.kind != "scripted" else []
    judge = [config.chat] if config.steps and config.algorithm.shaping.judge else []
    if config.cost_cap and not any(chat.prompt_price or chat.completion_price for chat in (*users, *judge)):
        raise ConfigError(
            f"cost_cap = {config.cost_cap}: nothing in this run has a price; leave it out, or set prompt_price and "
            "completion_price, of user.chat where user.kind asks a model, of chat where algorithm.shaping.judge does"
        )
