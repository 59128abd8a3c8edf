"""A model as files that run without this program: one StableHLO program with its weights inside (`jax.export`), its
classes, an example of its use, and its weights as PyTorch has them.

model.jax_export      (image uint8 [b, H, W, 3], meta float32 [b, D], meta_valid bool [b, K]) -> {task: logits [b, C]},
                      b chosen at each call; normalisation is part of the program, decoding and resizing are not
classes.json          ranks with classes, temperatures and the posterior over paths, picture size, metadata columns
example.py            pictures -> names, by jax, flatbuffers, numpy and pillow alone
pixels.py             what it reads pictures with, a copy of `data.portable_images`
answers.py            what its outputs say, a copy of `inference.portable_answers`
README.md             what these files are, and which versions of JAX read the program
weights.safetensors   as of `weights.exporting`; of a bundle of several runs also weights_2.safetensors and so on

With `onnx`, for other runtimes: model.onnx, see `inference.onnx_program`, and example_onnx.py, by onnxruntime; with
images for it, also model_int8.onnx, see `inference.files.onnx_int8`.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export as jax_export
from numpy.typing import NDArray

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data import portable_images
from linnaeus_jax.files import json_text, replaced_directory, write_json
from linnaeus_jax.inference import portable_answers
from linnaeus_jax.inference.bundle.bundle import Bundle, Calibration
from linnaeus_jax.inference.bundle.files import check_replaceable
from linnaeus_jax.inference.bundle.members import each_run
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.inference.changed_paths import ChangedPaths
from linnaeus_jax.inference.files.onnx_int8 import int8_program
from linnaeus_jax.inference.forward import forward_pass
from linnaeus_jax.inference.onnx_program import in_form, onnx_program
from linnaeus_jax.models.depthwise import BY_PLATFORM
from linnaeus_jax.weights.exporting import facts, own_settings, torch_state
from linnaeus_jax.weights.files import IMAGE, write_state

PROGRAM, CLASSES, WEIGHTS = "model.jax_export", "classes.json", "weights.safetensors"
EXAMPLE, PIXELS, ANSWERS, README = "example.py", "pixels.py", "answers.py", "README.md"
ONNX, ONNX_INT8, ONNX_EXAMPLE = "model.onnx", "model_int8.onnx", "example_onnx.py"
#: that JAX promises to read programs of an earlier version of itself, half a year, see jax.export's documentation
GUARANTEED = datetime.timedelta(days=182)
FORMAT = "linnaeus_jax export"
PLATFORMS = ("cpu", "cuda")
#: what jax can lower for
KNOWN_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
#: implementations that every platform has
_EVERYWHERE = {"depthwise_impl": BY_PLATFORM, "attn_impl": "xla"}


def check_platforms(platforms: Sequence[str]) -> tuple[str, ...]:
    """Raises UserError for what is no platform of jax."""
    unknown = [platform for platform in platforms if platform not in KNOWN_PLATFORMS]
    if unknown or not platforms:
        raise UserError(f"platforms {', '.join(unknown) or '(none)'}: choose among {', '.join(KNOWN_PLATFORMS)}")
    return tuple(dict.fromkeys(platforms))


def check_out(out: Path, *, force: bool) -> None:
    """Raises UserError where an export may not be written."""
    check_replaceable(out, "an export", (out / PROGRAM).is_file(), force=force)


def exported_program(bundle: Bundle, platforms: Sequence[str] = PLATFORMS) -> jax_export.Exported:
    """The forward pass with its weights, for any number of rows on some platforms."""
    model, picture = in_form(bundle.model, _EVERYWHERE), bundle.preprocessing
    logits = functools.partial(forward_pass(model, picture), bundle.variables)
    (rows,) = jax_export.symbolic_shape("b")
    inputs = (
        jax.ShapeDtypeStruct((rows, *picture.size, 3), np.uint8),
        jax.ShapeDtypeStruct((rows, model.meta_dim), np.float32),
        jax.ShapeDtypeStruct((rows, len(model.components)), bool),
    )
    return jax_export.export(jax.jit(logits), platforms=check_platforms(platforms))(*inputs)


def write_export(
    bundle: Bundle,
    out: Path,
    platforms: Sequence[str] = PLATFORMS,
    *,
    onnx: bool = False,
    int8: NDArray[np.uint8] | None = None,
    force: bool = False,
) -> list[str]:
    """Writes the files above beside `out`, and then moves them there; returns lines: how long JAX reads them, and how
    near the quantized program is.

    Args:
      onnx: write an ONNX program, too.
      int8: images uint8 [N, H, W, 3], see `onnx_int8.read_images`; with `onnx`, write the quantized one, too.
      force: replace what is there, if it is an export.

    Raises:
      UserError: something else lies there, or an export and `force` is not set; or an unknown platform; or there can be
        no ONNX program, see `onnx_program`.
    """
    check_out(out, force=force)
    program, meaning = exported_program(bundle, platforms).serialize(), _classes(bundle)
    in_onnx = onnx_program(bundle, json_text(meaning)) if onnx else b""
    small, same = (b"", {}) if int8 is None else int8_program(in_onnx, int8, bundle.tasks)
    settings, trained = bundle.settings, bundle.taxonomy.of_heads
    step, classes = int(bundle.facts.get("step", 0)), {task: ids.tolist() for task, ids in trained.classes.items()}
    which = str(bundle.facts.get("weights", "last"))
    about = facts(bundle.model, settings["type"], settings["variant"], classes, weights=which, step=step)
    about |= {IMAGE: dataclasses.asdict(bundle.preprocessing)} | own_settings(settings)
    readable = readable_until(datetime.date.today())
    with replaced_directory(out) as unfinished:
        (unfinished / README).write_text(_README.format(readable=readable), encoding="utf-8")
        (unfinished / PROGRAM).write_bytes(program)
        write_json(unfinished / CLASSES, meaning)
        (unfinished / EXAMPLE).write_text(_example(bundle, _BY_JAX), encoding="utf-8", newline="\n")
        if small:
            (unfinished / ONNX_INT8).write_bytes(small)
        if in_onnx:
            (unfinished / ONNX).write_bytes(in_onnx)
            (unfinished / ONNX_EXAMPLE).write_text(_example(bundle, _BY_ONNX), encoding="utf-8", newline="\n")
        for name, module in ((PIXELS, portable_images), (ANSWERS, portable_answers)):
            (unfinished / name).write_text(inspect.getsource(module), encoding="utf-8")
        for number, collections in enumerate(each_run(bundle.variables), start=1):
            state = torch_state(bundle.model, collections.pop("params"), collections, step, trained.tree.parent)
            write_state(unfinished / (WEIGHTS if number == 1 else f"weights_{number}.safetensors"), state, about)
    if not small:
        return [readable]
    agreement = ", ".join(f"{100 * share:.1f} % of the {trained.ranks[task]}" for task, share in same.items())
    sizes = f"{len(small) / 1e6:.1f} MB, {ONNX} {len(in_onnx) / 1e6:.1f}"
    return [readable, f"{ONNX_INT8} ({sizes}) gives {agreement} answers of {ONNX}, on images not used for its ranges"]


def readable_until(made: datetime.date) -> str:
    """Until when a program that was made on a day is read. JAX counts from the release of the version that made it, of
    which an installation does not know the date, so the day is the last one that it can be."""
    return (
        f"{PROGRAM} was made by jax {jax.__version__}, which reads it for good; of later versions of jax only those "
        f"are promised to read it that are released within six months of that one, so before {made + GUARANTEED}. "
        f"{WEIGHTS} does not expire"
    )


def answer_settings(taxonomy: Taxonomy, calibration: Calibration) -> dict[str, Any]:
    """What `portable_answers` needs: `log_prior` of the paths, None where the training rows are not known, and `ranks`,
    the coarsest first."""
    counted, ranks = bool(calibration.path_counts), []
    paths = ChangedPaths(taxonomy, calibration.path_counts)
    weights = paths.weights(calibration.paths) if counted else []
    for place, task in reversed([*enumerate(taxonomy.tasks)]):
        rank: dict[str, Any] = {"task": task, "rank": taxonomy.ranks[task], "temperature": calibration.ranks[task]}
        if counted:
            rank |= {
                "log_share": paths.log_share[place].tolist(),
                "paths": paths.classes[:, place].tolist(),
                "path_weights": weights[place].tolist(),
            }
        if taxonomy.heads:  # what columns and paths are called now
            of = np.maximum(taxonomy.heads.class_of[task], taxonomy.first - 1)
            rank |= {"class_of": of.tolist(), "called": paths.called[:, place].tolist()}
        ranks.append(rank)
    return {"ranks": ranks, "log_prior": paths.log_prior.tolist() if counted else None}


def _classes(bundle: Bundle) -> dict[str, Any]:
    taxonomy, image = bundle.taxonomy, bundle.preprocessing
    answers = answer_settings(taxonomy, bundle.calibration)
    for rank in answers["ranks"]:
        of_task = (
            table[rank["task"]]
            for table in (taxonomy.classes, taxonomy.names.name, taxonomy.names.common_name, taxonomy.tree.parent)
        )
        rank["classes"] = [
            {"taxon_id": int(taxon), "name": str(name), "common_name": str(common), "parent": int(parent)}
            for taxon, name, common, parent in zip(*of_task, strict=True)
        ]
    return {
        "format": FORMAT,
        "facts": dict(bundle.facts),
        "jax": jax.__version__,
        "image": {
            "size": list(image.size),
            "resize_mode": image.resize_mode,
            "interpolation": image.interpolation,
            "crop_fraction": image.crop_fraction,
        },
        "metadata": [{"name": c.name, "columns": list(c.columns)} for c in bundle.encoder.components],
        **answers,
    }


def _example(bundle: Bundle, runtime: dict[str, str]) -> str:
    encoder = bundle.encoder
    columns = ", ".join(column or "?" for component in encoder.components for column in component.columns)
    names = ", ".join(component.name for component in encoder.components)
    return EXAMPLE_TEXT.format(
        width=encoder.width,
        columns=f"  # {columns}" if columns else "",
        components=len(encoder.components),
        names=f"  # {names}" if names else "",
        **{name: text.format(jax=jax.__version__) for name, text in runtime.items()},
    )


_README = """\
# A model, exported

