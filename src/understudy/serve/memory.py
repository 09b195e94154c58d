"""What was sampled, by the conversation that it ended: a client sends texts back, and gets its tokens taken up again.

The tokens of a conversation are then the same as if it had been played in one process: what was sampled stays as it was
sampled, and the sampler's cache knows it. A conversation is recognized by all of its messages and tools up to a reply
of ours, ids of calls included; one that was changed anywhere is encoded anew from there.
"""

import hashlib
import json
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from understudy.messages import Message, ToolSpec, spec_to_wire, to_wire

MOST = 1 << 22
"""Tokens that are remembered, 16 MiB of them; the conversations that were longest not asked for go first."""


class Memory:
    """Conversations that ended with a reply of ours, and their tokens."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._kept: OrderedDict[bytes, array[int]] = OrderedDict()
        self._size = 0

    def recall(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[list[int], int]:
        """The tokens of the longest beginning that is known, and how many messages that is."""
        for count, key in reversed(list(_keys(messages, tools))):
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key].tolist(), count
        return [], 0

    def keep(self, messages: Sequence[Message], tools: Sequence[ToolSpec], tokens: Sequence[int]) -> None:
        """Remember the tokens of a conversation whose last message is a reply of ours."""
        *_, (_, key) = _keys(messages, tools)
        self._size += len(tokens) - len(self._kept.pop(key, ()))
        self._kept[key] = array("I", tokens)
        while self._size > self._most:
            self._size -= len(self._kept.popitem(last=False)[1])


def _keys(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Iterator[tuple[int, bytes]]:
    """For each reply in a conversation: how many messages there are up to it, and a digest of them."""
    digest = hashlib.sha256(json.dumps([spec_to_wire(tool) for tool in tools]).encode())
    for count, message in enumerate(messages, 1):
        digest.update(b"\n" + json.dumps(to_wire(message), sort_keys=True).encode())
        if message.role == "assistant":
            yield count, digest.copy().digest()
