"""ChatModel: a client for any OpenAI-compatible chat completions endpoint.

API agents, LLM user simulators and judges use it.

Transient failures (429, 5xx, a lost connection, a timeout, an invalid body, a filtered or missing reply) are retried.
If the retries fail too, the client raises a RolloutError with the `fault` of the ChatModel. If the first request is
refused, or nothing listens at the address, the setup is wrong: the client raises a ConfigError at once. Status 401 or
404 after a first reply is retried too, because a key may be exchanged or a server may load its model again. If it
remains, the client raises a ConfigError.

The API key is read from an environment variable. It never appears in configs, the cache or error texts. `core.messages`
cites the source of the wire format.
"""

import asyncio
import functools
import hashlib
import json
import math
import os
import random
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Protocol

import httpx2
from pydantic import Field, StringConstraints, field_validator

from understudy.clients.completions import (
    ChatCompletion,
    InvalidCompletionError,
    message_to_endpoint,
    parse_completion,
    parse_text_calls,
    read_cache_entry,
    recover_unparsed_calls,
    write_cache_entry,
)
from understudy.clients.endpoint import (
    HTTPPools,
    HTTPResponse,
    ResponseTooLargeError,
    parse_retry_after,
    read_api_key,
    send_request,
    validate_proxies,
    validate_url,
)
from understudy.core.errors import ConfigError, Fault, RolloutError, did_you_mean
from understudy.core.event_loop import LoopLocal
from understudy.core.messages import Message, ToolSpec, tool_to_openai
from understudy.core.records import Record
from understudy.core.secrets import KeyVariable, validate_no_secrets
from understudy.formats.parsing.parse import TOOL_FORMATS
from understudy.formats.prompted_tools import render_as_text
from understudy.formats.tool_names import ToolNameMap

MAX_WAIT = 120.0
"""Seconds. A request fails if the endpoint asks for a longer wait before the next attempt."""
POOL_SIZE = 50
"""Connections per pool. httpcore scans its whole pool at each request: with 1000 connections in one pool, a request
takes three times as long."""
_TRANSIENT = {408, 409, 425, 429}
DEFAULT_ENDPOINT = "default"
"""The endpoint that a role uses if no config key names another one for it."""
_WRONG_CONFIG = {401: "the key is not accepted", 404: "no such path or model"}
_REMEDIES = {
    "max_completion_tokens": "set {0}.max_tokens=0 and {0}.extra_body='{{max_completion_tokens = 4096}}'",
    "--tool-call-parser": "start vllm serve with both (such as hermes), or set {0}.tool_format=hermes",
    "seed": "set {0}.send_seed=false",
}
"""What to do if the first request is refused, by a word in the endpoint's answer. `{0}` is the config section."""
_CONTEXT_EXCEEDED = re.compile(
    r"context.?(?:length|window|size)|(?:prompt|input)[^.]{0,40}(?:too long|exceeds)", re.IGNORECASE
)
"""How OpenAI, Anthropic, Google, vLLM, SGLang, llama.cpp and `understudy serve` say that a conversation exceeds the
model's context. No status code says so."""
_FILTERED = re.compile(r"content.?(?:filter|management|polic)|usage polic|moderation", re.IGNORECASE)
"""How Azure, OpenAI and others say that a filter refuses the conversation. Another conversation may pass it."""
_FAILED_GENERATION = re.compile(
    r"tool_use_failed|failed_generation|failed to (?:call|parse)[^.]{0,40}(?:function|tool)", re.IGNORECASE
)
"""How Groq, vLLM and others say with status 400 that the model wrote a malformed call. Another sample may be valid."""
_REMEDY = "check {0}.max_tokens, {0}.send_seed and {0}.extra_body, which set the request's parameters"


