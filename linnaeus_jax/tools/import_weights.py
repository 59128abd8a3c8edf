"""Says which weights of a file a model takes, and which not and why; can write them as a file of their own.

    linnaeus import-weights --config=configs/x.py weights.pth
    linnaeus import-weights --config=configs/x.py weights.pth --out weights.safetensors
    linnaeus import-weights --config=configs/x.py runs/earlier
    linnaeus import-weights --config=configs/x.py --config.model.pretrained_convnext=convnext.pth
        --config.model.pretrained_ropevit=ropevit.pth --config.model.pretrained_source=stitched_convnext_ropevit

SOURCE takes the place of model.pretrained; without it, what the keys model.pretrained* name is read, as a run does
before its first update. Classes and metadata are those of the config's labels file; where it is not there, the source's
own. What --out writes is taken by model.pretrained, needs no PyTorch, and holds no random value.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from linnaeus_jax.data.preprocessing import Preprocessing
    from linnaeus_jax.models.family import ModelFamily
    from linnaeus_jax.weights.files import StateFile
    from linnaeus_jax.weights.importing import Import

from linnaeus_jax import tools
from linnaeus_jax.config import load_config
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.redaction import sanitize
from linnaeus_jax.config.typed import Config
from linnaeus_jax.files import json_text

#: classes of a rank that nothing says anything about
PLACEHOLDER = 2


def model_for(config: Config, source: StateFile | None) -> tuple[ModelFamily, Mapping[str, Sequence[int]], str]:
    """The config's model, the taxon ids of its classes where they are known, and a sentence about where they are from.

    Args:
      source: the weights; None for two files, which have no classes of use.

    Raises:
      UserError: a labels file that cannot be used, or settings that do not fit.
    """
    from linnaeus_jax.data.dataset import build_dataset, resolve_sources
    from linnaeus_jax.data.metadata import component_layout, component_settings
    from linnaeus_jax.models import build_model

    try:
        labels = resolve_sources(config.data).train_labels
    except ValueError:
        labels = ""
    settings = config.model
    try:
        classes: Mapping[str, Sequence[int]]
        if labels and Path(labels).is_file():
            dataset = build_dataset(config)
            components, parents = dataset.components, dataset.tree.parent
            classes = {task: ids.tolist() for task, ids in dataset.classes.items()}
            counts, origin = dataset.num_classes, f"classes: of {labels}"
        else:
            components, parents = component_layout(component_settings(config.data.meta)), {}
            counts, classes = classes_of_source(config, source)
            missing = f"{labels} is not there" if labels else "the config names no labels file"
            origin = f"classes: of the weights themselves ({missing})"
            # without a tree; the parameters are the same
            settings = settings.replaced({"classification.hierarchy_mode": "reference_unrefined"})
        model = build_model(
            settings,
            components=[(component.name, component.stop - component.start) for component in components],
            num_classes=counts,
            img_size=config.data.img_size,
            parents=parents,
        )
    except ValueError as error:
        raise UserError(str(error)) from error
    return model, classes, origin


def classes_of_source(config: Config, source: StateFile | None) -> tuple[dict[str, int], dict[str, list[int]]]:
    """(number of classes of each rank, their taxon ids where they are known) as a file of weights has them."""
    from linnaeus_jax.weights.classes import classes_of, ids_by_row
    from linnaeus_jax.weights.formats.linnaeus import full
    from linnaeus_jax.weights.importing import HEAD

    tasks = tuple(config.data.task_keys_h5)
    if source is None:
        return dict.fromkeys(tasks, PLACEHOLDER), {}
    arrays = full(source).arrays
    found = {head["task"]: len(array) for name, array in arrays.items() if (head := HEAD.fullmatch(name))}
    order = [task for task in source.facts.get("tasks", tasks) if task in found] or list(found)
    counts = {task: found[task] for task in order} or dict.fromkeys(tasks, PLACEHOLDER)
    known = classes_of(source, config.model.pretrained_classes)
    ids = {task: ids_by_row(known[task]) for task in counts if len(known.get(task, ())) == counts[task]}
    return counts, ids


@tools.command()
def main(argv: Sequence[str]) -> None:
    """Command line; returns the exit status."""
    parser = tools.parser("import_weights", __doc__)
    parser.add_argument("source", nargs="?", default="", help="a file of weights or a run directory")
    parser.add_argument("--out", type=Path, help="write what is taken to this .safetensors file")
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead of a table")
    options, rest = parser.parse_known_args(argv)
    tree, _ = load_config(rest)
    from rich.console import Console

    from linnaeus_jax.reporting.logs import setup_logging
    from linnaeus_jax.run.pretrained import apply_weight_requirements
    from linnaeus_jax.weights.exporting import converted
    from linnaeus_jax.weights.files import check_target, write_state
    from linnaeus_jax.weights.joining import read_weights
    from linnaeus_jax.weights.settings import reads_weights

    setup_logging(None, process=1, level="INFO", data_level="WARNING")  # the table alone goes to the standard output
    tree.model.pretrained = options.source or tree.model.pretrained
    if not reads_weights(tree.model):
        raise UserError("no weights are named: give a file or a run directory, or set model.pretrained")
    if options.out is not None:
        check_target(options.out)
    with Console(stderr=True).status("reading the weights ..."):
        config, source, lines = apply_weight_requirements(tree, needs_data=False)
    settings = config.model.replaced({"pretrained_strict": False})  # the table is printed before anything is refused
    with Console(stderr=True).status("fitting them to the model ..."):
        model, classes, origin = model_for(config, source)
        done = read_weights(settings, model, classes, source)
    show(done, [*lines, origin], as_json=options.json)
    if config.model.pretrained_strict and done.problems:
        raise UserError(done.problems)
    if options.out is not None:
        arrays, facts = converted(done, model, settings, pictures_of(source, config))
        write_state(options.out, arrays, facts)
        print(f"written: {options.out}, {len(arrays)} arrays", file=sys.stderr if options.json else sys.stdout)


def pictures_of(source: StateFile | None, config: Config) -> Preprocessing | None:
    """How the pictures of the weights were prepared; None: not said. Several trunks take those of the configuration."""
    from linnaeus_jax.data.preprocessing import Preprocessing
    from linnaeus_jax.weights.formats.base import format_of

    if source is None:
        return None
    if source.parts:
        return Preprocessing.from_config(config)
    return format_of(source, config.model.pretrained_source).preprocessing(source)


def show(done: Import, lines: Sequence[str], *, as_json: bool) -> None:
    """Prints the JSON, or the files, the table and what else is to be known."""
    if as_json:
        print(json_text(done.to_json(), indent=1))
        return
    for file in done.files:
        notes = f" ({'; '.join(filter(None, (file.about, *file.notes)))})" if file.about or file.notes else ""
        print(sanitize(f"{file.path}, sha256 {file.sha256[:16]}{notes}"))
    for text in (done.coverage.table(), *lines):
        print(sanitize(text))


if __name__ == "__main__":
    sys.exit(main())
