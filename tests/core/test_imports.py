"""Test the import of `module:attribute`: a mistake in the user's module is one line with file and line."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from understudy.core.errors import ConfigError, TaskError
from understudy.core.imports import import_object


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder whose modules are forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import json\n\nx = = 1\n", r"SyntaxError.*\(my_module\.py:3\)"),
        ("import json\n\nx = {}['a']\n", r"KeyError: 'a' \(my_module\.py:3\)"),
        ("import no_such_package\n", r"ModuleNotFoundError.*no_such_package.*\(my_module\.py:1\)"),
        ("from json import nothing\n", r"ImportError.*nothing.*\(my_module\.py:1\)"),
        ("import broken\n", r"cannot be imported: SyntaxError: invalid syntax \(broken\.py:2\)$"),
        ("import sys\nsys.exit(0)\n", r"sys\.exit \(my_module\.py:2\).*__main__"),
        ("from understudy import Toolepisode\n", r"did you mean 'ToolEpisode'.*\(my_module\.py:1\)"),
        ("import understudy\nunderstudy.ToolDataset(polciy='')\n", r"'polciy'; did you mean 'domain_policy'"),
        ("import understudy\nunderstudy.ToolDataset(system_prompt='')\n", r"'system_prompt'; write domain_policy \("),
        ("import understudy\nunderstudy.ToolDataset(reward_funcs=[])\n", r"'reward_funcs'; the method reward"),
        ("import understudy\nunderstudy.ToolDataset(xyz=1)\n", r"argument 'xyz'; allowed: domain_policy"),
        ("import understudy\nunderstudy.ToolCall('a')\n", r"give the fields .* by name"),
        (
            "import understudy\nunderstudy.ToolCall(name='a', arg={})\n",
            r"ToolCall: arg: this key is unknown; did you mean 'arguments'",
        ),
        ("TASK = 1\n", r"my_module has no 'TASKS'; did you mean 'TASK'"),
    ],
    ids=[
        *("syntax", "exception", "missing package", "missing name", "imported module", "exit", "wrong public name"),
        *(
            "wrong argument",
            "argument of TRL",
            "rewards of TRL",
            "unknown argument",
            "positional field",
            "wrong field",
            "missing attribute",
        ),
    ],
)
def test_mistake_in_module_is_one_line(folder: Path, code: str, expected: str) -> None:
    (folder / "my_module.py").write_text(code)
    (folder / "broken.py").write_text("x = 1\ny = = 2\n")
    with pytest.raises(ConfigError, match=expected) as raised:
        import_object("my_module:TASKS")
    assert "\n" not in str(raised.value)


def test_only_attributes_of_the_wanted_type_are_suggested(folder: Path) -> None:
    (folder / "my_module.py").write_text("domains = [1]\nDOMAIN = 2\n")
    with pytest.raises(ConfigError, match=r"has no 'domain'; did you mean 'DOMAIN'\? allowed: DOMAIN$"):
        import_object("my_module:domain", wanted=int)


@pytest.mark.parametrize("reference", ["no_module:TASKS", "no_package.module:TASKS"])
def test_missing_module_is_named_with_the_folder(folder: Path, reference: str) -> None:
    with pytest.raises(ConfigError, match=rf"no module for '{reference}'.*{folder}"):
        import_object(reference)


def test_task_error_of_module_names_the_line(folder: Path) -> None:
    (folder / "my_tools.py").write_text(
        "from understudy import Toolkit\n\n\nclass Tools(Toolkit):\n    def find(self, what):\n        pass\n"
    )
    with pytest.raises(TaskError, match=r"\bfind\b.*annotation.* \(my_tools\.py:4\)$"):
        import_object("my_tools:Tools")


def test_mistake_is_located_in_the_users_module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = folder / "other" / "site-packages"
    library.mkdir(parents=True)
    (library / "my_library.py").write_text("def fail():\n    return {}['a']\n")
    monkeypatch.syspath_prepend(str(library))
    (folder / "my_module.py").write_text("import my_library\n\nmy_library.fail()\n")
    with pytest.raises(ConfigError, match=r"KeyError: 'a' \(my_module\.py:3\)"):
        import_object("my_module:TASKS")
