"""Tests of toolkits: schemas from annotations, validation of arguments, and rollback of refused calls."""

import asyncio
import sys
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Literal, TypedDict

import pytest
from pydantic import Field

from understudy.core.errors import TaskError, ToolError, ToolErrorKind
from understudy.core.messages import ToolCall, tool_to_openai
from understudy.core.records import Record
from understudy.envs.docstrings import find_unknown_parameters, parse_docstring
from understudy.envs.state import State, Table
from understudy.envs.tools import Alias, Toolkit, ToolkitBase, render_result


class Jar(Record):
    title: str
    sweets: int = 0


class Shelf(State):
    jars: Table[Jar]


class ShelfTools(Toolkit):
    _state: Shelf

    def fill(self, jar: Annotated[str, "its name"], sweets: int, kind: Literal["mint", "lemon"] = "mint") -> Jar:
        """Put sweets into a jar."""
        self._state.jars[jar] = Jar(title=kind, sweets=sweets)
        if sweets > 9:
            raise ToolError("the jar is full")
        return self._state.jars[jar]

    def title(self, title: str, type: list[str]) -> str:
        """Echo."""
        return f"{title} {type}"

    def broken(self) -> None:
        """Has a bug."""
        raise ZeroDivisionError

    def _hidden(self) -> None:
        raise NotImplementedError


class MoreTools(ShelfTools):
    def empty(self) -> list[Jar]:
        """Empty all jars."""
        return []


def call_tool(tool: str, /, **arguments: Any) -> str:
    return ShelfTools(Shelf()).call_sync(ToolCall(name=tool, arguments=arguments))


def test_public_methods_become_tools() -> None:
    assert [spec.name for spec in ShelfTools(Shelf()).specs()] == ["fill", "title", "broken"]
    assert [spec.name for spec in MoreTools(Shelf()).specs()] == ["fill", "title", "broken", "empty"]


def test_schema_follows_annotations() -> None:
    fill, title, broken = ShelfTools(Shelf()).specs()
    assert fill.description == "Put sweets into a jar."
    assert fill.parameters == {
        "type": "object",
        "properties": {
            "jar": {"type": "string", "description": "its name"},
            "sweets": {"type": "integer"},
            "kind": {"type": "string", "default": "mint", "enum": ["mint", "lemon"]},
        },
        "required": ["jar", "sweets"],
    }
    assert title.parameters["properties"] == {
        "title": {"type": "string"},
        "type": {"type": "array", "items": {"type": "string"}},
    }
    assert broken.parameters == {"type": "object", "properties": {}}


class Runner(Toolkit):
    def execute(self, code: Annotated[str, "the code", Alias("python_code"), Alias("source")], times: int = 1) -> str:
        """Run."""
        return code


def test_argument_aliases_are_declared_but_not_shown() -> None:
    (spec,) = Runner(Shelf()).specs()
    assert spec.aliases == {"python_code": "code", "source": "code"}
    assert spec.parameters["properties"]["code"]["description"] == "the code"
    assert "source" not in str(tool_to_openai(spec))


def test_results_leave_out_defaults() -> None:
    assert call_tool("fill", jar="a", sweets=0) == '{"title":"mint"}'
    assert call_tool("fill", jar="a", sweets=2, kind="lemon") == '{"title":"lemon","sweets":2}'
    assert call_tool("title", title="a", type=["b"]) == "a ['b']"


class Scalar:
    """A number of NumPy or PyTorch, with as much as is read of it."""

    shape = ()

    def item(self) -> int:
        return 7


def test_annotation_with_a_text_keeps_its_constraints() -> None:
    class Bank(Toolkit):
        def refund(self, amount: Annotated[float, "Euros.", Field(gt=0, le=50)]) -> str:
            """Refund an amount."""
            return f"refunded {amount}"

    bank = Bank(Shelf())
    (spec,) = bank.specs()
    assert spec.parameters["properties"]["amount"] == {
        "type": "number",
        "description": "Euros.",
        "exclusiveMinimum": 0,
        "maximum": 50,
    }
    with pytest.raises(ToolError, match="amount"):
        bank.call_sync(ToolCall(name="refund", arguments={"amount": -5000}))


