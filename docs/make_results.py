"""Writes docs/results.md, docs/answers.md, docs/ideas.md and docs/from_nothing.md, their pictures, README's table and
benchmarks/results/real/summary.json from the results of `benchmarks.real`.

python -m docs.make_results
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.real import figures
from benchmarks.real.rows import IDEAS, ROWS
from benchmarks.real.sets import SETS, SPLITS
from benchmarks.real.summary import SUMMARY, Results, device_of, from_nothing, results, summary
from docs.results_pictures import draw, draw_minutes

FOLDER = Path(__file__).parent
PAGE, CURVES = FOLDER / "results.md", FOLDER / "pictures" / "risk_coverage.png"
ANSWERS_PAGE, IDEAS_PAGE = FOLDER / "answers.md", FOLDER / "ideas.md"
FROM_NOTHING, MINUTES = FOLDER / "from_nothing.md", CURVES.with_name("minutes.png")
HEADS = {
    "grocery": "Grocery Store: the split of the authors",
    "plants": "Campus plants: 72 % training, 8 % validation, 20 % test, drawn by seed",
    "plants-most": "Campus plants: the same test rows, one validation picture of each species, all others for training",
    "plants-time": "Campus plants by time: tested from 2023, trained and validated before",
    "plants-time-control": "Campus plants at random, with as many rows of each side as by time",
    "leaf": "Leaf: 70 % training, 10 % validation, 20 % test of each species, drawn by seed",
    "fish": "Fish4Knowledge: 70 % training, 10 % validation, 20 % test, whole trajectories, drawn by seed",
    "longtail": "Long tail: 70 % training, 10 % validation, 20 % test of each species, drawn by seed",
    "cifar10": "CIFAR-10: the split of the authors, a tenth of the training rows for validation",
}
_HEADS = ("head-lite0", "head-lite2", "control-lite0", "control-lite2")
_MOBILENETS = ("head-mobilenet", "head-insects")
_TUNED = ("last5-lite0", "last6-lite2")
#: rows that have a line even if they are not measured
WANTED = {
    "grocery": (*_HEADS, *_MOBILENETS, *_TUNED, "last6-lite2-320", "torch-last6-lite2"),
    "plants": (*_HEADS, *_MOBILENETS, "control-lite2-insects", *_TUNED),
    "plants-most": ("head-lite2", "head-lite2-insects", "last5-lite0-dates"),
    "plants-time": ("head-lite0", "head-lite2"),
    "plants-time-control": ("head-lite0", "head-lite2"),
    "leaf": ("head-lite0", "control-lite0", *_MOBILENETS, "last5-lite0"),
    "fish": ("head-lite0", "control-lite0"),
    "longtail": (*_HEADS, *_TUNED),
}

#: rows that the tables behind the first ones show, for the page to stay short
DETAILS = ("head-lite2", "last5-lite0-dates", "last6-lite2-320", "full-lite2")
#: splits whose pictures another split has; those tables leave them out
DIVIDED_AGAIN = ("plants-time", "plants-time-control")

WIDTH = 139  # characters of a line of text


def titled(row: str, one: Mapping[str, Any]) -> str:
    """A row's title, with the device where that is none of a CPU."""
    return f"{ROWS[row].title}, on one {one['device']}" if "device" in one else ROWS[row].title


def percent(value: Mapping[str, Any]) -> str:
    """A share in per cent, with its deviation."""
    mean = f"{100 * value['mean']:.1f}"
    return mean if value["deviation"] is None else f"{mean} ± {100 * value['deviation']:.1f}"


def plain(digits: int) -> Callable[[Mapping[str, Any]], str]:
    """A mean with so many digits behind the point."""
    return lambda value: f"{value['mean']:.{digits}f}"


def table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """As Markdown."""
    rows = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}", *(f"| {' | '.join(line)} |" for line in lines)]
    return "\n".join(rows) + "\n"


