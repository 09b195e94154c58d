"""The page for users of three kinds of projects: its tables agree with the code, and its moves are short."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from support import pages
from support.program import Call, call
from understudy.core.settings import find_field, is_known_name, other_names
from understudy.runs.config import TrainConfig
from understudy.runs.conversions import CONVERSIONS

__all__ = ["call"]

PAGE = pages.ROOT / "docs" / "from_skyrl_and_mcp.md"
SECTIONS = [
    "A. Customer service on tau-bench with SkyRL",
    "B. GRPO on MCP tools",
    "C. MCP research agent on SkyRL",
]


def rows(text: str, head: str = "") -> Iterator[tuple[str, str]]:
    """Yield the cells of the rows of all tables, or of those whose first column has this head."""
    for table in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        first, _, *lines = [line.strip("| ").split(" | ") for line in table.splitlines()]
        if head in ("", first[0].strip()):
            yield from ((left.strip(), right.strip()) for left, right in lines)


@pytest.mark.parametrize("section", SECTIONS)
def test_section_has_one_short_move_before_its_tables(section: str) -> None:
    text = pages.section(PAGE, section)
    (block,) = (block for block in pages.blocks(PAGE, language="sh") if block.text in text)
    commands = [words for words in pages.commands(block) if words[0] != "export"]
    assert 5 <= len(commands) <= 15
    assert {"check", "train", "eval"} <= {words[1] for words in commands if words[0] == "understudy"}
    assert text.index(block.text) < text.index("| here |")
    assert len([*rows(text, "setting")]) > 3


def test_word_without_a_counterpart_has_a_reason() -> None:
    found = [right for _, right in rows(PAGE.read_text(encoding="utf-8"))]
    assert len(found) > 50
    for text in found:
        assert text
        assert not text.startswith("none") or re.match("none( in the local engine)?(, because|, on purpose|;)", text), (
            text
        )


@pytest.mark.parametrize("section", SECTIONS)
def test_each_setting_is_in_the_tables_of_the_code(section: str) -> None:
    """A name that the program takes or explains, or a key, and the row has the key that the name becomes."""
    for left, right in rows(pages.section(PAGE, section), "setting"):
        for name in re.findall(r"`([A-Za-z_]+(?:\.[A-Za-z_]+)*)(?:=[^`]*)?`", left):
            if name in ("auto", "vllm", "hf", "llm", "react", "verify", "reflection", "python_code", "code"):
                continue
            key, field = find_field(TrainConfig, name)
            assert field or is_known_name(TrainConfig, name), name
            if field and name not in CONVERSIONS and not right.startswith("none"):
                assert f"`{key}" in right, (name, key)


@pytest.mark.parametrize("section", SECTIONS)
def test_listed_name_becomes_a_key_or_has_a_reason(section: str) -> None:
    text = pages.section(PAGE, section)
    taken, refused = (
        re.findall(r"`([^`]+)`", listed)
        for listed in re.findall(r"^(?:Taken as they are|Refused with .*?): ((?:.+\n)+)", text, re.MULTILINE)
    )
    assert len(taken) > 10
    for name in taken:
        assert find_field(TrainConfig, name)[1], name
        assert name not in CONVERSIONS, name
    for name in refused:
        assert other_names(TrainConfig).find_reason(name), name


Row = dict[str, Any]
SHORT = (
    "model=tiny",
    "steps=2",
    "sft.steps=1",
    "sft.batch_size=2",
    "eval.tasks=2",
    "engine.sampler=torch",
    "trackers=[]",
)


def service_row(name: str) -> Row:
    """A row of the first kind of project: messages, and the gold calls in the reward's specification."""
    item = {"item_id": f"I{len(name)}00"}
    asked = f"Cancel item {item['item_id']} of order {name}."
    return {
        "prompt": json.dumps(
            {"messages": [{"role": "system", "content": "Help."}, {"role": "user", "content": asked}]}
        ),
        "env_class": "tau_bench",
        "reward_spec": {
            "ground_truth_actions": [{"name": "cancel_item", "kwargs": {"order": name, **item}}],
            "ground_truth_outputs": [],
        },
        "extra_info": {"domain": "kiosk", "user_strategy": "llm", "instruction": asked},
    }


def conversation_row(name: str) -> Row:
    """A row of the second kind: a recorded conversation with thoughts, whose prompt is all of it."""
    wire = {"function": {"name": "fmp_get_quote", "arguments": json.dumps({"symbol": name})}, "id": "c1"}
    price = f"{len(name) * 100 + 3}.45"
    return {
        "task_id": name,
        "prompt": [
            {"role": "user", "content": f"What does a share of {name} cost?"},
            {"role": "assistant", "content": "<think>I look it up.</think>"},
            {"role": "assistant", "content": "", "tool_calls": [wire]},
            {"role": "tool", "tool_call_id": "c1", "content": json.dumps({"price": float(price)})},
            {"role": "assistant", "content": f"It costs {price}."},
        ],
        "reward_spec": {"ground_truth": {"expected_tools": ["fmp_get_quote"]}},
    }


def sequence_row(name: str) -> Row:
    """A row of the third kind: a sequence of calls with a named reference, and recorded facts."""
    quote = {"step": 1, "server": "fmp", "tool": "fmp_get_quote", "params": {"symbol": name}}
    analysis = {"extract": ["price", "link"], "compute": ["top = link"], "select": [], "accept_if": []}
    page = {"step": 2, "server": "tavily", "tool": "tavily_extract", "params": {"url": "${top}"}}
    truth = {
        "task_id": name,
        "max_turns": 4,
        "tool_sequence": [{**quote, "analysis_requirements": analysis}, page],
        "analysis_rubric": {"final_answer_requirements": {"must_include": ["price"]}},
        "final_reference": {"facts": {"price": len(name) * 100 + 3.5}, "citations": {"price": [1]}},
    }
    asked = {"role": "user", "content": f"Read me the page of {name}, and tell me the price."}
    return {
        "data_source": "research",
        "env_class": "MCPToolEnv",
        "prompt": [asked],
        "reward_spec": {"method": "rule", "ground_truth": truth},
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "names"),
    [
        (service_row, ("generator.n_samples_per_prompt=2", "trainer.train_batch_size=2", "generator.max_turns=4")),
        (
            conversation_row,
            ("sft.dataset_file={train}", "sft.num_demonstrations=0", "group_size=2", "entropy_coef=0.01"),
        ),
        (
            sequence_row,
            ("grpo.kl_coef=0.1", "algorithm.group_size=2", "finetune.mode=lora", "rollout.max_steps_per_episode=4"),
        ),
    ],
    ids=["service", "conversations", "sequences"],
)
def test_their_rows_train(make: Any, names: Sequence[str], tmp_path: Path, call: Call) -> None:
    pytest.importorskip("torch")
    files = {}
    for split, ids in {"train": ("AA", "BBB", "CCCC", "DDDDD"), "held": ("EEEEEE", "FFFFFFF"), "other": ("G",)}.items():
        files[split] = str(tmp_path / f"{split}.json")
        Path(files[split]).write_text(json.dumps([make(name) for name in ids]))
    settings = [name.format(**files) for name in names]
    out = ("--out", str(tmp_path / "run"))
    sets = (f"data.validation={files['held']}", f"data.tests.other={files['other']}")
    code, _, err = call("train", files["train"], *sets, *SHORT, *settings, "algorithm.groups_per_batch=2", *out)
    assert code == 0, err
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert sum("rollout/reward" in step for step in steps) == 2
    assert (tmp_path / "run" / "result.json").is_file()
