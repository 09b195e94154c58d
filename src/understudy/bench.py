"""How fast this machine samples from a model and trains it: tokens a second of the engine as it is configured.

Prompts are random tokens that nothing shares, so that none is computed for another one; real episodes share much, and
are sampled faster for it. What was measured is kept, for forecasts.
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

from understudy.algorithms.options import Loss
from understudy.engines.base import Sampling
from understudy.engines.local.config import Finetune, LocalConfig
from understudy.errors import ConfigError
from understudy.messages import Message
from understudy.models.folder import cache_folder
from understudy.records import Record
from understudy.tasks import Score
from understudy.trajectory import Trajectory

if TYPE_CHECKING:
    from understudy.engines.local.engine import LocalEngine

ORDINARY = range(20, 260)
"""Ids that every tokenizer has, and that stand for text."""


class Size(Record):
    """How much is measured, in tokens."""

    rows: tuple[int, ...] = (1, 8, 64)
    """Replies that are sampled side by side."""
    prompt: int = 256
    reply: int = 32
    trained: int = 1024
    """Of one update."""


SMALL = 16
"""Tokens of an update that is all but the optimizer's."""
QUICK = Size(rows=(8,), prompt=48, reply=6, trained=256)
"""A second or two of a small model on a CPU."""


class Rate(Record):
    """Tokens a second with so many replies side by side."""

    rows: int
    prefill: float
    decode: float


class Update(Record):
    """What an update takes: so many tokens a second, forward and backward, and the seconds that the optimizer needs."""

    rate: float
    optimizer: float

    def seconds(self, tokens: float) -> float:
        """Of one update on so many computed tokens."""
        return self.optimizer + tokens / self.rate


class Speeds(Record):
    """What a machine does with a model."""

    model: str
    device: str
    dtype: str
    sampler: str
    sampling: tuple[Rate, ...]
    training: dict[Finetune, Update]
    """By way of fine-tuning."""

    def at(self, rows: int) -> Rate:
        """The rate measured with so many rows, or the next fewer."""
        return max((rate for rate in self.sampling if rate.rows <= rows), key=_rows, default=self.sampling[0])


def measure(folder: Path, config: LocalConfig, size: Size, ways: Sequence[Finetune], name: str = "") -> Speeds:
    """Measure each way of fine-tuning, and sampling with the first of them. The folder's model is loaded for each."""
    from understudy.engines.local.engine import LocalEngine

    found: Speeds | None = None
    training: dict[Finetune, Update] = {}
    for way in ways:
        engine = LocalEngine(folder, config.replace(finetune=way, sequences=max(size.rows)))
        with contextlib.closing(engine):
            found = found or _sampled(engine, name or folder.name, size)
            training[way] = asyncio.run(_trained(engine, size.trained))
    assert found is not None  # there is a way
    return found.replace(training=training)


def keep(speeds: Speeds, config: LocalConfig) -> None:
    """Remember what was measured with a config. Raises ConfigError if the cache cannot be written."""
    file = _file(speeds.model, config)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(speeds.model_dump_json(), encoding="utf-8")
    except OSError as e:
        raise ConfigError(f"cannot write to {file.parent} ({e}); set UNDERSTUDY_CACHE to another folder") from e


def kept(model: str, config: LocalConfig) -> Speeds | None:
    """What was measured with this config on this machine, if it was, and this way of fine-tuning with it."""
    try:
        speeds = Speeds.model_validate_json(_file(model, config).read_bytes())
    except (OSError, ValidationError):
        return None
    return speeds if config.finetune in speeds.training else None


def as_text(speeds: Speeds) -> str:
    """A table."""
    head = f"{speeds.model} on {speeds.device}, {speeds.dtype}, sampled by {speeds.sampler}; tokens a second"
    lines = [head, f"  {'replies at once':<16}{'prefill':>12}{'decode':>12}"]
    lines += [f"  {rate.rows:<16}{rate.prefill:>12,.0f}{rate.decode:>12,.0f}" for rate in speeds.sampling]
    for way, update in speeds.training.items():
        lines.append(f"  {f'training, {way}':<28}{update.rate:>12,.0f}  and {update.optimizer:.2g} s a step")
    return "\n".join(lines)


def _rows(rate: Rate) -> int:
    return rate.rows


def _file(model: str, config: LocalConfig) -> Path:
    """Where a measurement is kept: by the model, the processors, and the settings that its speed hangs on.

    Full weights and adapters are measured together, weights of 4 bits alone.
    """
    settings = config.model_dump_json(include={"device", "dtype", "sampler", "checkpointing", "threads", "vllm"})
    key = f"{model}\n{settings}\n{os.cpu_count()}\n{os.environ.get('OMP_NUM_THREADS')}"
    key += "\nqlora" if config.finetune == "qlora" else ""
    return cache_folder() / "bench" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def _sampled(engine: "LocalEngine", name: str, size: Size) -> Speeds:
    return Speeds(
        model=name,
        device=engine.device,
        dtype=engine.dtype,
        sampler=engine.choice.sampler,
        sampling=asyncio.run(_rates(engine, size)),
        training={},
    )


async def _rates(engine: "LocalEngine", size: Size) -> tuple[Rate, ...]:
    await _replies(engine, [_text(8, 0)], 2)  # what is done once: compiling, starting, arranging weights
    rates = []
    for rows in size.rows:
        prompts = [_text(size.prompt, 1000 * rows + row) for row in range(rows)]
        started = time.perf_counter()
        await _replies(engine, [prompt[:-1] for prompt in prompts], 1)
        filled = time.perf_counter()
        await _replies(engine, prompts, size.reply)
        done = time.perf_counter()
        prefill = rows * (size.prompt - 1) / (filled - started)
        rates.append(Rate(rows=rows, prefill=prefill, decode=rows * size.reply / (done - filled)))
    return tuple(rates)


async def _replies(engine: "LocalEngine", prompts: Sequence[Sequence[int]], count: int) -> None:
    await asyncio.gather(*(engine.sample(p, Sampling(max_tokens=count), row) for row, p in enumerate(prompts)))


async def _trained(engine: "LocalEngine", tokens: int) -> Update:
    """From updates that move nothing: one that is not counted, a small one, and a large one."""
    await _update(engine, SMALL)
    started = time.perf_counter()
    few = await _update(engine, SMALL)
    between = time.perf_counter()
    many = await _update(engine, tokens)
    small, large = between - started, time.perf_counter() - between
    seconds = max(large - small, large / 2)  # on a busy machine the small one may have been slow by chance
    rate = (many - few) / seconds
    return Update(rate=rate, optimizer=max(0.0, small - few / rate))


async def _update(engine: "LocalEngine", tokens: int) -> float:
    from understudy.algorithms.advantages import token_weights
    from understudy.batch import collate

    length = min(tokens, 256)
    batch = collate([_episode(length, row) for row in range(tokens // length)])
    weighed = batch.with_(advantages=token_weights(batch.mask, "token"))
    return (await engine.update([weighed], Loss(kind="nll"), 0.0))["computed_tokens"]


def _episode(length: int, seed: int) -> Trajectory:
    """A prompt and a reply of the same length."""
    text, episode = _text(length, seed), Trajectory("", score=Score(reward=1.0))
    episode.observe([], text[: length // 2])
    episode.act(Message(role="assistant"), text[length // 2 :], [0.0] * (length - length // 2))
    return episode


def _text(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(ORDINARY, k=length)
