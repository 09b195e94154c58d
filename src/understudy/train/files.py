"""Files that a run learns from: it goes on with what it was begun with."""

import hashlib
from pathlib import Path

from understudy.errors import ConfigError
from understudy.run import Run


def refuse_changed(run: Run, path: Path, name: str) -> None:
    """Remember the file's digest in the run's folder under this name, or compare it; another one is a ConfigError."""
    digest, known = hashlib.sha256(path.read_bytes()).hexdigest(), run.folder / f"{name}.sha256"
    if not known.exists():
        run.write(known.name, digest + "\n")
    elif known.read_text(encoding="utf-8").strip() != digest:
        raise ConfigError(f"{path} has changed since {run.folder} was begun with it; bring it back, or begin anew")
