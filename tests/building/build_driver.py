"""Builds a data set from the pictures of a folder, in a process of its own that a test may end at any moment."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from linnaeus_jax.building.steps.build import build
from linnaeus_jax.building.steps.options import BuildOptions
from linnaeus_jax.building.steps.plan import plan_build
from tests.building.helpers import rows_of


def plan(root: Path, images: str = "raw", **options: Any):
    """Every picture of a folder, in twelve species; some places are wrong."""
    names = sorted(path.name for path in root.iterdir())
    species = [f"G{i % 4} s{i % 12}" for i in range(len(names))]
    source = rows_of(
        root,
        picture=names,
        name_L10=species,
        name_L20=[name.split()[0] for name in species],
        name_L30=["F"] * len(names),
        occurrence=[f"o{i // 2}" for i in range(len(names))],
        latitude=[str(i % 95) for i in range(len(names))],
        longitude=["8"] * len(names),
        license=["CC0"] * len(names),
    )
    return plan_build(source, BuildOptions(**{"images": images, "size": 48, **options}), {})


if __name__ == "__main__":
    made = plan(Path(sys.argv[1]), sys.argv[3])
    print("ready", flush=True)
    build(made, Path(sys.argv[2]), threads=2)
