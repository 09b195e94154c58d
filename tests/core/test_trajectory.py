"""Tests of episodes of several token sequences: counts, and the stored form."""

import random
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


def test_each_sampled_token_is_recorded_once_after_its_prompt() -> None:
    """Random programs continue a conversation, drop or change a part of it, repeat a prompt, or start another one."""
    for seed in range(100):
        draw, episode = random.Random(seed), Trajectory("t")
        calls, histories = list[tuple[list[int], list[int]]](), list[tuple[list[Message], list[int]]]()
        for number in range(draw.randint(1, 12)):
            messages, prompt = draw.choice([*histories, ([], [])])
            num_known = len(messages)
            if messages and draw.random() < 0.3:  # rewritten: another text, and other tokens from some place on
                num_known = 0
                messages = [*messages[:-1], Message(role="user", content=f"rewritten {number}")]
                prompt = [*prompt[: draw.randrange(len(prompt) + 1)], draw.randrange(3)]
            new = [draw.randrange(3) for _ in range(draw.randint(1, 3))]
            messages, prompt = [*messages, Message(role="user", content=str(new))], [*prompt, *new]
            for _ in range(draw.choice([1, 1, 2])):
                tokens = [draw.randrange(3) for _ in range(draw.randint(1, 3))]
                reply = Message(role="assistant", content=f"reply {number}")
                episode.add_call(messages, (), prompt, num_known, reply, tokens, [-1.0] * len(tokens))
                calls.append((prompt, tokens))
                histories.append(([*messages, reply], [*prompt, *tokens]))
        found = [
            (sequence.tokens[:start], sequence.tokens[start:end])
            for sequence in episode.sequences
            for start, end in sequence.reply_spans()
        ]
        assert sorted(found) == sorted(calls)
        assert all(len(s.reply_indices) == len([*s.reply_spans()]) for s in episode.sequences)
        assert episode.num_turns == len(calls)
