"""The calendar of the clinics: days and half hours that can be booked, and how people speak of them."""

import random
from datetime import date, timedelta

from understudy.domains.days import month_day
from understudy.domains.healthcare.state import TODAY

DAYS = tuple(
    day.isoformat() for day in (date.fromisoformat(TODAY) + timedelta(days=n) for n in range(19)) if day.weekday() < 5
)
"""The working days of three weeks."""
TIMES = tuple(f"{hour:02}:{minute}" for hour in (9, 10, 11, 13, 14, 15, 16) for minute in ("00", "30"))
"""When the half hours of a day begin; there is none at noon."""


def halves(time: str, minutes: int) -> tuple[str, ...]:
    """The half hours that a visit takes, by their beginnings; one at noon is not among `TIMES`."""
    start = int(time[:2]) * 60 + int(time[3:])
    return tuple(f"{m // 60:02}:{m % 60:02}" for m in range(start, start + minutes, 30))


def plus_days(day: str, days: int) -> str:
    """The date so many days later."""
    return (date.fromisoformat(day) + timedelta(days=days)).isoformat()


def spoken_day(rng: random.Random, day: str) -> str:
    """A near date as people say it."""
    weekday = f"{date.fromisoformat(day):%A}"
    ahead = (date.fromisoformat(day) - date.fromisoformat(TODAY)).days
    forms = [month_day(day), f"{weekday}, {month_day(day)}"]
    if 1 < ahead < 5:
        forms.append(f"this {weekday}")
    if 7 <= ahead < 12:
        forms.append(f"{weekday} next week")
    return rng.choice(forms)


def spoken_time(rng: random.Random, time: str) -> str:
    """A time as people say it: 14:30 or 2:30 pm."""
    hour, minute = int(time[:2]), time[3:]
    half = "am" if hour < 12 else "pm"
    return rng.choice((time, f"{(hour - 1) % 12 + 1}:{minute} {half}"))


def birthday(day: str) -> str:
    """As in "May 12, 1984"."""
    return f"{month_day(day)}, {day[:4]}"


def any_time(time: str) -> str:
    """The ways to name a time, for what has to be named."""
    hour, minute = int(time[:2]), time[3:]
    twelve, half = (hour - 1) % 12 + 1, "am" if hour < 12 else "pm"
    short = [f"{twelve} {half}", f"{twelve}{half}"] if minute == "00" else []
    return "|".join([time, f"{twelve}:{minute} {half}", f"{twelve}:{minute}{half}", *short])
