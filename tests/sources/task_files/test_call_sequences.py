"""Test sequences of calls: rows for MCP environments and dependent specs, and references between their calls."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from support.shelves import FixedReplies
from understudy.core.items import Item, RowError
from understudy.core.messages import Message, ToolCall
from understudy.core.records import Record
from understudy.core.tasks import TaskLimits
from understudy.data.checks.check import check
from understudy.rollouts.rollout import EpisodeLimits, rollout
from understudy.sources.loading import load_source
from understudy.sources.task_files.call_matching import CallMatching, match_calls
from understudy.sources.task_files.call_sequences import (
    CallSequence,
    is_sequence_row,
    is_spec_row,
    read_sequences,
    to_sequence_row,
)
from understudy.sources.task_files.rows import read_task_rows
from understudy.sources.task_files.skyrl_rows import to_skyrl_row
from understudy.sources.task_files.step_references import find_references, resolve_references

PRICE = {"step": 1, "server": "finance", "tool": "get_price", "params": {"ticker": "SPY"}}
SEND = {"step": 2, "server": "slack", "tool": "send", "params": {"to": ["@me"], "text": "it is ${step1.close} now"}}


def spec(*steps: dict[str, Any], task: Any = None, **changes: Any) -> dict[str, Any]:
    told = [{"role": "user", "message": "Get SPY."}, {"role": "assistant", "content": "Where to?"}]
    plain = {
        "task_id": "a",
        "complexity": "simple",
        "conversation": [*told, {"role": "user", "content": "Me."}],
        "solution": {"tool_sequence": list(steps or (PRICE, SEND))},
    }
    return {
        "scenario": "demo",
        "turns": 4,
        "limits": {"max_servers": 2},
        "tasks": [{**plain, **(task or {})}],
        **changes,
    }


def row(*steps: dict[str, Any], **truth: Any) -> dict[str, Any]:
    given = {
        "task_id": "a",
        "complexity": "simple",
        "max_turns": 4,
        "success": {"must_call_tool": "slack.send"},
        "tool_sequence": [{**step, "analysis_requirements": {"extract": ["x"]}} for step in steps or (PRICE, SEND)],
        "limits": {"max_tools": 5},
    }
    return {
        "data_source": "synthetic/llm",
        "env_class": "MCPToolEnv",
        "prompt": [{"role": "system", "content": "You research."}, {"role": "user", "content": "Send me the price."}],
        "reward_spec": {"method": "rule", "ground_truth": {**given, **truth}},
        "extra_info": {"split": "test"},
    }


def read_spec(value: dict[str, Any]) -> CallSequence:
    (item,) = read_sequences(Item("s:1", value), "s/1")
    assert isinstance(item, Item), item
    return item.value


def read_row(value: dict[str, Any]) -> CallSequence:
    (item,) = read_sequences(Item("s:1", value), "s/1")
    assert isinstance(item, Item), item
    return item.value


def play(made: CallMatching, *turns: Message | str) -> tuple[float | None, list[str]]:
    (found,) = made.rows.values()
    episode = asyncio.run(rollout(found.task, made.environment(found.task), FixedReplies(*turns), EpisodeLimits()))
    return episode.reward, [message.content for message in episode.messages if message.role == "tool"]


def call(name: str, **arguments: Any) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(name=name, arguments=arguments),))


def test_specs_and_rows_are_read_as_sequences() -> None:
    assert (is_spec_row(spec()), is_sequence_row(spec())) == (True, False)
    assert (is_spec_row(row()), is_sequence_row(row())) == (False, True)
    of_spec, of_row = read_spec(spec()), read_row(row())
    assert (of_spec.prompt, of_spec.family, of_spec.limits.max_turns) == ("Get SPY.", "demo", 4)
    assert (of_row.domain_policy, of_row.split, of_row.family) == ("You research.", "test", "synthetic/llm")
    assert of_row.limits.model_dump(exclude_none=True) == {"max_turns": 4, "max_tools": 5}
    assert (
        [step.name for step in of_spec.steps]
        == [step.name for step in of_row.steps]
        == [
            "finance.get_price",
            "slack.send",
        ]
    )


def test_columns_may_be_json_text_and_steps_in_any_order() -> None:
    value = row(SEND, PRICE)
    text = {name: json.dumps(each) if isinstance(each, dict | list) else each for name, each in value.items()}
    assert read_row(text) == read_row(value) == read_row(row())


def test_row_of_a_sequence_is_read_back() -> None:
    for sequence in (read_row(row()), read_spec(spec())):
        assert read_row(to_sequence_row(sequence).model_dump()) == sequence


@pytest.mark.parametrize(
    ("must", "servers", "missing"),
    [
        ("slack.send", (), ()),
        ("send", (), ()),
        ("slack", ("slack",), ()),
        ("tavily", ("tavily", "slack"), ("tavily.*",)),
        ("tavily_search", ("tavily",), ("tavily_search",)),
        (["send", "fmp"], (), ("fmp",)),
        (None, (), ()),
    ],
)
def test_must_call_is_a_tool_or_a_server(must: Any, servers: tuple[str, ...], missing: tuple[str, ...]) -> None:
    assert read_row(row(success={"must_call_tool": must})).missing_calls(servers) == missing


def test_made_up_results_must_be_read_to_be_used() -> None:
    made = match_calls("demo", [Item("s:1", read_spec(spec()).to_task_row("demo"))])
    assert (made.refused, check(made).problems, sorted(made.write_tools)) == ((), (), ["slack.send"])
    (found,) = made.rows.values()
    price, send = found.task.gold_calls
    _, (result, _) = play(made, call(price.name, **price.arguments), call(send.name, **send.arguments), "Sent.")
    close = json.loads(result)["close"]
    assert send.arguments == {"to": ["@me"], "text": f"it is {close} now"}
    assert close not in json.dumps(PRICE) + found.task.scenario.opening
    other = read_spec(spec(task={"task_id": "b"})).to_task_row().task
    assert close not in other.model_dump_json()
    guessed = {**send.arguments, "text": "it is ${step1.close} now"}
    assert play(made, call(send.name, **guessed), "Sent.")[0] == 0.0


def test_made_up_results_of_tasks_with_equal_ids_in_two_files_differ(tmp_path: Path) -> None:
    for name, prompt in (("first", "Get SPY."), ("second", "Get it again.")):
        value = spec(PRICE, SEND, task={"conversation": [{"role": "user", "content": prompt}]})
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(value) + "\n")
    source = load_source(str(tmp_path))
    first, second = source.tasks("train") + source.tasks("validation")
    assert {first.id, second.id} == {"a", "second/a"}
    assert first.gold_calls[1].arguments != second.gold_calls[1].arguments


def test_last_read_must_be_told() -> None:
    value = read_spec(spec(PRICE, {"step": 2, "server": "fmp", "tool": "fmp_get_news", "params": {"of": "${step1}"}}))
    made = match_calls("demo", [Item("s:1", value.to_task_row("demo"))])
    assert (made.refused, check(made).problems, made.write_tools) == ((), (), frozenset())
    (found,) = made.rows.values()
    (told,) = found.task.outputs
    turns = [call(each.name, **each.arguments) for each in found.task.gold_calls]
    assert play(made, *turns, f"It says {told}.")[0] == 1.0
    assert play(made, f"It says {told}.")[0] == 0.0
    assert play(made, *turns, "", "", "", "")[0] == 0.0


def test_recorded_results_replace_made_up_ones() -> None:
    value = read_spec(spec({**PRICE, "result": [{"close": 512.5}]}, SEND))
    task = value.to_task_row("demo").task
    assert task.gold_calls[1].arguments["text"] == "it is 512.5 now"
    told = read_spec(spec({**PRICE, "result": {"close": 512.5}})).to_task_row("demo").task
    assert told.outputs == ("512.5",)
    long = read_spec(spec({**PRICE, "result": {"close": 512.5, "open": 500}})).to_task_row("demo")
    assert [error.kind for error in match_calls("demo", [Item("s:1", long)]).refused] == ["only reads"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${step1}", {"data": [{"price": 5, "by": {"x-y": True, "none": None}}], "0": "zero"}),
        ("${step1.data[0].price}", 5),
        ("${step1.data.0.price}", 5),
        ("${step1.data.price}", 5),
        ("a ${step1.data.0.price} b ${step2.x}", 'a 5 b ["€"]'),
        ("${step1.data[0].by.x-y}", True),
        ("${step1.0}", "zero"),
        ("no reference {step1} $step1", "no reference {step1} $step1"),
        ("${first(step1.data[][price])}", 5),
        ("it is ${step1.data[0].price > 4}", "it is True"),
        ('f"${price:.2f} ${total} ${x * 2}"', 'f"${price:.2f} ${total} ${x * 2}"'),
        ("""${'{:.2f}'.format(price)} it's""", """${'{:.2f}'.format(price)} it's"""),
    ],
)
def test_references_are_looked_up(text: str, value: Any) -> None:
    results = [{"data": [{"price": 5, "by": {"x-y": True, "none": None}}], "0": "zero"}, '{"x": ["€"]}']
    assert resolve_references({"a": [text]}, results) == {"a": [value]}


@pytest.mark.parametrize(
    "text",
    [
        "${step1.data.price * 2}",
        "${().__class__}",
        "${price}",
        "${step1.__class__.__mro__}",
        "${step1.data[5]}",
        "${step1.data[-3]}",
        "${step1.nothing}",
        "${step2.x}",
        "${step0}",
        "${first(step1)}",
        "${step1.none}",
        "${first(step1.empty)}",
    ],
)
def test_reference_that_is_no_path_in_an_earlier_result_is_an_error(text: str) -> None:
    assert list(find_references([text])) == [text]
    with pytest.raises(ValueError, match=r"\$\{"):
        resolve_references(text, [{"data": [1, 2], "__doc__": "x", "none": None, "empty": []}])


@pytest.mark.parametrize(
    ("value", "field", "named"),
    [
        (spec(turns=0), "turns", ""),
        (spec(extra=1), "extra", ""),
        (spec(task={"task_id": ""}), "task_id", ""),
        (spec(task={"solution": {}}), "solution.tool_sequence", ""),
        (spec(task={"solution": {"tool_sequence": []}}), "solution.tool_sequence", ""),
        (spec(task={"conversation": []}), "conversation", "user"),
        (spec(task={"conversation": [{"role": "user"}]}), "conversation", "user"),
        (spec(SEND), "solution.tool_sequence", "2"),
        (spec({**SEND, "step": 1}), "", "${step1.close}"),
        (spec({**PRICE, "params": {"x": "${().__class__}"}}), "", "${().__class__}"),
        (spec({**PRICE, "tool": ""}), "steps.0.tool", ""),
    ],
)
def test_wrong_part_of_a_spec_is_named(value: dict[str, Any], field: str, named: str) -> None:
    (error,) = read_sequences(Item("s:1", value), "s/1")
    assert isinstance(error, RowError)
    assert (error.location.startswith("s:1"), error.field) == (True, field)
    assert named in error.problem


def test_valid_tasks_of_a_spec_are_read_beside_invalid_ones() -> None:
    one = spec()["tasks"][0]
    value = spec(tasks=[one, {**one, "solution": 1}, {**one, "task_id": "c"}])
    first, second, third = read_sequences(Item("s:1", value), "s/1")
    assert (isinstance(first, Item), isinstance(third, Item)) == (True, True)
    assert (isinstance(second, RowError) and second.location) == "s:1.tasks[1]"


def test_list_place_in_a_made_up_result_is_bounded() -> None:
    steps = [PRICE, {**SEND, "params": {"text": "${step1.rows[999].x} ${step1.ids.123456}"}}]
    task = read_spec(spec(*steps)).to_task_row("demo").task
    result = next(json.loads(message.content) for message in task.gold if message.role == "tool")
    assert (len(result["rows"]), list(result["ids"])) == (1000, ["123456"])


@pytest.mark.parametrize("form", ["task", "skyrl"])
def test_limits_survive_the_conversion_to_a_file_of_tasks(form: str, tmp_path: Path) -> None:
    """The converted task is played with the row's limits: 4 turns of calls and one for the answer, 5 tools."""
    found = read_row(row()).to_task_row("demo-calls")
    written: Record = found.task
    if form == "skyrl":
        written = to_skyrl_row(found.task, "You research.", "demo-calls")
    (tmp_path / "converted.jsonl").write_text(written.model_dump_json(exclude_defaults=True) + "\n")
    source = load_source(str(tmp_path / "converted.jsonl"))
    (task,) = source.tasks("test")
    assert task.limits == TaskLimits(max_turns=5, max_tools=5)
    replies = [
        Message(role="assistant", tool_calls=(ToolCall(name="finance.get_price", arguments={"ticker": "SPY"}),))
    ] * 9
    episode = asyncio.run(rollout(task, source.environment(task), FixedReplies(*replies), EpisodeLimits()))
    assert (episode.num_turns, episode.reward) == (5, 0.0)


