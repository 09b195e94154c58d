"""Play an episode yourself: as the agent, with its policy and tools, or as the user who wants something of it."""

import ast
import asyncio
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

from understudy.agent import Agent, GoldAgent, HumanAgent
from understudy.domains.base import Domain
from understudy.errors import ConfigError, nearest
from understudy.messages import Message, ToolCall, ToolSpec
from understudy.rollout import Limits, rollout
from understudy.tasks import Split, Task
from understudy.trajectory import Trajectory
from understudy.users import HumanUser, ask_person
from understudy.view import episode_title, transcript

_CALL = re.compile(r"(\w*)\s*(.*)", re.DOTALL)
_ARGUMENT = re.compile(r"(\w+)=(.*)", re.DOTALL)
_SPEAKER = re.compile(r" *(\w*) [|>] ")
_STYLES = {"system": "dim", "user": "green", "assistant": "cyan", "agent": "cyan", "tool": "yellow"}
HELP = """\
Type text to say it to the user. Type a call to make it, in one of these ways:
    find_order order_id=W1    find_order(order_id="W1")    find_order {"order_id": "W1"}
A list is a,b; what has spaces stands in quotes. A line ends a message; one that begins with a tool's name is a call.
/tools lists the tools, /tool NAME shows one, /help shows this, /quit leaves without a result."""


def print_coloured(text: str) -> None:
    """Print a conversation with a colour for each speaker, where the terminal has colours."""
    console, style = Console(highlight=False, soft_wrap=True), ""
    for line in text.splitlines() or [""]:
        speaker = _SPEAKER.match(line)
        style = (_STYLES.get(speaker[1], "") if speaker[1] else style) if speaker else ""
        console.print(Text(line, style))


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


def play(
    domain: Domain,
    task: Task,
    role: Literal["agent", "user"] = "agent",
    agent: Agent | None = None,
    person: Person | None = None,
) -> Trajectory | None:
    """Play a task at a prompt and see what it earned; None when you leave before its end, also by Ctrl-D or Ctrl-C.

    As the user you meet `agent`, the gold turns unless another one is given.
    """
    person = person or Person()
    user = HumanUser(task.scenario, person.ask, person.show) if role == "user" else None
    actor = HumanAgent(person.act) if role == "agent" else agent or GoldAgent()
    try:
        episode = asyncio.run(rollout(task, domain.environment(task, user), actor, Limits(max_turns=100)))
    except (EOFError, KeyboardInterrupt):
        person.show("\nYou left before the end: no result.")
        return None
    person.show(f"\n{episode_title(episode)}")
    return episode


def find_task(domain: Domain, name: str = "", split: Split = "train") -> Task:
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
    known = {tool.name: tool for tool in tools}
    if name not in known and re.fullmatch(r"\(.*\)|\{.*\}", rest):
        raise ValueError(f"no tool {nearest(name, known)}")
    arguments = _arguments(rest, known[name].parameters.get("properties", {})) if name in known else None
    if arguments is None:
        return Message(role="assistant", content=line)
    return Message(role="assistant", tool_calls=(ToolCall(name=name, arguments=arguments),))


def _arguments(text: str, properties: Mapping[str, Any]) -> dict[str, Any] | None:
    """What stands behind a tool's name, as arguments: `(a="b")`, `{"a": "b"}` or `a=b`; None if it is plain text."""
    if text[:1] in ("", "{"):
        return dict(json.loads(text or "{}"))
    if text.startswith("("):
        return _literals(text)
    if not _ARGUMENT.match(text):
        return None
    pairs = [_ARGUMENT.fullmatch(word) for word in shlex.split(text)]
    if None in pairs:
        raise ValueError("put what has spaces in quotes, such as reason='no longer needed'")
    return {pair[1]: _typed(pair[2], properties.get(pair[1], {})) for pair in pairs if pair}


def _typed(text: str, schema: Mapping[str, Any]) -> Any:
    """A typed word as the value that the schema wants; where it cannot be one it stays text, and the tool says so."""
    kinds = {branch.get("type") for branch in (schema, *schema.get("anyOf", ()))}
    if "string" in kinds or "enum" in schema:
        return text
    value = _json(text)
    if "array" not in kinds or isinstance(value, list):
        return value
    parts = (part.strip() for part in text.strip("[]").split(","))
    return [_typed(part, schema.get("items", {})) for part in parts if part]


def _json(text: str) -> Any:
    try:
        return json.loads(text.lower() if text.lower() in ("true", "false", "null") else text)
    except json.JSONDecodeError:
        return text


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
