"""One part of many pictures, for several processes or machines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Shard:
    """Part `index` (from 1) of `count` of the pictures, built on its own."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From "2/8".

        Raises:
          ValueError: another form, or a part that there is not.
        """
        index, _, count = text.partition("/")
        if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
            raise ValueError(f"--shard {text}: give i/n with i from 1 to n, e.g. 2/8")
        return cls(int(index), int(count))

    def rows(self, total: int) -> range:
        """The candidates of this part of `total`."""
        return range(total * (self.index - 1) // self.count, total * self.index // self.count)

    def directory(self, out: Path) -> Path:
        """Where the part lies below the folder of the data set."""
        return out / "shards" / f"{self.index}-of-{self.count}"
