"""Test `data synthesize`: generated tasks, validated proposals of a model, and resuming."""

import asyncio
import dataclasses
import itertools
import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import toy
from support.data_kit import run_data_command
from understudy.core.errors import ConfigError, RolloutError, TaskError
from understudy.core.items import RowError
from understudy.core.messages import Message
from understudy.core.tasks import Split, Task, read_tasks, write_tasks
from understudy.data.checks.verify import play_tasks
from understudy.data.synthesis import synthesis_files
from understudy.data.synthesis.limits import SynthesisConfig
from understudy.data.synthesis.proposal import Proposal, RowProposal, select_rows
from understudy.data.synthesis.synthesize import generate_tasks, propose_tasks
from understudy.domains.retail import DOMAIN
from understudy.envs.task_source import Slice

Reply = Callable[[RowProposal], str]
WANTED = SynthesisConfig(count=4, seed=3, concurrency=3)
CANCEL = DOMAIN.slice(Slice(families=("cancel",), difficulties=("easy",)))


def proposal_json(task: Task, **changes: Any) -> str:
    """Return a task's fields as the JSON of a proposal, with `changes`."""
    fields = {name: value for name, value in task.model_dump(mode="json").items() if name in Proposal.model_fields}
    return json.dumps({**fields, **changes})


def valid_task(request: RowProposal) -> Task:
    """Return another task on the example's rows, as a good model would propose it: the user changes the address."""
    user = next(key for key in select_rows(request.source, request.example)["users"])
    address = f"{10 + request.number} Birch Lane Street, Denver 80202"
    goal = {"text": f"Please move my account to {address}.", "required_terms": [address.split(",")[0], "80202"]}
    gold = [
        {"role": "assistant", "tool_calls": [{"name": "find_user", "arguments": {"email": user}}]},
        {"role": "assistant", "content": f"I will change your address to {address}. Do you confirm?"},
        {"role": "assistant", "tool_calls": [{"name": "change_user_address", "arguments": {"address": address}}]},
        {"role": "assistant", "content": "Done."},
    ]
    opening = f"Good day from {user}, new street number {address} and that is proposal {request.number}."
    scenario = {"instructions": "Move.", "opening": opening, "goals": [goal]}
    return request.example.replace(
        scenario=type(request.example.scenario).model_validate(scenario),
        setup={},
        gold=tuple(Message.model_validate(message) for message in gold),
        outputs=(),
    )


def valid_reply(request: RowProposal) -> str:
    return f"<think>Let me see {{}}.</think>\nHere it is:\n```json\n{proposal_json(valid_task(request))}\n```"


class ScriptedModel:
    """A model that answers from a script; the seed of a request gives the number of the proposal."""

    def __init__(self, *replies: Reply, domains: Sequence[Any] = (CANCEL,), wanted: SynthesisConfig = WANTED) -> None:
        self.replies, self.requested = replies, list[int]()
        streams = [generate_tasks(domain, wanted) for domain in domains]
        turns = zip(range(200), itertools.cycle(zip(domains, streams, strict=True)), strict=False)
        self.requests = [RowProposal(n, wanted.seed, domain, next(tasks), 99, 99) for n, (domain, tasks) in turns]

    async def complete(self, messages: Sequence[Message], seed: int) -> str:
        number = seed - WANTED.seed * 1_000_003
        self.requested.append(number)
        await asyncio.sleep(0.001 * (number % 3))
        return self.replies[number % len(self.replies)](self.requests[number])


def write_new(
    chat: Any, out: Path, wanted: SynthesisConfig, resume: bool = False, domain: Any = CANCEL, track: Any = None
) -> Counter[str]:
    """Write tasks of one domain to a file."""
    output = synthesis_files.TaskOutput(out, [domain], ["retail"])
    return asyncio.run(
        synthesis_files.write_new_tasks(output, chat, wanted, track or (lambda items, what: items), resume)
    )


def propose_all(
    chat: Any, wanted: SynthesisConfig = WANTED, kept_tasks: Sequence[Task] = (), domains: Sequence[Any] = (CANCEL,)
) -> list[Any]:
    async def all_of() -> list[Any]:
        return [result async for result in propose_tasks(chat, domains, wanted, kept_tasks)]

    return asyncio.run(all_of())


