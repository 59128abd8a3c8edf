"""What a person sees while a run goes on: a progress bar, documented log lines, tables."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from linnaeus_jax.data.baselines import TITLES
from linnaeus_jax.metrics.console_lines import clock
from linnaeus_jax.metrics.names import CHAINS
from linnaeus_jax.metrics.phases import phase_label
from linnaeus_jax.reporting.logs import console
from linnaeus_jax.reporting.tables import table
from linnaeus_jax.taxonomy.ranks import task_name

log = logging.getLogger("linnaeus_jax")

#: seconds between two lines that say for how long a program has been compiled, where no bar does
PLAIN_EVERY = 30.0
#: weight of the updates before in the averages of `Throughput`
SMOOTHING = 0.9


class Throughput:
    """Images per second and the share of time spent waiting for data, over a sliding window of updates.

    The first update of a window carries compilation or a pause and is left out.
    """

    def __init__(self) -> None:
        self.images_per_second = 0.0
        self.wait_share = 0.0
        self.seconds_per_update = 0.0
        self._last: float | None = None

    def pause(self) -> None:
        """The time until the next update does not count."""
        self._last = None

    def update(self, images: int, waited: float) -> None:
        """One update of `images` images was dispatched after `waited` seconds of waiting for its data."""
        now = time.perf_counter()
        if self._last is not None:
            elapsed = max(now - self._last, 1e-9)
            keep = SMOOTHING if self.seconds_per_update else 0.0
            self.seconds_per_update = keep * self.seconds_per_update + (1 - keep) * elapsed
            self.wait_share = keep * self.wait_share + (1 - keep) * min(waited / elapsed, 1.0)
            self.images_per_second = images / self.seconds_per_update
        self._last = now


class TrainingProgressBar:
    """The bar of a whole run; a plain no-op where the output is no terminal."""

    def __init__(self, total: int, start: int, *, shown: bool) -> None:
        self.total, self._shown = total, shown
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            console=console,
            expand=True,
            disable=not (shown and console.is_terminal),
        )
        self.accuracies = ""  # of the last log point
        self._task = self._progress.add_task("training", total=total, completed=start, facts="")
        self._progress.start()

    def update(self, step: int, description: str, throughput: Throughput) -> None:
        """Shows that `step` updates are completed."""
        facts = f"{self.accuracies}{throughput.images_per_second:7.0f} img/s  wait {100 * throughput.wait_share:3.0f} %"
        facts += f"  whole run {eta(throughput.seconds_per_update * (self.total - step))}"
        self._progress.update(self._task, completed=step, description=description, facts=facts)

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Says for how long a program has been compiled, in the bar, and where there is none in a line from time to
        time."""
        if not self._shown:
            yield
            return
        bar = console.is_terminal
        if not bar:
            log.info("compiling: XLA makes the program of an update; a second start finds it on disk")

        def tell(seconds: int) -> None:
            if bar:
                facts = "XLA makes the program of an update; a second start finds it on disk"
                self._progress.update(self._task, description=f"compiling ({seconds} s)", facts=facts)
            else:
                log.info("compiling (%d s)", seconds)

        with ticking(tell, every=1.0 if bar else PLAIN_EVERY):
            yield

    @contextmanager
    def doing(self, description: str, step: int) -> Iterator[None]:
        """Shows in the bar what the run does after `step` updates."""
        self._progress.update(self._task, completed=step, description=description, facts=self.accuracies)
        yield

    def close(self) -> None:
        self._progress.stop()


@contextmanager
def row_bar(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar over rows; yields a function of how many are done."""
    columns = (TextColumn("[bold]{task.description}"), BarColumn(bar_width=None), MofNCompleteColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=console, expand=True, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(description, total=total)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def ticking(tell: Callable[[int], None], every: float) -> Iterator[None]:
    """Calls `tell` with the seconds since the beginning, while the block runs."""
    started, ended = time.monotonic(), threading.Event()

    def tick() -> None:
        while not ended.wait(every):
            tell(round(time.monotonic() - started))

    thread = threading.Thread(target=tick, name="ticking", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def eta(seconds: float) -> str:
    """`h:mm:ss`; `?` for what is not yet estimated."""
    return clock(seconds if seconds > 0 else math.nan)


def phase_tables(
    title: str,
    results: Mapping[str, Mapping[str, float]],
    tasks: Sequence[str],
    width: int,
    label: Callable[[str], str] = phase_label,
) -> Iterator[Table]:
    """What every phase measured, one column each, in as many tables as fit `width` characters.

    Accuracies of a rank are over the rows with a label there; `label` is what people read for a phase.
    """
    phases = [phase for phase in results if not set(CHAINS).isdisjoint(results[phase])]
    measured = [("loss, mean of ranks", "loss_unweighted", 1.0, ".3f")]
    measured += [("all ranks right %", "chain_accuracy", 100.0, ".1f")]
    measured += [("all known right %", "partial_chain_accuracy", 100.0, ".1f")]
    measured += [(f"{task_name(task)} %", f"non_null/acc1_{task}", 1.0, ".1f") for task in tasks]
    measured += [("mean of classes %", f"macro_acc1_{task}", 1.0, ".1f") for task in tasks[:1]]
    first = 3 + max(len(heading) for heading, *_ in measured)
    words = [max(map(len, label(phase).split())) for phase in phases]
    columns = max(1, (width - 1 - first) // (3 + max(words, default=1)))
    for start in range(0, len(phases), columns):
        part = phases[start : start + columns]
        rows = [
            [heading, *(f"{scale * results[phase][name]:{form}}" if name in results[phase] else "–" for phase in part)]
            for heading, name, scale, form in measured
        ]
        yield table("" if start else title, ["", *(label(phase).replace(" ", "\n") for phase in part)], rows)


def baseline_table(title: str, percents: Mapping[str, Mapping[str, float]], tasks: Sequence[str]) -> Table:
    """What simple means reach, one row each; kind -> rank -> percent."""
    ranks = [task for task in tasks if any(task in of for of in percents.values())]
    rows = [
        [TITLES.get(kind, kind), *(f"{of[task]:.1f}" if task in of else "–" for task in ranks)]
        for kind, of in percents.items()
    ]
    return table(title, ["", *(f"{task_name(task)} %" for task in ranks)], rows)
