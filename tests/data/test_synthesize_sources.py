"""Test `data synthesize` for MCP servers, benchmarks and data sets, by rules and by a model, and read-heavy tasks."""

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mcp_tasks.make import _environment, _serving
from support.checkouts import TAU2, TAU_BENCH, write_checkout
from support.data_kit import run_data_command
from support.endpoint import Answer, make_completion, serve_answers
from support.replica.loopback import serve_replicas
from understudy.core.errors import ConfigError
from understudy.core.items import RowError
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.tasks import Task, read_tasks
from understudy.data.checks.check import check, score_agent
from understudy.data.checks.evidence import find_evidence, play_evidence
from understudy.data.checks.issue import TaskIssue
from understudy.data.synthesis.call_plan import CallPlan, TaskLabels, build_planned_task, read_fact
from understudy.data.synthesis.explore import Exploration
from understudy.data.synthesis.limits import SynthesisConfig
from understudy.data.synthesis.proposal import CallProposal
from understudy.data.synthesis.synthesize import make_tasks
from understudy.envs.rewards import states_fact
from understudy.envs.task_source import Slice, TaskSource
from understudy.rollouts.agent import GoldAgent
from understudy.rollouts.rollout import EpisodeLimits, rollout
from understudy.sources.loading import load_source
from understudy.sources.mcp.config import MCPEnvironmentConfig, MCPServerConfig
from understudy.sources.mcp.source import MCPEnvironmentResources, MCPTaskSource
from understudy.sources.tool_dataset import ToolDataset, ToolEpisode, ToolExample

