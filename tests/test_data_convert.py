"""Conversion: without loss and back, nothing that teaches to do nothing, no task in two parts, whole or resumable."""

import asyncio
import itertools
import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from hypothesis import given, settings

from data_kit import FIND, ORDER, address, call, retail, tasks, tau, write_lines, write_tau
from test_mcp_source import environment
from understudy.check import earned
from understudy.data.items import Bad, Item
from understudy.data.rows import Row, from_row, to_row
from understudy.data.source import source
from understudy.data.verify import Domains, checked, gold_fault, proven
from understudy.data.write import output
from understudy.domains.base import find
from understudy.domains.retail import DOMAIN
from understudy.errors import ConfigError, TaskError
from understudy.similar import substance
from understudy.tasks import Task, read_tasks, write_tasks

TASK = retail(1)[0]


# ---- rows ----


@given(tasks)
@settings(deadline=None)
def test_a_task_comes_back_from_its_row(task: Task) -> None:
    row = Row.model_validate_json(to_row(task, "the policy", "retail").model_dump_json())
    back = from_row(Item("here", row))
    assert isinstance(back, Item)
    assert back == Item("here", task)
    assert to_row(back.value, "the policy", "retail") == row


def test_a_row_is_what_skyrl_reads() -> None:
    row = to_row(TASK, DOMAIN.policy, "retail").model_dump()
    assert row.keys() == {"data_source", "env_class", "prompt", "reward_spec", "extra_info"}
    assert (row["data_source"], row["env_class"]) == ("understudy/retail", "tau_bench")
    assert row["prompt"] == (
        {"role": "system", "content": DOMAIN.policy},
        {"role": "user", "content": TASK.scenario.opening},
    )
    assert row["reward_spec"].keys() == {"method", "ground_truth"}
    assert Task.model_validate_json(row["reward_spec"]["ground_truth"]) == TASK
    assert row["extra_info"]["difficulty"] == TASK.difficulty


def test_there_and_back_through_files(tmp_path: Path) -> None:
    write_tasks(tmp_path / "tasks.jsonl", retail(40))
    for rows, back in (("rows.parquet", "back.jsonl"), ("rows.jsonl", "back2.jsonl")):
        assert call("convert", tmp_path / "tasks.jsonl", tmp_path / rows)[0] == 0
        assert call("convert", tmp_path / rows, tmp_path / back)[0] == 0
        assert (tmp_path / back).read_bytes() == (tmp_path / "tasks.jsonl").read_bytes()
    again = tmp_path / "again.parquet"
    assert call("convert", tmp_path / "rows.parquet", again, "--to", "rows")[0] == 0
    assert again.read_bytes() == (tmp_path / "rows.parquet").read_bytes()


def test_a_domain_is_converted_by_its_name(tmp_path: Path) -> None:
    code, text, _ = call("convert", "retail", tmp_path / "rows.parquet", "--split", "test")
    assert (code, text) == (0, f"{tmp_path / 'rows.parquet'}: 100\n")
    table = pyarrow.parquet.read_table(tmp_path / "rows.parquet")
    assert table.column_names == ["data_source", "env_class", "prompt", "reward_spec", "extra_info"]
    assert table.num_rows == 100
    assert call("convert", "toy:DOMAIN", tmp_path / "toy", "--to", "tasks")[0] == 0
    counts = {path.stem: len(read_tasks(path)) for path in (tmp_path / "toy").iterdir()}
    assert counts == {"train": 12, "validation": 12, "test": 12}
    code, _, err = call("convert", tmp_path / "toy" / "test.jsonl", tmp_path / "x.jsonl")
    assert code == 2
    assert "test.jsonl:1: domain: 'toy' is not at hand, so its gold cannot be run" in err
    assert call("convert", tmp_path / "toy" / "test.jsonl", tmp_path / "x.jsonl", "--domain", "toy:DOMAIN")[0] == 0


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"data_source": 1}, "data_source"),
        ({"env_class": "tau"}, "env_class"),
        ({"env_class": "MCPToolEnv"}, "env_class"),
        ({"prompt": [{"role": "system", "content": "x"}]}, "prompt.1"),
        ({"prompt": [{"role": "system", "content": "x"}, {"role": "user", "content": "x"}]}, "prompt"),
        ({"prompt": [{"role": "system", "content": "x"}, {"role": "assistant", "content": "x"}]}, "prompt.1.role"),
        ({"reward_spec": {"method": "task"}}, "reward_spec.ground_truth"),
        ({"reward_spec": {"method": "task", "ground_truth": "{}"}}, "reward_spec.ground_truth.id"),
        ({"reward_spec": {"method": "task", "ground_truth": "{"}}, "reward_spec.ground_truth"),
        ({"extra_info": {}}, "extra_info.source"),
        ({"more": 1}, "more"),
    ],
)
def test_a_bad_row_names_its_field(tmp_path: Path, change: dict[str, Any], field: str) -> None:
    row = json.loads(to_row(TASK, DOMAIN.policy, "retail").model_dump_json())
    path = write_lines(tmp_path / "rows.jsonl", [row, {**row, **change}])
    code, _, err = call("validate", path)
    assert code == 2
    assert err.startswith(f"understudy: {path}:2: {field}: ")
    assert err.count("\n") == 1


