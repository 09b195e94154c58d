"""Who speaks in a retail talk, and the whole of the gold episode."""

from collections.abc import Iterator, Sequence

from understudy.domains.callers import Identity, asks, caller, settle
from understudy.domains.drafts import Want, call
from understudy.domains.retail.drafts import Draft, Ref
from understudy.domains.talks import Person
from understudy.messages import Message


def person(draft: Draft, identity: Identity) -> Person:
    """The customer, and what they know of themselves."""
    return caller(draft, identity, draft.user.name, draft.email, _zip(draft), "a customer of a web shop")


def gold(draft: Draft, identity: Identity, wants: Sequence[Want]) -> Iterator[Message]:
    """The agent's side: ask for what is missing, find the customer, and deal with each request in turn."""
    first = wants[0].about
    unnamed = isinstance(first, Ref) and first.knows in ("asked", "vague")
    yield from asks(identity, "order number" if unnamed else "")
    if identity == "other":
        yield call("find_user_by_name", name=draft.user.name, zip=_zip(draft))
    else:
        yield call("find_user", email=draft.email)
    yield from settle(wants)


def _zip(draft: Draft) -> str:
    return draft.user.address.split()[-1]
