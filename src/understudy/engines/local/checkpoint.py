"""Checkpoints of a local engine: master weights, moments, reference and critic in one safetensors file."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from understudy.core.errors import ConfigError
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.model import LocalModel
from understudy.engines.local.optimizer import MasterAdamW, load_master_weights
from understudy.engines.local.reference import ReferenceModel, restore_reference
from understudy.engines.local.value_head import ValueHead
from understudy.engines.process_group import ProcessGroup
from understudy.engines.reference_config import ReferenceConfig

STATE_FILE = "optimizer.safetensors"
_ABOUT = "about"
"""Key of the file's metadata: a JSON object with the `version` of the weights and the config of the `reference`."""
_REFERENCE_PREFIX = "reference."


def prepare_checkpoint(
    model: LocalModel,
    optimizer: MasterAdamW,
    reference: ReferenceModel | None,
    critic: ValueHead | None,
    version: int,
    process_group: ProcessGroup,
) -> Callable[[Path], None]:
    """Return a function that writes a checkpoint into a folder. All ranks call both; rank 0 writes.

    It reads the tensors of now, which must not change until it returns. Those of a GPU are copied here: while the
    sampler records a CUDA graph, another thread must not call CUDA.
    """
    shards = model.fsdp_shards
    tensors = {name: tensor.contiguous() for name, tensor in optimizer.state_dict().items()}
    about: dict[str, Any] = {"version": version}
    if reference is not None:
        for name, tensor in reference.state_dict().items():
            tensors[f"{_REFERENCE_PREFIX}{name}"] = shards.gather(name, tensor) if shards else tensor
        about["reference"] = reference.config.model_dump(mode="json")
    if critic is not None:
        tensors |= critic.state_dict()
    on_host = {name: tensor.cpu() for name, tensor in tensors.items()} if process_group.rank == 0 else {}

    def write(path: Path) -> None:
        if process_group.rank == 0:
            with safetensors_errors_as_os_errors():
                # One entry, because safetensors writes several in a random order.
                save_file(on_host, path / STATE_FILE, {_ABOUT: json.dumps(about, sort_keys=True)})

    return write


def load_checkpoint(
    path: Path, model: LocalModel, optimizer: MasterAdamW | None, critic: ValueHead | None, config: LocalEngineConfig
) -> tuple[int, ReferenceModel | None]:
    """Load weights, moments and critic. Return the number of updates of the weights, and the reference.

    Without an optimizer, only the weights are loaded. Raise ConfigError if the folder has no checkpoint of this model
    and way of finetuning.
    """
    try:
        with safe_open(path / STATE_FILE, framework="pt") as file:
            about = json.loads(file.metadata()[_ABOUT])
            reference = None
            if optimizer is None:
                load_master_weights(file, model.trainable_parameters(), model.fsdp_shards)
            else:
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
                optimizer.load_state_dict(tensors)
                reference = _load_reference(about.get("reference"), tensors, model, config)
                if critic is not None:
                    critic.load_state_dict(tensors)
            return int(about["version"]), reference
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as e:
        raise ConfigError(f"{path / STATE_FILE}: not a checkpoint of this model and engine.finetune: {e}") from e


def _load_reference(
    stored: Any, tensors: Mapping[str, Tensor], model: LocalModel, config: LocalEngineConfig
) -> ReferenceModel | None:
    """Return the reference with the `stored` config, or None if a checkpoint has none."""
    if not stored:
        return None
    shards, weights = model.fsdp_shards, dict[str, Tensor]()
    for key, tensor in tensors.items():
        if key.startswith(_REFERENCE_PREFIX):
            name, weight = key.removeprefix(_REFERENCE_PREFIX), tensor.to(model.device)
            weights[name] = shards.shard(name, weight) if shards else weight
    return restore_reference(ReferenceConfig.model_validate(stored), weights, model, config)


@contextlib.contextmanager
def safetensors_errors_as_os_errors() -> Iterator[None]:
    """Turn safetensors' error for a failed write, such as on a full disk, into OSError."""
    try:
        yield
    except SafetensorError as e:
        raise OSError(str(e)) from e
