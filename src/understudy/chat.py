"""ChatModel: any OpenAI-compatible chat completions endpoint, for users that a language model plays and for API agents.

What is transient (429, 5xx, a lost connection, silence, an answer that is no completion) is tried again; what the
endpoint still fails at is a `RolloutError`, and whose fault that is says who made the model. The key is read from an
environment variable and stands nowhere else: not in configs, the cache or a text. Source of the wire format: see
`messages`.

An endpoint that refuses the first request, or that nobody is at, is a mistake in the setup: a `ConfigError`, at once.
"""

import asyncio
import functools
import hashlib
import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import httpx2
from pydantic import Field, field_validator

from understudy.endpoint import Connections, key_in, plain_url, retry_after
from understudy.errors import ConfigError, Fault, RolloutError, nearest
from understudy.formats.parse import DIALECTS
from understudy.formats.told import spelled
from understudy.messages import Message, ToolSpec, spec_to_wire, to_wire
from understudy.names import PortableNames
from understudy.records import Record
from understudy.replies import NoCompletion, Reply, completion, keep, kept, left_in_text, read_out

LONGEST_WAIT = 120.0
"""Seconds; an endpoint that wants to be asked again later than this has failed."""
POOL = 50
"""Connections that are kept in one pool: httpcore looks at all of a pool at each request, so that with a thousand in
one a request takes three times as long."""
_TRANSIENT = {408, 409, 425, 429}
_SECTIONS: Mapping[Fault, str] = {"user": "user.chat", "grader": "judge"}
_WRONG_CONFIG = {401: "it does not accept the key", 404: "it has no such path or model"}
_REMEDIES = {
    "max_completion_tokens": "set {0}.max_tokens=0 and {0}.parameters='{{max_completion_tokens = 4096}}'",
    "--tool-call-parser": "start vllm serve with both (such as hermes), or take --agent chat chat.tools=hermes",
    "seed": "set {0}.send_seed=false",
}
"""What to do about a first request that is refused, by a word of the endpoint's. `{0}` is the config's section."""
_FULL = re.compile(r"context.?(?:length|window|size)|(?:prompt|input)[^.]{0,40}(?:too long|exceeds)", re.IGNORECASE)
"""How endpoints say that a conversation is longer than the model's context: OpenAI, Anthropic, Google, vLLM, SGLang,
llama.cpp, and our own. It has no status of its own."""
_REMEDY = "see {0}.max_tokens, {0}.send_seed and {0}.parameters, which say what is sent"


class ChatConfig(Record):
    """An endpoint, the model there, and how it is asked."""

    base_url: str = "http://127.0.0.1:8000/v1"
    """Where `/chat/completions` is."""
    model: str = ""
    """The model's name at the endpoint."""
    key_variable: str = ""
    """The environment variable that holds the key, such as OPENAI_API_KEY; empty sends no key."""
    temperature: float | None = Field(default=None, ge=0.0)
    """The endpoint's own default unless given."""
    max_tokens: int = Field(default=1024, ge=0)
    """Longest reply; 0 sends no limit."""
    send_seed: bool = True
    """Send each request with a seed that follows from the run's; some endpoints refuse that parameter."""
    tools: str = "native"
    """`native` where the endpoint takes tools and answers with calls. Else a dialect, such as hermes, json or react:
    tools are then shown in the prompt, and calls are read out of the text of replies."""
    portable_names: bool = True
    """Tools are told to the endpoint by names that all take (letters, digits, _ and -), and called back by their own.
    Off for a model that was trained on names with a dot, behind an endpoint that takes them."""
    parameters: dict[str, Any] = {}
    """Further parameters of the request as the endpoint names them, such as {reasoning_effort = "low"}."""
    timeout: float = Field(default=120.0, gt=0.0)
    """Seconds that one attempt may take."""
    retries: int = Field(default=5, ge=0)
    """Further attempts after an error that may pass."""
    backoff: float = Field(default=1.0, gt=0.0)
    """Seconds to wait before the first of them, doubled for each one more, with jitter."""
    concurrency: int = Field(default=16, ge=1)
    """Requests under way at once; one that waits to be tried again counts."""
    prompt_price: Decimal = Field(default=Decimal(0), ge=0)
    """What a million prompt tokens cost, in any currency."""
    completion_price: Decimal = Field(default=Decimal(0), ge=0)
    """What a million completion tokens cost."""
    cache: str = ""
    """Folder that keeps every reply, so that the same run again is free and gives the same; empty keeps none."""

    @field_validator("base_url")
    @classmethod
    def _plain_url(cls, value: str) -> str:
        # It raises a ConfigError, not a ValueError: pydantic would quote the value, and here it may hold a secret.
        return plain_url(value, "base_url")

    @field_validator("tools")
    @classmethod
    def _known_dialect(cls, value: str) -> str:
        if value not in ("native", *DIALECTS):
            raise ConfigError(f"tools: unknown dialect {nearest(value, ('native', *DIALECTS))}")
        return value

    @field_validator("key_variable")
    @classmethod
    def _name_of_a_variable(cls, value: str) -> str:
        if value and not re.fullmatch(r"[A-Za-z_]\w*", value, re.ASCII):
            raise ConfigError("key_variable has to name an environment variable (letters, digits, _), not be the key")
        return value


