"""Two token sequences, or two readings of one, side by side: the few lines around where they differ."""

from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest

Decode = Callable[[Sequence[int]], str]
BEFORE, AFTER = 4, 8


def first_difference(one: Sequence[object], other: Sequence[object]) -> int | None:
    """The first place where two sequences differ; None where they are equal."""
    for place, (x, y) in enumerate(zip_longest(one, other, fillvalue=None)):
        if x != y:
            return place
    return None


def side_by_side(expected: Sequence[int], found: Sequence[int], decode: Decode, offset: int = 0) -> str:
    """Token ids with their texts around the first difference, aligned; `>` marks the lines that differ.

    `offset` is added to the places, which count the expected tokens.
    """
    at = first_difference(expected, found)
    if at is None:
        return ""
    low, high = max(0, at - BEFORE), at + 4 * AFTER  # more than is shown, so that the last lines are aligned too
    left, right = expected[low:high], found[low:high]
    lines = [_line(" ", "place", "expected", "found")]
    for kind, a, b, c, d in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        for i, (x, y) in enumerate(zip_longest(left[a:b], right[c:d])):
            place = offset + low + a + i if a + i < b else ""
            texts = ("" if token is None else f"{token} {decode([token])!r}" for token in (x, y))
            lines.append(_line(" " if kind == "equal" else ">", place, *texts))
    return "\n".join(lines[: 1 + BEFORE + AFTER])


def _line(mark: str, place: object, expected: str, found: str) -> str:
    return f"{mark} {place!s:>6}  {expected:<32}  {found}".rstrip()


def logprobs_beside(
    tokens: Sequence[int],
    mask: Sequence[bool],
    sampler: Sequence[float],
    trainer: Sequence[float],
    at: int,
    decode: Decode,
) -> str:
    """The tokens around place `at`, each with both log-probabilities; `>` marks the line."""
    lines = [f"   place  {'token':<32}  mask     sampler     trainer  difference"]
    for i in range(max(0, at - BEFORE), min(len(tokens), at + AFTER)):
        token = f"{tokens[i]} {decode([tokens[i]])!r}"
        figures = f"{sampler[i]:>10.5f}  {trainer[i]:>10.5f}  {trainer[i] - sampler[i]:>+10.5f}" if mask[i] else ""
        line = f"{'>' if i == at else ' '} {i:>6}  {token:<32}  {'yes ' if mask[i] else 'no  '}  {figures}"
        lines.append(line.rstrip())
    return "\n".join(lines)
