"""understudy: reinforcement learning of tool use in multi-turn conversations."""

__version__ = "0.1.0"