class Array:
    """An array of NumPy or PyTorch, with as much as is read of it."""

    shape = (2,)

    def tolist(self) -> list[int]:
        return [1, 2]


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (Scalar(), "7"),
        ({"a": [Scalar()]}, '{"a":[7]}'),
        (["caf\udce9", "é"], '["caf\ufffd","é"]'),
        ((n for n in (1, 2)), "[1,2]"),
        ({"a": {"c", "b"}, "d": (frozenset({2, 1}),)}, '{"a":["b","c"],"d":[[1,2]]}'),
    ],
    ids=["scalar", "nested scalar", "surrogate", "generator", "sets"],
)
def test_result_is_rendered_as_json(result: object, text: str) -> None:
    assert render_result("look", result) == text


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (Array(), r"look returned test_tools\.Array, which is not JSON; return test_tools\.Array as its tolist\(\)"),
        ({"a": Array()}, r"look returned dict, which is not JSON; return test_tools\.Array as its tolist\(\)"),
        (object(), "look returned object, which is not JSON; return object as a text, a number"),
        (b"\xff", "look returned bytes, which is not JSON; .*utf-8"),
    ],
    ids=["array", "nested array", "object", "bytes"],
)
def test_result_that_is_not_json_is_named(result: object, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        render_result("look", result)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (ToolCall(name="fil"), "unknown_tool", "'fill'"),
        (ToolCall(name="_hidden"), "unknown_tool", "broken, fill, title"),
        (ToolCall(name="run"), "unknown_tool", "broken, fill, title"),
        (ToolCall(name="fill", parse_error="no JSON"), "malformed", "no JSON"),
        (ToolCall(name="fill", arguments={"jar": "a"}), "invalid_arguments", r"sweets: .*\(jar, s"),
        (ToolCall(name="fill", arguments={"jar": "a", "sweets": "x"}), "invalid_arguments", "sweets: .*integer"),
        (ToolCall(name="fill", arguments={"jar": "a", "sweets": 1, "kind": "salt"}), "invalid_arguments", "'mint'"),
        (ToolCall(name="fill", arguments={"jar": "a", "sweets": 1, "lid": 1}), "invalid_arguments", r"lid: .*\[kind\]"),
        (ToolCall(name="fill", arguments={"jar": 5, "sweets": 1}), "invalid_arguments", "jar: "),
    ],
)
def test_invalid_call_raises_error_of_expected_kind(call: ToolCall, kind: ToolErrorKind, text: str) -> None:
    with pytest.raises(ToolError, match=text) as caught:
        ShelfTools(Shelf()).call_sync(call)
    assert caught.value.kind == kind


def test_error_of_a_call_names_parameters_as_the_schema_does() -> None:
    class Post(Toolkit):
        def send(self, from_: Annotated[str, Field(alias="from")], to: str = "") -> None:
            """Send a card."""

    with pytest.raises(ToolError, match=r"from: Field required; it takes \(from, \[to\]\)"):
        Post(Shelf()).call_sync(ToolCall(name="send", arguments={}))


def test_refused_call_rolls_back_state() -> None:
    state = Shelf(jars={"a": Jar(title="old")})
    with pytest.raises(ToolError, match="full"):
        ShelfTools(state).call_sync(ToolCall(name="fill", arguments={"jar": "a", "sweets": 10}))
    assert state.changes() == {}


def test_async_call_returns_tool_result() -> None:
    assert asyncio.run(MoreTools(Shelf()).call(ToolCall(name="empty"))) == "[]"


def test_invalid_tool_methods_raise_and_overrides_are_not_tools() -> None:
    with pytest.raises(TaskError, match=r"\bbare\b.*`jar`"):

        class Bare(Toolkit):
            def bare(self, jar):  # type: ignore[no-untyped-def]
                """Take."""

    with pytest.raises(TaskError, match=r"\bmany\b.*`\*jars: str`"):

        class Many(Toolkit):
            def many(self, *jars: str) -> None:
                """Take."""

    with pytest.raises(TaskError, match=r"\bselfless\b.*`self`"):

        class Selfless(Toolkit):
            def selfless(jar: str) -> None:  # type: ignore[misc]
                """Take."""

    with pytest.raises(TaskError, match=r"Classy\.empty\b.*staticmethod"):

        class Classy(Toolkit):
            @classmethod
            def empty(cls) -> None:
                """Take."""

    class Watched(ShelfTools):
        def call_sync(self, call: ToolCall) -> str:
            return f"watched: {super().call_sync(call)}"

    assert [spec.name for spec in Watched.specs()] == ["fill", "title", "broken"]
    assert Watched(Shelf()).call_sync(ToolCall(name="title", arguments={"title": "a", "type": []})) == "watched: a []"


class Weights:
    """A mixin, which is no toolkit."""

    def weigh(self, grams: float) -> str:
        """Echo."""
        return f"{grams}"


