"""Plots of statistics as hand-written SVG files.

Bars share a zero line, the largest one is labeled, and text is dark on a white background.
"""

from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from understudy.core.errors import ConfigError
from understudy.core.files import RETRY_HINT, os_errors_as_config_errors
from understudy.data.stats import DatasetStats

MAX_BINS = 24
"""The largest number of bars in a histogram."""

MAX_LABEL_CHARS = 40
"""The largest number of characters of a name."""

_BLUE, _DARK, _GREY = "#4269d0", "#222", "#777"
_FONT = "font-family='system-ui, sans-serif' font-size='12'"


def render_plots(description: DatasetStats) -> dict[str, str]:
    """Return SVG texts by file name: a histogram of each length, and bars of each count."""
    drawn = {name: histogram(f"{name} per task", s.counts) for name, s in description.lengths.items()}
    for name in ("splits", "families", "difficulties", "tools"):
        if counts := getattr(description, name):
            drawn[name] = bar_chart("gold calls by tool" if name == "tools" else f"tasks by {name}", counts)
    return {f"{name.replace(' ', '_')}.svg": text for name, text in drawn.items()}


def write_plots(description: DatasetStats, folder: Path) -> list[Path]:
    """Write all plots to a new or empty folder. Return their paths."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} already exists; choose another name, or remove it")
    drawn = {folder / name: text for name, text in render_plots(description).items()}
    with os_errors_as_config_errors(folder, RETRY_HINT):
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in drawn.items():
            path.write_text(text, encoding="utf-8")
    return list(drawn)


def bar_chart(title: str, counts: Mapping[str, int]) -> str:
    """Return horizontal bars for the names, in the given order."""
    left, width, height = 8 + 7 * min(MAX_LABEL_CHARS, max(map(len, counts))), 420, 22
    most, parts = max(counts.values()), []
    for place, (name, count) in enumerate(counts.items()):
        y, length = 36 + place * height, count / most * width
        parts.append(_text(left - 6, y + 12, name, anchor="end"))
        parts.append(_bar(left, y, length, height - 6, f"{name}: {count:,}"))
        parts.append(_text(left + length + 6, y + 12, f"{count:,}", color=_GREY))
    return _svg(title, left + width + 70, 44 + len(counts) * height, parts)


def histogram(title: str, counts: Mapping[int, int]) -> str:
    """Return a histogram of tasks by length, with bins of equal integer width."""
    low, high = min(counts), max(counts)
    width = -(-(high - low + 1) // MAX_BINS)
    heights = [0] * ((high - low) // width + 1)
    for length, count in counts.items():
        heights[(length - low) // width] += count
    step = 480 / len(heights)
    floor = 210
    most = max(heights)
    parts = []
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
    shown = _plain(text[:MAX_LABEL_CHARS])
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' fill='{color}' {_FONT}>{shown}</text>"


def _svg(title: str, width: int, height: int, parts: list[str]) -> str:
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}'>"
    ground = "<rect width='100%' height='100%' fill='white'/>"
    return "\n".join([head, ground, f"<title>{_plain(title)}</title>", _text(8, 20, title), *parts, "</svg>", ""])


def _plain(text: str) -> str:
    """Escape text for XML."""
    return escape("".join(character if character.isprintable() else "?" for character in text))
