"""Conversations for other trainers: what is written comes back equal, and what a form cannot hold is refused."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conversing import TOOLS, conversations
from data_kit import call
from understudy.data.conversations import JOIN, Lesson
from understudy.data.conversations import conversations as read_conversations
from understudy.data.export import Target, Unfit, each_reply, first_difference
from understudy.data.items import Item
from understudy.data.llamafactory import LlamaFactory, template_of
from understudy.data.openai import OpenAI
from understudy.data.preferences import Demonstration, Judged, Preference
from understudy.data.trl import Trl
from understudy.errors import ConfigError
from understudy.messages import Message, ToolCall

POLICY, HELLO = Message(role="system", content="policy"), Message(role="user", content="hello")


def said(text: str) -> Message:
    return Message(role="assistant", content=text)


def calling(*names: str, turn: int = 0, content: str = "") -> Message:
    calls = tuple(ToolCall(name=name, arguments={"x": 1}, id=f"call_{turn}_{i}") for i, name in enumerate(names))
    return Message(role="assistant", content=content, tool_calls=calls)


def result(text: str, place: int = 0, turn: int = 0) -> Message:
    return Message(role="tool", content=text, tool_call_id=f"call_{turn}_{place}")


def shown(*messages: Message) -> tuple[Message, ...]:
    return (POLICY, HELLO, *messages)


ORDINARY = shown(said("Which?"), HELLO, calling("find", turn=1), result("L7", turn=1), said("Done."))
SEVERAL = shown(calling("find", "switch"), result("L7"), result("on", 1), said("Done."))


def lessons(path: Path) -> list[Lesson]:
    found = list(read_conversations(path))
    assert all(isinstance(item, Item) for item in found), found
    return [item.value for item in found if isinstance(item, Item)]


def through(target: Target, lesson: Lesson, path: Path) -> list[Lesson]:
    """A conversation as a target writes it, read again."""
    lines = [row.model_dump_json(by_alias=True) for _, row in target.rows(lesson)]
    path.write_text("".join(line + "\n" for line in lines))
    return lessons(path)


def until_last_reply(messages: Sequence[Message]) -> tuple[Message, ...]:
    last = max(i for i, message in enumerate(messages) if message.role == "assistant")
    return tuple(messages[: last + 1])


def write(path: Path, *rows: Lesson) -> Path:
    path.write_text("".join(row.model_dump_json(exclude_defaults=True) + "\n" for row in rows))
    return path


TARGETS = {"llamafactory": LlamaFactory("m", "qwen"), "trl": Trl(), "openai": OpenAI()}


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=60)
@given(messages=conversations(), tools=st.sampled_from([(), TOOLS]))
def test_what_is_written_comes_back_equal(
    tmp_path_factory: pytest.TempPathFactory, name: str, messages: tuple[Message, ...], tools: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / f"{name}.jsonl"
    lesson = Demonstration(messages=messages, tools=tools)
    if name == "llamafactory" and not messages[0].content:
        with pytest.raises(Unfit, match="an empty policy"):
            through(TARGETS[name], lesson, path)
        return
    assert through(TARGETS[name], lesson, path) == [lesson.replace(messages=until_last_reply(messages))]


@pytest.mark.parametrize("name", TARGETS)
def test_text_beside_calls_comes_back(tmp_path: Path, name: str) -> None:
    messages = shown(calling("find", content="I look\nit up.\n"), result("</tool_call> <think>x</think>"), said("ok"))
    lesson = Demonstration(messages=messages, tools=TOOLS)
    assert through(TARGETS[name], lesson, tmp_path / "rows.jsonl") == [lesson]


@pytest.mark.parametrize("name", TARGETS)
def test_a_pair_is_that_of_the_first_replies_that_differ(tmp_path: Path, name: str) -> None:
    other = (*ORDINARY[:4], said("I cannot."), HELLO, said("No."))
    lesson = Preference(chosen=ORDINARY, rejected=other, tools=TOOLS)
    assert first_difference(lesson) == (ORDINARY[:4], ORDINARY[4], other[4])
    expected = Preference(chosen=ORDINARY[:5], rejected=other[:5], tools=TOOLS)
    assert through(TARGETS[name], lesson, tmp_path / "rows.jsonl") == [expected]


@pytest.mark.parametrize("name", ["llamafactory", "trl"])
@pytest.mark.parametrize("wanted", [True, False])
def test_a_judgement_is_one_of_each_reply(tmp_path: Path, name: str, wanted: bool) -> None:
    lesson = Judged(messages=ORDINARY, tools=TOOLS, wanted=wanted)
    assert [(len(before), reply) for before, reply in each_reply(lesson)] == [(n, ORDINARY[n]) for n in (2, 4, 6)]
    expected = [Judged(messages=ORDINARY[:end], tools=TOOLS, wanted=wanted) for end in (3, 5, 7)]
    assert through(TARGETS[name], lesson, tmp_path / "rows.jsonl") == expected


def test_a_row_of_llamafactory_by_hand() -> None:
    ((name, row),) = TARGETS["llamafactory"].rows(Demonstration(messages=SEVERAL, tools=TOOLS[:1]))
    written = json.loads(row.model_dump_json(by_alias=True))
    call_text = '{"name": "%s", "arguments": {"x": 1}}'
    assert (name, written["system"]) == ("sft.jsonl", "policy")
    assert json.loads(written["tools"]) == [{"type": "function", "function": TOOLS[0].model_dump(exclude={"aliases"})}]
    assert written["conversations"] == [
        {"from": "human", "value": "hello"},
        {"from": "function_call", "value": f"[{call_text % 'find'}, {call_text % 'switch'}]"},
        {"from": "observation", "value": "L7\n</tool_response>\n<tool_response>\non"},
        {"from": "gpt", "value": "Done."},
    ]


def test_marks_within_calls_are_escaped() -> None:
    messages = shown(Message(role="assistant", tool_calls=(ToolCall(name="find", arguments={"x": "</tool_call>"}),)))
    ((_, row),) = TARGETS["llamafactory"].rows(Demonstration(messages=messages))
    value = row.conversations[-1].value  # type: ignore[attr-defined]
    assert "<" not in value
    assert json.loads(value)["arguments"] == {"x": "</tool_call>"}


def test_several_calls_where_a_template_cannot_hold_them(tmp_path: Path) -> None:
    lesson = Demonstration(messages=SEVERAL, tools=TOOLS)
    with pytest.raises(Unfit, match="several calls in a turn, which template llama3 cannot hold"):
        list(LlamaFactory("m", "llama3").rows(lesson))
    target = LlamaFactory("m", "llama3", split=True)
    (split,) = through(target, lesson, tmp_path / "rows.jsonl")
    told = shown(calling("find"), result("L7"), calling("switch", turn=1), result("on", turn=1), said("Done."))
    assert split == lesson.replace(messages=told)
    assert target.notes() == ["split: 1 turns with several calls"]


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        (shown(calling("find", "switch"), result(f"a{JOIN}b"), result("on", 1), said("ok")), "the text that is put"),
        (shown(said("a"), HELLO, HELLO, said("b")), "turns that do not alternate"),
        (shown(calling("find"), result("x"), HELLO, said("b")), "turns that do not alternate"),
        (shown(calling("find"), HELLO, said("b")), "calls without results"),
        (shown(calling("find", "switch"), result("x", 1), result("y"), said("b")), "do not answer the calls"),
        (shown(said("a"), POLICY, said("b")), "a policy in the middle"),
        (shown(Message(role="assistant", tool_calls=(ToolCall(name="f", malformed="no"),))), "could not be read"),
        (shown(calling("find", content="a <tool_call> b")), "say <tool_call> beside their calls"),
    ],
)
def test_what_llamafactory_cannot_hold(messages: tuple[Message, ...], why: str) -> None:
    with pytest.raises(Unfit, match=why):
        list(TARGETS["llamafactory"].rows(Demonstration(messages=messages, tools=TOOLS)))


def test_pairs_without_replies_that_differ() -> None:
    longer = (*ORDINARY, HELLO, said("Bye."))
    other = (*ORDINARY[:3], Message(role="user", content="the blue one"), said("Bye."))
    for rejected, why in ((longer, "the beginning of the other"), (other, "something else than a reply")):
        with pytest.raises(Unfit, match=why):
            first_difference(Preference(chosen=ORDINARY, rejected=rejected))


def test_rows_of_openai_are_what_its_api_takes() -> None:
    from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
    from pydantic import TypeAdapter

    ((_, row),) = OpenAI().rows(Demonstration(messages=SEVERAL, tools=TOOLS))
    written = json.loads(row.model_dump_json())
    assert written["parallel_tool_calls"] is True
    assert [m.pop("weight", None) for m in written["messages"]] == [None, None, 1, None, None, 1]
    TypeAdapter(list[ChatCompletionMessageParam]).validate_python(written["messages"])
    TypeAdapter(list[ChatCompletionToolParam]).validate_python(written["tools"])
    assert [m.get("tool_call_id") for m in written["messages"]] == [None, None, None, "call_0_0", "call_0_1", None]
    assert json.loads(written["messages"][2]["tool_calls"][0]["function"]["arguments"]) == {"x": 1}
    ((_, plain),) = OpenAI().rows(Demonstration(messages=ORDINARY[:3]))
    assert json.loads(plain.model_dump_json()).keys() == {"messages"}


@pytest.mark.parametrize("several", ["chosen", "rejected", "neither"])
def test_pairs_of_openai_say_that_a_reply_has_several_calls(several: str) -> None:
    sides = {side: calling(*(("find", "switch") if side == several else ("find",))) for side in ("chosen", "rejected")}
    sides["chosen"] = sides["chosen"].replace(content="Let me see.")  # or the two would be one
    pair = Preference(chosen=shown(sides["chosen"]), rejected=shown(sides["rejected"]), tools=TOOLS)
    ((_, row),) = OpenAI().rows(pair)
    assert json.loads(row.model_dump_json())["input"]["parallel_tool_calls"] is (several != "neither")


def test_what_openai_cannot_hold() -> None:
    with pytest.raises(Unfit, match="no form for"):
        list(OpenAI().rows(Judged(messages=ORDINARY, wanted=True)))
    with pytest.raises(Unfit, match="more than 128 tools"):
        list(OpenAI().rows(Demonstration(messages=ORDINARY, tools=TOOLS * 65)))


def test_names_that_openai_does_not_take_are_told_otherwise_and_said() -> None:
    target = OpenAI()
    lesson = Demonstration(
        messages=shown(calling("a.b"), result("x"), said("ok")), tools=(TOOLS[0].replace(name="a.b"),)
    )
    ((_, row),) = target.rows(lesson)
    written = json.loads(row.model_dump_json())
    assert written["tools"][0]["function"]["name"] == "a_b"
    assert written["messages"][2]["tool_calls"][0]["function"]["name"] == "a_b"
    assert target.notes() == ["told under another name: a.b as a_b"]


NAMES = {
    "Qwen/Qwen2.5-7B-Instruct": "qwen",
    "Qwen/Qwen3-8B": "qwen3",
    "Qwen/Qwen3-4B-Instruct-2507": "qwen3_nothink",
    "Qwen/Qwen3.5-9B": "qwen3_5",
    "meta-llama/Llama-3.1-8B-Instruct": "llama3",
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": "mistral_small",
    "zai-org/GLM-4.5-Air": "glm4_moe",
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": "smollm2",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_template_is_found_by_a_models_name(name: str) -> None:
    assert template_of(name) == (name, NAMES[name])


def test_a_model_of_no_known_family_needs_a_template() -> None:
    for name in ("someone/new-model", "Qwen/Qwen3-VL-8B-Instruct", "Qwen/Qwen3-Coder-30B-A3B-Instruct"):
        with pytest.raises(ConfigError, match="no template of LLaMA-Factory is known"):
            template_of(name)
        assert template_of(name, "chatml") == (name, "chatml")


def test_a_conversation_has_room_in_bytes_since_tokens_may_be_that_short() -> None:
    target = LlamaFactory("a/Qwen3-8B", "qwen3")
    list(target.rows(Demonstration(messages=shown(said("😀" * 2000)))))
    cutoff = target.files({"sft.jsonl": 1})["sft_lora.yaml"].partition("cutoff_len: ")[2].partition("\n")[0]
    assert 8000 < int(cutoff) < 9000


def test_the_verb_writes_a_folder_that_trains(tmp_path: Path) -> None:
    rows = [
        Demonstration(messages=ORDINARY, tools=TOOLS),
        Preference(chosen=ORDINARY, rejected=shown(said("No.")), tools=TOOLS),
        Judged(messages=ORDINARY, tools=TOOLS, wanted=True),
    ]
    files = [write(tmp_path / f"{i}.jsonl", row) for i, row in enumerate(rows)]
    out = tmp_path / "out"
    code, text, err = call("export", "llamafactory", *files, "--model", "Qwen/Qwen3-8B", "--out", out)
    assert (code, text, err) == (0, "dpo.jsonl: 1\nkto.jsonl: 3\nsft.jsonl: 1\n", "")
    ways = {"sft_lora", "sft_full", "sft_qlora", "dpo_lora", "kto_lora", "sft_merge", "dpo_merge", "kto_merge"}
    assert {path.stem for path in out.glob("*.yaml")} == ways
    info = json.loads((out / "dataset_info.json").read_text())
    assert {entry["file_name"] for entry in info.values()} == {"sft.jsonl", "dpo.jsonl", "kto.jsonl"}
    qlora = (out / "sft_qlora.yaml").read_text()
    for line in ('template: "qwen3"', "enable_thinking: false", "quantization_bit: 4", "learning_rate: 0.0001"):
        assert line in qlora.splitlines()
    assert "learning_rate: 1.0e-05" in (out / "sft_full.yaml").read_text().splitlines()
    cutoff = int(qlora.partition("cutoff_len: ")[2].partition("\n")[0])
    assert cutoff > max(len(line) for path in out.glob("*.jsonl") for line in path.read_bytes().splitlines())
    assert call("export", "trl", files[0], "--out", out) == (
        2,
        "",
        f"understudy: {out} is there already; give another name, or remove it\n",
    )


def test_the_verb_leaves_out_what_cannot_be_held_only_when_asked(tmp_path: Path) -> None:
    rows = [Demonstration(messages=m, tools=TOOLS) for m in (ORDINARY, SEVERAL, SEVERAL)]
    arguments = ("export", "llamafactory", write(tmp_path / "rows.jsonl", *rows), "--model", "a/Llama-3-8B", "--out")
    code, _, err = call(*arguments, tmp_path / "out")
    assert code == 2
    assert "nothing is written: 2 of 3 have several calls in a turn" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl"]
    code, text, _ = call(*arguments, tmp_path / "out", "--keep-going")
    assert (code, text.splitlines()[:1]) == (1, ["sft.jsonl: 1"])
    assert "left out: 2, several calls" in text
    code, text, _ = call(*arguments, tmp_path / "split", "--split-calls")
    assert (code, text) == (0, "sft.jsonl: 3\nsplit: 2 turns with several calls\n")


def test_options_of_one_trainer_are_not_taken_for_another(tmp_path: Path) -> None:
    rows = write(tmp_path / "rows.jsonl", Demonstration(messages=ORDINARY))
    code, _, err = call("export", "openai", rows, "--model", "x", "--out", tmp_path / "out")
    assert (code, "--model has no effect" in err) == (2, True)
    code, _, err = call("export", "llamafactory", rows, "--out", tmp_path / "out")
    assert (code, "give --model" in err) == (2, True)


def test_an_endpoint_may_begin_its_ids_anew_in_each_reply() -> None:
    first, second = (calling(name).replace(content="") for name in ("find", "cancel"))
    talk = shown(first, result("L7"), second, result("gone"), said("Done."))
    ((_, row),) = Trl().rows(Demonstration(messages=talk))
    assert [wire["name"] for wire in row.model_dump()["messages"] if wire["role"] == "tool"] == ["find", "cancel"]
