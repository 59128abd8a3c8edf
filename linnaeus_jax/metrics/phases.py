"""Phases of evaluation: what the model is shown of the validation rows, and under which names the results stand.

This is the one place that knows which phases there are. A run, the schedule and `linnaeus evaluate` take them from
here, and whoever reads a log asks here what a name in it means.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from typing import TYPE_CHECKING, Any

from linnaeus_jax.mistakes import InputError

if TYPE_CHECKING:
    import jax


class Stage(StrEnum):
    """What the run is doing, in canonical order; stored by name."""

    TRAINING = "TRAINING"
    VALIDATION_NORMAL = "VALIDATION_NORMAL"
    VALIDATION_MASK_META = "VALIDATION_MASK_META"
    VALIDATION_PARTIAL_MASK_META = "VALIDATION_PARTIAL_MASK_META"
    VALIDATION_EXHAUSTIVE = "VALIDATION_EXHAUSTIVE"


@dataclass(frozen=True)
class Phase:
    """One evaluation of the validation rows.

    Attributes:
      name: its results are logged as `<name>/<metric>`.
      masked: metadata components that are hidden from the model; None: all.
      view: pictures of a batch [B, ...] -> what the model is shown of them, in the same form; traced. None: as they
        are. What depends on the pictures alone is computed once for all phases of one view.
      label: what people call it; empty: its name.
      core: its name in the section `core/` of the log; empty: its name.
      stage, index: when it is due, and which one of the stage it is.
    """

    name: str
    masked: tuple[str, ...] | None = ()
    view: Callable[[jax.Array], Any] | None = None
    label: str = ""
    core: str = ""
    stage: Stage = Stage.VALIDATION_NORMAL
    index: int = 0


_MASK = "val_mask_"


def masking(masked: Sequence[str] | None, stage: Stage = Stage.VALIDATION_NORMAL, index: int = 0) -> Phase:
    """The phase that hides these components, e.g. `val_mask_TEMPORAL_SPATIAL`; None: all of them."""
    if masked is None:
        return Phase(f"{_MASK}meta", None, None, "without metadata", "valMask", stage, index)
    if not masked:
        return Phase("val_no_mask", (), None, "all metadata", "", stage, index)
    names = "_".join(masked)
    return Phase(f"{_MASK}{names}", tuple(masked), None, f"without {names}", f"valMask_{names}", stage, index)


#: the phase that class tables, mistakes and early stopping are of, unless something else is asked for
MAIN = Phase("val", label="validation")
WITHOUT_METADATA = masking(None)
#: other name of `WITHOUT_METADATA`, under which its results are logged, too
ALIAS = "val_mask"
#: phases of plugins, which run wherever `MAIN` does; name -> phase
REGISTERED: dict[str, Phase] = {}


def register_phase(phase: Phase) -> Phase:
    """Adds a phase to every validation, and to what `linnaeus evaluate --phases` may name.

    Args:
      phase: its name begins with `val_`, then letters, digits and `_`.

    Raises:
      ValueError: the name is malformed or taken.
    """
    if not re.fullmatch(r"val_\w+", phase.name, re.ASCII) or re.match(r"val_(no_)?mask", phase.name):
        raise InputError(
            f"phase {phase.name!r}: call it val_<name>, of letters, digits and '_'; val_mask... and val_no_mask... are "
            "those of masked metadata"
        )
    if phase.name in REGISTERED:
        raise InputError(f"phase {phase.name!r} is registered twice; choose another name")
    REGISTERED[phase.name] = phase
    return phase


def exhaustive_combos(components: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """All 2^n - 1 non-empty subsets, by size and then by position in the list."""
    return tuple(combo for size in range(1, len(components) + 1) for combo in combinations(components, size))


def every(components: Sequence[str]) -> tuple[Phase, ...]:
    """All phases that differ for a model with these components: `--phases=all`."""
    combos = [combo for combo in exhaustive_combos(components) if len(combo) < len(components)]
    return (MAIN, *([WITHOUT_METADATA] if components else []), *map(masking, combos), *REGISTERED.values())


def named(name: str, components: Sequence[str] | None = None) -> Phase | None:
    """The phase of that name; None: there is none.

    Args:
      components: metadata components that may be masked, each once, in any order; None: they are not known, and
        whatever follows `val_mask_` counts as one.
    """
    rest = name.removeprefix(_MASK)
    if components is None:
        masked = [rest] if rest != name else []
    else:  # the longest first, so that a component is not taken for a shorter one that it begins with
        masked = re.findall("|".join(sorted(map(re.escape, components), key=len, reverse=True)) or "(?!)", rest)
    found = (
        MAIN,
        WITHOUT_METADATA,
        *REGISTERED.values(),
        *([masking(masked)] if len(set(masked)) == len(masked) else ()),
    )
    return next((phase for phase in found if phase.name == name), None)


def phase_label(name: str) -> str:
    """What people call a phase, or training: `val_mask_TEMPORAL` -> "without TEMPORAL"."""
    phase = named(name)
    return "training" if name == "train" else name if phase is None else phase.label or name


def core_prefix(name: str) -> str:
    """`val_mask_meta` -> `valMask`, `val_mask_TEMPORAL` -> `valMask_TEMPORAL`."""
    phase = named(name)
    return name if phase is None else phase.core or name


def widest_first(names: set[str]) -> list[str]:
    """Names of validation phases that results are shown under, widest first; `ALIAS` is left out."""
    first = [phase.name for phase in (MAIN, masking(()), WITHOUT_METADATA)]
    others = sorted(names.difference(first, (ALIAS,)), key=lambda name: (name.count("_"), name))
    return [name for name in first if name in names] + others
