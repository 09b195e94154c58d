"""Writes tasks of a source as task folders of Harbor, which a server of `understudy serve-env --harbor` plays.

A container has only a program that calls the server: no database, no script of the user, no gold. The agent calls the
tools in its shell, and the user is the tool `send_message`. `tests/test.sh` gets the reward from the server, with a key
that the agent does not have. `solution/solve.sh` makes the calls of gold. An agent that removes `/app/.episode` starts
the episode again.
"""

import json
import re
import secrets
import shlex
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from understudy.core.errors import ConfigError
from understudy.core.messages import Message
from understudy.core.tasks import SPLITS, Task
from understudy.data.conversations.export import create_output_folder
from understudy.envs.task_source import TaskSource, find_policy, find_tool_specs
from understudy.rollouts.exposed_episode import find_message_tool
from understudy.sources.loading import load_source

_CONFIG = """\
schema_version = "1.4"

[metadata]
source = {source}

[verifier]
timeout_sec = 120.0

[agent]
timeout_sec = 1800.0

[environment]
network_mode = "public"
"""
_DOCKERFILE = "FROM python:3.12-slim\nWORKDIR /app\nCOPY tool.py /app/\n"
_SENDING = """\
import json
import pathlib
import secrets
import sys
import urllib.error
import urllib.parse
import urllib.request


def ask(action, **body):
    episode = pathlib.Path("/app/.episode")
    if not episode.exists():
        episode.write_text(secrets.token_hex(16))
    name = urllib.parse.quote(episode.read_text(), safe="")
    data = json.dumps({{"task": {task!r}, **body}}).encode()
    try:
        with urllib.request.urlopen(f"{url}/episodes/{{name}}/{{action}}", data, timeout=600) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as e:
        sys.exit(f"{{e.code}}: {{e.read().decode()}}")


"""
_TOOL = """\
tool, text = [*sys.argv[1:], "", ""][:2]
try:
    answer = ask("call", tool=tool, arguments=json.loads(text or "{}"))
except ValueError as e:
    sys.exit(f"arguments must be JSON: {e}")
print(answer["result"]) if "result" in answer else sys.exit(answer["error"])
"""
_TEST = """\
#!/bin/bash
python3 - <<'EOF'
{sending}reward = ask("grade", key={key!r})["reward"]
pathlib.Path("/logs/verifier/reward.txt").write_text(str(reward))
EOF
"""
_INSTRUCTION = """\
{policy}

## Your tools

Run `python3 /app/tool.py NAME 'ARGUMENTS'` in a shell to call a tool and read its result. ARGUMENTS is a JSON object.
`send_message` is the only way to talk to the user: send all questions and answers by it, until the user leaves.

{tools}

## The user's first message

{opening}
"""


KEY_FILE = "reward.key"
"""The file of an export that has the key with which `tests/test.sh` asks for rewards."""


def read_key(folder: Path) -> str:
    """Return the key of an export. Raise ConfigError if it has none."""
    try:
        return (folder / KEY_FILE).read_text(encoding="utf-8")
    except OSError as e:
        problem = f"{folder} has no {KEY_FILE}: {e}; name the folder that `understudy data export harbor` wrote"
        raise ConfigError(problem) from e


def write_harbor_tasks(name: str, out: Path, url: str) -> Mapping[str, int]:
    """Write the tasks of the source `name` to the new folder `out`, with a folder for each split.

    `url` is the address of its server. Return the number of tasks of each split. Raise ConfigError if the source cannot
    be loaded, or for another address.
    """
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise ConfigError(
            f"--url {url!r} is no address; give that of `understudy serve-env --harbor`, such as http://HOST:8000"
        )
    source = load_source(name)
    by_split = {split: source.tasks(split) for split in SPLITS}
    key = secrets.token_hex(16)
    with create_output_folder(out) as folder:
        (folder / KEY_FILE).write_text(key, encoding="utf-8")
        for split, tasks in by_split.items():
            for task in tasks:
                place = folder / split / re.sub(r"[^\w.-]+", "-", task.id)
                for file, text in _task_files(name, source, task, url.rstrip("/"), key).items():
                    (place / file).parent.mkdir(parents=True, exist_ok=True)
                    (place / file).write_text(text, encoding="utf-8")
    return {split: len(tasks) for split, tasks in by_split.items() if tasks}


def _task_files(name: str, source: TaskSource, task: Task, url: str, key: str) -> Mapping[str, str]:
    sending = _SENDING.format(task=task.id, url=url)
    specs = find_tool_specs(source, task.domain)
    message_tool = find_message_tool(specs)
    listed = [*specs, message_tool]
    tools = "\n".join(f"- {spec.name}: {spec.description}\n  {json.dumps(spec.parameters)}" for spec in listed)
    opening = task.scenario.opening or "`python3 /app/tool.py` prints it."
    policy = find_policy(source, task)
    files = {
        "task.toml": _CONFIG.format(source=json.dumps(name)),
        "instruction.md": _INSTRUCTION.format(policy=policy, tools=tools, opening=opening).lstrip(),
        "environment/Dockerfile": _DOCKERFILE,
        "environment/tool.py": sending + _TOOL,
        "tests/test.sh": _TEST.format(sending=sending, key=key),
    }
    if task.gold_turns:
        files["solution/solve.sh"] = "\n".join(
            ["#!/bin/bash", *(_solve(turn, message_tool.name) for turn in task.gold_turns), ""]
        )
    return files


def _solve(turn: Message, message_tool: str) -> str:
    """Return the commands of a turn of gold."""
    calls = [(call.name, call.arguments) for call in turn.tool_calls] or [(message_tool, {"text": turn.content})]
    return "\n".join(f"python3 /app/tool.py {tool} {shlex.quote(json.dumps(given))}" for tool, given in calls)
