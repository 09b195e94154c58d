"""The local engine: trains in this process, and samples with the same modules or through vLLM."""

import contextlib
import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from understudy.algorithms import losses
from understudy.algorithms.losses import Outcome
from understudy.algorithms.options import Critic, Loss
from understudy.batch import Batch, collate, plan, shares
from understudy.crew import ALONE, Crew
from understudy.engines.base import Completion, Sampling, Told, Tolerance, no_room
from understudy.engines.local.choice import choose, vllm_context, vllm_sampler
from understudy.engines.local.config import LocalConfig
from understudy.engines.local.critic import ValueHead
from understudy.engines.local.head import token_logprobs
from understudy.engines.local.heap import keep_heap
from understudy.engines.local.measures import Sums, told
from understudy.engines.local.model import Model
from understudy.engines.local.optimizer import MasterAdamW, take_masters
from understudy.engines.local.packing import Packing
from understudy.engines.local.programs import keep_few
from understudy.engines.local.ranks import refuse_apart, totals
from understudy.engines.local.reference import Reference, kept, restored
from understudy.engines.local.sampler import LocalSampler
from understudy.engines.reference import FROZEN, ReferenceConfig
from understudy.engines.vllm.sampler import VllmSampler
from understudy.errors import ConfigError
from understudy.messages import Message
from understudy.tasks import Score
from understudy.trajectory import Trajectory

STATE = "optimizer.safetensors"
TOLERANCE = {torch.float32: Tolerance(1e-3, 1e-4), torch.bfloat16: Tolerance(1.0, 0.1)}
"""By dtype. SmolLM2-135M, 30 layers deep, is up to 3e-5 and 0.3 apart, on average 4e-6 and 0.04."""
_NO_MEMORY = re.compile("out of memory|allocate memory|not enough memory|ALLOC_FAILED")
"""What torch says where memory ran out; an illegal access to memory is something else."""
RESERVE = 6 << 30  # bytes of address space for activations; memory is used only where they are written


@dataclass(frozen=True, slots=True)
class States:
    """The M trained tokens of a micro-batch, and the U <= M hidden states before them: rows may share a token."""

    rows: Tensor  # [M]
    columns: Tensor  # [M]
    hidden: Tensor  # [U, D]
    targets: Tensor  # [U] the tokens that follow them
    which: Tensor  # [M] the state before each trained token
    computed: int
    """How many tokens the pass computed."""

    def of(self, tensor: Tensor) -> Tensor:
        """The entries [M] of a tensor [B, T] at the trained tokens."""
        return tensor[self.rows, self.columns].to(self.hidden.device)


