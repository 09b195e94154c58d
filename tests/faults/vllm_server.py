"""The vLLM server of a case: an imitation of vLLM's routes that the sampler uses, or a proxy of a real server."""

import hashlib
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import httpx2
from safetensors.numpy import load_file

from understudy.engines.vllm.client import INITIAL_WEIGHT_VERSION, SERVED_MODEL_NAME

VLLM = "vLLM"
"""The component."""
REPLY_PATH = "/inference/v1/generate"
WEIGHTS_LOST = "weights lost"
"""The fault of a server that another program has started again: it has the weights that it started with."""
_CONTEXT_LENGTH = 1 << 20
_TOKEN_IDS = range(100, 200)
"""The imitation's replies are of these token ids, which every vocabulary has."""
_UPSTREAM_SECONDS = 120.0


class VllmRoutes(Protocol):
    """Answers the requests of vLLM's client."""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Return the status and the body of the answer."""

    def lose_weights(self) -> None:
        """Lose all weights that were sent, as a server that is started again."""


class ImitatedVllm:
    """vLLM's routes without a model.

    A reply depends on the weights or the adapter, the prompt and the seed. So a run whose replies come from other
    weights than expected differs from an undisturbed one.
    """

    def __init__(self) -> None:
        self._digests: dict[str, str] = {}
        self._version = ""
        self.lose_weights()

    def lose_weights(self) -> None:
        """Lose all weights that were sent."""
        self._digests, self._version = {SERVED_MODEL_NAME: ""}, INITIAL_WEIGHT_VERSION

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Return the status and the body of the answer."""
        request = json.loads(body) if body else {}
        answer: Any = {"success": True}
        if path == "/v1/models":
            answer = {"data": [{"id": SERVED_MODEL_NAME, "max_model_len": _CONTEXT_LENGTH}]}
        elif path == "/collective_rpc":
            self._digests[SERVED_MODEL_NAME] = _digest(Path(request["kwargs"]["weights_path"]))
        elif path == "/update_weight_version":
            self._version = request["new_version"]
        elif path == "/v1/load_lora_adapter":
            self._digests[request["lora_name"]] = _digest(Path(request["lora_path"]))
        elif path == "/v1/unload_lora_adapter":
            self._digests.pop(request["lora_name"], None)
        elif path == REPLY_PATH:
            if request["model"] not in self._digests:
                return 404, b'{"error": "no such model"}'
            answer = self._reply(self._digests[request["model"]], request)
        return 200, json.dumps(answer).encode()

    def _reply(self, weights: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        params = request["sampling_params"]
        ids = [token for token in _TOKEN_IDS if token not in params["stop_token_ids"]]
        draw = random.Random(f"{weights}/{request['token_ids']}/{params['seed']}")
        tokens = draw.choices(ids, k=params["max_tokens"])
        content = [{"logprob": -math.log(len(ids))}] * len(tokens)
        spans = [{"version": self._version, "start": 0, "end": len(tokens)}]
        choice = {"finish_reason": "length", "token_ids": tokens, "logprobs": {"content": content}}
        return {"choices": [{**choice, "weight_versions": spans}]}


class VllmProxy:
    """A real vLLM server at `url`, to which requests are passed on."""

    def __init__(self, url: str) -> None:
        self._url = url

    def lose_weights(self) -> None:
        """Label the server's weights as it labels those that it starts with."""
        self.answer("POST", "/update_weight_version", json.dumps({"new_version": INITIAL_WEIGHT_VERSION}).encode())

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Return the status and the body of the server's answer."""
        response = httpx2.request(
            method,
            self._url + path,
            content=body,
            headers={"Content-Type": "application/json"},
            timeout=_UPSTREAM_SECONDS,
            trust_env=False,
        )
        return response.status_code, response.content


def damage_reply(fault: str, body: bytes) -> bytes:
    """Return the body of a reply with the damage that `fault` names, if it names one."""
    if fault not in REPLY_DAMAGES:
        return body
    answer = json.loads(body)
    REPLY_DAMAGES[fault](answer["choices"][0])
    return json.dumps(answer).encode()


def _set_logprob(choice: dict[str, Any], value: float | None) -> None:
    choice["logprobs"]["content"][-1] = {"logprob": value}


REPLY_DAMAGES: Mapping[str, Callable[[dict[str, Any]], None]] = {
    "NaN log-probabilities": lambda choice: _set_logprob(choice, math.nan),
    "null log-probabilities": lambda choice: _set_logprob(choice, None),
    "too few log-probabilities": lambda choice: choice["logprobs"]["content"].pop(),
    "ids out of range": lambda choice: choice["token_ids"].__setitem__(-1, 1 << 40),
}
"""How a reply is damaged, by the fault."""


def _digest(folder: Path) -> str:
    """Return a digest of the weights in a folder."""
    digest = hashlib.sha256()
    files: Sequence[Path] = sorted(folder.glob("*.safetensors"))
    for name, values in sorted((name, values) for file in files for name, values in load_file(file).items()):
        digest.update(name.encode() + values.tobytes())
    return digest.hexdigest()
