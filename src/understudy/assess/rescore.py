"""Rescore: episodes that were stored, scored again by the graders of today, without a reply being sampled.

Each is played once more (`replay`). Where a task is not what it was, nothing is scored: the numbers would be of
something else. Where the environment answers otherwise than it did then, that episode has no new score, and says why.
"""

from collections.abc import Sequence
from pathlib import Path

from understudy.assess.sitting import TASKS, begun
from understudy.collect.episodes import stored
from understudy.config import TrainConfig
from understudy.domains.base import TaskSource, find
from understudy.domains.recall import recall
from understudy.errors import ConfigError, TaskError
from understudy.evaluation import Evaluation, TaskResult
from understudy.kept import EPISODES, HEAD, episodes_in
from understudy.outcome import Named, Outcome
from understudy.records import Record
from understudy.replay import replay
from understudy.settings import dump, load, parse
from understudy.tasks import SPLITS, Task, fingerprint, read_tasks
from understudy.trajectory import Trajectory

FILE = "rescored.json"
SHOWN = 5
"""Episodes that are named of each kind."""


class Change(Record):
    """One episode's score then and now."""

    task: str
    seed: int
    before: float
    after: float | None
    """None where it has no score any more."""
    why: str = ""
    """What came out otherwise, where it has none."""


class Rescored(Record):
    """Stored episodes, as they were scored then and as they are now."""

    before: Evaluation
    after: Evaluation
    changes: tuple[Change, ...]

    def __str__(self) -> str:
        moved = [change for change in self.changes if change.after is not None]
        lost = [change for change in self.changes if change.after is None]
        of = sum(len(result.rewards) for result in self.before.results)
        lines = [f"{of} episodes: {len(moved)} with another score, {len(lost)} that cannot be scored again"]
        lines += [f"  {c.task} (seed {c.seed}): {c.before:g} -> {c.after:g}" for c in moved[:SHOWN]]
        lines += [f"  {c.task} (seed {c.seed}): {c.why}" for c in lost[:SHOWN]]
        return "\n".join(lines)

    @property
    def outcome(self) -> Outcome:
        """Both as rows."""
        return Outcome(rows=(Named(name="then", evaluation=self.before), Named(name="now", evaluation=self.after)))


async def rescore(folder: Path, settings: Sequence[str] = ()) -> Rescored:
    """Score the episodes of an evaluation's folder, or of a run, again; `settings` may name another domain."""
    config, episodes, kept = _stored(folder)
    if settings:
        config = parse(TrainConfig, dump(config), settings)
    source = find(config.domain).slice(config.slice)
    frozen = {task.id: task for split in SPLITS for task in source.tasks(split)}
    names = dict.fromkeys(episode.task for episode in episodes)
    tasks = {name: _same(frozen.get(name) or recall(source, name), kept.get(name)) for name in names}
    if changed := [name for name, task in tasks.items() if task is None]:
        raise TaskError(
            f"{len(changed)} of the {len(tasks)} tasks of {folder} are not there any more, or not what they were, such "
            f"as {changed[0]}; episodes are scored again on the tasks that they were played on only"
        )
    known = {name: task for name, task in tasks.items() if task is not None}
    scripted = config.user.kind == "scripted"
    scored = [await _again(source, known[episode.task], episode, scripted) for episode in episodes]
    before = _evaluation(source, known, [(change.task, change.before) for change in scored])
    after = _evaluation(source, known, [(change.task, change.after) for change in scored])
    changes = tuple(change for change in scored if change.after != change.before)
    return Rescored(before=before, after=after, changes=changes)


def _stored(folder: Path) -> tuple[TrainConfig, list[Trajectory], dict[str, Task]]:
    """The config, the scored episodes, and the tasks where they are stored too."""
    if (folder / HEAD).is_file():
        tasks = {task.id: task for task in read_tasks(folder / TASKS)}
        config, found = begun(folder).config, episodes_in(folder / EPISODES)
    elif (folder / "config.toml").is_file():
        tasks, config, found = {}, load(TrainConfig, folder / "config.toml"), list(stored(folder))
    else:
        raise ConfigError(f"{folder} is neither an evaluation's folder nor a run's")
    scored = [episode for episode in found if episode.score is not None]
    if not scored:
        raise ConfigError(f"{folder} has no episode with a score")
    return config, scored, tasks


def _same(now: Task | None, then: Task | None) -> Task | None:
    """The task of today, if it is the one that was played; a run stores none, and its id has to do."""
    return now if now and (then is None or fingerprint(now) == fingerprint(then)) else None


async def _again(source: TaskSource, task: Task, episode: Trajectory, scripted: bool) -> Change:
    played = await replay(source, task, episode, scripted)
    before = episode.score.reward if episode.score else 0.0
    after = played.score.reward if played.score else None
    return Change(task=task.id, seed=episode.seed, before=before, after=after, why=played.diverged)


def _evaluation(source: TaskSource, tasks: dict[str, Task], rewards: Sequence[tuple[str, float | None]]) -> Evaluation:
    """Rewards by task; one may have been played more often than another."""
    each: dict[str, list[float | None]] = {name: [] for name in tasks}
    for name, reward in rewards:
        each[name].append(reward)
    rows = tuple(
        TaskResult(
            task=name,
            domain=task.domain,
            family=task.family,
            difficulty=task.difficulty,
            fingerprint=fingerprint(task),
            rewards=tuple(each[name]),
        )
        for name, task in tasks.items()
    )
    return Evaluation(domain=source.name, seed=0, trials=min(len(row.rewards) for row in rows), results=rows)
