"""Chooses a model's chat format, and the control tokens that are trained with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from understudy.core.errors import ConfigError
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.models.untrained_tokens import find_untrained
from understudy.formats import ChatFormat, FormatTokenizer, chat_format_from_config
from understudy.formats.control_tokens import control_tokens
from understudy.runs.config import TrainConfig


@dataclass(frozen=True)
class ModelFormat:
    """The chat format of a model for a config."""

    format: ChatFormat
    trained_tokens: Sequence[int] = ()
    """Tokens whose rows in embeddings and output head are trained (`engine.train_control_tokens`)."""
    notes: Sequence[str] = ()
    """A line that names untrained control tokens, and what is done about them."""


def choose_format(folder: Path, config: TrainConfig, today: date | None = None) -> ModelFormat:
    """Return the chat format of the model in `folder`. This imports torch.

    If the format has untrained control tokens and the engine cannot train their rows, calls are text, unless
    `format.tool_format` is set or the text needs untrained tokens too. Raise ConfigError as `chat_format_from_config`
    does.
    """
    format, engine = chat_format_from_config(folder, config.format, today), config.engine
    vocabulary = FormatTokenizer.load(folder / "tokenizer.json")
    used = control_tokens(format, vocabulary)
    untrained = find_untrained(folder, used.texts, used.sampled)
    line = f"control tokens that the model was never trained on: {' '.join(used.texts[i] for i in sorted(untrained))}; "
    if isinstance(engine, LocalEngineConfig):
        trained = {"auto": sorted(untrained), "all": list(used.texts), "none": []}[engine.train_control_tokens]
        if engine.finetune == "full" and engine.train_embeddings:
            trained, action = [], "all embeddings are trained"
        elif trained:
            action = "their rows in embeddings and output head are trained too (engine.train_control_tokens)"
        else:
            action = "no step can tell them apart (engine.train_control_tokens=none); set it to auto"
        return ModelFormat(format, trained, [line + action] if untrained else [])
    if not untrained:
        return ModelFormat(format)
    action = f"engine.kind={engine.kind} cannot train their rows"
    text = None if config.format.tool_format else _text_format(folder, config, today)
    left = control_tokens(text, vocabulary) if text else used
    if text is None or find_untrained(folder, left.texts, left.sampled):
        return ModelFormat(format, notes=[f"{line}{action}; train this model with engine.kind=local"])
    return ModelFormat(text, notes=[f"{line}{action}, so calls are text, as with format.tool_format=json"])


def _text_format(folder: Path, config: TrainConfig, today: date | None) -> ChatFormat | None:
    """Return the format in which calls are text, or None if the model's template does not allow it."""
    try:
        return chat_format_from_config(folder, config.format.replace(tool_format="json"), today)
    except ConfigError:
        return None
