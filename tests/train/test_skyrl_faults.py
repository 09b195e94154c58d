"""Test fault injection into our SkyRL generator."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from support import skyrl_venv
from understudy.engines.models import make_tiny_model
from understudy.train.chaos.cells import SKYRL_CELLS, SKYRL_WORKER

pytestmark = pytest.mark.skyrl
TIMEOUT = 900  # seconds; it takes about 60


def inject_faults(folder: Path) -> list[Mapping[str, Any]]:
    """Return the lines of JSON that `support.skyrl_faults` prints in SkyRL's environment."""
    model = make_tiny_model(folder / "tiny", architecture="qwen3")
    log = folder / "log"
    with log.open("wb") as errors:
        done = subprocess.run(
            [str(skyrl_venv.install()), "-m", "support.skyrl_faults", str(model), str(folder / "cells")],
            env=skyrl_venv.process_environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
            timeout=TIMEOUT,
            check=False,
        )
    assert done.returncode == 0, log.read_text(encoding="utf-8", errors="replace")[-6000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]


def test_generator_charges_faults_and_masks_their_episodes(tmp_path: Path) -> None:
    cells = inject_faults(tmp_path)
    assert [(cell["party"], cell["fault"]) for cell in cells] == [
        (cell.party, cell.fault) for cell in SKYRL_CELLS if cell.party != SKYRL_WORKER
    ]
    undisturbed = {"rewards": [1.0, 1.0], "trained": [True, True]}
    for cell in cells:
        owner, passing, lasting = cell["owner"], cell["passing"], cell["lasting"]
        assert undisturbed.items() <= passing.items(), cell
        if owner is None:  # a slow call is no fault
            assert (passing["charged"], lasting) == ([], {**undisturbed, "charged": []}), cell
            continue
        assert set(passing["charged"]) <= {owner}, cell
        assert lasting == {"charged": [owner], "error": {"fault": owner, "resumes": True}}, cell
        if "half" in cell:  # one of two episodes fails for good: it is masked, and has the reward of the other
            assert passing["charged"] == cell["half"]["charged"] == [owner], cell
            assert (cell["half"]["rewards"], sorted(cell["half"]["trained"])) == ([1.0, 1.0], [False, True]), cell
