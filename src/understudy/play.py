"""Play an episode yourself: as the agent, with its policy and tools, or as the user who wants something of it."""

import ast
import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from understudy.agent import Agent, GoldAgent, HumanAgent
from understudy.domains.base import TaskSource
from understudy.errors import ConfigError, nearest
from understudy.messages import Message, ToolCall, ToolSpec
from understudy.rollout import Limits, rollout
from understudy.tasks import Split, Task
from understudy.trajectory import Trajectory
from understudy.users import User
from understudy.view import episode_title, transcript

_CALL = re.compile(r"(\w*)\s*(.*)", re.DOTALL)
HELP = """\
Type text to say it to the user. Type a call to make it:
    find_order(order_id="W1")    or    find_order {"order_id": "W1"}
/tools lists the tools, /tool NAME shows one, /quit leaves."""


@dataclass
class Person:
    """You, at a prompt: `ask` reads a line, `show` prints."""

    ask: Callable[[str], str] = input
    show: Callable[[str], None] = print
    welcomed: bool = False

    def act(self, new: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Your reply as the agent; what cannot be read is asked for again."""
        self.show(transcript(new))
        if not self.welcomed:
            self.show(f"\n{HELP}\n{_tool_list(tools)}\n")
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

    async def reply(self, messages: Sequence[Message]) -> str | None:
        """What you say as the user; an empty line ends the conversation."""
        self.show(transcript(messages[-1:]))
        line = self.ask("user> ").strip()
        if line == "/quit":
            raise EOFError
        return line or None


def play(
    domain: TaskSource,
    task: Task,
    role: Literal["agent", "user"] = "agent",
    agent: Agent | None = None,
    person: Person | None = None,
) -> Trajectory | None:
    """Play a task at a prompt and see what it earned; None when you leave before its end.

    As the user you meet `agent`, the gold turns unless another one is given.
    """
    person = person or Person()
    user: User | None = person if role == "user" else None
    if role == "user":
        person.show(f"You are the user. {task.scenario.instructions}\nAn empty line ends the conversation.\n")
    actor = HumanAgent(person.act) if role == "agent" else agent or GoldAgent()
    try:
        episode = asyncio.run(rollout(task, domain.environment(task, user), actor, Limits(max_turns=100)))
    except EOFError:
        return None
    person.show(f"\n{episode_title(episode)}")
    return episode


def find_task(domain: TaskSource, name: str = "", split: Split = "train") -> Task:
    """A task by its id, or the first one of a split."""
    tasks = {task.id: task for task in domain.tasks(split)}
    if not tasks:
        raise ConfigError(f"domain {domain.name} has no {split} tasks in this slice")
    if name and name not in tasks:
        raise ConfigError(f"unknown task {nearest(name, tasks)}"[:400])
    return tasks[name] if name else next(iter(tasks.values()))


def read_reply(line: str, tools: Sequence[ToolSpec]) -> Message:
    """A typed line as a reply: a call where it is a tool's name and a bracket, text else. Nothing is executed."""
    name, rest = _CALL.match(line).groups()  # type: ignore[union-attr]  # the pattern matches any line
    known = {tool.name for tool in tools}
    if name not in known and re.fullmatch(r"\(.*\)|\{.*\}", rest):
        raise ValueError(f"no tool {nearest(name, known)}")
    if name not in known or rest[:1] not in ("", "(", "{"):
        return Message(role="assistant", content=line)
    arguments = _literals(rest) if rest.startswith("(") else json.loads(rest or "{}")
    return Message(role="assistant", tool_calls=(ToolCall(name=name, arguments=arguments),))


def _literals(text: str) -> dict[str, Any]:
    """The keyword arguments of `(name=literal, …)`."""
    try:
        call = ast.parse(f"call{text}", mode="eval").body
    except SyntaxError as e:
        raise ValueError(e.msg) from e
    if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
        raise ValueError('give each argument its name, such as order_id="W1"')
    return {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}


def _command(line: str, tools: Sequence[ToolSpec]) -> str:
    command, _, name = line.partition(" ")
    if command == "/quit":
        raise EOFError
    if command == "/tools":
        return _tool_list(tools)
    if command == "/tool":
        known = {tool.name: tool for tool in tools}
        return json.dumps(known[name].model_dump(), indent=2) if name in known else f"no tool {nearest(name, known)}"
    return HELP


def _tool_list(tools: Sequence[ToolSpec]) -> str:
    return "\n".join(f"  {_signature(tool)}\n      {tool.description.splitlines()[0]}" for tool in tools)


def _signature(tool: ToolSpec) -> str:
    required = tool.parameters.get("required", [])
    names = tool.parameters.get("properties", {})
    return f"{tool.name}({', '.join(n if n in required else f'[{n}]' for n in names)})"
