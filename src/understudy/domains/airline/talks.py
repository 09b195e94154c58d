"""Who speaks at the airline's desk, and the whole of the gold episode."""

from collections.abc import Iterator, Sequence

from understudy.domains.airline.drafts import Draft, Ref
from understudy.domains.callers import Identity, asks, caller
from understudy.domains.drafts import Want, call, say
from understudy.domains.talks import Person
from understudy.messages import Message


def person(draft: Draft, identity: Identity) -> Person:
    """The customer, and what they know of themselves."""
    return caller(draft, identity, draft.customer.name, draft.email, _zip(draft), "a customer of an airline")


def gold(draft: Draft, identity: Identity, wants: Sequence[Want]) -> Iterator[Message]:
    """The agent's side: ask for what is missing, find the customer, and deal with each request in turn."""
    first = wants[0].about
    unnamed = isinstance(first, Ref) and first.knows in ("asked", "vague")
    yield from asks(identity, "reservation code" if unnamed else "")
    if identity == "name":
        yield call("find_customer_by_name", name=draft.customer.name, zip=_zip(draft))
    else:
        yield call("find_customer", email=draft.email)
    read: set[str] = set()
    for want in wants:
        if isinstance(want.about, Ref):
            yield from _reads(draft, want.about, read)
        yield from want.turns


def _reads(draft: Draft, ref: Ref, read: set[str]) -> Iterator[Message]:
    """Read reservations until it is the right one."""
    if ref.wrong:
        yield from _read(ref.wrong, read)
        yield say(f"Reservation {ref.wrong} does not go to {ref.city}. Which reservation is it?")
    searched = (ref.reservation.id,) if ref.by_code else draft.customer.reservations
    for code in searched[: searched.index(ref.reservation.id) + 1]:
        yield from _read(code, read)


def _read(code: str, read: set[str]) -> Iterator[Message]:
    if code not in read:
        read.add(code)
        yield call("get_reservation", reservation_id=code)


def _zip(draft: Draft) -> str:
    return draft.customer.address.split()[-1]
