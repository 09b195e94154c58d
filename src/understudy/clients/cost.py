"""CostTracker: what a training run or an evaluation has spent on models behind endpoints, and its cost cap.

Every endpoint client of the run reports to it. With a file (`cost.jsonl`), each paid request is written as one line at
once, so that its cost counts after a crash too. The cap is checked before each request; requests in flight when it is
reached are still paid. A training run has no cap here: it checks `cost_limit` between steps, to end with a checkpoint.
"""

import json
import os
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path

from pydantic_core import from_json

from understudy.clients.chat import EndpointConfig, ModelUsage
from understudy.core.errors import ConfigError, LimitReachedError
from understudy.core.files import append_bytes, os_errors_as_config_errors, read_bytes

COST_FILE = "cost.jsonl"
"""The file in the folder of a run or an evaluation."""


class CostTracker:
    """The cost of several roles and one cap for all of them, in the currency of the prices.

    A cap of 0 sets no limit.
    """

    def __init__(self, cap: Decimal = Decimal(0), file: Path | None = None) -> None:
        self.cap, self._file = cap, file
        self._usage_by_role: dict[str, ModelUsage] = _read(file) if file and file.exists() else {}
        self._own_usage: dict[str, ModelUsage] = {}

    @property
    def usage_by_role(self) -> dict[str, ModelUsage]:
        """Usage of each role that has any, including earlier attempts of the run.

        Cached and unusable replies are counted for this attempt only.
        """
        return {role: usage for role, usage in sorted(self._usage_by_role.items()) if usage != ModelUsage()}

    @property
    def total_cost(self) -> Decimal:
        """The cost of all roles."""
        return sum((usage.cost for usage in self._usage_by_role.values()), Decimal(0))

    def budget_for(self, role: str) -> "RoleBudget":
        """Return the budget of one role."""
        return RoleBudget(self, role)

    def record_own_usage(self, role: str, usage: ModelUsage) -> None:
        """Add the usage of one request of this process, and append it to the file if it was paid."""
        self._own_usage[role] = self._own_usage.get(role, ModelUsage()) + usage
        self.add_usage(role, usage)

    def add_usage(self, role: str, usage: ModelUsage) -> None:
        """Add usage, of this process or another one, and append it to the file if it was paid."""
        self._usage_by_role[role] = self._usage_by_role.get(role, ModelUsage()) + usage
        if self._file and usage.requests:
            line = json.dumps({"role": role, **usage.model_dump(mode="json")})
            with os_errors_as_config_errors(self._file.parent, "continue with --resume"):
                append_bytes(self._file, f"{line}\n".encode())

    def pop_own_usage(self) -> dict[str, ModelUsage]:
        """Return what this process has recorded since the last call, for the trackers of other processes."""
        own_usage, self._own_usage = self._own_usage, {}
        return own_usage


class RoleBudget:
    """The `chat.Budget` of one role."""

    def __init__(self, tracker: CostTracker, role: str) -> None:
        self._tracker, self._role = tracker, role

    @property
    def has_cap(self) -> bool:
        """Whether the tracker has a cap."""
        return bool(self._tracker.cap)

    def check_cap(self) -> None:
        """Raise LimitReachedError if the cap is reached."""
        tracker = self._tracker
        if tracker.cap and tracker.total_cost >= tracker.cap:
            roles = ", ".join(f"{role} {usage.cost:.4f}" for role, usage in tracker.usage_by_role.items())
            raise LimitReachedError(
                f"the cost limit {tracker.cap} is reached: {tracker.total_cost:.4f} is spent ({roles})"
            )

    def record(self, usage: ModelUsage) -> None:
        """Add the usage of one request."""
        self._tracker.record_own_usage(self._role, usage)


def validate_prices(cap: Decimal, configs: Iterable[EndpointConfig]) -> None:
    """Raise ConfigError if there is a cap but no endpoint has a price."""
    if cap and not any(endpoint.prompt_price or endpoint.completion_price for endpoint in configs):
        raise ConfigError(
            f"cost_limit = {cap}: no endpoint that is called has a price; set endpoints.NAME.prompt_price and "
            "endpoints.NAME.completion_price (per million tokens), or leave out the limit"
        )


def _read(file: Path) -> dict[str, ModelUsage]:
    """Return the usage of each role in the file. A truncated last line is removed from the file."""
    content = read_bytes(file)
    complete = content[: content.rfind(b"\n") + 1]
    if complete != content:
        os.truncate(file, len(complete))
    usage_by_role: dict[str, ModelUsage] = {}
    for number, line in enumerate(complete.splitlines(), 1):
        try:
            fields = from_json(line)
            role = fields.pop("role")
            usage = ModelUsage.model_validate(fields)
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise ConfigError(
                f"{file}:{number} is damaged ({type(e).__name__}); remove that line, whose cost is then lost"
            ) from e
        usage_by_role[role] = usage_by_role.get(role, ModelUsage()) + usage
    return usage_by_role
