"""Demonstrations out of a file, in the model's tokens: the same prompts and masks as of episodes that it samples.

What they tell and show may be something else than what the domain does. Then the warm start teaches for prompts that
reinforcement never gives, which is said before either begins.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from understudy.config import SFTConfig
from understudy.data.conversations import demonstrations
from understudy.data.items import Item, strict
from understudy.data.preferences import Demonstration
from understudy.domains.base import TaskSource
from understudy.domains.mixture import parts_of
from understudy.errors import ConfigError
from understudy.formats import ChatFormat
from understudy.messages import ToolSpec
from understudy.retold import retold
from understudy.tasks import Score
from understudy.trajectory import Stop, Trajectory


def read_demonstrations(
    sft: SFTConfig, most: int, domain: TaskSource, format: ChatFormat
) -> tuple[list[Trajectory], list[str]]:
    """The demonstrations of `sft.file`, if there is one, and a line for what of them is not as the domain has it.

    One that cannot be written in the model's format is a ConfigError. Those that are longer than `most` tokens are left
    out, and counted.
    """
    if not sft.file:
        if not sft.demonstrations:
            raise ConfigError("sft.demonstrations = 0 without sft.file: there is nothing to imitate; set sft.steps=0")
        return [], []
    found = list(strict(demonstrations(Path(sft.file).expanduser())))
    notes = list(misfits(found, domain))
    episodes = [_retold(item, format) for item in found]
    kept = [episode for episode in episodes if len(episode.tokens) <= most]
    if not kept:
        raise ConfigError(f"{sft.file} holds no demonstration of at most {most} tokens")
    if len(kept) < len(episodes):
        longer = f"{len(episodes) - len(kept)} of {len(episodes)} demonstrations are longer than"
        notes.append(f"{longer} limits.max_tokens ({most}) and left out")
    return kept, [f"{sft.file}: {line}" for line in notes]


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


def _retold(item: Item[Demonstration], format: ChatFormat) -> Trajectory:
    try:
        episode = retold(item.value.messages, item.value.tools, format, item.value.task)
    except ConfigError as e:
        raise ConfigError(f"{item.where}: {e}") from e
    episode.score, episode.stop = Score(reward=1.0), Stop.DONE
    return episode
