"""`understudy chat`: talk to an agent as its user, and see its tool calls and what they change.

The person is a `User` of the environment that evaluations use. The environment is only watched.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import typer
from rich.console import Console
from rich.status import Status

from understudy.cli.arguments import print_file_summaries
from understudy.cli.evaluation import make_spec
from understudy.cli.play import TerminalPlayer, human_users, play_in_terminal, select_task
from understudy.clients.cost import CostTracker, validate_prices
from understudy.core.errors import ConfigError
from understudy.core.event_loop import run_async
from understudy.core.files import os_errors_as_config_errors
from understudy.core.messages import Message, ToolSpec
from understudy.core.tasks import Score, Split, Task
from understudy.core.terminal import InputEnded
from understudy.core.trajectory import Trajectory
from understudy.engines.models import MODELS
from understudy.envs.environment import Environment, StepResult
from understudy.envs.state import State
from understudy.envs.state_diff import StateEdit, diff_states
from understudy.envs.task_source import StatefulSource, TaskSource, find_source
from understudy.evaluation.failures.causes import FAILURE_KINDS, EpisodeFailure
from understudy.evaluation.failures.explain import find_failures
from understudy.evaluation.reports.report import EvalReport
from understudy.evaluation.result import ResultRow, summarize_episodes
from understudy.evaluation.runner import validate_new_eval_folder, write_report
from understudy.rollouts.agent import Agent
from understudy.rollouts.rollout import EpisodeLimits
from understudy.runs.agents import make_agent
from understudy.runs.endpoints import cost_limit_of, endpoint_configs, eval_endpoint_names
from understudy.runs.eval_spec import EvalSpec
from understudy.runs.storage.episode_store import EpisodeStore
from understudy.runs.storage.task_store import TaskStore
from understudy.runs.targets import detect_target, split_arguments
from understudy.viewer.run_text import format_call

MAX_RESULT_CHARS = 1000
"""Largest number of characters of a tool's result that are shown."""
MAX_SHOWN_EDITS = 12
"""Largest number of changes of a step that are shown."""
MAX_VALUE_CHARS = 80
"""Largest number of characters of a changed value that are shown."""


def run_chat(
    target: Sequence[str], task: str, split: Split, agent: str, model: str, out: Path | None
) -> Trajectory | None:
    """Let a person talk to the agent of `understudy chat`, and write the episode to the new folder `out`.

    Return None if the person leaves early.
    """
    if out is not None:
        validate_new_eval_folder(out)
    arguments, named = split_model(target)
    if named and model:
        raise ConfigError(f"{named} and --model {model} name two models; give one of them")
    model = named or model
    if useless := [word for word in split_arguments(arguments)[1] if word.startswith("user.")]:
        raise ConfigError(f"{useless[0]} has no effect, because you are the user; leave it out")
    spec = make_spec([*arguments, "user.kind=human"], agent, model, repeats=1, judge_failures=False)
    source = spec.config.open_source()
    print_file_summaries(source)
    played = select_task(source, task, split)
    opened = open_agent(spec)
    with _new_folder(out) if out else contextlib.nullcontext():
        episode = chat_interactively(source, played, opened, limits=spec.config.limits, seed=spec.config.seed)
        if episode is not None and episode.score and out is not None:
            store_chat(out, spec, source, played, episode)
            typer.echo(f"the episode is in {out}; view it with: understudy view {out}", err=True)
    return episode


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """Create the folder, so that a wrong path is an error before anybody talks. Remove it if it stays empty."""
    with os_errors_as_config_errors(folder, "give another --out"):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        if not any(folder.iterdir()):
            folder.rmdir()


def split_model(arguments: Sequence[str]) -> tuple[list[str], str]:
    """Return the arguments without a model in the place of TARGET, and that model; empty if there is none."""
    names, settings = split_arguments(arguments)
    target = detect_target(names[0]) if names else None
    if names and ((target and target.kind == "model") or (target is None and names[0] in MODELS)):
        return [*names[1:], *settings], names[0]
    return list(arguments), ""


