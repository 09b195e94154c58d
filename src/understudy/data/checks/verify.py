"""Verify that tasks can be trained on. A task that rewards doing nothing teaches to do nothing.

    validate_gold_calls  the gold calls exist, match their schemas and do not fail; the task has a state change or a
                         fact to tell
    play_tasks           also plays the task against its user: the gold turns earn 1.0, doing nothing 0.0

A task of an unknown domain cannot be played. It is invalid, unless `skip_validation` is set; then only its form is
checked. So are examples, whose answers need not be replies that the reward accepts.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from understudy.core.errors import ConfigError, TaskError, ToolError
from understudy.core.event_loop import BACKGROUND_LOOP
from understudy.core.items import Item, RowError, RowErrorKind
from understudy.core.tasks import Task
from understudy.data.checks.check import find_task_problems, lacks_reference, score_agent
from understudy.envs.task_source import ExampleSource, StatefulSource, TaskSource, list_sources
from understudy.rollouts.agent import GoldAgent, NoopAgent
from understudy.sources.loading import SOURCE_MODULES, list_domains, load_source
from understudy.sources.task_files.call_matching import is_call_matching

_KINDS: dict[str, RowErrorKind] = {
    "unknown_tool": "unknown tool",
    "invalid_arguments": "invalid arguments",
    "malformed": "malformed",
}


class TaskIssue(NamedTuple):
    """A problem of a task."""

    kind: RowErrorKind
    field: str
    problem: str

    def at(self, location: str) -> RowError:
        """Return the problem as that of the row at `location`."""
        return RowError(location, self.field, self.problem, self.kind)


class DomainRegistry:
    """The domains of the tasks of one file: shipped domains, and those of `references`, which `load_source` accepts.

    Raise ConfigError if a reference is unknown or a mixture.
    """

    def __init__(self, references: Iterable[str] = (), skip_validation: bool = False) -> None:
        self._found: dict[str, TaskSource] = {}
        self._skip_validation = skip_validation
        self._references: dict[str, str] = {}
        for reference in references:
            domain = load_source(reference)
            if list_sources(domain) != (domain,):
                raise ConfigError(f"{reference!r} is a mixture; give its domains ({domain.name})")
            self._found[domain.name] = domain
            self._references[domain.name] = absolute_reference(reference)

    @property
    def sources(self) -> Sequence[TaskSource]:
        """The sources so far."""
        return tuple(self._found.values())

    def add(self, sources: Iterable[TaskSource]) -> None:
        """Add the sources of tasks that were read from a file."""
        self._found |= {source.name: source for source in sources}

    def play_rows_from(self, path: Path) -> None:
        """Let rows of tasks without a database name the file or folder that holds all of them.

        Their source is made of these tasks, so it is opened from there.
        """
        names = [name for name in self._found if is_call_matching(name)]
        self._references |= dict.fromkeys(names, str(path.absolute()))

    def get(self, name: str) -> TaskSource | None:
        """Return a domain by its name, or None if it is unknown."""
        if name not in self._found and name in list_domains():
            self._found[name] = load_source(name)
        return self._found.get(name)

    def reference(self, name: str) -> str:
        """Return the reference that `load_source` accepts: a shipped domain's name, or one with an absolute path."""
        return self._references.get(name, name)

    def find_issue(self, task: Task) -> TaskIssue | None:
        """Return the first problem of a task, or None. Run its gold calls; play it if its domain has no state here.

        Such domains are benchmarks and MCP servers.
        """
        domain = self.get(task.domain)
        if domain is not None and self._skip_validation and isinstance(domain, ExampleSource):
            return None
        if domain is not None and isinstance(domain, StatefulSource):
            return find_gold_call_issue(domain, task)
        if domain is not None:
            return BACKGROUND_LOOP.run(find_reward_issue(domain, task))
        if not self._skip_validation:
            how = "name its source, data.sources=module:attribute, or check only its form with --skip-validation"
            return TaskIssue("other domain", "domain", f"{task.domain!r} is unknown, so its gold cannot be run; {how}")
        return None if task.gold_calls or task.outputs else _nothing("it has no gold calls")


