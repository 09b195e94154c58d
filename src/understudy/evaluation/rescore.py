"""Score stored episodes again with the current graders. No reply is sampled.

Each episode is replayed on its stored task. Nothing is scored if a task in the domain's files differs from the stored
task of the same id, because the scores would be those of an outdated task. If the environment's answers differ from the
record, the episode gets the reason in place of a new score.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from understudy.core.errors import ConfigError, TaskError, no_such_path
from understudy.core.records import Record
from understudy.core.settings import dump_toml
from understudy.core.tasks import SPLITS, Task, task_fingerprint
from understudy.core.trajectory import Trajectory
from understudy.envs.task_source import TaskSource
from understudy.evaluation.reports.report import EvalReport
from understudy.evaluation.result import EvalResult, ResultRow, TaskResult, common_split
from understudy.rollouts.replay import replay_episode
from understudy.runs.config import TrainConfig, parse_config
from understudy.runs.episodes import read_stored_episodes
from understudy.runs.eval_spec import is_eval_folder, read_spec
from understudy.runs.run import is_run_folder, read_run_config
from understudy.runs.storage.episode_store import EPISODES_FILE, read_episodes
from understudy.runs.storage.task_store import TASKS_FILE, read_stored_tasks

RESCORED_FILE = "rescored.json"
MAX_SHOWN_CHANGES = 5
"""Maximum number of episodes that are listed of each kind."""


class ScoreChange(Record):
    """The stored and the new score of an episode."""

    task: str
    seed: int
    before: float
    after: float | None
    """New score. None if the replay diverged."""
    reason: str = ""
    """Description of the divergence; empty if there is none."""


class RescoreResult(Record):
    """Results by the stored and by the new scores, and the episodes whose score changed."""

    before: EvalResult
    after: EvalResult
    changes: tuple[ScoreChange, ...]

    def __str__(self) -> str:
        moved = [change for change in self.changes if change.after is not None]
        lost = [change for change in self.changes if change.after is None]
        of = sum(len(result.rewards) for result in self.before.task_results)
        lines = [f"{of} episodes: {len(moved)} with a changed score, {len(lost)} that cannot be scored again"]
        lines += [f"  {c.task} (seed {c.seed}): {c.before:g} -> {c.after:g}" for c in moved[:MAX_SHOWN_CHANGES]]
        lines += [f"  {c.task} (seed {c.seed}): {c.reason}" for c in lost[:MAX_SHOWN_CHANGES]]
        return "\n".join(lines)

    @property
    def report(self) -> EvalReport:
        """Both results as the rows of a report."""
        stored, rescored = ResultRow(name="stored", result=self.before), ResultRow(name="rescored", result=self.after)
        return EvalReport(rows=(stored, rescored))


async def rescore_episodes(folder: Path, settings: Sequence[str] = ()) -> RescoreResult:
    """Score the stored episodes of an evaluation or a run again.

    `settings` are `key=value` settings of the config, for example another domain. Raise ConfigError or TaskError if
    the folder holds no scored episodes, or if a task is missing or has changed.
    """
    config, episodes = _stored(folder)
    if settings:
        config = parse_config(dump_toml(config), settings)
    source = config.open_source()
    tasks = _unchanged_tasks(folder, source, dict.fromkeys(episode.task_id for episode in episodes))
    scripted = config.user.kind == "scripted"
    scored = [await _rescore_episode(source, tasks[episode.task_id], episode, scripted) for episode in episodes]
    before = _evaluation(source, tasks, [(change.task, change.before) for change in scored])
    after = _evaluation(source, tasks, [(change.task, change.after) for change in scored])
    changes = tuple(change for change in scored if change.after != change.before)
    return RescoreResult(before=before, after=after, changes=changes)


def _stored(folder: Path) -> tuple[TrainConfig, list[Trajectory]]:
    """Return the config of a folder, and its episodes with a score. Raise ConfigError if there are none."""
    if is_eval_folder(folder):
        config, found = read_spec(folder).config, read_episodes(folder / EPISODES_FILE)
    elif is_run_folder(folder):
        config, found = read_run_config(folder), list(read_stored_episodes(folder))
    elif not folder.exists():
        raise ConfigError(no_such_path(str(folder)))
    else:
        raise ConfigError(
            f"{folder} is not the folder of an evaluation (with spec.json) or of a run (with config.toml)"
        )
    scored = [episode for episode in found if episode.score is not None]
    if not scored:
        raise ConfigError(f"{folder} has no episode with a score")
    return config, scored


def _unchanged_tasks(folder: Path, source: TaskSource, names: Iterable[str]) -> dict[str, Task]:
    """Return the stored tasks of these ids.

    Raise ConfigError if one is not stored, TaskError if the domain's files hold a different task of its id.
    """
    stored = read_stored_tasks(folder)
    current = {task.id: task for split in SPLITS for task in source.tasks(split)}
    if missing := [name for name in names if name not in stored]:
        raise ConfigError(f"{folder / TASKS_FILE} is missing, or lacks tasks of the episodes, such as {missing[0]}")
    tasks = {name: stored[name] for name in names}
    changed = [
        name for name in names if name in current and task_fingerprint(current[name]) != task_fingerprint(tasks[name])
    ]
    if changed:
        raise TaskError(
            f"{len(changed)} of the {len(tasks)} tasks of {folder} have changed, such as {changed[0]}; restore the "
            "tasks that the episodes were played on"
        )
    return tasks


async def _rescore_episode(source: TaskSource, task: Task, episode: Trajectory, scripted: bool) -> ScoreChange:
    played = await replay_episode(source, task, episode, scripted)
    before = episode.score.reward if episode.score else 0.0
    after = played.score.reward if played.score else None
    return ScoreChange(task=task.id, seed=episode.seed, before=before, after=after, reason=played.divergence)


def _evaluation(source: TaskSource, tasks: dict[str, Task], rewards: Sequence[tuple[str, float | None]]) -> EvalResult:
    """Return the result of these rewards. Tasks may have different numbers of episodes."""
    each: dict[str, list[float | None]] = {name: [] for name in tasks}
    for name, reward in rewards:
        each[name].append(reward)
    rows = tuple(
        TaskResult(
            task=name,
            domain=task.domain,
            family=task.family,
            difficulty=task.difficulty,
            fingerprint=task_fingerprint(task),
            rewards=tuple(each[name]),
        )
        for name, task in tasks.items()
    )
    trials, split = min(len(row.rewards) for row in rows), common_split(tasks.values())
    return EvalResult(domain=source.name, split=split, seed=0, trials=trials, task_results=rows)
