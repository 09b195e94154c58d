"""Find out why stored episodes failed."""

from pathlib import Path

from understudy.core.errors import ConfigError, RolloutError, TaskError
from understudy.core.event_loop import BACKGROUND_LOOP
from understudy.evaluation.failures.causes import EpisodeFailure
from understudy.evaluation.failures.explain import find_failures, is_failed
from understudy.evaluation.reports.text import format_causes
from understudy.evaluation.stored_episodes import StoredEpisodes, list_stored_names, open_stored_episodes


def find_stored_failures(stored: StoredEpisodes) -> dict[int, EpisodeFailure]:
    """Return the failures among stored episodes by episode number. Episodes without a stored task are left out.

    Episodes of domains with a state are replayed, which takes milliseconds each. Raise ConfigError if the domain
    cannot be loaded, cannot replay them, or needs a server that does not start.
    """
    lost = {number: episode for number, episode in stored.episodes.items() if is_failed(episode)}
    try:
        tasks = {episode.task_id: task for episode in lost.values() if (task := stored.task(episode)) is not None}
        known = {number: episode for number, episode in lost.items() if episode.task_id in tasks}
        explaining = find_failures(stored.source, tasks, list(known.values()), stored.scripted_users)
        return dict(zip(known, BACKGROUND_LOOP.run(explaining), strict=True))
    except (TaskError, RolloutError) as e:
        raise ConfigError(f"the episodes of {stored.folder} cannot be replayed: {e}") from e


def format_failures(run: Path) -> str:
    """Return a table of why a run's episodes failed: those of its last evaluation, else of its last stored step."""
    names = list_stored_names(run)
    if not names:
        return ""
    stored = open_stored_episodes(run, names[0])
    of = f"the {len(stored.episodes)} episodes of {stored.label}"
    try:
        failures = find_stored_failures(stored)
    except ConfigError as e:
        return f"the causes of failures of {of} are unknown: {e}"
    table = format_causes(list(failures.values()), f"Why {len(failures)} of {of} failed") if failures else ""
    return "\n".join(filter(None, [table, *stored.damaged_lines.values()]))
