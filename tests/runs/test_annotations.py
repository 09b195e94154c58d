"""Test notes and tags of runs and episodes."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from understudy.core.errors import ConfigError
from understudy.runs.config import TrainConfig
from understudy.runs.run import Run
from understudy.runs.storage.annotations import (
    NOTES_FILE,
    RUN_ITEM,
    Annotation,
    episode_item,
    read_annotations,
    write_annotation,
)


def test_last_annotation_of_an_item_counts(tmp_path: Path) -> None:
    write_annotation(tmp_path, Annotation(item=RUN_ITEM, note="first"))
    write_annotation(tmp_path, Annotation(item="3/1", tags=("odd",)))
    write_annotation(tmp_path, Annotation(item=RUN_ITEM, note="second", tags=("keep", "best")))
    found = read_annotations(tmp_path)
    assert (found[RUN_ITEM].note, found[RUN_ITEM].tags, found["3/1"].tags) == ("second", ("keep", "best"), ("odd",))
    assert found[RUN_ITEM].written_at > 0
    write_annotation(tmp_path, Annotation(item=RUN_ITEM))
    assert list(read_annotations(tmp_path)) == ["3/1"]


def test_crash_in_a_write_loses_only_that_note(tmp_path: Path) -> None:
    write_annotation(tmp_path, Annotation(item=RUN_ITEM, note="kept"))
    with (tmp_path / NOTES_FILE).open("a") as file:
        file.write('{"item":"run","no')
    write_annotation(tmp_path, Annotation(item="1/1", note="later"))
    assert {item: each.note for item, each in read_annotations(tmp_path).items()} == {"run": "kept", "1/1": "later"}


def test_resuming_keeps_notes_also_of_later_steps(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", TrainConfig())
    with run.write_checkpoint(1):
        pass
    write_annotation(run.folder, Annotation(item="5/2", note="odd"))
    Run.resume(run.folder)
    assert read_annotations(run.folder)["5/2"].note == "odd"


def test_items_of_evaluations_do_not_name_the_stage() -> None:
    assert episode_item("12", 3) == "12/3"
    assert episode_item("000010 rl", 3) == episode_item("000010 step 10", 3) == "000010 eval/3"
    assert episode_item("000010 rl ood", 3) == "000010 ood eval/3"
    assert episode_item("000010 rl hard", 3) == episode_item("000010 step 10 hard", 3) == "000010 hard eval/3"
    assert episode_item("eval", 3) == "eval/3"


@pytest.mark.parametrize("tags", [("a,b",), ("",), ("x" * 41,), ("x",) * 21])
def test_invalid_tags_are_rejected(tags: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError):
        Annotation(item=RUN_ITEM, tags=tags)


def test_unwritable_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"notes\.jsonl"):
        write_annotation(tmp_path / "none", Annotation(item=RUN_ITEM, note="x"))
