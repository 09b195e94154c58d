"""HumanUser: a person at a prompt."""

import contextlib
import signal
import threading
from collections.abc import Callable, Sequence

from understudy.errors import ToolError, nearest
from understudy.messages import Message
from understudy.tasks import Scenario
from understudy.tools import Device
from understudy.typed import read_reply, tool_list

with contextlib.suppress(ModuleNotFoundError):  # not everywhere there
    import readline  # noqa: F401  # gives `input` a history and keys to edit a line

HELP = """\
Write what you say to the agent. An empty line ends the conversation; /help shows this and what you want again, /quit
leaves without a result."""
DEVICE = """\
You have tools of your own. /do NAME uses one, with arguments as in: /do set_alarm hour=7"""


def ask_person(prompt: str) -> str:
    """`input`, which Ctrl-C ends at once: a running event loop would take note of it and go on waiting for the line."""
    if threading.current_thread() is not threading.main_thread():
        return input(prompt)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return input(prompt)
    finally:
        signal.signal(signal.SIGINT, handler)


class HumanUser:
    """You are the user: `ask` reads a line, `show` prints. Leaving by /quit or a closed terminal is an `EOFError`."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int = 0,
        device: Device | None = None,
        ask: Callable[[str], str] = ask_person,
        show: Callable[[str], None] = print,
    ) -> None:
        self._scenario, self._device, self._ask, self._show = scenario, device, ask, show

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """What you say; None after an empty line."""
        if transcript:
            self._show(f"\nagent | {transcript[-1].content.strip() or '(says nothing)'}")
        else:
            self._brief()
        while True:
            line = self._ask("user> ").strip()
            if line == "/quit":
                raise EOFError
            if line == "/help":
                self._brief()
            elif self._device and line.startswith("/do "):
                self._show(_done(self._device, line.removeprefix("/do ")))
            elif line or transcript:
                return line or None

    def _brief(self) -> None:
        tools = f"\n{DEVICE}\n{tool_list(self._device.specs())}" if self._device else ""
        self._show(f"You are the user. {self._scenario.instructions}\n\n{HELP}{tools}\n")


def _done(device: Device, line: str) -> str:
    """What a tool shows, or why it does not."""
    try:
        calls = read_reply(line, device.specs()).tool_calls
        return device.run(calls[0]) if calls else f"no tool {nearest(line, (spec.name for spec in device.specs()))}"
    except (ValueError, ToolError) as e:
        return f"That did not work: {e}"
