"""Run the cases of the matrix and check each one.

Each run is `understudy train` in a process of its own. A case has a run without faults, which cases with the same setup
share, a run with faults that pass, and a run with faults that last, which is then resumed without faults.
"""

import json
import re
import time
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from tests.faults.case_folder import CONFIG_FILE, write_case_folder
from tests.faults.cases import CASES, SKYRL_CASES, Ending, FaultCase, Setup, components
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
    seconds: float = 0.0


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
    """Run each case in a folder of its own in `folder`, and yield its result."""
    undisturbed: dict[Setup, Path] = {}
    for number, case in enumerate(cases):
        started = time.monotonic()
        run = _CaseRun(config, case, folder / f"{number:02}", seed)
        if not run.is_history and case.setup not in undisturbed:
            undisturbed[case.setup] = folder / f"{number:02}" / "off"
            run.run_undisturbed()
        run.run(undisturbed.get(case.setup))
        yield CaseResult(
            component=case.component,
            fault=case.fault,
            passed=not run.problems,
            problems=tuple(run.problems),
            injected=run.injected,
            seconds=round(time.monotonic() - started, 2),
        )


@dataclass
class _CaseRun:
    """The runs of one case, and what failed."""

    config: TrainConfig
    case: FaultCase
    folder: Path
    seed: int
    problems: list[str] = field(default_factory=list)
    injected: int = 0
    ports: dict[FaultMode, int] = field(default_factory=dict)
    """The ports of the endpoints, by the mode of the run."""

    @property
    def _vllm_url(self) -> str:
        """The address of a real vLLM server; empty without one."""
        return self.config.engine.export_engine_config.vllm.base_url

    @property
    def _config(self) -> TrainConfig:
        """The config of the case's runs."""
        settings: tuple[str, ...] = _HISTORY if self.is_history else ()
        if self.case.setup.processes > 1:  # rank 1 may play an episode before rank 0 has recorded the last step
            settings = (f"steps={self.config.steps + 1}",)
        return parse_config(dump_toml(self.config), settings) if settings else self.config

    @property
    def is_history(self) -> bool:
        """Whether this is the case of a run whose episodes failed as they were reset."""
        return self.case.fault.startswith("1,172")

    def run_undisturbed(self) -> None:
        """Run without faults."""
        result = self._train("off")
        self._require(result.exit_code == 0, f"without faults: {_describe(result)}")

    def run(self, undisturbed: Path | None) -> None:
        """Run with faults, and compare with the `undisturbed` run."""
        for mode, ending in (("passing", self.case.passing), ("lasting", self.case.lasting)):
            if ending:
                before = len(self.problems)
                self._check(mode, ending, undisturbed)  # type: ignore[arg-type]
                self.problems[before:] = [f"{mode}: {text}" for text in self.problems[before:]]

    def _check(self, mode: FaultMode, ending: Ending, undisturbed: Path | None) -> None:
        result = self._train(mode)
        folder = self.folder / mode
        run = folder / RUN_FOLDER
        injected = count_injected(folder)
        self.injected += injected
        self._require(injected > 0, "no fault was injected")
        self._require("Traceback" not in result.output, f"a traceback: {result.last_line}")
        if self.case.owner and ending != "equal":
            owners = _attributed(run)
            self._require(owners == {self.case.owner}, f"attributed to {sorted(owners)}, not to {self.case.owner}")
        if ending in _EXIT_CODES or ending == "killed":
            self._check_end(result, run, ending)
            if undisturbed:
                result = self._resume(mode)
        if not undisturbed:
            return
        self._require(result.exit_code == 0, f"it should go on: {_describe(result)}")
        if result.exit_code == 0:
            self._check_trained(run, undisturbed / RUN_FOLDER, ending)

    def _check_end(self, result: ProgramResult, run: Path, ending: Ending) -> None:
        """Check how a run ended, and that no failed episode of its last step was trained on."""
        if ending == "killed":
            self._require(result.exit_code == -9, f"not killed: {_describe(result)}")
            return
        killed = self.case.setup.processes > 1 and self.case.fault == DEATH
        code = 128 + 9 if killed else _EXIT_CODES[ending]
        self._require(result.exit_code == code, f"not exit code {code}: {_describe(result)}")
        self._require(len(result.error_lines) == 1, f"{len(result.error_lines)} lines of errors: {_describe(result)}")
        if self.is_history:
            self._require("1172 of 1280" in result.last_line, f"not 1172 of 1280: {_describe(result)}")
        state = read_run_status(run).state
        self._require(state in ("crashed", "stopped"), f"its status is {state!r}")
        trained = len(list((run / "trained").glob("*.jsonl"))) if (run / "trained").is_dir() else 0
        self._require(trained < self._config.steps, "the last step was trained")

    def _check_trained(self, run: Path, undisturbed: Path, ending: Ending) -> None:
        """Check what a finished run has trained on."""
        if ending == "reported":
            told = sum(record.get("rollout/tool_exceptions", 0.0) for record in read_metrics(run, "train"))
            return self._require(told > 0, "no tool exception is counted")
        on_skyrl = self.config.engine.kind == "skyrl"
        trained = _scored_rewards if on_skyrl else _trained_rewards
        lowest, rewards = min(trained(undisturbed), default=0.0), trained(run)
        self._require(lowest > 0, "an episode without faults earns 0, so that a fault scored as 0 would not show")
        self._require(
            min(rewards, default=0.0) >= lowest,
            f"trained on a reward of {min(rewards, default=0.0):g}; the lowest without faults is {lowest:g}",
        )
        if ending == "retried":
            lost = [episode for _, episode in _episodes(run) if episode.get("fault")]
            self._require(not lost, f"{len(lost)} episodes failed in all attempts")
        else:
            # SkyRL's batches depend on time, so log-probabilities differ by rounding.
            exact = ending != "equal" and self.case.setup.is_exact and not on_skyrl
            left_out = {"timings"} | ({"weights_version"} if on_skyrl else set())  # SkyRL counts again when it resumes
            differences = _differences(run, undisturbed, left_out, exact=exact)
            self._require(not differences, f"differs from the run without faults: {', '.join(differences)}")
        return None

    def _train(self, mode: FaultMode) -> ProgramResult:
        """Train in a new folder with faults of this mode."""
        folder, setup, config = self.folder / mode, self.case.setup, self._config
        plan = FaultPlan(
            component=self.case.component,
            fault="exception" if self.is_history else self.case.fault,
            mode=mode,
            seed=self.seed,
            after_step=config.total_steps - (2 if setup.processes > 1 else 1),
            domain=_source_name(setup, config),
            plays_gold=setup.plays_gold,
            share=_HISTORY_SHARE if self.is_history else _SHARES.get(self.case.component),
        )
        with FaultyEndpoint(folder, vllm_url=self._vllm_url) as endpoint:
            self.ports[mode] = endpoint.port
            write_case_folder(folder, config, self.case, plan, endpoint.address)
            return self._start(["train", CONFIG_FILE, "--out", RUN_FOLDER, "--debug"], folder)

    def _resume(self, mode: FaultMode) -> ProgramResult:
        """Resume the run of this mode without faults."""
        folder = self.folder / mode
        stored = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        FaultPlan(**stored | {"mode": "off"}).write(folder)
        with FaultyEndpoint(folder, self.ports[mode], self._vllm_url):
            return self._start(["train", "--resume", RUN_FOLDER, "--debug"], folder)

    def _start(self, arguments: Sequence[str], folder: Path) -> ProgramResult:
        processes = self.case.setup.processes
        ranks = ["--num-processes", str(processes)] if processes > 1 else []
        result = run_in_fork(partial(run_program, [*arguments, *ranks]), folder)
        with (folder / OUTPUT_FILE).open("a", encoding="utf-8") as output:
            output.write(result.output)
        return result

    def _require(self, passed: bool, text: str) -> None:
        if not passed:
            self.problems.append(text)


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


def _attributed(run: Path) -> set[str]:
    """Return the components that the log of a run names for failed attempts."""
    log = run / "run.log"
    return set(_ATTEMPT.findall(log.read_text(encoding="utf-8"))) if log.is_file() else set()


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
