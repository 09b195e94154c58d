"""Tests of a server's log as an input of `data collect`, `view` and `play --fork`: it is written by a real server."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.program import call
from support.serving import (
    TOOLS,
    make_scripted_model,
    make_short_context_model,
    request_completion,
    serve_on_loopback,
)
from support.viewer_episodes import request_route
from understudy.core.errors import ConfigError
from understudy.evaluation.request_logs import is_request_log, open_request_log, read_request_log
from understudy.viewer.library import RunLibrary

__all__ = ["call"]
Call = Callable[..., tuple[int, str, str]]
CALL = '<tool_call>\n{{"name": "f", "arguments": {{"a": {}}}}}\n</tool_call>'


def reply(prompt: str) -> str:
    """Call f twice, then answer; answer thanks at once."""
    if "Thanks" in prompt:
        return "Welcome."
    if "second 42" in prompt:
        return "It is 42."
    return CALL.format(2 if "first 41" in prompt else 1)


def ask(url: str, messages: list[Any], **more: Any) -> None:
    said = request_completion(url, messages=messages, tools=TOOLS, max_tokens=99, **more).choices[0].message
    messages.append(said.model_dump(exclude_none=True))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the log of two conversations, whose requests alternate. The second has two messages of the user."""
    folder = tmp_path_factory.mktemp("log")
    log = folder / "served.jsonl"
    model, _ = make_scripted_model(make_short_context_model(folder), reply)
    talks: list[list[Any]] = [
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"What is {name}?"}] for name in "ab"
    ]
    with serve_on_loopback(model, log=log) as url:
        for result in ("first 41", "second 42", ""):
            for messages in talks:
                ask(url, messages)
                for made in messages[-1].get("tool_calls", ()):
                    messages.append({"role": "tool", "tool_call_id": made["id"], "content": result})
        talks[1].append({"role": "user", "content": "Thanks"})
        ask(url, talks[1])
    return log


