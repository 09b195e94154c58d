"""Single rows of frozen embeddings and of a frozen output head, as trainable parameters.

A parameter shares its memory with its row, so sampling, exports and references read the trained values without more
code. Only the backward pass needs some: it is the one in which a table has no gradient of its own.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

ROW_RATE_FACTOR = 5.0
"""Factor of the learning rate of the rows. An untrained row begins far from its place: in Qwen2.5-Coder-0.5B the tokens
of a call have a loss of 21 and 20 nats. After eight steps of SFT (LoRA, 2e-4) it is 0.02, with a factor of 1 still 8
and 7 after ten, and with frozen rows 11 after eight."""


class TokenRows:
    """The rows of `tokens` in the two tables of a network on its device. Tied tables share one parameter for each."""

    def __init__(self, network: PreTrainedModel, tokens: Sequence[int]) -> None:
        embeddings, head = network.get_input_embeddings(), network.get_output_embeddings()
        names = {module: name for name, module in network.named_modules()}
        self.tokens = torch.tensor(tokens, device=network.device)
        self.tables: dict[str, list[nn.Parameter]] = {}
        """The rows of each table, by the name of its module."""
        for module in [embeddings] if head.weight is embeddings.weight else [embeddings, head]:
            table = module.weight.detach()
            self.tables[names[module]] = [nn.Parameter(table[token]) for token in tokens]
        embeddings.register_forward_hook(self._embed)
        head.register_forward_hook(self._add_gradient)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The rows by name, such as model.embed_tokens.weight[151657]."""
        tokens = self.tokens.tolist()
        named = self.tables.items()
        return {f"{name}.weight[{i}]": row for name, rows in named for i, row in zip(tokens, rows, strict=True)}

    @property
    def head_rows(self) -> Tensor:
        """The rows [K, D] of the output head, with gradient."""
        return torch.stack([*list(self.tables.values())[-1]])

    def _add_gradient(self, module: nn.Module, inputs: tuple[Tensor], logits: Tensor) -> Tensor:
        """Return the same logits [..., V] of a head that runs by itself, with a gradient for these rows."""
        if not torch.is_grad_enabled():
            return logits
        rows = self.head_rows
        return logits.index_add(-1, self.tokens, inputs[0] @ (rows - rows.detach()).T)

    def _embed(self, module: nn.Module, inputs: tuple[Tensor], embedded: Tensor) -> Tensor:
        """Return the same embeddings [..., D], with a gradient for these rows."""
        if not torch.is_grad_enabled():
            return embedded
        rows = torch.stack([*next(iter(self.tables.values()))])
        scale = torch.as_tensor(getattr(module, "embed_scale", 1.0), device=rows.device).to(rows.dtype)  # Gemma's
        found = inputs[0][..., None] == self.tokens
        return torch.where(found.any(-1, keepdim=True), found.to(rows.dtype) @ (rows * scale), embedded)
