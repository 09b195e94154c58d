"""The policy that SkyRL trains, as evaluations and checkpoints need it: an engine's `sample`, `save` and `load`."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from understudy.engines.base import Completion, Sampling
from understudy.integrations.skyrl.sampler import SkyrlSampler

SKYRL = "skyrl"
"""In a checkpoint: what SkyRL wrote, to go on from."""


class Policy:
    """`write` is what writes a checkpoint, once there is a trainer; `checkpoint` what SkyRL is to go on from."""

    write: Callable[[Path], None]
    checkpoint: Path | None = None

    def __init__(self, sampler: SkyrlSampler) -> None:
        self._sampler = sampler

    async def sample(
        self, prompt: Sequence[int], sampling: Sampling, seed: int, stop_tokens: Collection[int] = ()
    ) -> Completion:
        """See `engines.base.Sampler`."""
        return await self._sampler.sample(prompt, sampling, seed, stop_tokens)

    def save(self, path: Path) -> None:
        """Write SkyRL's checkpoint, and the model beside it."""
        self.write(path)

    def load(self, path: Path) -> None:
        """SkyRL goes on from the checkpoint in this folder when it starts."""
        (self.checkpoint,) = (path.absolute() / SKYRL).glob("global_step_*")

    def forget(self) -> None:
        """Nothing to forget: what an engine keeps was computed from the weights that it has."""