def test_task_without_limits_keeps_its_fingerprint() -> None:
    task = read_row(row(max_turns=None, limits={})).to_task_row().task
    assert task.limits is None
    assert "limits" not in task.model_dump()


def quote(step: int, *extract: str, **more: Any) -> dict[str, Any]:
    required = {"extract": list(extract), **{key: more.pop(key) for key in ("compute", "select") if key in more}}
    call = {"step": step, "server": "fmp", "tool": "get_quote", "params": {"symbol": "ZQX"}}
    return {**call, "analysis_requirements": required, **more}


def facts_row(
    *steps: dict[str, Any], facts: Any = None, include: Any = (), grounded: Any = (), citations: Any = None
) -> dict[str, Any]:
    answer = {"must_include": list(include), "grounded_from": list(grounded)}
    value = row(
        final_reference={"facts": facts or {}, "citations": citations or {}},
        analysis_rubric={"final_answer_requirements": answer},
        success={},
    )
    value["reward_spec"]["ground_truth"]["tool_sequence"] = list(steps)
    return value


def results_of(value: dict[str, Any]) -> list[Any]:
    task = read_row(value).to_task_row("demo").task
    return [json.loads(message.content) for message in task.gold if message.role == "tool"]


def test_recorded_facts_are_shown_and_those_of_the_answer_are_told() -> None:
    value = facts_row(
        quote(1, "price", "volume"),
        facts={"price": 41.5, "volume": 88000, "gone": None},
        include=["price", "gone"],
        grounded=["price", "volume"],
    )
    made = match_calls("demo", [Item("s:1", read_row(value).to_task_row("demo"))])
    (found,) = made.rows.values()
    assert results_of(value) == [{"price": 41.5, "volume": 88000}]
    assert (found.task.outputs, found.task.gold_turns[-1].content) == (("41.5",), "price: 41.5")
    assert (made.refused, check(made).problems) == ((), ())
    asked = call("fmp.get_quote", symbol="ZQX")
    rewards = [play(made, asked, text)[0] for text in ("It costs 41.50.", "It costs 41.51.", "It costs bcdfghjk.")]
    assert rewards == [1.0, 0.0, 0.0]
    assert play(made, "It costs 41.50.")[0] == 0.0


