"""What was found in a file beside its conversations."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field


@dataclass
class ReadingNotes:
    """What was found in a file while its conversations were read."""

    num_episodes: int = 0
    """Number of rows with an outcome."""
    failures: Counter[str] = field(default_factory=Counter)
    """Number of failed episodes that were left out, by what their rows say."""
    unpaired: int = 0
    """Number of episodes without one of the opposite outcome that begins alike."""
    unused: dict[str, str] = field(default_factory=dict)
    """The location of the first row with each column that is not used."""
    left_out_files: tuple[str, ...] = ()
    """Files of the folder that are not read, because others are of the split train and their names give none."""
    undescribed: dict[str, str] = field(default_factory=dict)
    """The location of the first row that calls each tool that the row does not describe."""

    def lines(self, option: str) -> list[str]:
        """Return lines of text. `option` sets the smallest reward of a success, such as "--min-reward 0"."""
        lines = list[str]()
        if failed := self.failures.total():
            counts = ", ".join(f"{reason}: {count}" for reason, count in self.failures.most_common())
            lines.append(
                f"{failed} of {self.num_episodes} episodes failed ({counts}) and are left out; {option} keeps them"
            )
        if self.unpaired:
            lines.append(f"{self.unpaired} of {self.num_episodes} episodes begin like none of the opposite outcome")
        if self.unused:
            places = defaultdict[str, list[str]](list)
            for name, location in self.unused.items():
                places[location].append(name)
            shown = "; ".join(f"{', '.join(names)} (first in {location})" for location, names in places.items())
            lines.append(f"columns that are not used: {shown}")
        if self.left_out_files:
            listed = ", ".join(self.left_out_files)
            lines.append(f"files that are left out beside those named train: {listed}; name them train to read them")
        if self.undescribed:
            listed = ", ".join(self.undescribed)
            first = next(iter(self.undescribed.values()))
            lines.append(
                f"tools that rows call and do not describe: {listed} (first in {first}); their prompts list no such "
                "tools: put descriptions into the column `tools`, or let `data convert --tools TARGET` write them"
            )
        return lines
