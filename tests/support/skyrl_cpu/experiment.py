"""SkyRL's experiment with workers and an inference engine on this machine's CPU, for a tiny model."""

import os
from pathlib import Path
from typing import Any

import ray

from support.skyrl_cpu.engine import ClientOfDyingEngine, ClientOfKilledRun, CpuClient
from support.skyrl_cpu.workers import CriticWorker, PolicyWorker, RefWorker
from understudy.core.errors import ConfigError
from understudy.train.skyrl.cluster import ADDRESS_VARIABLE
from understudy.train.skyrl.trainer import AsyncTrainer, SkyRLExperiment, SyncTrainer

MEMORY = 256 << 20  # bytes of the object store, which stores little
CPUS = 3  # for the inference engine and for the processes that SkyRL starts besides its workers


class CpuExperiment(SkyRLExperiment):
    """SkyRL's experiment with CPU workers and a CPU inference engine."""

    client = CpuClient

    def __init__(self, cfg: Any, *parts: Any) -> None:
        """Raise ConfigError if an existing cluster declares fewer GPUs than SkyRL requests, because SkyRL would wait
        for them.
        """
        required, there = cfg.trainer.placement.policy_num_gpus_per_node, int(ray.cluster_resources().get("GPU", 0))
        if there < required:
            raise ConfigError(
                f"the Ray cluster at {ADDRESS_VARIABLE} declares {there} GPUs, but SkyRL requests {required}, which "
                f"need not exist: start it with `ray start --head --num-gpus={required}`, or unset {ADDRESS_VARIABLE}"
            )
        super().__init__(cfg, *parts)

    @staticmethod
    def worker_env_vars(cfg: Any) -> dict[str, str]:
        """Return no environment variables."""
        return {}

    @staticmethod
    def ray_init_args(cfg: Any) -> dict[str, Any]:
        """Grant GPUs that do not exist, because SkyRL requests some."""
        placement = cfg.trainer.placement
        parts = (
            placement.policy_num_gpus_per_node,
            placement.ref_num_gpus_per_node,
            placement.critic_num_gpus_per_node,
        )
        return {
            "num_cpus": sum(parts) + CPUS,
            "num_gpus": sum(parts),
            "include_dashboard": False,
            "object_store_memory": MEMORY,
        }

    def get_inference_client(self) -> CpuClient:
        """Start one engine in its own process."""
        model, sequences = Path(self.cfg.trainer.policy.model.path), self._context.config.engine.max_num_seqs
        return self.client(model, sequences)

    def _setup_trainer(self) -> SyncTrainer | AsyncTrainer:
        os.makedirs(self.cfg.trainer.export_path, exist_ok=True)
        client = self.get_inference_client()
        made = self.get_trainer(
            self.cfg,
            tracker=self.get_tracker(),
            tokenizer=self.tokenizer,
            train_dataset=self.train_dataset,
            eval_dataset=None,
            inference_engine_client=client,
            generator=self.get_generator(self.cfg, self.tokenizer, client),
            colocate_pg=None,
        )
        made.build_models(PolicyWorker, CriticWorker, RefWorker)
        return made


class DyingEngineExperiment(CpuExperiment):
    """An experiment whose engine is killed in the rollouts of step 2."""

    client = ClientOfDyingEngine


class KilledExperiment(CpuExperiment):
    """An experiment whose process is killed in the rollouts of step 7."""

    client = ClientOfKilledRun
