"""What the tests of `understudy.data` share: tasks of any shape, tau-style tasks of retail, and the program."""

import contextlib
import io
import json
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import strategies as st

from understudy.cli import main
from understudy.domains.retail import DOMAIN
from understudy.messages import Message, ToolCall
from understudy.tasks import DIFFICULTIES, SPLITS, Fact, Scenario, Task, Wish

_words = st.text(max_size=12)
values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_words, inner, max_size=3),
    max_leaves=6,
)
"""Any JSON."""
_objects = st.dictionaries(_words, values, max_size=3)
_facts = st.builds(Fact, says=_words, cues=st.tuples(_words), opened=st.booleans())
_wishes = st.builds(Wish, says=_words, names=st.tuples(_words), facts=st.tuples(_facts), contests=st.booleans())
_calls = st.builds(ToolCall, name=_words, arguments=_objects, id=_words)
tasks = st.builds(
    Task,
    id=_words,
    domain=_words,
    split=st.sampled_from(SPLITS),
    family=_words,
    difficulty=st.sampled_from(DIFFICULTIES),
    scenario=st.builds(
        Scenario,
        instructions=_words,
        opening=_words,
        facts=st.lists(_facts, max_size=2).map(tuple),
        wishes=st.lists(_wishes, max_size=2).map(tuple),
        persona=st.sampled_from(("plain", "chatty", "terse")),
        patience=st.integers(1, 9),
    ),
    setup=st.dictionaries(_words, _objects, max_size=2),
    gold=st.lists(
        st.builds(
            Message, role=st.just("assistant"), content=_words, tool_calls=st.lists(_calls, max_size=2).map(tuple)
        ),
        max_size=3,
    ).map(tuple),
    outputs=st.lists(_words, max_size=2).map(tuple),
)
"""Tasks of any shape, most of them nonsense."""

FIND = {"name": "find_user", "kwargs": {"email": "tina.grant30@mail.com"}}
ORDER = {"name": "get_order", "kwargs": {"order_id": "W9201"}}


def tau(**changes: Any) -> dict[str, Any]:
    """A sound tau-style task of retail: it only reads, and tells a status."""
    task = {"user_id": "tina", "instruction": "You are Tina. Ask how W9201 is.", "actions": [FIND, ORDER]}
    return {**task, "outputs": ["pending"], "domain": "retail", "complexity": 1, **changes}


def address(number: int) -> dict[str, Any]:
    """A sound tau-style task of retail that changes something; each number is another task."""
    to = f"{number} Oak Street, Denver 80202"
    change = {"name": "change_user_address", "kwargs": {"address": to}}
    return tau(
        instruction=f"You are Tina. Move to {to}.", actions=[FIND, change], outputs=[], complexity=1 + number % 3
    )


def write_tau(path: Path, values: Iterable[Any]) -> Path:
    """A JSON file of tau-style tasks."""
    path.write_text(json.dumps({"tasks": list(values)}))
    return path


def write_lines(path: Path, values: Iterable[Any]) -> Path:
    """A JSONL file of records, or of anything else as JSON."""
    texts = (v.model_dump_json(exclude_defaults=True) if isinstance(v, Task) else json.dumps(v) for v in values)
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def retail(count: int, seed: int = 5) -> list[Task]:
    """Tasks of retail."""
    return DOMAIN.sample("train", count, seed)


def call(*arguments: object) -> tuple[int, str, str]:
    """The program's `data` verbs: exit code, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    argv = mock.patch.object(sys, "argv", ["understudy", "data", *map(str, arguments)])
    with argv, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0), out.getvalue(), err.getvalue()


def obey(commands: Iterable[str]) -> None:
    """Each command of a page is one of `understudy data`, and prints something, without an error."""
    for command in commands:
        program, verbs, *arguments = shlex.split(command)
        assert (program, verbs) == ("understudy", "data")
        code, out, err = call(*arguments)
        assert (code, err) == (0, ""), command
        assert out.strip(), command