def test_a_row_that_contradicts_itself(tmp_path: Path) -> None:
    row = json.loads(to_row(TASK, DOMAIN.policy, "retail").model_dump_json())
    row["extra_info"]["split"] = "test"
    code, _, err = call("validate", write_lines(tmp_path / "rows.jsonl", [row]))
    assert code == 2
    assert "rows.jsonl:1: extra_info: it contradicts reward_spec.ground_truth" in err


# ---- tau ----


def test_tau_tasks_become_rows(tmp_path: Path) -> None:
    path = write_tau(tmp_path / "t.json", [tau(), tau(complexity=None, outputs=[], actions=[FIND, ORDER] * 2)])
    assert call("convert", path, tmp_path / "rows.jsonl")[0] == 0
    first, second = (json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines())
    assert [said["content"] for said in first["prompt"]] == [DOMAIN.policy, "You are Tina. Ask how W9201 is."]
    task = Task.model_validate_json(first["reward_spec"]["ground_truth"])
    assert [(c.name, c.arguments) for c in task.actions] == [
        ("find_user", FIND["kwargs"]),
        ("get_order", ORDER["kwargs"]),
    ]
    assert (task.outputs, task.gold[-1].content, task.id) == (("pending",), "pending", "retail/t/0")
    labels = [(row["extra_info"]["family"], row["extra_info"]["difficulty"]) for row in (first, second)]
    assert labels == [("complexity-1", "easy"), ("tau", "medium")]


@pytest.mark.parametrize(
    ("complexity", "difficulty"),
    [(1, "easy"), (2, "medium"), (3, "hard"), (7, "hard"), ("Simple", "easy"), ("?", "easy")],
)
def test_complexities(tmp_path: Path, complexity: object, difficulty: str) -> None:
    items = source(str(write_tau(tmp_path / "t.json", [tau(complexity=complexity)]))).items()
    (item,) = items
    assert isinstance(item, Item)
    assert item.value.difficulty == difficulty
    assert item.value.family == f"complexity-{complexity}".lower()


def test_tau_tasks_out_of_python(tmp_path: Path) -> None:
    text = repr(tau()).replace("{'name'", "Action(**{'name'").replace("Action(**", "")
    (tmp_path / "t.py").write_text(
        "from tau_bench.types import Action, Task\nTASKS_TEST = [\n"
        "  Task(annotator='0', user_id='tina', instruction='Where is W9201?',\n"
        "       actions=[Action(name='find_user', kwargs={'email': 'tina.grant30@mail.com'})], outputs=['pending']),\n"
        f"  {text},\n]\n"
    )
    assert call("convert", tmp_path / "t.py", tmp_path / "t.jsonl", "--to", "tasks", "--domain", "retail")[0] == 0
    assert [len(task.actions) for task in read_tasks(tmp_path / "t.jsonl")] == [1, 2]


