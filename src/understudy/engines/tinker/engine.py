"""The engine `tinker`: a server of the Tinker API samples, computes log-probabilities and trains; see docs/cluster.md.

The server holds LoRA adapters of one model. Replies are sampled from adapters that were published to the server's
sampler. After an update they are published again before the next reply. Older ones are never sampled from again,
because SkyRL's JAX backend would load them over the trained adapters.
"""

import uuid
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ValidationError

from understudy.algorithms.batch import Batch
from understudy.algorithms.config import LossConfig
from understudy.core.errors import ConfigError, RolloutError
from understudy.core.records import Record
from understudy.engines.interface import (
    Completion,
    LogprobsCallback,
    LogprobTolerance,
    SamplingParams,
    TokenCallback,
    context_full_completion,
    validate_reply,
)
from understudy.engines.local.config import OptimizerConfig
from understudy.engines.local.engine import TOLERANCE
from understudy.engines.local.update_metrics import exceeds_target_kl, reduce_metrics, skipped_minibatches
from understudy.engines.models.folder import read_config_size, read_vocab_size
from understudy.engines.process_group import SINGLE_PROCESS, ProcessGroup
from understudy.engines.reference_config import FROZEN_REFERENCE, ReferenceConfig
from understudy.engines.tinker import adapters, wire
from understudy.engines.tinker.capabilities import (
    SERVER_CAPABILITIES,
    native_loss_name,
    unsupported_by_server,
    unsupported_reference,
    unsupported_sampling,
)
from understudy.engines.tinker.client import TinkerClient
from understudy.engines.tinker.config import TinkerEngineConfig
from understudy.engines.tinker.rows import linear_coefficients, loss_metrics, to_logprobs, to_tinker_rows
from understudy.engines.unsupported import raise_unsupported
from understudy.formats import FormatTokenizer
from understudy.formats.detokenizer import find_stop_string

STATE_FILE = "tinker.json"
ADAPTER_FOLDER = "adapters"
CHECKPOINT_TTL = 24 * 3600  # seconds for which a hosted service stores published adapters
_SEEDS = 1 << 31  # seeds of SkyRL's JAX backend are smaller than this
_NO_MOMENTS = OptimizerConfig(beta1=0.0, beta2=0.0)


class TinkerCheckpoint(Record):
    """A checkpoint's record of what the server has stored."""

    version: int
    state: str
    """The server's name for the adapters and their optimizer's moments."""
    reference: str = ""
    """The server's name for the reference's adapters."""


