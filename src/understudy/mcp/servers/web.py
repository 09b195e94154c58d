"""Web: one account at a service on the network, asked for JSON, with patience and within its limits.

Whatever goes wrong is a `ToolError` that says what to do, for the model reads it. What may pass (429, 5xx, a lost
connection, silence) is tried again, as long as the service asks and no longer than `LONGEST_WAIT`. The key travels in a
header only: it stands in no address, text, log or cache.
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

from understudy.endpoint import key_in, plain_url, retry_after
from understudy.errors import ConfigError, ToolError

LONGEST_WAIT = 30.0
"""Seconds that one call waits for a limit to pass, whether the service's or our own."""
MOST_BYTES = 4_000_000
"""The longest answer that is read."""
MOST_KEPT = 512
"""Answers in the cache."""
ATTEMPTS = 3
_MINUTE = 60.0
_FIRST_WAIT = 0.5
"""Seconds before a second attempt, doubled before the third, where the service does not say."""
_WORDS = ("error", "Error Message", "message", "detail")
"""Where the services put their own words in an error."""

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Account:
    """A service, and what the environment says about it. NAME is the service's name in capitals."""

    service: str
    base_url: str
    """NAME_BASE_URL: where the service is, or a replica of it."""
    key_variable: str
    key: str = field(repr=False)
    timeout: float = 20.0
    """NAME_TIMEOUT: seconds that one attempt may take."""
    per_minute: float = 60.0
    """NAME_PER_MINUTE: requests in any minute."""
    cache: float = 60.0
    """NAME_CACHE: seconds that an answer is kept; 0 keeps none."""


def account(service: str, base_url: str, key_variable: str, per_minute: float) -> Account:
    """The account that the environment describes; without a key it is one clear `ConfigError`."""
    name = service.upper()
    url = plain_url(os.environ.get(f"{name}_BASE_URL") or base_url, f"{name}_BASE_URL")
    key = key_in(key_variable)
    if not key:
        raise ConfigError(f"{service} needs a key: set the environment variable {key_variable}")
    numbers = {"timeout": (20.0, 0.001), "per_minute": (per_minute, 1.0), "cache": (60.0, 0.0)}
    read = {knob: _number(f"{name}_{knob.upper()}", *rest) for knob, rest in numbers.items()}
    return Account(service, url, key_variable, key, **read)


