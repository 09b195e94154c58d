"""State that episodes share: empty containers of classes are refused, and changed variables are named."""

import importlib
import random
import sys
from collections import defaultdict, deque
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from understudy.core.errors import TaskError
from understudy.core.shared_state import SharedState
from understudy.envs.tools import Toolkit
from understudy.sources.tool_dataset import ToolEpisode

MODULE = """
import random
from collections import deque

TABLE, SEEN, LAST, RNG, COUNT, ANSWER_CACHE, PRICES = {"a": [1]}, set(), deque(), random.Random(0), 0, {}, {"a": 1}

class Desk:
    def __init__(self):
        self.rows = []

DESK = Desk()

def helper(value):
    SEEN.add(value)

class Tools:
    log = [0]

    def nested(self): TABLE["a"].append(1)
    def by_helper(self): helper(7)
    def queue(self): LAST.append(1)
    def draw(self): return RNG.random()
    def count(self):
        global COUNT
        COUNT += 1
    def of_object(self): DESK.rows.append(1)
    def of_class(self): self.log.append(1)
    def cached(self): ANSWER_CACHE[1] = 1
    def read(self): return PRICES["a"]
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = tmp_path / "leaking_tools.py"
    path.write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "leaking_tools", raising=False)
    return importlib.import_module("leaking_tools")


@pytest.mark.parametrize(
    ("method", "changed"),
    [
        ("nested", "leaking_tools.TABLE"),
        ("by_helper", "leaking_tools.SEEN"),
        ("queue", "leaking_tools.LAST"),
        ("draw", "leaking_tools.RNG"),
        ("count", "leaking_tools.COUNT"),
        ("of_object", "leaking_tools.DESK"),
        ("of_class", "Tools.log (leaking_tools.py:16)"),
        ("cached", ""),
        ("read", ""),
    ],
)
def test_a_changed_variable_is_named(module: ModuleType, method: str, changed: str) -> None:
    shared = SharedState([module.Tools])
    assert shared.find_changed() == []
    getattr(module.Tools(), method)()
    found = shared.find_changed()
    assert [text.partition(" has changed")[0] for text in found] == ([changed] if changed else [])


def test_a_long_list_is_compared_at_its_start_and_by_its_length(module: ModuleType) -> None:
    module.Tools.log = list(range(300_000))
    shared = SharedState([module.Tools])
    module.Tools.log[-1] = -1  # beyond what is compared
    assert shared.find_changed() == []
    module.Tools.log.append(1)
    assert len(shared.find_changed()) == 1


@pytest.mark.parametrize("empty", [{}, [], set(), defaultdict(int), deque(), bytearray()])
@pytest.mark.parametrize("base", [ToolEpisode, Toolkit])
def test_an_empty_container_of_a_class_is_refused(base: type, empty: Any) -> None:
    with pytest.raises(TaskError, match=r"Leaky\._seen = .* __init__.*self\._seen = "):
        type("Leaky", (base,), {"_seen": empty})


def test_a_mixin_is_refused_too() -> None:
    class Mixin:
        _seen: list[str] = []

    with pytest.raises(TaskError, match=r"Mixin\._seen = \[\]"):
        type("Leaky", (Mixin, ToolEpisode), {})


def test_a_default_that_a_method_replaces_and_a_class_variable_are_accepted() -> None:
    class Fine(ToolEpisode):
        _own: list[str] = []
        _shared: ClassVar[list[str]] = []
        _prices = {"a": random.Random(0).random()}
        tool_aliases = {}

        def look(self) -> str:
            """Look."""
            self._own = ["seen"]
            return "seen"

    assert [spec.name for spec in Fine.specs()] == ["look"]
