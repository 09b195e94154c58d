"""Convert episodes to demonstrations, preference pairs or labeled examples, without repetitions.

An episode is successful if it earned the full reward. Episodes with an unparsable call are left out, because their
conversation does not hold the original text. Episodes that failed because of a fault are left out too, and successful
ones with an empty reply, which nothing should imitate.

Each token sequence of an episode is a conversation with its own tools. The history of a program may have replies that
were not sampled there. In demonstrations they have `weight` 0; pairs and labeled examples leave such sequences out.
"""

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, TypeVar

from understudy.core.messages import Message, ToolSpec, strip_endpoint_data
from understudy.core.trajectory import StopReason, Trajectory
from understudy.data.conversations.examples import Demonstration, LabeledExample, PreferencePair, validate_conversation

ExampleT = TypeVar("ExampleT", Demonstration, PreferencePair, LabeledExample)
BalanceKey = Literal["domain", "family", "difficulty"]
TaskKind = tuple[str, str, str]
ToolLookup = Callable[[str], Sequence[ToolSpec]]
"""Returns the agent's tools for tasks of a domain."""


@dataclass
class ExampleSet(Generic[ExampleT]):
    """Training conversations with the kind of their task: domain, family, difficulty."""

    examples: list[tuple[TaskKind, ExampleT]] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    """Number of episodes left out, by reason."""

    def __str__(self) -> str:
        rows = sorted(Counter(kind for kind, _ in self.examples).items())
        lines = [
            f"  {domain:<12} {family:<28} {difficulty:<8} {count:>6,}" for (domain, family, difficulty), count in rows
        ]
        left = ", ".join(f"{count:,} {why}" for why, count in self.skipped.most_common())
        return "\n".join(lines + ([f"  left out: {left}"] if left else []))


def build_demonstrations(episodes: Iterable[Trajectory], tools_of: ToolLookup) -> ExampleSet[Demonstration]:
    """Return the successful episodes as demonstrations."""
    result, seen = ExampleSet[Demonstration](), set[Hashable]()
    for episode in _usable_episodes(episodes, result.skipped, allow_weights=True):
        if not is_success(episode):
            result.skipped["without the full reward"] += 1
        elif _new(episode, seen, result.skipped):
            example = Demonstration(
                task=episode.task_id, messages=tuple(episode.messages), tools=_tools_as_shown(episode, tools_of)
            )
            result.examples.append((_kind(episode), example))
    return result


def build_labeled_examples(episodes: Iterable[Trajectory], tools_of: ToolLookup) -> ExampleSet[LabeledExample]:
    """Return all episodes as labeled examples: True for successful episodes, False for others."""
    result, seen = ExampleSet[LabeledExample](), set[Hashable]()
    for episode in _usable_episodes(episodes, result.skipped):
        if _new(episode, seen, result.skipped):
            columns = {"messages": tuple(episode.messages), "tools": _tools_as_shown(episode, tools_of)}
            result.examples.append(
                (_kind(episode), LabeledExample(task=episode.task_id, **columns, label=is_success(episode)))
            )
    return result


def build_preference_pairs(
    episodes: Iterable[Trajectory], tools_of: ToolLookup, max_per_task: int
) -> ExampleSet[PreferencePair]:
    """Return pairs of a successful and a failed episode of one task that have the same messages before the first reply.

    No episode is used twice.
    """
    result, seen = ExampleSet[PreferencePair](), set[Hashable]()
    alike: dict[Hashable, tuple[list[Trajectory], list[Trajectory]]] = defaultdict(lambda: ([], []))
    for episode in _usable_episodes(episodes, result.skipped):
        if _new(episode, seen, result.skipped):
            begin = tuple(map(_content, episode.messages[: episode.reply_indices[0]]))
            alike[episode.task_id, begin][not is_success(episode)].append(episode)
    for wins, losses in alike.values():
        pairs = list(zip(wins, losses, strict=False))[:max_per_task]
        result.skipped["without an episode of the opposite outcome"] += len(wins) + len(losses) - 2 * len(pairs)
        for better, worse in pairs:
            both = {"chosen": tuple(better.messages), "rejected": tuple(worse.messages)}
            example = PreferencePair(task=better.task_id, **both, tools=_tools_as_shown(better, tools_of))
            result.examples.append((_kind(better), example))
    result.skipped = +result.skipped
    return result


