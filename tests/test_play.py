"""Playing at a prompt: what is typed becomes text or a call, and nothing of it is executed."""

import dataclasses
import io
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from toy import DOMAIN, LampTools
from understudy.cli import main
from understudy.errors import ConfigError
from understudy.messages import ToolCall, ToolSpec
from understudy.play import Person, find_task, play
from understudy.prompt import print_coloured, read_reply
from understudy.rollout import Limits
from understudy.tasks import Task
from understudy.trajectory import Trajectory

SPECS = DOMAIN.specs
TASK = find_task(DOMAIN, split="test")
LAMP = TASK.actions[0].arguments["lamp_id"]


def person(lines: Iterable[str]) -> tuple[Person, list[str]]:
    """Somebody who types `lines` and then closes the terminal, and what is shown to them."""
    shown: list[str] = []
    typed = iter(lines)

    def ask(prompt: str) -> str:
        line = next(typed, None)
        if line is None:
            raise EOFError
        return line

    return Person(ask, shown.append), shown


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("switch_lamp(lamp_id='L1', on=True)", {"lamp_id": "L1", "on": True}),
        ('switch_lamp {"lamp_id": "L1", "on": true}', {"lamp_id": "L1", "on": True}),
        ('switch_lamp{"lamp_id": "a(b"}', {"lamp_id": "a(b"}),
        ("switch_lamp()", {}),
        ("switch_lamp", {}),
        ("switch_lamp(items=['a', {'b': -1.5}])", {"items": ["a", {"b": -1.5}]}),
        ("switch_lamp lamp_id=L1 on=true", {"lamp_id": "L1", "on": True}),
        ("switch_lamp lamp_id='L 1' on=False", {"lamp_id": "L 1", "on": False}),
        ("switch_lamp lamp_id=123 on=maybe", {"lamp_id": "123", "on": "maybe"}),
        ("switch_lamp lamp_id= on=1", {"lamp_id": "", "on": 1}),
        ('switch_lamp lamp_id="a=b" other=[1,2]', {"lamp_id": "a=b", "other": [1, 2]}),
    ],
)
def test_calls_are_read(line: str, arguments: dict[str, object]) -> None:
    assert read_reply(line, SPECS).tool_calls == (ToolCall(name="switch_lamp", arguments=arguments),)


def test_words_become_what_the_schema_wants() -> None:
    kinds = {
        "ids": {"type": "array", "items": {"type": "string"}},
        "counts": {"type": "array", "items": {"type": "integer"}},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "reason": {"enum": ["1", "2"]},
        "zip": {"type": ["string", "null"]},
        "price": {"type": "number"},
    }
    spec = ToolSpec(name="order", description="", parameters={"type": "object", "properties": kinds})
    reply = read_reply("order ids=1,b counts=1,2 note=7 reason=1 zip=94110 price=9.50", [spec])
    wanted = {"ids": ["1", "b"], "counts": [1, 2], "note": "7", "reason": "1", "zip": "94110", "price": 9.5}
    assert reply.tool_calls[0].arguments == wanted
    for typed, ids in {"ids=[a,b]": ["a", "b"], """ids='["a,b"]'""": ["a,b"], "ids=": [], "ids=7": ["7"]}.items():
        assert read_reply(f"order {typed}", [spec]).tool_calls[0].arguments == {"ids": ids}


@pytest.mark.parametrize(
    "line", ["switch_lamp is (I think) a tool", "Lamp id=L1 is on.", "Lamp (L1) is on.", "", "Agreed?", "f(x) = y"]
)
def test_all_else_is_said(line: str) -> None:
    assert (read_reply(line, SPECS).content, read_reply(line, SPECS).tool_calls) == (line, ())


@pytest.mark.parametrize(
    "line",
    [
        "switch_lamp(lamp_id=__import__('os').getcwd())",
        "switch_lamp(lamp_id=open)",
        "switch_lamp(lamp_id={[1]: 2})",
        "switch_lamp(lamp_id={1})",
        "switch_lamp(lamp_id=b'x')",
        "switch_lamp('L1')",
        "switch_lamp(**{'a': 1})",
        "switch_lamp(lamp_id='L1'",
        "switch_lamp(a=1).b",
        "switch_lamp {broken",
        "swich_lamp(lamp_id='L1')",
        "switch_lamp lamp_id=no longer needed",
        "switch_lamp lamp_id='L1",
        "switch_lamp {1}",
        "swich_lamp lamp_id=L1 on=true",
    ],
)
def test_what_is_no_literal_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_reply(line, SPECS)


def test_an_episode_as_the_agent() -> None:
    someone, shown = person(
        [
            *("/help", "/tools", "/tool switch_lamp", "/tool swich", "switch_lamp('L1')"),
            f"I will switch on lamp {LAMP}. Do you want me to proceed?",
            f"switch_lamp(lamp_id={LAMP!r}, on=True)",
            f"Lamp {LAMP} is on.",
        ]
    )
    episode = play(DOMAIN, TASK, person=someone)
    assert episode is not None
    assert episode.reward == 1.0
    text = "\n".join(shown)
    for said in ("Switch lamps.", f"Please switch on lamp {LAMP}", "switch_lamp(lamp_id, on)", "reward 1", "Yes"):
        assert said in text
    assert "no tool 'swich'; did you mean 'switch_lamp'?" in text
    assert "That is not a call: give each argument its name" in text


