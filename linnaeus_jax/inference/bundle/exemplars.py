"""Rows that a bundle keeps of the data, so that classes can be added later: features, classes, and what they are for.

Letters of shapes: N rows, D features, T ranks, finest first, B classes of a rank that the model was trained with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.learning.discriminant import Affine
from linnaeus_jax.learning.growing import places_within
from linnaeus_jax.weights.files import read_state, write_state

#: most bytes of features and logits that are kept
MOST_BYTES = 64 << 20
_ROWS = ("x", "label", "fits", "judges")


@dataclass(frozen=True, eq=False)
class Exemplars:
    """Rows of every class. Those that the model was trained with stand first.

    Attributes:
      x: float16 [N, D], what the heads are given.
      label: int32 [N, T], classes; null, or -1, where there is none.
      fits, judges: bool [N]: heads are fitted to it; it says how good they are.
      logits: rank -> float16 [n, B] of the first n rows, by heads that were fitted to other rows; {}: the heads were
        not fitted to those that judge.
      heads: rank -> kernel and bias of the trained heads, of B classes; {}: they are those of the bundle.
    """

    x: NDArray[np.float16]
    label: NDArray[np.int32]
    fits: NDArray[np.bool_]
    judges: NDArray[np.bool_]
    logits: Mapping[str, NDArray[np.float16]] = field(default_factory=dict)
    heads: Mapping[str, Affine] = field(default_factory=dict)

    @property
    def trained(self) -> NDArray[np.bool_]:
        """bool [N]: the model was trained with its finest class, or with its others where it has none; `heads` are
        there."""
        return np.asarray(self.label[:, 0] < len(next(iter(self.heads.values()))[1]))

    @classmethod
    def of(
        cls,
        judging: tuple[NDArray[np.float32], NDArray[np.int32]],
        trained: tuple[NDArray[np.float32], NDArray[np.int32]] | None = None,
        logits: Mapping[str, NDArray[np.float32]] | None = None,
    ) -> Exemplars | None:
        """Of features and classes of rows, as many of each class as `MOST_BYTES` hold; None where they do not fit 16
        bits.

        Args:
          judging: rows that the heads were not fitted to, or, with `logits` [N, B] by rank, were.
          trained: other rows, that they were fitted to.
        """
        parts, width = [*([trained] if trained else []), judging], sum(z.shape[1] for z in (logits or {}).values())
        most = MOST_BYTES // len(parts) // (2 * (judging[0].shape[1] + width))
        kept = [np.sort(np.argsort(places_within(label), kind="stable")[:most]) for _, label in parts]
        with np.errstate(over="ignore"):
            x = np.concatenate([x[rows].astype(np.float16) for (x, _), rows in zip(parts, kept, strict=True)])
        if not np.isfinite(x).all():
            return None
        label = np.concatenate([label[rows] for (_, label), rows in zip(parts, kept, strict=True)]).astype(np.int32)
        judges = np.arange(len(x)) >= len(x) - len(kept[-1])
        fits = np.ones(len(x), bool) if logits else ~judges
        return cls(x, label, fits, judges, {t: z[kept[-1]].astype(np.float16) for t, z in (logits or {}).items()})

    def write(self, path: Path) -> None:
        """Writes a .safetensors file."""
        arrays = {name: np.asarray(getattr(self, name)) for name in _ROWS}
        arrays |= {name: arrays[name].astype(np.uint8) for name in ("fits", "judges")}
        arrays |= {f"logits/{task}": each for task, each in self.logits.items()}
        for task, (kernel, bias) in self.heads.items():
            arrays |= {f"kernel/{task}": kernel, f"bias/{task}": bias}
        write_state(path, arrays, {})

    @classmethod
    def read(cls, path: Path, taxonomy: Taxonomy) -> Exemplars:
        """What `write` wrote. Raises ValueError or UserError where it is something else, or of other classes."""
        arrays, sizes = read_state(path).arrays, [len(taxonomy.classes[task]) for task in taxonomy.tasks]
        try:
            x, label, fits, judges = (arrays[name] for name in _ROWS)
            heads = {t: (arrays[f"kernel/{t}"], arrays[f"bias/{t}"]) for t in taxonomy.tasks if f"bias/{t}" in arrays}
        except KeyError as error:
            raise ValueError(f"{path.name} has no {error}") from None
        logits = {t: arrays[f"logits/{t}"] for t in taxonomy.tasks if f"logits/{t}" in arrays}
        (count, width), shapes = x.shape, {"label": (len(x), len(sizes)), "fits": (len(x),), "judges": (len(x),)}
        wrong = [
            name for name, shape in shapes.items() if arrays[name].shape != shape or arrays[name].dtype.kind not in "iu"
        ]
        for task, (kernel, bias) in heads.items():
            fit = kernel.shape == (width, len(bias)) and len(bias) <= len(taxonomy.classes[task])
            wrong += [f"kernel/{task}"] * (not fit)
        for task, z in logits.items():
            base = len(heads[task][1]) if heads else len(taxonomy.classes[task])
            wrong += [f"logits/{task}"] * (z.ndim != 2 or z.shape[1] != base or len(z) > count)
        if wrong or {len(heads), len(logits)} - {0, len(sizes)} or (label < -1).any() or (label >= sizes).any():
            raise ValueError(f"{path.name} does not fit the classes of the model: {', '.join(wrong) or 'label'}")
        half = {task: z.astype(np.float16) for task, z in logits.items()}
        return cls(x.astype(np.float16), label.astype(np.int32), fits.astype(bool), judges.astype(bool), half, heads)
