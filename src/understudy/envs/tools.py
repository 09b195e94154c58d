"""Toolkit: a class whose public methods and staticmethods are tools.

Annotations define the JSON schema: `Literal` becomes an enum, `Annotated[str, "…"]` adds a description. The docstring
is the tool description that the model reads; its section `Args:` describes the arguments. A tool rejects a call with
`raise ToolError(text)`, which undoes the call's writes. Any other exception undoes them too: the model reads its type
and text, and `rollout/tool_exceptions` counts it.
"""

import inspect
import json
import warnings
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partialmethod
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Protocol, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError, create_model
from pydantic_core import PydanticSerializationError

from understudy.core.errors import TaskError, ToolError, did_you_mean
from understudy.core.event_loop import BACKGROUND_LOOP
from understudy.core.json_values import replace_surrogates
from understudy.core.messages import ToolCall, ToolSpec
from understudy.core.shared_state import find_shared_default
from understudy.core.user_code import tool_code, tool_time_limit
from understudy.envs.docstrings import parse_docstring
from understudy.envs.state import State

_JSON: TypeAdapter[Any] = TypeAdapter(Any)


class Alias:
    """Alternative argument names, accepted but not in the schema: `code: Annotated[str, Alias("python_code")]`."""

    def __init__(self, *names: str) -> None:
        self.names = names


class ToolProvider(Protocol):
    """Protocol of the tools of an environment: a `Toolkit`, or a tool server."""

    def specs(self) -> Sequence[ToolSpec]:
        """Return the tools in a fixed order."""

    async def call(self, call: ToolCall) -> str:
        """Run one call and return its result. Raise `ToolError` if the call is rejected."""


class UserTools(Protocol):
    """Protocol of the user's own tools, which are synchronous: a `Toolkit` on the agent's state, or a benchmark's."""

    def specs(self) -> Sequence[ToolSpec]:
        """Return the tools in a fixed order."""

    def call_sync(self, call: ToolCall) -> str:
        """Run one call and return its result. Raise `ToolError` if the call is rejected."""


def _public_members(cls: type) -> dict[str, Any]:
    """Return what the class and its bases that are no toolkits, such as mixins, define under public names."""
    owners = [each for each in cls.__mro__ if each is cls or not issubclass(each, ToolkitBase)]
    names = dict.fromkeys(name for owner in reversed(owners) for name in vars(owner) if not name.startswith("_"))
    return {name: inspect.getattr_static(cls, name) for name in names}


