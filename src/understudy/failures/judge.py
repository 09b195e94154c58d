"""A language model's word on why an episode failed, beside what the rules say.

It fails closed: what cannot be read as a verdict, and a request that fails, is `unclear`, and never one of the causes.
It explains; rewards do not read it.
"""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from typing import get_args

from understudy.chat import ChatModel
from understudy.errors import ConfigError, RolloutError
from understudy.failures.causes import MEANING, Failure, Finding, What, quoted
from understudy.messages import Message
from understudy.tasks import Task
from understudy.trajectory import Trajectory

_ASK = """\
You say why an episode of a support agent failed. You are given what the user wanted, the turns of a perfect agent, and
the messages of the episode, numbered from 0. Name the first thing that went wrong and was not made good again.

Answer with one JSON object and nothing else:
{"what": one of the names below, "message": the number of the message that shows it, "evidence": one short sentence}

%s"""
_OBJECT = re.compile(r"\{.*\}", re.DOTALL)
_KEYS = {"what", "message", "evidence"}


async def judge(
    model: ChatModel, tasks: Mapping[str, Task], episodes: Sequence[Trajectory], failures: Sequence[Failure]
) -> list[Failure]:
    """The failures with the model's verdict on each; `episodes` are theirs, by task and seed.

    Where a request is refused (a ConfigError, such as that a cap is reached), none is begun any more, and those under
    way are waited for: they are paid, and their replies kept.
    """
    played = {(episode.task, episode.seed): episode for episode in episodes}
    gate, refusals = asyncio.Semaphore(model.config.concurrency), list[ConfigError]()

    async def judged(failure: Failure) -> Failure:
        async with gate:
            if refusals:
                return failure
            try:
                said = await verdict(model, tasks[failure.task], played[failure.task, failure.seed])
            except ConfigError as e:
                refusals.append(e)
                return failure
        return failure.replace(judged=said)

    found = await asyncio.gather(*map(judged, failures))
    if refusals:
        raise refusals[0]
    return found


async def verdict(model: ChatModel, task: Task, episode: Trajectory) -> Finding:
    """What the model holds for the cause of one failure."""
    names = "\n".join(f"{what}: the {who} {meaning}" for what, (who, meaning) in MEANING.items())
    case = {
        "user": task.scenario.instructions,
        "to be told": task.outputs,
        "perfect agent": [_shown(turn) for turn in task.turns],
        "episode": [{"number": place, **_shown(message)} for place, message in enumerate(episode.messages)],
        "ended by": str(episode.stop),
    }
    asked = [
        Message(role="system", content=_ASK % names),
        Message(role="user", content=json.dumps(case, ensure_ascii=False)),
    ]
    try:
        reply = await model.reply(asked, seed=episode.seed % 2**31)
    except RolloutError as e:
        return _unclear(episode, str(e))
    return read(reply.message.content, episode)


def read(text: str, episode: Trajectory) -> Finding:
    """The verdict that a text holds, whole; of anything else nothing is taken."""
    match = _OBJECT.search(text)
    try:
        said = json.loads(match[0]) if match else None
    except (json.JSONDecodeError, RecursionError):
        said = None
    if not isinstance(said, dict) or set(said) != _KEYS:
        return _unclear(episode, f"the judge's answer is no verdict: {text}")
    what, message, evidence = said["what"], said["message"], said["evidence"]
    place = isinstance(message, int) and not isinstance(message, bool) and 0 <= message < len(episode.messages)
    if what not in get_args(What) or not place or not isinstance(evidence, str):
        return _unclear(episode, f"the judge's answer is no verdict: {text}")
    return Finding(what=what, message=message, evidence=quoted(evidence))


def _unclear(episode: Trajectory, why: str) -> Finding:
    return Finding(what="unclear", message=max(0, len(episode.messages) - 1), evidence=quoted(why))


def _shown(message: Message) -> dict[str, object]:
    calls = [
        {"name": call.name, "arguments": call.arguments, "malformed": call.malformed} for call in message.tool_calls
    ]
    return {"role": message.role, "text": message.content} | ({"calls": calls} if calls else {})