class TinkerEngine:
    """Implements `Engine`, `StreamingSampler` and `Reference`. It connects to the server on first use."""

    def __init__(
        self, folder: Path, config: TinkerEngineConfig, seed: int = 0, process_group: ProcessGroup = SINGLE_PROCESS
    ) -> None:
        """`folder` holds config and tokenizer of the server's model. Only exports of merged weights need its
        weights."""
        raise_unsupported(unsupported_by_server(config))
        self._able = SERVER_CAPABILITIES[config.server_kind]
        if process_group.world_size > 1:
            raise ConfigError(
                f"engine.kind = 'tinker' supports one process, not {process_group.world_size}; start only one"
            )
        self._folder, self._config, self._seed = folder, config, seed
        self._server = TinkerClient(config)
        self._model: Any = None  # TrainingClient of the policy
        self._sampler: Any = None  # SamplingClient of the current weights
        self._published = ""  # the server's name for the published weights
        self._reference: Any = None  # TrainingClient of the reference
        self._reference_state = ""
        self._checkpoint: Path | None = None  # weights that the server loads on first use
        self._moments = False  # True if the optimizer may have moments
        self.weights_version = 0

    @cached_property
    def sampler_choice(self) -> str:
        """The server that holds the weights. This opens the connection."""
        self._open()
        return f"{self._server} ({self._config.server_kind}) holds the weights of {self._base}"

    @cached_property
    def context_length(self) -> int:
        """Maximum length of prompt and reply together, in tokens."""
        return read_config_size(self._folder, "max_position_embeddings")

    @cached_property
    def _vocab_size(self) -> int:
        return read_vocab_size(self._folder)

    @property
    def tolerance(self) -> LogprobTolerance:
        """Tolerance for the dtype of the weights."""
        return TOLERANCE[getattr(torch, adapters.weights_dtype(self._folder))]

    def validate_sampling(self, sampling: SamplingParams) -> None:
        """Raise ConfigError if the API does not support `sampling`."""
        raise_unsupported(unsupported_sampling(sampling, "sampling"))

    async def sample(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        seed: int,
        stop_tokens: Collection[int] = (),
        on_tokens: TokenCallback | None = None,
    ) -> Completion:
        """Continue a prompt. Replies arrive whole, so `on_tokens` is never called. Stop strings are found here."""
        self.validate_sampling(sampling)
        room = self.context_length - len(prompt)
        if room < 1:
            return context_full_completion(self.weights_version)
        sampler, version = self._fresh_sampler(), self.weights_version
        most = min(sampling.max_response_tokens, room)
        wanted = wire.to_sampling_params(sampling, most, seed % _SEEDS, stop_tokens)
        answer = await self._server.wait_async(sampler.sample(wire.to_model_input(prompt), 1, wanted), "a reply")
        if not answer.sequences:
            raise RolloutError(f"{self._server} returned no reply", "engine")
        tokens, logprobs = list(answer.sequences[0].tokens), list(answer.sequences[0].logprobs or ())
        validate_reply(str(self._server), tokens, logprobs, max_tokens=most, vocab_size=self._vocab_size)
        count = find_stop_string(tokens, sampling.stop, lambda: self._vocabulary)
        whole = count is None
        ended: Literal["stop", "length"] = "stop" if not whole or tokens[-1] in stop_tokens else "length"
        return Completion(tokens[:count], logprobs[:count], ended, version)

    async def compute_logprobs(self, batch: Batch) -> Batch:
        """Return the batch with `logprobs` of its trained tokens under the current weights."""
        return batch.replace(logprobs=await self._compute_logprobs(self._open(), batch))

    async def update(
        self,
        minibatches: Sequence[Batch],
        loss: LossConfig,
        learning_rate: float,
        on_logprobs: LogprobsCallback | None = None,
    ) -> dict[str, float]:
        """Take one optimizer step per batch. Rows without trained tokens are skipped."""
        model = self._open()
        self._sampler, self._published, self._moments = None, "", True
        self.weights_version += 1
        sums = []
        for index, batch in enumerate(minibatches):
            logprobs = torch.full(batch.tokens.shape, torch.nan)
            sums.append(await self._step(model, batch, loss, learning_rate, logprobs))
            if on_logprobs:
                on_logprobs(index, logprobs)
            if exceeds_target_kl(loss, sums[-1]):
                break
        return reduce_metrics(sums) | skipped_minibatches(loss, len(minibatches) - len(sums))

    def set_reference(self, config: ReferenceConfig = FROZEN_REFERENCE) -> None:
        """Set the reference to the current weights. The server stores a second copy of the adapters."""
        raise_unsupported(unsupported_reference(config))
        self._reference, self._reference_state = None, self._save_state()

    def update_reference(self) -> None:
        """Do nothing: a frozen reference does not change."""

    def drop_reference(self) -> None:
        """Remove the reference."""
        self._reference, self._reference_state = None, ""

    async def compute_ref_logprobs(self, batch: Batch) -> Batch:
        """Return the batch with `ref_logprobs` under the reference."""
        if not self._reference_state:
            raise ValueError("there is no reference; call set_reference first")
        self._open()
        if self._reference is None:
            state = self._reference_state
            self._reference = self._server.call(
                "the reference's adapters", lambda service: service.create_training_client_from_state_async(state)
            )
        return batch.replace(ref_logprobs=await self._compute_logprobs(self._reference, batch))

    def reset_optimizer(self) -> None:
        """Reset the optimizer's moments.

        A hosted service reloads the adapters without moments. SkyRL's JAX backend always loads moments too, so there an
        Adam step with learning rate 0 and betas 0 clears them. Adam's step count remains.
        """
        if not self._moments:
            return
        model = self._open()
        if self._config.server_kind == "hosted":
            state = self._save_state()
            self._model = self._server.call(
                "reloading the adapters", lambda service: service.create_training_client_from_state_async(state)
            )
            self._sampler, self._published = None, ""
        else:
            zeroing = wire.to_adam_params(0.0, _NO_MOMENTS, clips_gradients=False)
            self._ask(model.optim_step_async(zeroing), "resetting the moments")
        self._moments = False

    def save(self, path: Path) -> None:
        """Store adapters and moments on the server. Also write the adapters here, so that exports do not need the
        server."""
        checkpoint = TinkerCheckpoint(
            version=self.weights_version, state=self._save_state(), reference=self._reference_state
        )
        adapters.save_adapters(self._adapters(), self._config.server_lora, self._folder, path / ADAPTER_FOLDER)
        (path / STATE_FILE).write_text(checkpoint.model_dump_json(), encoding="utf-8")

    def load(self, path: Path) -> None:
        """Load a checkpoint that `save` wrote. The server loads it on first use."""
        checkpoint = _read(path)
        self._model = self._sampler = self._reference = None
        self._published, self._checkpoint, self._moments = "", path, True
        self.weights_version, self._reference_state = checkpoint.version, checkpoint.reference

    def export(self, folder: Path, merge_adapters: bool = False) -> None:
        """Write the adapters for peft, or the merged model. This needs no server if the weights are those of a
        checkpoint."""
        write = adapters.save_merged_model if merge_adapters else adapters.save_adapters
        write(self._adapters(), self._config.server_lora, self._folder, folder)

    def reset_prefix_cache(self) -> None:
        """Do nothing: the server's caches change no reply."""

    def close(self) -> None:
        """Close the connection."""
        self._server.close()

    def _open(self) -> Any:
        """Return the policy's client, with the weights of the loaded checkpoint if there is one."""
        if self._model is None:
            base, rank, seed = self._base, self._config.lora.rank, self._seed % _SEEDS
            state = _read(self._checkpoint).state if self._checkpoint else ""

            def created(service: Any) -> Any:
                if state:
                    return service.create_training_client_from_state_with_optimizer_async(state)
                return service.create_lora_training_client_async(base, rank=rank, seed=seed, train_unembed=False)

            self._model = self._server.call(f"{state or 'new'} adapters of rank {rank}", created)
        return self._model

    @cached_property
    def _base(self) -> str:
        """The server's name for the model. This opens the connection."""
        return self._server.connect()

    def _ask(self, call: Any, what: str) -> Any:
        """Submit a call to a model and block until its result."""
        return self._server.wait(self._server.submit(_answered(call)), what)

    async def _ask_async(self, call: Any, what: str) -> Any:
        """Submit a call to a model and wait for its result without blocking the event loop."""
        return await self._server.wait_async(self._server.submit(_answered(call)), what)

    def _save_state(self) -> str:
        """Store adapters and moments on the server. Return its name for them."""
        return str(self._ask(self._open().save_state_async(_name()), "saving a checkpoint").path)

    def _publish(self) -> str:
        """Publish the current weights to the server's sampler. Return the server's name for them."""
        if not self._published:
            call = self._open().save_weights_for_sampler_async(_name(), ttl_seconds=CHECKPOINT_TTL)
            self._published = str(self._ask(call, "publishing the adapters").path)
        return self._published

    def _fresh_sampler(self) -> Any:
        if self._sampler is None:
            path = self._publish()
            self._sampler = self._server.call(
                "a sampler", lambda service: service.create_sampling_client_async(model_path=path)
            )
        return self._sampler

    def _adapters(self) -> dict[str, torch.Tensor]:
        """Return the current adapters, read from the checkpoint if they have not changed since."""
        if self._checkpoint is not None and self._model is None:
            return adapters.load_adapters(self._checkpoint / ADAPTER_FOLDER)
        run, _, checkpoint = self._publish().removeprefix("tinker://").partition("/")
        named = self._server.call(
            "the address of the adapters",
            lambda service: service.create_rest_client().get_checkpoint_archive_url_async(run, checkpoint),
        )
        return adapters.read_adapter_archive(self._server.download(named.url))

    async def _compute_logprobs(self, model: Any, batch: Batch) -> torch.Tensor:
        """Return log-probabilities [B, T] of the trained tokens under a model on the server."""
        if batch.temperature != 1.0:
            raise ConfigError(
                f"temperature {batch.temperature}: the Tinker API returns log-probabilities at temperature 1 only"
            )
        rows = to_tinker_rows(batch)
        if not rows:
            return torch.zeros(batch.tokens.shape)
        call = model.forward_async(wire.logprob_data(rows), "cross_entropy")
        answer = await self._ask_async(call, "log-probabilities")
        return to_logprobs(batch, rows, [output["logprobs"].tolist() for output in answer.loss_fn_outputs])

    async def _step(
        self, model: Any, batch: Batch, loss: LossConfig, learning_rate: float, logprobs: torch.Tensor
    ) -> dict[str, float]:
        """Take one optimizer step and return the sums of its metrics. Write computed rows into `logprobs` [B, T]."""
        assert batch.advantages is not None
        rows = ((batch.advantages != 0) & batch.mask).any(1).nonzero()[:, 0]
        metrics = {"trained_tokens": 0.0}
        if len(rows):
            metrics, logprobs[rows] = await self._gradient(model, batch.select(rows), loss)
        adam = wire.to_adam_params(learning_rate, self._config.optimizer, self._able.clips_gradients)
        moved = await self._ask_async(model.optim_step_async(adam), "an optimizer step")
        norm = (moved.metrics or {}).get("skyrl.ai/grad_norm")
        return metrics if norm is None else metrics | {"grad_norm": norm}

    async def _gradient(self, model: Any, batch: Batch, loss: LossConfig) -> tuple[dict[str, float], torch.Tensor]:
        """Add a batch's gradient on the server, with the server's own loss or a linear one.

        Return the sums of metrics, and the log-probabilities [B, T].
        """
        if name := native_loss_name(loss, self._able):
            rows = to_tinker_rows(batch, batch.advantages, sums_losses=self._able.sums_losses)
            request = wire.clipped_loss(name, rows, 1 - loss.clip_low, 1 + loss.clip_high)
        else:
            known = torch.zeros(()) if loss.kind == "nll" else await self._compute_logprobs(model, batch)
            rows = to_tinker_rows(batch, linear_coefficients(loss, known, batch), sums_losses=self._able.sums_losses)
            request = wire.linear_loss(rows, sums_losses=self._able.sums_losses)
        name, data, constants = request
        answer = await self._ask_async(model.forward_backward_async(data, name, constants), f"the gradient of {name}")
        self._validate_server_kind(answer.metrics)
        logprobs = to_logprobs(batch, rows, [output["logprobs"].tolist() for output in answer.loss_fn_outputs])
        tokens = {"trained_tokens": float(batch.mask.sum()), "computed_tokens": float(sum(len(r.inputs) for r in rows))}
        return loss_metrics(loss, logprobs, batch) | tokens, logprobs

    def _validate_server_kind(self, metrics: dict[str, float]) -> None:
        """Raise ConfigError, before a step, if the server sums losses and `server_kind` says otherwise, or the reverse.

        Servers that sum losses name a metric ":sum". SkyRL's JAX backend does not.
        """
        sums = any(name.endswith(":sum") for name in metrics)
        if sums != self._able.sums_losses:
            raise ConfigError(
                f"engine.server_kind = {self._config.server_kind!r}, but {self._server} "
                f"{'sums' if sums else 'averages'} losses (metrics {sorted(metrics)}); correct server_kind"
            )

    @cached_property
    def _vocabulary(self) -> FormatTokenizer:
        return FormatTokenizer.load(self._folder / "tokenizer.json")


def _read(checkpoint: Path) -> TinkerCheckpoint:
    try:
        return TinkerCheckpoint.model_validate_json((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValidationError) as e:
        raise ConfigError(f"{checkpoint / STATE_FILE}: not a checkpoint of engine.kind = 'tinker': {e}") from e


def _name() -> str:
    """Return a unique name. Servers reject names in use."""
    return f"understudy-{uuid.uuid4().hex}"


async def _answered(submitted: Any) -> Any:
    return await (await submitted)
