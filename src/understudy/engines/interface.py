"""Interfaces of engines: sample from a model's weights and train them. Engines see token ids, never messages.

`Sampler` and `Trainer` are the two halves of an `Engine`. `Reference` and `Critic` are optional: an engine that lacks
one does not define its methods, and `require_reference` or `require_critic` raises ConfigError before a run starts.

Every engine guarantees three things. A completion holds the tokens that were sampled, with the log-probabilities of the
weights that sampled them. After `update` returns, `sample` uses the new weights. A loss is a sum over tokens, so the
gradient does not depend on how a batch is split.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, runtime_checkable

from pydantic import AfterValidator, Field

from understudy.algorithms.config import CriticConfig, LossConfig
from understudy.core.errors import ConfigError, RolloutError
from understudy.core.records import Record
from understudy.core.sampling_masks import SamplingMask
from understudy.engines.reference_config import FROZEN_REFERENCE, ReferenceConfig

if TYPE_CHECKING:
    from torch import Tensor

    from understudy.algorithms.batch import Batch

_LOWEST_LOGPROB = -9999.0
"""vLLM sends this in place of minus infinity."""
_HIGHEST_LOGPROB = 0.01
"""Rounding can raise the log-probability of a certain token above 0."""


MAX_TOKEN_COUNT = 2**31 - 1
"""Largest number that samplers accept where they expect a number of tokens."""
MIN_TEMPERATURE = 1e-5
"""Lowest temperature above 0 at which no logit overflows."""


def _validate_temperature(value: float) -> float:
    if 0.0 < value < MIN_TEMPERATURE:
        raise ValueError(f"allowed: 0, which is greedy decoding, or at least {MIN_TEMPERATURE:f}")
    return value


Temperature = Annotated[float, Field(ge=0.0, le=100.0), AfterValidator(_validate_temperature)]
TopP = Annotated[float, Field(ge=1e-6, le=1.0)]
TopK = Annotated[int, Field(le=MAX_TOKEN_COUNT)]
MinP = Annotated[float, Field(ge=0.0, lt=1.0)]
Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]


class SamplingParams(Record):
    """Sampling parameters of a reply. Within their bounds, finite logits stay finite."""

    max_response_tokens: int = Field(default=128, ge=1, le=MAX_TOKEN_COUNT)
    """Maximum number of tokens in a reply."""
    temperature: Temperature = 1.0
    """Sampling temperature. 0 is greedy decoding, with log-probabilities at temperature 1."""
    top_p: TopP = 1.0
    """Nucleus sampling: use the fewest tokens whose probabilities sum to at least this. 1 disables it. See
    docs/finetuning.md."""
    top_k: Annotated[TopK, Field(ge=0)] = 0
    """Use only the k most likely tokens. 0 disables it."""
    min_p: MinP = 0.0
    """Use only tokens with at least this fraction of the highest probability. 0 disables it."""
    repetition_penalty: float = Field(default=1.0, ge=0.01, le=100.0)
    """Repetition penalty: for tokens that occur in the prompt or the reply, divide positive logits by this and
    multiply negative ones by it. 1 disables it.
    """
    frequency_penalty: Penalty = 0.0
    """Subtract this from the logit of a token once for each time that it occurs in the reply. 0 disables it."""
    presence_penalty: Penalty = 0.0
    """Subtract this from the logits of tokens that occur in the reply. 0 disables it."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Strings that end a reply. The token that completes one is the last of the reply."""
    keep_sampling_mask: bool = True
    """Record which tokens `top_p`, `top_k` and `min_p` kept, and normalize log-probabilities over them, when sampling
    and in training. If false, log-probabilities are those of all tokens, and filters bias the gradient."""

    @property
    def has_filters(self) -> bool:
        """True if tokens are not drawn from the plain softmax at `temperature`."""
        return (self.top_p, self.top_k, self.min_p) != (1.0, 0, 0.0) or self.has_penalties

    @property
    def records_masks(self) -> bool:
        """True if the sampling mask of each token is recorded. Greedy decoding draws nothing."""
        cuts = (self.top_p, self.top_k, self.min_p) != (1.0, 0, 0.0)
        return self.keep_sampling_mask and cuts and self.temperature > 0

    @property
    def has_penalties(self) -> bool:
        """True if a token's probability depends on whether it has occurred."""
        return (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) != (1.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Completion:
    """A sampled reply, including its stop token or the token that completes a stop string.

    `logprobs` are those of the softmax at the sampling temperature, without penalties, over the tokens of the sampling
    mask, or over all tokens where no mask is recorded. The trainer computes the same quantity, so importance ratios
    compare like with like.
    """

    tokens: list[int]
    logprobs: list[float]
    finish_reason: Literal["stop", "length"]
    weights_version: int = 0
    """Number of updates of the weights that sampled the reply."""
    sampling_masks: Sequence[SamplingMask] = ()
    """One for each token, or none at all."""

    @property
    def context_full(self) -> bool:
        """True if nothing was sampled because the prompt fills the context."""
        return not self.tokens and self.finish_reason == "length"


def context_full_completion(weights_version: int) -> Completion:
    """Return the completion of a prompt that fills the context."""
    return Completion([], [], "length", weights_version)


def validate_reply(source: str, tokens: object, logprobs: object, *, max_tokens: int, vocab_size: int) -> None:
    """Raise RolloutError unless a reply of another program can be trained on. `source` names that program.

    `tokens` are 1 to `max_tokens` ids below `vocab_size`, and `logprobs` as many finite log-probabilities. A server
    that could not compute a log-probability sends null, NaN, infinity, or -9999 (vLLM).
    """
    problem = _find_reply_problem(tokens, logprobs, max_tokens, vocab_size)
    if problem:
        raise RolloutError(f"{source} gave a reply that cannot be used: {problem}", "engine")


def _find_reply_problem(tokens: object, logprobs: object, max_tokens: int, vocab_size: int) -> str:
    if not isinstance(tokens, list) or not isinstance(logprobs, list):
        return f"its tokens and log-probabilities are {type(tokens).__name__} and {type(logprobs).__name__}, not lists"
    if len(tokens) != len(logprobs) or not 1 <= len(tokens) <= max_tokens:
        return f"{len(tokens)} tokens with {len(logprobs)} log-probabilities, not 1 to {max_tokens} of each"
    for token in tokens:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab_size:
            return f"the token id {token!r:.40}, not an integer from 0 to {vocab_size - 1}"
    for logprob in logprobs:
        is_number = isinstance(logprob, int | float) and not isinstance(logprob, bool)
        if not is_number or not _LOWEST_LOGPROB < logprob <= _HIGHEST_LOGPROB:
            return f"the log-probability {logprob!r:.40}, not a finite number up to 0"
    return ""


@dataclass(frozen=True, slots=True)
class LogprobTolerance:
    """Maximum differences between two log-probabilities of the same token that rounding can cause."""

    max_diff: float
    mean_diff: float
    """Mean over all compared tokens."""


class Sampler(Protocol):
    """Samples replies. This is all that an agent needs of an engine."""

    async def sample(
        self, prompt: Sequence[int], sampling: SamplingParams, seed: int, stop_tokens: Collection[int] = ()
    ) -> Completion:
        """Sample a continuation of `prompt` up to a stop token.

        Repeating concurrent calls with the same arguments and the same weights returns the same completions. A reply
        ends when the context is full. If the prompt already fills the context, return `context_full_completion`.
        """


TokenCallback = Callable[[Sequence[int], Sequence[float], Sequence[SamplingMask]], None]
"""Receives new tokens of a reply, their log-probabilities and their sampling masks, if there are any, as soon as they
are sampled."""


class StreamingSampler(Sampler, Protocol):
    """A sampler that can report tokens while it samples, as a server needs."""

    @property
    def context_length(self) -> int:
        """Maximum length of prompt and reply together, in tokens."""

    def validate_sampling(self, sampling: SamplingParams) -> None:
        """Raise ConfigError if the sampler does not support `sampling`, as `sample` would."""

    async def sample(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        seed: int,
        stop_tokens: Collection[int] = (),
        on_tokens: TokenCallback | None = None,
    ) -> Completion:
        """Sample like `Sampler.sample` and pass new tokens to `on_tokens`. Cancelling the call stops the sampling.

        A sampler that receives only whole replies never calls `on_tokens`.
        """

    def close(self) -> None:
        """Free memory and stop subprocesses."""


class TokenConstraint(Protocol):
    """A grammar that limits the tokens of one reply."""

    def allowed_tokens(self) -> bytes:
        """Return one byte for each token id: 0 if the token must not be next. Ids beyond the end must not either.

        Raise RolloutError if the grammar fails. Only its own reply fails.
        """

    def accept(self, token: int) -> None:
        """Advance by the sampled token, which was allowed. Raise RolloutError if the grammar fails."""


@runtime_checkable
class ConstrainedSampler(Protocol):
    """Optional part of a streaming sampler: replies that follow a grammar."""

    @property
    def supports_constraints(self) -> bool:
        """Whether `sample_constrained` can be called, as the sampler is configured."""

    async def sample_constrained(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        seed: int,
        constraint: TokenConstraint,
        stop_tokens: Collection[int] = (),
        on_tokens: TokenCallback | None = None,
    ) -> Completion:
        """Sample like `StreamingSampler.sample`, from the allowed tokens only.

        With `sampling.keep_sampling_mask`, the sampling masks are those of grammar and filters together. Otherwise
        log-probabilities are those of the whole softmax, as without a constraint.
        """


LogprobsCallback = Callable[[int, "Tensor"], None]
"""Receives the index of a minibatch and the log-probabilities [B, T] of its sampled tokens under the weights before its
optimizer step. A row that was skipped is NaN."""


class Trainer(Protocol):
    """Scores tokens and updates the weights."""

    @property
    def tolerance(self) -> LogprobTolerance:
        """Allowed differences between the log-probabilities of `sample` and `compute_logprobs` for the same weights."""

    async def compute_logprobs(self, batch: "Batch") -> "Batch":
        """Return the batch with `logprobs` under the current weights."""

    async def update(
        self,
        minibatches: Sequence["Batch"],
        loss: LossConfig,
        learning_rate: float,
        on_logprobs: LogprobsCallback | None = None,
    ) -> dict[str, float]:
        """Take one optimizer step per minibatch, in order. Return metrics: means over trained tokens or over steps.

        With `loss.target_kl`, the minibatches after one whose `approx_kl` exceeds it are skipped.

        A batch with `returns` also trains the critic. A batch with `returns` but no `advantages` trains only the
        critic's value head. `on_logprobs` receives the log-probabilities that the policy loss was computed from.
        """

    def reset_optimizer(self) -> None:
        """Reset the optimizer's moments. A training phase with another loss starts with this."""

    def save(self, path: Path) -> None:
        """Write a checkpoint to the folder `path`. Training after `load` equals uninterrupted training."""

    def load(self, path: Path) -> None:
        """Load a checkpoint that `save` wrote."""

    def export(self, folder: Path, merge_adapters: bool = False) -> None:
        """Write model and tokenizer for transformers, or LoRA adapters for peft unless `merge_adapters` is set."""

    def reset_prefix_cache(self) -> None:
        """Clear everything that sampling has cached, so that later samples equal those of a fresh engine."""

    def close(self) -> None:
        """Free memory and stop subprocesses."""


class Engine(Sampler, Trainer, Protocol):
    """Samples from a model's weights and trains them."""


@runtime_checkable
class Reference(Protocol):
    """Optional part of an engine: a reference policy for KL penalties, DPO and KTO."""

    def set_reference(self, config: ReferenceConfig = FROZEN_REFERENCE) -> None:
        """Set the reference: a copy of the current weights, their moving average, or another model."""

    def update_reference(self) -> None:
        """Move a reference of kind `ema` toward the current weights. References of other kinds do not change."""

    def drop_reference(self) -> None:
        """Remove the reference, if there is one, and free its memory."""

    async def compute_ref_logprobs(self, batch: "Batch") -> "Batch":
        """Return the batch with `ref_logprobs` under the reference. Raise ValueError if no reference is set."""


@runtime_checkable
class Critic(Protocol):
    """Optional part of an engine: a value head on the policy's network, which checkpoints include."""

    def add_critic(self, critic: CriticConfig) -> None:
        """Add a value head, which updates train from now on."""

    async def compute_values(self, batch: "Batch") -> "Batch":
        """Return the batch with the critic's `values` of its sampled tokens. Raise ValueError without a critic."""


@runtime_checkable
class SavesInBackground(Protocol):
    """Optional part of an engine: a checkpoint is written while the engine samples."""

    def prepare_save(self) -> Callable[[Path], None]:
        """Return a function that writes what `save` would write now. It must be called once, in any thread.

        Methods that change the weights or the optimizer wait until it has returned.
        """


def require_reference(engine: Trainer) -> Reference:
    """Return the engine as a `Reference`. Raise ConfigError if it cannot hold one."""
    if isinstance(engine, Reference):
        return engine
    raise ConfigError(
        f"{type(engine).__name__} cannot hold a reference policy; set algorithm.kl_coef=0 and preferences.steps=0"
    )


def require_critic(engine: Trainer) -> Critic:
    """Return the engine as a `Critic`. Raise ConfigError if it cannot train one."""
    if isinstance(engine, Critic):
        return engine
    raise ConfigError(
        f"algorithm.advantage_estimator = 'gae': {type(engine).__name__} cannot train a critic; choose an estimator "
        "that compares the episodes of a group, such as 'grpo'"
    )
