"""Gradient checkpointing (Chen et al. 2016, arXiv:1604.06174): only the input of a layer waits for the backward pass.

The rest is computed again, with the random numbers of the first time, so that the gradients are the same to the bit.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer


def checkpoint_layers(network: nn.Module) -> None:
    """Change the forward of each decoder layer in place."""
    for layer in network.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.forward = partial(_forward, layer.forward)


def _forward(forward: Callable[..., Any], hidden: Tensor, *args: Any, **named: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(hidden, *args, **named)
    return checkpoint(forward, hidden, *args, use_reentrant=False, **named)
