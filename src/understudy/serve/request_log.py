"""The log of a server: each request with its replies, as rows of chat completions that `data convert` reads.

Token ids have the names that vLLM gives them.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from understudy.core.files import append_bytes, os_errors_as_config_errors
from understudy.core.messages import message_to_openai, tool_to_openai
from understudy.serve.generation import ReplyChunk
from understudy.serve.requests import ApiError, ChatCompletionRequest
from understudy.serve.responses import message_to_wire

LOG_COLUMNS = ("created", "model", "messages", "tools", "prompt_token_ids", "choices")
"""The columns of a row."""


class RequestLog:
    """A JSONL file to which requests are appended. Raise ConfigError if it cannot be written."""

    def __init__(self, file: Path) -> None:
        self._file = file
        with os_errors_as_config_errors(file, "give another --log"):
            self._append("")

    def add(self, request: ChatCompletionRequest, prompt: Sequence[int], chunks: Sequence[ReplyChunk]) -> None:
        """Append a request and all chunks of its replies. Raise ApiError if the file cannot be written."""
        values = (
            int(time.time()),
            request.model,
            [message_to_openai(message) for message in request.conversation],
            [tool_to_openai(tool) for tool in request.callable_tools],
            list(prompt),
            [_choice(index, chunks) for index in range(request.n)],
        )
        row = dict(zip(LOG_COLUMNS, values, strict=True))
        try:
            self._append(json.dumps(row) + "\n")
        except OSError as e:
            raise ApiError(f"{self._file}: {e.strerror}: the reply is not logged", code="overloaded", status=503) from e

    def _append(self, text: str) -> None:
        append_bytes(self._file, text.encode())


def _choice(index: int, chunks: Sequence[ReplyChunk]) -> dict[str, Any]:
    own = [chunk for chunk in chunks if chunk.index == index]
    (end,) = [chunk.reply_end for chunk in own if chunk.reply_end]
    return {
        "index": index,
        "message": message_to_wire(end.message),
        "finish_reason": end.finish_reason,
        "token_ids": [token for chunk in own for token in chunk.tokens],
        "token_logprobs": [logprob for chunk in own for logprob in chunk.logprobs],
    }
