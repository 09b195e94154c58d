"""Test `play`: parsing typed replies, episodes as the agent or the user, and the terminal output."""

import asyncio
import dataclasses
import io
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.terminal import scripted_player
from toy import DOMAIN, LampTools
from understudy.cli.main import main
from understudy.cli.play import play_in_terminal, play_interactively, select_task
from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.tasks import Task
from understudy.core.terminal import print_conversation
from understudy.core.trajectory import Trajectory
from understudy.formats.typed_calls import parse_typed_reply
from understudy.rollouts.agent import GoldAgent
from understudy.rollouts.rollout import EpisodeLimits

SPECS = DOMAIN.tool_specs
TASK = select_task(DOMAIN, split="test")
LAMP = TASK.gold_calls[0].arguments["lamp_id"]


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
def test_typed_tool_call_is_parsed(line: str, arguments: dict[str, object]) -> None:
    assert parse_typed_reply(line, SPECS).tool_calls == (ToolCall(name="switch_lamp", arguments=arguments),)


def test_typed_arguments_are_converted_by_the_schema() -> None:
    kinds = {
        "ids": {"type": "array", "items": {"type": "string"}},
        "counts": {"type": "array", "items": {"type": "integer"}},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "reason": {"enum": ["1", "2"]},
        "zip": {"type": ["string", "null"]},
        "price": {"type": "number"},
    }
    spec = ToolSpec(name="order", description="", parameters={"type": "object", "properties": kinds})
    reply = parse_typed_reply("order ids=1,b counts=1,2 note=7 reason=1 zip=94110 price=9.50", [spec])
    expected = {"ids": ["1", "b"], "counts": [1, 2], "note": "7", "reason": "1", "zip": "94110", "price": 9.5}
    assert reply.tool_calls[0].arguments == expected
    for typed, ids in {"ids=[a,b]": ["a", "b"], """ids='["a,b"]'""": ["a,b"], "ids=": [], "ids=7": ["7"]}.items():
        assert parse_typed_reply(f"order {typed}", [spec]).tool_calls[0].arguments == {"ids": ids}


@pytest.mark.parametrize(
    "line", ["switch_lamp is (I think) a tool", "Lamp id=L1 is on.", "Lamp (L1) is on.", "", "Agreed?", "f(x) = y"]
)
def test_typed_text_is_no_tool_call(line: str) -> None:
    assert (parse_typed_reply(line, SPECS).content, parse_typed_reply(line, SPECS).tool_calls) == (line, ())


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
def test_invalid_typed_call_raises(line: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_typed_reply(line, SPECS)


def test_play_as_the_agent_solves_a_task() -> None:
    someone, shown = scripted_player(
        [
            *("/help", "/tools", "/tool switch_lamp", "/tool swich", "switch_lamp('L1')"),
            f"I will switch on lamp {LAMP}. Do you want me to proceed?",
            f"switch_lamp(lamp_id={LAMP!r}, on=True)",
            f"Lamp {LAMP} is on.",
        ]
    )
    episode = play_interactively(DOMAIN, TASK, person=someone)
    assert episode is not None
    assert episode.reward == 1.0
    text = "\n".join(shown)
    for said in ("Switch lamps.", f"Please switch on lamp {LAMP}", "switch_lamp(lamp_id, on)", "reward 1"):
        assert said in text
    assert re.search(r"'swich'.*'switch_lamp'", text)


def test_play_as_the_user_against_the_gold_agent() -> None:
    someone, shown = scripted_player(["Hello, a lamp please.", "Yes, please do.", ""])
    episode = play_interactively(DOMAIN, TASK, "user", person=someone)
    assert episode is not None
    assert episode.reward == 1.0
    assert TASK.scenario.instructions in shown[0]
    assert any("Do you want me to proceed?" in text for text in shown)


@pytest.mark.parametrize("lines", [[], ["/quit"], ["hello", "/quit"]])
@pytest.mark.parametrize("role", ["agent", "user"])
def test_quit_or_end_of_input_returns_no_episode(lines: list[str], role: str) -> None:
    someone, _ = scripted_player(lines)
    assert play_interactively(DOMAIN, TASK, role, person=someone) is None  # type: ignore[arg-type]


def test_help_repeats_the_users_instructions() -> None:
    someone, shown = scripted_player(["", "/help", "Hello.", "/help", "Yes.", ""])
    assert play_interactively(DOMAIN, TASK, "user", person=someone) is not None
    assert sum(TASK.scenario.instructions in text for text in shown) == 3


def test_play_as_a_user_with_tools() -> None:
    someone, shown = scripted_player(
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
    episode = play_interactively(dataclasses.replace(DOMAIN, user_tools=LampTools), TASK, "user", person=someone)
    assert episode is not None
    assert "switch_lamp(lamp_id, on)" in shown[0]
    assert [text for text in shown if text.startswith("tool | ")][1] == "tool | Error: no lamp in room no"
    assert [m.content for m in episode.messages if m.role == "user"] == ["Hello.", "Yes."]


def test_ctrl_c_at_a_prompt_exits() -> None:
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from toy import DOMAIN\nfrom understudy.cli.play import play_in_terminal, play_interactively, select_task\n"
        "print('left', play_interactively(DOMAIN, select_task(DOMAIN), 'user'))"
    )
    command = [sys.executable, "-u", "-c", code]
    root = Path(__file__).parents[2]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=root, **pipes) as process:  # type: ignore[call-overload]
        seen = ""
        while "user> " not in seen and process.poll() is None:
            seen += process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=900)
    assert text.endswith("left None\n")
    assert process.returncode == 0


