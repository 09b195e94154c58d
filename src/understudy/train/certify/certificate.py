"""The result of a certification: checks with measurements and diffs, and intended deviations from the template."""

import io
import shutil
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from understudy.core.records import Record

MAX_DIFFS = 3
"""Number of problems that are printed for each failed check."""


class CertificateCheck(Record):
    """One check of a certification."""

    subject: str
    """What is checked: the format, or an engine."""
    name: str
    passed: bool
    measurements: str
    """How much was compared, and the number of problems or the size of the differences."""
    diff: str = ""
    """The first problems, each with a diff; empty if the check passed."""


class Certificate(Record):
    """The result of the certification of one model."""

    model: str
    format: str
    """The class of the chat format."""
    checks: tuple[CertificateCheck, ...]
    deviations: tuple[str, ...] = ()
    """Intended differences between the format and the model's own template."""
    notes: tuple[str, ...] = ()
    """Untrained control tokens, and what training does about them."""
    seconds: float = 0.0
    """Seconds that the certification took."""

    @property
    def passed(self) -> bool:
        """True if every check passed."""
        return all(check.passed for check in self.checks)


def make_check(subject: str, name: str, measurements: str, problems: Sequence[str]) -> CertificateCheck:
    """Return a check that passes if `problems` is empty. A problem is a line of text, with a diff below it."""
    more = [f"… and {len(problems) - MAX_DIFFS} more"] if len(problems) > MAX_DIFFS else []
    figures = f"{len(problems)} problems; {measurements}" if problems else measurements
    return CertificateCheck(
        subject=subject,
        name=name,
        passed=not problems,
        measurements=figures,
        diff="\n\n".join([*problems[:MAX_DIFFS], *more]),
    )


def describe_first_failure(checks: Sequence[CertificateCheck]) -> str:
    """Return the first failed check as one line."""
    return next(f"{check.subject}: {check.name}: {check.measurements}" for check in checks if not check.passed)


def format_diffs(checks: Sequence[CertificateCheck]) -> str:
    """Return the diffs of the failed checks, each below the name of its check."""
    return "\n\n".join(
        f"{check.subject}: {check.name}: {check.measurements}\n{check.diff}" for check in checks if not check.passed
    )


def certificate_to_dict(certificate: Certificate) -> dict[str, Any]:
    """Return the certificate as JSON values, with the key `passed`."""
    return {"passed": certificate.passed, **certificate.model_dump(mode="json")}


def format_certificate(certificate: Certificate) -> str:
    """Return a table of the checks, the intended deviations, the diffs, and the result."""
    console = Console(width=max(100, shutil.get_terminal_size().columns), file=io.StringIO())
    with console.capture() as capture:
        console.print(_table(certificate))
    return "\n".join([capture.get().rstrip(), *_below(certificate)])


def _table(certificate: Certificate) -> Table:
    table = Table(title=f"{certificate.model}, {certificate.format}", title_justify="left")
    for name in ("subject", "check", "", "measurements"):
        table.add_column(name, no_wrap=name != "measurements")
    for subject, checks in groupby(certificate.checks, key=lambda check: check.subject):
        for place, check in enumerate(checks):
            cells = ("" if place else subject, check.name, "ok" if check.passed else "FAILED", check.measurements)
            table.add_row(*map(Text, cells))
        table.add_section()
    return table


def _below(certificate: Certificate) -> Iterator[str]:
    yield from (f"intended deviation: {deviation}" for deviation in certificate.deviations)
    yield from certificate.notes
    if not certificate.passed:
        yield f"\n{format_diffs(certificate.checks)}\n"
    failed = sum(not check.passed for check in certificate.checks)
    verdict = f"{failed} of {len(certificate.checks)} checks failed" if failed else "certified"
    yield f"{verdict}; time: {certificate.seconds:.0f} s"
