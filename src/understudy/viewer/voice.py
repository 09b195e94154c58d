"""Voice: what turns a run's tokens into text again, without its weights and without a network."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from understudy import formats
from understudy.config import TrainConfig
from understudy.errors import ConfigError
from understudy.formats import ChatFormat, FormatConfig, Vocabulary
from understudy.models import local_model


@dataclass(frozen=True, slots=True)
class Voice:
    """A model's vocabulary, and the format that its conversations are written in."""

    vocabulary: Vocabulary
    format: ChatFormat


def voice_of(config: TrainConfig, run: Path) -> Voice | str:
    """The voice of a run's model, or why there is none on this machine."""
    own = run / "model"
    try:
        folder = own if (own / "tokenizer.json").is_file() else local_model(config.model)
        return _voice(folder, config.format)
    except ConfigError as e:
        return f"texts of tokens are not shown: {e}"


@lru_cache(maxsize=8)
def _voice(folder: Path, format: FormatConfig) -> Voice:
    return Voice(Vocabulary.load(folder / "tokenizer.json"), formats.configured(folder, format))