REFUSED = [
    (
        tau(actions=[FIND, {"name": "get_ordr", "kwargs": {}}]),
        "gold: ",
        "unknown tool 'get_ordr'; did you mean 'get_order'",
    ),
    (
        tau(actions=[{"name": "find_user", "kwargs": {"mail": "x"}}]),
        "gold: ",
        "bad arguments for find_user: email: Field",
    ),
    (tau(actions=[ORDER]), "gold: ", "is refused: find the customer first"),
    (tau(actions=[FIND, {"name": "get_order", "kwargs": {"order_id": "W1"}}]), "gold: ", "is refused: "),
    (tau(actions=[], outputs=[]), "gold: ", "its gold calls change nothing and it has nothing to tell"),
    (tau(actions="all"), "actions: ", "Input should be"),
    (tau(actions=[{"name": "find_user"}]), "actions.0.kwargs: ", "Field required"),
    (tau(instruction=""), "instruction: ", "at least 1 character"),
    (tau(kwargs={}), "kwargs: ", "Extra inputs are not permitted"),
    (tau(domain="library"), "domain: ", "'library' is not at hand"),
    (tau(domain=""), "domain: ", "it is missing; give --domain"),
    ("task", "", "Input should be"),
]


@pytest.mark.parametrize(("task", "field", "problem"), REFUSED, ids=range(len(REFUSED)))
def test_what_would_train_to_do_nothing_is_refused(tmp_path: Path, task: Any, field: str, problem: str) -> None:
    path = write_tau(tmp_path / "t.json", [tau(), task, address(1)])
    code, out, err = call("convert", path, tmp_path / "rows.parquet")
    report, verdict = err.splitlines()
    assert (code, out) == (2, "")
    assert report.startswith(f"{path}: tasks[1]: {field}")
    assert problem in report
    assert "1 of 3 tasks are refused, so nothing is written" in verdict
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]
    code, out, err = call("convert", path, tmp_path / "rows.parquet", "--keep-going")
    assert (code, out) == (1, f"{tmp_path / 'rows.parquet'}: 2\n1 left out\n")
    assert err.splitlines() == [report]


def test_each_refused_task_has_its_line(tmp_path: Path) -> None:
    path = write_tau(tmp_path / "t.json", [task for task, *_ in REFUSED])
    lines = call("convert", path, tmp_path / "rows.parquet")[2].splitlines()
    assert [line.partition(": ")[2].partition(":")[0] for line in lines[:-1]] == [
        f"tasks[{i}]" for i in range(len(REFUSED))
    ]


def test_kinds_of_faults_are_told_apart() -> None:
    def kind(**changes: Any) -> str | None:
        fault = gold_fault(DOMAIN, TASK.replace(**changes))
        return fault and fault.kind

    calls = [message for message in TASK.gold if message.tool_calls]
    named = calls[0].tool_calls[0]
    assert kind() is None
    assert kind(id="a", gold=(calls[0].replace(tool_calls=(named.replace(name="fly"),)),)) == "unknown tool"
    assert kind(id="b", gold=(calls[0].replace(tool_calls=(named.replace(arguments={}),)),)) == "bad arguments"
    assert kind(id="c", gold=tuple(calls[1:])) == "gold refused"
    assert kind(id="d", gold=(), outputs=()) == "does nothing"
    assert kind(id="e", setup={"nothing": {}}) == "bad setup"
    assert kind(id="f", gold=(calls[0].replace(role="tool"),)) == "malformed"


def test_proven_plays_both_sides() -> None:
    change = next(t for t in retail(100) if not t.outputs and t.family == "cancel" and t.difficulty == "easy")
    untold = change.replace(id="untold", outputs=("pink elephant",))
    silent = change.replace(id="silent", gold=change.gold[:1], outputs=())
    items = [Item(t.id, t) for t in (change, untold, silent, change)]
    good, *bad = proven(items, Domains())
    assert good == items[0]
    assert [(b.kind, b.field) for b in bad if isinstance(b, Bad)] == [
        ("gold fails", "gold"),
        ("does nothing", "gold"),
        ("duplicate", "id"),
    ]
    assert all(isinstance(item, Item) for item in checked(items[:2], Domains())), "checking alone does not play"


