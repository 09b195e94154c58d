"""RunLibrary: the runs and evaluations to show, each with a key for the addresses of the page."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from understudy.core.errors import ConfigError
from understudy.evaluation.reports.files import is_evaluation
from understudy.runs.run import is_run_folder

_GIVE = (
    "pass a run folder, an evaluation (a folder or a JSON file), a folder that contains runs or evaluations, or a log "
    "of serve --log"
)


class RunLibrary:
    """The runs and evaluations under some paths.

    A path is a run folder, an evaluation (its folder, finished or not, or a JSON file), or a folder that directly
    contains runs or evaluations. Every call scans the paths again, so new runs appear without a restart. The
    constructor raises ConfigError for any other path.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(dict.fromkeys(path.resolve() for path in paths))
        self._keys: dict[Path, str] = {}
        for path in self._paths:
            if not path.exists():
                raise ConfigError(f"{path} does not exist; {_GIVE}")
            if not (is_run_folder(path) or is_evaluation(path) or any(_inside(path))):
                if path.is_dir() and not any(path.iterdir()):
                    raise ConfigError(f"{path} is an empty folder; `understudy train` writes runs into runs; {_GIVE}")
                raise ConfigError(
                    f"{path} is not a run (it has no config.toml), not an evaluation, and contains neither; {_GIVE}"
                )

    def runs(self) -> dict[str, Path]:
        """Return the run folders by key."""
        return {self._key(path): path for path in self._found() if is_run_folder(path)}

    def evaluations(self) -> dict[str, Path]:
        """Return the paths of the evaluations outside runs, by key."""
        return {self._key(path): path for path in self._found() if is_evaluation(path)}

    def run(self, key: str) -> Path:
        """Return the folder of a run. Raise ConfigError if no run has this key."""
        return _named("run", self.runs(), key)

    def evaluation(self, key: str) -> Path:
        """Return the path of an evaluation. Raise ConfigError if no evaluation has this key."""
        return _named("evaluation", self.evaluations(), key)

    def _found(self) -> Iterator[Path]:
        for path in self._paths:
            if is_run_folder(path) or is_evaluation(path):
                yield path
            else:
                yield from _inside(path)

    def _key(self, path: Path) -> str:
        """Return the key of a path: its name, preceded by the names of parent folders if the name is taken. A key
        never changes.
        """
        if path not in self._keys:
            parts = path.with_suffix("").parts if path.suffix == ".json" and path.is_file() else path.parts
            names = [" ".join(parts[-length:]) for length in range(1, len(parts))]
            # A name that is not UTF-8 has no address in a browser.
            names = [name.encode(errors="replace").decode() for name in (*names, str(path))]
            self._keys[path] = next((name for name in names if name not in self._keys.values()), names[-1])
        return self._keys[path]


def _inside(folder: Path) -> Iterator[Path]:
    """Yield the runs and evaluations directly in a folder."""
    if folder.is_dir():
        yield from (path for path in sorted(folder.iterdir()) if is_run_folder(path) or is_evaluation(path))


def _named(what: str, found: dict[str, Path], key: str) -> Path:
    if key not in found:
        raise ConfigError(f"there is no {what} {key!r}; the {what}s are: {', '.join(found) or 'none'}")
    return found[key]