def nothing_tables(data: Mapping[str, Any], found: Results) -> str:
    """Accuracy of what was trained from nothing, a table for each set."""
    parts = []
    for split, heading in HEADS.items():
        rows, ranks = data.get(split, {}), SETS[SPLITS[split][0]].ranks
        lines = []
        for row in filter(from_nothing, rows):
            one, first = rows[row], found[split][row][0]
            epochs, minutes = len(first["curve"]), first["curve"][-1][0]
            cells = [percent(one["raw"][rank]["accuracy"]) for rank in ranks]
            title = ROWS[row].title.replace(" from nothing", "") + (" *" if "note" in first else "")
            lines.append([title, *cells, f"{minutes:.1f}", str(epochs)])
        if lines:
            device = found[split][next(filter(from_nothing, rows))][0]["machine"]["devices"][0]
            clock = "CPU-minutes" if device == "cpu" else f"minutes on one {device}"
            parts.append(f"## {heading}\n\n{table(['', *ranks, clock, 'epochs'], lines)}")
    return "\n".join(parts)


def accuracy_tables(data: Mapping[str, Any]) -> str:
    """Accuracy at each rank, a table for each split; what was wanted and is not there is named."""
    parts, nothing = [], []
    for split in WANTED:
        heading, ranks = HEADS[split], SETS[SPLITS[split][0]].ranks
        rows = {row: one for row, one in data.get(split, {}).items() if not from_nothing(row)}
        missing = "; ".join(ROWS[row].title for row in WANTED[split] if row not in rows)
        lacking = f"Not measured yet: {missing}." if missing else ""
        if not rows:
            nothing.append(heading)
            continue
        lines = []
        for row in (name for name in ROWS if name in rows and name not in IDEAS):
            one = rows[row]
            cells = [percent(one["raw"][rank]["accuracy"]) for rank in ranks]
            cells += [percent(one["raw"][ranks[0]]["macro_accuracy"]), ", ".join(map(str, one["seeds"]))]
            lines.append([titled(row, one), *cells])
        sides = ", ".join(f"{count:,} {side}" for side, count in next(iter(rows.values()))["pictures"].items())
        columns = ["", *ranks, f"{ranks[0]}, mean of classes", "seeds"]
        said = textwrap.fill(f"Pictures: {sides}. {lacking}", WIDTH)
        parts.append(f"### {heading}\n\n{said}\n\n{table(columns, lines)}")
        if any("without_finest" in one for one in rows.values()):
            parts.append(tail_table(rows, ranks))
    if nothing:
        parts.append(textwrap.fill(f"Not measured yet: {'; '.join(nothing)}.", WIDTH))
    return "\n".join(parts)


def tail_table(rows: Mapping[str, Any], ranks: Sequence[str]) -> str:
    """Of a set with rows that have no label at the finest rank: these rows, small classes, and the parts of the set."""
    shown = [row for row in ROWS if row not in IDEAS and "without_finest" in rows.get(row, {})]
    lines, parts, kinds = [], list(rows[shown[0]]["by_coarsest"]), ("raw", "paths")
    for row in shown:
        one = rows[row]
        cells = [percent(one["raw"][rank]["macro_accuracy"]) for rank in ranks[1:]]
        cells += [percent(one["by_coarsest"][part]["raw"]) for part in parts]
        lacking = [one["without_finest"][kind][ranks[1]] for kind in kinds if kind in one["without_finest"]]
        lines.append([titled(row, one), *cells, " → ".join(map(percent, lacking))])
    columns = [*(f"{rank}, mean of classes" for rank in ranks[1:]), *(f"{ranks[0]} of {part}" for part in parts)]
    said = f"The last column: {ranks[1]} of the pictures without a {ranks[0]}, by its own head → in the answered path."
    return f"{said}\n\n{table(['', *columns, f'without {ranks[0]}: {ranks[1]}'], lines)}"