class ToolkitBase:
    """Base class of toolkits: the public methods of its subclasses are tools.

    So are those of mixins. Intermediate base classes pass `tools=False`; their methods, and those of their mixins, are
    not tools.
    """

    max_call_seconds: ClassVar[float] = 60.0
    """Seconds that one call of a tool may take. A tool that takes longer is a fault of the tool. A coroutine is
    limited by `limits.max_step_seconds` of the config instead."""
    _models: ClassVar[dict[str, type[BaseModel]]] = {}
    _specs: ClassVar[tuple[ToolSpec, ...]] = ()
    _not_tools: ClassVar[frozenset[str]] = frozenset()
    """Public names of the base classes, which are not tools even if a subclass overrides them."""
    tool_aliases: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Alternative names of tools, accepted but not shown, mapped to the tools' names."""
    _reserved_names: ClassVar[frozenset[str]] = frozenset({"specs"})
    """Names that no tool may have, because the package uses them."""
    _keeps_defaults: ClassVar[bool] = False
    """Whether results show the fields of models and records that equal their defaults. Without them they are short."""

    def __init_subclass__(cls, tools: bool = True) -> None:
        super().__init_subclass__()
        if not tools:
            cls._not_tools = cls._not_tools | _public_members(cls).keys()
            return
        public = _public_members(cls)
        tool_like = {name: member for name, member in public.items() if name not in cls._not_tools}
        methods = {
            name: member
            for name, member in tool_like.items()
            if inspect.isfunction(member) or isinstance(member, staticmethod)
        }
        problems = [
            f"tool {cls.__name__}.{name} is a {type(member).__name__}; make it a method with `self`, or a staticmethod"
            for name, member in tool_like.items()
            if _looks_like_tool(member)
        ]
        problems += [
            f"tool {cls.__name__}.{name} is replaced by {public[name]!r:.50}; give the attribute another name"
            for name in cls._models.keys() & public.keys() - methods.keys()
        ]
        problems += [
            f"tool_aliases of {cls.__name__}: {alias} is a tool itself, or {name} is none"
            for alias, name in cls.tool_aliases.items()
            if alias in methods or name not in {**cls._models, **methods}
        ]
        problems += [
            f"tool {cls.__name__}.{name} has a name that its base class uses; give it another one"
            for name, member in public.items()
            if name in cls._reserved_names or (name == "call" and not _runs_calls(member))
        ]
        for name, method in methods.items():
            with _naming_the_tool(f"{cls.__name__}.{name}", method):
                problems += _find_parameter_problems(method)
        if problems:
            raise TaskError("; ".join(problems))
        mixins = [each for each in cls.__mro__ if not issubclass(each, ToolkitBase)]
        if shared := find_shared_default(cls, [cls, *mixins]):
            raise TaskError(shared)
        models, specs = dict(cls._models), list[ToolSpec]()
        for name in {**models, **methods}:
            with _naming_the_tool(f"{cls.__name__}.{name}", getattr(cls, name)):
                if name in methods:
                    models[name] = _arguments(methods[name])
                spec = _spec(name, getattr(cls, name), models[name])
                names = tuple(alias for alias, real in cls.tool_aliases.items() if real == name)
                specs.append(spec.replace(name_aliases=names))
        cls._models, cls._specs = models, tuple(specs)

    @classmethod
    def specs(cls) -> tuple[ToolSpec, ...]:
        """Return the tools in the order of their definition."""
        return cls._specs

    async def _run_call(self, call: ToolCall) -> str:
        with tool_code(call.name, getattr(type(self), call.name, None)):
            arguments = self._validated(call)
            with tool_time_limit(call.name, self.max_call_seconds):
                result = getattr(self, call.name)(**arguments)
            result = await result if inspect.isawaitable(result) else result
            return render_result(call.name, result, self._keeps_defaults)

    def _validated(self, call: ToolCall) -> dict[str, Any]:
        if call.parse_error:
            raise ToolError(call.parse_error, "malformed")
        model = self._models.get(call.name)
        if model is None:
            raise ToolError(f"unknown tool {did_you_mean(call.name, self._models)}", "unknown_tool")
        try:
            return vars(model.model_validate(deepcopy(call.arguments)))  # a tool may change its arguments
        except ValidationError as e:
            raise ToolError(_explain_error(call.name, model, e), "invalid_arguments") from e


