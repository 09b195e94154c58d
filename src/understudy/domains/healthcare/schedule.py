"""Doctors' schedules: find, reserve and release half hours."""

from understudy.domains.healthcare.clinic_calendar import SLOT_TIMES, WORKING_DAYS, half_hour_slots
from understudy.domains.healthcare.state import NOW, Appointment, DoctorDay, HealthcareState


def free_times(state: HealthcareState, doctor: str, day: str, minutes: int) -> list[str]:
    """Return the times of a day at which a visit of that length can begin."""
    row = state.schedule.get(f"{doctor} {day}")
    free = row.free if row else ()
    return [time for time in free if f"{day} {time}" > NOW and set(half_hour_slots(time, minutes)) <= set(free)]


def first_free_times(state: HealthcareState, doctor: str, minutes: int, limit: int) -> list[str]:
    """Return the first days and times at which such a visit can begin."""
    found: list[str] = []
    for day in WORKING_DAYS:
        found += (f"{day} {time}" for time in free_times(state, doctor, day, minutes))
        if len(found) >= limit:
            break
    return found[:limit]


def reserve_slots(state: HealthcareState, doctor: str, day: str, time: str, minutes: int) -> None:
    """Reserve half hours of a doctor."""
    key, gone = f"{doctor} {day}", half_hour_slots(time, minutes)
    state.schedule[key] = DoctorDay(free=tuple(t for t in state.schedule[key].free if t not in gone))


def release_slots(state: HealthcareState, visit: Appointment) -> None:
    """Release the half hours of a visit."""
    day, time = visit.time.split()
    key = f"{visit.doctor} {day}"
    free = {*state.schedule.get(key, DoctorDay(free=())).free, *half_hour_slots(time, visit.minutes)}
    state.schedule[key] = DoctorDay(free=tuple(t for t in SLOT_TIMES if t in free))


def overlaps(visit: Appointment, day: str, time: str, minutes: int) -> bool:
    """Return whether a visit overlaps with a time."""
    other_day, other_time = visit.time.split()
    return other_day == day and bool(
        set(half_hour_slots(other_time, visit.minutes)) & set(half_hour_slots(time, minutes))
    )
