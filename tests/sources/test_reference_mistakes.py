"""Test references that name something else than a source of tasks, and a tool that returns a coroutine."""

import warnings
from pathlib import Path

import pytest

from understudy.core.errors import ConfigError
from understudy.envs.tools import render_result
from understudy.sources.references import load_reference

MODULE = "def make():\n    return 1\n\nNUMBER = 3\n"


@pytest.mark.parametrize(
    ("reference", "remedy"),
    [
        ("mistaken_source.py:NUMBER", "'mistaken_source:NUMBER'"),
        ("mistaken_source:make", "SOURCE = make(...)"),
        ("mistaken_source:NUMBER", "ToolDataset or a Domain"),
    ],
)
def test_wrong_reference_says_what_to_write(
    reference: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mistaken_source.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as raised:
        load_reference(reference)
    assert remedy in str(raised.value)


@pytest.mark.parametrize("nested", [False, True])
def test_forgotten_await_names_the_coroutine_without_a_warning(nested: bool) -> None:
    async def look_up() -> int:
        return 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value = look_up()
        with pytest.raises(TypeError, match=r"await .*look_up"):
            render_result("get", {"found": value} if nested else value)