class EndpointConfig(Record):
    """An endpoint, its model, and the parameters of requests."""

    base_url: str = "http://127.0.0.1:8000/v1"
    """URL that `/chat/completions` is appended to."""
    model: str = ""
    """Name of the model at the endpoint."""
    api_key_var: KeyVariable = ""
    """Name of the environment variable with the API key, such as OPENAI_API_KEY. Empty sends no key."""
    temperature: float | None = Field(default=None, ge=0.0, le=100.0)
    """Sampling temperature; unset uses the endpoint's default."""
    max_tokens: int = Field(default=1024, ge=0)
    """Largest number of tokens in a reply; 0 sends no limit."""
    send_seed: bool = True
    """Send a seed with each request, derived from the run's seed. Some endpoints refuse the parameter."""
    tool_format: str = "native"
    """`native` sends tools in the request and expects tool calls in the answer. A format such as hermes, json or
    react describes the tools in the prompt and parses the calls from the reply's text."""
    sanitize_tool_names: bool = True
    """Rename tools for the endpoint to names that every endpoint accepts (letters, digits, _ and -), and map calls
    back. Turn it off for a model that was trained on names with dots, behind an endpoint that accepts them."""
    extra_body: dict[str, Any] = {}
    """Additional parameters of the request body, such as {reasoning_effort = "low"}."""
    timeout: float = Field(default=120.0, gt=0.0)
    """Time limit of one attempt, in seconds."""
    max_retries: int = Field(default=5, ge=0)
    """Number of further attempts after a transient error."""
    backoff: float = Field(default=1.0, gt=0.0)
    """Seconds before the first retry. The wait doubles with each further retry and has jitter."""
    max_concurrency: int = Field(default=16, ge=1)
    """Maximum number of concurrent requests of each role at this endpoint. A request that waits for a retry counts."""
    prompt_price: Decimal = Field(default=Decimal(0), ge=0)
    """Price of a million prompt tokens, in any currency."""
    completion_price: Decimal = Field(default=Decimal(0), ge=0)
    """Price of a million completion tokens, in the same currency."""
    cache_dir: str = ""
    """Folder that stores every reply, so that repeating a run costs nothing and gives the same result. Empty stores
    none."""

    @field_validator("base_url")
    @classmethod
    def _plain_url(cls, value: str) -> str:
        # A ConfigError, because pydantic quotes the value of a ValueError, and this value may contain a secret.
        return validate_url(value, "base_url")

    @field_validator("extra_body")
    @classmethod
    def _no_secrets(cls, value: dict[str, Any]) -> dict[str, Any]:
        validate_no_secrets(value, "extra_body")
        return value

    @field_validator("tool_format")
    @classmethod
    def _known_tool_format(cls, value: str) -> str:
        if value not in ("native", *TOOL_FORMATS):
            raise ConfigError(f"tool_format: unknown value {did_you_mean(value, ('native', *TOOL_FORMATS))}")
        return value


EndpointName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]+$")]
Endpoints = dict[EndpointName, EndpointConfig]
"""Table of endpoints: name -> endpoint. Config keys of roles, such as the user simulator or a judge, select an
endpoint by its name.
"""


def find_endpoint(endpoints: Mapping[str, EndpointConfig], name: str, key: str) -> EndpointConfig:
    """Return the endpoint called `name`. Raise ConfigError if there is none; `key` is the config key that names it."""
    if name not in endpoints:
        known = f"unknown endpoint {did_you_mean(name, endpoints)}" if endpoints else "no endpoint is set"
        raise ConfigError(f"{key} = {name!r}: {known}; set endpoints.{name}.model and endpoints.{name}.base_url")
    return endpoints[name]


def open_chat_model(
    endpoints: Mapping[str, EndpointConfig], name: str, key: str, fault: Fault, budget: "Budget | None" = None
) -> "ChatModel":
    """Return a client of the endpoint called `name`, which the config key `key` names."""
    return ChatModel(find_endpoint(endpoints, name, key), fault, budget, name)


