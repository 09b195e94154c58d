"""Two evaluations side by side: the paired difference, whether chance explains it, and whether noise does."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from understudy import results
from understudy.errors import ConfigError
from understudy.evaluation import Evaluation
from understudy.noise import between
from understudy.outcome import Named, Outcome
from understudy.records import Record
from understudy.results import gain, gains
from understudy.statistics import Rate, chance, sentence
from understudy.tasks import Task, fingerprint


class Comparison(Record):
    """How much better one agent is than another, on the tasks that both have played."""

    old: Named
    new: Named
    gain: Rate
    chance: float
    """How likely a difference as large is if neither is better: Fisher's randomization test over tasks."""
    noise: float | None
    """What 95% of the differences stay within if both were equally good at each task; None where tasks were played
    once."""
    domains: dict[str, Rate] = {}
    """The gain on each domain, where there are several."""

    @property
    def verdict(self) -> str:
        """Whether the difference is larger than the noise of which tasks there are."""
        return sentence(self.gain, self.new.name, self.old.name)

    @property
    def beside(self) -> str:
        """What else there is to say of it."""
        lines = [f"If neither were better, a difference as large would come up in {self.chance:.1%} of cases."]
        if self.noise is not None:
            side = "above" if abs(self.gain.mean) > self.noise else "within"
            lines.append(
                f"It is {side} the noise floor of {self.noise:.3f}: what other seeds alone would make of agents that "
                "are equally good at each of these tasks."
            )
        by_domain = [f"  {domain}: {results.interval(rate, signed=True)}" for domain, rate in self.domains.items()]
        return "\n".join([*lines, *by_domain])

    def __str__(self) -> str:
        return f"{self.verdict}\n{self.beside}"


def compare(new: Outcome, old: Outcome) -> Comparison:
    """The last agents of both with one seed, over the tasks that both have.

    Where no seed is in both, the last agent of each. A task that is another one is a `ConfigError`.
    """
    after, before = _agents(new), _agents(old)
    last, first = _paired(after, before)
    one, other = last.evaluation, first.evaluation
    _refuse_other_tasks({result.task: result.fingerprint for result in one.results}, one.domain, other)
    domains = {each: gain(one.of_domain(each), other.of_domain(each)) for each in _domains(one)}
    shared = {result.task for result in one.results} & {result.task for result in other.results}
    return Comparison(
        old=first.replace(name="the other") if first.name == last.name else first,
        new=last,
        gain=gain(one, other),
        chance=chance(gains(one, other)),
        noise=between(_rounds(after, shared), _rounds(before, shared)),
        domains={each: rate for each, rate in domains.items() if rate.tasks} if len(domains) > 1 else {},
    )


def rows(comparison: Comparison, floor_and_oracle: Sequence[Named]) -> list[results.Row]:
    """Both as rows of the result table, under floor and oracle."""
    return [(row.name, row.evaluation) for row in (*floor_and_oracle, comparison.old, comparison.new)]


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain values, without the evaluations themselves."""
    told = {"old": comparison.old.name, "new": comparison.new.name, "verdict": str(comparison)}
    plain: dict[str, Any] = results.finite(comparison.model_dump(mode="json", exclude={"old", "new"}))
    return told | plain


def refuse_incomparable(tasks: Sequence[Task], domain: str, old: Outcome) -> None:
    """What `compare` would refuse once these tasks are played: a `ConfigError` before they are."""
    _refuse_other_tasks({task.id: fingerprint(task) for task in tasks}, domain, _agents(old)[-1].evaluation)


def _refuse_other_tasks(new: Mapping[str, str], domain: str, old: Evaluation) -> None:
    """Tasks of one name that are not the same task cannot be paired; neither can evaluations that share none."""
    prints = {result.task: result.fingerprint for result in old.results}
    shared = [name for name in new if name in prints]
    other = [name for name in shared if new[name] and prints[name] and new[name] != prints[name]]
    if other:
        raise ConfigError(
            f"{len(other)} of {len(shared)} tasks have the same name in both evaluations and are not the same, such as "
            f"{other[0]}; evaluate both with one version of the tasks"
        )
    if not shared:
        raise ConfigError(f"the evaluations of {domain} and {old.domain} share no task; they cannot be compared")


def _paired(after: Sequence[Named], before: Sequence[Named]) -> tuple[Named, Named]:
    """The last two with one seed, whose episodes have the same users; the last two where there are none."""
    same = ((a, b) for a in reversed(after) for b in reversed(before) if a.evaluation.seed == b.evaluation.seed)
    return next(same, (after[-1], before[-1]))


def _rounds(rows: Sequence[Named], tasks: Collection[str]) -> list[Evaluation]:
    """How often one agent was evaluated, on these tasks only.

    Reruns have a seed each. Rows with one seed are different agents, the stages of a run: of these the last counts.
    """
    last = {row.evaluation.seed: row.evaluation for row in rows}
    cut = (each.replace(results=tuple(r for r in each.results if r.task in tasks)) for each in last.values())
    return [each for each in cut if each.results]


def _domains(evaluation: Evaluation) -> list[str]:
    return sorted({result.domain for result in evaluation.results})


def _agents(outcome: Outcome) -> list[Named]:
    if not outcome.agents:
        raise ConfigError("an evaluation without an agent cannot be compared")
    return outcome.agents
