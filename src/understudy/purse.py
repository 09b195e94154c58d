"""Purse: what a piece of work has spent on models behind endpoints, and how much it may.

Where it has a file, each payment is a line there the moment it is made, so that what was spent before a crash still
counts after it. A cap is looked at before each request: those under way when it is reached are still paid.
"""

import json
import os
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path

from understudy.chat import ChatConfig, Usage
from understudy.errors import ConfigError


class Purse:
    """Several who ask models, and one cap for all of them, in the currency of their prices; 0 sets none."""

    def __init__(self, cap: Decimal = Decimal(0), file: Path | None = None) -> None:
        self.cap, self._file = cap, file
        self.spent: dict[str, Usage] = _read(file) if file and file.exists() else {}
        """What each has come to, in earlier attempts too."""

    @property
    def total(self) -> Decimal:
        """What all have cost."""
        return sum((usage.cost for usage in self.spent.values()), Decimal(0))

    def used(self, now: Mapping[str, Usage]) -> dict[str, Usage]:
        """What each came to, in all attempts; replies from the cache, and those of no use, are of this one (`now`)."""
        total = {who: self.spent.get(who, Usage()) for who in {**now, **self.spent}}
        for who, usage in now.items():
            total[who] += Usage(cached=usage.cached, rejected=usage.rejected)
        return {who: usage for who, usage in total.items() if usage != Usage()}

    def of(self, who: str) -> "Share":
        """The purse in one payer's hand."""
        return Share(self, who)

    def take(self, who: str, usage: Usage) -> None:
        """Pay, and write it down."""
        self.spent[who] = self.spent.get(who, Usage()) + usage
        if self._file:
            line = json.dumps({"who": who, **usage.model_dump(mode="json")})
            with self._file.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")


class Share:
    """A `chat.Payer`: what one of them spends out of a purse."""

    def __init__(self, purse: Purse, who: str) -> None:
        self._purse, self._who = purse, who

    @property
    def capped(self) -> bool:
        """Whether the purse has a cap."""
        return bool(self._purse.cap)

    def refuse_where_spent(self) -> None:
        """Raise a ConfigError once the cap is reached."""
        purse = self._purse
        if purse.cap and purse.total >= purse.cap:
            spent = f"{purse.total:.4f} is spent ({_named(purse.spent)})"
            raise ConfigError(f"the cost cap {purse.cap} is reached: {spent}")

    def pay(self, usage: Usage) -> None:
        """Pay for what was asked."""
        self._purse.take(self._who, usage)


def refuse_unpriced(cap: Decimal, asked: Iterable[ChatConfig]) -> None:
    """A cap where nothing that is asked has a price is a `ConfigError`."""
    if cap and not any(chat.prompt_price or chat.completion_price for chat in asked):
        keys = "chat, user.chat and judge have prompt_price and completion_price"
        raise ConfigError(f"the cost cap {cap}: nothing that is asked has a price; {keys}, per million tokens")


def _named(spent: dict[str, Usage]) -> str:
    return ", ".join(f"{who} {usage.cost:.4f}" for who, usage in spent.items())


def _read(file: Path) -> dict[str, Usage]:
    """What was paid before; a last line that was cut off is left out, and dropped."""
    text = file.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if whole != text:
        os.truncate(file, len(whole))
    spent: dict[str, Usage] = {}
    for line in whole.splitlines():
        paid = json.loads(line)
        who = paid.pop("who")
        spent[who] = spent.get(who, Usage()) + Usage.model_validate(paid)
    return spent
