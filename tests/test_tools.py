"""Toolkits: schemas from annotations, validation, refusals that roll back."""

import asyncio
from typing import Annotated, Any, Literal

import pytest

from understudy.errors import CallFault, TaskError, ToolError
from understudy.messages import ToolCall, spec_to_wire
from understudy.records import Record
from understudy.state import State, Table
from understudy.tools import Alias, Toolkit


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


def run(tool: str, /, **arguments: Any) -> str:
    return ShelfTools(Shelf()).run(ToolCall(name=tool, arguments=arguments))


def test_public_methods_are_the_tools() -> None:
    assert [spec.name for spec in ShelfTools(Shelf()).specs()] == ["fill", "title", "broken"]
    assert [spec.name for spec in MoreTools(Shelf()).specs()] == ["fill", "title", "broken", "empty"]


def test_annotations_are_the_schema() -> None:
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


def test_other_names_of_arguments_are_declared_and_not_shown() -> None:
    (spec,) = Runner(Shelf()).specs()
    assert spec.aliases == {"python_code": "code", "source": "code"}
    assert spec.parameters["properties"]["code"]["description"] == "the code"
    assert "source" not in str(spec_to_wire(spec))


def test_results_leave_out_defaults() -> None:
    assert run("fill", jar="a", sweets=0) == '{"title":"mint"}'
    assert run("fill", jar="a", sweets=2, kind="lemon") == '{"title":"lemon","sweets":2}'
    assert run("title", title="a", type=["b"]) == "a ['b']"


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (ToolCall(name="fil"), "unknown_tool", "did you mean 'fill'"),
        (ToolCall(name="_hidden"), "unknown_tool", "allowed: broken, fill, title"),
        (ToolCall(name="run"), "unknown_tool", "allowed"),
        (ToolCall(name="fill", malformed="no JSON"), "malformed", "no JSON"),
        (ToolCall(name="fill", arguments={"jar": "a"}), "bad_arguments", r"sweets: Field required; it takes \(jar, s"),
        (ToolCall(name="fill", arguments={"jar": "a", "sweets": "x"}), "bad_arguments", "sweets: .*integer"),
        (ToolCall(name="fill", arguments={"jar": "a", "sweets": 1, "kind": "salt"}), "bad_arguments", "'mint' or"),
        (ToolCall(name="fill", arguments={"jar": "a", "sweets": 1, "lid": 1}), "bad_arguments", r"lid: .*\[kind\]"),
        (ToolCall(name="fill", arguments={"jar": 5, "sweets": 1}), "bad_arguments", "jar: "),
    ],
)
def test_bad_calls_are_refused_by_kind(call: ToolCall, kind: CallFault, text: str) -> None:
    with pytest.raises(ToolError, match=text) as caught:
        ShelfTools(Shelf()).run(call)
    assert caught.value.kind == kind


def test_a_refusal_rolls_back() -> None:
    state = Shelf(jars={"a": Jar(title="old")})
    with pytest.raises(ToolError, match="full"):
        ShelfTools(state).run(ToolCall(name="fill", arguments={"jar": "a", "sweets": 10}))
    assert state.changes() == {}


def test_a_bug_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        run("broken")


def test_call_is_run() -> None:
    assert asyncio.run(MoreTools(Shelf()).call(ToolCall(name="empty"))) == "[]"


def test_what_cannot_be_a_tool_is_told_and_what_a_kind_of_tools_has_is_none() -> None:
    with pytest.raises(TaskError, match=r"tool bare cannot take `jar`; each argument of a tool has a name and an anno"):

        class Bare(Toolkit):
            def bare(self, jar):  # type: ignore[no-untyped-def]
                """Take."""

    with pytest.raises(TaskError, match=r"tool many cannot take `\*jars: str`"):

        class Many(Toolkit):
            def many(self, *jars: str) -> None:
                """Take."""

    with pytest.raises(TaskError, match=r"tool Static.empty is a staticmethod; make it a method"):

        class Static(Toolkit):
            @staticmethod
            def empty() -> None:
                """Take."""

    class Watched(ShelfTools):
        def run(self, call: ToolCall) -> str:
            return f"watched: {super().run(call)}"

    assert [spec.name for spec in Watched.specs()] == ["fill", "title", "broken"]
    assert Watched(Shelf()).run(ToolCall(name="title", arguments={"title": "a", "type": []})) == "watched: a []"
