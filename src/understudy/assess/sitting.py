"""Sitting: one evaluation of one agent, and the folder that it is kept in.

    evals/retail-gpt-4.1-mini-001/
      played.json       who plays what
      tasks.jsonl       the tasks
      episodes.jsonl    each episode, from the moment it ends
      paid.jsonl        each request that was paid for, where agent, users or judge are models behind endpoints
      replies/          the answers to them, until the evaluation is whole
      evaluation.json  evaluation.md  what it came to

An evaluation that was interrupted, even by a kill, goes on with the episodes that are missing. Of an episode that was
under way the replies are there, so nothing is paid twice.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import understudy
from understudy import outcome
from understudy.agent import Agent, ChatAgent
from understudy.assess.compare import refuse_incomparable
from understudy.chat import ChatModel, Usage
from understudy.config import TrainConfig
from understudy.disk import AGAIN, write_whole, writing
from understudy.domains.base import TaskSource, find
from understudy.errors import ConfigError, TaskError
from understudy.evaluate import Progress, episodes, exam_tasks, floor, inhabited, oracle
from understudy.evaluation import Evaluation, summary
from understudy.failures.find import failures
from understudy.failures.judge import judge
from understudy.kept import HEAD, PAID, REPLIES, Kept, caching, read_head
from understudy.noise import noise
from understudy.outcome import FILE, Named, Outcome
from understudy.players import asked, named_agent
from understudy.purse import Purse, refuse_unpriced
from understudy.records import Record
from understudy.tasks import Task, fingerprint, read_tasks, write_tasks
from understudy.trajectory import Trajectory
from understudy.users import Cast

TASKS = "tasks.jsonl"


class Sitting(Record):
    """Who plays what. Split, tasks, trials and seed are those of the config's `eval`."""

    name: str
    """What the agent is called in tables."""
    agent: str
    """`model`, `native`, `chat`, `human`, or one that needs no model."""
    checkpoint: str = ""
    """The folder of the weights, where they are a run's."""
    reruns: int = 1
    """How often all of it is played, each time with other seeds for the episodes of the same tasks."""
    judged: bool = False
    """Whether a model is asked about each failure."""
    version: str = understudy.__version__
    config: TrainConfig


@dataclass
class Desk:
    """What a sitting is played with."""

    purse: Purse
    agent: Agent
    users: Cast
    judge: ChatModel | None = None
    kept: Kept[Sitting] | None = None
    at_once: int = 64
    exam: tuple[TaskSource, Sequence[Task]] | None = None
    """What is played, where it has been looked up already."""


def set_up(
    sitting: Sitting,
    folder: Path | None,
    cap: Decimal,
    at_once: int,
    human: Agent | None = None,
    against: Outcome | None = None,
) -> Desk:
    """All that a sitting needs, before anything is written; what is missing is a `ConfigError`.

    `human` is the agent where a person plays it; `against` is what it will be compared with. Without a folder nothing
    is kept. The agent comes last: a mistake in anything else does not have to wait until its model is loaded.
    """
    refuse_unpriced(cap, asked(sitting.agent, sitting.config, sitting.judged))
    source, tasks = _tasks(sitting.config)
    if against:
        refuse_incomparable(tasks, source.name, against)
    if folder and (folder / TASKS).exists():
        _refuse_changed(folder / TASKS, tasks)
    config = caching(sitting.config, folder) if folder else sitting.config
    purse = Purse(cap, folder / PAID if folder else None)
    users = Cast(config.user, purse.of("users"))
    judging = ChatModel(config.judge, "grader", purse.of("judge")) if sitting.judged else None
    checkpoint = Path(sitting.checkpoint) if sitting.checkpoint else None
    agent = human or named_agent(sitting.agent, config, checkpoint, purse.of("agent"))
    alone = human is not None or config.user.kind == "human"
    return Desk(purse, agent, users, judging, at_once=1 if alone else at_once, exam=(source, tasks))