def test_conversation_is_colored_only_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "assistant | [bold]Hello[/bold]\n          | again\n     user | Hi: 1\nplain"
    print_conversation(text)
    assert capsys.readouterr().out == text + "\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    print_conversation(text)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("\x1b[36m")
    assert lines[1].startswith("\x1b[36m")
    assert lines[2].startswith("\x1b[32m")
    assert lines[3] == "plain"


def test_control_characters_are_replaced_in_output(capsys: pytest.CaptureFixture[str]) -> None:
    print_conversation("agent | \x1b]0;taken\x07 \x9b2J\u202e\nvisible")
    assert capsys.readouterr().out == "agent | \ufffd]0;taken\ufffd \ufffd2J\ufffd\nvisible\n"


def test_play_limits_follow_the_runs_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[EpisodeLimits] = []

    async def record_limits(task: Task, environment: Any, agent: Any, limits: EpisodeLimits, seed: int) -> Trajectory:
        recorded.append(limits)
        return Trajectory(task.id)

    monkeypatch.setattr("understudy.cli.play.rollout", record_limits)
    for limits in (
        EpisodeLimits(max_turns=9, max_episode_tokens=12000),
        EpisodeLimits(max_turns=400, max_episode_tokens=100),
    ):
        play_interactively(DOMAIN, TASK, person=scripted_player([])[0], limits=limits)
    assert [(each.max_turns, each.max_episode_tokens) for each in recorded] == [(100, 12000), (400, 8192)]


def test_select_task_by_id_or_error_with_the_nearest() -> None:
    assert select_task(DOMAIN, TASK.id, "test") == TASK
    with pytest.raises(ConfigError, match=rf"'{TASK.id}x'.*'{TASK.id}'"):
        select_task(DOMAIN, TASK.id + "x", "test")


def eval_with_typed_user(monkeypatch: pytest.MonkeyPatch, typed: str) -> int:
    """Evaluate gold with a human user who types `typed` and closes the terminal, and return the exit code."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    command = ["understudy", "eval", "toy:DOMAIN", "slice.families=one", "--agent", "gold", "--tasks", "2"]
    monkeypatch.setattr(sys, "argv", [*command, "user.kind=human"])
    try:
        main()
    except SystemExit as e:
        return int(e.code or 0)
    return 0


def test_eval_with_a_human_user(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert eval_with_typed_user(monkeypatch, "A lamp, please.\nYes, please.\n\nA lamp, please.\nNo.\n\n") == 0
    shown = capsys.readouterr().out
    # Episodes run in sequence: the user confirms in the first and not in the second.
    assert re.search(r"\bgold\b.*\b0\.500\b", shown)
    assert shown.count("/quit") == 2
    assert eval_with_typed_user(monkeypatch, "A lamp, please.\n") == 130  # the terminal is closed during an episode


def test_watched_episode_has_the_time_limit_of_a_step_and_a_played_one_has_none() -> None:
    class SlowEnvironment:
        def __init__(self, environment: Any) -> None:
            self._environment = environment

        def __getattr__(self, name: str) -> Any:
            return getattr(self._environment, name)

        async def step(self, reply: Message) -> Any:
            await asyncio.sleep(0.2)
            return await self._environment.step(reply)

    def play(has_person: bool) -> Any:
        slow, limits = SlowEnvironment(DOMAIN.environment(TASK)), EpisodeLimits(max_step_seconds=0.05)
        episode = play_in_terminal(TASK, slow, GoldAgent(), print, limits, 0, has_person)  # type: ignore[arg-type]
        return episode and (episode.fault, episode.score is None)

    assert play(has_person=False) == ("environment", True)
    assert play(has_person=True) == (None, False)
