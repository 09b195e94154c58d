"""The calendar of the clinics: days and half hours that can be booked, and their spoken forms."""

import random
from datetime import date, timedelta

from understudy.domains.healthcare.state import TODAY
from understudy.envs.dates import date_variants, format_month_day

WORKING_DAYS = tuple(
    day.isoformat() for day in (date.fromisoformat(TODAY) + timedelta(days=n) for n in range(19)) if day.weekday() < 5
)
"""The working days of three weeks."""
SLOT_TIMES = tuple(f"{hour:02}:{minute}" for hour in (9, 10, 11, 13, 14, 15, 16) for minute in ("00", "30"))
"""Start times of a day's half hours. None starts at noon."""


def half_hour_slots(time: str, minutes: int) -> tuple[str, ...]:
    """Return the start times of the half hours of a visit. A visit across noon has one that is not in `SLOT_TIMES`."""
    start = int(time[:2]) * 60 + int(time[3:])
    return tuple(f"{m // 60:02}:{m % 60:02}" for m in range(start, start + minutes, 30))


def draw_spoken_day(rng: random.Random, day: str) -> str:
    """Return a spoken form of a date in the next weeks."""
    weekday = f"{date.fromisoformat(day):%A}"
    ahead = (date.fromisoformat(day) - date.fromisoformat(TODAY)).days
    forms = [format_month_day(day), f"{weekday}, {format_month_day(day)}"]
    if 1 < ahead < 5:
        forms.append(f"this {weekday}")
    if 7 <= ahead < 12:
        forms.append(f"{weekday} next week")
    return rng.choice(forms)


def draw_spoken_time(rng: random.Random, time: str) -> str:
    """Return a spoken form of a time: 14:30 or 2:30 pm."""
    hour, minute = int(time[:2]), time[3:]
    half = "am" if hour < 12 else "pm"
    return rng.choice((time, f"{(hour - 1) % 12 + 1}:{minute} {half}"))


def format_birthday(day: str) -> str:
    """Return a date as in "May 12, 1984"."""
    return f"{format_month_day(day)}, {day[:4]}"


def time_variants(time: str) -> str:
    """Return the accepted forms of a time, separated by |."""
    hour, minute = int(time[:2]), time[3:]
    twelve, half = (hour - 1) % 12 + 1, "am" if hour < 12 else "pm"
    short = [f"{twelve} {half}", f"{twelve}{half}"] if minute == "00" else []
    return "|".join([time, f"{twelve}:{minute} {half}", f"{twelve}:{minute}{half}", *short])


def datetime_variants(time: str) -> tuple[str, str]:
    """Return the accepted forms of the day and of the time of "2026-03-05 10:30"."""
    return date_variants(time[:10]), time_variants(time[11:])


def format_datetime(time: str) -> str:
    """Return a time as in "2026-03-05 at 10:30"."""
    return time.replace(" ", " at ")
