"""Toolkit: a class whose public methods are the tools.

Annotations are the schema (`Literal` becomes an enum, `Annotated[str, "…"]` a description), the docstring is what the
model reads, and a refusal is `raise ToolError(text)`: whatever the call had written to the state is then undone.
Any other exception is a bug of the tool and propagates.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model

from understudy.errors import TaskError, ToolError, nearest
from understudy.messages import ToolCall, ToolSpec
from understudy.state import State

_JSON: TypeAdapter[Any] = TypeAdapter(Any)


@dataclass(frozen=True, slots=True)
class Alias:
    """Another name that models give an argument, read and not shown: `code: Annotated[str, Alias("python_code")]`."""

    name: str


class Tools(Protocol):
    """Anything an environment can call: a `Toolkit`, or a server behind a protocol."""

    def specs(self) -> Sequence[ToolSpec]:
        """The tools, in a fixed order."""

    async def call(self, call: ToolCall) -> str:
        """Run one call; a refusal is a `ToolError`."""


class Device(Protocol):
    """Tools of the user's own, which answer at once: a `Toolkit` on the agent's state, or a benchmark's."""

    def specs(self) -> Sequence[ToolSpec]:
        """The tools, in a fixed order."""

    def run(self, call: ToolCall) -> str:
        """Run one call; a refusal is a `ToolError`."""


class Methods:
    """What makes the public methods of a subclass tools. One with `tools=False` is a kind of tools, and has none."""

    _models: ClassVar[dict[str, type[BaseModel]]] = {}
    _specs: ClassVar[tuple[ToolSpec, ...]] = ()
    _not_tools: ClassVar[frozenset[str]] = frozenset()
    """Methods of kinds of tools, which are no tools where a subclass has them anew."""

    def __init_subclass__(cls, tools: bool = True) -> None:
        super().__init_subclass__()
        methods = {n: f for n, f in vars(cls).items() if not n.startswith("_") and inspect.isfunction(f)}
        if not tools:
            cls._not_tools = cls._not_tools | methods.keys()
            return
        for name, method in vars(cls).items():
            if not name.startswith("_") and isinstance(method, staticmethod | classmethod):
                raise TaskError(f"tool {cls.__name__}.{name} is a {type(method).__name__}; make it a method, of `self`")
        methods = {name: method for name, method in methods.items() if name not in cls._not_tools}
        cls._models = {**cls._models, **{name: _arguments(method) for name, method in methods.items()}}
        cls._specs = tuple(_spec(name, getattr(cls, name), model) for name, model in cls._models.items())

    @classmethod
    def specs(cls) -> tuple[ToolSpec, ...]:
        """The tools in the order of their definition."""
        return cls._specs

    def _validated(self, call: ToolCall) -> dict[str, Any]:
        if call.malformed:
            raise ToolError(call.malformed, "malformed")
        model = self._models.get(call.name)
        if model is None:
            raise ToolError(f"unknown tool {nearest(call.name, self._models)}", "unknown_tool")
        try:
            return vars(model.model_validate(call.arguments))
        except ValidationError as e:
            raise ToolError(_explained(call.name, model, e), "bad_arguments") from e


class Toolkit(Methods, tools=False):
    """Base of a domain's tools: each public method that a subclass defines is one. An object serves one episode."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def call(self, call: ToolCall) -> str:
        """Validate, run, and render the result as text; the state is as before when this raises `ToolError`."""
        return self.run(call)

    def run(self, call: ToolCall) -> str:
        """`call` for callers that are not asynchronous."""
        arguments = self._validated(call)
        before = self._state.snapshot()
        try:
            result = getattr(self, call.name)(**arguments)
        except ToolError:
            self._state.restore(before)
            raise
        return rendered(result)


class Service(Methods, tools=False):
    """Base of tools that wait, such as those of a service on the network: public methods are coroutines."""

    writes: ClassVar[frozenset[str]] = frozenset()
    """The tools that change something; all others only read."""

    async def call(self, call: ToolCall) -> str:
        """Validate, run, and render the result as text; a refusal is a `ToolError`."""
        return rendered(await getattr(self, call.name)(**self._validated(call)))


def rendered(result: Any) -> str:
    """What a model reads of a result: a text as it is, anything else as JSON without the fields at their default."""
    return result if isinstance(result, str) else _JSON.dump_json(result, exclude_defaults=True).decode()


def _explained(name: str, model: type[BaseModel], error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    fields = ", ".join(f if m.is_required() else f"[{f}]" for f, m in model.model_fields.items())
    return f"bad arguments for {name}: {where}: {first['msg']}; it takes ({fields})"


def _arguments(method: Callable[..., Any]) -> type[BaseModel]:
    """The method's parameters as a model: what validates a call and makes its schema."""
    hints = get_type_hints(method, include_extras=True)
    parameters = list(inspect.signature(method).parameters.values())[1:]
    for p in parameters:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY) or p.name not in hints:
            how = "each argument of a tool has a name and an annotation, which is its schema, such as `name: str`"
            raise TaskError(f"tool {method.__name__} cannot take `{p}`; {how}")
    fields: dict[str, Any] = {
        p.name: (_described(hints[p.name]), ... if p.default is p.empty else p.default) for p in parameters
    }
    return create_model(method.__name__, __config__=ConfigDict(extra="forbid"), **fields)


def _described(hint: Any) -> Any:
    """`Annotated[T, "text"]` as pydantic wants it; every other annotation as it is."""
    if get_origin(hint) is not Annotated:
        return hint
    inner, *notes = get_args(hint)
    texts = [note for note in notes if isinstance(note, str)]
    return Annotated[inner, Field(description=texts[0])] if texts else hint


def _spec(name: str, method: Callable[..., Any], model: type[BaseModel]) -> ToolSpec:
    schema: dict[str, Any] = _shown(model.model_json_schema())
    schema.pop("description", None)
    return ToolSpec(
        name=name, description=inspect.getdoc(method) or "", parameters=schema, aliases=dict(_aliases(method))
    )


def _aliases(method: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    for argument, hint in get_type_hints(method, include_extras=True).items():
        notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        yield from ((note.name, argument) for note in notes if isinstance(note, Alias))


def _shown(schema: Any) -> Any:
    """The schema, type first, without what tells a model nothing: generated titles, and that other keys are refused."""
    if isinstance(schema, list):
        return [_shown(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: _shown(value) for key, value in schema.items() if not _tells_nothing(key, value)}
    return {"type": kept.pop("type"), **kept} if "type" in kept else kept


def _tells_nothing(key: str, value: Any) -> bool:
    return (key == "title" and isinstance(value, str)) or (key == "additionalProperties" and value is False)
