"""Configuration of SkyRL, whose trainer runs on a Ray cluster with this package's tasks, rollouts and rewards.

Importing it does not import torch.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from understudy.engines.local.config import LocalEngineConfig, TrainedWeightsConfig

SkyRLValue = bool | int | float | str | list[Any]


def flatten_keys(given: object) -> object:
    """Flatten nested tables to dotted keys. Return other values unchanged; the field's type rejects them."""
    return dict(_leaves(given, "")) if isinstance(given, Mapping) else given


def _leaves(table: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        yield from _leaves(value, f"{path}{key}.") if isinstance(value, Mapping) else ((path + key, value),)


SkyRLOverrides = Annotated[dict[str, SkyRLValue], BeforeValidator(flatten_keys)]
"""Dotted keys and their values. TOML may nest them as tables. The string `null` is SkyRL's None."""


class SkyRLEngineConfig(TrainedWeightsConfig):
    """`kind = "skyrl"`: SkyRL's trainer on a Ray cluster, with this package's tasks, rollouts and rewards.

    SkyRL's own keys, under `trainer` and `generator`, take precedence over the keys derived from other sections. SkyRL
    validates them. Keys that understudy sets itself, such as the paths in the run's folder, are rejected
    (`train.skyrl.mapping.RESERVED_KEYS`).
    """

    kind: Literal["skyrl"] = "skyrl"
    """`skyrl`: SkyRL's trainer on a Ray cluster (docs/cluster.md)."""
    finetune: Literal["full", "lora"] = "full"
    """`full` trains all weights, embeddings too; `lora` trains adapters."""
    max_num_seqs: int = Field(default=64, ge=1)
    """Episodes of an evaluation at once."""
    experiment: str = ""
    """`module:attribute` of a subclass of `SkyRLExperiment` (train/skyrl/trainer.py) with other workers. By default
    SkyRL's own workers are used, which need GPUs and vLLM."""
    trainer: SkyRLOverrides = {}
    """SkyRL's trainer keys, such as trainer.placement.policy_num_gpus_per_node = 8."""
    generator: SkyRLOverrides = {}
    """SkyRL's generator keys, such as generator.inference_engine.num_engines = 8."""

    @property
    def overrides(self) -> dict[str, SkyRLValue]:
        """All given keys of SkyRL by their full names."""
        named = {"trainer": self.trainer, "generator": self.generator}
        return {f"{head}.{key}": value for head, table in named.items() for key, value in table.items()}

    @property
    def export_engine_config(self) -> LocalEngineConfig:
        """Return the config of a local engine that opens an exported model."""
        shared = {name: getattr(self, name) for name in TrainedWeightsConfig.model_fields if name != "kind"}
        return LocalEngineConfig(**shared, train_embeddings=self.finetune == "full")
