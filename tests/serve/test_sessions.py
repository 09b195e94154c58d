"""Tests of sessions: programs ask for replies, and their episodes hold exactly what was sampled.

`agent_traffic.jsonl.gz` has requests that agent programs really sent, each with the reply that they had got. They are
sent again, to a sampler that gives these replies.
"""

import asyncio
import gzip
import json
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from support.replying import Reply, ReplySampler, say
from support.tiny_runs import make_tiny_model
from understudy.core.errors import RolloutError
from understudy.core.messages import Message, ToolCall
from understudy.core.trajectory import StopReason, Trajectory, write_trajectories
from understudy.engines.interface import Completion, SamplingParams
from understudy.formats import FormatTokenizer
from understudy.serve.generation import ServedModel
from understudy.serve.recording import Session, SessionLimits
from understudy.serve.server import serve_in_loop
from understudy.serve.sessions import SessionServer

RECORDED = Path(__file__).parent / "agent_traffic.jsonl.gz"
TRAFFIC = [json.loads(line) for line in gzip.decompress(RECORDED.read_bytes()).splitlines()]
MARKS = {
    "langgraph/summ": "NENN",
    "agents_sdk/chat_par_sub": "NNNEEEE",
    "agents_sdk/chat_handoff": "NNE",
    "smolagents/plain": "NNN",
    "smol_code/plain": "NNN",
    "dspy/plain": "NNNN",
}
"""Which calls continue a sequence (E) and which open one (N). Programs that send their history as it is have NEE."""
HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "f"}}
LIMITS = SessionLimits(max_replies=20, max_tokens=100_000)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


class Running:
    """A session and its endpoint."""

    def __init__(self, url: str, key: str, session: Session, sampler: ReplySampler) -> None:
        self.url, self.session, self.sampler = url, session, sampler
        plain = httpx2.AsyncClient(verify=False, timeout=60, trust_env=False)
        self.client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, http_client=plain)
        self.headers = {"Authorization": f"Bearer {key}"}

    async def post(self, path: str, body: Any, retries: int = 0) -> httpx2.Response:
        headers = {**self.headers, "x-stainless-retry-count": str(retries)}
        async with httpx2.AsyncClient(verify=False, timeout=60, trust_env=False) as client:
            return await client.post(self.url + path, json=body, headers=headers)

    def check_invariant(self) -> None:
        """Check that each sampled token is in one mask, after exactly the tokens that it was sampled from."""
        episode = self.session.episode
        found = [
            (sequence.tokens[:start], sequence.tokens[start:end])
            for sequence in episode.sequences
            for start, end in sequence.reply_spans()
        ]
        whole = "stop_string" not in episode.event_counts  # else what follows the stop string is left out
        for (prompt, tokens), (asked, sampled) in zip(sorted(found), sorted(self.sampler.calls), strict=True):
            assert (prompt, tokens) == (asked, sampled if whole else sampled[: len(tokens)])
        for sequence in episode.sequences:
            assert len(sequence.reply_indices) == len(list(sequence.reply_spans()))
            for sampled, token, logprob in zip(sequence.mask, sequence.tokens, sequence.logprobs, strict=True):
                assert logprob == (-token / 1000 if sampled else 0.0)


@asynccontextmanager
async def running(
    folder: Path, reply: Reply, limits: SessionLimits = LIMITS, seed: int = 0, **sampling: Any
) -> AsyncIterator[Running]:
    sampler = ReplySampler(folder, reply)
    vocabulary = FormatTokenizer.load(folder / "tokenizer.json")
    params = SamplingParams(max_response_tokens=1000, **sampling)
    server = SessionServer(ServedModel("tiny", sampler, sampler.format, vocabulary), params)
    async with (
        serve_in_loop(server.app()) as url,
        server.open_session(Trajectory("t", seed=seed), limits) as (key, session),
    ):
        each = Running(url, key, session, sampler)
        async with each.client:
            yield each


