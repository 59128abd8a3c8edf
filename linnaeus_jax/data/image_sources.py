"""How the images of a split are opened: by the kind of their file.

A source of the user's own is a class or function registered in `IMAGE_SOURCES` under the suffix of its files, without
the dot; it is called with an `ImageFiles`, and keyword-only arguments with a default are its options,
`data.image_sources.<suffix>.<option>`. The built-in "h5" and "folder" are registered in the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from linnaeus_jax.config.typed import Config
from linnaeus_jax.data import h5_images  # noqa: F401  registers "h5"
from linnaeus_jax.data.alignment import MisalignedError, misalignment
from linnaeus_jax.data.cache import ImageCache
from linnaeus_jax.data.images import EncodedImages, ImageFiles, ImageSource, ResizedImages, input_dtype
from linnaeus_jax.data.labels import LabelTable
from linnaeus_jax.data.labels_file import attribute, open_labels, text_of
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.data.splits import Split
from linnaeus_jax.mistakes import InputError
from linnaeus_jax.registry import IMAGE_SOURCES

logger = logging.getLogger("linnaeus_jax.data")


def open_images(files: ImageFiles, kind: str = "h5", options: Mapping[str, Any] | None = None) -> ImageSource:
    """The images of a file or directory at the training size, one for each row of the labels file.

    Args:
      kind: name of the source.
      options: its options.

    Raises:
      FileNotFoundError: no such file or directory.
      OSError: a truncated or damaged file.
      InputError: an HDF5 file lacks the dataset; wrong dtype, shape or number of images; an unknown kind.
      MisalignedError: images of other identifiers or contents than those of the labels file.
    """
    make = IMAGE_SOURCES[kind]
    with IMAGE_SOURCES.plugin_errors(kind):
        source: ImageSource = make(files, **(options or {}))
    if len(files.table) and len(source) != len(files.table):
        raise InputError(
            f"{files.path}: {len(source)} images, but its labels file has {len(files.table)} rows; both must be "
            "row-aligned"
        )
    labels = files.table.path if isinstance(files.table, LabelTable) and kind in ("h5", "folder") else ""
    if labels and (problem := misalignment(files.path, source, labels)):
        raise MisalignedError(problem)
    preprocessing = files.preprocessing
    if input_dtype(source) == np.uint8 and source.image_shape != (*preprocessing.size, 3):
        side, how = preprocessing.size[0], preprocessing.resizing
        logger.info("%s: resizing to data.img_size %d (%s) while reading", files.path, side, how)
        source = ResizedImages(source, preprocessing)
    return source


def open_split(
    config: Config, split: Split, cache: ImageCache | None = None, *, how: Preprocessing | None = None
) -> ImageSource:
    """The images of a split: a directory, a file whose suffix names a registered source, or else an HDF5 file.

    Args:
      config: of the run.
      cache: for decoded images.
      how: pictures become square; None: as the configuration says.

    Raises:
      OSError, InputError: as `open_images`.
    """
    path, data = Path(split.images), config.data
    kind = path.suffix.removeprefix(".").lower()
    if path.is_dir() or (data.hybrid.use_hybrid and not path.is_file()):
        kind = "folder"
    elif kind not in IMAGE_SOURCES:
        kind = "h5"
    files = ImageFiles(
        path,
        how or Preprocessing.from_config(config),
        split.table,
        data.hybrid.file_extension,
        cache,
        data.hybrid.allow_missing_images,
    )
    options = {name: data["image_sources"][kind][name] for name in IMAGE_SOURCES.options(kind)}
    return open_images(files, kind, options)


def made_square(labels: str) -> Preprocessing | None:
    """How the raw pictures of a data set were made square when it was built; None of other pictures, and where its
    labels file does not say.

    Raises:
      InputError: no labels file, or a damaged one.
    """
    with open_labels(labels) as file:
        group = file.get("metadata/image_processing")
        if not isinstance(group, h5py.Group) or text_of(attribute(group, "form", "")) != "raw":
            return None
        size = attribute(group, "size", 0)
        mode, interpolation = attribute(group, "resize_mode", ""), attribute(group, "interpolation", "area")
        share = attribute(group, "crop_fraction", 1.0)
    try:
        side = int(size)
        return Preprocessing((side, side), text_of(mode), text_of(interpolation), crop_fraction=float(share))
    except (TypeError, ValueError):  # the words of another program
        return None


def other_resizing(labels: str, source: ImageSource, how: Preprocessing) -> str:
    """What must be known where raw pictures were made square in another way than `how` says, or would have a part cut
    out twice; "" for nothing, and where their labels file does not say how they were made.

    Raises:
      InputError: no labels file, or a damaged one.
    """
    stored = None if isinstance(source, EncodedImages) else made_square(labels)
    if stored is None:
        return ""
    if stored.resizing != how.resizing:
        return (
            f"{labels}: its pictures were made square by {stored.resizing}, but the model is to see pictures by "
            f"{how.resizing}, as new ones will be; set data.resize_mode, data.interpolation and data.crop_fraction as "
            "the data set was built, or build it again"
        )
    if stored.crop_fraction != 1 and stored.size != how.size:
        return (
            f"{labels}: of its pictures of {stored.size[0]} pixels the borders are cut off already, and for "
            f"{how.size[0]} pixels they are cut off again; build the data set again with --size {how.size[0]}"
        )
    return ""
