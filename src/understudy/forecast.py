"""How long a run will take, and what its users will cost: from gold episodes, and the machine's measured speed.

A model that has not learned to end its episodes plays longer ones than gold's; a forecast is of the right order, no
more. What is left out: refills, certification, curricula, and the scores of floor and oracle.
"""

import itertools
from collections.abc import Sequence
from decimal import Decimal

from understudy.bench import Speeds, Update
from understudy.config import TrainConfig
from understudy.formats import Vocabulary
from understudy.records import Record
from understudy.trajectory import Trajectory

REQUESTS = {"llm": 1, "react": 1, "verify": 2, "reflection": 2}
"""Requests for each message of a user whom a language model plays."""
INSTRUCTIONS = 400
"""Tokens of what such a model is told of its part."""
FORWARD = 1 / 3
"""A forward pass beside an update, which is forward and backward."""


class Episodes(Record):
    """What gold episodes come to, in tokens of the model; means of an episode."""

    tokens: float
    sampled: float
    turns: float
    messages: float
    """Of the user, the opening included."""
    said: float
    """In them."""
    talk: float
    """In the user's and the agent's texts."""
    longest: int
    common: int
    """That all of them begin with."""


class Phase(Record):
    """A part of the run."""

    name: str
    steps: int
    seconds: float
    """Of all its steps."""
    episodes: int = 0
    """That are played in it."""


class Forecast(Record):
    """What a run will come to."""

    phases: tuple[Phase, ...]
    cost: Decimal = Decimal(0)

    @property
    def seconds(self) -> float:
        """Of the whole run."""
        return sum(phase.seconds for phase in self.phases)


def sizes(played: Sequence[Trajectory], vocabulary: Vocabulary) -> Episodes:
    """What episodes come to, with texts measured in tokens of the vocabulary."""
    count = len(played)
    said = [m.content for e in played for m in e.messages if m.role == "user"]
    replied = [m.content for e in played for m in e.messages if m.role == "assistant"]
    in_said, in_replied = (sum(len(vocabulary.encode(text)) for text in texts) for texts in (said, replied))
    return Episodes(
        tokens=sum(len(e.tokens) for e in played) / count,
        sampled=sum(sum(e.mask) for e in played) / count,
        turns=sum(e.turns for e in played) / count,
        messages=len(said) / count,
        said=in_said / count,
        talk=(in_said + in_replied) / count,
        longest=max(len(e.tokens) for e in played),
        common=_common([e.tokens for e in played]),
    )


def forecast(config: TrainConfig, episodes: Episodes, speeds: Speeds, evaluated: int) -> Forecast:
    """The phases of a run; `evaluated` is how many episodes one evaluation plays."""
    training = speeds.training[config.engine.finetune]
    algorithm, sft = config.algorithm, config.sft
    evaluations = _evaluations(config)
    imitated = sft.steps * training.seconds(sft.batch_size * episodes.tokens)
    played = algorithm.group_size * algorithm.tasks_per_step
    own = episodes.tokens - episodes.common
    computed = played * own + algorithm.tasks_per_step * episodes.common
    beside = FORWARD * (bool(algorithm.kl_coefficient) + bool(algorithm.importance_cap) + algorithm.valued)
    passes = (algorithm.epochs + beside) * computed / training.rate
    update = passes + algorithm.epochs * algorithm.updates_per_step * training.optimizer
    step = _sampled(config, episodes, speeds, played, algorithm.group_size) + update
    evaluation = _sampled(config, episodes, speeds, evaluated, evaluated)
    phases = (
        Phase(name="imitation", steps=sft.steps, seconds=imitated),
        *_preferred(config, episodes, training),
        Phase(name="reinforcement", steps=config.steps, seconds=config.steps * step, episodes=config.steps * played),
        Phase(name="evaluation", steps=evaluations, seconds=evaluations * evaluation, episodes=evaluations * evaluated),
    )
    return Forecast(phases=phases, cost=_cost(config, episodes, sum(phase.episodes for phase in phases)))


def _preferred(config: TrainConfig, episodes: Episodes, training: Update) -> list[Phase]:
    """The phase of preferences, where there is one; its conversations are taken to be as long as the domain's."""
    preferences = config.preferences
    tokens = episodes.tokens * preferences.batch_size * (2 if preferences.kind == "dpo" else 1)
    passes = 2 if preferences.kind == "dpo" else 4  # under policy and reference; KTO's mismatched ones as well
    seconds = training.seconds(tokens) + FORWARD * passes * tokens / training.rate
    phase = Phase(name="preferences", steps=preferences.steps, seconds=preferences.steps * seconds)
    return [phase] if preferences.steps else []


def as_text(forecast: Forecast, config: TrainConfig) -> str:
    """A table of the phases."""
    lines = [f"  {'phase':<16}{'steps':>8}{'episodes':>10}{'time':>12}"]
    for phase in forecast.phases:
        lines.append(f"  {phase.name:<16}{phase.steps:>8,}{phase.episodes or '':>10}{clock(phase.seconds):>12}")
    lines.append(f"  {'in all':<16}{'':>18}{clock(forecast.seconds):>12}")
    if config.user.kind in REQUESTS:
        cap = f"; cost_cap is {config.cost_cap}" if config.cost_cap else "; cost_cap sets no limit"
        free = "" if forecast.cost else " (user.chat has no prices)"
        lines.append(f"  the users' model costs about {forecast.cost:.2f}{free}{cap}")
    return "\n".join(lines)


def clock(seconds: float) -> str:
    """Hours and minutes, or minutes and seconds where there are no hours."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 60} min {whole % 60:02} s"


def _common(rows: Sequence[Sequence[int]]) -> int:
    """How many tokens all rows begin with; of a single one, none."""
    alike = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*rows, strict=False))
    return sum(1 for _ in alike) if len(rows) > 1 else 0


def _evaluations(config: TrainConfig) -> int:
    """How often the model is evaluated: before, between the phases, on the way, and at the end."""
    every, steps = config.eval.every, config.steps
    between = sum(bool(phase) for phase in (config.sft.steps, config.preferences.steps, steps)) - 1
    return (2 if config.total else 1) + max(0, between) + ((steps - 1) // every if every and steps else 0)


def _sampled(config: TrainConfig, episodes: Episodes, speeds: Speeds, count: int, group: int) -> float:
    """Seconds that so many episodes take. A prompt is computed once for a group, and what is common to all once."""
    rate = speeds.at(min(count, config.engine.sequences))
    read = count * (episodes.tokens - episodes.sampled - episodes.common) + episodes.common * count / max(1, group)
    return count * episodes.sampled / rate.decode + read / rate.prefill


def _cost(config: TrainConfig, episodes: Episodes, played: int) -> Decimal:
    """What the users' model is paid, in the currency of its prices. An opening is the scenario's, and free."""
    chat = config.user.chat
    requests = REQUESTS.get(config.user.kind, 0) * max(0.0, episodes.messages - 1) * played
    prompt = Decimal(requests * (INSTRUCTIONS + episodes.talk / 2))
    completion = Decimal(requests * episodes.said / max(1.0, episodes.messages))
    return (prompt * chat.prompt_price + completion * chat.completion_price) / 1_000_000
