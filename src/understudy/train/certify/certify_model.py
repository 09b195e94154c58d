"""Certify a model before training: its chat format, and its engine with each fine-tuning method."""

import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from understudy.core.errors import ConfigError
from understudy.core.foreign_names import explained_arguments
from understudy.engines.config import EngineConfig
from understudy.engines.factory import open_engine
from understudy.engines.interface import Engine
from understudy.engines.local.config import Finetune, LocalEngineConfig
from understudy.engines.models import find_model
from understudy.engines.tinker.config import TinkerEngineConfig
from understudy.formats import ChatFormat, FormatTokenizer
from understudy.runs.config import TrainConfig
from understudy.runs.model_format import choose_format
from understudy.train.certify.certificate import Certificate, CertificateCheck
from understudy.train.certify.engine_checks import (
    CertificationTarget,
    check_engine,
    check_sampler,
    check_tokenizer,
)
from understudy.train.certify.format_checks import check_format


@explained_arguments(keyword="write it in the config, as in certify(TrainConfig({name}={value!r}))")
async def certify(config: TrainConfig) -> Certificate:
    """Certify the format and the engine of a config, with temporary engines.

    The engine is checked with `full` and with `lora`, or only with `engine.finetune` if that is set. If a local engine
    uses speculation, PyTorch's sampler is checked once more with speculation disabled, with the first of these
    methods. A program of the config plays tasks of its domain. Raise ConfigError if the model is unknown or cannot be
    trained.
    """
    given: object = config
    if isinstance(given, str):
        raise ConfigError(f"certify: config is {given!r}; give TrainConfig(model={given!r})")
    started = time.perf_counter()
    folder = find_model(config.model)
    chosen = choose_format(folder, config)
    format, tokens = chosen.format, chosen.trained_tokens

    async def proven(
        name: str,
        check: Callable[[CertificationTarget, str], Awaitable[list[CertificateCheck]]],
        settings: EngineConfig,
        trainable: bool = True,
    ) -> list[CertificateCheck]:
        engine = open_engine(folder, settings, config.seed, trainable=trainable, trained_tokens=tokens)
        try:
            return await check(make_certification_target(config, folder, engine, format), name)
        finally:
            engine.close()

    async def check_first(target: CertificationTarget, name: str) -> list[CertificateCheck]:
        return [await check_tokenizer(target, name), *await check_engine(target, name)]

    checks, deviations = await check_format(folder, format, config.format.enable_thinking)
    named, resolved = finetune_methods(config.engine), config.resolved_engine
    for way in named:
        is_remote = isinstance(resolved, TinkerEngineConfig)
        settings = resolved if is_remote else resolved.export_engine_config.replace(finetune=way)
        checks += await proven(way, check_first if way == named[0] else check_engine, settings)
    if isinstance(resolved, LocalEngineConfig) and resolved.max_draft_rows:
        for way in named[:1]:
            plain = resolved.replace(finetune=way, max_draft_rows=0, sampler="torch")
            checks += await proven(
                f"{way}, without speculation", partial(check_sampler, replay=False), plain, trainable=False
            )
    notes = list(chosen.notes)
    if config.agent.name:
        from understudy.train.certify.program_checks import check_program  # MCP takes long to import

        engine = open_engine(folder, resolved, config.seed, trainable=False, trained_tokens=tokens)
        try:
            target = make_certification_target(config, folder, engine, format)
            program_checks, program_notes = await check_program(config, target)
        finally:
            engine.close()
        checks += program_checks
        notes += program_notes
    return Certificate(
        model=config.model,
        format=type(format).__name__,
        checks=tuple(checks),
        deviations=tuple(deviations),
        notes=tuple(notes),
        seconds=time.perf_counter() - started,
    )


def make_certification_target(
    config: TrainConfig, folder: Path, engine: Engine, format: ChatFormat
) -> CertificationTarget:
    """Return the engine and the format to certify, with `sampling` and `certify.tolerance_factor` of a config."""
    vocabulary = FormatTokenizer.load(folder / "tokenizer.json")
    return CertificationTarget(engine, format, vocabulary, config.sampling, config.certify.tolerance_factor)


def finetune_methods(config: EngineConfig) -> tuple[Finetune, ...]:
    """Return the fine-tuning methods to certify: the configured one, else `full` and `lora`. Tinker has one method."""
    if isinstance(config, TinkerEngineConfig):
        return (config.finetune,)
    return (config.finetune,) if "finetune" in config.model_fields_set else ("full", "lora")
