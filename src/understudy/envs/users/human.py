"""HumanUser: a person at a terminal."""

from collections.abc import Callable, Sequence

from understudy.core.messages import Message
from understudy.core.tasks import Scenario
from understudy.core.terminal import PersonLeft, print_conversation, read_line
from understudy.envs.tools import UserTools
from understudy.envs.users.user import run_user_tool
from understudy.formats.typed_calls import format_tool_list, parse_typed_reply

HELP = """\
Type your message to the agent. /end or an empty line ends the conversation, /help shows these instructions again, and
/quit leaves without a result."""
TOOLS_HELP = "You have tools of your own. To use one, type: tool name=value. The agent does not see this."


class HumanUser:
    """User played by a person. `ask` reads a line and `show` prints. Raise PersonLeft at /quit.

    An empty line as the first message is the opening of the scenario.
    """

    def __init__(
        self,
        scenario: Scenario,
        user_tools: UserTools | None = None,
        ask: Callable[[str], str] = read_line,
        show: Callable[[str], None] = print_conversation,
    ) -> None:
        self._scenario = scenario
        self._user_tools = user_tools
        self._ask = ask
        self._show = show

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """Return the typed message, or None after an empty line or /end. Raise PersonLeft at /end as the first line."""
        if transcript:
            self._show(f"\nagent | {transcript[-1].content.strip() or '(says nothing)'}")
        else:
            self._brief()
        while True:
            line = self._ask("user> ").strip()
            if line == "/quit" or (line == "/end" and not transcript):
                raise PersonLeft
            if line == "/help":
                self._brief()
            elif line in ("", "/end"):
                if transcript or self._scenario.opening:
                    return None if transcript else self._scenario.opening
            elif not self._does(line):
                return line

    def _does(self, line: str) -> bool:
        """Run the call if the line is one. Return whether it was."""
        if self._user_tools is None:
            return False
        try:
            calls = parse_typed_reply(line, self._user_tools.specs()).tool_calls
        except ValueError as e:
            self._show(f"This is not a valid call: {e}")
            return True
        for call in calls:
            self._show(f"tool | {run_user_tool(self._user_tools, call)}")
        return bool(calls)

    def _brief(self) -> None:
        own = f"\n\n{TOOLS_HELP}\n{format_tool_list(self._user_tools.specs())}" if self._user_tools else ""
        opening = f"\nAn empty first message sends: {self._scenario.opening}" if self._scenario.opening else ""
        self._show(f"You are the user. {self._scenario.instructions}\n\n{HELP}{opening}{own}\n")
