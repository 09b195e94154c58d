"""Reference policies for KL penalties, preferences and distillation. Each provides a model in a `with` block.

    FrozenReference     a copy of the trained weights
    EMAReference        a moving average of the trained weights, in float32
    BaseModelReference  the base model of LoRA adapters that are still zero; needs no copy
    TeacherReference    another model with the same vocabulary

A checkpoint holds each reference's config and `state_dict`. Weights of model folders are read from there.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor

from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.model import LocalModel
from understudy.engines.local.optimizer import full_tensor, local_tensor
from understudy.engines.models import find_model
from understudy.engines.reference_config import ReferenceConfig

NamedTensors = Mapping[str, Tensor]


class ReferenceModel(Protocol):
    """A reference policy."""

    config: ReferenceConfig
    """The config from which the reference was created."""

    def activate(self) -> contextlib.AbstractContextManager[LocalModel]:
        """Provide a model with the reference's weights inside the block. Afterwards the policy is unchanged."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tensors that `restore_reference` needs."""


class FrozenReference:
    """A reference with a copy of the policy's current weights, or with the given weights."""

    def __init__(self, config: ReferenceConfig, model: LocalModel, weights: NamedTensors | None = None) -> None:
        self.config, self._model = config, model
        source = model.trainable_parameters() if weights is None else weights
        self._weights = {name: local_tensor(weight.detach()).clone() for name, weight in source.items()}

    @contextlib.contextmanager
    def activate(self) -> Iterator[LocalModel]:
        """Put these weights into the model inside the block, then restore the current ones."""
        current = {name: local_tensor(p.detach()).clone() for name, p in self._model.trainable_parameters().items()}
        self._write(self._weights)
        try:
            yield self._model
        finally:
            self._write(current)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights."""
        return self._weights

    @torch.no_grad()
    def _write(self, weights: NamedTensors) -> None:
        for name, parameter in self._model.trainable_parameters().items():
            local_tensor(parameter).copy_(weights[name])
        self._model.gather_weights()


class EMAReference(FrozenReference):
    """An exponential moving average of the master weights."""

    @torch.no_grad()
    def update(self, masters: NamedTensors) -> None:
        """Set the average to `ema_decay` times itself plus `1 - ema_decay` times the masters."""
        for name, weight in self._weights.items():
            weight.lerp_(masters[name], 1 - self.config.ema_decay)


class BaseModelReference:
    """The model without its adapters."""

    def __init__(self, config: ReferenceConfig, model: LocalModel) -> None:
        self.config, self._model = config, model

    @contextlib.contextmanager
    def activate(self) -> Iterator[LocalModel]:
        """Disable the model's adapters inside the block."""
        adapted = self._model.peft_model
        assert adapted is not None  # `make_reference` checked it
        with adapted.disable_adapter():
            yield self._model

    def state_dict(self) -> dict[str, Tensor]:
        """Return nothing: the base model is in its folder."""
        return {}


class TeacherReference:
    """Another model, loaded on first use, so that a checkpoint can be loaded without it."""

    def __init__(self, config: ReferenceConfig, local: LocalEngineConfig) -> None:
        self.config, self._local = config, local.replace(finetune="full")
        self._model: LocalModel | None = None

    @contextlib.contextmanager
    def activate(self) -> Iterator[LocalModel]:
        """Provide the other model."""
        if self._model is None:
            self._model = LocalModel(find_model(self.config.model), self._local)
            self._model.network.requires_grad_(False)
        yield self._model

    def state_dict(self) -> dict[str, Tensor]:
        """Return nothing: the weights are in the teacher's folder."""
        return {}


def make_reference(
    config: ReferenceConfig, model: LocalModel, masters: NamedTensors, local: LocalEngineConfig
) -> ReferenceModel:
    """Return a new reference as `config` describes it."""
    if config.kind == "model":
        return TeacherReference(config, local)
    if config.kind == "ema":
        return EMAReference(config, model, masters)
    return BaseModelReference(config, model) if _adapters_are_zero(model) else FrozenReference(config, model)


def restore_reference(
    config: ReferenceConfig, weights: NamedTensors, model: LocalModel, local: LocalEngineConfig
) -> ReferenceModel:
    """Return the reference of a checkpoint from its config and `state_dict`."""
    if config.kind == "model":
        return TeacherReference(config, local)
    kind = EMAReference if config.kind == "ema" else FrozenReference
    return kind(config, model, weights) if weights else BaseModelReference(config, model)


def _adapters_are_zero(model: LocalModel) -> bool:
    """Return True if only adapters are trained and their product is still 0."""
    trained = model.trainable_parameters().items()
    return model.peft_model is not None and all(
        ".lora_A." in name or (".lora_B." in name and not full_tensor(weight).any()) for name, weight in trained
    )