* `model.jax_export`: the program with its weights (StableHLO of `jax.export`)
* `classes.json`: what its outputs mean
* `example.py`: names pictures with it; needs jax, flatbuffers, numpy and pillow
* `pixels.py`: how it reads pictures, as the program does that made this
* `answers.py`: which taxa its outputs say, as the bundle does that was exported
* `weights.safetensors`: the weights under PyTorch's names
* `model.onnx`, `example_onnx.py`, where they were asked for: the same program for ONNX runtimes, and its use
* `model_int8.onnx`, likewise: with 8-bit convolutions; the same inputs and outputs

{readable}: keep it, or the bundle, to export the model again.
"""

#: of `EXAMPLE_TEXT`, for each runtime
_BY_JAX = {
    "install": "jax flatbuffers pillow",
    "imports": "jax, jax.export",
    "load": """\
renew = "model.jax_export cannot be read: pip install jax=={jax}, or export the model again"
try: model = jax.export.deserialize(bytearray((folder / "model.jax_export").read_bytes()))
except Exception as why: sys.exit(f"{{renew}} ({{' '.join(str(why).split())}})")""",
    "call": "logits = {{task: np.asarray(z) for task, z in jax.jit(model.call)(image, meta, known).items()}}",
}
_BY_ONNX = {
    "install": "onnxruntime pillow",
    "imports": "onnxruntime",
    "load": 'model = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])',
    "call": """\
