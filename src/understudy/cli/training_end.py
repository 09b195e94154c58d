"""What `understudy train` prints under its result table: a task that the model learned, and what to do next."""

import io
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from understudy.core.messages import Message
from understudy.core.terminal import escape_control_characters
from understudy.core.trajectory import Trajectory, read_trajectories
from understudy.evaluation.failures.explain import is_failed
from understudy.runs.run import RunEvaluation, list_run_evaluations
from understudy.runs.storage.checkpoints import list_checkpoints
from understudy.runs.storage.episode_store import EPISODES_FILE
from understudy.viewer.run_text import format_call

MAX_LINES_IN_FILES = 20
"""Largest number of lines of the two conversations if they are not printed to a terminal."""
MIN_WIDTH_SIDE_BY_SIDE = 80
"""Smallest width of a terminal, in columns, in which two conversations stand side by side."""
MAX_MESSAGE_CHARS = 160
"""Largest number of characters of a message that are shown."""
MAX_SHOWN_MESSAGES = 14
"""Largest number of messages and calls of a conversation that are shown; the middle of a longer one is left out."""
_DEFAULT_SIZE = (100, 24)
_SPEAKERS = {"user": "user", "assistant": "agent", "tool": "tool"}


@dataclass(frozen=True, slots=True)
class Improvement:
    """Two episodes of one task: it failed in the first evaluation of a run and succeeded in the last."""

    stage_before: str
    """Name of the weights of the first evaluation, such as `base`."""
    stage_after: str
    """Name of the weights of the last evaluation, such as `rl`."""
    before: Trajectory
    after: Trajectory
    num_tasks: int
    """Number of tasks with scores in both evaluations."""
    num_learned: int
    """Number of tasks whose trials all failed in the first evaluation and all succeeded in the last."""
    num_lost: int
    """Number of tasks whose trials all succeeded in the first evaluation and all failed in the last."""


def format_training_end(run: Path, is_terminal: bool, width: int | None = None) -> str:
    """Return a task that the model of a run learned, if there is one, and the commands to continue with.

    `width` is that of the text in columns; by default, that of the terminal. Without a terminal, conversations longer
    than `MAX_LINES_IN_FILES` are left out.
    """
    found = find_improvement(run)
    shown = format_improvement(found, width or shutil.get_terminal_size(_DEFAULT_SIZE).columns) if found else ""
    if not is_terminal and len(shown.splitlines()) > MAX_LINES_IN_FILES:
        shown = ""
    return "\n\n".join(filter(None, [shown, format_next_steps(run, found.after.task_id if found else "")]))


def format_next_steps(run: Path, task_id: str = "") -> str:
    """Return the commands to continue with after a run. `task_id` is the task to talk about."""
    folder = shlex.quote(str(run))
    task = f" --task {shlex.quote(task_id)}" if task_id else ""
    steps = {f"understudy view {folder}": "look at the curves and at every episode"}
    if list_checkpoints(run):
        steps[f"understudy chat {folder}{task}"] = "talk to the model, with its tools"
    steps["understudy new environment my_tools"] = "write tools of your own and train on them"
    width = max(map(len, steps))
    return "\n".join([f"The run is in {run}. Next:", *(f"  {line:<{width}}  # {what}" for line, what in steps.items())])


def find_improvement(run: Path) -> Improvement | None:
    """Return the shortest episodes of a held-out task that failed in the first evaluation and succeeded in the last.

    All scored trials of the task failed in the first and all succeeded in the last. Return None if there is no such
    task, or if the run has fewer than two evaluations.
    """
    evaluations = [each for each in list_run_evaluations(run) if not each.eval_set]
    if len(evaluations) < 2:
        return None
    before, after = _read_trials(evaluations[0]), _read_trials(evaluations[-1])
    common = sorted(before.keys() & after.keys())
    learned = [task for task in common if _all_failed(before[task]) and _all_succeeded(after[task])]
    if not learned:
        return None
    task = min(learned, key=lambda task: sum(len(_shortest(each[task]).messages) for each in (before, after)))
    return Improvement(
        stage_before=evaluations[0].stage,
        stage_after=evaluations[-1].stage,
        before=_shortest(before[task]),
        after=_shortest(after[task]),
        num_tasks=len(common),
        num_learned=len(learned),
        num_lost=sum(_all_succeeded(before[task]) and _all_failed(after[task]) for task in common),
    )


