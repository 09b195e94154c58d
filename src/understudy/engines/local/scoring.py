"""Forward passes over a batch: the hidden states before its trained tokens, and values that are computed from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from understudy.algorithms.batch import Batch, plan_microbatches, split_across_ranks
from understudy.core.errors import ConfigError
from understudy.engines.local.memory_errors import memory_errors_as_config_errors
from understudy.engines.local.model import LocalModel
from understudy.engines.local.packing import GpuTree, PlainTree, pack_rows
from understudy.engines.local.padded import PaddedRows, plan_padded_microbatches
from understudy.engines.local.token_logprobs import (
    MaskRows,
    masked_token_logprobs,
    token_logprobs,
    token_logprobs_of,
)
from understudy.engines.local.transfers import to_device, to_host
from understudy.engines.process_group import ProcessGroup

SMALL_MASK = 1 / 64
"""Share of the vocabulary up to which only the logits of a sampling mask's tokens are computed. A matrix product
computes all logits in the time in which about this share of the rows is gathered."""


@dataclass(frozen=True, slots=True)
class MicrobatchStates:
    """The M trained tokens of a microbatch and the U <= M hidden states before them. Rows may share tokens."""

    rows: Tensor  # [M], in the batch that the microbatch is a part of; on the CPU
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


def compute_states(model: LocalModel, batch: Batch, rows: Sequence[int]) -> MicrobatchStates:
    """Run a forward pass over a microbatch: the given rows of a batch."""
    layout: PlainTree | GpuTree | PaddedRows
    if model.padded:
        layout = PaddedRows(batch, rows, model.device)
        hidden = model.padded.hidden_states(layout.tokens).flatten(0, 1)
    else:
        layout = pack_rows(batch, rows, model.device)
        hidden = model.hidden_states(layout.tokens, layout.positions, layout)
    row, column = batch.mask[rows].nonzero().T
    trained, which = torch.unique(layout.places[row, column], return_inverse=True)
    before = torch.empty_like(trained).scatter_(0, which, layout.places[row, column - 1])
    before, trained, which = (to_device(x, hidden.device) for x in (before, trained, which))
    targets = layout.tokens.flatten()[trained]
    return MicrobatchStates(torch.tensor(rows)[row], column, hidden[before], targets, which, layout.num_tokens)


def split_into_microbatches(model: LocalModel, batch: Batch, max_tokens: int) -> list[list[int]]:
    """Return the rows of each pass over a batch, which computes at most `max_tokens` tokens, or one row."""
    return (plan_padded_microbatches if model.padded else plan_microbatches)(batch, max_tokens)


def states_logprobs(model: LocalModel, states: MicrobatchStates, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and entropies [M] of the trained tokens from a model's hidden states."""
    if batch.mask_numbers is not None:
        return _masked_logprobs(model, states, batch)
    logprobs, entropies = _logprobs(model, states.hidden, states.targets, batch.temperature)
    return logprobs[states.state_index], entropies[states.state_index]


def _logprobs(
    model: LocalModel, hidden: Tensor, targets: Tensor, temperature: float, masks: MaskRows | None = None
) -> tuple[Tensor, Tensor]:
    if not model.has_plain_head:
        return token_logprobs_of(model.logits, len(model.lm_head), hidden, targets, temperature, masks)
    return token_logprobs(
        hidden, model.lm_head, targets, temperature, *_trained_rows(model), masks, model.packed_head()
    )


def _trained_rows(model: LocalModel) -> tuple[Tensor | None, Tensor | None]:
    rows = model.token_rows
    return (rows.head_rows, rows.tokens) if rows else (None, None)


