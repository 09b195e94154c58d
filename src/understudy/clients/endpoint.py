"""Helpers of HTTP clients: connection pools, bounded responses, URL and key validation, the Retry-After header."""

import email.utils
import itertools
import os
import re
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2

from understudy.core.errors import ConfigError
from understudy.core.secrets import mask_secrets

MAX_BODY_BYTES = 64 << 20
"""Size limit of a response, after decompression. The largest replies of models have a few MiB."""
_LONGEST_WAIT = 366 * 86400.0
"""Seconds. A longer wait in a Retry-After header is a mistake of the server."""
_ADDRESS = r"https?://(?:[\w.-]+|\[[\da-fA-F:]+\])(?::\d{1,5})?(?:/[\w./~%+-]*)?"


class ResponseTooLargeError(Exception):
    """The body of a response has more than `MAX_BODY_BYTES` bytes."""


@dataclass(frozen=True, slots=True)
class HTTPResponse:
    """The response to a request, read whole."""

    status: int
    headers: Mapping[str, str]
    """Their names ignore case."""
    body: bytes

    def excerpt(self, secret: str = "") -> str:
        """Return the first 300 characters of the body in one line, without the secret and others.

        The body is read as UTF-8, whatever encoding the server names.
        """
        text = " ".join(self.body[:4096].decode(errors="replace").split())
        return mask_secrets(text, secret)[:300]


async def send_request(http: httpx2.AsyncClient, method: str, url: str, body: Any) -> HTTPResponse:
    """Send a request with a JSON body and return the response.

    Raise ResponseTooLargeError if its body is too large, and httpx2.RequestError if the connection fails.
    """
    async with http.stream(method, url, json=body) as response:
        content = bytearray()
        async for chunk in response.aiter_bytes():
            content += chunk
            if len(content) > MAX_BODY_BYTES:
                raise ResponseTooLargeError(f"the response has more than {MAX_BODY_BYTES:,} bytes")
        return HTTPResponse(response.status_code, response.headers, bytes(content))


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
    return require_valid_port(url, name).rstrip("/")


def require_valid_port(url: str, name: str) -> str:
    """Return a URL. Raise ConfigError if its port is above 65535."""
    try:
        urlsplit(url).port  # noqa: B018  # reading it validates it
    except ValueError as e:
        raise ConfigError(f"{name}: {str(e)[0].lower()}{str(e)[1:]}") from e
    return url


def validate_proxies() -> None:
    """Raise ConfigError if httpx cannot use the proxies that environment variables name."""
    try:
        httpx2.Client(verify=False).close()
    except (ValueError, ImportError, httpx2.InvalidURL) as e:
        reason = mask_secrets(str(e))
        raise ConfigError(f"HTTP_PROXY, HTTPS_PROXY or ALL_PROXY cannot be used: {reason}; correct or unset it") from e


def read_api_key(variable: str) -> str:
    """Return the key in an environment variable, or "" if it is not set.

    Raise ConfigError if the value is not printable ASCII.
    """
    key = os.environ.get(variable, "").strip()
    if key and not (key.isascii() and key.isprintable()):
        raise ConfigError(f"the environment variable {variable} has no valid key: a key is printable ASCII")
    return key


def parse_retry_after(header: str) -> float | None:
    """Return the seconds to wait that a Retry-After header asks for, as a number or a date.

    Return None if it is neither, or if the wait is longer than a year.
    """
    text = header.strip()
    if re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII):
        wait = float(text)
    else:
        try:
            wait = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, OverflowError, OSError, TypeError, IndexError):  # what the parser raises for other texts
            return None
    return max(0.0, wait) if wait <= _LONGEST_WAIT else None
