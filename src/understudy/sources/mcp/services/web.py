"""JSON client for a web service, with retries, a rate limit and a cache.

The model reads the errors of its calls, so every failure is a `ToolError` that says what to do. Transient failures
(statuses 408, 429 and 5xx, a lost connection, a timeout, a response that is not JSON) are retried, up to
`MAX_ATTEMPTS` attempts. A wait longer than `MAX_WAIT` is an error instead. The API key is sent only in a header. It is
in no URL, error, log or cache.
"""

import asyncio
import json
import os
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from understudy.clients.endpoint import parse_retry_after, read_api_key, validate_url
from understudy.core.errors import ConfigError, ToolError

MAX_WAIT = 30.0
"""Maximum seconds of one wait before a retry, or for the client's own rate limit."""
MAX_BYTES = 4_000_000
"""Maximum size of a response body."""
MAX_CACHED = 512
"""Maximum number of cached responses."""
MAX_ATTEMPTS = 3
_MINUTE = 60.0
_FIRST_WAIT = 0.5
"""Seconds before the second attempt if the service gives no Retry-After. They double before the third."""
_WORDS = ("error", "Error Message", "message", "detail")
"""Fields of an error response that hold the service's message."""

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class ServiceAccount:
    """A service's address, key and limits. Environment variables set them; NAME is the service's name in capitals."""

    service: str
    base_url: str
    """NAME_BASE_URL: the address of the service, or of a replica."""
    api_key_var: str
    key: str = field(repr=False)
    timeout: float = 20.0
    """NAME_TIMEOUT: seconds that one attempt may take."""
    per_minute: float = 60.0
    """NAME_PER_MINUTE: the maximum number of requests a minute."""
    cache_seconds: float = 60.0
    """NAME_CACHE: seconds that a response is cached; 0 turns the cache off."""


def account_from_env(service: str, base_url: str, api_key_var: str, per_minute: float) -> ServiceAccount:
    """Return the account from environment variables. Raise `ConfigError` for a missing key or an invalid value."""
    name = service.upper()
    url = validate_url(os.environ.get(f"{name}_BASE_URL") or base_url, f"{name}_BASE_URL")
    key = read_api_key(api_key_var)
    if not key:
        raise ConfigError(f"{service} needs a key: set the environment variable {api_key_var}")
    numbers = {"timeout": (20.0, 0.001), "per_minute": (per_minute, 1.0), "cache": (60.0, 0.0)}
    read = {knob: _number(f"{name}_{knob.upper()}", *rest) for knob, rest in numbers.items()}
    return ServiceAccount(
        service, url, api_key_var, key, read["timeout"], read["per_minute"], cache_seconds=read["cache"]
    )