def _masked_logprobs(model: LocalModel, states: MicrobatchStates, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the same for a batch with sampling masks. Rows with equal tokens may have different masks.

    A token that is alone in its mask has the log-probability 0, and no gradient.
    """
    assert batch.mask_numbers is not None
    assert batch.sampling_masks is not None
    numbers = batch.mask_numbers[states.rows, states.positions]
    sizes = batch.sampling_masks.sizes(numbers)
    few = sizes <= (len(model.lm_head) * SMALL_MASK if model.has_plain_head else 1)
    parts = []
    for chosen, is_small in (((sizes > 1) & few, True), ((sizes == 0) | ((sizes > 1) & ~few), False)):
        (index,) = chosen.nonzero(as_tuple=True)
        if not len(index):
            continue
        device = states.hidden.device
        token_ids, owners = (to_device(x, device) for x in batch.sampling_masks.select(numbers[index]))
        has_mask, place = to_device(sizes[index] > 0, device), to_device(index, device)
        masks = MaskRows(sizes[index], token_ids, owners, has_mask)
        state = states.state_index[place]
        hidden, targets = states.hidden[state], states.targets[state]
        if is_small:
            rest = *_trained_rows(model), masks, not model.has_float32_logits
            found = masked_token_logprobs(hidden, model.lm_head, targets, batch.temperature, *rest)
        else:
            found = _logprobs(model, hidden, targets, batch.temperature, masks)
        parts.append((place, found))
    zero = states.hidden[:, :0].float().sum()  # of the graph, so that a microbatch of such tokens has a gradient
    logprobs = entropies = zero.expand(len(numbers))
    for place, found in parts:
        logprobs, entropies = (x.index_add(0, place, y) for x, y in zip((logprobs, entropies), found, strict=True))
    return logprobs, entropies.detach()


def compute_logprobs(model: LocalModel, batch: Batch, process_group: ProcessGroup, max_tokens: int) -> Tensor:
    """Return log-probabilities [B, T] of the trained tokens under a model, without gradient."""

    def logprobs(states: MicrobatchStates) -> Tensor:
        return states_logprobs(model, states, batch)[0]

    return score_tokens(model, batch, logprobs, process_group, max_tokens)


def score_tokens(
    model: LocalModel,
    batch: Batch,
    score: Callable[[MicrobatchStates], Tensor],
    process_group: ProcessGroup,
    max_tokens: int,
) -> Tensor:
    """Return the scores [B, T] of the trained tokens, without gradient; other entries are 0.

    `score` returns those [M] of a microbatch. Each process computes its share of the rows, in microbatches of at most
    `max_tokens` tokens. Raise ConfigError if a row is longer than the context, or if memory runs out.
    """
    validate_lengths([batch], model)
    scores = torch.zeros(batch.tokens.shape)
    scored_rows = batch.mask.any(1).nonzero()[:, 0]  # others may have no token at all
    if not len(scored_rows):
        return scores
    own_rows = scored_rows[select_own_rows(batch.select(scored_rows), process_group)]
    own = batch.select(own_rows)
    places, values = [], []
    with torch.inference_mode(), memory_errors_as_config_errors("engine.max_tokens_per_microbatch", max_tokens):
        for microbatch in split_into_microbatches(model, own, max_tokens):
            states = compute_states(model, own, microbatch)
            places.append((own_rows[states.rows], states.positions))
            values.append(score(states))
        for place, value in zip(places, to_host(values), strict=True):
            scores[place] = value
    process_group.all_reduce_([scores])
    return scores.clone()


def select_own_rows(batch: Batch, process_group: ProcessGroup) -> Tensor:
    """Return the indices of the rows that this process computes."""
    if process_group.world_size == 1:
        return torch.arange(len(batch))
    return torch.tensor(split_across_ranks(batch, process_group.world_size)[process_group.rank], dtype=torch.int64)


def validate_lengths(batches: Sequence[Batch], model: LocalModel) -> None:
    """Raise ConfigError if a row is longer than the context, where attention would differ from the model's own."""
    longest = max((int(batch.lengths.max()) for batch in batches if len(batch)), default=0)
    if longest > model.context_length:
        raise ConfigError(
            f"a row of {longest} tokens is longer than the model's context of {model.context_length} "
            f"({model.folder}); lower limits.max_episode_tokens"
        )
