"""One episode for the page: messages, state changes, score, and the causes of a failure.

State changes are not stored. They come from a replay of the episode (`replay_episode`), which needs no model. If
replay is not possible, a note says why, and the page shows what is stored.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile, zip_longest
from typing import Any

from understudy.core.errors import TaskError
from understudy.core.event_loop import BACKGROUND_LOOP
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.records import Record
from understudy.core.tasks import Task
from understudy.core.trajectory import TokenSequence, Trajectory
from understudy.envs.grading import PartEvidence, affects_reward, explain_part
from understudy.envs.state_diff import StateEdit, diff_states
from understudy.envs.task_source import StatefulSource, TaskSource, find_missing_facts, find_source
from understudy.evaluation.failures.case import build_case
from understudy.evaluation.failures.causes import FAILURE_KINDS
from understudy.evaluation.failures.rules import explain_failure
from understudy.rollouts.replay import ReplayedTurn, ReplayResult, replay_episode


class CallView(Record):
    """One tool call and its result."""

    name: str
    arguments: dict[str, Any] = {}
    malformed: str = ""
    result: str | None = None
    """None if the episode ended before the result."""
    error: str = ""
    """The kind of the error; "" if the call succeeded."""


class MessageView(Record):
    """One message. The results of tool calls are in `calls` of the message that made them."""

    index: int
    """Its index in the episode's messages, from 0."""
    role: str
    content: str
    turn: int | None = None
    """The number of the agent's reply, from 1; None for other roles."""
    calls: tuple[CallView, ...] = ()
    edits: tuple[StateEdit, ...] = ()
    """Changes of the database by the message's calls, or by what the user did in response to the message."""


class ScorePartView(Record):
    """One part of the score, and the reason for its value."""

    name: str
    value: float
    required: bool
    """Whether the reward is 0 if this part is 0."""
    reason: str = ""


class CauseView(Record):
    """One cause of a failure."""

    component: str
    kind: str
    meaning: str
    message_index: int
    """The index of the message that shows it."""
    evidence: str


class TaskOutcomeView(Record):
    """The goal of the task, and what the episode did not reach."""

    instructions: str
    """The instructions of the user. The agent does not see them."""
    messages: tuple[Message, ...] = ()
    """The messages of the gold solution."""
    edits: tuple[StateEdit, ...] = ()
    """Changes of the database by the gold solution."""
    missing_edits: tuple[StateEdit, ...] = ()
    """Changes that would turn the episode's final database into gold's."""
    outputs: tuple[tuple[str, bool], ...] = ()
    """The facts that the agent must tell the user, and whether it did."""


class EpisodeView(Record):
    """The data of one episode's page."""

    task: str
    domain: str
    family: str
    difficulty: str
    seed: int
    version: int
    reward: float | None
    shaping_bonus: float
    penalty: float
    progress: float | None
    parts: tuple[ScorePartView, ...]
    causes: tuple[CauseView, ...]
    """The causes of the failure, the main cause first."""
    stop: str | None
    fault: str | None
    error: str
    counts: dict[str, int]
    seconds: dict[str, float]
    messages: tuple[MessageView, ...]
    branches: tuple[tuple[MessageView, ...], ...]
    """The messages of the other sequences of the episode."""
    goal: TaskOutcomeView | None
    notes: tuple[str, ...]
    """What cannot be shown, and why."""


@dataclass(frozen=True, slots=True)
class EpisodeContext:
    """An episode with its task and its task source; both are None if either cannot be loaded."""

    episode: Trajectory
    task: Task | None
    source: TaskSource | None
    scripted_user: bool
    """Whether the user was simulated without a model."""

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """The tools of the agent; empty if the task source is not loaded."""
        return find_source(self.source, self.task.domain).tool_specs if self.source and self.task else ()


def build_episode_view(context: EpisodeContext) -> EpisodeView:
    """Return the data of an episode's page."""
    played, note = _replayed(context)
    episode, score = context.episode, context.episode.score
    goal = _goal(context, played)
    kinds = {turn.message_index: list(_kinds(turn)) for turn in played.turns} if played else {}
    return EpisodeView(
        task=episode.task_id,
        domain=episode.domain,
        family=episode.family,
        difficulty=episode.difficulty,
        seed=episode.seed,
        version=episode.weights_version,
        reward=score.reward if score else None,
        shaping_bonus=score.shaping_bonus if score else 0.0,
        penalty=episode.penalty,
        progress=score.progress if score else None,
        parts=tuple(_parts(context, goal, played)),
        causes=tuple(_causes(context, played)),
        stop=episode.stop_reason,
        fault=episode.fault,
        error=episode.error,
        counts=episode.event_counts,
        seconds=episode.timings,
        messages=tuple(_message_views(episode, kinds, _changed(context, played))),
        branches=tuple(tuple(_message_views(branch, {}, {})) for branch in episode.branches),
        goal=goal,
        notes=(note,) if note else (),
    )


def _replayed(context: EpisodeContext) -> tuple[ReplayResult | None, str]:
    """Return the replay and "", or None and why the database changes cannot be shown."""
    if context.source is None or context.task is None:
        task = context.episode.task_id
        return None, f"Database changes are not shown: task {task} or its domain cannot be loaded."
    leaf = find_source(context.source, context.task.domain)
    if not isinstance(leaf, StatefulSource):
        return None, f"Database changes are not shown: {leaf.name} does not expose its state."
    try:
        playing = replay_episode(context.source, context.task, context.episode, context.scripted_user)
        played = BACKGROUND_LOOP.run(playing)
    except TaskError as e:
        return None, f"Database changes are not shown: the episode cannot be replayed: {e}"
    if played.divergence:
        return None, f"Database changes are not shown: the replay differs from the record: {played.divergence}"
    return played, ""


