"""An engine for the model that SkyRL trains. Evaluations sample from it, and checkpoints save and load it."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from understudy.engines.interface import Completion, SamplingParams
from understudy.train.skyrl.sampler import SkyRLSampler

SKYRL_FOLDER = "skyrl"
"""The folder of SkyRL's own checkpoint in the folder of a checkpoint."""


class SkyRLEngineAdapter:
    """The parts of an `Engine` that a run with SkyRL needs: `sample`, `save`, `load` and `reset_prefix_cache`."""

    write: Callable[[Path], None]
    """Writes a checkpoint. It is set when SkyRL's trainer is created."""
    checkpoint: Path | None = None
    """The folder of the SkyRL checkpoint to resume from. It is set by `load`."""

    def __init__(self, sampler: SkyRLSampler) -> None:
        self._sampler = sampler

    async def sample(
        self, prompt: Sequence[int], sampling: SamplingParams, seed: int, stop_tokens: Collection[int] = ()
    ) -> Completion:
        """Sample a reply through SkyRL's engines. See `engines.interface.Sampler`."""
        return await self._sampler.sample(prompt, sampling, seed, stop_tokens)

    def save(self, path: Path) -> None:
        """Write SkyRL's checkpoint and the model into the folder `path`."""
        self.write(path)

    def load(self, path: Path) -> None:
        """Make SkyRL resume from the checkpoint in the folder `path` when it starts."""
        (self.checkpoint,) = (path.absolute() / SKYRL_FOLDER).glob("global_step_*")

    def reset_prefix_cache(self) -> None:
        """Do nothing, because SkyRL's engines do not reuse prefixes of older weights."""
