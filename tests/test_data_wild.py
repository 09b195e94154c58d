"""Whatever a file holds, each of its items is a task or a `Bad` that names a place; nothing else comes of it."""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_kit import address, retail, tau, values
from understudy.data.describe import as_text, describe
from understudy.data.items import Bad, Item
from understudy.data.plots import pictures
from understudy.data.rows import to_row
from understudy.data.source import source
from understudy.data.specs import samples
from understudy.data.verify import Domains, proven
from understudy.tasks import Task

SOUND = [
    *(json.loads(t.model_dump_json(exclude_defaults=True)) for t in retail(28)),
    json.loads(to_row(retail(1)[0], "policy", "retail").model_dump_json()),
    tau(),
    address(3),
]
SPEC = {
    "scenario": "demo",
    "turns": 4,
    "limits": {"max_tools": 5},
    "tasks": [
        {
            "task_id": "a",
            "conversation": [{"role": "user", "message": "Go."}],
            "solution": {"tool_sequence": [{"step": 1, "tool": "t", "params": {"x": "y"}}]},
        }
    ],
}
wild = settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """All paths into a JSON value."""
    yield at
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield from places(inner, (*at, key))


@st.composite
def mutated(draw: st.DrawFn, sound: list[Any]) -> Any:
    """A sound value with one place of it replaced by anything, or removed."""
    value = deepcopy(draw(st.sampled_from(sound)))
    *path, last = draw(st.sampled_from([place for place in places(value) if place]))
    holder = value
    for key in path:
        holder = holder[key]
    if draw(st.booleans()):
        holder[last] = draw(values)
    else:
        del holder[last]
    return value


@given(st.lists(values | mutated(SOUND), min_size=1, max_size=3))
@wild
def test_any_file_of_tasks(tmp_path: Path, lines: list[Any]) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = list(proven(source(str(path)).items(), Domains()))
    described = describe(source(str(path)).items(), Domains())
    assert described.tasks + described.bad == len(lines)
    assert as_text(described)
    assert all(ElementTree.fromstring(picture) is not None for picture in pictures(described).values())
    assert len(found) == len(lines)
    for number, item in enumerate(found, 1):
        assert item.where == f"{path}:{number}"
        assert isinstance(item.value, Task) if isinstance(item, Item) else item.problem


@given(st.binary(max_size=60) | values.map(lambda value: json.dumps({"tasks": [value]}).encode()))
@wild
def test_any_bytes(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(data)
    assert all(isinstance(item, Item | Bad) for item in source(str(path)).items())


@given(values | mutated([SPEC]))
@wild
def test_any_spec(value: Any) -> None:
    for item in samples(iter([Item("here", value)])):
        assert item.where.startswith("here")
