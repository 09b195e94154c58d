"""Forecast the duration of a run and the cost of its users, from gold episodes and the measured speed.

A forecast gives the order of magnitude only, because an untrained model plays longer episodes than gold. Resampled
groups, certification, curricula, and the evaluations of noop and gold are not counted.
"""

import itertools
from collections.abc import Sequence
from decimal import Decimal

from understudy.clients.chat import find_endpoint
from understudy.core.records import Record
from understudy.core.trajectory import Trajectory
from understudy.formats import FormatTokenizer
from understudy.runs.config import TrainConfig
from understudy.runs.endpoints import USER_KEY
from understudy.train.planning.bench import BenchResult, TrainingSpeed

REQUESTS_PER_MESSAGE = {"llm": 1, "react": 1, "verify": 2, "reflection": 2}
"""Requests to the user model for each of its messages, by `user.kind`."""
USER_PROMPT_TOKENS = 400
"""Assumed tokens of the user model's instructions."""
FORWARD_COST = 1 / 3
"""The cost of a forward pass, as a fraction of an update (forward and backward)."""


class EpisodeSizes(Record):
    """Sizes of gold episodes, in tokens of the model."""

    mean_tokens: float
    mean_sampled_tokens: float
    mean_turns: float
    mean_user_messages: float
    """Messages of the user, including the opening."""
    mean_user_tokens: float
    """Tokens of the user's messages."""
    mean_dialogue_tokens: float
    """Tokens of the user's and the agent's messages."""
    max_tokens: int
    common_prefix_tokens: int
    """Length of the prefix that all episodes share."""
    max_reply_tokens: int = 0
    """Length of the longest reply; 0 if there are no gold episodes."""
    assumed_reply_tokens: int = 0
    """If not 0, there are no gold episodes, and each episode is assumed to be one reply of so many tokens."""
    gold_problem: str = ""
    """Why there are no gold episodes."""

    def with_one_reply(self, tokens: int) -> "EpisodeSizes":
        """Return these sizes of episodes that are only a prompt, with one reply of `tokens` tokens."""
        return self.replace(
            mean_tokens=self.mean_tokens + tokens,
            mean_sampled_tokens=tokens,
            mean_turns=1,
            mean_dialogue_tokens=self.mean_dialogue_tokens + tokens,
            max_tokens=self.max_tokens + tokens,
            assumed_reply_tokens=tokens,
        )


class PhaseForecast(Record):
    """The forecast of one phase of a run."""

    name: str
    steps: int
    seconds: float
    """Seconds of all steps of the phase."""
    episodes: int = 0
    """Episodes that the phase plays."""
    max_episodes: int = 0
    """Episodes that it plays at most, with those of resampled groups."""


class RunForecast(Record):
    """The forecast of a run's duration and cost."""

    phases: tuple[PhaseForecast, ...]
    cost: Decimal = Decimal(0)
    """The cost of the user model, in the currency of its prices."""

    @property
    def seconds(self) -> float:
        """Return the seconds of the whole run."""
        return sum(phase.seconds for phase in self.phases)


def measure_episodes(episodes: Sequence[Trajectory], vocabulary: FormatTokenizer) -> EpisodeSizes:
    """Return the sizes of episodes. Texts of users and agent are counted in tokens of `vocabulary`."""
    count = len(episodes)
    user_texts = [m.content for e in episodes for m in e.messages if m.role == "user"]
    replied = [m.content for e in episodes for m in e.messages if m.role == "assistant"]
    in_said, in_replied = (sum(len(vocabulary.encode(text)) for text in texts) for texts in (user_texts, replied))
    return EpisodeSizes(
        mean_tokens=sum(len(e.tokens) for e in episodes) / count,
        mean_sampled_tokens=sum(sum(e.mask) for e in episodes) / count,
        mean_turns=sum(e.num_turns for e in episodes) / count,
        mean_user_messages=len(user_texts) / count,
        mean_user_tokens=in_said / count,
        mean_dialogue_tokens=(in_said + in_replied) / count,
        max_tokens=max(len(e.tokens) for e in episodes),
        common_prefix_tokens=_common([e.tokens for e in episodes]),
        max_reply_tokens=max((end - start for e in episodes for start, end in e.reply_spans()), default=0),
    )


