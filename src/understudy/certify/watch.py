"""Certification in a training run: at its start, and on episodes of every few steps before they are learned from."""

import itertools
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from understudy.certify.certificate import Check, diffs, first_failed
from understudy.certify.tokens import check_format
from understudy.certify.weights import Shown, Subject, check_sampler, compare
from understudy.config import CertifyConfig
from understudy.errors import RolloutError
from understudy.run import Run
from understudy.trajectory import Trajectory

DIFF = "certify.txt"
"""What the last proof that failed found, in the run's folder."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Certifies what a run trains. Nothing that it does changes the run's numbers."""

    subject: Subject
    config: CertifyConfig
    tools: Shown
    folder: Path
    """The model's."""
    thinking: bool = False
    """Whether the model is let think."""

    async def begin(self, run: Run) -> None:
        """The format on scripted talks, and the weights as they are on a few sampled ones."""
        if self.config.every:
            checks, _ = await check_format(self.folder, self.subject.format, self.thinking, run.began)
            checks += await check_sampler(self.subject, "sampled talks")
            self.subject.engine.forget()  # so that the run comes out as it does without
            self._settle(run, "at the start", checks)

    async def step(self, run: Run, step: int, number: int, groups: Sequence[Sequence[Trajectory]]) -> dict[str, float]:
        """Metrics of some episodes under the weights that sampled them, where this step is due; `number` is from 1."""
        if not self.config.every or (number - 1) % self.config.every:
            return {}
        started = time.perf_counter()
        episodes = chosen(groups, self.config.episodes)
        if not episodes:
            return {}
        checks, apart = await compare(self.subject, episodes, self.tools, f"step {step}")
        self._settle(run, f"at step {step}", checks)
        return {
            "certify/logprob_max": apart.largest,
            "certify/logprob_mean": apart.mean,
            "certify/seconds": time.perf_counter() - started,
        }

    def _settle(self, run: Run, when: str, checks: Sequence[Check]) -> None:
        if all(check.ok for check in checks):
            return
        run.write(DIFF, diffs(checks) + "\n")
        line = f"certification failed {when}: {first_failed(checks)}; the diff is in {run.folder / DIFF}"
        if self.config.halt:
            raise RolloutError(f"{line}; certify.halt=false would only warn", "engine")
        warnings.warn(line, RuntimeWarning, stacklevel=2)


def chosen(groups: Sequence[Sequence[Trajectory]], count: int) -> list[Trajectory]:
    """Episodes with a score and something sampled: one of each group, then a second of each, up to `count`."""
    rounds = itertools.chain.from_iterable(itertools.zip_longest(*groups))
    return list(itertools.islice((e for e in rounds if e and e.score and any(e.mask)), count))
