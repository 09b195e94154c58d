"""Options of the chat format."""

from typing import Literal

from pydantic import Field

from understudy.core.records import Record

ToolFormat = Literal[
    "hermes",
    "qwen3_coder",
    "llama3",
    "mistral",
    "pythonic",
    "deepseek",
    "dsml",
    "harmony",
    "glm",
    "gemma",
    "apertus",
    "minimax",
    "json",
    "openai",
    "react",
    "xml",
]


class FormatConfig(Record):
    """How conversations are rendered and replies are parsed."""

    tool_format: ToolFormat | None = None
    """Syntax of tool calls; by default that of the model's chat template. If set, tools, calls and results are plain
    text to the template. Models whose template has no tool calls need it."""
    enable_thinking: bool = False
    """Turn thinking on for models whose template can switch it off."""
    repair_penalty: float = Field(default=0.0, ge=0.0, le=0.5)
    """Deduction from the training reward for each repaired reply, at most 0.5 in all. Evaluation does not apply it."""