class LocalEngine:
    """See `engines.base.Engine`. `folder` holds a model as transformers reads it."""

    def __init__(
        self, folder: Path, config: LocalConfig, seed: int = 0, crew: Crew = ALONE, trains: bool = True
    ) -> None:
        """In a crew all have one of these, with the same weights; what a step computes is divided among them.

        One that does not train has no optimizer, which of `full` takes 8 bytes a weight and 8 more with the first
        update: it samples, reads, loads and exports, and an update or a save is a ValueError.
        """
        keep_few()
        if config.threads:
            torch.set_num_threads(config.threads)
        torch.manual_seed(seed)
        self._config, self._seed, self._crew = config, seed, crew
        self._passes = 0  # of the update under way
        self._model = Model(folder, config, crew)
        if self._model.device.type == "cpu":
            keep_heap(reserve=RESERVE)
        self._learner: MasterAdamW | None = None
        if trains:
            self._learner = MasterAdamW(self._model.trainable(), config.optimizer, self._model.shards)
            refuse_apart(crew, self._learner.fingerprint())
        self.choice = choose(self._model, config, crew.size)
        """Who samples, and why."""
        self._sampler: LocalSampler | VllmSampler = (
            vllm_sampler(self._model, folder, config)
            if self.choice.sampler == "vllm"
            else LocalSampler(self._model, config.sequences, config.rows)
        )
        self._reference: Reference | None = None
        self._critic: ValueHead | None = None

    @property
    def version(self) -> int:
        """How many updates the weights have seen."""
        return self._sampler.version

    @property
    def device(self) -> str:
        """Where the weights are: cpu, cuda or mps."""
        return self._model.device.type

    @property
    def dtype(self) -> str:
        """That of the weights."""
        return str(self._model.dtype).removeprefix("torch.")

    @property
    def context(self) -> int:
        """The longest sequence that the model takes, in tokens; through vLLM at most `max_model_len`."""
        return vllm_context(self._model, self._config) if self.choice.sampler == "vllm" else self._model.context

    @property
    def tolerance(self) -> Tolerance:
        """What rounding to the dtype of the weights comes to."""
        return TOLERANCE[self._model.dtype]

    def refuse(self, sampling: Sampling) -> None:
        """See `engines.base.Streaming`."""
        self._sampler.refuse(sampling)

    async def sample(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        seed: int,
        stop_tokens: Collection[int] = (),
        told: Told | None = None,
    ) -> Completion:
        """Continue a prompt; calls that run side by side are computed together. See `engines.base.Streaming`."""
        room = self.context - len(prompt)
        if room < 1:
            return no_room(self.version)
        if room < sampling.max_tokens:
            sampling = sampling.replace(max_tokens=room)
        with self._memory("engine.sequences", self._config.sequences):
            completion = await self._sampler.sample(prompt, sampling, seed, stop_tokens, told)
            if sampling.filtered and self.choice.sampler == "vllm" and not completion.full:
                return await self._unfiltered(prompt, completion, sampling.temperature or 1.0)
            return completion

    async def forward(self, batch: Batch) -> Batch:
        """The batch with `logprobs` of its trained tokens under the current weights."""
        return batch.with_(logprobs=self._likelihoods(self._model, batch))

    def add_critic(self, critic: Critic) -> None:
        """Put a value head on the model."""
        self._critic = ValueHead(self._model.config.hidden_size, self._model.device, critic, self._config.optimizer)

    async def values(self, batch: Batch) -> Batch:
        """The batch with `values` of its trained tokens by the value head."""
        if self._critic is None:
            raise ValueError("there is no critic; call add_critic first")
        head = self._critic
        return batch.with_(
            values=self._read(self._model, batch, lambda states: head.values(states.hidden)[states.which])
        )

    def keep_reference(self, config: ReferenceConfig = FROZEN) -> None:
        """Compare with what `config` asks for from now on: the policy as it is now, its average, or another model."""
        self._reference = kept(config, self._model, self._optimizer.masters, self._config)

    def move_reference(self) -> None:
        """Let a reference that follows the policy come nearer."""
        self._known_reference().follow(self._optimizer.masters)

    def forget_reference(self) -> None:
        """Give back what a reference holds."""
        self._reference = None

    async def reference(self, batch: Batch) -> Batch:
        """The batch with `ref_logprobs` under the reference."""
        with self._known_reference().active() as model:
            return batch.with_(ref_logprobs=self._likelihoods(model, batch))

    async def update(self, steps: Sequence[Batch], loss: Loss, learning_rate: float) -> dict[str, float]:
        """One optimizer step a batch; rows that nothing is to be learned from are left out, their gradient is zero."""
        optimizer = self._optimizer  # first, so that an engine without one refuses before anything has changed
        self._refuse_longer(steps)
        self._passes = 0
        self._sampler.refresh(self.version + 1)  # first, so that its cache makes room for the activations
        with self._memory("engine.tokens_per_microbatch", self._config.tokens_per_microbatch):
            found = told([self._step(batch, loss, learning_rate) for batch in steps])
        self._model.settle()
        refuse_apart(self._crew, optimizer.fingerprint())
        return found

    def fresh_optimizer(self) -> None:
        """Forget the optimizer's moments."""
        self._optimizer.reset()

    def save(self, path: Path) -> None:
        """Master weights and moments, exactly; the reference and the critic where there are such.

        The sampler forgets its cache, so that this engine goes on to the bit as one that loads the checkpoint.
        """
        tensors = {key: value.contiguous() for key, value in self._optimizer.state().items()}
        about = {"version": str(self.version)}
        if self._reference is not None:
            tensors |= {f"reference.{name}": self._whole(name, x) for name, x in self._reference.state().items()}
            about["reference"] = self._reference.config.model_dump_json()
        if self._critic is not None:
            tensors |= self._critic.state()
        if self._crew.rank == 0:
            with _disk():
                save_file(tensors, path / STATE, about)
        self._sampler.forget()

    def load(self, path: Path) -> None:
        """Go on from a checkpoint of `save`; an engine that does not train takes its weights alone."""
        try:
            with safe_open(path / STATE, framework="pt") as file:
                version = int(file.metadata()["version"])
                if self._learner is None:
                    take_masters(file, self._model.trainable(), self._model.shards)
                else:
                    self._restore(file)
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as e:
            raise ConfigError(f"{path / STATE}: not a checkpoint of this model and fine-tuning mode: {e}") from e
        self._model.settle()
        self._sampler.refresh(version)

    def take_adapters(self, folder: Path) -> None:
        """Sample, read and export with LoRA adapters that peft has written. The optimizer knows nothing of them."""
        self._model.take_adapters(folder)
        self._sampler.refresh(self.version + 1)

    def export(self, folder: Path, merged: bool = False) -> None:
        """Write the model as transformers and peft read it; of LoRA the adapters, unless `merged`."""
        if self._crew.rank == 0:
            with _disk():
                self._model.export(folder, merged)

    def forget(self) -> None:
        """Forget the sampler's cache and its guesses, which change the rounding of what follows."""
        self._sampler.forget()

    def close(self) -> None:
        """Forget what the sampler remembers, and end what it started."""
        self._sampler.close()

    @property
    def _optimizer(self) -> MasterAdamW:
        if self._learner is None:
            raise ValueError("this engine was opened to read its model; open it with trains=True")
        return self._learner

    def _whole(self, name: str, own: Tensor) -> Tensor:
        return self._model.shards.whole(name, own) if self._model.shards else own

    async def _unfiltered(self, prompt: Sequence[int], completion: Completion, temperature: float) -> Completion:
        """The completion with log-probabilities of the whole softmax, which vLLM tells only where nothing is left out.

        They come from a forward pass here, over one row.
        """
        episode = Trajectory("", score=Score(reward=0.0))
        episode.observe([], prompt)
        episode.act(Message(role="assistant"), completion.tokens, completion.logprobs)
        batch = collate([episode], temperature=temperature)
        found = self._likelihoods(self._model, batch, ALONE)  # processes sample each on its own
        return replace(completion, logprobs=found[0, len(prompt) :].tolist())

    def _refuse_longer(self, steps: Sequence[Batch]) -> None:
        """Beyond the model's context there is nothing to learn, or attention is not what the model's own would be."""
        longest = max((int(batch.lengths.max()) for batch in steps if len(batch)), default=0)
        if longest > self._model.context:
            raise ConfigError(
                f"a row of {longest} tokens is longer than the model's context of {self._model.context}; "
                "set limits.max_tokens to that at most"
            )

    def _known_reference(self) -> Reference:
        if self._reference is None:
            raise ValueError("there is no reference; call keep_reference first")
        return self._reference

    def _restore(self, file: Any) -> None:
        """Take all that training goes on with out of an open safetensors file."""
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        self._optimizer.restore(tensors)
        self._restore_reference(file.metadata().get("reference"), tensors)
        if self._critic is not None:
            self._critic.restore(tensors)

    def _restore_reference(self, config: str | None, tensors: Mapping[str, Tensor]) -> None:
        device, head = self._model.device, "reference."
        named = {name.removeprefix(head): x.to(device) for name, x in tensors.items() if name.startswith(head)}
        shards = self._model.shards
        weights = {name: shards.part(name, x) if shards else x for name, x in named.items()}
        self._reference = (
            restored(ReferenceConfig.model_validate_json(config), weights, self._model, self._config)
            if config
            else None
        )

    def _step(self, batch: Batch, loss: Loss, learning_rate: float) -> Sums:
        """One optimizer step, and the sums that it came to."""
        live = batch.rows(_teaching(batch).any(1).nonzero()[:, 0])
        mine, own = live.rows(_share(live, self._crew)), Sums(float)
        passes = plan(mine, self._config.tokens_per_microbatch)
        with self._crew.together(), self._apart(live, len(passes)):
            for chosen in passes:
                self._passes += 1
                of = f"{self._seed}/{self.version}/{self._passes}" + (f"/{self._crew.rank}" if self._crew.rank else "")
                with self._model.dropping(random.Random(of).getrandbits(63)):
                    self._accumulate(mine, chosen, loss, own)
        sums = Sums(float, totals(self._crew, own))
        if batch.advantages is not None:
            self._crew.add_(self._optimizer.summed_alone())
            sums["grad_norm"] = self._optimizer.step(learning_rate)
            sums["weight_change"] = self._optimizer.change
        if batch.returns is not None:
            assert self._critic is not None
            self._crew.add_(self._critic.gradients)
            sums["value_grad_norm"] = self._critic.update()
        return sums

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
            with torch.set_grad_enabled(batch.advantages is not None):
                idle = _states(self._model, batch, [int(batch.lengths.argmin())]).hidden
            if idle.requires_grad:
                (0.0 * idle.sum()).backward()  # type: ignore[no-untyped-call]

    def _accumulate(self, batch: Batch, chosen: Sequence[int], loss: Loss, sums: Sums) -> None:
        """Add one micro-batch's gradients."""
        with torch.set_grad_enabled(batch.advantages is not None):
            states = _states(self._model, batch, chosen)
        outcomes = []
        if batch.advantages is not None:
            outcomes.append(self._policy_loss(states, batch, loss))
        if batch.returns is not None:
            outcomes.append(self._value_loss(states, batch))
        torch.stack([value for value, _ in outcomes]).sum().backward()  # type: ignore[no-untyped-call]
        sums["computed_tokens"] += states.computed
        sums["trained_tokens"] += len(states.which)
        for _, metrics in outcomes:
            for key, metric in metrics.items():
                sums[key] += float(metric)

    def _policy_loss(self, states: States, batch: Batch, loss: Loss) -> Outcome:
        assert batch.advantages is not None
        logprobs, entropy = _logprobs(self._model, states, batch.temperature)
        trained = torch.ones_like(logprobs, dtype=torch.bool)
        rows = states.rows.to(logprobs.device)
        value, metrics = losses.compute(
            loss, logprobs, states.of(batch.logprobs), states.of(batch.advantages), trained, rows
        )
        return value, metrics | {"loss": value.detach(), "entropy": entropy.sum()}

    def _value_loss(self, states: States, batch: Batch) -> Outcome:
        if self._critic is None or batch.values is None or batch.returns is None or batch.value_weights is None:
            raise ValueError("to learn values takes a critic, and a batch with values, returns and value_weights")
        old, returns, weights = (states.of(x) for x in (batch.values, batch.returns, batch.value_weights))
        return self._critic.loss(states.hidden, states.which, old, returns, weights)

    def _likelihoods(self, model: Model, batch: Batch, crew: Crew | None = None) -> Tensor:
        """Log-probabilities [B, T] of the trained tokens under a model, without gradient."""
        return self._read(model, batch, lambda states: _logprobs(model, states, batch.temperature)[0], crew)

    def _read(self, model: Model, batch: Batch, of: Callable[[States], Tensor], crew: Crew | None = None) -> Tensor:
        """What `of` [M] finds for the trained tokens, without gradient [B, T]; 0 elsewhere."""
        crew = crew or self._crew
        found, share = torch.zeros(batch.tokens.shape), _share(batch, crew)
        mine = batch.rows(share)
        with torch.inference_mode(), self._memory("engine.tokens_per_microbatch", self._config.tokens_per_microbatch):
            for chosen in plan(mine, self._config.tokens_per_microbatch):
                states = _states(model, mine, chosen)
                found[share[states.rows], states.columns] = of(states).cpu()
        crew.add_([found])
        return found.clone()

    @contextlib.contextmanager
    def _memory(self, knob: str, value: int) -> Iterator[None]:
        """Running out of memory names the knob to turn."""
        try:
            yield
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as e:
            if isinstance(e, RuntimeError) and not _NO_MEMORY.search(str(e)):
                raise
            raise ConfigError(f"out of memory; lower {knob} (now {value}) or use a smaller model: {e}") from e


