"""Test the schemas and the kinds of tools that are inferred from recorded calls."""

import pytest

from understudy.core.messages import ToolCall
from understudy.sources.task_files.inferred_tools import hands_over, infer_tools, looks_up, only_reads


def test_types_and_required_arguments_follow_from_all_calls() -> None:
    first = {"id": "a", "count": 1, "items": [{"sku": "x", "size": 3}, {"sku": "y"}], "note": None}
    second = {"id": "b", "count": 1.5, "items": [], "urgent": True, "note": "soon"}
    (tool,) = infer_tools(ToolCall(name="place_order", arguments=each) for each in (first, second))
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "count": {"type": "number"},
            "items": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"sku": {"type": "string"}, "size": {"type": "integer"}},
                    "required": ["sku"],
                },
            },
            "urgent": {"type": "boolean"},
            "note": {"type": "string"},
        },
        "required": ["id", "count", "items"],
    }
    assert "change" in tool.description


def test_mixed_types_are_all_allowed() -> None:
    (tool,) = infer_tools(ToolCall(name="get", arguments={"x": value}) for value in ("a", 1, [2]))
    assert tool.parameters["properties"]["x"] == {"type": ["string", "integer", "array"]}
    (tool,) = infer_tools([ToolCall(name="get", arguments={"x": ["a", None], "y": [{"z": [None]}]})])
    x, y = tool.parameters["properties"]["x"], tool.parameters["properties"]["y"]
    assert x["items"] == {"type": ["string", "null"]}
    assert y["items"]["properties"]["z"]["items"] == {"type": "null"}


@pytest.mark.parametrize(
    ("values", "choices"),
    [
        (["no longer needed", "ordered by mistake"] * 10, ["no longer needed", "ordered by mistake"]),
        (["no longer needed", "ordered by mistake"] * 9, None),  # too few to be sure
        (["Mia Li", "Sam Oh"] * 10, None),  # names would be candidates
        (["w17", "w18"] * 10, None),
        (["a@mail", "b@mail"] * 10, None),
        (["lost"] * 19 + ["stolen"], None),
        (["lost"] * 20, None),
        ([f"word {letter}" for letter in "abcdefg"] * 9, None),
    ],
)
def test_enum_only_where_it_gives_nothing_away(values: list[str], choices: list[str] | None) -> None:
    (tool,) = infer_tools(ToolCall(name="cancel", arguments={"reason": value}) for value in values)
    assert tool.parameters["properties"]["reason"].get("enum") == choices


@pytest.mark.parametrize(
    ("name", "reads"),
    [
        ("get_order_details", True),
        ("listProducts", True),
        ("think", True),
        ("calculate", True),
        ("polygon.polygon_get_news", True),
        ("python.execute_python", True),
        ("slack.send_slack_message", False),
        ("fmp_get_quote", True),
        ("tavily_qna_search", True),
        ("polygon_get_previous_close", True),
        ("slack_send_message", False),
        ("create_list", False),
        ("market_status", False),
        ("cancel_pending_order", False),
        ("transfer_to_human_agents", False),
        ("check_flight_status", True),
        ("check_in", False),
        ("getaway_booking", False),
        ("", False),
    ],
)
def test_names_say_which_tools_write(name: str, reads: bool) -> None:
    assert only_reads(name) == reads


def test_thinking_looks_nothing_up_and_transfers_hand_over() -> None:
    assert [looks_up(name) for name in ("get_order", "think", "calculate", "execute_python", "cancel")] == [
        True,
        False,
        False,
        False,
        False,
    ]
    assert hands_over("transfer_to_human_agents")
    assert not hands_over("refund_transfer")
