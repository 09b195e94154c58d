"""An environment for TRL's `environment_factory`, with a reward from -1 to 1."""


class Counter:
    """As in TRL's documentation."""

    reward_range = (-1, 1)

    def reset(self, target, **row):
        self.count, self.target, self.row = 0, target, row
        return f" You are at {self.count}."

    def increment(self, step: int) -> int:
        """Increment the counter.

        Args:
            step: The amount to add.
        """
        self.count += step
        return self.count

    async def look(self) -> str:
        """Look at the prompt."""
        return self.row["prompt"][0]["content"]

    def get_reward(self):
        return 1.0 if self.count == self.target else -1.0
