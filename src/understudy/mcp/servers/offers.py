"""Offers: what `understudy mcp serve NAME` serves, by name: our services, and every domain."""

from collections.abc import Callable, Mapping

from understudy.domains.base import find_domain, names
from understudy.errors import ConfigError, nearest
from understudy.mcp.serve import Narrowed, Offer, Served
from understudy.mcp.servers.domain import Choice, domain_offer
from understudy.mcp.servers.fmp import FMP, fmp_web
from understudy.mcp.servers.polygon import Polygon, polygon_web
from understudy.mcp.servers.python import Python, interpreter_of_environment
from understudy.mcp.servers.slack import Slack, slack_web
from understudy.mcp.servers.tavily import Tavily, tavily_web
from understudy.mcp.servers.web import Web
from understudy.records import Record
from understudy.sandbox.interpreter import prove
from understudy.tools import Service


class Part(Record):
    """How much of a server is offered."""

    tools: tuple[str, ...] = ()
    """Only these; all where empty."""
    writes: bool = False
    """Whether a service's tools that change something are there."""
    user_tools: bool = False
    """Whether a domain's tools of the user are there too."""
    choice: Choice = Choice()
    """Which world of a domain."""


def offer(name: str, part: Part) -> Offer:
    """The server of that name. What does not fit it is a `ConfigError`."""
    if name in SERVICES:
        if part.user_tools or part.choice != Choice():
            raise ConfigError(f"{name} is a service: tasks, splits and tools of users are a domain's")
        return _python(part) if name == "python" else _on_the_web(name, part)
    if name not in names() and ":" not in name:
        raise ConfigError(f"unknown server {nearest(name, [*SERVICES, *names()])}, or module:attribute of a domain")
    if part.writes:
        raise ConfigError(f"--allow-writes is for services; the tools of the domain {name} are all there")
    return domain_offer(find_domain(name), part.choice, part.tools, part.user_tools)


def _on_the_web(name: str, part: Part) -> Offer:
    """A service whose sessions share its connections, its limit and its cache."""
    make, connect = WEB[name]
    web = connect()
    service = make(web)
    served = Served(_shown(name, service, part), service.writes)
    return Offer(name, lambda parameters: _same(name, served, parameters), close=web.close)


def _python(part: Part) -> Offer:
    """A Python for each session, where this machine can hold one."""

    def open_session(parameters: Mapping[str, str]) -> Served:
        interpreter = interpreter_of_environment()
        shown = _shown("python", Python(interpreter), part)
        return _same("python", Served(shown, Python.writes, close=interpreter.close), parameters)

    open_session({})
    prove(interpreter_of_environment().limits)
    return Offer("python", open_session)


def _same(name: str, served: Served, parameters: Mapping[str, str]) -> Served:
    if parameters:
        raise ConfigError(f"the address of {name} takes no parameters")
    return served


def _shown(name: str, service: Service, part: Part) -> Narrowed:
    """The tools that are offered: without those that change something, unless that is allowed."""
    if part.writes and not service.writes:
        raise ConfigError(f"{name} has no tool that changes something; leave out --allow-writes")
    allowed = [spec.name for spec in service.specs() if part.writes or spec.name not in service.writes]
    for closed in sorted(set(part.tools) & (service.writes - set(allowed))):
        raise ConfigError(f"{closed} changes something; add --allow-writes")
    return Narrowed(service, part.tools or allowed)


WEB: Mapping[str, tuple[Callable[[Web], Service], Callable[[], Web]]] = {
    "polygon": (Polygon, polygon_web),
    "fmp": (FMP, fmp_web),
    "tavily": (Tavily, tavily_web),
    "slack": (Slack, slack_web),
}
"""The services on the network: their tools, and their client as the environment describes it."""
SERVICES = (*WEB, "python")
