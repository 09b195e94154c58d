"""What every client of an HTTP endpoint needs: its address, its key, its connections, and how long it asks to wait."""

import asyncio
import email.utils
import itertools
import os
import re
import time
from collections.abc import AsyncGenerator

import httpx2

from understudy.errors import ConfigError

_ADDRESS = r"https?://(?:[\w.-]+|\[[\da-fA-F:]+\])(?::\d{1,5})?(?:/[\w./~%+-]*)?"


class Connections:
    """A client's connections in one event loop, closed when it ends. Of several pools each request takes the next."""

    def __init__(self, *pools: httpx2.AsyncClient) -> None:
        self.loop = asyncio.get_running_loop()
        self._pools, self._next = pools, itertools.cycle(pools)
        self.closing = self._until_the_loop_ends()

    @property
    def http(self) -> httpx2.AsyncClient:
        """The pool for one request."""
        return next(self._next)

    async def _until_the_loop_ends(self) -> AsyncGenerator[None, None]:
        # An event loop that shuts down (asyncio.run does) ends every asynchronous generator that has begun.
        try:
            yield
        finally:
            for pool in self._pools:
                await pool.aclose()


def plain_url(url: str, name: str) -> str:
    """The address without a slash at its end. It is never quoted: one that is not plain may hold a secret."""
    if not re.fullmatch(_ADDRESS, url, re.ASCII):
        raise ConfigError(f"{name} has to be like https://host:port/v1, without user, password, ? and #")
    return url.rstrip("/")


def key_in(variable: str) -> str:
    """The key that an environment variable holds, empty where it is not set."""
    key = os.environ.get(variable, "").strip()
    if key and not (key.isascii() and key.isprintable()):
        raise ConfigError(f"the environment variable {variable} holds no key: keys are printable ASCII")
    return key


def retry_after(header: str) -> float | None:
    """Seconds to wait that a Retry-After header says, as a number or as a date; None where it says neither."""
    text = header.strip()
    if re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII):
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None
