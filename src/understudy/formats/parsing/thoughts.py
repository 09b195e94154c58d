"""Markers around thoughts. A call between them is never run.

Tags such as `<think>` may have a namespace (`<seed:think>`, `<mm:think>`) or a suffix (`<think:opensource>`), and end
with the same tag and a slash. The other markers are those of Magistral (`[THINK]`), Kimi-VL and Kimi-Dev (`◁think▷`),
Command A (`<|START_THINKING|>`), Apertus (`<|inner_prefix|>`), Gemma 4 (`<|channel>`), OpenThinker
(`<|begin_of_thought|>`), Solar (`<|think|>`), and the sentences of Granite 3.2. `harmony` reads the channel `analysis`.

Sources: `vllm/reasoning/*_reasoning_parser.py` in vllm-project/vllm, and `python/sglang/srt/parser/reasoning_parser.py`
in sgl-project/sglang.
"""

import re
from collections.abc import Mapping, Sequence

from understudy.formats.parsing.scan import OpeningPattern

_NAMES = r"(?:think|thinking|thoughts?|reasoning|scratchpad|reflection|analysis|inner_thoughts?|inner_monologue|cot)"
_TAG = rf"(?i:(?:[a-z][\w-]{{0,15}}+:)?{_NAMES}(?::\w{{1,32}}+)?>)"
_PAIRS: Mapping[str, str] = {
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|inner_prefix|>": "<|inner_suffix|>",
    "<|begin_of_thought|>": "<|end_of_thought|>",
    "<|channel>": "<channel|>",
    "<|think|>": "<|end|>",
    "Here is my thought process:": "Here is my response:",
    "Here's my thought process:": "Here's my response:",
}
"""The markers whose end is not the same marker with a slash."""
OPENINGS: Sequence[OpeningPattern] = (
    # such as: <seed:think>
    ("<", _TAG),
    (r"\[", r"THINK\]"),
    ("◁", "think▷"),
    # such as: <|inner_prefix|>
    ("<", r"\|(?:START_THINKING\|>|inner_prefix\|>|begin_of_thought\|>|channel>|think\|>)"),
    # such as: \nHere is my thought process:
    ("\n", r"Here(?: is|'s) my thought process:"),
)
ENDINGS: Sequence[OpeningPattern] = (
    # such as: </think:opensource>
    ("<", f"/{_TAG}"),
    (r"\[", r"/THINK\]"),
    ("◁", "/think▷"),
    # such as: <|END_THINKING|>
    ("<", r"(?:\|(?:END_THINKING|inner_suffix|end_of_thought)\|>|channel\|>)"),
)

_SOLAR = "<|think|>"
# such as: \n<think>
_LEADING = re.compile(r"\s*+(" + "|".join(f"{first}{rest}" for first, rest in OPENINGS if first != "\n") + ")")


def split_thought(reply: str) -> tuple[str, str, str, str]:
    """Split a reply that starts with a complete thought: the opening marker, the thought, its end marker, the rest.

    The first three are empty if it starts with none, or with Solar's `<|think|>`, whose end marker ends turns in other
    families.
    """
    opening = _LEADING.match(reply)
    end = reply.find(end_marker(opening[1]), opening.end()) if opening and opening[1] != _SOLAR else -1
    if opening is None or end < 0:
        return "", "", "", reply
    start, after = opening.end(), end + len(end_marker(opening[1]))
    return reply[:start], reply[start:end], reply[end:after], reply[after:]


def end_marker(opening: str) -> str:
    """Return the marker that ends a thought with this opening marker."""
    return _PAIRS.get(opening) or f"{opening[0]}/{opening[1:]}"
