"""Run the cases of the matrix and check each one.

Each run is `understudy train` in a process of its own. Cases with equal settings share runs:

- one without faults;
- one with all faults that pass and end alike, each in a step of its own;
- one that is ended by a fault that lasts, resumed, ended by the next such fault in the next step, and so on;
- one for each fault that lasts and ends no run.
"""

import json
import re
from collections.abc import Iterator, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from tests.faults.case_folder import CONFIG_FILE, write_case_folder
from tests.faults.cases import CASES, HISTORY, SKYRL_CASES, Ending, FaultCase, Setup, components
from tests.faults.child import run_program
from tests.faults.endpoint import DEATH, FaultyEndpoint
from tests.faults.injection import RUN_FOLDER, FaultMode, FaultPlan, count_injected
from tests.faults.program import ProgramResult, run_in_fork
from understudy.core.errors import ConfigError, did_you_mean
from understudy.core.records import Record
from understudy.core.settings import dump_toml
from understudy.runs.config import TrainConfig, parse_config
from understudy.runs.run import read_metrics
from understudy.runs.storage.status import read_run_status
from understudy.runs.targets import resolve, split_arguments
from understudy.sources.references import list_domains

DEFAULT_CONFIG = "smoke"
SHORT = (
    "steps=2",
    "save_every=1",
    "sampling.max_response_tokens=4",
    "algorithm.groups_per_batch=1",
    "algorithm.group_size=2",
    "algorithm.max_resampled_groups=0",
    "limits.max_retries=2",
    "eval.tasks=1",
    "eval.every=0",
    "trackers=[]",
)
"""Settings that make a run short. Those of the command line override them."""
SHORT_LOCAL = (
    "sft.steps=1",
    "sft.batch_size=1",
    "sft.num_demonstrations=1",
    "engine.dtype=float32",
    "engine.sampler=torch",
    "certify.every=0",
)
"""Further settings of runs with other engines than SkyRL, which has no SFT."""
_HISTORY = (
    "steps=1",
    "algorithm.groups_per_batch=160",
    "algorithm.group_size=8",
    "limits.max_retries=0",
    "limits.max_episode_tokens=4000",  # of so many episodes at once, more would not fit into the memory
)
_HISTORY_SHARE = (1172, 1280)
_SHARES = {"process": (1, 12)}
"""How many of the first calls of a component fail. A process is killed at one of its first twelve writes."""
OUTPUT_FILE = "output.txt"
"""What the runs of a folder printed."""
ROUNDING = 1e-4
"""The largest difference of a weight that rounding explains."""
_EXIT_CODES = {"stops": 1, "refused": 2}
_STEP = re.compile(r" INFO step \d+/\d+ ")
_ATTEMPT = re.compile(r"attempt \d+: fault of (\w+):")


class CaseResult(Record):
    """What a case of the matrix has shown."""

    component: str
    fault: str
    passed: bool
    """Whether the runs ended as the matrix says."""
    problems: tuple[str, ...] = ()
    """What failed."""
    injected: int = 0
    """Number of faults that were injected."""


def short_config(arguments: Sequence[str]) -> TrainConfig:
    """Return the short config of the runs. Raise ConfigError if its tasks come from files, which no source can wrap."""
    names, settings = split_arguments(arguments)
    names = names or [DEFAULT_CONFIG]
    local = () if resolve([*names, *settings]).config.engine.kind == "skyrl" else SHORT_LOCAL
    config = resolve([*names, *SHORT, *local, *settings]).config
    if config.data.train or config.data.validation:
        raise ConfigError("data.train and data.validation: faults are injected into a domain; name one with domain=")
    if config.steps < 1:
        raise ConfigError(f"steps = {config.steps}: faults are injected into an RL step; set steps to at least 1")
    config.open_source()  # reports a mistake once, and not in each case
    return config


def select_cases(only: Sequence[str], config: TrainConfig) -> list[FaultCase]:
    """Return the cases of the components `only`, or all that `config` has. Raise ConfigError for an unknown one."""
    cases = SKYRL_CASES if config.engine.kind == "skyrl" else CASES
    for component in only:
        if component not in components(cases):
            raise ConfigError(f"--only: unknown component {did_you_mean(component, components(cases))}")
    return [case for case in cases if not only or case.component in only]


