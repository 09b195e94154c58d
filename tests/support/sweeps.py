"""The fixed sample of a sweep: a test that asserts one thing for many cases, such as every attempt to escape.

`make test` runs about one case in four of a test with the mark `sweep`. The others are marked slow, so `make test-slow`
runs them.
"""

from collections import Counter
from collections.abc import Iterable

import pytest

SHARE = 0.25
_GOLDEN = (5**0.5 - 1) / 2


def in_sample(number: int) -> bool:
    """Return whether the case with this number is in the sample.

    Multiples of the golden ratio are spread evenly, also over every second case, every third and so on. So the sample
    has about every fourth case of each kind, whether the kinds follow each other or alternate.
    """
    return number * _GOLDEN % 1 < SHARE


def mark_slow_cases(items: Iterable[pytest.Item]) -> None:
    """Mark the cases of sweeps that are not in the sample as slow."""
    cases = Counter[str]()
    for item in items:
        if item.get_closest_marker("sweep"):
            test = item.nodeid.partition("[")[0]
            if not in_sample(cases[test]):
                item.add_marker("slow")
            cases[test] += 1
