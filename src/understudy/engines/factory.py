"""Opens the engine that a config names in `engine.kind`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Union

from understudy.engines.config import EngineConfig
from understudy.engines.process_group import SINGLE_PROCESS, ProcessGroup
from understudy.engines.tinker.config import TinkerEngineConfig

if TYPE_CHECKING:
    from understudy.engines.local.engine import LocalEngine
    from understudy.engines.tinker.engine import TinkerEngine

AnyEngine = Union["LocalEngine", "TinkerEngine"]
"""An engine that can also be served: it has a `context_length`, and a `sampler_choice` that names the sampler."""


def open_engine(
    folder: Path,
    config: EngineConfig,
    seed: int = 0,
    process_group: ProcessGroup = SINGLE_PROCESS,
    trainable: bool = True,
    trained_tokens: Sequence[int] = (),
) -> AnyEngine:
    """Return an engine for the model in `folder`. This imports torch.

    If `trainable` is False, a local engine has no optimizer. It trains the rows of `trained_tokens` although embeddings
    and head are frozen. Other kinds ignore both.
    """
    if isinstance(config, TinkerEngineConfig):
        from understudy.engines.tinker.engine import TinkerEngine

        return TinkerEngine(folder, config, seed, process_group)
    from understudy.engines.local.engine import LocalEngine

    return LocalEngine(folder, config.export_engine_config, seed, process_group, trainable, trained_tokens)


def open_exported_engine(export_folder: Path, folder: Path, config: EngineConfig, seed: int = 0) -> "LocalEngine":
    """Return an engine for a model that another trainer exported to `export_folder`: full weights, or LoRA adapters for
    the model in `folder`. The engine samples, computes log-probabilities and exports. It does not train."""
    from understudy.engines.local.engine import LocalEngine

    if not (export_folder / "adapter_config.json").is_file():
        return LocalEngine(export_folder, config.export_engine_config, seed, trainable=False)
    engine = LocalEngine(folder, config.export_engine_config, seed, trainable=False)
    engine.load_adapters(export_folder)
    return engine