class Usage(Record):
    """What requests came to. Replies from the cache count as that, and cost nothing."""

    requests: int = 0
    """Completions that were paid for."""
    cached: int = 0
    rejected: int = 0
    """Replies that were of no use to who asked for them."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: Decimal = Decimal(0)

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(**{name: value + getattr(other, name) for name, value in self})

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(**{name: value - getattr(other, name) for name, value in self})

    def __str__(self) -> str:
        tokens = f"{self.prompt_tokens:,} prompt and {self.completion_tokens:,} completion tokens"
        replies = f"{self.cached:,} from the cache, {self.rejected:,} replies of no use"
        return f"{self.requests:,} requests, {replies}, {tokens}, cost {self.cost:.4f}"


class Payer(Protocol):
    """Who pays for a model's requests."""

    @property
    def capped(self) -> bool:
        """Whether there is a limit to it."""

    def refuse_where_spent(self) -> None:
        """Raise a ConfigError where nothing is left to pay with."""

    def pay(self, usage: Usage) -> None:
        """Pay for what was asked."""


class _Passing(Exception):
    """A failed attempt that may go better next time; `wait` is how long the endpoint asks to wait."""

    def __init__(self, text: str, wait: float | None = None) -> None:
        super().__init__(text)
        self.wait = wait


