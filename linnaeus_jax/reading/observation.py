"""What is known of one picture besides its pixels, and what of it cannot be right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import polars as pl

Text = TypeVar("Text", "pl.Series", "pl.Expr")


def is_unset_place(latitude: Any, longitude: Any) -> Any:
    """Whether degrees are exactly 0, 0: what cameras and tables write that do not know the place.

    Args:
      latitude, longitude: numbers, or columns of them.
    """
    return (latitude == 0) & (longitude == 0)


def with_decimal_point(text: Text) -> Text:
    """Text with the decimal comma of a number, such as "-3,25", as a point; other text stays."""
    return text.str.replace(r"^([+-]?\d+),(\d+)$", "$1.$2")


@dataclass(frozen=True)
class Observation:
    """What is known of one picture besides its pixels; None where it is not.

    Attributes:
      latitude, longitude: degrees, -90 to 90 and -180 to 180.
      date: a date or a moment of the standard library, NumPy or pandas, or text in the forms of ISO 8601 such as
        "2024-05-17T10:20+02:00" or "2024-05"; a moment without an offset is in UTC.
      elevation: metres above the sea.
      components: name of a component -> its numbers, as in the labels file; they count before the others.
    """

    latitude: Any = None
    longitude: Any = None
    date: Any = None
    elevation: Any = None
    components: Mapping[str, Sequence[float]] = field(default_factory=dict)