class WeighingTools(Weights, ShelfTools):
    def edit(self, jar: dict[str, Any]) -> str:
        """Change the argument."""
        jar["sweets"].clear()
        return "done"


def test_methods_of_a_mixin_are_tools() -> None:
    assert [spec.name for spec in WeighingTools.specs()] == ["fill", "title", "broken", "weigh", "edit"]


class LoggedTools(ToolkitBase, Weights, tools=False):
    """A base class with a mixin of helpers."""


class CountingTools(LoggedTools):
    def count(self) -> int:
        """Count."""
        return 3

    def weigh(self, grams: float) -> str:
        """Override a helper."""
        return ""


def test_methods_of_a_base_class_and_its_mixins_are_no_tools() -> None:
    assert [spec.name for spec in CountingTools.specs()] == ["count"]


def test_a_tool_cannot_change_the_arguments_of_its_call() -> None:
    made = ToolCall(name="edit", arguments={"jar": {"sweets": [1, 2]}})
    WeighingTools(Shelf()).call_sync(made)
    assert made.arguments == {"jar": {"sweets": [1, 2]}}


@pytest.mark.parametrize("number", ["nan", "inf", "-Infinity", "1e400"])
def test_arguments_are_finite_numbers(number: str) -> None:
    with pytest.raises(ToolError, match="finite") as caught:
        WeighingTools(Shelf()).call_sync(ToolCall(name="weigh", arguments={"grams": number}))
    assert caught.value.kind == "invalid_arguments"


def test_aliases_of_tools_are_listed_and_must_name_a_tool() -> None:
    class Lamps(Toolkit):
        tool_aliases = {"turn_on": "light"}

        def light(self) -> str:
            """Switch the lamp on."""
            return "on"

    assert [(spec.name, spec.name_aliases) for spec in Lamps.specs()] == [("light", ("turn_on",))]
    assert tool_to_openai(Lamps.specs()[0])["function"].keys() == {"name", "description", "parameters"}
    for wrong in ({"light": "light"}, {"turn_on": "lights"}):
        with pytest.raises(TaskError, match="tool_aliases of Wrong"):

            class Wrong(Toolkit):
                tool_aliases = wrong

                def light(self) -> str:
                    """Switch the lamp on."""
                    return "on"


def test_names_that_break_a_tool_are_errors() -> None:
    with pytest.raises(TaskError, match="find cannot take `_limit`"):

        class Hidden(Toolkit):
            def find(self, _limit: int) -> None:
                """Find."""

    with pytest.raises(TaskError, match="find cannot take `model_dump`"):

        class Reserved(Toolkit):
            def find(self, model_dump: str) -> None:
                """Find."""

    with pytest.raises(TaskError, match=r"Phone\.call has a name"):

        class Phone(Toolkit):
            def call(self, number: str) -> None:  # type: ignore[override]
                """Dial."""

    with pytest.raises(TaskError, match=r"Cached\.look is a _lru_cache_wrapper"):

        class Cached(Toolkit):
            @cache  # noqa: B019
            def look(self) -> str:
                """Look."""
                return "sweets"


def test_arguments_may_have_the_names_of_the_methods_of_pydantic() -> None:
    class Writer(Toolkit):
        def write(self, json: str, schema: int = 1, copy: bool = False) -> str:
            """Write."""
            return f"{json} {schema} {copy}"

    (spec,) = Writer.specs()
    assert list(spec.parameters["properties"]) == ["json", "schema", "copy"]
    call = ToolCall(name="write", arguments={"json": "a", "copy": True})
    assert Writer(Shelf()).call_sync(call) == "a 1 True"


def test_schema_keeps_the_content_of_defaults_and_examples() -> None:
    class Pages(Toolkit):
        def write(
            self, page: Annotated[dict[str, Any], Field(examples=[{"title": "A", "additionalProperties": False}])]
        ) -> None:
            """Write."""

    (spec,) = Pages.specs()
    assert spec.parameters["properties"]["page"]["examples"] == [{"title": "A", "additionalProperties": False}]


class OldDict(TypedDict):
    """A dictionary of Python's own module `typing`, which pydantic refuses before Python 3.12."""

    speed: int


