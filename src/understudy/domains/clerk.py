"""Clerk: a toolkit that serves one customer a conversation, and keeps the data of all others closed."""

from collections.abc import Container, Mapping, MutableMapping
from typing import Any, ClassVar, Generic, TypeVar

from understudy.errors import ToolError
from understudy.records import Record
from understudy.state import State
from understudy.tools import Toolkit

C = TypeVar("C", bound=Record)
R = TypeVar("R", bound=Record)


class Clerk(Toolkit, Generic[C]):
    """What the tools of a desk share; it has no tools of its own. `C` is the row of a customer.

    The state has `customer`, the key of the one who was found, and `transferred`.
    """

    _state: Any
    _found_by: ClassVar[str] = "by email or by name and zip"

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._read: set[str] = set()

    @property
    def _customers(self) -> MutableMapping[str, C]:
        customers: MutableMapping[str, C] = self._state.customers
        return customers

    def _find(self, key: str, unknown: str) -> C:
        """Open a customer's data, and nobody else's from then on; without one, refuse in the words given."""
        if key not in self._customers:
            raise ToolError(unknown)
        if self._state.customer not in ("", key):
            raise ToolError("this conversation is with another customer; their data alone is open to you", "forbidden")
        self._state.customer = key
        return self._customers[key]

    def _customer(self) -> C:
        """The customer who was found."""
        if self._state.transferred:
            raise ToolError("the customer has been transferred; nothing more can be done here")
        if not self._state.customer:
            raise ToolError(f"find the customer first, {self._found_by}")
        return self._customers[self._state.customer]

    def _own(self, kind: str, key: str, keys: Container[str], rows: Mapping[str, R]) -> R:
        """A row that is among the customer's keys."""
        if key not in keys:
            raise ToolError(f"the customer has no {kind} {key!r}", "forbidden" if key in rows else "refused")
        return rows[key]

    def _save_customer(self, customer: C) -> None:
        self._customers[self._state.customer] = customer
