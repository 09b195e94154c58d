"""Configuration of an engine: one record for each `engine.kind`. Importing it does not import torch."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Discriminator, Tag

from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.skyrl_config import SkyRLEngineConfig
from understudy.engines.tinker.config import TinkerEngineConfig


def _kind(value: Any) -> str:
    """Return the kind of given settings or of a record. It is local if it is left out."""
    return str(value.get("kind", "local") if isinstance(value, Mapping) else value.kind)


EngineConfig = Annotated[
    Annotated[LocalEngineConfig, Tag("local")]
    | Annotated[TinkerEngineConfig, Tag("tinker")]
    | Annotated[SkyRLEngineConfig, Tag("skyrl")],
    Discriminator(_kind),
]
"""The engine that samples and trains. A record has only the keys that its kind uses."""
