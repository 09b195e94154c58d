"""Test the chat template of an exported model: it renders tools, calls and results as training did."""

import asyncio
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.trajectory import Trajectory
from understudy.engines.models import find_model
from understudy.evaluation.evaluate import play_demonstrations
from understudy.formats import ChatFormat, FormatConfig, chat_format_from_config, load_chat_format, tool_template
from understudy.formats.tool_template import write_tool_template
from understudy.rollouts.rollout import EpisodeLimits
from understudy.rollouts.supervised import append_rendered_turn
from understudy.sources.loading import load_source
from understudy.sources.references import list_domains
from understudy.train.certify.model_template import ModelTemplate

LIMITS = EpisodeLimits(max_turns=100, max_episode_tokens=1 << 20)
ALTERNATING = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role not in ['user', 'assistant'] or (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('the roles user and assistant must take turns') }}{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A template like Gemma's, which has no system messages."""
SCHEMAS = [
    {"type": "object", "properties": {}},
    {"type": "object", "properties": {"a": True, "b": {"type": ["integer", "null"]}, "c": {"const": "é"}}},
    {
        "type": "object",
        "properties": {
            "shape": {"oneOf": [{"$ref": "#/$defs/Point"}, *[{"type": "null"}] * 2], "description": "x" * 61},
            "more": {"type": "object", "additionalProperties": {"type": "array"}, "description": " two\n  words "},
            "gone": {"$ref": "#/$defs/Gone"},
            "tree": {"$ref": "#/$defs/Tree"},
            "kind": {"enum": ["a b", None, 2]},
        },
        "required": ["tree", "shape", "kind", "more"],
        "$defs": {
            "Point": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
            "Tree": {"properties": {"next": {"$ref": "#/$defs/Tree"}}, "type": "object", "required": ["next"]},
        },
    },
]


def copy_model(folder: Path, tmp_path: Path, template: str = "") -> Path:
    """Return a copy of a model's folder without its weights, with another template if one is given."""
    copy = tmp_path / "model"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.safetensors"))
    if template:
        (copy / "chat_template.jinja").write_text(template)
    return copy


def conversations() -> list[list[Message]]:
    calls = [ToolCall(name="f0", id="call00000"), ToolCall(name="f2", arguments={"kind": "ü"}, id="call00001")]
    talk = [
        Message(role="user", content="Both?"),
        Message(role="assistant", tool_calls=tuple(calls)),
        Message(role="tool", content='{"a": 1}', tool_call_id="call00000"),
        Message(role="tool", content="two\nlines", tool_call_id="call00001"),
        Message(role="assistant", content="Once more.", tool_calls=tuple(calls[:1])),
        Message(role="tool", content="", tool_call_id="call00000"),
        Message(role="assistant", content="Done."),
        Message(role="user", content="Thanks."),
    ]
    return [talk, [Message(role="system", content="Be brief."), *talk]]


def training_tokens(format: ChatFormat, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
    """Return the tokens of the prompt after an episode with these messages."""
    episode, new = Trajectory("task"), list[Message]()
    for message in messages:
        if message.role == "assistant":
            append_rendered_turn(episode, new, message, tools, format)
            new = []
        else:
            new.append(message)
    return [*episode.tokens, *format.encode(new, tools, episode.tokens)]


@pytest.mark.parametrize("name", list_domains())
def test_template_renders_gold_episodes_to_the_tokens_of_training(name: str, tmp_path: Path) -> None:
    folder, source = copy_model(find_model("smollm2-135m"), tmp_path), load_source(name)
    format = load_chat_format(folder)
    write_tool_template(folder, FormatConfig())
    template = ModelTemplate(folder)
    tasks = source.tasks("validation")[:6]
    for episode in asyncio.run(play_demonstrations(source, tasks, format, LIMITS, 0)):
        last = max(i for i, message in enumerate(episode.messages) if message.role == "assistant")
        prompt = template.prompt(episode.messages[:last], source.tool_specs)
        assert prompt == episode.tokens[: len(prompt)]
        reply = format.encode_reply(episode.messages[last])
        assert len(prompt) == len(episode.tokens) - len(reply)


@pytest.mark.parametrize("tool_format", ["", "hermes", "json"])
@pytest.mark.parametrize("template", ["", ALTERNATING])
def test_template_renders_every_kind_of_schema_and_message(tool_format: str, template: str, tmp_path: Path) -> None:
    folder = copy_model(find_model("smollm2-135m"), tmp_path, template)
    config = FormatConfig.model_validate({"tool_format": tool_format or ("hermes" if template else None)})
    format = chat_format_from_config(folder, config)
    write_tool_template(folder, config)
    tools = [ToolSpec(name=f"f{n}", description=f"Do {n}.", parameters=schema) for n, schema in enumerate(SCHEMAS)]
    own = ModelTemplate(folder)
    for messages in conversations():
        first = [spec for spec in tools if spec.name != "f1"]
        for shown in (tools, tools[1:], tools[2:], first):
            assert own.prompt(messages, shown) == training_tokens(format, messages, shown)
    again = chat_format_from_config(folder, config)
    assert again.encode(conversations()[0], tools, ()) == format.encode(conversations()[0], tools, ())


def test_tool_list_uses_only_what_llama_cpp_has() -> None:
    """llama.cpp has an interpreter of its own: it lacks `removesuffix`, and its `split` needs a separator."""
    text = Path(tool_template.__file__).with_name("tool_list.jinja").read_text(encoding="utf-8")
    calls, filters = set(re.findall(r"\.(\w+)\(", text)), set(re.findall(r"\| (?!None\b)(\w+)", text))
    assert calls == {"get", "items", "replace", "split", "endswith"}
    assert filters <= {"tojson", "join", "list", "reject", "length"}
    assert ".split()" not in text


def test_template_of_a_model_that_shows_tools_is_kept(tmp_path: Path) -> None:
    folder = copy_model(find_model("tiny"), tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    write_tool_template(folder, FormatConfig())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
