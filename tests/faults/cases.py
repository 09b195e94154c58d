"""The matrix of fault injection: which component fails, how, and how a run handles it.

`run_cases` checks each case, and `docs/faults.md` shows the matrix.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tests.faults.endpoint import DEATH, HALF_BODY, JUDGE_ENDPOINT, USER_ENDPOINT
from tests.faults.injection import HANG
from tests.faults.sources import RANK
from tests.faults.vllm_server import REPLY_DAMAGES, VLLM, WEIGHTS_LOST
from understudy.core.errors import Fault

SKYRL_WORKER = "SkyRL's policy worker"
HISTORY = "92% of the episodes"
"""The fault of a run of another system, whose episodes failed as they were reset."""
Ending = Literal["equal", "retried", "reported", "stops", "refused", "killed"]
ENDINGS: Mapping[Ending, str] = {
    "equal": "the run continues and equals a run without faults",
    "retried": "the episode is played again with another seed, and the run continues",
    "reported": "the model reads the error, `rollout/tool_exceptions` counts it, and the run continues",
    "stops": "the run ends with one line and exit code 1, and resumes equal",
    "refused": "the run ends with one line and exit code 2, and resumes equal",
    "killed": "the run resumes equal",
}
"""How a run handles a fault. To resume equal is to end with the weights and episodes of an undisturbed run."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings of a case's run that differ from the given config."""

    settings: tuple[str, ...] = ()
    """Settings as `key=value`. `{address}` is the address of the case's endpoint."""
    source: Literal["config", "sums", "counter"] = "config"
    """The task source: the config's, a data set of sums with its own tool and reward, or a tool server."""
    plays_gold: bool = True
    """Whether the environment takes each reply for the task's gold turn."""
    processes: int = 1

    @property
    def is_exact(self) -> bool:
        """Whether equal runs are equal bit for bit. With a server, replies arrive at other times and are sampled in
        other batches, so log-probabilities and weights may differ by rounding."""
        return self.source != "counter" and not any("{address}" in setting for setting in self.settings)


@dataclass(frozen=True, slots=True)
class FaultCase:
    """One component with one kind of fault."""

    component: str
    fault: str
    setup: Setup
    passing: Ending | None
    """What a fault that passes after one or two calls does; None if the fault cannot pass."""
    lasting: Ending | None
    """What a fault that lasts does; None if the fault cannot last."""
    owner: Fault | None = None
    """The component that episodes name as at fault; None if no episode fails."""
    own_settings: tuple[str, ...] = ()
    """Further settings, which change nothing in a run without faults."""
    is_alone: bool = False
    """Whether no other fault can follow in the same run."""


