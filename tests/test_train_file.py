"""A warm start on demonstrations out of a file: the same run as on gold played now, and what does not fit is said."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from data_kit import call, write_lines
from test_train import config, metrics, run_of, saved
from test_train import tiny as tiny  # a fixture
from toy import DOMAIN
from understudy import formats
from understudy.algorithms.preference_options import Preferences
from understudy.config import SFTConfig
from understudy.data.items import Item
from understudy.data.preferences import Demonstration
from understudy.domains.base import Slice, find
from understudy.domains.mixture import open_domain
from understudy.errors import ConfigError, TaskError
from understudy.messages import Message, ToolCall
from understudy.run import Run
from understudy.train.demonstrations import misfits, read_demonstrations
from understudy.train.files import passes
from understudy.train.preparation import prepare
from understudy.trajectory import Trajectory

GOLD = ("sft.steps=3", "steps=0", "save_every=0", "limits.max_turns=6")


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same tasks that a run of `test_train` demonstrates, collected."""
    out = tmp_path_factory.mktemp("collected") / "demos.jsonl"
    settings = ("slice.policy=brief", "slice.tools=switch_lamp")
    code, _, err = call("collect", "test_train:ONE_LAMP", *settings, "--tasks", 3, "--out", out)
    assert code == 0, err
    return out


def test_a_run_on_a_collected_file_is_the_run_on_gold(tiny: Path, tmp_path: Path, demos: Path) -> None:
    gold = run_of(tmp_path / "gold", tiny, *GOLD, "sft.demonstrations=3")
    notes: list[str] = []
    file = run_of(
        tmp_path / "file",
        tiny,
        *GOLD,
        "sft.demonstrations=0",
        f"sft.file={demos}",
        report=lambda phase, done, of, metrics: notes.append(phase) if not of else None,
    )
    assert metrics(file) == metrics(gold)
    assert saved(file).keys() == saved(gold).keys()
    assert all((saved(file)[k] == saved(gold)[k]).all() for k in saved(gold) if k != "progress")
    assert not any(str(demos) in note for note in notes), "all of it fits"
    assert "sft.steps = 3, of 2 each, read each of 1 demonstrations 6 times" in notes


def test_how_much_of_a_file_is_read() -> None:
    sft = SFTConfig(steps=24, batch_size=8)
    few = "sft.steps = 24, of 8 each, read 192 of 2000 demonstrations; sft.steps=250 reads each once"
    assert passes(sft, 2000) == few
    assert passes(sft, 192).endswith("read each of 192 demonstrations 1 times")
    assert passes(sft, 193).endswith("; sft.steps=25 reads each once")
    assert passes(Preferences(steps=3, batch_size=2), 4).endswith("read each of 4 preferences 1.5 times")


def read(tiny: Path, file: Path | str, *settings: str) -> tuple[list[Trajectory], list[str]]:
    """The demonstrations of a file, as a run reads them, and what it says of them."""
    chosen = config(tiny, "sft.demonstrations=0", f"sft.file={file}", *settings)
    domain = find(chosen.domain).slice(chosen.slice)
    return read_demonstrations(chosen.sft, chosen.limits.max_tokens, domain, formats.find(tiny))


def test_files_of_other_trainers_are_read_too(tiny: Path, tmp_path: Path, demos: Path) -> None:
    assert call("export", "llamafactory", demos, "--model", tiny, "--out", tmp_path / "lf")[0] == 0
    assert call("export", "openai", demos, "--out", tmp_path / "openai")[0] == 0
    (own,), _ = read(tiny, demos)
    for folder in ("lf", "openai"):
        (other,), notes = read(tiny, tmp_path / folder / "sft.jsonl")
        assert (other.tokens, other.mask, other.reward) == (own.tokens, own.mask, 1.0)
        assert notes == []


