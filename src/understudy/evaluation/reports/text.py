"""A report as text for a terminal."""

import io
import shutil
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from understudy.evaluation.failures.causes import EpisodeFailure
from understudy.evaluation.reports.report import EvalReport, RunReport, title_eval_set
from understudy.evaluation.reports.tables import (
    TableCells,
    cause_cells,
    detail_tables,
    group_cells,
    hardest_tables,
    report_notes,
    success_cells,
)

_NARROW = 70
"""Columns below which tables have no frame."""


def report_to_text(report: EvalReport, is_brief: bool = False) -> str:
    """Return the report as text for a terminal; if brief, without the tables of single tasks and of their groups."""
    results = {report.title: success_cells(report)}
    details = detail_tables(report)
    if not is_brief:
        results["By family and difficulty"] = group_cells(report)
        details |= hardest_tables(report)
    usage = [f"{row.name}, {role}: {used}" for row in report.rows for role, used in row.result.usage.items()]
    lines = [render_tables(results), "", *usage, report.verdict]
    return "\n".join([*lines, *filter(None, [render_tables(details)]), *report_notes(report)])


def run_report_to_text(report: RunReport, is_brief: bool = False) -> str:
    """Return the results as text for a terminal."""
    others = (f"{title_eval_set(name)}\n{report_to_text(other, is_brief)}" for name, other in report.others.items())
    return "\n\n".join([report_to_text(report.held_out, is_brief), *others])


def format_causes(failures: Sequence[EpisodeFailure], title: str) -> str:
    """Return a table of why episodes failed, as text for a terminal."""
    return render_tables({title: cause_cells(failures)})


def render_tables(tables: Mapping[str, TableCells]) -> str:
    """Return tables under their titles, as text for a terminal."""
    columns = shutil.get_terminal_size().columns
    is_narrow = columns < _NARROW
    console = Console(width=columns if is_narrow else max(100, columns), file=io.StringIO())
    with console.capture() as capture:
        for title, cells in tables.items():
            console.print(_render_table(title, cells, is_narrow))
    return capture.get().rstrip()


def _render_table(title: str, cells: TableCells, is_narrow: bool) -> Table:
    """Return a table. On a narrow terminal it has no frame, and intervals are below their rates."""
    if is_narrow:
        cells = [cells[0], *([cell.replace(" [", "\n[") for cell in line] for line in cells[1:])]
    table = Table(title=title, title_justify="left")
    if is_narrow:
        table.box, table.padding = None, (0, 1, 0, 0)
    for place, name in enumerate(cells[0]):
        table.add_column(Text(name), justify="right" if place else "left")
    for line in cells[1:]:
        table.add_row(*map(Text, line))
    return table