def test_an_endless_source_is_checked_as_it_comes() -> None:
    """Nothing waits for the end, and nothing is kept but ids: this source has none, and its tasks go away."""
    alive: weakref.WeakSet[Item[Task]] = weakref.WeakSet()

    class Watched(Item[Task]):
        __slots__ = ("__weakref__",)
        __hash__ = object.__hash__

    def endless() -> Iterator[Item[Task] | Bad]:
        for number in itertools.count():
            item = Watched(f"line {number}", TASK.replace(id=f"t{number}"))
            alive.add(item)
            yield item

    for step in (checked, proven):
        most = 0
        for item in itertools.islice(step(endless(), Domains()), 300):
            assert isinstance(item, Item)
            most = max(most, len(alive))
        assert 1 <= most <= 3


def test_an_episode_that_fails_is_a_fault_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> Any:
        raise TaskError("task x: its episode failed (user): gone")

    monkeypatch.setattr("understudy.data.verify.earned", broken)
    task = next(t for t in retail(5) if t.scenario.wishes)
    (bad,) = proven(iter([Item("here", task)]), Domains())
    assert str(bad) == "here: gold: task x: its episode failed (user): gone"


def test_a_domain_that_is_not_at_hand(tmp_path: Path) -> None:
    path = write_tau(tmp_path / "t.json", [tau(domain="library"), tau(domain="library", actions=[], outputs=[])])
    rows, policy = tmp_path / "rows.jsonl", tmp_path / "policy.md"
    policy.write_text("You help the customers of a library.\n")
    assert "libary" in call("convert", path, rows, "--domain", "libary")[2]
    code, _, err = call("convert", path, rows, "--unchecked", "--keep-going")
    assert code == 2
    assert "the policy of 'library' is not known" in err
    assert "tasks[1]: gold: it has no gold calls and it has nothing to tell" in err
    assert not list(tmp_path.glob("rows*"))
    code, _, _ = call("convert", path, rows, "--unchecked", "--keep-going", "--policy", policy)
    assert code == 1
    (row,) = map(json.loads, rows.read_text().splitlines())
    assert row["prompt"][0]["content"] == "You help the customers of a library."


def test_unchecked_does_not_spare_a_shipped_domain(tmp_path: Path) -> None:
    path = write_tau(tmp_path / "t.json", [tau(actions=[ORDER])])
    assert call("convert", path, tmp_path / "rows.jsonl", "--unchecked")[0] == 2
    assert (
        call("convert", write_tau(tmp_path / "u.json", [tau()]), tmp_path / "x.jsonl", "--domain", "toy:DOMAIN")[0] == 2
    )


def test_a_task_of_another_domain_than_given(tmp_path: Path) -> None:
    path = write_tau(tmp_path / "t.json", [tau()])
    err = call("validate", path, "--domain", "toy:DOMAIN")[2]
    assert "tasks[0]: domain: 'retail', where --domain is 'toy'" in err


# ---- parts ----


def parts(folder: Path) -> dict[str, list[Task]]:
    return {path.stem: read_tasks(path) for path in folder.iterdir()}


def test_parts_are_stratified_and_share_no_task(tmp_path: Path) -> None:
    distinct = [address(number) for number in range(10, 70)]
    copies = [{**task, "instruction": f"Again: {task['instruction']}"} for task in distinct[::2]]
    path = write_tau(tmp_path / "t.json", [*distinct, *copies])
    for seed, name in ((1, "a"), (1, "b"), (2, "c")):
        options = ("--train-ratio", 0.8, "--seed", seed, "--to", "tasks")
        assert call("convert", path, tmp_path / name, *options)[0] == 0
    made = parts(tmp_path / "a")
    assert parts(tmp_path / "b") == made != parts(tmp_path / "c")
    assert {name: len(part) for name, part in made.items()} == {"train": 72, "validation": 18}
    assert not {substance(t) for t in made["train"]} & {substance(t) for t in made["validation"]}
    for family in ("complexity-1", "complexity-2", "complexity-3"):
        assert 5 <= sum(task.family == family for task in made["validation"]) <= 7
    assert {task.split for task in made["validation"]} == {"validation"}
    assert sorted(t.id for part in made.values() for t in part) == sorted(f"retail/t/{i}" for i in range(90))


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_parts_of_rows(tmp_path: Path, format: str) -> None:
    path = write_tau(tmp_path / "t.json", [address(number) for number in range(10, 40)])
    code, text, _ = call("convert", path, tmp_path / "rows", "--train-ratio", 0.9, "--format", format)
    assert code == 0
    assert sorted(p.name for p in (tmp_path / "rows").iterdir()) == [f"train.{format}", f"validation.{format}"]
    assert [line.rpartition(": ")[2] for line in text.splitlines()] == ["27", "3"]
    assert call("validate", tmp_path / "rows" / f"validation.{format}")[0] == 0