def open_agent(spec: EvalSpec) -> Agent:
    """Return the agent of a spec. Requests to an endpoint count against the config's cost limit."""
    config = spec.config
    limit = cost_limit_of(spec.agent, config)
    validate_prices(limit, endpoint_configs(config, eval_endpoint_names(spec.agent, config, False)))
    checkpoint = Path(spec.checkpoint) if spec.checkpoint else None
    return make_agent(spec.agent, config, checkpoint, CostTracker(limit).budget_for("agent"))


def chat_interactively(
    source: TaskSource,
    task: Task,
    agent: Agent,
    person: TerminalPlayer | None = None,
    limits: EpisodeLimits | None = None,
    seed: int = 0,
) -> Trajectory | None:
    """Let a person talk to the agent in the environment of a task, and print the grade and why.

    Return None if the person leaves early (/quit, Ctrl-C, or nothing said at all). The end of the input is /end.
    """
    person = person or TerminalPlayer()

    def ask(prompt: str) -> str:
        try:
            return person.read_line(prompt)
        except InputEnded:
            return "/end"

    show = person.print_text
    watched = open_watched(source.with_users(human_users(ask, show)), task, seed, show)
    show(f"The agent has the tools {', '.join(tool.name for tool in watched.tools) or '(none)'}.\n")
    episode = play_in_terminal(task, watched, _AwaitedAgent(agent), show, limits or EpisodeLimits(), seed)
    if episode is not None:
        show(f"\n{format_grade(episode, explain(source, task, episode))}")
    return episode


@dataclass(frozen=True, slots=True)
class _AwaitedAgent:
    """An agent whose replies are awaited with a line in the terminal, since a large model takes a while."""

    agent: Agent

    async def act(
        self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Message | None:
        with Console(stderr=True).status("waiting for the agent; Ctrl-C leaves") as status, _told_of_interrupt(status):
            return await self.agent.act(task, episode, new, tools)


@contextlib.contextmanager
def _told_of_interrupt(status: Status) -> Iterator[None]:
    """Say at once that Ctrl-C was pressed: the step of the model under way, such as a long prompt, ends first."""
    previous = signal.getsignal(signal.SIGINT)
    if not callable(previous) or threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        status.update("leaving, after this step of the model; Ctrl-C again ends it")
        previous(number, frame)

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def open_watched(source: TaskSource, task: Task, seed: int, show: Callable[[str], None]) -> "WatchedEnvironment":
    """Return an episode of `task` that shows what the agent does. Changes are shown if the source exposes its state."""
    leaf = find_source(source, task.domain)
    if not isinstance(leaf, StatefulSource):
        return WatchedEnvironment(leaf.environment(task, seed=seed), show)
    state = leaf.initial_state(task)
    environment = leaf.environment_from_state(state, task, seed=seed)
    return WatchedEnvironment(environment, show, state, leaf.initial_state(task))


class WatchedEnvironment:
    """An environment that shows the calls of each reply, their results, and the changes of `state`.

    `initial_state` is an equal state that nobody writes to.
    """

    def __init__(
        self,
        environment: Environment,
        show: Callable[[str], None],
        state: State | None = None,
        initial_state: State | None = None,
    ) -> None:
        self._environment, self._show = environment, show
        self._state, self._initial_state = state, initial_state
        self._before: dict[str, Any] = {}

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """The tools that the agent may call."""
        return self._environment.tools

    async def start(self) -> StepResult:
        """Start the episode."""
        step = await self._environment.start()
        self._show_changes()
        return step

    async def step(self, reply: Message) -> StepResult:
        """Answer one reply of the agent, and show its calls before they run. The user shows the texts."""
        if reply.tool_calls:
            said = [f"agent | {line}" for line in reply.content.strip().splitlines()]
            self._show("\n".join([*said, *(f"agent > {format_call(call)}" for call in reply.tool_calls)]))
        step = await self._environment.step(reply)
        for message in step.messages:
            if message.role == "tool":
                self._show(format_result(message.content))
        self._show_changes()
        return step

    async def grade(self, ended: bool) -> Score:
        """Return the score of the episode so far."""
        return await self._environment.grade(ended)

    async def close(self) -> None:
        """Release the resources of the episode."""
        await self._environment.close()

    def _show_changes(self) -> None:
        if self._state is None or self._initial_state is None:
            return
        after = self._state.changes()
        if edits := diff_states(self._initial_state, self._before, after):
            self._show("\n".join(format_edits(edits)))
        self._before = after


def format_result(text: str) -> str:
    """Return the result of a tool as text, cut to `MAX_RESULT_CHARS`."""
    cut = text if len(text) <= MAX_RESULT_CHARS else f"{text[:MAX_RESULT_CHARS]}… ({len(text):,} characters)"
    first, *rest = cut.splitlines() or ["(empty)"]
    return "\n".join([f" tool | {first}", *(f"      | {line}" for line in rest)])


def format_edits(edits: Sequence[StateEdit]) -> Iterator[str]:
    """Yield a line for each change of the database: where, the value before and the value after."""
    for edit in edits[:MAX_SHOWN_EDITS]:
        where = ".".join(edit.path)
        match edit.kind:
            case "added":
                yield f"   db | {where}: added {_short(edit.after)}"
            case "removed":
                yield f"   db | {where}: removed {_short(edit.before)}"
            case "set":
                yield f"   db | {where}: {_short(edit.before)} -> {_short(edit.after)}"
    if len(edits) > MAX_SHOWN_EDITS:
        yield f"   db | … and {len(edits) - MAX_SHOWN_EDITS} more changes"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[: MAX_VALUE_CHARS - 1]}…"


