"""Explore a source: call its reading tools, and collect what they show.

The first arguments come from the schemas (enum, default, examples, bounds), from the gold calls of the source's own
tasks, and from the resources of an MCP server. Results then give arguments for further calls: a parameter `order_id`
takes values from `order_id`, from `id` in a list `orders`, and from a list `orders` of texts. The same seed explores
the same calls.
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jsonschema.validators import validator_for

from understudy.core.errors import ConfigError, TaskError
from understudy.core.messages import ToolCall, ToolSpec
from understudy.core.tasks import Split, assign_splits
from understudy.data.checks.evidence import leaf_texts
from understudy.data.checks.issue import TaskIssue
from understudy.data.synthesis.call_plan import Path, fact_text, probe_task, read_result, run_calls
from understudy.envs.task_source import ExternalSource, TaskSource
from understudy.envs.validation_time import find_validation_problem

ROUNDS = 3
CALLS_PER_TOOL = 12
"""Largest number of calls of one tool in a round."""
MAX_LEAVES = 400
"""Largest number of values that are read from one result."""
MAX_RESOURCES = 20
FREE_TEXTS = ("The report is ready.", "We meet at noon.", "The door code has changed.", "Thank you all for your help.")
"""What a user asks to write."""
_FREE_TEXT_NAMES = {"text", "message", "content", "body", "note", "comment", "observation"}
_SEARCH_NAMES = {"query", "search", "keyword", "q"}
_ENTITY_KEYS = ("name", "title", "label", "symbol", "ticker", "email", "id")
_WRITTEN = {"num": "number of", "id": "ID", "url": "URL", "ceo": "CEO"}
_TOKEN = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


@dataclass(frozen=True)
class Leaf:
    """One value in a result."""

    path: Path
    text: str
    """The value as the text of a fact."""
    value: str | int | float
    entity: str = ""
    """The name of the record in a list that the value belongs to; "" if it is in no list."""
    ambiguous: bool = False
    """Whether words cannot tell the value from others: it is in a list of several, in a record without its own name."""

    @property
    def label(self) -> str:
        """The words of the value's key; "" if it has none."""
        keys = [key for key in self.path if isinstance(key, str)]
        return words(next((key for key in reversed(keys) if key not in ("value", "text")), "".join(keys[-1:])))


@dataclass(frozen=True)
class Observation:
    """A call that succeeded, and what its result shows."""

    call: ToolCall
    result: str
    leaves: tuple[Leaf, ...]


@dataclass
class Exploration:
    """What is known of a source: its tools, the results of its reads, and values for arguments."""

    source: TaskSource
    split: Split
    reads: dict[str, ToolSpec] = field(default_factory=dict)
    """The tools that change nothing, by name."""
    writes: dict[str, ToolSpec] = field(default_factory=dict)
    """The tools that change something, by name."""
    observations: list[Observation] = field(default_factory=list)
    shown: str = ""
    """All texts that were read, to recognise what they show."""
    _examples: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    _splits: dict[str, Split] = field(default_factory=dict)
    _leaves: list[Leaf] = field(default_factory=list)

    def arguments(self, spec: ToolSpec, rng: random.Random) -> dict[str, Any] | None:
        """Draw arguments for a call of a tool, or return None if no value of a required argument is known."""
        if spec.name in self._examples and rng.random() < 0.5:
            return dict(rng.choice(self._examples[spec.name]))
        drawn: dict[str, Any] = {}
        properties = spec.parameters.get("properties", {})
        for name in spec.parameters.get("required", ()):
            candidates = self.candidates(spec, name, properties.get(name, {}), rng)
            if not candidates:
                return None
            drawn[name] = rng.choice(candidates)
        return drawn

    def candidates(self, spec: ToolSpec, name: str, schema: Mapping[str, Any], rng: random.Random) -> list[Any]:
        """Return known values of an argument."""
        if stated := _stated(schema):
            return stated
        if is_free_text(name, schema):
            return list(FREE_TEXTS)
        used = [each[name] for each in self._examples.get(spec.name, ()) if name in each]
        kind = schema.get("type")
        seen = [leaf.value for leaf in self._leaves if _fits(name, leaf)]
        if _tokens(name)[-1:] and _tokens(name)[-1] in _SEARCH_NAMES:
            seen += [leaf.entity for leaf in self._leaves if leaf.entity]
        if "$ref" not in repr(schema):  # which a property alone cannot resolve
            valid = validator_for(schema)(schema)
            asked, named = {"properties": {name: schema}}, [{name: value} for value in seen]
            unusable = any(find_validation_problem(asked, arguments) for arguments in named)
            seen = [] if unusable else [value for value in seen if valid.is_valid(value)]
        found = [*used, *seen]
        if not found and kind in ("integer", "number"):
            least = int(schema.get("minimum", 1))
            return [rng.randint(least, int(schema.get("maximum", least + 9)))]
        if not found and kind == "boolean":
            return [True, False]
        return list({repr(value): value for value in found}.values())

    def add(self, texts: Sequence[str]) -> None:
        """Take the values of resources."""
        for text in texts:
            self.shown += f"{text}\n"
            self._leaves += leaves(text)

    def observe(self, call: ToolCall, result: str) -> None:
        """Add the result of a read."""
        self.shown += f"{result}\n"
        own = tuple(leaf for leaf in leaves(result) if self._is_of_split(call, leaf))
        self._leaves += own
        self.observations.append(Observation(call, result, own))

    def _is_of_split(self, call: ToolCall, leaf: Leaf) -> bool:
        """Return whether a value may be used. The records of a list are divided among the splits by their names."""
        return not leaf.entity or self._splits.get(leaf.entity, self.split) == self.split


