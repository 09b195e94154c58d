"""What a step came to: the metrics of its episodes, and the learning rate it is taken at."""

from collections import Counter
from collections.abc import Sequence

from understudy.algorithms.options import Advantage
from understudy.chat import Usage
from understudy.crew import Crew
from understudy.engines.local.ranks import totals
from understudy.shaping import Judge
from understudy.train.lessons import lesson
from understudy.train.state import Metrics
from understudy.trajectory import Stop, Trajectory
from understudy.users import Cast


def summarize(groups: Sequence[Sequence[Trajectory]], advantage: Advantage) -> Metrics:
    """What one step's episodes came to. Rates of replies and tool errors are per reply of the agent.

    `equal_groups` are those that teach nothing: of equal rewards, where `advantage` compares them.
    """
    episodes = [episode for group in groups for episode in group]
    whole = [episode for episode in episodes if episode.score]
    turns = sum(episode.turns for episode in whole)
    counts = sum((Counter(episode.counts) for episode in whole), Counter[str]())
    stops = Counter(str(episode.stop) for episode in episodes)
    n = max(1, len(whole))
    return {
        "reward": sum(episode.reward for episode in whole) / n,
        "success": sum(episode.score.reward >= 1.0 for episode in whole if episode.score) / n,
        "episodes": float(len(episodes)),
        "groups": float(len(groups)),
        "equal_groups": float(sum(not lesson(group, advantage) for group in groups)),
        "turns": turns / n,
        "sampled_tokens": float(sum(sum(episode.mask) for episode in whole)),
        "episode_tokens": sum(len(episode.tokens) for episode in whole) / n,
        **{f"replies/{name}": count / max(1, turns) for name, count in sorted(counts.items())},
        **{f"stop/{name}": count / len(episodes) for name, count in sorted(stops.items())},
        **_fault_rates(episodes),
    }


def spent(users: Cast, before: Usage, crew: Crew) -> Metrics:
    """What users whom a language model plays were asked since `before`, by all processes of the crew."""
    if users.scripted:
        return {}
    return {f"users/{name}": float(value) for name, value in sum(crew.gather(users.usage - before), Usage())}


def marked(judge: Judge | None, crew: Crew) -> Metrics:
    """What the judge was asked since this was called last, by all processes of the crew."""
    return totals(crew, judge.taken()) if judge else {}


def learning_rate(step: int, steps: int, peak: float, warmup: int, final: float) -> float:
    """Rises linearly over `warmup` steps, then falls linearly to `final` times the peak. Steps count from 1."""
    rising = min(1.0, step / max(1, warmup))
    falling = 1.0 - (1.0 - final) * max(0, step - warmup) / max(1, steps - warmup)
    return peak * rising * falling


def _fault_rates(episodes: Sequence[Trajectory]) -> Metrics:
    faults = Counter(str(episode.fault) for episode in episodes if episode.stop is Stop.FAULT)
    return {f"fault/{name}": count / len(episodes) for name, count in sorted(faults.items())}
