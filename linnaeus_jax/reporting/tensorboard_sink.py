"""TensorBoard scalars, written without TensorFlow."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from linnaeus_jax.config.errors import ConfigError
from linnaeus_jax.files import json_text
from linnaeus_jax.metrics.logged import described
from linnaeus_jax.metrics.names import split_result
from linnaeus_jax.metrics.table import entry
from linnaeus_jax.reporting.chosen import all_groups, chosen_curves
from linnaeus_jax.reporting.class_tables import Table


class TensorBoardSink:
    """An event file; show it with `tensorboard --logdir RUN`. Numbers are scalars, text goes to the text tab."""

    name = "TensorBoard"

    def __init__(self, directory: Path, *, config: Mapping[str, Any] | None = None) -> None:
        """Opens a new event file.

        Args:
          directory: of the event files.
          config: JSON types without secrets, shown as text.

        Raises:
          ConfigError: the package is not installed.
        """
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"experiment.tensorboard.enabled = True needs the package tensorboard ({error}); install it with "
                "`pip install 'linnaeus-jax[profile]'` or set it to False"
            ) from error
        self._event, self._summary, self._tensor, self._types = event_pb2, summary_pb2, tensor_pb2, types_pb2
        self._earlier = list(directory.glob("*tfevents*"))
        self._writer = EventFileWriter(str(directory))
        self._step, self._tags = 0, set[str]()
        self._descriptions: dict[str, str] = {}
        if self._earlier:  # a TensorBoard that is open forgets what it has read of the earlier files
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._writer.add_event(event_pb2.Event(wall_time=time.time(), step=0, session_log=start))
        if config:
            text = "\n".join(f"    {line}" for line in json_text(config, indent=1, sort_keys=True).splitlines())
            self._add(self._step, None, [self._text("config", text), self._layout(config)])

    def write(
        self, event: str, step: int, epoch: int, values: Mapping[str, Any], *, timestamp: float | None = None
    ) -> None:
        """Adds one point per value at `step`; a value that a row of the same step had is not added again."""
        if step != self._step:
            self._step, self._tags = step, set()
        new = {name: value for name, value in {**values, "epoch": epoch}.items() if name not in self._tags}
        self._tags |= new.keys()
        summaries = [
            self._summary.Summary.Value(tag=name, simple_value=float(value), metadata=self._description(name))
            if isinstance(value, (int, float))
            else self._text(name, str(value))
            for name, value in new.items()
        ]
        self._add(step, timestamp, summaries)
        if event != "train":
            self._writer.flush()

    def replayed(self) -> None:
        """Removes the earlier event files: they may lack points, and hold some twice."""
        self._writer.flush()
        for path in self._earlier:
            path.unlink(missing_ok=True)
        self._earlier = []

    def tables(self, tables: Mapping[str, Table]) -> None:
        """Adds each table as text at the step of the last row."""
        texts = []
        for name, table in tables.items():
            lines = [table.columns, ["---"] * len(table.columns), *table.rows]
            cells = ([str(cell).replace("|", "\\|") for cell in line] for line in lines)
            texts.append(self._text(f"classes/{name}", "\n".join(f"| {' | '.join(line)} |" for line in cells)))
        self._add(self._step, None, texts)

    def alert(self, title: str, text: str) -> None:
        """Adds a text `alerts/<title>` at the step of the last row."""
        self._add(self._step, None, [self._text(f"alerts/{title}", text)])

    def close(self, exit_code: int = 0) -> None:
        """Ends the file."""
        self._writer.close()

    def _add(self, step: int, timestamp: float | None, values: list[Any]) -> None:
        wall_time = time.time() if timestamp is None else timestamp
        summary = self._summary.Summary(value=values)
        self._writer.add_event(self._event.Event(wall_time=wall_time, step=step, summary=summary))

    def _description(self, tag: str) -> Any:
        """What TensorBoard tells of a scalar: formula and unit of its metric, or what it is; None without any."""
        if tag not in self._descriptions:
            info, logged = entry(split_result(tag)[1]), described(tag)
            text = info.description if info is not None else logged.description if logged is not None else ""
            self._descriptions[tag] = text
        if not self._descriptions[tag]:
            return None
        plugin = self._summary.SummaryMetadata.PluginData(plugin_name="scalars")
        return self._summary.SummaryMetadata(plugin_data=plugin, summary_description=self._descriptions[tag])

    def _layout(self, config: Mapping[str, Any]) -> Any:
        """What the tab "Custom Scalars" shows: the chosen curves, then closed groups of all others."""
        from tensorboard.plugins.custom_scalar import layout_pb2, metadata

        def category(title: str, charts: Mapping[str, Sequence[str]], *, closed: bool) -> Any:
            lines = {
                chart: layout_pb2.MultilineChartContent(tag=[f"^{name}$" for name in names])
                for chart, names in charts.items()
            }
            made = [layout_pb2.Chart(title=chart, multiline=content) for chart, content in lines.items()]
            return layout_pb2.Category(title=title, chart=made, closed=closed)

        chosen = chosen_curves(config.get("data", {}).get("task_keys_h5", ()))
        escaped = {title: [re.escape(name) for name in names] for title, names in chosen.items()}
        groups = [category(title, {title: [pattern]}, closed=True) for title, pattern in all_groups().items()]
        layout = layout_pb2.Layout(category=[category("Overview", escaped, closed=False), *groups])
        tensor = self._tensor.TensorProto(dtype=self._types.DT_STRING, string_val=[layout.SerializeToString()])
        return self._summary.Summary.Value(
            tag=metadata.CONFIG_SUMMARY_TAG, tensor=tensor, metadata=metadata.create_summary_metadata()
        )

    def _text(self, tag: str, text: str) -> Any:
        kind = self._summary.SummaryMetadata(
            plugin_data=self._summary.SummaryMetadata.PluginData(plugin_name="text"),
            data_class=self._summary.DATA_CLASS_TENSOR,
        )
        tensor = self._tensor.TensorProto(dtype=self._types.DT_STRING, string_val=[text.encode()])
        return self._summary.Summary.Value(tag=tag, tensor=tensor, metadata=kind)