def coarser_table(data: Mapping[str, Any]) -> str:
    """Coarser ranks by a head of their own, by sums of the finest head, and in the most probable path."""
    lines = []
    for split, row, one in _with(data, "summed"):
        for rank in list(one["raw"])[1:]:
            cells = [percent(one[kind][rank]["accuracy"]) if kind in one else "" for kind in ("raw", "summed", "paths")]
            lines.append([split, ROWS[row].title, rank, *cells])
    return table(["split", "", "rank", "own head", "sums", "path"], lines)


def answers_table(data: Mapping[str, Any]) -> str:
    """Calibration, risk and coverage, at the finest rank."""
    lines = []
    for split, row, one in _with(data, "paths"):
        rank = next(iter(one["raw"]))
        ece, nll, area = (
            [one[kind][rank][name] for kind in ("raw", "paths")] for name in ("ece", "nll", "risk_coverage_area")
        )
        cells = [" → ".join(map(percent, ece)), " → ".join(map(plain(3), nll)), " → ".join(map(plain(3), area))]
        cells.append(plain(3)(one["haurc"]) if "haurc" in one else "")
        lines.append([split, ROWS[row].title, rank, *cells])
    return table(["split", "", "rank", "ECE %", "NLL", "area under risk–coverage", "hAURC"], lines)


def coverage_table(data: Mapping[str, Any]) -> str:
    """What answers for a coverage of 90 % gave."""
    lines = []
    for split, row, one in _with(data, "conformal"):
        said = [f"{rank} {percent(share)}" for rank, share in one["conformal"]["answered"].items()]
        lines.append([split, ROWS[row].title, percent(one["conformal"]["coverage"]), "; ".join(said)])
    return table(["split", "", "hold the truth %", "answered at, %"], lines)


def count_table(data: Mapping[str, Any]) -> str:
    """Accuracy of the first seed by how many training rows a class has."""
    lows, lines = [*figures.COUNTS], []
    for split, row, one in _with(data, "paths"):
        by = {each["from"]: each for each in one["by_count"]}
        cells = [f"{100 * by[low]['accuracy']:.1f}" if low in by else "" for low in lows]
        lines.append([split, ROWS[row].title, *cells])
    names = [f"{low}–{high - 1}" for low, high in pairwise(lows)] + [f"{lows[-1]} or more"]
    return table(["split", "", *names], lines)


def idea_table(data: Mapping[str, Any]) -> str:
    """What single changes gain over the row that they are compared with."""
    lines = []
    for split, rows in data.items():
        ranks = SETS[SPLITS[split][0]].ranks
        for row in (name for name in IDEAS if name in rows):
            one, cells = rows[row], []
            for rank in ranks[:2]:
                cells.append(percent(one["raw"][rank]["accuracy"]))
                gain = one.get("beside", {}).get(rank)
                cells.append("" if gain is None else f"{gained(gain)}{' (noise)' if gain['noise'] else ''}")
            cells.append(percent(one["raw"][ranks[0]]["macro_accuracy"]))
            lines.append([split, IDEAS[row].title, *cells, str(len(one["seeds"]))])
    return table(["split", "", "finest", "gain", "next rank", "gain", "finest, mean of classes", "seeds"], lines)


def gained(value: Mapping[str, Any]) -> str:
    """A gain in per cent, with its sign and deviation."""
    mean = f"{100 * value['mean']:+.1f}".replace("-", "−")
    return mean if value["deviation"] is None else f"{mean} ± {100 * value['deviation']:.1f}"


def unseen_table(data: Mapping[str, Any]) -> str:
    """Rows with metadata, where these are known and where they are hidden, in a sentence."""
    lines = []
    for split, rows in data.items():
        for row, one in rows.items():
            if "unseen" in one:
                rank = next(iter(one["raw"]))
                lines.append(
                    [split, ROWS[row].title, *(percent(one[kind][rank]["accuracy"]) for kind in ("raw", "unseen"))]
                )
    if not lines:
        return "What dates are worth where the test rows have none is not measured yet."
    said = (
        f"{split}, {title}: {seen} % where test rows have dates, {hidden} % without"
        for split, title, seen, hidden in lines
    )
    return textwrap.fill(f"One model with and without what it knows of the test rows: {'; '.join(said)}.", WIDTH)


