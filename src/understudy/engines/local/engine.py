"""The local engine: trains with PyTorch, and samples with the same modules or through vLLM."""

import contextlib
import json
import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from understudy.algorithms import losses
from understudy.algorithms.batch import Batch, LossOutput, count_distinct_tokens, plan_microbatches, split_across_ranks
from understudy.algorithms.config import CriticConfig, LossConfig, is_custom
from understudy.core.errors import ConfigError
from understudy.engines.base import (
    Completion,
    LogprobsCallback,
    LogprobTolerance,
    SamplingParams,
    TokenCallback,
    TokenConstraint,
    context_full_completion,
)
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.cpu.malloc import configure_malloc
from understudy.engines.local.cpu.onednn_cache import limit_onednn_cache
from understudy.engines.local.distributed.distributed import sum_across_ranks, validate_same_weights
from understudy.engines.local.model import LocalModel
from understudy.engines.local.optimizer import MasterAdamW, load_master_weights
from understudy.engines.local.packing import pack_rows
from understudy.engines.local.reference import EMAReference, ReferenceModel, make_reference, restore_reference
from understudy.engines.local.sampler_choice import choose_sampler, make_vllm_sampler, vllm_context_length
from understudy.engines.local.sampling.sampler import LocalSampler
from understudy.engines.local.token_logprobs import token_logprobs
from understudy.engines.local.transfers import to_device, to_host
from understudy.engines.local.update_metrics import StepMetrics, read_metrics, reduce_metrics
from understudy.engines.local.value_head import ValueHead
from understudy.engines.process_group import SINGLE_PROCESS, ProcessGroup
from understudy.engines.reference_config import FROZEN_REFERENCE, ReferenceConfig
from understudy.engines.vllm.sampler import VllmSampler

STATE_FILE = "optimizer.safetensors"
_ABOUT = "about"
"""Key of the metadata of a checkpoint: a JSON object with the `version` of the weights and the `reference`."""
TOLERANCE = {torch.float32: LogprobTolerance(1e-3, 1e-4), torch.bfloat16: LogprobTolerance(1.0, 0.1)}
"""Tolerances by dtype. Measured for SmolLM2-135M (30 layers): maximum 3e-5 and 0.3, mean 4e-6 and 0.04."""
_OUT_OF_MEMORY = re.compile("out of memory|allocate memory|not enough memory|ALLOC_FAILED")
"""Messages of torch when memory runs out. An illegal memory access is another error."""
HEAP_RESERVE = 6 << 30  # bytes of address space for activations; physical memory is used only when written