REPLAY = "mcp:polygon-replay"
"""Recorded answers of our server for Polygon, which need no server."""
READS = 'read_only_tools = ["slack_auth_test", "slack_list_*", "slack_get_*"]'


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Our servers for Slack and FMP over HTTP, with made-up data; yields their addresses."""
    with ExitStack() as stack:
        services = stack.enter_context(serve_replicas())
        stack.enter_context(_environment(services))
        yield {name: stack.enter_context(_serving(name)) for name in ("slack", "fmp")}


def slack_environment(folder: Path, url: str, rest: str = "", reads: str = READS) -> Path:
    """Write an environment of the Slack server that has no tasks yet."""
    text = (
        f'domain_policy = "You help."\n{rest}\n[server]\nurl = "{url}"\nstate_per_session = true\nwarm_sessions = 0\n'
    )
    (folder / "slack.toml").write_text(text + reads, encoding="utf-8")
    return folder / "slack.toml"


def make_all(source: TaskSource, **settings: Any) -> list[Task | RowError]:
    async def collect() -> list[Task | RowError]:
        return [result async for result in make_tasks([source], SynthesisConfig(**settings))]

    return asyncio.run(collect())


def tasks_of(source: TaskSource, **settings: Any) -> list[Task]:
    return [result for result in make_all(source, **settings) if isinstance(result, Task)]


def test_tasks_of_a_live_server_make_an_environment_of_their_own(servers: Mapping[str, str], tmp_path: Path) -> None:
    tape = '[cassette]\nfile = "tape.jsonl"\nmode = "record"\n'
    path = slack_environment(tmp_path, servers["slack"], reads=f"{READS}\n{tape}")
    folder = tmp_path / "made"
    code, out, err = run_data_command(
        "synthesize",
        f"mcp:{path}",
        "--out",
        folder,
        "--count",
        3,
        "--difficulties",
        "easy",
        "--max-attempts",
        20,
    )
    assert (code, err) == (0, "")
    assert re.search(r"kept 3 of \d+ proposals; rejected: |^[^:]*made: 3$", out)
    assert sorted(made.name for made in folder.iterdir()) == ["answers.jsonl", "slack.toml", "tasks.jsonl"]
    source = load_source(f"mcp:{folder / 'slack.toml'}")
    assert isinstance(source, MCPTaskSource)
    assert source.resources.config.cassette.mode == "replay", "so it needs no server"
    assert check(source).problems == ()
    tasks = [task for split in ("train", "validation", "test") for task in source.tasks(split)]  # type: ignore[arg-type]
    assert len(tasks) == 3
    assert {len(source.gold_writes(task)) for task in tasks} == {0, 1}
    assert {call.name for task in tasks for call in source.gold_writes(task)} == {"slack_send_message"}
    assert not list(tmp_path.glob("*.partial")) + list(tmp_path.glob("*.new"))


@pytest.mark.slow
def test_gold_of_new_tasks_follows_from_results(servers: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "fmp.toml").write_text(f'[server]\nurl = "{servers["fmp"]}"\nisolation = "shared"\nwarm_sessions = 0\n')
    source = load_source(f"mcp:{tmp_path / 'fmp.toml'}")
    tasks = tasks_of(source, count=2, difficulties={"medium": 1}, families=("chain",))
    assert {task.family for task in tasks} == {"chain"}
    for task in tasks:
        find, look_up = task.gold_calls
        assert not find.arguments
        (value,) = look_up.arguments.values()
        assert value not in task.scenario.opening, "the user does not say it: the first result shows it"
        assert task.outputs[0] in task.gold[-1].content


@pytest.mark.slow
def test_rules_are_deterministic_and_keep_splits_apart(tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert run_data_command("synthesize", REPLAY, "--out", tmp_path / f"{name}.jsonl", "--count", 5)[0] == 0
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()
    other = run_data_command("synthesize", REPLAY, "--out", tmp_path / "3.jsonl", "--count", 5, "--seed", 1)
    assert other[0] == 0
    assert (tmp_path / "3.jsonl").read_bytes() != (tmp_path / "one.jsonl").read_bytes()
    source = load_source(REPLAY)
    used = {
        split: {
            str(call.arguments.get("ticker")) for t in tasks_of(source, count=5, split=split) for call in t.gold_calls
        }
        for split in ("train", "test")
    }
    assert not used["train"] & used["test"]


@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet"])
def test_file_of_new_tasks_is_valid_for_its_environment(tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    assert run_data_command("synthesize", REPLAY, "--out", out, "--count", 6, "--max-attempts", 20)[0] == 0
    code, said, _ = run_data_command("validate", out, f"data.sources={REPLAY}")
    assert (code, said) == (0, f"{out}: 6 sound, 0 bad\n")


def test_shares_and_limits_hold_for_every_source() -> None:
    source = load_source(REPLAY)
    tasks = tasks_of(source, count=9, difficulties={"easy": 2, "hard": 1}, max_calls=4, max_tools=1, max_attempts=40)
    assert Counter(task.difficulty for task in tasks) == {"easy": 6, "hard": 3}
    assert max(len(task.gold_calls) for task in tasks) == 4
    assert max(len({call.name for call in task.gold_calls}) for task in tasks) == 1
    retail = load_source("retail")
    tasks = tasks_of(retail, count=12, difficulties={"easy": 3, "hard": 1}, max_turns=6, max_attempts=40)
    assert max(len(task.gold) for task in tasks) <= 6
    assert len(tasks) == 12
    with pytest.raises(ConfigError, match="min-reads"):
        make_all(source, count=1, difficulties={"easy": 1}, min_reads=4)


def test_interrupted_rules_resume_to_the_same_file(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    assert run_data_command("synthesize", REPLAY, "--out", whole, "--count", 6)[0] == 0
    lines = whole.read_bytes().splitlines(keepends=True)
    (tmp_path / "broken.jsonl.partial").write_bytes(b"".join(lines[:2]) + lines[2][:50])
    assert run_data_command("synthesize", REPLAY, "--out", broken, "--count", 6)[0] == 2, "not without --resume"
    assert run_data_command("synthesize", REPLAY, "--out", broken, "--count", 6, "--resume")[0] == 0
    assert broken.read_bytes() == whole.read_bytes()


def test_server_without_known_reads_is_an_error_that_names_the_key(servers: Mapping[str, str], tmp_path: Path) -> None:
    path = slack_environment(tmp_path, servers["slack"], reads="")
    code, out, err = run_data_command("synthesize", f"mcp:{path}", "--out", tmp_path / "t.jsonl", "--count", 2)
    assert (code, out) == (2, "")
    assert "read_only_tools" in err
    assert "slack_list_channels" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "t.jsonl.partial").exists()


def test_resources_of_a_server_are_read() -> None:
    async def read(source: MCPTaskSource) -> list[str]:
        return await source.read_resources(5)

    with _serving("retail") as url:
        server = MCPServerConfig(url=url, state_per_session=True, warm_sessions=0)
        config = MCPEnvironmentConfig(name="shop", servers={"shop": server})
        texts = asyncio.run(read(MCPTaskSource(MCPEnvironmentResources(config))))
    assert [json.loads(text) for text in texts] == [{}], "the server's only resource is its changes, which are none"


def test_values_of_resources_and_results_become_arguments() -> None:
    found = Exploration(PRODUCTS, "train")
    found.add(['{"orders": ["W1"], "members": [{"id": "U7", "name": "Ada"}], "city": "Oslo", "orderCount": 3}'])
    spec = ToolSpec(name="t", description="", parameters={})

    def known(name: str, **schema: Any) -> list[Any]:
        return found.candidates(spec, name, schema, random.Random(0))

    assert known("order_id", type="string") == ["W1"]
    assert known("member_id", type="string") == ["U7"]
    assert known("memberId", type="string", pattern="^X") == []
    assert known("city", type="string") == ["Oslo"]
    assert known("order_count", type="integer") == [3]
    assert known("query", type="string") == ["Ada"]
    assert known("unit", enum=["C", "F"]) == ["C", "F"]
    assert known("age", type="integer", minimum=4, maximum=4) == [4]
    assert known("street", type="string") == []


# A model's proposals


def proposal(prompt: str, ticker: str = "KESS", **changes: Any) -> dict[str, Any]:
    """Return a sound proposal about the previous close of a company, with `changes`."""
    call = {"tool": "polygon_get_previous_close", "arguments": {"ticker": ticker}}
    facts = [{"call": 1, "path": ["results", 0, "close"]}]
    return {"prompt": prompt, "calls": [call], "facts": facts, "answer": "It closed at {1}.", **changes}


def bad_proposals() -> dict[str, Any]:
    """Return proposals that are refused, by reason."""
    call = {"tool": "polygon_get_previous_close", "arguments": {"ticker": "KESS"}}
    return {
        "unreadable": "I would rather not.",
        "malformed": {**proposal("Hm."), "server": "http://127.0.0.1:9"},
        "unknown tool": proposal("Hm.", calls=[{"tool": "shell", "arguments": {}}]),
        "hidden rows": proposal("Hm.", calls=[{**call, "arguments": {"ticker": "file:///etc/passwd"}}]),
        "unknown fact": proposal("Hm.", facts=[{"call": 1, "path": ["nowhere"]}]),
        "other difficulty": proposal("Hm.", calls=[call, call]),
        "too long": proposal("Hm.", calls=[call] * 3),
        "fault": proposal("What did UNKNOWN close at?", ticker="UNKNOWN"),
    }


class Script:
    """Answers requests by the number of the proposal, which the seed gives."""

    def __init__(self, *proposals: Any) -> None:
        self.proposals, self.seeds = proposals, list[int]()

    def __call__(self, request: Mapping[str, Any]) -> Answer:
        self.seeds.append(request["seed"])
        said = self.proposals[request["seed"] % len(self.proposals)]
        return make_completion(
            said if isinstance(said, str) else f"<think>{{}}</think>```json\n{json.dumps(said)}\n```"
        )


def test_model_proposals_are_run_checked_and_counted(tmp_path: Path) -> None:
    sound = [
        proposal("How much was a share of Kestrel worth when the market shut last time?"),
        proposal("I want to know the latest closing quotation for Orchard Outdoor, ORCO.", "ORCO"),
    ]
    bad, out = bad_proposals(), tmp_path / "t.jsonl"
    script = Script(sound[0], *bad.values(), sound[0], sound[1])
    with serve_answers(script) as endpoint:
        options = ("--model", "m", "--base-url", endpoint.url, "--temperature", 0.7, "--max-calls", 2)
        command = ("synthesize", REPLAY, "--out", out, "--count", 2, "--difficulties", "easy", *options)
        code, said, err = run_data_command(*command)
    assert (code, err) == (0, "")
    assert "kept 2 of 11 proposals; rejected: " in said
    assert all(f"{reason} 1" in said for reason in (*bad, "duplicate"))
    first, second = read_tasks(out)
    assert [t.gold_calls[0].arguments["ticker"] for t in (first, second)] == ["KESS", "ORCO"]
    assert first.outputs[0] in first.gold[-1].content
    assert first.id.endswith("model-0-0")
    assert {(r["model"], r["temperature"]) for r in endpoint.requests} == {("m", 0.7)}
    asked = endpoint.requests[0]["messages"]
    assert "polygon_get_previous_close" in asked[0]["content"]
    assert re.search(r'polygon_get_\w+\(\{"ticker": "\w+"', asked[1]["content"]), "it shows what tools return"
    assert run_data_command("validate", out, f"data.sources={REPLAY}")[0] == 0


@pytest.mark.slow
def test_resumed_proposals_are_not_asked_for_again(tmp_path: Path) -> None:
    texts = ("What did it close at last?", "I need the price of the end of the day.", "Tell me how high trading ended.")
    good = [proposal(f"{text} I mean {t}.", t) for text, t in zip(texts, ("KESS", "ORCO", "PINS"), strict=True)]
    script, out = Script(*good), tmp_path / "t.jsonl"
    with serve_answers(script) as endpoint:
        command = (
            "synthesize",
            REPLAY,
            "--model",
            "m",
            "--base-url",
            endpoint.url,
            "--difficulties",
            "easy",
            "--count",
            3,
        )
        assert run_data_command(*command, "--out", tmp_path / "whole.jsonl")[0] == 0
        lines = (tmp_path / "whole.jsonl").read_bytes().splitlines(keepends=True)
        (tmp_path / "t.jsonl.partial").write_bytes(b"".join(lines[:2]))
        script.seeds.clear()
        assert run_data_command(*command, "--out", out, "--resume")[0] == 0
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert min(script.seeds) == 2


def test_fact_that_the_prompt_says_is_refused() -> None:
    source, plan = load_source(REPLAY), CallPlan.model_validate(proposal("What did KESS close at?"))
    labels = TaskLabels(id="x", split="train", family="f")
    task = asyncio.run(build_planned_task(source, plan, labels))
    assert isinstance(task, Task)
    said = plan.replace(prompt=f"Did KESS close at {task.outputs[0]}?")
    issue = asyncio.run(build_planned_task(source, said, labels))
    assert isinstance(issue, TaskIssue)
    assert issue.kind == "guessable"
    silent = asyncio.run(build_planned_task(source, plan.replace(answer="Done."), labels))
    assert isinstance(silent, TaskIssue)
    assert (silent.kind, silent.field) == ("malformed", "answer")


@pytest.mark.parametrize(
    ("result", "path", "fact"),
    [
        ('{"a": [{"b": 2.5}]}', ("a", 0, "b"), "2.5"),
        ('{"a": [1]}', ("a", 1), None),
        ('{"a": true}', ("a",), None),
        ('{"a": "x|y"}', ("a",), None),
        ("Price: 12\nName: Ada Low", ("Name",), "Ada Low"),
        ("42", (), "42"),
        ("One line", (), "One line"),
        ("Two\nlines", (), None),
        ('{"a": 1e-09}', ("a",), None),
    ],
)
def test_facts_are_read_from_json_labelled_lines_and_single_lines(
    result: str, path: tuple[str | int, ...], fact: str | None
) -> None:
    assert read_fact(result, path) == fact


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("https://evil.example/x", "hidden rows"),
        ("Read (http://127.0.0.1:9/admin), please.", "hidden rows"),
        ("../../.ssh/id_rsa", "hidden rows"),
        ("~/.netrc", "hidden rows"),
        ("C:\\secrets", "hidden rows"),
        ("https://shown.example/a and/or 3/4", None),
        ("Meet at noon.", None),
    ],
)
def test_model_may_name_only_hosts_and_files_that_it_was_shown(text: str, kind: str | None) -> None:
    found = Exploration(PRODUCTS, "train", shown="See https://shown.example/a for more.")
    request = CallProposal(0, 0, PRODUCTS, None, 4, found, "easy", 4, 0)
    plan = {"prompt": "Hm.", "calls": [{"tool": "times", "arguments": {"a": [text], "b": 1}}]}
    issue = asyncio.run(request.read_reply(json.dumps(plan)))
    assert isinstance(issue, TaskIssue)
    assert issue.kind == (kind or "invalid arguments"), "what is shown gets as far as the tool, which wants numbers"


# Benchmarks and data sets


@pytest.fixture
def kiosk(tmp_path: Path) -> str:
    """A small checkout of tau-bench."""
    return f"tau-bench:{write_checkout(tmp_path / 'checkout', TAU_BENCH)}#kiosk"


def test_model_makes_tasks_of_a_benchmark(kiosk: str, tmp_path: Path) -> None:
    def sell(good: str, count: int) -> dict[str, Any]:
        return {"tool": "sell", "arguments": {"good": good, "count": count}}

    proposals = (
        {"prompt": "You want two plums, and nothing else.", "calls": [sell("plum", 2)]},
        {"prompt": "You have a long list.", "calls": [sell("pear", 99)]},
        {
            "prompt": "Ask what costs least, as you have little money.",
            "calls": [{"tool": "cheapest"}],
            "facts": [{"call": 1}],
            "answer": "That is the {1}.",
        },
    )
    with serve_answers(Script(*proposals)) as endpoint:
        options = ("--model", "m", "--base-url", endpoint.url, "--split", "test", "--difficulties", "easy")
        code, said, err = run_data_command("synthesize", kiosk, "--count", 2, "--out", tmp_path / "t.jsonl", *options)
    assert (code, err) == (0, "")
    assert "kept 2 of 3 proposals; rejected: gold refused 1" in said
    change, tell = read_tasks(tmp_path / "t.jsonl")
    assert (change.outputs, tell.outputs) == ((), ("apple",))
    assert [len(load_source(kiosk).gold_writes(task)) for task in (change, tell)] == [1, 0]  # type: ignore[attr-defined]
    assert run_data_command("validate", tmp_path / "t.jsonl", f"data.sources={kiosk}")[0] == 0


def test_source_that_plays_only_its_own_tasks_is_refused(tmp_path: Path) -> None:
    source = f"tau2:{write_checkout(tmp_path / 'checkout', TAU2)}#lamp"
    code, out, err = run_data_command("synthesize", source, "--out", tmp_path / "t.jsonl", "--count", 1)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "tau2-lamp" in err
    assert [path.name for path in tmp_path.iterdir()] == ["checkout"]


class Times(ToolEpisode):
    """A calculator."""

    def times(self, a: int, b: int) -> int:
        """Multiply two numbers."""
        return a * b

    def reward(self, transcript: Any) -> float:
        """Return 1 for the example's answer."""
        return float(states_fact(self.example.answer, transcript[-1].content))


