"""Selection of a step's training episodes, and checks of the reference and the reward judge."""

from collections.abc import Sequence
from pathlib import Path

from understudy.clients.chat import Budget, open_chat_model
from understudy.core.errors import ConfigError
from understudy.core.trajectory import Trajectory
from understudy.engines.models import find_model
from understudy.engines.reference_config import FROZEN_REFERENCE
from understudy.formats.tokenizer import first_token_difference
from understudy.rollouts.group import Group
from understudy.rollouts.reward_shaping import RewardJudge
from understudy.runs.config import AlgorithmConfig, TrainConfig
from understudy.runs.endpoints import REWARD_JUDGE_KEY, training_endpoint_names


def trainable_groups(groups: Sequence[Group], algorithm: AlgorithmConfig) -> list[Group]:
    """Return the groups of a step with the episodes to train on. Groups without any are left out.

    With a KL penalty, all scored episodes of a group can be trained on. The same holds for `reinforce_pp`, which
    divides by the standard deviation over the whole batch, unless the rewards are equal within every group. At most
    `algorithm.max_trained_episodes` of each group are kept.
    """
    estimator = algorithm.advantage_estimator
    found = [Group(group.task, group.trainable_episodes(estimator)) for group in groups]
    if algorithm.kl_coef or (estimator == "reinforce_pp" and any(group.episodes for group in found)):
        found = [Group(group.task, group.scored_episodes) for group in groups]
    most = algorithm.most_trained_episodes
    return [Group(group.task, highest_and_lowest(group.episodes, most)) for group in found if group.episodes]


def count_trainable(groups: Sequence[Group], algorithm: AlgorithmConfig) -> int:
    """Return how many episodes `trainable_groups` keeps if no group is left out: the scored ones, at most
    `algorithm.max_trained_episodes` of each group.
    """
    return sum(min(len(group.scored_episodes), algorithm.most_trained_episodes) for group in groups)


def highest_and_lowest(episodes: Sequence[Trajectory], count: int) -> list[Trajectory]:
    """Return `count` episodes in their order: half of them, rounded up, have the highest rewards, half the lowest."""
    ranked = sorted(range(len(episodes)), key=lambda index: episodes[index].reward, reverse=True)
    chosen = {*ranked[: -(-count // 2)], *ranked[len(ranked) - count // 2 :]} if count < len(ranked) else {*ranked}
    return [episode for index, episode in enumerate(episodes) if index in chosen]


def make_reward_judge(config: TrainConfig, budget: Budget | None = None) -> RewardJudge | None:
    """Return the judge that grades failed episodes, if `algorithm.shaping` asks for one.

    Raise ConfigError if its endpoint is unknown, has no model or names a key that is not set.
    """
    name = training_endpoint_names(config).get(REWARD_JUDGE_KEY)
    return RewardJudge(open_chat_model(config.endpoints, name, REWARD_JUDGE_KEY, "grader", budget)) if name else None


def validate_reference(config: TrainConfig, folder: Path) -> None:
    """Raise ConfigError for a reference without effect, and for a teacher with another vocabulary than the model, or
    with a shorter context than the episodes.

    `folder` is the folder of the model.
    """
    algorithm, reference = config.algorithm, config.algorithm.reference
    if not algorithm.kl_coef and reference != FROZEN_REFERENCE:
        raise ConfigError(
            f"algorithm.reference.kind = {reference.kind!r}: a reference has no effect with algorithm.kl_coef = 0; set "
            "both or neither"
        )
    if not algorithm.kl_coef and algorithm.advantage_estimator == "zero":
        raise ConfigError(
            "algorithm.advantage_estimator = 'zero': all advantages are 0, and so is algorithm.kl_coef; to train "
            "towards a teacher, set algorithm.kl_coef above 0 and algorithm.reference.kind=model"
        )
    if reference.model:
        teacher = find_model(reference.model)
        if difference := first_token_difference(folder / "tokenizer.json", teacher / "tokenizer.json"):
            raise ConfigError(
                f"algorithm.reference.model = {reference.model!r} has another vocabulary: {difference}; "
                "choose a teacher of the model's own family"
            )
        if config.engine.kind == "local":
            _validate_teacher_context(config, folder, teacher)


def _validate_teacher_context(config: TrainConfig, folder: Path, teacher: Path) -> None:
    """Raise ConfigError if an episode can be longer than the context of the teacher, in which it is compared."""
    from understudy.engines.local.model import read_context_length

    context, reply = read_context_length(teacher), config.sampling.max_response_tokens
    longest = min(read_context_length(folder), config.limits.max_episode_tokens + reply)
    if longest > context:
        raise ConfigError(
            f"limits.max_episode_tokens = {config.limits.max_episode_tokens}: with a last reply of {reply} tokens an "
            f"episode can have {longest} tokens, more than the context of {context} of algorithm.reference.model = "
            f"{config.algorithm.reference.model!r}; set limits.max_episode_tokens to at most {max(1, context - reply)}"
        )
