"""A run's episodes in SQLite, so that however many there are, they are filtered, searched, sorted and paged at once.

The index is in the cache and can be thrown away. It holds of each episode what tables show, and the
words of its conversation (not of the system prompt, which all share). Files are taken up newest first, one that
has grown from where it ended; of one that was replaced, the old episodes go.
"""

import contextlib
import hashlib
import json
import math
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pydantic import TypeAdapter, ValidationError

from understudy.errors import ConfigError
from understudy.models import cache_folder
from understudy.trajectory import Trajectory

VERSION = 1
_BATCH = 32  # episodes from one look at the clock to the next
_TAIL = 1024  # bytes before where the index ended, which tell whether a file that has grown is still the same
_SCHEMA = """
create table files (step integer primary key, size integer, written integer, done integer, lines integer, tail blob);
create table damaged (step integer, number integer, reason text);
create table episodes (
    id integer primary key autoincrement, step integer, number integer,
    task text, domain text, family text, difficulty text, outcome text, reward real, stop text, fault text,
    turns integer, tokens integer, seconds real
);
create index by_step on episodes (step, number);
create table marks (kind text, name text, episode integer, primary key (kind, name, episode)) without rowid;
create index by_episode on marks (episode);
create virtual table texts using fts5 (text, content='', tokenize="unicode61 remove_diacritics 2");
"""
_EPISODE = TypeAdapter(Trajectory)
_ORDINARY = {"calls", "text"}  # counts of replies that nothing is wrong with


class Progress(NamedTuple):
    """How many bytes of the files are in the index, of how many, and what in them is damaged."""

    done: int
    of: int
    damaged: tuple[str, ...]


class Index:
    """The episodes of a folder. Any thread may ask; one at a time takes up files."""

    def __init__(self, folder: Path, path: Path | None = None) -> None:
        self.folder = folder
        self.path = path or _place(folder)
        self._taking_up = threading.Lock()
        self._prepare()

    def refresh(self, seconds: float = math.inf) -> Progress:
        """Take up what is new, for about so long; nothing where another thread is at it."""
        if self._taking_up.acquire(blocking=False):
            try:
                with self.open() as database:
                    _take_up(database, episode_files(self.folder), time.monotonic() + seconds)
            finally:
                self._taking_up.release()
        return self.progress()

    def progress(self) -> Progress:
        """How far the index is."""
        files = episode_files(self.folder)
        sizes = {step: path.stat().st_size for step, path in files.items()}
        with self.open() as database:
            done = dict(database.execute("select step, iif(written, size, done) from files"))
            damaged = database.execute("select step, number, reason from damaged order by step, number").fetchall()
        named = (f"{files[step]}:{number}: left out, {why}" for step, number, why in damaged if step in files)
        return Progress(sum(done.get(step, 0) for step in sizes), sum(sizes.values()), tuple(named))

    @contextlib.contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        """A connection, for one thread."""
        database = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        try:
            database.execute("pragma temp_store = memory")
            database.execute("pragma synchronous = off")  # what a crash damages is made anew
            yield database
        except sqlite3.DatabaseError as e:
            if type(e) is not sqlite3.DatabaseError:  # only that is a damaged file; others are bugs
                raise
            raise ConfigError(f"the index {self.path} is damaged ({e}); remove it, and it is made anew") from e
        finally:
            database.close()

    def _prepare(self) -> None:
        """Make the tables; an index that is damaged, or of another version, is made anew."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not self._is_sound():
                for ending in ("", "-wal", "-shm"):
                    self.path.with_name(self.path.name + ending).unlink(missing_ok=True)
                with self.open() as database:
                    database.execute("pragma journal_mode = wal")
                    database.executescript(f"begin; {_SCHEMA} pragma user_version = {VERSION}; commit;")
        except (OSError, sqlite3.Error) as e:
            text = f"the index of {self.folder} cannot be kept in {self.path} ({e})"
            raise ConfigError(f"{text}; set UNDERSTUDY_CACHE to a folder that can be written") from e

    def _is_sound(self) -> bool:
        try:
            with self.open() as database:
                return bool(database.execute("pragma user_version").fetchone()[0] == VERSION)
        except ConfigError:
            return False


def episode_files(folder: Path) -> dict[int, Path]:
    """The files of a run's episodes, by step."""
    found = ((path.stem.removeprefix("step_"), path) for path in (folder / "trajectories").glob("step_*.jsonl"))
    return {int(step): path for step, path in sorted(found) if step.isdigit()}


def outcome(episode: Trajectory) -> str:
    """How an episode came out, in a word."""
    if episode.score is None:
        return "fault"
    return "success" if episode.score.reward >= 1.0 - 1e-9 else "partial" if episode.score.reward > 0 else "failure"


def _place(folder: Path) -> Path:
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:24]
    return cache_folder() / "viewer" / f"{name}.sqlite"


def _take_up(database: sqlite3.Connection, files: dict[int, Path], until: float) -> None:
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
    """Take up the rest of a file, until then; whether that was all of it."""
    done, number = _resume(database, step, f)
    whole = True
    for line in f:
        reason = _add(database, step, number + 1, line)
        if reason:
            database.execute("insert into damaged values (?, ?, ?)", (step, number + 1, reason))
        if reason and not line.endswith(b"\n"):  # it is being written, or was cut off: it may yet become whole
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
    """Where the index ended in a file, in bytes and lines; its start where it is new, or not the file that it was."""
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
    """Add the episode of a line; the reason why it is none, if so."""
    try:
        episode = _EPISODE.validate_json(line)
    except ValidationError as e:
        return f"not an episode: {_reason(e)}"
    row = {"step": step, "number": number, **_shown(episode)}
    names, places = ", ".join(row), ", ".join(f":{name}" for name in row)
    key = database.execute(f"insert into episodes ({names}) values ({places})", row).lastrowid
    marks = {("tool", call.name) for message in episode.messages for call in message.tool_calls}
    marks |= {("event", name) for name in episode.counts.keys() - _ORDINARY}
    database.executemany("insert into marks values (?, ?, ?)", [(*mark, key) for mark in marks])
    database.execute("insert into texts (rowid, text) values (?, ?)", (key, "\n".join(_words(episode))))
    return ""


def _shown(episode: Trajectory) -> dict[str, Any]:
    """The columns of a table of episodes."""
    return {
        "task": episode.task,
        "domain": episode.domain,
        "family": episode.family,
        "difficulty": episode.difficulty,
        "outcome": outcome(episode),
        "reward": episode.score.reward if episode.score else None,
        "stop": str(episode.stop or ""),
        "fault": episode.fault or "",
        "turns": episode.turns,
        "tokens": sum(episode.mask),
        "seconds": sum(episode.seconds.values()),
    }


def _words(episode: Trajectory) -> Iterator[str]:
    """What a search finds an episode by."""
    yield episode.task
    yield episode.error
    for message in episode.messages:
        if message.role != "system":
            yield message.content
        for call in message.tool_calls:
            yield f"{call.name} {json.dumps(call.arguments, ensure_ascii=False)} {call.malformed}"


def _reason(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")


def _forget(database: sqlite3.Connection, step: int) -> None:
    """Take a file's episodes out. Their words stay, and lead nowhere: ids are not used again."""
    database.execute("delete from marks where episode in (select id from episodes where step = ?)", (step,))
    for table in ("episodes", "damaged", "files"):
        database.execute(f"delete from {table} where step = ?", (step,))
