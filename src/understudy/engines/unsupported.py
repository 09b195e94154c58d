"""Settings that an engine cannot honour."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from understudy.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class UnsupportedSetting:
    """A setting that an engine cannot honour, and the reason with what to do."""

    key: str
    value: Any
    reason: str

    def __str__(self) -> str:
        return f"{self.key} = {self.value!r}: {self.reason}"


def raise_unsupported(settings: Iterable[UnsupportedSetting]) -> None:
    """Raise ConfigError if there are any settings. Its one line names all of them."""
    if unsupported := list(settings):
        raise ConfigError("; ".join(map(str, unsupported)))
