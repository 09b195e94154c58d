"""Record the behaviour of the program and compare two records. A refactoring may change names and nothing else.

    python scripts/record_behaviour.py before.json     # the old code; 4 minutes of processor time
    python scripts/record_behaviour.py after.json      # the new code
    python scripts/record_behaviour.py --compare before.json after.json --rename renames.json

A record holds the output of the commands in `STEPS` and the content of every file that they write: configs, metrics,
digests of weights, and episodes with messages, tokens, masks, log-probabilities, rewards and stops. Times, dates,
memory and paths are left out. Compare only records of one machine with the same versions of Python and torch.

The script uses the command line only. When a verb, an option, a config key or a file is renamed, edit the tables below.
Differences that a rename explains are listed in the renames file, which is applied to the first record:

    {"keys": {"algorithm.per": "algorithm.loss_aggregation", "parts/said": "parts/facts_told"},
     "values": {"silent": "noop", "agent=native": "api"},
     "words": {"warm start": "SFT"},
     "ignore": ["OUTPUT/list", "*/meaning"]}

`keys` maps paths to paths: words separated by "/" or ".", found anywhere in a path, where `*` is any one word. `values`
maps whole strings, optionally of one key. `words` maps parts of strings, and of keys with spaces such as file names.
Paths that match `ignore` are not compared.
"""

import argparse
import hashlib
import json
import os
import random
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import tomllib
import urllib.request
import venv
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

# In these tables {name} stands for a setting, {url} for the endpoint below, {python} for the Python of the program.

SETTINGS = {
    "tiny": """model=tiny engine.device=cpu engine.dtype=float32 engine.threads=1 sampling.max_response_tokens=16
        save_every=1 keep_checkpoints=0 limits.max_episode_tokens=5000 limits.max_turns=8 eval.temperature=1
        eval.tasks=2 eval.split=validation steps=2 sft.steps=2 sft.batch_size=2 sft.num_demonstrations=3
        algorithm.groups_per_batch=2 algorithm.group_size=3 algorithm.learning_rate=1e-3
        algorithm.shaping.judge_weight=0.4 algorithm.shaping.judge_endpoint=grader endpoints.grader.base_url={url}
        endpoints.grader.model=grader endpoints.grader.prompt_price=1 endpoints.grader.completion_price=2""",
    "slice": """slice.domain_policy=brief slice.difficulties=easy slice.families=cancel,address
        slice.tools=find_user,get_order,cancel_order,change_address""",
    "full": """algorithm.shaping.progress_weight=0.1 algorithm.advantage_estimator=turn
        algorithm.overlong.buffer_fraction=0.6""",
    "lora": """engine.finetune=lora engine.lora.rank=4 engine.lora.dropout=0.1 engine.gradient_checkpointing=true
        algorithm.preset=grpo algorithm.update_epochs=2 algorithm.tis_cap=2 algorithm.max_resampled_groups=2
        algorithm.reference.kind=ema algorithm.reference.sync_steps=1""",
    "critic": """algorithm.preset=ppo algorithm.group_size=1 algorithm.groups_per_batch=1 eval.tasks=1
        user.kind=llm""",
    "mixture": """domain=mix:telecom,healthcare slice.domain_policy=brief slice.difficulties=easy
        slice.families=sim,balance slice.tools=telecom/find_customer,get_line,replace_sim,find_patient,get_records
        eval.ood_domains=retail eval.ood_tasks=2 ood_slice.domain_policy=brief ood_slice.families=cancel
        curriculum.by_success_rate=true curriculum.easy_first=true algorithm.preset=gspo""",
    "dpo": "preferences.steps=2 preferences.batch_size=2 preferences.dataset_file=pairs.jsonl",
    "kto": """preferences.steps=1 preferences.batch_size=4 preferences.dataset_file=labels.jsonl
        preferences.kind=kto""",
    "agent": "--concurrency 1 --agent api endpoints.default.base_url={url} endpoints.default.model=agent",
    "gold": "--agent gold --concurrency 1",
    "user": "user.endpoint=user endpoints.user.base_url={url} endpoints.user.model=user",
    "judge": """--judge-failures eval.failure_judge_endpoint=grader endpoints.grader.base_url={url}
        endpoints.grader.model=grader endpoints.grader.max_concurrency=1""",
}
EACH = {"DOMAIN": "airline doordash healthcare retail telecom", "KIND": "llm react verify reflection"}
"""Values of a word. A line of `STEPS` with the word stands for one line per value."""

