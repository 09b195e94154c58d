"""Synthesis: the generator's own tasks; a model's only when they are proven; and the same when it was interrupted."""

import asyncio
import dataclasses
import json
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
from data_kit import call
from understudy.data import making
from understudy.data.items import Bad
from understudy.data.propose import Brief, Proposal, shown
from understudy.data.synthesize import Wanted, generated, proposed
from understudy.data.verify import Domains, proven
from understudy.domains.base import Slice
from understudy.domains.retail import DOMAIN
from understudy.errors import ConfigError, RolloutError, TaskError
from understudy.messages import Message
from understudy.tasks import Split, Task, read_tasks, write_tasks

Reply = Callable[[Brief], str]
WANTED = Wanted(count=4, seed=3, parallel=3)
CANCEL = DOMAIN.slice(Slice(families=("cancel",), difficulties=("easy",)))


def body(task: Task, **changes: Any) -> str:
    """A proposal's JSON: a task's fields, some of them changed."""
    fields = {name: value for name, value in task.model_dump(mode="json").items() if name in Proposal.model_fields}
    return json.dumps({**fields, **changes})


def other(brief: Brief) -> Task:
    """Another task about the same rows, as a good model would write it: the user moves."""
    user = next(key for key in shown(brief.domain, brief.example)["users"])
    address = f"{10 + brief.number} Birch Lane Street, Denver 80202"
    wish = {"says": f"Please move my account to {address}.", "names": [address.split(",")[0], "80202"]}
    gold = [
        {"role": "assistant", "tool_calls": [{"name": "find_user", "arguments": {"email": user}}]},
        {"role": "assistant", "content": f"I will change your address to {address}. Do you confirm?"},
        {"role": "assistant", "tool_calls": [{"name": "change_user_address", "arguments": {"address": address}}]},
        {"role": "assistant", "content": "Done."},
    ]
    opening = f"Good day from {user}, new street number {address} and that is proposal {brief.number}."
    scenario = {"instructions": "Move.", "opening": opening, "wishes": [wish]}
    return brief.example.replace(
        scenario=type(brief.example.scenario).model_validate(scenario),
        setup={},
        gold=tuple(Message.model_validate(message) for message in gold),
        outputs=(),
    )


def good(brief: Brief) -> str:
    return f"<think>Let me see {{}}.</think>\nHere it is:\n```json\n{body(other(brief))}\n```"


class Scripted:
    """A model that answers by a script: what it is asked tells which proposal it is."""

    def __init__(self, *replies: Reply, domains: Sequence[Any] = (CANCEL,), wanted: Wanted = WANTED) -> None:
        self.replies, self.asked = replies, list[int]()
        examples = zip(range(200), generated(domains, wanted.split, wanted.seed), strict=False)
        self.briefs = [Brief(n, domains[n % len(domains)], task, 99, 99, wanted.seed) for n, task in examples]

    async def complete(self, messages: Sequence[Message], seed: int) -> str:
        number = seed - WANTED.seed * 1_000_003
        self.asked.append(number)
        await asyncio.sleep(0.001 * (number % 3))
        return self.replies[number % len(self.replies)](self.briefs[number])


def collect(
    chat: Any, wanted: Wanted = WANTED, kept: Sequence[Task] = (), domains: Sequence[Any] = (CANCEL,)
) -> list[Any]:
    async def all_of() -> list[Any]:
        return [result async for result in proposed(chat, domains, wanted, kept)]

    return asyncio.run(all_of())


# ---- rule-based ----