class ChatModel:
    """A model behind an endpoint. One object serves a whole run: its limit and its totals are the run's.

    `fault` is whose fault a failure is: the user's, where the model plays one. Nothing is sent before the first reply.
    `section` is the config's for it, where that does not follow from the fault.
    """

    def __init__(self, config: ChatConfig, fault: Fault, payer: Payer | None = None, section: str = "") -> None:
        self._section = where = section or _SECTIONS.get(fault, "chat")
        if not config.model:
            raise ConfigError(f"{where}.model is empty; name a model, and set {where}.base_url to where it is")
        self.config = config
        self.usage = Usage()
        self._fault, self._payer = fault, payer
        self._key = read_key(config.key_variable)
        self._connections: _Connections | None = None

    async def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), seed: int = 0) -> Reply:
        """The model's answer to a conversation. The same request with the same seed may come from the cache.

        An agent's calls and thoughts that the endpoint leaves in the text are read out of it. Raises a RolloutError,
        `full` for a conversation that has grown beyond the model's context.
        """
        if self.config.tools == "native":
            return await self._native(messages, tools, seed)
        body = self._body(spelled(messages, tools, self.config.tools), (), seed)
        reply = await self._reply(body, seed)
        return read_out(reply, tools, self.config.tools) if tools else reply

    async def _native(self, messages: Sequence[Message], tools: Sequence[ToolSpec], seed: int) -> Reply:
        if not self.config.portable_names:
            return self._heard(await self._reply(self._body(messages, tools, seed), seed), tools)
        names = PortableNames(tool.name for tool in tools)
        told = names.specs(tools)
        reply = self._heard(await self._reply(self._body([names.there(m) for m in messages], told, seed), seed), told)
        return reply.replace(message=names.back(reply.message))

    def _heard(self, reply: Reply, tools: Sequence[ToolSpec]) -> Reply:
        """An agent's reply as it was meant; a user's text is a draft, which is judged as it stands."""
        return left_in_text(reply, tools) if tools and self._fault == "agent" else reply

    async def _reply(self, body: Mapping[str, Any], seed: int) -> Reply:
        entry = self._entry(body, seed)
        if entry and (known := kept(entry)):
            self.usage += Usage(cached=1)
            return known
        connections = await self._connected()
        async with connections.gate:
            if self._payer:
                self._payer.refuse_where_spent()
            reply = await self._insist(connections.http, body)
        if entry:
            keep(entry, reply)
        return reply

    def reject(self) -> None:
        """Count the last reply as one of no use."""
        self.usage += Usage(rejected=1)

    def _body(self, messages: Sequence[Message], tools: Sequence[ToolSpec], seed: int) -> dict[str, Any]:
        config = self.config
        body: dict[str, Any] = {"model": config.model, "messages": [to_wire(message) for message in messages]}
        if tools:
            body["tools"] = [spec_to_wire(spec) for spec in tools]
        if config.temperature is not None:
            body["temperature"] = config.temperature
        if config.max_tokens:
            body["max_tokens"] = config.max_tokens
        if config.send_seed:
            body["seed"] = seed
        return body | config.parameters

    def _entry(self, body: Mapping[str, Any], seed: int) -> Path | None:
        """Where the reply to this request is kept. The seed counts where it is not sent: trials differ."""
        if not self.config.cache:
            return None
        request = json.dumps([self.config.base_url, seed, body], sort_keys=True)
        name = hashlib.sha256(request.encode()).hexdigest()
        return Path(self.config.cache).expanduser() / name[:2] / f"{name}.json"

    async def _connected(self) -> "_Connections":
        """The connections of the running event loop."""
        if self._connections is None or self._connections.loop is not asyncio.get_running_loop():
            self._connections = _Connections(self.config, self._key)
            await anext(self._connections.closing)
        return self._connections

    async def _insist(self, http: httpx2.AsyncClient, body: Mapping[str, Any]) -> Reply:
        """Ask until there is an answer, or no more attempts."""
        jitter = random.Random(json.dumps(body["messages"]))
        for attempt in range(self.config.retries + 1):
            try:
                return await self._attempt(http, body)
            except _Passing as e:
                failure = e
            wait = self.config.backoff * 2**attempt * jitter.uniform(0.5, 1.5)
            wait = min(LONGEST_WAIT, wait) if failure.wait is None else failure.wait
            if attempt < self.config.retries and wait <= LONGEST_WAIT:
                await asyncio.sleep(wait)
            else:
                break
        raise self._failed(f"{failure} (attempts: {attempt + 1})")

    async def _attempt(self, http: httpx2.AsyncClient, body: Mapping[str, Any]) -> Reply:
        try:
            async with asyncio.timeout(self.config.timeout):
                response = await http.post(f"{self.config.base_url}/chat/completions", json=body)
        except TimeoutError as e:
            raise _Passing(f"no answer within {self.config.timeout:g} s") from e
        except httpx2.ConnectError as e:
            raise self._unreached(e) from e
        except httpx2.RequestError as e:
            raise _Passing(f"no connection ({type(e).__name__})") from e
        self._check(response)
        try:
            reply = completion(response.content)
        except NoCompletion as e:
            raise _Passing(f"{e}{self._said(response)}") from e
        paid = self._paid(reply)
        self.usage += paid
        if self._payer:
            self._payer.pay(paid)
            self._refuse_unmetered(reply)
        return reply

    def _check(self, response: httpx2.Response) -> None:
        """Let a success pass, and name anything else."""
        status = response.status_code
        if status in _WRONG_CONFIG:
            raise ConfigError(f"{self._name} answers {status}: {_WRONG_CONFIG[status]}; see section {self._section}")
        if status in _TRANSIENT or status >= 500:
            raise _Passing(
                f"status {status}{self._said(response)}", retry_after(response.headers.get("Retry-After", ""))
            )
        if status != 200:
            raise self._refused(f"status {status}{self._said(response)}")

    def _refuse_unmetered(self, reply: Reply) -> None:
        """A cap is no cap where what costs something is not counted."""
        priced = self.config.prompt_price or self.config.completion_price
        if priced and self._payer and self._payer.capped and not reply.prompt_tokens:
            raise ConfigError(
                f"{self._name} does not say how many tokens it used, so no cost cap can be held; take one that does, "
                f"set its prices to 0 ({self._section}.prompt_price, completion_price), or leave out the cap"
            )

    def _refused(self, text: str) -> RolloutError | ConfigError:
        """What trying again does not help. A judge is shown whole episodes: its first request may just be too long."""
        if self.usage.requests or self.usage.cached or self._fault == "grader":
            return RolloutError(f"{self._name}: {text}", self._fault, full=bool(_FULL.search(text)))
        remedy = next((remedy for word, remedy in _REMEDIES.items() if word in text), _REMEDY).format(self._section)
        return ConfigError(f"{self._name} refuses the first request: {text}; {remedy}")

    def _unreached(self, error: httpx2.ConnectError) -> _Passing | ConfigError:
        if self.usage.requests:
            return _Passing(f"no connection ({type(error).__name__})")
        why = " ".join(f"{type(error).__name__}: {error}".split())
        return ConfigError(f"{self._name} has no connection ({why}); start it, or set {self._section}.base_url")

    def _said(self, response: httpx2.Response) -> str:
        """The endpoint's own words, shortened, without the key if they hold it."""
        text = " ".join(response.text.split())
        return f": {text.replace(self._key, '…') if self._key else text}"[:300]

    def _paid(self, reply: Reply) -> Usage:
        price = reply.prompt_tokens * self.config.prompt_price + reply.completion_tokens * self.config.completion_price
        return Usage(
            requests=1,
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
            cost=price / 1_000_000,
        )

    def _failed(self, text: str) -> RolloutError:
        return RolloutError(f"{self._name}: {text}", self._fault)

    @property
    def _name(self) -> str:
        return f"chat model {self.config.model!r} at {self.config.base_url}"


_certificates = functools.cache(httpx2.create_ssl_context)  # read once: it takes longer than a request on loopback


class _Connections(Connections):
    """Those of a chat model: as many requests at a time as its config allows."""

    def __init__(self, config: ChatConfig, key: str) -> None:
        self.gate = asyncio.Semaphore(config.concurrency)
        # Attempts have a time limit of their own, and the gate limits connections.
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=min(config.concurrency, POOL))
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        made = functools.partial(httpx2.AsyncClient, headers=headers, timeout=None, limits=limits)
        super().__init__(*(made(verify=_certificates()) for _ in range(math.ceil(config.concurrency / POOL))))


def read_key(variable: str) -> str:
    """The key in an environment variable; none where no variable is named."""
    key = key_in(variable) if variable else ""
    if variable and not key:
        raise ConfigError(f"the environment variable {variable}, which key_variable names, is not set")
    return key
