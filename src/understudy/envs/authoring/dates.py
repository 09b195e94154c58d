"""Dates such as 2026-03-05 in the forms in which they are written."""

from datetime import date


def format_month_day(day: str) -> str:
    """Return a date as in "March 5"."""
    return f"{date.fromisoformat(day):%B} {int(day[8:10])}"


def date_variants(day: str) -> str:
    """Return the forms of a date, separated by |: 2026-03-05, March 5, 5 March, March 5th, 5th of March, 3/5."""
    month, number = format_month_day(day).split()
    ending = {"1": "st", "2": "nd", "3": "rd"}.get("" if number in ("11", "12", "13") else number[-1], "th")
    ordinal = f"{number}{ending}"
    forms = (day, f"{month} {number}", f"{number} {month}", f"{month} {ordinal}", f"{ordinal} of {month}")
    return "|".join((*forms, f"{int(day[5:7])}/{number}"))
