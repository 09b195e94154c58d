"""Tests of the types that JSON Schemas allow."""

from typing import Any

import pytest

from understudy.core.messages import ToolCall, ToolSpec
from understudy.formats.parsing.parse import TOOL_FORMATS, parse_reply, render_reply
from understudy.formats.parsing.schema import member_schema, resolve_reference, schema_types
from understudy.formats.signature import tool_signature

STRING, INTEGER = {"type": "string"}, {"type": "integer"}
ROOT: dict[str, Any] = {
    "type": "object",
    "$defs": {"zip": STRING, "count": {"$ref": "#/definitions/number"}, "a~/b %": INTEGER, "named": {"$anchor": "n"}},
    "definitions": {"number": INTEGER, "loop": {"$ref": "#/definitions/loop"}, "maybe": {"anyOf": [STRING, {}]}},
    "properties": {"a": STRING, "list": {"items": INTEGER}, "nested": {"properties": {"b": INTEGER}}},
}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"$ref": "#/properties/a"}, {"string"}),
        ({"$ref": "#/$defs/count"}, {"integer"}),
        ({"$ref": "#/definitions/number"}, {"integer"}),
        ({"$ref": "#/properties/nested/properties/b"}, {"integer"}),
        ({"$ref": "#/properties/list/items"}, {"integer"}),
        ({"$ref": "#/$defs/a~0~1b%20%25"}, {"integer"}),
        ({"$ref": "#/definitions/loop"}, set()),
        ({"$ref": "#/definitions/missing"}, set()),
        ({"$ref": "https://example.com/zip.json"}, set()),
        ({"$ref": "#"}, {"object"}),
        ({"allOf": [{"$ref": "#/$defs/zip"}, {"minLength": 5}]}, {"string"}),
        ({"allOf": [{"type": ["string", "integer"]}, STRING]}, {"string"}),
        ({"type": ["string", "null"], "anyOf": [{"pattern": "a"}, {"pattern": "b"}]}, {"string", "null"}),
        ({"oneOf": [STRING, {"$ref": "#/$defs/count"}]}, {"string", "integer"}),
        ({"allOf": [{"type": "number"}, INTEGER]}, {"integer"}),
        ({"type": "string", "nullable": True}, {"string", "null"}),
        ({"enum": ["a", 1, None]}, {"string", "integer", "null"}),
        (True, set()),
    ],
)
def test_types_follow_references_and_combinations(schema: Any, types: set[str]) -> None:
    assert schema_types(schema, ROOT) == types


def test_anchors_and_broken_pointers() -> None:
    assert resolve_reference("#n", ROOT) == {"$anchor": "n"}
    for reference in ("#/properties/list/7", "#/type/0", "zip", 3):
        assert resolve_reference(reference, ROOT) is None


def test_types_of_many_references_are_found_at_once() -> None:
    """A schema whose unions refer to each other twice would take 2**40 steps."""
    double: dict[str, Any] = {
        f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]} for i in range(40)
    }
    root = {"$defs": double | {"d40": STRING}, "$ref": "#/$defs/d0"}
    assert member_schema(root, "x", root) == {}
    assert schema_types({"$ref": "#/$defs/d30"}, root) == {"string"}


def test_members_of_referenced_and_combined_objects() -> None:
    root = {"allOf": [{"$ref": "#/definitions/args"}], "definitions": {"args": {"properties": {"a": STRING}}}}
    assert member_schema(root, "a", root) == STRING
    assert member_schema({"additionalProperties": INTEGER}, "x", {}) == INTEGER
    assert member_schema({"items": INTEGER}, "item", {}) == INTEGER
    assert member_schema({"items": True}, "item", {}) == {}


PARAMETERS = {
    "property": {"properties": {"from_zip": STRING, "to_zip": {"$ref": "#/properties/from_zip"}}},
    "definitions": {"definitions": {"Zip": STRING}, "properties": {"to_zip": {"$ref": "#/definitions/Zip"}}},
    "all of": {"$defs": {"Zip": STRING}, "properties": {"to_zip": {"allOf": [{"$ref": "#/$defs/Zip"}]}}},
    "root": {"$ref": "#/$defs/Args", "$defs": {"Args": {"properties": {"to_zip": STRING}}}},
    "additional": {"additionalProperties": STRING},
}


@pytest.mark.parametrize("tool_format", sorted(TOOL_FORMATS))
@pytest.mark.parametrize("shape", sorted(PARAMETERS))
def test_a_string_of_digits_stays_a_string_in_every_format(tool_format: str, shape: str) -> None:
    spec = ToolSpec(name="ship", description="Ship.", parameters={"type": "object", **PARAMETERS[shape]})
    call = ToolCall(name="ship", arguments={"to_zip": "94110"})
    assert parse_reply(render_reply("", [call], tool_format), tool_format, [spec]).calls == (call,)


def test_signatures_follow_references() -> None:
    spec = ToolSpec(name="ship", description="", parameters={"type": "object", **PARAMETERS["property"]})
    assert tool_signature(spec) == "ship(from_zip?: str, to_zip?: str)"
