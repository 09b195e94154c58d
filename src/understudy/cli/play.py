"""Play an episode in the terminal as the agent or as the user, or watch one; from its start, or from a fork."""

import difflib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from understudy.core.errors import ConfigError, did_you_mean
from understudy.core.event_loop import run_async
from understudy.core.messages import Message, ToolSpec
from understudy.core.tasks import SPLITS, Scenario, Split, Task
from understudy.core.terminal import PersonLeft, print_conversation, read_line
from understudy.core.trajectory import Trajectory
from understudy.envs.environment import Environment
from understudy.envs.task_source import TaskSource, describe_no_tasks, explain_failed_parts, find_task
from understudy.envs.tools import UserTools
from understudy.envs.users import HumanUser, UserFactory
from understudy.formats.typed_calls import format_tool_list, parse_typed_reply
from understudy.rollouts.agent import Agent, GoldAgent, HumanAgent
from understudy.rollouts.fork import Fork
from understudy.rollouts.rollout import EpisodeLimits, rollout
from understudy.viewer.run_text import format_episode_title, format_transcript

PlayRole = Literal["agent", "user"]
"""The role of the person at the terminal."""

MIN_LIMITS = EpisodeLimits(max_turns=100)
"""Minimum limits of an episode in the terminal, because people take more turns than models."""
PLAY_HELP = """\
A line of text is a message to the user. A line that begins with a tool's name is a call, in one of these forms:
    find_order order_id=W1    find_order(order_id="W1")    find_order {"order_id": "W1"}
Write a list as a,b and put a value with spaces in quotes.
/tools lists the tools, /tool NAME shows one, /help shows this text, /quit leaves without a result."""


@dataclass
class TerminalPlayer:
    """A person in the terminal: `read_line` reads a line, `print_text` prints."""

    read_line: Callable[[str], str] = read_line
    print_text: Callable[[str], None] = print_conversation
    greeted: bool = False

    def act(self, new: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the person's reply as the agent. Ask again if a line cannot be parsed."""
        self.print_text(format_transcript(new))
        if not self.greeted:
            self.print_text(f"\n{PLAY_HELP}\n{format_tool_list(tools)}\n")
            self.greeted = True
        while True:
            line = self.read_line("agent> ").strip()
            if line.startswith("/"):
                self.print_text(_command(line, tools))
                continue
            try:
                return parse_typed_reply(line, tools)
            except ValueError as e:
                self.print_text(f"That is not a call: {e}")


@dataclass(frozen=True, slots=True)
class _WatchedAgent:
    """An agent whose conversation is shown."""

    agent: Agent
    show: Callable[[str], None]

    async def act(
        self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Message | None:
        reply = await self.agent.act(task, episode, new, tools)
        self.show(format_transcript([*new, *([reply] if reply else [])]))
        return reply


def play_interactively(
    source: TaskSource,
    task: Task,
    role: PlayRole = "agent",
    agent: Agent | None = None,
    person: TerminalPlayer | None = None,
    watch: bool = False,
    fork: Fork | None = None,
    limits: EpisodeLimits = MIN_LIMITS,
) -> Trajectory | None:
    """Play a task in the terminal and print its reward. Return None if the person leaves early (Ctrl-D, Ctrl-C).

    If the person plays the user, or if `watch` is set, `agent` plays the agent; by default it plays the gold turns. The
    limits of the episode are the larger ones of `limits` and `MIN_LIMITS`.
    """
    person = person or TerminalPlayer()
    user = human_users(person.read_line, person.print_text)
    actor = HumanAgent(person.act) if role == "agent" and not watch else agent or GoldAgent()
    if watch:
        actor = _WatchedAgent(actor, person.print_text)
    if fork:
        person.print_text(
            format_transcript(fork.messages_before_turn if role == "user" else fork.messages_up_to_last_reply)
        )  # agents print the new messages themselves
        actor = fork.make_agent(actor)
        source = source.with_users(fork.make_user_factory(user if role == "user" else None))
    elif role == "user":
        source = source.with_users(user)
    seed = fork.episode.seed if fork else 0
    episode = play_in_terminal(
        task, source.environment(task, seed=seed), actor, person.print_text, limits, seed, has_person=not watch
    )
    if episode is not None:
        person.print_text("\n".join(["", format_episode_title(episode), *explain_failed_parts(source, task, episode)]))
    return episode


def play_in_terminal(
    task: Task,
    environment: Environment,
    agent: Agent,
    show: Callable[[str], None],
    limits: EpisodeLimits,
    seed: int,
    has_person: bool = True,
) -> Trajectory | None:
    """Play an episode that a person plays or watches. Return None if the person leaves early (/quit, Ctrl-C).

    The limits of the episode are the larger ones of `limits` and `MIN_LIMITS`. With `has_person`, no step has a time
    limit.
    """
    limits = limits.replace(
        max_turns=max(limits.max_turns, MIN_LIMITS.max_turns),
        max_episode_tokens=max(limits.max_episode_tokens, MIN_LIMITS.max_episode_tokens),
        max_step_seconds=math.inf if has_person else limits.max_step_seconds,  # a person thinks
    )
    try:
        return run_async(rollout(task, environment, agent, limits, seed))
    except (PersonLeft, KeyboardInterrupt):
        show("\nYou left before the end: no result.")
        return None


def human_users(ask: Callable[[str], str], show: Callable[[str], None]) -> UserFactory:
    """Return a factory of users who are the person at the terminal."""

    def user(scenario: Scenario, seed: int, user_tools: UserTools | None) -> HumanUser:
        return HumanUser(scenario, user_tools, ask, show)

    return user


def select_task(source: TaskSource, name: str = "", split: Split = "train") -> Task:
    """Return a task by its id, frozen or generated, or the first task of a split."""
    if name and (task := find_task(source, name)):
        return task
    tasks = {task.id: task for task in source.tasks(split)}
    if name:
        known = [task.id for each in dict.fromkeys((split, *SPLITS)) for task in source.tasks(each)]
        if ends := [each for each in known if each.endswith(f"/{name}")]:
            raise ConfigError(f"unknown task {name!r}; did you mean {' or '.join(map(repr, ends[:3]))}?")
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.3) or known[:3]
        raise ConfigError(
            f"unknown task {name!r}; {source.name} has {len(known)}, such as {', '.join(map(repr, close))}"
        )
    if not tasks:
        others = [each for each in SPLITS if source.tasks(each)]
        raise ConfigError(describe_no_tasks(source, split, [f"give --split {' or '.join(others)}"] if others else []))
    return next(iter(tasks.values()))


def _command(line: str, tools: Sequence[ToolSpec]) -> str:
    command, _, name = line.partition(" ")
    if command == "/quit":
        raise PersonLeft
    if command == "/tools":
        return format_tool_list(tools)
    if command == "/tool":
        known = {tool.name: tool for tool in tools}
        return (
            json.dumps(known[name].model_dump(), indent=2) if name in known else f"no tool {did_you_mean(name, known)}"
        )
    return PLAY_HELP
