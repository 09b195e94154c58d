"""Secrets: the values of `${NAME}` in a server's settings, which are removed from all texts of the server."""

import os
import re
from collections.abc import Iterable

from understudy.core.errors import ConfigError
from understudy.core.secrets import MIN_SECRET_LENGTH, mask_values

_REFERENCE = re.compile(r"\$\{(\w+)\}")


def missing_variables(texts: Iterable[str]) -> list[str]:
    """Return the names of the environment variables that the texts need and that are not set."""
    names = dict.fromkeys(name for text in texts for name in _REFERENCE.findall(text))
    return [name for name in names if not os.environ.get(name)]


class Secrets:
    """The values from the environment that one server was given. They are removed from everything that it returns."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}

    def expand(self, text: str) -> str:
        """Replace each `${NAME}` by the environment's value and remember it as a secret."""
        return _REFERENCE.sub(lambda found: self._value(found[1]), text)

    def redact(self, text: str) -> str:
        """Replace each secret by its name, in each form that `mask_values` finds."""
        return mask_values(text, self._shown)

    def _value(self, name: str) -> str:
        value = os.environ.get(name)
        if not value:
            raise ConfigError(f"the environment variable {name!r} of an MCP server's settings is not set")
        if len(value) < MIN_SECRET_LENGTH:
            raise ConfigError(
                f"the environment variable {name} of an MCP server's settings has {len(value)} characters; values from "
                f"the environment are secrets of at least {MIN_SECRET_LENGTH}; write other values into the settings"
            )
        self._shown[value] = f"[{name}]"
        return value