class Toolkit(ToolkitBase, tools=False):
    """Base of domain tools. Each public method of a subclass is a tool, and each object serves one episode.

    A tool may be a coroutine. Results leave out fields of rows that equal their defaults.
    """

    def __init__(self, state: State | None = None) -> None:
        if state is None:
            name = type(self).__name__
            raise TaskError(f"{name}() makes tools without a state; pass the class {name} itself, without ()")
        self._state = state

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError, which says where the tables are."""
        problem = f"{type(self).__name__!r} object has no attribute {name!r}"
        if not name.startswith("_"):
            tables = ", ".join(f"self._state.{table}" for table in self._state.tables())
            problem += f"; the state is self._state, and its tables are {tables}"
        raise AttributeError(problem)

    async def call(self, call: ToolCall) -> str:
        """Validate and run a call, and return the result as text.

        Raise `ToolError` if the call is rejected or the tool raises an exception; the state is then unchanged.
        """
        with self._restored_on_error():
            return await self._run_call(call)

    def call_sync(self, call: ToolCall) -> str:
        """Run `call` synchronously. A coroutine runs in the background event loop."""
        with self._restored_on_error(), tool_code(call.name, getattr(type(self), call.name, None)):
            arguments = self._validated(call)
            with tool_time_limit(call.name, self.max_call_seconds):
                result = getattr(self, call.name)(**arguments)
            if inspect.iscoroutine(result):
                result = BACKGROUND_LOOP.run(_await_in_tool_code(call.name, result))
            return render_result(call.name, result, self._keeps_defaults)

    @contextmanager
    def _restored_on_error(self) -> Iterator[None]:
        if problem := find_missing_state(self):
            raise TaskError(problem)
        before = self._state.snapshot()
        try:
            yield
        except ToolError:
            self._state.restore(before)
            raise


def find_missing_state(toolkit: Toolkit) -> str:
    """Return what to do if the constructor of a toolkit has not set the state, else an empty text."""
    if hasattr(toolkit, "_state"):
        return ""
    name = type(toolkit).__name__
    return f"{name}.__init__ does not call that of Toolkit: begin it with super().__init__(state)"


class AsyncToolkit(ToolkitBase, tools=False):
    """Base of asynchronous tools, such as those of a network service. Public methods must be coroutines."""

    write_tools: ClassVar[frozenset[str]] = frozenset()
    """Names of the tools that write; all others only read."""

    async def call(self, call: ToolCall) -> str:
        """Validate and run a call, and return the result as text.

        Raise `ToolError` if the call is rejected or the tool raises an exception.
        """
        return await self._run_call(call)


async def _await_in_tool_code(name: str, result: Coroutine[Any, Any, Any]) -> Any:
    """Return the result. SystemExit is reported before it reaches the event loop, which it would end."""
    with tool_code(name):
        return await result


def render_result(name: str, result: Any, keeps_defaults: bool = False) -> str:
    """Return a result of the tool `name` as text for the model.

    A string is unchanged; other values are JSON, lone surrogates replaced, and sets outside of models sorted. Without
    `keeps_defaults`, fields of models and records that equal their defaults are left out. Raise TypeError for a value
    that is not JSON.
    """
    if isinstance(result, str):
        return result
    if isinstance(result, Iterator):
        result = list(result)  # it may be read twice
    try:
        result = _with_sorted_sets(result)
        return _JSON.dump_json(result, exclude_defaults=not keeps_defaults, fallback=_to_number).decode()
    except (PydanticSerializationError, RecursionError):
        return _render_with_surrogates(name, result, keeps_defaults)


def _with_sorted_sets(value: Any) -> Any:
    """Return a value with lists in place of sets, whose order differs between processes."""
    if isinstance(value, set | frozenset):
        return sorted(map(_with_sorted_sets, value), key=repr)
    if isinstance(value, list | tuple):
        return [_with_sorted_sets(item) for item in value]
    return {key: _with_sorted_sets(item) for key, item in value.items()} if isinstance(value, dict) else value


def _render_with_surrogates(name: str, result: Any, keeps_defaults: bool) -> str:
    """Return a result that pydantic cannot encode as JSON, with lone surrogates replaced."""
    try:
        values = _JSON.dump_python(result, mode="json", exclude_defaults=not keeps_defaults, fallback=_to_number)
        return replace_surrogates(json.dumps(values, ensure_ascii=False, separators=(",", ":")))
    except (TypeError, ValueError, RecursionError) as e:
        raise TypeError(f"{name} returned {_type_name(result)}, which is not JSON; {e}") from e


def _to_number(value: Any) -> Any:
    """Return a scalar of NumPy or PyTorch as a number of Python. Raise TypeError for any other object."""
    if inspect.iscoroutine(value):
        value.close()  # Python would warn that nothing awaited it
        raise TypeError(f"await {value.__qualname__}(…) in the tool")
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    advice = "its tolist()" if hasattr(value, "tolist") else "a text, a number, a list, a dict or a dataclass"
    raise TypeError(f"return {_type_name(value)} as {advice}")


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _explain_error(name: str, model: type[BaseModel], error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    named = {name: field.alias or name for name, field in model.model_fields.items()}
    fields = ", ".join(named[f] if m.is_required() else f"[{named[f]}]" for f, m in model.model_fields.items())
    return f"bad arguments for {name}: {where}: {first['msg']}; it takes ({fields})"


def _runs_calls(member: Any) -> bool:
    """Return whether a method named `call` overrides that of the base class, and is not meant as a tool."""
    return inspect.isfunction(member) and [p.name for p in _parameters(member)] == ["call"]


def _looks_like_tool(member: Any) -> bool:
    """Return whether a member can be called but is no method, such as a class method or one in `functools.cache`."""
    if isinstance(member, staticmethod):
        return False
    wrapped = isinstance(member, classmethod | partialmethod)
    return wrapped or (callable(member) and hasattr(member, "__wrapped__") and not inspect.isfunction(member))


@contextmanager
def _naming_the_tool(tool: str, method: Callable[..., Any]) -> Iterator[None]:
    """Raise TaskError that names the tool and its argument if pydantic cannot use its annotations."""
    try:
        yield
    except (PydanticUserError, NameError, TypeError) as e:
        reason = str(e).partition("\n")[0] if isinstance(e, NameError) else _find_unusable_argument(method) or str(e)
        raise TaskError(
            f"tool {tool}: {reason}; annotate its arguments with types of JSON, pydantic models or dataclasses"
        ) from e


def _find_unusable_argument(method: Callable[..., Any]) -> str | None:
    """Return which argument has an annotation without a JSON schema."""
    for name, hint in _hints(method).items():
        try:
            TypeAdapter(hint).json_schema()
        except (PydanticUserError, TypeError) as e:
            problem = f"no JSON schema exists for `{name}: {inspect.formatannotation(hint)}`"
            if isinstance(e, PydanticUserError) and e.code == "typed-dict-version":
                return f"{problem}; {e.message.rstrip('.')}"
            return problem
    return None


def _arguments(method: Callable[..., Any]) -> type[BaseModel]:
    """Return a pydantic model of the method's parameters. It validates calls and generates the schema."""
    hints = _hints(method)
    parameters = _parameters(method)
    fields: dict[str, Any] = {
        p.name: (_with_description(hints[p.name]), ... if p.default is p.empty else p.default) for p in parameters
    }
    with warnings.catch_warnings():  # the model's own methods are not called, so arguments may have their names
        warnings.filterwarnings("ignore", "Field name .* shadows an attribute", UserWarning)
        return create_model(method.__name__, __config__=ConfigDict(extra="forbid", allow_inf_nan=False), **fields)