def run_cases(config: TrainConfig, cases: Sequence[FaultCase], folder: Path, seed: int = 0) -> Iterator[CaseResult]:
    """Run the cases in folders in `folder`, and yield their results."""
    groups: dict[tuple[object, ...], list[FaultCase]] = {}
    for case in cases:
        groups.setdefault((case.setup, case.own_settings, case.fault if case.is_alone else ""), []).append(case)
    undisturbed: dict[tuple[Setup, int], Path] = {}
    for number, group in enumerate(groups.values()):
        runs = _GroupRuns(config, group, folder / f"{number:02}", seed)
        if not _is_history(group[0]):
            key = runs.setup, runs.config.steps
            if key not in undisturbed:
                undisturbed[key] = runs.run_undisturbed()
            runs.undisturbed = undisturbed[key]
        runs.run()
        for case in group:
            problems = tuple(runs.problems[case])
            yield CaseResult(
                component=case.component,
                fault=case.fault,
                passed=not problems,
                problems=problems,
                injected=runs.injected[case],
            )


def _is_history(case: FaultCase) -> bool:
    """Return whether this is the case of a run whose episodes failed as they were reset."""
    return case.fault == HISTORY


class _GroupRuns:
    """The runs of cases with equal settings, and what failed."""

    def __init__(self, config: TrainConfig, cases: Sequence[FaultCase], folder: Path, seed: int) -> None:
        self.setup, self.undisturbed = cases[0].setup, None
        self.problems: dict[FaultCase, list[str]] = {case: [] for case in cases}
        self.injected = dict.fromkeys(cases, 0)
        self._cases, self._folder, self._seed = cases, folder, seed
        self._passing: dict[Ending, list[FaultCase]] = {}
        for case in cases:
            if case.passing:
                self._passing.setdefault(case.passing, []).append(case)
        self._ended = [case for case in cases if case.lasting not in (None, "equal")]
        num_faults = max(map(len, [*self._passing.values(), self._ended, cases[:1]]))
        # With two ranks, rank 1 may play an episode before rank 0 has recorded the last step.
        num_steps = config.steps - 1 + num_faults + (self.setup.processes - 1)
        self.config = parse_config(dump_toml(config), _HISTORY if _is_history(cases[0]) else (f"steps={num_steps}",))
        self._first_step = config.steps_before_rl + (0 if _is_history(cases[0]) else config.steps - 1)
        self._vllm_url = config.engine.export_engine_config.vllm.base_url
        self._ports: dict[Path, int] = {}
        """The ports of the endpoints, by the folder of the run."""

    def run_undisturbed(self) -> Path:
        """Run without faults. Return the folder of the run."""
        folder = self._folder / "off"
        result = self._train(folder, self._plan("off", []))
        self._require(self._cases, result.exit_code == 0, f"without faults: {_describe(result)}")
        return folder / RUN_FOLDER

    def run(self) -> None:
        """Run with faults, and compare with the undisturbed run."""
        for ending, cases in self._passing.items():
            self._run_through(self._folder / f"passing {ending}", "passing", ending, cases)
        for number, case in enumerate(self._cases):
            if case.lasting == "equal":
                self._run_through(self._folder / f"lasting {number}", "lasting", "equal", [case])
        if self._ended:
            self._run_ended()

    def _run_through(self, folder: Path, mode: FaultMode, ending: Ending, cases: Sequence[FaultCase]) -> None:
        """Run with faults that end no run, one after the other."""
        result = self._train(folder, self._plan(mode, cases))
        parts = _STEP.split(_read_log(folder / RUN_FOLDER))[self._first_step :]  # each ends with a step's line
        for number, case in enumerate(cases):
            self._count(case, count_injected(folder, number), mode)
            if ending != "equal":
                last = number == len(cases) - 1  # further steps have the last fault
                self._check_owner(case, "".join(parts[number : None if last else number + 1]))
        self._check_trained(cases, result, folder / RUN_FOLDER, ending)

    def _run_ended(self) -> None:
        """Run with a fault that ends a step, resume with one that ends the next step, and at last without faults."""
        folder = self._folder / "lasting"
        run, injected = folder / RUN_FOLDER, 0
        for number, case in enumerate(self._ended):
            plan, logged = self._plan("lasting", [case], number), len(_read_log(run))
            result = self._resume(folder, plan) if number else self._train(folder, plan)
            before, injected = injected, count_injected(folder)
            self._count(case, injected - before, "lasting")
            self._check_owner(case, _read_log(run)[logged:])
            self._check_end(case, result, run, number)
        if self.undisturbed:
            self._check_trained(self._ended, self._resume(folder, self._plan("off", [])), run, "killed")

    def _count(self, case: FaultCase, injected: int, mode: FaultMode) -> None:
        self.injected[case] += injected
        self._require([case], injected > 0, f"{mode}: no fault was injected")

    def _check_owner(self, case: FaultCase, log: str) -> None:
        """Check which components a part of the run's log names for failed attempts."""
        found = set(_ATTEMPT.findall(log))
        text = f"attributed to {sorted(found)}, not to {case.owner}"
        self._require([case], not case.owner or found == {case.owner}, text)

    def _check_end(self, case: FaultCase, result: ProgramResult, run: Path, late: int) -> None:
        """Check how a run ended, and that it has not trained on the step with the fault."""
        assert case.lasting
        self._check_output([case], result)
        if case.lasting == "killed":
            self._require([case], result.exit_code == -9, f"not killed: {_describe(result)}")
            return
        killed = self.setup.processes > 1 and case.fault == DEATH
        code = 128 + 9 if killed else _EXIT_CODES[case.lasting]
        self._require([case], result.exit_code == code, f"not exit code {code}: {_describe(result)}")
        num_lines = len(result.error_lines)
        self._require([case], num_lines == 1, f"{num_lines} lines of errors: {_describe(result)}")
        if _is_history(case):
            self._require([case], "1172 of 1280" in result.last_line, f"not 1172 of 1280: {_describe(result)}")
        state = read_run_status(run).state
        self._require([case], state in ("crashed", "stopped"), f"its status is {state!r}")
        trained = len(list((run / "trained").glob("*.jsonl"))) if (run / "trained").is_dir() else 0
        first = self._first_step - self.config.steps_before_rl + self.setup.processes - 1
        self._require([case], trained <= first + late, "the step with the fault was trained")

    def _check_output(self, cases: Sequence[FaultCase], result: ProgramResult) -> None:
        self._require(cases, "Traceback" not in result.output, f"a traceback: {result.last_line}")

    def _check_trained(self, cases: Sequence[FaultCase], result: ProgramResult, run: Path, ending: Ending) -> None:
        """Check what a finished run has trained on."""
        undisturbed = self.undisturbed
        self._check_output(cases, result)
        self._require(cases, result.exit_code == 0, f"it should go on: {_describe(result)}")
        if result.exit_code or not undisturbed:
            return
        if ending == "reported":
            told = sum(record.get("rollout/tool_exceptions", 0.0) for record in read_metrics(run, "train"))
            self._require(cases, told > 0, "no tool exception is counted")
            return
        on_skyrl = self.config.engine.kind == "skyrl"
        trained = _scored_rewards if on_skyrl else _trained_rewards
        lowest, found = (min(trained(each), default=0.0) for each in (undisturbed, run))
        self._require(
            cases, lowest > 0, "an episode without faults earns 0, so that a fault scored as 0 would not show"
        )
        self._require(
            cases, found >= lowest, f"trained on a reward of {found:g}; the lowest without faults is {lowest:g}"
        )
        if ending == "retried":
            lost = [episode for _, episode in _episodes(run) if episode.get("fault")]
            self._require(cases, not lost, f"{len(lost)} episodes failed in all attempts")
            return
        # SkyRL's batches depend on time, so log-probabilities differ by rounding.
        exact = ending != "equal" and self.setup.is_exact and not on_skyrl
        left_out = {"timings"} | ({"weights_version"} if on_skyrl else set())  # SkyRL counts again when it resumes
        differences = _differences(run, undisturbed, left_out, exact=exact)
        self._require(cases, not differences, f"differs from the run without faults: {', '.join(differences)}")

    def _plan(self, mode: FaultMode, cases: Sequence[FaultCase], late: int = 0) -> FaultPlan:
        """Return the plan of a run with the faults of these cases, the first of them `late` steps later than usual."""
        share = next((_SHARES[case.component] for case in cases if case.component in _SHARES), None)
        if any(map(_is_history, cases)):
            share = _HISTORY_SHARE
        return FaultPlan(
            faults=[(case.component, "exception" if _is_history(case) else case.fault) for case in cases],
            mode=mode,
            seed=self._seed,
            after_step=self._first_step + late,
            domain=_source_name(self.setup, self.config),
            plays_gold=self.setup.plays_gold,
            share=share,
        )

    def _train(self, folder: Path, plan: FaultPlan) -> ProgramResult:
        """Train in a new folder with faults."""
        with FaultyEndpoint(folder, vllm_url=self._vllm_url) as endpoint:
            self._ports[folder] = endpoint.port
            write_case_folder(folder, self.config, self._cases[0], plan, endpoint.address)
            return self._start(["train", CONFIG_FILE, "--out", RUN_FOLDER, "--debug"], folder)

    def _resume(self, folder: Path, plan: FaultPlan) -> ProgramResult:
        """Resume the run of a folder with these faults."""
        plan.write(folder)
        with FaultyEndpoint(folder, self._ports[folder], self._vllm_url):
            return self._start(["train", "--resume", RUN_FOLDER, "--debug"], folder)

    def _start(self, arguments: Sequence[str], folder: Path) -> ProgramResult:
        processes = self.setup.processes
        ranks = ["--num-processes", str(processes)] if processes > 1 else []
        result = run_in_fork(partial(run_program, [*arguments, *ranks]), folder)
        with (folder / OUTPUT_FILE).open("a", encoding="utf-8") as output:
            output.write(result.output)
        return result

    def _require(self, cases: Sequence[FaultCase], passed: bool, text: str) -> None:
        if not passed:
            for case in cases:
                self.problems[case].append(text)


