"""Tests of SFT on a file of demonstrations: equality with gold episodes, accepted formats and rejected rows."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from support.data_kit import run_data_command, write_lines
from support.tiny_runs import load_checkpoint_files, step_metrics, tiny_config, train_tiny_run
from support.tiny_runs import tiny as tiny  # a fixture
from toy import DOMAIN
from understudy import formats
from understudy.algorithms.batch import collate
from understudy.algorithms.preference_config import PreferenceConfig
from understudy.core.errors import ConfigError, TaskError
from understudy.core.items import Item
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Score
from understudy.core.trajectory import StopReason, Trajectory
from understudy.data.collect.collect import SelectionConfig, write_examples
from understudy.data.conversations.examples import Demonstration
from understudy.envs.task_source import Slice
from understudy.runs.config import SFTConfig
from understudy.runs.run import Run
from understudy.sources.loading import load_source
from understudy.train.data_files import describe_epochs
from understudy.train.phases.demonstrations import prompt_mismatch_notes, read_demonstrations
from understudy.train.phases.preferences import read_preferences
from understudy.train.preparation import prepare_run

GOLD = ("sft.steps=3", "steps=0", "save_every=0", "limits.max_turns=6")


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the demonstrations of a run of `tiny_runs`."""
    out = tmp_path_factory.mktemp("collected") / "demos.jsonl"
    settings = ("slice.domain_policy=brief", "slice.tools=switch_lamp")
    code, _, err = run_data_command("collect", "support.tiny_runs:ONE_LAMP", *settings, "--tasks", 3, "--sft", out)
    assert code == 0, err
    return out


@pytest.mark.slow
def test_run_on_a_collected_file_matches_the_run_on_gold(tiny: Path, tmp_path: Path, demos: Path) -> None:
    gold = train_tiny_run(tmp_path / "gold", tiny, *GOLD, "sft.num_demonstrations=3")
    notes: list[str] = []
    file = train_tiny_run(
        tmp_path / "file",
        tiny,
        *GOLD,
        "sft.num_demonstrations=0",
        f"sft.dataset_file={demos}",
        report=lambda phase, done, of, metrics: notes.append(phase) if not of else None,
    )
    assert step_metrics(file) == step_metrics(gold)
    assert load_checkpoint_files(file).keys() == load_checkpoint_files(gold).keys()
    assert all(
        (load_checkpoint_files(file)[k] == load_checkpoint_files(gold)[k]).all()
        for k in load_checkpoint_files(gold)
        if k != "progress"
    )
    assert not any(str(demos) in note for note in notes), "all of it fits"
    assert any(re.match(r"sft\.steps = 3\b.*\b2\b.*\b1\b.*\b6\b", note) for note in notes)


@pytest.mark.parametrize(
    ("sft", "count"),
    [
        (SFTConfig(), 256),
        (SFTConfig(steps=2, batch_size=4), 8),
        (SFTConfig(steps=2, batch_size=4, dataset_file="demos.jsonl"), 256),
        (SFTConfig(steps=0), 0),
    ],
)
def test_gold_episodes_are_no_more_than_the_batches_hold(sft: SFTConfig, count: int) -> None:
    assert sft.num_gold_episodes == count


def test_epochs_over_a_file_are_described() -> None:
    sft = SFTConfig(steps=24, batch_size=8)
    assert re.match(r"sft\.steps = 24\b.*\b8\b.*\b192 of 2000\b.*\bsft\.steps=250\b", describe_epochs(sft, 2000))
    assert re.search(r"\b192\b.*\b1\b", describe_epochs(sft, 192))
    assert "sft.steps=" not in describe_epochs(sft, 192)
    assert re.search(r"\bsft\.steps=25\b", describe_epochs(sft, 193))
    assert re.search(r"\b4 preferences\b.*\b1\.5\b", describe_epochs(PreferenceConfig(steps=3, batch_size=2), 4))


