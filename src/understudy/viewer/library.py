"""What is looked at: runs and evaluations, each by a key that stands in addresses of the page."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from understudy.errors import ConfigError
from understudy.outcome import FILE

_GIVE = "give a run's folder, an evaluation's JSON, or a folder of such"


class Library:
    """Runs and evaluations under some paths. It is read anew each time, so that what comes while one looks is there.

    A path is a run's folder, an evaluation's JSON, or a folder of such; any other is a ConfigError.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(dict.fromkeys(path.resolve() for path in paths))
        self._keys: dict[Path, str] = {}
        for path in self._paths:
            if not path.exists():
                raise ConfigError(f"{path} is not a run (it is not there); {_GIVE}")
            if not (is_run(path) or is_evaluation(path) or any(_inside(path))):
                raise ConfigError(f"{path} is not a run (it has no config.toml), and no folder of such; {_GIVE}")

    def runs(self) -> dict[str, Path]:
        """The folders of the runs, by key."""
        return {self._key(path): path for path in self._found() if is_run(path)}

    def evaluations(self) -> dict[str, Path]:
        """The files of the evaluations that belong to no run, by key."""
        return {self._key(path): path for path in self._found() if is_evaluation(path)}

    def run(self, key: str) -> Path:
        """The folder of a run; a ConfigError where there is none of that key."""
        return _named("run", self.runs(), key)

    def evaluation(self, key: str) -> Path:
        """The file of an evaluation; a ConfigError where there is none of that key."""
        return _named("evaluation", self.evaluations(), key)

    def _found(self) -> Iterator[Path]:
        for path in self._paths:
            if is_run(path) or is_evaluation(path):
                yield path
            else:
                yield from _inside(path)

    def _key(self, path: Path) -> str:
        """Its name, with its folder's where another has that name; a key never changes."""
        if path not in self._keys:
            parts = path.with_suffix("").parts if is_evaluation(path) else path.parts
            names = (" ".join(parts[-length:]) for length in range(1, len(parts)))
            self._keys[path] = next((name for name in names if name not in self._keys.values()), str(path))
        return self._keys[path]


def is_run(path: Path) -> bool:
    """Whether this is a run's folder."""
    return (path / "config.toml").is_file()


def is_evaluation(path: Path) -> bool:
    """Whether this may be an evaluation: reading it says more."""
    return (path / FILE).is_file() or (path.is_file() and path.suffix == ".json")


def _inside(folder: Path) -> Iterator[Path]:
    """The runs and evaluations right in a folder."""
    if folder.is_dir():
        yield from (path for path in sorted(folder.iterdir()) if is_run(path) or is_evaluation(path))


def _named(what: str, found: dict[str, Path], key: str) -> Path:
    if key not in found:
        raise ConfigError(f"there is no {what} {key!r}; there are: {', '.join(found) or 'none'}")
    return found[key]
