"""The files of a run: several files of one domain, domains of one file, and rows that a shipped domain may play."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.data_kit import FIND, make_address_task, make_tau_task, run_data_command, write_lines, write_tau_tasks
from toy import DOMAIN
from understudy.core.errors import ConfigError, TaskError
from understudy.core.tasks import SPLITS, write_tasks
from understudy.envs.task_source import Slice, TaskSource, list_file_summaries, list_sources
from understudy.runs.config import parse_config
from understudy.sources.loading import load_source
from understudy.sources.task_files.call_matching import CallMatching
from understudy.sources.task_files.config import DataConfig
from understudy.train.eval_sets import make_eval_sets

Row = dict[str, Any]


def call_row(number: int, domain: str = "florist", tool: str = "send_bouquet") -> Row:
    """Return a row of another trainer: one write, and no program that runs it."""
    word = f"customer{number}"  # in all phrases of three words, so that no two rows are near-duplicates
    said = f"{word} {domain}: {word} has {word} and wants order {word} dealt with."
    action = {"name": tool, "kwargs": {"order": f"{domain}-{number}"}}
    return {
        "env_class": "tau_bench",
        "prompt": [{"role": "user", "content": said}],
        "reward_spec": {"method": "tau_bench_reward", "ground_truth": [action]},
        "extra_info": {"domain": domain, "instruction": said},
    }


def sequence_row(number: int, domain: str = "", tool: str = "send_bouquet") -> Row:
    """Return a row with a sequence of calls."""
    step = {"step": 1, "server": "shop", "tool": tool, "params": {"order": f"F{number}"}}
    truth = {"task_id": f"s{number}", "complexity": "simple", "tool_sequence": [step]}
    prompt = [{"role": "user", "content": f"Please deal with order {number}."}]
    return {"data_source": "shop", "prompt": prompt, "reward_spec": {"method": "rule", "ground_truth": truth}}


def task_ids(source: TaskSource) -> list[list[str]]:
    return [sorted(task.id for task in source.tasks(split)) for split in SPLITS]


@pytest.mark.parametrize(
    "load",
    [
        lambda train, held: load_source(train, DataConfig(validation=(held,))),
        lambda train, held: load_source(train, DataConfig(train=(train,), validation=(held,))),
        lambda train, held: load_source("toy:DOMAIN", DataConfig(train=(train,), validation=(held,))),
        lambda train, held: load_source("retail", DataConfig(train=(train,), validation=(held,))),
        lambda train, held: load_source([train, held]),
        lambda train, held: load_source(f"{train},{held}"),
        lambda train, held: load_source([train, held], DataConfig(validation=(held,))),
        lambda train, held: load_source(["toy:DOMAIN", train], DataConfig(validation=(held,))),
    ],
)
@pytest.mark.parametrize("make_row", [call_row, sequence_row])
def test_one_source_compares_the_calls_of_all_files(
    tmp_path: Path, load: Callable[[str, str], TaskSource], make_row: Callable[..., Row]
) -> None:
    train = str(write_lines(tmp_path / "train.jsonl", [make_row(number) for number in range(4)]))
    held = str(write_lines(tmp_path / "val.jsonl", [make_row(number, tool="cancel_bouquet") for number in (7, 8)]))
    source = load(train, held)
    listed = {split: [task for task in source.tasks(split) if task.domain != "toy"] for split in SPLITS}
    assert [len(tasks) for tasks in listed.values()] == [4, 2, 0], "no training task is taken for validation"
    for task in (*listed["train"], *listed["validation"]):
        source.environment(task)
    if make_row is call_row:
        (florist,) = (leaf for leaf in list_sources(source) if leaf.name == "florist-calls")
        assert [spec.name for spec in florist.tool_specs] == ["send_bouquet", "cancel_bouquet"]


def test_a_held_out_domain_is_validated_while_others_train(tmp_path: Path) -> None:
    rows = [call_row(number, domain) for domain in ("florist", "bakery") for number in range(3)]
    train = write_lines(tmp_path / "train.jsonl", rows)
    held = write_lines(tmp_path / "held.jsonl", [call_row(number, "library", "lend") for number in range(2)])
    source = load_source(str(train), DataConfig(validation=(str(held),)))
    assert {task.domain for task in source.tasks("train")} == {"florist-calls", "bakery-calls"}
    assert {task.domain for task in source.tasks("validation")} == {"library-calls"}
    config = parse_config("", [f"data.train={train}", f"data.tests.library={held}", f"domain={train}"])
    validation, tests = make_eval_sets(config, config.open_source())
    assert {task.domain for task in tests.tasks} == {"library-calls"}
    assert (tests.name, len(tests.tasks), len(validation.tasks)) == ("library", 2, 1), "a test set has no tenth"
    assert tests.config.open_source().tasks("validation") == list(tests.tasks)


def test_validation_rows_of_a_file_are_replaced_and_counted(tmp_path: Path) -> None:
    rows = [call_row(0), *({**call_row(number), "split": "validation"} for number in (1, 2))]
    train, held = write_lines(tmp_path / "mine.jsonl", rows), write_lines(tmp_path / "held.jsonl", [call_row(5)])
    source = load_source(str(train), DataConfig(validation=(str(held),)))
    assert [len(source.tasks(split)) for split in SPLITS] == [1, 1, 0]
    (summary,) = list_file_summaries(source)
    assert [note for note in summary.notes if note.startswith("2 validation tasks are left out")]


def test_a_file_without_effect_is_refused(tmp_path: Path) -> None:
    one, two = (str(write_lines(tmp_path / f"{n}.jsonl", [call_row(n), call_row(9 + n)])) for n in (1, 2))
    with pytest.raises(ConfigError, match=r"domain\b.*1\.jsonl.*data\.train"):
        load_source(one, DataConfig(train=(two,)))


def test_files_of_equal_names_keep_all_tasks(tmp_path: Path) -> None:
    paths = list[str]()
    for number, folder in enumerate(("a", "b", "c")):
        (tmp_path / folder).mkdir()
        paths.append(str(write_lines(tmp_path / folder / "train.jsonl", [call_row(10 * number + n) for n in range(3)])))
    joined = load_source("toy:DOMAIN", DataConfig(train=tuple(paths)))
    ids = task_ids(joined)
    assert len({*ids[0], *ids[1]}) == 9
    mixture = load_source(paths)
    assert mixture.name == "a-train+b-train+c-train"
    assert len(mixture.tasks("train")) + len(mixture.tasks("validation")) == 9
    assert [leaf.name for leaf in list_sources(mixture)] == ["florist-calls"]
    weighted = load_source([f"{paths[0]}*3", paths[1]])
    first = [task.id for task, _ in zip(weighted.stream("train"), range(4), strict=False)]
    assert sum(name.startswith(("b/", "train/")) for name in first) == 1
    with pytest.raises(ConfigError, match=r"listed 2 times"):
        load_source([paths[0], paths[0]])


@pytest.mark.parametrize("chosen", ["bakery", "bakery-calls"])
def test_a_slice_takes_domains_out_of_a_file(tmp_path: Path, chosen: str) -> None:
    rows = [
        {**call_row(number, domain), "split": split}
        for domain in ("florist", "bakery", "library")
        for number, split in enumerate(SPLITS)
    ]
    path = str(write_lines(tmp_path / "all.jsonl", rows))
    source = load_source(path)
    narrow = source.slice(Slice(domains=(chosen,)))
    assert [[task.domain for task in narrow.tasks(split)] for split in SPLITS] == [["bakery-calls"]] * 3
    assert [leaf.name for leaf in list_sources(narrow)] == ["bakery-calls"]
    family = source.slice(Slice(families=(f"{chosen}/change",)))
    assert {task.domain for task in family.tasks("train")} == {"bakery-calls"}
    assert len(source.slice(Slice(families=("change",))).tasks("train")) == 3
    with pytest.raises(ConfigError, match=r"no domain 'bakry'; did you mean 'bakery'\?.*florist.*library"):
        source.slice(Slice(domains=("bakry",)))
    with pytest.raises(ConfigError, match=r"no family 'bakery/chance'.*bakery/change"):
        source.slice(Slice(families=("bakery/chance",)))
    mixed = load_source([path, "toy:DOMAIN"])
    assert {task.domain for task in mixed.slice(Slice(domains=(chosen, "toy"))).tasks("train")} == {
        "bakery-calls",
        "toy",
    }
    assert mixed.slice(Slice(domains=("all",))).tasks("test") == source.tasks("test")
    by_family = mixed.slice(Slice(families=(f"{chosen}/change", "toy/one")))
    assert {(task.domain, task.family) for task in by_family.tasks("train")} == {
        ("bakery-calls", "change"),
        ("toy", "one"),
    }


@pytest.mark.parametrize("chosen", ["bakery", "bakery-calls"])
def test_converted_rows_keep_the_names_of_their_domains(tmp_path: Path, chosen: str) -> None:
    path = write_lines(tmp_path / "all.jsonl", [call_row(1), call_row(2, "bakery")])
    assert run_data_command("convert", path, tmp_path / "rows.jsonl")[0] == 0
    narrow = load_source(str(tmp_path / "rows.jsonl")).slice(Slice(domains=(chosen,)))
    assert {task.domain for split in SPLITS for task in narrow.tasks(split)} == {"bakery-calls"}


def test_slice_of_a_file_beside_a_domain(tmp_path: Path) -> None:
    path = tmp_path / "held.jsonl"
    write_lines(path, [call_row(1), call_row(2, "bakery")])
    source = load_source("toy:DOMAIN", DataConfig(validation=(str(path),)))
    both = source.slice(Slice(domains=("toy", "bakery")))
    assert both.tasks("train") == DOMAIN.tasks("train")
    assert [task.domain for task in both.tasks("validation")] == ["bakery-calls"]
    assert source.slice(Slice(domains=("bakery",))).tasks("train") == []
    assert next(source.slice(Slice(domains=("bakery",))).stream("train"), None) is None
    families = source.slice(Slice(families=("toy/one", "florist/change")))
    assert {task.family for task in families.tasks("train")} == {"one"}
    assert [task.domain for task in families.tasks("validation")] == ["florist-calls"]


def test_test_sets_have_the_domains_of_the_ood_slice(tmp_path: Path) -> None:
    splits = ("train", "validation", "train", "train")
    rows = [{**call_row(n, d), "split": split} for d in ("florist", "bakery") for n, split in enumerate(splits)]
    path = write_lines(tmp_path / "all.jsonl", rows)
    settings = [f"domain={path}", f"data.tests.held={path}", "slice.domains=florist", "ood_slice.domains=bakery"]
    config = parse_config("", settings)
    own, held = make_eval_sets(config, config.open_source())
    assert {task.domain for task in own.tasks} == {"florist-calls"}
    assert {task.domain for task in held.tasks} == {"bakery-calls"}
    assert held.config.open_source().tasks(held.config.eval.split) == list(held.tasks)
    wrong = parse_config("", [*settings, "ood_slice.domains=bakry"])
    with pytest.raises(ConfigError, match=r"ood_slice.*no domain|ood_slice.*domain 'bakry'; did you mean 'bakery'"):
        make_eval_sets(wrong, wrong.open_source())
    both = parse_config("", [*settings, "eval.ood_domains=toy:DOMAIN", "ood_slice.domains=bakery,toy"])
    _, ood, held = make_eval_sets(both, both.open_source())
    assert ({task.domain for task in ood.tasks}, {task.domain for task in held.tasks}) == ({"toy"}, {"bakery-calls"})
    assert ood.config.open_source().tasks("test")[0].domain == "toy"


def test_eval_sets_that_cannot_be_played_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_lines(tmp_path / "all.jsonl", [call_row(n) for n in range(4)])
    config = parse_config("", ["domain=toy:DOMAIN", f"data.tests.held={path}"])

    def refuse(*arguments: object) -> None:
        raise TaskError("it has no database")

    monkeypatch.setattr(CallMatching, "environment", refuse)
    with pytest.raises(TaskError, match="no database"):
        make_eval_sets(config, config.open_source())


def played(path: Path, **data: Any) -> tuple[dict[str, int], dict[str, int], str]:
    """Return who plays the tasks of a file, the refused rows by reason, and the notes as one text."""
    (summary,) = list_file_summaries(load_source(str(path), DataConfig(**data)))
    return summary.played_by, summary.refused, "\n".join((*summary.notes, *summary.refusals))


def tau_task(*calls: Row) -> Row:
    return make_tau_task(actions=calls, outputs=[], instruction=f"Do {[call['kwargs'] for call in calls]}.")


def foreign(number: int) -> Row:
    """Return a task with a tool that retail has too, but takes other arguments there."""
    return tau_task({"name": "cancel_order", "kwargs": {"order_id": f"W{number}", "why": "late"}})


@pytest.mark.parametrize(
    ("rows", "by", "refused", "named"),
    [
        ([*map(make_address_task, range(3))], {"retail": 3}, {}, []),
        ([*map(foreign, range(3))], {"retail-calls": 3}, {}, ["retail can play 0 of the 3 rows", "tasks[0]"]),
        (
            [*map(foreign, range(3)), make_address_task(0)],
            {"retail-calls": 4},
            {},
            ["retail can play 1 of the 4 rows", "tasks[0]"],
        ),
        (
            [*map(make_address_task, range(3)), foreign(1)],
            {"retail": 3},
            {"gold refused": 1},
            ["tasks[3]", "cancel_order"],
        ),
        (
            [*map(make_address_task, range(3)), tau_task(FIND, {"name": "cancel_ordr", "kwargs": {}})],
            {"retail": 3},
            {"unknown tool": 1},
            ["tasks[3]", "'cancel_ordr'; did you mean 'cancel_order'"],
        ),
        ([tau_task(FIND, {"name": "cancel_ordr", "kwargs": {}})], {"retail-calls": 1}, {}, ["tasks[0]", "cancel_ordr"]),
        ([tau_task({"name": "book_room", "kwargs": {}})], {"retail-calls": 1}, {}, []),
    ],
)
def test_a_shipped_domain_plays_rows_whose_gold_calls_it_accepts(
    tmp_path: Path, rows: Sequence[Row], by: dict[str, int], refused: dict[str, int], named: Sequence[str]
) -> None:
    played_by, refusals, text = played(write_tau_tasks(tmp_path / "tau.json", rows))
    assert (played_by, refusals) == (by, refused)
    assert all(each in text for each in named)
    assert ("can play" in text) == any("can play" in each for each in named) or "tasks[0]" in named


def test_calls_are_compared_if_the_user_says_so(tmp_path: Path) -> None:
    path = write_tau_tasks(tmp_path / "tau.json", [*map(make_address_task, range(3))])
    assert played(path, compare_calls=True)[:2] == ({"retail-calls": 3}, {})
    write_tasks(own := tmp_path / "own.jsonl", DOMAIN.tasks("train")[:2])
    assert played(own, compare_calls=True, sources=("toy:DOMAIN",))[0] == {"toy": 2}, "tasks name their source"


def test_a_named_source_that_plays_no_row_is_named(tmp_path: Path) -> None:
    path = write_tau_tasks(tmp_path / "tau.json", [make_tau_task(domain="", actions=[{"name": "lend", "kwargs": {}}])])
    by, _, text = played(path, sources=("retail",))
    assert by == {"tau-calls": 1}
    assert "retail can play 0 of the 1 rows" in text
    assert "unknown tool 'lend'" in text


@pytest.mark.parametrize(("name", "content"), [("val.jsonl", ""), ("val.json", "[]"), ("val.csv", "prompt,answer\n")])
def test_an_empty_file_is_named(tmp_path: Path, name: str, content: str) -> None:
    train = str(write_lines(tmp_path / "train.jsonl", [call_row(number) for number in range(4)]))
    held = tmp_path / name
    held.write_text(content)
    for load in (lambda: load_source(str(held)), lambda: load_source(train, DataConfig(validation=(str(held),)))):
        with pytest.raises(ConfigError, match=f"^{re.escape(str(held))} has no rows; "):
            load()


def test_one_row_is_a_training_task(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "one.jsonl", [call_row(1)])
    source = load_source(str(file))
    assert [len(source.tasks(split)) for split in SPLITS] == [1, 0, 0]
    with pytest.raises(ConfigError, match=r"one has no validation tasks; set eval\.split to train"):
        make_eval_sets(parse_config("", [f"domain={file}"]), source)
    sets = make_eval_sets(parse_config("", [f"domain={file}", "eval.split=train"]), source)
    assert [len(each.tasks) for each in sets] == [1]
