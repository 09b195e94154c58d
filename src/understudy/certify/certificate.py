"""What a certification found: checks with their figures, known deviations, and a diff where something differs."""

import io
import shutil
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from understudy.records import Record

MOST_SHOWN = 3
"""Differences of one check that are printed."""


class Check(Record):
    """One thing that has to hold."""

    of: str
    """What is looked at: the format, or an engine."""
    name: str
    ok: bool
    figures: str
    """What was compared, and how far apart it is."""
    diff: str = ""
    """Where it differs, side by side with what should be there; empty where it holds."""


class Certificate(Record):
    """Whether what a model samples is what it is trained on."""

    model: str
    format: str
    """The class of the chat format."""
    checks: tuple[Check, ...]
    deviations: tuple[str, ...] = ()
    """Where the format does on purpose otherwise than the model's own template."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether every check holds."""
        return all(check.ok for check in self.checks)


def outcome(of: str, name: str, figures: str, problems: Sequence[str]) -> Check:
    """A check that holds where there are no problems; each is a line that says where, and a diff below it."""
    more = [f"… and {len(problems) - MOST_SHOWN} more"] if len(problems) > MOST_SHOWN else []
    found = f"{len(problems)} differ; {figures}" if problems else figures
    return Check(of=of, name=name, ok=not problems, figures=found, diff="\n\n".join([*problems[:MOST_SHOWN], *more]))


def first_failed(checks: Sequence[Check]) -> str:
    """The first check that does not hold, as the end of a sentence."""
    return next(f"{check.of}: {check.name}: {check.figures}" for check in checks if not check.ok)


def diffs(checks: Sequence[Check]) -> str:
    """The diffs of the checks that failed, each under its name."""
    return "\n\n".join(f"{check.of}: {check.name}: {check.figures}\n{check.diff}" for check in checks if not check.ok)


def as_json(certificate: Certificate) -> dict[str, Any]:
    """The certificate as plain values, with its verdict."""
    return {"ok": certificate.ok, **certificate.model_dump(mode="json")}


def as_text(certificate: Certificate) -> str:
    """A table of the checks, what deviates on purpose, the diffs, and the verdict."""
    console = Console(width=max(100, shutil.get_terminal_size().columns), file=io.StringIO())
    with console.capture() as capture:
        console.print(_table(certificate))
    return "\n".join([capture.get().rstrip(), *_below(certificate)])


def _table(certificate: Certificate) -> Table:
    table = Table(title=f"{certificate.model}, {certificate.format}", title_justify="left")
    for name in ("of", "check", "", "figures"):
        table.add_column(name, no_wrap=name != "figures")
    for of, checks in groupby(certificate.checks, key=lambda check: check.of):
        for place, check in enumerate(checks):
            cells = ("" if place else of, check.name, "ok" if check.ok else "FAILED", check.figures)
            table.add_row(*map(Text, cells))
        table.add_section()
    return table


def _below(certificate: Certificate) -> Iterator[str]:
    yield from (f"as documented: {deviation}" for deviation in certificate.deviations)
    if not certificate.ok:
        yield f"\n{diffs(certificate.checks)}\n"
    failed = sum(not check.ok for check in certificate.checks)
    verdict = f"{failed} of {len(certificate.checks)} checks failed" if failed else "certified"
    yield f"{verdict}, in {certificate.seconds:.0f} s"
