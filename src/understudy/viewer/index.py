"""A SQLite index of a run's stored episodes, for fast filters, search, sorting and paging.

The index is in the cache folder and can be deleted at any time. It stores the columns of the page's episode table and
the words of each conversation. System prompts are not indexed, because all episodes share them. The files of the
newest steps are indexed first. A file that has grown is read from where indexing stopped. If a file was replaced, its
old episodes are removed and the file is indexed again.

The causes of failures are found in a thread of their own, because this may replay episodes and start servers.
"""

import contextlib
import hashlib
import json
import math
import sqlite3
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pydantic import TypeAdapter, ValidationError

from understudy.core.errors import ConfigError
from understudy.core.trajectory import Trajectory
from understudy.engines.models import cache_folder
from understudy.evaluation.explain_stored import find_stored_failures
from understudy.evaluation.failures.explain import is_failed
from understudy.evaluation.stored_episodes import open_stored_episodes
from understudy.runs.run import episode_files

INDEX_VERSION = 2
_FILE_ERRORS = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL)
_BATCH = 32  # episodes between two checks of the time limit
_TAIL = 1024  # bytes before the indexed end; they show whether a file that has grown is still the same file
_SCHEMA = """
create table files (step integer primary key, size integer, written integer, done integer, lines integer, tail blob);
create table damaged (step integer, number integer, reason text);
create table episodes (
    id integer primary key autoincrement, step integer, number integer,
    task text, domain text, family text, difficulty text, outcome text, reward real, stop text, fault text,
    turns integer, tokens integer, seconds real,
    cause text  -- null until it is known, empty if there is none
);
create index by_step on episodes (step, number);
create index unexplained on episodes (step) where cause is null;
create table marks (kind text, name text, episode integer, primary key (kind, name, episode)) without rowid;
create index by_episode on marks (episode);
create virtual table texts using fts5 (text, content='', tokenize="unicode61 remove_diacritics 2");
"""
_NEXT_UNEXPLAINED = "select step from episodes where cause is null order by step desc limit 1"
_UNEXPLAINED = f"select number from episodes where cause is null and step = ? limit {_BATCH}"
_EPISODE = TypeAdapter(Trajectory)
_NORMAL_REPLIES = {"tool_calls", "text"}


class IndexProgress(NamedTuple):
    """Progress of the index: indexed bytes, total bytes of the files, and one message for each damaged line."""

    done_bytes: int
    total_bytes: int
    damaged: tuple[str, ...]


