"""API keys from a `.env` file, for variables that the environment does not have.

python-dotenv parses the file. `$NAME` is not expanded: a key may hold a `$`. Errors never contain a value.
"""

import io
import os
from pathlib import Path

from understudy.core.errors import ConfigError

ENV_FILE = ".env"


def load_env_file(path: Path | None = None) -> list[str]:
    """Add a file's variables to the environment and return their names. Variables that exist keep their values.

    The default is `.env` in the working folder, if there is one. Raise ConfigError if the file or one of its lines
    cannot be read; then no variable is added.
    """
    if path is None and not Path(ENV_FILE).is_file():
        return []
    path = path or Path(ENV_FILE)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"--env-file {path} cannot be read: {e.strerror if isinstance(e, OSError) else e}") from e
    new = {name: value for name, value in _parse(text, path).items() if name not in os.environ}
    os.environ.update(new)
    return list(new)


def _parse(text: str, path: Path) -> dict[str, str]:
    from dotenv.parser import parse_stream

    found = {}
    for binding in parse_stream(io.StringIO(text)):
        if binding.error or (binding.key is not None and binding.value is None):
            raise ConfigError(f"{path}, line {binding.original.line}: not NAME=value, or a quote is not closed")
        if binding.key is not None and binding.value is not None:
            found[binding.key] = binding.value
    return found
