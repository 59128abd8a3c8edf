"""What the configuration is made of where the program reads it: frozen sections, and quantities of time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Self


class Duration(NamedTuple):
    """A quantity of time in the unit in which it is given; None stands for "off".

    Attributes:
      unit: `steps`, `fraction` (a share of all updates) or `epochs`.
      value: above 0.
      explicit: the user gave it; False: it is the default.
    """

    unit: str
    value: float
    explicit: bool = True

    def steps(self, steps_per_epoch: Sequence[int]) -> int:
        """In updates, at least 1 where it is a fraction.

        A fraction is rounded half to even. Epochs are truncated; beyond the last one its length is continued.

        Args:
          steps_per_epoch: updates of each epoch of the run.
        """
        if self.unit == "fraction":
            return max(1, round(sum(steps_per_epoch) * self.value))
        if self.unit == "steps" or min(steps_per_epoch) == max(steps_per_epoch):
            return int(self.value * (steps_per_epoch[0] if self.unit == "epochs" else 1))
        whole = min(int(self.value), len(steps_per_epoch) - 1)
        start = (0, *accumulate(steps_per_epoch))[whole]
        return start + int((self.value - whole) * steps_per_epoch[whole])


class Section(Mapping[str, Any]):
    """A section: its keys as attributes, and as a mapping in their order. Nothing can be set.

    Sections of `config.typed` say the type of each attribute; options of plugins are found by name alone.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        vars(self).update(values)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be set; change the configuration that it is made of")

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))

    def __len__(self) -> int:
        return len(vars(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({vars(self)})"

    def replaced(self, values: Mapping[str, Any]) -> Self:
        """A copy with other values of some dotted keys."""
        changed = dict(self)
        for path, value in values.items():
            name, _, rest = path.partition(".")
            changed[name] = changed[name].replaced({rest: value}) if rest else value
        return type(self)(changed)


def nested(section: Mapping[str, Any]) -> dict[str, Any]:
    """A section as plain dicts at every depth, to be changed or written."""
    return {name: nested(value) if hasattr(value, "items") else value for name, value in section.items()}
