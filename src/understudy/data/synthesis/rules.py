"""Call plans by rules, from what an exploration has seen.

    lookup   one read, and one fact of its result
    write    one write
    chain    a read that gives an argument of a second read, and a fact of the second result
    gather   several reads, and a fact of each
    report   several reads, and a write whose text is made of a fact of each

The prompts are plain English made from the words of tools, arguments and keys. Values that a user would not know, such
as ids, are described by the record that shows them where there is one.
"""

import itertools
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from understudy.core.messages import ToolCall, ToolSpec
from understudy.core.tasks import Difficulty
from understudy.data.synthesis.call_plan import CallPlan, FactPlace, PlannedCall, call_range
from understudy.data.synthesis.explore import Exploration, Leaf, Observation, is_free_text, words
from understudy.domains.authoring.phrases import PhraseSampler
from understudy.envs.rewards import states_fact

FAMILIES: Mapping[str, tuple[Difficulty, ...]] = {
    "lookup": ("easy",),
    "write": ("easy",),
    "chain": ("medium",),
    "gather": ("medium", "hard"),
    "report": ("medium", "hard"),
}
"""The difficulties of each family."""
MAX_READS = 8
"""Largest number of reads that a plan makes, unless more are required."""
# fmt: off
_READ_VERBS = frozenset((
    "get", "list", "read", "search", "find", "fetch", "show", "query", "lookup", "retrieve", "describe", "view",
    "open", "check", "load", "count",
))
# fmt: on
_VERBS = {"Return": "find", "Get": "find"}
_TRIES = 40


@dataclass(frozen=True)
class Unit:
    """One fact of one result, which a plan may ask for."""

    observation: Observation
    leaf: Leaf

    @property
    def kind(self) -> tuple[Any, ...]:
        """What units with the same question have in common."""
        return self.observation.call.name, tuple(key for key in self.leaf.path if isinstance(key, str))


def plan_by_rules(
    found: Exploration,
    difficulty: Difficulty,
    families: Sequence[str],
    min_reads: int,
    max_calls: int,
    rng: random.Random,
    phrases: PhraseSampler,
) -> tuple[str, CallPlan] | None:
    """Return a plan and its family, or None if what was seen yields none with these options."""
    able = [family for family in families if difficulty in FAMILIES[family]]
    rng.shuffle(able)
    maker = _Maker(found, rng, phrases)
    least, most = call_range(difficulty)
    for family in able:
        writes = int(family in ("write", "report"))
        low = max(1, least - writes, min_reads)
        high = min(most, max_calls, max(MAX_READS, min_reads + writes)) - writes
        if family == "write" or low <= high:
            plan = maker.makers[family](rng.randint(low, min(high, low + 2)) if low <= high else 0)
            if plan is not None:
                return family, plan
    return None


