"""Sends an engine's weights to vLLM as files in a shared folder: LoRA adapters or the whole model.

Every version that is sent has a unique label. An adapter is loaded under its label as name, so that vLLM never reuses
prefixes computed by another adapter. For the whole model the label is vLLM's weight version.
"""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

from understudy.engines.vllm.client import INITIAL_WEIGHT_VERSION, SERVED_MODEL_NAME, VllmBackend, VllmUnavailable

WriteWeights = Callable[[Path], None]
"""Writes the current weights or adapters to a folder, for transformers or peft."""


class WeightSync:
    """Tracks which version of an engine's weights vLLM has."""

    def __init__(self, write: WriteWeights, folder: Path, *, lora: bool) -> None:
        """`folder` belongs to this object alone. Its name makes the labels unique."""
        self._write, self._folder, self._lora = write, folder, lora
        self._changes = self._sent = self._sends = 0
        self.version_label = ""
        """Label of the weights that vLLM has, or empty if unknown."""

    @property
    def is_current(self) -> bool:
        """True if vLLM has the current weights."""
        return bool(self.version_label) and self._sent == self._changes

    def mark_changed(self) -> None:
        """Record that the weights have changed."""
        self._changes += 1

    def mark_unknown(self) -> None:
        """Record that it is unknown which weights vLLM has."""
        self.version_label = ""

    @property
    def model_name(self) -> str:
        """Model name for requests to vLLM."""
        return self.version_label if self._lora else SERVED_MODEL_NAME

    @property
    def weight_version(self) -> str:
        """Weight version that vLLM's replies must carry."""
        return INITIAL_WEIGHT_VERSION if self._lora else self.version_label

    async def sync(self, vllm: VllmBackend) -> None:
        """Send the current weights to vLLM, unless it was started with them."""
        changes, previous = self._changes, self.version_label
        if vllm.is_owned and not changes and not self._lora:
            self.version_label = INITIAL_WEIGHT_VERSION
            return
        self._sends += 1
        label = f"{self._folder.name}-{self._sends}"
        folder = self._folder / label
        self._write(folder)
        try:
            await self._hand_over(vllm, folder, label, previous)
        finally:
            shutil.rmtree(folder)
        self.version_label, self._sent = label, changes

    async def _hand_over(self, vllm: VllmBackend, folder: Path, label: str, previous: str) -> None:
        if not self._lora:
            await vllm.reload_weights(folder, label)
            return
        await vllm.load_adapter(label, folder)
        if previous:
            with contextlib.suppress(VllmUnavailable):  # a restarted vLLM no longer has it
                await vllm.unload_adapter(previous)
