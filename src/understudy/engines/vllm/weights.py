"""How an engine's weights get to vLLM: as files in a folder that both see, LoRA adapters or the whole model.

Whatever is sent has a label of its own. An adapter is loaded under it as its name, so that no prefix computed by
another one is ever taken for its own; whole weights carry it as vLLM's weight version.
"""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

from understudy.engines.vllm.endpoint import MODEL, UNTOUCHED, Lost, Vllm

Write = Callable[[Path], None]
"""Writes the current weights, or adapters, to a folder as transformers and peft do."""


class Weights:
    """An engine's weights, and what vLLM has of them."""

    def __init__(self, write: Write, folder: Path, *, lora: bool) -> None:
        """`folder` is this object's alone: its name makes the labels unlike those of other runs."""
        self._write, self._folder, self._lora = write, folder, lora
        self._changes = self._sent = self._sends = 0
        self.label = ""
        """Of what vLLM has; empty where that is not known."""

    @property
    def current(self) -> bool:
        """Whether vLLM has the weights as they are."""
        return bool(self.label) and self._sent == self._changes

    def changed(self) -> None:
        """They are others now than before."""
        self._changes += 1

    def lost(self) -> None:
        """What vLLM has is not known any more."""
        self.label = ""

    @property
    def model(self) -> str:
        """The name by which vLLM is asked for replies."""
        return self.label if self._lora else MODEL

    @property
    def weight_version(self) -> str:
        """What vLLM says of the weights of its replies."""
        return UNTOUCHED if self._lora else self.label

    async def send(self, vllm: Vllm) -> None:
        """Give vLLM the weights, unless they are those that it was started with."""
        changes, previous = self._changes, self.label
        if vllm.owned and not changes and not self._lora:
            self.label = UNTOUCHED
            return
        self._sends += 1
        label = f"{self._folder.name}-{self._sends}"
        folder = self._folder / label
        self._write(folder)
        try:
            await self._hand_over(vllm, folder, label, previous)
        finally:
            shutil.rmtree(folder)
        self.label, self._sent = label, changes

    async def _hand_over(self, vllm: Vllm, folder: Path, label: str, previous: str) -> None:
        if not self._lora:
            await vllm.reload(folder, label)
            return
        await vllm.load_adapter(label, folder)
        if previous:
            with contextlib.suppress(Lost):  # it is gone already where vLLM was started anew by somebody else
                await vllm.unload_adapter(previous)
