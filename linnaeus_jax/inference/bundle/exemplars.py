"""Rows that a bundle keeps of the data, so that classes can be added later: features, classes, and what they are for.

Letters of shapes: N rows, D and E features, T ranks, finest first, B classes of a rank that the model was trained with.
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
      outside: float16 [N, E], features by which it is told what is outside; E = 0: by those of the heads.
    """

    x: NDArray[np.float16]
    label: NDArray[np.int32]
    fits: NDArray[np.bool_]
    judges: NDArray[np.bool_]
    logits: Mapping[str, NDArray[np.float16]] = field(default_factory=dict)
    heads: Mapping[str, Affine] = field(default_factory=dict)
    outside: NDArray[np.float16] = field(default_factory=lambda: np.zeros((0, 0), np.float16))

    def __post_init__(self) -> None:
        if not self.outside.size:
            object.__setattr__(self, "outside", np.zeros((len(self.x), 0), np.float16))

    @property
    def trained(self) -> NDArray[np.bool_]:
        """bool [N]: the model was trained with its finest class, or with its others where it has none; `heads` are
        there."""
        return np.asarray(self.label[:, 0] < len(next(iter(self.heads.values()))[1]))

    @classmethod
    def of(
        cls,
        judging: tuple[Mapping[str, NDArray[np.float32]], NDArray[np.int32]],
        trained: tuple[Mapping[str, NDArray[np.float32]], NDArray[np.int32]] | None = None,
        logits: Mapping[str, NDArray[np.float32]] | None = None,
    ) -> Exemplars | None:
        """Of features and classes of rows, as many of each class as `MOST_BYTES` hold; None where they do not fit 16
        bits.

        Args:
          judging: by layer, that of the heads first, then perhaps that of `outside`; rows that the heads were not
            fitted to, or, with `logits` [N, B] by rank, were.
          trained: other rows, that they were fitted to.
        """
        parts, width = [*([trained] if trained else []), judging], sum(z.shape[1] for z in (logits or {}).values())
        width += sum(x.shape[1] for x in judging[0].values())
        most = MOST_BYTES // len(parts) // (2 * width)
        kept = [np.sort(np.argsort(places_within(label), kind="stable")[:most]) for _, label in parts]
        with np.errstate(over="ignore"):
            x, *outside = (
                np.concatenate([of[layer][rows].astype(np.float16) for (of, _), rows in zip(parts, kept, strict=True)])
                for layer in judging[0]
            )
        if not all(np.isfinite(each).all() for each in (x, *outside)):
            return None
        label = np.concatenate([label[rows] for (_, label), rows in zip(parts, kept, strict=True)]).astype(np.int32)
        judges = np.arange(len(x)) >= len(x) - len(kept[-1])
        fits, half = np.ones(len(x), bool) if logits else ~judges, {}
        for task, z in (logits or {}).items():
            half[task] = z[kept[-1]].astype(np.float16)
        return cls(x, label, fits, judges, half, outside=outside[0] if outside else x[:, :0])

    def write(self, path: Path) -> None:
        """Writes a .safetensors file."""
        arrays = {name: np.asarray(getattr(self, name)) for name in _ROWS}
        arrays |= {name: arrays[name].astype(np.uint8) for name in ("fits", "judges")}
        arrays |= {f"logits/{task}": each for task, each in self.logits.items()}
        arrays |= {"outside": self.outside} if self.outside.size else {}
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
        outside = arrays.get("outside", x[:, :0])
        wrong = [
            name for name, shape in shapes.items() if arrays[name].shape != shape or arrays[name].dtype.kind not in "iu"
        ]
        wrong += ["outside"] * (outside.ndim != 2 or len(outside) != count)
        for task, (kernel, bias) in heads.items():
            fit = kernel.shape == (width, len(bias)) and len(bias) <= len(taxonomy.classes[task])
            wrong += [f"kernel/{task}"] * (not fit)
        for task, z in logits.items():
            base = len(heads[task][1]) if heads else len(taxonomy.classes[task])
            wrong += [f"logits/{task}"] * (z.ndim != 2 or z.shape[1] != base or len(z) > count)
        if wrong or {len(heads), len(logits)} - {0, len(sizes)} or (label < -1).any() or (label >= sizes).any():
            raise ValueError(f"{path.name} does not fit the classes of the model: {', '.join(wrong) or 'label'}")
        half = {task: z.astype(np.float16) for task, z in logits.items()}
        rows = label.astype(np.int32), fits.astype(bool), judges.astype(bool)
        return cls(x.astype(np.float16), *rows, half, heads, outside.astype(np.float16))
