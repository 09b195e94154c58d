"""Trajectory: the record of one episode, to learn from and to look at.

Tokens are one flat, append-only sequence: what the engine was given and what it sampled, never re-tokenized text.
`logprobs[t]` is the log-probability of `tokens[t]` given `tokens[:t]` under the policy that sampled it, at the sampling
temperature; it is 0.0 where `mask` is False. `mask[0]` is always False.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from understudy.errors import Fault
from understudy.messages import Message
from understudy.tasks import Score


class Stop(StrEnum):
    """Why an episode ended."""

    DONE = "done"
    """The user, or the environment, ended it."""
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    """There is no room for a reply: the episode has `limits.max_tokens`, or fills the model's context."""
    FAULT = "fault"
    """The machinery failed; `Trajectory.fault` says whose."""


@dataclass(slots=True)
class Trajectory:
    """One episode. Grows by `observe` and `act`; `score` and `stop` close it."""

    task: str
    domain: str = ""
    family: str = ""
    difficulty: str = ""
    seed: int = 0
    messages: list[Message] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    score: Score | None = None
    stop: Stop | None = None
    fault: Fault | None = None
    error: str = ""
    version: int = 0
    """Version of the weights that sampled the last reply."""
    penalty: float = 0.0
    """What is taken off the reward to train on; the score, which is what evaluation reads, is without it."""
    counts: dict[str, int] = field(default_factory=Counter)
    """Events: replies by parse status, repairs and malformed calls by kind, tool errors by kind."""
    seconds: dict[str, float] = field(default_factory=dict)

    def observe(self, messages: Iterable[Message], tokens: Sequence[int] = ()) -> None:
        """Append what the agent is shown, and its tokens, where there are any."""
        self.messages += messages
        self.tokens += tokens
        self.mask += [False] * len(tokens)
        self.logprobs += [0.0] * len(tokens)

    def act(self, message: Message, tokens: Sequence[int] = (), logprobs: Sequence[float] = ()) -> None:
        """Append a reply of the agent with the tokens exactly as sampled."""
        if len(tokens) != len(logprobs) or (tokens and not self.tokens):
            raise ValueError(f"{len(tokens)} sampled tokens, {len(logprobs)} logprobs, after {len(self.tokens)} tokens")
        self.messages.append(message)
        self.tokens += tokens
        self.mask += [True] * len(tokens)
        self.logprobs += logprobs

    @property
    def reward(self) -> float:
        """The reward to train on; an episode without a score has none and must not be trained on."""
        if self.score is None:
            raise ValueError(f"the episode of task {self.task} has no score ({self.error or self.stop})")
        return self.score.reward + self.score.credit - self.penalty

    @property
    def turns(self) -> int:
        """Replies of the agent so far."""
        return sum(m.role == "assistant" for m in self.messages)

    def spans(self) -> Iterator[tuple[int, int]]:
        """The agent's turns as [start, end) spans of `tokens`."""
        start = None
        for i, sampled in enumerate([*self.mask, False]):
            if sampled and start is None:
                start = i
            elif not sampled and start is not None:
                yield start, i
                start = None


_ADAPTER = TypeAdapter(Trajectory)


class Stopwatch:
    """Adds the seconds spent in a `with` block to one entry of `seconds`."""

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
        f.writelines(map(line_of, trajectories))


def line_of(trajectory: Trajectory) -> bytes:
    """The trajectory as a line of JSONL."""
    return _ADAPTER.dump_json(trajectory, exclude_defaults=True) + b"\n"


def read_trajectories(path: Path) -> tuple[list[Trajectory], list[str]]:
    """The trajectories of a JSONL file, and a line for each row that is damaged (say so, and go on without it)."""
    whole, damaged = numbered_trajectories(path)
    return list(whole.values()), list(damaged.values())


def numbered_trajectories(path: Path) -> tuple[dict[int, Trajectory], dict[int, str]]:
    """The same by the number of their line, from 1."""
    whole, damaged = dict[int, Trajectory](), dict[int, str]()
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                whole[number] = _ADAPTER.validate_python(json.loads(line))
            except (ValidationError, json.JSONDecodeError, UnicodeDecodeError) as e:
                damaged[number] = f"{path}:{number}: not a trajectory: {str(e).splitlines()[0]}"
    return whole, damaged
