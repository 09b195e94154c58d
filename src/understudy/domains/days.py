"""Days: how a date like 2026-03-05 is said and written."""

from datetime import date


def month_day(day: str) -> str:
    """As in "March 5"."""
    return f"{date.fromisoformat(day):%B} {int(day[8:10])}"


def any_day(day: str) -> str:
    """The ways to name a date, for what has to be named: 2026-03-05, March 5, 5 March, March 5th, 5th of March, 3/5."""
    month, number = month_day(day).split()
    ending = {"1": "st", "2": "nd", "3": "rd"}.get("" if number in ("11", "12", "13") else number[-1], "th")
    ordinal = f"{number}{ending}"
    forms = (day, f"{month} {number}", f"{number} {month}", f"{month} {ordinal}", f"{ordinal} of {month}")
    return "|".join((*forms, f"{int(day[5:7])}/{number}"))
