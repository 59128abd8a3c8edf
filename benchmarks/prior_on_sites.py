"""How much a prior of places says of sites that were searched for a species, by real occurrences (rspatial/disdat).

    nice python -m benchmarks.prior_on_sites DIR [--cells 0.1,0.25,0.5,1,2]

DIR holds the tables of `inst/extdata` of github.com/rspatial/disdat as CSV (Elith et al. 2020, "Presence-only and
presence-absence data for comparing species distribution modeling methods"): REGIONtrain_po.csv, occurrences, and
REGIONtest_pa*.csv, sites at which each species was found or not. Of the regions whose coordinates are degrees: Canada,
South America, New South Wales. The prior is made by `linnaeus prior build` from the occurrences, of place alone, and is
asked for the sites. In the table, means over the species: the area under the ROC curve of the log ratio at sites with
and without the species, and how many of 100 sites with a species it calls more common than everywhere; and over the
findings at all sites: NLL of the found species among those of its group by the prior, and by its share of the
occurrences alone.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.common import write_results
from linnaeus_jax.inference.prior import Prior, read_prior
from linnaeus_jax.inference.quality.measured_novelty import told_apart
from linnaeus_jax.tools import prior as tool

REGIONS = {"CAN": "Canada", "NSW": "New South Wales", "SA": "South America"}


def made(occurrences: pl.DataFrame, degrees: float, folder: Path) -> Prior:
    """By the command."""
    table, out = folder / "occurrences.csv", folder / "prior.npz"
    occurrences.select(
        pl.col("spid").alias("species"),
        pl.col("group").alias("family"),
        pl.col("y").alias("decimalLatitude"),
        pl.col("x").alias("decimalLongitude"),
    ).write_csv(table)
    ranks = ["--rank-map", "species=species", "family=family"]
    status = tool.main(["build", "--occurrences", str(table), *ranks, "--cell", str(degrees), "--out", str(out)])
    assert not status
    return read_prior(out)


def measured(prior: Prior, occurrences: pl.DataFrame, sites: Sequence[pl.DataFrame]) -> dict[str, float]:
    """Means over species, and over findings."""
    place = {name: number for number, (rank, name) in enumerate(prior.names) if rank == "species"}
    count = dict(occurrences["spid"].value_counts().iter_rows())
    areas, more, nll, without = [], [], [], []
    for table in sites:
        x, y = (table[name].to_numpy() for name in "xy")
        ratio = prior.log_ratios(prior.grid.cells(y, x), np.zeros(len(table), np.int64))
        species = [name for name in table.columns[4:] if name in place]
        share = np.array([count[name] for name in species], float)
        score, found = ratio[:, [place[name] for name in species]], table.select(species).to_numpy() > 0
        for column, of in enumerate(found.T):
            if of.any() and not of.all():
                areas.append(told_apart(score[of, column], score[~of, column])["auroc"])
                more.append((score[of, column] > 0).mean())
        before = np.log(share / share.sum())
        after = score + before
        after -= np.log(np.exp(after).sum(axis=1, keepdims=True))
        nll += (-after[found]).tolist()
        without += (-np.broadcast_to(before, after.shape)[found]).tolist()
    values = {"auroc": areas, "more common": more, "nll": nll, "nll by share": without}
    return {"species": len(areas)} | {name: round(float(np.mean(each)), 3) for name, each in values.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path, help="folder of the CSV files")
    parser.add_argument("--cells", default="0.1,0.25,0.5,1,2", help="heights of cells in degrees")
    options = parser.parse_args(arguments)
    table = list[dict[str, Any]]()
    for code, region in REGIONS.items():
        occurrences = pl.read_csv(options.tables / f"{code}train_po.csv", infer_schema_length=None)
        files = sorted(options.tables.glob(f"{code}test_pa*.csv"))
        sites = [pl.read_csv(path, infer_schema_length=None) for path in files]
        for degrees in map(float, options.cells.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                prior = made(occurrences, degrees, Path(folder))
            line = {"region": region, "occurrences": len(occurrences), "sites": sum(map(len, sites)), "cell": degrees}
            table.append(line | measured(prior, occurrences, sites))
            print(table[-1], flush=True)
    shown = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "-m", "benchmarks.prior_on_sites", *shown])
    write_results("prior_on_sites", table, command.replace(str(options.tables), "DIR"))


if __name__ == "__main__":
    main()
