"""Test portable tool names: names that every endpoint accepts, mapped to and back from any tool names."""

import re

from hypothesis import given
from hypothesis import strategies as st

from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.formats.tool_names import MAX_NAME_LENGTH, ToolNameMap

NAMES = st.lists(st.text(st.sampled_from("ab._-é 1"), min_size=1, max_size=70), unique=True, max_size=8)


@given(NAMES)
def test_tool_names_round_trip_through_portable_names(names: list[str]) -> None:
    portable = ToolNameMap(names)
    sent_names = [
        spec.name
        for spec in portable.rename_specs([ToolSpec(name=name, description="", parameters={}) for name in names])
    ]
    assert all(re.fullmatch(rf"[A-Za-z0-9_-]{{1,{MAX_NAME_LENGTH}}}", name) for name in sent_names)
    assert len(set(sent_names)) == len(names)
    calls = Message(role="assistant", tool_calls=tuple(ToolCall(name=name) for name in sent_names))
    back = portable.from_endpoint(calls)
    assert [call.name for call in back.tool_calls] == names
    assert portable.to_endpoint(back) == calls


def test_valid_names_stay_and_colliding_ones_get_a_suffix() -> None:
    portable = ToolNameMap(["a.b", "a_b", "a b"])
    specs = portable.rename_specs(
        [ToolSpec(name=name, description="", parameters={}) for name in ("a.b", "a_b", "a b")]
    )
    assert [spec.name for spec in specs] == ["a_b_2", "a_b", "a_b_3"]
