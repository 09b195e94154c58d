"""Notes and tags that people give to runs and episodes: `notes.jsonl` in the folder of a run or an evaluation.

Lines are only appended, and the last line of an item counts. So a crash loses nothing, and resuming, which repeats
the same episodes, keeps all notes.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints, ValidationError

from understudy.core.files import append_bytes, cached_until_changed, os_errors_as_config_errors, read_bytes
from understudy.core.records import Record
from understudy.runs.run import eval_set_of

NOTES_FILE = "notes.jsonl"
RUN_ITEM = "run"
"""The item that is the run or the evaluation itself."""
MAX_NOTE_CHARS, MAX_TAGS, MAX_TAG_CHARS = 10_000, 20, 40
Tag = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_TAG_CHARS, pattern=r"^[^,]*$")
]


class Annotation(Record):
    """The note and the tags of a run or an episode."""

    item: str = Field(max_length=200)
    """`run`, or an episode by `episode_item`."""
    note: str = Field(default="", max_length=MAX_NOTE_CHARS)
    tags: tuple[Tag, ...] = Field(default=(), max_length=MAX_TAGS)
    """Tags without commas."""
    written_at: float = 0.0
    """In seconds since 1970."""


def episode_item(name: str, number: int) -> str:
    """Return the item of an episode, such as `12/3`. `name` is a step, or an evaluation such as `000010 rl`.

    The stage of an evaluation is left out, because it changes if the run is resumed with more steps.
    """
    step, _, stage = name.partition(" ")
    item = " ".join(filter(None, (step, eval_set_of(name), "eval"))) if stage else name
    return f"{item}/{number}"


def read_annotations(folder: Path) -> Mapping[str, Annotation]:
    """Return the annotations of a folder by item. Damaged lines are left out."""
    file = folder / NOTES_FILE
    return _read(file) if file.is_file() else {}


@cached_until_changed(256)
def _read(file: Path) -> Mapping[str, Annotation]:
    annotations: dict[str, Annotation] = {}
    for line in read_bytes(file).splitlines():
        try:
            annotation = Annotation.model_validate_json(line)
        except ValidationError:
            continue
        annotations[annotation.item] = annotation
    return {item: annotation for item, annotation in annotations.items() if annotation.note or annotation.tags}


def write_annotation(folder: Path, annotation: Annotation) -> None:
    """Store an annotation in place of the item's earlier one. An empty one removes it.

    Raise ConfigError if the file cannot be written.
    """
    line = annotation.replace(written_at=time.time()).model_dump_json().encode()
    with os_errors_as_config_errors(folder / NOTES_FILE, "save the note again"):
        append_bytes(folder / NOTES_FILE, b"\n" * _is_cut_off(folder / NOTES_FILE) + line + b"\n")


def _is_cut_off(file: Path) -> bool:
    """Return whether a crash has cut off the last line of a file."""
    if not file.is_file() or not file.stat().st_size:
        return False
    with file.open("rb") as lines:
        lines.seek(-1, 2)
        return lines.read() != b"\n"
