"""Who speaks to the delivery desk, and the whole of the gold episode."""

from collections.abc import Iterator, Sequence

from understudy.domains.callers import Identity, asks, settle
from understudy.domains.doordash import phrases
from understudy.domains.doordash.drafts import Draft, Ref
from understudy.domains.drafts import Want, call
from understudy.domains.talks import Person
from understudy.messages import Message
from understudy.tasks import Fact

_EMAIL, _PHONE = ("email", "e-mail"), ("phone", "telephone")
_NAME = ("your name", "full name", "first name", "last name")


def person(draft: Draft, identity: Identity) -> Person:
    """The customer, and what they know of themselves."""
    name, phone = draft.customer.name, draft.customer.phone
    email = (
        draft.pick(phrases.NO_EMAIL, phone=phone)
        if identity == "other"
        else draft.pick(phrases.EMAIL, email=draft.email)
    )
    facts = (
        Fact(says=email, cues=_EMAIL, opened=identity == "opened"),
        Fact(says=f"My phone number is {phone}.", cues=_PHONE),
        Fact(says=f"My name is {name}.", cues=_NAME),
    )
    return Person(name, "a customer of a food delivery service", facts)


def gold(draft: Draft, identity: Identity, wants: Sequence[Want]) -> Iterator[Message]:
    """The agent's side: ask for what is missing, find the customer, and deal with each request in turn."""
    first = wants[0].about
    yield from asks(identity, "order number" if isinstance(first, Ref) and first.asked else "")
    if identity == "other":
        yield call("find_customer_by_phone", phone=draft.customer.phone)
    else:
        yield call("find_customer", email=draft.email)
    yield from _each_read_once(settle(wants))


def _each_read_once(turns: Iterator[Message]) -> Iterator[Message]:
    """Without calls that would show again what is known."""
    seen: list[Message] = []
    for turn in turns:
        reads = turn.tool_calls and turn.tool_calls[0].name.startswith("get_")
        if not reads or turn not in seen:
            yield turn
        seen.append(turn)
