"""Text that shows where two token sequences differ, or two lists of log-probabilities for the same tokens.

It has one line for each token near the difference.
"""

from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest

Decode = Callable[[Sequence[int]], str]
CONTEXT_BEFORE, CONTEXT_AFTER = 4, 8


def first_mismatch(first: Sequence[object], second: Sequence[object]) -> int | None:
    """Return the first index where two sequences differ, or None if they are equal."""
    for place, (x, y) in enumerate(zip_longest(first, second, fillvalue=None)):
        if x != y:
            return place
    return None


def differing_places(found: Sequence[int], expected: Sequence[int], borders: Sequence[int]) -> list[int]:
    """Return where `found` differs from `expected`: the start of each differing part that does not touch a border.

    `borders` are places in `found`.
    """
    if (low := first_mismatch(found, expected)) is None:
        return []
    parts = SequenceMatcher(None, found[low:], expected[low:], autojunk=False).get_opcodes()
    differing = [(low + start, low + end) for kind, start, end, *_ in parts if kind != "equal"]
    return [start for start, end in differing if not any(start <= border <= end for border in borders)]


def format_token_diff(expected: Sequence[int], found: Sequence[int], decode: Decode, offset: int = 0) -> str:
    """Return aligned token ids and texts around the first difference, or "" if there is none.

    `>` marks lines that differ. The printed index is that of the expected token, plus `offset`.
    """
    at = first_mismatch(expected, found)
    if at is None:
        return ""
    low = max(0, at - CONTEXT_BEFORE)
    high = at + 4 * CONTEXT_AFTER  # more than is printed, so that the last printed lines are aligned too
    left, right = expected[low:high], found[low:high]
    lines = [_line(" ", "index", "expected", "found")]
    for kind, a, b, c, d in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        for i, (x, y) in enumerate(zip_longest(left[a:b], right[c:d])):
            place = offset + low + a + i if a + i < b else ""
            texts = ("" if token is None else f"{token} {decode([token])!r}" for token in (x, y))
            lines.append(_line(" " if kind == "equal" else ">", place, *texts))
    return "\n".join(lines[: 1 + CONTEXT_BEFORE + CONTEXT_AFTER])


def _line(mark: str, place: object, expected: str, found: str) -> str:
    return f"{mark} {place!s:>6}  {expected:<32}  {found}".rstrip()


def format_logprob_diff(
    tokens: Sequence[int],
    mask: Sequence[bool],
    sampler: Sequence[float],
    trainer: Sequence[float],
    at: int,
    decode: Decode,
) -> str:
    """Return the tokens around position `at`, each with both log-probabilities. `>` marks position `at`."""
    lines = [f"   index  {'token':<32}  mask     sampler     trainer  difference"]
    for i in range(max(0, at - CONTEXT_BEFORE), min(len(tokens), at + CONTEXT_AFTER)):
        token = f"{tokens[i]} {decode([tokens[i]])!r}"
        figures = f"{sampler[i]:>10.5f}  {trainer[i]:>10.5f}  {trainer[i] - sampler[i]:>+10.5f}" if mask[i] else ""
        line = f"{'>' if i == at else ' '} {i:>6}  {token:<32}  {'yes ' if mask[i] else 'no  '}  {figures}"
        lines.append(line.rstrip())
    return "\n".join(lines)