def _all_failed(trials: Sequence[Trajectory]) -> bool:
    return all(map(is_failed, trials))


def _all_succeeded(trials: Sequence[Trajectory]) -> bool:
    return not any(map(is_failed, trials))


def _read_trials(evaluation: RunEvaluation) -> dict[str, list[Trajectory]]:
    """Return the episodes of an evaluation that have a score, by task."""
    file, found = evaluation.folder / EPISODES_FILE, dict[str, list[Trajectory]]()
    for episode in read_trajectories(file)[0] if file.is_file() else ():
        if episode.score is not None:
            found.setdefault(episode.task_id, []).append(episode)
    return found


def _shortest(episodes: Sequence[Trajectory]) -> Trajectory:
    return min(episodes, key=lambda episode: len(episode.messages))


def format_improvement(found: Improvement, width: int) -> str:
    """Return the two conversations as text: side by side, or one under the other in less than `MIN_WIDTH_SIDE_BY_SIDE`.

    Long messages are cut, and so is the middle of a long conversation.
    """
    lost = f", and {found.num_lost} the other way round" if found.num_lost else ""
    counts = f"{found.num_learned} of {found.num_tasks} tasks failed before and succeed now{lost}"
    title = escape_control_characters(f"{counts}, such as {found.after.task_id}:")
    before = _conversation(f"before: {found.stage_before}", found.before)
    after = _conversation(f"after: {found.stage_after}", found.after)
    console = Console(width=width, file=io.StringIO(), color_system=None)
    with console.capture() as capture:
        console.print(Text(title, overflow="fold"), end="\n\n")
        if width >= MIN_WIDTH_SIDE_BY_SIDE:
            columns = Table.grid(padding=(0, 2), expand=True)
            columns.add_column(ratio=1)
            columns.add_column(ratio=1)
            columns.add_row(before, after)
            console.print(columns)
        else:
            console.print(before, "", after)
    return "\n".join(line.rstrip() for line in capture.get().rstrip().splitlines())


def _conversation(title: str, episode: Trajectory) -> RenderableType:
    """Return a conversation as a table of speakers and texts, without the system message."""
    lines = [line for message in episode.messages for line in _lines(message)]
    if len(lines) > MAX_SHOWN_MESSAGES:
        half = MAX_SHOWN_MESSAGES // 2
        lines = [*lines[:half], ("…", f"({len(lines) - 2 * half} more)"), *lines[-half:]]
    reward = f"{episode.score.reward:g}" if episode.score else "none"
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for speaker, text in lines:
        table.add_row(Text(speaker), Text(text))
    whole = Table.grid()
    whole.add_row(Text(f"{title} (reward {reward})", overflow="fold"))
    whole.add_row(table)
    return whole


def _lines(message: Message) -> Iterator[tuple[str, str]]:
    """Yield the speaker and the shortened text of a message, then of each of its calls."""
    if message.role == "system":
        return
    speaker = _SPEAKERS[message.role]
    if message.content.strip() or not message.tool_calls:
        yield speaker, _short(message.content) or "(says nothing)"
    for call in message.tool_calls:
        yield speaker, f"> {_short(format_call(call))}"


def _short(text: str) -> str:
    line = escape_control_characters(" ".join(text.split()))
    return line if len(line) <= MAX_MESSAGE_CHARS else f"{line[: MAX_MESSAGE_CHARS - 1]}…"
