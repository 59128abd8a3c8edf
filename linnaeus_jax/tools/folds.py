"""Says how well features tell the taxa of a data set apart: accuracy at each rank over folds, and how far it spreads.

    linnaeus folds RUN
    linnaeus folds data/mine --features vectors.npz --folds 10 --out folds.json

For small data, where one split of a few hundred pictures says little. The heads are fitted to the stored features of a
run, or to the vectors of `linnaeus embed` of a data set, without the pictures of one fold, and answer those; pictures
of one occurrence are in one fold. No trunk is trained.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from linnaeus_jax import tools
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.tools.label_issues import features_options, read_rows


@tools.command()
def main(argv: Sequence[str]) -> None:
    parser = tools.parser("folds", __doc__)
    features_options(parser)
    parser.add_argument("--folds", type=int, default=5, metavar="K", help="number of folds (5)")
    parser.add_argument("--seed", type=int, default=0, help="of the folds (0)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the accuracies of all folds to this .json file")
    args = parser.parse_args(argv)
    if args.folds < 2:
        raise UserError(f"--folds is {args.folds}; give at least 2")
    from linnaeus_jax.step.process import set_up_inference

    set_up_inference()
    from linnaeus_jax.files import write_json
    from linnaeus_jax.inference.wrong_labels.folds import fold_accuracies
    from linnaeus_jax.reporting.logs import PlainConsole
    from linnaeus_jax.reporting.tables import percent, table

    rows = read_rows(args.source, args.features)
    found = fold_accuracies(rows, args.folds, args.seed)
    shares = ("accuracy", "spread", "least", "most", "mean_of_classes")
    shown = [[rank, of["rows"], *(percent(of[share]) for share in shares)] for rank, of in found["ranks"].items()]
    columns = ("rank", "rows", "right\n%", "standard\ndeviation", "worst\nfold %", "best\nfold %", "mean of\nclasses %")
    console = PlainConsole()
    console.print(table(f"{found['rows']:,} pictures in {args.folds} folds", columns, shown))
    for text in rows.notes:
        console.print(text, soft_wrap=True)
    if args.out is not None:
        write_json(args.out, found)


if __name__ == "__main__":
    sys.exit(main())
