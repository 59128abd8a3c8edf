"""Writes the feature vectors of pictures: what the heads of a trained model are given.

    linnaeus embed BUNDLE photos --out vectors.npz
    linnaeus embed BUNDLE data/mine --out vectors.parquet --normalize
    linnaeus embed BUNDLE photos --with-metadata --meta places.csv --out vectors.npy

Pictures are files, folders and patterns, or a data set: its folder or its labels.h5, whose rows then have their taxa
beside them. A vector is the output of the trunk after pooling; with --with-metadata after place, date and elevation
have joined. The file says the layer, the width, whether vectors have length 1, and digests of weights and
preprocessing. The same command goes on with a file that was not finished. Pictures that cannot be read are listed and
end nothing.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from linnaeus_jax.inference.bundle.bundle import Bundle
    from linnaeus_jax.inference.files.predicting import Job
    from linnaeus_jax.inference.files.unfinished import Summary
    from linnaeus_jax.inference.model import Model

from linnaeus_jax import tools
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.tools import predict


def argument_parser() -> argparse.ArgumentParser:
    """The options of the tool, in groups."""
    parser = tools.parser("embed", __doc__)
    predict.source_options(parser, "; or the folder or labels.h5 of a data set")
    parser.add_argument("--out", type=Path, metavar="FILE", required=True, help="vectors as .npz, .npy or .parquet")
    parser.add_argument("--force", action="store_true", help="replace the vectors that --out holds")
    parser.add_argument(
        "--images", type=Path, metavar="PATH", help="of a data set (default: images.h5 beside labels.h5)"
    )
    parser.add_argument("--extension", help=tools.EXTENSION_HELP)
    parser.add_argument("--with-metadata", action="store_true", help="vectors after the metadata have joined")
    parser.add_argument("--normalize", action="store_true", help="vectors of length 1")
    parser.add_argument("--dtype", choices=("float16", "float32"), default="float16", help="of the file (float16)")
    predict.known_options(parser)
    predict.work_options(parser)
    return parser


def data_set(pictures: Sequence[str]) -> Path | None:
    """The labels file of the data set that is meant; None where pictures are."""
    path = Path(pictures[0]).expanduser()
    path = path / "labels.h5" if path.is_dir() else path
    return path if len(pictures) == 1 and path.suffix in (".h5", ".hdf5") and path.is_file() else None


def images_of(args: argparse.Namespace, labels: Path) -> Path:
    """Where the pictures of a data set are."""
    return args.images or labels.with_name("images.h5")


def rows_of(args: argparse.Namespace, bundle: Bundle, labels: Path) -> tuple[tuple[str, ...], list[Job]]:
    """Ranks of a data set, and its rows.

    Raises:
      UserError: it cannot be read, or an option is for pictures alone.
    """
    from linnaeus_jax.data.images import FolderImages
    from linnaeus_jax.inference.files.picture_list import PictureFile, of_shard
    from linnaeus_jax.inference.files.predicting import Job
    from linnaeus_jax.inference.quality.evaluating import Pictures, read_metadata
    from linnaeus_jax.reading.labelled_pictures import read_identifiers, read_row_taxa
    from linnaeus_jax.reading.metadata import Observation

    if args.meta is not None:
        raise UserError(f"--meta is for pictures, but {labels} has its own metadata; leave it out")
    images = images_of(args, labels)
    source = Pictures.of(bundle, images, labels, args.extension)
    ranks, taxa = read_row_taxa(labels)
    encoder = bundle.encoder
    known = read_metadata(bundle, labels) if args.with_metadata else None
    jobs = []
    for row, name in enumerate(read_identifiers(str(labels)).tolist()):
        values: dict[str, Sequence[float]] = {}
        if known is not None:
            parts = zip(encoder.components, encoder.bounds, known.valid[row].tolist())
            values = {one.name: known.meta[row, start:stop].tolist() for one, (start, stop), valid in parts if valid}
        file = Path(source.source.describe(row)) if isinstance(source.source, FolderImages) else images
        stored = functools.partial(source.read, row)
        jobs.append(Job(PictureFile(file, name, name), Observation(components=values), stored, taxa[row]))
    mine = {id(each) for each in of_shard([job.picture for job in jobs], predict.shard_of(args))}
    return tuple(ranks), [job for job in jobs if id(job.picture) in mine]


def made_with(args: argparse.Namespace, model: Model, jobs: Sequence[Job], labels: Path | None) -> dict[str, Any]:
    """What the vectors are and depend on, as JSON types."""
    from linnaeus_jax.inference.files.vector_files import about_vectors

    about = about_vectors(model, model.layer(args.with_metadata), args.dtype, args.normalize)
    about |= predict.made_of(args, jobs, args.with_metadata and not args.no_exif)
    if labels is not None:
        about["data set"] = [str(labels), str(images_of(args, labels)), args.extension]
    return about


@tools.command()
def main(argv: Sequence[str]) -> int:
    """Command line; returns the exit status."""
    args = argument_parser().parse_args(argv)
    from linnaeus_jax.step.process import set_up_inference

    set_up_inference()
    from linnaeus_jax.data.labels_file import box_settings
    from linnaeus_jax.inference.files.predicting import batch_for
    from linnaeus_jax.inference.files.prediction_files import check_format
    from linnaeus_jax.inference.files.unfinished import finished, remove
    from linnaeus_jax.inference.files.vector_files import FORMATS
    from linnaeus_jax.inference.model import Model, read_bundle_or_run
    from linnaeus_jax.reading.box_cuts import Cut, from_training, of_facts

    check_format(args.out, FORMATS, "vectors")
    predict.check_source(args, {"--out": args.out})
    if args.meta is not None and not args.with_metadata:
        raise UserError("--meta changes vectors with --with-metadata alone; give both, or leave it out")
    labels = data_set(args.pictures)
    bundle = read_bundle_or_run(args.source, args.checkpoint or "best", args.plugins)
    ranks: tuple[str, ...] = ()
    if labels is not None:
        ranks, jobs = rows_of(args, bundle, labels)
    else:
        if args.images is not None or args.extension is not None:
            raise UserError("--images and --extension are of a data set; give its folder or its labels.h5")
        with tools.progress_bars() as progress:
            jobs = predict.pictures_of(args, progress)
    if not jobs:
        predict.say(f"part {args.shard} has no pictures")
        return 0
    cut = labels and box_settings(str(labels))
    advice = "give pictures cut out" if labels is None else "build the data set with --boxes"
    if remark := from_training(Cut.from_json(cut) if cut else None, of_facts(bundle.facts), advice):
        predict.say(remark)
    model = Model(bundle, buckets=(batch_for(len(jobs), bundle.preprocessing.size, args.batch_size),))
    about = made_with(args, model, jobs, labels)
    if args.force:
        remove(args.out, finished=True)
    summary = finished(args.out, about, [job.picture for job in jobs])
    if summary is not None:
        predict.say(f"{args.out} is complete: nothing is left to do (embed again with --force)")
        remove(args.out, finished=False)
    else:
        summary = embed(args, model, jobs, ranks, about)
    of_runs = f" of {about['runs']} runs" if "runs" in about else ""
    predict.say(
        f"{args.out}: {summary.answered:,} vectors of {about['width']:,} numbers, {about['dtype']}, layer "
        f"{about['layer']}{of_runs}{', of length 1' * args.normalize}"
    )
    if left := summary.pictures - summary.answered:
        predict.say(f"{left:,} of {summary.pictures:,} pictures have none, listed in {args.out}.unreadable.csv")
    return 2 if not summary.answered or summary.not_finite else 0


def embed(
    args: argparse.Namespace, model: Model, jobs: Sequence[Job], ranks: Sequence[str], about: Mapping[str, Any]
) -> Summary:
    """Computes what is left to do, and writes all of it."""
    from linnaeus_jax.inference.files.unfinished import UNFINISHED, remove, sidecar_path
    from linnaeus_jax.inference.files.vector_files import embed_files, unfinished_vectors

    folder, pictures = sidecar_path(args.out, UNFINISHED), [job.picture for job in jobs]
    exif = args.with_metadata and args.meta is None and not args.no_exif
    with unfinished_vectors(folder, args.out, about, ranks, pictures) as work:
        done = predict.say_resumed(work, len(jobs))
        with tools.progress_bar("embedding") as progress:
            progress(done, len(jobs))
            for part in embed_files(model, jobs[done:], about, exif=exif, threads=args.threads):
                work.add(part, jobs[work.summary.pictures :])
                progress(work.summary.pictures, len(jobs))
        work.finish(args.out, about)
    remove(args.out, finished=False)  # Windows removes no open files
    return work.summary


if __name__ == "__main__":
    sys.exit(main())
