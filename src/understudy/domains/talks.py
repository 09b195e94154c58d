"""From a talk's requests to the user's side of a task: what is said first, and what is known, wanted and done."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from understudy.domains.drafts import Draft, Want
from understudy.tasks import Deed, Difficulty, Fact, Persona, Scenario, Wish

GREETINGS = ("", "", "", "Hi. ", "Hello. ", "Hello there. ", "Good morning. ", "Hey. ")
SECOND = ("Also, ", "And one more thing: ", "After that, ", "Then, ")
MIND = ("I changed my mind.", "Wait, that is not right.", "Hold on, I thought again.", "Sorry, I got that wrong.")
"""How a change of mind begins."""

PERSONAS: Mapping[Difficulty, Sequence[Persona]] = {
    "easy": ("plain", "plain", "terse"),
    "medium": ("plain", "chatty", "terse"),
    "hard": ("plain", "chatty", "terse"),
}


@dataclass(frozen=True)
class Person:
    """Who speaks: a name, a role such as "a customer of a web shop", and facts that say who it is."""

    name: str
    role: str
    facts: tuple[Fact, ...]
    """Those `opened` are said in the opening, at its beginning or its end."""


def scenario(draft: Draft, person: Person, wants: Sequence[Want], difficulty: Difficulty) -> Scenario:
    """The user's side."""
    wishes = tuple(want.wish() for want in wants)
    opening = _opening(draft, person, wants)
    return Scenario(
        instructions=_instructions(person, opening, wants, wishes),
        opening=opening,
        facts=person.facts,
        wishes=wishes,
        deeds=_deeds(wants),
        persona=draft.random.choice(PERSONAS[difficulty]),
        patience=3 + (difficulty != "easy") + any(want.meant for want in wants),
    )


def outputs(wants: Sequence[Want]) -> tuple[str, ...]:
    """All that the agent has to tell."""
    return tuple(output for want in wants for output in want.outputs)


def _opening(draft: Draft, person: Person, wants: Sequence[Want]) -> str:
    """The first request, perhaps the others, and who speaks."""
    texts = [wants[0].first]
    for want in wants[1:] if draft.likely(0.5) else ():
        texts.append(draft.pick(SECOND) + _lower(want.later))
    for fact in person.facts:
        if fact.opened:
            texts.insert(draft.random.choice((0, len(texts))), fact.says)
    return draft.pick(GREETINGS) + " ".join(texts)


def _lower(text: str) -> str:
    """A request as it goes on after "Also, ": names and ids keep their capital."""
    first = text.partition(" ")[0]
    return text if first == "I" or not first.isalpha() or first.isupper() else text[0].lower() + text[1:]


def _instructions(person: Person, opening: str, wants: Sequence[Want], wishes: Sequence[Wish]) -> str:
    """The scenario in prose, for a user played by a language model or a person."""
    known = " ".join(fact.says for fact in (*person.facts, *(fact for wish in wishes for fact in wish.facts)))
    wanted = " ".join(f"({i}) {wish.says}" for i, wish in enumerate(wishes, 1))
    refusal = "Contest a first refusal, accept the second." if any(w.contests for w in wishes) else "Accept a refusal."
    return (
        f"You are {person.name}, {person.role}. You begin with: {opening!r} "
        f"What you want, one thing after the other: {wanted} What you can say when asked: {known} {_doing(wants)}"
        f"Say yes only to a proposal of exactly what you want{_steps(wants)}, else say what you want. "
        f"{refusal} Then leave."
    )


def _deeds(wants: Sequence[Want]) -> tuple[Deed, ...]:
    """What the user can do for any of the requests, each once."""
    deeds: list[Deed] = []
    for want in wants:
        deeds += [deed for deed in want.deeds if deed not in deeds]
    return tuple(deeds)


def _doing(wants: Sequence[Want]) -> str:
    if not any(want.deeds for want in wants):
        return ""
    text = "You have something in hand: a step that you are told to take is taken and told for you. "
    return text + "You are content once it works. " * any(want.proof for want in wants)


def _steps(wants: Sequence[Want]) -> str:
    steps = [" ".join(name.partition("|")[0] for name in names) for want in wants for names in want.agrees]
    return f", or of a step towards it ({'; '.join(steps)})" if steps else ""
