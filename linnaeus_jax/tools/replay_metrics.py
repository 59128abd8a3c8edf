"""Rebuilds a W&B or TensorBoard run from the metrics log of a run directory.

python -m linnaeus_jax.tools.replay_metrics RUN [--to=wandb|tensorboard] [--mode=online|offline] [--out=DIR]
    [--project=NAME] [--entity=NAME] [--name=NAME] [--run-id=ID]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import wandb

from linnaeus_jax import tools
from linnaeus_jax.reporting.run_record import RunRecord
from linnaeus_jax.reporting.sinks import Sink, replay
from linnaeus_jax.reporting.tensorboard_sink import TensorBoardSink
from linnaeus_jax.reporting.wandb_sink import WandbSink, new_run_id


def rebuild(
    run: Path,
    to: str = "wandb",
    *,
    out: Path | None = None,
    mode: str = "online",
    project: str = "",
    entity: str = "",
    name: str = "",
    run_id: str = "",
) -> int:
    """Sends all rows of a run to a new W&B run or TensorBoard event file; returns how many.

    Args:
      run: the run directory.
      to: "wandb" or "tensorboard".
      out: directory of the local copy; None: `logs/replay` of the run.
      mode, project, entity, name: of the W&B run; what is empty comes from the config of the run.
      run_id: W&B id; empty: a new one, so that nothing existing is touched.

    Raises:
      RunError: `run` holds no readable metrics log.
      ConfigError: the package of the sink is not installed.
    """
    record = RunRecord.load(run)
    directory = run / "logs" / "replay" if out is None else out
    sink: Sink
    if to == "tensorboard":
        sink = TensorBoardSink(directory, config=record.config)
    else:
        experiment = {"project": "linnaeus", "wandb": {}, **record.config.get("experiment", {})}
        experiment["name"] = name or experiment.get("name") or run.resolve().name
        given = {key: value for key, value in (("project", project), ("entity", entity)) if value}
        experiment["wandb"] = {**experiment["wandb"], "mode": mode, **given}
        run_id = run_id or new_run_id()
        sink = WandbSink(experiment, directory=directory, config=record.config, run_id=run_id, new=True)
    replay(record.rows, sink)
    sink.close()
    return len(record.rows)


@tools.command(wandb.Error)
def main(argv: Sequence[str]) -> None:
    """Command line; returns the exit status."""
    parser = tools.parser("replay_metrics", __doc__)
    parser.add_argument("run", type=Path, help="the run directory")
    parser.add_argument("--to", choices=("wandb", "tensorboard"), default="wandb")
    parser.add_argument("--mode", choices=("online", "offline"), default="online", help="of the W&B run")
    parser.add_argument("--out", type=Path, help="directory of the local copy; default: RUN/logs/replay")
    parser.add_argument("--project", default="", help="default: as in the config of the run, like the next two")
    parser.add_argument("--entity", default="")
    parser.add_argument("--name", default="")
    parser.add_argument("--run-id", "--run_id", default="", help="W&B id; default: a new one")
    options = vars(parser.parse_args(argv))
    count = rebuild(options.pop("run"), **options)
    print(f"{count} rows sent to {options['to']}")


if __name__ == "__main__":
    sys.exit(main())