@pytest.mark.parametrize(
    ("extract", "compute", "facts", "shown"),
    [
        ("links = data[][url]", "top = first(links)", {"top": "u.example"}, {"data": [{"url": "u.example"}]}),
        ("items = data[]", "top = safe_attr(first(items), url)", {"top": "u"}, {"data": [{"url": "u"}]}),
        ("links = data[][url]", "top = first(links)", {"links": ["a", "b"]}, {"data": [{"url": "a"}, {"url": "b"}]}),
        ("q.price", "cost = price", {"cost": 5}, {"q": {"price": 5}}),
        ("links = data[][url]", "top = first(links)", {"links": [], "top": None}, {"data": []}),
        ("data", "code", {"data": {"a": 1}, "code": "x"}, {"data": {"a": 1}, "code": "x"}),
    ],
)
def test_facts_are_shown_where_their_names_are_defined(extract: str, compute: str, facts: Any, shown: Any) -> None:
    assert results_of(facts_row(quote(1, extract, compute=[compute]), facts=facts)) == [shown]


def test_fact_is_of_the_last_cited_step_and_other_fields_are_made_up() -> None:
    steps = quote(1, "price", compute=["first_price = price"]), quote(2, "price"), quote(3, "price")
    first, second, third = results_of(
        facts_row(*steps, facts={"first_price": 3.5, "price": 4}, citations={"price": [2]}, include=["price"])
    )
    assert (first, second) == ({"price": 3.5}, {"price": 4})
    assert isinstance(third["price"], str)
    assert third["price"].isalpha()


