"""Test fault injection into our SkyRL generator."""

import json
import subprocess
from pathlib import Path

import pytest

from support import skyrl_venv
from support.paths import ROOT
from tests.faults.cases import SKYRL_CASES, SKYRL_WORKER
from understudy.engines.models import make_tiny_model

pytestmark = pytest.mark.skyrl
TIMEOUT = 900  # seconds; it takes about 60


def run_in_skyrl(folder: Path, *arguments: str) -> bytes:
    """Return what Python prints in SkyRL's environment."""
    log = folder / "log"
    with log.open("wb") as errors:
        done = subprocess.run(
            [str(skyrl_venv.install()), *arguments],
            cwd=ROOT,
            env=skyrl_venv.process_environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
            timeout=TIMEOUT,
            check=False,
        )
    assert done.returncode == 0, log.read_text(encoding="utf-8", errors="replace")[-6000:]
    return done.stdout


def test_generator_charges_faults_and_masks_their_episodes(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "tiny", architecture="qwen3")
    printed = run_in_skyrl(tmp_path, "-m", "tests.faults.skyrl_generator", str(model), str(tmp_path / "cases"))
    cases = [json.loads(line) for line in printed.splitlines() if line.startswith(b"{")]
    assert [(case["component"], case["fault"]) for case in cases] == [
        (case.component, case.fault) for case in SKYRL_CASES if case.component != SKYRL_WORKER
    ]
    undisturbed = {"rewards": [1.0, 1.0], "trained": [True, True]}
    for case in cases:
        owner, passing, lasting = case["owner"], case["passing"], case["lasting"]
        assert undisturbed.items() <= passing.items(), case
        if owner is None:  # a slow call is no fault
            assert (passing["charged"], lasting) == ([], {**undisturbed, "charged": []}), case
            continue
        assert set(passing["charged"]) <= {owner}, case
        assert lasting == {"charged": [owner], "error": {"fault": owner, "resumes": True}}, case
        if "half" in case:  # one of two episodes fails for good: it is masked, and has the reward of the other
            assert passing["charged"] == case["half"]["charged"] == [owner], case
            assert (case["half"]["rewards"], sorted(case["half"]["trained"])) == ([1.0, 1.0], [False, True]), case
