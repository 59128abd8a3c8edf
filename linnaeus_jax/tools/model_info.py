"""What a model costs: parameters by part, multiply-adds, and the memory that training keeps for each picture.

    linnaeus models --config=configs/x.py [--config.model.variant=md ...]
    linnaeus models --config=configs/x.py --classes 684,179,40,4 --json
    linnaeus models --all
    linnaeus models --pretrained [--hub]

--pretrained lists the published weights that are known, and how they are had: what stands in the first column is a name
for model.pretrained, or that of a file. With --hub it lists well-known trunks of hubs instead, with their licences,
which are fetched by their names. --all shows every variant of every registered family; with --config, with that
config's pictures, metadata and heads. The class counts are those of the labels file that the config names. Where there
is none, they are those of --classes, or, for four ranks, 684,179,40,4. Everything comes from abstract traces: nothing
is compiled and no device is used, so that train.compute_dtype = 'auto' counts as bfloat16, its meaning on accelerators.

GMAC: 10^9 multiply-adds of the forward pass of one picture. Kept per picture: what the forward pass of training leaves
for the backward pass, before the compiler fuses or reorders anything: to compare models with. What an update takes is
measured by `linnaeus check`; parameters, gradients and optimizer state come on top.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from linnaeus_jax import tools
from linnaeus_jax.checks import checked
from linnaeus_jax.config import get_config, load_config
from linnaeus_jax.config.derived import architecture
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.typed import Config, typed
from linnaeus_jax.data.dataset import build_dataset
from linnaeus_jax.data.metadata import component_layout, component_settings
from linnaeus_jax.files import json_text
from linnaeus_jax.models import ModelFamily, build_model
from linnaeus_jax.models.cost import activation_bytes, forward_multiply_adds, parameters_by_stage
from linnaeus_jax.registry import MODELS
from linnaeus_jax.reporting.logs import PlainConsole
from linnaeus_jax.reporting.tables import table
from linnaeus_jax.weights import formats  # noqa: F401  # which registers them
from linnaeus_jax.weights.backbones import costs_of
from linnaeus_jax.weights.formats.base import known_weights
from linnaeus_jax.weights.hub_models import HUB_MODELS

#: class counts, finest first, where neither a labels file nor --classes gives any: those of the published sizes
ASSUMED_CLASSES = (684, 179, 40, 4)
#: sides of the pictures, in pixels, whose GMAC --all shows
SIZES = (224, 384)
#: (key, function of a model, changed arguments of `build_model`)
Measures = tuple[tuple[str, Callable[[ModelFamily], Any], dict[str, Any]], ...]
#: of tables of weights
_COLUMNS = ("model.pretrained", "size", "parameters, GMAC", "licence", "source, good for", "pictures")
REMAT = "train.gradient_checkpointing.enabled_normal_steps"


@dataclass(frozen=True)
class Sizes:
    """What the data decide about a model."""

    components: tuple[tuple[str, int], ...]  # name and columns of each metadata component
    classes: Mapping[str, int]
    parents: Mapping[str, Any]  # int [C] per task, see `build_model`
    source: str  # where the class counts come from


def sizes_of(config: Config, given: Sequence[int] | None) -> Sizes:
    """Metadata and class counts: `given`, else from the labels file, else `ASSUMED_CLASSES`.

    Raises:
      UserError: the number of ranks differs from that of `given`, or nothing can be assumed.
      ValueError: a labels file that cannot be used.
    """
    h5, tasks = config.data.h5, tuple(config.data.task_keys_h5)
    labels = h5.labels_path or h5.train_labels_path
    if given is None and labels and Path(labels).is_file():
        dataset = build_dataset(config)
        columns = tuple((part.name, part.stop - part.start) for part in dataset.components)
        return Sizes(columns, dataset.num_classes, dataset.tree.parent, f"from {labels}")
    layout = component_layout(component_settings(config.data.meta))
    counts = ASSUMED_CLASSES if given is None else tuple(given)
    if len(counts) != len(tasks) or min(counts) < 1:
        why = f"--classes {','.join(map(str, counts))}" if given else f"labels file {labels!r} does not exist"
        raise UserError(f"{why}: give --classes one count above 0 for each of {', '.join(tasks)}")
    source = "given" if given else "assumed" + (f", since {labels} does not exist" if labels else "")
    # which parent a class has costs nothing, so classes are spread over the next rank
    above = (*counts[1:], 0)
    parents = {task: np.arange(n) * up // n if up else np.full(n, -1) for task, n, up in zip(tasks, counts, above)}
    columns = tuple((part.name, part.stop - part.start) for part in layout)
    return Sizes(columns, dict(zip(tasks, counts)), parents, source)


def _dtype(config: Config) -> Any:
    name = config.train.compute_dtype
    return jnp.dtype("bfloat16" if name == "auto" else name)


def built(config: Config, sizes: Sizes, **changed: Any) -> ModelFamily:
    """The model of a config, with `changed` arguments of `build_model`."""
    given = {
        "components": sizes.components,
        "num_classes": sizes.classes,
        "parents": sizes.parents,
        "img_size": config.data.img_size,
        "dtype": _dtype(config),
        "remat": bool(config.train.gradient_checkpointing.enabled_normal_steps),
    }
    return build_model(config.model, **{**given, **changed})


def parameter_count(model: ModelFamily) -> int:
    """Number of parameters."""
    return sum(parameters_by_stage(model).values())


#: (key, what is measured, changed arguments of the model) of one model ...
ONE_MODEL: Measures = (
    ("parameters", parameters_by_stage, {}),
    ("total_without_metadata", parameter_count, {"components": ()}),
    ("multiply_adds", forward_multiply_adds, {}),
    ("kept_bytes", activation_bytes, {"remat": False}),
    ("kept_bytes_recomputing", activation_bytes, {"remat": True}),
)
#: ... and of each of all models
EVERY_MODEL: Measures = (
    ("total", parameter_count, {}),
    ("total_without_metadata", parameter_count, {"components": ()}),
    *((f"multiply_adds_{size}", forward_multiply_adds, {"img_size": size}) for size in SIZES),
    ("kept_bytes", activation_bytes, {}),
)


def measured(config: Config, sizes: Sizes, measures: Measures, step: Callable[[], None]) -> dict[str, Any]:
    """The model's name and every measure by its key; `step` is called after each."""
    found: dict[str, Any] = {"model": architecture(config)}
    for key, measure, changed in measures:
        found[key] = measure(built(config, sizes, **changed))
        step()
    return found


