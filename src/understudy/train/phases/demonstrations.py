"""Demonstrations of `sft.dataset_file` as token sequences, with the prompts and masks that sampled episodes have.

If their system message or tools differ from the domain's, SFT trains on prompts that RL never uses. Notes say so
before training starts.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from understudy.core.errors import ConfigError
from understudy.core.items import Item
from understudy.core.messages import ToolSpec
from understudy.core.tasks import Score
from understudy.core.trajectory import StopReason, Trajectory
from understudy.data.conversations.conversations import read_examples, valid_examples
from understudy.data.conversations.examples import Demonstration
from understudy.data.conversations.outcomes import ReadingNotes
from understudy.envs.task_source import TaskSource, list_sources
from understudy.formats import ChatFormat
from understudy.rollouts.supervised import build_supervised_example
from understudy.runs.config import SFTConfig


def read_demonstrations(
    sft: SFTConfig, max_tokens: int, domain: TaskSource, format: ChatFormat
) -> tuple[list[Trajectory], list[str]]:
    """Return the demonstrations of `sft.dataset_file`, if it is set, and notes on how they differ from the domain.

    Demonstrations of more than `max_tokens` tokens are dropped, and a note gives their number. Raise ConfigError if one
    cannot be rendered in the model's format, or if there is no demonstration to train on.
    """
    if not sft.dataset_file:
        if not sft.num_demonstrations:
            raise ConfigError(
                "sft.num_demonstrations = 0 without sft.dataset_file: SFT has no data; set one of them, or sft.steps=0"
            )
        return [], []
    read = ReadingNotes()
    path = Path(os.path.expanduser(sft.dataset_file))
    found = list(valid_examples(read_examples(path, Demonstration, sft.min_reward, read), path))
    notes = [*read.lines("sft.min_reward=0"), *prompt_mismatch_notes(found, domain)]
    episodes = [_to_trajectory(item, format) for item in found]
    fitting = [episode for episode in episodes if len(episode.tokens) <= max_tokens]
    if not fitting:
        raise ConfigError(
            f"sft.dataset_file {sft.dataset_file} has no demonstration of at most {max_tokens} tokens; raise "
            "limits.max_episode_tokens, or use another file"
        )
    if len(fitting) < len(episodes):
        dropped = f"{len(episodes) - len(fitting)} of {len(episodes)} demonstrations"
        notes.append(f"dropped {dropped} that are longer than limits.max_episode_tokens ({max_tokens})")
    return fitting, [f"{sft.dataset_file}: {line}" for line in notes]


def prompt_mismatch_notes(demonstrations: Sequence[Item[Demonstration]], domain: TaskSource) -> Iterator[str]:
    """Yield a note if demonstrations have another domain policy than the domain, and one if they have other tools."""
    prompts = [
        _Prompt(source.domain_policy.strip(), _without_aliases(source.tool_specs)) for source in list_sources(domain)
    ]
    others = [
        item for item in demonstrations if _domain_policy(item.value) not in {each.domain_policy for each in prompts}
    ]
    if others:
        yield f"{_share(others, demonstrations)} have a different domain policy than {domain.name}"
    others = [
        item for item in demonstrations if _without_aliases(item.value.tools) not in [each.tools for each in prompts]
    ]
    if others:
        nearest = max(prompts, key=lambda each: len(_names(each.tools) & _names(others[0].value.tools)))
        difference = _difference(_without_aliases(others[0].value.tools), nearest.tools)
        hint = ""
        if any(not item.value.tools for item in others):
            hint = (
                "; for rows without tools, `data convert FILE NEW.jsonl --tools TARGET` writes those of a domain or "
                "an MCP file into their column `tools`"
            )
        yield f"{_share(others, demonstrations)} have different tools than {domain.name}: {difference}{hint}"


@dataclass(frozen=True, slots=True)
class _Prompt:
    """The domain policy and the tools in the prompts of a domain."""

    domain_policy: str
    tools: tuple[ToolSpec, ...]


def _without_aliases(tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Return the tools as prompts show them, sorted by name: without aliases."""
    return tuple(sorted((tool.without_aliases() for tool in tools), key=lambda tool: tool.name))


def _domain_policy(demonstration: Demonstration) -> str:
    first = demonstration.messages[0]
    return first.content.strip() if first.role == "system" else ""


def _names(tools: Sequence[ToolSpec]) -> set[str]:
    return {tool.name for tool in tools}


def _share(part: Sequence[Item[Demonstration]], whole: Sequence[Item[Demonstration]]) -> str:
    return f"{len(part)} of {len(whole)} demonstrations (the first: {part[0].location})"


def _difference(stored: Sequence[ToolSpec], current: Sequence[ToolSpec]) -> str:
    missing, further = sorted(_names(current) - _names(stored)), sorted(_names(stored) - _names(current))
    if missing or further:
        parts = (("without", missing), ("with", further))
        return "; ".join(f"{word} {', '.join(names)}" for word, names in parts if names)
    changed = [one.name for one, other in zip(stored, current, strict=True) if one != other]
    return f"different specifications of {', '.join(changed)}"


def _to_trajectory(item: Item[Demonstration], format: ChatFormat) -> Trajectory:
    try:
        episode = build_supervised_example(item.value.messages, item.value.tools, format, item.value.task)
    except ConfigError as e:
        raise ConfigError(f"{item.location}: {e}") from e
    episode.score, episode.stop_reason = Score(reward=1.0), StopReason.DONE
    return episode
