"""Files and directories of any kind where a program expects one of its own, and data that contradict themselves."""

from __future__ import annotations

import json
import random
import shutil
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import h5py
import numpy as np
from PIL import Image

from tests.campaign.inputs_given import DRAW, Given, Made

SIDE = 48


def _png(path: Path, damaged: bool = False) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (SIDE, SIDE, 3), np.uint8)).save(path, "PNG")
    if damaged:
        path.write_bytes(path.read_bytes()[:200])


def _zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("../escaped.txt", "x")


def _hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["something"] = np.zeros(3)


#: kind of thing -> what makes it
THINGS: dict[str, Callable[[Path], object]] = {
    "text": lambda path: path.write_text("this is not what you look for\n"),
    "binary": lambda path: path.write_bytes(random.Random(0).randbytes(5000)),
    "empty file": lambda path: path.touch(),
    "directory": lambda path: path.mkdir(),
    "nothing": lambda path: None,
    "JSON list": lambda path: path.write_text("[1, {}, null]\n"),
    "JSON object": lambda path: path.write_text('{"a": {"b": []}}\n'),
    "deep JSON": lambda path: path.write_text("[" * 100_000),
    "HDF5": _hdf5,
    "zip": _zip,
    "cut picture": partial(_png, damaged=True),
    "link to itself": lambda path: path.symlink_to(path.name),
    "long line": lambda path: path.write_text("a," * 2_000_000),
}

#: name -> (tool, arguments with BAD for the thing; BUNDLE, RUN, LABELS, IMAGES and PICTURE are sound)
PLACES: dict[str, tuple[str, tuple[str, ...]]] = {
    "analyze_debug_logs": ("analyze_debug_logs", ("BAD",)),
    "autobatch": ("autobatch", ("--config=BAD.py",)),
    "build_dataset, folders": ("build_dataset", ("--folders=BAD", "--out=out")),
    "build_dataset, table": ("build_dataset", ("--table=BAD.csv", "--out=out")),
    "build_dataset, Parquet": ("build_dataset", ("--table=BAD.parquet", "--out=out")),
    "build_dataset, archive": ("build_dataset", ("--dwca=BAD.zip", "--out=out")),
    "build_dataset, COCO": ("build_dataset", ("--coco=BAD.json", "--out=out")),
    "build_dataset, boxes": ("build_dataset", ("--folders=PICTURES", "--boxes=BAD.json", "--out=out")),
    "bundle": ("bundle", ("BAD", "out")),
    "check": ("check", ("--config=BAD.py",)),
    "demo_baselines": ("demo_baselines", ("--data=BAD",)),
    "demo_baselines, run": ("demo_baselines", ("--data=DEMO", "--run=BAD")),
    "describe_dataset": ("describe_dataset", ("BAD", "--out=out")),
    "describe_dataset, pictures": ("describe_dataset", ("LABELS", "--images=BAD", "--out=out")),
    "evaluate": ("evaluate", ("BAD",)),
    "evaluate, labels": ("evaluate", ("RUN", "--labels=BAD", "--images=IMAGES")),
    "evaluate, pictures": ("evaluate", ("RUN", "--labels=LABELS", "--images=BAD")),
    "export": ("export", ("BAD", "out")),
    "export_weights": ("export_weights", ("BAD", "out.safetensors")),
    "filter_logs": ("filter_logs", ("BAD",)),
    "import_weights": ("import_weights", ("BAD",)),
    "import_weights, .pth": ("import_weights", ("BAD.pth",)),
    "import_weights, .safetensors": ("import_weights", ("BAD.safetensors",)),
    "import_weights, .npz": ("import_weights", ("BAD.npz",)),
    "pack": ("pack", ("BAD", "--images=IMAGES", "--out=out")),
    "pack, pictures": ("pack", ("LABELS", "--images=BAD", "--out=out.h5")),
    "predict": ("predict", ("BAD", "PICTURE")),
    "predict, metadata": ("predict", ("BUNDLE", "PICTURE", "--meta=BAD.csv", "--out=out.csv")),
    "predict, boxes": ("predict", ("BUNDLE", "PICTURE", "--boxes=BAD.json", "--out=out.csv")),
    "predict, table of boxes": ("predict", ("BUNDLE", "PICTURE", "--boxes=BAD.csv", "--out=out.json")),
    "profile_summary": ("profile_summary", ("BAD",)),
    "profile_summary, trace": ("profile_summary", ("BAD.xplane.pb",)),
    "replay": ("replay", ("BAD",)),
    "replay_metrics": ("replay_metrics", ("BAD", "--mode=offline")),
    "replay_metrics, TensorBoard": ("replay_metrics", ("BAD", "--to=tensorboard")),
    "report": ("report", ("BAD",)),
    "report, two": ("report", ("RUN", "BAD")),
    "serve": ("serve", ("BAD", "--port=0")),
    "verify_dataset": ("verify_dataset", ("BAD",)),
    "verify_dataset, pictures": ("verify_dataset", ("LABELS", "--images=BAD")),
}
#: things that are read without a fault there -> why that is right
READABLE = {
    ("analyze_debug_logs", "empty file"): "a log without events, of which it warns",
    ("verify_dataset, pictures", ""): "the fault is a finding about the data, as which it is listed",
    ("describe_dataset, pictures", "directory"): "the description counts the pictures that are not there",
}

