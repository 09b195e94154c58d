"""Test that readers of data files, TOML texts and overrides answer any input by rows or by errors in one line.

The inputs are valid rows and configs in which parts are replaced by hostile values. They are the same in each run.
"""

import gc
import io
import json
import random
import shutil
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from understudy.cli import main as cli
from understudy.core.errors import ConfigError, TaskError
from understudy.core.items import Item, RowError, items_or_raise
from understudy.core.json_values import parse_index
from understudy.core.settings import dump_toml, loads_toml
from understudy.domains.retail import DOMAIN
from understudy.runs.config import TrainConfig, parse_config
from understudy.sources.readers import read_rows
from understudy.sources.task_files.rows import read_task_rows


@pytest.fixture(autouse=True)
def no_finalizers() -> Iterator[None]:
    """Collect no garbage meanwhile: a finalizer fails that runs where a parser is at the limit of recursion."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


ROWS: tuple[dict[str, Any], ...] = (
    DOMAIN.tasks("train")[0].model_dump(mode="json"),
    {"instruction": "cancel W1", "actions": [{"name": "f", "kwargs": {"order": "W1"}}], "outputs": ["12"]},
    {
        "data_source": "tau_bench/retail",
        "prompt": [{"role": "user", "content": "hi"}],
        "reward_spec": {"ground_truth": {"actions": [{"name": "f", "kwargs": {"a": 1}, "result": "ok"}]}},
        "extra_info": {"domain": "retail", "instruction": "do it", "complexity": 2},
    },
    {
        "id": "1",
        "user_scenario": {"instructions": {"domain": "retail", "known_info": "y"}},
        "evaluation_criteria": {"actions": [{"name": "f", "arguments": {}}], "communicate_info": ["1"]},
    },
    {
        "prompt": [{"role": "user", "content": "x"}],
        "extra_info": {
            "tool_sequence": [
                {"step": 1, "server": "s", "tool": "t", "params": {}, "result": [1]},
                {"step": 2, "server": "s", "tool": "t", "params": {"a": "${step1.0}"}},
            ],
            "limits": {"max_turns": 4},
        },
    },
    {"question": "1+1?", "answer": "2", "split": "train"},
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}], "tools": []},
    {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}], "tools": "[]"},
    {"prompt": "hi", "chosen": [{"role": "assistant", "content": "a"}], "rejected": "b"},
    {"prompt": "hi", "completion": "yo", "label": True},
)
HOSTILE: tuple[Any, ...] = (
    *("", " ", "²", "٣", "1" * 5000, "\ud800", "\x00", "\ufeff", "null", "[1", "[" * 3000, '{"a":' * 500, "\u2028"),
    *("${step٣.x}", "${step9999.x}", "x" * 70_000, "2024-13-45", -1, 0, 1e308, True, None, [], {}, [[]], [None]),
    *({"": ""}, [1, "a", None, {}], {"function": {"name": None}}, float("nan"), float("inf")),
)
TOML_VALUES = (
    *("²", "1" * 5000, "0x" + "f" * 5000, "[" * 2000, "{a=" * 300, "nan", "1e400", "[]", "{}", "true", '"x', "\x00"),
    *("2024-13-45", "2024-01-01", "07:32:00", "[1,2,[3]]", "{a=1}", "", "=", "a,b", "٣", "-1", "9" * 23, "[[x]]"),
    *("x" * 70_000, '{ "" = 1 }', "\ufeff", "\n"),
)
COMMANDS = (
    "data validate {file}",
    "data stats {file}",
    "data convert {file} {out}.jsonl",
    "data split {file} --out {out}",
    "data export trl {file} --out {out}",
    "data synthesize --from-specs {file} --out {out}.jsonl",
    "check {file}",
    "eval {file} --agent gold --tasks 1",
    "parse --tools {file}",
)


def nested(draw: random.Random) -> Any:
    value: Any = 1
    for _ in range(draw.choice((20, 60, 150, 300))):
        value = [value] if draw.random() < 0.5 else {"a": value}
    return value


def hostile(draw: random.Random) -> Any:
    return nested(draw) if draw.random() < 0.06 else draw.choice(HOSTILE)


def altered(draw: random.Random, value: Any, share: float) -> Any:
    """Return a value in which about this share of the parts is removed, renamed or replaced."""
    if draw.random() < share:
        return hostile(draw)
    if isinstance(value, dict):
        kept = {
            "" if draw.random() < share / 2 else key: altered(draw, inner, share)
            for key, inner in value.items()
            if draw.random() > share / 2
        }
        added = draw.choice(("complexity", "split", "limits", "tools", "id", "label", "results", "difficulty"))
        return {**kept, added: hostile(draw)} if draw.random() < share else kept
    return [altered(draw, inner, share) for inner in value] if isinstance(value, list) else value


def write_rows(draw: random.Random, folder: Path) -> Path:
    """Write a file of one to three altered rows, sometimes with bytes that are damaged too."""
    row, share = draw.choice(ROWS), draw.choice((0.02, 0.05, 0.15))
    rows = [altered(draw, row, share) for _ in range(draw.choice((1, 2, 3)))]
    suffix = draw.choice((".jsonl", ".json", ".csv", ".parquet"))
    file = folder / f"rows{suffix}"
    if suffix == ".parquet":
        write_parquet(rows, file)
        return file
    lines = [json.dumps(each, ensure_ascii=draw.random() < 0.7) for each in rows]
    text = "[" + ",".join(lines) + "]" if suffix == ".json" else "\n".join(lines) + "\n"
    data = text.encode("utf-8", "surrogatepass")
    place = draw.randrange(len(data))
    damages = (
        b"\xef\xbb\xbf" + data,
        data.replace(b"\n", b"\r\n"),
        data[:place] + bytes([draw.randrange(256)]) + data[place:],
        data[:place],
        data.replace(b"1", b"1" * 5000, 1),
        data.replace(b'"', b'"a":1,"', 1),
        data.decode("utf-8", "replace").encode("utf-16"),
    )
    file.write_bytes(draw.choice(damages) if draw.random() < 0.2 else data)
    return file


def write_parquet(rows: list[Any], file: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    try:
        table = pyarrow.Table.from_pylist([each if isinstance(each, dict) else {"a": each} for each in rows])
        parquet.write_table(table, file)
    except (pyarrow.ArrowException, UnicodeError, TypeError, RecursionError, OverflowError):
        file.write_bytes(b"PAR1" + b"\xff" * 200)


def read_all(file: Path) -> Iterator[object]:
    yield from read_task_rows(read_rows(file), "file")


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_hostile_files_are_tasks_or_errors(seed: int, tmp_path: Path) -> None:
    draw, kinds, refusals = random.Random(seed), set(), list[str]()
    for _ in range(120):
        try:
            for read in read_all(write_rows(draw, tmp_path)):
                item = read.item  # type: ignore[attr-defined]
                assert isinstance(item, Item | RowError)
                kinds.add(type(item))
        except ConfigError as e:
            refusals.append(str(e))
    assert kinds == {Item, RowError}
    assert refusals
    assert not [text for text in refusals if "\n" in text]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_on_hostile_files_end_by_an_exit_code(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(command)
    for number in range(60):
        folder = tmp_path / str(number)
        folder.mkdir()
        words = command.format(file=write_rows(draw, folder), out=folder / "out").split()
        monkeypatch.setattr(sys, "argv", ["understudy", *words])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a reply")))
        try:
            with pytest.raises(SystemExit) as stop:
                cli.main()
        except Exception:  # noqa: BLE001  # the traceback that a user would see
            kept = shutil.copytree(folder, tmp_path / "failed")
            pytest.fail(f"{words} on {kept}: {traceback.format_exc()}")
        _, err = capfd.readouterr()
        assert stop.value.code in (0, 1, 2, None), (words, err)
        assert "Traceback" not in err, (words, err)
        shutil.rmtree(folder)


def toml_texts(draw: random.Random) -> Iterator[str]:
    whole = dump_toml(TrainConfig()).split("\n")
    settings = [number for number, line in enumerate(whole) if "=" in line and not line.startswith("#")]
    while True:
        lines, place, value = list(whole), draw.choice(settings), draw.choice(TOML_VALUES)
        key = lines[place].partition("=")[0]
        lines[place] = draw.choice(
            (f"{key}= {value}", f"{key}= {value}", f"{lines[place]}\n{lines[place]}", '"" = 1', f"{key.strip()}.x = 1")
        )
        if draw.random() < 0.1:
            lines.insert(place, f"[{draw.choice(('a', 'engine', 'endpoints.x', 'domain', '²'))}]")
        yield "\n".join(lines)


def config_outcomes(draw: random.Random, count: int) -> set[str]:
    """Read altered configs and overrides. Return which outcomes there were."""
    texts, outcomes = toml_texts(draw), set[str]()
    keys = [line.partition("=")[0].strip() for line in dump_toml(TrainConfig()).splitlines() if " = " in line[:60]]
    keys += [
        "",
        ".",
        "a..b",
        "user.kind",
        "engine.kind",
        "endpoints.²",
        "endpoints.a",
        "data.tests.x",
        "algorithm.kl_coef",
    ]
    for _ in range(count):
        override = f"{draw.choice(keys)}={draw.choice(TOML_VALUES)}"
        for text, overrides in ((next(texts), []), ("", [override])):
            try:
                dump_toml(parse_config(text, overrides))
                outcomes.add("read")
            except ConfigError:
                outcomes.add("refused")
    return outcomes


def test_hostile_configs_and_overrides_are_read_or_refused() -> None:
    assert config_outcomes(random.Random(1), 60) == {"read", "refused"}


@pytest.mark.slow
def test_many_hostile_configs_and_overrides_are_read_or_refused() -> None:
    assert config_outcomes(random.Random(2), 700) == {"read", "refused"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [("a = " + "[" * 5000, "deep"), ("a = " + "1" * 5000, "digits|bits"), ("a = 0x" + "f" * 5000, "bits")],
)
def test_toml_beyond_the_limits_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        loads_toml(text)


@pytest.mark.parametrize(
    "content",
    [b"[" * 100_000, b'{"a":' * 5000, b"[" * 300 + b"]" * 300, b"[" + b"1" * 5000 + b"]", b'["\xed\xa0\x80"]'],
)
def test_json_that_its_parser_cannot_bear_is_refused(content: bytes, tmp_path: Path) -> None:
    """ijson needs gigabytes for the first, and ends the process by a signal for a long number."""
    file = tmp_path / "rows.json"
    file.write_bytes(content)
    with pytest.raises((ConfigError, TaskError), match=r"rows\.json"):
        list(items_or_raise(read_rows(file)))


@pytest.mark.parametrize("row", [{"complexity": "²"}, {"complexity": "9" * 5000}])
def test_a_complexity_that_is_no_number_counts_calls(row: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({**ROWS[1], **row}) + "\n")
    (read,) = read_task_rows(read_rows(file), "rows")
    assert isinstance(read.item, Item), read.item


def test_an_index_has_ascii_digits() -> None:
    assert [parse_index(text) for text in ("0", "12", "²", "٣", "", "-1", "9" * 5000)] == [0, 12, *[None] * 5]
