"""Demonstrations out of a file, in the model's tokens: the same prompts and masks as of episodes that it samples.

What they tell and show may be something else than what the domain does. Then the warm start teaches for prompts that
reinforcement never gives, which is said before either begins.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from understudy.data.conversations import demonstrations
from understudy.data.items import Item, strict
from understudy.data.preferences import Demonstration
from understudy.domains.base import TaskSource
from understudy.domains.mixture import parts_of
from understudy.errors import ConfigError
from understudy.messages import ToolSpec
from understudy.retold import retold
from understudy.tasks import Score
from understudy.train.files import refuse_changed
from understudy.train.state import Training
from understudy.trajectory import Stop, Trajectory


def read_demonstrations(training: Training) -> list[Trajectory]:
    """The demonstrations of `sft.file`, if there is one; says what of them is not as the domain has it.

    One that cannot be written in the model's format is a ConfigError, and so is a file that is not the one that the run
    was begun with. Those that are longer than an episode may be are left out, and counted.
    """
    config = training.config
    if not config.sft.file:
        if not config.sft.demonstrations:
            raise ConfigError("sft.demonstrations = 0 without sft.file: there is nothing to imitate; set sft.steps=0")
        return []
    path = Path(config.sft.file).expanduser()
    found = list(strict(demonstrations(path)))
    refuse_changed(training.run, path, "demonstrations")
    for line in misfits(found, training.domain):
        training.report(f"{config.sft.file}: {line}", 0, 0, {})
    episodes = [_retold(item, training) for item in found]
    kept = [episode for episode in episodes if len(episode.tokens) <= config.limits.max_tokens]
    if len(kept) < len(episodes):
        line = f"{len(episodes) - len(kept)} of {len(episodes)} demonstrations are longer than limits.max_tokens"
        training.report(f"{config.sft.file}: {line} ({config.limits.max_tokens}) and left out", 0, 0, {})
    if not kept:
        raise ConfigError(f"{config.sft.file} holds no demonstration of at most {config.limits.max_tokens} tokens")
    return kept


def misfits(found: Sequence[Item[Demonstration]], domain: TaskSource) -> Iterator[str]:
    """What is not as an agent of the domain is told and shown: policies and tools, each with the first place."""
    told = [_told(part) for part in parts_of(domain)]
    others = [item for item in found if _policy(item.value) not in {each.policy for each in told}]
    if others:
        yield f"{_share(others, found)} have another policy than {domain.name} tells its agents"
    others = [item for item in found if _bare(item.value.tools) not in [each.tools for each in told]]
    if others:
        nearest = max(told, key=lambda each: len(_names(each.tools) & _names(others[0].value.tools)))
        difference = _difference(_bare(others[0].value.tools), nearest.tools)
        yield f"{_share(others, found)} show other tools than {domain.name} does: {difference}"


@dataclass(frozen=True, slots=True)
class _Told:
    """What the agents of a domain are told and shown."""

    policy: str
    tools: tuple[ToolSpec, ...]


def _told(part: TaskSource) -> _Told:
    return _Told(part.policy.strip(), _bare(part.specs))


def _bare(tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """The tools as they are shown, in any order: without the other names that arguments are read under."""
    return tuple(sorted((tool.replace(aliases={}) for tool in tools), key=lambda tool: tool.name))


def _policy(demonstration: Demonstration) -> str:
    first = demonstration.messages[0]
    return first.content.strip() if first.role == "system" else ""


def _names(tools: Sequence[ToolSpec]) -> set[str]:
    return {tool.name for tool in tools}


def _share(some: Sequence[Item[Demonstration]], of: Sequence[Item[Demonstration]]) -> str:
    return f"{len(some)} of {len(of)} demonstrations (the first: {some[0].where})"


def _difference(theirs: Sequence[ToolSpec], ours: Sequence[ToolSpec]) -> str:
    missing, further = sorted(_names(ours) - _names(theirs)), sorted(_names(theirs) - _names(ours))
    if missing or further:
        parts = (("without", missing), ("with", further))
        return "; ".join(f"{word} {', '.join(names)}" for word, names in parts if names)
    changed = [one.name for one, other in zip(theirs, ours, strict=True) if one != other]
    return f"told otherwise: {', '.join(changed)}"


def _retold(item: Item[Demonstration], training: Training) -> Trajectory:
    try:
        episode = retold(item.value.messages, item.value.tools, training.format, item.value.task)
    except ConfigError as e:
        raise ConfigError(f"{item.where}: {e}") from e
    episode.score, episode.stop = Score(reward=1.0), Stop.DONE
    return episode