#: outputs that cannot be written, by name -> (tool, arguments with OUT)
OUTPUTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "bundle": ("bundle", ("RUN", "OUT", "--without-data")),
    "build_dataset": ("build_dataset", ("--folders=PICTURES", "--out=OUT")),
    "check": ("check", ("--config=CONFIG", "--out=OUT")),
    "describe_dataset": ("describe_dataset", ("LABELS", "--images=IMAGES", "--out=OUT")),
    "evaluate, predictions": ("evaluate", ("RUN", "--predictions=OUT")),
    "export_weights": ("export_weights", ("RUN", "OUT")),
    "export": ("export", ("BUNDLE", "OUT")),
    "make_demo": ("make_demo", ("--out=OUT", "--rows=200")),
    "pack": ("pack", ("LABELS", "--images=IMAGES", "--out=OUT")),
    "predict": ("predict", ("BUNDLE", "PICTURE", "--out=OUT")),
    "replay_metrics": ("replay_metrics", ("RUN", "--to=tensorboard", "--out=OUT")),
    "replay_metrics, W&B": ("replay_metrics", ("RUN", "--mode=offline", "--out=OUT")),
    "report": ("report", ("RUN", "--out=OUT")),
    "schedule": ("schedule", ("--config=CONFIG", "--out=OUT")),
    "show_augmentations": ("show_augmentations", ("--config=CONFIG", "--images=1", "--out=OUT")),
    "import_weights": ("import_weights", ("RUN", "--out=OUT")),
    "analyze_debug_logs": ("analyze_debug_logs", ("RUN/logs/debug", "--plot=OUT")),
    "verify_dataset": ("verify_dataset", ("LABELS", "--images=IMAGES", "--out=OUT")),
}
UNWRITABLE = {"below a file": "file/out", "below a device": "/dev/null/out", "of the kernel": "/proc/nothing/out"}


def _make(thing: str, name: str, directory: Path) -> None:
    THINGS[thing](directory / name)
    (directory / "file").touch()
    (directory / "pictures" / "Genus species").mkdir(parents=True)
    _png(directory / "picture.png")
    _png(directory / "pictures" / "Genus species" / "picture.png")


def _filled(arguments: tuple[str, ...], made: Made) -> tuple[str, ...]:
    sound = {
        "BUNDLE": str(made.bundle),
        "CONFIG": str(made.config),
        "RUN": str(made.run),
        "LABELS": str(made.data / "labels.h5"),
        "IMAGES": str(made.data / "images.h5"),
        "DEMO": str(made.demo),
        "PICTURES": "pictures",
        "PICTURE": "picture.png",
        "BAD": "bad",
    }
    filled = []
    for text in arguments:
        for word, path in sound.items():
            text = text.replace(word, path)
        filled.append(text)
    return tuple(filled)