async def replay(folder: Path, calls: Sequence[Any]) -> str:
    """Send recorded requests, with our ids in place of the recorded ones. Return the marks of the calls."""
    answers = iter(call["answer"] for call in calls)

    def reply(prompt: Sequence[int], seed: int) -> Message:
        answer = next(answers)
        called = tuple(ToolCall(name=name, arguments=json.loads(given)) for _, name, given in answer["calls"])
        return Message(role="assistant", content=answer["text"], tool_calls=called)

    marks, ids = "", dict[str, str]()
    async with running(folder, reply) as each:
        last = ""
        for call in calls:
            body = json.dumps(call["body"])
            for recorded, own in ids.items():
                body = body.replace(recorded, own)
            if "previous_response_id" in call["body"]:
                body = body.replace(call["body"]["previous_response_id"], last)
            before = len(each.session.episode.sequences)
            first = not each.session.episode.tokens
            answer = await each.post(call["path"], json.loads(body))
            assert answer.status_code == 200, answer.text
            marks += "N" if first or len(each.session.episode.sequences) > before else "E"
            each.check_invariant()
            own_calls = list(each.session.episode.sequences)
            given = [c.id for sequence in own_calls for message in sequence.messages for c in message.tool_calls]
            for (recorded, _, _), own in zip(call["answer"]["calls"], _called(answer), strict=True):
                assert own in given
                ids[recorded] = own
            if call["path"].endswith("responses") and not call["body"].get("stream"):
                last = answer.json()["id"]
    return marks


