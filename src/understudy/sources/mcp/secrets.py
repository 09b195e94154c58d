"""Secrets: the values of `${NAME}` in a server's settings, which are removed from all texts of the server."""

import json
import os
import re
from urllib.parse import quote

from understudy.core.errors import ConfigError
from understudy.core.secrets import MIN_SECRET_LENGTH

_REFERENCE = re.compile(r"\$\{(\w+)\}")


class Secrets:
    """The values from the environment that one server was given. They are removed from everything that it returns."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def expand(self, text: str) -> str:
        """Replace each `${NAME}` by the environment's value and remember it as a secret."""
        return _REFERENCE.sub(lambda found: self._value(found[1]), text)

    def redact(self, text: str) -> str:
        """Replace each secret (plain, URL-encoded or JSON-encoded) by its name."""
        for value in sorted(self._names, key=len, reverse=True):
            text = text.replace(value, f"[{self._names[value]}]")
        return text

    def _value(self, name: str) -> str:
        value = os.environ.get(name)
        if not value:
            raise ConfigError(f"the environment variable {name!r} of an MCP server's settings is not set")
        if len(value) < MIN_SECRET_LENGTH:
            raise ConfigError(
                f"the environment variable {name} of an MCP server's settings has {len(value)} characters; values from "
                f"the environment are secrets of at least {MIN_SECRET_LENGTH}; write other values into the settings"
            )
        for form in {value, quote(value, safe=""), json.dumps(value)[1:-1]}:
            self._names[form] = name
        return value
