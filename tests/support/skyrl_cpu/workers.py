"""SkyRL's workers on a CPU, to test whole runs with a tiny model on a machine without a GPU. They are slow.

What a worker computes, how it divides a batch and how it takes a step is SkyRL's own code. Only what needs CUDA, NCCL,
flash-attn or FSDP is replaced: each worker has the whole model in float32, and gradients are averaged over gloo.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from understudy.train.skyrl.compat import patch_typed_dict

patch_typed_dict()

import ray  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import transformers.modeling_flash_attention_utils  # noqa: E402, F401  # which looks for flash_attn once, and finds none
from skyrl.backends.skyrl_train.distributed.dispatch import MeshRank  # noqa: E402
from skyrl.backends.skyrl_train.distributed.strategy import DistributedStrategy  # noqa: E402
from skyrl.backends.skyrl_train.workers.worker import CriticWorkerBase, PolicyWorkerBase, RefWorkerBase  # noqa: E402

STATE = "cpu.pt"


@contextmanager
def _without_flash_attention() -> Iterator[None]:
    """Provide the functions of flash_attn that SkyRL imports. It calls them only to remove padding."""
    names = ("flash_attn", "flash_attn.bert_padding")
    modules = {name: ModuleType(name) for name in names if name not in sys.modules}
    for module in modules.values():
        vars(module).update(pad_input=None, unpad_input=None)
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]


with _without_flash_attention():
    from skyrl.backends.skyrl_train.workers.model_wrapper import HFModelWrapper, get_llm_for_sequence_regression


class GlooStrategy(DistributedStrategy):  # type: ignore[misc]  # SkyRL has no types
    """SkyRL's `DistributedStrategy` with the whole model in each process."""

    def __init__(self, max_norm: float = 1.0) -> None:
        self._max_norm = max_norm
        self.world_size = 1

    def setup_distributed(self) -> None:
        """Do nothing: the process group already exists."""
        self.world_size = dist.get_world_size()

    def backward(self, loss: Any, model: Any, optimizer: Any, **_: Any) -> None:
        """Add this process's gradients."""
        loss.backward()

    def optimizer_step(self, optimizer: Any, model: Any, scheduler: Any, name: str = "model", **_: Any) -> Any:
        """Average the gradients of all processes, clip their norm and update the weights. Return the norm."""
        moved = [parameter for parameter in model.parameters() if parameter.grad is not None]
        for parameter in moved if self.world_size > 1 else ():
            dist.all_reduce(parameter.grad)
            parameter.grad /= self.world_size
        norm = torch.nn.utils.clip_grad_norm_(moved, self._max_norm)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        return norm

    def save_checkpoint(
        self, model: Any, ckpt_dir: str, node_local_rank: int, optimizer: Any, scheduler: Any, tokenizer: Any = None
    ) -> None:
        """Write weights, moments and schedule in the first process."""
        if self.is_rank_0():
            Path(ckpt_dir).mkdir(parents=True, exist_ok=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "lr": scheduler.state_dict()}
            torch.save(state, Path(ckpt_dir, STATE))

    def load_checkpoint(
        self, model: Any, ckpt_dir: str, optimizer: Any = None, scheduler: Any = None, **_: Any
    ) -> tuple[str, dict[str, Any]]:
        """Load what `save_checkpoint` wrote."""
        state = torch.load(Path(ckpt_dir, STATE), weights_only=True)
        model.load_state_dict(state["model"])
        if optimizer:
            optimizer.load_state_dict(state["optimizer"])
        if scheduler:
            scheduler.load_state_dict(state["lr"])
        return ckpt_dir, {}

    def save_hf_model(self, model: Any, output_dir: str, tokenizer: Any = None, **_: Any) -> None:
        """Write the model for transformers in the first process."""
        if self.is_rank_0():
            model.model.save_pretrained(output_dir)


class _OnCpu:
    """The differences that all kinds of workers have on a CPU."""

    cfg: Any
    model: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
        torch.cuda.empty_cache = lambda: None  # SkyRL calls these two functions on a CPU as well
        torch.set_num_threads(1)
        super().__init__(*args, **kwargs)

    def init_worker_process_group(self) -> None:
        """Join the other workers of this kind over gloo."""
        size, rank = self._world_size, self._rank  # type: ignore[attr-defined]
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        self.device_mesh = dist.device_mesh.init_device_mesh("cpu", (size, 1), mesh_dim_names=("dp", "sp"))
        self.mesh_rank = MeshRank(dp=rank, sp=0, tp=0, pp=0, world_size=size, dp_size=size, pp_size=1)

    def offload_to_cpu(self, **_: Any) -> None:
        """Do nothing: the model is already on the CPU."""

    def backload_to_gpu(self, **_: Any) -> None:
        """Do nothing: there is no GPU."""

    def _prepare(self, part: Any) -> None:
        """Create strategy, optimizer and schedule of a worker that trains. `part` is its section of SkyRL's config."""
        settings, self.strategy = part.optimizer_config, GlooStrategy(part.optimizer_config.max_grad_norm)
        self.strategy.setup_distributed()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), settings.lr, tuple(settings.adam_betas), weight_decay=settings.weight_decay
        )
        warmup = max(1, settings.num_warmup_steps)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min(1.0, (step + 1) / warmup))


class CpuPolicy(_OnCpu, PolicyWorkerBase):  # type: ignore[misc]
    """SkyRL's `PolicyWorkerBase` on a CPU."""

    def init_model(self, model_path: str, num_training_steps: int | None = None) -> None:
        """Load the model, and create its optimizer."""
        torch.manual_seed(self.cfg.seed)
        self.model = HFModelWrapper(model_path, use_flash_attention_2=False, bf16=False)
        self._prepare(self.cfg.policy)

    def _set_pad_token_id(self, pad_token_id: int) -> None:
        self.model.model.config.pad_token_id = pad_token_id

    async def init_weight_sync_state(self, inference_engine_client: Any, inference_engine_cfg: Any) -> None:
        """Do nothing: the engine reads weights from files."""

    async def broadcast_to_inference_engines(
        self, inference_engine_client: Any, inference_engine_cfg: Any, model_id: str | None = None
    ) -> None:
        """Make the engine load the current weights."""
        if dist.get_rank() == 0:
            with inference_engine_client.folder() as folder:
                self.model.model.save_pretrained(folder)
                await inference_engine_client.load(folder)
        dist.barrier()


class CpuCritic(_OnCpu, CriticWorkerBase):  # type: ignore[misc]
    """SkyRL's `CriticWorkerBase` on a CPU."""

    def init_model(self, model_path: str, num_training_steps: int | None = None) -> None:
        """Load the model with a value head, and create its optimizer."""
        torch.manual_seed(self.cfg.seed)
        self.model = get_llm_for_sequence_regression(
            model_path,
            "critic",
            bf16=False,
            init_value_head=True,
            value_head_prefix=self.cfg.algorithm.value_head_prefix,
        )
        self._prepare(self.cfg.critic)


class CpuReference(_OnCpu, RefWorkerBase):  # type: ignore[misc]
    """SkyRL's `RefWorkerBase` on a CPU."""

    def init_model(self, model_path: str) -> None:
        """Load the initial model."""
        self.strategy = GlooStrategy()
        self.strategy.setup_distributed()
        self.model = HFModelWrapper(model_path, use_flash_attention_2=False, bf16=False).eval()


PolicyWorker = ray.remote(num_gpus=1)(CpuPolicy)
CriticWorker = ray.remote(num_gpus=1)(CpuCritic)
RefWorker = ray.remote(num_gpus=1)(CpuReference)