def test_the_generators_own_tasks(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    assert call("synthesize", "retail", "--out", out, "--count", 30, "--split", "test", "--seed", 4)[0] == 0
    assert read_tasks(out) == DOMAIN.sample("test", 30, 4)
    assert call("synthesize", "retail", "--out", out, "--count", 30)[0] == 2
    assert read_tasks(out) == DOMAIN.sample("test", 30, 4)


def test_families_difficulties_and_several_domains(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    options = ("--families", "cancel, price", "--difficulties", "hard,easy", "--count", 12)
    assert call("synthesize", "retail", "--out", out, *options)[0] == 0
    assert Counter(t.family for t in read_tasks(out)) == {"cancel": 6, "price": 6}
    assert Counter(t.difficulty for t in read_tasks(out)) == {"easy": 6, "hard": 6}
    assert call("synthesize", "toy:DOMAIN", "retail", "--out", tmp_path / "two.jsonl", "--count", 5)[0] == 0
    assert [t.domain for t in read_tasks(tmp_path / "two.jsonl")] == ["toy", "retail", "toy", "retail", "toy"]


def test_an_interrupted_synthesis_goes_on(tmp_path: Path) -> None:
    def make(out: Path, resume: bool, dies: bool) -> None:
        def watch(items: Any, what: str) -> Any:
            for number, item in enumerate(items):
                if dies and number == 11:
                    raise KeyboardInterrupt
                yield item

        making.generate([DOMAIN], out, "train", 20, 0, watch, resume)

    make(tmp_path / "whole.jsonl", False, False)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "broken.jsonl", False, True)
    assert len((tmp_path / "broken.jsonl.partial").read_bytes().splitlines()) == 11
    make(tmp_path / "broken.jsonl", True, False)
    assert (tmp_path / "broken.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


@pytest.mark.parametrize(("how", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_stopped_process_is_gone_on_with(tmp_path: Path, how: signal.Signals, code: int) -> None:
    out, partial = tmp_path / "t.jsonl", tmp_path / "t.jsonl.partial"
    arguments = ("synthesize", "retail", "--count", "3000", "--seed", "1", "--out", str(out))
    program = [sys.executable, "-c", "from understudy.cli import main; main()", "data", *arguments]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as process:
        while not partial.is_file() or partial.stat().st_size < 50_000:
            assert process.poll() is None, "it ended before it could be stopped"
            time.sleep(0.005)
        process.send_signal(how)
        _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert err == ("" if how == signal.SIGKILL else "stopped; what is written is kept, and --resume goes on with it\n")
    assert not out.exists()
    assert 20 <= len(partial.read_bytes().splitlines()) < 3000
    assert call(*arguments, "--resume")[0] == 0
    write_tasks(tmp_path / "whole.jsonl", DOMAIN.sample("train", 3000, 1))
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


# ---- by a model ----


def test_good_proposals_are_kept_and_proven() -> None:
    results = collect(Scripted(good))
    assert [type(result) for result in results] == [Task] * 4
    assert [t.id for t in results] == [f"retail/train/cancel/easy/model-3-{n}" for n in range(4)]
    assert {(t.domain, t.split, t.family, t.difficulty) for t in results} == {("retail", "train", "cancel", "easy")}
    from understudy.data.items import Item

    assert all(isinstance(item, Item) for item in proven([Item(t.id, t) for t in results], Domains()))


def change_of(brief: Brief) -> list[Any]:
    return json.loads(body(other(brief)))["gold"]


def unconfirmed(brief: Brief) -> str:
    gold = change_of(brief)
    return body(other(brief), gold=[gold[0], gold[2], gold[3]])


def renamed(brief: Brief, **call: Any) -> str:
    gold = change_of(brief)
    gold[2]["tool_calls"][0].update(call)
    return body(other(brief), gold=gold)


def elsewhere(brief: Brief) -> str:
    """About an order that was not shown."""
    hidden = next(key for key in DOMAIN.world().orders if key not in shown(brief.domain, brief.example)["orders"])
    gold = change_of(brief)
    gold.insert(1, {"role": "assistant", "tool_calls": [{"name": "get_order", "arguments": {"order_id": hidden}}]})
    return body(other(brief), gold=gold)


def nothing(brief: Brief) -> str:
    return body(other(brief), gold=[{"role": "assistant", "content": "I cannot."}])


def silence_pays(brief: Brief) -> str:
    """The gold takes back what it does, and tells nothing."""
    gold = [m for m in change_of(brief) if not m.get("tool_calls")]
    return body(other(brief), gold=gold)


BAD: list[tuple[Reply, str, str]] = [
    (lambda b: "I cannot help with that.", "unreadable", "the reply holds no JSON object"),
    (lambda b: good(b)[:-60], "unreadable", "the reply holds no JSON object"),
    (lambda b: body(b.example, gold=[]), "malformed", "gold: Tuple should have at least 1 item"),
    (lambda b: body(b.example, reward=1), "malformed", "reward: Extra inputs are not permitted"),
    (
        lambda b: body(b.example, gold=[{"role": "tool", "content": "x"}]),
        "malformed",
        "gold: it has a message of the role",
    ),
    (
        lambda b: body(other(b), scenario={"instructions": "", "opening": "Hi."}),
        "malformed",
        "scenario.wishes: there are none",
    ),
    (lambda b: body(other(b), gold=change_of(b) * 9), "too long", "gold: 18 calls in 36 messages"),
    (elsewhere, "hidden rows", "gold: it is about orders 'W"),
    (lambda b: body(other(b), setup={"orders": {"W0": {}}}), "hidden rows", "gold: it is about orders 'W0'"),
    (lambda b: body(other(b), setup={"order": {}}), "bad setup", "setup: task"),
    (lambda b: renamed(b, name="move"), "unknown tool", "gold: task"),
    (lambda b: renamed(b, arguments={"to": "x"}), "bad arguments", "gold: task"),
    (lambda b: renamed(b, arguments={"address": "Nowhere"}), "gold refused", "gold: task"),
    (nothing, "does nothing", "gold: its gold calls change nothing and it has nothing to tell"),
    (silence_pays, "does nothing", "gold: its gold calls change nothing and it has nothing to tell"),
    (unconfirmed, "gold fails", "gold: its turns earn 0 instead of 1.0; failed: state"),
    (lambda b: body(other(b), outputs=["12.50"]), "gold fails", "gold: its turns earn 0 instead of 1.0; failed: said"),
    (lambda b: body(b.example), "duplicate", "it is a near-duplicate of an earlier task or of its example"),
]


@pytest.mark.parametrize(("reply", "kind", "problem"), BAD, ids=[f"{i}-{kind}" for i, (_, kind, _) in enumerate(BAD)])
def test_bad_proposals_are_refused_for_their_reason(reply: Reply, kind: str, problem: str) -> None:
    first, *_ = collect(Scripted(reply), WANTED.replace(count=1, attempts=1))
    assert isinstance(first, Bad)
    assert (first.where, first.kind) == ("proposal 0", kind)
    assert problem in str(first)


def test_a_yes_in_the_users_words_is_refused() -> None:
    def reply(brief: Brief) -> str:
        task = other(brief)
        return body(task.replace(scenario=task.scenario.replace(opening="Yes, please. " + task.scenario.opening)))

    (bad,) = collect(Scripted(reply), WANTED.replace(count=1, attempts=1))
    assert bad.kind == "malformed"
    assert "would be taken for a yes" in bad.problem


def test_a_model_that_repeats_itself_is_kept_once() -> None:
    one = CANCEL.slice(Slice(families=("cancel",), difficulties=("easy",)))
    chat = Scripted(good)
    chat.briefs = [chat.briefs[0]] * 200
    results = collect(chat, WANTED.replace(attempts=2), domains=(one,))
    assert [isinstance(r, Task) for r in results] == [True] + [False] * 7
    assert {r.kind for r in results[1:]} <= {"duplicate", "hidden rows"}


def test_the_yield_is_told_and_too_few_is_an_error(tmp_path: Path) -> None:
    every = [good, *(reply for reply, *_ in BAD)]
    chat, out = Scripted(*every), tmp_path / "t.jsonl"
    counts = asyncio.run(making.propose(chat, [CANCEL], out, WANTED.replace(attempts=30), lambda i, w: i, False))
    assert counts["kept"] == 4 == len(read_tasks(out))
    text = making.as_text(counts)
    assert text.startswith("kept 4 of 58 proposals; refused: malformed 12, ")
    assert "hidden rows 6" in text
    wanted = WANTED.replace(attempts=1)
    with pytest.raises(TaskError, match=r"kept 1 of 4 proposals; refused: .* fewer than 4; --resume with more"):
        asyncio.run(making.propose(chat, [CANCEL], tmp_path / "u.jsonl", wanted, lambda i, w: i, False))
    assert len((tmp_path / "u.jsonl.partial").read_text().splitlines()) == 1


class Dying(Scripted):
    """An endpoint that fails for good at one proposal."""

    dies_at = 7

    async def complete(self, messages: Sequence[Message], seed: int) -> str:
        if seed - WANTED.seed * 1_000_003 >= self.dies_at:
            raise RolloutError("the endpoint is gone", "agent")
        return await super().complete(messages, seed)


def test_interrupted_and_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    replies = [good, BAD[0][0], good, BAD[-1][0], BAD[8][0], good, good]
    wanted, quiet = WANTED.replace(count=8), lambda items, what: items

    def make(chat: Any, out: Path, resume: bool) -> None:
        asyncio.run(making.propose(chat, [CANCEL], out, wanted, quiet, resume))

    make(Scripted(*replies), tmp_path / "whole.jsonl", False)
    with pytest.raises(RolloutError):
        make(Dying(*replies), tmp_path / "broken.jsonl", False)
    assert 0 < len((tmp_path / "broken.jsonl.partial").read_text().splitlines()) < 8
    again = Scripted(*replies)
    make(again, tmp_path / "broken.jsonl", True)
    assert (tmp_path / "broken.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert min(again.asked) == 6, "what was proposed before is not asked for again"


def test_a_partial_file_of_other_tasks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl.partial").write_text(CANCEL.sample("train", 1)[0].model_dump_json().replace("0-0", "x") + "\n")
    with pytest.raises(ConfigError, match="was not proposed by a model"):
        asyncio.run(making.propose(Scripted(good), [CANCEL], tmp_path / "t.jsonl", WANTED, lambda i, w: i, True))
    (tmp_path / "t.jsonl.partial").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"t\.jsonl\.partial:1: not a task"):
        asyncio.run(making.propose(Scripted(good), [CANCEL], tmp_path / "t.jsonl", WANTED, lambda i, w: i, True))


def test_what_a_model_is_told() -> None:
    brief = Scripted(good).briefs[0]
    system, user = brief.messages()
    for text in (DOMAIN.policy, '"name": "cancel_order"', '"outputs"', "Do you confirm?"):
        assert text in system.content
    order = brief.example.actions[1].arguments["order_id"]
    assert f'"{order}": {{' in user.content
    assert "'cancel'" in user.content
    assert "'easy'" in user.content


def test_shown_rows_are_the_tasks_and_what_they_refer_to() -> None:
    task = next(t for t in DOMAIN.sample("train", 60) if t.family == "cancel" and t.setup.get("orders"))
    rows = shown(DOMAIN, task)
    (email,) = rows["users"]
    assert rows["orders"].keys() == set(DOMAIN.world().users[email].orders)
    ((order, fields),) = task.setup["orders"].items()
    assert rows["orders"][order]["status"] == fields["status"]
    assert rows["products"].keys() == {line["name"] for o in rows["orders"].values() for line in o["items"]}


def test_the_user_is_shown_who_is_found_by_name() -> None:
    task = next(t for t in DOMAIN.sample("train", 200) if t.actions[0].name == "find_user_by_name" and t.setup)
    ((order, _),) = task.setup["orders"].items()
    (email,) = shown(DOMAIN, task)["users"]
    assert order in DOMAIN.world().users[email].orders


def test_models_propose_for_several_domains_in_turn() -> None:
    def reply(brief: Brief) -> str:
        return good(brief) if brief.domain.name == "retail" else body(brief.example)

    domains = (CANCEL, toy.DOMAIN)
    results = collect(Scripted(reply, domains=domains), domains=domains)
    kinds = [r.domain if isinstance(r, Task) else r.kind for r in results]
    assert kinds == ["retail", "duplicate"] * 3 + ["retail"]


# ---- the endpoint ----


class _Server(BaseHTTPRequestHandler):
    requests: list[dict[str, Any]] = []
    chat: Scripted

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


def test_by_model_at_a_real_endpoint(tmp_path: Path) -> None:
    _Server.chat, _Server.requests = Scripted(good, BAD[0][0]), []
    with HTTPServer(("127.0.0.1", 0), _Server) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        options = ("--families", "cancel", "--difficulties", "easy", "--count", 2, "--seed", WANTED.seed)
        code, text, _ = call(
            "synthesize", "retail", "--by-model", "m", "--url", url, "--out", tmp_path / "t.jsonl", *options
        )
        server.shutdown()
    assert code == 0
    assert "kept 2 of 3 proposals; refused: unreadable 1" in text
    assert len(read_tasks(tmp_path / "t.jsonl")) == 2
    assert {request["model"] for request in _Server.requests} == {"m"}
    assert _Server.requests[0]["messages"][0]["role"] == "system"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "a domain is needed, such as: understudy data synthesize retail"),
        (("retial",), "unknown domain 'retial'; did you mean 'retail'?"),
        (("retail", "--families", "cancl"), "retail has no family 'cancl'; did you mean 'cancel'?"),
        (("retail", "--difficulties", "esay"), "unknown difficulty 'esay'; allowed: easy, medium, hard"),
        (("retail", "--out", "t.parquet"), "t.parquet: tasks are written as .jsonl"),
        (("retail", "--from-specs", "x.json"), "domains has no effect beside the other options; leave it out"),
        (("--from-specs", "x.json", "--seed", "0"), "--seed has no effect beside the other options"),
        (("retail", "--max-tools", "3"), "--max-tools has no effect beside the other options"),
    ],
)
def test_mistakes(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = call("synthesize", "--out", tmp_path / "t.jsonl", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("beside", "there"), [([], 7), (["retail"], 14)])
def test_a_generator_that_ends_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: list[str], there: int
) -> None:
    tasks, out = toy.DOMAIN.sample("test", 7), tmp_path / "t.jsonl"

    def seven(split: Split, seed: int, families: object, difficulties: object) -> Iterator[Task]:
        return iter(tasks)

    monkeypatch.setattr(toy, "FEW", dataclasses.replace(toy.DOMAIN, generate=seven), raising=False)
    arguments = ("synthesize", "toy:FEW", *beside, "--out", out, "--split", "test", "--count")
    code, said, err = call(*arguments, 20)
    assert (code, said, out.exists()) == (2, "", False)
    assert f"{there} test tasks are to be had, where 20 are wanted; take those by --resume --count {there}" in err
    assert call(*arguments, there, "--resume") == (0, f"{out}: {there}\n", "")
    assert len(read_tasks(out)) == there
    tasks.clear()
    code, _, err = call("synthesize", "toy:FEW", "--out", tmp_path / "none.jsonl")
    assert (code, "toy: 0 train tasks are to be had, where 100 are wanted; name another split" in err) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl"]
