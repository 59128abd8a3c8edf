"""Tables of learned and random augmentation policies (AutoAugment, arXiv:1805.09501; RandAugment, arXiv:1909.13719).

A policy lists sub-policies of (operator, probability, level 0..10). Levels are turned into operator arguments here,
once, so that the compiled step only looks numbers up.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.learning.pixel_ops import IDENTITY, OP_CODE, OPS
from linnaeus_jax.mistakes import InputError

_ORIGINAL = """
PosterizeOriginal .4 8, Rotate .6 9 | Solarize .6 5, AutoContrast .6 5 | Equalize .8 8, Equalize .6 3
PosterizeOriginal .6 7, PosterizeOriginal .6 6 | Equalize .4 7, Solarize .2 4 | Equalize .4 4, Rotate .8 8
Solarize .6 3, Equalize .6 7 | PosterizeOriginal .8 5, Equalize 1 2 | Rotate .2 3, Solarize .6 8
Equalize .6 8, PosterizeOriginal .4 6 | Rotate .8 8, Color .4 0 | Rotate .4 9, Equalize .6 2
Equalize 0 7, Equalize .8 8 | Invert .6 4, Equalize 1 8 | Color .6 4, Contrast 1 8
Rotate .8 8, Color 1 2 | Color .8 8, Solarize .8 7 | Sharpness .4 7, Invert .6 8
ShearX .6 5, Equalize 1 9 | Color .4 0, Equalize .6 3 | Equalize .4 7, Solarize .2 4
Solarize .6 5, AutoContrast .6 5 | Invert .6 4, Equalize 1 8 | Color .6 4, Contrast 1 8
Equalize .8 8, Equalize .6 3
"""
_V0R = """
Equalize .8 1, ShearY .8 4 | Color .4 9, Equalize .6 3 | Color .4 1, Rotate .6 8 | Solarize .8 3, Equalize .4 7
Solarize .4 2, Solarize .6 2 | Color .2 0, Equalize .8 8 | Equalize .4 8, SolarizeAdd .8 3 | ShearX .2 9, Rotate .6 8
Color .6 1, Equalize 1 2 | Invert .4 9, Rotate .6 0 | Equalize 1 9, ShearY .6 3 | Color .4 7, Equalize .6 0
PosterizeIncreasing .4 6, AutoContrast .4 7 | Solarize .6 8, Color .6 9 | Solarize .2 4, Rotate .8 9
Rotate 1 7, TranslateYRel .8 9 | ShearX 0 0, Solarize .8 4 | ShearY .8 0, Color .6 4 | Color 1 0, Rotate .6 2
Equalize .8 4, Equalize 0 8 | Equalize 1 4, AutoContrast .6 2 | ShearY .4 7, SolarizeAdd .6 7
PosterizeIncreasing .8 2, Solarize .6 10 | Solarize .6 8, Equalize .6 1 | Color .8 6, Rotate .4 5
"""
_3A = "Solarize 1 5 | Desaturate 1 10 | GaussianBlurRand 1 10"

_TEXTS = {
    "original": _ORIGINAL,
    "originalr": _ORIGINAL.replace("PosterizeOriginal", "PosterizeIncreasing"),
    "v0r": _V0R,
    "3a": _3A,
    "hybrid_v0": f"{_3A} | {_V0R}",
}
RANDAUGMENT = "randaugment"
#: every operator grows with the level, so that one magnitude orders the policies
RANDAUGMENT_OPS = (
    "Identity ShearX ShearY TranslateXRel TranslateYRel Rotate BrightnessIncreasing ColorIncreasing ContrastIncreasing "
    "SharpnessIncreasing PosterizeIncreasing SolarizeIncreasing AutoContrast Equalize"
).split()
POLICY_NAMES = (*_TEXTS, RANDAUGMENT)

SubPolicy = tuple[tuple[str, float, float], ...]


@dataclass(frozen=True, eq=False)
class Policy:
    """A policy in numbers. N choices (sub-policies, or operators), S operator slots that are applied in order.

    An operator's argument is base + delta * r with r = +1 or -1 with equal chance, except for blur, where r is
    uniform in [0, 1).
    """

    op: NDArray[np.int32]  # [N, S], codes of pixel_ops.OP_CODE
    prob: NDArray[np.float32]  # [N, S], chance that the operator is applied
    base: NDArray[np.float32]  # [N, S]
    delta: NDArray[np.float32]  # [N, S]
    joint: bool  # True: one choice fills all slots; False: every slot chooses for itself

    @property
    def present(self) -> tuple[tuple[str, ...], ...]:
        """Per slot, the names of the operators that can occur in it."""
        return tuple(tuple(OPS[code] for code in np.unique(column)) for column in self.op.T)


def sub_policies(name: str) -> tuple[SubPolicy, ...]:
    """Published table of the policy `name`: sub-policies of (operator, probability, level).

    Raises:
      ValueError: no such table.
    """
    if name not in _TEXTS:
        raise InputError(f"unknown augmentation policy {name!r}; use one of {', '.join(_TEXTS)}")
    subs = [text for text in _TEXTS[name].replace("\n", "|").split("|") if text.strip()]
    parsed = [[op.split() for op in sub.split(",")] for sub in subs]
    return tuple(tuple((op, float(prob), float(level)) for op, prob, level in sub) for sub in parsed)


def operator_argument(name: str, level: float) -> tuple[str, float, float]:
    """Pixel operator and argument (base, delta) of the policy operator `name` at `level` (0..10); see `Policy`.

    Raises:
      ValueError: unknown operator.
    """
    factor = 0.1 + 1.8 * level / 10
    swing = 0.9 * level / 10
    posterize = int(4 * level / 10)
    arguments = {
        "Identity": (IDENTITY, 0.0, 0.0),
        "ShearX": ("shear_x", 0.0, 0.3 * level / 10),
        "ShearY": ("shear_y", 0.0, 0.3 * level / 10),
        "Rotate": ("rotate", 0.0, 30 * level / 10),
        "TranslateXRel": ("translate_x", 0.0, 0.45 * level / 10),
        "TranslateYRel": ("translate_y", 0.0, 0.45 * level / 10),
        "Color": ("color", factor, 0.0),
        "Contrast": ("contrast", factor, 0.0),
        "Brightness": ("brightness", factor, 0.0),
        "Sharpness": ("sharpness", factor, 0.0),
        "ColorIncreasing": ("color", 1.0, swing),
        "ContrastIncreasing": ("contrast", 1.0, swing),
        "BrightnessIncreasing": ("brightness", 1.0, swing),
        "SharpnessIncreasing": ("sharpness", 1.0, swing),
        "PosterizeOriginal": ("posterize", posterize + 4, 0.0),
        "PosterizeIncreasing": ("posterize", max(1, 4 - posterize), 0.0),
        "Solarize": ("solarize", int(256 * level / 10), 0.0),
        "SolarizeIncreasing": ("solarize", 256 - int(256 * level / 10), 0.0),
        "SolarizeAdd": ("solarize_add", int(110 * level / 10), 0.0),
        "Desaturate": ("color", 1 - level / 10, 0.0),
        "GaussianBlurRand": ("blur", 0.1, max(0.0, 2 * level / 10 - 0.1)),
        "AutoContrast": ("autocontrast", 0.0, 0.0),
        "Equalize": ("equalize", 0.0, 0.0),
        "Invert": ("invert", 0.0, 0.0),
    }
    if name not in arguments:
        raise InputError(f"unknown policy operator {name!r}; use one of {', '.join(arguments)}")
    return arguments[name]


@functools.lru_cache
def get_policy(name: str, num_ops: int = 2, magnitude: float = 9.0) -> Policy:
    """Builds the policy `name`.

    Args:
      name: one of `POLICY_NAMES`.
      num_ops: operators per image, for randaugment only.
      magnitude: level 0..10 of all operators, for randaugment only.

    Raises:
      ValueError: unknown name.
    """
    if name == RANDAUGMENT:
        table: tuple[SubPolicy, ...] = tuple(((op, 1.0, magnitude),) * num_ops for op in RANDAUGMENT_OPS)
    else:
        table = sub_policies(name)
    slots = max(len(sub) for sub in table)
    padded = [[*sub, *[("Identity", 0.0, 0.0)] * (slots - len(sub))] for sub in table]
    arguments = [[operator_argument(op, level) for op, _, level in sub] for sub in padded]
    return Policy(
        op=np.array([[OP_CODE[op] for op, _, _ in sub] for sub in arguments], np.int32),
        prob=np.array([[prob for _, prob, _ in sub] for sub in padded], np.float32),
        base=np.array([[base for _, base, _ in sub] for sub in arguments], np.float32),
        delta=np.array([[delta for _, _, delta in sub] for sub in arguments], np.float32),
        joint=name != RANDAUGMENT,
    )