def adjusted_table(data: Mapping[str, Any]) -> str:
    """Logit adjustment at the finest rank."""
    lines = []
    for split, rows in data.items():
        for row in ("head-lite0", "head-lite2", "last5-lite0", "last6-lite2"):
            one = rows.get(row, {})
            if "adjusted" in one:
                rank = next(iter(one["raw"]))
                pairs = [
                    " → ".join(percent(one[kind][rank][name]) for kind in ("raw", "adjusted"))
                    for name in ("accuracy", "macro_accuracy")
                ]
                lines.append([split, ROWS[row].title, rank, *pairs])
    return table(["split", "", "rank", "accuracy", "mean of classes"], lines)


def cost_table(data: Mapping[str, Any]) -> str:
    """What a row costs, and how long its bundle takes for answers."""
    timed = ("predict_ms", "predict_cpu_ms", "server_ms", "pictures_per_s", "pictures_per_cpu_s")
    lines = []
    for split, rows in data.items():
        if split.startswith("plants-time"):  # as those of plants
            continue
        for row, one in ((row, one) for row, one in rows.items() if not from_nothing(row)):
            cost, took = one["cost"], one.get("latency", {})
            if row in IDEAS or not ("bundle_mb" in one or ROWS[row].network) or not (cost or took):
                continue
            cells = [""] * 3
            if cost:
                cells = [plain(1)(each["cpu_minutes"]) for each in (one["before"], cost)] + [plain(0)(cost["peak_mb"])]
            answers = [f"{took[name]:.1f}" if took else "" for name in timed]
            lines.append(
                [split, titled(row, one), *cells, plain(1)(one["bundle_mb"]) if "bundle_mb" in one else "", *answers]
            )
    head = ["features, once", "a seed", "peak MB", "bundle MB"]
    head += ["predict, ms", "CPU-ms of it", "server, ms", "pictures/s", "pictures per CPU-second"]
    return table(["split", "", *head], lines)


def cpu_hours(found: Results, seeds_of_a_row: int | None = None) -> float:
    """CPU-hours of results without a GPU, features once; of each row its first seeds."""
    minutes = 0.0
    for split, rows in found.items():
        once: dict[str, float] = {}
        on_cpu = ((row, seeds) for row, seeds in rows.items() if not from_nothing(row) and device_of(seeds) == "cpu")
        for row, seeds in on_cpu:
            minutes += sum(one["cost"]["cpu_minutes"] or 0 for one in seeds[:seeds_of_a_row])
            each = max(one["cost_of_pixels_and_features"]["cpu_minutes"] for one in seeds)
            once[f"{ROWS[row].trunks}{ROWS[row].side}"] = each
        minutes += sum(once.values()) if "time" not in split else 0.0  # which has the pictures of another split
    return minutes / 60


def detailed(rows: Mapping[str, Any]) -> list[str]:
    """Rows of `DETAILS`, or the head of Lite0 where there is none of them."""
    return [row for row in rows if row in DETAILS] or [row for row in rows if row == "head-lite0"]


def _with(data: Mapping[str, Any], what: str) -> Iterable[tuple[str, str, dict[str, Any]]]:
    return (
        (split, row, rows[row])
        for split, rows in data.items()
        if split not in DIVIDED_AGAIN
        for row in detailed(rows)
        if what in rows[row]
    )


