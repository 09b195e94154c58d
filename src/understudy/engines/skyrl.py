"""SkyRL's own trainer on a Ray cluster, with the tasks, rollouts and rewards that all engines have.

Its configuration. Torch-free, so that reading a config needs no torch.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from understudy.records import Record

Value = bool | int | float | str | list[Any]


def dotted(given: object) -> object:
    """Nested tables as one mapping of dotted keys; what is no table is left for the field to refuse."""
    return dict(_leaves(given, "")) if isinstance(given, Mapping) else given


def _leaves(table: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        yield from _leaves(value, f"{path}{key}.") if isinstance(value, Mapping) else ((path + key, value),)


Keys = Annotated[dict[str, Value], BeforeValidator(dotted)]
"""Dotted keys and their values. In TOML they may be tables; `null` as a text is SkyRL's None."""


class SkyrlConfig(Record):
    """What SkyRL is told beside what the other sections come to: its own keys, which it checks itself.

    They go before what another section comes to. Those that belong to the run's folder are refused.
    """

    workers: Literal["skyrl", "cpu"] = "skyrl"
    """SkyRL's own, which need GPUs and vLLM, or slow ones of ours on the CPU of this machine, to try everything with a
    tiny model."""
    trainer: Keys = {}
    """Such as trainer.placement.policy_num_gpus_per_node = 8."""
    generator: Keys = {}
    """Such as generator.inference_engine.num_engines = 8."""

    @property
    def keys(self) -> dict[str, Value]:
        """All of SkyRL's keys that are given, as it names them."""
        named = {"trainer": self.trainer, "generator": self.generator}
        return {f"{head}.{key}": value for head, table in named.items() for key, value in table.items()}
