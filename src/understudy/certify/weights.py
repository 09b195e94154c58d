"""What an engine has to hold: sampler and trainer give a token the same log-probability, before and after an update.

All is measured on episodes that the real agent has played with the engine: several at once, which share prefixes, with
replies that stop and replies that are cut off.
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from understudy.agent import EngineAgent
from understudy.algorithms.advantages import token_weights
from understudy.algorithms.options import Loss
from understudy.batch import Batch, collate
from understudy.certify.audit import audit
from understudy.certify.certificate import Check, outcome
from understudy.certify.differences import first_difference, logprobs_beside
from understudy.certify.talks import LIMITS, SEVERAL_CALLS, TOOLS, UNICODE, Script
from understudy.engines.base import Engine, Sampling
from understudy.errors import RolloutError
from understudy.formats import ChatFormat, Vocabulary
from understudy.messages import ToolSpec
from understudy.rollout import rollout
from understudy.trajectory import Trajectory

REPLY, CUT = 12, 5
"""Tokens of a sampled reply at most, and of one in every second episode, which is so cut off for sure."""
EPISODES = 2
"""Of each talk, side by side."""
RATE = 2e-3
"""Learning rate of the one update: large, so that what it changes cannot be taken for rounding."""
MOVED = 3.0
"""Tolerances that an update has to move the mean log-probability by."""


Shown = Callable[[str], Sequence[ToolSpec]]
"""The tools that an agent is shown in tasks of a domain."""


@dataclass(frozen=True, slots=True)
class Gap:
    """How far two readings of the trained tokens of a batch are apart; `row` and `place` are of the largest."""

    largest: float
    mean: float
    tokens: int
    row: int
    place: int

    def __str__(self) -> str:
        return f"largest {self.largest:.1e}, mean {self.mean:.1e}, {self.tokens} tokens"


def gap(one: Batch, other: Batch) -> Gap:
    """The distance of two batches of the same tokens. What is not a number is infinitely far apart."""
    rows, columns = (index.tolist() for index in one.mask.nonzero(as_tuple=True))
    values = (one.logprobs - other.logprobs)[one.mask].abs().tolist()
    apart = [math.inf if math.isnan(value) else value for value in values]
    worst = max(range(len(apart)), key=apart.__getitem__)
    return Gap(apart[worst], sum(apart) / len(apart), len(apart), rows[worst], columns[worst])


@dataclass(frozen=True, slots=True)
class Subject:
    """An engine, and the format that its model speaks; `slack` is how many times the engine's tolerance is allowed."""

    engine: Engine
    format: ChatFormat
    vocabulary: Vocabulary
    sampling: Sampling
    slack: float = 1.0

    @property
    def temperature(self) -> float:
        """That of the log-probabilities."""
        return self.sampling.temperature or 1.0


async def play(subject: Subject) -> list[Trajectory]:
    """Episodes of two talks, sampled side by side; then the first of each again, when guesses know what it says.

    An episode that fails is a `RolloutError`.
    """
    longest = min(subject.sampling.max_tokens, REPLY)
    agents = [
        EngineAgent(subject.engine, subject.format, subject.sampling.replace(max_tokens=n))
        for n in (longest, min(longest, CUT))
    ]
    episodes: list[Trajectory] = []
    for seeds in (range(EPISODES), range(1)):
        pairs = [(talk, seed) for talk in (SEVERAL_CALLS, UNICODE) for seed in seeds]
        playing = (rollout(talk.task, Script(talk), agents[seed % 2], LIMITS, seed) for talk, seed in pairs)
        episodes += await asyncio.gather(*playing)
    for episode in episodes:
        if episode.score is None:
            raise RolloutError(
                f"an episode to certify the engine with failed: {episode.error}", episode.fault or "engine"
            )
    return episodes


async def compare(subject: Subject, episodes: Sequence[Trajectory], tools: Shown, name: str) -> tuple[list[Check], Gap]:
    """The checks of sampled episodes under the weights that sampled them. Nothing is changed."""
    batch = collate(episodes, temperature=subject.temperature)
    forwarded = await subject.engine.forward(batch)
    decode = subject.vocabulary.decode
    audited = [problem for e in episodes for problem in audit(e, subject.format, tools(e.domain), decode)]
    replies = sum(episode.turns for episode in episodes)
    cut = sum(episode.counts.get("cut", 0) for episode in episodes)
    said = f"{len(episodes)} episodes, {replies} replies, {cut} cut off"
    apart = gap(batch, forwarded)
    checks = [
        outcome(name, "tokens and masks are the messages'", said, audited),
        outcome(name, "the batch holds the episodes", f"{len(batch)} rows", [*_rows(episodes, batch, forwarded)]),
        _agree(subject, name, batch, forwarded, apart),
    ]
    return checks, apart


