"""The local engine: trains with PyTorch, and samples with the same modules or through vLLM.

`model_sampler.py` samples, `scoring.py` computes log-probabilities, `update.py` takes optimizer steps, and
`checkpoint.py` saves and loads.
"""

import os
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import torch
from torch import Tensor

from understudy.algorithms.batch import Batch
from understudy.algorithms.config import CriticConfig, LossConfig
from understudy.engines.interface import (
    Completion,
    LogprobsCallback,
    LogprobTolerance,
    SamplingParams,
    TokenCallback,
    TokenConstraint,
)
from understudy.engines.local.checkpoint import load_checkpoint, prepare_checkpoint, safetensors_errors_as_os_errors
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.cpu.malloc import configure_malloc
from understudy.engines.local.cpu.onednn_cache import limit_onednn_cache
from understudy.engines.local.distributed.distributed import validate_same_weights
from understudy.engines.local.model import LocalModel
from understudy.engines.local.model_sampler import ModelSampler
from understudy.engines.local.optimizer import MasterAdamW
from understudy.engines.local.reference import EMAReference, ReferenceModel, make_reference
from understudy.engines.local.sampler_choice import SamplerChoice
from understudy.engines.local.sampling.sampler import LocalSampler
from understudy.engines.local.scoring import compute_logprobs, score_tokens, validate_lengths
from understudy.engines.local.token_rows import ROW_RATE_FACTOR
from understudy.engines.local.tree_attention import validate_kernels
from understudy.engines.local.update import WeightUpdate
from understudy.engines.local.value_head import ValueHead
from understudy.engines.process_group import SINGLE_PROCESS, ProcessGroup
from understudy.engines.reference_config import FROZEN_REFERENCE, ReferenceConfig

TOLERANCE = {torch.float32: LogprobTolerance(1e-3, 1e-4), torch.bfloat16: LogprobTolerance(1.0, 0.1)}
"""Tolerances by dtype. Measured for SmolLM2-135M (30 layers): maximum 3e-5 and 0.3, mean 4e-6 and 0.04."""
CUBLAS_WORKSPACE = ":4096:8"
"""Without a fixed workspace, two runs on a GPU differ by rounding (cuBLAS's documentation, "Results
reproducibility")."""
HEAP_RESERVE = 6 << 30  # bytes of address space for activations; physical memory is used only when written


