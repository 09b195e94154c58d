"""Features of Tinker API servers, and checks of a config against them. Importing it does not import torch."""

from collections.abc import Iterator
from dataclasses import dataclass

from understudy.algorithms.config import LossConfig
from understudy.engines.interface import SamplingParams
from understudy.engines.reference_config import ReferenceConfig
from understudy.engines.tinker.config import TinkerEngineConfig, TinkerOptimizerConfig
from understudy.engines.unsupported import UnsupportedSetting


@dataclass(frozen=True, slots=True)
class ServerCapabilities:
    """How one kind of server handles requests."""

    sums_losses: bool
    """True if a loss is a sum over tokens. Otherwise it is the mean over rows of each row's weighted mean."""
    native_losses: tuple[str, ...]
    """Losses that the server implements. For others it gets a linear loss with the same gradient."""
    clips_gradients: bool
    """True if an optimizer step can clip gradients."""
    sets_adam_betas: bool
    """True if an optimizer step can set Adam's constants."""
    sets_weight_decay: bool
    """True if an optimizer step can set weight decay."""


SERVER_CAPABILITIES = {
    "skyrl-jax": ServerCapabilities(
        sums_losses=False,
        native_losses=("ppo", "cispo"),
        clips_gradients=False,
        sets_adam_betas=True,
        sets_weight_decay=False,
    ),
    "skyrl-train": ServerCapabilities(
        sums_losses=True, native_losses=(), clips_gradients=False, sets_adam_betas=False, sets_weight_decay=False
    ),
    "hosted": ServerCapabilities(
        sums_losses=True,
        native_losses=("ppo", "cispo"),
        clips_gradients=True,
        sets_adam_betas=True,
        sets_weight_decay=True,
    ),
}
"""Read from SkyRL 0.3.0 and the client library 0.24.1."""


def unsupported_by_server(engine: TinkerEngineConfig) -> Iterator[UnsupportedSetting]:
    """Yield what is missing in an engine's config, and optimizer settings that its server does not take."""
    if not engine.base_url:
        yield UnsupportedSetting("engine.base_url", "", "set it to the server's address, such as http://127.0.0.1:8000")
    if not engine.server_kind:
        kinds = ", ".join(SERVER_CAPABILITIES)
        reason = f"set the kind of server, which determines how it reduces losses: {kinds}"
        yield UnsupportedSetting("engine.server_kind", "", reason)
        return
    able = SERVER_CAPABILITIES[engine.server_kind]
    takes = {
        "max_grad_norm": able.clips_gradients,
        "beta1": able.sets_adam_betas,
        "beta2": able.sets_adam_betas,
        "eps": able.sets_adam_betas,
        "weight_decay": able.sets_weight_decay,
    }
    for name, is_taken in takes.items():
        value = getattr(engine.optimizer, name)
        if not is_taken and value != getattr(TinkerOptimizerConfig(), name):
            reason = f"engine.server_kind = {engine.server_kind!r} does not support it; leave it out"
            yield UnsupportedSetting(f"engine.optimizer.{name}", value, reason)


def unsupported_sampling(sampling: SamplingParams, section: str) -> Iterator[UnsupportedSetting]:
    """Yield sampling parameters that the API does not support."""
    if sampling.temperature not in (0.0, 1.0):
        reason = "the Tinker API returns log-probabilities at temperature 1; allowed: 1, and 0 for greedy decoding"
        yield UnsupportedSetting(f"{section}.temperature", sampling.temperature, reason)
    for name in ("min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"):
        if getattr(sampling, name) != getattr(SamplingParams(), name):
            reason = "the Tinker API does not support it; leave it out"
            yield UnsupportedSetting(f"{section}.{name}", getattr(sampling, name), reason)


def unsupported_reference(reference: ReferenceConfig) -> Iterator[UnsupportedSetting]:
    """Yield the reference's kind unless it is `frozen`, the only kind that the API supports."""
    if reference.kind != "frozen":
        reason = "a Tinker API server can only hold a copy of the adapters; allowed: 'frozen'"
        yield UnsupportedSetting("algorithm.reference.kind", reference.kind, reason)


def native_loss_name(loss: LossConfig, capabilities: ServerCapabilities) -> str:
    """Return the server's name of a loss that it implements, or an empty string. No server has dual clipping."""
    return loss.kind if loss.kind in capabilities.native_losses and not loss.dual_clip else ""
