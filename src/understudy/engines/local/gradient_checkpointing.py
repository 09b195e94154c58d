"""Gradient checkpointing (Chen et al. 2016, arXiv:1604.06174): store only the input of each layer.

The backward pass computes the rest again with the same random numbers, so gradients are the same bit for bit.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer


def decoder_layers(network: nn.Module) -> list[nn.Module]:
    """Return the decoder layers of a transformers model, from the input to the output."""
    return [layer for layer in network.modules() if isinstance(layer, GradientCheckpointingLayer)]


def model_body(network: nn.Module) -> nn.Module:
    """Return the part of a causal language model from tokens to hidden states."""
    body = network.get_decoder()  # type: ignore[operator]
    return network.model if body is network else body  # type: ignore[no-any-return]


def enable_gradient_checkpointing(network: nn.Module) -> None:
    """Replace the forward of each decoder layer in place."""
    for layer in decoder_layers(network):
        layer.forward = partial(_forward, layer.forward)


def _forward(forward: Callable[..., Any], hidden: Tensor, *args: Any, **named: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(hidden, *args, **named)
    return checkpoint(forward, hidden, *args, use_reentrant=False, **named)
