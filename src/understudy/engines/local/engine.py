"""The local engine: trains in this process, and samples with the same modules or through vLLM."""

import contextlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from understudy.algorithms import losses
from understudy.algorithms.options import Loss
from understudy.batch import Batch, plan, shares
from understudy.crew import ALONE, Crew
from understudy.engines.base import Completion, Sampling, Told, Tolerance
from understudy.engines.local.choice import choose, vllm_sampler
from understudy.engines.local.config import LocalConfig
from understudy.engines.local.head import token_logprobs
from understudy.engines.local.heap import keep_heap
from understudy.engines.local.model import Model
from understudy.engines.local.optimizer import MasterAdamW
from understudy.engines.local.packing import Packing
from understudy.engines.local.ranks import refuse_apart, totals
from understudy.engines.local.reference import Reference
from understudy.engines.local.sampler import LocalSampler
from understudy.engines.vllm.sampler import VllmSampler
from understudy.errors import ConfigError

STATE = "optimizer.safetensors"
Sums = defaultdict[str, float]
TOLERANCE = {torch.float32: Tolerance(1e-3, 1e-4), torch.bfloat16: Tolerance(1.0, 0.1)}
"""By dtype. SmolLM2-135M, 30 layers deep, is up to 3e-5 and 0.3 apart, on average 4e-6 and 0.04."""
RESERVE = 6 << 30  # bytes of address space for activations; memory is used only where they are written


