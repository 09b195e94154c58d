"""A vLLM server over HTTP: replies, adapters, weights. Read from vLLM 0.32's own routes.

Replies come from `/inference/v1/generate`, which takes and gives token ids. Weights are reloaded by `/collective_rpc`,
and labelled by `/update_weight_version`: each reply says which label the weights had that it was sampled from.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx2

from understudy.endpoint import Connections
from understudy.engines.vllm.config import VllmConfig
from understudy.errors import RolloutError

MODEL = "understudy"
"""What a server calls the model whose weights are reloaded; adapters have names of their own."""
UNTOUCHED = "default"
"""vLLM's label for the weights that it started with."""
POLL = 0.5  # seconds between two looks at a server that starts


class Lost(Exception):
    """vLLM is dead, or has other weights than it was given: what was asked is to be asked again."""


class Silent(Lost):
    """vLLM takes too long to answer."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What vLLM sampled. `weight_version` is its label of the weights; empty where they changed on the way."""

    tokens: list[int]
    logprobs: list[float]
    weight_version: str


class Vllm(Protocol):
    """One vLLM, wherever it runs. Everything but `start` and `stop` raises `Lost` where it does not answer."""

    context: int
    """Longest sequence; known once `start` has returned."""
    owned: bool
    """Whether it was started here, from the engine's own folder of weights."""

    async def start(self) -> None:
        """Start it, anew if it runs, and wait until it answers; `Lost` says why it does not."""

    async def healthy(self) -> bool:
        """Whether it can be asked."""

    async def generate(self, model: str, prompt: Sequence[int], params: Mapping[str, Any]) -> Reply:
        """Continue a prompt by the weights or the adapter called `model`; `params` are vLLM's SamplingParams."""

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Take up a LoRA adapter."""

    async def unload_adapter(self, name: str) -> None:
        """Forget a LoRA adapter."""

    async def reload(self, folder: Path, label: str) -> None:
        """Replace all weights, and forget what was computed from the old ones."""

    def stop(self) -> None:
        """End what was started here."""


class Endpoint:
    """See `Vllm`: a server that somebody else starts, and starts again."""

    owned = False

    def __init__(self, config: VllmConfig, url: str, socket: Path | None = None) -> None:
        """`socket` is the Unix socket that the server listens on, where it does not on a port."""
        self.context = 0
        self._config, self._url, self._socket = config, url, socket
        self._connections: Connections | None = None

    async def start(self) -> None:
        """Wait until the server answers."""
        deadline = time.monotonic() + self._config.start_timeout
        while not await self.healthy():
            self._look()
            if time.monotonic() > deadline:
                raise Lost(f"{self} does not answer after {self._config.start_timeout:g} s")
            await asyncio.sleep(POLL)
        self.context = await self._context()

    async def healthy(self) -> bool:
        """Whether `/health` says so."""
        try:
            return (await self._request("GET", "/health", None, within=30.0)).status_code == 200
        except Lost:
            return False

    async def generate(self, model: str, prompt: Sequence[int], params: Mapping[str, Any]) -> Reply:
        """Continue a prompt."""
        body = {"model": model, "token_ids": list(prompt), "sampling_params": dict(params)}
        return _reply(await self._post("/inference/v1/generate", body, self._config.reply_timeout))

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Take up a LoRA adapter."""
        await self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})

    async def unload_adapter(self, name: str) -> None:
        """Forget a LoRA adapter."""
        await self._post("/v1/unload_lora_adapter", {"lora_name": name})

    async def reload(self, folder: Path, label: str) -> None:
        """Replace all weights, and forget the prefixes that were computed from the old ones."""
        await self._post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
        if not (await self._post("/reset_prefix_cache", None))["success"]:
            raise Lost(f"{self} keeps prefixes that older weights computed")
        await self._post("/update_weight_version", {"new_version": label})

    def stop(self) -> None:
        """Nothing was started here."""

    def __str__(self) -> str:
        return f"vLLM at {self._url}"

    def _look(self) -> None:
        """Raise `Lost` where waiting is in vain."""

    async def _context(self) -> int:
        response = await self._request("GET", "/v1/models", None, within=60.0)
        try:
            return int(response.json()["data"][0]["max_model_len"])
        except (ValueError, LookupError, TypeError) as e:  # something else is there, or wants a key
            raise Lost(f"{self} answers /v1/models as no vLLM does, by {_said(response)}") from e

    async def _post(self, path: str, body: Any, within: float | None = None) -> Any:
        """The answer to a request; where it is no JSON, its text."""
        try:
            response = await self._request("POST", path, body, within or self._config.start_timeout)
        except Silent:
            self.stop()
            raise
        if response.status_code == 404 or response.status_code >= 500:
            raise Lost(f"{self} answers {path} by {_said(response)}")
        if response.status_code != 200:
            raise RolloutError(f"{self} refuses {path}: {_said(response)}", "engine")
        return response.json() if "json" in response.headers.get("content-type", "") else response.text

    async def _request(self, method: str, path: str, body: Any, within: float) -> httpx2.Response:
        http = await self._connected()
        try:
            async with asyncio.timeout(within):
                return await http.request(method, path, json=body)
        except TimeoutError as e:
            raise Silent(f"{self} gave no answer to {path} within {within:g} s") from e
        except httpx2.RequestError as e:
            raise Lost(f"{self} has no connection ({type(e).__name__})") from e

    async def _connected(self) -> httpx2.AsyncClient:
        """The connections of the running event loop."""
        if self._connections is None or self._connections.loop is not asyncio.get_running_loop():
            self._connections = _connections(self._url, self._socket)
            await anext(self._connections.closing)
        return self._connections.http


def _connections(url: str, socket: Path | None) -> Connections:
    limits = httpx2.Limits(max_connections=None)  # the server queues what it has no room for
    transport = httpx2.AsyncHTTPTransport(uds=str(socket) if socket else None, limits=limits)
    return Connections(httpx2.AsyncClient(transport=transport, base_url=url, timeout=None))


def _reply(answer: Any) -> Reply:
    try:
        choice = answer["choices"][0]
        ended, tokens = choice["finish_reason"], choice["token_ids"]
        labels = {span["version"] for span in choice["weight_versions"]}
        logprobs = [position["logprob"] for position in choice["logprobs"]["content"]]
    except (KeyError, IndexError, TypeError) as e:
        raise RolloutError(f"vLLM's answer is no reply of vLLM 0.32: {str(answer)[:200]}", "engine") from e
    if ended not in ("stop", "length"):
        raise Lost(f"vLLM broke a reply off: {ended}")
    return Reply(tokens, logprobs, labels.pop() if len(labels) == 1 else "")


def _said(response: httpx2.Response) -> str:
    return f"status {response.status_code}: {' '.join(response.text.split())[:300]}"