def load_demonstrations(tiny: Path, file: Path | str, *settings: str) -> tuple[list[Trajectory], list[str]]:
    """Return the demonstrations of a file as a run reads them, and the notes."""
    chosen = tiny_config(tiny, "sft.num_demonstrations=0", f"sft.dataset_file={file}", *settings)
    domain = load_source(chosen.domain).slice(chosen.slice)
    return read_demonstrations(chosen.sft, chosen.limits.max_episode_tokens, domain, formats.load_chat_format(tiny))


def test_files_of_other_trainers_give_the_same_demonstrations(tiny: Path, tmp_path: Path, demos: Path) -> None:
    assert run_data_command("export", "llamafactory", demos, "--model", tiny, "--out", tmp_path / "lf")[0] == 0
    assert run_data_command("export", "openai", demos, "--out", tmp_path / "openai")[0] == 0
    (own,), _ = load_demonstrations(tiny, demos)
    for folder in ("lf", "openai"):
        (other,), notes = load_demonstrations(tiny, tmp_path / folder / "sft.jsonl")
        assert (other.tokens, other.mask, other.reward) == (own.tokens, own.mask, 1.0)
        assert notes == []


def test_exactly_the_sampled_replies_of_a_program_are_trained_on(tiny: Path, tmp_path: Path) -> None:
    """A program goes on with its history, then summarizes it, and writes a reply of its own."""
    format, tools = formats.load_chat_format(tiny), DOMAIN.tool_specs
    episode = Trajectory("t", score=Score(reward=1.0), stop_reason=StopReason.DONE)
    call = ToolCall(name=tools[0].name, arguments={"a": 1}, id="c")

    def sample(messages: list[Message], reply: Message) -> list[Message]:
        last = next((one for one in episode.sequences if one.messages == messages[: len(one.messages)]), Trajectory(""))
        known = len(last.messages) if last.tokens else 0
        prompt = [*last.tokens, *format.encode(messages[known:], tools, last.tokens)]
        tokens = format.encode_reply(reply)
        episode.add_call(messages, tools, prompt, known, reply, tokens, [0.0] * len(tokens))
        return [*messages, reply]

    asked = [Message(role="system", content="Be brief."), Message(role="user", content="Find it.")]
    called = sample(asked, Message(role="assistant", tool_calls=(call,)))
    sample([*called, Message(role="tool", content="L7", tool_call_id="c")], Message(role="assistant", content="L7"))
    summary = [asked[0], Message(role="user", content="Summary"), *called[2:]]
    short = sample(
        [*summary, Message(role="tool", content="7", tool_call_id="c")], Message(role="assistant", content="Seven.")
    )
    own = [Message(role="assistant", content="I am sure."), Message(role="user", content="Really?")]
    sample([*short, *own], Message(role="assistant", content="Yes."))
    assert [len(sequence.reply_indices) for sequence in episode.sequences] == [2, 2]
    assert [len(sequence.given_replies) for sequence in episode.sequences] == [0, 2]
    demos = tmp_path / "demos.jsonl"
    text, _ = write_examples([episode], lambda _: tools, {"sft": demos}, SelectionConfig())
    assert "left out" not in text
    found, _ = load_demonstrations(tiny, demos)
    assert [(each.tokens, each.mask) for each in found] == [(each.tokens, each.mask) for each in episode.sequences]
    batch = collate(found)
    sampled = [batch.tokens[row][batch.mask[row]].tolist() for row in range(2)]
    assert sampled == [
        [token for start, end in each.reply_spans() for token in each.tokens[start:end]] for each in episode.sequences
    ]


def test_failed_episodes_are_imitated_only_if_asked_for(tiny: Path, tmp_path: Path) -> None:
    said = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
    file = write_lines(tmp_path / "rows.jsonl", [{"traj": said, "reward": reward} for reward in (1, 0, 0.5)])
    kept, notes = load_demonstrations(tiny, file)
    assert len(kept) == 1
    assert re.search(r"\b2 of 3\b.*\breward 0: 1\b.*\bsft\.min_reward=0\b", notes[0])
    assert len(load_demonstrations(tiny, file, "sft.min_reward=0.5")[0]) == 2
    with pytest.raises(TaskError, match=r"rows\.jsonl:1: reward: 3 .*--skip-invalid"):
        load_demonstrations(tiny, write_lines(file, [{"traj": said, "reward": 3}]))


