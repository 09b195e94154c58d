"""ConversationCache: the tokens of conversations, looked up by their messages.

A client sends a conversation back as text. The cache finds the tokens that were sampled for it. So a conversation has
the same tokens as if it had been played in one process, and the sampler's prefix cache applies. A conversation is
identified by all its messages and tools up to a reply of this server, including call ids. If a client changed a
message, the tokens from that message on are encoded again.
"""

import hashlib
import json
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from understudy.core.messages import Message, ToolSpec, message_to_openai, tool_to_openai

MAX_TOKENS = 1 << 22
"""Largest number of tokens in the cache (16 MiB). The least recently used conversations are dropped first."""


class ConversationCache:
    """Tokens of conversations that end with a reply of this server."""

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._entries: OrderedDict[bytes, array[int]] = OrderedDict()
        self._size = 0

    def find_prefix(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[list[int], int]:
        """Return the tokens of the longest known prefix of the conversation, and its number of messages.

        Return [] and 0 if no prefix is known.
        """
        for count, key in reversed(list(_keys(messages, tools))):
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key].tolist(), count
        return [], 0

    def add(self, messages: Sequence[Message], tools: Sequence[ToolSpec], tokens: Sequence[int]) -> None:
        """Store the tokens of a conversation whose last message is a reply of this server."""
        *_, (_, key) = _keys(messages, tools)
        self._size += len(tokens) - len(self._entries.pop(key, ()))
        self._entries[key] = array("I", tokens)
        while self._size > self._max_tokens:
            self._size -= len(self._entries.popitem(last=False)[1])


def _keys(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Iterator[tuple[int, bytes]]:
    """Yield for each reply the number of messages up to it and a digest of them."""
    digest = hashlib.sha256(json.dumps([tool_to_openai(tool) for tool in tools]).encode())
    for count, message in enumerate(messages, 1):
        digest.update(b"\n" + json.dumps(message_to_openai(message), sort_keys=True).encode())
        if message.role == "assistant":
            yield count, digest.copy().digest()