def _share(batch: Batch, crew: Crew) -> Tensor:
    """The rows that this process computes."""
    if crew.size == 1:
        return torch.arange(len(batch))
    return torch.tensor(shares(batch, crew.size)[crew.rank], dtype=torch.int64)


@contextlib.contextmanager
def _disk() -> Iterator[None]:
    """What safetensors cannot write, as where the disk is full, is an OSError."""
    try:
        yield
    except SafetensorError as e:
        raise OSError(str(e)) from e


def _states(model: Model, batch: Batch, chosen: Sequence[int]) -> States:
    """One pass of a model over a micro-batch."""
    packing = Packing(batch, chosen, model.query_heads_per_key, model.device)
    hidden = model.hidden(packing.tokens, packing.positions, packing)
    row, column = batch.mask[chosen].nonzero().T
    trained, which = torch.unique(packing.places[row, column], return_inverse=True)
    before = torch.empty_like(trained).scatter_(0, which, packing.places[row, column - 1])
    before, trained, which = (x.to(hidden.device) for x in (before, trained, which))
    targets = packing.tokens[0, trained]
    return States(torch.tensor(chosen)[row], column, hidden[before], targets, which, len(hidden))


def _logprobs(model: Model, states: States, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies [M] of the trained tokens under the model whose states these are."""
    found = token_logprobs(states.hidden, model.head, states.targets, temperature)
    return found[0][states.which], found[1][states.which]


def _teaching(batch: Batch) -> Tensor:
    """Where a batch has something to learn from [B, T]."""
    weights = batch.value_weights if batch.returns is not None else None
    found = [x != 0 for x in (batch.advantages, weights) if x is not None]
    if not found:
        raise ValueError("a batch without advantages cannot be trained on")
    return torch.stack(found).any(0) & batch.mask
