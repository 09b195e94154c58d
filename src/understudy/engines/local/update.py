"""An update of the weights: one optimizer step for each minibatch, in microbatches and on several ranks.

Three kinds of row indices occur. Rows of the minibatch count all its rows. `trained_rows` are those of them that have a
trained token, and `own_rows` those of the trained ones that this rank computes. The rows of a microbatch are indices
into the batch `own` of the own rows.
"""

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from understudy.algorithms import losses
from understudy.algorithms.batch import Batch, LossOutput, count_distinct_tokens
from understudy.algorithms.config import LossConfig, is_custom
from understudy.engines.interface import LogprobsCallback
from understudy.engines.local.distributed.distributed import sum_across_ranks, validate_same_weights
from understudy.engines.local.memory_errors import memory_errors_as_config_errors
from understudy.engines.local.model import LocalModel
from understudy.engines.local.optimizer import MasterAdamW
from understudy.engines.local.scoring import (
    MicrobatchStates,
    compute_states,
    select_own_rows,
    split_into_microbatches,
    states_logprobs,
)
from understudy.engines.local.transfers import to_device, to_host
from understudy.engines.local.update_metrics import (
    StepMetrics,
    exceeds_target_kl,
    read_metrics,
    reduce_metrics,
    skipped_minibatches,
)
from understudy.engines.local.value_head import ValueHead
from understudy.engines.process_group import ProcessGroup


@dataclass(slots=True)
class OptimizerStep:
    """What an optimizer step computed. It stays on the device until the end of the update."""

    trained_rows: Tensor
    """The rows of the minibatch that were trained, on all ranks together."""
    own_rows: Tensor
    """Those that this process computed."""
    metrics: StepMetrics = field(default_factory=StepMetrics)
    logprobs: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    """Rows in the minibatch, positions and log-probabilities of the trained tokens of each microbatch."""