@dataclass(frozen=True, slots=True)
class MicrobatchStates:
    """The M trained tokens of a microbatch and the U <= M hidden states before them. Rows may share tokens."""

    rows: Tensor  # [M], on the CPU
    positions: Tensor  # [M], on the CPU
    hidden: Tensor  # [U, D]
    targets: Tensor  # [U] the token after each hidden state
    state_index: Tensor  # [M] index of the hidden state before each trained token
    num_computed: int
    """Number of tokens that the forward pass computed."""

    def select(self, chosen: Tensor) -> "MicrobatchStates":
        """Return the same hidden states with only those trained tokens where `chosen` [M] is True."""
        (index,) = chosen.nonzero(as_tuple=True)
        kept = self.state_index[to_device(index, self.hidden.device)]
        return replace(self, rows=self.rows[index], positions=self.positions[index], state_index=kept)

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the entries [M] of a tensor [B, T] at the trained tokens."""
        return to_device(tensor[self.rows, self.positions], self.hidden.device)


@dataclass(slots=True)
class OptimizerStep:
    """What an optimizer step computed. It stays on the device until the end of the update."""

    rows: Tensor
    """The rows of the minibatch that were trained, on all ranks together."""
    own_rows: Tensor
    """Those that this process computed."""
    metrics: StepMetrics = field(default_factory=StepMetrics)
    logprobs: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    """Rows, positions and log-probabilities of the trained tokens of each microbatch."""


class LocalEngine:
    """Implements `engines.base.Engine`, `StreamingSampler`, `Reference` and `Critic`. `folder` holds a transformers
    model."""

    def __init__(
        self,
        folder: Path,
        config: LocalEngineConfig,
        seed: int = 0,
        process_group: ProcessGroup = SINGLE_PROCESS,
        trainable: bool = True,
    ) -> None:
        """Every rank has an engine with the same weights and does its share of each step.

        If `trainable` is False, the engine has no optimizer and raises ValueError for updates and checkpoints. With
        `finetune="full"` that saves 8 bytes per weight at once and 8 more after the first update.
        """
        limit_onednn_cache()
        if config.threads:
            torch.set_num_threads(config.threads)
        torch.manual_seed(seed)
        self._config, self._seed, self._process_group = config, seed, process_group
        self._passes = 0  # forward passes of the current update
        self._model = LocalModel(folder, config, process_group)
        if self._model.device.type == "cpu":
            configure_malloc(reserve_bytes=HEAP_RESERVE)
        self._maybe_optimizer: MasterAdamW | None = None
        if trainable:
            self._maybe_optimizer = MasterAdamW(
                self._model.trainable_parameters(), config.optimizer, self._model.fsdp_shards
            )
            validate_same_weights(process_group, self._maybe_optimizer.fingerprint())
        self.sampler_choice = choose_sampler(self._model, config, process_group.world_size)
        """The sampler in use, and why it was chosen."""
        self._sampler: LocalSampler | VllmSampler = (
            make_vllm_sampler(self._model, folder, config)
            if self.sampler_choice.sampler == "vllm"
            else LocalSampler(self._model, config.max_num_seqs, config.max_draft_rows)
        )
        self._reference: ReferenceModel | None = None
        self._critic: ValueHead | None = None

    @property
    def weights_version(self) -> int:
        """Number of updates of the weights."""
        return self._sampler.weights_version

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
        return (
            vllm_context_length(self._model, self._config)
            if self.sampler_choice.sampler == "vllm"
            else self._model.context_length
        )

    @property
    def tolerance(self) -> LogprobTolerance:
        """Tolerance for the dtype of the weights."""
        return TOLERANCE[self._model.dtype]

    def validate_sampling(self, sampling: SamplingParams) -> None:
        """Raise ConfigError if the sampler does not support `sampling`."""
        self._sampler.validate_sampling(sampling)

    async def sample(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        seed: int,
        stop_tokens: Collection[int] = (),
        on_tokens: TokenCallback | None = None,
    ) -> Completion:
        """Continue a prompt. Concurrent calls are batched. See `engines.base.StreamingSampler`."""
        return await self._sample(prompt, sampling, seed, stop_tokens, on_tokens)

    @property
    def supports_constraints(self) -> bool:
        """Whether replies can be constrained: not while vLLM samples."""
        return isinstance(self._sampler, LocalSampler)

    async def sample_constrained(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        seed: int,
        constraint: TokenConstraint,
        stop_tokens: Collection[int] = (),
        on_tokens: TokenCallback | None = None,
    ) -> Completion:
        """Continue a prompt with allowed tokens only. See `engines.base.ConstrainedSampler`."""
        return await self._sample(prompt, sampling, seed, stop_tokens, on_tokens, constraint)

    async def _sample(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        seed: int,
        stop_tokens: Collection[int],
        on_tokens: TokenCallback | None,
        constraint: TokenConstraint | None = None,
    ) -> Completion:
        room = self.context_length - len(prompt)
        if room < 1:
            return context_full_completion(self.weights_version)
        if room < sampling.max_response_tokens:
            sampling = sampling.replace(max_response_tokens=room)
        with self._memory("engine.max_num_seqs", self._config.max_num_seqs):
            if constraint and isinstance(self._sampler, LocalSampler):
                return await self._sampler.sample(prompt, sampling, seed, stop_tokens, on_tokens, constraint)
            completion = await self._sampler.sample(prompt, sampling, seed, stop_tokens, on_tokens)
            if sampling.has_filters and self.sampler_choice.sampler == "vllm" and not completion.context_full:
                return await self._with_unfiltered_logprobs(prompt, completion, sampling.temperature or 1.0)
            return completion

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
        return batch.replace(
            values=self._read(self._model, batch, lambda states: head.forward(states.hidden)[states.state_index])
        )

    def set_reference(self, config: ReferenceConfig = FROZEN_REFERENCE) -> None:
        """Set the reference: a copy of the current weights, their moving average, or another model."""
        self._reference = make_reference(config, self._model, self._optimizer.masters, self._config)

    def update_reference(self) -> None:
        """Move a reference of kind `ema` toward the current weights."""
        reference = self._known_reference()
        if isinstance(reference, EMAReference):
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
        _validate_lengths(minibatches, self._model)
        self._passes = 0
        self._sampler.set_weights_version(self.weights_version + 1)  # frees the cache's memory for activations
        with self._process_group.detect_lost_ranks():
            with self._memory("engine.max_tokens_per_microbatch", self._config.max_tokens_per_microbatch):
                steps = [self._step(batch, loss, learning_rate) for batch in minibatches]
                measured = read_metrics([step.metrics for step in steps])
                if on_logprobs:
                    self._report_logprobs(minibatches, steps, on_logprobs)
            sums = [sum_across_ranks(self._process_group, own) | norms for own, norms in measured]
            found = reduce_metrics(sums)
            self._model.gather_weights()
            validate_same_weights(self._process_group, optimizer.fingerprint())
        return found

    def reset_optimizer(self) -> None:
        """Reset the optimizer's moments."""
        self._optimizer.reset_moments()

    def save(self, path: Path) -> None:
        """Write master weights and moments, and those of reference and critic if there are any.

        The sampler's cache is cleared, so that this engine continues bit for bit like one that loads the checkpoint.
        """
        tensors = {key: value.contiguous() for key, value in self._optimizer.state_dict().items()}
        about: dict[str, Any] = {"version": self.weights_version}
        if self._reference is not None:
            tensors |= {f"reference.{name}": self._whole(name, x) for name, x in self._reference.state_dict().items()}
            about["reference"] = self._reference.config.model_dump(mode="json")
        if self._critic is not None:
            tensors |= self._critic.state_dict()
        if self._process_group.rank == 0:
            with _safetensors_errors_as_os_errors():
                # One entry, because safetensors writes several in a random order.
                save_file(tensors, path / STATE_FILE, {_ABOUT: json.dumps(about, sort_keys=True)})
        self._sampler.reset_prefix_cache()

    def load(self, path: Path) -> None:
        """Load a checkpoint that `save` wrote. An engine without an optimizer loads only the weights."""
        try:
            with safe_open(path / STATE_FILE, framework="pt") as file:
                about = _read_about(file.metadata())
                if self._maybe_optimizer is None:
                    load_master_weights(file, self._model.trainable_parameters(), self._model.fsdp_shards)
                else:
                    self._restore(file, about.get("reference"))
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as e:
            raise ConfigError(f"{path / STATE_FILE}: not a checkpoint of this model and engine.finetune: {e}") from e
        self._model.gather_weights()
        self._sampler.set_weights_version(int(about["version"]))

    def load_adapters(self, folder: Path) -> None:
        """Load LoRA adapters that peft wrote. The optimizer's masters do not change, so do not train afterwards."""
        self._model.load_adapters(folder)
        self._sampler.set_weights_version(self.weights_version + 1)

    def export(self, folder: Path, merge_adapters: bool = False) -> None:
        """Write the model for transformers, or LoRA adapters for peft unless `merge_adapters` is set."""
        if self._process_group.rank == 0:
            with _safetensors_errors_as_os_errors():
                self._model.export(folder, merge_adapters)

    def reset_prefix_cache(self) -> None:
        """Clear the sampler's cache and its n-gram drafts, which affect the rounding of later samples."""
        self._sampler.reset_prefix_cache()

    def close(self) -> None:
        """Clear the sampler's cache and stop its subprocesses."""
        self._sampler.close()

    @property
    def _optimizer(self) -> MasterAdamW:
        if self._maybe_optimizer is None:
            raise ValueError("this engine has no optimizer; open it with trainable=True")
        return self._maybe_optimizer

    def _whole(self, name: str, own: Tensor) -> Tensor:
        return self._model.fsdp_shards.gather(name, own) if self._model.fsdp_shards else own

    async def _with_unfiltered_logprobs(
        self, prompt: Sequence[int], completion: Completion, temperature: float
    ) -> Completion:
        """Return the completion with log-probabilities of the whole softmax.

        vLLM returns those of the filtered distribution, so one forward pass over the row computes them here.
        """
        mask = [False] * len(prompt) + [True] * len(completion.tokens)
        batch = Batch.from_rows([[*prompt, *completion.tokens]], [mask], temperature=temperature)
        found = self._compute_logprobs(self._model, batch, SINGLE_PROCESS)  # each process samples on its own
        return replace(completion, logprobs=found[0, len(prompt) :].tolist())

    def _known_reference(self) -> ReferenceModel:
        if self._reference is None:
            raise ValueError("there is no reference; call set_reference first")
        return self._reference

    def _restore(self, file: Any, reference: Any) -> None:
        """Load optimizer, reference and critic from an open safetensors file."""
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        self._optimizer.load_state_dict(tensors)
        self._restore_reference(reference, tensors)
        if self._critic is not None:
            self._critic.load_state_dict(tensors)

    def _restore_reference(self, config: Any, tensors: Mapping[str, Tensor]) -> None:
        device, head = self._model.device, "reference."
        named = {name.removeprefix(head): x.to(device) for name, x in tensors.items() if name.startswith(head)}
        shards = self._model.fsdp_shards
        weights = {name: shards.shard(name, x) if shards else x for name, x in named.items()}
        self._reference = (
            restore_reference(ReferenceConfig.model_validate(config), weights, self._model, self._config)
            if config
            else None
        )

    def _step(self, batch: Batch, loss: LossConfig, learning_rate: float) -> OptimizerStep:
        """Take one optimizer step.

        Without a trained token, weights and moments stay: Adam would move the weights in its last direction.
        """
        rows = _trained_tokens(batch, loss).any(1).nonzero()[:, 0]
        if not len(rows):  # on every rank, since all have the same batch
            return _idle_step(batch, self._model.device)
        live = batch.select(rows)
        share = _share(live, self._process_group)
        mine, step = live.select(share), OptimizerStep(rows, rows[share])
        step.metrics.counts["distinct_tokens"] = count_distinct_tokens(mine)
        passes = plan_microbatches(mine, self._config.max_tokens_per_microbatch)
        with self._resharded(live, len(passes)):
            for chosen in passes:
                self._passes += 1
                of = f"{self._seed}/{self.weights_version}/{self._passes}" + (
                    f"/{self._process_group.rank}" if self._process_group.rank else ""
                )
                with self._model.lora_dropout(random.Random(of).getrandbits(63)):
                    self._accumulate(mine, chosen, loss, step)
        if batch.advantages is not None:
            self._process_group.all_reduce_(self._optimizer.unreduced_gradients())
            step.metrics.norms["grad_norm"] = self._optimizer.step(learning_rate)
            step.metrics.norms["relative_weight_change"] = self._optimizer.relative_change
        if batch.returns is not None:
            assert self._critic is not None
            self._process_group.all_reduce_(self._critic.unreduced_gradients)
            step.metrics.norms["value_grad_norm"] = self._critic.step()
        return step

    def _report_logprobs(
        self, minibatches: Sequence[Batch], steps: Sequence[OptimizerStep], on_logprobs: LogprobsCallback
    ) -> None:
        values = iter(to_host([values for step in steps for *_, values in step.logprobs]))
        for index, (batch, step) in enumerate(zip(minibatches, steps, strict=True)):
            if batch.advantages is not None:
                computed = torch.zeros(batch.tokens.shape)
                for rows, positions, _ in step.logprobs:
                    computed[rows, positions] = next(values)
                self._process_group.all_reduce_([computed])
                logprobs = torch.full(batch.tokens.shape, torch.nan)
                logprobs[step.rows] = computed[step.rows]
                on_logprobs(index, logprobs)

    @contextlib.contextmanager
    def _resharded(self, batch: Batch, passes: int) -> Iterator[None]:
        """Free the full weights of sharded layers. Each pass in the block then fetches one layer at a time.

        Fetching needs all ranks, so a rank with fewer microbatches runs empty passes at the end of the block.
        """
        if not self._model.fsdp_shards:
            yield
            return
        self._model.fsdp_shards.reshard()
        most = max(self._process_group.all_gather(passes))
        yield
        for _ in range(most - passes):
            with torch.set_grad_enabled(batch.advantages is not None):
                idle = _states(self._model, batch, [int(batch.lengths.argmin())]).hidden
            if idle.requires_grad:
                (0.0 * idle.sum()).backward()  # type: ignore[no-untyped-call]

    def _accumulate(self, batch: Batch, chosen: Sequence[int], loss: LossConfig, step: OptimizerStep) -> None:
        """Add the gradients of one microbatch, and its metrics and log-probabilities to `step`."""
        with torch.set_grad_enabled(batch.advantages is not None):
            states = _states(self._model, batch, chosen)
        outcomes = []
        if batch.advantages is not None:
            outcomes.append(self._policy_loss(states, batch, loss, step))
        if batch.returns is not None:
            outcomes.append(self._value_loss(states, batch))
        torch.stack([value for value, _ in outcomes]).sum().backward()  # type: ignore[no-untyped-call]
        step.metrics.counts["computed_tokens"] += states.num_computed
        step.metrics.counts["trained_tokens"] += len(states.state_index)
        for _, metrics in outcomes:
            step.metrics.sums += metrics.items()

    def _policy_loss(self, states: MicrobatchStates, batch: Batch, loss: LossConfig, step: OptimizerStep) -> LossOutput:
        assert batch.advantages is not None
        current, entropy = _logprobs(self._model, states, batch.temperature)
        step.logprobs.append((step.own_rows[states.rows], states.positions, current.detach().float()))
        old, advantages = states.gather(batch.logprobs), states.gather(batch.advantages)
        rows = to_device(states.rows, current.device)
        value, metrics = losses.compute_loss(loss, current, old, advantages, sequence_ids=rows)
        return value, metrics | {"loss": value.detach(), "entropy": entropy.sum()}

    def _value_loss(self, states: MicrobatchStates, batch: Batch) -> LossOutput:
        if self._critic is None or batch.values is None or batch.returns is None or batch.value_weights is None:
            raise ValueError("the value loss needs a critic and a batch with values, returns and value_weights")
        valued = states.select(batch.value_weights[states.rows, states.positions] > 0)
        old, returns, weights = (valued.gather(x) for x in (batch.values, batch.returns, batch.value_weights))
        return self._critic.loss(valued.hidden, valued.state_index, old, returns, weights)

    def _compute_logprobs(self, model: LocalModel, batch: Batch, process_group: ProcessGroup | None = None) -> Tensor:
        """Return log-probabilities [B, T] of the trained tokens under a model, without gradient."""
        return self._read(model, batch, lambda states: _logprobs(model, states, batch.temperature)[0], process_group)

    def _read(
        self,
        model: LocalModel,
        batch: Batch,
        of: Callable[[MicrobatchStates], Tensor],
        process_group: ProcessGroup | None = None,
    ) -> Tensor:
        """Apply `of` to the hidden states of the trained tokens, without gradient. Return its values as [B, T]; other
        entries are 0.
        """
        _validate_lengths([batch], model)
        process_group = process_group or self._process_group
        found, share = torch.zeros(batch.tokens.shape), _share(batch, process_group)
        mine, places, values = batch.select(share), [], []
        with (
            torch.inference_mode(),
            self._memory("engine.max_tokens_per_microbatch", self._config.max_tokens_per_microbatch),
        ):
            for chosen in plan_microbatches(mine, self._config.max_tokens_per_microbatch):
                states = _states(model, mine, chosen)
                places.append((share[states.rows], states.positions))
                values.append(of(states))
            for place, value in zip(places, to_host(values), strict=True):
                found[place] = value
        process_group.all_reduce_([found])
        return found.clone()

    @contextlib.contextmanager
    def _memory(self, knob: str, value: int) -> Iterator[None]:
        """Raise ConfigError that names the setting to lower if the block runs out of memory."""
        try:
            yield
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as e:
            if isinstance(e, RuntimeError) and not _OUT_OF_MEMORY.search(str(e)):
                raise
            raise ConfigError(f"out of memory; lower {knob} (now {value}) or use a smaller model: {e}") from e