@pytest.fixture
def log(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the log, with a cache of its own."""
    monkeypatch.setenv("UNDERSTUDY_CACHE", str(tmp_path / "cache"))
    copy = tmp_path / "served.jsonl"
    copy.write_bytes(recorded.read_bytes())
    return copy


def change_rows(log: Path, change: Callable[[list[Any]], Any]) -> None:
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    change(rows)
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_rows_are_joined_to_conversations_with_their_tokens(log: Path) -> None:
    assert is_request_log(log)
    first, second = read_request_log(log)
    roles = ["system", "user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert [message.role for message in first.messages] == roles
    assert [message.role for message in second.messages] == [*roles, "user", "assistant"]
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    for episode, last in ((first, rows[-3]), (second, rows[-1])):
        (choice,) = last["choices"]
        assert episode.tokens == [*last["prompt_token_ids"], *choice["token_ids"]]
        assert not episode.given_replies
        assert (episode.score, episode.stop_reason, [tool.name for tool in episode.tools or ()]) == (
            None,
            "done",
            ["f", "g"],
        )
    assert sum(second.mask) == sum(
        len(row["choices"][0]["token_ids"]) for row in rows if "What is b?" in json.dumps(row["messages"])
    )


def test_several_replies_and_changed_tokens_are_conversations_of_their_own(log: Path) -> None:
    def change(rows: list[Any]) -> None:
        rows[0]["choices"].append({**rows[1]["choices"][0], "index": 1})
        rows[-1]["prompt_token_ids"][5] += 1  # the second conversation was tokenized again

    change_rows(log, change)
    lengths = [(len(episode.messages), len(episode.given_replies)) for episode in read_request_log(log)]
    assert sorted(lengths) == [(3, 0), (7, 0), (7, 0), (9, 3)]


def test_equal_beginnings_are_each_continued_once(log: Path) -> None:
    def change(rows: list[Any]) -> None:
        rows[:] = [row for row in rows[:5:2] for _ in range(2)]

    change_rows(log, change)
    assert [len(episode.messages) for episode in read_request_log(log)] == [7, 7]


def test_collect_writes_each_conversation_once(log: Path, tmp_path: Path, call: Call) -> None:
    code, _, notes = call("data", "collect", str(log), "--sft", str(tmp_path / "demos.jsonl"))
    assert code == 0
    assert "2 of 2" in notes
    demos = [json.loads(line) for line in (tmp_path / "demos.jsonl").read_text().splitlines()]
    assert [len(demo["messages"]) for demo in demos] == [7, 9]
    assert [tool["name"] for tool in demos[0]["tools"]] == ["f", "g"]


def test_grades_are_a_column_and_needed_for_labels(log: Path, tmp_path: Path, call: Call) -> None:
    labeled = tmp_path / "labeled.jsonl"
    code, _, error = call("data", "collect", str(log), "--kto", str(labeled))
    assert (code, labeled.exists()) == (2, False)
    assert "reward" in error
    change_rows(log, lambda rows: rows[-1].update(reward=0.25))
    code, _, notes = call("data", "collect", str(log), "--kto", str(labeled))
    assert code == 0
    assert "1 of 2" in notes
    assert [json.loads(line)["label"] for line in labeled.read_text().splitlines()] == [True, False]


@pytest.mark.parametrize("option", ["--tasks=3", "--split=test", "--resume"])
def test_options_of_playing_have_no_effect_on_a_log(option: str, log: Path, tmp_path: Path, call: Call) -> None:
    code, _, error = call("data", "collect", str(log), "--sft", str(tmp_path / "demos.jsonl"), option)
    assert code == 2
    assert option.split("=")[0] in error


def test_view_lists_and_shows_conversations(log: Path, call: Call) -> None:
    code, shown, _ = call("view", str(log), "--text")
    assert code == 0
    assert [line.split()[:4] for line in shown.splitlines()] == [
        ["1", "served/1:", "not", "graded,"],
        ["2", "served/2:", "not", "graded,"],
    ]
    _, shown, _ = call("view", str(log), "--episode", "2")
    assert "Welcome." in shown
    library = RunLibrary([open_request_log(log)])
    (key,) = library.evaluations()
    answer = request_route(library, "/api/evaluations/{key}", key=key)
    assert [(each["task"], each["replies"], each["reward"]) for each in answer["conversations"]] == [
        ("served/1", 3, None),
        ("served/2", 4, None),
    ]


def test_view_reads_a_log_again_that_has_grown(log: Path, call: Call) -> None:
    folder = open_request_log(log)
    change_rows(log, lambda rows: rows[-1].update(reward=1))
    assert open_request_log(log) == folder
    _, shown, _ = call("view", str(log), "--text")
    assert "served/2: reward 1" in shown


def test_fork_continues_a_conversation_with_the_recorded_results(log: Path, call: Call) -> None:
    code, shown, _ = call("play", str(log), "--fork", "1@2", "--watch", "--agent", "gold")
    assert code == 0
    assert "first 41" in shown
    assert "second 42" in shown
    assert "served/1: reward 1 " in shown


def test_fork_repeats_all_messages_of_the_user(log: Path, call: Call) -> None:
    code, shown, error = call("play", str(log), "--fork", "2@4", "--watch", "--agent", "noop")
    assert code == 0, error
    assert shown.index("It is 42.") < shown.index("Thanks")


@pytest.mark.parametrize(("reference", "named"), [("3@1", "1 to 2"), ("1@9", "1 to 3"), ("4/1@1", "4")])
def test_fork_that_does_not_exist_is_named(reference: str, named: str, log: Path, call: Call) -> None:
    code, _, error = call("play", str(log), "--fork", reference)
    assert code == 2
    assert named in error


@pytest.mark.parametrize("column", ["messages", "tools", "prompt_token_ids", "choices"])
def test_damaged_row_is_named_with_its_line(column: str, log: Path) -> None:
    change_rows(log, lambda rows: rows[2].update({column: 5}))
    with pytest.raises(ConfigError, match=r"served\.jsonl:3\b"):
        read_request_log(log)


@pytest.mark.parametrize("reward", [2, -1, "good", True])
def test_wrong_grade_is_named(reward: Any, log: Path) -> None:
    change_rows(log, lambda rows: rows[-1].update(reward=reward))
    with pytest.raises(ConfigError, match=r"served\.jsonl:7\b.*reward"):
        read_request_log(log)


def test_log_without_calls_is_viewed(log: Path, call: Call) -> None:
    change_rows(log, lambda rows: rows.__delitem__(slice(1, None)))
    change_rows(log, lambda rows: rows[0]["choices"][0].update(message={"role": "assistant", "content": "Hi."}))
    code, shown, _ = call("view", str(log), "--text")
    assert code == 0
    assert "served/1" in shown
    code, _, error = call("play", str(log), "--fork", "1@1")
    assert code == 2
    assert "served/1" in error
