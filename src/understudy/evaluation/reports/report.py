"""The rows of an evaluation or of a run (noop, gold, agents), and what they show."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from understudy.core.records import Record
from understudy.evaluation.failures.causes import FAILURE_KINDS, EpisodeFailure
from understudy.evaluation.noise import NoiseEstimate
from understudy.evaluation.prompt_variants import PromptSpread
from understudy.evaluation.result import (
    EvalResult,
    ResultRow,
    gain_p_value,
    merge_results,
    repeat_name,
    success_gain,
)
from understudy.evaluation.statistics import MeanEstimate, describe_difference
from understudy.runs.resumption import OOD_SET

OOD_TITLE = "Domains that were not trained on"
TEST_TITLE = "Test set"
"""Title of the results of a test set of `data.tests`, before its name."""
MAX_HARDEST_TASKS = 10
"""Number of tasks in the table of the hardest ones."""
NO_SCORE = "-"
"""The text of a rate of no episodes."""


class EvalReport(Record):
    """The rows of an evaluation, with its failures and its noise."""

    rows: tuple[ResultRow, ...]
    """Noop, gold, and the agents. Repeats and the stages of a run are agents with a row each."""
    failures: tuple[EpisodeFailure, ...] = ()
    """Failed episodes of the agents."""
    noise: NoiseEstimate | None = None
    prompts: PromptSpread | None = None
    """The spread over wordings of the system message, if each repeat had one of its own."""

    @property
    def results(self) -> dict[str, EvalResult]:
        """Result of each row by name."""
        return {row.name: row.result for row in self.rows}

    @property
    def agent_rows(self) -> list[ResultRow]:
        """Rows that are neither noop nor gold."""
        return [row for row in self.rows if row.result.kind == "agent"]

    @property
    def pooled_row(self) -> ResultRow | None:
        """All repeats of one agent as one row. None if the agents are not repeats of one."""
        agents = self.agent_rows
        names = [repeat_name(agents[0].name, number) for number in range(len(agents))] if agents else []
        seeds = {row.result.seed for row in agents}
        repeated = self.prompts is not None or names == [row.name for row in agents]
        if len(agents) < 2 or len(seeds) < len(agents) or not repeated:
            return None
        what = "wordings" if self.prompts else "repeats"
        return ResultRow(name=f"{names[0]}, all {what}", result=merge_results([row.result for row in agents]))

    @property
    def table_rows(self) -> tuple[ResultRow, ...]:
        """The rows of tables: `rows`, and for repeats the pooled row."""
        return (*self.rows, self.pooled_row) if self.pooled_row else self.rows

    @property
    def has_scores(self) -> bool:
        """True if at least one episode of the agent has a score."""
        results = (result for row in self.agent_rows for result in row.result.task_results)
        return any(reward is not None for result in results for reward in result.rewards)

    @property
    def fault_count(self) -> int:
        """Number of the agents' episodes without a score."""
        return sum(sum(row.result.fault_counts.values()) for row in self.agent_rows)

    @property
    def fault_rate(self) -> float:
        """Share of the agents' episodes without a score."""
        played = sum(len(result.rewards) for row in self.agent_rows for result in row.result.task_results)
        return self.fault_count / played if played else 0.0

    @property
    def title(self) -> str:
        """The title of the table of success rates. It names the split."""
        splits = {row.result.split for row in self.rows}
        return f"Success on {splits.pop()} tasks" if len(splits) == 1 and "" not in splits else "Success"

    @property
    def verdict(self) -> str:
        """One sentence: the difference between the last agent and the one before it, and whether it is significant.

        For one agent, or repeats of one, the sentence is on its success rate.
        """
        if not self.agent_rows:
            return "No agent was evaluated."
        last = self.pooled_row or self.agent_rows[-1]
        if len(self.agent_rows) == 1 or self.pooled_row:
            rate = last.result.success_rate
            if not rate.tasks:
                return f"No episode of {last.name} has a score."
            return f"{last.name} succeeds on {format_rate(rate)} of {rate.tasks} tasks."
        previous = self.agent_rows[-2]
        new, old = last.result, previous.result
        return describe_difference(success_gain(new, old), gain_p_value(new, old), last.name, previous.name)

    @property
    def hardest_tasks(self) -> list[tuple[str, int, int]]:
        """The tasks of the last agent, over all of its repeats, with the highest share of failures: id, failures,
        episodes.
        """
        tried = defaultdict[str, list[bool]](list)
        for row in [self.pooled_row] if self.pooled_row else self.agent_rows[-1:]:
            for result in row.result.task_results:
                tried[result.task] += [success for success in result.successes if success is not None]
        failed = [(task, tries.count(False), len(tries)) for task, tries in tried.items() if not all(tries)]
        return sorted(failed, key=lambda task: (-task[1] / task[2], -task[1], task[0]))[:MAX_HARDEST_TASKS]

    def gain_over_previous(self, place: int) -> MeanEstimate | None:
        """Return an agent's gain over the row before it. None if either row is noop or gold, and for repeats."""
        kinds = {row.result.kind for row in self.rows[max(0, place - 1) : place + 1]}
        if place == 0 or self.pooled_row or kinds != {"agent"}:
            return None
        return success_gain(self.rows[place].result, self.rows[place - 1].result)


class RunReport(Record):
    """The results of a training run: noop, gold, and the model at each stage."""

    held_out: EvalReport
    others: dict[str, EvalReport] = {}
    """Results on other eval sets: `ood` for `eval.ood_domains`, and the test sets of `data.tests`."""


def title_eval_set(name: str) -> str:
    """Return the title of the results of an eval set; empty for held-out tasks."""
    return OOD_TITLE if name == OOD_SET else f"{TEST_TITLE} {name}" if name else ""


def count_causes(failures: Sequence[EpisodeFailure]) -> list[tuple[str, str, int]]:
    """Count failures by cause: component, kind, failures; the most frequent first."""
    counted = Counter(failure.cause.kind for failure in failures)
    return [
        (FAILURE_KINDS[kind][0], kind, count)
        for kind, count in sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    ]


def format_rate(rate: MeanEstimate, signed: bool = False) -> str:
    """Return a rate with its interval as text, or a dash if no task has a score."""
    if not rate.tasks:
        return NO_SCORE
    sign = "+" if signed else ""
    return f"{rate.mean:{sign}.3f} [{rate.low:{sign}.3f}, {rate.high:{sign}.3f}]"
