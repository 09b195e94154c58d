"""Checks of an engine: sampler and trainer compute the same log-probabilities, before and after an update.

The agent plays scripted conversations with the engine. The episodes are concurrent and share prefixes. Some replies
are complete, and some are truncated.
"""

import asyncio
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from understudy.algorithms.advantages import token_weights
from understudy.algorithms.batch import Batch, collate
from understudy.algorithms.config import LossConfig
from understudy.core.errors import RolloutError
from understudy.core.messages import Message, ToolSpec
from understudy.core.trajectory import Trajectory
from understudy.engines.interface import Engine, SamplingParams, StreamingSampler
from understudy.engines.process_group import SINGLE_PROCESS, ProcessGroup
from understudy.formats import ChatFormat, FormatTokenizer
from understudy.rollouts.agent import EngineAgent
from understudy.rollouts.rollout import rollout
from understudy.train.certify.audit import audit_tokens
from understudy.train.certify.certificate import CertificateCheck, make_check
from understudy.train.certify.conversations import LIMITS, SEVERAL_CALLS, TOOLS, UNICODE, ScriptedEnvironment
from understudy.train.certify.token_diff import first_mismatch, format_logprob_diff

MAX_REPLY_TOKENS, CUT_REPLY_TOKENS = 8, 5
"""Maximum tokens of a reply. The second limit is for every second episode, so that some replies are truncated."""
EPISODES_PER_CONVERSATION = 2
"""Concurrent episodes of each conversation."""
LEARNING_RATE = 2e-3
"""Learning rate of the update. It is large, so that the effect of the update exceeds rounding."""
MAX_UPDATES = 4
"""Maximum number of updates until the log-probabilities have changed enough."""
MIN_UPDATE_DIFF_FACTOR = 3.0
"""Minimum mean change of the log-probabilities by the updates, as a multiple of the engine's mean tolerance."""
ENGLISH = (
    "The sun had just set when the children came home from the river. Their mother stood at the door of the house and "
    "asked them why they were so late. They said that they had found a small dog near the old bridge, and that it did "
    "not stop following them. She looked at the dog for a long time, and then she went inside to get some water and a "
    "piece of bread."
)
"""A text that the weights of every language model predict, if it is in the tokens that they were trained on."""
MIN_ENGLISH_SHARE = 0.5
"""How much more probable English must be than random tokens, as a share of the logarithm of the vocabulary's size.

Measured with SmolLM2-135M and Qwen2.5-0.5B: 0.94 to 1.03 with their own tokenizers, 0.01 to 0.40 with shuffled ones and
those of other models.
"""
TRAINED_LOSS = 1.0
"""Loss of random tokens above that of a uniform distribution, in nats: from here on, weights are taken for trained.

Random weights have less than 0.6, and the two models above 1.7 to 3.2 with any tokenizer.
"""
MIN_VOCABULARY = 1000
"""Vocabularies of fewer tokens are not checked: they are those of test models, which know no English."""


ToolLookup = Callable[[str], Sequence[ToolSpec]]
"""Returns the tools in the prompts of the domain with this name."""


@dataclass(frozen=True, slots=True)
class LogprobDiff:
    """The absolute differences between two log-probabilities of each token, in nats.

    The largest is at `row` and `column` of the batch.
    """

    largest: float
    mean: float
    tokens: int
    row: int
    column: int

    def __str__(self) -> str:
        return f"largest {self.largest:.1e}, mean {self.mean:.1e}, {self.tokens} tokens"


def logprob_diff(first: Batch, second: Batch) -> LogprobDiff:
    """Return the differences between the log-probabilities of two batches of equal tokens. NaN counts as infinity."""
    rows, columns = (index.tolist() for index in first.mask.nonzero(as_tuple=True))
    values = (first.logprobs - second.logprobs)[first.mask].abs().tolist()
    diffs = [math.inf if math.isnan(value) else value for value in values]
    worst = max(range(len(diffs)), key=diffs.__getitem__)
    return LogprobDiff(diffs[worst], sum(diffs) / len(diffs), len(diffs), rows[worst], columns[worst])


@dataclass(frozen=True, slots=True)
class CertificationTarget:
    """An engine to certify, with its model's chat format. `tolerance_factor` multiplies the engine's tolerance."""

    engine: Engine
    format: ChatFormat
    vocabulary: FormatTokenizer
    sampling: SamplingParams
    tolerance_factor: float = 1.0

    @property
    def temperature(self) -> float:
        """The temperature of the log-probabilities: that of sampling, or 1 if sampling is greedy."""
        return self.sampling.temperature or 1.0