def _message_views(
    sequence: TokenSequence, kinds: Mapping[int, Sequence[str]], changed: Mapping[int, tuple[StateEdit, ...]]
) -> Iterator[MessageView]:
    """Yield the messages, with the results of tool calls in their calls.

    `kinds` has the kinds of errors of a message's calls by its index, and `changed` its changes of the database.
    """
    messages = sequence.messages
    turns, shown = {place: turn for turn, place in enumerate(sequence.reply_indices, 1)}, 0
    for place, message in enumerate(messages):
        if place < shown:
            continue
        results = _results(messages, place)
        shown = place + 1 + len(results)
        calls = zip_longest(message.tool_calls, results, kinds.get(place, ()))
        yield MessageView(
            index=place,
            role=message.role,
            content=message.content,
            turn=turns.get(place),
            calls=tuple(_call(call, result, kind) for call, result, kind in calls),
            edits=changed.get(place, ()),
        )


def _results(messages: Sequence[Message], place: int) -> list[str]:
    """Return the results of a message's calls. They follow the message, in the order of the calls."""
    following = messages[place + 1 : place + 1 + len(messages[place].tool_calls)]
    return [message.content for message in takewhile(lambda message: message.role == "tool", following)]


def _call(call: ToolCall, result: str | None, kind: str | None) -> CallView:
    """Return a call for the page. `kind` is the kind of its error in the replay, "" if it succeeded.

    Without a replay, `kind` is None. Then the error is taken from the recorded call and its result.
    """
    if kind is None:
        refused = "refused" if result is not None and result.startswith("Error: ") else ""
        kind = "malformed" if call.parse_error else refused
    return CallView(name=call.name, arguments=call.arguments, malformed=call.parse_error, result=result, error=kind)


def _kinds(turn: ReplayedTurn) -> Iterator[str]:
    """Yield the kind of each call's error, "" if the call succeeded."""
    errors = iter(turn.errors)
    return (next(errors, "") if answer.content.startswith("Error: ") else "" for answer in _answers(turn))


def _answers(turn: ReplayedTurn) -> Sequence[Message]:
    return turn.tool_results if turn.reply.tool_calls else ()


def _changed(context: EpisodeContext, played: ReplayResult | None) -> dict[int, tuple[StateEdit, ...]]:
    """Return the database changes of each reply, by message index."""
    leaf = _stateful_leaf(context)
    if not played or not leaf or not context.task:
        return {}
    world = leaf.initial_state(context.task)
    before: dict[str, Any] = {}
    edits: dict[int, tuple[StateEdit, ...]] = {}
    for turn in played.turns:
        edits[turn.message_index] = diff_states(world, before, turn.state_changes)
        before = dict(turn.state_changes)
    return edits


def _stateful_leaf(context: EpisodeContext) -> StatefulSource | None:
    leaf = find_source(context.source, context.task.domain) if context.source and context.task else None
    return leaf if isinstance(leaf, StatefulSource) else None


def _goal(context: EpisodeContext, played: ReplayResult | None) -> TaskOutcomeView | None:
    task = context.task
    leaf = _stateful_leaf(context)
    if task is None or context.source is None:
        return None
    score = context.episode.score
    told = score is not None and score.parts.get("facts_told") == 1.0
    missed = [] if told else find_missing_facts(context.source, task, context.episode.messages)
    outputs = tuple((output, output not in missed) for output in task.outputs)
    goal = TaskOutcomeView(instructions=task.scenario.instructions, messages=task.gold, outputs=outputs)
    if not leaf or not played:
        return goal
    world, gold = leaf.initial_state(task), leaf.gold_changes(task)
    left = played.turns[-1].state_changes if played.turns else {}
    return goal.replace(edits=diff_states(world, {}, gold), missing_edits=diff_states(world, left, gold))


def _causes(context: EpisodeContext, played: ReplayResult | None) -> Iterator[CauseView]:
    """Yield the causes of the failure; none if the episode succeeded or its task cannot be loaded."""
    score = context.episode.score
    if (score and score.reward >= 1.0) or context.task is None or context.source is None:
        return
    known = played or ReplayResult((), None, "not replayed")
    failure = explain_failure(build_case(context.source, context.task, context.episode, known, context.scripted_user))
    for finding in (failure.cause, *failure.other_causes):
        component, meaning = FAILURE_KINDS[finding.kind]
        yield CauseView(
            component=component,
            kind=finding.kind,
            meaning=meaning,
            message_index=finding.message_index,
            evidence=finding.evidence,
        )


def _parts(
    context: EpisodeContext, goal: TaskOutcomeView | None, played: ReplayResult | None
) -> Iterator[ScorePartView]:
    episode, score = context.episode, context.episode.score
    if score is None:
        return
    evidence = PartEvidence(score, episode.num_turns, episode.stop_reason)
    if goal:
        missing = [output for output, is_told in goal.outputs if not is_told]
        evidence = replace(evidence, task=context.task, missing_outputs=missing)
    if goal and played:
        refused = sum(kind in ("unconfirmed", "forbidden") for turn in played.turns for kind in turn.errors)
        evidence = replace(evidence, num_state_differences=len(goal.missing_edits), num_refused_writes=refused)
    for name, value in score.parts.items():
        yield ScorePartView(
            name=name, value=value, required=affects_reward(name, score), reason=explain_part(name, evidence)
        )