class _Maker:
    """Makes the plans of one task."""

    def __init__(self, found: Exploration, rng: random.Random, phrases: PhraseSampler) -> None:
        self._found, self._rng, self._phrases = found, rng, phrases
        self.makers: Mapping[str, Callable[[int], CallPlan | None]] = {
            "lookup": lambda reads: self._gather(1),
            "gather": self._gather,
            "chain": lambda reads: self._chain(),
            "write": lambda reads: self._write(),
            "report": self._report,
        }
        # a source that reports no writes is a data set, whose reward compares the answer itself
        self._bare = not found.source.reports_writes

    def _gather(self, reads: int) -> CallPlan | None:
        units = self._draw_units(reads)
        if units is None:
            return None
        prompt = _sentences(self._question(units))
        facts = tuple(FactPlace(call=n, path=unit.leaf.path) for n, unit in enumerate(units, 1))
        calls = tuple(_planned(unit.observation.call) for unit in units)
        return CallPlan(prompt=prompt, calls=calls, facts=facts, answer=self._answer(units))

    def _chain(self) -> CallPlan | None:
        """Plan a read whose argument another read shows."""
        for unit in self._shuffled_units():
            for name, value in unit.observation.call.arguments.items():
                source = self._describing(value, unit)
                if source is None:
                    continue
                observed, leaf = source
                rest = {key: v for key, v in unit.observation.call.arguments.items() if key != name}
                also = f", with {_arguments(rest)}" if rest else ""
                prompt = self._phrases.choose(
                    (
                        f"Find the {leaf.label} of {leaf.entity} in {self._noun(observed.call)}. Then look up "
                        f"{self._bare_noun(unit.observation.call)} for it{also} and tell me the {_asked(unit)}.",
                        f"I need the {_asked(unit)} from {self._bare_noun(unit.observation.call)} for {leaf.entity}"
                        f"{also}. You find its {leaf.label} in {self._noun(observed.call)}.",
                        f"What is the {_asked(unit)} for {leaf.entity}? Its {leaf.label} is in "
                        f"{self._noun(observed.call)}; look it up in {self._bare_noun(unit.observation.call)}{also}.",
                    )
                )
                prompt = _sentences(prompt)
                if states_fact(str(value), prompt):
                    continue
                calls = (_planned(observed.call), _planned(unit.observation.call))
                fact = FactPlace(call=2, path=unit.leaf.path)
                return CallPlan(prompt=prompt, calls=calls, facts=(fact,), answer=self._answer([unit]))
        return None

    def _describing(self, value: Any, unit: Unit) -> tuple[Observation, Leaf] | None:
        """Return a read, other than that of the unit, that shows a value beside the name of its record."""
        for observed in self._found.observations:
            if observed.call != unit.observation.call and value not in observed.call.arguments.values():
                for leaf in observed.leaves:
                    if leaf.value == value and leaf.entity not in ("", leaf.text) and leaf.label and not leaf.ambiguous:
                        return observed, leaf
        return None

    def _write(self) -> CallPlan | None:
        for spec in self._shuffled(list(self._found.writes.values())):
            arguments = self._found.arguments(spec, self._rng)
            if arguments is not None and _is_flat(arguments):
                prompt = _sentences(f"Please {_phrase(spec)}: {_stated(arguments)}.")
                return CallPlan(prompt=prompt, calls=(PlannedCall(tool=spec.name, arguments=arguments),))
        return None

    def _report(self, reads: int) -> CallPlan | None:
        units = self._draw_units(reads)
        for spec in self._shuffled(list(self._found.writes.values())) if units else ():
            name = next((n for n, s in _properties(spec) if is_free_text(n, s)), "")
            arguments = self._found.arguments(spec, self._rng)
            if not name or not units or arguments is None or not _is_flat(arguments):
                continue
            arguments[name] = ", ".join(unit.leaf.text for unit in units)
            others = {key: value for key, value in arguments.items() if key != name}
            also = f"{_stated(others)}, and " if others else ""
            facts = f"the {words(name)} is what you found, in this order, separated by commas, and nothing else"
            prompt = _sentences(f"{self._question(units, tells=False)} Then {_phrase(spec)}: {also}{facts}.")
            calls = (*(_planned(u.observation.call) for u in units), PlannedCall(tool=spec.name, arguments=arguments))
            return CallPlan(prompt=prompt, calls=calls)
        return None

    def _draw_units(self, count: int) -> list[Unit] | None:
        """Draw facts of different reads: of one question if that suffices. No result states the fact of another."""
        for _ in range(_TRIES if count else 0):
            every = self._shuffled_units()
            if not every:
                return None
            same = [unit for unit in every if unit.kind == every[0].kind]
            chosen: list[Unit] = []
            for unit in [*same, *every]:
                if len(chosen) < count and all(_apart(unit, other) for other in chosen):
                    chosen.append(unit)
            if len(chosen) == count:
                kinds = list(dict.fromkeys(unit.kind for unit in chosen))
                return sorted(chosen, key=lambda unit: kinds.index(unit.kind))
        return None

    def _shuffled_units(self) -> list[Unit]:
        units = [
            Unit(observed, leaf)
            for observed in self._found.observations
            for leaf in observed.leaves
            if (leaf.label or not leaf.path) and leaf.text != leaf.entity and not leaf.ambiguous
            if not _is_echo(observed.call, leaf)
        ]
        return self._shuffled(units)

    def _shuffled(self, items: list[Any]) -> list[Any]:
        return self._rng.sample(items, len(items))

    def _question(self, units: Sequence[Unit], tells: bool = True) -> str:
        """Return the request for the facts. Without `tells`, they are only to be found."""
        groups = [
            list(group) for _, group in itertools.groupby(units, lambda unit: (unit.kind, bool(unit.leaf.entity)))
        ]
        return " ".join(self._together(group, tells) for group in groups)

    def _together(self, units: Sequence[Unit], tells: bool) -> str:
        """Return the request for facts of one kind."""
        first, calls = units[0], [unit.observation.call for unit in units]
        what, end = (_what_is(first), "?") if tells else ("Note", ".")
        if len(units) == 1 or first.leaf.entity or _verb(self._spec(calls[0])) not in _READ_VERBS:
            return " ".join(self._single(unit, tells) for unit in units)
        values = _listed([_arguments(call.arguments) for call in calls])
        asked, noun = f"the {_asked(first)}", self._bare_noun(calls[0])
        return self._phrases.choose(
            (
                f"Look up {noun} for {values}, and {'tell me' if tells else 'note'} {asked} of each.",
                f"{'I need' if tells else 'Find'} {asked} from {noun} for each of these: {values}.",
                f"Check {noun} for {values}. {what} {asked} of each{end}",
            )
        )

    def _single(self, unit: Unit, tells: bool) -> str:
        noun, asked = self._noun(unit.observation.call), f"the {_asked(unit)}"
        if unit.leaf.entity:
            asked += f" of {unit.leaf.entity}"
        if _verb(self._spec(unit.observation.call)) not in _READ_VERBS:
            told = "tell me" if tells else "note"
            return (
                f"Please {_phrase(self._spec(unit.observation.call))}{_with(unit.observation.call)} and {told} {asked}."
            )
        return self._phrases.choose(
            (
                f"Look up {noun} and {'tell me' if tells else 'note'} {asked}.",
                f"{_what_is(unit)} {asked}? Check {noun}." if tells else f"Find {asked} in {noun}.",
                f"I need {asked} from {noun}.",
            )
        )

    def _answer(self, units: Sequence[Unit]) -> str:
        places = {id(unit): f"{{{number}}}" for number, unit in enumerate(units, 1)}
        if self._bare:
            return ", ".join(places.values())
        groups = itertools.groupby(units, _asked)
        return "; ".join(
            f"{asked[:1].upper()}{asked[1:]}: {', '.join(places[id(unit)] for unit in group)}"
            for asked, group in groups
        )

    def _noun(self, call: ToolCall) -> str:
        """Return the words for what a call returns, with its arguments."""
        values = _arguments(call.arguments)
        return f"{self._bare_noun(call)} for {values}" if values else self._bare_noun(call)

    def _bare_noun(self, call: ToolCall) -> str:
        spec = self._spec(call)
        named = words(spec.name.rpartition(".")[2]).split()
        verb = next((place for place, token in enumerate(named[:-1]) if token in _READ_VERBS), -1)
        return f"the {' '.join(named[verb + 1 :])}"

    def _spec(self, call: ToolCall) -> ToolSpec:
        return self._found.reads.get(call.name) or self._found.writes[call.name]


