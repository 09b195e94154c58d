"""TokenDecoder: converts a run's tokens to text, without the model's weights and without a network."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from understudy.core.errors import ConfigError
from understudy.engines.models import find_local_model
from understudy.formats import ChatFormat, FormatConfig, FormatTokenizer, chat_format_from_config
from understudy.runs.config import TrainConfig


@dataclass(frozen=True, slots=True)
class TokenDecoder:
    """A model's tokenizer, and the chat format of its conversations."""

    vocabulary: FormatTokenizer
    format: ChatFormat


def load_decoder(config: TrainConfig, run: Path) -> TokenDecoder | str:
    """Return the decoder of a run's model, or a text that says why this machine has none.

    The tokenizer comes from the run's folder `model` if it is there, otherwise from the local model that the config
    names.
    """
    own = run / "model"
    try:
        folder = own if (own / "tokenizer.json").is_file() else find_local_model(config.model)
        return _load(folder, config.format)
    except ConfigError as e:
        return f"The text of the tokens is not shown: {e}"


@lru_cache(maxsize=8)
def _load(folder: Path, format: FormatConfig) -> TokenDecoder:
    return TokenDecoder(FormatTokenizer.load(folder / "tokenizer.json"), chat_format_from_config(folder, format))
