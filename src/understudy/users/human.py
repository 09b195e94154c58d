"""HumanUser: a person at a prompt."""

from collections.abc import Callable, Sequence

from understudy.messages import Message
from understudy.prompt import ask_person, print_coloured, read_reply, tool_list
from understudy.tasks import Scenario
from understudy.tools import Device
from understudy.users.user import used

HELP = """\
Write what you say to the agent. An empty line ends the conversation; /help shows this and what you want again, /quit
leaves without a result."""
TOOLS = "These are tools of your own. Type one to use it, such as: tool name=value. The agent sees nothing of that."


class HumanUser:
    """You are the user: `ask` reads a line, `show` prints. Leaving by /quit or a closed terminal is an `EOFError`."""

    def __init__(
        self,
        scenario: Scenario,
        device: Device | None = None,
        ask: Callable[[str], str] = ask_person,
        show: Callable[[str], None] = print_coloured,
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
            elif not self._does(line) and (line or transcript):
                return line or None

    def _does(self, line: str) -> bool:
        """Use a tool of your own, where the line is a call."""
        if self._device is None:
            return False
        try:
            calls = read_reply(line, self._device.specs()).tool_calls
        except ValueError as e:
            self._show(f"That is not a call: {e}")
            return True
        for call in calls:
            self._show(f"tool | {used(self._device, call)}")
        return bool(calls)

    def _brief(self) -> None:
        own = f"\n\n{TOOLS}\n{tool_list(self._device.specs())}" if self._device else ""
        self._show(f"You are the user. {self._scenario.instructions}\n\n{HELP}{own}\n")
