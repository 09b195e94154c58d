"""Playing at a prompt: what is typed becomes text or a call, and nothing of it is executed."""

from collections.abc import Iterable

import pytest

from toy import DOMAIN
from understudy.errors import ConfigError
from understudy.messages import ToolCall
from understudy.play import Person, find_task, play, read_reply

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
    ],
)
def test_calls_are_read(line: str, arguments: dict[str, object]) -> None:
    assert read_reply(line, SPECS).tool_calls == (ToolCall(name="switch_lamp", arguments=arguments),)


@pytest.mark.parametrize("line", ["switch_lamp is (I think) a tool", "Lamp (L1) is on.", "", "Agreed?", "f(x) = y"])
def test_all_else_is_said(line: str) -> None:
    assert (read_reply(line, SPECS).content, read_reply(line, SPECS).tool_calls) == (line, ())


@pytest.mark.parametrize(
    "line",
    [
        "switch_lamp(lamp_id=__import__('os').getcwd())",
        "switch_lamp(lamp_id=open)",
        "switch_lamp('L1')",
        "switch_lamp(**{'a': 1})",
        "switch_lamp(lamp_id='L1'",
        "switch_lamp(a=1).b",
        "switch_lamp {broken",
        "swich_lamp(lamp_id='L1')",
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
    assert any("Do you want me to proceed?" in text for text in shown)


@pytest.mark.parametrize("lines", [[], ["/quit"], ["hello", "/quit"]])
@pytest.mark.parametrize("role", ["agent", "user"])
def test_leaving(lines: list[str], role: str) -> None:
    someone, _ = person(lines)
    assert play(DOMAIN, TASK, role, person=someone) is None  # type: ignore[arg-type]


def test_find_task() -> None:
    assert find_task(DOMAIN, TASK.id, "test") == TASK
    with pytest.raises(ConfigError, match=r"unknown task .*; did you mean"):
        find_task(DOMAIN, TASK.id + "x", "test")
