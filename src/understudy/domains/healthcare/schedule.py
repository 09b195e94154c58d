"""Doctors' calendars: when a visit fits, and what taking and freeing half hours does to them."""

from understudy.domains.healthcare.dates import DAYS, TIMES, halves
from understudy.domains.healthcare.state import NOW, Appointment, Day, HealthcareState


def free_on(state: HealthcareState, doctor: str, day: str, minutes: int) -> list[str]:
    """The times of a day at which a visit of that length can begin."""
    row = state.schedule.get(f"{doctor} {day}")
    free = row.free if row else ()
    return [time for time in free if f"{day} {time}" > NOW and set(halves(time, minutes)) <= set(free)]


def first_free(state: HealthcareState, doctor: str, minutes: int, most: int) -> list[str]:
    """The first days and times at which such a visit can begin."""
    found: list[str] = []
    for day in DAYS:
        found += (f"{day} {time}" for time in free_on(state, doctor, day, minutes))
        if len(found) >= most:
            break
    return found[:most]


def take(state: HealthcareState, doctor: str, day: str, time: str, minutes: int) -> None:
    """Take half hours out of a doctor's free ones."""
    key, gone = f"{doctor} {day}", halves(time, minutes)
    state.schedule[key] = Day(free=tuple(t for t in state.schedule[key].free if t not in gone))


def give_back(state: HealthcareState, visit: Appointment) -> None:
    """Make the half hours of a visit free again."""
    day, time = visit.time.split()
    key = f"{visit.doctor} {day}"
    free = {*state.schedule.get(key, Day(free=())).free, *halves(time, visit.minutes)}
    state.schedule[key] = Day(free=tuple(t for t in TIMES if t in free))


def overlaps(visit: Appointment, day: str, time: str, minutes: int) -> bool:
    """Whether a visit is at the same time as another one would be."""
    other_day, other_time = visit.time.split()
    return other_day == day and bool(set(halves(other_time, visit.minutes)) & set(halves(time, minutes)))
