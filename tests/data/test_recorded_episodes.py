"""Test files of recorded episodes: where their conversations are, which are successes, and what is left out."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.data_kit import run_data_command, write_lines
from understudy.core.errors import ConfigError
from understudy.core.items import Item, RowError
from understudy.data.conversations.conversations import is_conversation_input, read_conversations, read_examples
from understudy.data.conversations.examples import Demonstration, LabeledExample, PreferencePair
from understudy.data.conversations.outcomes import ReadingNotes

ASKED = {"role": "user", "content": "Is the lamp in stock?"}
CALL = {"name": "stock", "arguments": {"of": "lamp"}}
LOOKED_UP = [
    ASKED,
    {"role": "assistant", "content": "<think>Look.</think>" + json.dumps({"function_call": CALL})},
    {"role": "tool", "content": "3"},
    {"role": "assistant", "content": "Yes, three."},
]
TOOLS = [{"name": "stock", "description": "Counts.", "parameters": {"type": "object", "properties": {}}}]
REFUSED = [ASKED, {"role": "assistant", "content": "I do not know."}]
TURNS = [
    {"from": {"user": "human", "assistant": "gpt", "tool": "tool"}[each["role"]], "value": each["content"]}
    for each in LOOKED_UP
]
TASK = {"instruction": "Ask for the lamp.", "actions": [{"name": "stock", "kwargs": {"of": "lamp"}}], "outputs": []}
TEXT_CALL = json.dumps({"tool_call": {"server": "shop", "tool": "stock", "params": {"of": "lamp"}}})
FINAL = json.dumps({"final_answer": "Yes, three."})


def write_json(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value))
    return path


def summarize(example: Any) -> list[Any]:
    """Return the texts of a conversation, and the names of its calls."""
    return [[call.name for call in message.tool_calls] or message.content for message in example.messages]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": LOOKED_UP},
        {"messages": json.dumps(LOOKED_UP)},
        {"conversations": TURNS},
        {"conversation": TURNS, "user_query": ASKED["content"], "success": True},
        {"traj": LOOKED_UP, "task_id": 3, "trial": 0, "reward": 1.0, "info": {"task": TASK}},
        {"trajectory": LOOKED_UP, "score": 1},
        {"prompt": LOOKED_UP, "env_class": "shop", "reward_spec": {"method": "rule", "ground_truth": {}}},
        {"prompt": [ASKED], "extra_info": {"original_conversation": LOOKED_UP}, "reward_spec": {"method": "rule"}},
        {"messages": LOOKED_UP[:3], "choices": [{"message": LOOKED_UP[3], "finish_reason": "stop"}]},
        {"request": {"messages": LOOKED_UP[:3]}, "choices": [{"message": LOOKED_UP[3] | {"refusal": None}}]},
        {
            "steps": [
                {"messages": [ASKED], "action": TEXT_CALL, "reward": 0.5},
                {
                    "messages": [
                        ASKED,
                        {"role": "assistant", "content": TEXT_CALL},
                        {"role": "user", "content": "[tool-response]\n3"},
                    ],
                    "action": FINAL,
                },
            ],
            "total_reward": 1.0,
        },
        {
            "task_metadata": {"user_query": ASKED["content"]},
            "episode_results": {
                "trajectory": [
                    {"action": TEXT_CALL, "observation": "[tool-response]\n3"},
                    {"action": FINAL, "observation": ""},
                ],
                "task_completed": True,
            },
        },
        TURNS,
        LOOKED_UP,
    ],
)
def test_a_conversation_is_found_under_each_key(tmp_path: Path, row: Any) -> None:
    for path in (write_lines(tmp_path / "rows.jsonl", [row]), write_json(tmp_path / "rows.json", [row])):
        assert is_conversation_input(path)
        (found,) = read_examples(path, Demonstration)
        assert isinstance(found, Item)
        assert summarize(found.value) == [ASKED["content"], ["stock"], "3", "Yes, three."]


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"choices": [{"message": LOOKED_UP[3]}]}, "choices: .*messages"),
        ({"messages": [ASKED], "choices": [{"message": LOOKED_UP[3], "finish_reason": "length"}]}, "'length'"),
        ({"messages": [ASKED], "choices": []}, "choices: "),
        ({"steps": [{"messages": [ASKED], "action": "a"}, {"messages": [ASKED], "action": "b"}]}, r"steps\.0\.action"),
        ({"steps": [{"action": "a"}]}, "steps: .*user_query"),
        ({"steps": [{"action": 7}]}, r"steps\.0\.action: "),
        ({"messages": [*LOOKED_UP[:2], ASKED, REFUSED[1]]}, "messages.2: .*no result"),
        ({"messages": REFUSED, "images": ["a.png"]}, "images: "),
        ({"messages": REFUSED, "weight": 0.5}, "weight: 0.5"),
        ({"messages": REFUSED, "assistant_masks": [0, 1]}, "assistant_masks: "),
        ({"messages": REFUSED, "reward": "high"}, "reward: a number"),
        ({"messages": REFUSED, "success": "yes"}, "success: true or false"),
        ({"messages": REFUSED, "reward": 1.5}, "reward: 1.5 .*min_reward"),
    ],
)
def test_what_is_no_demonstration_is_refused_by_name(tmp_path: Path, row: Any, field: str) -> None:
    (found,) = read_examples(write_lines(tmp_path / "rows.jsonl", [row]), Demonstration)
    assert isinstance(found, RowError)
    assert re.search(field, str(found))


@pytest.mark.parametrize(
    ("outcome", "is_success"),
    [
        ({"reward": 1.0}, True),
        ({"reward": 1 - 1e-12}, True),
        ({"reward": 0.7}, False),
        ({"reward": -1}, False),
        ({"success": True, "total_reward": 0.2}, True),
        ({"task_completed": False, "total_reward": 1.3}, False),
        ({"score": 1}, True),
        ({"reward": [0, 0, 1.0]}, True),
        ({"reward": [0, 0.5]}, False),
        ({"label": False}, False),
        ({"kto_tag": True}, True),
        ({"reward_spec": {"ground_truth": {"actual_performance": {"completed_successfully": False}}}}, False),
    ],
)
def test_failures_are_left_out_unless_asked_for(tmp_path: Path, outcome: dict[str, Any], is_success: bool) -> None:
    good = {"messages": LOOKED_UP}
    path, notes = write_lines(tmp_path / "rows.jsonl", [good, {"messages": REFUSED, **outcome}]), ReadingNotes()
    found = list(read_examples(path, Demonstration, notes=notes))
    assert [len(item.value.messages) for item in found if isinstance(item, Item)] == ([4, 2] if is_success else [4])
    assert (notes.num_episodes, notes.failures.total()) == (1, int(not is_success))
    assert len(list(read_examples(path, Demonstration, min_reward=-1))) == 2


@pytest.mark.parametrize(("last", "kept"), [(0.5, 1), (0.25, 0)])
def test_the_reward_of_steps_is_their_sum(tmp_path: Path, last: float, kept: int) -> None:
    steps = [{"messages": [ASKED], "action": "Wait.", "reward": 0.5}]
    steps.append(
        {"messages": [ASKED, {"role": "assistant", "content": "Wait."}, ASKED], "action": "Yes.", "reward": last}
    )
    path = write_lines(tmp_path / "rows.jsonl", [{"messages": REFUSED}, {"steps": steps}])
    assert len(list(read_examples(path, Demonstration))) == 1 + kept


def test_rewards_of_another_scale_need_the_smallest_of_a_success(tmp_path: Path) -> None:
    rows = [{"messages": REFUSED, "reward": reward} for reward in (0.5, 3, 4.5)]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    assert [isinstance(item, RowError) for item in read_examples(path, Demonstration)] == [True, True]
    assert len(list(read_examples(path, Demonstration, min_reward=4))) == 1
    labels = [item.value.label for item in read_examples(path, LabeledExample, min_reward=3) if isinstance(item, Item)]
    assert labels == [False, True, True]


def test_a_file_of_failures_has_nothing_to_imitate(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [{"messages": REFUSED, "reward": 0}, {"traj": [], "reward": 0}])
    with pytest.raises(ConfigError, match=r"2 of 2 episodes failed \(reward 0: 2\)"):
        list(read_examples(path, Demonstration))


def test_successes_and_failures_are_labels_and_pairs(tmp_path: Path) -> None:
    other = [{"role": "user", "content": "Hello?"}, REFUSED[1]]
    rows = [
        {"task_id": 1, "reward": 0, "traj": REFUSED},
        {"task_id": 1, "reward": 1, "traj": LOOKED_UP},
        {"task_id": 1, "reward": 0, "traj": [ASKED, {"role": "assistant", "content": ""}]},
        {"task_id": 1, "reward": 1, "traj": other},
        {"task_id": 2, "reward": 0, "traj": [ASKED, LOOKED_UP[3]]},
    ]
    path, notes = write_lines(tmp_path / "rows.jsonl", rows), ReadingNotes()
    labels = [item.value.label for item in read_examples(path, LabeledExample) if isinstance(item, Item)]
    assert labels == [False, True, False, True, False]
    (pair,) = read_examples(path, PreferencePair, notes=notes)
    assert isinstance(pair, Item)
    assert (pair.value.chosen[-1].content, pair.value.rejected[-1].content) == ("Yes, three.", "I do not know.")
    assert (notes.num_episodes, notes.unpaired) == (5, 3)
    (error,) = read_examples(write_lines(tmp_path / "plain.jsonl", [{"messages": REFUSED}]), PreferencePair)
    assert "shapes for DPO" in str(error)


def test_convert_and_export_say_what_they_leave_out(tmp_path: Path) -> None:
    rows = [
        {"reward": 1.0, "messages": LOOKED_UP, "tools": TOOLS, "info": {"task": TASK}, "cost": 2},
        {"reward": 0.0, "messages": REFUSED, "info": {"task": TASK}, "mood": "bad"},
    ]
    path, out = write_json(tmp_path / "rows.json", rows), tmp_path / "out.jsonl"
    code, said, _ = run_data_command("convert", path, out)
    assert (code, said.splitlines()[0]) == (0, f"{out}: 1")
    assert "1 of 2 episodes failed (reward 0: 1)" in said
    assert "--min-reward 0" in said
    assert said.count("[0]") == said.count("[1]") == 1
    assert "info, cost (first in" in said
    assert run_data_command("convert", path, tmp_path / "all.jsonl", "--min-reward", "0")[1].startswith(
        f"{tmp_path / 'all.jsonl'}: 2\n"
    )
    for use, kind, count in (("sft", Demonstration, 1), ("kto", LabeledExample, 2), ("dpo", PreferencePair, 1)):
        made = tmp_path / f"{use}.jsonl"
        assert run_data_command("convert", path, made, "--to", use)[0] == 0
        assert [type(item.value) for item in read_conversations(made) if isinstance(item, Item)] == [kind] * count
        code, said, _ = run_data_command("export", "trl", path, "--out", tmp_path / use, "--to", use)
        assert (code, f"{use}.jsonl: {3 if use == 'kto' else 1}" in said) == (0, True)  # kto has a row for each reply
    code, said, _ = run_data_command("export", "trl", path, "--out", tmp_path / "trl")
    assert (code, "sft.jsonl: 1" in said, "1 of 2 episodes failed" in said) == (0, True, True)


def test_columns_that_are_not_used_are_named_once(tmp_path: Path) -> None:
    turns = [turn | {"mood": "calm"} for turn in TURNS]
    rows = [{"conversations": TURNS, "id": 1}, {"conversations": turns, "cost": 2}, {"messages": REFUSED, "cost": 3}]
    path, notes = write_lines(tmp_path / "rows.jsonl", rows), ReadingNotes()
    assert len(list(read_conversations(path, notes=notes))) == 3
    assert notes.unused == {"cost": f"{path}:2", "conversations.mood": f"{path}:2"}


@pytest.mark.parametrize("name", ["one.json", "folder", "list.json"])
def test_one_episode_a_file_and_named_lists_are_read(tmp_path: Path, name: str) -> None:
    episode = {"task_id": 1, "reward": 1.0, "traj": LOOKED_UP}
    write_json(tmp_path / "one.json", episode)
    write_json(tmp_path / "list.json", {"made_by": "us", "trajectories": [episode, episode]})
    (tmp_path / "folder").mkdir()
    for number in range(2):
        write_json(tmp_path / "folder" / f"task_{number}.json", episode)
    found = list(read_examples(tmp_path / name, Demonstration))
    assert [summarize(item.value)[-1] for item in found if isinstance(item, Item)] == ["Yes, three."] * (
        1 if name == "one.json" else 2
    )


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl"])
def test_rows_of_alpaca_are_conversations(tmp_path: Path, name: str) -> None:
    rows = [{"instruction": "Name the colour.", "input": "A ripe lemon.", "output": "Yellow.", "system": "Be brief."}]
    path = (write_lines if name.endswith("l") else write_json)(tmp_path / name, rows)
    code, said, err = run_data_command("convert", path, tmp_path / "out.jsonl")
    assert (code, said, err) == (0, f"{tmp_path / 'out.jsonl'}: 1\n", "")
    (found,) = read_examples(tmp_path / "out.jsonl", Demonstration)
    assert isinstance(found, Item)
    assert summarize(found.value) == ["Be brief.", "Name the colour.\nA ripe lemon.", "Yellow."]
