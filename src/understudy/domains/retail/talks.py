"""Who speaks in a retail talk, and the whole of the gold episode."""

from collections.abc import Iterator, Sequence

from understudy.domains.callers import Identity, asks, caller
from understudy.domains.drafts import Want, call, say
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
    if identity == "name":
        yield call("find_user_by_name", name=draft.user.name, zip=_zip(draft))
    else:
        yield call("find_user", email=draft.email)
    read: set[str] = set()
    for want in wants:
        if isinstance(want.about, Ref):
            yield from _reads(draft, want.about, read)
        yield from want.turns


def _reads(draft: Draft, ref: Ref, read: set[str]) -> Iterator[Message]:
    """Read orders until it is the right one."""
    if ref.wrong:
        yield from _read(ref.wrong, read)
        yield say(f"Order {ref.wrong} has no {ref.item.name}. Which order is it?")
    searched = (ref.order.id,) if ref.by_number else draft.user.orders
    for order_id in searched[: searched.index(ref.order.id) + 1]:
        yield from _read(order_id, read)


def _read(order_id: str, read: set[str]) -> Iterator[Message]:
    if order_id not in read:
        read.add(order_id)
        yield call("get_order", order_id=order_id)


def _zip(draft: Draft) -> str:
    return draft.user.address.split()[-1]
