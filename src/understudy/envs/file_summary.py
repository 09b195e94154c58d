"""FileSummary: what was read from files of tasks, and what was refused."""

from collections import Counter
from collections.abc import Iterable, Mapping

from understudy.core.items import RowError
from understudy.core.records import Record


class FileSummary(Record):
    """How many rows of which kind were read, who plays them, and which rows were refused."""

    name: str
    """The file, or the name of several."""
    digest: str = ""
    """SHA-256 of the content of the files; empty if they have no local content."""
    rows: dict[str, int]
    """Number of rows by kind, with the refused ones."""
    played_by: dict[str, int] = {}
    """Number of tasks by the source that plays them."""
    splits: dict[str, int] = {}
    """Number of tasks by split."""
    refused: dict[str, int] = {}
    """Number of refused rows by reason."""
    refusals: tuple[str, ...] = ()
    """Every refused row: its location, field and problem."""
    notes: tuple[str, ...] = ()
    """What a reader should know, such as how tasks were assigned to splits."""

    def lines(self) -> list[str]:
        """Return a line with the counts, and one for each note."""
        played = f"played by {_counts(self.played_by)}" if self.played_by else "no tasks"
        lines = [f"{self.name}: {_counts(self.rows)}, {played}; {_counts(self.splits)}"]
        lines += [f"{self.name}: {note}" for note in self.notes]
        if self.refused:
            total = sum(self.refused.values())
            lines.append(f"{self.name}: {total} refused: {_counts(self.refused)}; the first: {self.refusals[0]}")
        return lines


def count_refusals(refused: Iterable[RowError]) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the number of refused rows by reason, and the text of each."""
    found = list(refused)
    return dict(Counter(each.kind for each in found)), tuple(map(str, found))


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"