# ---- whole or not there ----


class Killed(Exception):
    pass


def dying(items: Iterator[Task], after: int) -> Iterator[Task]:
    for number, item in enumerate(items):
        if number == after:
            raise Killed
        yield item


def write(out: Path, items: Iterator[Task], *, resume: bool = False, **options: Any) -> None:
    as_rows = options.get("format") == "parquet"
    with output(out, resume=resume, **options) as made:
        for task in items:
            made.write(to_row(task, "p", "retail") if as_rows else task, task.split if options else "")


SPLIT = [t.replace(split=("train", "test")[i % 2]) for i, t in enumerate(retail(30))]


@pytest.mark.parametrize(
    "options", [{}, {"parts": ("train", "test")}, {"parts": ("train", "test"), "format": "parquet"}]
)
@pytest.mark.parametrize("after", [0, 1, 17, 29])
def test_killed_and_resumed_equals_uninterrupted(tmp_path: Path, options: dict[str, Any], after: int) -> None:
    whole, broken = (tmp_path / (name if options else f"{name}.jsonl") for name in ("whole", "broken"))
    write(whole, iter(SPLIT), **options)
    with pytest.raises(Killed):
        write(broken, dying(iter(SPLIT), after), **options)
    assert not broken.exists()
    partial = broken.with_name(f"{broken.name}.partial")
    assert partial.exists() == (after > 0)
    if after:
        with pytest.raises(ConfigError, match="is unfinished; go on with it by --resume"):
            write(broken, iter(SPLIT), **options)
        torn = partial / "train.jsonl" if options else partial
        torn.write_bytes(torn.read_bytes()[:-7])
    write(broken, iter(SPLIT), resume=True, **options)
    for path in whole.rglob("*") if options else [whole]:
        assert (broken / path.name if options else broken).read_bytes() == path.read_bytes()
    assert not partial.exists()


def test_nothing_is_written_over(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    out.write_text("mine")
    for resume in (False, True):
        with pytest.raises(ConfigError, match="is there already"):
            write(out, iter(SPLIT), resume=resume)
    assert out.read_text() == "mine"


def test_a_partial_output_of_other_options_is_not_mixed_in(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    with pytest.raises(Killed):
        write(out, dying(iter(SPLIT), 3))
    before = (tmp_path / "t.jsonl.partial").read_bytes()
    with pytest.raises(ConfigError, match="line 1 is not what these options make"):
        write(out, iter(SPLIT[1:]), resume=True)
    with pytest.raises(ConfigError, match="it has 1 lines more than these options make"):
        write(out, iter(SPLIT[:2]), resume=True)
    with pytest.raises(ConfigError, match="was begun with other options"):
        write(out, iter(SPLIT), resume=True, parts=("train",))
    assert (tmp_path / "t.jsonl.partial").read_bytes() == before
    assert not out.exists()


def test_convert_resumes(tmp_path: Path) -> None:
    path = write_tau(tmp_path / "t.json", [address(number) for number in range(10, 40)])
    assert call("convert", path, tmp_path / "whole", "--train-ratio", 0.9)[0] == 0
    (tmp_path / "broken.partial").mkdir()
    rows = (r for r in pyarrow.parquet.read_table(tmp_path / "whole" / "train.parquet").slice(0, 9).to_pylist())
    text = "".join(Row.model_validate(row).model_dump_json() + "\n" for row in rows)
    (tmp_path / "broken.partial" / "train.jsonl").write_text(text + '{"torn')
    code, _, err = call("convert", path, tmp_path / "broken", "--train-ratio", 0.9)
    assert (code, err.count("\n")) == (2, 1)
    assert "is unfinished" in err
    assert call("convert", path, tmp_path / "broken", "--train-ratio", 0.9, "--resume")[0] == 0
    for name in ("train.parquet", "validation.parquet"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("retial", "rows.parquet"), "there is no file 'retial', and no domain 'retial'; did you mean 'retail'?"),
        (("retail", "tasks.parquet", "--to", "tasks"), "tasks are written as .jsonl"),
        (("retail", "rows.parquet", "--train-ratio", 0.9), "rows.parquet is one file; parts are written to a folder"),
        (("retail", "rows", "--train-ratio", 1.5), "positive numbers that sum to 1 are needed"),
        (("folder", "rows.parquet"), "the folder folder holds no file of tasks"),
        (("retail", "rows.parquet", "--seed", 1), "--seed has no effect"),
        (("retail", "rows.parquet", "--format", "jsonl"), "--format has no effect"),
        (("retail", "no/such/rows.parquet"), "there is no folder"),
        (("t.json", "rows"), "tau-style tasks say no split; give --train-ratio"),
        (("none.json", "rows.parquet"), "there is no file 'none.json'"),
        (("empty.jsonl", "rows.parquet"), "empty.jsonl holds no task to write"),
        (("t.json", "rows.parquet", "--domain", "retial"), "unknown domain 'retial'; did you mean 'retail'?"),
        (("t.json", "rows.parquet", "--policy", "none.md"), "none.md cannot be read: "),
    ],
)
def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[Any, ...], said: str) -> None:
    monkeypatch.chdir(tmp_path)
    write_tau(tmp_path / "t.json", [tau()])
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "folder").mkdir()
    code, out, err = call("convert", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"t.json", "empty.jsonl", "folder"}