def text(data: Mapping[str, Any], found: Results) -> str:
    """The page."""
    machines = {
        (
            one["machine"]["cpu"],
            one["machine"]["cores"],
            *([device] if (device := device_of([one])) != "cpu" else []),
            f"Python {one['machine']['python']}",
            f"JAX {one['machine']['versions']['jax']}",
        )
        for rows in found.values()
        for row, seeds in rows.items()
        for one in seeds
        if not from_nothing(row)
    }
    said = "; ".join(f"{cpu}, {cores} cores, {', '.join(rest)}" for cpu, cores, *rest in sorted(machines))
    sets = table(
        ["set", "pictures", "classes", "licence", "from"],
        [
            [
                one.title,
                f"{one.pictures:,}",
                ", ".join(f"{count} {rank}" for count, rank in zip(one.classes, one.ranks)),
                one.licence,
                ", ".join(f"[{each.split('/', 1)[1]}](https://{each})" for each in one.repositories),
            ]
            for one in SETS.values()
        ],
    )
    return filled(
        "results",
        sets=sets,
        accuracy=accuracy_tables(data),
        cost=cost_table(data),
        hours=f"{cpu_hours(found):.1f}",
        first_hours=f"{cpu_hours(found, 1):.1f}",
        machine=said,
    )


def filled(name: str, **parts: str) -> str:
    """A page's text with its tables in place of their names."""
    page = (FOLDER / "making" / f"{name}.txt").read_text()
    for part, content in parts.items():
        page = page.replace("{" + part + "}", content.strip())
    return page


def answers_text(data: Mapping[str, Any]) -> str:
    """The page on answers."""
    tables = {"coarser": coarser_table, "answers": answers_table, "coverage": coverage_table, "counts": count_table}
    return filled("answers", **{name: make(data) for name, make in tables.items()})


def ideas_text(data: Mapping[str, Any]) -> str:
    """The page on single changes."""
    return filled("ideas", ideas=idea_table(data), unseen=unseen_table(data), adjusted=adjusted_table(data))


def nothing_text(data: Mapping[str, Any], found: Results) -> str:
    """The page on training from nothing."""
    return filled("from_nothing", tables=nothing_tables(data, found))


#: rows of the table in README
FIRST = ("control-lite2", "head-lite2", "last5-lite0", "last6-lite2", "full-lite2")
README, MARK = FOLDER.parent / "README.md", "<!-- {} of docs.make_results -->\n"


def first_table(data: Mapping[str, Any]) -> str:
    """What README shows: the plants."""
    rows, ranks = data["plants"], SETS["plants"].ranks
    lines = [
        [
            titled(row, rows[row]),
            *(f"{percent(rows[row][kind][rank]['accuracy'])} %" for kind, rank in _best(rows[row], ranks)),
        ]
        for row in FIRST
        if row in rows
    ]
    return table(["trained", *(f"{rank} ({count})" for rank, count in zip(ranks, SETS["plants"].classes))], lines)


def _best(row: Mapping[str, Any], ranks: Sequence[str]) -> Iterable[tuple[str, str]]:
    """The answers of `predict`, where there is a bundle."""
    return ((("paths" if "paths" in row else "raw"), rank) for rank in ranks)


def with_table(readme: str, data: Mapping[str, Any]) -> str:
    """README with its table."""
    first, last = MARK.format("begin"), MARK.format("end")
    before, rest = readme.split(first)
    return f"{before}{first}\n{first_table(data)}\n{last}{rest.split(last)[1]}"


def main() -> None:
    """Writes the files."""
    found = results()
    data = summary(found)
    SUMMARY.write_text(json.dumps(data, indent=1) + "\n")
    PAGE.write_text(text(data, found))
    ANSWERS_PAGE.write_text(answers_text(data))
    IDEAS_PAGE.write_text(ideas_text(data))
    FROM_NOTHING.write_text(nothing_text(data, found))
    README.write_text(with_table(README.read_text(), data))
    draw(found).savefig(CURVES, metadata={"Software": None})
    draw_minutes(found).savefig(MINUTES, metadata={"Software": None})


if __name__ == "__main__":
    main()
