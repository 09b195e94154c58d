"""A help desk for e-readers, whose user has one tool of their own: `understudy check reader_desk:DOMAIN`.

The agent looks up the account and tells the user to sync. The user does it with their tool, and a success check settles
the goal.
"""

import random

from understudy import (
    Domain,
    Message,
    Record,
    Scenario,
    State,
    Table,
    Task,
    ToolCall,
    ToolError,
    Toolkit,
    UserGoal,
    gold_call,
    gold_text,
)
from understudy.core.tasks import SuccessCheck, UserAction

TITLES = ("Atlas", "Bread", "Comets", "Dunes", "Echoes", "Ferns")


class Reader(Record):
    """An e-reader. `synced` says whether the bought book is on it."""

    title: str
    synced: bool = False


class Desk(State):
    """The database. The id of a reader is that of its account."""

    readers: Table[Reader]


class AgentTools(Toolkit):
    """What the agent can do: read the account. It cannot see or touch the reader."""

    _state: Desk

    def get_purchase(self, account_id: str) -> str:
        """Look up the book that an account has bought last."""
        if account_id not in self._state.readers:
            raise ToolError(f"there is no account {account_id}")
        return self._state.readers[account_id].title


class UserTools(Toolkit):
    """What the user can do with the reader in their hands."""

    _state: Desk

    def sync_reader(self, account_id: str) -> str:
        """Download the books of the account."""
        self._state.readers[account_id] = self._state.readers[account_id].replace(synced=True)
        return "It says: download finished."

    def look_at_shelf(self, account_id: str) -> str:
        """Look whether the book is there."""
        reader = self._state.readers[account_id]
        return f"{reader.title} is on the shelf." if reader.synced else "The shelf is empty."


def build_world() -> Desk:
    """Return the rows."""
    return Desk(readers={f"A{n}": Reader(title=TITLES[n % 6]) for n in range(60)})


def sync(rng: random.Random) -> Task:
    """Return a task: a bought book is not on the reader until its user syncs it."""
    number = rng.randrange(60)
    account = f"A{number}"
    wish = f"I am {account}, and my new book is not on my reader."
    do = ToolCall(name="sync_reader", arguments={"account_id": account})
    look = ToolCall(name="look_at_shelf", arguments={"account_id": account})
    shelf = SuccessCheck(call=look, expected_output="is on the shelf", success_text="The book is there now.")
    return Task(
        scenario=Scenario(
            instructions=f"{wish} Sync the reader only if the agent tells you to.",
            opening=f"Hello! {wish}",
            goals=(UserGoal(text=wish, success_check=shelf),),
            user_actions=(UserAction(call=do, required_terms=("reader", "sync")),),
        ),
        gold=(
            gold_call("get_purchase", account_id=account),
            gold_text("Please sync the reader now."),
            Message(role="user", tool_calls=(do,)),
            gold_text("Have fun with it."),
        ),
    )


POLICY = "You help owners of e-readers. Look up the purchase, then tell the user to sync the reader."
DOMAIN = Domain(__name__, build_world, AgentTools, {"sync": sync}, policy=POLICY, user_tools=UserTools)
