"""Beside the real LLaMA-Factory: it reads the same tokens and masks, and what it has trained is trained on here."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from safetensors.torch import load_file

import llamafactory_cli
from conversing import TOOLS
from data_kit import call
from understudy.data.conversations import conversations
from understudy.data.export import each_reply, first_difference
from understudy.data.items import strict
from understudy.data.llamafactory import IN_ITS_OWN_WORDS, JOINING, template_of
from understudy.data.preferences import Demonstration, Judged, Preference
from understudy.errors import ConfigError
from understudy.formats import find
from understudy.messages import Message, ToolCall, ToolSpec
from understudy.metrics import full_name
from understudy.models import find_model, make_tiny
from understudy.retold import retold

pytestmark = [
    pytest.mark.llamafactory,
    pytest.mark.skipif(bool(llamafactory_cli.unsupported()), reason=llamafactory_cli.unsupported()),
]
QUICK = ("max_steps=2", "bf16=false", "use_cpu=true", "gradient_accumulation_steps=1", "logging_steps=1")
IGNORED = -100
ASIDE = Demonstration(
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
"""Text beside calls, two of them, and marks in their arguments."""


@dataclasses.dataclass
class Handed:
    """What was handed over, and what LLaMA-Factory made of it."""

    folder: Path
    model: Path
    demonstrations: list[Demonstration]
    pairs: list[Preference]
    judgements: list[Judged]
    found: dict[str, Any]


@pytest.fixture(scope="module")
def handed(tmp_path_factory: pytest.TempPathFactory) -> Handed:
    folder = tmp_path_factory.mktemp("handed")
    model = make_tiny(folder / "model")
    demos, pairs, judged = (folder / f"{name}.jsonl" for name in ("demos", "pairs", "judged"))
    assert call("collect", "retail", "slice.policy=brief", "--out", demos, "--tasks", 6)[0] == 0
    with demos.open("a") as file:
        file.write(ASIDE.model_dump_json() + "\n")
    demonstrations = [item.value for item in strict(conversations(demos))]
    sound = [d for d in demonstrations if isinstance(d, Demonstration)]
    lost = [
        Preference(
            chosen=d.messages, rejected=(*d.messages[:2], Message(role="assistant", content="No.")), tools=d.tools
        )
        for d in sound
    ]
    judgements = [Judged(messages=pair.chosen, tools=pair.tools, wanted=True) for pair in lost[:2]]
    judgements += [Judged(messages=pair.rejected, tools=pair.tools, wanted=False) for pair in lost[:2]]
    pairs.write_text("".join(row.model_dump_json() + "\n" for row in lost))
    judged.write_text("".join(row.model_dump_json() + "\n" for row in judgements))
    code, _, err = call("export", "llamafactory", demos, pairs, judged, "--model", model, "--out", folder / "lf")
    assert code == 0, err
    assert call("export", "trl", demos, pairs, judged, "--out", folder / "trl")[0] == 0
    script = Path(__file__).with_name("llamafactory_inside.py")
    printed = llamafactory_cli.run(
        "python", str(script), str(folder / "lf"), str(folder / "trl"), str(model), cwd=folder
    )
    return Handed(folder / "lf", model, sound, lost, judgements, json.loads(printed.splitlines()[-1]))


def learned(labels: list[int]) -> list[bool]:
    return [label != IGNORED for label in labels]


def test_tokens_and_masks_are_those_that_training_here_has(handed: Handed) -> None:
    format, newline = find(handed.model), ord("\n")
    assert len(handed.found["sft"]) == len(handed.demonstrations) == 7
    for row, lesson in zip(handed.found["sft"], handed.demonstrations, strict=True):
        own = retold(lesson.messages, lesson.tools, format)
        assert row["input_ids"] == [*own.tokens, newline]
        own.mask.append(False)
        for _, end in list(own.spans()):
            assert row["input_ids"][end] == newline
            own.mask[end] = (
                True  # the one difference: a reply's last token here is <|im_end|>, there the newline after it
            )
        assert learned(row["labels"]) == own.mask


def test_pairs_and_judgements_are_of_one_reply_after_the_same_prompt(handed: Handed) -> None:
    format = find(handed.model)
    for row, pair in zip(handed.found["dpo"], handed.pairs, strict=True):
        before, *sides = first_difference(pair)
        for name, reply in zip(("chosen", "rejected"), sides, strict=True):
            own = retold([*before, reply], pair.tools, format)
            assert row[f"{name}_input_ids"] == [*own.tokens, ord("\n")]
            (*_, (start, _)) = own.spans()
            assert learned(row[f"{name}_labels"]) == [place >= start for place in range(len(own.tokens) + 1)]
    expected = [(each, judged) for judged in handed.judgements for each in each_reply(judged)]
    for row, ((before, reply), judged) in zip(handed.found["kto"], expected, strict=True):
        own = retold([*before, reply], judged.tools, format)
        assert (row["input_ids"], row["kto_tags"]) == ([*own.tokens, ord("\n")], judged.wanted)


def test_trl_renders_the_same(handed: Handed) -> None:
    from understudy.formats import Vocabulary

    decode, format = Vocabulary.load(handed.model / "tokenizer.json").decode, find(handed.model)

    def told(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        return decode(retold(messages, tools, format).tokens) + "\n"

    found = handed.found["trl"]
    for (text,), lesson in zip(found["sft"], handed.demonstrations, strict=True):
        assert text == told(lesson.messages, lesson.tools)
    for texts, pair in zip(found["dpo"], handed.pairs, strict=True):
        before, *sides = first_difference(pair)
        assert texts == [told([*before, side], pair.tools) for side in sides]
    expected = [(each, judged) for judged in handed.judgements for each in each_reply(judged)]
    for (text,), ((before, reply), judged) in zip(found["kto"], expected, strict=True):
        assert text == told([*before, reply], judged.tools)


def test_each_way_to_train_is_one_that_it_knows(handed: Handed) -> None:
    assert handed.found["ways"] == ["lora", "full", "lora"]


def test_what_is_said_of_its_templates_is_so(handed: Handed) -> None:
    assert set(handed.found["joining"]) >= JOINING
    assert set(handed.found["own_words"]) >= IN_ITS_OWN_WORDS
    found = {name: _found(name) for name in handed.found["templates"]}
    wrong = {
        name: (t, handed.found["templates"][name])
        for name, t in found.items()
        if t not in ("", handed.found["templates"][name])
    }
    assert wrong == {}
    assert sum(map(bool, found.values())) > 100


def _found(name: str) -> str:
    try:
        return template_of(f"owner/{name}")[1]
    except ConfigError:
        return ""


@pytest.mark.parametrize("stage", ["sft", "dpo"])
def test_what_it_trained_is_trained_on(handed: Handed, stage: str, tmp_path: Path) -> None:
    llamafactory_cli.run("llamafactory-cli", "train", f"{stage}_lora.yaml", *QUICK, cwd=handed.folder)
    steps = (handed.folder / "saves" / f"{stage}_lora" / "trainer_log.jsonl").read_text().splitlines()
    assert [json.loads(line).get("current_steps") for line in steps][:2] == [1, 2]
    adapters = handed.folder / "saves" / f"{stage}_lora"
    with pytest.raises(ConfigError, match="holds adapters, not a model; merge them into it first"):
        find_model(str(adapters))
    llamafactory_cli.run("llamafactory-cli", "export", f"{stage}_merge.yaml", cwd=handed.folder)
    merged = handed.folder / "saves" / f"{stage}_merged"
    before, after = load_file(handed.model / "model.safetensors"), load_file(merged / "model.safetensors")
    assert before.keys() == after.keys()
    assert any(not before[name].equal(after[name].float()) for name in before)
    imitated, reinforced = trained(merged, tmp_path)
    assert imitated[full_name("grad_norm")] > 0.0
    assert reinforced[full_name("episodes")] >= 6


def trained(model: Path, folder: Path) -> list[dict[str, Any]]:
    """The metrics of a step of imitation and one of reinforcement on a model, which is certified before."""
    from test_train import run_of
    from understudy.run import read_metrics

    run = run_of(folder / "run", model, "sft.steps=1", "steps=1", "eval.tasks=1", "limits.max_turns=4")
    return [line for line in read_metrics(run.folder) if line["step"] > 0]