def test_what_is_longer_than_an_episode_is_left_out_and_counted(tiny: Path, tmp_path: Path, demos: Path) -> None:
    short = demos.read_text()
    long = Demonstration.model_validate_json(short)
    last = long.messages[-1].replace(content="x" * 3000)
    (tmp_path / "both.jsonl").write_text(short + long.replace(messages=(*long.messages[:-1], last)).model_dump_json())
    kept, notes = read(tiny, tmp_path / "both.jsonl", "limits.max_tokens=3000")
    assert len(kept) == 1
    assert notes[-1].endswith("1 of 2 demonstrations are longer than limits.max_tokens (3000) and left out")
    with pytest.raises(ConfigError, match="holds no demonstration of at most 100 tokens"):
        read(tiny, demos, "limits.max_tokens=100")


def test_a_run_goes_on_with_the_file_that_it_was_begun_with(tiny: Path, tmp_path: Path, demos: Path) -> None:
    (file := tmp_path / "demos.jsonl").write_text(demos.read_text())
    chosen = config(tiny, "sft.demonstrations=0", f"sft.file={file}")
    run = Run.create(tmp_path / "run", chosen)
    for _ in range(2):
        prepare(chosen).files.refuse_changed(run)
    file.write_text(demos.read_text() * 2)
    with pytest.raises(ConfigError, match="has changed since"):
        prepare(chosen).files.refuse_changed(run)
    file.unlink()
    with pytest.raises(ConfigError, match="there is no file"):
        prepare(chosen, done=chosen.sft.steps - 1)
    prepare(chosen, done=chosen.sft.steps).files.refuse_changed(run)  # nothing is learned from it any more


def test_nothing_to_imitate_and_files_that_cannot_be_read(tiny: Path, tmp_path: Path, demos: Path) -> None:
    with pytest.raises(ConfigError, match="there is nothing to imitate"):
        read(tiny, "")
    with pytest.raises(ConfigError, match="there is no file"):
        read(tiny, tmp_path / "no.jsonl")
    bad = write_lines(tmp_path / "bad.jsonl", [{"messages": []}])
    with pytest.raises(TaskError, match=r"bad.jsonl:1: messages: .*nothing to learn from"):
        read(tiny, bad)
    broken = Demonstration.model_validate_json(demos.read_text())
    call_ = Message(role="assistant", tool_calls=(ToolCall(name="f", malformed="not JSON"),))
    (tmp_path / "broken.jsonl").write_text(
        broken.replace(messages=(*broken.messages[:2], call_)).model_dump_json() + "\n"
    )
    with pytest.raises(ConfigError, match=r"broken.jsonl:1: reply 1 has a call that could not be read"):
        read(tiny, tmp_path / "broken.jsonl")


def test_what_is_not_as_the_domain_has_it_is_said(demos: Path) -> None:
    own = Demonstration.model_validate_json(demos.read_text())
    whole, brief = DOMAIN, DOMAIN.slice(Slice(policy="brief", tools=("switch_lamp",)))
    item = Item("demos.jsonl:1", own)
    assert list(misfits([item], brief)) == []
    policy, tools = misfits([item, item], whole)
    assert policy == "2 of 2 demonstrations (the first: demos.jsonl:1) have another policy than toy tells its agents"
    assert tools.endswith("show other tools than toy does: without find_lamp")
    changed = own.replace(tools=(own.tools[0].replace(description="Changed."),))
    (told,) = misfits([item, Item("demos.jsonl:2", changed)], brief)
    assert told.startswith("1 of 2 demonstrations (the first: demos.jsonl:2)")
    assert told.endswith("told otherwise: switch_lamp")
    (further,) = misfits([Item("x:1", own.replace(tools=(*own.tools, own.tools[0].replace(name="sing"))))], brief)
    assert further.endswith("with sing")


def test_one_part_of_a_mixture_is_enough(demos: Path) -> None:
    item = Item("demos.jsonl:1", Demonstration.model_validate_json(demos.read_text()))
    mixture = open_domain("toy:DOMAIN,retail").slice(Slice(policy="brief", tools=("toy/switch_lamp",)))
    assert list(misfits([item], mixture)) == []
    assert len(list(misfits([item], open_domain("toy:DOMAIN,retail")))) == 2
