"""Secrets: what `${NAME}` in a server's settings stands for, and a text without it."""

import json
import os
import re
from urllib.parse import quote

from understudy.errors import ConfigError

SHORTEST = 6
"""Characters of a value: a shorter one stands by chance in what a server says, where it would be replaced as well."""
_REFERENCE = re.compile(r"\$\{(\w+)\}")


class Secrets:
    """The values that one server was given out of the environment. They are taken out of all that comes from it."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def fill(self, text: str) -> str:
        """The text with each `${NAME}` replaced by the environment's value, which is a secret from now on."""
        return _REFERENCE.sub(lambda found: self._value(found[1]), text)

    def hide(self, text: str) -> str:
        """The text with each secret, plain or as it stands in an address or in JSON, replaced by its name."""
        for value in sorted(self._names, key=len, reverse=True):
            text = text.replace(value, f"[{self._names[value]}]")
        return text

    def _value(self, name: str) -> str:
        value = os.environ.get(name)
        if not value:
            raise ConfigError(f"the environment has no {name!r}, which an MCP server's settings name; set it first")
        if len(value) < SHORTEST:
            raise ConfigError(
                f"{name} in the environment has {len(value)} characters, and what an MCP server's settings take from "
                f"there is a secret, which has at least {SHORTEST}; write what is none into the settings"
            )
        for form in {value, quote(value, safe=""), json.dumps(value)[1:-1]}:
            self._names[form] = name
        return value
