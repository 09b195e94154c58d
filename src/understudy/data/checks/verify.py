"""Verify that tasks can be trained on. A task that rewards doing nothing teaches to do nothing.

    validate_gold_calls  the gold calls exist, match their schemas and do not fail; the task has a state change or a
                         fact to tell
    play_tasks           also plays the task against its user: the gold turns earn 1.0, doing nothing 0.0, and the agent
                         can know each value of gold's writes

A task of an unknown domain cannot be played. It is invalid, unless `skip_validation` is set; then only its form is
checked. So are examples, whose answers need not be replies that the reward accepts.
"""

from collections.abc import Iterable, Iterator

from understudy.core.errors import TaskError, ToolError
from understudy.core.event_loop import BACKGROUND_LOOP
from understudy.core.items import Item, RowError
from understudy.core.tasks import Task
from understudy.data.checks.check import describe_loss, find_task_problems, score_agent
from understudy.data.checks.evidence import describe_unshown, find_unshown_argument
from understudy.data.checks.issue import TOOL_ERROR_ISSUES, TaskIssue
from understudy.data.checks.probe import check_limits, play_once
from understudy.data.task_input import find_named_source
from understudy.envs.task_source import StatefulSource, TaskSource
from understudy.evaluation.evaluate import lacks_reference
from understudy.rollouts.agent import GoldAgent, NoopAgent
from understudy.sources.tool_dataset import ExampleSource


def validate_gold_calls(
    items: Iterable[Item[Task] | RowError], sources: dict[str, TaskSource], skip_validation: bool = False
) -> Iterator[Item[Task] | RowError]:
    """Run the gold calls of each task, and check that ids are unique. `sources` are as in `find_named_source`."""
    seen: set[str] = set()
    for item in items:
        if isinstance(item, RowError):
            yield item
        elif item.value.id in seen:
            yield RowError(item.location, "id", f"{item.value.id!r} is also the id of an earlier task", "duplicate")
        else:
            seen.add(item.value.id)
            yield _item_or_error(item, _find_issue(item.value, sources, skip_validation))


def play_tasks(
    items: Iterable[Item[Task] | RowError], sources: dict[str, TaskSource], skip_validation: bool = False
) -> Iterator[Item[Task] | RowError]:
    """Validate tasks, and play each one with the gold turns and with the noop agent.

    Rewards of benchmarks and MCP servers are not computed again: `validate_gold_calls` has already done so.
    """
    for item in validate_gold_calls(items, sources, skip_validation):
        source = None if isinstance(item, RowError) else find_named_source(sources, item.value.domain)
        if isinstance(item, RowError) or source is None:
            yield item
        else:
            yield _item_or_error(item, BACKGROUND_LOOP.run(_find_played_issue(source, item.value)))


def _find_issue(task: Task, sources: dict[str, TaskSource], skip_validation: bool) -> TaskIssue | None:
    """Return the first problem of a task, or None. Run its gold calls; play it if its source has no state here.

    Such sources are benchmarks and MCP servers.
    """
    source = find_named_source(sources, task.domain)
    if source is not None and skip_validation and isinstance(source, ExampleSource):
        return None
    if source is not None and isinstance(source, StatefulSource):
        return find_gold_call_issue(source, task)
    if source is not None:
        return BACKGROUND_LOOP.run(find_reward_issue(source, task))
    if not skip_validation:
        how = "name its source, data.sources=module:attribute, or check only its form with --skip-validation"
        return TaskIssue("other domain", "domain", f"{task.domain!r} is unknown, so its gold cannot be run; {how}")
    return None if task.gold_calls or task.outputs else _nothing("it has no gold calls")


async def _find_played_issue(source: TaskSource, task: Task) -> TaskIssue | None:
    """Return the first problem that playing a task with valid gold calls shows, or None."""
    if isinstance(source, StatefulSource) and (issue := await find_reward_issue(source, task)):
        return issue
    if not (source.required_calls(task) or task.outputs):
        return None
    gold = await play_once(source, task, GoldAgent(), check_limits(source))
    unshown = find_unshown_argument(source, task, gold.messages)
    return TaskIssue("unshown value", "gold", describe_unshown(unshown, source, task)) if unshown else None


def find_gold_call_issue(source: StatefulSource, task: Task) -> TaskIssue | None:
    """Return the first problem of the gold calls on a new state, or None."""
    for role in sorted({message.role for message in task.gold} - {"assistant", "user"}):
        return TaskIssue("malformed", "gold", f"it has a message of the role {role!r}; allowed: assistant, user")
    try:
        goal = source.gold_changes(task)
    except TaskError as e:
        refusal = e.__cause__
        if isinstance(refusal, ToolError):
            return TaskIssue(TOOL_ERROR_ISSUES.get(refusal.kind, "gold refused"), "gold", str(e))
        return TaskIssue("bad setup", "setup", str(e))
    return None if goal or task.outputs else _nothing("its gold calls change nothing")


async def find_reward_issue(source: TaskSource, task: Task) -> TaskIssue | None:
    """Play a task. Return None if the gold turns earn 1.0 and doing nothing earns 0.0, else the first problem.

    An example without an answer and gold calls is played by doing nothing only.
    """
    # a server or a data set also plays tasks that it does not list, whose families are their own
    listed = task.family in source.families or isinstance(source, StatefulSource)
    known = task if listed else task.replace(family=source.families[0])
    for problem in find_task_problems(source, task.split, known):
        return TaskIssue("malformed", "", problem)
    try:
        gold = None if lacks_reference(source, task) else await score_agent(source, task, GoldAgent())
        noop = await score_agent(source, task, NoopAgent())
    except TaskError as e:
        return TaskIssue("gold fails", "gold", str(e))
    if gold is not None and gold.reward < 1.0:
        return TaskIssue("gold fails", "gold", f"its turns {describe_loss(gold)}")
    return TaskIssue("does nothing", "gold", f"doing nothing earns {noop.reward:g}") if noop.reward > 0.0 else None


def _nothing(why: str) -> TaskIssue:
    return TaskIssue("does nothing", "gold", f"{why} and it has nothing to tell: doing nothing would be rewarded")


def _item_or_error(item: Item[Task], issue: TaskIssue | None) -> Item[Task] | RowError:
    return issue.at(item.location) if issue else item