# name | output: json, lines (JSON lines), toml, text, nothing, keys, or only the named keys | command
# Commands with an endpoint or a server play one episode at a time, because the order of requests affects the answers.
STEPS = """
list | keys | list --json
config | toml | train --print-config
doctor | name,required | doctor model=tiny --json
check DOMAIN | json | check DOMAIN --json
gold DOMAIN | json | eval DOMAIN --agent gold --split validation --tasks 5 --out gold-DOMAIN --json
noop DOMAIN | json | eval DOMAIN --agent noop --split validation --tasks 5 --out noop-DOMAIN --json
random DOMAIN | json | eval DOMAIN {agent} --split validation --tasks 5 --out random-DOMAIN --json
user KIND | json | eval telecom {gold} --tasks 4 user.kind=KIND {user} --out user-KIND --json
gold mcp | json | eval mcp:python {gold} --split validation --tasks 3 --out gold-mcp --json
random mcp | json | eval mcp:python {agent} --split validation --tasks 3 --out random-mcp --json
gold replay | json | eval mcp:several-replay {gold} --split validation --tasks 3 --out gold-replay --json
dialect | json | eval retail {agent} endpoints.default.tool_format=hermes --tasks 4 --trials 2 --out dialect --json
judge | json | eval airline {agent} {judge} --tasks 3 --out judge --json
score | json | score random-retail --json
compare | json | compare random-retail gold-retail --json
synthesize | nothing | data synthesize retail telecom --count 40 --seed 3 --out tasks.jsonl
to rows | nothing | data convert tasks.jsonl rows.jsonl
to tasks | nothing | data convert rows.jsonl back.jsonl --to tasks
split | nothing | data split tasks.jsonl --out parts --ratios 0.6,0.2,0.2
stats | json | data stats tasks.jsonl --json
validate | json | data validate tasks.jsonl --json
collect good | nothing | data collect retail {slice} --tasks 6 --sft demos.jsonl --kto good.jsonl
collect bad | nothing | data collect retail {slice} --agent noop --tasks 6 --kto bad.jsonl
export trl | nothing | data export trl demos.jsonl bad.jsonl --out for-trl
export openai | nothing | data export openai demos.jsonl --out for-openai
export llamafactory | nothing | data export llamafactory demos.jsonl bad.jsonl --model tiny --out for-llamafactory
dry run | keys | train retail {tiny} {slice} --dry-run --json
train full | nothing | train retail {tiny} {slice} {full} --out full
resume full | nothing | train --resume full steps=3
train lora | nothing | train retail {tiny} {slice} {lora} {dpo} sft.dataset_file=demos.jsonl --out lora
train critic | nothing | train retail {tiny} {slice} {kto} {critic} {user} --out critic
train mixture | nothing | train {tiny} {mixture} --out mixture
eval run | json | eval full --tasks 2 --trials 2 --split test --out full-test --json
compare runs | json | compare full lora --json
collect run | nothing | data collect full --kto full.jsonl
merge | nothing | export lora --out merged
adapter | nothing | export lora --out adapter --adapter-only
view | json | view full lora critic mixture random-retail --json
view text | text | view full --text --step 5 --episode 1
certify | subject,name,passed | certify tiny --json
tools | json | mcp tools '{python} -m understudy mcp serve telecom --user-tools' --json
call | text | mcp call '{python} -m understudy mcp serve retail' find_user email=nils.west20@mail.com
parse | lines | parse --jsonl
parse hermes | lines | parse --jsonl --tool-parser hermes
"""
SERVE = "serve full --port 0"
"""The server that `query_server` sends requests to, after all steps."""
SKIPPED_KEYS = re.compile(r"seconds|timing|memory|per_second|stamp|written|evaluated$|starts$")
SKIPPED_FILES = re.compile(r"provenance\.json$|manifest\.json$|^(cache|python)/")
REPLIES = (
    'I will look. <tool_call>\n{"name": "get_order", "arguments": {"order_id": "W1"}}\n</tool_call>',
    '<tool_call>{"name": "get_order", "arguments": {"order_id": "W1"</tool_call>',
    "<tool_call>{'name': 'a', 'arguments': {'x': True}}</tool_call><tool_call>{\"name\": \"b\"}</tool_call>",
    '```json\n{"name": "get_order", "parameters": {"order_id": 1}}\n```',
    'Thought: look it up\nAction: get_order\nAction Input: {"order_id": "W1"}',
    "[get_order(order_id='W1'), cancel_order(order_id='W1', reason=None)]",
    '<think>maybe</think>[TOOL_CALLS][{"name": "f", "arguments": {}}]',
    '<|python_tag|>{"name": "f", "parameters": {"x": [1, 2,]}}',
    "<function=f>{\"x\": 1.5}</function>\nuser: and then?",
    "Nothing is called here, not even {this}.",
)  # fmt: skip


