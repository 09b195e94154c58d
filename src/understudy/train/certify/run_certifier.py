"""Certification in a training run: at its start, and during some RL steps.

In an RL step it checks episodes of this step, before their update.
"""

import itertools
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from understudy.core.errors import RolloutError
from understudy.core.trajectory import Trajectory
from understudy.engines.process_group import SINGLE_PROCESS, ProcessGroup
from understudy.rollouts.group import Group
from understudy.runs.config import CertifyConfig
from understudy.runs.run import DIFF_FILE, Run
from understudy.train.certify.certificate import CertificateCheck, describe_first_failure, format_diffs
from understudy.train.certify.engine_checks import (
    CertificationTarget,
    ToolLookup,
    check_episodes,
    check_sampler,
    check_tokenizer,
)
from understudy.train.certify.format_checks import check_format


@dataclass(frozen=True, slots=True)
class RunCertifier:
    """Certifies the model of a run. The results of the run do not depend on it."""

    target: CertificationTarget
    config: CertifyConfig
    tools: ToolLookup
    model_folder: Path
    """The folder of the model."""
    thinking: bool = False
    """True if the model may think (`format.enable_thinking`)."""
    process_group: ProcessGroup = SINGLE_PROCESS
    """The processes of the run. The engine of each is checked."""

    async def certify_start(self, run: Run) -> None:
        """Check the format on scripted replies, and the engine on sampled ones. Do nothing if `certify.every` is 0.

        Raise RolloutError if a check fails, or warn if `certify.stop_on_failure` is false.
        """
        if self.config.every:
            checks, _ = await check_format(self.model_folder, self.target.format, self.thinking, run.created_at)
            if not run.step:
                checks.append(await check_tokenizer(self.target, "weights"))
            checks += await check_sampler(self.target, "sampled conversations", self.process_group)
            self.target.engine.reset_prefix_cache()  # so that the run's results equal those without certification
            self._settle(run, "at the start", checks)

    async def certify_step(self, run: Run, step: int, number: int, groups: Sequence[Group]) -> dict[str, float]:
        """Check some episodes of an RL step if a certification is due, and return metrics.

        `number` counts RL steps from 1. Raise RolloutError if a check fails, or warn if `certify.stop_on_failure` is
        false.
        """
        if not self.config.every or (number - 1) % self.config.every:
            return {}
        started = time.perf_counter()
        episodes = select_episodes(groups, self.config.episodes)
        if not episodes:
            return {}
        checks, diff = await check_episodes(self.target, episodes, self.tools, f"step {step}")
        self._settle(run, f"at step {step}", checks)
        return {
            "certify/logprob_diff_max": diff.largest,
            "certify/logprob_diff_mean": diff.mean,
            "time/certify_seconds": time.perf_counter() - started,
        }

    def _settle(self, run: Run, when: str, checks: Sequence[CertificateCheck]) -> None:
        if all(check.passed for check in checks):
            return
        run.write_file(DIFF_FILE, format_diffs(checks) + "\n")
        line = f"certification failed {when}: {describe_first_failure(checks)}; the diff is in {run.folder / DIFF_FILE}"
        if self.config.stop_on_failure:
            raise RolloutError(f"{line}; to warn only, set certify.stop_on_failure=false", "engine")
        warnings.warn(line, RuntimeWarning, stacklevel=2)


def select_episodes(groups: Sequence[Group], count: int) -> list[Trajectory]:
    """Return up to `count` scored episodes: the first of each group, then the second of each, and so on."""
    rounds = itertools.chain.from_iterable(itertools.zip_longest(*(group.episodes for group in groups)))
    return list(itertools.islice((e for e in rounds if e and e.score and any(e.all_masks)), count))