@pytest.mark.parametrize(
    ("include", "outputs"),
    [
        (["current_price"], ("41.25",)),
        (["one_day_pct_change"], ("0.34613|0.35",)),
        (["nothing like it"], ("41.25", "0.34613|0.35", "Chips")),
        (["price", "percent_move"], ("41.25", "0.34613|0.35")),
        (["text", "names"], ("41.25", "0.34613|0.35", "Chips")),
    ],
)
def test_names_without_a_definition_stand_for_facts_with_a_common_word(include: list[str], outputs: Any) -> None:
    facts = {"price": 41.25, "changesPercentage": 0.34613, "sector": "Chips", "text": "long " * 20, "names": ["a"]}
    grounded = list(facts)
    value = facts_row(quote(1, *facts), facts=facts, include=include, grounded=grounded)
    assert read_row(value).to_task_row("demo").task.outputs == outputs


def test_fact_that_the_call_states_is_not_told() -> None:
    value = facts_row(quote(1, "symbol", "price"), facts={"symbol": "ZQX", "price": 3}, include=["symbol", "price"])
    assert read_row(value).to_task_row("demo").task.outputs == ("3",)


def test_names_become_values_and_a_guessed_value_shows_nothing() -> None:
    news = {"links = data[][url]"}
    steps = (
        quote(1, *news, compute=["top = first(links)", "share = 1 / median(sizes)", "sizes = data[][size]"]),
        {"step": 2, "server": "web", "tool": "extract", "params": {"url": "${top}"}},
    )
    value = facts_row(*steps)
    made = match_calls("demo", [Item("s:1", read_row(value).to_task_row("demo"))])
    (found,) = made.rows.values()
    url = results_of(value)[0]["data"][0]["url"]
    assert found.task.gold_calls[1].arguments == {"url": url}
    asked, wrong = call("fmp.get_quote", symbol="ZQX"), call("web.extract", url="https://zqx.example")
    assert play(made, asked, wrong, "Done.")[1][1].startswith("Error")
    again = facts_row(*steps, facts={"top": "https://zqx.example"})
    assert read_row(again).to_task_row().task.gold_calls[1].arguments == {"url": "https://zqx.example"}


