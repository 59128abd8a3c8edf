"""How many planted copies of real pictures are found, and how much of what is found is right.

    python -m benchmarks.near_duplicates planted plants getImages2/images_all --classes-from-names
    python -m benchmarks.near_duplicates splits grocery plants leaf fish --data DIR

Of 1,000 pictures, 200 for each kind, a copy is put among all of a folder: scaled, cropped by 10 %, compressed again,
mirrored, or one frame later (moved, turned and lit a little otherwise, with noise). Pairs of originals are counted by
themselves: they are copies that the set has. `splits` counts the test pictures of the published results of which
training had a copy, and says what these results are without them. Results: `benchmarks/results/near_duplicates_*.json`.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from benchmarks.common import RESULTS, write_results
from benchmarks.real import figures
from benchmarks.real.sets import SETS, SPLITS, read
from linnaeus_jax.building.scan.near_duplicates import DETAILS, Pair, near_duplicates
from linnaeus_jax.data.decoding import read_image

COPIES = 200
#: row of the published results of a set that has no other
INSTEAD = "head-lite0"
Image = NDArray[np.uint8]


def _cropped(image: Image, rng: np.random.Generator) -> Image:
    height, width = (int(0.9 * side) for side in image.shape[:2])
    top, left = (int(rng.integers(0, whole - part + 1)) for whole, part in zip(image.shape, (height, width)))
    return image[top : top + height, left : left + width]


def _scaled(image: Image, rng: np.random.Generator) -> Image:
    factor = float(rng.uniform(0.3, 0.8))
    return np.asarray(cv2.resize(image, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA))


def _recompressed(image: Image, rng: np.random.Generator) -> Image:
    _, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(20, 60))])
    return np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR))


def _one_frame_later(image: Image, rng: np.random.Generator) -> Image:
    height, width = image.shape[:2]
    turn = cv2.getRotationMatrix2D((width / 2, height / 2), float(rng.uniform(-3, 3)), float(rng.uniform(0.97, 1.03)))
    turn[:, 2] += rng.uniform(-0.05, 0.05, 2) * np.array([width, height])
    moved = cv2.warpAffine(image, turn, (width, height), borderMode=cv2.BORDER_REFLECT).astype(np.float32)
    return np.clip(moved * rng.uniform(0.9, 1.1) + rng.normal(0, 4, image.shape), 0, 255).astype(np.uint8)


KINDS: dict[str, Callable[[Image, np.random.Generator], Image]] = {
    "scaled": _scaled,
    "cropped": _cropped,
    "recompressed": _recompressed,
    "mirrored": lambda image, _: image[:, ::-1],
    "one frame later": _one_frame_later,
}


class Pictures:
    """Pictures in memory, read as raw ones are."""

    def __init__(self, images: list[Image]) -> None:
        self._images = np.stack(images)
        self.image_shape = self._images.shape[1:]

    def __len__(self) -> int:
        return len(self._images)

    def read(self, rows: NDArray[np.integer], out: Image) -> NDArray[np.bool_]:
        """As an image source."""
        out[:] = self._images[rows]
        return np.ones(len(rows), bool)


def class_of(path: Path, args: argparse.Namespace) -> str:
    """Of the name after a number, `00001_Bellis perennis.jpg`, or the folder."""
    return path.stem.partition("_")[2] if args.classes_from_names else str(path.parent.relative_to(args.pictures))


def planted(args: argparse.Namespace) -> int:
    """Measures on planted copies; returns the exit status."""
    paths = sorted(path for path in args.pictures.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    np.random.default_rng(0).shuffle(paths)  # type: ignore[arg-type]
    rng, images, source, kinds = np.random.default_rng(1), list[Image](), list[int](), list[str]()
    copies = list[Image]()
    for number, path in enumerate(paths):
        image = _read(path)
        images.append(_small(image))
        if number < args.copies * len(KINDS):
            kinds.append(list(KINDS)[number % len(KINDS)])
            source.append(number)
            copies.append(_small(np.ascontiguousarray(KINDS[kinds[-1]](image, rng))))
    label = np.unique([class_of(path, args) for path in paths], return_inverse=True)[1] + 1
    started = time.process_time(), time.perf_counter()
    pairs = near_duplicates(Pictures(images + copies), np.concatenate([label, label[source]]))  # type: ignore[arg-type]
    taken = time.process_time() - started[0], time.perf_counter() - started[1]
    wanted = {(len(paths) + number, row): kinds[number] for number, row in enumerate(source)}
    found = {(pair.row, pair.other) for pair in pairs}
    # the copy of a picture that the set has twice is like both
    twice = {frozenset(pair) for pair in found if pair[0] < len(paths)}
    origin = {len(paths) + number: row for number, row in enumerate(source)}
    wrong = [
        pair
        for pair in found - set(wanted)
        if pair[0] >= len(paths) and frozenset(origin.get(row, row) for row in pair) not in twice
    ]
    right = sum(pair in found for pair in wanted)
    rows = [
        {"kind": kind, "found %": 100 * float(np.mean([pair in found for pair, of in wanted.items() if of == kind]))}
        for kind in KINDS
    ]
    details = {
        "pictures": len(paths),
        "precision_percent": 100 * right / max(right + len(wrong), 1),
        "pairs_of_originals": len(twice),
        "cpu_seconds": round(taken[0], 1),
        "seconds": round(taken[1], 1),
    }
    print(details)
    typed = f"python -m benchmarks.near_duplicates planted {args.name} PICTURES"
    write_results(f"near_duplicates_{args.name}", rows, typed, details)
    return 0


def splits(args: argparse.Namespace) -> int:
    """Pairs across the splits of the published results, and these results without them; returns the exit status."""
    rows = []
    for name in args.sets:
        set_name, scheme = SPLITS[name]
        folder = args.data / SETS[set_name].repository.rsplit("/", 1)[1]
        public = read(SETS[set_name], folder)
        images = [_small(_read(folder / path)) for path in public.paths]
        digests = [hashlib.sha256((folder / path).read_bytes()).digest() for path in public.paths]
        built = np.zeros(len(digests), bool)  # `build` leaves out files that are there a second time
        built[np.unique(digests, return_index=True)[1]] = True
        label = np.unique([names[0] for names in public.names], return_inverse=True)[1] + 1
        pairs = near_duplicates(Pictures(images), label)  # type: ignore[arg-type]
        results = RESULTS / "real" / name
        for result in sorted(results.glob(f"{args.row}-*.npz")) or sorted(results.glob(f"{INSTEAD}-*.npz")):
            side = np.array(public.sides(scheme, int(result.stem.rsplit("-", 1)[1])))
            test = np.flatnonzero((side == "test") & built)
            known = {
                pair.row if side[pair.row] == "test" else pair.other
                for pair in pairs
                if built[[pair.row, pair.other]].all() and _across(side, pair)
            }
            arrays = figures.read(result)
            finest = arrays["label"][:, 0]
            assert len(finest) == len(test), (name, len(finest), len(test))
            right = arrays["raw/predicted"][:, 0] == finest
            labelled, leaked = finest >= 0, np.isin(test, sorted(known))
            rows.append(
                {
                    "set": name,
                    "result": result.stem,
                    "pairs": len(pairs),
                    "pictures twice": int((~built).sum()),
                    "test rows seen in training": int(leaked.sum()),
                    "accuracy": 100 * float(right[labelled].mean()),
                    "without them": 100 * float(right[labelled & ~leaked].mean()),
                    "of them": 100 * float(right[labelled & leaked].mean()) if leaked.any() else float("nan"),
                }
            )
    write_results("near_duplicates_of_splits", rows, "python -m benchmarks.near_duplicates splits SET ... --data DIR")
    return 0


def _across(side: NDArray[np.str_], pair: Pair) -> bool:
    return (side[pair.row] == "test") != (side[pair.other] == "test")


def _read(path: Path) -> Image:
    return np.ascontiguousarray(read_image(path.read_bytes(), (512, 512)))


def main() -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(required=True)
    one = kinds.add_parser("planted", help="how many planted copies are found")
    one.add_argument("name", help="of the set")
    one.add_argument("pictures", type=Path, help="folder of JPEG and PNG files")
    one.add_argument("--classes-from-names", action="store_true", help="not from folders")
    one.add_argument("--copies", type=int, default=COPIES, help=f"of each kind ({COPIES})")
    one.set_defaults(measure=planted)
    two = kinds.add_parser("splits", help="copies across the splits of the published results")
    two.add_argument("sets", nargs="+", choices=SPLITS)
    two.add_argument("--data", type=Path, required=True, help="folder of the clones")
    two.add_argument("--row", default="head-lite2", help=f"of the results (head-lite2); {INSTEAD} of a set without it")
    two.set_defaults(measure=splits)
    args = parser.parse_args()
    return int(args.measure(args))


def _small(image: Image) -> Image:
    return np.asarray(cv2.resize(image, (2 * DETAILS, 2 * DETAILS), interpolation=cv2.INTER_AREA))


if __name__ == "__main__":
    sys.exit(main())
