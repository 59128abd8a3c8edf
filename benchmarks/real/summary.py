"""Means over the seeds of all results, which benchmarks/results/real/summary.json keeps."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.common import RESULTS
from benchmarks.real import figures
from benchmarks.real.rows import IDEAS, ROWS
from benchmarks.real.sets import SPLITS

REAL = RESULTS / "real"
SUMMARY = REAL / "summary.json"

Results = dict[str, dict[str, list[dict[str, Any]]]]  # split -> row -> one for each seed


def results() -> Results:
    """All results, in the order of `SPLITS` and `ROWS`."""
    found: Results = {}
    for split in SPLITS:
        for row in ROWS:
            seeds = sorted((REAL / split).glob(f"{row}-[0-9]*.json"), key=lambda path: int(path.stem.split("-")[-1]))
            for path in seeds:
                if path.stem.rpartition("-")[0] == row:
                    found.setdefault(split, {}).setdefault(row, []).append(json.loads(path.read_text()))
    return found


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean and sample deviation; None for the deviation of one value."""
    deviation = round(statistics.stdev(values), 5) if len(values) > 1 else None
    return {"mean": round(statistics.fmean(values), 5), "deviation": deviation}


def summary(found: Results) -> dict[str, Any]:
    """Means over the seeds of every number that a table holds."""
    data = {split: {row: _row(seeds) for row, seeds in rows.items()} for split, rows in found.items()}
    for split, rows in found.items():
        for row in IDEAS:
            if row in rows and compared_with(row) in rows and compared_with(row) != row:
                data[split][row]["beside"] = beside(rows[compared_with(row)], rows[row])
    return data


def compared_with(row: str) -> str:
    """The row that an idea changes one thing of."""
    for beginning, base in (("idea-hidden", "idea-hidden-left-out"), ("idea-pictures", "idea-pictures-plain")):
        if row.startswith(beginning):
            return base
    return "idea-plain"


def beside(base: list[dict[str, Any]], seeds: list[dict[str, Any]]) -> dict[str, Any]:
    """Gains over another row, rank -> mean and deviation over the seeds that both have, and whether they are noise.

    They are where their mean is within two standard errors of 0.
    """
    of = {one["seed"]: one["figures"]["raw"] for one in base}
    both = [(of[one["seed"]], one["figures"]["raw"]) for one in seeds if one["seed"] in of]
    found: dict[str, Any] = {}
    for rank in both[0][0] if both else ():
        gain = spread([mine[rank]["accuracy"] - other[rank]["accuracy"] for other, mine in both])
        error = None if gain["deviation"] is None else gain["deviation"] / len(both) ** 0.5
        found[rank] = gain | {"noise": None if error is None else abs(gain["mean"]) <= 2 * error}
    return found


def _row(seeds: list[dict[str, Any]]) -> dict[str, Any]:
    first = seeds[0]["figures"]
    out: dict[str, Any] = {"seeds": [one["seed"] for one in seeds], "title": seeds[0]["row_title"]}
    if (device := device_of(seeds)) != "cpu":
        out["device"] = device

    def over(path: Iterable[str | int]) -> dict[str, Any]:
        values = []
        for one in seeds:
            node: Any = one
            for key in path:
                node = node[key]
            values.append(float(node))
        return spread(values)

    for kind in (*figures.KINDS, "summed", "adjusted"):
        if all(kind in one["figures"] for one in seeds):
            out[kind] = {
                rank: {name: over(("figures", kind, rank, name)) for name in values}
                for rank, values in first[kind].items()
            }
    for name in ("without_finest", "by_coarsest"):
        if all(name in one["figures"] for one in seeds):
            out[name] = of_all([one["figures"][name] for one in seeds])
    if "conformal" in first:
        out["conformal"] = {
            "coverage": over(("figures", "conformal", "coverage")),
            "answered": {
                rank: over(("figures", "conformal", "answered", rank)) for rank in first["conformal"]["answered"]
            },
        }
    if all("haurc" in one["figures"] for one in seeds):
        out["haurc"] = over(("figures", "haurc"))
    out["by_count"] = [
        {"from": each["from"], "rows": each["rows"], "accuracy": each["accuracy"]} for each in first["by_count"]
    ]
    out["pictures"] = seeds[0]["pictures"]
    costs = [one["cost"] for one in seeds if one["cost"]["cpu_minutes"] is not None]
    out["cost"] = {name: spread([one[name] for one in costs]) for name in (costs or [{}])[0]}
    before = [one["cost_of_pixels_and_features"]["cpu_minutes"] for one in seeds]
    out["before"] = {"cpu_minutes": spread([max(before)])}
    if "latency" in seeds[0]:
        out["latency"] = seeds[0]["latency"]
    if "bundle_mb" in seeds[0]:
        out["bundle_mb"] = over(("bundle_mb",))
    return out


def of_all(parts: Sequence[Any]) -> dict[str, Any]:
    """The numbers of trees of the same keys, each as its `spread`; a key that one of them lacks is left out."""
    if not isinstance(parts[0], dict):
        return spread(parts)
    return {key: of_all([part[key] for part in parts]) for key in parts[0] if all(key in part for part in parts)}


def device_of(seeds: list[dict[str, Any]]) -> str:
    """What a row was trained on, as JAX calls it."""
    return next(iter(seeds[0]["machine"]["devices"]), "cpu")


def from_nothing(row: str) -> bool:
    """Whether it begins without weights, so that it stands on a page of its own."""
    return not ROWS[row].trunks