def explain(source: TaskSource, task: Task, episode: Trajectory) -> EpisodeFailure | None:
    """Return why the episode of a person failed, or None if it succeeded."""
    found = run_async(find_failures(source, {task.id: task}, [episode], scripted_users=False))
    return found[0] if found else None


def format_grade(episode: Trajectory, failure: EpisodeFailure | None) -> str:
    """Return the grade of an episode as text: the reward, its parts, what broke the policy, and why it failed."""
    score = episode.score
    if score is None:
        return f"{episode.task_id}: no score, because a component failed ({episode.fault}): {episode.error}"
    if failure and failure.cause.kind == "contradicted_scenario":  # the person did not play the user of the task
        said = failure.cause.evidence
        return f"{episode.task_id}: not graded, because you said something that is not in the task: {said}"
    lines = [f"{episode.task_id}: reward {score.reward:g} ({episode.stop_reason}, {episode.num_turns} turns)"]
    width = max(map(len, score.parts), default=0)
    lines += [f"  {name:<{width}}  {value:g}" for name, value in score.parts.items()]
    lines += [f"  policy: {violation.kind}: {violation.text}" for violation in score.violations]
    if failure:
        component, what = FAILURE_KINDS[failure.cause.kind]
        evidence = f": {failure.cause.evidence}" if failure.cause.evidence else ""
        lines.append(f"  why: {component} {what}{evidence}")
    return "\n".join(lines)


def store_chat(folder: Path, spec: EvalSpec, source: TaskSource, task: Task, episode: Trajectory) -> None:
    """Write the episode as an evaluation of one task, whose user was a person."""
    config = spec.config
    played = config.eval.replace(tasks=1, trials=1, split=task.split, seed=config.seed)
    with os_errors_as_config_errors(folder, "free some space"):
        TaskStore(folder).add([task])
    EpisodeStore(folder, spec.replace(config=config.replace(eval=played))).add(episode)
    failure = explain(source, task, episode)
    row = ResultRow(name=spec.name, result=summarize_episodes(source, [task], [episode], 1, config.seed))
    write_report(folder, EvalReport(rows=(row,), failures=(failure,) if failure else ()))
