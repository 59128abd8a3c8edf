"""What is said of one picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from linnaeus_jax.data.taxon_names import describe_taxon
from linnaeus_jax.reading.box_cuts import Box, box_object

if TYPE_CHECKING:
    from linnaeus_jax.inference.bundle.taxonomy import Taxonomy


@dataclass(frozen=True)
class Taxon:
    """A class and its probability.

    Attributes:
      rank: e.g. "species".
      taxon_id: 0 where it is unknown.
      name, common_name: "" where there is none.
      probability: in [0, 1].
    """

    rank: str
    taxon_id: int
    name: str
    common_name: str
    probability: float

    @property
    def known(self) -> bool:
        """False for null: the model says that it does not know this rank."""
        return self.taxon_id != 0

    @property
    def label(self) -> str:
        """What people read, e.g. "Passer domesticus (house sparrow) [13858]"; "unknown" for null."""
        return describe_taxon(self.taxon_id, self.name, self.common_name) if self.known else "unknown"


def taxon_of(taxonomy: Taxonomy, task: str, index: int, probability: float) -> Taxon:
    """A class as it is reported; an index of -1 is unknown, as class 0 is where it is null."""
    if index < taxonomy.first:
        return Taxon(taxonomy.ranks[task], 0, "", "", probability)
    return Taxon(*taxonomy.described[task][index], probability)


@dataclass(frozen=True)
class Prediction:
    """The answer for one picture.

    Attributes:
      path: one taxon of every rank, coarsest first; with `consistency="path"` each is the parent of the next.
      top: rank -> the most probable taxa there, best first; ranks are coarsest first.
      answer: the deepest taxon of the path whose probability reaches the confidence asked for; None: unknown.
      always: the taxa that are always reported, in the order in which they were given.
      inputs: kinds of metadata that were used: component names.
      notes: what was given but not used, and why.
      reason, reason_text: why the answer ends above the finest rank, one of `reasons.CODES` and in words; "" where it
        does not.
      set: taxa of any ranks, the most probable first, that hold the truth with the coverage asked for; None: no set was
        asked for, see `sets`.
      set_size: how many taxa without any below them these are.
      without_prior, prior_text: the answer without the prior of places and dates, None for unknown, and in words what
        it changed; None where there is no prior.
      novelty: "known", "new_below" (of a taxon that has no training picture) or "outside" (like none of them); "": it
        was not asked for, see `inference.novelty`.
      novelty_taxon: what a new taxon belongs below; None: not known.
      known_score: probability that the taxon is a known one.
      outside_score: squared distance to the nearest of them.
      box: what of the picture was seen; None: all of it.
      boxes: what is said of each box, with an empty path where it was not looked at; None: no boxes were given.
    """

    path: tuple[Taxon, ...]
    top: Mapping[str, tuple[Taxon, ...]]
    answer: Taxon | None
    always: tuple[Taxon, ...] = ()
    inputs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str = ""
    reason_text: str = ""
    set: tuple[Taxon, ...] | None = None
    set_size: int = 0
    without_prior: Taxon | None = None
    prior_text: str | None = None
    novelty: str = ""
    novelty_taxon: Taxon | None = None
    known_score: float = 0.0
    outside_score: float = 0.0
    box: Box | None = None
    boxes: tuple[Prediction, ...] | None = None

    def __str__(self) -> str:
        """One line of a table: rank, probability and name of the answer; then the finest rank, if that is another."""
        answer = self.answer
        start = "unknown"
        if answer is not None:
            start = f"{answer.rank:<10} {answer.probability:>4.0%}  {answer.label}"
        last = self.path[-1] if self.path else None
        if last is None or last == answer:
            return start
        return f"{start}; {last.rank} {last.label} {last.probability:.0%}"

    def to_json(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            "answer": None if self.answer is None else dict(vars(self.answer)),
            "path": [
                dict(vars(taxon)) for taxon in self.path
            ],  # not asdict, which copies deeply and takes 20 times as long
            "top": {rank: [dict(vars(taxon)) for taxon in taxa] for rank, taxa in self.top.items()},
            "always": [dict(vars(taxon)) for taxon in self.always],
            "inputs": list(self.inputs),
            "notes": list(self.notes),
            "reason": self.reason,
            "reason_text": self.reason_text,
            **({} if self.set is None else {"set": [dict(vars(taxon)) for taxon in self.set]}),
            **({} if self.set is None else {"set_size": self.set_size}),
            **({} if self.prior_text is None else prior_json(self.without_prior, self.prior_text)),
            **(self._novelty if self.novelty else {}),
            **({} if self.box is None and self.boxes is None else {"box": box_object(self.box)}),
            **({} if self.boxes is None else {"boxes": [box.to_json() for box in self.boxes]}),
        }

    @property
    def _novelty(self) -> dict[str, Any]:
        taxon = None if self.novelty_taxon is None else dict(vars(self.novelty_taxon))
        scores = {"known_score": self.known_score, "outside_score": self.outside_score}
        return {"novelty": self.novelty, "novelty_taxon": taxon, **scores}


def prior_json(without: Taxon | None, text: str) -> dict[str, Any]:
    """What a prior of places and dates changed, as JSON types."""
    return {"without_prior": None if without is None else dict(vars(without)), "prior_text": text}