class LocalEngine:
    """See `engines.base.Engine`. `folder` holds a model as transformers reads it."""

    def __init__(self, folder: Path, config: LocalConfig, seed: int = 0, crew: Crew = ALONE) -> None:
        """In a crew all have one of these, with the same weights; what a step computes is divided among them."""
        if config.threads:
            torch.set_num_threads(config.threads)
        torch.manual_seed(seed)
        self._config, self._crew = config, crew
        self._model = Model(folder, config, crew)
        if self._model.device.type == "cpu":
            keep_heap(reserve=RESERVE)
        self._optimizer = MasterAdamW(self._model.trainable(), config.optimizer, self._model.shards)
        refuse_apart(crew, self._optimizer.fingerprint())
        self.choice = choose(self._model, config, crew.size)
        """Who samples, and why."""
        self._sampler: LocalSampler | VllmSampler = (
            vllm_sampler(self._model, folder, config)
            if self.choice.sampler == "vllm"
            else LocalSampler(self._model, config.sequences, config.rows)
        )
        self._reference: Reference | None = None

    @property
    def version(self) -> int:
        """How many updates the weights have seen."""
        return self._sampler.version

    @property
    def context(self) -> int:
        """The longest sequence that the model takes, in tokens; through vLLM at most `max_model_len`."""
        through_vllm = self._config.vllm.max_model_len if self.choice.sampler == "vllm" else 0
        return min(through_vllm or self._model.context, self._model.context)

    @property
    def tolerance(self) -> Tolerance:
        """What rounding to the dtype of the weights comes to."""
        return TOLERANCE[self._model.dtype]

    async def sample(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        seed: int,
        stop_tokens: Collection[int] = (),
        told: Told | None = None,
    ) -> Completion:
        """Continue a prompt; calls that run side by side are computed together. See `engines.base.Streaming`."""
        with self._memory("engine.sequences", self._config.sequences):
            return await self._sampler.sample(prompt, sampling, seed, stop_tokens, told)

    async def forward(self, batch: Batch) -> Batch:
        """The batch with `logprobs` of its trained tokens under the current weights."""
        logprobs = torch.zeros(batch.tokens.shape)
        share = self._share(batch)
        mine = batch.rows(share)
        with torch.inference_mode(), self._memory("engine.tokens_per_microbatch", self._config.tokens_per_microbatch):
            for chosen in plan(mine, self._config.tokens_per_microbatch):
                rows, columns, values, _ = self._logprobs(mine, chosen)
                logprobs[share[rows], columns] = values.cpu()
        self._crew.add_([logprobs])
        return batch.with_(logprobs=logprobs.clone())

    def keep_reference(self) -> None:
        """Freeze a copy of the weights as they are now."""
        self._reference = Reference(self._model.trainable())

    async def reference(self, batch: Batch) -> Batch:
        """The batch with `ref_logprobs` under the frozen copy."""
        if self._reference is None:
            raise ValueError("there is no reference; call keep_reference first")
        with self._reference.active():
            self._model.settle()
            found = batch.with_(ref_logprobs=(await self.forward(batch)).logprobs)
        self._model.settle()
        return found

    async def update(self, steps: Sequence[Batch], loss: Loss, learning_rate: float) -> dict[str, float]:
        """One optimizer step a batch; rows without advantage are left out, their gradient is zero."""
        sums: Sums = defaultdict(float)
        self._sampler.refresh(self.version + 1)  # first, so that its cache makes room for the activations
        with self._memory("engine.tokens_per_microbatch", self._config.tokens_per_microbatch):
            for batch in steps:
                sums["grad_norm"] += self._step(batch, loss, learning_rate, sums)
        self._model.settle()
        refuse_apart(self._crew, self._optimizer.fingerprint())
        per = {"loss": len(steps), "grad_norm": len(steps), "computed_tokens": 1, "trained_tokens": 1}
        return {key: value / max(1, per.get(key, sums["trained_tokens"])) for key, value in sums.items()}

    def fresh_optimizer(self) -> None:
        """Forget the optimizer's moments."""
        self._optimizer.reset()

    def save(self, path: Path) -> None:
        """Master weights and moments, exactly, and the reference's weights where one is kept.

        The sampler forgets its cache, so that this engine goes on to the bit as one that loads the checkpoint.
        """
        tensors = {key: value.contiguous() for key, value in self._optimizer.state().items()}
        if self._reference is not None:
            tensors |= {f"reference.{name}": value for name, value in self._reference.whole(self._model.shards).items()}
        if self._crew.rank == 0:
            save_file(tensors, path / STATE, {"version": str(self.version)})
        self._sampler.forget()

    def load(self, path: Path) -> None:
        """Go on from a checkpoint of `save`."""
        try:
            with safe_open(path / STATE, framework="pt") as file:
                version = int(file.metadata()["version"])
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            self._optimizer.restore(tensors)
            self._restore_reference(tensors)
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as e:
            raise ConfigError(f"{path / STATE}: not a checkpoint of this model and fine-tuning mode: {e}") from e
        self._model.settle()
        self._sampler.refresh(version)

    def export(self, folder: Path, merged: bool = False) -> None:
        """Write the model as transformers and peft read it; of LoRA the adapters, unless `merged`."""
        if self._crew.rank == 0:
            self._model.export(folder, merged)

    def forget(self) -> None:
        """Forget the sampler's cache and its guesses, which change the rounding of what follows."""
        self._sampler.forget()

    def close(self) -> None:
        """Forget what the sampler remembers, and end what it started."""
        self._sampler.close()

    def _restore_reference(self, tensors: Mapping[str, Tensor]) -> None:
        frozen = {
            key.removeprefix("reference."): value for key, value in tensors.items() if key.startswith("reference.")
        }
        if frozen:
            self.keep_reference()
            assert self._reference is not None
            self._reference.restore(frozen, self._model.shards)

    def _step(self, batch: Batch, loss: Loss, learning_rate: float, sums: Sums) -> float:
        if batch.advantages is None:
            raise ValueError("a batch without advantages cannot be trained on")
        live = batch.rows((batch.advantages * batch.mask).any(1).nonzero()[:, 0])
        mine, own = live.rows(self._share(live)), defaultdict[str, float](float)
        passes = plan(mine, self._config.tokens_per_microbatch)
        with self._crew.together(), self._apart(live, len(passes)):
            for chosen in passes:
                self._accumulate(mine, chosen, loss, own)
        self._crew.add_(self._optimizer.summed_alone())
        for key, value in totals(self._crew, own).items():
            sums[key] += value
        return self._optimizer.step(learning_rate)

    def _share(self, batch: Batch) -> Tensor:
        """The rows that this process computes."""
        if self._crew.size == 1:
            return torch.arange(len(batch))
        return torch.tensor(shares(batch, self._crew.size)[self._crew.rank], dtype=torch.int64)

    @contextlib.contextmanager
    def _apart(self, batch: Batch, passes: int) -> Iterator[None]:
        """Where layers are divided, fetch them within: for all processes as often as for the one with most passes."""
        if not self._model.shards:
            yield
            return
        self._model.shards.apart()
        most = max(self._crew.gather(passes))
        yield
        for _ in range(most - passes):
            packing = Packing(batch, [int(batch.lengths.argmin())], self._model.query_heads_per_key, self._model.device)
            idle = self._model.hidden(packing.tokens, packing.positions, packing)
            (0.0 * idle.sum()).backward()  # type: ignore[no-untyped-call]

    def _accumulate(self, batch: Batch, chosen: Sequence[int], loss: Loss, sums: Sums) -> None:
        """Add one micro-batch's gradients."""
        rows, columns, logprobs, entropy = self._logprobs(batch, chosen, sums)
        assert batch.advantages is not None
        old, advantages = (x[rows, columns].to(logprobs.device) for x in (batch.logprobs, batch.advantages))
        trained = torch.ones_like(logprobs, dtype=torch.bool)
        value, metrics = losses.compute(loss, logprobs, old, advantages, trained, rows.to(logprobs.device))
        value.backward()  # type: ignore[no-untyped-call]
        metrics |= {"loss": value.detach(), "entropy": entropy.sum(), "trained_tokens": trained.sum()}
        for key, metric in metrics.items():
            sums[key] += float(metric)

    def _logprobs(
        self, batch: Batch, chosen: Sequence[int], sums: Sums | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Rows, columns, log-probabilities and entropies of the trained tokens of one micro-batch, each [M]."""
        packing = Packing(batch, chosen, self._model.query_heads_per_key, self._model.device)
        hidden = self._model.hidden(packing.tokens, packing.positions, packing)
        if sums is not None:
            sums["computed_tokens"] += len(hidden)
        row, column = batch.mask[chosen].nonzero().T
        trained, which = torch.unique(packing.places[row, column], return_inverse=True)  # rows may share a token
        before = torch.empty_like(trained).scatter_(0, which, packing.places[row, column - 1])
        before, trained, which = (x.to(hidden.device) for x in (before, trained, which))
        targets = packing.tokens[0, trained]
        logprobs, entropy = token_logprobs(hidden[before], self._model.head, targets, batch.temperature)
        return torch.tensor(chosen)[row], column, logprobs[which], entropy[which]

    @contextlib.contextmanager
    def _memory(self, knob: str, value: int) -> Iterator[None]:
        """Running out of memory names the knob to turn."""
        try:
            yield
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as e:
            if isinstance(e, RuntimeError) and "memory" not in str(e):
                raise
            raise ConfigError(f"out of memory; lower {knob} (now {value}) or use a smaller model: {e}") from e
