"""Keys out of a `.env` file, for those that are not in the environment already.

    # comment
    OPENAI_API_KEY=sk-…
    export WANDB_API_KEY='…'      # quotes are taken off; what follows a space and a # is a comment

There is no expansion of variables and no value over several lines. Values appear in no text of ours.
"""

import os
import re
from pathlib import Path

from understudy.errors import ConfigError

NAME = ".env"
_LINE = re.compile(
    r"""\s*(?:export\s+)?(?P<name>[A-Za-z_]\w*)\s*=\s*
    (?:"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<plain>[^\s"'#].*?)?)(?:\s+\#.*|\s*)""",
    re.VERBOSE,
)


def load(path: Path | None = None) -> list[str]:
    """Put a file's variables into the environment, but for those it has; returns the names of those that were put.

    Without a path it is `.env` in the working folder, where there is one. A line that cannot be read is a
    `ConfigError`, as is a path without a file.
    """
    if path is None and not Path(NAME).is_file():
        return []
    path = path or Path(NAME)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"--env-file {path} cannot be read: {e.strerror if isinstance(e, OSError) else e}") from e
    new = {name: value for name, value in _parse(text, path).items() if name not in os.environ}
    os.environ.update(new)
    return list(new)


def _parse(text: str, path: Path) -> dict[str, str]:
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if not match:
            what = "it is not NAME=value, or its quotes do not end; # begins a comment"
            raise ConfigError(f"{path}, line {number}: {what}")
        found[match["name"]] = next((v for v in match.group("double", "single", "plain") if v is not None), "")
    return found