async def sample_scripted_conversations(target: CertificationTarget, replay: bool = True) -> list[Trajectory]:
    """Play two scripted conversations with sampled replies, and return the episodes.

    With `replay`, the two episodes with seed 0 are then played again, so that speculation can draft from their first
    play. Raise RolloutError if an episode fails.
    """
    longest = min(target.sampling.max_response_tokens, MAX_REPLY_TOKENS)
    agents = [
        EngineAgent(target.engine, target.format, target.sampling.replace(max_response_tokens=n))
        for n in (longest, min(longest, CUT_REPLY_TOKENS))
    ]
    episodes: list[Trajectory] = []
    for seeds in (range(EPISODES_PER_CONVERSATION), range(int(replay))):
        plays = [(talk, seed) for talk in (SEVERAL_CALLS, UNICODE) for seed in seeds]
        playing = (
            rollout(talk.task, ScriptedEnvironment(talk), agents[seed % 2], LIMITS, seed) for talk, seed in plays
        )
        episodes += await asyncio.gather(*playing)
    for episode in episodes:
        if episode.score is None:
            raise RolloutError(
                f"certification of the engine: an episode failed: {episode.error}", episode.fault or "engine"
            )
    return episodes


async def check_episodes(
    target: CertificationTarget, episodes: Sequence[Trajectory], tools: ToolLookup, name: str
) -> tuple[list[CertificateCheck], LogprobDiff]:
    """Return the checks of episodes, and the differences between the sampler's and the trainer's log-probabilities.

    The engine must still have the weights that sampled the episodes. `name` is the subject of the checks. With several
    processes, all must pass the same episodes, because each computes a share of their log-probabilities.
    """
    batch = collate(episodes, temperature=target.temperature)
    forwarded = await target.engine.compute_logprobs(batch)
    decode = target.vocabulary.decode
    audited = [problem for e in episodes for problem in audit_tokens(e, target.format, tools(e.domain), decode)]
    replies = sum(episode.num_turns for episode in episodes)
    truncated = sum(episode.event_counts.get("truncated", 0) for episode in episodes)
    measurements = f"{len(episodes)} episodes, {replies} replies, {truncated} truncated"
    diff = logprob_diff(batch, forwarded)
    checks = [
        make_check(name, "tokens and masks match the messages", measurements, audited),
        make_check(
            name, "the batch equals the episodes", f"{len(batch)} rows", [*_differing_rows(episodes, batch, forwarded)]
        ),
        _check_logprobs(target, name, batch, forwarded, diff),
    ]
    return checks, diff


def _differing_rows(episodes: Sequence[Trajectory], batch: Batch, forwarded: Batch) -> Iterator[str]:
    """Yield a problem for each row that differs from its episode.

    A log-probability of a token that was not sampled is also a problem.
    """
    sequences = [(episode, sequence) for episode in episodes for sequence in episode.sequences]
    for row, (episode, sequence) in enumerate(sequences):
        where = f"row {row}, task {episode.task_id}"
        count = len(sequence.tokens)
        for what, in_episode, in_batch in (
            ("tokens", sequence.tokens, batch.tokens[row]),
            ("mask", sequence.mask, batch.mask[row]),
        ):
            if (at := first_mismatch(in_episode, in_batch[:count].tolist())) is not None:
                yield f"{where}: the {what} of batch and episode differ at position {at}"
        if any(sequence.mask[:1]) or bool(batch.mask[row, count:].any()):
            yield f"{where}: the mask is true at the first token or in the padding"
        for who, logprobs in (("sampler", batch.logprobs[row]), ("trainer", forwarded.logprobs[row])):
            beside = (logprobs != 0) & ~batch.mask[row]
            if bool(beside.any()):
                at = int(beside.nonzero()[0])
                yield f"{where}: the {who} has a log-probability at position {at}, whose token was not sampled"


def _check_logprobs(
    target: CertificationTarget, name: str, sampled: Batch, trained: Batch, diff: LogprobDiff
) -> CertificateCheck:
    """Check that the differences are within the tolerance. If not, show the tokens around the largest one."""
    allowed, factor = target.engine.tolerance, target.tolerance_factor
    largest, mean = allowed.max_diff * factor, allowed.mean_diff * factor
    count = int(sampled.lengths[diff.row])
    tensors = sampled.tokens, sampled.mask, sampled.logprobs, trained.logprobs
    tokens, mask, sampler, trainer = (tensor[diff.row, :count].tolist() for tensor in tensors)
    table = format_logprob_diff(tokens, mask, sampler, trainer, diff.column, target.vocabulary.decode)
    holds = diff.largest <= largest and diff.mean <= mean
    figures = f"{diff}; allowed: largest {largest:.1e}, mean {mean:.1e}"
    return CertificateCheck(
        subject=name,
        name="log-probabilities agree",
        passed=holds,
        measurements=figures,
        diff="" if holds else f"row {diff.row}, at the largest difference\n{table}",
    )


