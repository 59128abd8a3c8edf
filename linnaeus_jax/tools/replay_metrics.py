"""Rebuilds a W&B or TensorBoard run from the metrics log of a run directory.

linnaeus debug replay-metrics RUN [--to=wandb|tensorboard] [--mode=online|offline] [--out=DIR]
    [--project=NAME] [--entity=NAME] [--name=NAME] [--run-id=ID]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import wandb

from linnaeus_jax import tools
from linnaeus_jax.reporting.class_tables import class_tables
from linnaeus_jax.reporting.run_record import RunRecord, files_fit
from linnaeus_jax.reporting.sinks import Sink, new_run_id, replay
from linnaeus_jax.reporting.tensorboard_sink import TensorBoardSink
from linnaeus_jax.reporting.wandb_sink import WandbSink


@tools.command(wandb.Error)
def main(argv: Sequence[str]) -> None:
    """Command line; returns the exit status."""
    parser = tools.parser("replay_metrics", __doc__)
    parser.add_argument("run", type=Path, help="the run directory")
    parser.add_argument("--to", choices=("wandb", "tensorboard"), default="wandb", help="where to send it")
    parser.add_argument("--mode", choices=("online", "offline"), default="online", help="of the W&B run")
    parser.add_argument("--out", type=Path, help="directory of the local copy; default: RUN/logs/replay")
    parser.add_argument("--project", default="", help="of W&B; default: as in the config of the run")
    parser.add_argument("--entity", default="", help="user or team of W&B; default: as in the config of the run")
    parser.add_argument("--name", default="", help="of the run in W&B; default: as in the config of the run")
    parser.add_argument("--run-id", "--run_id", default="", help="W&B id; default: a new one")
    options = parser.parse_args(argv)
    record = RunRecord.load(options.run)
    directory = options.out or options.run / "logs" / "replay"
    sink: Sink
    if options.to == "tensorboard":
        sink = TensorBoardSink(directory, config=record.config)
    else:
        experiment = {"project": "linnaeus", "wandb": {}, **record.config.get("experiment", {})}
        experiment["name"] = options.name or experiment.get("name") or options.run.absolute().name
        given = {key: value for key, value in (("project", options.project), ("entity", options.entity)) if value}
        experiment["wandb"] = {**experiment["wandb"], "mode": options.mode, **given}
        run_id = options.run_id or new_run_id()  # so that nothing existing is touched
        sink = WandbSink(experiment, directory=directory, config=record.config, run_id=run_id, new=True)
    replay(record.rows, sink)
    with files_fit([record], "tables of classes"):
        sink.tables(class_tables(record))
    sink.close()
    print(f"{len(record.rows)} rows sent to {options.to}")


if __name__ == "__main__":
    sys.exit(main())
