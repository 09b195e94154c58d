"""A description as pictures: one SVG file each, written by hand, because bars need no library.

Bars stand on a common zero, the largest labelled; text is dark on a white ground, so that it can be read anywhere.
"""

from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from understudy.data.describe import Description
from understudy.disk import AGAIN, writing
from understudy.errors import ConfigError

BINS = 24
"""Bars of a histogram, at most."""

LONGEST = 40
"""Characters of a name that are shown."""

_BLUE, _DARK, _GREY = "#4269d0", "#222", "#777"
_FONT = "font-family='system-ui, sans-serif' font-size='12'"


def pictures(description: Description) -> dict[str, str]:
    """SVG texts by file name: a histogram of each length, and bars of each count."""
    drawn = {name: histogram(f"{name} per task", s.counts) for name, s in description.lengths.items()}
    for name in ("splits", "families", "difficulties", "tools"):
        if counts := getattr(description, name):
            drawn[name] = bars("gold calls by tool" if name == "tools" else f"tasks by {name}", counts)
    return {f"{name.replace(' ', '_')}.svg": text for name, text in drawn.items()}


def write_pictures(description: Description, folder: Path) -> list[Path]:
    """Write all pictures into a folder that is new or empty; returns their paths."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already; give another name, or remove it")
    drawn = {folder / name: text for name, text in pictures(description).items()}
    with writing(folder, AGAIN):
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in drawn.items():
            path.write_text(text, encoding="utf-8")
    return list(drawn)


def bars(title: str, counts: Mapping[str, int]) -> str:
    """Horizontal bars, one for each name, in the order given."""
    left, width, height = 8 + 7 * min(LONGEST, max(map(len, counts))), 420, 22
    most, parts = max(counts.values()), []
    for place, (name, count) in enumerate(counts.items()):
        y, length = 36 + place * height, count / most * width
        parts.append(_text(left - 6, y + 12, name, anchor="end"))
        parts.append(_bar(left, y, length, height - 6, f"{name}: {count:,}"))
        parts.append(_text(left + length + 6, y + 12, f"{count:,}", color=_GREY))
    return _svg(title, left + width + 70, 44 + len(counts) * height, parts)


def histogram(title: str, counts: Mapping[int, int]) -> str:
    """Tasks by a length, in bins of one whole width."""
    low, high = min(counts), max(counts)
    width = -(-(high - low + 1) // BINS)
    heights = [0] * ((high - low) // width + 1)
    for length, count in counts.items():
        heights[(length - low) // width] += count
    step, floor, most, parts = 480 / len(heights), 210, max(heights), []
    for place, count in enumerate(heights):
        first, last = low + place * width, low + place * width + width - 1
        label = f"{first}" if width == 1 else f"{first}-{last}"
        height, x = count / most * 160, 40 + place * step
        parts.append(_bar(x, floor - height, step - 2, height, f"{label}: {count:,}"))
        if place % max(1, len(heights) // 8) == 0:
            parts.append(_text(x + (step - 2) / 2, floor + 16, f"{first}", anchor="middle"))
        if count == most:
            parts.append(_text(x + (step - 2) / 2, floor - height - 4, f"{count:,}", anchor="middle", color=_GREY))
    parts.append(f"<line x1='36' y1='{floor}' x2='524' y2='{floor}' stroke='{_GREY}'/>")
    return _svg(title, 560, 244, parts)


def _bar(x: float, y: float, width: float, height: float, label: str) -> str:
    box = f"x='{x:.1f}' y='{y:.1f}' width='{max(width, 0):.1f}' height='{height:.1f}'"
    return f"<rect {box} rx='2' fill='{_BLUE}'><title>{_plain(label)}</title></rect>"


def _text(x: float, y: float, text: str, anchor: str = "start", color: str = _DARK) -> str:
    shown = _plain(text[:LONGEST])
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' fill='{color}' {_FONT}>{shown}</text>"


def _svg(title: str, width: int, height: int, parts: list[str]) -> str:
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}'>"
    ground = "<rect width='100%' height='100%' fill='white'/>"
    return "\n".join([head, ground, f"<title>{_plain(title)}</title>", _text(8, 20, title), *parts, "</svg>", ""])


def _plain(text: str) -> str:
    """Text as XML may hold it."""
    return escape("".join(character if character.isprintable() else "?" for character in text))
