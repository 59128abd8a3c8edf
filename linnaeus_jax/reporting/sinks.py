"""Where rows of metrics go: always the metrics log, and any of W&B and TensorBoard, which may fail without harm."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ml_collections import ConfigDict

from linnaeus_jax.config.errors import ConfigError
from linnaeus_jax.reporting.metrics_log import MetricsLog
from linnaeus_jax.reporting.replay import LOCAL, Row, read_rows

log = logging.getLogger("linnaeus_jax")

WAIT_SHARE = "pipeline/wait_share"
#: share of the time spent waiting for data that counts as starving, and below which the alarm is armed again
STARVING, FED = 0.5, 0.25
#: rows in a row that must starve before anybody is told
STARVING_ROWS = 3


class Sink(Protocol):
    """A receiver of metric rows. Every method may raise; `Sinks` sees to it that training goes on."""

    name: str

    def write(
        self, event: str, step: int, epoch: int, values: Mapping[str, Any], *, timestamp: float | None = None
    ) -> None:
        """Takes one row.

        Args:
          event: "train" (a log point), "epoch" (a boundary) or "final" (best values of the run); "step", a log point
            of `schedule.metrics.step_interval`, is for the metrics log alone.
          step: optimizer updates completed.
          epoch: index of the epoch.
          values: metric name -> number or text.
          timestamp: seconds since 1970; None: now.
        """

    def heal(self, rows: Sequence[Row]) -> None:
        """At the start: makes what earlier starts of the run left agree with the rows of the metrics log."""

    def alert(self, title: str, text: str) -> None:
        """Tells a person; `title` has fewer than 64 characters."""

    def close(self, final: Mapping[str, Any] | None = None, exit_code: int = 0) -> None:
        """Hands over what is buffered and ends; a code other than 0 marks the run as failed."""


class Watch:
    """Finds what a person should be told about in the rows themselves; each finding is reported when it begins."""

    def __init__(self) -> None:
        self._skipped: int | None = None
        self._growing = False
        self._starving = 0

    def findings(self, step: int, values: Mapping[str, Any]) -> list[tuple[str, str]]:
        """(title, text) of each alert that the row gives rise to."""
        found = []
        if "train/skipped_updates" in values:
            skipped = int(values["train/skipped_updates"])
            grew = skipped > (self._skipped or 0)
            if grew and not self._growing:
                found.append(
                    ("Non-finite updates", f"{skipped} updates with non-finite values skipped up to step {step}")
                )
            self._skipped, self._growing = skipped, grew
        if "early_stop/reason" in values:
            found.append(("Early stop", f"training ends after {step} updates: {values['early_stop/reason']}"))
        share = values.get(WAIT_SHARE)
        if share is not None:
            if share > STARVING:
                self._starving += 1
            elif share < FED:
                self._starving = 0
            if share > STARVING and self._starving == STARVING_ROWS:
                found.append(
                    (
                        "Starved of data",
                        f"{100 * share:.0f} % of the time up to step {step} was spent waiting for data; raise "
                        "the threads (data.num_workers, data.prefetch.num_io_threads) or, for decoders that hold the "
                        "GIL, data.worker_processes, or store the images at the training size",
                    )
                )
        return found


class Sinks:
    """The fan-out: the metrics log must succeed, every other sink is dropped with one warning when it fails."""

    def __init__(self, metrics_log: MetricsLog | None, optional: Sequence[Sink] = ()) -> None:
        """`metrics_log` is None on processes that write nothing."""
        self.metrics_log = metrics_log
        self.optional = list(optional)
        self._watch = Watch()

    def write(self, event: str, step: int, epoch: int, values: Mapping[str, Any]) -> None:
        """Writes one row to the metrics log and, but for `LOCAL`, to the other sinks; sends the alerts it calls for.

        Raises:
          MetricsLogError: the metrics log could not be written.
        """
        if self.metrics_log is None:
            return
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
        self._each("alert", lambda sink: sink.alert(title, text))

    def close(self, final: Mapping[str, Any] | None = None, exit_code: int = 0) -> None:
        """Closes every sink; may be called again without effect."""
        self._each("close", lambda sink: sink.close(final, exit_code))
        self.optional = []

    def _each(self, what: str, call: Callable[[Sink], None]) -> None:
        for sink in list(self.optional):
            try:
                call(sink)
            except Exception as error:
                self.optional.remove(sink)
                _warn_off(sink.name, f"{what} failed: {error}", self.metrics_log)


def open_sinks(
    metrics_log: MetricsLog | None,
    experiment: ConfigDict,
    *,
    config: Mapping[str, Any],
    facts: Mapping[str, Any],
    run_id: str,
    debug: bool = False,
) -> Sinks:
    """The sinks that `config.experiment` asks for, holding already what earlier starts of the run have logged.

    Args:
      metrics_log: None on processes other than the first, which write nothing.
      experiment: the section `experiment` of the configuration.
      config: the whole configuration as JSON types, secrets removed.
      facts: what else describes the run: `dataset_metadata`, `model_info`, `system_info`.
      run_id: identity of the run in W&B, kept over resumes.
      debug: write the payload of every W&B call to the debug log.

    Raises:
      ConfigError: a sink that is asked for needs a package that is not installed.
    """
    sinks = Sinks(metrics_log)
    if metrics_log is None:
        return sinks
    logs = metrics_log.path.parent
    if experiment.tensorboard.enabled:
        from linnaeus_jax.reporting.tensorboard_sink import TensorBoardSink

        def tensorboard() -> Sink:
            return TensorBoardSink(logs / "tensorboard", config=config)

        _open("TensorBoard", tensorboard, sinks, metrics_log)
    if experiment.wandb.enabled:
        from linnaeus_jax.reporting.wandb_sink import WandbSink

        def wandb() -> Sink:
            return WandbSink.from_config(
                experiment,
                directory=logs,
                config={**config, **facts},
                run_id=run_id,
                debug=debug,
            )

        _open("W&B", wandb, sinks, metrics_log)
    return sinks


def _open(name: str, make: Callable[[], Sink], sinks: Sinks, metrics_log: MetricsLog) -> None:
    path = metrics_log.path
    try:
        rows = read_rows(path) if path.exists() else []
        sink = make()
        sink.heal([row for row in rows if row.event != "final"])  # best values are written again when the run ends
    except ConfigError:
        raise
    except Exception as error:
        _warn_off(name, f"it could not be started: {error}", metrics_log)
    else:
        sinks.optional.append(sink)


def _warn_off(name: str, why: str, metrics_log: MetricsLog | None) -> None:
    where = "RUN" if metrics_log is None else metrics_log.path.parent.parent
    log.warning(
        "%s is off for the rest of this run, training goes on; %s. Rebuild it afterwards from the metrics log with "
        "`python -m linnaeus_jax.tools.replay_metrics %s`",
        name,
        why,
        where,
    )