def every_variant(config: Config) -> Iterator[Config]:
    """The config with each variant of each registered family: their own sizes, and the config's heads."""
    for name, family in MODELS.entries.items():
        for variant in family.variants or ("",):
            model = typed(get_config()).model
            its = {"type": name, "variant": variant, "classification": config.model.classification}
            yield config.replaced({"model": model.replaced(its)})


def circumstances(config: Config, sizes: Sizes) -> dict[str, Any]:
    """What the numbers hold for."""
    return {
        "img_size": config.data.img_size,
        "components": dict(sizes.components),
        "classes": dict(sizes.classes),
        "class_counts": sizes.source,
        "dtype": _dtype(config).name,
        "recomputes": bool(config.train.gradient_checkpointing.enabled_normal_steps),
    }


def heading(given: Mapping[str, Any]) -> str:
    """One line about pictures, metadata and classes."""
    parts = " + ".join(f"{name} {columns}" for name, columns in given["components"].items())
    classes = " + ".join(map(str, given["classes"].values()))
    return (
        f"pictures of {given['img_size']} px, metadata {parts or 'none'}, classes {classes} ({given['class_counts']})"
    )


def show_one(found: Mapping[str, Any], given: Mapping[str, Any], console: Console) -> None:
    """The tables of one model."""
    console.print(f"{found['model']}: {heading(given)}", soft_wrap=True)
    bare, total = found["total_without_metadata"], sum(found["parameters"].values())
    rows = {**found["parameters"], "total": total, "total without metadata": bare}
    cells = [[part, f"{count:,}", f"{count / total:.1%}"] for part, count in rows.items()]
    console.print(table("parameters", ["part", "parameters", "share"], cells))
    cells = [["forward pass", f"{found['multiply_adds'] / 1e9:.2f} GMAC"]]
    for key, recomputes in (("kept_bytes_recomputing", True), ("kept_bytes", False)):
        chosen = " (as configured)" if recomputes is given["recomputes"] else ""
        text = f"kept for the backward pass, {'with' if recomputes else 'without'} recomputation{chosen}"
        cells.append([text, f"{found[key] / 1e6:.1f} MB"])
    console.print(table("one picture", ["what", "cost"], cells))
    console.print(f"kept: in {given['dtype']}; {REMAT} chooses recomputation", soft_wrap=True)


def show_all(rows: Sequence[Mapping[str, Any]], given: Mapping[str, Any], console: Console) -> None:
    """The table of every variant."""
    console.print(heading(given), soft_wrap=True)
    columns = ["model", "parameters", "no metadata", *(f"GMAC {size}" for size in SIZES), "kept"]
    cells = [
        [
            row["model"],
            f"{row['total']:,}",
            f"{row['total_without_metadata']:,}",
            *(f"{row[f'multiply_adds_{size}'] / 1e9:.2f}" for size in SIZES),
            f"{row['kept_bytes'] / 1e6:.1f} MB",
        ]
        for row in rows
    ]
    # wider than a narrow terminal rather than with names in pieces
    wide = console if console.width >= 100 else Console(width=100)
    wide.print(table("every registered variant", columns, cells))
    console.print(
        "no metadata: without metadata heads; GMAC: by the side of the picture in pixels; kept: for the backward pass, "
        f"per picture, {given['dtype']}, {REMAT} = {given['recomputes']}",
        soft_wrap=True,
    )