def test_an_episode_as_the_user_against_gold() -> None:
    someone, shown = person(["Hello, a lamp please.", "Yes, please do.", ""])
    episode = play(DOMAIN, TASK, "user", person=someone)
    assert episode is not None
    assert episode.reward == 1.0
    assert TASK.scenario.instructions in shown[0]
    assert "An empty line ends the conversation" in shown[0]
    assert any("Do you want me to proceed?" in text for text in shown)


@pytest.mark.parametrize("lines", [[], ["/quit"], ["hello", "/quit"]])
@pytest.mark.parametrize("role", ["agent", "user"])
def test_leaving(lines: list[str], role: str) -> None:
    someone, shown = person(lines)
    assert play(DOMAIN, TASK, role, person=someone) is None  # type: ignore[arg-type]
    assert "You left before the end" in shown[-1]


def test_the_user_is_told_again_what_they_want() -> None:
    someone, shown = person(["", "/help", "Hello.", "/help", "Yes.", ""])
    assert play(DOMAIN, TASK, "user", person=someone) is not None
    assert sum(TASK.scenario.instructions in text for text in shown) == 3


def test_a_user_with_tools_of_their_own() -> None:
    someone, shown = person(
        [
            "Hello.",
            "/help",
            f"switch_lamp lamp_id={LAMP} on=true",
            "switch_lamp lamp_id='",
            "find_lamp room=no",
            "Yes.",
            "",
        ]
    )
    episode = play(dataclasses.replace(DOMAIN, device=LampTools), TASK, "user", person=someone)
    assert episode is not None
    assert "switch_lamp(lamp_id, on)" in shown[0]
    assert [text for text in shown if text.startswith("tool | ")][1] == "tool | Error: no lamp in room no"
    assert any("That is not a call" in text for text in shown)
    assert [m.content for m in episode.messages if m.role == "user"] == ["Hello.", "Yes."]


def test_ctrl_c_at_a_prompt_leaves_at_once() -> None:
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from toy import DOMAIN\nfrom understudy.play import find_task, play\n"
        "print('left', play(DOMAIN, find_task(DOMAIN), 'user'))"
    )
    command = [sys.executable, "-u", "-c", code]
    root = Path(__file__).parent.parent
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=root, **pipes) as process:  # type: ignore[call-overload]
        seen = ""
        while "user> " not in seen and process.poll() is None:
            seen += process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=20)
    assert text.endswith("left None\n")
    assert process.returncode == 0


def test_speakers_have_colours_on_a_terminal_and_none_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "assistant | [bold]Hello[/bold]\n          | again\n     user | Hi: 1\nplain"
    print_coloured(text)
    assert capsys.readouterr().out == text + "\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    print_coloured(text)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("\x1b[36m")
    assert lines[1].startswith("\x1b[36m")
    assert lines[2].startswith("\x1b[32m")
    assert lines[3] == "plain"


def test_a_terminal_obeys_nothing_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    print_coloured("agent | \x1b]0;taken\x07 \x9b2J\u202e\nvisible")
    assert capsys.readouterr().out == "agent | \ufffd]0;taken\ufffd \ufffd2J\ufffd\nvisible\n"


def test_an_episode_may_be_as_long_as_a_run_s(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Limits] = []

    async def remembered(task: Task, environment: Any, agent: Any, limits: Limits, seed: int) -> Trajectory:
        given.append(limits)
        return Trajectory(task.id)

    monkeypatch.setattr("understudy.play.rollout", remembered)
    for limits in (Limits(max_turns=9, max_tokens=12000), Limits(max_turns=400, max_tokens=100)):
        play(DOMAIN, TASK, person=person([])[0], limits=limits)
    assert [(each.max_turns, each.max_tokens) for each in given] == [(100, 12000), (400, 8192)]


def test_find_task() -> None:
    assert find_task(DOMAIN, TASK.id, "test") == TASK
    with pytest.raises(ConfigError, match=r"unknown task .*; did you mean"):
        find_task(DOMAIN, TASK.id + "x", "test")


def evaluated(monkeypatch: pytest.MonkeyPatch, typed: str) -> int:
    """The exit code of an evaluation of gold with a person as the user, who types this and closes the terminal."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    command = ["understudy", "eval", "toy:DOMAIN", "slice.families=one", "--agent", "gold", "--tasks", "2"]
    monkeypatch.setattr(sys, "argv", [*command, "user.kind=human"])
    try:
        main()
    except SystemExit as e:
        return int(e.code or 0)
    return 0


def test_a_person_as_the_user_of_an_evaluation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluated(monkeypatch, "A lamp, please.\nYes, please.\n\nA lamp, please.\nNo.\n\n") == 0
    shown = capsys.readouterr().out
    assert "gold succeeds on 0.500" in shown  # one episode after the other: the first got its yes, the second did not
    assert shown.count("You are the user.") == 2
    assert evaluated(monkeypatch, "A lamp, please.\n") == 130  # left in the middle
