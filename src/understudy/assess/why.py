"""Why stored episodes failed: `failures`, of what is on disk."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from understudy import outcome
from understudy.assess.stored import Stored, open_stored, stored_names
from understudy.errors import ConfigError, RolloutError, TaskError
from understudy.failures.causes import Failure
from understudy.failures.find import failed, failures


def why(stored: Stored) -> dict[int, Failure]:
    """Each failure among stored episodes, by its number; nothing is known of those whose task is not found any more.

    Episodes of our own domains are played again, which takes milliseconds each. Where the domain is not at hand, cannot
    play them any more, or asks a server that does not start, that is a `ConfigError`.
    """
    lost = {number: episode for number, episode in stored.episodes.items() if failed(episode)}
    try:
        found = {episode.task: stored.task(episode) for episode in lost.values()}
        tasks = {name: task for name, task in found.items() if task is not None}
        known = {number: episode for number, episode in lost.items() if episode.task in tasks}
        explaining = failures(stored.source, tasks, list(known.values()), stored.scripted)
        with ThreadPoolExecutor(1) as thread:  # who asks may have an event loop that runs
            return dict(zip(known, thread.submit(asyncio.run, explaining).result(), strict=True))
    except (TaskError, RolloutError) as e:
        raise ConfigError(f"the episodes of {stored.folder} cannot be played again: {e}") from e


def as_text(run: Path) -> str:
    """Why episodes of a run failed, as a table: those of its last evaluation, or else of the last step that is kept."""
    names = stored_names(run)
    if not names:
        return ""
    stored = open_stored(run, names[0])
    of = f"the {len(stored.episodes)} episodes of {stored.says}"
    try:
        found = why(stored)
    except ConfigError as e:
        return f"why {of} failed is not known: {e}"
    return outcome.table_of_causes(list(found.values()), f"Why {len(found)} of {of} failed") if found else ""
