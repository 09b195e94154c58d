"""The calls that vLLM's tool parsers find: python vllm_parsers.py < requests > answers, run in vLLM's Python.

A request is a line of JSON: `parser`, `text` and `tools` (in OpenAI's format). An answer is a list of [name,
arguments], or null if the parser finds no call or fails.
"""

import json
import logging
import sys
from importlib import import_module

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

PARSERS = {
    "hermes": ("hermes_tool_parser", "Hermes2ProToolParser"),
    "llama3": ("llama_tool_parser", "Llama3JsonToolParser"),
    "mistral": ("mistral_tool_parser", "MistralToolParser"),
    "pythonic": ("pythonic_tool_parser", "PythonicToolParser"),
    "qwen3_coder": ("qwen3_engine_tool_parser", "Qwen3EngineToolParser"),
    "deepseek": ("deepseekv31_tool_parser", "DeepSeekV31ToolParser"),
    "glm": ("glm47_moe_tool_parser", "Glm47MoeModelToolParser"),
}
_TOKENS = (
    "<tool_call> </tool_call> <|python_tag|> [TOOL_CALLS] [ARGS] [CALL_ID] <think> </think> <arg_key> </arg_key> "
    "<arg_value> </arg_value> <｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> "
    "<｜tool▁sep｜> <|im_start|> <|im_end|>"
)


class _Tokenizer:
    """The part of a tokenizer that the parsers use: the vocabulary."""

    def get_vocab(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(_TOKENS.split())}

    def encode(self, text: str, **how: object) -> list[int]:
        return []


def parse_calls(request: dict) -> list | None:
    module, name = PARSERS[request["parser"]]
    asked = ChatCompletionRequest(
        model="any", messages=[{"role": "user", "content": "x"}], tools=request["tools"], tool_choice="auto"
    )
    parser = getattr(import_module(f"vllm.tool_parsers.{module}"), name)(_Tokenizer(), asked.tools)
    found = parser.extract_tool_calls(request["text"], asked)
    if not found.tools_called:
        return None
    calls = []
    for call in found.tool_calls:
        try:
            calls.append([call.function.name, json.loads(call.function.arguments)])
        except ValueError:
            return None
    return calls


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # the parsers log a traceback for each text that they cannot parse
    for line in sys.stdin:
        print("answer", json.dumps(parse_calls(json.loads(line))))
