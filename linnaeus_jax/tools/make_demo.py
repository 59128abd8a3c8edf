"""Writes the embedded demo data set.

    linnaeus demo [--out data/demo] [--seed 0] [--image-size 48] [--rows 6000]
    linnaeus demo --as folders --out pictures --rows 600 --image-size 96

Does nothing when the same set is already there. With --as it writes the set in a form that people have, for trying
linnaeus build: class folders, a table with photos, or a Darwin Core archive with photos.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from linnaeus_jax import tools
from linnaeus_jax.config.paths import program
from linnaeus_jax.demo.as_files import FORMS, write_demo_files
from linnaeus_jax.demo.generate import IMAGE_SIZE, ROWS, DemoSummary, write_demo
from linnaeus_jax.files import free_directory


def summary_table(summary: DemoSummary) -> Table:
    """The summary as a two-column table."""
    table = Table("", "", title=f"Demo data in {summary.labels_path.parent}", show_header=False)
    table.add_row("pictures", f"{summary.rows} of {summary.image_size} x {summary.image_size} pixels")
    table.add_row("classes", ", ".join(f"{rank} {count}" for rank, count in summary.classes.items()))
    table.add_row(
        "identified to species", f"{summary.rows_with_species} ({summary.rows_with_species / summary.rows:.0%})"
    )
    table.add_row("pictures per species", f"{summary.smallest_species} to {summary.largest_species}")
    table.add_row("metadata missing", ", ".join(f"{name} {share:.1%}" for name, share in summary.missing.items()))
    table.add_row(
        f"best possible species accuracy\n({summary.validation_rows} validation rows)",
        "\n".join(f"{kind}: {value:.1%}" for kind, value in summary.ceilings.items()),
    )
    return table


def training(folder: Path) -> str:
    """The command that trains on the set in a folder; that of the default folder is the quickstart's own."""
    paths = [f"--config.data.h5.{name}_path={folder / f'{name}.h5'}" for name in ("labels", "images")]
    given = paths if folder != Path("data/demo") else []
    return program("train", "--config=quickstart", *given, f"--workdir={free_directory('runs/demo')}")


@tools.command(ValueError)
def main(argv: Sequence[str]) -> None:
    parser = tools.parser("make_demo", __doc__)
    parser.add_argument("--out", type=Path, default=Path("data/demo"), help="folder for labels.h5 and images.h5")
    parser.add_argument("--as", dest="form", choices=FORMS, help="write pictures and records instead of HDF5 files")
    parser.add_argument("--seed", type=int, default=0, help="another number, another data set")
    parser.add_argument("--image-size", type=int, default=IMAGE_SIZE, help="side of the pictures in pixels")
    parser.add_argument("--rows", type=int, default=ROWS, help="number of pictures")
    args = parser.parse_args(argv)
    console, size = Console(), {"seed": args.seed, "image_size": args.image_size, "rows": args.rows}
    with tools.progress_bar("drawing") as progress:
        if args.form:
            path = write_demo_files(args.out, args.form, **size, progress=progress)
            console.print(f"{args.rows} pictures and what is known of them: {path}", soft_wrap=True)
            return
        summary = write_demo(args.out, **size, progress=progress)
    console.print(summary_table(summary))
    console.print("Written." if summary.written else "The same set was already there; nothing was written.")
    console.print(f"next:\n  {training(args.out)}", soft_wrap=True, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
