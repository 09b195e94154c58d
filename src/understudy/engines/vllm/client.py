"""Client of a vLLM server over HTTP: replies, adapters, weights. Written for the routes of vLLM 0.32.

`/inference/v1/generate` takes and returns token ids. `/collective_rpc` reloads weights and `/update_weight_version`
labels them. Each reply carries the label of the weights that sampled it.
"""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx2

from understudy.clients.endpoint import HTTPPools, HTTPResponse, ResponseTooLargeError, send_request
from understudy.core.errors import RolloutError
from understudy.core.event_loop import LoopLocal
from understudy.engines.vllm.config import VllmConfig

SERVED_MODEL_NAME = "understudy"
"""Name of the served model. Adapters have their own names."""
INITIAL_WEIGHT_VERSION = "default"
"""vLLM's label for the weights that it started with."""
POLL_SECONDS = 0.5  # seconds between health checks while a server starts


class VllmUnavailable(Exception):
    """vLLM is dead or has other weights than expected. The request should be repeated."""


class VllmTimeout(VllmUnavailable):
    """vLLM takes too long to answer."""


@dataclass(frozen=True, slots=True)
class VllmCompletion:
    """A reply of vLLM, whose numbers nothing has validated.

    `weight_version` is its label of the weights, empty if they changed during the reply.
    """

    tokens: list[int]
    logprobs: list[float]
    weight_version: str


