"""The causes of failures, the component that each belongs to, and the records of what was found."""

from collections.abc import Mapping
from typing import Literal

from understudy.core.records import Record

FailureComponent = Literal["agent", "user", "environment", "engine", "unknown"]
FailureKind = Literal[
    "malformed",
    "wrong_tool",
    "wrong_argument",
    "wrong_proposal",
    "unconfirmed",
    "policy_violation",
    "extra_write",
    "missing_write",
    "missing_read",
    "wrong_refusal",
    "gave_up",
    "wrong_fact",
    "missing_fact",
    "wrong_answer",
    "out_of_turns",
    "out_of_tokens",
    "invalid_replies",
    "user_left_early",
    "contradicted_scenario",
    "agent_fault",
    "user_fault",
    "environment_fault",
    "engine_fault",
    "unknown",
]

FAILURE_KINDS: Mapping[FailureKind, tuple[FailureComponent, str]] = {
    "malformed": ("agent", "wrote calls that cannot be parsed"),
    "wrong_tool": ("agent", "called a tool that does not exist or was not needed"),
    "wrong_argument": ("agent", "called the right tool with a wrong or missing argument"),
    "wrong_proposal": ("agent", "asked for consent to something that the user does not want"),
    "unconfirmed": ("agent", "changed something without the user's consent"),
    "policy_violation": ("agent", "tried something that the policy forbids"),
    "extra_write": ("agent", "made a change that was not wanted"),
    "missing_write": ("agent", "never tried to make a required call"),
    "missing_read": ("agent", "never looked something up that the task requires"),
    "wrong_refusal": ("agent", "refused something that was possible"),
    "gave_up": ("agent", "said nothing, or transferred the user to a human"),
    "wrong_fact": ("agent", "told the user a wrong fact"),
    "missing_fact": ("agent", "did not tell the user a required fact"),
    "wrong_answer": ("agent", "ended with another answer than gold's"),
    "out_of_turns": ("agent", "reached the limit of turns"),
    "out_of_tokens": ("agent", "reached the limit of tokens"),
    "invalid_replies": ("agent", "reached the limit of replies in a row with calls that cannot be parsed"),
    "user_left_early": ("user", "left without answering the agent's question"),
    "contradicted_scenario": ("user", "said something that the scenario does not contain"),
    "agent_fault": ("agent", "could not be asked: its endpoint failed"),
    "user_fault": ("user", "could not be asked: its model failed"),
    "environment_fault": ("environment", "failed: a tool, a server or the grader"),
    "engine_fault": ("engine", "failed while it ran the model"),
    "unknown": ("unknown", "cause: no rule applies, or the judge gave no valid verdict"),
}
"""Kind of failure -> component at fault, and a description. Together they form a sentence with the component as its
subject, such as "agent reached the limit of turns".
"""


MAX_EVIDENCE_CHARS = 200
"""Maximum length of evidence, in characters."""


def quote_evidence(text: str) -> str:
    """Return the text on one line, cut to `MAX_EVIDENCE_CHARS`.

    Control characters, which a model may have written, are replaced.
    """
    line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(text.split()))
    return line if len(line) <= MAX_EVIDENCE_CHARS else f"{line[: MAX_EVIDENCE_CHARS - 1]}…"


class FailureCause(Record):
    """An error, and the message that shows it."""

    kind: FailureKind
    message_index: int
    """Index in the episode's messages, from 0."""
    evidence: str = ""

    @property
    def component(self) -> FailureComponent:
        """The component at fault."""
        return FAILURE_KINDS[self.kind][0]


class EpisodeFailure(Record):
    """Why one episode earned less than the full reward."""

    task: str
    domain: str
    family: str
    difficulty: str
    seed: int
    """Seed of the episode. It identifies the trial of the task."""
    cause: FailureCause
    """Cause by the rules: the first error that was not corrected later."""
    other_causes: tuple[FailureCause, ...] = ()
    """Other errors by the rules, at most one of each kind."""
    judge_cause: FailureCause | None = None
    """Cause by the judge. None if no judge was asked."""
