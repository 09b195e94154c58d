"""References: what a policy is held to, or taught by. Each gives a model to compute with for a while.

    Frozen      the trained weights as they were
    Averaged    a moving average of the trained weights, in float32
    Untouched   a model whose adapters have not moved yet, so that without them it is what it was; nothing is kept
    Other       another model with the same vocabulary

A checkpoint holds each one's config and `state`, and what is in a model's folder is read from there.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor

from understudy.engines.local.config import LocalConfig
from understudy.engines.local.model import Model
from understudy.engines.reference import ReferenceConfig
from understudy.models import find_model

Weights = Mapping[str, Tensor]


class Reference(Protocol):
    """What a policy is compared with."""

    config: ReferenceConfig
    """What it was made of."""

    def active(self) -> contextlib.AbstractContextManager[Model]:
        """A model that computes as the reference inside the block; after it the policy is what it was."""

    def follow(self, masters: Weights) -> None:
        """Move towards the policy, where this kind does."""

    def state(self) -> dict[str, Tensor]:
        """What has to be kept to make it anew by `restored`."""


class Frozen:
    """The weights as they were when this was made, or those given."""

    def __init__(self, config: ReferenceConfig, model: Model, weights: Weights | None = None) -> None:
        self.config, self._model = config, model
        given = model.trainable() if weights is None else weights
        self._weights = {name: weight.detach().clone() for name, weight in given.items()}

    @contextlib.contextmanager
    def active(self) -> Iterator[Model]:
        """The model with these weights; the current ones come back."""
        current = {name: p.detach().clone() for name, p in self._model.trainable().items()}
        self._write(self._weights)
        try:
            yield self._model
        finally:
            self._write(current)

    def follow(self, masters: Weights) -> None:
        """It stays."""

    def state(self) -> dict[str, Tensor]:
        """The weights."""
        return self._weights

    @torch.no_grad()
    def _write(self, weights: Weights) -> None:
        for name, parameter in self._model.trainable().items():
            parameter.copy_(weights[name])


class Averaged(Frozen):
    """An exponential moving average of the masters."""

    @torch.no_grad()
    def follow(self, masters: Weights) -> None:
        """Keep `decay` of itself, and take the rest from the masters."""
        for name, weight in self._weights.items():
            weight.lerp_(masters[name], 1 - self.config.decay)


class Untouched:
    """The model without its adapters."""

    def __init__(self, config: ReferenceConfig, model: Model) -> None:
        self.config, self._model = config, model

    @contextlib.contextmanager
    def active(self) -> Iterator[Model]:
        """The model, whose adapters rest."""
        adapted = self._model.adapted
        assert adapted is not None  # or it would not be this kind
        with adapted.disable_adapter():
            yield self._model

    def follow(self, masters: Weights) -> None:
        """It stays."""

    def state(self) -> dict[str, Tensor]:
        """Nothing: the base is in the model's folder."""
        return {}


class Other:
    """Another model, looked for and read when it is first asked: to use a checkpoint takes no teacher."""

    def __init__(self, config: ReferenceConfig, local: LocalConfig) -> None:
        self.config, self._local = config, local.replace(finetune="full")
        self._model: Model | None = None

    @contextlib.contextmanager
    def active(self) -> Iterator[Model]:
        """The other model."""
        if self._model is None:
            self._model = Model(find_model(self.config.model), self._local)
            self._model.network.requires_grad_(False)
        yield self._model

    def follow(self, masters: Weights) -> None:
        """It stays."""

    def state(self) -> dict[str, Tensor]:
        """Nothing: its weights are in its folder."""
        return {}


def kept(config: ReferenceConfig, model: Model, masters: Weights, local: LocalConfig) -> Reference:
    """The reference that a config asks for, as of now."""
    if config.kind == "model":
        return Other(config, local)
    if config.kind == "ema":
        return Averaged(config, model, masters)
    return Untouched(config, model) if _untouched(model) else Frozen(config, model)


def restored(config: ReferenceConfig, weights: Weights, model: Model, local: LocalConfig) -> Reference:
    """The reference that a checkpoint holds: its config, and its `state`."""
    if config.kind == "model":
        return Other(config, local)
    kind = Averaged if config.kind == "ema" else Frozen
    return kind(config, model, weights) if weights else Untouched(config, model)


def _untouched(model: Model) -> bool:
    """Whether all that is trained are adapters whose product is still 0."""
    trained = model.trainable().items()
    return model.adapted is not None and all(
        ".lora_A." in name or (".lora_B." in name and not weight.any()) for name, weight in trained
    )
