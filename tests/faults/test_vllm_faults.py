"""Test fault injection in front of a real vLLM server, with a random model that vLLM runs on a CPU."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support import vllm_server
from tests.faults.case_folder import CONFIG_FILE, write_case_folder
from tests.faults.cases import CASES
from tests.faults.child import run_program
from tests.faults.endpoint import HALF_BODY, FaultyEndpoint
from tests.faults.injection import HANG, RUN_FOLDER, FaultPlan, count_injected
from tests.faults.program import run_in_fork
from tests.faults.run_cases import run_cases, short_config
from tests.faults.vllm_server import REPLY_DAMAGES, VLLM, WEIGHTS_LOST
from understudy.engines.models import make_tiny_model
from understudy.runs.config import TrainConfig

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(bool(vllm_server.unsupported_reason()), reason=vllm_server.unsupported_reason()),
]

PATIENT = ("engine.vllm.start_timeout=120", "engine.vllm.reply_timeout=10")
"""A busy machine may take seconds to load weights or to reply."""
CASES_OF_VLLM = {case.fault: replace(case, own_settings=PATIENT) for case in CASES if case.component == VLLM}
REPEATED = (HALF_BODY, "empty body", "invalid UTF-8", "500", HANG, WEIGHTS_LOST)
"""Faults after which the sampler repeats the request, so that an episode goes on as if there had been none."""
REJECTED = tuple(REPLY_DAMAGES)
"""Faults after which the episode is played again, with another seed."""
FAULTS = REPEATED + REJECTED
LASTING = (HALF_BODY, "ids out of range")
ATTEMPT = re.compile(r"attempt \d+: fault of (\w+):")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainConfig]:
    """Yield the config of runs that sample through a server of this module."""
    folder = tmp_path_factory.mktemp("vllm")
    model = make_wide_model(folder / "model")
    with vllm_server.serve_sampler(model, folder / "log") as address:
        settings = [f"model={model}", f"algorithm.reference.model={model}", f"engine.vllm.base_url={address}"]
        yield short_config(settings)


def make_wide_model(folder: Path) -> Path:
    """Write the model `tiny` with half as many heads, of 32 dimensions, the fewest that vLLM takes on a CPU."""
    file = make_tiny_model(folder) / "config.json"
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | heads), encoding="utf-8")
    return folder


def train_with_faults(folder: Path, config: TrainConfig, faults: Sequence[str]) -> Path:
    """Return a run with an RL step without a fault, and one with each of `faults`."""
    own, case = config.replace(steps=1 + len(FAULTS)), CASES_OF_VLLM[HALF_BODY]
    after_step = config.steps_before_rl + 1
    plan = FaultPlan([(VLLM, fault) for fault in faults], "passing" if faults else "off", after_step=after_step)
    with FaultyEndpoint(folder, vllm_url=config.engine.export_engine_config.vllm.base_url) as endpoint:
        write_case_folder(folder, own, case, plan, endpoint.address)
        result = run_in_fork(partial(run_program, ["train", CONFIG_FILE, "--out", RUN_FOLDER, "--debug"]), folder)
    assert result.exit_code == 0, result.output[-3000:]
    assert "Traceback" not in result.output
    return folder / RUN_FOLDER


def read_steps(folder: Path) -> list[list[dict[str, Any]]]:
    """Return the records of a folder with a file for each step."""
    files = sorted(folder.glob("*.jsonl"))
    return [[json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] for file in files]


def replies(episodes: list[dict[str, Any]]) -> list[Mapping[str, Any]]:
    """Return what a step samples, without log-probabilities, which differ by rounding."""
    return [{key: episode[key] for key in ("task_id", "seed", "tokens", "mask", "score")} for episode in episodes]


def test_run_goes_on_after_each_fault(config: TrainConfig, tmp_path: Path) -> None:
    undisturbed = train_with_faults(tmp_path / "off", config, ())
    run = train_with_faults(tmp_path / "on", config, FAULTS)
    assert [fault for number, fault in enumerate(FAULTS) if not count_injected(tmp_path / "on", number)] == []
    owners = ATTEMPT.findall((run / "run.log").read_text(encoding="utf-8"))
    assert set(owners) == {"engine"}
    assert len(owners) >= len(REJECTED)
    episodes, trained = read_steps(run / "trajectories"), read_steps(run / "trained")
    assert len(episodes) == len(trained) == 1 + len(FAULTS)
    assert {(each.get("fault"), each["score"]["reward"]) for step in episodes for each in step} == {(None, 1.0)}
    assert {each["reward"] for step in trained for each in step} == {1.0}
    equal = 1 + len(REPEATED)  # from the first rejected reply on, the run trains on other replies
    without = read_steps(undisturbed / "trajectories")
    assert list(map(replies, episodes[:equal])) == list(map(replies, without[:equal]))
    assert list(map(replies, episodes[equal:])) != list(map(replies, without[equal:]))


def test_run_ends_and_resumes_after_faults_that_last(config: TrainConfig, tmp_path: Path) -> None:
    cases = [replace(CASES_OF_VLLM[fault], passing=None) for fault in LASTING]
    results = run_cases(config, cases, tmp_path / "cases")
    assert {result.fault: result.problems for result in results} == dict.fromkeys(LASTING, ())
