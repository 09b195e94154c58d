"""CustomerToolkit: tools that serve one customer in a conversation and give no access to other customers' data."""

from collections.abc import Container, Mapping, MutableMapping
from typing import Any, ClassVar, Generic, TypeVar

from understudy.core.errors import ToolError
from understudy.core.records import Record
from understudy.envs.state import State
from understudy.envs.tools import Toolkit

C = TypeVar("C", bound=Record)
R = TypeVar("R", bound=Record)


class CustomerToolkit(Toolkit, Generic[C]):
    """The base of the domains' toolkits, without tools of its own. `C` is the row type of a customer.

    The state has `customer`, the key of the customer who was found, and `transferred`.
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
        """Give access to a customer's data, and then to no other. Raise `ToolError` with `unknown` if there is none."""
        if key not in self._customers:
            raise ToolError(unknown)
        if self._state.customer not in ("", key):
            raise ToolError("this conversation is with another customer; you can only access their data", "forbidden")
        self._state.customer = key
        return self._customers[key]

    def _customer(self) -> C:
        """Return the customer who was found."""
        if self._state.transferred:
            raise ToolError("the customer has been transferred to a human agent; no further actions are possible")
        if not self._state.customer:
            raise ToolError(f"find the customer first, {self._found_by}")
        return self._customers[self._state.customer]

    def _own(self, kind: str, key: str, keys: Container[str], rows: Mapping[str, R]) -> R:
        """Return a row that belongs to the customer."""
        if key not in keys:
            raise ToolError(f"the customer has no {kind} {key!r}", "forbidden" if key in rows else "refused")
        return rows[key]

    def _save_customer(self, customer: C) -> None:
        self._customers[self._state.customer] = customer
