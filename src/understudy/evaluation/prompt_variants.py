"""Other wordings of the system message, to measure how much an agent's success depends on its wording.

Wording moves scores far more than a rerun does (arXiv 2608.22331), so a rate under one wording says little about
another. Each repeat of an evaluation has a wording of its own; the first has the message as written.
"""

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from understudy.core.errors import ConfigError, no_such_path
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.records import Record
from understudy.core.tasks import Task
from understudy.envs.environment import Environment, ExtendableEnvironment, StepResult
from understudy.evaluation.result import EvalResult
from understudy.rollouts.rollout import EnvironmentFactory

AS_WRITTEN = "as written"
PLACEHOLDER = "{prompt}"
_SEPARATOR = re.compile(r"^---[ \t]*$", re.MULTILINE)
_BULLET = re.compile(r"^(\s*)[-*] ", re.MULTILINE)
_SHORT_FORMS = {
    r"\b(do|does|is|are|was|has|have) not\b": r"\1n't",
    r"\bcannot\b": "can't",
    r"\bYou are\b": "You're",
    r"\bIt is\b": "It's",
    r"\bBefore\b": "Prior to",
    r"\bonly\b": "solely",
    r"\ballowed\b": "permitted",
}


def _without_markdown(text: str) -> str:
    """Turn titles into lines that end with a colon, and remove bullets and bold type."""
    titled = re.sub(r"^#+ *(.*)$", r"\1:", text, flags=re.MULTILINE)
    return _BULLET.sub(r"\1", titled.replace("**", ""))


def _numbered(text: str) -> str:
    """Number the items of each list, and call its title a section."""
    lines, number = list[str](), 0
    for line in text.splitlines():
        number = 0 if line.startswith("#") else number
        if found := re.match(r"[-*] ", line):
            number += 1
            line = f"{number}. {line[found.end() :]}"
        lines.append(line)
    return "\n".join(lines)


def _in_short_forms(text: str) -> str:
    for pattern, replacement in _SHORT_FORMS.items():
        text = re.sub(pattern, replacement, text)
    return text


def _unwrapped(text: str) -> str:
    """Join the lines of each paragraph and of each list item."""
    return re.sub(r"(?<=\S)\n[ \t]*(?=[^\s#*-])", " ", text)


WORDINGS: dict[str, Callable[[str], str]] = {
    AS_WRITTEN: lambda text: text,
    "as an assistant": lambda text: f"You are a helpful assistant that can call tools.\n\n{text}",
    "plain text": _without_markdown,
    "short forms": _in_short_forms,
    "in tags": lambda text: f"<instructions>\n{text.strip()}\n</instructions>\nFollow these instructions.",
    "numbered lists": _numbered,
    "reminder": lambda text: f"{text.rstrip()}\n\nKeep to all of this in every message, until the conversation ends.",
    "unwrapped": _unwrapped,
}
"""The shipped wordings by name. None of them adds a rule or takes one away."""


class PromptSpread(Record):
    """How much an agent's success depends on the wording of the system message."""

    rates: dict[str, float]
    """Success rate under each wording."""

    @property
    def deviation(self) -> float:
        """Standard deviation of the rates over the wordings."""
        return statistics.stdev(self.rates.values())

    def __str__(self) -> str:
        worst, best = min(self.rates, key=lambda name: self.rates[name]), max(self.rates, key=lambda n: self.rates[n])
        return (
            f"Wording of the system message: success is between {self.rates[worst]:.3f} ({worst}) and "
            f"{self.rates[best]:.3f} ({best}), with a standard deviation of {self.deviation:.3f} over "
            f"{len(self.rates)} wordings."
        )


def measure_prompt_spread(names: Sequence[str], results: Sequence[EvalResult]) -> PromptSpread | None:
    """Return the spread over wordings; None if there is one only, or if one has no score."""
    rates = [result.success_rate for result in results]
    if len(names) < 2 or not all(rate.tasks for rate in rates):
        return None
    return PromptSpread(rates={name: rate.mean for name, rate in zip(names, rates, strict=True)})


def read_wordings(given: str) -> dict[str, str]:
    """Return wordings by name: the first ones of `WORDINGS` for a number, else those of a text file.

    The values are the texts of a file, and empty for shipped wordings. Raise ConfigError if there are none.
    """
    if given.isdecimal():
        if not 2 <= int(given) <= len(WORDINGS):
            raise ConfigError(f"{given} wordings; give 2 to {len(WORDINGS)}, or a file of your own wordings")
        return dict.fromkeys([*WORDINGS][: int(given)], "")
    path = Path(given)
    if not path.is_file():
        raise ConfigError(f"{no_such_path(given)}; give a number from 2 to {len(WORDINGS)}, or a text file of wordings")
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path} is no text file of wordings ({e}); give one in UTF-8") from e
    texts = [text.strip() for text in _SEPARATOR.split(content) if text.strip()]
    if not texts:
        raise ConfigError(f"{path} has no wordings; write them as texts between lines of ---")
    return {AS_WRITTEN: ""} | {f"{path.name} {number}": text for number, text in enumerate(texts, 1)}


class RewordedPrompts:
    """Environments whose system message has another wording: a shipped one, or that of a text.

    In a text, `{prompt}` stands for the message as written. Without it, the text replaces the message.
    """

    def __init__(self, environments: EnvironmentFactory, name: str, text: str = "") -> None:
        self._environments, self._name, self._text = environments, name, text

    def environment(self, task: Task, *, seed: int) -> Environment:
        """Return a new environment for one episode of `task`."""
        return _RewordedEnvironment(self._environments.environment(task, seed=seed), self._reword)

    def _reword(self, prompt: str) -> str:
        return self._text.replace(PLACEHOLDER, prompt) if self._text else WORDINGS[self._name](prompt)


class _RewordedEnvironment:
    def __init__(self, environment: Environment, reword: Callable[[str], str]) -> None:
        self._environment, self._reword = environment, reword
        self.step, self.grade, self.close = environment.step, environment.grade, environment.close

    @property
    def tools(self) -> Sequence[ToolSpec]:
        return self._environment.tools

    async def start(self) -> StepResult:
        step = await self._environment.start()
        return replace(step, messages=tuple(map(self._reworded, step.messages)))

    async def extend_reply(self, call: ToolCall) -> StepResult | None:
        if not isinstance(self._environment, ExtendableEnvironment):
            return None
        return await self._environment.extend_reply(call)

    def _reworded(self, message: Message) -> Message:
        return message.replace(content=self._reword(message.content)) if message.role == "system" else message
