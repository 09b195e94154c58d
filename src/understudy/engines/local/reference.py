"""A frozen copy of the trained weights, to measure how far a policy has moved."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from understudy.engines.local.optimizer import own

if TYPE_CHECKING:
    from understudy.engines.local.sharded import Shards


class Reference:
    """The weights as they were when this was made; `active` puts them in place for a while."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = dict(parameters)
        self.weights: dict[str, Tensor] = {name: p.detach().clone() for name, p in self._parameters.items()}

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Compute with the reference's weights inside the block; the current ones come back after it."""
        current = {name: p.detach().clone() for name, p in self._parameters.items()}
        self._write(self.weights)
        try:
            yield
        finally:
            self._write(current)

    def whole(self, shards: "Shards | None") -> dict[str, Tensor]:
        """The weights, as a checkpoint keeps them."""
        return {name: shards.whole(name, own(w)) if shards else w for name, w in self.weights.items()}

    @torch.no_grad()
    def restore(self, weights: Mapping[str, Tensor], shards: "Shards | None") -> None:
        """The inverse of `whole`."""
        for name, weight in weights.items():
            own(self.weights[name]).copy_(shards.part(name, weight) if shards else weight)

    @torch.no_grad()
    def _write(self, weights: Mapping[str, Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.copy_(weights[name])
