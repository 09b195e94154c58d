"""Tests of training on episodes of several token sequences: an episode has the same weight, however it is split."""

import random

import pytest
import torch

from support.branching import played_episode, split_episode
from support.groups import make_group
from understudy.algorithms.batch import Batch
from understudy.core.trajectory import Trajectory
from understudy.runs.config import TrainConfig, parse_config
from understudy.train.anchor_states import index_anchor_states
from understudy.train.phases.rl import collate_groups, compute_advantages, make_minibatches
from understudy.train.trained_batch import TrainedBatch

ESTIMATORS = ("group_mean", "grpo", "rloo", "reinforce_pp", "success_indicator", "turn")
AGGREGATIONS = ("token_mean", "sequence_mean", "seq_mean_token_sum_norm")


def random_groups(draw: random.Random) -> list[list[Trajectory]]:
    """Return groups of episodes with random lengths and rewards. No two episodes share a token id."""
    groups, start = list[list[Trajectory]](), 5
    for _ in range(3):
        groups.append([])
        for _ in range(draw.randint(2, 4)):
            lengths = draw.choices(range(1, 6), k=draw.randint(1, 5))
            episode = played_episode(lengths, draw.choice([0.0, 0.5, 1.0]), start)
            groups[-1].append(episode)
            start += len(episode.tokens)
    return groups


def randomly_split(episode: Trajectory, draw: random.Random) -> Trajectory:
    left, counts = episode.num_turns, list[int]()
    while left:
        counts.append(draw.randint(1, left))
        left -= counts[-1]
    return split_episode(episode, counts)


def token_advantages(parts: list[Batch]) -> list[dict[int, float]]:
    """Return the weighted advantage of each sampled token of each minibatch, by token id. No token is trained twice."""
    found = []
    for part in parts:
        assert part.advantages is not None
        tokens = part.tokens[part.mask].tolist()
        assert len(set(tokens)) == len(tokens)
        assert not part.advantages[~part.mask].any()
        found.append(dict(zip(tokens, part.advantages[part.mask].tolist(), strict=True)))
    return found


def trained_parts(groups: list[list[Trajectory]], config: TrainConfig) -> list[dict[int, float]]:
    batch = compute_advantages(collate_groups([make_group(group) for group in groups], config), config)
    return token_advantages(make_minibatches(batch, config.algorithm.num_minibatches, config, seed=1))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_split_episode_has_the_weight_of_the_unsplit_one(estimator: str, aggregation: str) -> None:
    algorithm = (f"algorithm.advantage_estimator={estimator}", f"algorithm.loss_aggregation={aggregation}")
    config = parse_config("", [*algorithm, "algorithm.num_minibatches=2", "algorithm.update_epochs=2"])
    for seed in range(5):
        draw = random.Random(seed)
        groups = random_groups(draw)
        split = [[randomly_split(episode, draw) for episode in group] for group in groups]
        for whole, parts in zip(trained_parts(groups, config), trained_parts(split, config), strict=True):
            assert parts == pytest.approx(whole, abs=1e-6)


def test_rows_of_an_episode_have_its_reward_and_stay_together() -> None:
    config = parse_config("", ["algorithm.overlong.buffer_fraction=1", "algorithm.overlong.penalty=1"])
    config = config.replace(limits=config.limits.replace(max_episode_tokens=100))
    one, other = split_episode(played_episode([3, 2], 1.0), [1, 1]), played_episode([4], 0.0)
    batch = collate_groups([make_group([one, other])], config)
    assert batch.episode_ids.tolist() == [0, 0, 1]
    assert batch.episode_rows() == [[0, 1], [2]]
    assert batch.rewards.tolist() == pytest.approx([1 - 0.14, 1 - 0.14, -0.06]), "5 + 9 tokens, and 6"
    parts = make_minibatches(compute_advantages(batch, config), 3, config)
    assert [part.episode_ids.tolist() for part in parts] == [[0, 0], [1]]


def test_anchor_state_of_two_sequences_counts_an_episode_once() -> None:
    """Both sequences of the first episode begin in the same state, which the second episode visits too."""
    first = played_episode([2], 1.0)
    again = split_episode(played_episode([2, 2], 0.0), [1, 1])
    again.branches[0].messages, again.branches[0].given_replies = again.messages[:], []
    config = parse_config("", ["algorithm.advantage_estimator=turn"])
    batch = collate_groups([make_group([again, first])], config)
    assert index_anchor_states([make_group([again, first])])[0][2] == 0
    advantages = compute_advantages(batch, config).advantages
    assert advantages is not None
    assert advantages[batch.mask].tolist() == pytest.approx([-0.5] * 4 + [0.5] * 2)


def test_training_data_of_an_episode_covers_all_its_sequences() -> None:
    config = parse_config("", ["algorithm.advantage_estimator=group_mean"])
    one, other = split_episode(played_episode([3, 2], 1.0), [1, 1]), played_episode([4], 0.0)
    batch = compute_advantages(collate_groups([make_group([one, other])], config), config)
    trained = TrainedBatch([one, other], batch, num_minibatches=2)
    for index, part in enumerate(make_minibatches(batch, 2, config)):
        trained.add_logprobs(index, part.logprobs + torch.tensor(0.25))
    first, second = trained.trained_episodes([other, one])
    assert (first.number, first.reward, first.optimizer_steps) == (2, 1.0, 0)
    assert (second.number, second.reward, second.optimizer_steps) == (1, 0.0, 1)
    assert first.logprobs == pytest.approx([-token / 100 + 0.25 for token in (7, 8, 9, 12, 13)])
    assert first.advantages == (0.5,)
    shown = first.token_advantages(one)
    assert [at for at, value in enumerate(shown) if value == 0.5] == [2, 3, 4, 12, 13]
    assert len(shown) == 5 + 9