def test_made_up_values_are_numbers_where_they_are_computed_with() -> None:
    steps = (
        quote(1, "sizes = data[][size]", compute=["middle = median(sizes)", "is_large = middle > 5"]),
        {"step": 2, "tool": "set_alarm", "params": {"code": "if ${is_large}: f'${price:.2f}'", "over": "${middle}"}},
    )
    sizes = [item["size"] for item in results_of(facts_row(*steps, facts={"sizes": []}))[0]["data"]]
    arguments = read_row(facts_row(*steps)).to_task_row().task.gold_calls[1].arguments
    assert arguments == {"code": "if True: f'${price:.2f}'", "over": sorted(sizes)[1]}


def test_names_of_a_later_step_replace_those_of_earlier_ones() -> None:
    alarm = {"tool": "set_alarm", "params": {"at": "${ticker} ${price}"}}
    steps = (
        quote(1, "price", compute=["ticker = 'A'"]),
        {"step": 2, **alarm},
        quote(3, "price", compute=['ticker = "B"']),
        {"step": 4, **alarm},
    )
    given = [step.params for step in read_row(facts_row(*steps)).steps]
    assert [params["at"] for params in (given[1], given[3])] == ["${'A'} ${step1.price}", "${'B'} ${step3.price}"]


def test_requirements_may_be_those_of_the_rubric() -> None:
    steps = [{"step": 1, "tool": "get_quote", "params": {}}, {"step": 2, "tool": "set", "params": {"x": "${price}"}}]
    value = row(*steps, success={}, analysis_rubric={"steps": [{"step": 1, "extract": ["price"]}]})
    for step in value["reward_spec"]["ground_truth"]["tool_sequence"]:
        del step["analysis_requirements"]
    assert read_row(value).steps[1].params == {"x": "${step1.price}"}