def _number(variable: str, default: float, least: float) -> float:
    text = os.environ.get(variable, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = -1.0
    if not least <= value < 1e6:
        raise ConfigError(
            f"the environment variable {variable} is {text!r}; set it to a number from {least:g} to below 1000000"
        )
    return value


class _ServiceTransientError(Exception):
    """Transient failure of one attempt. `wait` is the seconds that the service asks to wait, or None."""

    def __init__(self, text: str, wait: float | None = None) -> None:
        super().__init__(text)
        self.wait = wait


class APIClient:
    """HTTP client of one account, with its rate limit and its cache. All sessions of a server share one client."""

    def __init__(self, account: ServiceAccount, headers: Mapping[str, str] | None = None) -> None:
        """Set the headers that carry the key. The default is `Authorization: Bearer KEY`."""
        self.account = account
        self._headers = headers or {"Authorization": f"Bearer {account.key}"}
        self._http: httpx2.AsyncClient | None = None
        self._sent: deque[float] = deque()
        self._cache: OrderedDict[str, tuple[float, Any]] = OrderedDict()

    async def get(self, path: str, **params: str | int) -> Any:
        """Return the JSON response to a GET request. It may come from the cache."""
        return await self._cached("GET", path, params=params)

    async def post_query(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the JSON response to a POST request that changes nothing. It may come from the cache."""
        return await self._cached("POST", path, json=dict(body))

    async def post_write(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the JSON response to a POST request that changes something, and clear the cache.

        The request is retried only after status 429, which means that the service did not carry it out.
        """
        self._cache.clear()  # the request may change what was cached
        return await self._insist("POST", path, {"json": dict(body)}, twice=False)

    async def close(self) -> None:
        """Close the connections."""
        if self._http:
            await self._http.aclose()

    async def _cached(self, method: str, path: str, **content: Any) -> Any:
        key = json.dumps([method, path, content], sort_keys=True)
        cached = self._cache.get(key)
        if cached and cached[0] > time.monotonic():
            return cached[1]
        answer = await self._insist(method, path, content, twice=True)
        if self.account.cache_seconds:
            self._cache[key] = (time.monotonic() + self.account.cache_seconds, answer)
            while len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        return answer

    async def _insist(self, method: str, path: str, content: Mapping[str, Any], twice: bool) -> Any:
        """Send a request until it succeeds or must not be retried. With `twice=False`, retry only after status 429."""
        for attempt in range(MAX_ATTEMPTS):
            await self._turn()
            try:
                return await self._attempt(method, path, content)
            except _ServiceTransientError as e:
                failure = e
            wait = _FIRST_WAIT * 2**attempt if failure.wait is None else failure.wait
            if attempt + 1 == MAX_ATTEMPTS or wait > MAX_WAIT or not (twice or failure.wait is not None):
                break
            await asyncio.sleep(wait)
        later = f"in {failure.wait:.0f} s" if failure.wait else "later"
        raise ToolError(f"{self.account.service}: {failure} (attempts: {attempt + 1}); try again {later}")

    async def _turn(self) -> None:
        """Wait until the client's own rate limit permits a request."""
        while True:
            now = time.monotonic()
            while self._sent and self._sent[0] <= now - _MINUTE:
                self._sent.popleft()
            if len(self._sent) < self.account.per_minute:
                return self._sent.append(now)
            wait = self._sent[0] + _MINUTE - now
            if wait > MAX_WAIT:
                name = self.account.service
                limit = f"{self.account.per_minute:g} requests a minute ({name.upper()}_PER_MINUTE)"
                raise ToolError(f"{name}: the limit of {limit} is reached; try again in {wait:.0f} s")
            await asyncio.sleep(wait)

    async def _attempt(self, method: str, path: str, content: Mapping[str, Any]) -> Any:
        if self._http is None:
            self._http = httpx2.AsyncClient(headers=self._headers, timeout=None)
        try:
            async with (
                asyncio.timeout(self.account.timeout),
                self._http.stream(method, f"{self.account.base_url}/{path}", **content) as response,
            ):
                body = await self._body(response)
        except TimeoutError as e:
            raise _ServiceTransientError(f"no response within {self.account.timeout:g} s") from e
        except httpx2.RequestError as e:
            raise _ServiceTransientError(f"no connection ({type(e).__name__})") from e
        return self._answer(response, body)

    async def _body(self, response: httpx2.Response) -> bytes:
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > MAX_BYTES:
                size = f"the response has more than {MAX_BYTES:,} bytes"
                raise ToolError(f"{self.account.service}: {size}; request less, for example with a lower limit")
        return bytes(body)

    def _answer(self, response: httpx2.Response, body: bytes) -> Any:
        status = response.status_code
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError) as e:
            if status == 200:
                raise _ServiceTransientError("the response is not JSON") from e
            answer = None
        if status == 429:
            raise _ServiceTransientError(f"too many requests{self._said(answer)}", _asked(response))
        if status >= 500 or status == 408:
            raise _ServiceTransientError(f"status {status}{self._said(answer)}")
        if status != 200:
            raise self._refusal(status, answer)
        return answer

    def _refusal(self, status: int, answer: Any) -> ToolError:
        advice = {
            400: "check the arguments",
            401: f"check the key in {self.account.api_key_var}",
            402: "the plan does not include this; request something else",
            403: f"the key in {self.account.api_key_var} does not permit this; request something else",
            404: "check the spelling, or search first",
            422: "check the arguments",
            432: "the plan's quota is used up; continue without this service",
            433: "the spending limit is reached; continue without this service",
        }
        known = advice.get(status, "do not retry this call")
        return ToolError(f"{self.account.service}: status {status}{self._said(answer)}; {known}")

    def _said(self, answer: Any) -> str:
        """Return ": " and the service's message, without the key and at most 200 characters long, or ""."""
        words = answer
        while isinstance(words, dict):
            words = next((words[name] for name in _WORDS if words.get(name)), "")
        text = " ".join(str(words or "").split()).replace(self.account.key, "…")
        return f": {text[:200]}" if text else ""


def _asked(response: httpx2.Response) -> float:
    asked = parse_retry_after(response.headers.get("Retry-After", ""))
    return 1.0 if asked is None else asked


def validate_answer(model: type[M], answer: Any, service: str) -> M:
    """Return a response as a record. Raise `ToolError` with the first invalid field."""
    try:
        return model.model_validate(answer)
    except ValidationError as e:
        first = e.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise ToolError(f"{service}: invalid response: {where}: {first['msg']}; continue without this call") from e
