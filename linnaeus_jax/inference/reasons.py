"""Why an answer ends above the finest rank, or there is none: codes for programs and words for people, only here.

An answer at the finest rank has no reason: code and text are "".
"""

from __future__ import annotations

#: below what was asked for, by `min_confidence` or a coverage
LOW_PROBABILITY, COVERAGE = "low_probability", "coverage"
#: the best answer among all taxa is excluded by `restrict`; ranks by themselves that contradict each other
RESTRICTED, CONTRADICTION = "restricted", "contradiction"
#: the taxon has no classes below it; it has some, but the best path ends above them
NO_CLASS_BELOW, UNIDENTIFIED = "no_class_below", "unidentified"
#: there is no answer at all; a box was not looked at
NOT_FINITE, LEFT_OUT = "not_finite", "box_left_out"

_WORDS = {
    "": "",
    LOW_PROBABILITY: "no {taxon} is at least {least:g} probable",
    COVERAGE: "no {taxon} is probable enough for a coverage of {coverage:g}",
    RESTRICTED: "what it looks most like is not among the taxa that answers are restricted to",
    CONTRADICTION: "what finer ranks say contradicts the coarser ones",
    NO_CLASS_BELOW: "the model has no class below this {rank}",
    UNIDENTIFIED: "it looks most like training pictures that are {identified}",
    NOT_FINITE: "the outputs of the model are not finite: its weights, or the metadata of this image, are too large",
    LEFT_OUT: "the box was not looked at",
}
#: all codes; their places are what arrays of reasons hold, 0 where there is none
CODES = tuple(_WORDS)


def text(code: str, rank: str = "", least: float = 0.0, coverage: float | None = None) -> str:
    """A reason in words.

    Args:
      code: one of `CODES`.
      rank: of the answer; "": there is none.
      least, coverage: what was asked for, see `AnswerOptions`.
    """
    taxon = f"taxon below this {rank}" if rank else "taxon"
    identified = "identified no further" if rank else "not identified"
    return _WORDS[code].format(taxon=taxon, rank=rank, identified=identified, least=least, coverage=coverage or 0.0)
