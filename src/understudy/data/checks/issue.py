"""TaskIssue: why a task cannot be trained on."""

from typing import Literal, NamedTuple

from understudy.core.items import RowError

IssueKind = Literal[
    "unreadable",
    "malformed",
    "other domain",
    "unknown tool",
    "invalid arguments",
    "gold refused",
    "bad setup",
    "too long",
    "gold fails",
    "does nothing",
    "hidden rows",
    "unknown fact",
    "unshown value",
    "guessable",
    "other difficulty",
    "too few reads",
    "fault",
    "no plan",
    "duplicate",
]
"""The kinds of problems; reports count tasks by kind."""
TOOL_ERROR_ISSUES: dict[str, IssueKind] = {
    "unknown_tool": "unknown tool",
    "invalid_arguments": "invalid arguments",
    "malformed": "malformed",
}
"""The kind of a gold call's `ToolError`; any other is "gold refused"."""


class TaskIssue(NamedTuple):
    """A problem of a task."""

    kind: IssueKind
    field: str
    """The field of the task, as a dotted path; "" means the whole task."""
    problem: str

    def at(self, location: str) -> RowError:
        """Return the problem as that of the row at `location`."""
        return RowError(location, self.field, self.problem, self.kind)
