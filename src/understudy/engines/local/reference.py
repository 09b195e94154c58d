"""A frozen copy of the trained weights, to measure how far a policy has moved."""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn


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

    @torch.no_grad()
    def _write(self, weights: Mapping[str, Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.copy_(weights[name])
