"""An engine whose model is a table: which token follows which. A recipe: see docs/extending.md.

It fulfils `engines.base.Engine`, token ids in and out, and is small enough to see what each verb has to hold.
"""

import copy
from collections.abc import Collection, Sequence
from pathlib import Path

import torch
from torch import Tensor

from understudy.algorithms.losses import compute
from understudy.algorithms.options import Critic, Loss
from understudy.batch import Batch
from understudy.engines.base import Completion, Sampling, Tolerance
from understudy.engines.reference import FROZEN, ReferenceConfig
from understudy.errors import ConfigError


class Bigram:
    """Weights [V, V]: logits of the next token, by the last one."""

    tolerance = Tolerance(largest=1e-5, mean=1e-6)

    def __init__(self, vocabulary: int) -> None:
        self._table = torch.zeros(vocabulary, vocabulary, requires_grad=True)
        self._optimizer = torch.optim.Adam([self._table])
        self._reference: Tensor | None = None
        self._version = 0

    async def sample(
        self, prompt: Sequence[int], sampling: Sampling, seed: int, stop_tokens: Collection[int] = ()
    ) -> Completion:
        """Continue the prompt. The generator is the reply's own, so nothing depends on what is sampled beside it."""
        if sampling.filtered or sampling.stop:
            raise ConfigError("a bigram samples from its whole softmax alone; leave out filters and stop strings")
        generator, tokens, logprobs = torch.Generator().manual_seed(seed), [*prompt], list[float]()
        while len(logprobs) < sampling.max_tokens and (not logprobs or tokens[-1] not in stop_tokens):
            scores = (self._table.detach()[tokens[-1]] / (sampling.temperature or 1.0)).log_softmax(-1)
            drawn = scores.argmax() if not sampling.temperature else scores.exp().multinomial(1, generator=generator)
            tokens.append(int(drawn))
            logprobs.append(float(scores[tokens[-1]]))
        finish = "stop" if tokens[-1] in stop_tokens else "length"
        return Completion(tokens[len(prompt) :], logprobs, finish, self._version)

    async def forward(self, batch: Batch) -> Batch:
        """The batch with the log-probabilities of its sampled tokens under the weights as they are."""
        return batch.with_(logprobs=_logprobs(self._table.detach(), batch))

    async def update(self, steps: Sequence[Batch], loss: Loss, learning_rate: float) -> dict[str, float]:
        """One optimizer step for each batch. The loss is a sum: nothing is divided here."""
        self._optimizer.param_groups[0]["lr"] = learning_rate
        total = 0.0
        for batch in steps:
            assert batch.advantages is not None
            found, _ = compute(loss, _logprobs(self._table, batch), batch.logprobs, batch.advantages, batch.mask)
            self._optimizer.zero_grad()
            found.backward()
            self._optimizer.step()
            total += float(found.detach())
        self._version += 1
        return {"loss": total / len(steps)}

    def add_critic(self, critic: Critic) -> None:
        """There is no head for values, and a run that wants one is told so before it begins."""
        raise ConfigError("a bigram learns no values; choose another algorithm.advantage than 'gae'")

    async def values(self, batch: Batch) -> Batch:
        """Never asked for without a critic."""
        raise ConfigError("a bigram learns no values")

    def keep_reference(self, config: ReferenceConfig = FROZEN) -> None:
        """Compare with the weights as they are now."""
        if config.kind != "frozen":
            raise ConfigError(f"a bigram's reference is frozen, not {config.kind!r}")
        self._reference = self._table.detach().clone()

    def move_reference(self) -> None:
        """A frozen reference stays where it is."""

    def forget_reference(self) -> None:
        """Give back its copy."""
        self._reference = None

    async def reference(self, batch: Batch) -> Batch:
        """The batch with the reference's log-probabilities."""
        assert self._reference is not None
        return batch.with_(ref_logprobs=_logprobs(self._reference, batch))

    def fresh_optimizer(self) -> None:
        """Forget the moments."""
        self._optimizer = torch.optim.Adam([self._table])

    def save(self, path: Path) -> None:
        """All that goes on: weights, moments, the count of updates, and the reference."""
        state = {"table": self._table.detach(), "optimizer": self._optimizer.state_dict(), "version": self._version}
        path.mkdir(parents=True, exist_ok=True)
        torch.save({**state, "reference": self._reference}, path / "bigram.pt")

    def load(self, path: Path) -> None:
        """Take that up."""
        state = torch.load(path / "bigram.pt", weights_only=True)
        self._table.data.copy_(state["table"])
        self._optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self._version, self._reference = state["version"], state["reference"]

    def export(self, folder: Path, merged: bool = False) -> None:
        """No other program reads a table of bigrams."""
        raise ConfigError("a bigram is nothing that transformers loads")

    def forget(self) -> None:
        """Nothing is kept of what was sampled."""

    def close(self) -> None:
        """No process and no file is open."""


def _logprobs(table: Tensor, batch: Batch) -> Tensor:
    """Of each sampled token given the one before it [B, T]; the only shift by one is here."""
    scores = (table[batch.tokens[:, :-1]] / batch.temperature).log_softmax(-1)
    found = scores.gather(-1, batch.tokens[:, 1:, None])[..., 0]
    return torch.nn.functional.pad(found, (1, 0)) * batch.mask
