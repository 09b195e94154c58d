"""The engine that a config's `engine.kind` names."""

from pathlib import Path
from typing import TYPE_CHECKING, Union

from understudy.crew import ALONE, Crew
from understudy.engines.local.config import LocalConfig

if TYPE_CHECKING:
    from understudy.engines.local.engine import LocalEngine
    from understudy.engines.tinker.engine import TinkerEngine

AnyEngine = Union["LocalEngine", "TinkerEngine"]
"""One that can also be served: it has a `context`, and a `choice` that says who samples."""


def open_engine(folder: Path, config: LocalConfig, seed: int = 0, crew: Crew = ALONE, trains: bool = True) -> AnyEngine:
    """An engine for the model in a folder. It loads torch.

    Unless it `trains`, a local one goes without an optimizer; what a server keeps is the server's business.
    """
    if config.kind == "tinker":
        from understudy.engines.tinker.engine import TinkerEngine

        return TinkerEngine(folder, config, seed, crew)
    from understudy.engines.local.engine import LocalEngine

    return LocalEngine(folder, config, seed, crew, trains)


def open_exported(exported: Path, folder: Path, config: LocalConfig, seed: int = 0) -> "LocalEngine":
    """An engine for what another trainer has made of the model in `folder`: a whole one, or LoRA adapters for it.

    It samples, reads and exports; it does not train.
    """
    from understudy.engines.local.engine import LocalEngine

    if not (exported / "adapter_config.json").is_file():
        return LocalEngine(exported, config, seed, trains=False)
    engine = LocalEngine(folder, config, seed, trains=False)
    engine.take_adapters(exported)
    return engine