def show_pretrained(console: Console, *, as_json: bool) -> None:
    """The table of published weights, or the same as JSON."""
    weights = known_weights()
    if as_json:
        found = [{**each._asdict(), "preprocessing": asdict(each.preprocessing), **costs_of(each)} for each in weights]
        print(json_text(found, indent=1))
        return
    cells = []
    for each in weights:
        pictures = each.preprocessing
        mean, std = (", ".join(f"{value:.3g}" for value in sorted(set(part))) for part in (pictures.mean, pictures.std))
        name = f"package:{each.name}" if each.package else each.name
        about = f"{pictures.size[0]} px, {pictures.resizing}; mean {mean}, std {std}"
        costs = costs_of(each)
        cost = f"{costs['parameters'] / 1e6:.1f} M, {costs['multiply_adds'] / 1e9:.2f}" if costs else "–"
        source = f"{each.source}; {each.purpose}" if each.purpose else each.source
        cells.append([name, f"{each.megabytes:.1f} MB", cost, each.licence, source, about, each.get])
    _print_weights(console, "published weights", (*_COLUMNS, "how to get it"), cells, name_width=26)
    console.print(
        "also: a file (.safetensors, .pth, .tflite), a run, a bundle, hf:OWNER/REPO[/FILE], timm:NAME; "
        "package:NAME of any package that ships one file of weights. Trunks of hubs: add --hub. Pictures per second: "
        'the manual, "Which backbone?"',
        soft_wrap=True,
    )


def _print_weights(
    console: Console, title: str, columns: Sequence[str], cells: Sequence[Sequence[str]], *, name_width: int
) -> None:
    """A table of weights, 150 characters wide where the terminal is narrower."""
    rows = Table(title=title, title_justify="left", show_lines=True)
    for place, column in enumerate(columns):
        rows.add_column(column, overflow="fold", min_width=None if place else name_width)
    for row in cells:
        rows.add_row(*row)
    (console if console.width >= 150 else Console(width=150)).print(rows)


def show_hub(console: Console, *, as_json: bool) -> None:
    """The table of trunks of hubs, or the same as JSON."""
    if as_json:
        print(json_text([each._asdict() for each in HUB_MODELS], indent=1))
        return
    cells = [
        [
            each.name,
            f"{each.megabytes:.0f} MB",
            f"{each.parameters:.1f} M, {each.gmac:.2f}",
            each.licence,
            f"{each.source}; {each.purpose}",
            f"{each.side} px",
        ]
        for each in HUB_MODELS
    ]
    _print_weights(console, "trunks of hubs", _COLUMNS, cells, name_width=40)
    console.print(
        "fetched by its name: --config.model.pretrained=NAME, with what describes it. Licences are as their sources "
        "say and may have terms beside their names: read them before use.",
        soft_wrap=True,
    )


def _counts(text: str) -> tuple[int, ...]:
    return tuple(int(count) for count in text.split(","))


@tools.command()
def main(argv: Sequence[str]) -> None:
    """Traces the models and prints their tables, or JSON."""
    parser = tools.parser("model_info", __doc__)
    parser.add_argument("--all", action="store_true", help="one table of every variant of every registered family")
    parser.add_argument("--pretrained", action="store_true", help="list the published weights that are known")
    parser.add_argument("--hub", action="store_true", help="with --pretrained: list trunks of hubs instead")
    parser.add_argument("--classes", type=_counts, help="class counts, comma-separated, finest rank first")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    options, rest = parser.parse_known_args(argv)
    if options.hub and not options.pretrained:
        raise UserError("--hub goes with --pretrained")
    if options.pretrained:
        (show_hub if options.hub else show_pretrained)(PlainConsole(), as_json=options.json)
        return
    jax.config.update("jax_platforms", "cpu")  # an accelerator may be busy, and nothing here runs on one
    tree = get_config() if options.all and not rest else load_config(rest)[0]
    config = checked(tree, needs_data=False)
    sizes = sizes_of(config, options.classes)
    configs = list(every_variant(config)) if options.all else [config]
    measures = EVERY_MODEL if options.all else ONE_MODEL
    with tools.progress_bar("tracing") as progress:
        done = itertools.count(1)

        def step() -> None:
            progress(next(done), len(configs) * len(measures))

        found = [measured(one, sizes, measures, step) for one in configs]
    given, console = circumstances(config, sizes), PlainConsole()
    if options.json:
        print(json_text({**given, **({"models": found} if options.all else found[0])}, indent=1))
    elif options.all:
        show_all(found, given, console)
    else:
        show_one(found[0], given, console)


if __name__ == "__main__":
    sys.exit(main())
