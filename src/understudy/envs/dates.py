"""Dates such as 2026-03-05 and times such as 14:30 in the forms in which they are written."""

import re
from datetime import date, timedelta

_MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|"
    r"oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b\.?"
)
_DAY, _YEAR = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?", r"(?:,? (?P<year>\d{4}))?(?![\w:])"
_MONTH_START = re.compile(r"\b(?:jan|feb|mar|apr|may|ju[nl]|aug|sep|oct|nov|dec)")
_MONTH_DAY = re.compile(rf"\b{_MONTH} (?:the )?{_DAY}{_YEAR}")
_DAY_MONTH = re.compile(rf"(?<![\w.:/-]){_DAY} (?:of )?{_MONTH}{_YEAR}")
_SLASHES = re.compile(r"(?<![\w./-])(?P<month>\d{1,2})/(?P<day>\d{1,2})(?:/(?P<year>\d{4}))?(?![\w/])")
_YEAR_FIRST = re.compile(r"(?<![\w./-])(?P<year>\d{4})/(?P<month>\d{1,2})/(?P<day>\d{1,2})(?![\w/])")
_TIME = re.compile(
    r"(?<![\w.:])(?P<hour>\d{1,2})(?=:| ?[ap])(?::(?P<minute>\d\d))?(?: ?(?P<half>[ap])\.?m(?!\w))?(?![\w:])"
)


def add_days(day: str, count: int) -> str:
    """Return the date `count` days later."""
    return str(date.fromisoformat(day) + timedelta(days=count))


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


def normalize_dates(text: str) -> str:
    """Return a case-folded text with dates as 2026-03-05, or as "march 5" without a year, and times as 14:30."""
    for pattern in (_YEAR_FIRST, _SLASHES) if "/" in text else ():
        text = pattern.sub(_normal_date, text)
    if _MONTH_START.search(text):
        text = _DAY_MONTH.sub(_normal_date, _MONTH_DAY.sub(_normal_date, text))
    return _TIME.sub(_normal_time, text)


def _normal_date(match: re.Match[str]) -> str:
    name, day, year = match["month"], int(match["day"]), match["year"]
    month = int(name) if name.isdigit() else 1 + [each[:3] for each in _MONTHS].index(name[:3])
    if not 1 <= month <= 12 or not 1 <= day <= 31:
        return match[0]
    return f"{year}-{month:02}-{day:02}" if year else f"{_MONTHS[month - 1]} {day}"


def _normal_time(match: re.Match[str]) -> str:
    hour, minute, half = int(match["hour"]), match["minute"], match["half"]
    if half and 1 <= hour <= 12:
        return f"{hour % 12 + 12 * (half == 'p'):02}:{minute or '00'}"
    return match[0] if half or not minute else f"{hour:02}:{minute}"
