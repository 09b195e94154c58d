"""A client of a Tinker API server. It is the only module that uses Thinking Machines' client library for connections.

The library retries a dead server forever. So every wait here also checks the server's health. It raises RolloutError if
the server is unhealthy for `outage_timeout` seconds or an answer takes longer than `timeout`. The library's coroutines
run in their own thread, so callers with and without an event loop can wait for them.
"""

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import httpx2

from understudy.clients.endpoint import read_api_key, validate_proxies
from understudy.core.errors import ConfigError, RolloutError, did_you_mean, install_hint
from understudy.engines.tinker.config import API_KEY_VARIABLE, TinkerEngineConfig

T = TypeVar("T")
POLL_SECONDS = 1.0  # seconds between checks for an answer
HEALTH_INTERVAL = 5.0  # seconds between health checks, and timeout of one
HEALTH_PATH = "/api/v1/healthz"
_NO_KEY = "tml-none"  # the library requires this form; SkyRL's servers ignore the key


class TinkerClient:
    """A connection, opened by `connect`."""

    def __init__(self, config: TinkerEngineConfig) -> None:
        self.config = config
        self._loop: asyncio.AbstractEventLoop | None = None
        self._service: Any = None
        self._check_lock = threading.Lock()
        self._last_check = time.monotonic()
        self._down_since: float | None = None  # time of the first failed health check in a row

    def __str__(self) -> str:
        return f"the Tinker server at {self.config.base_url}"

    def connect(self) -> str:
        """Open the connection and return the name of the model to train. Raise ConfigError if that is not possible."""
        if problem := health_problem(self.config):
            raise ConfigError(f"{self} {problem}; start it or correct engine.base_url")
        try:
            import tinker
        except ModuleNotFoundError as e:
            raise ConfigError(f"engine.kind = 'tinker' needs {e.name}; {install_hint('tinker')}") from e
        logging.getLogger("tinker").setLevel(logging.ERROR)  # it logs a warning for every archive request
        self._loop = _started()
        self._service = tinker.ServiceClient(base_url=self.config.base_url, api_key=_key(self.config))
        try:
            capabilities = self.call("the list of models", lambda service: service.get_server_capabilities_async())
        except RolloutError as e:
            raise ConfigError(str(e)) from e
        return _chosen(self.config.model, sorted(model.model_name for model in capabilities.supported_models))

    def call(self, description: str, call: Callable[[Any], Awaitable[T]]) -> T:
        """Call the library's service and return the answer. This blocks."""
        return self.wait(self.submit(call(self._service)), description)

    def submit(self, call: Awaitable[T]) -> "concurrent.futures.Future[T]":
        """Start a call of the library in its thread."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(_awaited(call), self._loop)

    def wait(self, future: "concurrent.futures.Future[T]", description: str) -> T:
        """Block until a call has finished and return its result. Raise RolloutError if it fails or the server is
        gone."""
        started = time.monotonic()
        try:
            while not future.done():
                self._look(description, started)
                concurrent.futures.wait([future], POLL_SECONDS)
            return self._outcome(future, description)
        finally:
            future.cancel()

    async def wait_async(self, future: "concurrent.futures.Future[T]", description: str) -> T:
        """Wait like `wait` without blocking the event loop."""
        started = time.monotonic()
        wrapped = asyncio.wrap_future(future)
        try:
            while not wrapped.done():
                await asyncio.to_thread(self._look, description, started)
                await asyncio.wait([wrapped], timeout=POLL_SECONDS)
            return self._outcome(future, description)
        finally:
            wrapped.cancel()
            if not wrapped.cancelled():
                wrapped.exception()  # retrieve it, or asyncio logs an error

    def download(self, url: str) -> bytes:
        """Return the content of a URL that the server gave."""
        try:
            answer = httpx2.get(url, timeout=self.config.timeout, follow_redirects=True)
        except httpx2.HTTPError as e:
            raise RolloutError(f"{self}: the download of the adapters failed ({type(e).__name__})", "engine") from e
        if answer.status_code != 200:
            raise RolloutError(
                f"{self}: the download of the adapters failed with status {answer.status_code}", "engine"
            )
        return answer.content

    def close(self) -> None:
        """Stop the thread. Calls in progress are abandoned."""
        loop, self._loop, self._service = self._loop, None, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    def _outcome(self, future: "concurrent.futures.Future[T]", what: str) -> T:
        import tinker

        try:
            return future.result()
        except (tinker.TinkerError, ValueError, TimeoutError) as e:
            reason = " ".join(str(e).split())[:400] or type(e).__name__
            raise RolloutError(f"{self} failed at {what}: {reason}", "engine") from e

    def _look(self, what: str, started: float) -> None:
        """Raise RolloutError if the answer takes longer than `timeout` or the server has not answered for
        `outage_timeout` seconds."""
        now = time.monotonic()
        if now - started > self.config.timeout:
            seconds = f"{self.config.timeout:g} s (engine.timeout)"
            raise RolloutError(f"{self} gave no answer to {what} within {seconds}", "engine")
        if now - self._last_check > HEALTH_INTERVAL and self._check_lock.acquire(blocking=False):
            try:
                since = self._since(started, now)
                self._down_since = (now if since is None else since) if health_problem(self.config) else None
                self._last_check = time.monotonic()
            finally:
                self._check_lock.release()
        missed = self._since(started, now)
        if missed is not None and now - missed > self.config.outage_timeout:
            raise RolloutError(f"{self} has not answered for {now - missed:.0f} s (engine.outage_timeout)", "engine")

    def _since(self, started: float, now: float) -> float | None:
        """Return the time since which the server has not answered, or None.

        The result of a health check is ignored if the check is from before `started` and older than `outage_timeout`.
        """
        missed = self._down_since  # read once: other threads change it
        return missed if self._last_check > min(started, now - self.config.outage_timeout) else None


def health_problem(config: TinkerEngineConfig) -> str:
    """Return what is wrong with the server's health, or an empty string."""
    validate_proxies()
    try:
        with httpx2.stream("GET", config.base_url + HEALTH_PATH, timeout=HEALTH_INTERVAL) as response:
            status = response.status_code  # the body is not read
    except httpx2.HTTPError as e:
        return f"does not answer ({type(e).__name__})"
    return "" if status < 500 else f"answers {HEALTH_PATH} with status {status}"


def _key(config: TinkerEngineConfig) -> str:
    key = read_api_key(API_KEY_VARIABLE)
    if not key and config.server_kind == "hosted":
        raise ConfigError(f"{config.base_url} requires an API key; set the environment variable {API_KEY_VARIABLE}")
    if key and not key.startswith("tml-"):
        raise ConfigError(
            f"the environment variable {API_KEY_VARIABLE} holds no key of the Tinker API; its keys start with tml-"
        )
    return key or _NO_KEY


def _chosen(wanted: str, there: list[str]) -> str:
    """Return the model that the config names, or the only one that the server has."""
    if not wanted and len(there) == 1:
        return there[0]
    if wanted not in there:
        raise ConfigError(f"engine.model: the server has no model {did_you_mean(wanted, there)}")
    return wanted


def _started() -> asyncio.AbstractEventLoop:
    """Return an event loop that runs in a daemon thread until it is stopped."""
    loop = asyncio.new_event_loop()

    def run() -> None:
        try:
            loop.run_forever()
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()

    threading.Thread(target=run, name="tinker", daemon=True).start()
    return loop


async def _awaited(call: Awaitable[T]) -> T:
    return await call