def _apart(unit: Unit, other: Unit) -> bool:
    """Return whether two facts need two reads."""
    return (
        unit.observation.call != other.observation.call
        and not states_fact(unit.leaf.text, other.observation.result)
        and not states_fact(other.leaf.text, unit.observation.result)
    )


def _is_echo(call: ToolCall, leaf: Leaf) -> bool:
    """Return whether a fact only repeats an argument."""
    return any(states_fact(leaf.text, str(value)) for value in call.arguments.values())


def _asked(unit: Unit) -> str:
    return unit.leaf.label or "result"


def _what_is(unit: Unit) -> str:
    """Return the beginning of a question for a fact."""
    return "What are" if _asked(unit).endswith("s") and not _asked(unit).endswith("ss") else "What is"


def _sentences(text: str) -> str:
    """Return a text in which a full stop after an abbreviation also ends the sentence."""
    return re.sub(r"\.\.(?=\s|$)", ".", text)


def _stated(arguments: Mapping[str, Any]) -> str:
    """Return the arguments of a write as statements."""
    return _listed([f"the {words(name)} is {_quoted(value)}" for name, value in arguments.items()])


def _planned(call: ToolCall) -> PlannedCall:
    return PlannedCall(tool=call.name, arguments=call.arguments)


def _verb(spec: ToolSpec) -> str:
    tokens = words(spec.name.rpartition(".")[2]).split()
    return next((token for token in tokens if token in _READ_VERBS), tokens[0] if tokens else "")


def _phrase(spec: ToolSpec) -> str:
    """Return what a tool does as an imperative: the first sentence of its description if it is one, else its name."""
    first = spec.description.strip().partition("\n")[0].partition(". ")[0].rstrip(".")
    tokens = first.split()
    if 2 <= len(tokens) <= 12 and tokens[0].isalpha() and tokens[0][:1].isupper() and not tokens[0].endswith("s"):
        return _VERBS.get(tokens[0], tokens[0].lower()) + first[len(tokens[0]) :]
    return words(spec.name.rpartition(".")[2])


def _with(call: ToolCall) -> str:
    values = _arguments(call.arguments)
    return f", with {values}," if values else ""


def _arguments(arguments: Mapping[str, Any]) -> str:
    """Return arguments in words: the value alone if it is a single text, else each with its name."""
    if len(arguments) == 1 and isinstance(value := next(iter(arguments.values())), str):
        return _quoted(value)
    named = [f"{words(name)} {_quoted(value)}" for name, value in arguments.items()]
    return _listed(named) if len(named) < 2 else " / ".join(named)


def _quoted(value: Any) -> str:
    text = value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    return f'"{text}"' if " " in text or not text else text


def _listed(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}" if texts else ""


def _properties(spec: ToolSpec) -> Iterator[tuple[str, Mapping[str, Any]]]:
    required = spec.parameters.get("required", ())
    yield from ((name, of) for name, of in spec.parameters.get("properties", {}).items() if name in required)


def _is_flat(arguments: Mapping[str, Any]) -> bool:
    """Return whether a user can say the arguments: none is a list or an object."""
    return not any(isinstance(value, dict | list) for value in arguments.values())
