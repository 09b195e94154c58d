"""Trajectory: the record of one episode, for training and inspection.

`tokens` is one flat, append-only sequence of prompt tokens and sampled tokens. Text is never tokenized twice.
`logprobs[t]` is the log-probability of `tokens[t]` given `tokens[:t]` under the model that sampled it, at the sampling
temperature. It is 0.0 where `mask` is False. `mask[0]` is always False. Where a sampling mask was recorded, the
log-probability is normalized over the tokens of the mask.

An episode has one sequence, or several: an agent may call a second model, or rewrite its history. Each sampled token is
in the mask of one sequence, after exactly the tokens that it was sampled from.
"""

import itertools
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from pydantic import TypeAdapter
from pydantic_core import from_json

from understudy.core.errors import ExceptionReport, Fault
from understudy.core.files import open_bytes
from understudy.core.messages import Message, ToolSpec, message_to_openai
from understudy.core.sampling_masks import SamplingMask, SamplingMasks
from understudy.core.tasks import Score


class StopReason(StrEnum):
    """Why an episode ended."""

    DONE = "done"
    """The user or the environment ended the episode."""
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    """No room for a reply: the episode reached `limits.max_episode_tokens` or filled the model's context."""
    INVALID_REPLIES = "invalid_replies"
    """`limits.max_invalid_replies` replies in a row had calls that cannot be parsed."""
    FAULT = "fault"
    """The infrastructure failed; `Trajectory.fault` names the component."""


