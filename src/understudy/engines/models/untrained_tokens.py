"""Finds tokens that a model was never trained on, from the rows of its embeddings and its output head.

An unused token is in no text, so its row of the embeddings has no gradient, and its row of the head has the same
gradient as those of all other unused tokens. So rows of unused tokens become nearly equal, or small by weight decay
(Land and Bartolo 2024, "Fishing for Magikarp", arXiv 2405.05417, section 3: the distance to known unused tokens, and
the norm). No known unused tokens are needed here: a row is compared with all others.

Measured, the distance to the nearest other row over the row's norm: at most 0.001 for the 11 unused tokens of
SmolLM2-135M, and for `<tool_call>` and 12 others of Qwen2.5-Coder-0.5B; 0.117 and 0.136 for `<|im_start|>` and
`<|im_end|>` of SmolLM2-135M, 0.33 for those of Qwen2.5-Coder, and 0.4 or more for 98% of all tokens of SmolLM2-135M.
The smallest norm of any row is 0.57 times the mean.
"""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.core.errors import ConfigError
from understudy.engines.models.folder import read_vocab_size

if TYPE_CHECKING:
    import torch

MAX_DISTANCE = 0.05
"""Distance to the nearest other row over a row's norm, up to which both are taken for untrained."""
MIN_NORM = 0.1
"""Norm of a row over the mean norm of its table, below which it is taken for untrained."""
_HEADS = ("lm_head.", "embed_out.")
"""How names of output heads begin."""
_CHUNK = 8192  # rows that are read at once


def find_untrained(folder: Path, tokens: Collection[int], sampled: Collection[int]) -> frozenset[int]:
    """Return those of `tokens` that the model in `folder` was never trained on.

    Rows of the embeddings are looked at, and rows of a head of its own for the `sampled` ones among them: a token that
    is only in prompts, such as the first of a sequence, may have an untrained row there in any model. A folder whose
    weights are no safetensors has no untrained tokens. Raise ConfigError if they cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    found = frozenset[int]()
    for path in sorted(folder.glob("*.safetensors")):
        size = read_vocab_size(folder)
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118
                    table = file.get_slice(name)
                    checked = {*tokens} & {*sampled} if name.startswith(_HEADS) else {*tokens}
                    known = sorted(token for token in checked if token < size)
                    if known and len(shape := table.get_shape()) == 2 and shape[0] == size:
                        found |= _untrained_rows(table, size, known)
        except SafetensorError as error:
            raise ConfigError(f"{path} cannot be read: {error}; copy the file of the model again") from error
    return found


def _untrained_rows(table: Any, size: int, tokens: list[int]) -> frozenset[int]:
    """Return the tokens whose rows in a table of safetensors are untrained."""
    import torch

    rows = torch.cat([table[i : i + 1] for i in tokens]).float()
    squares, nearest, total = rows.square().sum(1), torch.full((len(tokens),), torch.inf), 0.0
    for start, chunk in _chunks(table, size):
        lengths = chunk.square().sum(1)
        distances = squares[:, None] + lengths - 2 * rows @ chunk.T
        for i, token in enumerate(tokens):
            if start <= token < start + len(chunk):
                distances[i, token - start] = torch.inf
        nearest, total = torch.minimum(nearest, distances.amin(1)), total + float(lengths.sqrt().sum())
    norms = squares.sqrt()
    is_untrained = (nearest.clamp(min=0).sqrt() <= MAX_DISTANCE * norms) | (norms < MIN_NORM * total / size)
    return frozenset(token for token, found in zip(tokens, is_untrained.tolist(), strict=True) if found)


def _chunks(table: Any, size: int) -> "Iterator[tuple[int, torch.Tensor]]":
    for start in range(0, size, _CHUNK):
        yield start, table[start : start + _CHUNK].float()
