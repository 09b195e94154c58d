"""Phrases: the wording of tasks, in files `phrases.toml`, and the sampler that draws from them."""

import random
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from understudy.core.tasks import Split

HELD_OUT_EVERY = 3
"""Every third phrase of a list occurs in the test split only."""


class PhraseSampler:
    """Sampler of the wording of one task, from lists of phrases with the same meaning.

    The random stream is separate from the one that draws the world and the goals, so phrases can be added or changed
    without changing what a task is about. Every third phrase of a list (index 2, 5, …) is held out for the test
    split: test tasks draw only from these, and training and validation tasks only from the others. All splits draw
    from all phrases of a list with fewer than three.
    """

    def __init__(self, task_id: str, split: Split, texts: Mapping[str, Sequence[str]] | None = None) -> None:
        """Seed the draws with the task's id. `texts` are the named lists, as `load_phrases` returns them."""
        self.rng = random.Random(f"wording of {task_id}")
        """Generator for wording that is computed, such as the form of a date."""
        self.texts = texts or {}
        self._split = split

    def choose(self, texts: Sequence[str]) -> str:
        """Return one of the texts that the split may use."""
        if len(texts) < HELD_OUT_EVERY:
            return self.rng.choice(texts)
        is_test = self._split == "test"
        return self.rng.choice([text for i, text in enumerate(texts, 1) if (i % HELD_OUT_EVERY == 0) == is_test])


def load_phrases(package: str) -> dict[str, list[str]]:
    """Return the lists of phrases in `phrases.toml` of a domain's package by name, and those that all domains share.

    A list in a table has both names: `why.late` is the list `late` of the table `[why]`.
    """
    texts: dict[str, list[str]] = {}
    for file in (Path(__file__).with_name("phrases.toml"), resources.files(package) / "phrases.toml"):
        for name, value in tomllib.loads(file.read_text(encoding="utf-8")).items():
            if isinstance(value, list):
                texts[name] = value
            else:
                texts |= {f"{name}.{key}": phrases for key, phrases in value.items()}
    return texts
