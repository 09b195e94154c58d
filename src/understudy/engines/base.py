"""Engine: the verbs between the package and a model's weights. Engines see token ids, never messages.

Invariants that every engine holds: the tokens of a completion are what was sampled, with the log-probabilities of the
policy that sampled them; when `update` returns, `sample` uses the new weights; losses are sums, so that how a batch is
split cannot change a gradient.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

from pydantic import Field

from understudy.algorithms.options import Critic, Loss
from understudy.engines.reference import FROZEN, ReferenceConfig
from understudy.records import Record

if TYPE_CHECKING:
    from understudy.batch import Batch


class Sampling(Record):
    """How replies are sampled."""

    max_tokens: int = Field(default=128, ge=1)
    """Longest reply, in tokens."""
    temperature: float = Field(default=1.0, ge=0.0)
    """0 takes the most likely token; log-probabilities are then those of temperature 1."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Draw from the fewest tokens whose probabilities sum to this; 1 draws from all. See docs/sampling.md."""
    top_k: int = Field(default=0, ge=0)
    """Draw from so many most likely tokens; 0 draws from all."""
    min_p: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Draw from tokens that are at least this times as likely as the most likely one."""
    repetition_penalty: float = Field(default=1.0, gt=0.0)
    """Logits of tokens that stand in the prompt or the reply are divided by this where positive, else multiplied."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Strings that end a reply; the token that completes one is its last."""

    @property
    def filtered(self) -> bool:
        """Whether tokens are drawn from another distribution than the softmax at the temperature."""
        return (self.top_p, self.top_k, self.min_p, self.repetition_penalty) != (1.0, 0, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Completion:
    """What was sampled, the stop token included, or the token that completes a stop string.

    Log-probabilities are of the whole softmax at the sampling temperature, whatever the tokens were drawn from: those
    are what a trainer computes, and what ratios to later weights are of.
    """

    tokens: list[int]
    logprobs: list[float]
    finish: Literal["stop", "length"]
    version: int = 0
    """How many updates the weights had seen."""

    @property
    def full(self) -> bool:
        """Whether nothing was sampled because the prompt leaves no room in the context."""
        return not self.tokens and self.finish == "length"


def no_room(version: int) -> Completion:
    """What a sampler gives where the prompt fills the context."""
    return Completion([], [], "length", version)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far apart two log-probabilities of one token may be that only rounding tells apart."""

    largest: float
    mean: float
    """Over all tokens that are compared."""


class Sampler(Protocol):
    """The part of an engine that an agent needs."""

    async def sample(
        self, prompt: Sequence[int], sampling: Sampling, seed: int, stop_tokens: Collection[int] = ()
    ) -> Completion:
        """Continue `prompt` up to a stop token. The same calls side by side, from the same weights, give the same.

        A reply ends where the context is full; where the prompt leaves no room in it, it is `no_room`.
        """


Told = Callable[[Sequence[int], Sequence[float]], None]
"""Is given further tokens of a reply, and their log-probabilities, as soon as they are sampled."""


class Streaming(Sampler, Protocol):
    """A sampler that tells of a reply while it samples it."""

    @property
    def context(self) -> int:
        """The longest sequence that the model takes, in tokens."""

    def refuse(self, sampling: Sampling) -> None:
        """Raise a `ConfigError` where replies cannot be sampled so; `sample` would as well."""

    async def sample(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        seed: int,
        stop_tokens: Collection[int] = (),
        told: Told | None = None,
    ) -> Completion:
        """As `Sampler.sample`. Who gives up waiting (a cancelled call) ends the sampling.

        A sampler that cannot tell before a reply is whole tells nothing.
        """

    def close(self) -> None:
        """Give back memory and processes."""


class Engine(Sampler, Protocol):
    """Weights: sample from them, read them, move them."""

    @property
    def tolerance(self) -> Tolerance:
        """How far the log-probabilities of `sample` and of `forward` may be apart for the same weights."""

    async def forward(self, batch: "Batch") -> "Batch":
        """The batch with `logprobs` under the current weights."""

    async def update(self, steps: Sequence["Batch"], loss: Loss, learning_rate: float) -> dict[str, float]:
        """One optimizer step for each batch, in order; metrics are means over the trained tokens, or over the steps.

        A batch with `returns` moves the critic too; one that has these and no advantages, the critic's head alone.
        """

    def add_critic(self, critic: Critic) -> None:
        """Learn values beside the policy, from here on and in checkpoints; a ConfigError where there can be none."""

    async def values(self, batch: "Batch") -> "Batch":
        """The batch with `values` of its sampled tokens by the critic."""

    def keep_reference(self, config: ReferenceConfig = FROZEN) -> None:
        """Compare with what `config` asks for from now on: the policy as it is now, its average, or another model."""

    def move_reference(self) -> None:
        """Let a reference that follows the policy come nearer."""

    def forget_reference(self) -> None:
        """Give back what a reference holds."""

    async def reference(self, batch: "Batch") -> "Batch":
        """The batch with `ref_logprobs` under the reference."""

    def fresh_optimizer(self) -> None:
        """Forget the optimizer's moments: what a new phase of training with another loss starts with."""

    def save(self, path: Path) -> None:
        """Write everything that `load` needs to go on as if nothing had happened."""

    def load(self, path: Path) -> None:
        """Take up a checkpoint written by `save`."""

    def export(self, folder: Path, merged: bool = False) -> None:
        """Write the model as transformers and peft read it, with its tokenizer; of LoRA adapters, unless `merged`."""

    def forget(self) -> None:
        """Forget what was sampled, so that what follows comes out as from an engine that has sampled nothing."""

    def close(self) -> None:
        """Give back memory and processes."""
