"""Class folders."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image

from linnaeus_jax.building.sources import folders
from linnaeus_jax.building.steps.observations import encode_moments, read_observations
from linnaeus_jax.building.steps.options import BuildOptions
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading.exif import exif_of, observation_of
from linnaeus_jax.reading.metadata import moment


def tree(root: Path, *paths: str) -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"x")
    return root


def labels(root: Path, *names: str, **options) -> list[tuple]:
    """(picture, names of levels ...) of what is not rejected."""
    frame = folders.read(root, **options).frame.filter(pl.col("reason").is_null())
    return frame.select("picture", pl.col(names).cast(pl.String)).rows()


def test_species_alone(tmp_path):
    source = folders.read(tree(tmp_path, "Parus_major/1.jpg", "Parus_major/2.JPG", "Parus ater/1.png"))
    assert source.levels == ("L10",)
    assert source.frame.columns == ["line", "picture", "name_L10", "reason", "detail"]
    assert source.frame.select("picture", pl.col("name_L10").cast(pl.String)).rows() == [
        ("Parus ater/1.png", "Parus ater"),
        ("Parus_major/1.jpg", "Parus major"),
        ("Parus_major/2.JPG", "Parus major"),
    ]
    assert source.links == {"name_L10": "folder 1"}
    assert source.frame["line"].to_list() == [0, 0, 0]


def test_nested_folders_and_pictures_further_out(tmp_path):
    tree(
        tmp_path,
        "Paridae/Parus/major/1.jpg",
        "Paridae/Parus/2.jpg",
        "Paridae/3.jpg",
        "4.jpg",
        "Paridae/Parus/Parus_ater/5.jpg",
    )
    frame = folders.read(tmp_path).frame
    names = [pl.col(f"name_L{level}").cast(pl.String) for level in (10, 20, 30)]
    assert frame.select("picture", *names, "reason", "detail").rows() == [
        ("4.jpg", None, None, None, "no usable label", "lies in no class folder"),
        ("Paridae/3.jpg", None, None, "Paridae", None, None),
        ("Paridae/Parus/2.jpg", None, "Parus", "Paridae", None, None),
        ("Paridae/Parus/Parus_ater/5.jpg", "Parus ater", "Parus", "Paridae", None, None),
        ("Paridae/Parus/major/1.jpg", "Parus major", "Parus", "Paridae", None, None),
    ]


def test_given_ranks(tmp_path):
    tree(tmp_path, "a/b/1.jpg", "a/b/more/2.jpg")
    assert labels(tmp_path, "name_L33_5", "name_L40", ranks=["order", "L33_5", "-"]) == [
        ("a/b/1.jpg", "b", "a"),
        ("a/b/more/2.jpg", "b", "a"),
    ]
    assert labels(tmp_path, "name_L33_5", "name_L40", ranks=["-", "order", "L33_5"]) == [
        ("a/b/1.jpg", None, "b"),
        ("a/b/more/2.jpg", "more", "b"),
    ]
    for ranks in (["species", "order"], ["order", "order"], ["-", "-", "-"]):
        with pytest.raises(UserError, match="coarse to fine"):
            folders.read(tmp_path, ranks=ranks)
    with pytest.raises(UserError, match="'5th' cannot be the name of a rank"):
        folders.read(tmp_path, ranks=["5th"])


@pytest.mark.parametrize(
    ("paths", "options", "readings"),
    [
        (
            ["Aves/Albatross/Laysan/1.jpg", "Aves/Albatross/Sooty/2.jpg"],
            {"ranks": ["class", "family"]},
            [
                "--folder-ranks=-,class,family (Albatross = class, Laysan = family)",
                "=class,family,- (Aves = class, ",
            ],
        ),
        (
            ["train/a/b/1.jpg", "val/a/b/2.jpg"],
            {"ranks": ["species"]},
            ["a/b (2 in all)", "--folder-ranks=-,species (b = species)", "--folder-ranks=species,- (a = species)"],
        ),
        (
            ["a/b/c/d/1.jpg", "a/2.jpg"],
            {"innermost": (":fine", ":coarse")},
            ["2 ranks are named (coarse, fine)", "--folder-ranks=-,-,coarse,fine", "--folder-ranks=coarse,fine,-,-"],
        ),
    ],
)
def test_a_level_that_no_rank_takes_stops_the_build(tmp_path, paths, options, readings):
    tree(tmp_path, *paths)
    with pytest.raises(UserError) as error:
        folders.read(tmp_path, **options)
    for reading in readings:
        assert reading in str(error.value)


def test_folders_of_no_rank_keep_the_places_of_the_others(tmp_path):
    source = folders.read(tree(tmp_path, "train/x/a/b/1.jpg", "val/x/a/b/2.jpg"), ranks=["-", "family", "species"])
    assert source.links == {"split": "folder 1", "name_L10": "folder 4", "name_L30": "folder 3"}
    assert source.frame["split"].to_list() == ["train", "val"]


@pytest.mark.parametrize(
    ("paths", "offer"),
    [
        (["N/A1/fox", "N/A1/owl", "N/A2/fox", "S/B1/fox", "S/B1/owl"], "-,place,species (A1 = place, fox = species)"),
        (["Birds/S1/owl", "Birds/S2/owl", "Mammals/S1/fox", "Mammals/S2/fox"], "genus,place,species (Birds = genus, "),
        (
            ["S1/Parus/Parus ater", "S1/Corvus/Corvus corax", "S2/Parus/Parus ater", "S2/Corvus/Corvus corax"],
            "place,gen",
        ),
        (["Sitta europaea/S1", "Sitta europaea/S2", "Parus caeruleus/S1"], "species,place (Parus caeruleus = sp"),
    ],
)
def test_levels_that_do_not_nest(tmp_path, paths, offer):
    tree(tmp_path, *(f"{path}/1.jpg" for path in paths))
    with pytest.raises(UserError) as error:
        folders.read(tmp_path)
    assert f"look like places: give --folder-ranks {offer}" in str(error.value)


def test_places_are_no_ranks(tmp_path):
    tree(tmp_path, "N/S1/fox/1.jpg", "N/S2/fox/2.jpg", "S/S1/fox/3.jpg", "S/4.jpg")
    source = folders.read(tmp_path, ranks=["-", "place", "species"])
    assert source.levels == source.named == ("L10",)
    assert source.links == {"place": "folder 2", "name_L10": "folder 3"}
    assert source.frame.select("place", "reason").rows() == [
        ("S1", None),
        ("S2", None),
        (None, "no usable label"),
        ("S1", None),
    ]


def test_a_few_misplaced_folders_are_ranks(tmp_path):
    tree(tmp_path, *(f"G{i}/s{i}{j}/1.jpg" for i in range(4) for j in range(3)), "G0/s10/2.jpg")
    assert folders.read(tmp_path).levels == ("L10", "L20")
    tree(tmp_path / "epithets", "Parus/major/1.jpg", "Parus/ater/1.jpg", "Corvus/ater/1.jpg", "Corvus/major/1.jpg")
    assert len(set(labels(tmp_path / "epithets", "name_L10"))) == 4


@pytest.mark.parametrize(
    ("folder", "wanted"),
    [
        ("001.Black_footed_Albatross", "Black footed Albatross"),
        ("00012_Lumbricus_terrestris", "Lumbricus terrestris"),
        ("7-spot_ladybird", "7-spot ladybird"),
        ("Coccinella__7-punctata", "Coccinella 7-punctata"),
        ("42", "42"),
    ],
)
def test_names_of_folders(folder, wanted):
    assert folders.class_name(folder) == wanted


def test_names_with_all_ranks(tmp_path):
    name = "00001_Animalia_Annelida_Clitellata_Haplotaxida_Lumbricidae_Lumbricus_terrestris"
    source = folders.read(tree(tmp_path, f"train/{name}/1.jpg", f"val/{name}/2.jpg"))
    assert source.levels == ("L10", "L20", "L30", "L40", "L50", "L60", "L70")
    row = source.frame.row(0, named=True)
    assert [row[f"name_{level}"] for level in source.levels] == [
        "Lumbricus terrestris",
        "Lumbricus",
        "Lumbricidae",
        "Haplotaxida",
        "Clitellata",
        "Annelida",
        "Animalia",
    ]
    assert source.frame["split"].to_list() == ["train", "val"]
    assert "the outermost folders are taken as the split" in source.warnings


def test_a_number_before_a_name_stays_where_it_tells_two_apart(tmp_path):
    tree(tmp_path, "001.Heron/1.jpg", "002.Heron/1.jpg", "003.Parus_minor/1.jpg", "012/1.jpg", "12/1.jpg", "1.5/1.jpg")
    assert [name for _, name in labels(tmp_path, "name_L10")] == [
        "001.Heron",
        "002.Heron",
        "Parus minor",
        "012",
        "1.5",
        "12",
    ]


TAXONOMY = """species,genus,family,species_id,common_name,accepted_name
Parus major,Parus,Paridae,11,Great Tit,
Parus ater,Parus,Paridae,12,Coal Tit,Periparus ater
Sitta europaea,Sitta,Sittidae,13,Nuthatch,
"""


def test_taxonomy(tmp_path):
    tree(tmp_path, "Parus_major/1.jpg", "parus_ater/1.jpg", "Titmouse/1.jpg", "empty/x.txt", "notes.dng")
    (tmp_path / "taxonomy.csv").write_text(TAXONOMY)
    source = folders.read(tmp_path)
    assert source.levels == ("L10", "L20", "L30")
    assert source.files == (tmp_path / "taxonomy.csv",)
    names = ("name_L10", "id_L10", "common_L10", "name_L30", "accepted_name", "status")
    assert labels(tmp_path, *names) == [
        ("Parus_major/1.jpg", "Parus major", "11", "Great Tit", "Paridae", None, None),
        ("Titmouse/1.jpg", "Titmouse", None, None, None, None, None),
        ("parus_ater/1.jpg", "Parus ater", "12", "Coal Tit", "Paridae", "Periparus ater", "SYNONYM"),
    ]
    assert source.warnings == (
        "taxonomy.csv lacks 1 class folders, which keep their own names: Titmouse",
        "1 folders hold no pictures: empty",
        "2 files are left aside, since their suffix is not one of pictures: .txt 1, .dng 1",
    )


def test_taxonomy_of_genera_and_folder_names(tmp_path):
    tree(tmp_path / "p", "Parus/Parus_major/1.jpg", "Parus/2.jpg")
    (tmp_path / "t.csv").write_text(TAXONOMY)
    assert labels(tmp_path / "p", "name_L10", "name_L20", "name_L30", taxonomy=tmp_path / "t.csv") == [
        ("Parus/2.jpg", None, "Parus", "Paridae"),
        ("Parus/Parus_major/1.jpg", "Parus major", "Parus", "Paridae"),
    ]
    tree(tmp_path / "q", "tit/1.jpg")
    (tmp_path / "u.csv").write_text("folder,species,family\ntit,Parus major,Paridae\n")
    assert labels(tmp_path / "q", "name_L10", "name_L30", taxonomy=tmp_path / "u.csv") == [
        ("tit/1.jpg", "Parus major", "Paridae")
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("species,family\na b,X\nc d,Y\na  b,Y\n", r"taxonomy\.csv has two lines for 'a b': 2 and 4"),
        ("species,family\na b\n", r"taxonomy\.csv, line 2: 1 fields where the header has 2"),
        ("colour,size\nred,1\n", r"taxonomy\.csv: no column names a taxon"),
    ],
)
def test_a_taxonomy_that_cannot_be_used(tmp_path, text, message):
    tree(tmp_path, "a b/1.jpg")
    (tmp_path / "taxonomy.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        folders.read(tmp_path)


def test_what_is_no_tree_of_classes(tmp_path):
    with pytest.raises(UserError, match="holds no pictures"):
        folders.read(tree(tmp_path, "a/x.txt"))
    with pytest.raises(UserError, match="lie in no class folder"):
        folders.read(tree(tmp_path / "flat", "1.jpg"))
    with pytest.raises(UserError, match="nested 8 deep"):
        folders.read(tree(tmp_path / "deep", "1/2/3/4/5/6/7/8/p.jpg"))


def split_and_labels(root: Path, *names: str, **options) -> list[tuple]:
    frame = folders.read(root, **options).frame
    return frame.select("picture", "split", pl.col(names).cast(pl.String), "detail").rows()


def test_an_official_split_beside_other_folders(tmp_path):
    tree(tmp_path, "train/Fruit/Apple/Pink/1.jpg", "val/Fruit/Apple/Pink/2.jpg", "Test2019/Fruit/Banana/3.jpg")
    tree(tmp_path, "iconic images/Fruit/Banana/4.jpg", "5.jpg")
    assert split_and_labels(tmp_path, "name_L10", "name_L20", "name_L30") == [
        ("5.jpg", None, None, None, None, "lies in no class folder"),
        ("Test2019/Fruit/Banana/3.jpg", "test", None, "Banana", "Fruit", None),
        ("iconic images/Fruit/Banana/4.jpg", None, None, None, None, "lies beside the folders of the split"),
        ("train/Fruit/Apple/Pink/1.jpg", "train", "Pink", "Apple", "Fruit", None),
        ("val/Fruit/Apple/Pink/2.jpg", "val", "Pink", "Apple", "Fruit", None),
    ]
    source = folders.read(tmp_path)
    assert source.links == {
        "split": "folder 1",
        "name_L10": "folder 4",
        "name_L20": "folder 3",
        "name_L30": "folder 2",
    }
    said = "\n".join(source.warnings)
    assert "the folders beside Test2019, train, val are left out: iconic images" in said
    assert "1 class folders lie less deep than others (Fruit/Banana): those 2 deep are classes of genus, " in said
    every = folders.read(tmp_path, ranks=["class", "order", "genus", "species"])
    assert "split" not in every.frame.columns
    assert any("no split is taken" in warning for warning in every.warnings)


@pytest.mark.parametrize(
    ("paths", "messages"),
    [
        (
            ["data/train/a/1.jpg", "data/test/a/2.jpg", "samples/3.jpg"],
            ["holds folders of a split", "--folders .*/data"],
        ),
        (["data/train/a/1.jpg", "data/val/a/2.jpg"], ["--folders .*/data,", "--folder-ranks"]),
        (["a/train/1.jpg", "a/val/2.jpg", "b/3.jpg"], ["such as b"]),
        (["a/1.jpg", "b/2.jpg", "test/3.jpg"], ["test is named like the folder of a split", "beside a, b"]),
        (["val/x/1.jpg", "test/x/2.jpg", "extra/x/3.jpg"], ["beside extra", "--folder-ranks"]),
        (["train/1.jpg", "val/2.jpg"], ["in no class folder", "--lists"]),
    ],
)
def test_a_split_that_is_not_clear_is_refused(tmp_path, paths, messages):
    for message in messages:
        with pytest.raises(UserError, match=message):
            folders.read(tree(tmp_path, *paths))


def test_a_training_side_alone_beside_other_folders(tmp_path):
    tree(tmp_path / "split", "train/Fruit/Apple/1.jpg", "iconic/Fruit/2.jpg")
    assert split_and_labels(tmp_path / "split", "name_L10") == [
        ("iconic/Fruit/2.jpg", None, None, "lies beside the folders of the split"),
        ("train/Fruit/Apple/1.jpg", "train", "Apple", None),
    ]
    source = folders.read(tree(tmp_path / "vehicles", "car/1.jpg", "train/2.jpg"))
    assert source.frame["name_L10"].cast(pl.String).to_list() == ["car", "train"]
    assert "train is taken as a class like the folders beside it (car); " in source.warnings[0]


def test_a_split_within_class_folders(tmp_path):
    tree(tmp_path, "Parus/major/train/1.jpg", "Parus/major/test/2.jpg", "Corvus/train/3.jpg")
    assert split_and_labels(tmp_path, "name_L10", "name_L20") == [
        ("Corvus/train/3.jpg", "train", None, "Corvus", None),
        ("Parus/major/test/2.jpg", "test", "Parus major", "Parus", None),
        ("Parus/major/train/1.jpg", "train", "Parus major", "Parus", None),
    ]


def test_ranks_with_names_of_their_own(tmp_path):
    tree(tmp_path, "Fruit/Apple/Pink/1.jpg", "Fruit/Apple/2.jpg", "Fruit/Banana/3.jpg", "Tins/4.jpg", "Fruit/0/0/5.jpg")
    source = folders.read(tmp_path, innermost=(":fine", ":coarse", ":kind"))
    assert source.levels == (":fine", ":coarse", ":kind")
    names = [pl.col(f"name_:{rank}").cast(pl.String) for rank in ("fine", "coarse", "kind")]
    assert source.frame.select("picture", *names).rows() == [
        ("Fruit/0/0/5.jpg", "0", "0", "Fruit"),
        ("Fruit/Apple/2.jpg", None, "Apple", "Fruit"),
        ("Fruit/Apple/Pink/1.jpg", "Pink", "Apple", "Fruit"),
        ("Fruit/Banana/3.jpg", "Banana", "Banana", "Fruit"),
        ("Tins/4.jpg", "Tins", "Tins", "Tins"),
    ]
    assert "those 2 deep are classes of coarse, and of fine under the same name" in source.warnings[0]
    two = folders.read(tmp_path, ranks=["-", "coarse", "fine"])
    assert two.links == {"name_:coarse": "folder 2", "name_:fine": "folder 3"}


def test_a_few_deeper_folders_are_said(tmp_path):
    tree(tmp_path, *(f"Parus ater/{i}.jpg" for i in range(5)), "Parus ater/juvenile/1.jpg", "Parus major/1.jpg")
    warning = folders.read(tmp_path).warnings[-1]
    assert warning.startswith("only 1 of 7 pictures lie as deep as Parus ater/juvenile, ")
    assert warning.endswith("give --folder-ranks=species,-")
    assert labels(tmp_path, "name_L10", ranks=["species", "-"])[-2] == ("Parus ater/juvenile/1.jpg", "Parus ater")
    tree(tmp_path / "most", *(f"Parus/major/{i}.jpg" for i in range(5)), "Parus/1.jpg")
    assert folders.read(tmp_path / "most").warnings == ()


def test_links_that_lead_out_are_rows(tmp_path):
    tree(tmp_path / "p", "a/1.jpg")
    tree(tmp_path / "elsewhere", "2.jpg")
    (tmp_path / "p" / "b").symlink_to(tmp_path / "elsewhere")
    frame = folders.read(tmp_path / "p").frame
    assert frame.select("picture", "reason", "detail").rows() == [
        ("a/1.jpg", None, None),
        ("b", "unsafe path", "a link that leads out of the folder"),
    ]
    assert folders.read(tmp_path / "p", follow_links=True).frame["picture"].to_list() == ["a/1.jpg", "b/2.jpg"]


def write_jpeg(path: Path, gps: dict | None = None, moment: str | None = None, offset: str | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.zeros((8, 8, 3), np.uint8))
    image, exif = Image.open(path), Image.Exif()
    if gps:
        exif.get_ifd(ExifTags.IFD.GPSInfo).update(gps)
    if moment:
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = moment
    if offset:
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.OffsetTimeOriginal] = offset
    image.save(path, exif=exif)
    return path


def test_exif(tmp_path):
    gps = {1: "S", 2: (12.0, 30.0, 36.0), 3: "W", 4: (70.0, 0.0, 0.0), 5: b"\x01", 6: 12.5}
    write_jpeg(tmp_path / "a/1.jpg", gps, "2020:05:01 12:30:05")
    write_jpeg(tmp_path / "a/2.jpg", {2: (1.0, 0.0, 0.0)}, "0000:00:00 00:00:00")
    tree(tmp_path, "a/3.jpg")
    source = folders.read(tmp_path, exif=True, doi="10.1/x")
    assert source.frame.select("latitude", "longitude", "date", "time", "elevation", "doi").rows() == [
        ("-12.510000", "-70.000000", "2020-05-01", "12:30:05", "-12.5", "10.1/x"),
        (None, None, None, None, None, "10.1/x"),
        (None, None, None, None, None, "10.1/x"),
    ]
    assert exif_of(tmp_path / "none.jpg") == (None,) * 5


@pytest.mark.parametrize("offset", [None, "+02:00", "-05:00", "  :  "])
def test_building_and_predicting_read_the_same_moment(tmp_path, offset):
    path = write_jpeg(tmp_path / "a/1.jpg", moment="2020:12:31 22:30:05", offset=offset)
    frame = folders.read(tmp_path, exif=True).frame
    built = read_observations(frame, BuildOptions(temporal="day-hour")).encoded["temporal"].values
    predicted = moment(observation_of(path.read_bytes())[0].date, [])
    expected = encode_moments(np.array([predicted], float), "day-hour").values
    np.testing.assert_array_equal(built, expected)
    assert np.isnan(predicted[2]) == (offset in (None, "  :  "))


PATH = st.lists(st.sampled_from(["A", "b", "c_d", "train"]), max_size=3)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(PATH, st.sampled_from(["1.jpg", "2.png", "x.txt"])), min_size=1, max_size=10))
def test_every_picture_is_one_row(tmp_path_factory, files):
    root = tmp_path_factory.mktemp("t")
    paths = sorted({"/".join([*parts, name]) for parts, name in files})
    pictures = [path for path in paths if not path.endswith(".txt")]
    tree(root, *paths)
    nested = any("/" in path for path in pictures)
    try:
        frame = folders.read(root).frame
    except UserError as refused:
        if nested:
            with pytest.raises(UserError, match="look like places"):
                raise refused
        return
    assert frame["picture"].to_list() == pictures


@pytest.mark.parametrize(
    ("paths", "options", "rank"),
    [
        (["Aves/Corvidae/Pica pica", "Plantae/Iridaceae/Iris sp."], {}, "genus"),
        (["Corvidae/Pica/Pica pica", "Iridaceae/Iris/Iris sp."], {}, ""),
        (["Aves/Corvidae/Pica pica", "Plantae/Iridaceae/Iris sp."], {"ranks": ["class", "family", "species"]}, ""),
        (["Corvidae/Pica pica", "Iridaceae/Iris sibirica", "Lilium/Lilium martagon"], {}, "genus"),
        (["Corvidae/Pica pica", "Iris/Iris sibirica", "Lilium/Lilium martagon"], {}, ""),
        (["Corvidae", "Iridaceae"], {}, "species"),
    ],
)
def test_folders_that_are_named_like_families_and_stand_as_another_rank_are_said(tmp_path, paths, options, rank):
    tree(tmp_path, *(f"{path}/a.jpg" for path in paths))
    said = " ".join(folders.read(tmp_path, **options).warnings)
    assert (f"Corvidae, Iridaceae look like families, but stand as {rank}," in said) == bool(rank), said


def test_a_folder_that_may_stand_for_no_name_is_said_as_a_folder(tmp_path):
    source = folders.read(tree(tmp_path, *(f"None/{i}.jpg" for i in range(3)), "Parus ater/1.jpg"))
    assert source.warnings[0].startswith("the folder: 1 class folders have the species 'None', taken as a name; ")


def test_thumbnails_of_a_disk_are_no_classes(tmp_path):
    names = ("Parus major/1.jpg", "Parus ater/2.jpg")
    thumbnails = ("Parus major/@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg", "#recycle/Parus niger/3.jpg", ".Trashes/501/4.jpg")
    source = folders.read(tree(tmp_path, *names, *thumbnails))
    assert source.levels == ("L10",)
    assert source.frame["picture"].to_list() == sorted(names)
    assert "3 pictures are left aside, since they are thumbnails, trash" in source.warnings[0]
    assert labels(tmp_path / "#recycle", "name_L10") == [("Parus niger/3.jpg", "Parus niger")]
