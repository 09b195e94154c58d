"""Test .env files: parsing, precedence of the environment, and errors that hide the values."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.cli.env_file import load_env_file
from understudy.core.errors import ConfigError

SECRET = "sk-0123456789"


@pytest.fixture(autouse=True)
def restore_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))


def test_env_file_syntax(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(
        "\ufeff# keys\n\nU_PLAIN=a-b/c=d==\n  export U_SPACED = x y  # said\n"
        'U_DOUBLE="a # b"\nU_SINGLE=\'$HOME "q"\' # c\n'
        'U_EMPTY=\nU_HASH=a#b\nU_TWICE=1\nU_TWICE=2\nU_LINES="a\\nb"\n'
    )
    names = load_env_file(tmp_path / "keys")
    assert {name: os.environ[name] for name in names} == {
        "U_PLAIN": "a-b/c=d==",
        "U_SPACED": "x y",
        "U_DOUBLE": "a # b",
        "U_SINGLE": '$HOME "q"',
        "U_EMPTY": "",
        "U_HASH": "a#b",
        "U_TWICE": "2",
        "U_LINES": "a\nb",
    }


def test_environment_takes_precedence(tmp_path: Path) -> None:
    os.environ |= {"U_HERE": "mine", "U_EMPTY": ""}
    (tmp_path / ".env").write_text("U_HERE=theirs\nU_EMPTY=theirs\nU_NEW=new\n")
    assert load_env_file(tmp_path / ".env") == ["U_NEW"]
    assert (os.environ["U_HERE"], os.environ["U_EMPTY"], os.environ["U_NEW"]) == ("mine", "", "new")


def test_env_file_of_the_working_folder_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_env_file() == []
    (tmp_path / ".env").write_text(f"U_KEY={SECRET}")
    assert load_env_file() == ["U_KEY"]


@pytest.mark.parametrize(
    "line", [f"U KEY={SECRET}", f"{SECRET}", f"U_KEY='{SECRET}", f'U_KEY="{SECRET}" more', f"=={SECRET}"]
)
def test_invalid_line_error_names_the_line_and_hides_its_value(tmp_path: Path, line: str) -> None:
    (tmp_path / "keys").write_text(f"U_FIRST=1\n{line}\n")
    with pytest.raises(ConfigError, match=r"keys, line 2: .*NAME=value") as caught:
        load_env_file(tmp_path / "keys")
    assert SECRET not in str(caught.value)
    assert "U_FIRST" not in os.environ, "all of a file, or nothing"


def test_missing_env_file_raises_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--env-file .*nowhere\b.*No such file"):
        load_env_file(tmp_path / "nowhere")


@given(st.from_regex(r"U_[A-Z]{1,8}", fullmatch=True), st.text("ab =#$`-/.,:;!é", max_size=20))
def test_quoted_value_is_taken_literally(name: str, value: str) -> None:
    from understudy.cli.env_file import _parse

    for quote in "'\"":
        assert _parse(f"{name}={quote}{value}{quote}", Path("x")) == {name: value}


def test_env_file_option_rejects_an_invalid_file(tmp_path: Path) -> None:
    """An invalid file gives one error line and exit code 2 before the command runs."""
    (tmp_path / "keys").write_text(f"KEY '{SECRET}'")
    command = [sys.executable, "-m", "understudy", "--env-file", "keys", "list"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "keys, line 1" in done.stderr
    assert SECRET not in done.stderr