class ModelUsage(Record):
    """Requests, tokens and cost of a model. Replies from the cache cost nothing and are counted separately."""

    requests: int = 0
    """Requests that the endpoint answered with a completion."""
    cache_hits: int = 0
    rejected_replies: int = 0
    """Replies that the caller rejected as unusable."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: Decimal = Decimal(0)

    def __add__(self, other: "ModelUsage") -> "ModelUsage":
        return ModelUsage(**{name: value + getattr(other, name) for name, value in self})

    def __sub__(self, other: "ModelUsage") -> "ModelUsage":
        return ModelUsage(**{name: value - getattr(other, name) for name, value in self})

    def __str__(self) -> str:
        tokens = f"{self.prompt_tokens:,} prompt and {self.completion_tokens:,} completion tokens"
        replies = f"{self.cache_hits:,} cached replies, {self.rejected_replies:,} unusable replies"
        return f"{self.requests:,} requests, {replies}, {tokens}, cost {self.cost:.4f}"


class Budget(Protocol):
    """The interface that a ChatModel reports its cost to."""

    @property
    def has_cap(self) -> bool:
        """Whether the cost is limited."""

    def check_cap(self) -> None:
        """Raise LimitReachedError if the limit is reached."""

    def record(self, usage: ModelUsage) -> None:
        """Add the usage of one request, or a cached or unusable reply."""


class _TransientError(Exception):
    """An attempt that failed but may succeed when repeated.

    `wait` is the wait in seconds that the endpoint asks for. `wrong_config` marks a failure that means a wrong setup if
    no retry helps.
    """

    def __init__(self, text: str, wait: float | None = None, wrong_config: bool = False) -> None:
        super().__init__(text)
        self.wait, self.wrong_config = wait, wrong_config


class ChatModel:
    """A model behind an endpoint.

    One object is shared by all episodes of a run, so its concurrency limit and its totals apply to the run.

    `fault` is the component at fault if a request fails, such as `user` for a user simulator. `name` is the endpoint's
    name, for errors. No request is sent before the first `generate`.
    """

    def __init__(
        self, config: EndpointConfig, fault: Fault, budget: Budget | None = None, name: str = DEFAULT_ENDPOINT
    ) -> None:
        self._section = f"endpoints.{name}"
        if not config.model:
            raise ConfigError(
                f"{self._section}.model is empty, and the {fault} needs it; set it, and {self._section}.base_url to "
                "the model's URL"
            )
        self.config = config
        self.usage = ModelUsage()
        self._fault, self._budget = fault, budget
        self._key = require_api_key(config.api_key_var)
        self._connections = LoopLocal(lambda: _Connections(self.config, self._key))

    async def generate(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), seed: int = 0
    ) -> ChatCompletion:
        """Return the model's reply to a conversation. A repeated request with the same seed may come from the cache.

        For agents, calls and thoughts that the endpoint leaves in the text are parsed. Raise RolloutError if the
        request fails, with `context_full` if the conversation exceeds the model's context, and ConfigError if the setup
        is wrong. At the cost limit it is a LimitReachedError.
        """
        if self.config.tool_format == "native":
            return await self._generate_native(messages, tools, seed)
        body = self._body(render_as_text(messages, tools, self.config.tool_format), (), seed)
        reply = await self._reply(body, seed)
        return parse_text_calls(reply, tools, self.config.tool_format) if tools else reply

    async def _generate_native(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], seed: int
    ) -> ChatCompletion:
        if not self.config.sanitize_tool_names:
            reply = await self._reply(self._body(messages, tools, seed), seed)
            return self._recover_calls(reply, tools)
        names = ToolNameMap(tool.name for tool in tools)
        renamed_tools = names.rename_specs(tools)
        body = self._body([names.to_endpoint(message) for message in messages], renamed_tools, seed)
        reply = self._recover_calls(await self._reply(body, seed), renamed_tools)
        return reply.replace(message=names.from_endpoint(reply.message))

    def _recover_calls(self, reply: ChatCompletion, tools: Sequence[ToolSpec]) -> ChatCompletion:
        """Parse calls in the text of an agent's reply. A user simulator's text is returned as it is."""
        return recover_unparsed_calls(reply, tools) if tools and self._fault == "agent" else reply

    async def _reply(self, body: Mapping[str, Any], seed: int) -> ChatCompletion:
        cache_entry = self._cache_entry(body, seed)
        if cache_entry and (cached := read_cache_entry(cache_entry)):
            self._count(ModelUsage(cache_hits=1))
            return cached
        connections = self._connections.get()
        async with connections.gate:
            reply = await self._send_with_retries(await connections.next_client(), body, seed)
        if cache_entry:
            write_cache_entry(cache_entry, reply)
        return reply

    def record_rejected_reply(self) -> None:
        """Count the last reply as unusable."""
        self._count(ModelUsage(rejected_replies=1))

    def _count(self, usage: ModelUsage) -> None:
        self.usage += usage
        if self._budget:
            self._budget.record(usage)

    def _body(self, messages: Sequence[Message], tools: Sequence[ToolSpec], seed: int) -> dict[str, Any]:
        config = self.config
        body: dict[str, Any] = {
            "model": config.model,
            "messages": [message_to_endpoint(message) for message in messages],
        }
        if tools:
            body["tools"] = [tool_to_openai(spec) for spec in tools]
        if config.temperature is not None:
            body["temperature"] = config.temperature
        if config.max_tokens:
            body["max_tokens"] = config.max_tokens
        if config.send_seed:
            body["seed"] = seed
        return body | config.extra_body

    def _cache_entry(self, body: Mapping[str, Any], seed: int) -> Path | None:
        """Return the cache file of a request, or None without a cache.

        The seed is part of the name even if it is not sent, so that trials differ.
        """
        if not self.config.cache_dir:
            return None
        request = json.dumps([self.config.base_url, seed, body], sort_keys=True)
        name = hashlib.sha256(request.encode()).hexdigest()
        return Path(os.path.expanduser(self.config.cache_dir)) / name[:2] / f"{name}.json"

    async def _send_with_retries(self, http: httpx2.AsyncClient, body: Mapping[str, Any], seed: int) -> ChatCompletion:
        """Send a request until it succeeds or no attempt is left.

        An attempt that fails may be paid, so the cost cap is checked before each attempt. The waits grow, and are at
        least what the endpoint asks for. Trials of one task have different seeds, so they do not all wait equally long.
        """
        jitter = random.Random(json.dumps([seed, body["messages"]]))
        for attempt in range(self.config.max_retries + 1):
            if self._budget:
                self._budget.check_cap()
            try:
                return await self._attempt(http, body)
            except _TransientError as e:
                failure = e
            wait = min(MAX_WAIT, self.config.backoff * 2**attempt * jitter.uniform(0.5, 1.5))
            wait = max(wait, failure.wait or 0.0)
            if attempt < self.config.max_retries and wait <= MAX_WAIT:
                await asyncio.sleep(wait)
            else:
                break
        if failure.wrong_config:
            raise ConfigError(f"{self._name} {failure} (attempts: {attempt + 1})")
        raise RolloutError(f"{self._name}: {failure} (attempts: {attempt + 1})", self._fault)

    async def _attempt(self, http: httpx2.AsyncClient, body: Mapping[str, Any]) -> ChatCompletion:
        try:
            async with asyncio.timeout(self.config.timeout):
                response = await send_request(http, "POST", f"{self.config.base_url}/chat/completions", body)
        except TimeoutError as e:
            raise _TransientError(f"no answer within {self.config.timeout:g} s") from e
        except httpx2.ConnectError as e:
            raise self._connect_error(e) from e
        except httpx2.RequestError as e:
            raise _TransientError(f"no connection ({type(e).__name__})") from e
        except ResponseTooLargeError as e:
            raise _TransientError(str(e)) from e
        self._check_status(response)
        try:
            reply = parse_completion(response.body)
        except InvalidCompletionError as e:
            if e.billed:
                self._count(self._usage_of(e.billed))
            raise _TransientError(f"{e}{self._excerpt(response)}") from e
        self._count(self._usage_of(reply))
        if self._budget:
            self._validate_metering(reply)
        if reply.failure:  # it is paid
            raise _TransientError(reply.failure)
        return reply

    def _check_status(self, response: HTTPResponse) -> None:
        """Raise the error for a response whose status is not 200."""
        status = response.status
        if status in _WRONG_CONFIG:
            said = f"answers {status}: {_WRONG_CONFIG[status]}; check section {self._section}"
            if self.usage.requests:
                raise _TransientError(said, parse_retry_after(response.headers.get("Retry-After", "")), True)
            raise ConfigError(f"{self._name} {said}")
        if status in _TRANSIENT or status >= 500:
            raise _TransientError(
                f"status {status}{self._excerpt(response)}", parse_retry_after(response.headers.get("Retry-After", ""))
            )
        if status != 200:
            raise self._refusal(f"status {status}{self._excerpt(response)}")

    def _validate_metering(self, reply: ChatCompletion) -> None:
        """Raise ConfigError if there is a cost cap but the endpoint does not report its tokens."""
        priced = self.config.prompt_price or self.config.completion_price
        if priced and self._budget and self._budget.has_cap and not reply.prompt_tokens:
            raise ConfigError(
                f"{self._name} does not report its token usage, so the cost cap cannot be enforced; use an endpoint "
                f"that does, set its prices to 0 ({self._section}.prompt_price, completion_price), or remove the cap"
            )

    def _refusal(self, text: str) -> RolloutError | ConfigError:
        """Return the error for a refused request, which a retry does not help.

        A new attempt of the episode helps only if what was said is refused: its length, its content, or the model's
        malformed call. A refused first request means a wrong setup, except for a malformed call and for a judge, whose
        first request is a whole episode and may be too long.
        """
        malformed = bool(_FAILED_GENERATION.search(text))
        if self.usage.requests or self.usage.cache_hits or self._fault == "grader" or malformed:
            context_full = bool(_CONTEXT_EXCEEDED.search(text))
            is_repeatable = context_full or malformed or bool(_FILTERED.search(text))
            return RolloutError(f"{self._name}: {text}", self._fault, context_full, is_repeatable=is_repeatable)
        remedy = next((remedy for word, remedy in _REMEDIES.items() if word in text), _REMEDY).format(self._section)
        return ConfigError(f"{self._name} refused the first request: {text}; {remedy}")

    def _connect_error(self, error: httpx2.ConnectError) -> _TransientError | ConfigError:
        if self.usage.requests:
            return _TransientError(f"no connection ({type(error).__name__})")
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return ConfigError(f"{self._name} cannot be reached ({reason}); start it, or set {self._section}.base_url")

    def _excerpt(self, response: HTTPResponse) -> str:
        """Return the first characters of the endpoint's answer, without the API key and other secrets."""
        return f": {response.excerpt(self._key)}"

    def _usage_of(self, reply: ChatCompletion) -> ModelUsage:
        price = reply.prompt_tokens * self.config.prompt_price + reply.completion_tokens * self.config.completion_price
        return ModelUsage(
            requests=1,
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
            cost=price / 1_000_000,
        )

    @property
    def _name(self) -> str:
        return f"chat model {self.config.model!r} at {self.config.base_url}"


_certificates = functools.cache(httpx2.create_ssl_context)  # loading takes longer than a request on loopback


class _Connections(HTTPPools):
    """The connection pools of a chat model, and the semaphore `gate` that limits its concurrent requests."""

    def __init__(self, config: EndpointConfig, key: str) -> None:
        self.gate = asyncio.Semaphore(config.max_concurrency)
        # No limits here: each attempt has its own timeout, and the gate limits the connections.
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=min(config.max_concurrency, POOL_SIZE))
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        validate_proxies()
        num_pools = math.ceil(config.max_concurrency / POOL_SIZE)
        pools = [
            httpx2.AsyncClient(headers=headers, timeout=None, limits=limits, verify=_certificates())
            for _ in range(num_pools)
        ]
        super().__init__(*pools)


def require_api_key(variable: str) -> str:
    """Return the key in the environment variable `variable`, or "" if `variable` is empty.

    Raise ConfigError if it is not set.
    """
    key = read_api_key(variable) if variable else ""
    if variable and not key:
        raise ConfigError(f"the environment variable {variable}, which api_key_var names, is not set")
    return key
