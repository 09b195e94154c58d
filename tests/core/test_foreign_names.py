"""Test what errors say about names, fields and arguments that other libraries have and this package does not."""

import importlib
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from pydantic import ValidationError

import understudy
from understudy import Domain, Message, Scenario, Task, ToolCall, ToolDataset, ToolExample, evaluate, gold_call, load
from understudy.core import tasks
from understudy.core.errors import ConfigError, TaskError
from understudy.core.foreign_names import FOREIGN_FIELDS, NAMES_ELSEWHERE, explain_field, explain_name
from understudy.core.user_code import describe_exception
from understudy.runs.targets import resolve


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("GRPOTrainer", "run_training"),
        ("RayPPOTrainer", "run_training"),
        ("GRPOConfig", "TrainConfig"),
        ("RewardFunction", "ToolEpisode"),
        ("Rubric", "ToolEpisode"),
        ("is_tool", "tools=[f]"),
        ("function_tool", "tools=[f]"),
        ("MultiTurnEnv", "ToolEpisode"),
        ("load_environment", "load(TARGET)"),
        ("run_evaluation", "evaluate"),
        ("ToolDatset", "did you mean 'ToolDataset'"),
        ("Fact", "from understudy.core.tasks import Fact"),
    ],
)
def test_name_of_another_library_has_a_pointer(name: str, remedy: str) -> None:
    assert remedy in explain_name(name, understudy.__all__)


def test_failed_import_has_the_pointer_and_submodules_are_imported() -> None:
    code = "from understudy import envs, cli\nfrom understudy import GRPOTrainer"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr
    assert shown.splitlines()[-1].startswith("ImportError: understudy has no 'GRPOTrainer'; train with run_training")
    assert not hasattr(understudy, "GRPOTrainer")


def test_names_elsewhere_are_where_they_are_said_to_be() -> None:
    for name, module in NAMES_ELSEWHERE.items():
        assert hasattr(importlib.import_module(f"understudy.{module}"), name)
        assert name not in understudy.__all__


def test_no_foreign_field_is_a_field() -> None:
    classes = {each.__name__: each for each in (Domain, ToolDataset, ToolExample, Message, ToolCall)}
    for owner, foreign in FOREIGN_FIELDS.items():
        cls = classes.get(owner) or getattr(tasks, owner)
        fields = getattr(cls, "model_fields", None) or cls.__dataclass_fields__
        assert not foreign.keys() & fields.keys(), owner


def test_typo_of_a_field_suggests_the_nearest() -> None:
    assert explain_field("ToolExample", "promt", ToolExample.model_fields).startswith("did you mean 'prompt'? allowed")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ToolExample.model_validate({"question": "a"}), "ToolExample: question: .*write prompt$"),
        (
            lambda: ToolExample.model_validate({"prompt": "a", "gold_calls": [{"name": "f", "args": {}}]}),
            r"gold_calls\.0\.args: .*write arguments$",
        ),
        (lambda: Task.model_validate({"instruction": "a", "gold": ()}), "Task: instruction: .*write scenario"),
        (
            lambda: Scenario.model_validate({"instructions": "", "opening": "", "goals": [{"text": "", "type": "x"}]}),
            r"goals\.0\.type: .*write kind$",
        ),
    ],
)
def test_wrong_field_says_what_to_write(make: Callable[[], object], text: str) -> None:
    with pytest.raises((TaskError, ValidationError)) as error:
        make()
    assert re.search(text, describe_exception(error.value))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: gold_call("get_order", "W1"), r"gold_call: too many .*gold_call\('get_order', order_id='W1'\)"),
        (
            lambda: load("retail", split="train"),  # type: ignore[call-arg]
            r"load: .*'split'; .*load\(TARGET, 'split=train'\)",
        ),
        (lambda: evaluate(model="tiny"), r"evaluate: .*'model'; it takes source, agent, tasks"),
        (lambda: evaluate("retail"), r"evaluate: missing .*'agent'; it takes source"),
        (lambda: understudy.check("retail", adversarail=None), r"did you mean 'adversarial'"),
    ],
)
def test_wrong_argument_of_a_function_says_what_to_write(call: Callable[[], object], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        call()


def test_name_in_place_of_a_source_says_to_load_it() -> None:
    with pytest.raises(ConfigError, match=r"load\('retail'\)"):
        understudy.check("retail")  # type: ignore[arg-type]


def test_settings_of_a_run_are_a_list() -> None:
    pytest.importorskip("torch")
    from understudy.cli.launch import run_training

    for wrong in ("smoke", {"model": "tiny"}, None, resolve(["smoke"]).config):
        with pytest.raises(ConfigError, match=r"settings is .*run_training\(\[TARGET, 'key=value'\]\)"):
            run_training(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"out is \['model=tiny'\]; it is the folder of the run"):
        run_training(["smoke"], ["model=tiny"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"run_training\(\[TARGET, 'model=tiny'\]\)"):
        run_training(["smoke"], model="tiny")  # type: ignore[call-arg]
