"""Which files and sources a config opens: mixtures, splits of files, test sets, benchmarks and MCP environments."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from support.checkouts import TAU2, TAU_BENCH, write_checkout
from support.data_kit import write_lines
from support.mcp_environment import write_environment
from support.task_rows import own_rows, prompt_rows, skyrl_rows, tasks, tau_rows, write_jsonl
from toy import DOMAIN
from understudy.core.errors import ConfigError, TaskError
from understudy.core.tasks import SPLITS, write_tasks
from understudy.data.checks.check import check
from understudy.data.tool_examples import load_tool_examples
from understudy.envs.task_source import Slice, find_source, list_file_summaries, list_sources
from understudy.evaluation.evaluate import select_tasks
from understudy.evaluation.runner import load_eval_tasks
from understudy.runs.config import TrainConfig, parse_config
from understudy.runs.epochs import resolve_epochs
from understudy.sources.loading import load_source
from understudy.sources.mixture import Mixture
from understudy.sources.task_files.config import DataConfig
from understudy.train.completion import complete_config
from understudy.train.eval_sets import make_eval_sets


def test_list_of_domains_is_a_mixture_whose_files_may_name_its_sources(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path, skyrl_rows())
    config = parse_config(f'domain = ["toy:DOMAIN*2", "{path}", "retail"]')
    source = config.open_source()
    assert [leaf.name for leaf in list_sources(source)] == ["toy", "retail"]
    assert source.name == "toy+mine+retail"
    assert find_source(source, "toy") == DOMAIN
    drawn = [task.domain for task, _ in zip(source.stream("train"), range(8), strict=False)]
    assert drawn.count("toy") == 6
    assert config.domain_text == f"mix:toy:DOMAIN*2,{path},retail"
    assert parse_config("", [f"domain={config.domain_text}"]).open_source().name == source.name


def test_two_sources_of_one_name_cannot_be_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Mixture((DOMAIN.slice(Slice(families=("one",))), load_source("telecom")), (1.0, 1.0))
    monkeypatch.setattr("understudy.sources.loading.load_reference", {"toy": DOMAIN, "other": other}.get)
    with pytest.raises(ConfigError, match="'toy', and the two differ"):
        load_source(["toy", "other"])


def test_files_replace_the_splits_of_a_run(tmp_path: Path) -> None:
    train, validation = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    write_tasks(train, tasks()[8:])
    write_tasks(validation, tasks()[:2])
    both = load_source("toy:DOMAIN", DataConfig(train=(str(train),), validation=(str(validation),)))
    assert [[task.id for task in both.tasks(split)] for split in SPLITS] == [
        [task.id for task in tasks()[8:]],
        [task.id for task in tasks()[:2]],
        [],
    ]
    assert {task.split for task in both.tasks("train")} == {"train"}
    only = load_source("toy:DOMAIN", DataConfig(validation=(str(validation),)))
    assert only.tasks("train") == DOMAIN.tasks("train")
    assert [task.id for task in only.tasks("validation")] == [task.id for task in tasks()[:2]]
    assert next(only.stream("train", 3)) == next(DOMAIN.stream("train", 3))
    alone = load_source("toy:DOMAIN", DataConfig(train=(str(validation),)))
    assert [len(alone.tasks(split)) for split in SPLITS] == [1, 1, 0]


def test_test_tasks_of_the_validated_domain_are_no_test_set(tmp_path: Path) -> None:
    write_tasks(tmp_path / "held.jsonl", DOMAIN.tasks("test")[:3])
    write_tasks(tmp_path / "seen.jsonl", DOMAIN.tasks("validation")[:3])
    for held in ("toy:DOMAIN", str(tmp_path / "held.jsonl")):
        settings = ["domain=toy:DOMAIN", f"data.tests.final={held}", "data.sources=toy:DOMAIN"]
        with pytest.raises(ConfigError, match=r"data\.tests\.final\b.*test tasks of toy.*eval\.split"):
            make_eval_sets(parse_config("", settings), DOMAIN)
        assert len(make_eval_sets(parse_config("", [*settings, "eval.split=test"]), DOMAIN)) == 2
    seen = ["domain=toy:DOMAIN", f"data.tests.seen={tmp_path / 'seen.jsonl'}", "data.sources=toy:DOMAIN"]
    assert len(make_eval_sets(parse_config("", seen), DOMAIN)[1].tasks) == 3


def test_test_sets_are_evaluated_under_their_names(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path, own_rows())
    settings = [f"data.tests.mine={path}", "data.tests.shop=retail", "slice.families=one"]
    config = parse_config('domain = "toy:DOMAIN"', settings)
    own, mine, shop = make_eval_sets(config, config.open_source())
    assert [each.name for each in (own, mine, shop)] == ["", "mine", "shop"]
    assert {task.split for task in mine.tasks} == {"validation"}, "no row names the test split"
    assert {task.family for task in own.tasks} == {"one"}
    assert len(shop.tasks) == 100
    assert mine.config.open_source().tasks("validation") == list(mine.tasks), "its config loads its tasks again"
    with pytest.raises(ConfigError, match=r"data\.tests: the name '7'"):
        make_eval_sets(parse_config('domain = "toy:DOMAIN"', [*settings, f"data.tests.7={path}"]), DOMAIN)


@pytest.mark.parametrize(("epochs", "steps"), [(1.0, 4), (0.5, 2), (3.0, 12), (0.01, 1)])
def test_epochs_give_the_number_of_steps(tmp_path: Path, epochs: float, steps: int) -> None:
    path = write_jsonl(tmp_path, own_rows())
    config = parse_config(f'domain = "{path}"', ["data.sources=toy:DOMAIN", f"epochs={epochs}", "groups_per_batch=2"])
    resolved, line = resolve_epochs(config)
    assert (resolved.steps, resolved.epochs) == (steps, 0.0)
    assert complete_config(config.replace(model="tiny"))[0].steps == steps
    assert f"over 8 training tasks, with algorithm.groups_per_batch = 2: {steps} steps" in line


def test_epochs_and_steps_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="steps = 3 and epochs = 2 both"):
        parse_config("", ["steps=3", "epochs=2"])
    with pytest.raises(ConfigError, match=r"steps = 3 and epochs = 2\.0 both"):
        parse_config("steps = 3\nepochs = 2.0")
    assert parse_config("steps = 3", ["epochs=2"]).epochs == 2.0, "the settings win"
    assert (parse_config("epochs = 2", ["steps=3"]).epochs, parse_config("epochs = 2", ["steps=3"]).steps) == (0.0, 3)
    with pytest.raises(ConfigError, match="toy generates training tasks without end"):
        resolve_epochs(TrainConfig(domain="toy:DOMAIN", epochs=1.0))


def test_prompts_of_common_shapes_are_scored_by_a_function(tmp_path: Path) -> None:
    rows = [
        prompt_rows()[0],
        {"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}], "answer": 4},
        {"prompt": [{"role": "user", "content": "3+3?"}], "reward_model": {"style": "rule", "ground_truth": "6"}},
        {"prompt": [{"role": "user", "content": [{"type": "text", "text": "4+4?"}]}], "solution": "8"},
        {"prompt": "5+5?", "ground_truth": ["10", "ten"]},
        {"prompt": "6+6?", "reward_model": {"ground_truth": "12"}, "solution": "Six and six are 12."},
    ]
    path = str(write_lines(tmp_path / "sums.jsonl", rows))
    source = load_source(path, DataConfig(reward="support.task_rows:reward_answer"))
    assert check(source).problems == ()
    (summary,) = list_file_summaries(source)
    assert summary.played_by == {"sums": 6}
    assert {task.gold_turns[-1].content for split in SPLITS for task in source.tasks(split)} >= {"8", "10", "12"}
    assert not any("gold" in note for note in summary.notes)
    with pytest.raises(ConfigError, match=r"data\.reward=module:attribute"):
        load_source(path)
    with pytest.raises(ConfigError, match=r"'toy:DOMAIN'.*Domain"):
        load_source(path, DataConfig(reward="toy:DOMAIN"))


@pytest.mark.parametrize("name", ["verl_reward", "trl_reward"])
def test_reward_function_of_another_library_is_refused_with_its_signature(tmp_path: Path, name: str) -> None:
    path = str(write_lines(tmp_path / "sums.jsonl", prompt_rows()))
    with pytest.raises(ConfigError, match=r"solution_str|completions") as error:
        load_source(path, DataConfig(reward=f"support.task_rows:{name}"))
    assert "example.answer" in str(error.value)


def test_rows_without_an_answer_are_counted(tmp_path: Path) -> None:
    path = str(write_lines(tmp_path / "sums.jsonl", [*prompt_rows(), {"prompt": "Say hello."}]))
    (summary,) = list_file_summaries(load_source(path, DataConfig(reward="support.task_rows:reward_answer")))
    assert [note for note in summary.notes if note.startswith("1 of the tasks have no gold")]


def test_a_row_of_unknown_shape_names_its_keys_and_the_known_shapes(tmp_path: Path) -> None:
    path = str(write_lines(tmp_path / "math.jsonl", [{"puzzle": "2+2?", "solution": "4"}]))
    with pytest.raises(ConfigError) as error:
        load_source(path, DataConfig(reward="support.task_rows:reward_answer"))
    text = str(error.value)
    assert "math.jsonl:1: unknown shape {puzzle: string, solution: string}; shapes of tasks: {" in text
    assert "{question, answer} | {prompt, answer}" in text


def test_a_repeated_question_names_the_first_row_and_an_id_its_value(tmp_path: Path) -> None:
    rows = [{"question": "2+2?", "answer": "4"}, {"question": "3+3?", "answer": "6", "id": "a"}]
    rows += [{"question": "2+2?", "answer": "5"}, {"question": "4+4?", "answer": "8", "id": "a"}]
    path = str(write_lines(tmp_path / "sums.jsonl", rows))
    source = load_source(path, DataConfig(reward="support.task_rows:reward_answer"))
    (summary,) = list_file_summaries(source)
    assert [text.removeprefix(f"{path}:") for text in summary.refusals] == [
        f"3: it repeats the question '2+2?' of {path}:1; remove it, or give each row its own id",
        f"4: id: 'a' is also the id of {path}:2; give each row its own id",
    ]
    (played,) = list_sources(source)
    assert [example.answer for example in played.examples] == ["4", "6"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("question", [None, "", "  "])
def test_a_row_without_a_question_is_refused(tmp_path: Path, question: str | None) -> None:
    path = str(write_lines(tmp_path / "sums.jsonl", [*prompt_rows(), {"question": question, "answer": "4"}]))
    (summary,) = list_file_summaries(load_source(path, DataConfig(reward="support.task_rows:reward_answer")))
    (refusal,) = summary.refusals
    assert f"{path}:{len(prompt_rows()) + 1}: question: " in refusal


def test_answers_that_a_reward_may_not_read_are_named_with_their_rows(tmp_path: Path) -> None:
    answers = ["9", "€9.44", "1,234.50", " 7", "12:30", "A, B", "", 3]
    rows = [{"question": f"Number {number}?", "answer": answer} for number, answer in enumerate(answers, 1)]
    path = str(write_lines(tmp_path / "sums.jsonl", rows))
    (summary,) = list_file_summaries(load_source(path, DataConfig(reward="support.task_rows:reward_answer")))
    notes = [note for note in summary.notes if path in note]
    assert [[line for line in range(1, 9) if f"{path}:{line}" in note] for note in notes] == [[2, 3], [4], [7]]
    assert "'€9.44'" in notes[0]
    assert "1 of 8" in notes[2]


@pytest.mark.parametrize("column", ["tools", "tool_defs"])
def test_tools_of_rows_that_no_model_sees_are_named(tmp_path: Path, column: str) -> None:
    tool = {"type": "function", "function": {"name": "find_bus", "description": "Find.", "parameters": {}}}
    rows = [{"prompt": f"Line {number}?", "answer": "01:15", column: [tool]} for number in range(3)]
    rows.append({"prompt": "Line 4?", "answer": "2", "extra_info": {"tools_kwargs": {"find_tram": {}}}})
    path = str(write_lines(tmp_path / "lines.jsonl", rows))
    (summary,) = list_file_summaries(load_source(path, DataConfig(reward="support.task_rows:reward_answer")))
    (note,) = [note for note in summary.notes if "find_bus" in note]
    assert "4 rows" in note
    assert "find_tram" in note
    assert "ToolEpisode" in note


def test_a_table_of_text_is_read_as_rows(tmp_path: Path) -> None:
    path = tmp_path / "quiz.csv"
    path.write_text(
        'id,question,answer,gold_calls,difficulty\n1,"2, and 2?",4,,\n2,3+3?,6,"[{""name"": ""add"", '
        '""arguments"": {""a"": 3}}]",hard\n',
        encoding="utf-8-sig",
    )
    source = load_source(str(path), DataConfig(reward="support.task_rows:reward_answer"))
    tasks = sorted((task for split in SPLITS for task in source.tasks(split)), key=lambda task: task.id)
    assert [(task.scenario.opening, task.difficulty) for task in tasks] == [("2, and 2?", "easy"), ("3+3?", "hard")]
    assert [call.arguments for task in tasks for call in task.gold_calls] == [{"a": 3}]


def test_an_evaluation_of_a_file_with_one_split_plays_that_split(tmp_path: Path) -> None:
    path = str(write_lines(tmp_path / "test.jsonl", prompt_rows()))
    settings = [f"domain={path}", "data.reward=support.task_rows:reward_answer"]
    _, found = load_eval_tasks(parse_config("", settings))
    assert {task.split for task in found} == {"test"}
    assert len(found) == len(prompt_rows())


def test_ids_that_begin_anew_in_each_file_are_told_apart(tmp_path: Path) -> None:
    folder, data = tmp_path / "sums", DataConfig(reward="support.task_rows:reward_answer")
    folder.mkdir()
    rows = [{"id": str(n), "question": f"{n}+1?", "answer": str(n + 1)} for n in range(6)]
    others = [{"id": str(n), "question": f"{n}+2?", "answer": str(n + 2)} for n in range(2)]
    write_lines(folder / "train.jsonl", rows)
    write_lines(folder / "test.jsonl", [*others, {**rows[5], "id": "5"}])
    (folder / "load.py").write_text("ROWS = 3\n", encoding="utf-8")
    source = load_source(str(folder), data)
    (summary,) = list_file_summaries(source)
    assert (summary.refused, summary.rows) == ({"duplicate": 1}, {"prompts": 9})
    assert summary.refusals == (
        f"{folder}/train.jsonl:6: id: '5' is also the id of {folder}/test.jsonl:3; give each row its own id",
    )
    assert {task.id for task in source.tasks("test")} == {"0", "1", "5"}
    assert {task.id for split in ("train", "validation") for task in source.tasks(split)} == {
        f"train/{n}" for n in range(5)
    }
    replaced = data.replace(train=(str(folder / "train.jsonl"),), validation=(str(folder / "test.jsonl"),))
    (summary,) = list_file_summaries(load_source("toy:DOMAIN", replaced))
    assert summary.splits == {"train": 6, "validation": 2}


def test_tau_tasks_are_played_in_the_users_checkout(tmp_path: Path) -> None:
    checkout = f"tau-bench:{write_checkout(tmp_path / 'tau', TAU_BENCH)}#kiosk"
    sale = {"name": "sell", "kwargs": {"good": "plum", "count": 1}}
    wrong = {"name": "buy", "kwargs": {}}
    rows = [{"instruction": f"Buy {n}.", "actions": [sale] * n, "outputs": [], "domain": "kiosk"} for n in (1, 2, 3)]
    path = write_lines(tmp_path / "rows.jsonl", [*rows, {**rows[0], "instruction": "Sell.", "actions": [wrong]}])
    source = load_source(str(path), DataConfig(sources=(checkout,)))
    (summary,) = list_file_summaries(source)
    assert (summary.played_by, summary.refused) == ({"tau-bench-kiosk": 3}, {"unknown tool": 1})
    report = check(source)
    assert (report.unsound, [each.gold_reward for each in report.splits[:2]]) == ({}, [1.0, 1.0])
    assert report.problems == summary.refusals
    (alone,) = list_file_summaries(load_source(str(path)))
    assert alone.played_by == {"kiosk-calls": 4}, "without the checkout, calls are compared"


def test_tau2_tasks_are_played_in_the_users_checkout(tmp_path: Path) -> None:
    checkout = f"tau2:{write_checkout(tmp_path / 'tau2', TAU2)}#lamp"
    power = {"name": "power", "arguments": {"lamp": "desk"}}
    row = {"id": "mine", "user_scenario": "It is dark.", "evaluation_criteria": {"actions": [power]}}
    source = load_source(str(write_lines(tmp_path / "tasks.jsonl", [row])), DataConfig(sources=(checkout,)))
    assert list_file_summaries(source)[0].played_by == {"tau2-lamp": 1}
    report = check(source)
    assert (report.unsound, report.splits[0].gold_reward) == ({}, 1.0)


def test_tau2_tasks_of_two_files_may_have_the_same_ids(tmp_path: Path) -> None:
    checkout = f"tau2:{write_checkout(tmp_path / 'tau2', TAU2)}#lamp"
    power = {"name": "power", "arguments": {"lamp": "desk"}}
    rows = [
        {"id": "0", "user_scenario": text, "evaluation_criteria": {"actions": [power]}} for text in ("Dark.", "Dim.")
    ]
    names = [str(write_lines(tmp_path / f"{name}.jsonl", [row])) for name, row in zip(("a", "b"), rows, strict=True)]
    data = DataConfig(sources=(checkout,), train=(names[0],), validation=(names[1],))
    source = load_source("toy:DOMAIN", data)
    assert [task.id for split in ("train", "validation") for task in source.tasks(split)] == ["0", "b/0"]
    assert check(source).unsound == {}


def test_a_row_in_two_splits_is_refused(tmp_path: Path) -> None:
    rows = [{"id": "0", "question": "1+1?", "answer": "2", "split": split} for split in ("train", "test")]
    names = [str(write_lines(tmp_path / f"{name}.jsonl", [row])) for name, row in zip(("a", "b"), rows, strict=True)]
    data = DataConfig(reward="support.task_rows:reward_answer", train=(names[0],), validation=(names[1],))
    (summary,) = list_file_summaries(load_source("toy:DOMAIN", data))
    assert summary.refusals == (f"{names[1]}:1: id: '0' is also the id of {names[0]}:1; give each row its own id",)


def test_all_tasks_of_a_benchmark_are_selected_even_if_two_are_the_same(tmp_path: Path) -> None:
    files = dict(TAU_BENCH)
    files["tau_bench/envs/kiosk/tasks_test.py"] += "\n        TASKS_TEST = TASKS_TEST + TASKS_TEST[:1]\n"
    source = load_source(f"tau-bench:{write_checkout(tmp_path, files)}#kiosk")
    assert [task.id for task in select_tasks(source, "test", 100)] == [f"test-{number}" for number in range(5)]


def test_check_counts_the_unsound_tasks_of_a_benchmark_by_reason(tmp_path: Path) -> None:
    source = load_source(f"tau-bench:{write_checkout(tmp_path, TAU_BENCH)}#kiosk")
    report = check(source)
    loaded, unsound = sum(split.tasks for split in report.splits), sum(report.unsound.values())
    assert (loaded, report.unsound) == (6, {"does nothing": 2, "gold fails": 1})
    assert unsound <= len(report.problems)


@pytest.mark.slow
def test_sequences_are_played_by_the_users_mcp_environment(tmp_path: Path) -> None:
    environment = f"mcp:{write_environment(tmp_path)}"
    steps = [{"step": 1, "server": "tally", "tool": "add", "params": {"amount": 3}}]
    truth = {"task_id": "three", "complexity": "simple", "tool_sequence": steps}
    row = {
        "prompt": [{"role": "user", "content": "Add three."}],
        "reward_spec": {"method": "rule", "ground_truth": truth},
    }
    path = str(write_lines(tmp_path / "rows.jsonl", [{**row, "env_class": "MCPToolEnv", "data_source": "count"}]))
    source = load_source([path, environment])
    assert list_file_summaries(source)[0].played_by == {"tally": 1}
    assert [task.id for task in source.tasks("train")][:1] == ["three"]
    played = load_source(path, DataConfig(sources=(environment,))).slice(
        Slice(tools=("add",))
    )  # not the tool that dies
    assert check(played).problems == ()


def test_datasets_loads_a_data_set_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(*name: str) -> dict[str, list[dict[str, object]]]:
        asked.append(name)
        if name == ("me/none",):
            raise ValueError("no such\ndata set")
        return {
            "train": [*tau_rows()[:6]],
            "dev": tau_rows()[6:8],
            "test": [{**row, "split": None} for row in tau_rows()[8:]],
        }

    module, exceptions = ModuleType("datasets"), ModuleType("datasets.exceptions")
    vars(module).update(load_dataset=load_dataset, exceptions=exceptions)
    vars(exceptions).update(DatasetsError=type("DatasetsError", (Exception,), {}))
    monkeypatch.setitem(sys.modules, "datasets", module)
    source = load_source("hf:me/lamps#small", DataConfig(sources=("toy:DOMAIN",)))
    assert (source.name, [len(source.tasks(split)) for split in SPLITS]) == ("lamps", [6, 2, 4])
    assert asked == [("me/lamps", "small")]
    assert source.tasks("test")[0].id == "toy/test/0"
    with pytest.raises(ConfigError, match="hf:me/none cannot be loaded: ValueError: no such data set"):
        load_source("hf:me/none")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match="pip install datasets"):
        load_source("hf:me/lamps")


def test_a_row_of_the_file_wins_over_the_name_of_the_file(tmp_path: Path) -> None:
    write_tasks(tmp_path / "test.jsonl", tasks()[:2])
    (tmp_path / "val.json").write_text(json.dumps(tau_rows()[8:]))
    source = load_source(str(tmp_path), DataConfig(sources=("toy:DOMAIN",)))
    assert [len(source.tasks(split)) for split in SPLITS] == [2, 4, 0]


@pytest.mark.parametrize(
    ("reward", "gold", "tools"),
    [
        ("", 1.0, ["add"]),
        ("support.task_rows:reward_nothing", 0.0, ["add"]),
        ("support.task_rows:Answering", 1.0, []),
    ],
)
def test_questions_are_played_with_the_tools_of_the_dataset_that_domain_names(
    tmp_path: Path, reward: str, gold: float, tools: list[str]
) -> None:
    path = write_lines(tmp_path / "clean.jsonl", [{"question": f"{n}+1?", "answer": str(n + 1)} for n in range(9)])
    source = load_source("support.train_verdict:ADDING", DataConfig(train=(str(path),), reward=reward))
    assert [spec.name for spec in source.tool_specs] == tools
    assert source.domain_policy == ("Add." if tools else "")
    (summary,) = list_file_summaries(source)
    assert (summary.played_by, sum("adding" in note for note in summary.notes)) == ({"clean": 9}, 1)
    assert {each.gold_reward for each in check(source).splits if each.tasks} == {gold}


def test_questions_are_played_without_tools_if_two_datasets_are_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "clean.jsonl", prompt_rows())
    sources = ("support.train_verdict:ADDING", "support.shelves:SHELVES")
    source = load_source(str(path), DataConfig(sources=sources, reward="support.task_rows:reward_answer"))
    (summary,) = list_file_summaries(source)
    assert source.tool_specs == ()
    assert any("adding, shelves" in note for note in summary.notes)


@pytest.mark.parametrize(
    ("header", "advice"),
    [
        ("Question,Solution", "rename Question to question, Solution to answer"),
        ("Prompt,Target", "rename Prompt to prompt, Target to answer"),
        ("problem,answer", "rename problem to question"),
    ],
)
def test_a_row_with_a_question_under_another_name_says_what_to_rename(tmp_path: Path, header: str, advice: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"{header}\n2+2?,4\n")
    with pytest.raises(ConfigError, match=rf": {advice}: the shape"):
        load_source(str(path), DataConfig(reward="support.task_rows:reward_answer"))
    with pytest.raises(TaskError, match=rf": {advice}: the shape"):
        load_tool_examples(path)


def test_columns_that_only_a_reward_reads_are_named_once(tmp_path: Path) -> None:
    rows = [{**row, "level": "hard", "Topic": "words", "uid": 1} for row in prompt_rows()]
    path = str(write_lines(tmp_path / "sums.jsonl", rows))
    (summary,) = list_file_summaries(load_source(path, DataConfig(reward="support.task_rows:reward_answer")))
    (note,) = [note for note in summary.notes if "example.info" in note]
    assert note.startswith("rename level to difficulty if ")
    assert note.endswith("columns that only example.info has: Topic, level")


def test_difficulties_of_questions_are_read_in_any_case_and_unknown_ones_are_named(tmp_path: Path) -> None:
    given = ["Hard", "2", "complex", "expert"]
    rows = [{"id": str(n), "question": f"{n}?", "answer": "1", "difficulty": each} for n, each in enumerate(given)]
    source = load_source(
        str(write_lines(tmp_path / "sums.jsonl", rows)), DataConfig(reward="support.task_rows:reward_answer")
    )
    found = {task.id: task.difficulty for split in SPLITS for task in source.tasks(split)}
    assert found == {"0": "hard", "1": "medium", "2": "hard", "3": "easy"}
    (summary,) = list_file_summaries(source)
    assert len([note for note in summary.notes if "'expert'" in note and "'complex'" not in note]) == 1