PRODUCTS = ToolDataset("products", "Answer with a number.", [ToolExample(prompt="6 * 7?", answer="42")], Times)


def test_rules_make_tasks_of_a_data_set() -> None:
    tasks = tasks_of(PRODUCTS, count=3, difficulties={"easy": 1, "medium": 1}, max_attempts=30)
    assert len(tasks) == 3
    for task in tasks:
        products = [call.arguments["a"] * call.arguments["b"] for call in task.gold_calls]
        assert task.outputs == tuple(map(str, products))
        assert "ultiply two numbers" in task.scenario.opening
        assert asyncio.run(score_agent(PRODUCTS, task, GoldAgent())).reward == 1.0


# Evidence


def call(tool: str, **arguments: Any) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(name=tool, arguments=arguments),))


def test_reads_are_needed_for_what_only_they_show() -> None:
    def said(role: Any, text: str) -> Message:
        return Message(role=role, content=text)

    messages = [
        said("user", "Move my order, I am Ada."),
        call("find", name="Ada"),
        said("tool", '{"order": "W7", "street": "Elm"}'),
        call("look", order="W7"),
        said("tool", '{"order": "W7", "total": 9.5, "street": "Elm"}'),
        call("move", order="W7"),
        said("tool", "moved"),
        said("assistant", "It costs 9.5, and goes to Elm."),
    ]
    task = Task.model_validate(
        {"scenario": {"instructions": "", "opening": ""}, "gold": [], "outputs": ["9.5", "Elm", "11"]}
    )
    found = find_evidence(task, messages, [ToolCall(name="move", arguments={"order": "W7"})])
    assert (found.reads, found.writes) == (2, 1)
    assert found.needed == {0: "W7", 1: "9.5"}, "Elm is shown twice, Ada is said, and 11 is computed"