class EpisodeIndex:
    """The index of one run's stored episodes. Any thread can query it; one thread at a time updates it.

    The constructor creates the index file, and replaces one that is damaged or has another version. It raises
    ConfigError if the file cannot be written.
    """

    def __init__(self, folder: Path, path: Path | None = None) -> None:
        self.folder = folder
        self.path = path or _place(folder)
        self._taking_up = threading.Lock()
        self._explaining: threading.Thread | None = None
        self._prepare()

    def refresh(self, seconds: float = math.inf) -> IndexProgress:
        """Index new episodes for about `seconds`, and return the progress.

        If another thread is updating the index, only return the progress.
        """
        if self._taking_up.acquire(blocking=False):
            try:
                with self.open() as database:
                    _index_files(database, episode_files(self.folder), time.monotonic() + seconds)
            finally:
                self._taking_up.release()
        return self.progress()

    def start_explaining(self) -> bool:
        """Start to find the causes of failures, unless this is under way. Return whether some are still unknown."""
        with self._taking_up, self.open() as database:
            if database.execute(_NEXT_UNEXPLAINED).fetchone() is None:
                return False
            if self._explaining is None or not self._explaining.is_alive():
                self._explaining = threading.Thread(target=self.explain, daemon=True)
                self._explaining.start()
        return True

    def explain(self) -> None:
        """Find the causes of the failures that have none yet, those of the newest steps first.

        An episode whose task is not stored, or whose domain cannot be loaded, has no cause.
        """
        with self.open() as database:
            while found := database.execute(_NEXT_UNEXPLAINED).fetchone():
                step = found[0]
                numbers = [number for (number,) in database.execute(_UNEXPLAINED, (step,)).fetchall()]
                causes = _find_causes(self.folder, step, numbers)
                values = [(causes.get(number, ""), step, number) for number in numbers]
                database.executemany("update episodes set cause = ? where step = ? and number = ?", values)

    def progress(self) -> IndexProgress:
        """Return the progress of the index."""
        files = episode_files(self.folder)
        sizes = {step: path.stat().st_size for step, path in files.items()}
        with self.open() as database:
            done = dict(database.execute("select step, iif(written, size, done) from files"))
            damaged = database.execute("select step, number, reason from damaged order by step, number").fetchall()
        named = (f"{files[step]}:{number}: skipped: {why}" for step, number, why in damaged if step in files)
        return IndexProgress(sum(done.get(step, 0) for step in sizes), sum(sizes.values()), tuple(named))

    @contextlib.contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        """Open a connection for one thread. Raise ConfigError if the index file is damaged or cannot be used."""
        try:
            database = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        except sqlite3.OperationalError as e:
            raise self._unusable(e) from e
        try:
            database.execute("pragma temp_store = memory")
            database.execute("pragma synchronous = off")  # an index damaged by a crash is built again
            yield database
        except sqlite3.DatabaseError as e:
            if getattr(e, "sqlite_errorcode", 0) & 0xFF in _FILE_ERRORS:
                raise self._unusable(e) from e
            if type(e) is not sqlite3.DatabaseError:  # this class means a damaged file; other subclasses mean bugs
                raise
            raise ConfigError(f"the index {self.path} is damaged ({e}); delete it and start the viewer again") from e
        finally:
            database.close()

    def _unusable(self, error: OSError | sqlite3.Error) -> ConfigError:
        text = f"the index of {self.folder} cannot be written to {self.path} ({error})"
        return ConfigError(f"{text}; set UNDERSTUDY_CACHE to a writable folder")

    def _prepare(self) -> None:
        """Create the tables. Replace an index that is damaged or has another version."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not self._is_sound():
                for ending in ("", "-wal", "-shm"):
                    self.path.with_name(self.path.name + ending).unlink(missing_ok=True)
                with self.open() as database:
                    database.execute("pragma journal_mode = wal")
                    database.executescript(f"begin; {_SCHEMA} pragma user_version = {INDEX_VERSION}; commit;")
        except (OSError, sqlite3.Error) as e:
            raise self._unusable(e) from e

    def _is_sound(self) -> bool:
        try:
            with self.open() as database:
                return bool(database.execute("pragma user_version").fetchone()[0] == INDEX_VERSION)
        except ConfigError:
            return False


def _find_causes(folder: Path, step: int, numbers: Collection[int]) -> dict[int, str]:
    """Return the kinds of the causes of failures by episode number; {} if they cannot be found."""
    try:
        stored = open_stored_episodes(folder, str(step))
        chosen = {number: episode for number, episode in stored.episodes.items() if number in numbers}
        failures = find_stored_failures(replace(stored, episodes=chosen))
    except ConfigError:
        return {}
    return {number: failure.cause.kind for number, failure in failures.items()}


def outcome_label(episode: Trajectory) -> str:
    """Return the outcome of an episode: "fault" (no score), "ungraded" (no score and no fault), "success" (reward 1),
    "partial" (reward above 0) or "failure".
    """
    if episode.score is None:
        return "ungraded" if episode.is_ungraded else "fault"
    return "success" if episode.score.reward >= 1.0 - 1e-9 else "partial" if episode.score.reward > 0 else "failure"


def _place(folder: Path) -> Path:
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:24]
    return cache_folder() / "viewer" / f"{name}.sqlite"


def _index_files(database: sqlite3.Connection, files: dict[int, Path], until: float) -> None:
    known = {step: stat for step, *stat in database.execute("select step, size, written from files")}
    for step in known.keys() - files.keys():
        _forget(database, step)
    for step, path in sorted(files.items(), reverse=True):
        stat = path.stat()
        if known.get(step) != [stat.st_size, stat.st_mtime_ns]:
            database.execute("begin immediate")
            with path.open("rb") as f:
                whole = _read(database, step, f, until)
            written = stat.st_mtime_ns if whole else 0
            database.execute("update files set size = ?, written = ? where step = ?", (stat.st_size, written, step))
            database.execute("commit")
            if not whole:
                return


def _read(database: sqlite3.Connection, step: int, f: BinaryIO, until: float) -> bool:
    """Index the rest of a file until the time `until`. Return whether the end of the file was reached."""
    done, number = _resume(database, step, f)
    whole = True
    for line in f:
        reason = _add(database, step, number + 1, line)
        if reason:
            database.execute("insert into damaged values (?, ?, ?)", (step, number + 1, reason))
        if reason and not line.endswith(b"\n"):  # an incomplete last line is read again later
            break
        done, number = done + len(line), number + 1
        if number % _BATCH == 0 and time.monotonic() > until:
            whole = False
            break
    f.seek(max(0, done - _TAIL))
    tail = f.read(min(done, _TAIL))
    database.execute("update files set done = ?, lines = ?, tail = ? where step = ?", (done, number, tail, step))
    return whole


def _resume(database: sqlite3.Connection, step: int, f: BinaryIO) -> tuple[int, int]:
    """Return how many bytes and lines of a file are indexed, and move `f` to that position.

    Both are 0 for a new file. If the file was replaced, remove its old episodes and return zeros too.
    """
    found = database.execute("select done, lines, tail from files where step = ?", (step,)).fetchone()
    done, lines, tail = found or (0, 0, None)
    f.seek(max(0, done - _TAIL))
    if f.read(min(done, _TAIL)) != tail:
        _forget(database, step)
        database.execute("insert into files values (?, 0, 0, 0, 0, x'')", (step,))
        done = lines = 0
    database.execute("delete from damaged where step = ? and number > ?", (step, lines))
    f.seek(done)
    return done, lines


def _add(database: sqlite3.Connection, step: int, number: int, line: bytes) -> str:
    """Add the episode of a line. Return why the line is not an episode, or "" if it is one."""
    try:
        episode = _EPISODE.validate_json(line)
    except ValidationError as e:
        return f"not an episode: {_reason(e)}"
    row = {"step": step, "number": number, **_shown(episode)}
    names, places = ", ".join(row), ", ".join(f":{name}" for name in row)
    key = database.execute(f"insert into episodes ({names}) values ({places})", row).lastrowid
    marks = {("tool", call.name) for message in episode.messages for call in message.tool_calls}
    marks |= {("event", name) for name in episode.event_counts.keys() - _NORMAL_REPLIES}
    database.executemany("insert into marks values (?, ?, ?)", [(*mark, key) for mark in marks])
    database.execute("insert into texts (rowid, text) values (?, ?)", (key, "\n".join(_words(episode))))
    return ""


def _shown(episode: Trajectory) -> dict[str, Any]:
    """Return the columns of the episode table."""
    return {
        "task": episode.task_id,
        "domain": episode.domain,
        "family": episode.family,
        "difficulty": episode.difficulty,
        "outcome": outcome_label(episode),
        "reward": episode.score.reward if episode.score else None,
        "stop": str(episode.stop_reason or ""),
        "fault": episode.fault or "",
        "turns": episode.num_turns,
        "tokens": episode.num_sampled_tokens,
        "seconds": sum(episode.timings.values()),
        "cause": None if is_failed(episode) else "",
    }


def _words(episode: Trajectory) -> Iterator[str]:
    """Yield the searchable texts of an episode."""
    yield episode.task_id
    yield episode.error
    for message in episode.messages:
        if message.role != "system":
            yield message.content
        for call in message.tool_calls:
            yield f"{call.name} {json.dumps(call.arguments, ensure_ascii=False)} {call.parse_error}"


def _reason(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")


def _forget(database: sqlite3.Connection, step: int) -> None:
    """Remove a file's episodes.

    Their words stay in the full-text table and match no episode, because ids are not reused.
    """
    database.execute("delete from marks where episode in (select id from episodes where step = ?)", (step,))
    for table in ("episodes", "damaged", "files"):
        database.execute(f"delete from {table} where step = ?", (step,))