def forecast_run(
    config: TrainConfig,
    episodes: EpisodeSizes,
    speeds: BenchResult,
    eval_episodes: int,
    base_episodes: int | None = None,
) -> RunForecast:
    """Forecast the phases of a run.

    `eval_episodes` is the number of episodes of one evaluation, `base_episodes` that of the one before training if it
    differs.
    """
    base_episodes = eval_episodes if base_episodes is None else base_episodes
    training = speeds.training[config.engine.finetune]
    algorithm, sft = config.algorithm, config.sft
    evaluations = _evaluations(config)
    imitated = sft.steps * training.seconds(sft.batch_size * episodes.mean_tokens)
    played = algorithm.group_size * algorithm.groups_per_batch
    common = 0 if speeds.padding_reason else episodes.common_prefix_tokens  # padded rows share no prefix in an update
    tokens = algorithm.most_trained_episodes * (episodes.mean_tokens - common) + common
    computed = algorithm.groups_per_batch * tokens
    beside = FORWARD_COST * (bool(algorithm.kl_coef) + bool(algorithm.tis_cap) + algorithm.uses_critic)
    passes = (algorithm.update_epochs + beside) * computed / training.tokens_per_second
    update = passes + algorithm.update_epochs * algorithm.num_minibatches * training.optimizer_seconds
    step = _sampled(config, episodes, speeds, played, algorithm.group_size) + update
    evaluated = base_episodes + (evaluations - 1) * eval_episodes
    evaluation = sum(
        times * _sampled(config, episodes, speeds, count, count)
        for times, count in ((1, base_episodes), (evaluations - 1, eval_episodes))
    )
    phases = (
        PhaseForecast(name="sft", steps=sft.steps, seconds=imitated),
        *_preferred(config, episodes, training),
        PhaseForecast(
            name="rl",
            steps=config.steps,
            seconds=config.steps * step,
            episodes=config.steps * played,
            max_episodes=config.steps * algorithm.most_played_episodes,
        ),
        PhaseForecast(name="evaluation", steps=evaluations, seconds=evaluation, episodes=evaluated),
    )
    return RunForecast(phases=phases, cost=_cost(config, episodes, sum(phase.episodes for phase in phases)))


def _preferred(config: TrainConfig, episodes: EpisodeSizes, training: TrainingSpeed) -> list[PhaseForecast]:
    """Forecast the preference phase, if there is one. Its conversations are assumed to be as long as gold episodes."""
    preferences = config.preferences
    tokens = episodes.mean_tokens * preferences.batch_size * (2 if preferences.kind == "dpo" else 1)
    passes = 2 if preferences.kind == "dpo" else 4  # policy and reference; KTO also scores mismatched conversations
    seconds = training.seconds(tokens) + FORWARD_COST * passes * tokens / training.tokens_per_second
    phase = PhaseForecast(name="preferences", steps=preferences.steps, seconds=preferences.steps * seconds)
    return [phase] if preferences.steps else []


def format_forecast(forecast: RunForecast, config: TrainConfig) -> str:
    """Return a table of the phases."""
    lines = [f"  {'phase':<16}{'steps':>8}{'episodes':>12}{'time':>16}"]
    for phase in forecast.phases:
        lines.append(
            f"  {phase.name:<16}{phase.steps:>8,}{phase.episodes or '':>12}{format_duration(phase.seconds):>16}"
        )
    lines.append(f"  {'total':<16}{'':>20}{format_duration(forecast.seconds):>16}")
    for phase in forecast.phases:
        if phase.max_episodes > phase.episodes:
            lines.append(
                f"  {phase.name} plays up to {phase.max_episodes:,} episodes if groups without a training signal are "
                "replaced (algorithm.max_resampled_groups)"
            )
    if config.user.kind in REQUESTS_PER_MESSAGE:
        cap = f"; cost_limit = {config.cost_limit}" if config.cost_limit else "; cost_limit = 0 sets no limit"
        free = "" if forecast.cost else f" (endpoints.{config.user.endpoint} has no prices)"
        lines.append(f"  cost of the user model: about {forecast.cost:.2f}{free}{cap}")
    return "\n".join(lines)


def format_duration(seconds: float) -> str:
    """Return a duration as "1 h 05 min", or below an hour as "59 min 59 s"."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 60} min {whole % 60:02} s"


def _common(rows: Sequence[Sequence[int]]) -> int:
    """Return the length of the prefix that all rows share; 0 for a single row."""
    alike = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*rows, strict=False))
    return sum(1 for _ in alike) if len(rows) > 1 else 0


def _evaluations(config: TrainConfig) -> int:
    """Return the number of evaluations: before training, between phases, during RL, and at the end."""
    every, steps = config.eval.every, config.steps
    between = sum(bool(phase) for phase in (config.sft.steps, config.preferences.steps, steps)) - 1
    return (2 if config.total_steps else 1) + max(0, between) + ((steps - 1) // every if every and steps else 0)


def _sampled(config: TrainConfig, episodes: EpisodeSizes, speeds: BenchResult, count: int, group: int) -> float:
    """Return the seconds of sampling `count` episodes in groups of `group`.

    The prefix that all episodes share is prefilled once for each group.
    """
    rate = speeds.sampling_at(min(count, config.engine.max_num_seqs))
    read = count * (
        episodes.mean_tokens - episodes.mean_sampled_tokens - episodes.common_prefix_tokens
    ) + episodes.common_prefix_tokens * count / max(1, group)
    return count * episodes.mean_sampled_tokens / rate.decode_tokens_per_second + read / rate.prefill_tokens_per_second


def _cost(config: TrainConfig, episodes: EpisodeSizes, played: int) -> Decimal:
    """Return the cost of the user model. A user's first message comes from the scenario and costs nothing."""
    if config.user.kind not in REQUESTS_PER_MESSAGE:
        return Decimal(0)
    chat = find_endpoint(config.endpoints, config.user.endpoint, USER_KEY)
    requests = REQUESTS_PER_MESSAGE[config.user.kind] * max(0.0, episodes.mean_user_messages - 1) * played
    prompt = Decimal(requests * (USER_PROMPT_TOKENS + episodes.mean_dialogue_tokens / 2))
    completion = Decimal(requests * episodes.mean_user_tokens / max(1.0, episodes.mean_user_messages))
    return (prompt * chat.prompt_price + completion * chat.completion_price) / 1_000_000
