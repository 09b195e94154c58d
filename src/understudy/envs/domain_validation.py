"""`validate_domain` names everything that a domain's definition lacks or has wrong."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from understudy.core.errors import TaskError, did_you_mean
from understudy.core.tasks import task_fingerprint
from understudy.core.user_code import task_code
from understudy.envs.domain import Domain
from understudy.envs.domain_definition import find_policy_problem
from understudy.envs.state import State
from understudy.envs.tools import Toolkit, find_missing_state


def validate_domain(domain: Domain) -> None:
    """Raise `TaskError` with everything that is missing or wrong in the definition. Tasks are not played."""
    if isinstance(domain.build_world, State):
        raise TaskError(f"build_world of {domain.name} is a state: pass the function that returns it, without ()")
    for field in ("build_world", "toolkit", "user_tools", "user_factory", "grade"):
        value = getattr(domain, field)
        if value is not None and not callable(value) and not isinstance(value, Toolkit):
            raise TaskError(f"{field} of {domain.name} is {value!r:.100}: pass a function or a class")
    with task_code(f"build_world of {domain.name}", domain.build_world):
        state = domain.build_world()
    if problems := list(_find_problems(domain, state)):
        listed = f" {problems[0]}" if len(problems) == 1 else "".join(f"\n- {text}" for text in problems)
        raise TaskError(f"domain {domain.name!r} cannot be used:{listed}")


def _find_problems(domain: Domain, state: object) -> Iterator[str]:
    """Yield each thing that a domain's definition lacks or has wrong, and what to do. `state` is its initial state."""
    if not domain.name or any(sign in domain.name for sign in "/+:*, "):
        yield f"the name {domain.name!r} is empty or has one of the signs / + : * , and space: use Domain(__name__, …)"
    if not isinstance(state, State):
        yield f"build_world returned a {type(state).__name__}: return an instance of your subclass of State"
    elif not state.tables():
        yield f"{type(state).__name__} has no tables: annotate at least one, such as `users: Table[User]`"
    else:
        for name in sorted(set(domain.shared_tables) - state.tables().keys()):
            yield f"shared_tables names no table {did_you_mean(name, state.tables())}"
        yield from _find_tool_problems(domain, state)
    if problem := find_policy_problem(domain.policy):
        yield f"policy {problem}"
    yield from _find_task_problems(domain)


def _find_tool_problems(domain: Domain, state: State) -> Iterator[str]:
    makers: dict[str, Any] = {"toolkit": domain.toolkit, "user_tools": domain.user_tools}
    for field, make in makers.items():
        if make is None:
            continue
        if isinstance(make, Toolkit):
            yield f"{field} is an object of {type(make).__name__}: pass the class, {field}={type(make).__name__}"
            continue
        if isinstance(make, type) and not issubclass(make, Toolkit):
            yield f"{field} is the class {make.__name__}, which is no toolkit: write `class {make.__name__}(Toolkit):`"
            continue
        with task_code(f"{field} of {domain.name}", make):
            tools: object = make(state.fork())
        if not isinstance(tools, Toolkit):
            yield f"{field} makes a {type(tools).__name__}: pass your subclass of Toolkit"
            continue
        if problem := find_missing_state(tools):
            yield f"{field}: {problem}"
        for spec in tools.specs():
            if not spec.description:
                yield f"the tool {spec.name} has no docstring: describe it for the model in a docstring"


def _find_other_parameters(function: Callable[..., Any]) -> str:
    """Return the parameters of a function that cannot be called with an rng alone, else an empty text."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function of C code may have none
        return ""
    try:
        signature.bind(None)
    except TypeError:
        return str(signature)
    return ""


def _find_task_problems(domain: Domain) -> Iterator[str]:
    generate: object = domain.generate
    if generate is None and not domain.task_list:
        yield "there are no tasks: pass generate={'FAMILY': function} or task_list=[Task(…), …]"
    elif generate is not None and not isinstance(generate, Mapping) and not callable(generate):
        kind = type(generate).__name__
        yield f"generate is a {kind}: pass a dict, {{'FAMILY': function}}, or tasks as task_list=[Task(…), …]"
    elif domain.generate is not None and domain.task_list:
        yield "it has both generate and task_list: pass one of them"
    elif not domain.families:
        yield "it has no families: name them with families=(…), or pass a function for each as generate={…}"
    known = domain.generate if isinstance(domain.generate, Mapping) else {task.family for task in domain.task_list}
    if known:
        for family in sorted(set(domain.families) - set(known)):
            yield f"no task has the family {did_you_mean(family, known)}: remove it from families"
        for family in sorted(set(known) - set(domain.families)):
            yield f"families lacks {family!r}, which tasks have: add it, or leave families out"
    if isinstance(domain.generate, Mapping):
        for family in sorted(name for name, function in domain.generate.items() if not callable(function)):
            yield f"the family {family!r} has no function: pass a function that takes an rng and returns a Task"
        for family, function in sorted(domain.generate.items()):
            if callable(function) and (wrong := _find_other_parameters(function)):
                yield f"the function of family {family!r} takes {wrong}: define it with one argument, rng"
    places = dict[str, int]()
    for number, task in enumerate(domain.task_list):
        key = task.id or task_fingerprint(task)
        if key in places:
            what = f"have the same id {task.id!r}" if task.id else "are equal"
            yield f"entries {places[key]} and {number} of task_list {what}: remove one, or give each its own id"
        places.setdefault(key, number)
        if task.domain not in ("", domain.name):
            yield f"the listed task {task.id!r} is of the domain {task.domain!r}: leave out its domain"
