"""Programs that play episodes: a command, a function or a server, unchanged, with any client of the OpenAI API.

A program finds the endpoint and its key in the variables that such clients read, and calls the model as it likes. Its
session records each sampled reply (`serve.sessions`). The tools of the environment, and its user, are an MCP server
(`program_tools`). An episode ends when the user leaves, or when the program ends: then its last text is its answer.
"""

import asyncio
import contextvars
import dataclasses
import inspect
import shlex
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import httpx2
from starlette.types import ASGIApp, Receive, Scope, Send

from understudy.clients.chat import ChatModel
from understudy.core.errors import ConfigError, RolloutError, TaskError, ToolError
from understudy.core.imports import import_object
from understudy.core.json_values import replace_surrogates
from understudy.core.messages import Message, message_to_openai
from understudy.core.secrets import mask_secrets
from understudy.core.tasks import Score, Task
from understudy.core.trajectory import StopReason, Stopwatch, Trajectory
from understudy.core.user_code import user_code, wait_limit
from understudy.engines.interface import SamplingParams
from understudy.rollouts.agent import MAX_REPAIR_PENALTY
from understudy.rollouts.program_config import ProgramConfig
from understudy.rollouts.program_processes import run_command, run_in_worker, validate_worker
from understudy.rollouts.program_reward import UNUSED_RESULT, RecordedEpisode, compute_reward, validate_reward
from understudy.rollouts.program_tools import EpisodeTools
from understudy.rollouts.program_worker import ProgramEpisode
from understudy.rollouts.rollout import EpisodeEnvironment, EpisodeLimits
from understudy.serve.generation import ServedModel, validate_constrainable
from understudy.serve.recording import Session, SessionLimits
from understudy.serve.server import serve_in_loop
from understudy.serve.sessions import RESULT_PATH, SessionServer
from understudy.sources.mcp.server import PATH, ServedSession, ServerDefinition, build_http_app

WRONG_CALL = "program/wrong_call"
"""Event: the program failed directly after a call of the model that is malformed, or that no tool describes."""
MAX_MCP_SESSIONS = 4096
"""Largest number of MCP sessions of all programs. Some clients open one for each call."""


