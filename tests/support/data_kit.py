"""Shared parts of the tests of `understudy.data`: arbitrary tasks, tau-style tasks of retail, and the program."""

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

from understudy.cli.main import main
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import DIFFICULTIES, SPLITS, Fact, Scenario, Task, UserGoal
from understudy.domains.retail import DOMAIN

_words = st.text(max_size=12)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_words, inner, max_size=3),
    max_leaves=6,
)
"""Strategy for any JSON value."""
_objects = st.dictionaries(_words, json_values, max_size=3)
_facts = st.builds(Fact, text=_words, keywords=st.tuples(_words), in_opening=st.booleans())
_goals = st.builds(
    UserGoal, text=_words, required_terms=st.tuples(_words), facts=st.tuples(_facts), contests_refusal=st.booleans()
)
_calls = st.builds(ToolCall, name=_words, arguments=_objects, id=_words)
any_tasks = st.builds(
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
        goals=st.lists(_goals, max_size=2).map(tuple),
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
"""Strategy for tasks of any content, most of which cannot be played."""

FIND = {"name": "find_user", "kwargs": {"email": "tina.grant30@mail.com"}}
ORDER = {"name": "get_order", "kwargs": {"order_id": "W9201"}}


def make_tau_task(**changes: Any) -> dict[str, Any]:
    """Return a valid tau-style task of retail that only reads and reports a status."""
    task = {"user_id": "tina", "instruction": "You are Tina. Ask how W9201 is.", "actions": [FIND, ORDER]}
    return {**task, "outputs": ["shipped"], "domain": "retail", "complexity": 1, **changes}


def make_address_task(number: int) -> dict[str, Any]:
    """Return a valid tau-style task of retail that changes something. Each number gives another task."""
    to = f"{number} Oak Street, Denver 80202"
    change = {"name": "change_user_address", "kwargs": {"address": to}}
    return make_tau_task(
        instruction=f"You are Tina. Move to {to}.", actions=[FIND, change], outputs=[], complexity=1 + number % 3
    )


def write_tau_tasks(path: Path, values: Iterable[Any]) -> Path:
    """Write a JSON file of tau-style tasks and return its path."""
    path.write_text(json.dumps({"tasks": list(values)}))
    return path


def write_lines(path: Path, values: Iterable[Any]) -> Path:
    """Write a JSONL file of records or JSON values and return its path."""
    texts = (v.model_dump_json(exclude_defaults=True) if isinstance(v, Task) else json.dumps(v) for v in values)
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def retail_tasks(count: int, seed: int = 5) -> list[Task]:
    """Return tasks of retail."""
    return DOMAIN.sample("train", count, seed)


def run_data_command(*arguments: object) -> tuple[int, str, str]:
    """Run an `understudy data` command. Return exit code, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    argv = mock.patch.object(sys, "argv", ["understudy", "data", *map(str, arguments)])
    with argv, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0), out.getvalue(), err.getvalue()


def assert_commands_run(commands: Iterable[str]) -> None:
    """Check that each command of a page is an `understudy data` command and prints something without an error."""
    for command in commands:
        program, verbs, *arguments = shlex.split(command)
        assert (program, verbs) == ("understudy", "data")
        code, out, err = run_data_command(*arguments)
        assert (code, err) == (0, ""), command
        assert out.strip(), command
