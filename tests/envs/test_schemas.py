"""Tests of the comparison of tools' schemas, and of the errors of arguments."""

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from understudy.core.messages import ToolSpec
from understudy.envs.schemas import canonical_schema, schema_difference, schema_error
from understudy.sources.mcp.catalog import ToolCatalog
from understudy.sources.mcp.config import MCPServerConfig

TARGETS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "target": {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": "id"}, "id": {"type": "integer"}},
                    "required": ["kind", "id"],
                },
                {
                    "type": "object",
                    "properties": {"kind": {"const": "name"}, "name": {"type": "string", "minLength": 3}},
                    "required": ["kind", "name"],
                },
                {"type": "null"},
            ]
        },
        "size": {"oneOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": "^[0-9]+px$"}]},
    },
}


@pytest.mark.parametrize(
    ("arguments", "named", "not_named"),
    [
        ({"target": {"kind": "name", "name": "x"}}, ["target.name"], ["target.kind", "null"]),
        ({"target": {"kind": "id"}}, ["'id' is a required"], ["'name'", "null"]),
        ({"target": {"kind": "id", "id": "7"}}, ["target.id", "'integer'"], ["target.kind"]),
        ({"target": {"kind": "other"}}, ["'id' was expected", "'name' was expected"], []),
        ({"target": 3}, ["'object'", "'null'"], []),
        ({"size": 0}, ["size", "minimum of 1"], ["px"]),
        ({"size": "big"}, ["size", "px"], ["minimum", "'integer'"]),
        ({"size": 1.5}, ["'integer'", "'string'"], []),
    ],
)
def test_error_names_the_closest_branch_or_all(
    arguments: dict[str, Any], named: list[str], not_named: list[str]
) -> None:
    error = schema_error(Draft202012Validator(TARGETS), arguments)
    assert all(word in error for word in named), error
    assert not any(word in error for word in not_named), error


def test_arguments_that_match_have_no_error() -> None:
    arguments = {"target": {"kind": "name", "name": "milk"}, "size": "3px"}
    assert schema_error(Draft202012Validator(TARGETS), arguments) == ""


def amount(**of: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"amount": {"type": "integer", **of}, "title": {"type": "string"}}}


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        (amount(), amount(description="Other words.", title="Amount"), ""),
        (amount(enum=[1, 2]), amount(enum=[2, 1]), ""),
        (
            {**amount(), "required": ["amount", "title"]},
            {"required": ["title", "amount"], "properties": dict(reversed(amount()["properties"].items())), **amount()},
            "",
        ),
        ({"anyOf": [amount(), {"type": "null"}]}, {"anyOf": [{"type": "null"}, amount()]}, ""),
        (amount(), amount(type="string"), 'properties.amount.type was "integer", is "string"'),
        (amount(enum=[1, 2]), amount(enum=[1, 3]), "properties.amount.enum was [1, 2], is [1, 3]"),
        (amount(), {"type": "object", "properties": {}}, "properties.amount was "),
        (amount(), {**amount(), "required": ["amount"]}, 'required was missing, is ["amount"]'),
    ],
)
def test_difference_of_schemas_ignores_order_and_descriptions(then: Any, now: Any, said: str) -> None:
    assert schema_difference(then, now).startswith(said)
    assert bool(schema_difference(then, now)) == bool(said)


def test_property_of_the_name_of_an_annotation_is_kept() -> None:
    assert canonical_schema(amount())["properties"].keys() == {"amount", "title"}


def test_changed_tools_are_those_with_other_names_or_arguments() -> None:
    config = MCPServerConfig(command=("x",))
    before = [ToolSpec(name=name, description=name, parameters=amount(enum=[1, 2])) for name in ("a", "b", "c")]
    catalog = ToolCatalog({"s": before}, {"s": config})
    after = [
        before[0].replace(description="In other words.", parameters=amount(enum=[2, 1])),
        before[1].replace(parameters=amount(enum=[2, 4])),
    ]
    gone, changed = catalog.changed_tools("s", after)
    assert gone == "c is gone"
    assert changed == "b: properties.amount.enum was [1, 2], is [2, 4]"
