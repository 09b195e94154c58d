"""Data, tools and a reward of your own. A recipe: see docs/extending.md.

understudy check sums:SUMS
"""

from collections.abc import Sequence

from understudy.domains.questions import Attempt, Question, Questions
from understudy.messages import Message, ToolCall
from understudy.rewards import said


class Sum(Attempt):
    """One episode: each public method is a tool, but for `reward` and `answer`."""

    def multiply(self, a: int, b: int) -> int:
        """Multiply two whole numbers."""
        return a * b

    def reward(self, transcript: Sequence[Message]) -> float:
        """Whether the last words hold the number, however it is written."""
        return float(said(self.question.info["product"], transcript[-1].content))


def question(a: int, b: int) -> Question:
    """A row. What is known of a perfect episode is what `check` plays, and what a warm start imitates."""
    gold = (ToolCall(name="multiply", arguments={"a": a, "b": b}),)
    told = {"product": str(a * b)}
    return Question(prompt=f"What is {a} times {b}?", reply=f"It is {a * b}.", gold=gold, info=told)


QUESTIONS = [question(a, b) for a in range(12, 26) for b in range(31, 41)]
SUMS = Questions("sums", "Answer the question in one sentence. Multiply by the tool.", QUESTIONS, Sum)
