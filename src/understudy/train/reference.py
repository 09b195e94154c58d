"""Checks of the reference that a KL penalty or distillation compares the model with."""

from pathlib import Path

from understudy.core.errors import ConfigError
from understudy.engines.models import find_model
from understudy.engines.reference_config import FROZEN_REFERENCE
from understudy.formats.tokenizer import first_token_difference
from understudy.runs.config import TrainConfig


def validate_reference(config: TrainConfig, folder: Path) -> None:
    """Raise ConfigError for a reference without effect, and for a teacher with another vocabulary than the model, or
    with a shorter context than the episodes.

    `folder` is the folder of the model.
    """
    algorithm, reference = config.algorithm, config.algorithm.reference
    if not algorithm.kl_coef and reference != FROZEN_REFERENCE:
        raise ConfigError(
            f"algorithm.reference.kind = {reference.kind!r}: a reference has no effect with algorithm.kl_coef = 0; set "
            "both or neither"
        )
    if not algorithm.kl_coef and algorithm.advantage_estimator == "zero":
        raise ConfigError(
            "algorithm.advantage_estimator = 'zero': all advantages are 0, and so is algorithm.kl_coef; to train "
            "towards a teacher, set algorithm.kl_coef above 0 and algorithm.reference.kind=model"
        )
    if reference.model:
        teacher = find_model(reference.model)
        if difference := first_token_difference(folder / "tokenizer.json", teacher / "tokenizer.json"):
            raise ConfigError(
                f"algorithm.reference.model = {reference.model!r} has another vocabulary: {difference}; "
                "choose a teacher of the model's own family"
            )
        if config.engine.kind == "local":
            _validate_teacher_context(config, folder, teacher)


def _validate_teacher_context(config: TrainConfig, folder: Path, teacher: Path) -> None:
    """Raise ConfigError if an episode can be longer than the context of the teacher, in which it is compared."""
    from understudy.engines.local.model import read_context_length

    batching, reply = config.engine.export_engine_config.batching, config.sampling.max_response_tokens
    context = read_context_length(teacher, batching)
    longest = min(read_context_length(folder, batching), config.limits.max_episode_tokens + reply)
    if longest > context:
        raise ConfigError(
            f"limits.max_episode_tokens = {config.limits.max_episode_tokens}: with a last reply of {reply} tokens an "
            f"episode can have {longest} tokens, more than the context of {context} of algorithm.reference.model = "
            f"{config.algorithm.reference.model!r}; set limits.max_episode_tokens to at most {max(1, context - reply)}"
        )
