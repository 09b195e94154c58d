"""Tests of episodes of several token sequences: counts, and the stored form."""

from pathlib import Path

from support.branching import played_episode, split_episode
from understudy.core.messages import Message
from understudy.core.tasks import Score
from understudy.core.trajectory import Trajectory, read_trajectories, trajectory_to_jsonl, write_trajectories
from understudy.runs.storage.episode_store import strip_tokens

STORED = (
    b'{"task_id":"t","seed":3,"messages":[{"role":"user","content":"Hi."},{"role":"assistant","content":"Yes."}],'
    b'"tokens":[1,2,3],"mask":[false,true,true],"logprobs":[0.0,-1.0,-2.0],"score":{"reward":1.0},"weights_version":4,'
    b'"event_counts":{"text":1}}\n'
)
"""A line that an earlier version wrote."""


def test_episode_of_one_sequence_is_stored_as_before(tmp_path: Path) -> None:
    episode = Trajectory("t", seed=3, score=Score(reward=1.0), weights_version=4, event_counts={"text": 1})
    episode.observe([Message(role="user", content="Hi.")], [1])
    episode.act(Message(role="assistant", content="Yes."), [2, 3], [-1.0, -2.0])
    assert trajectory_to_jsonl(episode) == STORED
    file = tmp_path / "episodes.jsonl"
    file.write_bytes(STORED)
    (read,), errors = read_trajectories(file)
    assert (read, errors) == (episode, [])
    assert read.sequences == [read]


def test_sequences_are_stored_and_counted(tmp_path: Path) -> None:
    whole = played_episode([3, 1, 2], 0.5)
    episode = split_episode(whole, [1, 2])
    write_trajectories(tmp_path / "episodes.jsonl", [episode])
    assert read_trajectories(tmp_path / "episodes.jsonl")[0] == [episode]
    assert episode.sequences == [episode, *episode.branches]
    assert (episode.num_turns, episode.num_sampled_tokens) == (3, 6)
    assert episode.num_tokens == 5 + 12
    assert [list(sequence.reply_spans()) for sequence in episode.sequences] == [[(2, 5)], [(7, 8), (10, 12)]]
    assert episode.branches[0].reply_indices == [3, 5]
    assert strip_tokens(episode).num_tokens == 0
    assert episode.num_tokens == 17