async def check_tokenizer(target: CertificationTarget, name: str) -> CertificateCheck:
    """Check that the tokenizer is the one that the weights were trained with.

    Trained weights find plain English much more probable than random tokens. Random weights pass, since they have no
    tokenizer of their own.
    """
    label, size = "the tokenizer fits the weights", len(target.vocabulary.token_texts())
    if size < MIN_VOCABULARY:
        return make_check(name, label, f"not checked: a vocabulary of {size} tokens", [])
    prompt = target.format.encode([Message(role="user", content="Tell me a short story.")], (), ())
    reply = target.format.encode_reply(Message(role="assistant", content=ENGLISH))
    rng, other = random.Random(0), dict[int, int]()
    shuffled = [other.setdefault(token, rng.randrange(size)) for token in reply]
    longest = cast(StreamingSampler, target.engine).context_length
    rows = [[*prompt, *tokens][:longest] for tokens in (reply, shuffled)]
    mask = ([False] * len(prompt) + [True] * len(reply))[: len(rows[0])]
    scored = await target.engine.compute_logprobs(Batch.from_rows(rows, [mask, mask]))
    english, noise = (
        -float(logprobs[mask].mean()) for logprobs, mask in zip(scored.logprobs, scored.mask, strict=True)
    )
    gain, is_trained = noise - english, noise > math.log(size) + TRAINED_LOSS
    wrong = is_trained and gain < MIN_ENGLISH_SHARE * math.log(size)
    figures = f"English {english:.1f} nats a token, random tokens {noise:.1f}"
    problem = (
        "tokenizer.json is not that of these weights, or the weights are damaged: plain English is to them almost as "
        "improbable as random tokens; copy both from the same model"
    )
    return make_check(name, label, figures, [problem] if wrong else [])


def _conversation_tools(domain: str) -> Sequence[ToolSpec]:
    return TOOLS


async def check_sampler(
    target: CertificationTarget, name: str, process_group: ProcessGroup = SINGLE_PROCESS, replay: bool = True
) -> list[CertificateCheck]:
    """Return the checks that do not change the engine's weights.

    Each process samples its own episodes, and all processes get the checks of all episodes. `replay` is that of
    `sample_scripted_conversations`.
    """
    sampled = process_group.all_gather(await sample_scripted_conversations(target, replay))
    episodes = [episode for part in sampled for episode in part]
    return (await check_episodes(target, episodes, _conversation_tools, name))[0]


async def check_engine(target: CertificationTarget, name: str) -> list[CertificateCheck]:
    """Return the checks of a new engine before and after one update, which changes its weights."""
    episodes = await sample_scripted_conversations(target)
    before, _ = await check_episodes(target, episodes, _conversation_tools, name)
    later = f"{name}, updated"
    update = await _check_update(target, episodes, name)
    later_episodes = await sample_scripted_conversations(target, replay=False)
    after, _ = await check_episodes(target, later_episodes, _conversation_tools, later)
    return [*before, update, *after, _check_versions(episodes, later_episodes, later)]


async def _check_update(target: CertificationTarget, episodes: Sequence[Trajectory], name: str) -> CertificateCheck:
    """Make SFT updates on the last episode, and check that its log-probabilities change from those of sampling.

    One update suffices for trained weights. Random ones move less, so up to `MAX_UPDATES` are made.
    """
    engine = target.engine
    batch = collate(episodes[-1:], temperature=target.temperature)
    weighed = batch.replace(advantages=token_weights(batch.mask, "token_mean"))
    least = MIN_UPDATE_DIFF_FACTOR * engine.tolerance.mean_diff * target.tolerance_factor
    for _ in range(MAX_UPDATES):
        await engine.update([weighed], LossConfig(kind="nll"), LEARNING_RATE)
        change = logprob_diff(batch, await engine.compute_logprobs(batch))
        if change.mean > least:
            break
    sound = least < change.mean < math.inf
    problems = [] if sound else ["the log-probabilities changed too little, or to a value that is not finite"]
    return make_check(name, "an update changes them", f"{change}; required mean: {least:.1e}", problems)


def _check_versions(before: Sequence[Trajectory], after: Sequence[Trajectory], name: str) -> CertificateCheck:
    """Check that replies after the update have a higher weights version."""
    last, first = max(e.weights_version for e in before), min(e.weights_version for e in after)
    problems = [] if first > last else ["the weights version of replies did not increase"]
    measurements = f"version {last} before the update, {first} after it"
    return make_check(name, "replies report the weights version", measurements, problems)