_FULL_SLICE = ("slice.families=[]", "slice.difficulties=[]", "slice.tools=[]", "slice.domain_policy=full")
_ENDPOINT = (
    "endpoints.faulty.base_url={address}/v1",
    "endpoints.faulty.max_retries=3",
    "endpoints.faulty.backoff=0.2",
)
_OWN = Setup()
_SUMS = Setup(_FULL_SLICE, "sums")
_COUNTER = Setup(_FULL_SLICE, "counter")
_USER = Setup(("user.kind=injected:USER",))
_SUMS_USER = Setup((*_FULL_SLICE, "user.kind=injected:USER"), "sums")
_USER_ENDPOINT = Setup(
    (*_FULL_SLICE, "user.kind=llm", "user.endpoint=faulty", f"endpoints.faulty.model={USER_ENDPOINT}", *_ENDPOINT),
    "sums",
)
_JUDGE_ENDPOINT = Setup(
    (
        *_FULL_SLICE,
        "algorithm.shaping.judge_weight=0.2",
        "algorithm.shaping.judge_endpoint=faulty",
        f"endpoints.faulty.model={JUDGE_ENDPOINT}",
        *_ENDPOINT,
    ),
    "sums",
    plays_gold=False,
)
_TRACKER = Setup((*_FULL_SLICE, "trackers=tensorboard"), "sums")
_VLLM = Setup(
    (
        *_FULL_SLICE,
        "engine.sampler=vllm",
        "engine.train_embeddings=false",  # vLLM cannot reload tied ones on a CPU
        "engine.vllm.base_url={address}",
        "engine.vllm.start_timeout=5",
        "engine.vllm.max_restarts=2",
        "engine.vllm.restart_backoff=0.05",
    ),
    "sums",
)
_RANKS = Setup(_FULL_SLICE, "sums", processes=2)
_HANG_SETTINGS = {
    USER_ENDPOINT: ("endpoints.faulty.timeout=1",),
    JUDGE_ENDPOINT: ("endpoints.faulty.timeout=1",),
    VLLM: ("engine.vllm.reply_timeout=2",),
    RANK: ("engine.collective_timeout=20",),
}
"""How long a caller waits in the cases of a call that never returns. In other cases a slow machine ends no call."""
_REFUSED_SETTINGS = ("endpoints.faulty.max_retries=5",)
"""With these retries, a client waits for seconds for a server that is started again after a fraction of a second."""
_METHODS = ("environment reset", "environment step", "environment close")
_ENDPOINT_FAULTS: Mapping[str, Ending] = {
    "refused": "stops",
    "reset": "stops",
    HANG: "stops",
    "401": "refused",
    "404": "refused",
    "429": "stops",
    "500": "stops",
    HALF_BODY: "stops",
    "half JSON": "stops",
    "empty body": "stops",
    "invalid UTF-8": "stops",
    "NaN": "stops",
    "error page": "stops",
    "no choices": "stops",
}
"""What a lasting fault of an endpoint does, by its kind."""


def _hang(component: str, setup: Setup, owner: Fault) -> FaultCase:
    """Return the case of code in the run's process that never returns. All other calls return without waiting, so the
    short limit ends none of them."""
    return FaultCase(component, HANG, setup, "retried", "stops", owner, ("limits.max_step_seconds=0.2",))


def _environment_cases() -> Sequence[FaultCase]:
    """Return cases of environments: one fault with the given domain, the others with short prompts."""
    setups = {"environment step": _OWN}
    cases = [
        *(
            FaultCase(component, "exception", setups.get(component, _SUMS), "retried", "stops", "environment")
            for component in _METHODS
        ),
        *(FaultCase(component, "wrong data", _SUMS, "retried", "stops", "environment") for component in _METHODS[:2]),
        *(FaultCase(component, "slow", _SUMS, "equal", "equal") for component in _METHODS[:2]),
        *(_hang(component, _SUMS, "environment") for component in _METHODS),
    ]
    return sorted(cases, key=lambda case: _METHODS.index(case.component))


def _endpoint_cases(component: str, setup: Setup, owner: Fault, faults: Sequence[str]) -> Sequence[FaultCase]:
    settings = {HANG: _HANG_SETTINGS[component], "refused": _REFUSED_SETTINGS}

    def make(fault: str) -> FaultCase:
        lasting = _ENDPOINT_FAULTS[fault]
        charged = None if lasting == "refused" else owner
        return FaultCase(component, fault, setup, "equal", lasting, charged, settings.get(fault, ()))

    return [*map(make, faults), FaultCase(component, "slow", setup, "equal", "equal")]


def _vllm_cases() -> Sequence[FaultCase]:
    repeated = (DEATH, WEIGHTS_LOST, "reset", "404", "500", HALF_BODY, "half JSON", "empty body", "invalid UTF-8")
    rejected = ("401", "429", "error page", "no choices", *REPLY_DAMAGES)
    return [
        *(FaultCase(VLLM, fault, _VLLM, "equal", "stops", "engine") for fault in repeated),
        FaultCase(VLLM, HANG, _VLLM, "equal", "stops", "engine", _HANG_SETTINGS[VLLM]),
        *(FaultCase(VLLM, fault, _VLLM, "retried", "stops", "engine") for fault in rejected),
        FaultCase(VLLM, "slow", _VLLM, "equal", "equal"),
    ]


