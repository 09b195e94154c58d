"""Steps of call sequences, the names that they define, and the facts that were recorded of their results.

`analysis_requirements` of a step define names, which later steps and the answer use:

    extract             "price" or "links = data[][url]": a place in the step's result
    compute, select     "top = first(links)": an expression of names. "price" alone is an extracted field

A recorded fact belongs to the step that defines its name (the last one, or the last one that `citations` names), and is
the value at the place that the definition denotes: a fact `top` is the `url` of the first item of `data`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ConfigDict, Field

from understudy.core.records import Record
from understudy.sources.task_files.reference_expressions import EACH, Place, find_place, parse_expression
from understudy.sources.task_files.step_references import Definition, define_expression

_DEFINITION = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)\s*(.+?)\s*", re.DOTALL)
_FIELD = re.compile(r"\s*([A-Za-z_]\w*)(?:\[\])?\s*")
_ROOT = re.compile(r"\w+")
STEP_LABELS = frozenset(
    ("step", "server", "tool", "result", "result_fields", "result_values", "analysis_requirements", "id")
)
"""Keys of a step besides its arguments."""


class StepRequirements(Record):
    """What a step's result is analysed for. Other keys, such as `accept_if`, are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    extract: tuple[str, ...] = ()
    compute: tuple[str, ...] = ()
    select: tuple[str, ...] = ()


class SequenceStep(Record):
    """One call of a sequence. Other keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    server: str = ""
    tool: str = Field(min_length=1)
    params: dict[str, Any] = {}
    result: Any = None
    """What the tool returned, if it was recorded."""
    result_fields: tuple[str, ...] = ()
    """Paths that the result has if it was not recorded, such as "data.[].url"."""
    result_values: dict[str, Any] = {}
    """Values at paths of the result that were recorded."""

    @property
    def name(self) -> str:
        """The tool with its server, such as "slack.send_message"."""
        return f"{self.server}.{self.tool}" if self.server else self.tool


def define_names(
    number: int, requirements: StepRequirements, earlier: Mapping[str, Definition]
) -> tuple[dict[str, Definition], tuple[str, ...]]:
    """Return the names of a step, counted from 1, given those of the steps before it, and the paths it extracts."""
    own = dict[str, Definition]()
    renamed = set[str]()
    for text in requirements.extract:
        found = _DEFINITION.fullmatch(text)
        path = found[2] if found else text.strip()
        root = _ROOT.match(path)
        source = path if root and root[0] in renamed else f"step{number}.{path}"
        name = found[1] if found else _ROOT.findall(path)[-1] if root else path
        own[name] = _define(source, text, {**earlier, **own})
        if found:
            renamed.add(name)
    fields = _list_fields(number, own)
    for text in (*requirements.compute, *requirements.select):
        known = {**earlier, **own}
        if found := _DEFINITION.fullmatch(text):
            own[found[1]] = _define(found[2], text, known)
        elif (field := _FIELD.fullmatch(text)) and field[1] not in own:
            own[field[1]] = _define(f"step{number}.{text.strip()}", text, known)
    return own, fields


def place_facts(
    facts: Mapping[str, Any], citations: Mapping[str, Any], defined: Sequence[Mapping[str, Definition]]
) -> list[dict[str, Any]]:
    """Return the recorded values of each step, by the paths of its result. `defined` are the names of each step."""
    values: list[dict[str, Any]] = [{} for _ in defined]
    for name, value in facts.items():
        definition = defined_at(name, citations, defined)
        place = find_place(parse_expression(definition.expression)) if definition else None
        if place and place.path and (EACH not in place.path or isinstance(value, list)):
            values[place.step - 1].setdefault(".".join(place.path), value)
    return values


def defined_at(
    name: str, citations: Mapping[str, Any], defined: Sequence[Mapping[str, Definition]]
) -> Definition | None:
    """Return the definition of a name by the last step that `citations` names for it, or else by the last of all."""
    cited = citations.get(name)
    at = [number for number, names in enumerate(defined, 1) if name in names and not names[name].problem]
    named = [number for number in at if isinstance(cited, list | tuple) and number in cited]
    return defined[(named or at)[-1] - 1][name] if at else None


def _list_fields(number: int, names: Mapping[str, Definition]) -> tuple[str, ...]:
    """Return the paths in the result of a step that its names read directly."""
    places = (find_place(parse_expression(each.expression)) for each in names.values() if not each.problem)
    own = (place for place in places if isinstance(place, Place) and place.step == number and place.path)
    return tuple(dict.fromkeys(".".join(place.path) for place in own))


def _define(expression: str, text: str, known: Mapping[str, Definition]) -> Definition:
    try:
        return Definition(define_expression(expression, known))
    except ValueError as e:
        return Definition("", f"{text.strip()!r:.120} cannot be used: {e}")