def test_what_is_earned_by_silence_is_what_verify_says() -> None:
    """The rule that gold has to change or tell something is what a silent agent's reward comes to."""
    from understudy.agent import SilentAgent

    for task in (TASK, TASK.replace(id="idle", gold=(), outputs=())):
        idle = asyncio.run(earned(DOMAIN, task, SilentAgent())).reward > 0
        assert (gold_fault(DOMAIN, task) is not None) == idle


# ---- rows of other sources ----


def test_an_mcp_environment_becomes_rows_that_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = environment(tmp_path)
    monkeypatch.chdir(tmp_path)
    code, _, err = call("convert", "mcp:tally.toml", "rows.jsonl", "--split", "train")
    assert (code, err) == (0, "")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["env_class"] for row in rows] == ["MCPToolEnv"] * 2
    assert {row["extra_info"]["source"] for row in rows} == {f"mcp:{path}"}  # found again from any folder
    assert rows[0]["prompt"][0] == {"role": "system", "content": "You keep a count."}
    assert call("convert", "rows.jsonl", "back.jsonl", "--domain", "mcp:tally.toml")[0] == 0
    assert read_tasks(tmp_path / "back.jsonl") == find("mcp:tally.toml").tasks("train")
    assert call("validate", "rows.jsonl", "--domain", "mcp:tally.toml")[1] == "rows.jsonl: 2 sound, 0 bad\n"


def test_a_task_of_an_mcp_environment_that_rewards_nothing_is_refused(tmp_path: Path) -> None:
    idle = {"id": "idle", "prompt": "Hello.", "gold": [], "check": {"state": {"tool": "count", "equals": {"count": 0}}}}
    path = environment(tmp_path, [idle])
    code, _, err = call("convert", f"mcp:{path}", tmp_path / "rows.jsonl")
    assert code == 2
    assert "idle: gold: doing nothing earns 1" in err


def test_rows_say_how_a_domain_of_ones_own_is_found(tmp_path: Path) -> None:
    assert call("convert", "toy:DOMAIN", tmp_path / "rows.jsonl")[0] == 0
    row = json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[0])
    assert (row["env_class"], row["extra_info"]["source"]) == ("tau_bench", "toy:DOMAIN")


def test_a_mixture_is_converted_part_by_part(tmp_path: Path) -> None:
    code, _, err = call("convert", "mix:retail,telecom", tmp_path / "rows.jsonl")
    assert code == 2
    assert "give each of retail+telecom by itself" in err