def validate_gold_calls(
    items: Iterable[Item[Task] | RowError], domains: DomainRegistry
) -> Iterator[Item[Task] | RowError]:
    """Run the gold calls of each task, and check that ids are unique."""
    seen: set[str] = set()
    for item in items:
        if isinstance(item, RowError):
            yield item
        elif item.value.id in seen:
            yield RowError(item.location, "id", f"{item.value.id!r} is also the id of an earlier task", "duplicate")
        else:
            seen.add(item.value.id)
            yield _item_or_error(item, domains.find_issue(item.value))


def play_tasks(items: Iterable[Item[Task] | RowError], domains: DomainRegistry) -> Iterator[Item[Task] | RowError]:
    """Validate tasks, and play each one with the gold turns and with the noop agent.

    Tasks of benchmarks and MCP servers are not played again: `validate_gold_calls` has already played them.
    """
    for item in validate_gold_calls(items, domains):
        domain = None if isinstance(item, RowError) else domains.get(item.value.domain)
        if isinstance(item, RowError) or domain is None or not isinstance(domain, StatefulSource):
            yield item
        else:
            yield _item_or_error(item, BACKGROUND_LOOP.run(find_reward_issue(domain, item.value)))


def find_gold_call_issue(domain: StatefulSource, task: Task) -> TaskIssue | None:
    """Return the first problem of the gold calls on a new state, or None."""
    for role in sorted({message.role for message in task.gold} - {"assistant", "user"}):
        return TaskIssue("malformed", "gold", f"it has a message of the role {role!r}; allowed: assistant, user")
    try:
        goal = domain.gold_changes(task)
    except TaskError as e:
        refusal = e.__cause__
        if isinstance(refusal, ToolError):
            return TaskIssue(_KINDS.get(refusal.kind, "gold refused"), "gold", str(e))
        return TaskIssue("bad setup", "setup", str(e))
    return None if goal or task.outputs else _nothing("its gold calls change nothing")


async def find_reward_issue(domain: TaskSource, task: Task) -> TaskIssue | None:
    """Play a task. Return None if the gold turns earn 1.0 and doing nothing earns 0.0, else the first problem.

    An example without an answer and gold calls is played by doing nothing only.
    """
    # a server or a data set also plays tasks that it does not list, whose families are their own
    listed = task.family in domain.families or isinstance(domain, StatefulSource)
    known = task if listed else task.replace(family=domain.families[0])
    for problem in find_task_problems(domain, task.split, known):
        return TaskIssue("malformed", "", problem)
    try:
        gold = None if lacks_reference(domain, task) else await score_agent(domain, task, GoldAgent())
        noop = await score_agent(domain, task, NoopAgent())
    except TaskError as e:
        return TaskIssue("gold fails", "gold", str(e))
    if gold is not None and gold.reward < 1.0:
        failed = ", ".join(name for name, part in gold.parts.items() if part < 1.0)
        return TaskIssue("gold fails", "gold", f"its turns earn {gold.reward:g} instead of 1.0; failed: {failed}")
    return TaskIssue("does nothing", "gold", f"doing nothing earns {noop.reward:g}") if noop.reward > 0.0 else None


def absolute_reference(reference: str) -> str:
    """Return the reference with an absolute path, because rows are read in other folders."""
    kind, _, rest = reference.partition(":")
    path, sharp, domain = rest.partition("#")
    whole = Path(path).expanduser().resolve()
    return f"{kind}:{whole}{sharp}{domain}" if kind in SOURCE_MODULES and whole.exists() else reference


def _nothing(why: str) -> TaskIssue:
    return TaskIssue("does nothing", "gold", f"{why} and it has nothing to tell: doing nothing would be rewarded")


def _item_or_error(item: Item[Task], issue: TaskIssue | None) -> Item[Task] | RowError:
    return issue.at(item.location) if issue else item
