"""Honest baselines on the demo data: what metadata alone, colours, and pixels without features can tell of the species.

    linnaeus demo-baselines [--data data/demo] [--run runs/demo]

A model is worth something only above both; it cannot pass the ceilings printed next to them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from linnaeus_jax import tools
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.paths import program
from linnaeus_jax.demo.baselines import demo_baselines
from linnaeus_jax.demo.generate import MIN_ROWS, read_parameters, write_demo
from linnaeus_jax.reporting.next_steps import next_steps
from linnaeus_jax.reporting.run_record import RunRecord


@tools.command(ValueError)
def main(argv: Sequence[str]) -> None:
    parser = tools.parser("demo_baselines", __doc__)
    parser.add_argument("--data", type=Path, default=Path("data/demo"), help="folder written by linnaeus demo")
    parser.add_argument("--run", type=Path, help="run directory of the quickstart, to show beside the baselines")
    options = parser.parse_args(argv)
    folder = options.data
    try:
        parameters = read_parameters(folder)
    except (OSError, KeyError, ValueError, TypeError) as error:
        made = program("demo", "--out", folder)
        raise UserError(f"{folder} holds no demo set; run: {made}") from error
    summary = write_demo(folder, **parameters)
    run = RunRecord.load(options.run) if options.run else None
    scores = demo_baselines(summary)
    table = Table("sees", "baseline", "mFormerV1", "best possible", title="Species accuracy, labelled validation rows")
    for name, baseline, phase, ceiling in (
        ("nothing (commonest species)", "majority", "", ""),
        ("metadata", "metadata", "", "metadata"),
        ("pixels, linearly", "pixels", "", ""),
        ("colours", "colours", "", ""),
        ("image", "", "val_mask_meta", "image"),
        ("image and metadata", "", "val", "image+metadata"),
    ):
        accuracy = run.last(f"{phase}/non_null/acc1_taxa_L10") if run and phase else None
        table.add_row(
            name,
            f"{scores[baseline]:.1%}" if baseline else "",
            "" if accuracy is None else f"{accuracy / 100:.1%}",
            f"{summary.ceilings[ceiling]:.1%}" if ceiling else "",
        )
    Console().print(table)
    if options.run:
        photos = Path("photos")
        made_by = program("demo", *f"--as folders --rows {MIN_ROWS} --image-size 96 --out".split(), photos)
        print(next_steps(options.run, photos, made_by))


if __name__ == "__main__":
    sys.exit(main())
