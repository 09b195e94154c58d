"""Test `CostTracker`: usage by role, the shared cost limit, and the file that survives a crash."""

from decimal import Decimal
from pathlib import Path

import pytest

from understudy.clients.chat import ModelUsage
from understudy.clients.cost import CostTracker
from understudy.core.errors import LimitReachedError

PAID_USAGE = ModelUsage(requests=1, prompt_tokens=10, completion_tokens=2, cost=Decimal("0.30"))


def test_cost_limit_is_shared_by_all_roles() -> None:
    tracker = CostTracker(Decimal("0.6"))
    tracker.budget_for("agent").check_cap()
    tracker.budget_for("agent").record(PAID_USAGE)
    tracker.budget_for("users").check_cap()
    tracker.budget_for("users").record(PAID_USAGE)
    with pytest.raises(LimitReachedError, match=r"0\.6\b.*0\.6000.*agent 0\.3000, users 0\.3000"):
        tracker.budget_for("judge").check_cap()
    assert tracker.total_cost == Decimal("0.60")
    CostTracker().budget_for("agent").check_cap()  # no cap


def test_usage_counts_cached_and_rejected_replies(tmp_path: Path) -> None:
    file = tmp_path / "cost.jsonl"
    tracker = CostTracker(file=file)
    tracker.budget_for("users").record(ModelUsage())
    tracker.budget_for("judge").record(ModelUsage(cache_hits=2))
    for usage in (PAID_USAGE, ModelUsage(cache_hits=3), ModelUsage(rejected_replies=1), PAID_USAGE):
        tracker.budget_for("agent").record(usage)
    assert tracker.usage_by_role == {
        "agent": PAID_USAGE + PAID_USAGE + ModelUsage(cache_hits=3, rejected_replies=1),
        "judge": ModelUsage(cache_hits=2),
    }
    assert len(file.read_text().splitlines()) == 2
    assert CostTracker(file=file).usage_by_role == {"agent": PAID_USAGE + PAID_USAGE}


def test_usage_is_exchanged_between_processes(tmp_path: Path) -> None:
    first, second = CostTracker(file=tmp_path / "first"), CostTracker(file=tmp_path / "second")
    first.budget_for("users").record(PAID_USAGE)
    second.budget_for("users").record(PAID_USAGE + PAID_USAGE)
    for role, usage in second.pop_own_usage().items():
        first.add_usage(role, usage)
    assert second.pop_own_usage() == {}
    assert first.pop_own_usage() == {"users": PAID_USAGE}, "what came from others is not shared again"
    assert first.total_cost == 3 * PAID_USAGE.cost
    assert CostTracker(file=tmp_path / "first").usage_by_role == {"users": PAID_USAGE + PAID_USAGE + PAID_USAGE}


def test_cost_before_a_crash_counts_after_it(tmp_path: Path) -> None:
    file = tmp_path / "cost.jsonl"
    for _ in range(3):
        CostTracker(file=file).budget_for("agent").record(PAID_USAGE)
    with file.open("ab") as cut:
        cut.write(b'{"role": "agent", "reque')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "write_bytes", None)  # it truncates the file first, and the disk may then be full
        tracker = CostTracker(file=file)
    assert tracker.usage_by_role == {"agent": PAID_USAGE + PAID_USAGE + PAID_USAGE}
    tracker.budget_for("users").record(PAID_USAGE)
    assert CostTracker(file=file).usage_by_role == {"agent": PAID_USAGE + PAID_USAGE + PAID_USAGE, "users": PAID_USAGE}
