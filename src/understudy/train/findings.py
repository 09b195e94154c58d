"""What becomes of findings about a run's health: they are said once and kept in the run, and some may stop it."""

from collections.abc import Sequence
from typing import NoReturn

from understudy.errors import RolloutError
from understudy.health import Finding
from understudy.run import read_warnings
from understudy.train.state import Training


def tell(training: Training, step: int, findings: Sequence[Finding]) -> list[Finding]:
    """Say what is bad now and was not after the step before. Returns what is bad and stops the run."""
    bad = [finding for finding in findings if not finding.ok]
    before = training.history[-1] if training.history else {}
    kept = {(warning["step"], warning["check"]) for warning in read_warnings(training.run.folder)} if bad else set()
    for finding in bad:
        if not before.get(f"health/{finding.check}"):
            training.report(f"step {step}: health/{finding}", 0, 0, {})
            if (step, finding.check) not in kept:  # by a process that was killed before it wrote the step's metrics
                training.run.warn(step, {"check": finding.check, "text": finding.text, "remedy": finding.remedy})
    return [finding for finding in bad if finding.check in training.config.health.halt_on]


def halt(training: Training, step: int, finding: Finding) -> NoReturn:
    """End the run after a step whose weights, if they are numbers, are kept."""
    raise RolloutError(
        f"stopped after step {step}, because health.halt_on has {finding}; to go on from step {training.run.step} all "
        f"the same: {training.run.how_to_resume} health.halt_on=[]",
        "engine",
    )
