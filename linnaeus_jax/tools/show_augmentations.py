"""Draws the first images of an update after every stage of augmentation, exactly as training would see them.

linnaeus augmentations --config=configs/x.py [--out=augmentations.png] [--images=8]
    [--step=0] [--config.a.b=c ...]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from linnaeus_jax import tools
from linnaeus_jax.config import load_config
from linnaeus_jax.config.derived import default_workdir
from linnaeus_jax.config.errors import UserError


def render(
    path: Path,
    stages: Mapping[str, np.ndarray],
    titles: Sequence[str],
    notes: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Writes a contact sheet: one row per stage, one column per image.

    Args:
      path: PNG file.
      stages: name -> float [n, H, W, 3] in [0, 1], in the order in which they happen.
      titles: n texts above the columns.
      notes: stage name -> n texts below its images.
    """
    from matplotlib.figure import Figure

    count = len(titles)
    figure = Figure(figsize=(1.6 * count + 1.2, 1.95 * len(stages)), layout="constrained")
    axes = figure.subplots(len(stages), count, squeeze=False)
    for row, (name, images) in enumerate(stages.items()):
        for column in range(count):
            axis = axes[row, column]
            axis.imshow(np.clip(np.asarray(images[column], np.float32), 0, 1))
            axis.set_xticks([])
            axis.set_yticks([])
            if row == 0:
                axis.set_title(titles[column], fontsize=7)
            if notes and name in notes:
                axis.set_xlabel(notes[name][column], fontsize=7)
        axes[row, 0].set_ylabel(name, fontsize=9)
    figure.savefig(path, dpi=100)


@tools.command()
def main(argv: Sequence[str]) -> None:
    """Builds the run's data and objective and draws one update."""
    from linnaeus_jax.files import RunDirectory
    from linnaeus_jax.run.experiment import preview_experiment
    from linnaeus_jax.step.input_stages import stage_images

    parser = tools.parser("show_augmentations", __doc__)
    parser.add_argument("--out", type=tools.picture, default="augmentations.png", help="picture to write")
    parser.add_argument("--images", type=int, default=8, help="columns")
    parser.add_argument("--step", type=int, default=0, help="update whose images and probabilities are shown")
    options, rest = parser.parse_known_args(argv)
    config, _ = load_config(rest)
    experiment = preview_experiment(config, RunDirectory(default_workdir(config)))
    total = experiment.inputs.plans.total
    if not 0 <= options.step < total:
        raise UserError(f"--step={options.step} lies outside of the run; use 0 ... {total - 1}")
    if options.images < 1:
        raise UserError(f"--images={options.images} shows nothing; use a number >= 1")
    with experiment.inputs.train_loader(options.step) as loader:
        _, batch = next(loader)
    count = min(options.images, batch["row"].shape[1])
    stages, notes = stage_images(experiment.program.objective, batch, options.step, count)
    titles = [f"{i}: row {row}" for i, row in enumerate(batch["row"][0][:count])]
    render(options.out, stages, titles, notes)
    print(f"{len(stages)} stages of {count} images: {options.out}")


if __name__ == "__main__":
    sys.exit(main())
