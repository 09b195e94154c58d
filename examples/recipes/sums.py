"""Custom data, tools and reward. A recipe: see docs/extending.md.

understudy check sums:SUMS
"""

from collections.abc import Sequence

from understudy.core.messages import Message, ToolCall
from understudy.envs.rewards import affirms_fact, extract_numbers
from understudy.sources.tool_dataset import ToolDataset, ToolEpisode, ToolExample


class SumEpisode(ToolEpisode):
    """One episode. Each public method except `reward` and `env_response` is a tool."""

    def multiply(self, a: int, b: int) -> int:
        """Multiply two whole numbers."""
        return a * b

    def reward(self, transcript: Sequence[Message]) -> float:
        """Return 1.0 if the product, in any notation, is the only number of the last message, else 0.0."""
        product, text = self.example.info["product"], transcript[-1].content
        return float(extract_numbers(text) == {float(product)} and affirms_fact(product, text))


def make_example(a: int, b: int) -> ToolExample:
    """Return one example. `check` plays its gold call and answer, and SFT imitates them."""
    gold = (ToolCall(name="multiply", arguments={"a": a, "b": b}),)
    info = {"product": str(a * b)}
    return ToolExample(prompt=f"What is {a} times {b}?", answer=f"It is {a * b}.", gold_calls=gold, info=info)


EXAMPLES = [make_example(a, b) for a in range(12, 26) for b in range(31, 41)]
SUMS = ToolDataset(
    "sums", "Multiply by the tool. Answer in one sentence, whose only number is the result.", EXAMPLES, SumEpisode
)
