"""Recall: the task of an id, whether it is a frozen one or one that a generator made."""

import re

from understudy.domains.base import Domain, TaskSource
from understudy.domains.mixture import parts_of
from understudy.tasks import DIFFICULTIES, SPLITS, Task

_MADE = re.compile(r"(?P<domain>[^/]+)/(?P<split>\w+)/(?P<family>.+)/(?P<difficulty>\w+)/(?P<seed>\d+)-(?P<number>\d+)")


def recall(source: TaskSource, name: str) -> Task | None:
    """The task of this id of a source or of a part of a mixture; None where none has it, or can make it again."""
    for part in parts_of(source):
        frozen = (task for split in SPLITS for task in part.tasks(split))
        found = _made_again(part, name) or next((task for task in frozen if task.id == name), None)
        if found:
            return found
    return None


def _made_again(part: TaskSource, name: str) -> Task | None:
    """The task that a supply makes for an id; its ids say where in its stream they stand (see `supply`)."""
    match = _MADE.fullmatch(name)
    if not match or not isinstance(part, Domain) or not part.make or match["domain"] != part.name:
        return None
    split = next((split for split in SPLITS if split == match["split"]), None)
    difficulty = next((level for level in DIFFICULTIES if level == match["difficulty"]), None)
    if not split or not difficulty or match["family"] not in part.families:
        return None
    return part.make(split, int(match["seed"]), match["family"], difficulty, int(match["number"]))
