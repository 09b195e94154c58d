"""Play an episode: as the agent, with its policy and tools, as the user who wants something of it, or look on.

It begins at its beginning, or at a fork of one that is stored.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from understudy.agent import Agent, GoldAgent, HumanAgent
from understudy.domains.base import TaskSource
from understudy.domains.recall import recall
from understudy.errors import ConfigError, nearest
from understudy.fork import Fork
from understudy.messages import Message, ToolSpec
from understudy.prompt import ask_person, print_coloured, read_reply, tool_list
from understudy.rollout import Limits, rollout
from understudy.tasks import Scenario, Split, Task
from understudy.tools import Device
from understudy.trajectory import Trajectory
from understudy.users import HumanUser
from understudy.view import episode_title, transcript

Role = Literal["agent", "user", "nobody"]
"""Whom a person plays; nobody looks on."""

ROOM = Limits(max_turns=100)
"""What an episode at a prompt may come to at least: people take many small turns."""
HELP = """\
Type text to say it to the user. Type a call to make it, in one of these ways:
    find_order order_id=W1    find_order(order_id="W1")    find_order {"order_id": "W1"}
A list is a,b; what has spaces stands in quotes. A line ends a message; one that begins with a tool's name is a call.
/tools lists the tools, /tool NAME shows one, /help shows this, /quit leaves without a result."""


@dataclass
class Person:
    """You, at a prompt: `ask` reads a line, `show` prints."""

    ask: Callable[[str], str] = ask_person
    show: Callable[[str], None] = print_coloured
    welcomed: bool = False

    def act(self, new: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Your reply as the agent; what cannot be read is asked for again."""
        self.show(transcript(new))
        if not self.welcomed:
            self.show(f"\n{HELP}\n{tool_list(tools)}\n")
            self.welcomed = True
        while True:
            line = self.ask("agent> ").strip()
            if line.startswith("/"):
                self.show(_command(line, tools))
                continue
            try:
                return read_reply(line, tools)
            except ValueError as e:
                self.show(f"That is not a call: {e}")


@dataclass(frozen=True, slots=True)
class _Overheard:
    """An agent that others listen to."""

    agent: Agent
    show: Callable[[str], None]

    async def act(
        self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Message | None:
        reply = await self.agent.act(task, episode, new, tools)
        self.show(transcript([*new, *([reply] if reply else [])]))
        return reply


def play(
    domain: TaskSource,
    task: Task,
    role: Role = "agent",
    agent: Agent | None = None,
    person: Person | None = None,
    fork: Fork | None = None,
    limits: Limits = ROOM,
) -> Trajectory | None:
    """Play a task at a prompt and see what it earned; None when you leave before its end, also by Ctrl-D or Ctrl-C.

    As the user, or as nobody, you meet `agent`, the gold turns unless another one is given. `limits` are those of what
    is played: an episode may come to as much, or to what there is `ROOM` for.
    """
    person = person or Person()

    def user(scenario: Scenario, seed: int, device: Device | None) -> HumanUser:
        return HumanUser(scenario, device, person.ask, person.show)

    actor = HumanAgent(person.act) if role == "agent" else agent or GoldAgent()
    if role == "nobody":
        actor = _Overheard(actor, person.show)
    if fork:
        person.show(transcript(fork.before if role == "user" else fork.past))  # an agent is shown what is new
        actor, domain = fork.agent(actor), domain.with_users(fork.users(user if role == "user" else None))
    elif role == "user":
        domain = domain.with_users(user)
    seed = fork.episode.seed if fork else 0
    turns, tokens = max(limits.max_turns, ROOM.max_turns), max(limits.max_tokens, ROOM.max_tokens)
    limits = limits.replace(max_turns=turns, max_tokens=tokens)
    try:
        episode = asyncio.run(rollout(task, domain.environment(task, seed=seed), actor, limits, seed))
    except (EOFError, KeyboardInterrupt):
        person.show("\nYou left before the end: no result.")
        return None
    person.show(f"\n{episode_title(episode)}")
    return episode


def find_task(domain: TaskSource, name: str = "", split: Split = "train") -> Task:
    """A task by its id, be it one that training made, or the first one of a split."""
    if name and (found := recall(domain, name)):
        return found
    tasks = {task.id: task for task in domain.tasks(split)}
    if not tasks:
        raise ConfigError(f"domain {domain.name} has no {split} tasks in this slice")
    if name:
        raise ConfigError(f"unknown task {nearest(name, tasks)}"[:400])
    return next(iter(tasks.values()))


def _command(line: str, tools: Sequence[ToolSpec]) -> str:
    command, _, name = line.partition(" ")
    if command == "/quit":
        raise EOFError
    if command == "/tools":
        return tool_list(tools)
    if command == "/tool":
        known = {tool.name: tool for tool in tools}
        return json.dumps(known[name].model_dump(), indent=2) if name in known else f"no tool {nearest(name, known)}"
    return HELP