def test_an_annotation_that_pydantic_cannot_use_is_an_error_that_names_the_tool() -> None:
    class Opaque:
        pass

    def open_door(self: Any, key: Opaque) -> str:
        return "open"

    def wait(self: Any, until: Callable[[], int]) -> str:
        return "waited"

    def knock(self: Any, times: "NoSuchType") -> str:  # type: ignore[name-defined]  # noqa: F821
        return "knocked"

    def close_door(self: Any, how: OldDict) -> str:
        return "closed"

    cases = [
        (open_door, "`key: .*Opaque`"),
        (wait, r"`until: .*Callable\[\[\], int\]`"),
        (knock, "NoSuchType"),
    ]
    if sys.version_info < (3, 12):
        cases.append((close_door, "`how: .*OldDict`.*typing_extensions.TypedDict"))
    for method, named in cases:
        with pytest.raises(TaskError, match=rf"tool Doors\.{method.__name__}: .*{named}") as caught:
            type("Doors", (Toolkit,), {method.__name__: method})
        assert "\n" not in str(caught.value)
        assert "pydantic_core" not in str(caught.value)


def test_staticmethods_are_tools() -> None:
    class Kitchen(Toolkit):
        @staticmethod
        def boil(minutes: int, what: str = "an egg") -> str:
            """Boil something."""
            return f"{what}: {minutes}"

        @staticmethod
        async def fry(what: str) -> str:
            """Fry something."""
            return f"fried {what}"

    assert [(spec.name, spec.description) for spec in Kitchen.specs()] == [
        ("boil", "Boil something."),
        ("fry", "Fry something."),
    ]
    assert Kitchen.specs()[0].parameters["required"] == ["minutes"]
    kitchen = Kitchen(Shelf())
    assert kitchen.call_sync(ToolCall(name="boil", arguments={"minutes": 4})) == "an egg: 4"
    assert kitchen.call_sync(ToolCall(name="fry", arguments={"what": "rice"})) == "fried rice"
    with pytest.raises(ToolError) as refused:
        kitchen.call_sync(ToolCall(name="boil", arguments={"minutes": "long"}))
    assert refused.value.kind == "invalid_arguments"


GOOGLE = """Find orders
of a customer.

Args:
    customer: The id,
        such as C1.
    limit (int, optional): Most orders: all if 0.
    status: From the docstring.

Only recent orders are found.

Returns:
    The ids.

Raises:
    ToolError: if there is none.
"""
NUMPY = """Find orders
of a customer.

Only recent orders are found.

Parameters
----------
customer : str
    The id,
    such as C1.
limit : int, optional
    Most orders: all if 0.
status
    From the docstring.

Returns
-------
list
    The ids.
"""
SPHINX = """Find orders
of a customer.

Only recent orders are found.

:param str customer: The id,
    such as C1.
:param limit: Most orders: all if 0.
:type limit: int
:param status: From the docstring.
:returns: The ids.
:raises ToolError: if there is none.
"""


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, SPHINX])
def test_docstrings_describe_arguments_that_the_signature_does_not(docstring: str) -> None:
    def find_orders(self: Any, customer: str, status: Annotated[str, "From the signature."], limit: int = 0) -> str:
        return ""

    find_orders.__doc__ = docstring
    (spec,) = type("Orders", (Toolkit,), {"find_orders": find_orders}).specs()
    assert spec.description == "Find orders\nof a customer.\n\nOnly recent orders are found."
    assert {name: field["description"] for name, field in spec.parameters["properties"].items()} == {
        "customer": "The id, such as C1.",
        "status": "From the signature.",
        "limit": "Most orders: all if 0.",
    }


@pytest.mark.parametrize(
    "docstring",
    [
        "Add.\n\nArgs:\n    zahl: The number.",
        "Add.\n\nArgs:\nnothing is indented",
        "Parameters: see the manual.",
        "Add.\n\n:param zahl: The number.",
        "Add\n---\nReturns the sum: n + 1.",
    ],
)
def test_text_that_describes_no_argument_stays_in_the_description(docstring: str) -> None:
    assert parse_docstring(docstring, ["n"]) == (docstring, {})


@pytest.mark.parametrize(
    "docstring",
    [
        "Add.\n\nArgs:\n    n: The number.\n    zahl (int): The number.\n\nReturns:\n    sum: It.",
        "Add.\n\nParameters\n----------\nn : int\n    It.\nzahl : int\n    It.\n\nReturns\n-------\nint\n",
        "Add.\n\n:param n: The number.\n:param int zahl: The number.\n:returns: It.\n:raises zahl2: never",
    ],
)
def test_described_parameter_that_the_tool_lacks_is_found(docstring: str) -> None:
    assert find_unknown_parameters(docstring, ["n"]) == ["zahl"]
    assert find_unknown_parameters(docstring, ["n", "zahl"]) == []
