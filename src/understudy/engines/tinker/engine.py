"""The engine `tinker`: sampled from, read and moved by a server of the Tinker API; see docs/tinker.md.

The server has LoRA adapters of one model. Replies come from the adapters as they were last published to its sampler;
after an update they are published anew before the next reply, and those of before are never sampled from again: SkyRL's
JAX backend would load them over the ones that are trained.
"""

import json
import uuid
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ValidationError

from understudy.algorithms.options import Critic, Loss
from understudy.batch import Batch
from understudy.crew import ALONE, Crew
from understudy.engines.base import Completion, Sampling, Told, Tolerance, no_room
from understudy.engines.local.config import LocalConfig, Optimizer
from understudy.engines.local.engine import TOLERANCE
from understudy.engines.local.measures import told as as_metrics
from understudy.engines.reference import FROZEN, ReferenceConfig
from understudy.engines.tinker import adapters, wire
from understudy.engines.tinker.refusals import abilities, native, no_values, refuse_reference, refuse_sampling
from understudy.engines.tinker.rows import coefficients, measures, received, sent
from understudy.engines.tinker.server import Server
from understudy.errors import ConfigError, RolloutError
from understudy.formats import Vocabulary
from understudy.formats.decoding import StopStrings
from understudy.records import Record

STATE = "tinker.json"
ADAPTERS = "adapters"
LIFE = 24 * 3600  # seconds for which a hosted service is to keep what was published to its sampler
_SEEDS = 1 << 31  # SkyRL's JAX backend has no room for larger ones
_NO_MOMENTS = Optimizer(beta1=0.0, beta2=0.0)


class Kept(Record):
    """What a checkpoint says of what the server has kept of it."""

    version: int
    state: str
    """The server's name for the adapters and the moments of their optimizer."""
    reference: str = ""
    """Its name for the adapters that the policy is compared with."""


