"""Samples from a local model, by PyTorch or by vLLM."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from understudy.algorithms.batch import Batch
from understudy.engines.interface import (
    Completion,
    SamplingParams,
    TokenCallback,
    TokenConstraint,
    context_full_completion,
)
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.memory_errors import memory_errors_as_config_errors
from understudy.engines.local.model import LocalModel
from understudy.engines.local.sampler_choice import choose_sampler, make_vllm_sampler, vllm_context_length
from understudy.engines.local.sampling.sampler import LocalSampler
from understudy.engines.local.scoring import compute_logprobs
from understudy.engines.process_group import SINGLE_PROCESS
from understudy.engines.vllm.sampler import VllmSampler


class ModelSampler:
    """Keeps replies within the context, and gives their log-probabilities under the unfiltered distribution."""

    def __init__(self, model: LocalModel, folder: Path, config: LocalEngineConfig, num_processes: int) -> None:
        self._model, self._config = model, config
        choice = choose_sampler(model, config, num_processes)
        self.choice = replace(choice, padding_reason=model.padding_reason)
        """The sampler in use, and why it was chosen."""
        self.sampler: LocalSampler | VllmSampler = (
            make_vllm_sampler(model, folder, config)
            if self.choice.sampler == "vllm"
            else LocalSampler(model, config.max_num_seqs, config.max_draft_rows)
        )

    @property
    def context_length(self) -> int:
        """Maximum length of prompt and reply together, in tokens. vLLM may lower it by `max_model_len`."""
        if self.choice.sampler == "vllm":
            return vllm_context_length(self._model, self._config)
        return self._model.context_length

    async def sample(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        seed: int,
        stop_tokens: Collection[int],
        on_tokens: TokenCallback | None,
        constraint: TokenConstraint | None = None,
    ) -> Completion:
        """Continue a prompt, with tokens that `constraint` allows if PyTorch samples."""
        room = self.context_length - len(prompt)
        if room < 1:
            return context_full_completion(self.sampler.weights_version)
        if room < sampling.max_response_tokens:
            sampling = sampling.replace(max_response_tokens=room)
        with memory_errors_as_config_errors("engine.max_num_seqs", self._config.max_num_seqs):
            if constraint and isinstance(self.sampler, LocalSampler):
                return await self.sampler.sample(prompt, sampling, seed, stop_tokens, on_tokens, constraint)
            completion = await self.sampler.sample(prompt, sampling, seed, stop_tokens, on_tokens)
            if sampling.has_filters and self.choice.sampler == "vllm" and not completion.context_full:
                return self._with_unfiltered_logprobs(prompt, completion, sampling.temperature or 1.0)
            return completion

    def _with_unfiltered_logprobs(
        self, prompt: Sequence[int], completion: Completion, temperature: float
    ) -> Completion:
        """Return the completion with log-probabilities of the whole softmax.

        vLLM returns those of the filtered distribution, so one forward pass over the row computes them here.
        """
        mask = [False] * len(prompt) + [True] * len(completion.tokens)
        batch = Batch.from_rows([[*prompt, *completion.tokens]], [mask], temperature=temperature)
        # Each process samples on its own, so this is no work of the group.
        logprobs = compute_logprobs(self._model, batch, SINGLE_PROCESS, self._config.max_tokens_per_microbatch)
        return replace(completion, logprobs=logprobs[0, len(prompt) :].tolist())
