"""Which calls of a component fail. Only the standard library is imported, so that a tool server starts quickly.

A case of the matrix has a folder: `plan.json` says what fails and how long, `run` is the run, and `injected` has one
file for each fault that was injected. So all processes of a case, and a resumed run, share one plan.
"""

import hashlib
import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

PLAN_FILE, RUN_FOLDER, INJECTED_FOLDER = "plan.json", "run", "injected"
FaultMode = Literal["off", "passing", "lasting"]
"""`passing`: the first one or two calls of each kind fail. `lasting`: every call fails."""
MAX_PASSING_FAULTS = 2
"""The largest number of passing faults of one call. An episode has two further attempts."""
HANG = "hang"
"""The fault of a call that never returns, or later than its caller waits."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """What fails in a case, and when."""

    component: str
    fault: str
    mode: FaultMode = "off"
    seed: int = 0
    after_step: int = 0
    """Faults begin when the metrics of this training step are recorded."""
    domain: str | list[str] = ""
    """The task source whose episodes fail."""
    plays_gold: bool = True
    """Whether the environment takes each reply for the task's gold turn. Undisturbed episodes then earn 1.0, so a fault
    that is scored as 0 shows."""
    share: tuple[int, int] | None = None
    """If set, this many of the next so many first calls fail, in one process."""

    def write(self, folder: Path) -> None:
        """Write the plan into the folder of its case."""
        (folder / PLAN_FILE).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")


class FaultInjector:
    """Decides for each call of a component whether it fails, by the plan of the case in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        stored = json.loads((folder / PLAN_FILE).read_text(encoding="utf-8"))
        self.plan = FaultPlan(**stored)
        self._drawn = self._draw_share(stored["share"])
        self._num_calls = 0

    def find_fault(self, component: str, key: str) -> str:
        """Return the fault that a call of `component` has, or "" if it has none. Equal calls have equal keys."""
        plan = self.plan
        if component != plan.component or plan.mode == "off" or not self.has_begun():
            return ""
        self._num_calls += 1
        if self._drawn is not None:
            strikes = self._num_calls - 1 in self._drawn
            key = f"{key}/{self._num_calls}"
        else:
            strikes = plan.mode == "lasting" or self._is_early(key)
        if strikes:
            self._record(key)
        return plan.fault if strikes else ""

    def has_begun(self) -> bool:
        """Return whether the run has recorded the step after which faults begin."""
        return self.plan.mode != "off" and count_train_steps(self.folder / RUN_FOLDER) >= self.plan.after_step

    def _is_early(self, key: str) -> bool:
        """Return whether fewer calls with this key have failed than the seed draws, one or two."""
        digest = hashlib.sha256(f"{self.plan.seed}/{key}".encode()).digest()
        wanted = 1 + digest[0] % MAX_PASSING_FAULTS
        folder = self.folder / INJECTED_FOLDER
        return sum((folder / _file_name(key, number)).exists() for number in range(wanted)) < wanted

    def _record(self, key: str) -> None:
        folder = self.folder / INJECTED_FOLDER
        folder.mkdir(exist_ok=True)
        number = 0
        while (folder / _file_name(key, number)).exists():
            number += 1
        (folder / _file_name(key, number)).touch()

    def _draw_share(self, share: list[int] | None) -> frozenset[int] | None:
        return frozenset(random.Random(self.plan.seed).sample(range(share[1]), share[0])) if share else None


def count_injected(folder: Path) -> int:
    """Return the number of faults that were injected in a case."""
    injected = folder / INJECTED_FOLDER
    return sum(1 for _ in injected.iterdir()) if injected.is_dir() else 0


def count_train_steps(run: Path) -> int:
    """Return the number of training steps whose metrics a run has recorded."""
    file = run / "metrics.jsonl"
    return file.read_bytes().count(b'"kind": "train"') if file.is_file() else 0


def _file_name(key: str, number: int) -> str:
    return f"{hashlib.sha256(key.encode()).hexdigest()[:16]}-{number}"