class VllmBackend(Protocol):
    """A vLLM instance. All methods but `start` and `stop` raise `VllmUnavailable` if it does not answer."""

    context_length: int
    """Maximum sequence length in tokens, known after `start`."""
    is_owned: bool
    """True if this object started vLLM from the engine's folder of weights."""

    async def start(self) -> None:
        """Start or restart vLLM and wait until it answers. Raise `VllmUnavailable` with the cause if it does not."""

    async def is_healthy(self) -> bool:
        """Return True if vLLM accepts requests."""

    async def generate(self, model: str, prompt: Sequence[int], params: Mapping[str, Any]) -> VllmCompletion:
        """Continue a prompt with the model or adapter called `model`. `params` are vLLM's SamplingParams."""

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Load a LoRA adapter."""

    async def unload_adapter(self, name: str) -> None:
        """Unload a LoRA adapter."""

    async def reload_weights(self, folder: Path, weight_version: str) -> None:
        """Replace all weights and reset the prefix cache."""

    def stop(self) -> None:
        """Stop what `start` started."""


class VllmHttpClient:
    """A `VllmBackend` for a server that someone else starts and restarts."""

    is_owned = False

    def __init__(self, config: VllmConfig, url: str, socket: Path | None = None) -> None:
        """`socket` is the Unix socket that the server listens on, or None if it listens on a port."""
        self.context_length = 0
        self._config, self._url, self._socket = config, url, socket
        self._connections = LoopLocal(lambda: _connections(self._url, self._socket))

    async def start(self) -> None:
        """Wait until the server answers."""
        deadline = time.monotonic() + self._config.start_timeout
        while not await self.is_healthy():
            self._look()
            if time.monotonic() > deadline:
                raise VllmUnavailable(f"{self} does not answer after {self._config.start_timeout:g} s")
            await asyncio.sleep(POLL_SECONDS)
        self.context_length = await self._context()

    async def is_healthy(self) -> bool:
        """Return True if `/health` answers with status 200."""
        try:
            return (await self._request("GET", "/health", None, within=30.0)).status == 200
        except VllmUnavailable:
            return False

    async def generate(self, model: str, prompt: Sequence[int], params: Mapping[str, Any]) -> VllmCompletion:
        """Continue a prompt."""
        body = {"model": model, "token_ids": list(prompt), "sampling_params": dict(params)}
        return _reply(await self._post("/inference/v1/generate", body, self._config.reply_timeout))

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Load a LoRA adapter."""
        await self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})

    async def unload_adapter(self, name: str) -> None:
        """Unload a LoRA adapter."""
        await self._post("/v1/unload_lora_adapter", {"lora_name": name})

    async def reload_weights(self, folder: Path, weight_version: str) -> None:
        """Replace all weights and reset the prefix cache."""
        await self._post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
        answer = await self._post("/reset_prefix_cache", None)
        if not isinstance(answer, dict) or answer.get("success") is not True:
            raise VllmUnavailable(f"{self} did not reset its prefix cache after new weights")
        await self._post("/update_weight_version", {"new_version": weight_version})

    def stop(self) -> None:
        """Do nothing: no process was started."""

    def __str__(self) -> str:
        return f"vLLM at {self._url}"

    def _look(self) -> None:
        """Raise `VllmUnavailable` if the server will not answer any more. Subclasses with a process check it."""

    async def _context(self) -> int:
        response = await self._request("GET", "/v1/models", None, within=60.0)
        try:
            length = json.loads(response.body)["data"][0]["max_model_len"]
        except (ValueError, LookupError, TypeError, RecursionError) as e:  # not vLLM, or vLLM with an API key
            raise VllmUnavailable(f"{self} gave an unexpected answer to /v1/models: {_said(response)}") from e
        if type(length) is not int or length < 1:
            raise VllmUnavailable(f"{self} gave an unexpected answer to /v1/models: max_model_len is {length!r:.40}")
        return length

    async def _post(self, path: str, body: Any, within: float | None = None) -> Any:
        """Send a request and return its JSON, or its text if it is not JSON."""
        try:
            response = await self._request("POST", path, body, within or self._config.start_timeout)
        except VllmTimeout:
            self.stop()
            raise
        if response.status == 404 or response.status >= 500:
            raise VllmUnavailable(f"{self} failed at {path}: {_said(response)}")
        if response.status != 200:
            raise RolloutError(f"{self} rejected {path}: {_said(response)}", "engine")
        if "json" not in response.headers.get("content-type", ""):
            return response.body.decode(errors="replace")
        try:
            return json.loads(response.body)
        except (ValueError, RecursionError) as e:  # cut off, not UTF-8 or too deep
            raise VllmUnavailable(f"{self} gave an answer to {path} that is not JSON: {_said(response)}") from e

    async def _request(self, method: str, path: str, body: Any, within: float) -> HTTPResponse:
        http = await self._connections.get().next_client()
        try:
            async with asyncio.timeout(within):
                return await send_request(http, method, path, body)
        except TimeoutError as e:
            raise VllmTimeout(f"{self} gave no answer to {path} within {within:g} s") from e
        except httpx2.RequestError as e:
            raise VllmUnavailable(f"{self} cannot be reached ({type(e).__name__})") from e
        except ResponseTooLargeError as e:
            raise VllmUnavailable(f"{self} at {path}: {e}") from e


def _connections(url: str, socket: Path | None) -> HTTPPools:
    limits = httpx2.Limits(max_connections=None)  # the server queues requests
    transport = httpx2.AsyncHTTPTransport(uds=str(socket) if socket else None, limits=limits)
    return HTTPPools(httpx2.AsyncClient(transport=transport, base_url=url, timeout=None))


def _reply(answer: Any) -> VllmCompletion:
    try:
        choice = answer["choices"][0]
        ended, tokens = choice["finish_reason"], choice["token_ids"]
        labels = {span["version"] for span in choice["weight_versions"]}
        logprobs = [position["logprob"] for position in choice["logprobs"]["content"]]
    except (LookupError, TypeError) as e:
        raise RolloutError(
            f"unexpected format of vLLM's reply (expected that of vLLM 0.32): {str(answer)[:200]}", "engine"
        ) from e
    if ended not in ("stop", "length"):
        raise VllmUnavailable(f"vLLM aborted a reply: finish_reason is {ended!r}")
    return VllmCompletion(tokens, logprobs, labels.pop() if len(labels) == 1 else "")


def _said(response: HTTPResponse) -> str:
    return f"status {response.status}: {response.excerpt()}"
