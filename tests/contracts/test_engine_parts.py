"""Test that each engine defines exactly the methods of the protocols that it implements."""

import inspect
import sys
from typing import Any

import pytest

from support.paths import ROOT
from understudy.engines.interface import Critic, Reference, Sampler, StreamingSampler, Trainer
from understudy.engines.local.engine import LocalEngine
from understudy.engines.scripted import ScriptedSampler
from understudy.engines.tinker.engine import TinkerEngine
from understudy.engines.vllm.sampler import VllmSampler
from understudy.train.skyrl.engine_adapter import SkyRLEngineAdapter

sys.path.insert(0, str(ROOT / "examples" / "recipes"))
from bigram_engine import BigramEngine

ENGINES: dict[type, set[type]] = {
    LocalEngine: {StreamingSampler, Trainer, Reference, Critic},
    TinkerEngine: {StreamingSampler, Trainer, Reference},
    BigramEngine: {Sampler, Trainer},
    VllmSampler: {Sampler},
    ScriptedSampler: {Sampler},
    SkyRLEngineAdapter: {Sampler},
}


def public_members(part: type) -> dict[str, Any]:
    """Return the public members that a protocol defines itself."""
    return {name: member for name, member in vars(part).items() if not name.startswith("_")}


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.__name__)
def test_engine_has_the_methods_of_its_protocols(engine: type) -> None:
    for part in ENGINES[engine]:
        for name, member in public_members(part).items():
            found = inspect.getattr_static(engine, name)
            if inspect.isfunction(member):
                expected = inspect.signature(member).parameters
                assert list(inspect.signature(found).parameters)[: len(expected)] == list(expected), name
                assert inspect.iscoroutinefunction(found) == inspect.iscoroutinefunction(member), name


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.__name__)
@pytest.mark.parametrize("part", [Reference, Critic])
def test_engine_has_no_methods_of_other_protocols(engine: type, part: type) -> None:
    if part not in ENGINES[engine]:
        assert not [name for name in public_members(part) if hasattr(engine, name)]
