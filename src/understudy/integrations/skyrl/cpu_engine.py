"""An inference engine for SkyRL on a CPU: the local engine's sampler in a Ray actor. It takes up weights from files."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from understudy.integrations.skyrl.python import mend

mend()

import ray  # noqa: E402
import torch  # noqa: E402
from skyrl.backends.skyrl_train.inference_servers.base import InferenceEngineInterface  # noqa: E402

from understudy.engines.base import Sampling  # noqa: E402
from understudy.engines.local.config import LocalConfig  # noqa: E402
from understudy.engines.local.model import Model  # noqa: E402
from understudy.engines.local.sampler import LocalSampler  # noqa: E402

ON_CPU = LocalConfig(device="cpu", dtype="float32", train_embeddings=True)


@ray.remote(num_cpus=1)
class Engine:
    """A model's weights, and the replies that are sampled from them side by side."""

    def __init__(self, folder: str, sequences: int) -> None:
        torch.set_num_threads(1)
        self._sequences = sequences
        self._load(folder)

    def _load(self, folder: str) -> None:
        self._sampler = LocalSampler(Model(Path(folder), ON_CPU), self._sequences, ON_CPU.rows)

    async def load(self, folder: str) -> None:
        """Take up the weights in a folder; no reply is under way."""
        self._load(folder)

    async def sample(
        self, prompt: list[int], sampling: Sampling, seed: int, stop_tokens: list[int]
    ) -> tuple[list[int], list[float], str]:
        """Tokens, their log-probabilities, and why the reply is over."""
        found = await self._sampler.sample(prompt, sampling, seed, stop_tokens)
        return found.tokens, found.logprobs, found.finish


class CpuClient(InferenceEngineInterface):  # type: ignore[misc]  # SkyRL has no types
    """See SkyRL's `InferenceEngineInterface`; of it there is what token ids take."""

    def __init__(self, model: Path, sequences: int) -> None:
        self._model, self.weight_version = str(model), 0
        self._engine = Engine.remote(str(model), sequences)  # type: ignore[attr-defined]

    @property
    def model_name(self) -> str:
        """The folder that the engine has started with."""
        return self._model

    async def generate(self, input_batch: dict[str, Any], model: str | None = None) -> dict[str, Any]:
        """Replies to prompts of token ids, by vLLM's parameters."""
        params = input_batch.get("sampling_params") or {}
        ends, seed = list(params.get("stop_token_ids") or ()), int(params.get("seed") or 0)
        prompts, sampling = input_batch["prompt_token_ids"], _sampling(params)
        asked = [self._engine.sample.remote(prompt, sampling, seed + i, ends) for i, prompt in enumerate(prompts)]
        replies = [await reply for reply in asked]
        return {
            "responses": ["" for _ in replies],  # nobody here reads texts
            "response_ids": [tokens for tokens, _, _ in replies],
            "response_logprobs": [logprobs for _, logprobs, _ in replies],
            "stop_reasons": [finish for _, _, finish in replies],
        }

    @contextlib.contextmanager
    def folder(self) -> Iterator[str]:
        """Where weights may be written for the engine to take up within."""
        with tempfile.TemporaryDirectory(prefix="understudy-") as folder:
            yield folder

    async def load(self, folder: str) -> None:
        """Have the engine take up the weights in a folder."""
        await self._engine.load.remote(folder)

    def increment_weight_version(self) -> None:
        """Weights were brought to the engine."""
        self.weight_version += 1

    def get_endpoint_url(self) -> str:
        """There is none."""
        raise NotImplementedError("the engine on the CPU has no HTTP endpoint")

    async def chat_completion(self, request_payload: dict[str, Any]) -> dict[str, Any]:
        """Not of this engine."""
        raise NotImplementedError("the engine on the CPU takes token ids only")

    render_chat_completion = completion = chat_completion

    async def update_named_weights(self, request: Any) -> None:
        """Not of this engine."""
        raise NotImplementedError("weights come to the engine on the CPU in a folder: load")

    async def wake_up(self, *args: Any, **kwargs: Any) -> None:
        """It does not sleep."""

    sleep = teardown = pause_generation = resume_generation = wake_up
    reset_prefix_cache = init_weight_update_communicator = finish_session = wake_up

    async def get_world_size(self) -> tuple[int, int]:
        """One engine of one worker."""
        return 1, 1


def _sampling(params: dict[str, Any]) -> Sampling:
    """What vLLM's parameters say of sampling."""
    return Sampling(
        max_tokens=params["max_tokens"],
        temperature=params.get("temperature", 1.0),
        top_p=params.get("top_p", 1.0),
        top_k=max(0, params.get("top_k", 0)),
        min_p=params.get("min_p", 0.0),
        repetition_penalty=params.get("repetition_penalty", 1.0),
    )
