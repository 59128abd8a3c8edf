"""The benchmark on real pictures: its readers, its splits, and every figure that it has published."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import re
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import pytest

from benchmarks.real import control, figures, knn, making, summary
from benchmarks.real.__main__ import checked_rows, expected_minutes, main
from benchmarks.real.rows import ROWS, TRUNKS
from benchmarks.real.sets import FISH_COUNTS, SETS, SPLITS, PublicSet, Rows, read
from docs import make_results
from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.keys import value_of
from linnaeus_jax.data.taxon_names import write_taxon_names
from linnaeus_jax.models import heads
from tests import forks
from tests.compiling import LONGER
from tests.extending.common import train_resume_evaluate
from tests.plugins import forget_plugins

RESULTS = sorted(summary.REAL.glob("*/*.json"))


# ---- readers and splits


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def small_clone(name: str, folder: Path) -> tuple[int, tuple[int, ...]]:
    """A few files in the layout of a set; returns how many pictures and classes it has."""
    folder.mkdir(exist_ok=True)
    if name == "grocery":
        pictures = [f"{side}/Fruit/Apple/Gala/Gala_{n}.jpg" for side in ("train", "val", "test") for n in range(2)]
        touch(folder / "dataset", *pictures)
        head = "Class Name (str),Class ID (int),Coarse Class Name (str),Coarse Class ID (int)\n"
        (folder / "dataset" / "classes.csv").write_text(head + "Gala,0,Apple,0\n")
        for side in ("train", "val", "test"):
            lines = [f"{path}, 0, 0\n" for path in pictures if path.startswith(side)]
            (folder / "dataset" / f"{side}.txt").write_text("".join(lines))
        return 6, (1, 1, 1)
    if name == "plants":
        touch(folder / "getImages2", *(f"images_all/{n}.jpg" for n in range(3)))
        with (folder / "getImages2" / "UCSC_iNat_observations_downloads_only.csv").open("w") as file:
            file.write("img_path,scientific_name,iNat ID,observed_on,taxon_family_name,taxon_genus_name\n")
            file.write("images_all/0.jpg,Oxalis smalliana,1,2020-01-01,Oxalidaceae,Oxalis\n")
            file.write("images_all/1.jpg,Raphanus raphanistrum sativus,2,2023-01-01,Brassicaceae,Raphanus\n")
            file.write("images_all/2.jpg,Raphanus raphanistrum,3,2024-01-01,Brassicaceae,Raphanus\n")
        return 3, (2, 2, 2)
    if name == "leaf":
        touch(folder / "images", "1.jpg", "2.jpg", "3.jpg")
        (folder / "train.csv").write_text("id,species,margin1\n1,Acer_Opalus,0\n2,Quercus_x_Turneri,0\n3,Acer_Mono,0\n")
        return 3, (3, 2)
    if name == "cifar10":
        touch(folder, "train/ship/1.jpg", "train/cat/2.jpg", "test/dog/1.jpg")
        return 3, (3, 2)
    if name == "longtail":
        first, flowers = folder / "cs601r-project1-dataset" / "dataset", "Machine-Learning-Class/lab3/flowers"
        touch(first, "butterflies/images/0010001.png", "birds/Boat_Tailed_Grackle_0001_2.jpg")
        touch(folder, f"{flowers}/train/iris/1.jpg", f"{flowers}/test/daisy/2.jpg")
        touch(first / "butterflies" / "descriptions", "001.txt")
        (first / "butterflies" / "descriptions" / "001.txt").write_text("Danaus plexippus\n\nBlack veins.\n")
        return 4, (3, 4, 3)
    touch(folder, "fish_image/fish_01/fish_000000009598_05281.png", "README.md")
    return 1, (1, 1, 1)


@pytest.mark.parametrize("name", [name for name in SETS if name != "fish"])
def test_reading(name, tmp_path):
    pictures, classes = small_clone(name, tmp_path)
    small = dataclasses.replace(SETS[name], pictures=pictures, classes=classes)
    rows = read(small, tmp_path)
    assert len(rows.paths) == pictures
    assert all((tmp_path / path).is_file() for path in rows.paths)
    schemes = {scheme for of, scheme in SPLITS.values() if of == name}
    for scheme in schemes:
        table = tmp_path / f"{scheme}.csv"
        rows.write(table, rows.sides(scheme, 0))
        with table.open() as file:
            lines = list(csv.DictReader(file))
        assert {"picture", "split", *SETS[name].ranks} <= set(lines[0])
        assert ("date" in lines[0]) == (name == "plants")


@pytest.mark.parametrize("name", SETS)
def test_a_set_that_is_not_complete_is_refused(name, tmp_path):
    small_clone(name, tmp_path)
    with pytest.raises(UserError) as refused:
        read(SETS[name], tmp_path)
    said = str(refused.value)
    assert said.startswith(f"{name}: ")
    assert SETS[name].repository in said
    wanted = FISH_COUNTS[0] if name == "fish" else SETS[name].pictures
    assert f" of {wanted:,} pictures" in said
    with pytest.raises(UserError, match=re.escape(SETS[name].repository)):
        read(SETS[name], tmp_path / "nowhere")


def test_a_set_of_two_repositories_with_rows_that_end_at_a_family(tmp_path):
    pictures, classes = small_clone("longtail", tmp_path)
    rows = read(dataclasses.replace(SETS["longtail"], pictures=pictures, classes=classes), tmp_path)
    assert rows.names == (
        ("Danaus plexippus", "Nymphalidae", "Insecta"),
        ("Boat Tailed Grackle", "Grackle", "Aves"),
        ("Bellis perennis", "Asteraceae", "Magnoliopsida"),
        ("", "Iridaceae", "Magnoliopsida"),
    )
    (tmp_path / "Machine-Learning-Class").rename(tmp_path / "other")
    with pytest.raises(UserError, match=r"longtail: Machine-Learning-Class is not in .*; clone .* into one folder"):
        read(SETS["longtail"], tmp_path)
    names = (("", "F", "x"),) * 10 + (("", "G", "x"),) * 100
    every = tuple(map(str, range(110)))
    sides = dataclasses.replace(rows, paths=every, names=names, groups=every).sides("random", 0)
    assert (sides[:10].count("test"), sides[10:].count("test")) == (2, 20)  # each family gives its share


def test_a_missing_picture_is_named(tmp_path):
    pictures, classes = small_clone("leaf", tmp_path)
    (tmp_path / "images" / "2.jpg").unlink()
    with pytest.raises(UserError, match=r"2 of 3 pictures are in .*, such as images/2\.jpg"):
        read(dataclasses.replace(SETS["leaf"], pictures=pictures, classes=classes), tmp_path)


def drawn_rows(count: int = 600) -> Rows:
    """Rows of six classes; three pictures belong together, and half are dated from 2023 on."""
    rng = np.random.default_rng(0)
    group = np.arange(count) // 3
    name = rng.choice(6, size=count // 3, p=[0.4, 0.3, 0.15, 0.1, 0.04, 0.01])[group]
    year = rng.integers(2019, 2027, count)
    of = dataclasses.replace(SETS["fish"], pictures=count)
    return Rows(
        of,
        tuple(f"{row}.png" for row in range(count)),
        tuple((f"s{c}", f"g{c // 2}", "f") for c in name),
        tuple(map(str, group)),
        tuple(f"{y}-05-01" for y in year),
        ("",) * count,
    )


@pytest.mark.parametrize("scheme", ["random", "most", "time", "control"])
def test_sides(scheme):
    rows = drawn_rows()
    sides = rows.sides(scheme, 0)
    assert sides == rows.sides(scheme, 0)
    if scheme != "time":
        assert sides != rows.sides(scheme, 1)
    later = {date >= "2023" for date, side in zip(rows.dates, sides) if side == "test"}
    count = Counter(sides)
    if scheme == "most":
        other = rows.sides("random", 0)
        assert [side == "test" for side in sides] == [side == "test" for side in other]
        assert set(Counter(n[0] for n, side in zip(rows.names, sides) if side == "val").values()) == {1}
        assert all(side != "val" or before == "val" for side, before in zip(sides, other))
    elif scheme == "random":
        together = {group: {s for g, s in zip(rows.groups, sides) if g == group} for group in set(rows.groups)}
        assert {len(each) for each in together.values()} == {1}
        assert count["test"] / 600 == pytest.approx(0.2, abs=0.03)
        assert {names[0] for names, side in zip(rows.names, sides) if side == "train"} == {n[0] for n in rows.names}
    else:
        assert count["test"] == sum(date >= "2023" for date in rows.dates)
        assert (later == {True}) == (scheme == "time")
    assert count["val"] > 0


def test_official_sides_are_kept():
    rows = dataclasses.replace(drawn_rows(), given=("train",) * 300 + ("val",) * 100 + ("test",) * 200)
    assert rows.sides("official", 3) == list(rows.given)
    rows = dataclasses.replace(rows, given=("train",) * 400 + ("test",) * 200)
    assert Counter(rows.sides("official", 3)[400:]) == {"test": 200}


# ---- rows


def test_rows_set_keys_that_there_are():
    config = get_config()
    for name, row in ROWS.items():
        for key, value in row.settings.items():
            if "{task}" in key:
                assert key == "model.classification.heads.{task}.type"
                assert issubclass(getattr(heads, value), heads.HierarchicalHead)
                continue
            assert type(value_of(config, key)) in (type(value), int, float, type(None)), f"{name}: {key}"
        assert set(row.trunks) <= set(TRUNKS)
        assert row.side > 0


def test_rows_by_name(tmp_path):
    assert list(checked_rows([], "")) == ["head-lite0", "head-lite2", "control-lite0", "control-lite2"]
    with pytest.raises(UserError, match="'head-lite9' is no row; choose among head-lite0"):
        checked_rows(["head-lite9"], "")
    with pytest.raises(UserError, match="give their folder by --weights"):
        checked_rows(["head-birds"], "")
    row = ROWS["head-lite0"]
    once, twice = (expected_minutes(SETS["plants"], [(row, n) for n in range(count)], tmp_path) for count in (1, 2))
    assert 0 < twice - once < once


def test_the_command_line(tmp_path, monkeypatch, capsys):
    def said(*arguments: str) -> tuple[int | str | None, str, str]:
        monkeypatch.setattr("sys.argv", ["real", *arguments])
        try:
            status: int | str | None = main()
        except SystemExit as end:
            status = end.code
        out = capsys.readouterr()
        return status, out.out, out.err

    assert "usage: python -m benchmarks.real" in said("--help")[1]
    pictures, classes = small_clone("leaf", tmp_path)
    where = ("--data", str(tmp_path), "--out", str(tmp_path / "out"), "--results", str(tmp_path / "results"))
    status, _, error = said("leaf", *where)
    assert status == 1
    assert error.startswith("leaf: 3 of 990 pictures are in ")
    assert said("leaf", *where, "--seeds", "0,x")[::2] == (1, "--seeds is '0,x'; give numbers such as 0,1,2\n")
    assert not (tmp_path / "out").exists()
    monkeypatch.setitem(SETS, "leaf", dataclasses.replace(SETS["leaf"], pictures=pictures, classes=classes))
    for name in ("head-lite0-0", "head-lite0-1"):
        touch(tmp_path / "results" / "leaf", f"{name}.json")
    status, out, _ = said("leaf", "head-lite0", *where, "--seeds", "0,1")
    assert status == 0
    assert "licence: none stated; silhouettes" in out
    assert "0 of 2 results are to be made, about " in out


def test_a_program_that_fails_is_told(tmp_path):
    with pytest.raises(UserError, match=r"(?s)python -m linnaeus_jax\.tools\.bundle\nended with 2; .*--from-weights"):
        making.run(["linnaeus_jax.tools.bundle"], tmp_path / "log")


@pytest.mark.parametrize("tasks", [("taxa_L10", "taxa_L20"), ("taxa_fine", "taxa_coarse", "taxa_kind")])
def test_ranks_of_a_data_set(tasks, tmp_path):
    source = "from linnaeus_jax.config.defaults import get_config as default\n\n\ndef get_config():\n"
    source += f"    config = default()\n    config.data.task_keys_h5 = {tasks!r}\n    return config\n"
    (tmp_path / "config.py").write_text(source)
    assert making.tasks_of(tmp_path) == list(tasks)


def test_settings_of_every_rank():
    found = making.of_tasks({"train.epochs": 3, "heads.{task}.type": "PathSoftmax"}, ("taxa_L10", "taxa_L20"))
    assert found == {"train.epochs": 3, "heads.taxa_L10.type": "PathSoftmax", "heads.taxa_L20.type": "PathSoftmax"}


def place_of(rows: Rows, folder: Path) -> making.Place:
    return making.Place("fish", rows, "random", folder, folder / "out", folder / "results", "W")


def test_settings_of_one_trunk_and_of_two(tmp_path):
    place = place_of(drawn_rows(6), tmp_path)
    one = making.settings(place, ("lite2",), {"train.tune": "head"})
    assert (one["model.variant"], one["model.pretrained"], one["data.img_size"]) == (
        "lite2",
        "package:efficientnet-lite2",
        260,
    )
    two = making.settings(place, ("lite2", "insects-260"), {})
    assert two["model.features"].split(",")[1].startswith("W/mobilenet_v2")
    assert (two["model.pretrained"], two["data.img_size"], "model.variant" in two) == ("", 260, False)


def test_features_of_two_trunks_lie_beside_each_other(tmp_path):
    place, made = place_of(drawn_rows(6), tmp_path), [tmp_path / "a.features", tmp_path / "b.features"]
    (tmp_path / "out" / "fish").mkdir(parents=True)
    for path, width in zip(made, (2, 3)):
        with path.open("wb") as file:
            np.save(file, np.full((6, width), width, np.float16))
    assert making.joined(place, ("a",), made[:1]) == made[0]
    joined = np.load(making.joined(place, ("a", "b"), made))
    assert joined.tolist() == [[2, 2, 3, 3, 3]] * 6


def test_hidden_labels_are_of_training_rows(tmp_path):
    rows = drawn_rows()
    place, built = place_of(rows, tmp_path), tmp_path / "pixels"
    built.mkdir()
    source = "from types import SimpleNamespace as N\n\n\ndef get_config():\n"
    (built / "config.py").write_text(source + "    return N(data=N(task_keys_h5=('taxa_a', 'taxa_b')))\n")
    with h5py.File(built / "labels.h5", "w") as file:
        file["img_identifiers"] = list(rows.paths)
        file["split"] = np.zeros(600, np.uint8)
        file["taxa_a"], file["taxa_b"] = np.full(600, 7), np.full(600, 8)
    with h5py.File(making.labels(place, built, 0, 0.2)) as file:
        side, fine, coarse = file["split"][:], file["taxa_a"][:], file["taxa_b"][:]
    assert (coarse == 8).all()
    assert (fine[side > 0] == 7).all()
    assert (fine[side == 0] == 0).mean() == pytest.approx(0.2, abs=0.05)
    with h5py.File(making.labels(place, built, 0)) as file:
        assert (file["taxa_a"][:] == 7).all()


def test_what_torch_is_given_and_the_curve_of_a_run(tmp_path):
    rows = drawn_rows(6)
    place, built = place_of(rows, tmp_path), tmp_path / "pixels"
    built.mkdir()
    source = "from types import SimpleNamespace as N\n\n\ndef get_config():\n"
    (built / "config.py").write_text(source + "    return N(data=N(task_keys_h5=('taxa_a', 'taxa_b')))\n")
    split = tmp_path / "labels.h5"
    with h5py.File(built / "images.h5", "w") as images, h5py.File(split, "w") as labels:
        images["images"] = np.zeros((6, 4, 4, 3), np.uint8)
        labels["split"] = np.arange(6) % 3
        labels["taxa_a"], labels["taxa_b"] = [9, 5, 0, 7, 9, 7], [2, 2, 2, 1, 2, 1]
        labels["taxon_names/taxa_b/taxon_id"] = np.array([1, 2], np.uint32)
        for field in ("name", "common_name"):
            labels[f"taxon_names/taxa_b/{field}"] = ["Aves", "Insecta"]
    given = np.load(making.torch_inputs(place, built, split, tmp_path / "in.npz"))
    assert given["label"].T.tolist() == [[2, 0, -1, 1, 2, 1], [1, 1, 1, 0, 1, 0]]
    assert given["names"].tolist() == ["Aves", "Insecta"]
    assert given["pixels"].shape == (6, 4, 4, 3)
    assert given["side"].tolist() == [0, 1, 2, 0, 1, 2]
    assert given["ranks"].tolist() == list(rows.of.ranks)
    log = [{"event": "train", "train/loss": 1.0}, {"val/minutes": 1.5, "val/acc1_taxa_a": 25.0}]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "metrics_log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in log))
    assert making.curve(tmp_path, "taxa_a") == [[1.5, 0.25]]
    assert all(row.network and not row.settings for row in ROWS.values() if row.how == "torch")


def test_the_nearest_rows_by_features(tmp_path, capsys):
    """Of three species in two genera, told apart by their direction alone; the last test row has no species."""
    rng = np.random.default_rng(0)
    species = np.arange(91) % 3
    centre = np.array([[9, 0, 0], [0, 9, 0], [0, 0, 9]])[species]
    x = (centre + rng.normal(0, 1, (91, 3))) * rng.uniform(0.1, 10, (91, 1))
    for name, columns in (("a", x[:, :2]), ("b", x[:, 2:])):
        np.save(tmp_path / f"{name}.npy", columns.astype(np.float16))
    taxon = np.array([11, 12, 13])[species]
    taxon[-1] = 0
    with h5py.File(tmp_path / "labels.h5", "w") as file:
        file["split"] = np.repeat([0, 1, 2], (50, 20, 21))
        file["taxa_L10"], file["taxa_L20"] = taxon, np.array([21, 21, 22])[species]
        write_taxon_names(file, "taxa_L20", [21, 22], ["Parus", "Passer"])
    features = [str(tmp_path / f"{name}.npy") for name in "ab"]
    arguments = [
        str(tmp_path / "labels.h5"),
        str(tmp_path / "out.npz"),
        "taxa_L10,taxa_L20",
        "species,genus",
        *features,
    ]
    assert control.main(arguments, knn.neighbours, standardised=False) == 0
    found = figures.figures(figures.read(tmp_path / "out.npz"))
    assert found["raw"]["species"]["accuracy"] == found["raw"]["genus"]["accuracy"] == 1
    assert found["without_finest"]["rows"] == 1
    assert "species: k=1 100.0 %, k=3 100.0 %" in capsys.readouterr().out
    vote = knn.votes(knn.Neighbours(np.array([[2, 0, 1]]), np.array([[0.2, 0.5, 0.6]])), np.array([1, 1, 0]), 3, 3)
    np.testing.assert_allclose(vote, [[0.8 / 1.7, 0.9 / 1.7, 0]])


def test_the_bundle_of_another_row_gives_the_vectors(tmp_path, monkeypatch):
    place, asked = place_of(drawn_rows(6), tmp_path), []
    monkeypatch.setattr(making, "make_row", lambda *args, **options: asked.append((args[1], args[3], args[4])))

    def run(command, log):
        asked.append(command)
        return making.Cost(1.0, 2.0, 3.0)

    monkeypatch.setattr(making, "run", run)
    (tmp_path / "out" / "fish").mkdir(parents=True)
    path, cost = making.tuned_vectors(place, tmp_path / "pixels", "last6-lite2", 1, "real knn-last6-lite2")
    assert asked[0] == ("last6-lite2", 1, "real last6-lite2")
    assert asked[1][:3] == [
        "linnaeus_jax.tools.embed",
        f"{tmp_path}/out/fish/last6-lite2-1-bundle",
        f"{tmp_path}/pixels",
    ]
    assert asked[1][-1] == str(path)
    assert cost.cpu == 1
    assert {row.tuned for row in ROWS.values()} - {""} <= set(ROWS)


@pytest.mark.slow
def test_the_minutes_of_a_run(tmp_path, monkeypatch, capsys):
    forget_plugins()
    run = train_resume_evaluate(tmp_path, str(making.MINUTES), monkeypatch, capsys).run
    (first, _), (last, right) = making.curve(run, "taxa_L10")
    assert 0 < first < last
    assert 0 <= right <= 1


def some_arrays(rows: int = 90) -> dict[str, np.ndarray]:
    """Answers of all kinds to rows of two classes, three families and six species."""
    rng = np.random.default_rng(0)
    lineage = np.stack([np.arange(6), np.arange(6) // 2, np.arange(6) // 4], axis=1)
    arrays: dict[str, np.ndarray] = {
        "ranks": np.array(["species", "family", "class"]),
        "label": lineage[np.arange(rows) % 6],
    }
    for kind in (*figures.KINDS, *figures.OTHERS):
        arrays[f"{kind}/predicted"] = lineage[
            np.where(rng.random(rows) < 0.6, np.arange(rows) % 6, rng.integers(0, 6, rows))
        ]
        arrays[f"{kind}/probability"] = rng.random((rows, 3)).astype(np.float16)
        arrays[f"{kind}/of_label"] = np.log(rng.uniform(0.1, 1, (rows, 3))).astype(np.float16)
    arrays |= {f"count/{rank}": np.full(6, 15) for rank in ("species", "family", "class")}
    arrays |= {f"below/{rank}": each for rank, each in zip(arrays["ranks"], map(np.array, ([1] * 6, [2] * 3, [4, 2])))}
    arrays["names/class"] = np.array(["Aves", "Insecta"])
    arrays["conformal/rank"] = rng.integers(0, 4, rows).astype(np.int8)
    arrays["conformal/right"] = rng.random(rows) < 0.9
    return arrays


def test_rows_without_a_species_are_judged_at_their_family():
    """They change no figure of the finest rank, and at the others count as any row."""
    arrays, extra = some_arrays(), 12
    alone, label = figures.figures(arrays), arrays["label"]
    both = {
        name: np.concatenate([values, values[:extra]]) if len(values) == len(label) else values
        for name, values in arrays.items()
    }
    both["label"] = both["label"].copy()
    both["label"][len(label) :, 0] = -1
    both["conformal/right"][len(label) :] = False
    found = figures.figures(both)
    assert found["rows"] == alone["rows"] + extra
    for kind in (*figures.KINDS, *figures.OTHERS):
        assert found[kind]["species"] == alone[kind]["species"]
        right = both[f"{kind}/predicted"] == both["label"]
        for place, rank in ((1, "family"), (2, "class")):
            assert found[kind][rank]["accuracy"] == pytest.approx(right[:, place].mean(), abs=1e-5)
            of_classes = [right[both["label"][:, place] == c, place].mean() for c in range(3 - (place == 2))]
            assert found[kind][rank]["macro_accuracy"] == pytest.approx(np.mean(of_classes), abs=1e-5)
        assert found["without_finest"][kind] == {
            rank: pytest.approx(right[len(label) :, place].mean(), abs=1e-5)
            for place, rank in ((1, "family"), (2, "class"))
        }
        birds = label[:, 2] == 0
        assert found["by_coarsest"]["Aves"][kind] == pytest.approx(right[: len(label), 0][birds].mean(), abs=1e-5)
    assert found["by_count"] == alone["by_count"]
    assert found["haurc"] == alone["haurc"]
    assert found["conformal"]["coverage"] == alone["conformal"]["coverage"]
    assert (found["without_finest"]["rows"], found["by_coarsest"]) == (extra, alone["by_coarsest"])
    assert "without_finest" not in alone
    means = summary.of_all([{"raw": {"family": 0.5}, "rows": 3}, {"raw": {"family": 0.7}, "rows": 3}])
    assert means["raw"]["family"] == {"mean": 0.6, "deviation": 0.14142}
    one = {
        "title": "",
        "seeds": [0],
        **{key: summary.of_all([found[key]]) for key in (*figures.KINDS, "by_coarsest", "without_finest")},
    }
    said = make_results.tail_table({"head-lite0": one}, ("species", "family", "class"))
    assert "| species of Aves | species of Insecta | without species: family |" in said
    assert f"| {100 * found['by_coarsest']['Aves']['raw']:.1f} | " in said


# ---- what is published


def test_every_result_has_the_figures_of_its_rows():
    assert RESULTS
    for path in RESULTS:
        result = json.loads(path.read_text())
        assert path.stem == f"{result['row']}-{result['seed']}"
        assert path.parent.name == result["set"] in SPLITS
        arrays = figures.read(path.with_suffix(".npz"))
        assert len(arrays["label"]) == result["pictures"]["test"]
        assert figures.figures(arrays) == result["figures"], path.name
        assert "/" not in json.dumps(result.get("settings", {}))


def test_the_page_is_what_the_results_say():
    found = summary.results()
    data = summary.summary(found)
    assert len([one for rows in found.values() for seeds in rows.values() for one in seeds]) == len(RESULTS)
    assert json.loads(summary.SUMMARY.read_text()) == data, "write it anew with python -m docs.make_results"
    pages = {
        make_results.PAGE: make_results.text(data, found),
        make_results.ANSWERS_PAGE: make_results.answers_text(data),
        make_results.IDEAS_PAGE: make_results.ideas_text(data),
        make_results.FROM_NOTHING: make_results.nothing_text(data, found),
    }
    for page, text in pages.items():
        assert page.read_text() == text, "python -m docs.make_results"


def test_gains_within_two_standard_errors_are_noise():
    def seeds(*shares: float) -> list[dict]:
        return [
            {"seed": number, "figures": {"raw": {"fine": {"accuracy": share}}}} for number, share in enumerate(shares)
        ]

    clear = summary.beside(seeds(0.70, 0.71, 0.72), seeds(0.75, 0.762, 0.768))["fine"]
    assert (clear["mean"], clear["noise"]) == (0.05, False)
    assert summary.beside(seeds(0.70, 0.71, 0.72), seeds(0.73, 0.70, 0.73))["fine"]["noise"]
    assert summary.beside(seeds(0.70), seeds(0.73, 0.70))["fine"] == {
        "mean": 0.03,
        "deviation": None,
        "noise": None,
    }
    assert summary.beside([], seeds(0.7)) == {}


def test_the_table_of_readme_is_what_the_results_say():
    readme = make_results.README.read_text()
    assert readme == make_results.with_table(readme, json.loads(summary.SUMMARY.read_text()))
    assert readme.count("%") > readme.replace(
        make_results.first_table(json.loads(summary.SUMMARY.read_text())), ""
    ).count("%")


def numbers(node: object) -> set[float]:
    """All numbers of a JSON tree."""
    if isinstance(node, dict):
        return set().union(*map(numbers, node.values()))
    if isinstance(node, list):
        return set().union(*map(numbers, node))
    return {float(node)} if isinstance(node, int | float) and not isinstance(node, bool) else set()


def test_every_number_of_the_page_stands_in_a_file():
    known = numbers(json.loads(summary.SUMMARY.read_text()))
    said = {f"{scale * value:.{digits}f}" for value in known for scale in (1, 100) for digits in (0, 1, 3)}
    for page, beginning in ((make_results.PAGE, "## Accuracy"), (make_results.ANSWERS_PAGE, "## Coarser ranks")):
        text = re.sub(r"(?s)```.*?```|`[^`]*`|\]\([^)]*\)", "", page.read_text())
        decimals = re.findall(r"(?<![\w.])\d+\.\d+(?![\w.]*\d)", text.split(beginning)[1])
        assert len(decimals) > 20
        assert not set(decimals) - said


# ---- the short form


def short_set(data: Path) -> PublicSet:
    """252 pictures of the Grocery Store set; the names stand in the paths."""

    def found(folder: Path):
        for side in ("train", "test"):
            for line in (folder / f"{side}.txt").read_text().splitlines()[::2]:
                path = line.split(",")[0]
                _, kind, coarse, fine, _ = path.split("/")
                yield path, (fine, coarse, kind), path, "", side

    return PublicSet("short", "Short", "example.org/short", "MIT", SETS["grocery"].ranks, 252, (18, 5, 3), found)


@pytest.mark.slow
@pytest.mark.needs("pictures")
def test_short_form(tmp_path, monkeypatch):
    """A row from an empty directory: features once, a head, its bundle, answers for a coverage, figures."""
    directory = os.environ["LINNAEUS_PICTURES"]

    def run(command, log):
        ended = forks.call(command[0], command[1:], log.with_suffix(""), seconds=900)
        assert ended.status == 0, ended.error[-2000:]
        return making.Cost(1.0, 1.0, 1.0)

    monkeypatch.setattr(making, "run", run)
    monkeypatch.setenv("XLA_FLAGS", " ".join(LONGER))
    of = short_set(Path(directory))
    rows = read(of, Path(directory))
    place = making.Place("short", rows, "official", Path(directory), tmp_path / "out", tmp_path / "results", "")
    row = dataclasses.replace(ROWS["head-lite0"], settings=dict(ROWS["head-lite0"].settings) | {"train.epochs": 2})
    report = making.make_row(place, "head-lite0", row, 1, "")
    assert report["pictures"] == {"train": 162, "val": 18, "test": 72}
    found = report["figures"]
    assert found["raw"]["fine"]["accuracy"] > 0.7
    assert found["paths"]["kind"]["accuracy"] > 0.9
    assert found["conformal"]["coverage"] > 0.6  # 36 validation rows, and other pictures than those of the test
    assert place.result("head-lite0", 1).is_file()
    assert figures.figures(figures.read(place.result("head-lite0", 1).with_suffix(".npz"))) == found
