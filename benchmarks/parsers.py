"""How fast replies are read beside vLLM's Hermes parser, and what each finds; both in one process, on the same replies.

    PYTHONPATH=src $(python tests/vllm_server.py) benchmarks/parsers.py PATH

PATH is JSONL; each line has `text`, a reply, and may have `expected_calls`, a list of {"name", "kwargs"}. Replies are
read as they are, and the labelled calls once more, written as Hermes writes them, which is what vLLM's parser is for: a
reply without `<tool_call>` it hands back after one look.
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

from understudy.formats.parse import parse, render
from understudy.messages import ToolCall

ROUNDS = 21


class _Tokenizer:
    """All that the parser asks of one."""

    def get_vocab(self) -> dict[str, int]:
        return {"<tool_call>": 0, "</tool_call>": 1}


def compare(name: str, texts: Sequence[str]) -> None:
    parser, request = Hermes2ProToolParser(_Tokenizer()), ChatCompletionRequest(model="any", messages=[])
    readers: dict[str, Callable[[str], int]] = {
        "understudy": lambda text: sum(not call.malformed for call in parse(text, "hermes").calls),
        "vllm": lambda text: len(parser.extract_tool_calls(text, request).tool_calls),
    }
    seconds: dict[str, list[float]] = {reader: [] for reader in readers}
    for _ in range(ROUNDS):  # in turn, so that what else the machine does slows both
        for reader, read in readers.items():
            start = time.perf_counter()
            for text in texts:
                read(text)
            seconds[reader].append(time.perf_counter() - start)
    print(f"{name}: {len(texts)} replies, {sum(map(len, texts)):,} characters")
    for reader, read in readers.items():
        found, best = sum(map(read, texts)), min(seconds[reader])
        print(f"  {reader:10} {len(texts) / best:10,.0f} replies/s   {found:6} calls found")
    ratio = median(theirs / ours for ours, theirs in zip(*seconds.values(), strict=True))
    print(f"  understudy is {ratio:.2f} times as fast (median of {ROUNDS} rounds)\n")


def main() -> None:
    if len(sys.argv) < 2:
        return print(__doc__)
    logging.disable(logging.CRITICAL)  # vLLM's parser logs what it cannot read, with the traceback
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    labelled = [
        [ToolCall(name=call["name"], arguments=call["kwargs"]) for call in row["expected_calls"]]
        for row in rows
        if row.get("expected_calls")
    ]
    compare("as Hermes writes them", [render("", calls, "hermes") for calls in labelled])
    compare("as they are", [row["text"] for row in rows])


if __name__ == "__main__":
    main()
