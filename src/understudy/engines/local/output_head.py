"""The output head of a model, as the model's own code applies it to hidden states."""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from understudy.engines.local.gradient_checkpointing import model_body

_PROBE_TOKENS, _PROBE_SCALE = 4, 100.0
_MAX_PROBE_DIFF = 0.02
"""Maximum difference of logits that are equal but for rounding, relative to their norm."""


class _GivenStates(tuple[Tensor]):
    """The output of a model's body: hidden states, and nothing else that a body can give."""

    def __getattr__(self, name: str) -> Any:
        return self[0] if name == "last_hidden_state" else None


def own_logits(network: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Return the logits [N, V] of hidden states [N, D]. Some models scale or cap them, or add a bias.

    The network's forward pass runs with these hidden states in place of its body.
    """
    backbone = model_body(network)
    own = backbone.__dict__.get("forward")
    backbone.forward = lambda *_, **__: _GivenStates([hidden[None]])
    try:
        tokens = torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
        return network(input_ids=tokens, use_cache=False).logits[0]  # type: ignore[no-any-return]
    finally:
        del backbone.forward
        if own:
            backbone.forward = own


@torch.inference_mode()
def has_plain_head(network: PreTrainedModel) -> bool:
    """Return whether logits are the product of hidden states and output weights, and nothing else."""
    head = network.get_output_embeddings()
    if getattr(head, "bias", None) is not None:
        return False
    generator = torch.Generator().manual_seed(0)
    # Large values, because a cap changes small logits hardly.
    hidden = _PROBE_SCALE * torch.randn(_PROBE_TOKENS, head.weight.shape[1], generator=generator)
    hidden = hidden.to(network.device, head.weight.dtype)
    plain, found = (hidden @ head.weight.T).float(), own_logits(network, hidden).float()
    return bool((plain - found).norm() <= _MAX_PROBE_DIFF * found.norm())
