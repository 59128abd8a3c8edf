"""How long the tests take: what pytest has measured, by file and by test, as a table that is kept.

    python -m pytest --junitxml=build/fast.xml
    python -m pytest -m slow --junitxml=build/slow.xml
    python -m benchmarks.durations build/fast.xml build/slow.xml

Writes results/test_durations.json: a row for each suite and file (tests, seconds of all of them with what they prepare,
seconds of the longest one), the seconds of every test that takes at least --least, and of each suite from its start to
its end, which several processes share.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.common import write_results


def measured(report: Path) -> Iterator[tuple[str, str, float]]:
    """File, name and seconds of each test of a report of pytest in the form of JUnit."""
    for case in ElementTree.parse(report).iter("testcase"):
        yield case.attrib["classname"].replace(".", "/") + ".py", case.attrib["name"], float(case.attrib["time"])


def wall(report: Path) -> float:
    """Seconds from the start of a suite to its end."""
    return sum(float(suite.attrib["time"]) for suite in ElementTree.parse(report).iter("testsuite"))


def table(report: Path) -> list[dict[str, Any]]:
    """A row for each file of a suite, the longest first."""
    seconds = defaultdict[str, list[float]](list)
    for file, _, time in measured(report):
        seconds[file].append(time)
    return [
        {
            "suite": report.stem,
            "file": file,
            "tests": len(times),
            "seconds": round(sum(times), 2),
            "longest": round(max(times), 2),
        }
        for file, times in sorted(seconds.items(), key=lambda item: -sum(item[1]))
    ]


def single(report: Path, least: float) -> dict[str, float]:
    """Test -> seconds, the longest first, without those that take less."""
    found = {f"{file}::{name}": round(time, 2) for file, name, time in measured(report) if time >= least}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="+", type=Path, help="files of pytest --junitxml, named as their suites")
    parser.add_argument(
        "--least", type=float, default=0.5, help="seconds of a test that is named (default: %(default)s)"
    )
    options = parser.parse_args(argv)
    command = shlex.join(["python", "-m", "benchmarks.durations", *(sys.argv[1:] if argv is None else argv)])
    details = {
        "wall": {report.stem: round(wall(report), 1) for report in options.reports},
        "tests": {report.stem: single(report, options.least) for report in options.reports},
    }
    rows = [row for report in options.reports for row in table(report)]
    print(write_results("test_durations", rows, command, details))


if __name__ == "__main__":
    main()
