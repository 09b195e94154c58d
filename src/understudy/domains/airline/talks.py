"""Who speaks at the airline's desk, and the whole of the gold episode."""

from collections.abc import Iterator, Sequence

from understudy.domains.airline.drafts import Draft, Ref
from understudy.domains.callers import Identity, asks, caller, settle
from understudy.domains.drafts import Want, call
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
    if identity == "other":
        yield call("find_customer_by_name", name=draft.customer.name, zip=_zip(draft))
    else:
        yield call("find_customer", email=draft.email)
    yield from settle(wants)


def _zip(draft: Draft) -> str:
    return draft.customer.address.split()[-1]
