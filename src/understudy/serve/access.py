"""Access control: the API key, the Host header, and the origin of browser requests."""

import hmac
import json
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from understudy.serve.options import ServeConfig
from understudy.serve.requests import ApiError

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class AccessMiddleware:
    """ASGI middleware that refuses unauthorized requests.

    On loopback, the Host header must name this machine and the request must not come from a page of another origin.
    `/health` needs no key.
    """

    def __init__(self, inner: ASGIApp, config: ServeConfig, key: str) -> None:
        self._inner, self._key = inner, key.encode()
        self._hosts = {*_LOOPBACK, config.host} if config.is_loopback else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with an error."""
        headers = dict(scope["headers"])
        refusal = self._wrong_host(headers.get(b"host", b"").decode("latin-1"))
        if not refusal and scope["path"] != "/":  # links from other sites to the root are harmless
            refusal = self._wrong_site(headers.get(b"sec-fetch-site", b"none").decode("latin-1"))
        if not refusal and scope["path"] != "/health":
            refusal = self._wrong_key(headers.get(b"authorization", b""))
        await (error_response(refusal) if refusal else self._inner)(scope, receive, send)

    def _wrong_host(self, host: str) -> ApiError | None:
        name, _, port = host.rpartition(":")
        name = (name if port.isdigit() else host).strip("[]").lower()
        if self._hosts is None or name in self._hosts:
            return None
        allowed = ", ".join(sorted(self._hosts))
        return ApiError(f"the Host header names {name!r}; this server accepts {allowed}", code="wrong_host")

    def _wrong_site(self, site: str) -> ApiError | None:
        """Return an error for requests that a browser sends for a page of another origin.

        Other clients do not send the header.
        """
        if self._hosts is None or site in ("none", "same-origin"):
            return None
        return ApiError("requests from pages of another origin are refused", code="wrong_origin", status=403)

    def _wrong_key(self, authorization: bytes) -> ApiError | None:
        scheme, _, key = authorization.partition(b" ")
        if not self._key or (scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._key)):
            return None
        problem = "the API key is wrong" if authorization else "an API key is required"
        return ApiError(f"{problem}; send it as: Authorization: Bearer KEY", code="invalid_api_key", status=401)


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a JSON response in ASCII, so that a lone surrogate quoted from a request cannot break it."""
    return Response(json.dumps(value), status, headers, "application/json")


def error_response(refusal: ApiError) -> Response:
    """Return an error in the API's format."""
    headers: dict[str, str] = {}
    if refusal.status in (429, 503):
        headers["Retry-After"] = "1"
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return json_response(refusal.body, refusal.status, headers)
