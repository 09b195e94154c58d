"""Resumption: what of its config a run may go on with otherwise, and what its evaluations are then called."""

import re
from pathlib import Path

from understudy.config import TrainConfig
from understudy.errors import ConfigError
from understudy.settings import differences

OF_AN_ENDPOINT = (
    "base_url",
    "key_variable",
    "timeout",
    "retries",
    "backoff",
    "concurrency",
    "prompt_price",
    "completion_price",
    "cache",
)
"""Where a model is that is asked, how patiently, and what it costs."""
FREE = (
    "steps",
    "save_every",
    "keep",
    "cost_cap",
    "max_fault_rate",
    "health.",
    "certify.halt",
    "certify.slack",
    "trackers",
    "tracking.",
    "judge.",
    *(f"{chat}.{key}" for chat in ("chat", "user.chat") for key in OF_AN_ENDPOINT),
    "engine.tokens_per_microbatch",
    "engine.checkpointing",
    "engine.sharding",
    "engine.sequences",
    "engine.rows",
    "engine.threads",
    "engine.sampler",
    "engine.vllm.",
    "engine.tinker.base_url",
    "engine.tinker.patience",
    "engine.tinker.timeout",
    "skyrl.trainer.max_tokens_per_microbatch",
    "skyrl.trainer.micro_",
    "skyrl.generator.inference_engine.",
)
"""What a config's keys begin with that may be others when a run is resumed: those that change none of its numbers;
those that say how much memory it takes, when it is saved, or where a server is, which change them by rounding alone;
who samples, which draws other replies from the same odds; and for how long it is trained (see `refuse_other`)."""
TRAINED = "trained"
"""What the weights after the last step of reinforcement are called."""
_REINFORCED = re.compile(rf"(?P<step>\d{{6,}}) (?:{TRAINED}|step \d+)(?P<rest>(?: .*)?\.jsonl?)")


def refuse_other(folder: Path, own: TrainConfig, config: TrainConfig, done: int) -> None:
    """A `ConfigError` where `config` differs from a run's own in what it keeps; `done` are its steps so far.

    The number of steps of reinforcement is free where no step depends on it, and where not more of them are done.
    """
    changed = [text for text in differences(own, config) if not text.startswith(FREE)]
    if changed:
        without = " preferences.steps=0" if own.preferences.steps else ""
        raise ConfigError(
            f"{folder} was started with another config (its own, and the one given): {'; '.join(changed)}. It keeps "
            f"these; a new run takes others, from its weights: understudy export {folder} --out MODEL, then "
            f"understudy train {folder} KEY=VALUE model=MODEL sft.steps=0{without}"
        )
    if config.steps != own.steps and (why := _settled(config, done - config.prior)):
        raise ConfigError(f"{folder} was started with steps = {own.steps}, and cannot have {config.steps}: {why}")


def reinforced(config: TrainConfig, step: int) -> str:
    """What the weights after a step of reinforcement are called."""
    return TRAINED if step == config.total else f"step {step}"


def rename_evaluations(folder: Path, config: TrainConfig) -> None:
    """Call a run's evaluations, and their episodes, what they are where it has as many steps as `config` says."""
    for path in [path for name in ("evaluations", "tests", "episodes") for path in (folder / name).glob("*.json*")]:
        match = _REINFORCED.fullmatch(path.name)
        if match and (step := int(match["step"])) > config.prior:
            path.replace(path.with_name(f"{match['step']} {reinforced(config, step)}{match['rest']}"))


def _settled(config: TrainConfig, done: int) -> str | None:
    """Why the number of steps cannot be another one, if it cannot."""
    if config.engine.kind == "skyrl":
        return "SkyRL lays out its data for all of them at the start"
    if config.curriculum.difficulty:
        return "curriculum.difficulty lets tasks in by the share of them that is done"
    if config.algorithm.decay < 1.0:
        return "with algorithm.decay the learning rate of each follows from how many there are"
    return f"{done} are done" if done > config.steps else None
