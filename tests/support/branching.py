"""Episodes of several token sequences."""

from collections.abc import Sequence
from dataclasses import replace

from understudy.core.messages import Message
from understudy.core.tasks import Score
from understudy.core.trajectory import Branch, Trajectory


def played_episode(replies: Sequence[int], reward: float, start: int = 5) -> Trajectory:
    """Return an episode with a reply of each length, after two prompt tokens each. Token ids count up from `start`."""
    episode, at = Trajectory("t", score=Score(reward=reward)), start
    for number, length in enumerate(replies):
        episode.observe([Message(role="user", content=f"question {number}")], [at, at + 1])
        tokens = [*range(at + 2, at + 2 + length)]
        episode.act(Message(role="assistant", content=f"reply {number}"), tokens, [-token / 100 for token in tokens])
        at += 2 + length
    return episode


def split_episode(episode: Trajectory, num_replies: Sequence[int]) -> Trajectory:
    """Return the same episode as sequences of so many replies each. The prompt of each has the earlier replies."""
    bounds = [(0, 0), *zip(episode.reply_indices, (end for _, end in episode.reply_spans()), strict=True)]
    parts, done = list[Branch](), 0
    for count in num_replies:
        (_, start), (last, end) = bounds[done], bounds[done + count]
        parts.append(
            Branch(
                messages=episode.messages[: last + 1],
                tokens=episode.tokens[:end],
                mask=[sampled and at >= start for at, sampled in enumerate(episode.mask[:end])],
                logprobs=[logprob * (at >= start) for at, logprob in enumerate(episode.logprobs[:end])],
                given_replies=episode.reply_indices[:done],
            )
        )
        done += count
    first, *branches = parts
    own = {name: getattr(first, name) for name in ("messages", "tokens", "mask", "logprobs", "given_replies")}
    return replace(episode, **own, branches=branches)