class ProgramAgent:
    """Plays each episode with a program, whose replies a model gives. It is an `EpisodePlayer`.

    The endpoint of the programs runs while episodes are played.
    """

    def __init__(
        self,
        config: ProgramConfig,
        model: ServedModel | ChatModel,
        sampling: SamplingParams,
        *,
        repair_penalty: float = 0.0,
    ) -> None:
        if config.constraints == "mask" and isinstance(model, ServedModel):
            validate_constrainable(model)
        self._config, self._repair_penalty = config, repair_penalty
        self._sessions = SessionServer(model, sampling, config.constraints == "mask")
        self._tools: dict[str, EpisodeTools] = {}
        self._slots, self._starting = asyncio.Semaphore(config.concurrency), asyncio.Lock()
        self._num_playing, self._url, self._server = 0, "", AsyncExitStack()

    async def play(
        self, task: Task, environment: EpisodeEnvironment, limits: EpisodeLimits, episode: Trajectory
    ) -> None:
        """Play an episode. Raise RolloutError with the fault "agent" if the program fails or calls no model."""
        start = await environment.start()
        bounds = SessionLimits(limits.max_turns, limits.max_episode_tokens, limits.max_invalid_replies)
        async with self._slots, self._endpoint() as url, self._sessions.open_session(episode, bounds) as opened:
            key, session = opened
            self._tools[key] = tools = EpisodeTools(environment, session)
            prompt = [message_to_openai(message) for message in start.messages]
            mcp_url, result_url = (f"{url}{path}?episode={key}" for path in (PATH, RESULT_PATH))
            given = ProgramEpisode(task.id, prompt, f"{url}/v1", key, mcp_url, result_url)
            try:
                with Stopwatch(episode.timings, "program"):
                    text = await self._run(given, session, tools)
            finally:
                del self._tools[key]
                session.sort_sequences()
        if failure := tools.failure or session.failure:
            raise failure
        recorded = RecordedEpisode(task, episode, session.final_text if text is None else text)
        episode.score = await self._score(recorded, environment, limits, session, tools)
        repaired = episode.event_counts.get("repaired", 0)
        episode.penalty = min(MAX_REPAIR_PENALTY, repaired * self._repair_penalty)
        episode.stop_reason = StopReason.DONE if tools.score else session.stop_reason or StopReason.DONE

    async def _score(
        self,
        recorded: RecordedEpisode,
        environment: EpisodeEnvironment,
        limits: EpisodeLimits,
        session: Session,
        tools: EpisodeTools,
    ) -> Score:
        """Return the score of a played episode (`program_reward`)."""
        if session.posted and (tools.was_used or self._config.reward):
            session.count(UNUSED_RESULT)
        if not tools.was_used and self._config.reward:
            return await compute_reward(self._config.reward, recorded, limits)
        if not tools.was_used and session.posted:
            return session.posted
        if tools.score is None and session.stop_reason is None:
            with suppress(ToolError):
                await tools.step(Message(role="assistant", content=recorded.answer))
            if tools.failure:
                raise tools.failure
        return tools.score or await environment.grade(ended=False)

    async def _run(self, given: ProgramEpisode, session: Session, tools: EpisodeTools) -> str | None:
        """Run the program to its end. Return the answer that it gives itself, or None.

        A failure after a limit or the end of the episode is no fault: the program was refused a reply. One directly
        after a wrong call or a reply that was cut off is the model's failure, which is graded.
        """
        try:
            async with wait_limit(self._config.max_seconds, "agent.max_seconds"):
                with user_code("agent", f"the program {self._config.name}"):
                    text = await self._start(given)
        except RolloutError as e:
            if session.stop_reason or tools.score or session.failure or tools.failure:
                return None
            if not session.has_wrong_reply:
                raise
            session.count(WRONG_CALL)
            session.stop_reason, session.episode.error = StopReason.DONE, replace_surrogates(mask_secrets(str(e)))
            return None
        if not session.num_requests:
            raise RolloutError(
                f"the program {self._config.name} sent no request to the model; it must call {given.base_url}, the "
                "value of OPENAI_BASE_URL, with the key of OPENAI_API_KEY",
                "agent",
            )
        return text

    async def _start(self, given: ProgramEpisode) -> str | None:
        if self._config.command:
            await run_command(self._config, given)
            return None
        if self._config.python:
            return await run_in_worker(self._config, given)
        if self._config.url:
            answer = await _request(self._config.url, given)
        else:
            function = import_object(self._config.function)
            is_coroutine = inspect.iscoroutinefunction(function)
            answer = function(given) if is_coroutine else await self._call_in_thread(function, given)
            answer = await answer if inspect.isawaitable(answer) else answer
        if answer is None or isinstance(answer, str):
            return answer
        raise RolloutError(f"the program {self._config.name} returned {answer!r:.100}; return a text, or None", "agent")

    async def _call_in_thread(self, function: Callable[[ProgramEpisode], Any], given: ProgramEpisode) -> Any:
        """Return what a function returns in a thread of its own.

        The threads of the event loop tokenize the prompts of all programs, and the end of the loop waits for them.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()

        def report(answer: Any, error: Exception | None) -> None:
            if done.done():  # the episode was cancelled
                return
            if error:
                done.set_exception(error)
            else:
                done.set_result(answer)

        def call() -> None:
            answer: Any = None
            error: ConfigError | RolloutError | TaskError | None = None
            try:
                with user_code("agent", f"the program {self._config.name}"):
                    answer = function(given)
            except (ConfigError, RolloutError, TaskError) as e:
                error = e
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(report, answer, error)

        threading.Thread(target=contextvars.copy_context().run, args=(call,), daemon=True).start()
        return await done

    @asynccontextmanager
    async def _endpoint(self) -> AsyncIterator[str]:
        """Yield the base URL of the server, which runs while any episode is played."""
        async with self._starting:
            if not self._num_playing:
                self._url = await self._server.enter_async_context(serve_in_loop(self._app(), "on"))
            self._num_playing += 1
        try:
            yield self._url
        finally:
            async with self._starting:
                self._num_playing -= 1
                if not self._num_playing:
                    await self._server.aclose()

    def _app(self) -> ASGIApp:
        offer = ServerDefinition("understudy", self._find_tools)
        mcp, model = build_http_app(offer, MAX_MCP_SESSIONS), self._sessions.app()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            is_mcp = scope["type"] == "lifespan" or scope["path"] == PATH
            await (mcp if is_mcp else model)(scope, receive, send)

        return app

    def _find_tools(self, parameters: Mapping[str, str]) -> ServedSession:
        if tools := self._tools.get(parameters.get("episode", "")):
            tools.count_client()
            return ServedSession(tools)
        raise ConfigError("no running episode has this address; use the value of UNDERSTUDY_MCP_URL")


def validate_program(config: ProgramConfig) -> None:
    """Raise ConfigError if the program cannot be found."""
    if config.command:
        try:
            name = next(iter(shlex.split(config.command)), "")
        except ValueError as e:
            raise ConfigError(f"agent.command = {config.command!r}: {e}") from e
        if not shutil.which(name):
            raise ConfigError(f"agent.command = {config.command!r}: there is no program {name!r} on the PATH")
    if config.python:
        validate_worker(config)
    elif config.function and not callable(import_object(config.function)):
        raise ConfigError(f"agent.function = {config.function!r} is not a function")
    if config.reward:
        validate_reward(config.reward)


async def _request(url: str, given: ProgramEpisode) -> object:
    """Send an episode to a server. Return the `text` of its JSON response, if it has one."""
    async with httpx2.AsyncClient(timeout=None, trust_env=False, verify=False) as client:  # on this machine, as checked
        try:
            answer = await client.post(url, json=dataclasses.asdict(given))
        except httpx2.RequestError as e:
            problem = f"cannot be reached: {type(e).__name__} {e}; start it, or correct agent.url"
            raise RolloutError(f"the program at {url} {problem}", "agent") from e
    if answer.is_error:
        raise RolloutError(f"the program at {url} answered {answer.status_code}: {answer.text[:300]}", "agent")
    try:
        body = answer.json()
    except ValueError:
        return None
    return body.get("text") if isinstance(body, dict) else None
