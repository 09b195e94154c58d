"""Which calls of a component fail. Only the standard library is imported, so that a tool server starts quickly.

A run with faults has a folder: `plan.json` says what fails and how long, `run` is the run, and `injected` has one file
for each fault that was injected. So all processes of a run, and the resumed run, share one plan.
"""

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

PLAN_FILE, RUN_FOLDER, INJECTED_FOLDER = "plan.json", "run", "injected"
FaultMode = Literal["off", "passing", "lasting"]
"""`passing`: in each step, the first one or two calls of each kind fail. `lasting`: every call fails."""
MAX_PASSING_FAULTS = 2
"""The largest number of passing faults of one call. An episode has two further attempts."""
HANG = "hang"
"""The fault of a call that never returns, or later than its caller waits."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """What fails in a run, and when."""

    faults: Sequence[tuple[str, str]] = ()
    """Components and their faults. Each step has one of them, in this order, and further steps have the last."""
    mode: FaultMode = "off"
    seed: int = 0
    after_step: int = 0
    """The first fault begins when the metrics of this step are recorded."""
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
        self.plan = FaultPlan(**stored | {"faults": [tuple(fault) for fault in stored["faults"]]})
        self._drawn = self._draw_share(stored["share"])
        self._num_calls = 0

    def find_fault(self, component: str, key: str) -> str:
        """Return the fault that a call of `component` has, or "" if it has none. Equal calls have equal keys."""
        number = self._find_turn(component)
        if number is None:
            return ""
        self._num_calls += 1
        key = f"{number}/{key}"
        if self._drawn is not None:
            strikes = self._num_calls - 1 in self._drawn
            key = f"{key}/{self._num_calls}"
        else:
            strikes = self.plan.mode == "lasting" or self._is_early(key)
        if strikes:
            self._record(number, key)
        return self.plan.faults[number][1] if strikes else ""

    def _find_turn(self, component: str) -> int | None:
        """Return the number of the fault whose turn it is, if it is one of `component`."""
        if self.plan.mode == "off" or all(component != name for name, _ in self.plan.faults):
            return None
        number = count_train_steps(self.folder / RUN_FOLDER) - self.plan.after_step
        number = min(number, len(self.plan.faults) - 1)
        return number if number >= 0 and self.plan.faults[number][0] == component else None

    def _is_early(self, key: str) -> bool:
        """Return whether fewer calls with this key have failed than the seed draws, one or two."""
        draw = hashlib.sha256(f"{self.plan.seed}/{key}".encode()).digest()[0]
        wanted = 1 + draw % MAX_PASSING_FAULTS
        return len(list((self.folder / INJECTED_FOLDER).glob(f"*-{_digest(key)}-*"))) < wanted

    def _record(self, number: int, key: str) -> None:
        folder = self.folder / INJECTED_FOLDER
        folder.mkdir(exist_ok=True)
        count = len(list(folder.glob(f"*-{_digest(key)}-*")))
        (folder / f"{number}-{_digest(key)}-{count}").touch()

    def _draw_share(self, share: list[int] | None) -> frozenset[int] | None:
        return frozenset(random.Random(self.plan.seed).sample(range(share[1]), share[0])) if share else None


def count_injected(folder: Path, number: int | None = None) -> int:
    """Return how often faults were injected into a run, or how often the fault with this number in its plan was."""
    injected = folder / INJECTED_FOLDER
    return len(list(injected.glob("*" if number is None else f"{number}-*")))


def count_train_steps(run: Path) -> int:
    """Return the number of training steps whose metrics a run has recorded."""
    file = run / "metrics.jsonl"
    return file.read_bytes().count(b'"kind": "train"') if file.is_file() else 0


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:16]
