"""Measure how fast this machine samples from a model and trains it, in tokens a second.

Prompts are random tokens without common prefixes, so no prefix cache helps. Real episodes share prefixes and are
sampled faster. Results are cached for forecasts.
"""

import asyncio
import contextlib
import hashlib
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from understudy.algorithms.config import LossConfig
from understudy.core.errors import ConfigError
from understudy.core.records import Record
from understudy.engines.interface import SamplingParams
from understudy.engines.local.config import Finetune, LocalEngineConfig, describe_padding
from understudy.engines.models import MODELS, cache_folder

if TYPE_CHECKING:
    from understudy.engines.local.engine import LocalEngine

PLAIN_TOKEN_IDS = range(20, 260)
"""Token ids that stand for text in every tokenizer."""

_SPEED_SETTINGS = {
    "device",
    "dtype",
    "sampler",
    "batching",
    "gradient_checkpointing",
    "trainable_layers",
    "train_embeddings",
    "lora",
    "max_draft_rows",
    "threads",
    "vllm",
}
"""The engine's settings that change the measured speed."""


class BenchSize(Record):
    """The size of a measurement, in tokens."""

    batch_sizes: tuple[int, ...] = (1, 8, 64)
    """Numbers of concurrent replies."""
    prompt_tokens: int = 256
    reply_tokens: int = 32
    train_tokens: int = 1024
    """Tokens of one update."""


SMALL_UPDATE_TOKENS = 16
"""Tokens of a small update. Nearly all of its time is the optimizer step."""
QUICK_SIZE = BenchSize(batch_sizes=(8, 32), prompt_tokens=32, reply_tokens=6, train_tokens=256)
"""A measurement of a few seconds, for a small model on a CPU."""


class SamplingSpeed(Record):
    """Tokens a second at one batch size."""

    batch_size: int
    prefill_tokens_per_second: float
    decode_tokens_per_second: float


class TrainingSpeed(Record):
    """The speed of an update."""

    tokens_per_second: float
    """Tokens a second of the forward and the backward pass together."""
    optimizer_seconds: float
    """Seconds of one optimizer step."""

    def seconds(self, tokens: float) -> float:
        """Return the seconds of one update on this many computed tokens."""
        return self.optimizer_seconds + tokens / self.tokens_per_second


class BenchResult(Record):
    """The measured speed of a model on a machine."""

    model: str
    device: str
    dtype: str
    sampler: str
    sampling: tuple[SamplingSpeed, ...]
    training: dict[Finetune, TrainingSpeed]
    """The training speed of each fine-tuning method."""
    padding_reason: str = ""
    """Why rows are padded, or an empty string if they are packed."""

    def sampling_at(self, rows: int) -> SamplingSpeed:
        """Return the speed at the largest measured batch size of at most `rows`, or the first one if all are larger."""
        measured = [rate for rate in self.sampling if rate.batch_size <= rows]
        return max(measured, key=lambda rate: rate.batch_size, default=self.sampling[0])


async def measure_speed(
    folder: Path, config: LocalEngineConfig, size: BenchSize, finetune_methods: Sequence[Finetune], name: str = ""
) -> BenchResult:
    """Measure sampling with the first fine-tuning method, and updates with each. The model is loaded for each method.

    `name` is the model's name in the result, by default the name of its folder.
    """
    from understudy.engines.local.engine import LocalEngine

    result: BenchResult | None = None
    training: dict[Finetune, TrainingSpeed] = {}
    for way in finetune_methods:
        engine = LocalEngine(folder, config.replace(finetune=way, max_num_seqs=max(size.batch_sizes)))
        with contextlib.closing(engine):
            result = result or await _sampled(engine, name or folder.name, size)
            training[way] = await _trained(engine, size.train_tokens)
    assert result is not None  # finetune_methods is not empty
    return result.replace(training=training)


def save_result(speeds: BenchResult, config: LocalEngineConfig) -> None:
    """Store a result in the cache. Raise ConfigError if the cache cannot be written."""
    file = _file(speeds.model, config)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(speeds.model_dump_json(), encoding="utf-8")
    except OSError as e:
        raise ConfigError(f"cannot write to {file.parent} ({e}); set UNDERSTUDY_CACHE to another folder") from e


def load_result(model: str, config: LocalEngineConfig) -> BenchResult | None:
    """Return the cached result for this config and machine, or None if its fine-tuning method was not measured."""
    try:
        speeds = BenchResult.model_validate_json(_file(model, config).read_bytes())
    except (OSError, ValidationError):
        return None
    return speeds if config.finetune in speeds.training else None