class TinkerEngine:
    """See `engines.base.Engine`. Nothing is asked of the server before it is needed."""

    def __init__(self, folder: Path, config: LocalConfig, seed: int = 0, crew: Crew = ALONE) -> None:
        """`folder` holds config and tokenizer of the model that the server has; to export merged ones, its weights."""
        self._able = abilities(config)
        if crew.size > 1:
            raise ConfigError(f"engine.kind = 'tinker' is for one process, not {crew.size}: the server does the work")
        self._folder, self._config, self._seed = folder, config, seed
        self._server = Server(config.tinker)
        self._model: Any = None  # the library's TrainingClient of the policy
        self._sampler: Any = None  # its SamplingClient of the current weights
        self._published = ""  # the server's name for these
        self._reference: Any = None  # the library's TrainingClient
        self._reference_state = ""
        self._checkpoint: Path | None = None  # what the policy begins with, once it is asked for
        self._moments = False  # whether the optimizer has any
        self.version = 0

    @cached_property
    def choice(self) -> str:
        """Who has the weights; this opens the connection."""
        self._open()
        return f"{self._server} ({self._config.tinker.server}) has the weights of {self._base}"

    @cached_property
    def context(self) -> int:
        """The longest sequence that the model's positions allow."""
        config = json.loads((self._folder / "config.json").read_text(encoding="utf-8"))
        return int(config.get("text_config", config)["max_position_embeddings"])

    @property
    def tolerance(self) -> Tolerance:
        """What rounding to the dtype of the weights comes to."""
        return TOLERANCE[getattr(torch, adapters.dtype(self._folder))]

    def refuse(self, sampling: Sampling) -> None:
        """See `engines.base.Streaming`."""
        refuse_sampling(sampling, "sampling")

    async def sample(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        seed: int,
        stop_tokens: Collection[int] = (),
        told: Told | None = None,
    ) -> Completion:
        """Continue a prompt. `told` is not told anything: replies come whole. Stop strings are looked for here."""
        self.refuse(sampling)
        room = self.context - len(prompt)
        if room < 1:
            return no_room(self.version)
        sampler, version = self._fresh_sampler(), self.version
        wanted = wire.sampling_params(sampling, min(sampling.max_tokens, room), seed % _SEEDS, stop_tokens)
        answer = await self._server.settled(sampler.sample(wire.prompt(prompt), 1, wanted), "a reply")
        tokens, logprobs = list(answer.sequences[0].tokens), list(answer.sequences[0].logprobs or ())
        if not tokens or len(tokens) != len(logprobs):
            raise RolloutError(f"{self._server} sampled {len(tokens)} tokens, with {len(logprobs)} odds", "engine")
        count = self._end(tokens, sampling)
        whole = count is None
        ended: Literal["stop", "length"] = "stop" if not whole or tokens[-1] in stop_tokens else "length"
        return Completion(tokens[:count], logprobs[:count], ended, version)

    async def forward(self, batch: Batch) -> Batch:
        """The batch with `logprobs` of its trained tokens under the current weights."""
        return batch.with_(logprobs=await self._likelihoods(self._open(), batch))

    async def update(self, steps: Sequence[Batch], loss: Loss, learning_rate: float) -> dict[str, float]:
        """One optimizer step a batch; rows that nothing is to be learned from are left out."""
        model = self._open()
        self._sampler, self._published, self._moments = None, "", True
        self.version += 1
        return as_metrics([await self._step(model, batch, loss, learning_rate) for batch in steps])

    def add_critic(self, critic: Critic) -> None:
        """There is none."""
        raise no_values()

    async def values(self, batch: Batch) -> Batch:
        """There are none."""
        raise no_values()

    def keep_reference(self, config: ReferenceConfig = FROZEN) -> None:
        """Compare with the policy as it is now: the server keeps a second copy of its adapters."""
        refuse_reference(config)
        self._reference, self._reference_state = None, self._keep()

    def move_reference(self) -> None:
        """It stays."""

    def forget_reference(self) -> None:
        """Compare with nothing."""
        self._reference, self._reference_state = None, ""

    async def reference(self, batch: Batch) -> Batch:
        """The batch with `ref_logprobs` under the reference."""
        if not self._reference_state:
            raise ValueError("there is no reference; call keep_reference first")
        self._open()
        if self._reference is None:
            state = self._reference_state
            self._reference = self._server.ask(
                "the reference's adapters", lambda service: service.create_training_client_from_state_async(state)
            )
        return batch.with_(ref_logprobs=await self._likelihoods(self._reference, batch))

    def fresh_optimizer(self) -> None:
        """Forget the optimizer's moments: by the API's own way, or by a step of Adam that moves nothing and keeps none.

        SkyRL's JAX backend takes up moments with whatever it loads, so there the second; Adam's count of steps stays.
        """
        if not self._moments:
            return
        model = self._open()
        if self._config.tinker.server == "hosted":
            state = self._keep()
            self._model = self._server.ask(
                "its adapters anew", lambda service: service.create_training_client_from_state_async(state)
            )
            self._sampler, self._published = None, ""
        else:
            zeroing = wire.adam_params(0.0, _NO_MOMENTS, clips=False)
            self._ask(model.optim_step_async(zeroing), "forgetting the moments")
        self._moments = False

    def save(self, path: Path) -> None:
        """Have the server keep adapters and moments; the adapters are written here too, for when it is gone."""
        kept = Kept(version=self.version, state=self._keep(), reference=self._reference_state)
        adapters.save(self._adapters(), self._config.lora, self._folder, path / ADAPTERS)
        (path / STATE).write_text(kept.model_dump_json(), encoding="utf-8")

    def load(self, path: Path) -> None:
        """Go on from a checkpoint of `save`, once something is asked of the server."""
        kept = _read(path)
        self._model = self._sampler = self._reference = None
        self._published, self._checkpoint, self._moments = "", path, True
        self.version, self._reference_state = kept.version, kept.reference

    def export(self, folder: Path, merged: bool = False) -> None:
        """Write the adapters as peft reads them, or the whole model. Of a checkpoint it takes no server."""
        write = adapters.save_merged if merged else adapters.save
        write(self._adapters(), self._config.lora, self._folder, folder)

    def forget(self) -> None:
        """Nothing to forget: what the server remembers changes no reply."""

    def close(self) -> None:
        """Part from the server."""
        self._server.close()

    def _open(self) -> Any:
        """The policy's client, connected, with the weights of the checkpoint that was loaded."""
        if self._model is None:
            base, rank, seed = self._base, self._config.lora.rank, self._seed % _SEEDS
            state = _read(self._checkpoint).state if self._checkpoint else ""

            def created(service: Any) -> Any:
                if state:
                    return service.create_training_client_from_state_with_optimizer_async(state)
                return service.create_lora_training_client_async(base, rank=rank, seed=seed, train_unembed=False)

            self._model = self._server.ask(f"{state or 'new'} adapters of rank {rank}", created)
        return self._model

    @cached_property
    def _base(self) -> str:
        """The server's name for the model; this opens the connection."""
        return self._server.connect()

    def _ask(self, call: Any, what: str) -> Any:
        """What comes of something that is submitted to a model, waited for here."""
        return self._server.wait(self._server.begin(_answered(call)), what)

    async def _settled(self, call: Any, what: str) -> Any:
        """The same, while other tasks go on."""
        return await self._server.settled(self._server.begin(_answered(call)), what)

    def _keep(self) -> str:
        """Have the server keep adapters and moments as they are; its name for them."""
        return str(self._ask(self._open().save_state_async(_name()), "keeping a checkpoint").path)

    def _publish(self) -> str:
        """Give the sampler the weights as they are; the server's name for them."""
        if not self._published:
            call = self._open().save_weights_for_sampler_async(_name(), ttl_seconds=LIFE)
            self._published = str(self._ask(call, "publishing the adapters").path)
        return self._published

    def _fresh_sampler(self) -> Any:
        if self._sampler is None:
            path = self._publish()
            self._sampler = self._server.ask(
                "a sampler", lambda service: service.create_sampling_client_async(model_path=path)
            )
        return self._sampler

    def _adapters(self) -> dict[str, torch.Tensor]:
        """The adapters as they are, from the checkpoint where they are still those."""
        if self._checkpoint is not None and self._model is None:
            return adapters.kept(self._checkpoint / ADAPTERS)
        run, _, checkpoint = self._publish().removeprefix("tinker://").partition("/")
        named = self._server.ask(
            "where its adapters are",
            lambda service: service.create_rest_client().get_checkpoint_archive_url_async(run, checkpoint),
        )
        return adapters.unpacked(self._server.download(named.url))

    async def _likelihoods(self, model: Any, batch: Batch) -> torch.Tensor:
        """Log-probabilities [B, T] of the trained tokens under a model of the server's."""
        if batch.temperature != 1.0:
            raise ConfigError(f"temperature {batch.temperature}: the Tinker API tells log-probabilities of 1 only")
        rows = sent(batch)
        if not rows:
            return torch.zeros(batch.tokens.shape)
        call = model.forward_async(wire.likelihoods(rows), "cross_entropy")
        answer = await self._settled(call, "log-probabilities")
        return received(batch, rows, [output["logprobs"].tolist() for output in answer.loss_fn_outputs])

    async def _step(self, model: Any, batch: Batch, loss: Loss, learning_rate: float) -> dict[str, float]:
        """One optimizer step, and the sums that it came to."""
        assert batch.advantages is not None
        live = batch.rows(((batch.advantages != 0) & batch.mask).any(1).nonzero()[:, 0])
        found = await self._gradient(model, live, loss) if len(live) else {"trained_tokens": 0.0}
        adam = wire.adam_params(learning_rate, self._config.optimizer, self._able.clips)
        moved = await self._settled(model.optim_step_async(adam), "an optimizer step")
        norm = (moved.metrics or {}).get("skyrl.ai/grad_norm")
        return found if norm is None else found | {"grad_norm": norm}

    async def _gradient(self, model: Any, batch: Batch, loss: Loss) -> dict[str, float]:
        """Have the server add up a loss's gradient, by a loss of its own or by a linear one; what that came to."""
        if name := native(loss, self._able):
            rows = sent(batch, batch.advantages, sums=self._able.sums)
            asked = wire.clipped(name, rows, 1 - loss.clip_low, 1 + loss.clip_high)
        else:
            known = torch.zeros(()) if loss.kind == "nll" else await self._likelihoods(model, batch)
            rows = sent(batch, coefficients(loss, known, batch), sums=self._able.sums)
            asked = wire.linear(rows, sums=self._able.sums)
        name, data, constants = asked
        answer = await self._settled(model.forward_backward_async(data, name, constants), f"the gradient of {name}")
        self._refuse_another_kind(answer.metrics)
        logprobs = received(batch, rows, [output["logprobs"].tolist() for output in answer.loss_fn_outputs])
        tokens = {"trained_tokens": float(batch.mask.sum()), "computed_tokens": float(sum(len(r.inputs) for r in rows))}
        return measures(loss, logprobs, batch) | tokens

    def _refuse_another_kind(self, metrics: dict[str, float]) -> None:
        """Servers that sum say what the sum is, SkyRL's JAX backend says nothing; before a weight is moved."""
        sums = any(name.endswith(":sum") for name in metrics)
        if sums != self._able.sums:
            raise ConfigError(
                f"engine.tinker.server = {self._config.tinker.server!r}, but {self._server} answers as one that "
                f"{'sums losses' if sums else 'does not'} (metrics {sorted(metrics)}); say what it is"
            )

    def _end(self, tokens: Sequence[int], sampling: Sampling) -> int | None:
        """How many of the tokens there are up to the first stop string, None where there is none in them."""
        if not sampling.stop:
            return None
        stops = StopStrings(self._vocabulary, sampling.stop)
        return next((i for i, token in enumerate(tokens, 1) if stops.feed(token)), None)

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary.load(self._folder / "tokenizer.json")


def _read(checkpoint: Path) -> Kept:
    try:
        return Kept.model_validate_json((checkpoint / STATE).read_text(encoding="utf-8"))
    except (OSError, ValidationError) as e:
        raise ConfigError(f"{checkpoint / STATE}: not a checkpoint of a Tinker server: {e}") from e


def _name() -> str:
    """A name that no checkpoint has: servers refuse one that is taken."""
    return f"understudy-{uuid.uuid4().hex}"


async def _answered(submitted: Any) -> Any:
    return await (await submitted)