def _needs_trained(arguments: tuple[str, ...]) -> bool:
    return any(word in text for text in arguments for word in ("RUN", "BUNDLE", "DEMO"))


def tools(made: Made) -> Iterator[Given]:
    """Every tool with each thing in each place, and with outputs that cannot be written."""
    for place, (tool, arguments) in PLACES.items():
        suffix = next((text.partition("BAD")[2] for text in arguments if "BAD" in text), "")
        for thing in THINGS:
            yield Given(
                "file of another kind",
                f"{place}: {thing}",
                f"linnaeus_jax.tools.{tool}",
                _filled(arguments, made),
                partial(_make, thing, f"bad{suffix}"),
                READABLE.get((place, thing)) or READABLE.get((place, "")) or "",
                status=int(
                    place in ("verify_dataset, pictures", "analyze_debug_logs")
                ),  # of what is not there, or of findings
                trained=_needs_trained(arguments),
            )
    for place, (tool, arguments) in OUTPUTS.items():
        for where, path in UNWRITABLE.items():
            filled = tuple(text.replace("OUT", path) for text in _filled(arguments, made))
            program = f"linnaeus_jax.tools.{tool}"
            trained, prepare = _needs_trained(arguments), partial(_make, "nothing", "bad")
            yield Given("output", f"{place}: {where}", program, filled, prepare, trained=trained)


# ---- data


def _labels(directory: Path, change: Callable[[h5py.File], None], made: Made) -> None:
    shutil.copy(made.data / "labels.h5", directory / "labels.h5")
    with h5py.File(directory / "labels.h5", "a") as file:
        change(file)


def _replaced(name: str, values: object) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        attributes = dict(file[name].attrs) if name in file else {}
        file.pop(name, None)
        file[name] = values
        if attributes:
            file[name].attrs.update(attributes)

    return change


def _emptied(file: h5py.File) -> None:
    for name in list(file):
        if name != "metadata":
            _replaced(name, file[name][:0])(file)


def _grouped(name: str) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        file.pop(name)
        file.create_group(name)

    return change


def _with(name: str, rows: int, value: float) -> Callable[[h5py.File], None]:
    """Some rows of a column are `value`."""

    def change(file: h5py.File) -> None:
        file[name][:rows] = value

    return change


