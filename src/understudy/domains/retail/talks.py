"""From a talk's requests to a task: what the user says first and knows, and the whole of the gold episode."""

from collections.abc import Iterator, Sequence

from understudy.domains.retail import phrases
from understudy.domains.retail.drafts import Draft, Ref, Talk, Want, call, say
from understudy.messages import Message
from understudy.tasks import Difficulty, Fact, Scenario, Wish

_EMAIL = ("email", "e-mail")
_NAME, _ZIP = ("your name", "full name", "first name", "last name"), ("zip", "postal code", "postcode")
_ORDER = ("which order", "what order", "order number", "order id", "number of", "which of", "order you")


def scenario(draft: Draft, talk: Talk, difficulty: Difficulty) -> Scenario:
    """The user's side."""
    personas = ("plain", "plain", "terse") if difficulty == "easy" else ("plain", "chatty", "terse")
    facts, wishes = _facts(draft, talk), tuple(_wish(draft, want) for want in talk.wants)
    opening = _opening(draft, talk)
    return Scenario(
        instructions=_instructions(draft, opening, facts, wishes),
        opening=opening,
        facts=facts,
        wishes=wishes,
        persona=draft.random.choice(personas),
        patience=3 + (difficulty != "easy") + any(want.meant for want in talk.wants),
    )


def gold(draft: Draft, talk: Talk) -> Iterator[Message]:
    """The agent's side: ask for what is missing, find the customer, and deal with each request in turn."""
    yield from _asks(talk)
    if talk.identity == "name":
        yield call("find_user_by_name", name=draft.user.name, zip=_zip(draft))
    else:
        yield call("find_user", email=draft.email)
    read: set[str] = set()
    for want in talk.wants:
        if want.ref:
            yield from _reads(draft, want.ref, read)
        yield from want.turns


def _asks(talk: Talk) -> Iterator[Message]:
    ref = talk.wants[0].ref
    missing = {"email": talk.identity != "opened", "order number": ref is not None and ref.knows in ("asked", "vague")}
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


def _opening(draft: Draft, talk: Talk) -> str:
    first, *others = talk.wants
    texts = [first.says(first.ref.said if first.ref else "")]
    for want in others if draft.likely(0.5) else ():
        texts.append(draft.pick(phrases.SECOND) + _lower(want.says(want.ref.known if want.ref else "")))
    if talk.identity == "opened":
        texts.insert(draft.random.choice((0, len(texts))), draft.pick(phrases.EMAIL, email=draft.email))
    return draft.pick(phrases.GREETINGS) + " ".join(texts)


def _lower(text: str) -> str:
    return text if text.startswith(("I ", "Order ")) else text[0].lower() + text[1:]


def _facts(draft: Draft, talk: Talk) -> tuple[Fact, ...]:
    """What the user knows of himself or herself."""
    name, zip_code = draft.user.name, _zip(draft)
    email = (
        draft.pick(phrases.NO_EMAIL, name=name, zip=zip_code)
        if talk.identity == "name"
        else draft.pick(phrases.EMAIL, email=draft.email)
    )
    return (
        Fact(says=email, cues=_EMAIL, opened=talk.identity == "opened"),
        Fact(says=f"My name is {name}.", cues=_NAME),
        Fact(says=f"My zip is {zip_code}.", cues=_ZIP),
    )


def _wish(draft: Draft, want: Want) -> Wish:
    wish = want.wish()
    return wish.replace(facts=(*_order_facts(draft, want.ref), *wish.facts)) if want.ref else wish


def _order_facts(draft: Draft, ref: Ref) -> tuple[Fact, ...]:
    if ref.wrong:
        return (Fact(says=draft.pick(phrases.MISTAKEN, id=ref.order.id), cues=_ORDER),)
    if ref.by_number:
        return (Fact(says=draft.pick(phrases.ORDER, id=ref.order.id), cues=_ORDER, opened=ref.knows == "told"),)
    return (Fact(says=draft.pick(phrases.NO_ORDER, item=ref.item.name), cues=_ORDER),)


def _instructions(draft: Draft, opening: str, facts: Sequence[Fact], wishes: Sequence[Wish]) -> str:
    """The scenario in prose."""
    known = " ".join(fact.says for fact in (*facts, *(fact for wish in wishes for fact in wish.facts)))
    wanted = " ".join(f"({i}) {wish.says}" for i, wish in enumerate(wishes, 1))
    refusal = "Contest a first refusal, accept the second." if any(w.contests for w in wishes) else "Accept a refusal."
    return (
        f"You are {draft.user.name}, a customer of a web shop. You begin with: {opening!r} "
        f"What you want, one thing after the other: {wanted} What you can say when asked: {known} "
        f"Say yes only to a proposal of exactly what you want, else say what you want. {refusal} Then leave."
    )


def _zip(draft: Draft) -> str:
    return draft.user.address.split()[-1]
