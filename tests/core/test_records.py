"""Test that infinity and NaN survive the JSON of a record."""

import math

from understudy.core.records import Record


class Limits(Record):
    most: float


def test_infinity_survives_json() -> None:
    for value in (math.inf, -math.inf):
        assert Limits.model_validate_json(Limits(most=value).model_dump_json()).most == value
        assert Limits.model_validate(Limits(most=value).model_dump(mode="json")).most == value


def test_nan_survives_json() -> None:
    assert math.isnan(Limits.model_validate_json(Limits(most=math.nan).model_dump_json()).most)