def test_generated_tasks_match_a_sample_of_the_domain(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    assert run_data_command("synthesize", "retail", "--out", out, "--count", 30, "--split", "test", "--seed", 4)[0] == 0
    assert read_tasks(out) == DOMAIN.sample("test", 30, 4)
    assert run_data_command("synthesize", "retail", "--out", out, "--count", 30)[0] == 2
    assert read_tasks(out) == DOMAIN.sample("test", 30, 4)


def test_families_difficulties_and_domains_are_balanced(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    options = ("--families", "cancel, price", "--difficulties", "hard,easy", "--count", 12)
    assert run_data_command("synthesize", "retail", "--out", out, *options)[0] == 0
    assert Counter(t.family for t in read_tasks(out)) == {"cancel": 6, "price": 6}
    assert Counter(t.difficulty for t in read_tasks(out)) == {"easy": 6, "hard": 6}
    assert run_data_command("synthesize", "toy:DOMAIN", "retail", "--out", tmp_path / "two.jsonl", "--count", 5)[0] == 0
    assert [t.domain for t in read_tasks(tmp_path / "two.jsonl")] == ["toy", "retail", "toy", "retail", "toy"]


def test_resumed_generation_equals_uninterrupted(tmp_path: Path) -> None:
    def write_tasks_to(out: Path, resume: bool, interrupts: bool) -> None:
        def count_and_interrupt(items: Any, what: str) -> Any:
            for number, item in enumerate(items):
                if interrupts and number == 11:
                    raise KeyboardInterrupt
                yield item

        write_new(None, out, SynthesisConfig(count=20), resume, DOMAIN, track=count_and_interrupt)

    write_tasks_to(tmp_path / "whole.jsonl", False, False)
    with pytest.raises(KeyboardInterrupt):
        write_tasks_to(tmp_path / "broken.jsonl", False, True)
    assert len((tmp_path / "broken.jsonl.partial").read_bytes().splitlines()) == 11
    write_tasks_to(tmp_path / "broken.jsonl", True, False)
    assert (tmp_path / "broken.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_killed_process_resumes_to_the_same_tasks(tmp_path: Path, how: signal.Signals, code: int) -> None:
    out, partial = tmp_path / "t.jsonl", tmp_path / "t.jsonl.partial"
    arguments = ("synthesize", "retail", "--count", "3000", "--seed", "1", "--out", str(out))
    program = [sys.executable, "-c", "from understudy.cli.main import main; main()", "data", *arguments]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as process:
        while not partial.is_file() or partial.stat().st_size < 50_000:
            assert process.poll() is None, "it ended before it could be stopped"
            time.sleep(0.005)
        process.send_signal(how)
        _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert ("--resume" in err) == (how != signal.SIGKILL)
    assert not out.exists()
    assert 20 <= len(partial.read_bytes().splitlines()) < 3000
    assert run_data_command(*arguments, "--resume")[0] == 0
    write_tasks(tmp_path / "whole.jsonl", DOMAIN.sample("train", 3000, 1))
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_valid_proposals_are_kept() -> None:
    results = propose_all(ScriptedModel(valid_reply))
    assert [type(result) for result in results] == [Task] * 4
    assert [t.id for t in results] == [f"retail/train/cancel/easy/model-3-{n}" for n in range(4)]
    assert {(t.domain, t.split, t.family, t.difficulty) for t in results} == {("retail", "train", "cancel", "easy")}
    from understudy.core.items import Item

    assert all(isinstance(item, Item) for item in play_tasks([Item(t.id, t) for t in results], {}))


def valid_gold(request: RowProposal) -> list[Any]:
    return json.loads(proposal_json(valid_task(request)))["gold"]


def without_confirmation(request: RowProposal) -> str:
    gold = valid_gold(request)
    return proposal_json(valid_task(request), gold=[gold[0], gold[2], gold[3]])


def with_call_changed(request: RowProposal, **call: Any) -> str:
    gold = valid_gold(request)
    gold[2]["tool_calls"][0].update(call)
    return proposal_json(valid_task(request), gold=gold)


def with_hidden_row(request: RowProposal) -> str:
    """Return a proposal whose gold reads an order that the prompt did not show."""
    hidden = next(
        key for key in DOMAIN.build_world().orders if key not in select_rows(request.source, request.example)["orders"]
    )
    gold = valid_gold(request)
    gold.insert(1, {"role": "assistant", "tool_calls": [{"name": "get_order", "arguments": {"order_id": hidden}}]})
    return proposal_json(valid_task(request), gold=gold)


def without_calls(request: RowProposal) -> str:
    return proposal_json(valid_task(request), gold=[{"role": "assistant", "content": "I cannot."}])


def without_changes(request: RowProposal) -> str:
    """Return a proposal whose gold only talks."""
    gold = [m for m in valid_gold(request) if not m.get("tool_calls")]
    return proposal_json(valid_task(request), gold=gold)


BAD: list[tuple[Reply, str, str]] = [
    (lambda b: "I cannot help with that.", "unreadable", "the reply holds no JSON object"),
    (lambda b: valid_reply(b)[:-60], "unreadable", "the reply holds no JSON object"),
    (lambda b: proposal_json(b.example, gold=[]), "malformed", "gold: Tuple should have at least 1 item"),
    (lambda b: proposal_json(b.example, reward=1), "malformed", "reward: this key is unknown"),
    (
        lambda b: proposal_json(b.example, gold=[{"role": "tool", "content": "x"}]),
        "malformed",
        "gold: it has a message of the role",
    ),
    (
        lambda b: proposal_json(valid_task(b), scenario={"instructions": "", "opening": "Hi."}),
        "malformed",
        "scenario.goals: there are none",
    ),
    (lambda b: proposal_json(valid_task(b), gold=valid_gold(b) * 9), "too long", "gold: 18 calls in 36 messages"),
    (with_hidden_row, "hidden rows", "gold: it uses orders 'W"),
    (lambda b: proposal_json(valid_task(b), setup={"orders": {"W0": {}}}), "hidden rows", "gold: it uses orders 'W0'"),
    (lambda b: proposal_json(valid_task(b), setup={"order": {}}), "bad setup", "setup: task"),
    (lambda b: with_call_changed(b, name="move"), "unknown tool", "gold: task"),
    (lambda b: with_call_changed(b, arguments={"to": "x"}), "invalid arguments", "gold: task"),
    (lambda b: with_call_changed(b, arguments={"address": "Nowhere"}), "gold refused", "gold: task"),
    (without_calls, "does nothing", "gold: its gold calls change nothing and it has nothing to tell"),
    (without_changes, "does nothing", "gold: its gold calls change nothing and it has nothing to tell"),
    (without_confirmation, "gold fails", "gold: its turns earn 0 instead of 1.0; failed: state_match"),
    (
        lambda b: proposal_json(valid_task(b), outputs=["12.50"]),
        "gold fails",
        "gold: its turns earn 0 instead of 1.0; failed: facts_told",
    ),
    (lambda b: proposal_json(b.example), "duplicate", "it is a near-duplicate of an earlier task or of its example"),
]


@pytest.mark.parametrize(("reply", "kind", "problem"), BAD, ids=[f"{i}-{kind}" for i, (_, kind, _) in enumerate(BAD)])
def test_invalid_proposal_is_rejected_with_its_kind(reply: Reply, kind: str, problem: str) -> None:
    first, *_ = propose_all(ScriptedModel(reply), WANTED.replace(count=1, max_attempts=1))
    assert isinstance(first, RowError)
    assert (first.location, first.kind) == ("proposal 0", kind)
    assert problem in str(first)


def test_proposal_whose_opening_reads_as_consent_is_rejected() -> None:
    def reply(request: RowProposal) -> str:
        task = valid_task(request)
        return proposal_json(
            task.replace(scenario=task.scenario.replace(opening="Yes, please. " + task.scenario.opening))
        )

    (bad,) = propose_all(ScriptedModel(reply), WANTED.replace(count=1, max_attempts=1))
    assert bad.kind == "malformed"
    assert bad.problem


def test_repeated_proposal_is_kept_once() -> None:
    one = CANCEL.slice(Slice(families=("cancel",), difficulties=("easy",)))
    chat = ScriptedModel(valid_reply)
    chat.requests = [chat.requests[0]] * 200
    results = propose_all(chat, WANTED.replace(max_attempts=2), domains=(one,))
    assert [isinstance(r, Task) for r in results] == [True] + [False] * 7
    assert {r.kind for r in results[1:]} <= {"duplicate", "hidden rows"}


@pytest.mark.slow
def test_yield_is_reported_and_too_few_tasks_raise(tmp_path: Path) -> None:
    script = [valid_reply, *(reply for reply, *_ in BAD)]
    chat, out = ScriptedModel(*script), tmp_path / "t.jsonl"
    counts = write_new(chat, out, WANTED.replace(max_attempts=30))
    assert counts["kept"] == 4 == len(read_tasks(out))
    text = synthesis_files.format_proposal_counts(counts)
    assert re.match(r".*\b4 of 58\b.*\bmalformed 12\b", text)
    assert "hidden rows 6" in text
    wanted = WANTED.replace(max_attempts=1)
    with pytest.raises(TaskError, match=r"\b1 of 4\b.*--resume"):
        write_new(chat, tmp_path / "u.jsonl", wanted)
    assert len((tmp_path / "u.jsonl.partial").read_text().splitlines()) == 1


class FailingModel(ScriptedModel):
    """A scripted model that raises from proposal `fails_at` on."""

    fails_at = 7

    async def complete(self, messages: Sequence[Message], seed: int) -> str:
        if seed - WANTED.seed * 1_000_003 >= self.fails_at:
            raise RolloutError("the endpoint is gone", "agent")
        return await super().complete(messages, seed)


def test_resumed_proposals_equal_uninterrupted(tmp_path: Path) -> None:
    replies = [valid_reply, BAD[0][0], valid_reply, BAD[-1][0], BAD[8][0], valid_reply, valid_reply]
    wanted = WANTED.replace(count=8)

    def write_tasks_to(chat: Any, out: Path, resume: bool) -> None:
        write_new(chat, out, wanted, resume)

    write_tasks_to(ScriptedModel(*replies), tmp_path / "whole.jsonl", False)
    with pytest.raises(RolloutError):
        write_tasks_to(FailingModel(*replies), tmp_path / "broken.jsonl", False)
    assert 0 < len((tmp_path / "broken.jsonl.partial").read_text().splitlines()) < 8
    resumed = ScriptedModel(*replies)
    write_tasks_to(resumed, tmp_path / "broken.jsonl", True)
    assert (tmp_path / "broken.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert min(resumed.requested) == 6, "what was proposed before is not asked for again"


def test_resume_from_a_foreign_or_invalid_partial_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl.partial").write_text(CANCEL.sample("train", 1)[0].model_dump_json().replace("0-0", "x") + "\n")
    with pytest.raises(ConfigError, match="retail/train/cancel/easy/x"):
        write_new(ScriptedModel(valid_reply), tmp_path / "t.jsonl", WANTED, True)
    (tmp_path / "t.jsonl.partial").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"t\.jsonl\.partial:1: "):
        write_new(ScriptedModel(valid_reply), tmp_path / "t.jsonl", WANTED, True)


def test_proposal_prompt_contains_policy_tools_and_rows() -> None:
    request = ScriptedModel(valid_reply).requests[0]
    system, user = request.messages()
    for text in (DOMAIN.domain_policy, '"name": "cancel_order"', '"outputs"', "Do you confirm?"):
        assert text in system.content
    order = request.example.gold_calls[1].arguments["order_id"]
    assert f'"{order}": {{' in user.content
    assert "'cancel'" in user.content
    assert "'easy'" in user.content


def test_selected_rows_are_the_tasks_rows_and_their_references() -> None:
    task = next(t for t in DOMAIN.sample("train", 60) if t.family == "cancel" and t.setup.get("orders"))
    rows = select_rows(DOMAIN, task)
    (email,) = rows["users"]
    assert rows["orders"].keys() == set(DOMAIN.build_world().users[email].orders)
    ((order, fields),) = task.setup["orders"].items()
    assert rows["orders"][order]["status"] == fields["status"]
    assert rows["products"].keys() == {line["name"] for o in rows["orders"].values() for line in o["items"]}


def test_selected_rows_include_a_user_found_by_name() -> None:
    task = next(t for t in DOMAIN.sample("train", 200) if t.gold_calls[0].name == "find_user_by_name" and t.setup)
    ((order, _),) = task.setup["orders"].items()
    (email,) = select_rows(DOMAIN, task)["users"]
    assert order in DOMAIN.build_world().users[email].orders


def test_proposals_alternate_between_domains() -> None:
    def reply(request: RowProposal) -> str:
        return valid_reply(request) if request.source.name == "retail" else proposal_json(request.example)

    domains = (CANCEL, toy.DOMAIN)
    results = propose_all(ScriptedModel(reply, domains=domains), domains=domains)
    kinds = [r.domain if isinstance(r, Task) else r.kind for r in results]
    assert kinds == ["retail", "duplicate"] * 3 + ["retail"]


class _ModelHandler(BaseHTTPRequestHandler):
    requests: list[dict[str, Any]] = []
    chat: ScriptedModel

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.requests.append(request)
        text = asyncio.run(self.chat.complete((), request["seed"]))
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        reply = {"id": "x", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}
        data = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_proposals_come_from_an_http_endpoint(tmp_path: Path) -> None:
    _ModelHandler.chat, _ModelHandler.requests = ScriptedModel(valid_reply, BAD[0][0]), []
    with HTTPServer(("127.0.0.1", 0), _ModelHandler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        options = ("--families", "cancel", "--difficulties", "easy", "--count", 2, "--seed", WANTED.seed)
        code, text, _ = run_data_command(
            "synthesize", "retail", "--model", "m", "--base-url", url, "--out", tmp_path / "t.jsonl", *options
        )
        server.shutdown()
    assert code == 0
    assert re.search(r"\b2 of 3\b.*\bunreadable 1\b", text)
    assert len(read_tasks(tmp_path / "t.jsonl")) == 2
    assert {request["model"] for request in _ModelHandler.requests} == {"m"}
    assert _ModelHandler.requests[0]["messages"][0]["role"] == "system"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "understudy data synthesize"),
        (("retial",), "'retail'"),
        (("retail", "--families", "cancl"), "'cancel'"),
        (("retail", "--difficulties", "esay"), "easy, medium, hard"),
        (("retail", "--difficulties", "easy=0"), "easy=0"),
        (("retail", "--out", "t.csv"), ".csv"),
        (("retail", "--out", "folder"), "mcp:FILE"),
        (("retail,retail",), "retail"),
        (("mix:retail,telecom",), "retail,telecom"),
        (("retail", "--from-specs", "x.json"), "'retail'"),
        (("--from-specs", "x.json", "--seed", "0"), "--seed"),
        (("retail", "--temperature", "0.7"), "--temperature"),
    ],
)
def test_invalid_options_give_one_error_line_and_no_output(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    code, out, err = run_data_command("synthesize", "--out", tmp_path / "t.jsonl", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_an_output_that_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    Path(f"{out}.partial").mkdir()
    code, _, err = run_data_command("synthesize", "retail", "--count", 2, "--out", out, "--resume")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"understudy: {out} cannot be written ({out}.partial: Is a directory); ")


@pytest.mark.parametrize(("other_domains", "available"), [([], 7), (["retail"], 14)])
def test_exhausted_generator_reports_the_available_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_domains: list[str], available: int
) -> None:
    tasks, out = toy.DOMAIN.sample("test", 7), tmp_path / "t.jsonl"

    def generate_seven(split: Split, seed: int, families: object, difficulties: object) -> Iterator[Task]:
        return iter(tasks)

    monkeypatch.setattr(toy, "FEW", dataclasses.replace(toy.DOMAIN, generate=generate_seven), raising=False)
    arguments = ("synthesize", "toy:FEW", *other_domains, "--out", out, "--split", "test", "--count")
    code, said, err = run_data_command(*arguments, 20)
    assert (code, said, out.exists()) == (2, "", False)
    assert re.search(rf"\b{available}\b.*\b20\b.*--resume --count {available}\b", err)
    assert run_data_command(*arguments, available, "--resume") == (0, f"{out}: {available}\n", "")
    assert len(read_tasks(out)) == available
    tasks.clear()
    code, _, err = run_data_command("synthesize", "toy:FEW", "--out", tmp_path / "none.jsonl")
    assert code == 2
    assert re.search(r"\btoy\b.*\b0\b.*\b100\b", err)
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl"]
