"""Test `data export`: conversations written for other trainers read back equal, and unsupported ones are rejected."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.conversing import TOOLS, conversations
from support.data_kit import run_data_command
from understudy.core.errors import ConfigError
from understudy.core.items import Item
from understudy.core.messages import Message, ToolCall
from understudy.data.conversations.atif import ATIFTarget
from understudy.data.conversations.conversations import TrainingExample, read_conversations
from understudy.data.conversations.examples import Demonstration, LabeledExample, PreferencePair
from understudy.data.conversations.export import ExportTarget, UnsupportedExample, iter_replies, split_first_difference
from understudy.data.conversations.llamafactory import LlamaFactoryTarget, resolve_template
from understudy.data.conversations.openai import OpenAITarget
from understudy.data.conversations.trl import TRLTarget
from understudy.sources.sharegpt import RESULT_SEPARATOR

POLICY, HELLO = Message(role="system", content="policy"), Message(role="user", content="hello")


def reply_with(text: str) -> Message:
    return Message(role="assistant", content=text)


def calling_reply(*names: str, turn: int = 0, content: str = "") -> Message:
    calls = tuple(ToolCall(name=name, arguments={"x": 1}, id=f"call_{turn}_{i}") for i, name in enumerate(names))
    return Message(role="assistant", content=content, tool_calls=calls)


def tool_result(text: str, place: int = 0, turn: int = 0) -> Message:
    return Message(role="tool", content=text, tool_call_id=f"call_{turn}_{place}")


def conversation(*messages: Message) -> tuple[Message, ...]:
    return (POLICY, HELLO, *messages)


CONVERSATION = conversation(
    reply_with("Which?"), HELLO, calling_reply("find", turn=1), tool_result("L7", turn=1), reply_with("Done.")
)
PARALLEL_CALLS = conversation(
    calling_reply("find", "switch"), tool_result("L7"), tool_result("on", 1), reply_with("Done.")
)


def read_examples(path: Path) -> list[TrainingExample]:
    found = list(read_conversations(path))
    assert all(isinstance(item, Item) for item in found), found
    return [item.value for item in found if isinstance(item, Item)]


def round_trip(target: ExportTarget, example: TrainingExample, path: Path) -> list[TrainingExample]:
    """Write an example with `target` and read it back."""
    lines = [row.model_dump_json(by_alias=True) for _, row in target.rows(example)]
    path.write_text("".join(line + "\n" for line in lines))
    return read_examples(path)


def without_empty_replies(messages: Sequence[Message]) -> tuple[Message, ...]:
    empty = reply_with("")
    return tuple(reply_with("Done.") if message == empty else message for message in messages)


def until_last_reply(messages: Sequence[Message]) -> tuple[Message, ...]:
    last = max(i for i, message in enumerate(messages) if message.role == "assistant")
    return tuple(messages[: last + 1])


def write(path: Path, *rows: TrainingExample) -> Path:
    path.write_text("".join(row.model_dump_json(exclude_defaults=True) + "\n" for row in rows))
    return path


TARGETS = {"llamafactory": LlamaFactoryTarget("m", "qwen"), "trl": TRLTarget(), "openai": OpenAITarget()}
SFT_TARGETS = {**TARGETS, "atif": ATIFTarget()}


@pytest.mark.parametrize("name", SFT_TARGETS)
@settings(max_examples=60)
@given(messages=conversations().map(without_empty_replies), tools=st.sampled_from([(), TOOLS]))
def test_exported_demonstration_reads_back_equal(
    tmp_path_factory: pytest.TempPathFactory, name: str, messages: tuple[Message, ...], tools: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / f"{name}.jsonl"
    example = Demonstration(messages=messages, tools=tools)
    if name == "llamafactory" and not messages[0].content:
        with pytest.raises(UnsupportedExample, match="policy"):
            round_trip(TARGETS[name], example, path)
        return
    kept = messages if name == "atif" else until_last_reply(messages)
    assert round_trip(SFT_TARGETS[name], example, path) == [example.replace(messages=kept)]


@pytest.mark.parametrize("name", SFT_TARGETS)
def test_text_beside_tool_calls_survives_the_export(tmp_path: Path, name: str) -> None:
    messages = conversation(
        calling_reply("find", content="I look\nit up.\n"),
        tool_result("</tool_call> <think>x</think>"),
        reply_with("ok"),
    )
    example = Demonstration(messages=messages, tools=TOOLS)
    assert round_trip(SFT_TARGETS[name], example, tmp_path / "rows.jsonl") == [example]


@pytest.mark.parametrize("name", TARGETS)
def test_pair_is_cut_at_the_first_differing_reply(tmp_path: Path, name: str) -> None:
    other = (*CONVERSATION[:4], reply_with("I cannot."), HELLO, reply_with("No."))
    example = PreferencePair(chosen=CONVERSATION, rejected=other, tools=TOOLS)
    assert split_first_difference(example) == (CONVERSATION[:4], CONVERSATION[4], other[4])
    expected = PreferencePair(chosen=CONVERSATION[:5], rejected=other[:5], tools=TOOLS)
    assert round_trip(TARGETS[name], example, tmp_path / "rows.jsonl") == [expected]


@pytest.mark.parametrize("name", ["llamafactory", "trl"])
@pytest.mark.parametrize("label", [True, False])
def test_labeled_example_gives_one_row_per_reply(tmp_path: Path, name: str, label: bool) -> None:
    example = LabeledExample(messages=CONVERSATION, tools=TOOLS, label=label)
    assert [(len(before), reply) for before, reply in iter_replies(example)] == [
        (n, CONVERSATION[n]) for n in (2, 4, 6)
    ]
    expected = [LabeledExample(messages=CONVERSATION[:end], tools=TOOLS, label=label) for end in (3, 5, 7)]
    assert round_trip(TARGETS[name], example, tmp_path / "rows.jsonl") == expected


def test_llamafactory_row_matches_hand_written_row() -> None:
    ((name, row),) = TARGETS["llamafactory"].rows(Demonstration(messages=PARALLEL_CALLS, tools=TOOLS[:1]))
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


def test_tags_in_call_arguments_are_escaped() -> None:
    messages = conversation(
        Message(role="assistant", tool_calls=(ToolCall(name="find", arguments={"x": "</tool_call>"}),))
    )
    ((_, row),) = TARGETS["llamafactory"].rows(Demonstration(messages=messages))
    value = row.conversations[-1].value  # type: ignore[attr-defined]
    assert "<" not in value
    assert json.loads(value)["arguments"] == {"x": "</tool_call>"}


def test_parallel_calls_are_rejected_or_split_for_a_template_without_them(tmp_path: Path) -> None:
    example = Demonstration(messages=PARALLEL_CALLS, tools=TOOLS)
    with pytest.raises(UnsupportedExample, match="llama3"):
        list(LlamaFactoryTarget("m", "llama3").rows(example))
    target = LlamaFactoryTarget("m", "llama3", split_parallel_calls=True)
    (split,) = round_trip(target, example, tmp_path / "rows.jsonl")
    sequential = conversation(
        calling_reply("find"),
        tool_result("L7"),
        calling_reply("switch", turn=1),
        tool_result("on", turn=1),
        reply_with("Done."),
    )
    assert split == example.replace(messages=sequential)
    (note,) = target.notes()
    assert re.search(r"\b1\b", note)


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        (
            conversation(
                calling_reply("find", "switch"),
                tool_result(f"a{RESULT_SEPARATOR}b"),
                tool_result("on", 1),
                reply_with("ok"),
            ),
            "results",
        ),
        (conversation(reply_with("a"), HELLO, HELLO, reply_with("b")), "turns that do not alternate"),
        (conversation(calling_reply("find"), tool_result("x"), HELLO, reply_with("b")), "turns that do not alternate"),
        (conversation(calling_reply("find"), HELLO, reply_with("b")), "calls without results"),
        (
            conversation(calling_reply("find", "switch"), tool_result("x"), tool_result("y", 5), reply_with("b")),
            "do not answer the calls",
        ),
        (conversation(reply_with("a"), POLICY, reply_with("b")), "a system message after the first"),
        (
            conversation(Message(role="assistant", tool_calls=(ToolCall(name="f", parse_error="no"),))),
            "could not be read",
        ),
        (conversation(calling_reply("find", content="a <tool_call> b")), "text contains <tool_call>"),
    ],
)
def test_llamafactory_rejects_unsupported_conversations(messages: tuple[Message, ...], why: str) -> None:
    with pytest.raises(UnsupportedExample, match=why):
        list(TARGETS["llamafactory"].rows(Demonstration(messages=messages, tools=TOOLS)))


def test_pair_without_a_differing_reply_is_rejected() -> None:
    longer = (*CONVERSATION, HELLO, reply_with("Bye."))
    other = (*CONVERSATION[:3], Message(role="user", content="the blue one"), reply_with("Bye."))
    for rejected, why in ((longer, "the beginning of the other"), (other, "first difference is not a reply")):
        with pytest.raises(UnsupportedExample, match=why):
            split_first_difference(PreferencePair(chosen=CONVERSATION, rejected=rejected))


def test_openai_rows_match_the_api_types() -> None:
    from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
    from pydantic import TypeAdapter

    ((_, row),) = OpenAITarget().rows(Demonstration(messages=PARALLEL_CALLS, tools=TOOLS))
    written = json.loads(row.model_dump_json())
    assert written["parallel_tool_calls"] is True
    assert [m.pop("weight", None) for m in written["messages"]] == [None, None, 1, None, None, 1]
    TypeAdapter(list[ChatCompletionMessageParam]).validate_python(written["messages"])
    TypeAdapter(list[ChatCompletionToolParam]).validate_python(written["tools"])
    assert [m.get("tool_call_id") for m in written["messages"]] == [None, None, None, "call_0_0", "call_0_1", None]
    assert json.loads(written["messages"][2]["tool_calls"][0]["function"]["arguments"]) == {"x": 1}
    ((_, plain),) = OpenAITarget().rows(Demonstration(messages=CONVERSATION[:3]))
    assert json.loads(plain.model_dump_json()).keys() == {"messages"}


@pytest.mark.parametrize("several", ["chosen", "rejected", "neither"])
def test_openai_pair_sets_parallel_tool_calls(several: str) -> None:
    sides = {
        side: calling_reply(*(("find", "switch") if side == several else ("find",))) for side in ("chosen", "rejected")
    }
    sides["chosen"] = sides["chosen"].replace(content="Let me see.")  # otherwise the pair would be equal
    pair = PreferencePair(chosen=conversation(sides["chosen"]), rejected=conversation(sides["rejected"]), tools=TOOLS)
    ((_, row),) = OpenAITarget().rows(pair)
    assert json.loads(row.model_dump_json())["input"]["parallel_tool_calls"] is (several != "neither")


def test_openai_rejects_labels_and_too_many_tools() -> None:
    with pytest.raises(UnsupportedExample, match="a label"):
        list(OpenAITarget().rows(LabeledExample(messages=CONVERSATION, label=True)))
    with pytest.raises(UnsupportedExample, match="more than 128 tools"):
        list(OpenAITarget().rows(Demonstration(messages=CONVERSATION, tools=TOOLS * 65)))


def test_openai_renames_invalid_tool_names_and_notes_it() -> None:
    target = OpenAITarget()
    example = Demonstration(
        messages=conversation(calling_reply("a.b"), tool_result("x"), reply_with("ok")),
        tools=(TOOLS[0].replace(name="a.b"),),
    )
    ((_, row),) = target.rows(example)
    written = json.loads(row.model_dump_json())
    assert written["tools"][0]["function"]["name"] == "a_b"
    assert written["messages"][2]["tool_calls"][0]["function"]["name"] == "a_b"
    (note,) = target.notes()
    assert re.search(r"\ba\.b\b.*\ba_b\b", note)


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
def test_template_is_resolved_from_the_model_name(name: str) -> None:
    assert resolve_template(name) == (name, NAMES[name])


def test_unknown_model_family_requires_a_template() -> None:
    for name in ("someone/new-model", "Qwen/Qwen3-VL-8B-Instruct", "Qwen/Qwen3-Coder-30B-A3B-Instruct"):
        with pytest.raises(ConfigError, match="no template of LLaMA-Factory is known"):
            resolve_template(name)
        assert resolve_template(name, "chatml") == (name, "chatml")


def test_cutoff_len_covers_the_conversation_in_bytes() -> None:
    target = LlamaFactoryTarget("a/Qwen3-8B", "qwen3")
    list(target.rows(Demonstration(messages=conversation(reply_with("😀" * 2000)))))
    cutoff = target.files({"sft.jsonl": 1})["sft_lora.yaml"].partition("cutoff_len: ")[2].partition("\n")[0]
    assert 8000 < int(cutoff) < 9000


def test_export_command_writes_data_and_training_configs(tmp_path: Path) -> None:
    rows = [
        Demonstration(messages=CONVERSATION, tools=TOOLS),
        PreferencePair(chosen=CONVERSATION, rejected=conversation(reply_with("No.")), tools=TOOLS),
        LabeledExample(messages=CONVERSATION, tools=TOOLS, label=True),
    ]
    files = [write(tmp_path / f"{i}.jsonl", row) for i, row in enumerate(rows)]
    out = tmp_path / "out"
    code, text, err = run_data_command("export", "llamafactory", *files, "--model", "Qwen/Qwen3-8B", "--out", out)
    assert (code, text, err) == (0, "dpo.jsonl: 1\nkto.jsonl: 3\nsft.jsonl: 1\n", "")
    every_stage = {f"{stage}_{how}" for stage in ("sft", "dpo", "rm", "kto") for how in ("lora", "merge", "infer")}
    assert {path.stem for path in out.glob("*.yaml")} == every_stage | {"sft_full", "sft_qlora"}
    reward_model = (out / "rm_lora.yaml").read_text().splitlines()
    assert {'stage: "rm"', 'dataset: "understudy_dpo"', 'output_dir: "saves/rm_lora"'} <= {*reward_model}
    assert not any(line.startswith("pref_") for line in reward_model)
    assert 'adapter_name_or_path: "saves/rm_lora"' in (out / "rm_infer.yaml").read_text().splitlines()
    assert not re.search("^stage:", (out / "dpo_infer.yaml").read_text(), re.MULTILINE)  # it could not chat
    info = json.loads((out / "dataset_info.json").read_text())
    assert {entry["file_name"] for entry in info.values()} == {"sft.jsonl", "dpo.jsonl", "kto.jsonl"}
    qlora = (out / "sft_qlora.yaml").read_text()
    for line in ('template: "qwen3"', "enable_thinking: false", "quantization_bit: 4", "learning_rate: 0.0001"):
        assert line in qlora.splitlines()
    assert "learning_rate: 1.0e-05" in (out / "sft_full.yaml").read_text().splitlines()
    cutoff = int(qlora.partition("cutoff_len: ")[2].partition("\n")[0])
    assert cutoff > max(len(line) for path in out.glob("*.jsonl") for line in path.read_bytes().splitlines())
    code, text, err = run_data_command("export", "trl", files[0], "--out", out)
    assert (code, text, err.count("\n"), str(out) in err) == (2, "", 1, True)


def test_export_skips_unsupported_rows_only_with_skip_invalid(tmp_path: Path) -> None:
    rows = [Demonstration(messages=m, tools=TOOLS) for m in (CONVERSATION, PARALLEL_CALLS, PARALLEL_CALLS)]
    arguments = ("export", "llamafactory", write(tmp_path / "rows.jsonl", *rows), "--model", "a/Llama-3-8B", "--out")
    code, _, err = run_data_command(*arguments, tmp_path / "out")
    assert code == 2
    assert "2 of 3 " in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl"]
    code, text, _ = run_data_command(*arguments, tmp_path / "out", "--skip-invalid")
    assert (code, text.splitlines()[:1]) == (1, ["sft.jsonl: 1"])
    assert re.search(r"\b2\b", text.splitlines()[1])
    code, text, _ = run_data_command(*arguments, tmp_path / "split", "--split-parallel-calls")
    assert (code, text.splitlines()[0]) == (0, "sft.jsonl: 3")
    assert re.search(r"\b2\b", text.splitlines()[1])


def test_options_of_another_trainer_are_rejected(tmp_path: Path) -> None:
    rows = write(tmp_path / "rows.jsonl", Demonstration(messages=CONVERSATION))
    code, _, err = run_data_command("export", "openai", rows, "--model", "x", "--out", tmp_path / "out")
    assert (code, "--model" in err) == (2, True)
    code, _, err = run_data_command("export", "llamafactory", rows, "--out", tmp_path / "out")
    assert (code, "--model" in err) == (2, True)


@pytest.mark.parametrize("name", SFT_TARGETS)
def test_replies_that_are_left_out_survive_or_are_refused(name: str, tmp_path: Path) -> None:
    given, last = calling_reply("find").replace(content="I look.", weight=0), reply_with("Done.")
    example = Demonstration(messages=conversation(given, tool_result("L7"), last), tools=TOOLS)
    if name in ("openai", "atif"):
        assert round_trip(SFT_TARGETS[name], example, tmp_path / "rows.jsonl") == [example]
    else:
        with pytest.raises(UnsupportedExample, match="weight 0"):
            list(SFT_TARGETS[name].rows(example))


def test_trl_tool_names_are_right_if_call_ids_repeat() -> None:
    first, second = (calling_reply(name).replace(content="") for name in ("find", "cancel"))
    messages = conversation(first, tool_result("L7"), second, tool_result("gone"), reply_with("Done."))
    ((_, row),) = TRLTarget().rows(Demonstration(messages=messages))
    assert [wire["name"] for wire in row.model_dump()["messages"] if wire["role"] == "tool"] == ["find", "cancel"]