class LocalEngine:
    """Implements `Engine`, `StreamingSampler`, `ConstrainedSampler`, `Reference` and `Critic`.

    `folder` holds a transformers model.
    """

    def __init__(
        self,
        folder: Path,
        config: LocalEngineConfig,
        seed: int = 0,
        process_group: ProcessGroup = SINGLE_PROCESS,
        trainable: bool = True,
        trained_tokens: Sequence[int] = (),
    ) -> None:
        """Every rank has an engine with the same weights and does its share of each step.

        The rows of `trained_tokens` are trained although embeddings and head are frozen.

        If `trainable` is False, the engine has no optimizer and raises ValueError for updates and checkpoints. With
        `finetune="full"` that saves 8 bytes per weight at once and 8 more after the first update.
        """
        limit_onednn_cache()
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)
        if config.threads:
            torch.set_num_threads(config.threads)
        torch.manual_seed(seed)
        self._config, self._seed, self._process_group = config, seed, process_group
        self._model = LocalModel(folder, config, process_group, trained_tokens)
        if self._model.device.type == "cpu":
            configure_malloc(reserve_bytes=HEAP_RESERVE)
        self._maybe_optimizer: MasterAdamW | None = None
        if trainable:
            if self._model.device.type == "cuda":
                for shape in self._model.attention_shapes:
                    validate_kernels(shape, self._model.dtype, self._model.device)
            rows = self._model.token_rows
            self._maybe_optimizer = MasterAdamW(
                self._model.trainable_parameters(),
                config.optimizer,
                self._model.fsdp_shards,
                dict.fromkeys(rows.parameters if rows else (), ROW_RATE_FACTOR),
            )
            validate_same_weights(process_group, self._maybe_optimizer.fingerprint())
        self._sampling = ModelSampler(self._model, folder, config, process_group.world_size)
        self._reference: ReferenceModel | None = None
        self._critic: ValueHead | None = None
        self._state_is_written = threading.Event()
        """Not set while a thread writes the weights and the optimizer, which must not change then."""
        self._state_is_written.set()

    @property
    def weights_version(self) -> int:
        """Number of updates of the weights."""
        return self._sampling.sampler.weights_version

    @property
    def sampler_choice(self) -> SamplerChoice:
        """The sampler in use, and why it was chosen."""
        return self._sampling.choice

    @property
    def device(self) -> str:
        """Device type of the weights: cpu, cuda or mps."""
        return self._model.device.type

    @property
    def dtype(self) -> str:
        """Dtype of the weights."""
        return str(self._model.dtype).removeprefix("torch.")

    @property
    def context_length(self) -> int:
        """Maximum length of prompt and reply together, in tokens. vLLM may lower it by `max_model_len`."""
        return self._sampling.context_length

    @property
    def tolerance(self) -> LogprobTolerance:
        """Tolerance for the dtype of the weights."""
        return TOLERANCE[self._model.dtype]

    def validate_sampling(self, sampling: SamplingParams) -> None:
        """Raise ConfigError if the sampler does not support `sampling`."""
        self._sampling.sampler.validate_sampling(sampling)

    async def sample(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        seed: int,
        stop_tokens: Collection[int] = (),
        on_tokens: TokenCallback | None = None,
    ) -> Completion:
        """Continue a prompt. Concurrent calls are batched. See `engines.interface.StreamingSampler`."""
        return await self._sampling.sample(prompt, sampling, seed, stop_tokens, on_tokens)

    @property
    def supports_constraints(self) -> bool:
        """Whether replies can be constrained: not while vLLM samples."""
        return isinstance(self._sampling.sampler, LocalSampler)

    async def sample_constrained(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        seed: int,
        constraint: TokenConstraint,
        stop_tokens: Collection[int] = (),
        on_tokens: TokenCallback | None = None,
    ) -> Completion:
        """Continue a prompt with allowed tokens only. See `engines.interface.ConstrainedSampler`."""
        return await self._sampling.sample(prompt, sampling, seed, stop_tokens, on_tokens, constraint)

    async def compute_logprobs(self, batch: Batch) -> Batch:
        """Return the batch with `logprobs` of its trained tokens under the current weights."""
        return batch.replace(logprobs=self._compute_logprobs(self._model, batch))

    def add_critic(self, critic: CriticConfig) -> None:
        """Add a value head to the model."""
        self._critic = ValueHead(self._model.config.hidden_size, self._model.device, critic, self._config.optimizer)

    async def compute_values(self, batch: Batch) -> Batch:
        """Return the batch with the value head's `values` of its trained tokens."""
        if self._critic is None:
            raise ValueError("there is no critic; call add_critic first")
        head = self._critic
        values = score_tokens(
            self._model,
            batch,
            lambda states: head.forward(states.hidden)[states.state_index],
            self._process_group,
            self._config.max_tokens_per_microbatch,
        )
        return batch.replace(values=values)

    def set_reference(self, config: ReferenceConfig = FROZEN_REFERENCE) -> None:
        """Set the reference: a copy of the current weights, their moving average, or another model."""
        self._reference = make_reference(config, self._model, self._optimizer.masters, self._config)

    def update_reference(self) -> None:
        """Move a reference of kind `ema` toward the current weights."""
        reference = self._known_reference()
        if isinstance(reference, EMAReference):
            self._state_is_written.wait()
            reference.update(self._optimizer.masters)

    def drop_reference(self) -> None:
        """Remove the reference and free its memory."""
        self._reference = None

    async def compute_ref_logprobs(self, batch: Batch) -> Batch:
        """Return the batch with `ref_logprobs` under the reference."""
        with self._known_reference().activate() as model:
            return batch.replace(ref_logprobs=self._compute_logprobs(model, batch))

    async def update(
        self,
        minibatches: Sequence[Batch],
        loss: LossConfig,
        learning_rate: float,
        on_logprobs: LogprobsCallback | None = None,
    ) -> dict[str, float]:
        """Take one optimizer step per batch. Rows without trained tokens have zero gradient and are skipped.

        A token is trained if its advantage or value weight is not 0; with a loss of the user's own, every sampled one.
        """
        optimizer = self._optimizer  # raises before anything has changed
        self._state_is_written.wait()
        validate_lengths(minibatches, self._model)
        # Before the steps, because this frees the cache's memory for activations.
        self._sampling.sampler.set_weights_version(self.weights_version + 1)
        update = WeightUpdate(
            self._model,
            optimizer,
            self._critic,
            self._process_group,
            loss,
            learning_rate,
            self._config.max_tokens_per_microbatch,
            seed=f"{self._seed}/{self.weights_version}",
        )
        return update.run(minibatches, on_logprobs)

    def reset_optimizer(self) -> None:
        """Reset the optimizer's moments."""
        self._optimizer.reset_moments()

    def save(self, path: Path) -> None:
        """Write master weights and moments, and those of reference and critic if there are any."""
        self.prepare_save()(path)

    def prepare_save(self) -> Callable[[Path], None]:
        """Return a function that writes the state of now. See `engines.interface.SavesInBackground`.

        The sampler's cache is cleared, so that this engine continues bit for bit like one that loads the checkpoint.
        """
        self._state_is_written.wait()
        write = prepare_checkpoint(
            self._model,
            self._optimizer,
            self._reference,
            self._critic,
            self.weights_version,
            self._process_group,
        )
        self._sampling.sampler.reset_prefix_cache()
        self._state_is_written.clear()

        def write_state(path: Path) -> None:
            try:
                write(path)
            finally:
                self._state_is_written.set()

        return write_state

    def load(self, path: Path) -> None:
        """Load a checkpoint that `save` wrote. An engine without an optimizer loads only the weights."""
        self._state_is_written.wait()
        version, self._reference = load_checkpoint(path, self._model, self._maybe_optimizer, self._critic, self._config)
        self._model.gather_weights()
        self._sampling.sampler.set_weights_version(version)

    def load_adapters(self, folder: Path) -> None:
        """Load LoRA adapters that peft wrote. The optimizer's masters do not change, so do not train afterwards."""
        self._model.load_adapters(folder)
        self._sampling.sampler.set_weights_version(self.weights_version + 1)

    def export(self, folder: Path, merge_adapters: bool = False) -> None:
        """Write the model for transformers, or LoRA adapters for peft unless `merge_adapters` is set."""
        if self._process_group.rank == 0:
            with safetensors_errors_as_os_errors():
                self._model.export(folder, merge_adapters)

    def reset_prefix_cache(self) -> None:
        """Clear the sampler's cache and its n-gram drafts, which affect the rounding of later samples."""
        self._sampling.sampler.reset_prefix_cache()

    def close(self) -> None:
        """Clear the sampler's cache and stop its subprocesses."""
        self._sampling.sampler.close()

    @property
    def _optimizer(self) -> MasterAdamW:
        if self._maybe_optimizer is None:
            raise ValueError("this engine has no optimizer; open it with trainable=True")
        return self._maybe_optimizer

    def _known_reference(self) -> ReferenceModel:
        if self._reference is None:
            raise ValueError("there is no reference; call set_reference first")
        return self._reference

    def _compute_logprobs(self, model: LocalModel, batch: Batch) -> Tensor:
        return compute_logprobs(model, batch, self._process_group, self._config.max_tokens_per_microbatch)
