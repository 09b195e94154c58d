"""Token limits of a preset for a model with another tokenizer or chat template than the one it was made for."""

import itertools

from understudy.core.errors import ConfigError, TaskError
from understudy.core.event_loop import run_blocking
from understudy.engines.models import find_model
from understudy.evaluation.evaluate import NO_LIMITS, play_demonstrations
from understudy.runs.agents import missing_package_error
from understudy.runs.config import TrainConfig, load_config
from understudy.runs.model_format import choose_format
from understudy.runs.presets import MODEL_PARAMETERS

NUM_MEASURED_TASKS = 64
"""Number of the first train tasks whose gold episodes are measured."""
EPISODE_STEP, REPLY_STEP = 64, 16
"""Raised limits are multiples of these."""


def fit_token_limits(config: TrainConfig) -> tuple[TrainConfig, str]:
    """Return the config with limits that fit gold episodes in tokens of its model, and a line with them.

    Limits that a preset made for another model sets are raised to ten ninths of the longest gold episode and
    of the longest gold reply. Other limits, and those that are high enough, stay; the line is then "". So do all if the
    source's gold episodes fail: the checks of a run say why. Raise ConfigError if the model or the source cannot be
    loaded.
    """
    is_preset, is_preset_reply = _find_foreign_limits(config)
    if not is_preset and not is_preset_reply:
        return config, ""
    limits, sampling = config.limits, config.sampling
    source = config.open_source()
    try:
        format = choose_format(find_model(config.model), config).format
    except ModuleNotFoundError as e:
        raise missing_package_error(e, "a model") from e
    tasks = [
        task for task in itertools.islice(source.stream("train", config.seed), NUM_MEASURED_TASKS) if task.gold_turns
    ]
    try:
        gold = run_blocking(play_demonstrations(source, tasks, format, NO_LIMITS, config.seed))
    except (ConfigError, TaskError):
        return config, ""
    longest = max((len(episode.tokens) for episode in gold), default=0)
    reply = max((end - start for episode in gold for start, end in episode.reply_spans()), default=0)
    lines = []
    if is_preset and (needed := _with_margin(longest, EPISODE_STEP)) > limits.max_episode_tokens:
        lines.append(f"limits.max_episode_tokens = {needed} (the preset has {limits.max_episode_tokens})")
        limits = limits.replace(max_episode_tokens=needed)
    if is_preset_reply and (needed := _with_margin(reply, REPLY_STEP)) > sampling.max_response_tokens:
        lines.append(f"sampling.max_response_tokens = {needed} (the preset has {sampling.max_response_tokens})")
        sampling = sampling.replace(max_response_tokens=needed)
    found = f"gold episodes have up to {longest} tokens of this model, and their replies up to {reply}"
    line = f"{found}: {', '.join(lines)}" if lines else ""
    return config.replace(limits=limits, sampling=sampling), line


def has_foreign_limits(config: TrainConfig) -> bool:
    """Return whether a limit of the config comes from a preset that was made for another model."""
    return any(_find_foreign_limits(config))


def _find_foreign_limits(config: TrainConfig) -> tuple[bool, bool]:
    """Return whether the limit of episodes and that of replies come from a preset made for another model."""
    made = [preset for preset in map(load_config, config.presets) if preset.model in MODEL_PARAMETERS]
    if not made or config.model == made[-1].model:
        return False, False
    return (
        config.limits.max_episode_tokens == made[-1].limits.max_episode_tokens,
        config.sampling.max_response_tokens == made[-1].sampling.max_response_tokens,
    )


def _with_margin(longest: int, step: int) -> int:
    """Return ten ninths of `longest`, rounded up to a multiple of `step`.

    It is the least margin of a preset: `retail_quick` allows 640 tokens, and its longest gold episode has 576.
    """
    return -(-longest * 10 // (9 * step)) * step