@dataclass
class WeightUpdate:
    """One update of the weights, used once."""

    model: LocalModel
    optimizer: MasterAdamW
    critic: ValueHead | None
    process_group: ProcessGroup
    loss: LossConfig
    learning_rate: float
    max_tokens: int
    """Tokens of a microbatch, at most."""
    seed: str
    """Seed of dropout, different for each update."""
    num_passes: int = 0
    """Forward passes so far."""

    def run(self, minibatches: Sequence[Batch], on_logprobs: LogprobsCallback | None) -> dict[str, float]:
        """Take one optimizer step for each minibatch, up to one that exceeds `loss.target_kl`. Return the metrics, over
        all ranks.

        `on_logprobs` gets the log-probabilities of each minibatch. Raise ConfigError if memory runs out, and
        RolloutError if the weights of the ranks differ afterwards or a rank is lost.
        """
        with self.process_group.detect_lost_ranks():
            with memory_errors_as_config_errors("engine.max_tokens_per_microbatch", self.max_tokens):
                steps = []
                for minibatch in minibatches:
                    steps.append(self._take_step(minibatch))
                    if self.loss.target_kl and self._exceeds_target_kl(steps[-1]):
                        break
                own_metrics = read_metrics([step.metrics for step in steps])
                if on_logprobs:
                    self._report_logprobs(minibatches[: len(steps)], steps, on_logprobs)
            step_metrics = [sum_across_ranks(self.process_group, sums) | norms for sums, norms in own_metrics]
            self.model.gather_weights()
            validate_same_weights(self.process_group, self.optimizer.fingerprint())
        return reduce_metrics(step_metrics) | skipped_minibatches(self.loss, len(minibatches) - len(steps))

    def _take_step(self, minibatch: Batch) -> OptimizerStep:
        """Take one optimizer step.

        Without a trained token, weights and moments stay: Adam would move the weights in its last direction.
        """
        trained_rows = _trained_tokens(minibatch, self.loss).any(1).nonzero()[:, 0]
        if not len(trained_rows):  # on every rank, since all have the same batch
            return _idle_step(minibatch, self.model.device)
        trained = minibatch.select(trained_rows)
        own_rows = trained_rows[select_own_rows(trained, self.process_group)]
        own, step = minibatch.select(own_rows), OptimizerStep(trained_rows, own_rows)
        step.metrics.counts["distinct_tokens"] = count_distinct_tokens(own)
        microbatches = split_into_microbatches(self.model, own, self.max_tokens)
        with self._resharded(trained, len(microbatches)):
            for rows in microbatches:
                with self.model.lora_dropout(self._next_dropout_seed()):
                    self._accumulate(own, rows, step)
        if minibatch.advantages is not None:
            self.process_group.all_reduce_(self.optimizer.unreduced_gradients())
            step.metrics.norms["grad_norm"] = self.optimizer.step(self.learning_rate)
            step.metrics.norms["relative_weight_change"] = self.optimizer.relative_change
        if minibatch.returns is not None:
            assert self.critic is not None
            self.process_group.all_reduce_(self.critic.unreduced_gradients)
            step.metrics.norms["value_grad_norm"] = self.critic.step()
        return step

    def _exceeds_target_kl(self, step: OptimizerStep) -> bool:
        """Return whether the policy was too far from the sampler's before this step, on all ranks together."""
        ((own_sums, _),) = read_metrics([step.metrics])
        return exceeds_target_kl(self.loss, sum_across_ranks(self.process_group, own_sums))

    def _report_logprobs(
        self, minibatches: Sequence[Batch], steps: Sequence[OptimizerStep], on_logprobs: LogprobsCallback
    ) -> None:
        values = iter(to_host([values for step in steps for *_, values in step.logprobs]))
        for index, (minibatch, step) in enumerate(zip(minibatches, steps, strict=True)):
            if minibatch.advantages is not None:
                computed = torch.zeros(minibatch.tokens.shape)
                for rows, positions, _ in step.logprobs:
                    computed[rows, positions] = next(values)
                self.process_group.all_reduce_([computed])
                logprobs = torch.full(minibatch.tokens.shape, torch.nan)
                logprobs[step.trained_rows] = computed[step.trained_rows]
                on_logprobs(index, logprobs)

    def _next_dropout_seed(self) -> int:
        self.num_passes += 1
        rank = f"/{self.process_group.rank}" if self.process_group.rank else ""
        return random.Random(f"{self.seed}/{self.num_passes}{rank}").getrandbits(63)

    @contextlib.contextmanager
    def _resharded(self, trained: Batch, num_microbatches: int) -> Iterator[None]:
        """Free the full weights of sharded layers. Each pass in the block then fetches one layer at a time.

        Fetching needs all ranks, so a rank with fewer microbatches runs empty passes at the end of the block.
        """
        if not self.model.fsdp_shards:
            yield
            return
        self.model.fsdp_shards.reshard()
        most = max(self.process_group.all_gather(num_microbatches))
        yield
        for _ in range(most - num_microbatches):
            with torch.set_grad_enabled(trained.advantages is not None):
                hidden = compute_states(self.model, trained, [int(trained.lengths.argmin())]).hidden
            if hidden.requires_grad:
                (0.0 * hidden.sum()).backward()  # type: ignore[no-untyped-call]

    def _accumulate(self, own: Batch, rows: Sequence[int], step: OptimizerStep) -> None:
        """Add the gradients of one microbatch, and its metrics and log-probabilities to `step`."""
        with torch.set_grad_enabled(own.advantages is not None):
            states = compute_states(self.model, own, rows)
        outcomes = []
        if own.advantages is not None:
            outcomes.append(self._policy_loss(states, own, step))
        if own.returns is not None:
            outcomes.append(self._value_loss(states, own))
        torch.stack([value for value, _ in outcomes]).sum().backward()  # type: ignore[no-untyped-call]
        step.metrics.counts["computed_tokens"] += states.num_computed
        step.metrics.counts["trained_tokens"] += len(states.state_index)
        for _, metrics in outcomes:
            step.metrics.sums += metrics.items()

    def _policy_loss(self, states: MicrobatchStates, own: Batch, step: OptimizerStep) -> LossOutput:
        assert own.advantages is not None
        current, entropy = states_logprobs(self.model, states, own)
        step.logprobs.append((step.own_rows[states.rows], states.positions, current.detach().float()))
        old, advantages = states.gather(own.logprobs), states.gather(own.advantages)
        sequence_ids = to_device(states.rows, current.device)
        value, metrics = losses.compute_loss(self.loss, current, old, advantages, sequence_ids=sequence_ids)
        return value, metrics | {"loss": value.detach(), "entropy": entropy.sum()}

    def _value_loss(self, states: MicrobatchStates, own: Batch) -> LossOutput:
        if self.critic is None or own.values is None or own.returns is None or own.value_weights is None:
            raise ValueError("the value loss needs a critic and a batch with values, returns and value_weights")
        valued = states.select(own.value_weights[states.rows, states.positions] > 0)
        old, returns, weights = (valued.gather(x) for x in (own.values, own.returns, own.value_weights))
        return self.critic.loss(valued.hidden, valued.state_index, old, returns, weights)


def _idle_step(minibatch: Batch, device: torch.device) -> OptimizerStep:
    """Return what an optimizer step without a trained token computes: it changes no weight."""
    no_rows = torch.zeros(0, dtype=torch.int64)
    step = OptimizerStep(no_rows, no_rows)
    step.metrics.counts.update(distinct_tokens=0.0, computed_tokens=0.0, trained_tokens=0.0)
    names = ["grad_norm", "relative_weight_change"] if minibatch.advantages is not None else []
    names += ["value_grad_norm"] if minibatch.returns is not None else []
    step.metrics.norms.update({name: torch.zeros((), device=device) for name in names})
    return step


def _trained_tokens(minibatch: Batch, loss: LossConfig) -> Tensor:
    """Return which tokens of a batch are trained, [B, T].

    A function of the user's own may have a gradient at tokens without an advantage, such as that of a KL term.
    """
    if minibatch.advantages is not None and is_custom(loss.kind):
        return minibatch.mask
    value_weights = minibatch.value_weights if minibatch.returns is not None else None
    weights = [x for x in (minibatch.advantages, value_weights) if x is not None]
    if not weights:
        raise ValueError("a batch to train on needs advantages or returns")
    return torch.stack([x != 0 for x in weights]).any(0) & minibatch.mask
