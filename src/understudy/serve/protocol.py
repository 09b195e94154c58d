"""The HTTP protocol of the servers: uvicorn's, with a time limit on receiving a request.

uvicorn limits only how long a connection stays open after a response. A client that sends half of a request would keep
its connection for ever.
"""

import asyncio
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""Seconds from the start of a connection, or the first byte of a later request, to the end of the request's headers."""
BODY_SECONDS = 60.0
"""Seconds from the end of the headers to the end of the body."""


class TimeLimitedProtocol(H11Protocol):
    """Closes a connection whose request does not arrive in time. A request that has arrived may take any time."""

    _timer: asyncio.TimerHandle | None = None
    _timed: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit of the headers."""
        super().connection_made(transport)
        self._limit_time()

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request."""
        super().data_received(data)
        self._limit_time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time limit."""
        self._stop_timer()
        super().connection_lost(exc)

    def _limit_time(self) -> None:
        seconds = {h11.IDLE: HEAD_SECONDS, h11.SEND_BODY: BODY_SECONDS}
        state = self.conn.their_state
        if state is self._timed:
            return
        self._stop_timer()
        if state in seconds:
            self._timed, self._timer = state, self.loop.call_later(seconds[state], self._close)

    def _close(self) -> None:
        cast(Any, self.transport).close()

    def _stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self._timed = None