def _called(answer: httpx2.Response) -> list[str]:
    """Return the ids of the calls in an answer, streamed or not."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        calls = [c for e in events for choice in e.get("choices", ()) for c in choice["delta"].get("tool_calls", ())]
        items = [e["item"] for e in events if e.get("type") == "response.output_item.done"]
        return [call["id"] for call in calls] or [item["call_id"] for item in items if "call_id" in item]
    body = answer.json()
    if "choices" in body:
        return [call["id"] for call in body["choices"][0]["message"].get("tool_calls", ())]
    return [item["call_id"] for item in body["output"] if item["type"] == "function_call"]


@pytest.mark.parametrize("recorded", TRAFFIC, ids=lambda recorded: recorded["program"])
def test_recorded_program_is_recorded_exactly(recorded: Any, tiny: Path) -> None:
    assert asyncio.run(replay(tiny, recorded["calls"])) == MARKS.get(recorded["program"], "NEE")


def test_openai_client_gets_replies_for_any_model_name(tiny: Path) -> None:
    async def play() -> None:
        async with running(tiny, say("Yes."), temperature=0.7, top_p=0.9) as each:
            chat = each.client.chat.completions
            reply = await chat.create(model="gpt-4.1", messages=HELLO, temperature=0.1, max_tokens=99, n=2)  # type: ignore[arg-type]
            assert (reply.model, [choice.message.content for choice in reply.choices]) == ("gpt-4.1", ["Yes."] * 2)
            stream = await chat.create(model="x", messages=HELLO, stream=True, stop=["!"])  # type: ignore[arg-type]
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "Yes."
            again = [*HELLO, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Sure?"}]
            await chat.create(model="x", messages=again)  # type: ignore[arg-type]
            each.check_invariant()
            episode = each.session.episode
            assert [len(sequence.reply_indices) for sequence in episode.sequences] == [2, 1, 1]
            assert {(params.temperature, params.top_p) for params in each.sampler.asked} == {(0.7, 0.9)}
            assert [params.max_response_tokens for params in each.sampler.asked] == [99, 99, 1000, 1000]
            overridden = {"program/overridden": 1, "program/overridden/temperature": 1}
            assert episode.event_counts == {"text": 4, "program/chat": 3, **overridden}
            assert episode.weights_version == 3

    asyncio.run(play())


def test_openai_client_reads_responses(tiny: Path) -> None:
    call = Message(role="assistant", content="I add.", tool_calls=(ToolCall(name="add", arguments={"a": 1}),))
    tool = {"type": "function", "name": "add", "description": "", "parameters": {"type": "object", "properties": {}}}

    async def play() -> None:
        async with running(tiny, lambda prompt, seed: call) as each:
            api = each.client.responses
            first = await api.create(model="m", input="1+?", instructions="Add.", tools=[{**tool, "strict": False}])  # type: ignore[list-item]
            assert first.output_text == "I add."
            (called,) = [item for item in first.output if item.type == "function_call"]
            assert (called.name, json.loads(called.arguments)) == ("add", {"a": 1})
            output = {"type": "function_call_output", "call_id": called.call_id, "output": "2"}
            each.sampler.reply = say("It is 2.")
            async with api.stream(
                model="m",
                input=[output],
                instructions="Add.",
                previous_response_id=first.id,
                tools=[tool],  # type: ignore[list-item]
            ) as stream:
                kinds = [event.type async for event in stream]
                last = await stream.get_final_response()
            assert last.output_text == "It is 2."
            assert kinds[0] == "response.created"
            assert kinds[-1] == "response.completed"
            assert last.usage is not None
            assert last.usage.output_tokens == len(each.sampler.calls[1][1])
            (only,) = each.session.episode.sequences
            assert [message.role for message in only.messages] == ["system", "user", "assistant", "tool", "assistant"]
            each.check_invariant()
            each.sampler.reply = say("word " * 1000)
            assert (await api.create(model="m", input="Hi")).status == "completed", "the limit is the run's"
            cut = await api.create(model="m", input="Hi", max_output_tokens=2)
            assert (cut.status, cut.incomplete_details and cut.incomplete_details.reason) == (
                "incomplete",
                "max_output_tokens",
            )

    asyncio.run(play())


@pytest.mark.parametrize(
    ("path", "change", "param"),
    [
        ("responses", {"previous_response_id": "resp_1"}, "previous_response_id"),
        ("responses", {"conversation": "c"}, "conversation"),
        ("responses", {"tools": [{"type": "web_search"}]}, "tools[0]"),
        ("responses", {"input": [{"type": "image_generation_call"}]}, "input[0]"),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ("responses", {"input": [{"type": "function_call", "call_id": "c"}]}, "input[0].name"),
        ("responses", {"model": None}, "model"),
        ("responses", {"input": 5}, "input"),
        ("responses", {"input": ["Hi"]}, "input[0]"),
        ("responses", {"input": [{"role": "user", "content": None}]}, "input[0].content"),
        ("responses", {"input": [{"type": "function_call_output", "call_id": "c", "output": 5}]}, "input[0].output"),
        ("responses", {"instructions": ["Be kind."]}, "instructions"),
        ("responses", {"previous_response_id": ["resp_1"]}, "previous_response_id"),
        ("responses", {"tools": {"type": "function"}}, "tools"),
        ("responses", {"text": "json"}, "text"),
        ("responses", {"text": {"format": "json"}}, "response_format"),
        ("chat/completions", {"messages": []}, "messages"),
        ("chat/completions", {"unknown": 1}, "unknown"),
    ],
)
def test_unsupported_request_is_refused(path: str, change: dict[str, Any], param: str, tiny: Path) -> None:
    async def play() -> None:
        async with running(tiny, say("Yes.")) as each:
            whole = {"model": "m", "input": "Hi"} if path == "responses" else {"model": "m", "messages": HELLO}
            answer = await each.post(f"/v1/{path}", whole | change)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
            assert each.sampler.calls == []

    asyncio.run(play())


def test_constraints_are_dropped_and_counted(tiny: Path) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}

    async def play() -> None:
        async with running(tiny, say("No call.")) as each:
            body = {"model": "m", "messages": HELLO, "tools": [tool]}
            for more in ({"tool_choice": "required"}, {"response_format": schema}, {"logit_bias": {"5": 1}}):
                assert (await each.post("/v1/chat/completions", body | more)).status_code == 200
            counts = each.session.episode.event_counts
            assert (counts["program/unconstrained"], counts["program/overridden"]) == (2, 1)
            assert counts["program/unconstrained/tool_choice"] == counts["program/unconstrained/response_format"] == 1

    asyncio.run(play())


@pytest.mark.parametrize("path", ["chat/completions", "responses"])
def test_malformed_call_is_sent_as_its_text(path: str, tiny: Path) -> None:
    """As vLLM does. A conversation that goes on from it continues its sequence."""
    raw = '<tool_call>\n{"name": "add", "arguments": {"a" 1 of 2: [}}\n</tool_call>'
    function: Any = {"name": "add", "parameters": {"type": "object", "properties": {}}}
    chat = path.startswith("chat")
    tools = [{"type": "function", "function": function} if chat else {"type": "function", **function}]

    async def play() -> None:
        async with running(tiny, say(f"I add.\n{raw}")) as each:
            key = "messages" if chat else "input"
            body = {"model": "m", "tools": tools, key: HELLO}
            answer = (await each.post(f"/v1/{path}", body)).json()
            if chat:
                (choice,) = answer["choices"]
                assert choice["finish_reason"] == "stop"
                said = choice["message"]
                assert said["content"] == f"I add.\n{raw}"
                assert "tool_calls" not in said
                said = [said]
            else:
                said = answer["output"]
                assert [part["text"] for item in said for part in item["content"]] == [f"I add.\n{raw}"]
            more = {key: [*HELLO, *said, {"role": "user", "content": "Again."}]}
            assert (await each.post(f"/v1/{path}", body | more)).status_code == 200
            (only,) = each.session.episode.sequences
            assert [bool(only.messages[i].tool_calls[0].parse_error) for i in only.reply_indices] == [True, True]
            assert each.session.episode.event_counts["malformed"] == 2
            assert each.session.final_text == f"I add.\n{raw}"
            each.check_invariant()

    asyncio.run(play())


def test_stop_string_ends_the_trained_tokens(tiny: Path) -> None:
    async def play() -> None:
        async with running(tiny, say("one two three")) as each:
            answer = await each.post("/v1/chat/completions", {"model": "m", "messages": HELLO, "stop": ["two"]})
            assert answer.json()["choices"][0]["message"]["content"] == "one"
            episode = each.session.episode
            ((start, end),) = episode.reply_spans()
            decoded = FormatTokenizer.load(tiny / "tokenizer.json").decode(episode.tokens[start:end])
            assert decoded == "one two"
            assert episode.event_counts["stop_string"] == 1

    asyncio.run(play())


@pytest.mark.parametrize("lost", [0, 1])
def test_retry_of_one_of_two_equal_requests_gets_its_own_reply(lost: int, tiny: Path) -> None:
    """Both are in flight. One client gives up and tries again, and the other one gets the other reply."""
    body = {"model": "m", "messages": HELLO}

    async def play() -> None:
        async with running(tiny, lambda prompt, seed: Message(role="assistant", content=str(seed))) as each:
            each.sampler.gate.clear()
            sent = []
            for _ in range(2):
                sent.append(asyncio.ensure_future(each.post("/v1/chat/completions", body)))
                await each.sampler.begun.wait()
                each.sampler.begun.clear()
            sent[lost].cancel()
            await asyncio.sleep(0.05)
            retry = asyncio.ensure_future(each.post("/v1/chat/completions", body, retries=1))
            await asyncio.sleep(0.05)
            each.sampler.gate.set()
            answers = [await retry, await sent[1 - lost]]
            texts = [answer.json()["choices"][0]["message"]["content"] for answer in answers]
            recorded = [s.messages[-1].content for s in each.session.episode.sequences]
            assert texts[0] != texts[1]
            assert sorted(texts) == sorted(recorded)
            again = await each.post("/v1/chat/completions", body, retries=2)
            assert again.json()["choices"][0]["message"]["content"] in texts
            assert len(each.sampler.calls) == 2
            each.check_invariant()

    asyncio.run(play())


def test_retry_gets_the_recorded_reply_also_while_it_is_sampled(tiny: Path) -> None:
    body = {"model": "m", "messages": HELLO}

    async def play() -> None:
        async with running(tiny, lambda prompt, seed: Message(role="assistant", content=str(seed))) as each:
            each.sampler.gate.clear()
            first = asyncio.ensure_future(each.post("/v1/chat/completions", body))
            await each.sampler.begun.wait()
            retry = asyncio.ensure_future(each.post("/v1/chat/completions", body, retries=1))
            await asyncio.sleep(0.05)
            first.cancel()  # the client gives up, and the reply is still sampled
            each.sampler.gate.set()
            answer = await retry
            assert (await each.post("/v1/chat/completions", body, retries=2)).content == answer.content
            assert len(each.sampler.calls) == 1
            other = await each.post("/v1/chat/completions", body)  # no retry: a second sample of the same prompt
            text = other.json()["choices"][0]["message"]["content"]
            assert text != answer.json()["choices"][0]["message"]["content"]
            assert each.session.num_requests == 2

    asyncio.run(play())


def test_replies_do_not_depend_on_the_order_of_requests(tiny: Path) -> None:
    async def replies(order: Sequence[str], seed: int) -> dict[str, str]:
        async with running(tiny, lambda p, seed: Message(role="assistant", content=str(seed)), seed=seed) as each:
            found = {}
            for text in order:
                body = {"model": "m", "messages": [{"role": "user", "content": text}]}
                answer = await each.post("/v1/chat/completions", body)
                found[text] = answer.json()["choices"][0]["message"]["content"]
            return found

    one = asyncio.run(replies(["a", "b"], 7))
    assert one == asyncio.run(replies(["b", "a"], 7))
    assert one["a"] != one["b"]
    assert one != asyncio.run(replies(["a", "b"], 8))


@pytest.mark.parametrize("before", ["main", ""])
def test_parallel_sequences_are_stored_alike_in_whatever_order_they_arrive(before: str, tiny: Path) -> None:
    async def stored(first: str, second: str) -> list[str]:
        async with running(tiny, say("Yes.")) as each:

            async def ask(text: str) -> None:
                body = {"model": "m", "messages": [{"role": "user", "content": text}]}
                assert (await each.post("/v1/chat/completions", body)).is_success

            def texts() -> list[str]:
                return [sequence.messages[0].content for sequence in each.session.episode.sequences]

            if before:
                await ask(before)
            each.sampler.gate.clear()
            asking = []
            for text in (first, second):
                each.sampler.begun.clear()
                asking.append(asyncio.create_task(ask(text)))
                await each.sampler.begun.wait()
            each.sampler.gate.set()
            await asyncio.gather(*asking)
            await ask("a later one")
            known = [before] if before else []
            assert sorted(texts()) == sorted([*known, first, second, "a later one"])
            each.session.sort_sequences()
            each.check_invariant()
            return texts()

    found = asyncio.run(stored("b", "c"))
    assert found == asyncio.run(stored("c", "b"))
    *others, b, c, last = found
    assert (others, sorted([b, c]), last) == ([before] if before else [], ["b", "c"], "a later one")


@pytest.mark.parametrize(
    ("limits", "code", "stop"),
    [
        (SessionLimits(max_replies=1, max_tokens=1000), "episode_limit_reached", StopReason.MAX_TURNS),
        (SessionLimits(max_replies=9, max_tokens=130), "context_length_exceeded", StopReason.MAX_TOKENS),
    ],
)
def test_limit_refuses_further_requests(limits: SessionLimits, code: str, stop: StopReason, tiny: Path) -> None:
    async def play() -> None:
        async with running(tiny, say("word " * 30), limits) as each:
            body = {"model": "m", "messages": HELLO}
            assert (await each.post("/v1/chat/completions", body)).status_code == 200
            assert each.session.stop_reason is None
            answer = await each.post("/v1/chat/completions", body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
            assert each.session.stop_reason is stop
            assert len(each.sampler.calls) == 1

    asyncio.run(play())


def test_program_that_shortens_its_prompt_goes_on(tiny: Path) -> None:
    async def play() -> None:
        async with running(tiny, say("Yes.")) as each:
            each.sampler.context_length = 200
            long = {"model": "m", "messages": [{"role": "user", "content": "word " * 500}]}
            assert (await each.post("/v1/chat/completions", long)).status_code == 400
            assert each.session.stop_reason is StopReason.MAX_TOKENS
            assert (await each.post("/v1/chat/completions", {"model": "m", "messages": HELLO})).status_code == 200
            assert each.session.stop_reason is None

    asyncio.run(play())


@pytest.mark.parametrize(
    "more",
    [
        {"reasoning_effort": "low", "verbosity": "low", "prompt_cache_retention": "24h"},
        {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOL]}}},
        {"messages": [*HELLO, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, *HELLO]},
        {"messages": [*HELLO, {"role": "assistant", "content": "Hi", "reasoning": "x"}, *HELLO]},
        {"messages": [{"role": "user", "content": "half a \ud83d"}]},
    ],
)
def test_what_unchanged_programs_send_is_answered(more: dict[str, Any], tiny: Path, tmp_path: Path) -> None:
    async def play() -> None:
        async with running(tiny, say("Yes.")) as each:
            body = json.dumps({"model": "m", "messages": HELLO, **more})  # in ASCII, as programs write it
            async with httpx2.AsyncClient(verify=False, trust_env=False, headers=each.headers) as client:
                client.headers["Content-Type"] = "application/json"
                answer = await client.post(f"{each.url}/v1/chat/completions", content=body)
            assert answer.status_code == 200, answer.text
            write_trajectories(tmp_path / "episodes.jsonl", [each.session.episode])
            assert ("program/unconstrained/tool_choice" in each.session.episode.event_counts) == ("tools" in more)

    asyncio.run(play())


def test_prompt_longer_than_the_context_ends_the_episode(tiny: Path) -> None:
    async def play() -> None:
        async with running(tiny, say("Yes.")) as each:
            each.sampler.context_length = 20
            body = {"model": "m", "messages": [{"role": "user", "content": "word " * 50}]}
            answer = await each.post("/v1/chat/completions", body)
            assert answer.json()["error"]["code"] == "context_length_exceeded"
            assert each.session.stop_reason is StopReason.MAX_TOKENS
            assert each.sampler.calls == []

    asyncio.run(play())


@pytest.mark.parametrize("problem", ["engine", "nan"])
def test_failure_of_the_engine_is_kept(problem: str, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*arguments: Any, **named: Any) -> Completion:
        if problem == "engine":
            raise RolloutError("the sampler has stopped", "engine")
        return Completion([65], [math.nan], "length")

    async def play() -> None:
        async with running(tiny, say("Yes.")) as each:
            monkeypatch.setattr(each.sampler, "sample", fail)
            body = {"model": "m", "messages": HELLO}
            assert (await each.post("/v1/chat/completions", body)).status_code == 503
            assert (await each.post("/v1/chat/completions", body)).status_code == 503
            assert each.session.failure is not None
            assert each.session.failure.fault == "engine"
            assert each.session.episode.tokens == []

    asyncio.run(play())


def test_key_is_refused_outside_its_session(tiny: Path) -> None:
    async def play() -> None:
        sampler = ReplySampler(tiny, say("Yes."))
        vocabulary = FormatTokenizer.load(tiny / "tokenizer.json")
        server = SessionServer(ServedModel("tiny", sampler, sampler.format, vocabulary), SamplingParams())
        async with serve_in_loop(server.app()) as url:
            async with server.open_session(Trajectory("t"), LIMITS) as (key, session):
                each = Running(url, key, session, sampler)
                assert (await each.client.models.list()).data[0].id == "tiny"
                assert (await each.client.models.retrieve("org/any")).id == "org/any"
                missing = await each.post("/v1/embeddings", {"input": "a"})
                assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
                assert "/v1/responses" in missing.json()["error"]["message"]
                each.headers = {"Authorization": "Bearer other"}
                assert (await each.post("/v1/chat/completions", {})).status_code == 401
                each.headers = {"Authorization": f"Bearer {key}"}
            assert (await each.post("/v1/responses", {})).status_code == 401
            await each.client.close()

    asyncio.run(play())
