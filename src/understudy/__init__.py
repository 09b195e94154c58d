"""understudy trains language models to use tools in multi-turn conversations, by reinforcement learning.

The names below are the public API. They are loaded when they are first used, so that `import understudy` is fast and
needs no torch.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

from understudy.core.version import __version__ as __version__

if TYPE_CHECKING:
    from understudy.cli.launch import run_training
    from understudy.core.errors import ToolError
    from understudy.core.messages import Message, ToolCall
    from understudy.core.tasks import Task
    from understudy.core.trajectory import Trajectory
    from understudy.data.check import check
    from understudy.envs.domains.base import Domain
    from understudy.envs.domains.tool_dataset import ToolDataset, ToolEpisode, ToolExample
    from understudy.envs.environment import Environment
    from understudy.envs.tools import Toolkit
    from understudy.envs.users.user import User
    from understudy.evaluation.comparison import compare
    from understudy.evaluation.evaluate import evaluate
    from understudy.formats.parsing.parse import parse_reply
    from understudy.rollouts.agent import Agent, APIAgent, GoldAgent
    from understudy.rollouts.rollout import rollout
    from understudy.runs.config import TrainConfig, load_config
    from understudy.runs.targets import load
    from understudy.train.certify.certify_model import certify

_MODULES = {
    "APIAgent": "rollouts.agent",
    "Agent": "rollouts.agent",
    "Domain": "envs.domains.base",
    "Environment": "envs.environment",
    "GoldAgent": "rollouts.agent",
    "Message": "core.messages",
    "Task": "core.tasks",
    "ToolCall": "core.messages",
    "ToolDataset": "envs.domains.tool_dataset",
    "ToolEpisode": "envs.domains.tool_dataset",
    "ToolError": "core.errors",
    "ToolExample": "envs.domains.tool_dataset",
    "Toolkit": "envs.tools",
    "TrainConfig": "runs.config",
    "Trajectory": "core.trajectory",
    "User": "envs.users.user",
    "certify": "train.certify.certify_model",
    "check": "data.check",
    "compare": "evaluation.comparison",
    "evaluate": "evaluation.evaluate",
    "load": "runs.targets",
    "load_config": "runs.config",
    "parse_reply": "formats.parsing.parse",
    "rollout": "rollouts.rollout",
    "run_training": "cli.launch",
}
"""The module of each public name."""
__all__ = [
    "APIAgent",
    "Agent",
    "Domain",
    "Environment",
    "GoldAgent",
    "Message",
    "Task",
    "ToolCall",
    "ToolDataset",
    "ToolEpisode",
    "ToolError",
    "ToolExample",
    "Toolkit",
    "TrainConfig",
    "Trajectory",
    "User",
    "certify",
    "check",
    "compare",
    "evaluate",
    "load",
    "load_config",
    "parse_reply",
    "rollout",
    "run_training",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module."""
    if name not in _MODULES:
        raise AttributeError(f"module 'understudy' has no attribute {name!r}; it has: {', '.join(_MODULES)}")
    value = globals()[name] = getattr(importlib.import_module(f"understudy.{_MODULES[name]}"), name)
    return value


# By default, torch's OpenMP threads spin for milliseconds while they wait for each other. If other processes use the
# same cores, a decoding step then takes ten times as long. OpenMP reads the variable when torch is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