def prepare_inputs(step: str) -> str:
    """Write the preference files before the first step that reads them. Return the step's standard input."""
    if step == "train lora":
        won, lost = (parse_output(Path(name).read_text(), "lines") for name in ("good.jsonl", "bad.jsonl"))
        pairs = [
            {"task": good["task"], "tools": good["tools"], "chosen": good["messages"], "rejected": bad["messages"]}
            for good in won
            for bad in lost
            if good["task"] == bad["task"]
        ]
        Path("pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
        Path("labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*won, *lost]))
    return "".join(json.dumps(reply) + "\n" for reply in REPLIES) if step.startswith("parse") else ""


class Endpoint(BaseHTTPRequestHandler):
    """Answers at random, seeded by the request without its system message. The model's name selects the role."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer one request."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        messages = request["messages"][1:]
        rng = random.Random(json.dumps([request["model"], request.get("seed"), messages], sort_keys=True))
        message = {"agent": random_action, "user": random_line, "grader": random_grade}[request["model"]](rng, request)
        usage = {"prompt_tokens": len(json.dumps(messages)), "completion_tokens": len(json.dumps(message))}
        choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
        body = json.dumps({"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def random_grade(rng: random.Random, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a grade from 0 to 10."""
    return {"content": str(rng.randint(0, 10))}


def random_line(rng: random.Random, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a user's message in one of the forms that the kinds of simulated users expect."""
    lines = ("Yes.", "Yes, please do.", "No, that is not what I want.", "What do you mean?", "###STOP###")
    return {"content": rng.choice(("", "", "Thought: well\nMessage: ", "no: ")) + rng.choice(lines)}


def random_action(rng: random.Random, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool call whose arguments are words of the conversation, or a proposal in plain text."""
    system, *messages = (str(message.get("content")) for message in request["messages"])
    words = sorted(set(re.findall(r"[\w.+-]+@[\w.]+\w|\w*\d\w*", " ".join(messages)))) or ["1"]
    tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in request.get("tools", ())}
    name = rng.choice(sorted(tools) or re.findall(r'"name": ?"(\w+)"', system) or ["none"])
    some = rng.sample(words, min(2, len(words)))
    if rng.random() < 0.3:
        return {"content": f"I will do this: {name.replace('_', ' ')} {' '.join(some)}. Do you confirm?"}
    if not tools:  # the prompt describes the tools; some calls are truncated, so that repairs are recorded too
        call = json.dumps({"name": name, "arguments": {"order_id": some[0]}})
        return {"content": f"<tool_call>\n{call[: len(call) - rng.randint(0, 2)]}\n</tool_call>"}
    properties = tools[name].get("properties", {})
    arguments = {key: random_value(rng, key, schema, words) for key, schema in sorted(properties.items())}
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"content": None, "tool_calls": [{"id": "call_0", "type": "function", "function": function}]}


def random_value(rng: random.Random, key: str, schema: Mapping[str, Any], words: Sequence[str]) -> Any:
    """Return an argument of the schema's type."""
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if schema.get("type") == "array":
        return [random_value(rng, key, schema.get("items", {}), words)]
    word = rng.choice([word for word in words if ("@" in word) == ("mail" in key)] or words)
    return {"integer": rng.randint(0, 9), "number": 1.5, "boolean": True}.get(schema.get("type", "string"), word)


def record(out: Path, folder: Path) -> None:
    """Run all steps in an empty folder, and write one JSON object with a line for each step and file."""
    os.chdir(folder)
    endpoint = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=endpoint.serve_forever, daemon=True).start()
    python = make_python(folder / "python")
    places = {"url": f"http://127.0.0.1:{endpoint.server_port}/v1", "python": str(python), "folder": str(folder)}
    settings = places | {name: text.format(**places) for name, text in SETTINGS.items()}
    items: dict[str, Any] = {}
    for name, kind, command in read_steps():
        started = time.monotonic()
        process = start_program(python, command.format(**settings), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        output, errors = process.communicate(prepare_inputs(name))
        if process.returncode not in (0, 1):
            raise SystemExit(f"step {name!r} failed with exit code {process.returncode}: {errors[-500:]}")
        parsed = parse_output(hide_places(output, places), kind)
        items[f"OUTPUT/{name}"] = {"exit_code": process.returncode, "output": parsed}
        print(f"{time.monotonic() - started:6.1f} s  {name}", flush=True)
    items["SERVED"] = query_server(python)
    for file in sorted(Path(top, name).relative_to(folder) for top, _, names in os.walk(folder) for name in names):
        if not SKIPPED_FILES.search(file.as_posix()):
            items[f"FILE/{file.as_posix()}"] = read_content(file, places)
    lines = (f"{json.dumps(name)}: {json.dumps(drop_keys(item), sort_keys=True)}" for name, item in items.items())
    out.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def read_steps() -> Iterator[list[str]]:
    """Yield name, kind of output and command of each step."""
    for line in STEPS.strip().splitlines():
        word = next((word for word in EACH if word in line), None)
        for value in EACH[word].split() if word else ("",):
            yield line.replace(word or "|", value if word else "|").split(" | ")


def make_python(folder: Path) -> Path:
    """Create a virtual environment in which the package beside this script precedes all installed packages.

    MCP servers start with an almost empty environment, so PYTHONPATH would not reach them.
    """
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/*/site-packages")
    source = Path(__file__).resolve().parents[1] / "src"
    (packages / "source.pth").write_text(f"{source}\n{sysconfig.get_path('platlib')}\n")
    return folder / "bin" / "python"


def start_program(python: Path, command: str, **streams: Any) -> subprocess.Popen[str]:
    """Start `python -m understudy`, on one core and with its own cache."""
    variables = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "UNDERSTUDY_CACHE": os.path.abspath("cache")}
    arguments = ["nice", str(python), "-m", "understudy", *shlex.split(command)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    return subprocess.Popen(arguments, env=environment, text=True, stdin=subprocess.PIPE, **streams)


def query_server(python: Path) -> list[Any]:
    """Return the answers of `SERVE` to a request, its continuation with a tool, and a streamed request."""
    process = start_program(python, SERVE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        url = next(match[0] for line in process.stderr or () if (match := re.search(r"http://127[^\s,;]+", line)))
        messages = [{"role": "user", "content": "Hello"}]
        request = {"model": "full", "messages": messages, "max_tokens": 12, "seed": 3, "logprobs": True}
        first = post(url, request)
        messages += [first[0]["choices"][0]["message"], {"role": "user", "content": "And then?"}]
        tool = {"type": "function", "function": {"name": "f", "description": "F.", "parameters": {"type": "object"}}}
        return [first, post(url, request | {"tools": [tool], "n": 2}), post(url, request | {"stream": True})]
    finally:
        process.terminate()
        process.communicate()


def post(url: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the answer to a chat completions request, or its chunks, without ids and dates."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as response:
        lines = [line.removeprefix("data: ") for line in response.read().decode().split("\n") if line.strip()]
    answers = [json.loads(line) for line in lines if line != "[DONE]"]
    return [{key: value for key, value in answer.items() if key not in ("id", "created")} for answer in answers]


def parse_output(text: str, kind: str) -> Any:
    """Parse an output or a file; `kind` is the second column of `STEPS`."""
    match kind:
        case "nothing":
            return None
        case "text":
            return text.split("\n")
        case "lines":
            return [json.loads(line) for line in text.split("\n") if line]
        case "toml":
            return tomllib.loads(text)
        case "json":
            return json.loads(text)
    return blank_values(json.loads(text), set() if kind == "keys" else set(kind.split(",")))


def blank_values(value: Any, kept: set[str]) -> Any:
    """Replace all values by null except those of the given keys."""
    if isinstance(value, list):
        return [blank_values(item, kept) for item in value]
    if isinstance(value, dict):
        return {key: item if key in kept else blank_values(item, kept) for key, item in value.items()}
    return None


def read_content(file: Path, places: Mapping[str, str]) -> Any:
    """Parse a file; weights and other binary files become digests."""
    data = file.read_bytes()
    if file.suffix == ".safetensors":
        return digest_tensors(data)
    try:
        text = hide_places(data.decode(), places)
    except UnicodeDecodeError:
        return hashlib.sha256(data).hexdigest()
    if file.name == "metrics.jsonl":
        return merge_records(parse_output(text, "lines"))
    try:
        return parse_output(text, {".jsonl": "lines", ".json": "json", ".toml": "toml"}.get(file.suffix, "text"))
    except json.JSONDecodeError:  # a cached reply: a digest and JSON
        return parse_output(text, "text")


def merge_records(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge the records of each step: its training and its evaluation."""
    merged: dict[int, dict[str, Any]] = {}
    for record in records:
        record.pop("kind")
        merged.setdefault(record["step"], {}).update(record)
    return list(merged.values())


def digest_tensors(data: bytes) -> dict[str, str]:
    """Return type, shape and digest of each tensor of a safetensors file."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    bounds = {name: slice(*(start + offset for offset in entry["data_offsets"])) for name, entry in header.items()}
    digests = {name: hashlib.sha256(data[bound]).hexdigest() for name, bound in bounds.items()}
    return {name: f"{entry['dtype']} {entry['shape']} {digests[name]}" for name, entry in header.items()}


def hide_places(text: str, places: Mapping[str, str]) -> str:
    """Replace addresses and paths of this run by names."""
    for name, place in places.items():
        text = text.replace(place, name.upper())
    return text


def drop_keys(value: Any) -> Any:
    """Drop `SKIPPED_KEYS` at any depth."""
    if isinstance(value, dict):
        return {key: drop_keys(item) for key, item in value.items() if not SKIPPED_KEYS.search(key)}
    return [drop_keys(item) for item in value] if isinstance(value, list) else value


Words = tuple[str, ...]


class Renames:
    """The renames file, as functions on the leaves of a record."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._values, self._words = given.get("values", {}), given.get("words", {})
        longest_first = sorted(self._words, key=len, reverse=True)
        self._pattern = re.compile("|".join(rf"\b{re.escape(word)}\b" for word in longest_first) or r"(?!)")
        self._ignored = [split_path(path) for path in given.get("ignore", ())]
        self._rules: dict[str, list[tuple[Words, Words]]] = {}
        for old, new in sorted(given.get("keys", {}).items(), key=lambda rule: -len(split_path(rule[0]))):
            self._rules.setdefault(split_path(old)[0], []).append((split_path(old), split_path(new)))

    def path(self, path: Words) -> Words:
        """Return the new path. At each word the longest matching rule is applied, once."""
        new: list[str] = []
        while path:
            rules = (*self._rules.get(path[0], ()), *self._rules.get("*", ()))
            old, words = next((rule for rule in rules if matches(rule[0], path)), (path[:1], path[:1]))
            wildcards = iter([word for pattern, word in zip(old, path, strict=False) if pattern == "*"])
            new += [next(wildcards) if word == "*" else word for word in words]
            path = path[len(old) :]
        return tuple(self._replace(word) if " " in word else word for word in new)

    def value(self, path: Words, value: Any) -> Any:
        """Return the new value of a leaf. `path` is the old path."""
        if not isinstance(value, str):
            return value
        key = next((word for word in reversed(path) if not word.isdecimal()), "")
        new = self._values.get(f"{key}={value}", self._values.get(value))
        return self._replace(value) if new is None else new

    def _replace(self, text: str) -> str:
        return self._pattern.sub(lambda match: self._words[match[0]], text)

    def ignores(self, path: Words) -> bool:
        """Return whether a new path is not compared."""
        return any(matches(pattern, path[start:]) for pattern in self._ignored for start in range(len(path)))


def split_path(path: str) -> Words:
    """Split a key or a path into words."""
    return tuple(re.split(r"(?<=[\w*])[./](?=[\w*])", path))


def matches(pattern: Words, path: Words) -> bool:
    """Return whether a path starts with a pattern."""
    return len(path) >= len(pattern) and all(p in ("*", word) for p, word in zip(pattern, path, strict=False))


def leaves(value: Any, path: Words = ()) -> Iterator[tuple[Words, Any]]:
    """Yield each leaf with its path. A list of numbers is one leaf."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, path + split_path(key))
    elif isinstance(value, list) and any(isinstance(item, (dict, list, str)) for item in value):
        for number, item in enumerate(value):
            yield from leaves(item, (*path, str(number)))
    else:
        yield path, value


def compare(before: Mapping[str, Any], after: Mapping[str, Any], renames: Renames) -> list[str]:
    """Return a text for each leaf that differs."""
    old = {renames.path(path): json.dumps(renames.value(path, value)) for path, value in leaves(before)}
    new = {path: json.dumps(value) for path, value in leaves(after)}
    texts = ((path, old.get(path, "absent"), new.get(path, "absent")) for path in {**old, **new})
    different = (each for each in texts if each[1] != each[2] and not renames.ignores(each[0]))
    return ["\n".join(("/".join(path), f"  - {excerpt(a, b)}", f"  + {excerpt(b, a)}")) for path, a, b in different]


def excerpt(text: str, other: str) -> str:
    """Shorten a long text to the part where it starts to differ from another."""
    different = next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), 0)
    start = max(0, different - 40) if len(text) > 200 else 0
    return ("…" if start else "") + text[start : start + 200] + ("…" if len(text) > start + 200 else "")


def main() -> int:
    """Record or compare. Return 1 if two records differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", help="record file to write")
    parser.add_argument(
        "--folder",
        type=Path,
        help="run the steps in this new folder and keep their files (default: a temporary folder)",
    )
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"), help="compare two records")
    parser.add_argument("--rename", type=Path, help="JSON file of renames, applied to BEFORE")
    options = parser.parse_args()
    if options.compare:
        before, after = (json.loads(path.read_text()) for path in options.compare)
        differences = compare(before, after, Renames(json.loads(options.rename.read_text()) if options.rename else {}))
        print("\n".join([*differences, f"{len(differences)} of {sum(1 for _ in leaves(after))} values differ"]))
        return 1 if differences else 0
    if not options.out:
        parser.error("give OUT, the record file to write, or --compare BEFORE AFTER")
    out = options.out.resolve()
    if options.folder:
        options.folder.mkdir(parents=True)
        record(out, options.folder.resolve())
    else:
        with tempfile.TemporaryDirectory() as folder:
            record(out, Path(folder).resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
