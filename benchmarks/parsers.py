"""Compare the reply parser with vLLM's Hermes parser: speed and parsed calls, in one process, on the same replies.

    PYTHONPATH=src $(PYTHONPATH=tests python -m support.vllm_server) benchmarks/parsers.py PATH

PATH is a JSONL file. Each row has `text`, a reply, and may have `expected_calls`, a list of {"name", "kwargs"}. There
are two measurements: the replies as they are, and the expected calls written in Hermes format. vLLM's parser supports
only the latter; it returns a reply without `<tool_call>` unparsed.
"""

import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser

from understudy.core.messages import ToolCall
from understudy.formats.parsing.parse import parse_reply, render_reply

ROUNDS = 21


class _Tokenizer:
    """The part of a tokenizer that the parser uses."""

    def get_vocab(self) -> dict[str, int]:
        return {"<tool_call>": 0, "</tool_call>": 1}


def compare(name: str, texts: Sequence[str]) -> None:
    parser, request = Hermes2ProToolParser(_Tokenizer()), ChatCompletionRequest(model="any", messages=[])
    readers: dict[str, Callable[[str], int]] = {
        "understudy": lambda text: sum(not call.parse_error for call in parse_reply(text, "hermes").calls),
        "vLLM": lambda text: len(parser.extract_tool_calls(text, request).tool_calls),
    }
    seconds: dict[str, list[float]] = {reader: [] for reader in readers}
    for _ in range(ROUNDS):  # the sides alternate, so that other programs slow both alike
        for reader, read in readers.items():
            start = time.perf_counter()
            for text in texts:
                read(text)
            seconds[reader].append(time.perf_counter() - start)
    print(f"{name}: {len(texts)} replies, {sum(map(len, texts)):,} characters")
    for reader, read in readers.items():
        found, best = sum(map(read, texts)), min(seconds[reader])
        print(f"  {reader:10} {len(texts) / best:10,.0f} replies/s   {found:6} calls parsed")
    ratio = median(theirs / ours for ours, theirs in zip(*seconds.values(), strict=True))
    print(f"  understudy is {ratio:.2f} times as fast (median of {ROUNDS} rounds)\n")


def main() -> None:
    if len(sys.argv) < 2:
        return print(__doc__)
    logging.disable(logging.CRITICAL)  # vLLM's parser logs a traceback for each reply that it cannot parse
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    labelled = [
        [ToolCall(name=call["name"], arguments=call["kwargs"]) for call in row["expected_calls"]]
        for row in rows
        if row.get("expected_calls")
    ]
    compare("expected calls in Hermes format", [render_reply("", calls, "hermes") for calls in labelled])
    compare("original replies", [row["text"] for row in rows])


if __name__ == "__main__":
    main()
