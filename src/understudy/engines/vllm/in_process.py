"""vLLM's asynchronous engine inside this process. vLLM must be installed in this Python."""

import asyncio
import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from understudy.core.errors import RolloutError
from understudy.engines.vllm.client import VllmCompletion, VllmTimeout, VllmUnavailable
from understudy.engines.vllm.config import VllmConfig


class InProcessVllm:
    """A `VllmBackend` in this process. It belongs to the event loop that started it; another one restarts it."""

    is_owned = True

    def __init__(self, model: Path, server_args: Sequence[str], config: VllmConfig) -> None:
        """`model` is a folder of weights, and `server_args` are arguments of `vllm serve`."""
        self.context_length = 0
        self._arguments = ["--model", str(model), "--skip-tokenizer-init", *server_args, *config.server_args]
        self._patience = config.reply_timeout
        self._engine: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._numbers = itertools.count(1)
        self._adapters: dict[str, Any] = {}

    async def start(self) -> None:
        """Start or restart the engine."""
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # standard output is reserved for results
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.utils.argparse_utils import FlexibleArgumentParser
        from vllm.v1.engine.async_llm import AsyncLLM

        self.stop()
        arguments = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(self._arguments)
        try:
            self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs.from_cli_args(arguments))
        except (RuntimeError, ValueError, OSError) as e:
            raise VllmUnavailable(f"vLLM did not start in this process: {e}") from e
        self._loop = asyncio.get_running_loop()
        self.context_length = int(self._engine.model_config.max_model_len)

    async def is_healthy(self) -> bool:
        """Return True if the engine runs in this event loop."""
        return self._loop is asyncio.get_running_loop() and not self._engine.errored

    async def generate(self, model: str, prompt: Sequence[int], params: Mapping[str, Any]) -> VllmCompletion:
        """Continue a prompt."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        wanted = SamplingParams(**params, output_kind=RequestOutputKind.FINAL_ONLY)
        tokens, name = {"prompt_token_ids": list(prompt)}, str(next(self._numbers))
        engine = self._running
        replies = engine.generate(tokens, wanted, name, lora_request=self._adapters.get(model))
        try:
            async with asyncio.timeout(self._patience):
                outputs = [output.outputs[0] async for output in replies]
        except (EngineDeadError, EngineGenerateError) as e:
            raise VllmUnavailable(str(e)) from e
        except TimeoutError as e:
            if self._engine is engine:  # otherwise it was restarted meanwhile
                self.stop()
            raise VllmTimeout(f"vLLM in this process gave no reply within {self._patience:g} s") from e
        if len(outputs) != 1:
            raise VllmUnavailable(f"vLLM gave {len(outputs)} replies to one request")
        (reply,) = outputs
        try:
            logprobs = [at[token].logprob for at, token in zip(reply.logprobs, reply.token_ids, strict=True)]
        except (LookupError, TypeError, ValueError, AttributeError) as e:
            raise RolloutError(f"vLLM gave no log-probability for a token ({type(e).__name__})", "engine") from e
        labels = {span.version for span in reply.weight_versions or ()}
        return VllmCompletion(list(reply.token_ids), logprobs, labels.pop() if len(labels) == 1 else "")

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Load a LoRA adapter."""
        from vllm.lora.request import LoRARequest

        adapter = LoRARequest(name, next(self._numbers), str(folder))
        await self._call(self._running.add_lora(adapter))
        self._adapters[name] = adapter

    async def unload_adapter(self, name: str) -> None:
        """Unload a LoRA adapter."""
        await self._call(self._running.remove_lora(self._adapters.pop(name).lora_int_id))

    async def reload_weights(self, folder: Path, weight_version: str) -> None:
        """Replace all weights and reset the prefix cache."""
        engine = self._running
        await self._call(engine.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)}))
        if not await self._call(engine.reset_prefix_cache()):
            raise VllmUnavailable("vLLM did not reset its prefix cache after new weights")
        await self._call(engine.update_weight_version(weight_version))

    def stop(self) -> None:
        """Shut down the engine and its worker processes."""
        engine, self._engine, self._loop = self._engine, None, None
        self._adapters.clear()
        if engine is not None:
            engine.shutdown()

    @property
    def _running(self) -> Any:
        if self._engine is None:
            raise VllmUnavailable("vLLM is not running")
        return self._engine

    async def _call(self, work: Any) -> Any:
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            return await work
        except EngineDeadError as e:
            raise VllmUnavailable(str(e)) from e
