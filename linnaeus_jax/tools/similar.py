"""Finds the most similar pictures by their feature vectors.

    linnaeus similar vectors.npz --query photo.jpg --bundle BUNDLE
    linnaeus similar vectors.npz --rows photos/1.jpg photos/7.jpg --html similar.html

VECTORS is a file of linnaeus embed. The pictures of --query get vectors of the same layer by the same model; --rows are
pictures of the file itself, by their ids or row numbers. The search is exact. Vectors are read from the file block by
block, so that it may be larger than the memory.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from linnaeus_jax.inference.files.nearest import Neighbours
    from linnaeus_jax.inference.files.similar_page import Shown
    from linnaeus_jax.inference.files.vector_files import StoredVectors

from linnaeus_jax import tools
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.tools.predict import say

#: pictures whose neighbours are printed
PRINTED = 20


def argument_parser() -> argparse.ArgumentParser:
    """The options of the tool."""
    parser = tools.parser("similar", __doc__)
    parser.add_argument("vectors", metavar="VECTORS", type=Path, help="a file of linnaeus embed")
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--query", metavar="PICTURES", nargs="+", help="files, folders, patterns such as 'a/**/*.jpg'")
    asked.add_argument("--rows", metavar="ID", nargs="+", help="pictures of the file: their ids or row numbers, from 0")
    parser.add_argument("--bundle", type=Path, metavar="BUNDLE", help="the model of the file, for --query")
    parser.add_argument("--checkpoint", default="best", help="of a run: best (default), newest or a step")
    tools.plugins_option(parser)
    parser.add_argument("-k", "--count", type=int, default=10, help="neighbours of each picture (10)")
    parser.add_argument("--metric", choices=("cosine", "euclidean"), default="cosine", help="of distances (cosine)")
    parser.add_argument("--html", type=Path, metavar="HTML", help="a page of the pictures (at most 2000)")
    return parser


def rows_named(vectors: StoredVectors, names: Sequence[str]) -> NDArray[np.int64]:
    """The rows of some ids or row numbers.

    Raises:
      UserError: one is neither.
    """
    place = {name: row for row, name in enumerate(vectors.rows["id"])}
    rows = []
    for name in names:
        number = int(name) if name.isascii() and name.isdecimal() and int(name[:18]) < len(vectors) else -1
        if (row := place.get(name, number)) < 0:
            raise UserError(
                f"{name!r} is no id of {vectors.path}, and no row number below {len(vectors):,}; its first id is "
                f"{vectors.rows['id'][0]!r}"
            )
        rows.append(row)
    return np.array(rows, np.int64)


def vectors_of(args: argparse.Namespace, vectors: StoredVectors) -> tuple[list[Path], NDArray[np.floating]]:
    """The pictures of --query that can be read, and their vectors.

    Raises:
      UserError: another model than that of the file, or none of the pictures can be read.
    """
    from linnaeus_jax.inference.files.picture_list import list_pictures
    from linnaeus_jax.inference.files.predicting import Job, batch_for
    from linnaeus_jax.inference.files.vector_files import COMPARED, about_vectors, embed_files
    from linnaeus_jax.inference.forward import FUSED
    from linnaeus_jax.inference.model import Model, read_bundle_or_run

    if args.bundle is None:
        raise UserError("--query needs the model of the vectors: give it by --bundle")
    bundle, about = read_bundle_or_run(args.bundle, args.checkpoint, args.plugins), dict(vectors.about)
    pictures = list_pictures(args.query, say=say)
    model = Model(bundle, buckets=(batch_for(len(pictures), bundle.preprocessing.size),))
    asked = about_vectors(model, model.layer(about["layer"] == FUSED), "float32", about["normalized"])
    if differing := [key for key in COMPARED if asked[key] != about[key]]:
        raise UserError(
            f"{args.vectors} holds vectors of another model than {args.bundle}: {', '.join(differing)} differ; give "
            "the bundle that they were made with, or embed anew"
        )
    paths, found = list[Path](), list[NDArray[np.floating]]()
    for part in embed_files(model, [Job(picture) for picture in pictures], asked, exif=about["layer"] == FUSED):
        paths += [Path(name) for name in part.names]
        found += [] if part.answered is None else [part.answered]
        for name, reason in zip(part.pictures, part.reasons):
            if reason:
                say(f"{name} is left out: {reason}")
    if not found:
        raise UserError("none of the pictures of --query can be read; give others")
    return paths, np.concatenate(found)


def elements_of(vectors: StoredVectors) -> Callable[[int], Callable[[], str]]:
    """A function of a row that gives what makes its picture for a page: from its file, or from the data set.

    Raises:
      UserError: the data set cannot be opened.
    """
    from linnaeus_jax.inference.files.gallery import SIDE, picture_element, pixels_of
    from linnaeus_jax.reading.labelled_pictures import open_pictures, read_identifiers, stored_picture

    ids, origin = vectors.rows["id"], vectors.about.get("data set")
    if origin is None:
        return lambda row: functools.partial(picture_element, lambda: pixels_of(Path(ids[row]).read_bytes()))
    labels, images, extension = origin
    source = open_pictures(Path(images), Path(labels), extension, side=SIDE)
    place = {name: row for row, name in enumerate(read_identifiers(labels).tolist())}

    def read(row: int) -> NDArray[np.uint8]:
        stored = stored_picture(source, place[ids[row]])
        return pixels_of(stored) if isinstance(stored, bytes) else stored

    return lambda row: functools.partial(picture_element, functools.partial(read, row))


def shown_of(vectors: StoredVectors, row: int, element: Callable[[], str], distance: float | None = None) -> Shown:
    """A row of the file, for a page."""
    from linnaeus_jax.inference.files.similar_page import Shown

    name, *taxa = vectors.rows.row(row)
    return Shown(name, element, dict(zip(vectors.rows.columns[1:], taxa)), distance)


def show(vectors: StoredVectors, names: Sequence[str], found: Neighbours) -> None:
    """Prints a table of the neighbours of each picture."""
    from linnaeus_jax.reading.text import printable
    from linnaeus_jax.reporting.logs import console
    from linnaeus_jax.reporting.tables import table

    ranks = vectors.rows.columns[1:]
    for name, rows, distances in zip(names[:PRINTED], found.row.tolist(), found.distance.tolist()):
        lines = [
            [printable(text) for text in vectors.rows.row(row)] + [f"{distance:.4f}"]
            for row, distance in zip(rows, distances)
        ]
        shown = table(printable(name), ["nearest first", *ranks, "distance"], lines)
        for column in shown.columns[1:-1]:
            column.justify = "left"
        console.print(shown)
    if len(names) > PRINTED:
        say(f"... and {len(names) - PRINTED:,} more pictures; a page of all of them: --html similar.html")


@tools.command()
def main(argv: Sequence[str]) -> None:
    """Command line."""
    args = argument_parser().parse_args(argv)
    from linnaeus_jax.step.process import set_up_inference

    set_up_inference()
    from linnaeus_jax.inference.files.gallery import picture_element, pixels_of
    from linnaeus_jax.inference.files.nearest import Nearest
    from linnaeus_jax.inference.files.similar_page import MOST, Shown, write_similar
    from linnaeus_jax.inference.files.vector_files import open_vectors

    if args.count < 1:
        raise UserError(f"-k is {args.count}; give at least 1")
    if args.html is not None and args.html.is_dir():
        raise UserError(f"--html {args.html} is a folder; give another name")
    vectors = open_vectors(args.vectors)
    elements = elements_of(vectors) if args.html is not None else lambda row: str
    asked: list[Shown]
    if args.rows is not None:
        own = rows_named(vectors, args.rows)
        queries, asked = vectors[own], [shown_of(vectors, row, elements(row)) for row in own.tolist()]
    else:
        paths, queries = vectors_of(args, vectors)
        own = np.full(len(paths), -1)
        reads = [functools.partial(lambda path: pixels_of(path.read_bytes()), path) for path in paths]
        asked = [Shown(str(path), functools.partial(picture_element, read), {}) for path, read in zip(paths, reads)]
    if args.html is not None and len(asked) * (1 + min(args.count, len(vectors))) > MOST:
        raise UserError(f"--html shows at most {MOST:,} pictures; ask for fewer, or for fewer neighbours by -k")
    with tools.progress_bar("reading vectors") as progress:
        nearest = Nearest(vectors, args.metric, progress)
    found = nearest(queries, args.count, own)
    show(vectors, [each.name for each in asked], found)
    if args.html is not None:
        groups = [
            [first, *(shown_of(vectors, row, elements(row), far) for row, far in zip(rows, distances))]
            for first, rows, distances in zip(asked, found.row.tolist(), found.distance.tolist())
        ]
        title = f"Pictures similar to {len(asked):,} among {len(vectors):,}"
        said = f"{args.metric} distance of vectors of layer {vectors.about['layer']}, {vectors.about['title']}"
        with tools.progress_bar("page") as progress:
            write_similar(args.html, title, said, groups, progress)
        say(f"{args.html}: {sum(map(len, groups)):,} pictures, {args.html.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    sys.exit(main())