def balance_examples(
    examples: ExampleSet[ExampleT], max_per_group: int, by: BalanceKey, seed: int
) -> ExampleSet[ExampleT]:
    """Keep a random sample of at most `max_per_group` examples of each group, in their original order.

    A group is a domain, or a family or difficulty within a domain.
    """
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for place, (kind, _) in enumerate(examples.examples):
        groups[kind[0], {"domain": "", "family": kind[1], "difficulty": kind[2]}[by]].append(place)
    selected: set[int] = set()
    for key, places in groups.items():
        selected.update(random.Random(f"{seed}/{key}").sample(places, min(max_per_group, len(places))))
    more = len(examples.examples) - len(selected)
    left = examples.skipped + Counter({f"more than {max_per_group} of a {by}": more})
    return ExampleSet([each for place, each in enumerate(examples.examples) if place in selected], left)


def is_success(episode: Trajectory) -> bool:
    """Return whether an episode earned the full reward."""
    return episode.score is not None and episode.score.reward >= 1.0 - 1e-9


def _usable_episodes(
    episodes: Iterable[Trajectory], left: Counter[str], allow_weights: bool = False
) -> Iterator[Trajectory]:
    """Yield each sequence of the usable episodes as an episode of its own."""
    for episode in episodes:
        messages = [message for sequence in episode.sequences for message in sequence.messages]
        if episode.stop_reason is StopReason.FAULT or episode.score is None:
            left[f"with a fault of the {episode.fault}"] += 1
        elif any(call.parse_error for message in messages for call in message.tool_calls):
            left["with calls that could not be parsed"] += 1
        elif not episode.num_turns:
            left["without a reply"] += 1
        elif is_success(episode) and any(map(_is_empty_reply, messages)):
            left["with an empty reply"] += 1
        else:
            yield from _conversations(episode, left, allow_weights)


def _conversations(episode: Trajectory, left: Counter[str], allow_weights: bool) -> Iterator[Trajectory]:
    for sequence in episode.sequences:
        given = sequence.given_replies
        untrained = set() if sequence.tools is None else {*given}
        located = enumerate(map(strip_endpoint_data, sequence.messages))
        shown = [message.replace(weight=0) if place in untrained else message for place, message in located]
        if untrained and not allow_weights:
            left["with replies that were sampled elsewhere"] += 1
        elif not _is_conversation(shown):
            left["with a history that no row can hold"] += 1
        else:
            yield replace(episode, messages=shown, given_replies=given, tools=sequence.tools, branches=[])


def _is_conversation(messages: Sequence[Message]) -> bool:
    """Return whether messages can be read back. A program may send any history."""
    try:
        validate_conversation(tuple(messages))
    except ValueError:
        return False
    return all(after.role == "tool" for before, after in itertools.pairwise(messages) if before.tool_calls)


def _is_empty_reply(message: Message) -> bool:
    return message.role == "assistant" and not message.content and not message.tool_calls


def _new(episode: Trajectory, seen: set[Hashable], left: Counter[str]) -> bool:
    """Return whether no earlier episode had the same content."""
    content = tuple((_content(message), message.weight) for message in episode.messages)
    if content in seen:
        left["that repeat an earlier one"] += 1
        return False
    seen.add(content)
    return True


def _content(message: Message) -> Hashable:
    """Return a message without the ids of its calls."""
    calls = tuple(call.model_dump_json(exclude={"id"}) for call in message.tool_calls)
    return message.role, message.content, calls


def _kind(episode: Trajectory) -> TaskKind:
    return episode.domain, episode.family, episode.difficulty


def _tools_as_shown(episode: Trajectory, shown: ToolLookup) -> tuple[ToolSpec, ...]:
    """Return the tools as the agent saw them, without aliases."""
    return tuple(spec.without_aliases() for spec in episode.shown_tools(shown(episode.domain)))