@pytest.mark.parametrize(
    ("compute", "given", "named"),
    [
        ("top = eval(price)", "${top}", "top = eval(price)"),
        ("top = __import__('os')", "a ${top}", "__import__"),
        ("top = unknown + 1", "${top}", "unknown"),
        ("top = price", "${tpo}", "${tpo}"),
        ("top = regex_extract_all('(', price)", "${top}", "pattern"),
        ("top = (((((((price", "${top}", "top = ((((("),
    ],
)
def test_name_that_cannot_be_resolved_is_an_error(compute: str, given: str, named: str) -> None:
    steps = quote(1, "price", compute=[compute]), {"step": 2, "tool": "set_alarm", "params": {"at": given}}
    (error,) = read_task_rows(iter([Item("s:1", facts_row(*steps))]), "s")
    assert isinstance(error.item, RowError)
    assert named in error.item.problem


def test_fact_of_the_answer_needs_a_definition_that_can_be_read() -> None:
    value = facts_row(quote(1, "price", compute=["x = eval(price)"]), facts={"x": 3}, include=["x"])
    (error,) = read_sequences(Item("s:1", value), "s/1")
    assert isinstance(error, RowError)
    assert "x = eval(price)" in error.problem


def test_recorded_lists_may_be_long() -> None:
    names = [f"n{number}" for number in range(1200)]
    (result,) = results_of(facts_row(quote(1, "names = data[][name]"), facts={"names": names}))
    assert [each["name"] for each in result["data"]] == names


def test_expressions_that_nothing_uses_are_not_read() -> None:
    steps = quote(1, "price", compute=["combine all of it", "x = eval(price)"], select=["best = price"])
    assert results_of(facts_row(steps, facts={"price": 3})) == [{"price": 3}]


def test_definitions_that_double_are_bounded() -> None:
    doubling = ["a = concat(links, links)", *(f"a = concat(a, a, {n})" for n in range(40))]
    steps = quote(1, "links = data[]", compute=doubling), {"step": 2, "tool": "set", "params": {"x": "${a}"}}
    (error,) = read_sequences(Item("s:1", facts_row(*steps)), "s/1")
    assert isinstance(error, RowError)
    assert "2000" in error.problem


def test_required_tool_must_have_answered() -> None:
    news = {"step": 2, "server": "news", "tool": "get_news", "params": {"of": "ZQX"}}
    value = facts_row(quote(1, "price"), news, facts={"price": 41.5, "news": []}, include=["price"])
    for must in ("news.get_news", "get_news", "news"):
        value["reward_spec"]["ground_truth"]["success"] = {"must_call_tool": must}
        made = match_calls("demo", [Item("s:1", read_row(value).to_task_row("demo"))])
        assert (made.refused, check(made).problems) == ((), ())
        asked, told = call("fmp.get_quote", symbol="ZQX"), "It costs 41.50."
        assert play(made, asked, told)[0] == 0.0
        assert play(made, asked, call("news.get_news", of="Z"), told)[0] == 0.0
        assert play(made, asked, call("news.get_news", of="ZQX"), told)[0] == 1.0
    value["reward_spec"]["ground_truth"]["success"] = {"must_call_tool": "weather"}
    (error,) = read_task_rows(iter([Item("s:1", value)]), "s")
    assert isinstance(error.item, RowError)
    assert "'weather'" in error.item.problem


def test_first_message_of_the_user_is_the_task() -> None:
    value = facts_row(quote(1, "price"), facts={"price": 3}, include=["price"])
    said = ["What is the price?", "Please."]
    value["prompt"] = [{"role": "system", "content": "You work."}, *({"role": "user", "content": t} for t in said)]
    value["prompt"].insert(2, {"role": "assistant", "content": "Which one?"})
    read = read_row(value).to_task_row("demo")
    scenario = read.task.scenario
    assert (scenario.opening, scenario.instructions) == (said[0], "\n".join(said))
    assert "1 tasks" in match_calls("demo", [Item("s:1", read)]).notes()[-1]
    value["prompt"] = [{"role": "system", "content": "You work."}]
    (error,) = read_sequences(Item("s:1", value), "s/1")
    assert (isinstance(error, RowError) and error.field) == "prompt"


def test_row_with_recorded_facts_is_read_back() -> None:
    steps = quote(1, "links = data[][url]", compute=["top = first(links)"]), quote(2, "price")
    value = facts_row(*steps, facts={"top": "u", "price": 3}, include=["price", "top"])
    value["prompt"].append({"role": "user", "content": "Please."})
    sequence = read_row(value)
    again = read_row(json.loads(to_sequence_row(sequence).model_dump_json()))
    assert again == sequence
    assert again.to_task_row() == sequence.to_task_row()
