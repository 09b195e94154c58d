"""The whole proof for a model, before it is trained: its template, and its engine in each way of fine-tuning."""

import time
from pathlib import Path

from understudy import formats
from understudy.certify.certificate import Certificate
from understudy.certify.tokens import check_format
from understudy.certify.weights import Subject, check_engine, check_sampler
from understudy.config import TrainConfig
from understudy.engines.base import Engine
from understudy.engines.local.config import Finetune, LocalConfig
from understudy.engines.local.engine import LocalEngine
from understudy.formats import ChatFormat, Vocabulary
from understudy.models import find_model

PLAIN = ", unguessed"


async def certify(config: TrainConfig) -> Certificate:
    """Prove the config's model, template and engine, with engines that are made for it and thrown away.

    Both ways of fine-tuning are proven, or the one that `engine.finetune` names.
    """
    started = time.perf_counter()
    folder = find_model(config.model)
    format = formats.find(folder, tolerant=config.format.tolerant)
    checks, deviations = await check_format(folder, format)
    for name, settings in engines(config.engine):
        engine = LocalEngine(folder, settings, config.seed)
        subject = subject_of(config, folder, engine, format)
        checks += await (check_sampler if name.endswith(PLAIN) else check_engine)(subject, name)
        engine.close()
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


def engines(config: LocalConfig) -> list[tuple[str, LocalConfig]]:
    """The engines to prove, by name: each way of fine-tuning, and the first once more without guesses."""
    ways: tuple[Finetune, ...] = (config.finetune,) if "finetune" in config.model_fields_set else ("full", "lora")
    found = [(str(way), config.replace(finetune=way)) for way in ways]
    name, first = found[0]
    return [*found, (f"{name}{PLAIN}", first.replace(rows=0))] if config.rows else found
