"""Who speaks in a retail talk, and the whole of the gold episode."""

from collections.abc import Iterator, Sequence

from understudy.domains.drafts import Want, call, say
from understudy.domains.retail import phrases
from understudy.domains.retail.drafts import Draft, Identity, Ref
from understudy.domains.talks import Person
from understudy.messages import Message
from understudy.tasks import Fact

_EMAIL = ("email", "e-mail")
_NAME, _ZIP = ("your name", "full name", "first name", "last name"), ("zip", "postal code", "postcode")


def person(draft: Draft, identity: Identity) -> Person:
    """The customer, and what they know of themselves."""
    name, zip_code = draft.user.name, _zip(draft)
    email = (
        draft.pick(phrases.NO_EMAIL, name=name, zip=zip_code)
        if identity == "name"
        else draft.pick(phrases.EMAIL, email=draft.email)
    )
    facts = (
        Fact(says=email, cues=_EMAIL, opened=identity == "opened"),
        Fact(says=f"My name is {name}.", cues=_NAME),
        Fact(says=f"My zip is {zip_code}.", cues=_ZIP),
    )
    return Person(name, "a customer of a web shop", facts)


def gold(draft: Draft, identity: Identity, wants: Sequence[Want]) -> Iterator[Message]:
    """The agent's side: ask for what is missing, find the customer, and deal with each request in turn."""
    yield from _asks(identity, wants[0].about)
    if identity == "name":
        yield call("find_user_by_name", name=draft.user.name, zip=_zip(draft))
    else:
        yield call("find_user", email=draft.email)
    read: set[str] = set()
    for want in wants:
        if isinstance(want.about, Ref):
            yield from _reads(draft, want.about, read)
        yield from want.turns


def _asks(identity: Identity, about: object) -> Iterator[Message]:
    unnamed = isinstance(about, Ref) and about.knows in ("asked", "vague")
    missing = {"email": identity != "opened", "order number": unnamed}
    if all(missing.values()):
        yield say("What are your email and your order number?")
    elif any(missing.values()):
        yield say(f"What is your {max(missing, key=lambda name: missing[name])}?")


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
