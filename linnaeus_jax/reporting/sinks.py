"""Where rows of metrics go: always the metrics log, and any of W&B and TensorBoard, which may fail without harm."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from linnaeus_jax.config.errors import ConfigError
from linnaeus_jax.config.paths import program
from linnaeus_jax.config.redaction import redacted, sanitize
from linnaeus_jax.config.section import nested
from linnaeus_jax.config.typed import ExperimentConfig
from linnaeus_jax.reporting.alerts import Watch
from linnaeus_jax.reporting.class_tables import Table
from linnaeus_jax.reporting.metrics_log import LOCAL, MetricsLog, Row
from linnaeus_jax.reporting.tensorboard_sink import TensorBoardSink

log = logging.getLogger("linnaeus_jax")

#: seconds after which a sink that failed is tried again at the end of an epoch; doubled with each further failure,
#: since a server that does not answer makes the run wait
RETRY_SECONDS = 300.0


def new_run_id() -> str:
    """A fresh identity for a run."""
    return uuid.uuid4().hex[:12]


class Sink(Protocol):
    """A receiver of metric rows. Every method may raise; `Sinks` sees to it that training goes on."""

    name: str  # what messages call it

    def write(
        self, event: str, step: int, epoch: int, values: Mapping[str, Any], *, timestamp: float | None = None
    ) -> None:
        """Takes one row.

        Args:
          event: "train" (a log point), "epoch" (its end) or "final" (best values of the run); "step", a log point
            of `schedule.metrics.step_interval`, is for the metrics log alone.
          step: optimizer updates completed.
          epoch: index of the epoch.
          values: metric name -> number or text.
          timestamp: seconds since 1970; None: now.
        """

    def replayed(self) -> None:
        """Follows the rows of earlier starts of the run, which are written anew at each start."""

    def tables(self, tables: Mapping[str, Table]) -> None:
        """Takes tables about the classes, by name, at the end of the run and before `close`."""

    def alert(self, title: str, text: str) -> None:
        """Tells a person; `title` has fewer than 64 characters."""

    def close(self, exit_code: int = 0) -> None:
        """Hands over what is buffered and ends; a code other than 0 marks the run as failed."""


def replay(rows: Iterable[Row], sink: Sink) -> None:
    """Sends every row but the `LOCAL` ones to a sink, in order of steps.

    A restart writes the rows of the end of an epoch after those of the log point at the same step: a stable sort keeps
    that.
    """
    for row in sorted((row for row in rows if row.event != LOCAL), key=lambda row: row.step):
        sink.write(row.event, row.step, row.epoch, row.values, timestamp=row.timestamp)


class Sinks:
    """All sinks: the metrics log must succeed; another sink that fails is switched off, then made anew.

    A sink that is made anew gets every row of the metrics log, so that a failure costs no row once the sink works.
    """

    def __init__(self, metrics_log: MetricsLog | None = None, optional: Sequence[Sink] = ()) -> None:
        """`metrics_log` is None on processes that write nothing, and until a run writes."""
        self.metrics_log = metrics_log
        self.optional = list(optional)
        self._watch = Watch()
        self._off: dict[str, Callable[[], Sink]] = {}  # that failed, and how they are made
        self._makers: dict[str, Callable[[], Sink]] = {}
        self._retry_at, self._pause = 0.0, RETRY_SECONDS

    def write(self, event: str, step: int, epoch: int, values: Mapping[str, Any]) -> None:
        """Writes one row to the metrics log and, but for `LOCAL`, to the other sinks; sends the alerts it calls for.

        Raises:
          MetricsLogError: the metrics log could not be written.
        """
        if self.metrics_log is None:
            return
        if event == "final" or (event == "epoch" and time.monotonic() >= self._retry_at):
            self._try_again()
        self.metrics_log.write(event, step, epoch, dict(values))
        if event != LOCAL:
            self._each("write", lambda sink: sink.write(event, step, epoch, values))
        for title, text in self._watch.findings(step, values):
            self.alert(title, text)

    def alert(self, title: str, text: str, *, logged: bool = False) -> None:
        """Warns in the log, unless `logged` there already, and wherever a sink can reach a person."""
        if self.metrics_log is None:
            return
        if not logged:
            log.warning("%s: %s", title, text)
        self._each("alert", lambda sink: sink.alert(title, sanitize(text)))

    def tables(self, tables: Mapping[str, Table]) -> None:
        """Hands tables about the classes to every sink."""
        self._each("tables", lambda sink: sink.tables(tables))

    def close(self, exit_code: int = 0) -> None:
        """Closes every sink; may be called again without effect."""
        self._each("close", lambda sink: sink.close(exit_code))
        self.optional = []

    def open(self, name: str, make: Callable[[], Sink]) -> None:
        """Adds an optional sink, which `make` opens and which gets the rows so far first.

        Raises:
          ConfigError: the sink needs a package that is not installed.
        """
        self._makers[name] = make
        try:
            rows = [] if self.metrics_log is None else self.metrics_log.rows()
            sink = make()
            replay((row for row in rows if row.event != "final"), sink)  # the end of the run writes best values again
            sink.replayed()
        except ConfigError:
            raise
        except Exception as error:
            self._leave(name, f"it could not be started: {str(error) or repr(error)}")
        else:
            self.optional.append(sink)

    def _try_again(self) -> None:
        off, self._off = self._off, {}
        for name, make in off.items():
            self.open(name, make)
            if name not in self._off:
                log.info("%s works again and holds every row", name)

    def _each(self, what: str, call: Callable[[Sink], None]) -> None:
        for sink in list(self.optional):
            try:
                call(sink)
            except Exception as error:
                self.optional.remove(sink)
                self._leave(sink.name, f"{what} failed: {error}")

    def _leave(self, name: str, why: str) -> None:
        if name in self._makers:
            self._off[name] = self._makers[name]
        self._retry_at, self._pause = time.monotonic() + self._pause, 2 * self._pause
        log.warning(
            "%s is off, training goes on; %s. It is tried again from time to time, at the end of an epoch, and gets "
            "every row then; it can also be made afterwards from the metrics log with "
            "`%s`",
            name,
            why,
            program("debug replay-metrics", "RUN" if self.metrics_log is None else self.metrics_log.path.parents[1]),
        )


def open_sinks(
    sinks: Sinks,
    metrics_log: MetricsLog,
    experiment: ExperimentConfig,
    *,
    config: Mapping[str, Any],
    facts: Mapping[str, Any],
    run_id: str,
    debug: bool = False,
) -> Sinks:
    """`sinks` with those open that `config.experiment` asks for, holding what earlier starts of the run have logged.

    Args:
      sinks: those of a run that has written nothing yet.
      experiment: the section `experiment` of the configuration.
      config: the whole configuration as JSON types, secrets removed.
      facts: what else describes the run: `dataset_metadata`, `model_info`, `system_info`.
      run_id: identity of the run in W&B, kept over resumes.
      debug: write the payload of every W&B call to the debug log.

    Raises:
      ConfigError: a sink that is asked for needs a package that is not installed.
    """
    sinks.metrics_log, logs = metrics_log, metrics_log.path.parent
    if experiment.tensorboard.enabled:
        sinks.open("TensorBoard", lambda: TensorBoardSink(logs / "tensorboard", config=config))
    if experiment.wandb.enabled:
        described, safe = {**config, **facts}, redacted(nested(experiment))

        def of_wandb() -> Sink:
            # the import takes a fifth of the time of all others, which only those who use it should pay
            from linnaeus_jax.reporting.wandb_sink import WandbSink

            return WandbSink(safe, directory=logs, config=described, run_id=run_id, debug=debug)

        sinks.open("W&B", of_wandb)
    return sinks
