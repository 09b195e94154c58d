"""A purse: who has spent what, a cap for all, and a file that outlives a crash."""

from decimal import Decimal
from pathlib import Path

import pytest

from understudy.chat import Usage
from understudy.errors import ConfigError
from understudy.purse import Purse

PAID = Usage(requests=1, prompt_tokens=10, completion_tokens=2, cost=Decimal("0.30"))


def test_all_share_one_cap() -> None:
    purse = Purse(Decimal("0.6"))
    purse.of("agent").refuse_where_spent()
    purse.of("agent").pay(PAID)
    purse.of("users").refuse_where_spent()
    purse.of("users").pay(PAID)
    with pytest.raises(ConfigError, match=r"cap 0.6 is reached: 0.6000 is spent \(agent 0.3000, users 0.3000\)"):
        purse.of("judge").refuse_where_spent()
    assert purse.total == Decimal("0.60")
    Purse().of("agent").refuse_where_spent()  # no cap


def test_what_each_came_to_is_what_was_paid_and_what_was_free() -> None:
    purse = Purse()
    purse.of("agent").pay(PAID)
    now = {"users": Usage(), "agent": PAID + Usage(cached=3, rejected=1), "judge": Usage(cached=2)}
    purse.of("agent").pay(PAID)
    assert purse.used(now) == {"agent": PAID + PAID + Usage(cached=3, rejected=1), "judge": Usage(cached=2)}


def test_what_was_paid_before_a_crash_counts_after_it(tmp_path: Path) -> None:
    file = tmp_path / "paid.jsonl"
    for _ in range(3):
        Purse(file=file).of("agent").pay(PAID)
    with file.open("ab") as cut:
        cut.write(b'{"who": "agent", "reque')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "write_bytes", None)  # it empties a file first, and then there may be no room
        purse = Purse(file=file)
    assert purse.spent == {"agent": PAID + PAID + PAID}
    purse.of("users").pay(PAID)
    assert Purse(file=file).spent == {"agent": PAID + PAID + PAID, "users": PAID}
