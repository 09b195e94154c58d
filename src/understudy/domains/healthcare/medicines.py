"""Requests about medicines: have one filled again, and have another pharmacy hand it out."""

from dataclasses import replace

from understudy.domains.days import any_day
from understudy.domains.drafts import Want, call, change, propose, say
from understudy.domains.healthcare import phrases, refs
from understudy.domains.healthcare.dates import plus_days
from understudy.domains.healthcare.drafts import Draft
from understudy.domains.healthcare.state import SOON, TODAY, Prescription
from understudy.domains.talks import MIND
from understudy.messages import Message
from understudy.tasks import Fact

_REFILL = "refill|refilled|renew|renewal|renewed|fill|filled"
_WHICH_PHARMACY = ("which pharmacy", "what pharmacy", "new pharmacy", "where")


def refill(draft: Draft, ok: bool, easy: bool) -> Want:
    """Have a medicine filled again; its doctor is asked where the pharmacy may not do it without."""
    row = _plain(draft)
    if not ok and draft.likely(0.6):
        row = draft.change("prescriptions", row, lasts_until=plus_days(SOON, draft.random.randint(1, 40)))
    elif not ok:
        row = _requested(draft, row)
    elif draft.likely(0.4):
        row = _for_doctor(draft, row)
    ref = refs.medicine(draft, row, easy)
    fact = Fact(says=phrases.RENEW, cues=("renew", "doctor"))
    turns = refs.reads(ref, "prescriptions")
    want = Want(draft.pick(phrases.REFILL), ref, turns, names=(*ref.names, _REFILL), facts=(fact,))
    if row.requested:
        return _busy(draft, want, row, easy)
    if not ok:
        owner = draft.owner if draft.caller else "Your"
        text = f"{owner} {row.drug} lasts until {row.lasts_until}, so I cannot refill it yet."
        return draft.refused(want, text, any_day(row.lasts_until), easy=easy)
    return replace(want, turns=want.turns + _filled(row))


def move_medicine(draft: Draft, ok: bool, easy: bool) -> Want:
    """Have another pharmacy hand out a medicine: one that is named, or the one of two that closes later."""
    row = _plain(draft)
    if not ok:
        row = (_controlled(draft) if draft.likely(0.5) else None) or _requested(draft, row)
    ref = refs.medicine(draft, row, easy)
    compared, vague = not easy and draft.likely(0.4), not easy and draft.likely(0.3)
    target, other = _pharmacies(draft, row)
    one, two = draft.random.sample((target, other), 2)
    to = draft.pick(phrases.LATER, one=one, two=two) if compared else target
    fact = Fact(says=f"To {to}.", cues=_WHICH_PHARMACY, opened=not vague)
    text = draft.pick(phrases.PHARMACY_VAGUE if vague else phrases.PHARMACY, pharmacy=to)
    names = (*ref.names, target)
    want = Want(text, ref, refs.reads(ref, "prescriptions"), names=names, facts=(fact,))
    if row.controlled:
        text = f"{row.drug.capitalize()} is controlled, so I cannot move it to another pharmacy."
        return draft.refused(want, text, "controlled", easy=easy)
    if row.requested:
        return _busy(draft, want, row, easy)
    asks = (say("To which pharmacy do you want to move it?"),) if vague else ()
    looks = (call("find_pharmacies"),) if compared else ()
    return replace(want, turns=(*want.turns, *asks, *looks, *_moved(row, target)))


def other_pharmacy(draft: Draft, ok: bool, easy: bool) -> Want:
    """Want a medicine moved to one pharmacy, and to another one when asked to confirm that."""
    row = _plain(draft)
    ref, (target, first) = refs.medicine(draft, row, easy), _pharmacies(draft, row)
    text = draft.pick(phrases.PHARMACY, pharmacy=first)
    meant = f"{draft.pick(MIND)} {draft.pick(phrases.PHARMACY, pharmacy=target)}"
    turns = (*refs.reads(ref, "prescriptions"), propose(f"move {_named(row)} to {first}"), *_moved(row, target))
    return Want(text, ref, turns, names=(*ref.names, target), meant=meant)


def _plain(draft: Draft) -> Prescription:
    """Have a prescription that can be filled again."""
    rows: list[Prescription] = [row for row in draft.own("prescriptions") if not row.controlled]
    fields = {
        "refills": draft.random.randint(1, 5),
        "expires": plus_days(TODAY, draft.random.randint(20, 300)),
        "lasts_until": plus_days(TODAY, draft.random.randint(-3, 7)),
    }
    return draft.change("prescriptions", draft.random.choice(rows), **fields)


def _for_doctor(draft: Draft, row: Prescription) -> Prescription:
    """Have the prescription expired or without refills, or take one that is controlled."""
    choice = draft.random.choice(("expired", "used up", "controlled"))
    if choice == "controlled":
        controlled = _controlled(draft)
        same = {"lasts_until": row.lasts_until}
        return draft.change("prescriptions", controlled, **same) if controlled else _for_doctor(draft, row)
    expired = {"expires": plus_days(TODAY, -draft.random.randint(1, 60))}
    return draft.change("prescriptions", row, **(expired if choice == "expired" else {"refills": 0}))


def _controlled(draft: Draft) -> Prescription | None:
    rows: list[Prescription] = [row for row in draft.own("prescriptions") if row.controlled]
    return draft.random.choice(rows) if rows else None


def _requested(draft: Draft, row: Prescription) -> Prescription:
    """Have the pharmacy or the doctor busy with the prescription."""
    return draft.change("prescriptions", row, requested=draft.random.choice(("refill", "renewal")))


def _pharmacies(draft: Draft, row: Prescription) -> tuple[str, str]:
    """Two pharmacies that the prescription is not at, the one that closes later first."""
    known = {name: p.closes for name, p in draft.world.pharmacies.items() if name != row.pharmacy}
    first = draft.random.choice([name for name, closes in known.items() if closes > min(known.values())])
    return first, draft.random.choice([name for name, closes in known.items() if closes < known[first]])


def _filled(row: Prescription) -> tuple[Message, ...]:
    if not row.needs_doctor:
        do = call("request_refill", prescription_id=row.id)
        return change(f"request a refill of {_named(row)}", do, "The refill is requested.")
    do = call("request_renewal", prescription_id=row.id)
    why = f"because it {row.needs_doctor}"
    return change(f"ask Dr. {row.doctor} to renew {_named(row)}, {why}", do, "The renewal is requested.")


def _moved(row: Prescription, target: str) -> tuple[Message, ...]:
    do = call("change_pharmacy", prescription_id=row.id, pharmacy=target)
    return change(f"move {_named(row)} to {target}", do, "The prescription is moved.")


def _named(row: Prescription) -> str:
    return f"{row.drug} {row.strength} (prescription {row.id})"


def _busy(draft: Draft, want: Want, row: Prescription, easy: bool) -> Want:
    text = f"A {row.requested} of {row.drug} is requested already, so I cannot do that now."
    return draft.refused(want, text, "requested|in progress", easy=easy)