def format_result(speeds: BenchResult) -> str:
    """Return the result as a table."""
    head = f"{speeds.model} on {speeds.device}, {speeds.dtype}, sampler {speeds.sampler}; tokens a second"
    lines = [head, f"  {'replies at once':<16}{'prefill':>12}{'decode':>12}"]
    lines += [
        f"  {rate.batch_size:<16}{rate.prefill_tokens_per_second:>12,.0f}{rate.decode_tokens_per_second:>12,.0f}"
        for rate in speeds.sampling
    ]
    for way, update in speeds.training.items():
        lines.append(
            f"  {f'training, {way}':<28}{update.tokens_per_second:>12,.0f}  "
            f"and {update.optimizer_seconds:.2g} s for each optimizer step"
        )
    if speeds.padding_reason:
        lines.append(describe_padding(speeds.padding_reason))
    return "\n".join(lines)


def _file(model: str, config: LocalEngineConfig) -> Path:
    """Return the path of a cached result. It depends on the model, the CPU cores and the settings that change speed.

    `full` and `lora` share one file; `qlora` has its own.
    """
    settings = config.model_dump_json(include=_SPEED_SETTINGS)
    key = f"{_model_key(model)}\n{settings}\n{os.cpu_count()}\n{os.environ.get('OMP_NUM_THREADS')}"
    key += "\nqlora" if config.finetune == "qlora" else ""
    return cache_folder() / "bench" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def _model_key(model: str) -> str:
    """Return the name of a model. For a folder, return its path and the digest of its config."""
    file = Path(os.path.expanduser(model)) / "config.json"
    if model in MODELS or not file.is_file():
        return model
    return f"{file.resolve()}\n{hashlib.sha256(file.read_bytes()).hexdigest()}"


async def _sampled(engine: "LocalEngine", name: str, size: BenchSize) -> BenchResult:
    return BenchResult(
        model=name,
        device=engine.device,
        dtype=engine.dtype,
        sampler=engine.sampler_choice.sampler,
        padding_reason=engine.sampler_choice.padding_reason,
        sampling=await _rates(engine, size),
        training={},
    )


async def _rates(engine: "LocalEngine", size: BenchSize) -> tuple[SamplingSpeed, ...]:
    await _replies(engine, [_text(8, 0)], 2)  # warm-up: compilation, the start of a server, packed weights
    rates = []
    for rows in size.batch_sizes:
        prompts = [_text(size.prompt_tokens, 1000 * rows + row) for row in range(rows)]
        started = time.perf_counter()
        await _replies(engine, [prompt[:-1] for prompt in prompts], 1)
        filled = time.perf_counter()
        await _replies(engine, prompts, size.reply_tokens)
        done = time.perf_counter()
        prefill = rows * (size.prompt_tokens - 1) / (filled - started)
        rates.append(
            SamplingSpeed(
                batch_size=rows,
                prefill_tokens_per_second=prefill,
                decode_tokens_per_second=rows * size.reply_tokens / (done - filled),
            )
        )
    return tuple(rates)


async def _replies(engine: "LocalEngine", prompts: Sequence[Sequence[int]], count: int) -> None:
    await asyncio.gather(
        *(engine.sample(p, SamplingParams(max_response_tokens=count), row) for row, p in enumerate(prompts))
    )


async def _trained(engine: "LocalEngine", tokens: int) -> TrainingSpeed:
    """Measure the training speed with a small and a large update at learning rate 0, each after one as a warm-up."""
    for warm_up in (tokens, SMALL_UPDATE_TOKENS):  # the first large update is slow, since its memory is new
        await _update(engine, warm_up)
    started = time.perf_counter()
    few = await _update(engine, SMALL_UPDATE_TOKENS)
    between = time.perf_counter()
    many = await _update(engine, tokens)
    small, large = between - started, time.perf_counter() - between
    seconds = max(large - small, large / 2)  # on a busy machine the small update may be slow by chance
    rate = (many - few) / seconds
    return TrainingSpeed(tokens_per_second=rate, optimizer_seconds=max(0.0, small - few / rate))


async def _update(engine: "LocalEngine", tokens: int) -> float:
    from understudy.algorithms.advantages import token_weights
    from understudy.algorithms.batch import Batch

    length = min(tokens, 256)
    half, count = length // 2, tokens // length
    mask = [False] * half + [True] * (length - half)
    batch = Batch.from_rows([_text(length, row) for row in range(count)], [mask] * count)
    weighed = batch.replace(advantages=token_weights(batch.mask, "token_mean"))
    return (await engine.update([weighed], LossConfig(kind="nll"), 0.0))["computed_tokens"]


def _text(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(PLAIN_TOKEN_IDS, k=length)
