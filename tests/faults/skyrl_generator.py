"""Fault injection into our SkyRL generator. test_skyrl_faults runs it in SkyRL's environment.

PYTHONPATH=tests python -m tests.faults.skyrl_generator MODEL FOLDER

It needs no Ray: it asks our generator for one step, and prints a line of JSON for each case. `tests.faults` runs the
case of a killed worker, which needs Ray.
"""

import asyncio
import contextlib
import json
import logging
import math
import re
import sys
from pathlib import Path
from typing import Any

from support.paths import ROOT
from support.skyrl_inside import RandomEngine, generator_request, open_generator
from tests.faults.case_folder import CONFIG_FILE, write_case_folder
from tests.faults.cases import SKYRL_WORKER, FaultCase
from tests.faults.endpoint import USER_ENDPOINT, FaultyEndpoint
from tests.faults.injection import RUN_FOLDER, FaultInjector, FaultMode, FaultPlan
from tests.faults.run_cases import select_cases, short_config
from tests.faults.sources import MODULE_NAME
from understudy.core.errors import RolloutError
from understudy.runs.config import TrainConfig, load_config

EXAMPLE = str(ROOT / "examples" / "skyrl" / "tiny_cpu.toml")
_FAULT = re.compile(r"fault of (\w+):")


class FaultyEngine(RandomEngine):
    """An engine that fails by the plan of a case."""

    def __init__(self, injector: FaultInjector) -> None:
        super().__init__()
        self._injector = injector

    async def generate(self, input_batch: dict[str, Any], model: str | None = None) -> dict[str, Any]:
        fault = self._injector.find_fault("agent sampler", "sample")
        self.sessions |= set(input_batch["session_ids"])
        if fault == "exception":
            raise ConnectionError("the injected engine does not answer")
        reply = await super().generate(input_batch, model)
        if fault == "wrong data":
            reply["response_logprobs"] = [[math.nan] * len(reply["response_ids"][0])]
        return reply


class Owners(logging.Handler):
    """Collects the components that the log names for failed attempts."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self.found |= set(_FAULT.findall(record.getMessage()))


def ask_generator(config: TrainConfig, case: FaultCase, folder: Path, mode: FaultMode, **plan: Any) -> dict[str, Any]:
    """Return how the generator handles a step with faults: the components charged, its error, and its rows."""
    owners, log = Owners(), logging.getLogger("understudy")
    with FaultyEndpoint(folder) as endpoint, import_folder(folder):
        faults = FaultPlan([(case.component, case.fault)], mode, after_step=1, **plan)
        write_case_folder(folder, config, case, faults, endpoint.address)
        generator, run, own = open_generator(
            load_config(folder / CONFIG_FILE), folder / RUN_FOLDER, FaultyEngine(FaultInjector(folder))
        )
        run.log_metrics(1, {}, "train")  # from here on calls fail
        log.addHandler(owners)
        log.setLevel(logging.INFO)
        try:
            rows = asyncio.run(generator.generate(generator_request(own, [0], 1)[0]))
        except RolloutError as e:
            error = {"fault": e.fault, "resumes": run.resume_command in str(e)}
            return {"charged": sorted(owners.found), "error": error}
        finally:
            log.removeHandler(owners)
    trained = [any(mask) for mask in rows["loss_masks"]]
    return {"charged": sorted(owners.found), "rewards": rows["rewards"], "trained": trained}


@contextlib.contextmanager
def import_folder(folder: Path) -> Any:
    """Import the module of a case's folder in place of another case's."""
    sys.modules.pop(MODULE_NAME, None)
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))


def check_generator(config: TrainConfig, folder: Path) -> None:
    """Print how the generator handles the faults of each case."""
    half = config.replace(max_fault_rate=1.0, limits=config.limits.replace(max_retries=0))
    for number, case in enumerate(select_cases([], config)):
        if case.component == SKYRL_WORKER:
            continue
        found = {
            "passing": ask_generator(config, case, folder / f"{number} passing", "passing"),
            "lasting": ask_generator(config, case, folder / f"{number} lasting", "lasting"),
        }
        if case.component != USER_ENDPOINT:  # whose calls have no common count
            found["half"] = ask_generator(half, case, folder / f"{number} half", "passing", share=(1, 2))
        print(json.dumps({"component": case.component, "fault": case.fault, "owner": case.owner, **found}), flush=True)


if __name__ == "__main__":
    model, folder = sys.argv[1:]
    config = short_config([EXAMPLE, "engine.trainer.placement.policy_num_gpus_per_node=1", f"model={model}"])
    check_generator(config, Path(folder))
