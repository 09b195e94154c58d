"""Play episodes of an agent and write the training files."""

import functools
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from understudy.clients.chat import ModelUsage
from understudy.core.errors import ConfigError, TaskError
from understudy.core.event_loop import run_async
from understudy.core.records import Record
from understudy.core.tasks import Score, Split
from understudy.core.trajectory import Trajectory
from understudy.data.collect.build_examples import (
    BalanceKey,
    ToolLookup,
    balance_examples,
    build_demonstrations,
    build_labeled_examples,
    build_preference_pairs,
)
from understudy.data.writer import open_output
from understudy.evaluation.request_logs import read_request_log
from understudy.evaluation.runner import play_eval, prepare_eval
from understudy.rollouts.rollout import ProgressCallback
from understudy.runs.episodes import partial_folder, read_stored_episodes
from understudy.runs.eval_spec import EvalSpec
from understudy.runs.storage.episode_store import has_progress, strip_tokens
from understudy.runs.storage.task_store import TASKS_FILE, read_stored_tasks

EVAL_SPLITS: tuple[Split, ...] = ("validation", "test")


class SelectionConfig(Record):
    """How examples are selected from episodes."""

    max_pairs_per_task: int = 4
    """The largest number of pairs for each task."""
    max_per_group: int = 0
    """The largest number of examples of each domain, family or difficulty (`balance_by`); 0 sets no limit."""
    balance_by: BalanceKey = "family"
    seed: int = 0


def play_and_store(
    spec: EvalSpec, out: Path, concurrency: int, on_progress: ProgressCallback, cost_limit: Decimal = Decimal(0)
) -> tuple[list[Trajectory], dict[str, ModelUsage]]:
    """Play the episodes of an agent. Return them, and the usage and cost of endpoints by role.

    The episodes are stored without tokens in `partial_folder(out)`. Raise LimitReachedError once agent and user
    simulator have cost `cost_limit`, counted over all attempts; 0 sets no limit.
    """
    folder = partial_folder(out)
    context = prepare_eval(spec, folder, cost_limit, concurrency)
    context.strip_tokens = True
    try:
        played = run_async(play_eval(spec, context, folder, on_progress))
    except ConfigError as e:
        if has_progress(folder):
            raise type(e)(f"{e}; finished episodes are stored; resume with --resume") from e  # its type is kept
        remove_partial_episodes(out)
        raise
    return [episode for episodes in played for episode in episodes], context.cost_tracker.usage_by_role


def remove_partial_episodes(out: Path) -> None:
    """Remove the stored episodes of `out`."""
    shutil.rmtree(partial_folder(out), ignore_errors=True)


def read_run_episodes(run: Path, allow_test_data: bool) -> list[Trajectory]:
    """Return the training episodes of a run.

    Raise ConfigError if a task is not stored, or is of the validation or test split and `allow_test_data` is False.
    """
    episodes = [strip_tokens(episode) for episode in read_stored_episodes(run)]
    tasks = read_stored_tasks(run)
    names = dict.fromkeys(episode.task_id for episode in episodes)
    if missing := [name for name in names if name not in tasks]:
        raise ConfigError(f"{run / TASKS_FILE} is missing, or lacks tasks of the run's episodes, such as {missing[0]}")
    if not allow_test_data and (found := [name for name in names if tasks[name].split in EVAL_SPLITS]):
        raise ConfigError(f"{run} has episodes of held-out tasks, such as {found[0]}; {_TEST_DATA_HINT}")
    return episodes


def read_log_episodes(log: Path, needs_grades: bool, notify: Callable[[str], None]) -> list[Trajectory]:
    """Return the conversations of a log of `serve --log`. One without a grade counts as a success, which is notified.

    Raise ConfigError with `needs_grades` if none has a grade.
    """
    episodes = [strip_tokens(episode) for episode in read_request_log(log)]
    num_ungraded = sum(episode.score is None for episode in episodes)
    if needs_grades and num_ungraded == len(episodes):
        raise ConfigError(
            f"{log} has no grades, which --dpo and --kto need; add a column reward, a number from 0 to 1, to the last "
            "row of each conversation, or give --sft"
        )
    if num_ungraded:
        notify(f"{num_ungraded} of {len(episodes)} conversations have no grade and count as successes")
    return [replace(episode, score=episode.score or Score(reward=1.0)) for episode in episodes]


def refuse_eval_split(split: Split, allow_test_data: bool) -> None:
    """Raise ConfigError for validation and test tasks, unless they are allowed."""
    if split in EVAL_SPLITS and not allow_test_data:
        raise ConfigError(f"{split} tasks are for evaluation, not for training; {_TEST_DATA_HINT}")


_TEST_DATA_HINT = "a model trained on them cannot be evaluated on them. To use them anyway, give --allow-test-data"


def write_examples(
    episodes: Sequence[Trajectory], tools: ToolLookup, outputs: Mapping[str, Path], selection: SelectionConfig
) -> tuple[str, bool]:
    """Write the examples of each kind (`sft`, `dpo`, `kto`) to its file. `tools` are those of episodes without any.

    Return a summary of each, and whether it has examples. Kinds without examples get no file. Raise TaskError if no
    kind has any.
    """
    makers: dict[str, Any] = {
        "sft": build_demonstrations,
        "dpo": functools.partial(build_preference_pairs, max_per_task=selection.max_pairs_per_task),
        "kto": build_labeled_examples,
    }
    made = {path: makers[name](episodes, tools) for name, path in outputs.items()}
    selected = {
        path: balance_examples(each, selection.max_per_group, selection.balance_by, selection.seed)
        if selection.max_per_group
        else each
        for path, each in made.items()
    }
    text = "\n".join(f"{path}: {len(example_set.examples):,}\n{example_set}" for path, example_set in selected.items())
    if not any(example_set.examples for example_set in selected.values()):
        raise TaskError(f"none of the {len(episodes)} episodes can be written:\n{text}")
    for path, example_set in selected.items():
        if example_set.examples:
            with open_output(path, resume=True) as file:
                for _, example in example_set.examples:
                    file.write(example)
    return text, all(example_set.examples for example_set in selected.values())


def validate_output_files(paths: Iterable[Path]) -> None:
    """Raise ConfigError unless the files are different new JSONL files."""
    seen = set[Path]()
    for path in paths:
        if path.suffix != ".jsonl":
            raise ConfigError(f"{path}: conversations are written as JSONL; give a name that ends in .jsonl")
        if path in seen or path.exists():
            raise ConfigError(f"{path} already exists; choose another name, or remove it")
        if not path.parent.is_dir():
            raise ConfigError(f"{path} cannot be written: there is no folder {path.parent}; create it")
        seen.add(path)