async def explore(source: TaskSource, split: Split, seed: int) -> Exploration:
    """Explore a source. Raise ConfigError if it plays no new tasks, or if none of its tools can be read."""
    try:
        source.environment(probe_task(source, split, ()))
    except TaskError as e:
        raise ConfigError(f"no tasks can be made for {source.name}, which plays only its own: {e}") from e
    found = Exploration(source, split)
    rng = random.Random(f"{source.name}/{split}/{seed}")
    for task in source.tasks(split):
        for call in task.gold_calls:
            found._examples.setdefault(call.name, []).append(call.arguments)
            found.shown += "".join(f"{text}\n" for text in leaf_texts(call.arguments))
    if isinstance(source, ExternalSource):
        found.add(await source.read_resources(MAX_RESOURCES))
    await _divide(found, source)
    done = set[str]()
    for _ in range(ROUNDS):
        calls = [call for call in _draw_calls(found, rng) if repr((call.name, call.arguments)) not in done]
        done |= {repr((call.name, call.arguments)) for call in calls}
        if not calls:
            break
        for call, result in zip(calls, await _run_each(source, calls, split), strict=True):
            if isinstance(result, str):
                found.observe(call, result)
    if not found.reads:
        raise ConfigError(_nothing_to_read(source))
    return found


async def _divide(found: Exploration, source: TaskSource) -> None:
    """Divide the records that tools without arguments list among the splits, and tell reads from writes."""
    rng = random.Random(0)
    for spec in source.tool_specs:
        example = found._examples.get(spec.name, [{}])[0]
        call = ToolCall(name=spec.name, arguments=dict(example) or found.arguments(spec, rng) or {})
        (found.writes if call in writes_of(source, call) else found.reads)[spec.name] = spec
    listing = [ToolCall(name=name, arguments={}) for name, spec in found.reads.items() if not _required(spec)]
    results = await _run_each(source, listing, found.split)
    names = {leaf.entity for result in results if isinstance(result, str) for leaf in leaves(result) if leaf.entity}
    found._splits = assign_splits(dict.fromkeys(sorted(names)))


async def _run_each(source: TaskSource, calls: Sequence[ToolCall], split: Split) -> list[str | TaskIssue]:
    """Run calls in one episode, and in an episode of its own each call that a fault or an early end has prevented."""
    results = await run_calls(source, calls, split)
    stopped = next((n for n, r in enumerate(results) if isinstance(r, TaskIssue) and r.kind == "fault"), len(calls))
    return results[:stopped] + [(await run_calls(source, [call], split))[0] for call in calls[stopped:]]


