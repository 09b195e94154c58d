"""Test exports against LLaMA-Factory: it reads equal tokens and masks, and its trained models load here."""

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from safetensors.torch import load_file

from support import llamafactory_cli, pages
from support.conversing import TOOLS
from support.data_kit import run_data_command
from understudy.core.errors import ConfigError
from understudy.core.items import items_or_raise
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.data.conversations.conversations import read_conversations
from understudy.data.conversations.examples import Demonstration, LabeledExample, PreferencePair
from understudy.data.conversations.export import iter_replies, split_first_difference
from understudy.data.conversations.llamafactory import (
    GENERIC_TOOL_TEMPLATES,
    MERGED_OBSERVATION_TEMPLATES,
    resolve_template,
)
from understudy.engines.models import find_model, make_tiny_model
from understudy.formats import load_chat_format
from understudy.rollouts.supervised import build_supervised_example
from understudy.runs.metrics import prefixed_name

pytestmark = [
    pytest.mark.llamafactory,
    pytest.mark.skipif(bool(llamafactory_cli.unsupported_reason()), reason=llamafactory_cli.unsupported_reason()),
]
PAGE = pages.ROOT / "docs" / "llamafactory.md"
COMMANDS = [
    line
    for block in pages.blocks(PAGE, language="sh")
    for line in block.text.replace("\\\n", " ").splitlines()
    if "llamafactory-cli" in line
]
"""LLaMA-Factory's commands on the page."""
QUICK = ("max_steps=2", "gradient_accumulation_steps=1", "logging_steps=1")
IGNORED = -100
TEXT_AND_CALLS = Demonstration(
    task="aside",
    messages=(
        Message(role="system", content="policy"),
        Message(role="user", content="hello"),
        Message(
            role="assistant",
            content="I look both up.",
            tool_calls=(
                ToolCall(name="find", arguments={"x": "</tool_call> <think>"}, id="call_0_0"),
                ToolCall(name="switch", arguments={"é": [1.5, None, {}]}, id="call_0_1"),
            ),
        ),
        Message(role="tool", content="L7", tool_call_id="call_0_0"),
        Message(role="tool", content="{{content}} é", tool_call_id="call_0_1"),
        Message(role="assistant", content="Done."),
    ),
    tools=TOOLS,
)
"""A reply with text and two calls, and tags in the arguments."""


@dataclasses.dataclass
class Exported:
    """The exported files and the result of LLaMA-Factory's reading them."""

    programs: Path
    folder: Path
    model: Path
    demonstrations: list[Demonstration]
    pairs: list[PreferencePair]
    labeled_examples: list[LabeledExample]
    found: dict[str, Any]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with llamafactory_cli.loaded_programs(tmp_path_factory.mktemp("programs") / "bin") as found:
        yield found


