"""A server of the Tinker API through Thinking Machines' client library, which nothing else here imports.

The library asks a dead server again and again, for ever. So whoever waits here for an answer also looks at the server's
health, and gives up with a `RolloutError` when that is bad for `patience` seconds, or the answer takes longer than
`timeout`. Coroutines of the library run in a thread of their own: one can wait for them in an event loop, and outside.
"""

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import httpx2

from understudy.endpoint import key_in
from understudy.engines.tinker.config import KEY, TinkerConfig
from understudy.errors import ConfigError, RolloutError, installation, nearest

T = TypeVar("T")
POLL = 1.0  # seconds from one look at an answer that is waited for to the next
PULSE = 5.0  # seconds from one look at the server's health to the next, and for it to answer
HEALTH = "/api/v1/healthz"
_NO_KEY = "tml-none"  # the library wants one of this form; SkyRL's servers look at none


class Server:
    """A connection, opened by the first thing that is asked."""

    def __init__(self, config: TinkerConfig) -> None:
        self.config = config
        self._loop: asyncio.AbstractEventLoop | None = None
        self._service: Any = None
        self._looking = threading.Lock()
        self._looked = time.monotonic()
        self._missed: float | None = None  # since when it does not answer

    def __str__(self) -> str:
        return f"the Tinker server at {self.config.base_url}"

    def connect(self) -> str:
        """Open the connection; the name of the model that is to be trained. A `ConfigError` where there is none."""
        if problem := unreachable(self.config):
            raise ConfigError(f"{self} {problem}; start it, or set engine.tinker.base_url")
        try:
            import tinker
        except ModuleNotFoundError as e:
            raise ConfigError(f"engine.kind = 'tinker' needs {e.name}; {installation('tinker')}") from e
        logging.getLogger("tinker").setLevel(logging.ERROR)  # it warns of every archive that it asks for
        self._loop = _started()
        self._service = tinker.ServiceClient(base_url=self.config.base_url, api_key=_key(self.config))
        try:
            found = self.ask("what models it has", lambda service: service.get_server_capabilities_async())
        except RolloutError as e:
            raise ConfigError(str(e)) from e
        return _chosen(self.config.model, sorted(model.model_name for model in found.supported_models))

    def ask(self, what: str, call: Callable[[Any], Awaitable[T]]) -> T:
        """The answer to a call of the library's service, waited for here."""
        return self.wait(self.begin(call(self._service)), what)

    def begin(self, call: Awaitable[T]) -> "concurrent.futures.Future[T]":
        """A call of the library, under way in its thread."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(_awaited(call), self._loop)

    def wait(self, future: "concurrent.futures.Future[T]", what: str) -> T:
        """What comes of a call; a `RolloutError` where nothing will."""
        started = time.monotonic()
        try:
            while not future.done():
                self._look(what, started)
                concurrent.futures.wait([future], POLL)
            return self._outcome(future, what)
        finally:
            future.cancel()

    async def settled(self, future: "concurrent.futures.Future[T]", what: str) -> T:
        """The same, while other tasks go on."""
        started = time.monotonic()
        wrapped = asyncio.wrap_future(future)
        try:
            while not wrapped.done():
                await asyncio.to_thread(self._look, what, started)
                await asyncio.wait([wrapped], timeout=POLL)
            return self._outcome(future, what)
        finally:
            wrapped.cancel()
            if not wrapped.cancelled():
                wrapped.exception()  # else asyncio says that nobody has looked at it

    def download(self, url: str) -> bytes:
        """A file that the server has named."""
        try:
            answer = httpx2.get(url, timeout=self.config.timeout, follow_redirects=True)
        except httpx2.HTTPError as e:
            raise RolloutError(f"{self}: its adapter cannot be fetched ({type(e).__name__})", "engine") from e
        if answer.status_code != 200:
            raise RolloutError(f"{self}: its adapter cannot be fetched, status {answer.status_code}", "engine")
        return answer.content

    def close(self) -> None:
        """End the thread; what is under way is given up."""
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
        """Raise where it makes no sense to wait any longer."""
        now = time.monotonic()
        if now - started > self.config.timeout:
            seconds = f"{self.config.timeout:g} s (engine.tinker.timeout)"
            raise RolloutError(f"{self} gave no answer to {what} within {seconds}", "engine")
        if now - self._looked > PULSE and self._looking.acquire(blocking=False):
            try:
                since = self._since(started, now)
                self._missed = (now if since is None else since) if unreachable(self.config) else None
                self._looked = time.monotonic()
            finally:
                self._looking.release()
        missed = self._since(started, now)
        if missed is not None and now - missed > self.config.patience:
            raise RolloutError(f"{self} is gone: it has not answered for {now - missed:.0f} s", "engine")

    def _since(self, started: float, now: float) -> float | None:
        """Since when the server has not answered; what was seen long before this waiting began does not count."""
        missed = self._missed  # read once: whoever waits beside this looks as well
        return missed if self._looked > min(started, now - self.config.patience) else None


def unreachable(config: TinkerConfig) -> str:
    """What is wrong with the server's health; empty where it is good."""
    try:
        status = httpx2.get(config.base_url + HEALTH, timeout=PULSE).status_code
    except httpx2.HTTPError as e:
        return f"does not answer ({type(e).__name__})"
    return "" if status < 500 else f"answers {HEALTH} by status {status}"


def _key(config: TinkerConfig) -> str:
    key = key_in(KEY)
    if not key and config.server == "hosted":
        raise ConfigError(f"{config.base_url} wants a key: set the environment variable {KEY}")
    if key and not key.startswith("tml-"):
        raise ConfigError(f"the environment variable {KEY} holds no key of the Tinker API: they begin with tml-")
    return key or _NO_KEY


def _chosen(wanted: str, there: list[str]) -> str:
    """The model that a config names, or the only one that there is."""
    if not wanted and len(there) == 1:
        return there[0]
    if wanted not in there:
        raise ConfigError(f"engine.tinker.model: the server has no model {nearest(wanted, there)}")
    return wanted


def _started() -> asyncio.AbstractEventLoop:
    """An event loop that runs in a thread, which ends with the process, or when it is stopped."""
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
