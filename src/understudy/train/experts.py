"""What training does not do for a mixture of experts, named at the start of a run."""

import json
from collections.abc import Iterator
from pathlib import Path

from understudy.runs.config import TrainConfig

_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Keys of the number of experts in the configs of models."""


def expert_notes(config: TrainConfig, folder: Path) -> Iterator[str]:
    """Yield a line if the model in `folder` is a mixture of experts and the local engine trains it."""
    if config.engine.kind != "local" or not config.total_steps:
        return
    about = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    about = about.get("text_config", about)
    count = next((about[name] for name in _COUNTS if about.get(name)), 1)
    if count == 1:
        return
    asked = f" although its config asks for one (router_aux_loss_coef = {about.get('router_aux_loss_coef')})"
    loss = f"an update adds no router loss{asked if about.get('output_router_logits') else ''}"
    adapters = "; adapters do not reach the experts or the router" if config.engine.uses_lora else ""
    sampler = ""
    if config.engine.export_engine_config.sampler != "torch":
        sampler = (
            "; if vLLM samples, it may send a token to other experts than the trainer, which certify.every measures "
            "and algorithm.tis_cap=2 corrects"
        )
    yield f"a mixture of {count} experts: {loss}{adapters}{sampler}"
