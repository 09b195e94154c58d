"""An inference engine for SkyRL on a CPU: the local engine's sampler in a Ray actor. It loads weights from files."""

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from understudy.train.skyrl.compat import patch_typed_dict

patch_typed_dict()

import ray  # noqa: E402
import torch  # noqa: E402
from skyrl.backends.skyrl_train.inference_servers.base import InferenceEngineInterface  # noqa: E402

from understudy.engines.interface import SamplingParams  # noqa: E402
from understudy.engines.local.config import LocalEngineConfig  # noqa: E402
from understudy.engines.local.model import LocalModel  # noqa: E402
from understudy.engines.local.sampling.sampler import LocalSampler  # noqa: E402

ON_CPU = LocalEngineConfig(device="cpu", dtype="float32", train_embeddings=True)


@ray.remote(num_cpus=1)
class Engine:
    """A model's weights and a sampler that serves concurrent replies."""

    def __init__(self, folder: str, sequences: int) -> None:
        torch.set_num_threads(1)
        self._sequences = sequences
        self._load(folder)

    def _load(self, folder: str) -> None:
        self._sampler = LocalSampler(LocalModel(Path(folder), ON_CPU), self._sequences, ON_CPU.max_draft_rows)

    async def load(self, folder: str) -> None:
        """Load the weights in a folder while no reply is in progress."""
        self._load(folder)

    async def sample(
        self, prompt: list[int], sampling: SamplingParams, seed: int, stop_tokens: list[int]
    ) -> tuple[list[int], list[float], str]:
        """Return the tokens of a reply, their log-probabilities and the finish reason."""
        found = await self._sampler.sample(prompt, sampling, seed, stop_tokens)
        return found.tokens, found.logprobs, found.finish_reason


class CpuClient(InferenceEngineInterface):  # type: ignore[misc]  # SkyRL has no types
    """The part of SkyRL's `InferenceEngineInterface` that works on token ids."""

    def __init__(self, model: Path, sequences: int) -> None:
        """`model` is the folder of the initial weights, and `sequences` how many replies are sampled at once."""
        self._model, self.weight_version = str(model), 0
        self._engine = Engine.remote(str(model), sequences)  # type: ignore[attr-defined]

    @property
    def model_name(self) -> str:
        """The folder with the weights that the engine started with."""
        return self._model

    async def generate(self, input_batch: dict[str, Any], model: str | None = None) -> dict[str, Any]:
        """Return replies to prompts of token ids, with vLLM's parameters."""
        params = input_batch.get("sampling_params") or {}
        ends, seed = list(params.get("stop_token_ids") or ()), int(params.get("seed") or 0)
        prompts, sampling = input_batch["prompt_token_ids"], _sampling(params)
        asked = [self._engine.sample.remote(prompt, sampling, seed + i, ends) for i, prompt in enumerate(prompts)]
        replies = [await reply for reply in asked]
        return {
            "responses": ["" for _ in replies],  # no caller reads the texts
            "response_ids": [tokens for tokens, _, _ in replies],
            "response_logprobs": [logprobs for _, logprobs, _ in replies],
            "stop_reasons": [finish for _, _, finish in replies],
        }

    @contextlib.contextmanager
    def folder(self) -> Iterator[str]:
        """Return the folder in which weights for the engine may be written."""
        with tempfile.TemporaryDirectory(prefix="understudy-") as folder:
            yield folder

    async def load(self, folder: str) -> None:
        """Make the engine load the weights in a folder."""
        await self._engine.load.remote(folder)

    def increment_weight_version(self) -> None:
        """Count a new version of the weights."""
        self.weight_version += 1

    def get_endpoint_url(self) -> str:
        """Raise NotImplementedError: there is no HTTP endpoint."""
        raise NotImplementedError("the CPU engine has no HTTP endpoint")

    async def chat_completion(self, request_payload: dict[str, Any]) -> dict[str, Any]:
        """Raise NotImplementedError: prompts must be token ids."""
        raise NotImplementedError("the CPU engine accepts only token ids")

    render_chat_completion = completion = chat_completion

    async def update_named_weights(self, request: Any) -> None:
        """Raise NotImplementedError: weights are loaded from a folder."""
        raise NotImplementedError("the CPU engine loads weights from a folder; call `load`")

    async def wake_up(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the engine does not sleep."""

    sleep = teardown = pause_generation = resume_generation = wake_up
    reset_prefix_cache = init_weight_update_communicator = finish_session = wake_up

    async def get_world_size(self) -> tuple[int, int]:
        """Return the size 1: one engine with one worker."""
        return 1, 1


class ClientOfDyingEngine(CpuClient):
    """A client whose engine's process is killed in the rollouts of step 2. Step 1 has version 1 of the weights."""

    async def generate(self, input_batch: dict[str, Any], model: str | None = None) -> dict[str, Any]:
        """Kill the engine's process if it has the weights of step 2, and return its replies."""
        if self.weight_version == 2:
            ray.kill(self._engine)
        return await super().generate(input_batch, model)


class ClientOfKilledRun(CpuClient):
    """A client that kills the run's process in the rollouts of step 7. A resumed run counts the weights' versions anew,
    and is killed only if it takes six steps.
    """

    async def generate(self, input_batch: dict[str, Any], model: str | None = None) -> dict[str, Any]:
        """Kill this process if the engine has the weights of step 7, and return the engine's replies."""
        if self.weight_version == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().generate(input_batch, model)


def _sampling(params: dict[str, Any]) -> SamplingParams:
    """Return the sampling parameters for vLLM's."""
    return SamplingParams(
        max_response_tokens=params["max_tokens"],
        temperature=params.get("temperature", 1.0),
        top_p=params.get("top_p", 1.0),
        top_k=max(0, params.get("top_k", 0)),
        min_p=params.get("min_p", 0.0),
        repetition_penalty=params.get("repetition_penalty", 1.0),
    )
