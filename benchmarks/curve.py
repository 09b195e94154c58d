"""The learning curve of a run, or of several seeds of one, as a picture for dark and for light pages.

    python benchmarks/curve.py runs/seed0 runs/seed1 learning.svg --title "retail, an easy slice; two seeds"

Shown are the success of each step's fresh training episodes, for several runs each one's and their mean, and of each
evaluation with its 95% interval over tasks.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from understudy.evaluation import Evaluation
from understudy.run import read_config, read_metrics
from understudy.statistics import Rate

Place = Callable[[float, float], tuple[float, float]]
"""From a step and a rate to a place in the picture."""
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 860, 380, 64, 64, 56
STYLE = """<style>
  .card { fill: #ffffff } text { fill: #1b1f24 } .note { fill: #48515c; font-size: 12px } .grid { stroke: #d5dbe3 }
  .train { fill: none; stroke: #33547f; stroke-width: 2 } .each { stroke-width: 1; opacity: 0.5 } .dot { fill: #33547f }
  .eval { stroke: #a14a00; fill: #a14a00; stroke-width: 2 } .warm { fill: #eef3fb }
  @media (prefers-color-scheme: dark) {
    .card { fill: #14181d } text { fill: #e9edf2 } .note { fill: #aeb8c4 } .grid { stroke: #37404b }
    .train { stroke: #7ea6dd } .dot { fill: #7ea6dd } .eval { stroke: #f0a35e; fill: #f0a35e } .warm { fill: #1d2a3c }
  }
</style>"""


def evaluations(folder: Path) -> Iterator[tuple[int, Rate]]:
    """The step and the success of each evaluation that the run keeps."""
    for path in sorted((folder / "evaluations").glob("*.json")):
        found = Evaluation.model_validate_json(path.read_text(encoding="utf-8"))
        if (success := found.success).tasks:
            yield int(path.name.split()[0]), success


def picture(folders: Sequence[Path], title: str) -> str:
    """The SVG."""
    config, curves = read_config(folders[0]), [trained(folder) for folder in folders]
    last = max(step for curve in curves for step in curve)

    def at(step: float, value: float) -> tuple[float, float]:
        return LEFT + _across(step, config.prior, last) * (WIDTH - LEFT - 24), HEIGHT - BOTTOM - value * (
            HEIGHT - TOP - BOTTOM
        )

    parts = [f'<rect class="card" width="{WIDTH}" height="{HEIGHT}" rx="12"/>', *_axes(last, config.prior, at)]
    if len(curves) > 1:
        parts += [_line("train each", curve, at) for curve in curves]
    shared = sorted(set.intersection(*map(set, curves)))
    middle = {step: sum(curve[step] for curve in curves) / len(curves) for step in shared}
    parts.append(_line("train", middle, at))
    parts += ['<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="3.5"/>'.format(*at(*point)) for point in middle.items()]
    for i, folder in enumerate(folders):
        for step, found in evaluations(folder):
            parts += _bar(found, step, 7 * (i - (len(folders) - 1) / 2), at)
    parts += [_text(LEFT, 28, title, "start", ""), _text(LEFT, 48, _legend(config.eval.tasks, len(folders)), "start")]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-size="15" '
    return (
        f'{head}font-family="system-ui, sans-serif">\n<title>{escape(title)}</title>\n{STYLE}\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _across(step: float, prior: int, last: int) -> float:
    """How far to the right a step is. Imitation plays no episodes, so it gets a fifth of the width at most."""
    warm = min(0.2, prior / last)
    return warm * step / prior if step < prior else warm + (1 - warm) * (step - prior) / max(1, last - prior)


def trained(folder: Path) -> dict[int, float]:
    """The success of each step's training episodes."""
    name = "reward/success_rate"
    return {line["step"]: line[name] for line in read_metrics(folder) if name in line}


def _line(kind: str, curve: Mapping[int, float], at: Place) -> str:
    return f'<polyline class="{kind}" points="{" ".join("{:.1f},{:.1f}".format(*at(*p)) for p in curve.items())}"/>'


def _bar(found: Rate, step: int, aside: float, at: Place) -> Iterator[str]:
    """An evaluation, a little aside of the others after this step."""
    (x, low), (_, high), (_, middle) = at(step, found.low), at(step, found.high), at(step, found.mean)
    yield f'<path class="eval" d="M{x + aside:.1f} {low:.1f}V{high:.1f}"/>'
    yield f'<rect class="eval" x="{x + aside - 3:.1f}" y="{middle - 3:.1f}" width="6" height="6"/>'


def _axes(last: int, prior: int, at: Place) -> Iterator[str]:
    (left, bottom), (right, top) = at(0, 0.0), at(last, 1.0)
    warm = at(prior, 0.0)[0]
    yield f'<rect class="warm" x="{left:.1f}" y="{top:.1f}" width="{warm - left:.1f}" height="{bottom - top:.1f}"/>'
    for tenth in range(0, 11, 2):
        y = at(0, tenth / 10)[1]
        yield f'<path class="grid" d="M{left:.1f} {y:.1f}H{right:.1f}"/>'
        yield _text(left - 8, y + 4, f"{tenth / 10:.1f}", "end")
    if prior:
        yield _text((left + warm) / 2, bottom + 18, "imitation", "middle")
        yield _text((left + warm) / 2, bottom + 36, f"{prior} steps", "middle")
    yield _text((warm + right) / 2, bottom + 36, f"reinforcement, {last - prior} steps", "middle")
    for step in range(prior + 1, last + 1, 1 + (last - prior) // 20):
        yield _text(at(step, 0.0)[0], bottom + 18, str(step - prior), "middle")


def _legend(tasks: int, runs: int) -> str:
    what = "line: success of a step's fresh training episodes" + (f" (thin: each of {runs} seeds)" if runs > 1 else "")
    return f"{what}; bars: evaluation on {tasks} tasks, 95% interval"


def _text(x: float, y: float, text: str, anchor: str, kind: str = "note") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("out", type=Path)
    parser.add_argument("--title", default="success")
    arguments = parser.parse_args()
    arguments.out.write_text(picture(arguments.runs, arguments.title), encoding="utf-8")