def _source_name(setup: Setup, config: TrainConfig) -> str | list[str]:
    """Return the name of the source that a case's episodes come from; empty for the data set of sums."""
    names = [config.domain] if isinstance(config.domain, str) else config.domain
    domain = [_absolute(name) for name in names]
    return {"config": domain[0] if len(domain) == 1 else domain, "sums": "", "counter": "mcp:counter.toml"}[
        setup.source
    ]


def _absolute(name: str) -> str:
    """Return the name of a source with the absolute path of its file, since runs have other working folders."""
    prefix, colon, path = name.rpartition(":")
    is_file = name not in list_domains() and Path(path).exists()
    return f"{prefix}{colon}{Path(path).resolve()}" if is_file else name


def _describe(result: ProgramResult) -> str:
    code = "did not end in time" if result.exit_code is None else f"exit code {result.exit_code}"
    return f"{code}: {result.last_line[:300]}"


def _read_log(run: Path) -> str:
    log = run / "run.log"
    return log.read_text(encoding="utf-8") if log.is_file() else ""


def _episodes(run: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for file in sorted((run / "trajectories").glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            yield file.name, json.loads(line)


def _trained_rewards(run: Path) -> list[float]:
    lines = [line for file in sorted((run / "trained").glob("*.jsonl")) for line in file.read_bytes().splitlines()]
    return [json.loads(line)["reward"] for line in lines]


def _scored_rewards(run: Path) -> list[float]:
    """Return the rewards of all episodes with a score. SkyRL keeps its batch, and only they have a loss mask in it."""
    return [episode["score"]["reward"] for _, episode in _episodes(run) if episode.get("score")]


def _differences(run: Path, other: Path, left_out: Set[str], *, exact: bool) -> list[str]:
    """Return in what two runs differ: a step's episodes, apart from the keys `left_out`, or the weights.

    Unless `exact`, log-probabilities and weights may differ by rounding: a late reply is sampled in another batch.
    """
    ignored = left_out if exact else left_out | {"logprobs"}
    one, two = _steps(run, ignored), _steps(other, ignored)
    found = sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
    own, its = (load_file(each / "model" / "model.safetensors") for each in (run, other))
    tolerance = 0.0 if exact else ROUNDING
    same = own.keys() == its.keys() and all(np.allclose(own[k], its[k], rtol=0.0, atol=tolerance) for k in own)
    return found if same else [*found, "the weights"]


def _steps(run: Path, left_out: Set[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the episodes of each step, without the keys `left_out`."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name, episode in _episodes(run):
        found.setdefault(name, []).append({key: value for key, value in episode.items() if key not in left_out})
    return found
