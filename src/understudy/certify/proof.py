"""The whole proof for a model, before it is trained: its template, and its engine in each way of fine-tuning."""

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from understudy import formats
from understudy.certify.certificate import Certificate, Check
from understudy.certify.tokens import check_format
from understudy.certify.weights import Subject, check_engine, check_sampler
from understudy.config import TrainConfig
from understudy.engines.base import Engine
from understudy.engines.local.config import Finetune, LocalConfig
from understudy.engines.opening import open_engine
from understudy.formats import ChatFormat, Vocabulary
from understudy.models import find_model


async def certify(config: TrainConfig) -> Certificate:
    """Prove the config's model, template and engine, with engines that are made for it and thrown away.

    `full` and `lora` are proven, or the way of fine-tuning that `engine.finetune` names; the first once more by
    PyTorch's sampler without guesses.
    """
    started = time.perf_counter()
    folder = find_model(config.model)
    format = formats.configured(folder, config.format)

    async def proven(name: str, check: Callable[[Subject, str], Awaitable[list[Check]]], **changes: Any) -> list[Check]:
        settings = config.fitted.replace(**changes)
        engine = open_engine(folder, settings, config.seed, trains=check is check_engine)
        try:
            return await check(subject_of(config, folder, engine, format), name)
        finally:
            engine.close()

    checks, deviations = await check_format(folder, format, config.format.thinking)
    named = ways(config.engine)
    for way in named:
        checks += await proven(way, check_engine, finetune=way)
    for way in named[:1] if config.engine.rows and config.engine.kind == "local" else ():
        checks += await proven(f"{way}, unguessed", check_sampler, finetune=way, rows=0, sampler="torch")
    return Certificate(
        model=config.model,
        format=type(format).__name__,
        checks=tuple(checks),
        deviations=tuple(deviations),
        seconds=time.perf_counter() - started,
    )


def subject_of(config: TrainConfig, folder: Path, engine: Engine, format: ChatFormat) -> Subject:
    """What is certified, with the sampling and the slack of a config."""
    vocabulary = Vocabulary.load(folder / "tokenizer.json")
    return Subject(engine, format, vocabulary, config.sampling, config.certify.slack)


def ways(config: LocalConfig) -> tuple[Finetune, ...]:
    """The ways of fine-tuning to prove: the one that is named, else full and lora."""
    return (config.finetune,) if "finetune" in config.model_fields_set else ("full", "lora")