def _idle_step(batch: Batch, device: torch.device) -> OptimizerStep:
    """Return what an optimizer step without a trained token computes: it changes no weight."""
    none = torch.zeros(0, dtype=torch.int64)
    step = OptimizerStep(none, none)
    step.metrics.counts.update(distinct_tokens=0.0, computed_tokens=0.0, trained_tokens=0.0)
    names = ["grad_norm", "relative_weight_change"] if batch.advantages is not None else []
    names += ["value_grad_norm"] if batch.returns is not None else []
    step.metrics.norms.update({name: torch.zeros((), device=device) for name in names})
    return step


def _validate_lengths(batches: Sequence[Batch], model: LocalModel) -> None:
    """Raise ConfigError if a row is longer than the context, where attention would differ from the model's own."""
    longest = max((int(batch.lengths.max()) for batch in batches if len(batch)), default=0)
    if longest > model.context_length:
        raise ConfigError(
            f"a row of {longest} tokens is longer than the model's context of {model.context_length} "
            f"({model.folder}); lower limits.max_episode_tokens"
        )


def _share(batch: Batch, process_group: ProcessGroup) -> Tensor:
    """Return the indices of the rows that this process computes."""
    if process_group.world_size == 1:
        return torch.arange(len(batch))
    return torch.tensor(split_across_ranks(batch, process_group.world_size)[process_group.rank], dtype=torch.int64)