@pytest.mark.parametrize(("kind", "rewards"), [("kto", [[1.0], [0.0], [0.0]]), ("dpo", [[1.0, 0.0]])])
def test_episodes_with_rewards_are_preferences(tiny: Path, tmp_path: Path, kind: str, rewards: list[float]) -> None:
    asked = {"role": "user", "content": "Hi."}
    said = [[asked, {"role": "assistant", "content": text}] for text in ("Hello.", "No.", "What?")]
    rows = [{"traj": messages, "reward": reward} for messages, reward in zip(said, (2, 1, 0), strict=True)]
    file = write_lines(tmp_path / "rows.jsonl", rows)
    settings = (f"preferences.dataset_file={file}", f"preferences.kind={kind}", "preferences.min_reward=2")
    units, notes = read_preferences(tiny_config(tiny, *settings, "preferences.steps=1"), formats.load_chat_format(tiny))
    assert [[episode.reward for episode in unit] for unit in units] == rewards
    assert any("1 of 3" in note for note in notes) == (kind == "dpo")


def test_too_long_demonstrations_are_skipped_and_counted(tiny: Path, tmp_path: Path, demos: Path) -> None:
    short = demos.read_text()
    long = Demonstration.model_validate_json(short)
    last = long.messages[-1].replace(content="x" * 3000)
    (tmp_path / "both.jsonl").write_text(short + long.replace(messages=(*long.messages[:-1], last)).model_dump_json())
    kept, notes = load_demonstrations(tiny, tmp_path / "both.jsonl", "limits.max_episode_tokens=3000")
    assert len(kept) == 1
    assert re.search(r"\b1 of 2\b.*\blimits\.max_episode_tokens\b.*\b3000\b", notes[-1])
    with pytest.raises(ConfigError, match=r"\b100\b"):
        load_demonstrations(tiny, demos, "limits.max_episode_tokens=100")


def test_resume_rejects_a_changed_dataset_file(tiny: Path, tmp_path: Path, demos: Path) -> None:
    (file := tmp_path / "demos.jsonl").write_text(demos.read_text())
    chosen = tiny_config(tiny, "sft.num_demonstrations=0", f"sft.dataset_file={file}")
    run = Run.create(tmp_path / "run", chosen)
    for _ in range(2):
        asyncio.run(prepare_run(chosen)).data_files.validate_unchanged(run)
    file.write_text(demos.read_text() * 2)
    with pytest.raises(ConfigError, match=r"demos\.jsonl"):
        asyncio.run(prepare_run(chosen)).data_files.validate_unchanged(run)
    file.unlink()
    with pytest.raises(ConfigError, match=r"demos\.jsonl"):
        asyncio.run(prepare_run(chosen, done_steps=chosen.sft.steps - 1))
    asyncio.run(prepare_run(chosen, done_steps=chosen.sft.steps)).data_files.validate_unchanged(run)  # SFT is finished


def test_missing_and_invalid_dataset_files_raise(tiny: Path, tmp_path: Path, demos: Path) -> None:
    with pytest.raises(ConfigError, match="sft"):
        load_demonstrations(tiny, "")
    with pytest.raises(ConfigError, match=r"no\.jsonl"):
        load_demonstrations(tiny, tmp_path / "no.jsonl")
    bad = write_lines(tmp_path / "bad.jsonl", [{"messages": []}])
    with pytest.raises(TaskError, match=r"bad\.jsonl:1: messages: "):
        load_demonstrations(tiny, bad)
    broken = Demonstration.model_validate_json(demos.read_text())
    call_ = Message(role="assistant", tool_calls=(ToolCall(name="f", parse_error="not JSON"),))
    (tmp_path / "broken.jsonl").write_text(
        broken.replace(messages=(*broken.messages[:2], call_)).model_dump_json() + "\n"
    )
    with pytest.raises(ConfigError, match=r"broken\.jsonl:1: .*\b1\b"):
        load_demonstrations(tiny, tmp_path / "broken.jsonl")


