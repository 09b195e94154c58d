"""Ask a language model why an episode failed. Its verdict is stored beside that of the rules.

A failed request, and a reply that is not a valid verdict, give the cause `unknown`. No reward depends on verdicts.
"""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from typing import get_args

from understudy.clients.chat import ChatModel
from understudy.core.errors import ConfigError, RolloutError
from understudy.core.event_loop import gather_or_cancel
from understudy.core.messages import Message
from understudy.core.tasks import Task
from understudy.core.trajectory import Trajectory
from understudy.evaluation.failures.causes import (
    FAILURE_KINDS,
    EpisodeFailure,
    FailureCause,
    FailureKind,
    quote_evidence,
)

_ASK = """\
An episode of a support agent failed. You get the user's goal, the turns of a perfect agent, and the messages of the
episode, numbered from 0. Name the first error that was not corrected later.

Answer with one JSON object and nothing else:
{"kind": one of the names below, "message": the number of the message that shows it, "evidence": one short sentence}

%s"""
_OBJECT = re.compile(r"\{.*\}", re.DOTALL)
_KEYS = {"kind", "message", "evidence"}


async def judge_failures(
    model: ChatModel, tasks: Mapping[str, Task], episodes: Sequence[Trajectory], failures: Sequence[EpisodeFailure]
) -> list[EpisodeFailure]:
    """Return the failures with the model's verdict on each.

    `episodes` include the failed ones, which are found by task and seed. Raise ConfigError if a request is refused,
    for example at the cost limit. No request is sent after that; those in flight are awaited, because they are paid
    and their replies are cached.
    """
    played = {(episode.task_id, episode.seed): episode for episode in episodes}
    gate, refusals = asyncio.Semaphore(model.config.max_concurrency), list[ConfigError]()

    async def judged(failure: EpisodeFailure) -> EpisodeFailure:
        async with gate:
            if refusals:
                return failure
            try:
                said = await judge_failure(model, tasks[failure.task], played[failure.task, failure.seed])
            except ConfigError as e:
                refusals.append(e)
                return failure
        return failure.replace(judge_cause=said)

    found = await gather_or_cancel(map(judged, failures))
    if refusals:
        raise refusals[0]
    return found


async def judge_failure(model: ChatModel, task: Task, episode: Trajectory) -> FailureCause:
    """Return the model's verdict on one failure; the cause `unknown` if the request fails."""
    names = "\n".join(f"{kind}: the {component} {meaning}" for kind, (component, meaning) in FAILURE_KINDS.items())
    case = {
        "user": task.scenario.instructions,
        "to be told": task.outputs,
        "perfect agent": [_shown(turn) for turn in task.gold_turns],
        "episode": [{"number": place, **_shown(message)} for place, message in enumerate(episode.messages)],
        "ended by": str(episode.stop_reason),
    }
    asked = [
        Message(role="system", content=_ASK % names),
        Message(role="user", content=json.dumps(case, ensure_ascii=False)),
    ]
    try:
        reply = await model.generate(asked, seed=episode.seed % 2**31)
    except RolloutError as e:
        return _unknown(episode, str(e))
    return parse_verdict(reply.message.content, episode)


def parse_verdict(text: str, episode: Trajectory) -> FailureCause:
    """Return the verdict in a reply; the cause `unknown` if any part of it is missing or invalid."""
    match = _OBJECT.search(text)
    try:
        said = json.loads(match[0]) if match else None
    except (ValueError, RecursionError):  # a number of more than 4300 digits is a ValueError, too
        said = None
    if not isinstance(said, dict) or set(said) != _KEYS:
        return _unknown(episode, f"the judge's reply is not a valid verdict: {text}")
    kind, message, evidence = said["kind"], said["message"], said["evidence"]
    place = isinstance(message, int) and not isinstance(message, bool) and 0 <= message < len(episode.messages)
    if kind not in get_args(FailureKind) or not place or not isinstance(evidence, str):
        return _unknown(episode, f"the judge's reply is not a valid verdict: {text}")
    return FailureCause(kind=kind, message_index=message, evidence=quote_evidence(evidence))


def _unknown(episode: Trajectory, why: str) -> FailureCause:
    return FailureCause(kind="unknown", message_index=max(0, len(episode.messages) - 1), evidence=quote_evidence(why))


def _shown(message: Message) -> dict[str, object]:
    calls = [
        {"name": call.name, "arguments": call.arguments, "malformed": call.parse_error} for call in message.tool_calls
    ]
    return {"role": message.role, "text": message.content} | ({"calls": calls} if calls else {})