CASES: Sequence[FaultCase] = (
    FaultCase("environment reset", HISTORY, _SUMS, None, "stops", "environment", is_alone=True),
    *_environment_cases(),
    FaultCase("user", "exception", _USER, "retried", "stops", "user"),
    FaultCase("user", "wrong data", _SUMS_USER, "retried", "stops", "user"),
    FaultCase("user", "slow", _SUMS_USER, "equal", "equal"),
    _hang("user", _SUMS_USER, "user"),
    FaultCase("grader", "exception", _SUMS, "retried", "stops", "grader"),
    FaultCase("grader", "wrong data", _SUMS, "retried", "stops", "grader"),
    FaultCase("grader", "slow", _SUMS, "equal", "equal"),
    _hang("grader", _SUMS, "grader"),
    FaultCase("tools", "exception", _SUMS, "reported", None),
    FaultCase("tools", "service down", _SUMS, "retried", "stops", "tool"),
    FaultCase("tools", "slow", _SUMS, "equal", "equal"),
    _hang("tools", _SUMS, "tool"),
    *_endpoint_cases(USER_ENDPOINT, _USER_ENDPOINT, "user", list(_ENDPOINT_FAULTS)),
    *_endpoint_cases(JUDGE_ENDPOINT, _JUDGE_ENDPOINT, "grader", ["refused", HANG, "401", "500", "half JSON"]),
    FaultCase("MCP server", "death", _COUNTER, "retried", "stops", "mcp"),
    FaultCase("MCP server", HANG, _COUNTER, "retried", "stops", "mcp", is_alone=True),  # it has a short time limit
    FaultCase("MCP server", "wrong data", _COUNTER, "retried", "stops", "mcp"),
    FaultCase("MCP server", "slow", _COUNTER, "equal", "equal"),
    FaultCase("agent sampler", "exception", _SUMS, "retried", "stops", "engine"),
    FaultCase("agent sampler", "wrong data", _SUMS, "retried", "stops", "engine"),
    FaultCase("agent sampler", "slow", _SUMS, "equal", "equal"),
    *_vllm_cases(),
    FaultCase("trackers", "exception", _TRACKER, "equal", "equal", is_alone=True),
    FaultCase("trackers", "death", _TRACKER, "equal", "equal", is_alone=True),
    FaultCase("trackers", "slow", _TRACKER, "equal", "equal"),
    FaultCase("trackers", HANG, _TRACKER, None, "equal"),
    FaultCase("disk", "full disk", _SUMS, None, "refused"),
    FaultCase("disk", "partial write", _SUMS, None, "refused"),
    FaultCase("disk", "read-only", _SUMS, None, "refused"),
    FaultCase("clock", "jumps", _SUMS, "equal", "equal"),
    FaultCase("process", "death", _SUMS, None, "killed"),
    FaultCase(RANK, DEATH, _RANKS, None, "stops"),
    FaultCase(RANK, HANG, _RANKS, None, "stops", None, _HANG_SETTINGS[RANK]),
)  # fmt: skip
SKYRL_CASES: Sequence[FaultCase] = (
    *(FaultCase(component, "exception", _SUMS, "retried", "stops", "environment") for component in _METHODS),
    FaultCase("user", "exception", _SUMS_USER, "retried", "stops", "user"),
    FaultCase("grader", "exception", _SUMS, "retried", "stops", "grader"),
    FaultCase("grader", "wrong data", _SUMS, "retried", "stops", "grader"),
    FaultCase("tools", "service down", _SUMS, "retried", "stops", "tool"),
    *_endpoint_cases(USER_ENDPOINT, _USER_ENDPOINT, "user", ["reset", "500", "half JSON"]),
    FaultCase("agent sampler", "exception", _SUMS, "retried", "stops", "engine"),
    FaultCase("agent sampler", "wrong data", _SUMS, "retried", "stops", "engine"),
    FaultCase(SKYRL_WORKER, DEATH, _SUMS, None, "stops"),
)
"""The cases of a config with `engine.kind = "skyrl"`, whose episodes are played by the generator of `train.skyrl`."""


def components(cases: Sequence[FaultCase] = CASES) -> list[str]:
    """Return the components in the order of the matrix."""
    return list(dict.fromkeys(case.component for case in cases))