def writes_of(source: TaskSource, call: ToolCall) -> tuple[ToolCall, ...]:
    """Return the call if it changes something, else ()."""
    return source.gold_writes(probe_task(source, "train", [call]))


def _draw_calls(found: Exploration, rng: random.Random) -> Iterator[ToolCall]:
    for name, spec in found.reads.items():
        seen = set[str]()
        for _ in range(CALLS_PER_TOOL):
            arguments = found.arguments(spec, rng)
            if arguments is not None and repr(arguments) not in seen:
                seen.add(repr(arguments))
                yield ToolCall(name=name, arguments=arguments)


def _nothing_to_read(source: TaskSource) -> str:
    names = ", ".join(spec.name for spec in source.tool_specs) or "none"
    if isinstance(source, ExternalSource):
        return (
            f"{source.name}: no tool is known to change nothing, and tasks are made from what tools show; set "
            f'read_only_tools = ["get_*"] (or isolation = "shared") in its TOML file; its tools: {names}'
        )
    return f"{source.name}: all its tools change something, and tasks are made from what tools show; its tools: {names}"


def leaves(result: str) -> Iterator[Leaf]:
    """Yield the facts of a result, at most `MAX_LEAVES`."""
    for number, leaf in enumerate(_walk(read_result(result), (), "")):
        if number == MAX_LEAVES:
            return
        yield leaf


def _walk(value: Any, path: Path, entity: str, ambiguous: bool = False) -> Iterator[Leaf]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _walk(inner, (*path, str(key)), entity, ambiguous)
    elif isinstance(value, list):
        names = [_entity(inner) for inner in value]
        for number, (inner, name) in enumerate(zip(value, names, strict=True)):
            unclear = len(value) > 1 and (not name or names.count(name) > 1)
            yield from _walk(inner, (*path, number), name, ambiguous or unclear)
    elif (text := fact_text(value)) is not None:
        yield Leaf(path, text, value, entity, ambiguous)


def _entity(record: Any) -> str:
    if not isinstance(record, dict):
        return ""
    named = (record[key] for key in _ENTITY_KEYS if isinstance(record.get(key), str))
    return next((name for name in named if fact_text(name) is not None), "")


def _stated(schema: Mapping[str, Any]) -> list[Any]:
    """Return the values that a schema itself states."""
    if "const" in schema:
        return [schema["const"]]
    if isinstance(schema.get("enum"), list):
        return list(schema["enum"])
    return list(schema.get("examples") or ())


def _fits(name: str, leaf: Leaf) -> bool:
    """Return whether a value can be an argument called `name`, by the words of both names."""
    wanted = _tokens(name)
    keys = [_tokens(key) for key in leaf.path if isinstance(key, str)]
    if not keys or not wanted:
        return False
    last, above = keys[-1], keys[-2] if len(keys) > 1 else []
    if isinstance(leaf.path[-1], int):  # an item of a list of texts: "orders" has the values of "order_id"
        return wanted[0] == last[-1]
    return wanted in (last, above, [*above, *last]) or (
        len(wanted) > 1 and wanted[-1:] == last and above == wanted[:-1]
    )


def _tokens(name: str) -> list[str]:
    """Return the words of a name in the singular."""
    return [token.lower().removesuffix("s") for token in _TOKEN.findall(name)]


def is_free_text(name: str, schema: Mapping[str, Any]) -> bool:
    """Return whether an argument takes a text that the user chooses."""
    return schema.get("type") == "string" and _tokens(name)[-1:] != [] and _tokens(name)[-1] in _FREE_TEXT_NAMES


def _required(spec: ToolSpec) -> Sequence[str]:
    required: Sequence[str] = spec.parameters.get("required", ())
    return required


def words(name: str) -> str:
    """Return the words of a name such as `num_members` or `closePrice`."""
    tokens = [token if token.isupper() and len(token) > 1 else token.lower() for token in _TOKEN.findall(name)]
    return " ".join(_WRITTEN.get(token, token) for token in tokens)
