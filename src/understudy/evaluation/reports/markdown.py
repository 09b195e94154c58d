"""A report as Markdown."""

from understudy.evaluation.reports.report import EvalReport, RunReport, title_eval_set
from understudy.evaluation.reports.tables import (
    TableCells,
    detail_tables,
    group_cells,
    hardest_tables,
    report_notes,
    success_cells,
)


def report_to_markdown(report: EvalReport) -> str:
    """Return the report as Markdown."""
    lines = [f"**{report.title}**", "", *render_markdown_table(success_cells(report)), "", report.verdict, ""]
    lines += [*render_markdown_table(group_cells(report)), ""]
    for title, cells in (detail_tables(report) | hardest_tables(report)).items():
        lines += [f"**{title}**", "", *render_markdown_table(cells), ""]
    return "\n".join([*lines, *report_notes(report)]).rstrip() + "\n"


def run_report_to_markdown(report: RunReport) -> str:
    """Return the results as Markdown."""
    others = (f"## {title_eval_set(name)}\n\n{report_to_markdown(other)}" for name, other in report.others.items())
    return "\n".join([report_to_markdown(report.held_out), *others])


def render_markdown_table(cells: TableCells) -> list[str]:
    """Return a table as lines of Markdown."""
    rule = ["---", *["---:"] * (len(cells[0]) - 1)]
    safe = [[cell.replace("|", "\\|").replace("<", "&lt;") for cell in line] for line in cells]
    return [f"| {' | '.join(line)} |" for line in (safe[0], rule, *safe[1:])]
