"""Samples from a local model, by PyTorch or by vLLM."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from understudy.algorithms.batch import Batch
from understudy.core.sampling_masks import SamplingMask
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
from understudy.engines.local.sampling.filters import find_kept_tokens
from understudy.engines.local.sampling.sampler import LocalSampler
from understudy.engines.local.scoring import compute_logprobs, compute_states
from understudy.engines.process_group import SINGLE_PROCESS
from understudy.engines.vllm.sampler import VllmSampler

_MASK_CHUNK = 32  # positions whose logits are filtered at a time


class ModelSampler:
    """Keeps replies within the context, and gives their log-probabilities under the distribution that is trained."""

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
            if not sampling.has_filters or self.choice.sampler != "vllm" or completion.context_full:
                return completion
            if sampling.records_masks:
                return self._with_masks(prompt, completion, sampling)
            return self._with_unfiltered_logprobs(prompt, completion, sampling.temperature or 1.0)

    @torch.inference_mode()
    def _with_masks(self, prompt: Sequence[int], completion: Completion, sampling: SamplingParams) -> Completion:
        """Return the completion with sampling masks.

        vLLM returns log-probabilities over the tokens that it kept, and does not say which these are. So the filters
        are applied here, to the logits of one forward pass over the row. Rounding can change which of the tokens at the
        border of a filter are kept. With penalties, the log-probabilities are those of this pass, without them.
        """
        row, count = [*prompt, *completion.tokens], len(completion.tokens)
        batch = Batch.from_rows([row], [[False] * len(prompt) + [True] * count])
        states = compute_states(self._model, batch, [0])
        masks: list[SamplingMask] = []
        logprobs: list[float] = []
        for start in range(0, count, _MASK_CHUNK):
            places = range(start, min(start + _MASK_CHUNK, count))
            logits = self._model.logits(states.hidden[states.state_index[places.start : places.stop]])
            previous = [torch.tensor(row[: len(prompt) + i]) for i in places]
            tokens = torch.tensor(completion.tokens[places.start : places.stop], device=logits.device)
            params, lengths = [sampling] * len(places), [len(prompt)] * len(places)
            found, kept = find_kept_tokens(logits, params, previous, lengths, tokens)
            masks += kept.tuples()
            logprobs += found.tolist()
        return replace(
            completion, logprobs=logprobs if sampling.has_penalties else completion.logprobs, sampling_masks=masks
        )

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
