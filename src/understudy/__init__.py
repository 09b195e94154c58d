"""understudy trains language models to use tools in multi-turn conversations, by reinforcement learning.

The names below are the public API. They are loaded when they are first used, so that `import understudy` is fast and
needs no torch.
"""

import importlib
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

from understudy.core.version import __version__ as __version__

if TYPE_CHECKING:
    from understudy.cli.launch import run_training
    from understudy.core.errors import ToolError
    from understudy.core.messages import Message, ToolCall
    from understudy.core.records import Record
    from understudy.core.tasks import Scenario, Task, UserGoal
    from understudy.data.checks.check import check
    from understudy.envs.domain import Domain
    from understudy.envs.gold import gold_call, gold_text
    from understudy.envs.state import State, Table
    from understudy.envs.tools import Toolkit
    from understudy.evaluation.evaluate import evaluate
    from understudy.formats.parsing.parse import parse_reply
    from understudy.rollouts.agent import GoldAgent
    from understudy.rollouts.rollout import rollout
    from understudy.runs.config import TrainConfig
    from understudy.runs.targets import load
    from understudy.sources.tool_dataset import ToolDataset, ToolEpisode, ToolExample
    from understudy.train.certify.certify_model import certify

_MODULES = {
    "Domain": "envs.domain",
    "GoldAgent": "rollouts.agent",
    "Message": "core.messages",
    "Record": "core.records",
    "Scenario": "core.tasks",
    "State": "envs.state",
    "Table": "envs.state",
    "Task": "core.tasks",
    "ToolCall": "core.messages",
    "ToolDataset": "sources.tool_dataset",
    "ToolEpisode": "sources.tool_dataset",
    "ToolError": "core.errors",
    "ToolExample": "sources.tool_dataset",
    "Toolkit": "envs.tools",
    "TrainConfig": "runs.config",
    "UserGoal": "core.tasks",
    "certify": "train.certify.certify_model",
    "check": "data.checks.check",
    "evaluate": "evaluation.evaluate",
    "gold_call": "envs.gold",
    "gold_text": "envs.gold",
    "load": "runs.targets",
    "parse_reply": "formats.parsing.parse",
    "rollout": "rollouts.rollout",
    "run_training": "cli.launch",
}
"""The module of each public name."""
__all__ = [
    "Domain",
    "GoldAgent",
    "Message",
    "Record",
    "Scenario",
    "State",
    "Table",
    "Task",
    "ToolCall",
    "ToolDataset",
    "ToolEpisode",
    "ToolError",
    "ToolExample",
    "Toolkit",
    "TrainConfig",
    "UserGoal",
    "certify",
    "check",
    "evaluate",
    "gold_call",
    "gold_text",
    "load",
    "parse_reply",
    "rollout",
    "run_training",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module."""
    if name not in _MODULES:
        if name.startswith("__") or importlib.util.find_spec(f"understudy.{name}"):
            raise AttributeError(f"module 'understudy' has no attribute {name!r}")
        from understudy.core.foreign_names import explain_name

        # `from understudy import NAME` replaces the text of an AttributeError by one that names no remedy.
        is_import = sys._getframe(1).f_code.co_name == "_handle_fromlist"
        raise (ImportError if is_import else AttributeError)(explain_name(name, __all__))
    value = globals()[name] = getattr(importlib.import_module(f"understudy.{_MODULES[name]}"), name)
    return value


# By default, torch's OpenMP threads spin for milliseconds while they wait for each other. If other processes use the
# same cores, a decoding step then takes ten times as long. OpenMP reads the variable when torch is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
