"""Evaluates a run without training it further: every phase in one pass over its validation rows, or over other data.

python -m linnaeus_jax.tools.evaluate RUN [--phases=val,val_mask_meta,val_mask_TEMPORAL | --phases=all]
    [--checkpoint=newest|best|STEP] [--labels=H5 --images=H5_OR_DIRECTORY] [--batch-size=N]
    [--predictions=out.npz [--logits]] [--json]

Config, classes and parameters (their moving average where one was kept) come from RUN; the labels files it was trained
on must still be where its config says. `all` is `val` and every combination of masked metadata components.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from ml_collections import ConfigDict

if TYPE_CHECKING:
    from linnaeus_jax.data.dataset import Dataset
    from linnaeus_jax.data.splits import Split
    from linnaeus_jax.step.evaluation import Evaluation
    from linnaeus_jax.step.placement import Placement
    from linnaeus_jax.step.program import Program

log = logging.getLogger("linnaeus_jax")


class EvaluateError(Exception):
    """A run, checkpoint, phase or data file that cannot be evaluated; the message says which and what to do."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """A run read back for evaluation."""

    config: ConfigDict
    step: int
    dataset: Dataset
    program: Program
    params: Any
    model_state: Any
    task_weights: Any
    placement: Placement


def load(run: Path, checkpoint: str = "newest") -> Loaded:
    """Reads config, data tables and parameters of a run.

    Args:
      run: the run directory.
      checkpoint: "newest", "best" by the run's own ranking, or a step.

    Raises:
      EvaluateError: no run, no such checkpoint, or data whose classes are no longer those of the run.
    """
    from linnaeus_jax.config.saved import config_from_json
    from linnaeus_jax.data.dataset import build_dataset
    from linnaeus_jax.data.samplers import SamplerSettings
    from linnaeus_jax.files import RunDirectory
    from linnaeus_jax.metrics import table
    from linnaeus_jax.run.checkpoints import Checkpoints
    from linnaeus_jax.schedules.resolved import ResolvedSchedule
    from linnaeus_jax.step.placement import Placement
    from linnaeus_jax.step.program import build_program

    directory = RunDirectory(run)
    if not directory.config_json.is_file() or not directory.checkpoints.is_dir():
        raise EvaluateError(f"{run} holds no config.json and checkpoints; give the directory of a run, its --workdir")
    config = config_from_json(json.loads(directory.config_json.read_text()))
    checkpoints = Checkpoints(directory.checkpoints)
    try:
        step = _choose(checkpoints, checkpoint)
        schedule = ResolvedSchedule.from_dict(checkpoints.meta(step)["schedule"])
        stored = checkpoints.arrays(step)
        host = checkpoints.finished_boundary(step) or checkpoints.meta(step)["host"]
    finally:
        checkpoints.close()
    try:
        dataset = build_dataset(config)
        program = build_program(config, dataset, schedule, SamplerSettings.from_config(config).block)
    except (OSError, ValueError, KeyError) as error:
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        raise EvaluateError(f"the data of {run} cannot be read: {text}") from error
    class_file = directory.assets / "class_to_idx.json"
    if class_file.is_file() and json.loads(class_file.read_text()) != dataset.class_to_idx():
        raise EvaluateError(
            f"the labels files of {run} give other classes than {class_file}; restore the files that the run was "
            "trained on"
        )
    params = stored["params"] if stored.get("ema") is None else stored["ema"]
    _check_shapes(params, program, directory.checkpoints / str(step))
    offered = table.keys("val", dataset.tasks)
    measured = [name.removeprefix("val/") for name in host["tracker"]["metrics"] if name.startswith("val/")]
    if lost := [name for name in measured if name not in offered and not name.startswith("subset/")]:
        log.warning("no plugin of env.plugins registers %s, which the run measured: left out", ", ".join(lost))
    placement = Placement()
    return Loaded(
        config,
        step,
        dataset,
        program,
        placement.replicate(params),
        placement.replicate(stored.get("model_state") or {}),
        placement.replicate(stored["gradnorm"]["weights"]),
        placement,
    )


def _choose(checkpoints: Any, name: str) -> int:
    """The step of the wanted checkpoint."""
    from linnaeus_jax.run.retention import best_checkpoint

    steps = checkpoints.steps()
    if not steps:
        raise EvaluateError(f"{checkpoints.directory} holds no complete checkpoint; let the run save one first")
    if name == "newest":
        return steps[-1]
    if name == "best":
        newest = checkpoints.finished_boundary(steps[-1]) or checkpoints.meta(steps[-1])["host"]
        best = best_checkpoint({int(step): entry for step, entry in newest["ranking"].items()}, steps)
        if best is None:
            raise EvaluateError(f"no checkpoint in {checkpoints.directory} was ranked by a validation; use newest")
        return best
    if not name.isdecimal() or int(name) not in steps:
        raise EvaluateError(
            f"there is no checkpoint {name!r} in {checkpoints.directory}; choose newest, best or one of "
            + ", ".join(map(str, steps))
        )
    return int(name)


def _check_shapes(params: Any, program: Program, where: Path) -> None:
    import jax

    def shapes(tree: Any) -> dict[str, tuple[int, ...]]:
        return {jax.tree_util.keystr(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}

    stored, expected = shapes(params), shapes(jax.eval_shape(program.initial_state).params)
    for name in sorted(stored.keys() | expected.keys()):
        if stored.get(name) != expected.get(name):
            raise EvaluateError(
                f"parameter {name} is {stored.get(name)} in {where} but {expected.get(name)} in the model of the "
                "config; restore the config.json and the data files that the run was trained with"
            )


def parse_phases(names: str, components: Sequence[str]) -> dict[str, np.ndarray]:
    """Phase -> component mask bool [K], from comma-separated names or `all`.

    Raises:
      EvaluateError: a name that is no phase of these components.
    """
    from linnaeus_jax.learning.meta_masking import component_mask
    from linnaeus_jax.schedules.triggers import exhaustive_combos, phase_name

    if names == "all":
        everything = "val_mask_" + "_".join(components)  # the same as val_mask_meta
        combos = [phase_name(combo) for combo in exhaustive_combos(components)]
        names = ",".join(["val", *(["val_mask_meta"] if components else []), *(c for c in combos if c != everything)])
    masks = {}
    for name in filter(None, (part.strip() for part in names.split(","))):
        masked: list[str] | None = []
        rest = name.removeprefix("val_mask_") if name not in ("val", "val_no_mask") else ""
        if name == "val_mask_meta":
            masked, rest = None, ""
        while rest and masked is not None:
            first = [c for c in components if c not in masked and (rest == c or rest.startswith(f"{c}_"))]
            if not first or not name.startswith("val_mask_"):
                raise EvaluateError(
                    f"--phases: {name!r} is no phase; choose among val, val_mask_meta, all and val_mask_<COMPONENTS> "
                    f"with components {', '.join(components) or '(none)'} joined by _"
                )
            masked.append(max(first, key=len))
            rest = rest.removeprefix(masked[-1]).removeprefix("_")
        masks[name] = component_mask(components, masked)
    if not masks:
        raise EvaluateError("--phases names no phase; leave it out for val and val_mask_meta")
    return masks


def other_split(loaded: Loaded, labels: str, images: str) -> Split:
    """Another labels file as a validation split under the classes of the run.

    Rows with a taxon that the run does not know are left out with a warning, because no prediction could be right.

    Raises:
      EvaluateError: a file that cannot be read, or no row left.
    """
    from linnaeus_jax.data import splits
    from linnaeus_jax.data.labels import read_label_tables
    from linnaeus_jax.data.metadata import component_settings
    from linnaeus_jax.data.subsets import with_known_subsets

    dataset, data = loaded.dataset, loaded.config.data
    conditions = splits.FilterSettings(
        bool(data.out_of_region.include),
        dataset.null_possible,
        data.upward_major_mode if data.upward_major_check else "",
    )
    try:
        settings = component_settings(data.meta)
        (table,), _ = read_label_tables([labels], dataset.tasks, settings, null_possible=dataset.null_possible)
        rows, report = splits.filter_rows(table, conditions, settings)
    except (OSError, ValueError) as error:
        raise EvaluateError(str(error)) from error
    log.info("%s", report)
    label = np.empty(table.taxon.shape, np.int32)
    is_known = np.ones(len(table), bool)
    for t, task in enumerate(dataset.tasks):
        classes, taxon = dataset.classes[task], table.taxon[:, t]
        label[:, t] = np.minimum(np.searchsorted(classes, taxon), len(classes) - 1)
        is_known &= (classes[label[:, t]] == taxon) | (taxon == 0)
        log.info("%s: %d taxa that the run does not know", task, len(np.setdiff1d(taxon[taxon != 0], classes)))
    kept = rows[is_known[rows]]
    if len(kept) < len(rows):
        log.warning(
            "%s: %d rows have a taxon that the run does not know and are left out", labels, len(rows) - len(kept)
        )
    if not len(kept):
        raise EvaluateError(f"{labels}: every row has a taxon that the run does not know; give data of the same taxa")
    size = dataset.class_counts["train"][dataset.tasks[0]][label[kept, 0]]
    subsets = splits.parse_taxa_subsets(loaded.config.metrics.taxa_subsets, dataset.classes)
    split = replace(
        dataset.val,
        table=replace(table, label=label),
        rows=kept,
        images=images,
        rarity=splits.rarity_bins(size, dataset.rarity_thresholds.get(dataset.tasks[0], np.empty(0, np.int64))),
        taxa_subset=splits.taxa_subset_matrix(subsets, dataset.tasks, table.taxon[kept]),
    )
    try:
        return with_known_subsets(split, dataset.subset_names)
    except ValueError as error:
        raise EvaluateError(str(error)) from error


def evaluate(
    loaded: Loaded,
    phases: Mapping[str, np.ndarray],
    split: Split | None = None,
    *,
    batch_size: int = 0,
    predictions: bool = False,
    logits: bool = False,
) -> Evaluation:
    """One pass over a split, by default the run's validation rows.

    Args:
      batch_size: 0: as the run validated; rounded up to a multiple of the devices here.
      predictions, logits: what to keep of single rows.

    Raises:
      EvaluateError: no rows, or images that cannot be read.
    """
    from linnaeus_jax.config.derived import global_batch_size
    from linnaeus_jax.data.image_sources import open_split
    from linnaeus_jax.data.loader import EvalLoader, ReadSettings
    from linnaeus_jax.run.inputs import split_arrays
    from linnaeus_jax.step.evaluation import Evaluator
    from linnaeus_jax.step.placement import evaluation_batch

    data, split = loaded.config.data, loaded.dataset.val if split is None else split
    if not len(split):
        raise EvaluateError("the run has no validation rows; give --labels and --images")
    devices = loaded.placement.device_count
    size = batch_size or (data.batch_size_val if data.batch_size_val > 0 else global_batch_size(loaded.config, devices))
    try:
        loader = EvalLoader(
            split_arrays(split),
            split.rows,
            open_split(data, split),
            evaluation_batch(size, devices),
            ReadSettings.from_config(data),
        )
    except (OSError, ValueError, KeyError) as error:
        raise EvaluateError(f"the images cannot be read: {error}") from error
    try:
        return Evaluator(loaded.program.evaluation, loaded.placement).run(
            loaded.params,
            loaded.model_state,
            loaded.task_weights,
            loader,
            phases,
            predictions=predictions,
            logits=logits,
        )
    finally:
        loader.close()


def save_predictions(path: Path, evaluation: Evaluation, dataset: Dataset) -> None:
    """Writes `row` [n], `label` [n, T], `tasks` [T], `taxon/<task>` [C] (taxon ids of the classes, 0 for null) and, for
    every phase, `<phase>/predicted` [n, T], `<phase>/probability` [n, T] and, where kept, `<phase>/logits/<task>`
    [n, C]."""
    one = next(iter(evaluation.predictions.values()))
    arrays: dict[str, Any] = {"row": one.row, "label": one.label, "tasks": np.asarray(dataset.tasks)}
    arrays |= {f"taxon/{task}": ids for task, ids in dataset.classes.items()}
    for phase, each in evaluation.predictions.items():
        arrays |= {f"{phase}/predicted": each.predicted, f"{phase}/probability": each.probability}
        arrays |= {f"{phase}/logits/{task}": z for task, z in each.logits.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:  # a path without the suffix .npz stays as it is
        np.savez_compressed(file, **arrays)


def show(evaluation: Evaluation, tasks: Iterable[str], title: str) -> None:
    """Prints the phases against each other, and what each rank's predictions are worth in `val` or the first phase."""
    from linnaeus_jax.metrics.names import phase_label
    from linnaeus_jax.metrics.table import of_plugins
    from linnaeus_jax.reporting.display import phase_tables, table
    from linnaeus_jax.reporting.logs import console
    from linnaeus_jax.taxonomy.ranks import task_name

    tasks = tuple(tasks)
    first = "val" if "val" in evaluation.metrics else next(iter(evaluation.metrics))
    columns = {
        "acc1": "top-1\n%",
        "acc3": "top-3\n%",
        "loss": "loss",
        "ece": "ECE",
        "taxonomic_distance": "distance\nof errors",
        "aurc": "AURC",
        "coverage_at_risk_5": "answered\nat 5 %\nerrors",
    }
    values = evaluation.metrics[first]
    rows = [[task_name(task), *(values.get(f"{name}_{task}", "-") for name in columns)] for task in tasks]
    for part in phase_tables(
        f"{title}; of a rank, over the rows labelled there", evaluation.metrics, tasks, console.width
    ):
        console.print(part)
    console.print(table(f"{phase_label(first)}, all rows", ["rank", *columns.values()], rows))
    rows = [
        [
            info.heading,
            *(info.scale * values[name] if name in values else "-" for values in evaluation.metrics.values()),
        ]
        for name, info in of_plugins().items()
    ]
    if rows:
        console.print(table("metrics of plugins", ["metric", *map(phase_label, evaluation.metrics)], rows))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="linnaeus_jax.tools.evaluate",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, help="the run directory")
    parser.add_argument("--phases", default="", help="comma-separated, or all; default: val and val_mask_meta")
    parser.add_argument("--checkpoint", "--step", default="newest", help="newest (default), best or a step")
    parser.add_argument("--labels", default="", help="other labels file (HDF5)")
    parser.add_argument("--images", default="", help="its images: an HDF5 file or a folder")
    parser.add_argument("--batch-size", type=int, default=0, help="default: as the run validated")
    parser.add_argument("--predictions", type=Path, help="write what is said of every row to this .npz file")
    parser.add_argument("--logits", action="store_true", help="with all logits")
    parser.add_argument("--json", action="store_true", help="print all metrics as JSON instead of tables")
    options = parser.parse_args(argv)
    from linnaeus_jax.config import ConfigError
    from linnaeus_jax.reporting.logs import setup_logging
    from linnaeus_jax.run.checkpoints import CheckpointError

    # no log line may stand between JSON; warnings then go to stderr
    setup_logging(None, process=int(options.json), level="INFO", data_level="WARNING")
    try:
        if bool(options.labels) != bool(options.images):
            raise EvaluateError("--labels and --images belong together; give both or neither")
        if options.logits and options.predictions is None:
            raise EvaluateError("--logits needs --predictions=FILE.npz, where they are written")
        loaded = load(options.run, options.checkpoint)
        components = loaded.program.evaluation.component_names
        phases = parse_phases(options.phases or ("val,val_mask_meta" if components else "val"), components)
        split = other_split(loaded, options.labels, options.images) if options.labels else None
        keep = options.predictions is not None
        evaluation = evaluate(
            loaded, phases, split, batch_size=options.batch_size, predictions=keep, logits=options.logits
        )
        if keep:
            save_predictions(options.predictions, evaluation, loaded.dataset)
    except (ConfigError, EvaluateError, CheckpointError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"step": loaded.step, "phases": evaluation.metrics}, indent=1))
    else:
        rows = evaluation.sums[next(iter(phases))]["count"]
        show(evaluation, loaded.dataset.tasks, f"{options.run.name} after {loaded.step} updates, {rows} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