def test_mismatches_between_file_and_domain_are_reported(demos: Path) -> None:
    own = Demonstration.model_validate_json(demos.read_text())
    whole, brief = DOMAIN, DOMAIN.slice(Slice(domain_policy="brief", tools=("switch_lamp",)))
    item = Item("demos.jsonl:1", own)
    assert list(prompt_mismatch_notes([item], brief)) == []
    policy, tools = prompt_mismatch_notes([item, item], whole)
    assert re.match(r"2 of 2\b.*\bdemos\.jsonl:1\b.*\bpolicy\b.*\btoy\b", policy)
    assert re.match(r"2 of 2\b.*\bdemos\.jsonl:1\b.*\btools\b.*\btoy\b.*\bfind_lamp\b", tools)
    changed = own.replace(tools=(own.tools[0].replace(description="Changed."),))
    (note,) = prompt_mismatch_notes([item, Item("demos.jsonl:2", changed)], brief)
    assert re.match(r"1 of 2\b.*\bdemos\.jsonl:2\b.*\bswitch_lamp\b", note)
    (extra_tool,) = prompt_mismatch_notes(
        [Item("x:1", own.replace(tools=(*own.tools, own.tools[0].replace(name="sing"))))], brief
    )
    assert extra_tool.endswith("with sing")
    *_, lacking = prompt_mismatch_notes([Item("x:1", own.replace(tools=()))], brief)
    assert "--tools" in lacking


def test_file_that_matches_one_domain_of_a_mixture_is_accepted(demos: Path) -> None:
    item = Item("demos.jsonl:1", Demonstration.model_validate_json(demos.read_text()))
    mixture = load_source("mix:toy:DOMAIN,retail").slice(Slice(domain_policy="brief", tools=("toy/switch_lamp",)))
    assert list(prompt_mismatch_notes([item], mixture)) == []
    assert len(list(prompt_mismatch_notes([item], load_source("mix:toy:DOMAIN,retail")))) == 2


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]},
        {"conversations": [{"from": "human", "value": "Hi."}, {"from": "gpt", "value": "Hello."}]},
        {"instruction": "Translate.", "input": "Bonjour.", "output": "Hello."},
        {"prompt": "Hi.", "completion": "Hello."},
        {"question": "2 + 2?", "answer": "4"},
    ],
)
def test_sft_trains_on_rows_of_each_shape(tiny: Path, tmp_path: Path, row: dict[str, Any]) -> None:
    file = write_lines(tmp_path / "rows.jsonl", [row])
    settings = ("sft.steps=2", "steps=0", "save_every=0", "sft.num_demonstrations=0", f"sft.dataset_file={file}")
    run = train_tiny_run(tmp_path / "run", tiny, *settings)
    first, second = (step["train/nll_loss"] for step in step_metrics(run))
    assert second < first


def test_preferences_that_are_too_long_are_left_out_with_the_row_and_the_limit(tiny: Path, tmp_path: Path) -> None:
    def example(text: str) -> dict[str, Any]:
        said = [{"role": "user", "content": text}, {"role": "assistant", "content": "Yes."}]
        return {"messages": said, "label": True}

    file = write_lines(tmp_path / "rows.jsonl", [example("a"), example("long " * 300), example("b")])
    settings = (f"preferences.dataset_file={file}", "preferences.kind=kto", "limits.max_episode_tokens=200")
    format = formats.load_chat_format(tiny)
    units, notes = read_preferences(tiny_config(tiny, *settings), format)
    assert len(units) == 2
    enough = re.search(rf"1 of 3 .*{file}:2.*limits\.max_episode_tokens=(\d+)", notes[-1])
    assert enough
    units, _ = read_preferences(tiny_config(tiny, *settings[:2], f"limits.max_episode_tokens={enough[1]}"), format)
    assert len(units) == 3
    with pytest.raises(ConfigError, match=r"limits\.max_episode_tokens=\d+"):
        read_preferences(tiny_config(tiny, *settings[:2], "limits.max_episode_tokens=2"), format)
