"""Plot the learning curve of one run, or of several seeds, as an SVG for light and dark pages.

    python benchmarks/curve.py runs/seed0 runs/seed1 learning.svg --title "retail, an easy slice; two seeds"

The curve shows the success rate of each step's training episodes, for each run and as the mean of all runs. Each
evaluation is shown with its 95% interval over tasks.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from understudy.evaluation.reports.files import read_report
from understudy.evaluation.statistics import MeanEstimate
from understudy.runs.run import list_run_evaluations, read_metrics, read_run_config

Place = Callable[[float, float], tuple[float, float]]
"""Function from a step and a rate to a position in the picture."""
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


def evaluations(folder: Path) -> Iterator[tuple[int, MeanEstimate]]:
    """Yield the step and the success rate of each evaluation of the run, except those on other domains."""
    for evaluation in list_run_evaluations(folder):
        success = read_report(evaluation.folder).agent_rows[-1].result.success_rate
        if success.tasks and not evaluation.eval_set:
            yield evaluation.step, success


def picture(folders: Sequence[Path], title: str) -> str:
    """Return the SVG."""
    config, curves = read_run_config(folders[0]), [trained(folder) for folder in folders]
    last = max(step for curve in curves for step in curve)

    def at(step: float, value: float) -> tuple[float, float]:
        return LEFT + _across(step, config.steps_before_rl, last) * (WIDTH - LEFT - 24), HEIGHT - BOTTOM - value * (
            HEIGHT - TOP - BOTTOM
        )

    parts = [
        f'<rect class="card" width="{WIDTH}" height="{HEIGHT}" rx="12"/>',
        *_axes(last, config.steps_before_rl, at),
    ]
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
    """Return the horizontal position of a step, from 0 to 1. SFT plays no episodes, so it takes at most a fifth of
    the width.
    """
    warm = min(0.2, prior / last)
    return warm * step / prior if step < prior else warm + (1 - warm) * (step - prior) / max(1, last - prior)


def trained(folder: Path) -> dict[int, float]:
    """Return the success rate of each step's training episodes."""
    name = "rollout/success_rate"
    return {line["step"]: line[name] for line in read_metrics(folder) if name in line}


def _line(kind: str, curve: Mapping[int, float], at: Place) -> str:
    return f'<polyline class="{kind}" points="{" ".join("{:.1f},{:.1f}".format(*at(*p)) for p in curve.items())}"/>'


def _bar(found: MeanEstimate, step: int, aside: float, at: Place) -> Iterator[str]:
    """Yield the marks of an evaluation. `aside` separates the evaluations of several runs after the same step."""
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
        yield _text((left + warm) / 2, bottom + 18, "SFT", "middle")
        yield _text((left + warm) / 2, bottom + 36, f"{prior} steps", "middle")
    yield _text((warm + right) / 2, bottom + 36, f"RL, {last - prior} steps", "middle")
    for step in range(prior + 1, last + 1, 1 + (last - prior) // 20):
        yield _text(at(step, 0.0)[0], bottom + 18, str(step - prior), "middle")


def _legend(tasks: int, runs: int) -> str:
    thin = f" (thick: mean, thin: each of {runs} seeds)" if runs > 1 else ""
    return f"line: success rate of each step's training episodes{thin}; bars: evaluation on {tasks} tasks, 95% interval"


def _text(x: float, y: float, text: str, anchor: str, kind: str = "note") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="run folders of one config, one for each seed")
    parser.add_argument("out", type=Path, help="SVG file to write")
    parser.add_argument("--title", default="success", help="title of the plot (default: %(default)s)")
    arguments = parser.parse_args()
    arguments.out.write_text(picture(arguments.runs, arguments.title), encoding="utf-8")