def _number(variable: str, default: float, least: float) -> float:
    text = os.environ.get(variable, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = -1.0
    if not least <= value < 1e6:
        raise ConfigError(f"the environment variable {variable} is {text!r}; it has to be a number from {least:g} on")
    return value


class _Passing(Exception):
    """A failed attempt that may go better next time; `wait` is how long the service asks to wait."""

    def __init__(self, text: str, wait: float | None = None) -> None:
        super().__init__(text)
        self.wait = wait


class Web:
    """The connections of an account, its limit and its cache. One object serves all sessions of a server."""

    def __init__(self, account: Account, headers: Mapping[str, str] | None = None) -> None:
        """`headers` carry the key; `Authorization: Bearer` unless given."""
        self.account = account
        self._headers = headers or {"Authorization": f"Bearer {account.key}"}
        self._http: httpx2.AsyncClient | None = None
        self._sent: deque[float] = deque()
        self._kept: OrderedDict[str, tuple[float, Any]] = OrderedDict()

    async def get(self, path: str, **params: str | int) -> Any:
        """The JSON at a path, from the cache where it is fresh."""
        return await self._cached("GET", path, params=params)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON that a question gets, from the cache where it is fresh."""
        return await self._cached("POST", path, json=dict(body))

    async def act(self, path: str, body: Mapping[str, Any]) -> Any:
        """Post something that must not happen twice: never cached, tried again only where it was turned away."""
        self._kept.clear()  # what was read before may be different afterwards
        return await self._insist("POST", path, {"json": dict(body)}, twice=False)

    async def close(self) -> None:
        """Close the connections."""
        if self._http:
            await self._http.aclose()

    async def _cached(self, method: str, path: str, **content: Any) -> Any:
        key = json.dumps([method, path, content], sort_keys=True)
        kept = self._kept.get(key)
        if kept and kept[0] > time.monotonic():
            return kept[1]
        answer = await self._insist(method, path, content, twice=True)
        if self.account.cache:
            self._kept[key] = (time.monotonic() + self.account.cache, answer)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return answer

    async def _insist(self, method: str, path: str, content: Mapping[str, Any], twice: bool) -> Any:
        """Ask until there is an answer, or no more patience."""
        for attempt in range(ATTEMPTS):
            await self._turn()
            try:
                return await self._attempt(method, path, content)
            except _Passing as e:
                failure = e
            wait = _FIRST_WAIT * 2**attempt if failure.wait is None else failure.wait
            if attempt + 1 == ATTEMPTS or wait > LONGEST_WAIT or not (twice or failure.wait is not None):
                break
            await asyncio.sleep(wait)
        later = f"in {failure.wait:.0f} s" if failure.wait else "later"
        raise ToolError(f"{self.account.service}: {failure} (attempts: {attempt + 1}); try again {later}")

    async def _turn(self) -> None:
        """Wait until our own limit lets another request through."""
        while True:
            now = time.monotonic()
            while self._sent and self._sent[0] <= now - _MINUTE:
                self._sent.popleft()
            if len(self._sent) < self.account.per_minute:
                return self._sent.append(now)
            wait = self._sent[0] + _MINUTE - now
            if wait > LONGEST_WAIT:
                limit = f"{self.account.per_minute:g} requests a minute ({self.account.service.upper()}_PER_MINUTE)"
                raise ToolError(f"the limit of {limit} is used up; try again in {wait:.0f} s")
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
            raise _Passing(f"no answer within {self.account.timeout:g} s") from e
        except httpx2.RequestError as e:
            raise _Passing(f"no connection ({type(e).__name__})") from e
        return self._answer(response, body)

    async def _body(self, response: httpx2.Response) -> bytes:
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > MOST_BYTES:
                limit = f"more than {MOST_BYTES:,} bytes"
                raise ToolError(f"{self.account.service} answers with {limit}; ask for less, such as a lower limit")
        return bytes(body)

    def _answer(self, response: httpx2.Response, body: bytes) -> Any:
        status = response.status_code
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError) as e:
            if status == 200:
                raise _Passing("an answer that is not JSON") from e
            answer = None
        if status == 429:
            raise _Passing(f"too many requests{self._said(answer)}", _asked(response))
        if status >= 500 or status == 408:
            raise _Passing(f"it fails with status {status}{self._said(answer)}")
        if status != 200:
            raise self._refusal(status, answer)
        return answer

    def _refusal(self, status: int, answer: Any) -> ToolError:
        advice = {
            400: "check the arguments",
            401: f"check the key in {self.account.key_variable}",
            402: "the plan does not cover this; ask for something else",
            403: f"the key in {self.account.key_variable} does not allow this; ask for something else",
            404: "check the spelling, or search first",
            422: "check the arguments",
            432: "the plan's quota is used up; do without this service",
            433: "the spending limit is reached; do without this service",
        }
        known = advice.get(status, "this cannot be helped by trying again")
        return ToolError(f"{self.account.service} answers {status}{self._said(answer)}; {known}")

    def _said(self, answer: Any) -> str:
        """The service's own words, shortened, without the key if they hold it."""
        words = answer
        while isinstance(words, dict):
            words = next((words[name] for name in _WORDS if words.get(name)), "")
        text = " ".join(str(words or "").split()).replace(self.account.key, "…")
        return f": {text[:200]}" if text else ""


def _asked(response: httpx2.Response) -> float:
    asked = retry_after(response.headers.get("Retry-After", ""))
    return 1.0 if asked is None else asked


def read(model: type[M], answer: Any, service: str) -> M:
    """An answer as a record. One that is not as documented is a `ToolError` that names the first wrong field."""
    try:
        return model.model_validate(answer)
    except ValidationError as e:
        first = e.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the answer"
        raise ToolError(f"{service} answers not as documented: {where}: {first['msg']}; do without this call") from e