class TokenSequence:
    """Messages and their tokens, to which `observe` and `act` append. `tokens`, `mask` and `logprobs` have one length.

    `Trajectory` and `Branch` declare the fields, so that the fields of a stored episode keep their order.
    """

    __slots__ = ()
    messages: list[Message]
    tokens: list[int]
    mask: list[bool]
    logprobs: list[float]
    given_replies: list[int]
    tools: list[ToolSpec] | None
    sampling_masks: list[SamplingMask]

    def observe(self, messages: Iterable[Message], tokens: Sequence[int] = ()) -> None:
        """Append messages that the agent sees, and their tokens if there are any. Raise TypeError for other objects."""
        messages = list(messages)
        for message in messages:
            _require_message("observe", message)
        first = len(self.messages)
        self.given_replies += [i for i, message in enumerate(messages, first) if message.role == "assistant"]
        self.messages += messages
        self.tokens += tokens
        self.mask += [False] * len(tokens)
        self.logprobs += [0.0] * len(tokens)

    def act(
        self,
        message: Message,
        tokens: Sequence[int] = (),
        logprobs: Sequence[float] = (),
        sampling_masks: Sequence[SamplingMask] = (),
    ) -> None:
        """Append a reply of the agent with its tokens exactly as sampled.

        Raise TypeError if the reply is no Message, and ValueError if its role is not "assistant", if the number of
        `logprobs`, or of `sampling_masks` if there are any, differs from that of `tokens`, if a mask lacks its token,
        or if no prompt token comes before them.
        """
        _require_message("act", message)
        if message.role != "assistant":
            raise ValueError(f'act(message) got a message of role "{message.role}"; a reply has the role "assistant"')
        if len(tokens) != len(logprobs) or (tokens and not self.tokens):
            raise ValueError(f"{len(tokens)} sampled tokens, {len(logprobs)} logprobs, after {len(self.tokens)} tokens")
        if sampling_masks and len(sampling_masks) != len(tokens):
            raise ValueError(f"{len(tokens)} sampled tokens, {len(sampling_masks)} sampling masks")
        if outside := [t for t, mask in zip(tokens, sampling_masks, strict=False) if mask and t not in mask]:
            raise ValueError(f"the sampled token {outside[0]} is not in its sampling mask")
        if sampling_masks or self.sampling_masks:
            unmasked = () if self.sampling_masks else [()] * sum(self.mask)
            self.sampling_masks += [*unmasked, *(sampling_masks or [()] * len(tokens))]
        self.messages.append(message)
        self.tokens += tokens
        self.mask += [True] * len(tokens)
        self.logprobs += logprobs

    @property
    def reply_indices(self) -> list[int]:
        """Indices of the agent's replies in `messages`."""
        given = set(self.given_replies)
        return [i for i, message in enumerate(self.messages) if message.role == "assistant" and i not in given]

    @property
    def num_invalid_replies(self) -> int:
        """Number of the last replies in a row that have a call which cannot be parsed."""
        replies = (self.messages[i] for i in reversed(self.reply_indices))
        invalid = (any(call.parse_error for call in reply.tool_calls) for reply in replies)
        return sum(1 for _ in itertools.takewhile(bool, invalid))

    def reply_spans(self) -> Iterator[tuple[int, int]]:
        """Yield the agent's turns as [start, end) spans of `tokens`."""
        return sampled_spans(self.mask)

    def swap(self, other: "TokenSequence") -> None:
        """Exchange messages and tokens with another sequence."""
        for name in TokenSequence.__annotations__:
            own = getattr(self, name)
            setattr(self, name, getattr(other, name))
            setattr(other, name, own)

    def shown_tools(self, tools: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
        """Return the tools in the prompt. `tools` are those of the environment."""
        return tools if self.tools is None else self.tools


@dataclass(slots=True)
class Branch(TokenSequence):
    """A further sequence of an episode, beside the one that its `Trajectory` is."""

    messages: list[Message] = field(default_factory=list)
    tools: list[ToolSpec] | None = None
    """The tools in the prompt of its last reply. None for those of the environment."""
    tokens: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    given_replies: list[int] = field(default_factory=list)
    """As in `Trajectory`."""
    sampling_masks: SamplingMasks = field(default_factory=list)


@dataclass(slots=True)
class Trajectory(TokenSequence):
    """One episode. `observe` and `act` extend it; `score` and `stop_reason` close it."""

    task_id: str
    domain: str = ""
    family: str = ""
    difficulty: str = ""
    seed: int = 0
    messages: list[Message] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    score: Score | None = None
    stop_reason: StopReason | None = None
    fault: Fault | None = None
    error: str = ""
    weights_version: int = 0
    """Version of the weights that sampled the last reply."""
    penalty: float = 0.0
    """Deduction from the training reward. The score, which evaluation reads, does not include it."""
    event_counts: dict[str, int] = field(default_factory=Counter)
    """Counts of events: replies by parse status, repairs and malformed calls by kind, tool errors by kind."""
    exceptions: list[ExceptionReport] = field(default_factory=list)
    """Exceptions that user code raised in the episode, one for each place in the code."""
    timings: dict[str, float] = field(default_factory=dict)
    given_replies: list[int] = field(default_factory=list)
    """Indices in `messages` of assistant messages that were not sampled here, such as the environment's greeting."""
    tools: list[ToolSpec] | None = None
    """The tools in the prompt of the last reply. None for those of the environment."""
    sampling_masks: SamplingMasks = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    """The other sequences of the episode, in the order of their first reply. Those that a program had open at the same
    time are sorted by content."""

    @property
    def sequences(self) -> list["Trajectory | Branch"]:
        """All sequences of the episode: this one, then its branches."""
        return [self, *self.branches]

    @property
    def is_ungraded(self) -> bool:
        """True if the episode ended without a fault and without a grade, as conversations of a server's log do."""
        return self.score is None and self.stop_reason not in (None, StopReason.FAULT)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all sequences."""
        return sum(len(sequence.tokens) for sequence in self.sequences)

    @property
    def num_sampled_tokens(self) -> int:
        """Number of sampled tokens of all sequences."""
        return sum(self.all_masks)

    @property
    def all_masks(self) -> list[bool]:
        """The masks of all sequences, one after the other."""
        return [sampled for sequence in self.sequences for sampled in sequence.mask]

    def add_call(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        prompt: Sequence[int],
        num_known: int,
        reply: Message,
        tokens: Sequence[int],
        logprobs: Sequence[float],
        sampling_masks: Sequence[SamplingMask] = (),
    ) -> "Trajectory | Branch":
        """Append a reply to the sequence that its prompt continues, and return it. If there is none, open a branch.

        `messages` and `prompt` are the conversation before the reply and all its tokens. A model behind an API has no
        tokens. Of the first `num_known` messages, the prompt has the tokens of an earlier call, its reply included.
        """
        sequence = self.find_sequence(messages, prompt, num_known)
        if sequence is None:
            self.branches.append(sequence := Branch())
        sequence.observe(messages[len(sequence.messages) :], prompt[len(sequence.tokens) :])
        sequence.act(reply, tokens, logprobs, sampling_masks)
        sequence.tools = list(tools)
        return sequence

    def find_sequence(
        self, messages: Sequence[Message], prompt: Sequence[int], num_known: int
    ) -> "Trajectory | Branch | None":
        """Return the sequence that the prompt of a call continues. The arguments are those of `add_call`."""
        for sequence in self.sequences:
            if len(sequence.messages) != num_known or list(prompt[: len(sequence.tokens)]) != sequence.tokens:
                continue
            if prompt or all(map(_equal_wires, sequence.messages, messages)):
                return sequence
        return None

    def add_exceptions(self, reports: Iterable[ExceptionReport]) -> None:
        """Append the reports of exceptions from places in the code that have none yet."""
        for report in reports:
            if all((report.what, report.location) != (known.what, known.location) for known in self.exceptions):
                self.exceptions.append(report)

    @property
    def reward(self) -> float:
        """The reward to train on: the score plus the shaping bonus, minus the penalty.

        Raise ValueError without a score.
        """
        if self.score is None:
            raise ValueError(f"the episode of task {self.task_id} has no score ({self.error or self.stop_reason})")
        return self.score.reward + self.score.shaping_bonus - self.penalty

    @property
    def num_turns(self) -> int:
        """Number of the agent's replies so far, in all sequences."""
        return sum(len(sequence.reply_indices) for sequence in self.sequences)


def sampled_spans(mask: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Yield the [start, end) spans in which `mask` is True."""
    start = None
    for i, sampled in enumerate([*mask, False]):
        if sampled and start is None:
            start = i
        elif not sampled and start is not None:
            yield start, i
            start = None


def _equal_wires(one: Message, other: Message) -> bool:
    return message_to_openai(one) == message_to_openai(other)


def _require_message(method: str, message: object) -> None:
    if not isinstance(message, Message):
        example = 'Message(role="assistant", content="Hello.")'
        raise TypeError(f"{method} of the episode got {message!r:.100}; it takes a Message, such as {example}")


_ADAPTER = TypeAdapter(Trajectory)


class Stopwatch:
    """Context manager that adds the seconds spent in its block to one entry of `timings`."""

    __slots__ = ("_name", "_seconds", "_start")

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self._seconds, self._name = seconds, name

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._seconds[self._name] = self._seconds.get(self._name, 0.0) + time.perf_counter() - self._start


def write_trajectories(path: Path, trajectories: Iterable[Trajectory]) -> None:
    """Append trajectories to a JSONL file."""
    with path.open("ab") as f:
        f.writelines(map(trajectory_to_jsonl, trajectories))


def trajectory_to_jsonl(trajectory: Trajectory) -> bytes:
    """Return the trajectory as one line of JSONL."""
    return _ADAPTER.dump_json(trajectory, exclude_defaults=True) + b"\n"


def read_trajectories(path: Path) -> tuple[list[Trajectory], list[str]]:
    """Return the trajectories of a JSONL file, and an error text for each damaged line."""
    trajectories, errors = read_numbered_trajectories(path)
    return list(trajectories.values()), list(errors.values())


def read_numbered_trajectories(path: Path) -> tuple[dict[int, Trajectory], dict[int, str]]:
    """Return the trajectories and the error texts of damaged lines, each by its line number from 1."""
    trajectories, errors = dict[int, Trajectory](), dict[int, str]()
    with open_bytes(path) as file:
        for number, line in enumerate(file, 1):
            try:
                trajectories[number] = _ADAPTER.validate_python(from_json(line))
            except ValueError as e:  # a ValidationError is one
                errors[number] = f"{path}:{number}: not a trajectory: {str(e).splitlines()[0]}"
    return trajectories, errors
