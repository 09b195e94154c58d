"""What a server of the Tinker API cannot do, said before anything is asked of it. Torch-free."""

import math
from dataclasses import dataclass

from understudy.algorithms.options import Loss
from understudy.engines.base import Sampling
from understudy.engines.local.config import LocalConfig, Lora, Optimizer
from understudy.engines.reference import ReferenceConfig
from understudy.engines.tinker.config import ALPHA
from understudy.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Abilities:
    """What one kind of server makes of a request."""

    sums: bool
    """Whether a loss is a sum. Else it is the mean over sequences of what each comes to over the sum of its weights."""
    losses: tuple[str, ...]
    """Those of ours that it has by itself; of the others it is given the gradient."""
    clips: bool
    """Whether a step may ask for clipped gradients."""
    adam: bool
    """Whether a step may say the constants of Adam."""
    decays: bool
    """Whether a step may ask for weight decay."""


ABILITIES = {
    "skyrl-jax": Abilities(sums=False, losses=("policy", "cispo"), clips=False, adam=True, decays=False),
    "skyrl-train": Abilities(sums=True, losses=(), clips=False, adam=False, decays=False),
    "hosted": Abilities(sums=True, losses=("policy", "cispo"), clips=True, adam=True, decays=True),
}
"""Read from SkyRL 0.3.0, and from the client library 0.24.1."""
_UP_TO_THE_SERVER = (
    *("device", "sampler", "dtype", "train_embeddings", "checkpointing", "sharding"),
    *("tokens_per_microbatch", "rows", "threads", "vllm"),
)


def abilities(engine: LocalConfig) -> Abilities:
    """What the server of a config can do; a `ConfigError` for a config that asks for more."""
    settings = engine.tinker
    if not settings.base_url:
        raise ConfigError("engine.tinker.base_url is empty: say where the server is, such as http://127.0.0.1:8000")
    if not settings.server:
        raise ConfigError(
            f"engine.tinker.server is empty: say what {settings.base_url} is, one of {', '.join(ABILITIES)}; "
            "it decides what a loss means there"
        )
    able = ABILITIES[settings.server]
    _refuse_ours(engine)
    _refuse_adapters(engine)
    _refuse_optimizer(engine.optimizer, able, settings.server)
    return able


def refuse_sampling(sampling: Sampling, section: str) -> None:
    """A `ConfigError` for what the API has no word for, or what it means otherwise."""
    if sampling.temperature not in (0.0, 1.0):
        raise ConfigError(
            f"{section}.temperature = {sampling.temperature}: the Tinker API tells log-probabilities of temperature 1 "
            "whatever tokens were drawn at; allowed: 1, and 0, the most likely token"
        )
    for name in ("min_p", "repetition_penalty"):
        if getattr(sampling, name) != getattr(Sampling(), name):
            raise ConfigError(f"{section}.{name} = {getattr(sampling, name)}: the Tinker API has no such option")


def refuse_reference(reference: ReferenceConfig) -> None:
    """A `ConfigError` for references other than the policy as it was."""
    if reference.kind != "frozen":
        raise ConfigError(
            f"algorithm.reference.kind = {reference.kind!r}: a server of the Tinker API keeps adapters of one model as "
            "they were, and nothing else; allowed: 'frozen'"
        )


def no_values() -> ConfigError:
    """Why there is no critic."""
    return ConfigError(
        "algorithm.advantage = 'gae': a critic cannot be trained beside the policy through the Tinker API; choose an "
        "advantage that compares the episodes of a group, such as 'group'"
    )


def refuse_second_phase(engine: LocalConfig, phases: int) -> None:
    """A `ConfigError` where a phase that begins anew follows another, and the server cannot forget Adam's moments."""
    if phases > 1 and not ABILITIES[engine.tinker.server].adam:
        raise ConfigError(
            f"a warm start before reinforcement: engine.tinker.server = {engine.tinker.server!r} cannot forget the "
            "optimizer's moments between them; set sft.steps=0 and preferences.steps=0"
        )


def native(loss: Loss, able: Abilities) -> str:
    """What the server calls a loss of ours; empty where it is given the gradient."""
    return {"policy": "ppo", "cispo": "cispo"}[loss.kind] if loss.kind in able.losses else ""


def _refuse_ours(engine: LocalConfig) -> None:
    plain = LocalConfig()
    for name in _UP_TO_THE_SERVER:
        if getattr(engine, name) != getattr(plain, name):
            raise ConfigError(
                f"engine.{name} = {getattr(engine, name)!r}: with engine.kind = 'tinker' that is up to the server; "
                "leave it out"
            )


def _refuse_adapters(engine: LocalConfig) -> None:
    if engine.finetune != "lora":
        raise ConfigError(
            f"engine.finetune = {engine.finetune!r}: through the Tinker API LoRA adapters are trained; set "
            "engine.finetune=lora, or leave it out"
        )
    lora = engine.lora
    given = {"alpha": (lora.alpha, ALPHA), "dropout": (lora.dropout, 0.0), "targets": (lora.targets, Lora().targets)}
    for name, (value, allowed) in given.items():
        if value != allowed:
            raise ConfigError(
                f"engine.lora.{name} = {value!r}: servers of the Tinker API have {allowed!r}, and no request changes "
                "that; leave it out"
            )


def _refuse_optimizer(optimizer: Optimizer, able: Abilities, server: str) -> None:
    plain = Optimizer(max_grad_norm=math.inf)
    asked = {"max_grad_norm": able.clips, "beta1": able.adam, "beta2": able.adam, "weight_decay": able.decays}
    for name, allowed in asked.items():
        if not allowed and getattr(optimizer, name) != getattr(plain, name):
            raise ConfigError(
                f"engine.optimizer.{name} = {getattr(optimizer, name)}: engine.tinker.server = {server!r} does not "
                "take it from a request; leave it out"
            )
