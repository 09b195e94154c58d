"""Helpers of HTTP clients: connection pools, URL and key validation, and the Retry-After header."""

import email.utils
import itertools
import os
import re
import time
from collections.abc import AsyncGenerator

import httpx2

from understudy.core.errors import ConfigError

_ADDRESS = r"https?://(?:[\w.-]+|\[[\da-fA-F:]+\])(?::\d{1,5})?(?:/[\w./~%+-]*)?"


class HTTPPools:
    """The connection pools of a client in one event loop.

    Requests use them in turn; they are closed when the loop ends.
    """

    def __init__(self, *pools: httpx2.AsyncClient) -> None:
        self._pools, self._next = pools, itertools.cycle(pools)
        self._cleanup: AsyncGenerator[None, None] | None = None

    async def next_client(self) -> httpx2.AsyncClient:
        """Return the pool for the next request."""
        if self._cleanup is None:
            self._cleanup = self._close_at_loop_end()
            await anext(self._cleanup)
        return next(self._next)

    async def _close_at_loop_end(self) -> AsyncGenerator[None, None]:
        # A loop that shuts down, as asyncio.run does, finalizes every asynchronous generator that has started.
        try:
            yield
        finally:
            for pool in self._pools:
                await pool.aclose()


def validate_url(url: str, name: str) -> str:
    """Return the URL without a trailing slash. Raise ConfigError if it is not a plain URL.

    The error does not quote the URL, which may contain a secret.
    """
    if not re.fullmatch(_ADDRESS, url, re.ASCII):
        raise ConfigError(f"{name} must look like https://host:port/v1, without user, password, ? and #")
    return url.rstrip("/")


def read_api_key(variable: str) -> str:
    """Return the key in an environment variable, or "" if it is not set.

    Raise ConfigError if the value is not printable ASCII.
    """
    key = os.environ.get(variable, "").strip()
    if key and not (key.isascii() and key.isprintable()):
        raise ConfigError(f"the environment variable {variable} has no valid key: a key is printable ASCII")
    return key


def parse_retry_after(header: str) -> float | None:
    """Return the seconds to wait that a Retry-After header asks for, as a number or a date; None if it is neither."""
    text = header.strip()
    if re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII):
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None
