"""Offers: what `understudy mcp serve NAME` serves, by name: our services, and every domain."""

from collections.abc import Callable

from understudy.domains.base import find_domain, names
from understudy.errors import ConfigError, nearest
from understudy.mcp.serve import Narrowed, Offer, Session
from understudy.mcp.servers.domain import Choice, domain_offer
from understudy.mcp.servers.fmp import FMP, fmp_account, fmp_web
from understudy.mcp.servers.polygon import Polygon, polygon_account
from understudy.mcp.servers.python import Python, interpreter_of_environment
from understudy.mcp.servers.slack import Slack, slack_account
from understudy.mcp.servers.tavily import Tavily, tavily_account
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
        return SERVICES[name](part)
    if name not in names() and ":" not in name:
        raise ConfigError(f"unknown server {nearest(name, [*SERVICES, *names()])}, or module:attribute of a domain")
    if part.writes:
        raise ConfigError(f"--allow-writes is for services; the tools of the domain {name} are all there")
    return domain_offer(find_domain(name), part.choice, part.tools, part.user_tools)


def service_offer(name: str, service: Service, web: Web, part: Part) -> Offer:
    """A service whose sessions share its connections, its limit and its cache."""
    session = Session(_shown(service, part), service.writes)
    return Offer(name, lambda parameters: _same(name, session, parameters), close=web.close)


def _same(name: str, session: Session, parameters: object) -> Session:
    if parameters:
        raise ConfigError(f"the address of {name} takes no parameters")
    return session


def _python(part: Part) -> Offer:
    """A Python for each session, where this machine can hold one."""

    def open_session(parameters: object) -> Session:
        interpreter = interpreter_of_environment()
        session = Session(_shown(Python(interpreter), part), Python.writes, close=interpreter.close)
        return _same("python", session, parameters)

    open_session({})
    prove()
    return Offer("python", open_session)


def _shown(service: Service, part: Part) -> Narrowed:
    """The tools that are offered: without those that change something, unless that is allowed."""
    allowed = [spec.name for spec in service.specs() if part.writes or spec.name not in service.writes]
    for closed in sorted(set(part.tools) & (service.writes - set(allowed))):
        raise ConfigError(f"{closed} changes something; add --allow-writes")
    return Narrowed(service, part.tools or allowed)


def _polygon(part: Part) -> Offer:
    web = Web(polygon_account())
    return service_offer("polygon", Polygon(web), web, part)


def _fmp(part: Part) -> Offer:
    web = fmp_web(fmp_account())
    return service_offer("fmp", FMP(web), web, part)


def _tavily(part: Part) -> Offer:
    web = Web(tavily_account())
    return service_offer("tavily", Tavily(web), web, part)


def _slack(part: Part) -> Offer:
    web = Web(slack_account())
    return service_offer("slack", Slack(web), web, part)


SERVICES: dict[str, Callable[[Part], Offer]] = {
    "polygon": _polygon,
    "fmp": _fmp,
    "tavily": _tavily,
    "slack": _slack,
    "python": _python,
}
