"""What can be set about how conversations are written and replies read."""

from typing import Literal

from pydantic import Field

from understudy.records import Record

Dialect = Literal[
    "hermes",
    "qwen3_coder",
    "llama3",
    "mistral",
    "pythonic",
    "deepseek",
    "harmony",
    "glm",
    "json",
    "openai",
    "react",
    "xml",
]


class FormatConfig(Record):
    """How conversations are written and replies are read."""

    dialect: Dialect | None = None
    """How calls are written; by default as the model's chat template does. With a dialect, tools, calls and results are
    plain text to the template, which models need whose template has no calls."""
    thinking: bool = False
    """Models that can be told not to think are let think."""
    tolerant: bool = True
    """Broken calls are repaired where there is one way to, and other dialects are read; without, they are errors."""
    repair_penalty: float = Field(default=0.0, ge=0.0, le=0.5)
    """Taken off the reward that is trained on for each reply that was repaired, 0.5 at most; never in evaluation."""