ROWS = 120
#: what is wrong with the labels -> (change, why it is right to go on)
LABELS: dict[str, tuple[Callable[[h5py.File], None], str]] = {
    "NaN in metadata": (_with("temporal", 5, np.nan), "said"),
    "infinite metadata": (_with("spatial", 5, np.inf), "said"),
    "all metadata NaN": (_with("spatial", ROWS, np.nan), "said"),
    "labels too short": (_replaced("taxa_L10", np.ones(7, np.uint32)), ""),
    "labels of floats": (_replaced("taxa_L10", np.full(ROWS, 0.5)), ""),
    "labels of text": (_replaced("taxa_L10", ["a"] * ROWS), ""),
    "labels with two columns": (_replaced("taxa_L10", np.ones((ROWS, 2), np.uint32)), ""),
    "negative labels": (_replaced("taxa_L10", np.full(ROWS, -5)), ""),
    "one class": (_replaced("taxa_L10", np.ones(ROWS, np.uint32)), "a data set may have one class"),
    "all null": (_replaced("taxa_L10", np.zeros(ROWS, np.uint32)), "a warning says it; the other ranks are learned"),
    "no labels": (lambda file: file.pop("taxa_L10"), ""),
    "no identifiers": (lambda file: file.pop("img_identifiers"), ""),
    "a group for labels": (_grouped("taxa_L10"), ""),
    "a group for metadata": (_grouped("temporal"), ""),
    "metadata too short": (_replaced("temporal", np.zeros((7, 2))), ""),
    "metadata of text": (_replaced("temporal", [["a", "b"]] * ROWS), ""),
    "metadata with three axes": (_replaced("temporal", np.zeros((ROWS, 2, 2))), ""),
    "metadata of one axis": (_replaced("temporal", np.zeros(ROWS)), ""),
    "region of text": (_replaced("in_region", ["yes"] * ROWS), ""),
    "region too short": (_replaced("in_region", np.ones(3, np.uint8)), ""),
    "split of floats": (_replaced("split", np.full(ROWS, 0.5)), ""),
    "split without training": (_replaced("split", np.ones(ROWS, np.uint8)), ""),
    "subset with slashes": (_replaced("subset_mine", ["a/b"] * ROWS), ""),
    "subset of floats": (_replaced("subset_mine", np.full(ROWS, 0.5)), ""),
    "identifiers of numbers": (_replaced("img_identifiers", np.arange(ROWS)), "identifiers may be numbers"),
    "no rows": (_emptied, ""),
    "linked outside": (_replaced("taxa_L10", h5py.ExternalLink("x", "y")), ""),
    "linked to itself": (_replaced("taxa_L10", h5py.SoftLink("/taxa_L10")), ""),
}


def _images(directory: Path, values: object, made: Made) -> None:
    with h5py.File(directory / "images.h5", "w") as file:
        file["images"] = values


def _folder(directory: Path, missing: int, damaged: int, made: Made) -> None:
    (directory / "pictures").mkdir()
    for i in range(missing, ROWS):
        _png(directory / "pictures" / f"image_{i}.jpg", damaged=i < missing + damaged)


IMAGES = {
    "too few": np.zeros((7, 32, 32, 3), np.uint8),
    "no rows": np.zeros((0, 32, 32, 3), np.uint8),
    "grey": np.zeros((ROWS, 32, 32), np.uint8),
    "four channels": np.zeros((ROWS, 32, 32, 4), np.uint8),
    "floats": np.zeros((ROWS, 32, 32, 3), np.float32),
    "text": ["a"] * ROWS,
    "no pixels": np.zeros((ROWS, 0, 0, 3), np.uint8),
}


def data(made: Made) -> Iterator[Given]:
    """Labels and pictures that are not what they should be."""
    end = ("--out=out.png", "--images=1")
    for name, (change, reason) in LABELS.items():
        arguments = (f"--config={made.config}", "--config.data.h5.labels_path=labels.h5", *end)
        prepare = partial(_labels, change=change, made=made)
        accepted = _said if reason == "said" else reason
        yield Given("labels", name, DRAW, arguments, prepare, accepted, ("out.png",) if reason else ())
    for name, values in IMAGES.items():
        arguments = (f"--config={made.config}", "--config.data.h5.images_path=images.h5", *end)
        yield Given("pictures", name, DRAW, arguments, partial(_images, values=values, made=made))
    for missing, damaged in ((ROWS, 0), (60, 0), (0, 1), (0, ROWS)):
        keys = ("use_hybrid=true", "images_dir=pictures")
        flags = [f"--config.data.hybrid.{key}" for key in keys] + ["--config.data.h5.images_path="]
        prepare = partial(_folder, missing=missing, damaged=damaged, made=made)
        for program in (DRAW, "linnaeus_jax.main"):
            extra = end if program == DRAW else ("--workdir=run",)
            yield Given(
                "pictures",
                f"folder, {missing} missing, {damaged} damaged, {program.rpartition('.')[2]}",
                program,
                (f"--config={made.config}", *flags, *extra),
                prepare,
                may_write=("run/", "run"),
            )


def _said(ended: object) -> str:
    """Accepted where the output counts what is missing."""
    return "counted and treated as missing" if "not finite" in json.dumps(str(ended)) else ""