async def assess(sitting: Sitting, desk: Desk, folder: Path | None = None, progress: Progress | None = None) -> Outcome:
    """Play what is not played yet, and all that it comes to; with a folder, that is written there."""
    source, tasks = desk.exam or _tasks(sitting.config)
    if folder:
        desk.kept = Kept(folder, sitting)
        _keep_tasks(folder / TASKS, tasks)
    rows = [Named(name="do nothing", evaluation=await floor(source, tasks))]
    rows.append(Named(name="gold oracle", evaluation=await oracle(source, tasks)))
    played = [await _round(sitting, desk, source, tasks, number, progress) for number in range(sitting.reruns)]
    every = [episode for each in played for episode in each]
    found = await failures(source, {task.id: task for task in tasks}, every, desk.users.scripted)
    if desk.judge:
        found = await judge(desk.judge, {task.id: task for task in tasks}, every, found)
    own = _evaluations(sitting, source, tasks, played)
    own[0] = own[0].replace(usage=_used(desk))
    names = [sitting.name, *(f"{sitting.name}, again {number}" for number in range(1, sitting.reruns))]
    rows += [Named(name=name, evaluation=evaluation) for name, evaluation in zip(names, own, strict=True)]
    whole = Outcome(rows=tuple(rows), failures=tuple(found), noise=noise(own))
    if folder:
        write(folder, whole)
    return whole


def write(folder: Path, whole: Outcome) -> None:
    """Write what a sitting came to. Its replies, which are only there to go on with it, are removed."""
    with writing(folder, "go on by --resume"):
        write_whole(folder / "evaluation.md", outcome.markdown(whole))
        write_whole(folder / FILE, json.dumps(outcome.as_json(whole), indent=1) + "\n")
    shutil.rmtree(folder / REPLIES, ignore_errors=True)


def begun(folder: Path) -> Sitting:
    """The sitting that a folder holds."""
    return read_head(folder, Sitting)


def refuse_taken(folder: Path) -> None:
    """A new sitting is never put into a folder that holds anything."""
    if (folder / HEAD).exists():
        raise ConfigError(f"{folder} holds an evaluation; go on with it by --resume {folder}, or give another --out")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} {'is not empty' if folder.is_dir() else 'is a file'}; give another --out")


def _tasks(config: TrainConfig) -> tuple[TaskSource, list[Task]]:
    source = find(config.domain).slice(config.slice)
    return source, exam_tasks(source, config.eval)


def _keep_tasks(file: Path, tasks: Sequence[Task]) -> None:
    if not file.exists():
        partial = file.with_suffix(".partial")
        with writing(file.parent, AGAIN):
            write_tasks(partial, tasks)
            partial.replace(file)
    _refuse_changed(file, tasks)


def _refuse_changed(file: Path, tasks: Sequence[Task]) -> None:
    """A `TaskError` where tasks are not those that the sitting was begun with."""
    then = {task.id: fingerprint(task) for task in read_tasks(file)}
    changed = [task.id for task in tasks if then.get(task.id) != fingerprint(task)]
    if changed:
        text = f"{len(changed)} of {len(tasks)} tasks are not what they were, such as {changed[0]}"
        raise TaskError(f"{file.parent} was begun with other tasks ({text}); begin anew with another --out")


async def _round(
    sitting: Sitting, desk: Desk, source: TaskSource, tasks: Sequence[Task], number: int, progress: Progress | None
) -> list[Trajectory]:
    """The episodes of one evaluation; in each further one they have seeds of their own."""
    how = sitting.config.eval
    before, of = number * len(tasks) * how.trials, sitting.reruns * len(tasks) * how.trials
    return await episodes(
        inhabited(source, desk.users),
        desk.agent,
        tasks,
        sitting.config.limits,
        how.trials,
        how.seed + number,
        desk.at_once,
        (lambda done, _: progress(before + done, of)) if progress else None,
        desk.kept,
    )


def _evaluations(
    sitting: Sitting, source: TaskSource, tasks: Sequence[Task], played: Sequence[Sequence[Trajectory]]
) -> list[Evaluation]:
    how = sitting.config.eval
    return [summary(source, tasks, each, how.trials, how.seed + number) for number, each in enumerate(played)]


def _used(desk: Desk) -> dict[str, Usage]:
    """What each was asked, in earlier attempts too."""
    now = {
        "users": desk.users.usage,
        "agent": desk.agent.usage if isinstance(desk.agent, ChatAgent) else Usage(),
        "judge": desk.judge.usage if desk.judge else Usage(),
    }
    return desk.purse.used(now)
