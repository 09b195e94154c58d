"""An engine whose model is a table of logits for each pair of tokens. A recipe: see docs/extending.md.

It implements `engines.interface.Engine`, which is `Sampler` and `Trainer`. It has no `Reference` and no `Critic`.
"""

import copy
from collections.abc import Collection, Sequence
from pathlib import Path

import torch
from torch import Tensor

from understudy.algorithms.batch import Batch
from understudy.algorithms.config import LossConfig
from understudy.algorithms.losses import compute_loss
from understudy.core.errors import ConfigError
from understudy.engines.interface import Completion, LogprobsCallback, LogprobTolerance, SamplingParams


class BigramEngine:
    """Engine of a bigram model. Row i of the weights [V, V] has the logits of the token that follows token i."""

    tolerance = LogprobTolerance(max_diff=1e-5, mean_diff=1e-6)

    def __init__(self, vocabulary: int) -> None:
        self._table = torch.zeros(vocabulary, vocabulary, requires_grad=True)
        self._optimizer = torch.optim.Adam([self._table])
        self._version = 0

    async def sample(
        self, prompt: Sequence[int], sampling: SamplingParams, seed: int, stop_tokens: Collection[int] = ()
    ) -> Completion:
        """Sample a reply. Each call has its own random generator, so concurrent calls do not affect its tokens."""
        if sampling.has_filters or sampling.stop:
            raise ConfigError(
                "BigramEngine supports no stop strings, top_p, top_k, min_p or repetition_penalty; leave them out"
            )
        generator, tokens, logprobs = torch.Generator().manual_seed(seed), [*prompt], list[float]()
        while len(logprobs) < sampling.max_response_tokens and (not logprobs or tokens[-1] not in stop_tokens):
            scores = (self._table.detach()[tokens[-1]] / (sampling.temperature or 1.0)).log_softmax(-1)
            drawn = scores.argmax() if not sampling.temperature else scores.exp().multinomial(1, generator=generator)
            tokens.append(int(drawn))
            logprobs.append(float(scores[tokens[-1]]))
        finish = "stop" if tokens[-1] in stop_tokens else "length"
        return Completion(tokens[len(prompt) :], logprobs, finish, self._version)

    async def compute_logprobs(self, batch: Batch) -> Batch:
        """Return the batch with the log-probabilities of its sampled tokens under the current weights."""
        return batch.replace(logprobs=_logprobs(self._table.detach(), batch))

    async def update(
        self,
        minibatches: Sequence[Batch],
        loss: LossConfig,
        learning_rate: float,
        on_logprobs: LogprobsCallback | None = None,
    ) -> dict[str, float]:
        """Take one optimizer step per batch. The loss is a sum, so nothing is divided here."""
        self._optimizer.param_groups[0]["lr"] = learning_rate
        total = 0.0
        for index, batch in enumerate(minibatches):
            assert batch.advantages is not None
            logprobs = _logprobs(self._table, batch)
            if on_logprobs:
                on_logprobs(index, logprobs.detach())
            found, _ = compute_loss(loss, logprobs, batch.logprobs, batch.advantages, batch.mask)
            self._optimizer.zero_grad()
            found.backward()
            self._optimizer.step()
            total += float(found.detach())
        self._version += 1
        return {"loss": total / len(minibatches)}

    def reset_optimizer(self) -> None:
        """Reset Adam's moments."""
        self._optimizer = torch.optim.Adam([self._table])

    def save(self, path: Path) -> None:
        """Write weights, moments and the number of updates."""
        state = {"table": self._table.detach(), "optimizer": self._optimizer.state_dict(), "version": self._version}
        path.mkdir(parents=True, exist_ok=True)
        torch.save(state, path / "bigram.pt")

    def load(self, path: Path) -> None:
        """Load what `save` wrote."""
        state = torch.load(path / "bigram.pt", weights_only=True)
        self._table.data.copy_(state["table"])
        self._optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self._version = state["version"]

    def export(self, folder: Path, merge_adapters: bool = False) -> None:
        """Raise ConfigError: transformers has no such model."""
        raise ConfigError("a bigram table cannot be exported: transformers has no such model")

    def reset_prefix_cache(self) -> None:
        """Do nothing: sampling caches nothing."""

    def close(self) -> None:
        """Do nothing: no process and no file is open."""


def _logprobs(table: Tensor, batch: Batch) -> Tensor:
    """Return the log-probability of each sampled token given the token before it [B, T].

    The shift by one position happens only in this function.
    """
    scores = (table[batch.tokens[:, :-1]] / batch.temperature).log_softmax(-1)
    found = scores.gather(-1, batch.tokens[:, 1:, None])[..., 0]
    return torch.nn.functional.pad(found, (1, 0)) * batch.mask