given = {{"image": image, "meta": meta, "meta_valid": known}}
tasks = [output.name for output in model.get_outputs()]
logits = dict(zip(tasks, model.run(tasks, {{each.name: given[each.name] for each in model.get_inputs()}})))""",
}
EXAMPLE_TEXT = '''\
"""Names what pictures show, without metadata: python example.py PICTURE... (pip install {install})"""
import json, pathlib, sys
import {imports}, numpy as np
from answers import best_classes
from pixels import read_all
folder = pathlib.Path(__file__).parent
{load}
classes = json.loads((folder / "classes.json").read_text(encoding="utf-8"))
image = read_all(sys.argv[1:], **classes["image"])
meta = np.zeros((len(image), {width}), np.float32){columns}
known = np.zeros((len(image), {components}), bool){names}
{call}
bad = [path for path, *rows in zip(sys.argv[1:], *logits.values()) if not all(np.isfinite(row).all() for row in rows)]
for rank, (best, probability) in zip(classes["ranks"], best_classes(classes, logits).values()):
    for path, number, p in (each for each in zip(sys.argv[1:], best, probability) if each[0] not in bad):
        taxon = {{"taxon_id": 0}} if number < 0 else rank["classes"][number]
        print(path, rank["rank"], taxon["taxon_id"], taxon.get("name") or "unknown", f"{{p:.3f}}", sep="\\t")
if bad: sys.exit("the outputs of the model are not finite for " + ", ".join(bad))
'''