def _rows(episodes: Sequence[Trajectory], batch: Batch, forwarded: Batch) -> Iterator[str]:
    """Where a row is not its episode, or a log-probability stands where nothing was sampled."""
    for row, episode in enumerate(episodes):
        of = f"row {row}, task {episode.task}"
        count = len(episode.tokens)
        for what, theirs, ours in (
            ("tokens", episode.tokens, batch.tokens[row]),
            ("mask", episode.mask, batch.mask[row]),
        ):
            if (at := first_difference(theirs, ours[:count].tolist())) is not None:
                yield f"{of}: the {what} of the batch differ from the episode's at {at}"
        if episode.mask[0] or bool(batch.mask[row, count:].any()):
            yield f"{of}: the mask is set at its first token, or beyond its last"
        for who, logprobs in (("sampler", batch.logprobs[row]), ("trainer", forwarded.logprobs[row])):
            beside = (logprobs != 0) & ~batch.mask[row]
            if bool(beside.any()):
                yield f"{of}: the {who} has a log-probability at {int(beside.nonzero()[0])}, which was not sampled"


def _agree(subject: Subject, name: str, sampled: Batch, trained: Batch, apart: Gap) -> Check:
    """Whether the log-probabilities are within the tolerance; if not, the worst token in its surroundings."""
    allowed, slack = subject.engine.tolerance, subject.slack
    largest, mean = allowed.largest * slack, allowed.mean * slack
    count = int(sampled.lengths[apart.row])
    tensors = sampled.tokens, sampled.mask, sampled.logprobs, trained.logprobs
    tokens, mask, ours, theirs = (tensor[apart.row, :count].tolist() for tensor in tensors)
    diff = logprobs_beside(tokens, mask, ours, theirs, apart.place, subject.vocabulary.decode)
    holds = apart.largest <= largest and apart.mean <= mean
    figures = f"{apart}; allowed {largest:.1e} and {mean:.1e}"
    return Check(
        of=name,
        name="log-probabilities agree",
        ok=holds,
        figures=figures,
        diff="" if holds else f"row {apart.row}, the token that is farthest apart\n{diff}",
    )


def _of_talks(domain: str) -> Sequence[ToolSpec]:
    return TOOLS


async def check_sampler(subject: Subject, name: str) -> list[Check]:
    """The checks that leave an engine as it is."""
    return (await compare(subject, await play(subject), _of_talks, name))[0]


async def check_engine(subject: Subject, name: str) -> list[Check]:
    """The checks of a fresh engine, which is moved by one update on the way."""
    episodes = await play(subject)
    before, _ = await compare(subject, episodes, _of_talks, name)
    later = f"{name}, updated"
    moved = await _update(subject, episodes, name)
    after, _ = await compare(subject, again := await play(subject), _of_talks, later)
    return [*before, moved, *after, _newer(episodes, again, later)]


async def _update(subject: Subject, episodes: Sequence[Trajectory], name: str) -> Check:
    """One step of imitation on the last two episodes, and how far it moves what the trainer says of them."""
    engine = subject.engine
    batch = collate(episodes[-2:], temperature=subject.temperature)
    weighed = batch.with_(advantages=token_weights(batch.mask, "token"))
    before = await engine.forward(batch)
    await engine.update([weighed], Loss(kind="nll"), RATE)
    moved, least = gap(before, await engine.forward(batch)), MOVED * engine.tolerance.mean * subject.slack
    sound = least < moved.mean < math.inf
    problems = [] if sound else ["what was sampled is as likely as before, or its likelihood is no number"]
    return outcome(name, "an update moves them", f"{moved}; needed {least:.1e} on average", problems)


def _newer(before: Sequence[Trajectory], after: Sequence[Trajectory], name: str) -> Check:
    """Whether replies say that newer weights have sampled them."""
    last, first = max(e.version for e in before), min(e.version for e in after)
    problems = [] if first > last else [f"version {last} before the update, {first} after it"]
    return outcome(name, "replies tell the weights' version", f"{last}, then {first}", problems)
