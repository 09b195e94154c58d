"""What can go wrong in an episode, whose doing each is, and the records of what was found."""

from collections.abc import Mapping
from typing import Literal

from understudy.records import Record

Who = Literal["agent", "user", "environment", "engine", "nobody"]
What = Literal[
    "malformed",
    "wrong_tool",
    "wrong_argument",
    "wrong_proposal",
    "unconfirmed",
    "policy_violation",
    "extra_write",
    "missed_write",
    "refused",
    "gave_up",
    "wrong_fact",
    "untold_fact",
    "out_of_turns",
    "out_of_tokens",
    "ended_early",
    "contradicted_scenario",
    "agent_fault",
    "user_fault",
    "environment_fault",
    "engine_fault",
    "unclear",
]

MEANING: Mapping[What, tuple[Who, str]] = {
    "malformed": ("agent", "wrote calls that could not be read"),
    "wrong_tool": ("agent", "called a tool that is not there or not what was needed"),
    "wrong_argument": ("agent", "called the right tool with a wrong or a missing argument"),
    "wrong_proposal": ("agent", "asked for consent to something that the user does not want"),
    "unconfirmed": ("agent", "changed something without the user's consent"),
    "policy_violation": ("agent", "reached for what the policy forbids"),
    "extra_write": ("agent", "changed what was not to be changed"),
    "missed_write": ("agent", "left a change undone, and never tried it"),
    "refused": ("agent", "refused what could have been done"),
    "gave_up": ("agent", "said nothing, or handed over to a human"),
    "wrong_fact": ("agent", "told the user something else than the fact"),
    "untold_fact": ("agent", "did not tell the fact"),
    "out_of_turns": ("agent", "was cut off by the limit of turns"),
    "out_of_tokens": ("agent", "was cut off by the limit of tokens"),
    "ended_early": ("user", "left before the agent's question was answered"),
    "contradicted_scenario": ("user", "said what the scenario does not hold"),
    "agent_fault": ("agent", "the endpoint that plays the agent failed"),
    "user_fault": ("user", "the model that plays the user failed"),
    "environment_fault": ("environment", "a tool, a server or the grader failed"),
    "engine_fault": ("engine", "what runs the agent failed"),
    "unclear": ("nobody", "no rule, or no readable verdict, says why"),
}
"""Who did it, and what that means in words."""


LONGEST = 200
"""Characters of evidence."""


def quoted(text: str) -> str:
    """A text that a model may have written, on one short line, and without what a terminal would obey."""
    line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(text.split()))
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


class Finding(Record):
    """One thing that went wrong, and the message that shows it."""

    what: What
    message: int
    """Its place in the episode's messages, from 0."""
    evidence: str = ""

    @property
    def who(self) -> Who:
        """Whose doing it is."""
        return MEANING[self.what][0]


class Failure(Record):
    """Why one episode did not earn the whole reward."""

    task: str
    domain: str
    family: str
    difficulty: str
    seed: int
    """The episode's, which tells the trials of a task apart."""
    cause: Finding
    """What the rules hold for the cause: the first thing that was not made good again."""
    also: tuple[Finding, ...] = ()
    """What else went wrong, each kind once."""
    judged: Finding | None = None
    """What the judge says, where one was asked."""
