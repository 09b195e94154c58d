"""The learning curve of a run, as a picture that can be read on dark and on light pages.

    python benchmarks/curve.py runs/default-001 docs/images/learning.svg --title "retail, an easy slice; seed 0"

Shown are the success of each step's fresh training episodes, and of each evaluation with its 95% interval over tasks.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from xml.sax.saxutils import escape

from understudy.evaluate import Evaluation
from understudy.run import read_config, read_metrics
from understudy.statistics import Rate, rate

Place = Callable[[float, float], tuple[float, float]]
"""From a step and a rate to a place in the picture."""
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 860, 380, 64, 64, 56
STYLE = """<style>
  .card { fill: #ffffff } text { fill: #1b1f24 } .note { fill: #48515c; font-size: 12px } .grid { stroke: #d5dbe3 }
  .train { fill: none; stroke: #33547f; stroke-width: 2 } .dot { fill: #33547f }
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
        if means := [
            sum(r == 1.0 for r in done) / len(done) for each in found.results if (done := whole(each.rewards))
        ]:
            yield int(path.name.split()[0]), rate(means)


def whole(rewards: Iterable[float | None]) -> list[float]:
    """Rewards without those of episodes that the machinery failed."""
    return [reward for reward in rewards if reward is not None]


def picture(folder: Path, title: str) -> str:
    """The SVG."""
    config, lines = read_config(folder), read_metrics(folder)
    last = max(line["step"] for line in lines)
    trained = [(line["step"], line["reward/success_rate"]) for line in lines if "reward/success_rate" in line]

    def at(step: float, value: float) -> tuple[float, float]:
        return LEFT + step / last * (WIDTH - LEFT - 24), HEIGHT - BOTTOM - value * (HEIGHT - TOP - BOTTOM)

    parts = [f'<rect class="card" width="{WIDTH}" height="{HEIGHT}" rx="12"/>', *_axes(last, config.prior, at)]
    parts.append(
        '<polyline class="train" points="' + " ".join("{:.1f},{:.1f}".format(*at(*point)) for point in trained) + '"/>'
    )
    parts += ['<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="3.5"/>'.format(*at(*point)) for point in trained]
    for step, found in evaluations(folder):
        (x, low), (_, high), (_, mean) = at(step, found.low), at(step, found.high), at(step, found.mean)
        parts.append(f'<path class="eval" d="M{x:.1f} {low:.1f}V{high:.1f}"/>')
        parts.append(f'<rect class="eval" x="{x - 4:.1f}" y="{mean - 4:.1f}" width="8" height="8"/>')
    parts += [_text(LEFT, 28, title, "start", ""), _text(LEFT, 48, _legend(config.eval.tasks), "start")]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-size="15" '
    return (
        f'{head}font-family="system-ui, sans-serif">\n<title>{escape(title)}</title>\n{STYLE}\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _axes(last: int, prior: int, at: Place) -> Iterator[str]:
    (left, bottom), (right, top) = at(0, 0.0), at(last, 1.0)
    warm = at(prior, 0.0)[0]
    yield f'<rect class="warm" x="{left:.1f}" y="{top:.1f}" width="{warm - left:.1f}" height="{bottom - top:.1f}"/>'
    for tenth in range(0, 11, 2):
        y = at(0, tenth / 10)[1]
        yield f'<path class="grid" d="M{left:.1f} {y:.1f}H{right:.1f}"/>'
        yield _text(left - 8, y + 4, f"{tenth / 10:.1f}", "end")
    yield _text((left + warm) / 2, bottom + 18, "imitation", "middle")
    yield _text((warm + right) / 2, bottom + 18, "reinforcement", "middle")
    yield _text((left + right) / 2, bottom + 38, f"{last} steps", "middle")


def _legend(tasks: int) -> str:
    return f"line: success of a step's fresh training episodes; bars: evaluation on {tasks} tasks, 95% interval"


def _text(x: float, y: float, text: str, anchor: str, kind: str = "note") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--title", default="success")
    arguments = parser.parse_args()
    arguments.out.write_text(picture(arguments.run, arguments.title), encoding="utf-8")
