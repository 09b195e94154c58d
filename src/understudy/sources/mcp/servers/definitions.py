"""Servers of `understudy mcp serve NAME`: the services and every domain."""

from collections.abc import Callable, Mapping

from understudy.core.errors import ConfigError, did_you_mean
from understudy.core.records import Record
from understudy.envs.tools import AsyncToolkit
from understudy.sources.mcp.server import FilteredTools, ServedSession, ServerDefinition
from understudy.sources.mcp.servers.domain import InitialStateChoice, domain_server
from understudy.sources.mcp.servers.python import PythonTools, interpreter_from_env
from understudy.sources.mcp.services.fmp import FMP, fmp_client
from understudy.sources.mcp.services.polygon import Polygon, polygon_client
from understudy.sources.mcp.services.slack import Slack, slack_client
from understudy.sources.mcp.services.tavily import Tavily, tavily_client
from understudy.sources.mcp.services.web import APIClient
from understudy.sources.references import list_domains, load_domain
from understudy.sources.sandbox.interpreter import verify_sandbox


class ServerOptions(Record):
    """The options of `understudy mcp serve`: the tools to offer, and the database of a domain's sessions."""

    tools: tuple[str, ...] = ()
    """Names of the tools to offer. Empty means all."""
    allow_writes: bool = False
    """Whether a service offers its tools that change something."""
    user_tools: bool = False
    """Whether a domain offers its user's tools too."""
    initial_state: InitialStateChoice = InitialStateChoice()
    """The database with which a domain's sessions start."""


def server_definition(name: str, part: ServerOptions) -> ServerDefinition:
    """Return the server of a service or a domain.

    Raise `ConfigError` if the name is unknown or the server does not have one of the options.
    """
    if name in SERVICES:
        if part.user_tools or part.initial_state != InitialStateChoice():
            raise ConfigError(
                f"{name} is a service; only a domain takes --task, --split, --index and --user-tools; leave them out"
            )
        return _python(part) if name == "python" else _on_the_web(name, part)
    if name not in list_domains() and ":" not in name:
        raise ConfigError(
            f"unknown server {did_you_mean(name, [*SERVICES, *list_domains()])}, or a domain's module:attribute"
        )
    if part.allow_writes:
        raise ConfigError(f"{name} is a domain, whose tools need no --allow-writes; leave it out")
    return domain_server(load_domain(name), part.initial_state, part.tools, part.user_tools)


def _on_the_web(name: str, part: ServerOptions) -> ServerDefinition:
    """Return a web service. Its sessions share its connections, its rate limit and its cache."""
    make, connect = WEB_SERVICES[name]
    web = connect()
    service = make(web)
    served = ServedSession(_shown(name, service, part), service.write_tools)
    return ServerDefinition(name, lambda parameters: _same(name, served, parameters), close=web.close)


def _python(part: ServerOptions) -> ServerDefinition:
    """Return the Python server, with one interpreter per session. Raise `ConfigError` if the sandbox cannot start."""

    def open_session(parameters: Mapping[str, str]) -> ServedSession:
        interpreter = interpreter_from_env()
        shown = _shown("python", PythonTools(interpreter), part)
        return _same("python", ServedSession(shown, PythonTools.write_tools, close=interpreter.close), parameters)

    open_session({})
    verify_sandbox(interpreter_from_env().limits)
    return ServerDefinition("python", open_session)


def _same(name: str, served: ServedSession, parameters: Mapping[str, str]) -> ServedSession:
    if parameters:
        raise ConfigError(f"the URL of {name} takes no parameters, got {', '.join(sorted(parameters))}; leave them out")
    return served


def _shown(name: str, service: AsyncToolkit, part: ServerOptions) -> FilteredTools:
    """Return the tools to offer. Tools that change something need `allow_writes`; raise `ConfigError` without it."""
    if part.allow_writes and not service.write_tools:
        raise ConfigError(f"all tools of {name} are read-only; leave out --allow-writes")
    allowed = [spec.name for spec in service.specs() if part.allow_writes or spec.name not in service.write_tools]
    for closed in sorted(set(part.tools) & (service.write_tools - set(allowed))):
        raise ConfigError(f"{closed} changes something; add --allow-writes")
    return FilteredTools(service, part.tools or allowed)


WEB_SERVICES: Mapping[str, tuple[Callable[[APIClient], AsyncToolkit], Callable[[], APIClient]]] = {
    "polygon": (Polygon, polygon_client),
    "fmp": (FMP, fmp_client),
    "tavily": (Tavily, tavily_client),
    "slack": (Slack, slack_client),
}
"""The web services: the class of their tools, and the function that returns their client."""
SERVICES = (*WEB_SERVICES, "python")