def _read_about(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return what a checkpoint's metadata say. In those of earlier versions, each value has a key of its own."""
    if _ABOUT in metadata:
        return dict(json.loads(metadata[_ABOUT]))
    reference = {"reference": json.loads(metadata["reference"])} if "reference" in metadata else {}
    return {"version": metadata["version"], **reference}


@contextlib.contextmanager
def _safetensors_errors_as_os_errors() -> Iterator[None]:
    """Turn safetensors' error for a failed write, such as on a full disk, into OSError."""
    try:
        yield
    except SafetensorError as e:
        raise OSError(str(e)) from e


def _states(model: LocalModel, batch: Batch, chosen: Sequence[int]) -> MicrobatchStates:
    """Run a forward pass of a model over a microbatch."""
    packing = pack_rows(batch, chosen, model.query_heads_per_key, model.device)
    hidden = model.hidden_states(packing.tokens, packing.positions, packing)
    row, column = batch.mask[chosen].nonzero().T
    trained, which = torch.unique(packing.places[row, column], return_inverse=True)
    before = torch.empty_like(trained).scatter_(0, which, packing.places[row, column - 1])
    before, trained, which = (to_device(x, hidden.device) for x in (before, trained, which))
    targets = packing.tokens[0, trained]
    return MicrobatchStates(torch.tensor(chosen)[row], column, hidden[before], targets, which, packing.num_tokens)


def _logprobs(model: LocalModel, states: MicrobatchStates, temperature: float) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and entropies [M] of the trained tokens from a model's hidden states."""
    found = token_logprobs(states.hidden, model.lm_head, states.targets, temperature)
    return found[0][states.state_index], found[1][states.state_index]


def _trained_tokens(batch: Batch, loss: LossConfig) -> Tensor:
    """Return which tokens of a batch are trained, [B, T].

    A function of the user's own may have a gradient at tokens without an advantage, such as that of a KL term.
    """
    if batch.advantages is not None and is_custom(loss.kind):
        return batch.mask
    weights = batch.value_weights if batch.returns is not None else None
    found = [x != 0 for x in (batch.advantages, weights) if x is not None]
    if not found:
        raise ValueError("a batch to train on needs advantages or returns")
    return torch.stack(found).any(0) & batch.mask