def _find_parameter_problems(method: Callable[..., Any]) -> Iterator[str]:
    """Yield a problem for each parameter that is variadic, positional-only, unannotated or has a reserved name."""
    hints = _hints(method)
    if not isinstance(method, staticmethod):
        first = next(iter(inspect.signature(method).parameters.values()), None)
        if first is None or (first.name in hints and first.name != "self"):
            yield f"tool {method.__name__} has no `self`; add it as the first argument, or make it a staticmethod"
    for p in _parameters(method):
        if p.name.startswith("_") or (p.name.startswith("model_") and hasattr(BaseModel, p.name)):
            yield f"tool {method.__name__} cannot take `{p.name}`; pydantic reserves this name, so give it another one"
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY) or p.name not in hints:
            rule = "each argument of a tool needs a name and an annotation, such as `name: str`"
            yield f"tool {method.__name__} cannot take `{p}`; {rule}; begin the name of a helper that is no tool with _"


def _parameters(method: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a method without `self`, or all those of a staticmethod."""
    if isinstance(method, staticmethod):
        return list(inspect.signature(method.__func__).parameters.values())
    return list(inspect.signature(method).parameters.values())[1:]


def _hints(method: Callable[..., Any]) -> dict[str, Any]:
    return get_type_hints(inspect.unwrap(method), include_extras=True)


def _with_description(hint: Any) -> Any:
    """Return `Annotated[T, "text"]` with the text as a pydantic description, and other annotations unchanged."""
    if get_origin(hint) is not Annotated:
        return hint
    inner, *notes = get_args(hint)
    texts = [note for note in notes if isinstance(note, str)]
    others = [note for note in notes if not isinstance(note, str)]
    return Annotated[inner, *others, Field(description=texts[0])] if texts else hint


def _spec(name: str, method: Callable[..., Any], model: type[BaseModel]) -> ToolSpec:
    schema: dict[str, Any] = simplify_schema(model.model_json_schema())
    schema.pop("description", None)
    shown = {field: info.alias or field for field, info in model.model_fields.items()}
    description, of_parameters = parse_docstring(inspect.getdoc(method) or "", shown)
    for parameter, text in of_parameters.items():
        schema["properties"][shown[parameter]].setdefault("description", text)
    return ToolSpec(name=name, description=description, parameters=schema, aliases=dict(_aliases(method)))


def _aliases(method: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    for argument, hint in get_type_hints(method, include_extras=True).items():
        notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        yield from ((name, argument) for note in notes if isinstance(note, Alias) for name in note.names)


def simplify_schema(schema: Any) -> Any:
    """Return the schema, type first, without generated titles and `additionalProperties: false`."""
    if isinstance(schema, list):
        return [simplify_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    simplified = {key: _simplify_keyword(key, value) for key, value in schema.items() if not _is_redundant(key, value)}
    return {"type": simplified.pop("type"), **simplified} if "type" in simplified else simplified


def _simplify_keyword(key: str, value: Any) -> Any:
    """Return the value of a keyword of JSON Schema: values as they are, and the schemas in it simplified."""
    if key in ("default", "examples", "example", "const", "enum"):
        return value
    if key in ("properties", "$defs"):
        return {name: simplify_schema(inner) for name, inner in value.items()}
    return simplify_schema(value)


def _is_redundant(key: str, value: Any) -> bool:
    return (key == "title" and isinstance(value, str)) or (key == "additionalProperties" and value is False)