def without_call(task: Task, place: int) -> Task:
    """Return the task with a gold that does not make one of its calls. Each gold message has one call."""
    making = [message for message in task.gold if message.role == "assistant" and message.tool_calls]
    return task.replace(gold=tuple(message for message in task.gold if message is not making[place]))


async def prove_needed(source: TaskSource, task: Task, min_reads: int) -> int:
    """Assert that without each needed read its value is not shown before the agent uses it, and a word earns nothing.

    Return the number of words that the reward refuses.
    """
    evidence, refused = await play_evidence(source, task), 0
    assert len(evidence.needed) >= min_reads
    for place, value in evidence.needed.items():
        episode = await rollout(without_call(task, place), source.environment(task), GoldAgent(), EpisodeLimits())
        uses = [i for i, message in enumerate(episode.messages) if message.role == "assistant" and _has(value, message)]
        shown = [m.content for m in episode.messages[: uses[0]] if m.role in ("user", "tool")]
        assert not any(states_fact(value, text) for text in shown), (task.id, value)
        if value in task.outputs and not re.fullmatch(r"-?[\d.]+", value):
            assert episode.score is not None
            assert episode.score.reward == 0.0, (task.id, value)
            refused += 1
    return refused


def _has(value: str, message: Message) -> bool:
    arguments = (str(inner) for call in message.tool_calls for inner in call.arguments.values())
    return any(states_fact(value, text) for text in (message.content, *arguments))


def test_read_heavy_tasks_of_a_server_cannot_be_solved_without_the_reads() -> None:
    source = load_source(REPLAY)
    tasks = tasks_of(source, count=3, min_reads=5, seed=2, max_attempts=40)
    assert [len(task.gold_calls) >= 5 for task in tasks] == [True] * 3
    assert {task.difficulty for task in tasks} == {"hard"}
    assert sum(asyncio.run(prove_needed(source, task, 5)) for task in tasks) > 0


def test_read_heavy_tasks_of_domains_cannot_be_solved_without_the_reads() -> None:
    refused = 0
    for source in (load_source("retail").slice(Slice(families=("status",))), load_source("telecom")):
        tasks = tasks_of(source, count=2, min_reads=4, max_attempts=40)
        assert len(tasks) == 2
        assert {task.difficulty for task in tasks} == {"hard"}
        for task in tasks:
            assert asyncio.run(score_agent(source, task, GoldAgent())).reward == 1.0
            refused += asyncio.run(prove_needed(source, task, 4))
        assert tasks == tasks_of(source, count=2, min_reads=4, max_attempts=40)
    assert refused > 0
