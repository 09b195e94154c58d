"""Who may ask: who has the key and names this host. Nothing is answered to another site's page in a browser."""

import hmac
import json
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from understudy.serve.options import ServeConfig
from understudy.serve.wire import Refusal

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Gate:
    """Passes on what may be asked. On loopback only requests to loopback by name are; health is told without a key."""

    def __init__(self, inner: ASGIApp, config: ServeConfig, key: str) -> None:
        self._inner, self._key = inner, key.encode()
        self._hosts = {*_LOOPBACK, config.host} if config.local else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        headers = dict(scope["headers"])
        refusal = self._wrong_host(headers.get(b"host", b"").decode("latin-1"))
        if not refusal and scope["path"] != "/":  # which links may lead to
            refusal = self._wrong_site(headers.get(b"sec-fetch-site", b"none").decode("latin-1"))
        if not refusal and scope["path"] != "/health":
            refusal = self._wrong_key(headers.get(b"authorization", b""))
        await (error_response(refusal) if refusal else self._inner)(scope, receive, send)

    def _wrong_host(self, host: str) -> Refusal | None:
        name, _, port = host.rpartition(":")
        name = (name if port.isdigit() else host).strip("[]").lower()
        if self._hosts is None or name in self._hosts:
            return None
        return Refusal(f"this server goes by {', '.join(sorted(self._hosts))}, not by {name!r}", code="wrong_host")

    def _wrong_site(self, site: str) -> Refusal | None:
        """Refuse what a browser sends for a page of another origin; clients that are no browser say nothing of it."""
        if self._hosts is None or site in ("none", "same-origin"):
            return None
        return Refusal("a page of another origin has nothing to ask here", code="wrong_origin", status=403)

    def _wrong_key(self, authorization: bytes) -> Refusal | None:
        if not self._key or hmac.compare_digest(authorization, b"Bearer " + self._key):
            return None
        wrong = "the key is not the right one" if authorization else "a key is needed"
        return Refusal(f"{wrong}; send it as: Authorization: Bearer KEY", code="invalid_api_key", status=401)


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON in ASCII: half a surrogate pair in a request cannot break the answer that quotes it."""
    return Response(json.dumps(value), status, headers, "application/json")


def error_response(refusal: Refusal) -> Response:
    """A refusal in the API's shape."""
    again = {"Retry-After": "1"} if refusal.status in (429, 503) else {}
    challenge = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else {}
    return json_response(refusal.body, refusal.status, again | challenge)