@pytest.fixture(scope="module")
def exported(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    folder = tmp_path_factory.mktemp("handed")
    model = make_tiny_model(folder / "model")
    demos, pairs, labeled = (folder / f"{name}.jsonl" for name in ("demos", "pairs", "labeled"))
    assert run_data_command("collect", "retail", "slice.domain_policy=brief", "--sft", demos, "--tasks", 6)[0] == 0
    with demos.open("a") as file:
        file.write(TEXT_AND_CALLS.model_dump_json() + "\n")
    demonstrations = [item.value for item in items_or_raise(read_conversations(demos))]
    demonstrations_only = [d for d in demonstrations if isinstance(d, Demonstration)]
    preference_pairs = [
        PreferencePair(
            chosen=d.messages, rejected=(*d.messages[:2], Message(role="assistant", content="No.")), tools=d.tools
        )
        for d in demonstrations_only
    ]
    labeled_examples = [
        LabeledExample(messages=pair.chosen, tools=pair.tools, label=True) for pair in preference_pairs[:2]
    ]
    labeled_examples += [
        LabeledExample(messages=pair.rejected, tools=pair.tools, label=False) for pair in preference_pairs[:2]
    ]
    pairs.write_text("".join(row.model_dump_json() + "\n" for row in preference_pairs))
    labeled.write_text("".join(row.model_dump_json() + "\n" for row in labeled_examples))
    code, _, err = run_data_command(
        "export", "llamafactory", demos, pairs, labeled, "--model", model, "--out", folder / "lf"
    )
    assert code == 0, err
    assert run_data_command("export", "trl", demos, pairs, labeled, "--out", folder / "trl")[0] == 0
    script = Path(llamafactory_cli.__file__).with_name("llamafactory_inside.py")
    printed = llamafactory_cli.run_llamafactory(
        programs, "python", str(script), str(folder / "lf"), str(folder / "trl"), str(model), cwd=folder
    )
    return Exported(
        programs,
        folder / "lf",
        model,
        demonstrations_only,
        preference_pairs,
        labeled_examples,
        json.loads(printed.splitlines()[-1]),
    )


def loss_mask(labels: list[int]) -> list[bool]:
    return [label != IGNORED for label in labels]


def test_sft_tokens_and_masks_equal_ours(exported: Exported) -> None:
    format, newline = load_chat_format(exported.model), ord("\n")
    assert len(exported.found["sft"]) == len(exported.demonstrations) == 7
    for row, example in zip(exported.found["sft"], exported.demonstrations, strict=True):
        own = build_supervised_example(example.messages, example.tools, format)
        assert row["input_ids"] == [*own.tokens, newline]
        own.mask.append(False)
        for _, end in list(own.reply_spans()):
            assert row["input_ids"][end] == newline
            own.mask[end] = True  # our last trained token is <|im_end|>, LLaMA-Factory's is the newline after it
        assert loss_mask(row["labels"]) == own.mask


def test_dpo_and_kto_rows_hold_one_reply_after_equal_prompts(exported: Exported) -> None:
    format = load_chat_format(exported.model)
    for row, pair in zip(exported.found["dpo"], exported.pairs, strict=True):
        before, *sides = split_first_difference(pair)
        for name, reply in zip(("chosen", "rejected"), sides, strict=True):
            own = build_supervised_example([*before, reply], pair.tools, format)
            assert row[f"{name}_input_ids"] == [*own.tokens, ord("\n")]
            (*_, (start, _)) = own.reply_spans()
            assert loss_mask(row[f"{name}_labels"]) == [place >= start for place in range(len(own.tokens) + 1)]
    expected = [(each, labeled) for labeled in exported.labeled_examples for each in iter_replies(labeled)]
    for row, ((before, reply), labeled) in zip(exported.found["kto"], expected, strict=True):
        own = build_supervised_example([*before, reply], labeled.tools, format)
        assert (row["input_ids"], row["kto_tags"]) == ([*own.tokens, ord("\n")], labeled.label)


def test_trl_renders_equal_text(exported: Exported) -> None:
    from understudy.formats import FormatTokenizer

    decode, format = FormatTokenizer.load(exported.model / "tokenizer.json").decode, load_chat_format(exported.model)

    def render(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        return decode(build_supervised_example(messages, tools, format).tokens) + "\n"

    found = exported.found["trl"]
    for (text,), example in zip(found["sft"], exported.demonstrations, strict=True):
        assert text == render(example.messages, example.tools)
    for texts, pair in zip(found["dpo"], exported.pairs, strict=True):
        before, *sides = split_first_difference(pair)
        assert texts == [render([*before, side], pair.tools) for side in sides]
    expected = [(each, labeled) for labeled in exported.labeled_examples for each in iter_replies(labeled)]
    for (text,), ((before, reply), labeled) in zip(found["kto"], expected, strict=True):
        assert text == render([*before, reply], labeled.tools)


def test_finetuning_types_are_known_to_llamafactory(exported: Exported) -> None:
    assert exported.found["finetuning_types"] == ["lora", "full", "lora"]


def test_template_tables_match_llamafactory(exported: Exported) -> None:
    assert set(exported.found["joins_observations"]) >= MERGED_OBSERVATION_TEMPLATES
    assert set(exported.found["default_tool_formats"]) >= GENERIC_TOOL_TEMPLATES
    found = {name: _resolve_or_empty(name) for name in exported.found["templates"]}
    wrong = {
        name: (t, exported.found["templates"][name])
        for name, t in found.items()
        if t not in ("", exported.found["templates"][name])
    }
    assert wrong == {}
    assert sum(map(bool, found.values())) > 100


def _resolve_or_empty(name: str) -> str:
    try:
        return resolve_template(f"owner/{name}")[1]
    except ConfigError:
        return ""


def train_on_cpu(exported: Exported, stage: str, *settings: str) -> Path:
    """Run the page's command that trains a stage, with the settings for a CPU; return the folder of the adapters."""
    (command,) = (f"{line} bf16=false use_cpu=true" for line in COMMANDS if f"train {stage}_lora.yaml" in line)
    assert "append `bf16=false use_cpu=true`" in PAGE.read_text(encoding="utf-8")
    assert f"Without a GPU: {command}" in (exported.folder / f"{stage}_lora.yaml").read_text()
    llamafactory_cli.run_llamafactory(exported.programs, *command.split(), *QUICK, *settings, cwd=exported.folder)
    return exported.folder / "saves" / f"{stage}_lora"


def documented_server(program: str) -> str:
    """Return the page's command that starts a server, with `{port}` as its port."""
    (command,) = (line for line in COMMANDS if line.endswith(program))
    assert "=127.0.0.1 " in command
    return re.sub(r"(?<=_PORT=)\d+", "{port}", command)


def read_log(adapters: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (adapters / "trainer_log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("stage", ["sft", "dpo"])
def test_model_trained_by_llamafactory_trains_here(exported: Exported, stage: str, tmp_path: Path) -> None:
    adapters = train_on_cpu(exported, stage)
    assert [line.get("current_steps") for line in read_log(adapters)][:2] == [1, 2]
    with pytest.raises(ConfigError, match=re.escape(str(adapters))):
        find_model(str(adapters))
    command = ("llamafactory-cli", "export", f"{stage}_merge.yaml")
    llamafactory_cli.run_llamafactory(exported.programs, *command, cwd=exported.folder)
    merged = exported.folder / "saves" / f"{stage}_merged"
    before, after = load_file(exported.model / "model.safetensors"), load_file(merged / "model.safetensors")
    assert before.keys() == after.keys()
    assert any(not before[name].equal(after[name].float()) for name in before)
    sft, rl = train_one_step_each(merged, tmp_path)
    assert sft[prefixed_name("grad_norm")] > 0.0
    assert rl[prefixed_name("episodes")] >= 6
    if stage == "sft":
        assert_trained_model_chats(exported)


def assert_trained_model_chats(exported: Exported) -> None:
    """Run the page's chat and API server on the model of `sft_lora.yaml`."""
    (chat,) = (line for line in COMMANDS if " chat " in line)
    given, _, command = chat.partition(" | ")
    (text,) = re.findall(r"printf '(.*)'", given)
    words = [*command.split(), "max_new_tokens=8"]
    printed = llamafactory_cli.chat(exported.programs, *words, cwd=exported.folder, stdin=text.replace("\\n", "\n"))
    assert printed.count("User:") == 2
    assert "Assistant:" in printed
    schema = {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]}
    tool = {"name": "get_order", "description": "Find an order.", "parameters": schema}
    asked = {"role": "user", "content": "Where is order W1?"}
    request = {"max_tokens": 64, "messages": [asked], "tools": [{"type": "function", "function": tool}], "model": "sft"}
    with llamafactory_cli.serve_llamafactory(
        exported.programs, documented_server("api sft_infer.yaml"), "/v1/models", exported.folder
    ) as address:
        found = {
            name: httpx2.post(f"{address}/v1/chat/completions", json=request | more, timeout=60).json()
            for name, more in (("tools", {}), ("none", {"tools": None}))
        }
    (choice,) = found["tools"]["choices"]
    assert choice["message"]["role"] == "assistant"
    assert 0 < found["tools"]["usage"]["completion_tokens"] <= request["max_tokens"]
    tokens = [found[name]["usage"]["prompt_tokens"] for name in ("tools", "none")]
    assert tokens[0] > tokens[1] + len("get_order"), "the model saw the tool"


def test_kto_trains(exported: Exported) -> None:
    assert read_log(train_on_cpu(exported, "kto", "max_steps=1"))[0]["loss"] > 0.0


def test_reward_model_trains_and_scores(exported: Exported) -> None:
    adapters = train_on_cpu(exported, "rm", "max_steps=1")
    assert read_log(adapters)[0]["loss"] > 0.0
    assert "v_head.summary.weight" in load_file(adapters / "value_head.safetensors")
    with llamafactory_cli.serve_llamafactory(
        exported.programs, documented_server("api rm_infer.yaml"), "/v1/models", exported.folder
    ) as address:
        body = {"model": "rm", "messages": ["Hello", "Goodbye"]}
        found = httpx2.post(f"{address}/v1/score/evaluation", json=body, timeout=60).json()
    assert len(found["scores"]) == 2
    assert found["scores"][0] != found["scores"][1]


def test_web_ui_starts_on_loopback(exported: Exported) -> None:
    with llamafactory_cli.serve_llamafactory(
        exported.programs, documented_server("webui"), "/", exported.folder
    ) as address:
        config = httpx2.get(f"{address}/config", timeout=60).json()
    assert "LLaMA" in config["title"]


def train_one_step_each(model: Path, folder: Path) -> list[dict[str, Any]]:
    """Return the metrics of one SFT step and one RL step on `model`."""
    from support.tiny_runs import train_tiny_run
    from understudy.runs.run import read_metrics

    run = train_tiny_run(folder / "run", model, "sft.steps=1", "steps=1", "eval.tasks=1", "limits.max_turns=4")
    return [line for line in read_metrics(run.folder) if line["step"] > 0]
