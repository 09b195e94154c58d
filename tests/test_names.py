"""Portable names: what every endpoint takes, and back, whatever the tools are called."""

import re

from hypothesis import given
from hypothesis import strategies as st

from understudy.messages import Message, ToolCall, ToolSpec
from understudy.names import LONGEST, PortableNames

NAMES = st.lists(st.text(st.sampled_from("ab._-é 1"), min_size=1, max_size=70), unique=True, max_size=8)


@given(NAMES)
def test_every_tool_is_called_back_by_its_own_name(names: list[str]) -> None:
    portable = PortableNames(names)
    told = [
        spec.name for spec in portable.specs([ToolSpec(name=name, description="", parameters={}) for name in names])
    ]
    assert all(re.fullmatch(rf"[A-Za-z0-9_-]{{1,{LONGEST}}}", name) for name in told)
    assert len(set(told)) == len(names)
    calls = Message(role="assistant", tool_calls=tuple(ToolCall(name=name) for name in told))
    back = portable.back(calls)
    assert [call.name for call in back.tool_calls] == names
    assert portable.there(back) == calls


def test_names_that_are_taken_already_stay() -> None:
    told = PortableNames(["a.b", "a_b", "a b"])
    specs = told.specs([ToolSpec(name=name, description="", parameters={}) for name in ("a.b", "a_b", "a b")])
    assert [spec.name for spec in specs] == ["a_b_2", "a_b", "a_b_3"]
