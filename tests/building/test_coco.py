"""Annotations of the iNaturalist competitions, as they were published over the years."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnaeus_jax.building.sources import coco
from linnaeus_jax.building.steps.taxa import label_rows
from linnaeus_jax.config.errors import UserError

BIRDS = {"kingdom": "Animalia", "phylum": "Chordata", "class": "Aves", "order": "Passeriformes"}
GREAT_TIT = {"id": 1, "name": "Parus major", "family": "Paridae", "genus": "Parus", **BIRDS}
TREECREEPER = {"id": 2, "name": "Certhia familiaris", "family": "Certhiidae", "genus": "Certhia", **BIRDS}
LICENSES = [
    {"id": 0, "name": "Public Domain", "url": "http://creativecommons.org/publicdomain/zero/1.0/"},
    {"id": 1, "name": "", "url": "http://creativecommons.org/licenses/by/4.0/"},
]


def write(path: Path, content: Any, pictures: str = "") -> Path:
    for name in pictures.split():
        (path.parent / name).parent.mkdir(parents=True, exist_ok=True)
        (path.parent / name).write_bytes(b"x")
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def small(**changes: Any) -> dict[str, Any]:
    """Two annotated images of two categories."""
    return {
        "images": [{"id": 7, "file_name": "a.jpg"}, {"id": 8, "file_name": "b.jpg"}],
        "annotations": [{"id": 1, "image_id": 7, "category_id": 1}, {"id": 2, "image_id": 8, "category_id": 2}],
        "categories": [GREAT_TIT, TREECREEPER],
        **changes,
    }


def plain(source, *names: str) -> list[tuple]:
    return source.frame.select(pl.col(names).cast(pl.String)).rows()


def test_2017_groups_in_place_of_ranks(tmp_path):
    content: dict[str, Any] = {
        "info": {"year": 2017},
        "images": [
            {"id": 1, "license": 1, "width": 8, "height": 6, "file_name": "train_val/Aves/Parus major/a.jpg"},
            {"id": 2, "license": 0, "rights_holder": "Ana", "file_name": "train_val/Plantae/Poa annua/b.jpg"},
        ],
        "licenses": LICENSES,
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 11, "bbox": [1, 2, 3, 4], "area": 12.0},
            {"id": 2, "image_id": 1, "category_id": 11, "bbox": [2, 2, 3, 4], "area": 12.0},
            {"id": 3, "image_id": 2, "category_id": 12},
        ],
        "categories": [
            {"supercategory": "Aves", "id": 11, "name": "Parus major"},
            {"supercategory": "Plantae", "id": 12, "name": "Poa annua"},
        ],
    }
    path = write(tmp_path / "train2017.json", content)
    for image in content["images"]:
        (tmp_path / image["file_name"]).parent.mkdir(parents=True)
        (tmp_path / image["file_name"]).write_bytes(b"x")
    source = coco.read(path)
    assert source.levels == ("L10",)
    assert source.root == tmp_path
    assert source.files == (path,)
    assert plain(source, "line", "picture", "id_L10", "name_L10", "license", "rights_holder", "reason") == [
        ("1", "train_val/Aves/Parus major/a.jpg", "11", "Parus major", LICENSES[1]["url"], None, None),
        ("2", "train_val/Plantae/Poa annua/b.jpg", "12", "Poa annua", "Public Domain", "Ana", None),
    ]
    assert "split" not in source.frame.columns
    assert source.links["name_L10"] == "categories.name"
    assert source.links["license"] == "images.license"
    assert source.warnings == (
        "train2017.json: categories have no ranks above the species; 'supercategory' (Aves, Plantae) names groups of "
        "different ranks and is not used",
    )


def test_2018_ids_from_0_and_a_validation_file(tmp_path):
    categories = [{"id": 0, **{k: v for k, v in GREAT_TIT.items() if k != "id"}, "supercategory": "Aves"}, TREECREEPER]
    train = small(categories=categories, annotations=[{"id": 1, "image_id": 7, "category_id": 0}])
    val = small(
        categories=categories,
        images=[{"id": 7, "file_name": "c.jpg"}],
        annotations=[{"id": 1, "image_id": 7, "category_id": 2}],
    )
    paths = write(tmp_path / "train2018.json", train, "a.jpg b.jpg c.jpg d.jpg"), write(tmp_path / "val2018.json", val)
    source = coco.read(paths[0], validation=paths[1], pictures=tmp_path, doi="10.1/x")
    assert source.levels == ("L10", "L20", "L30", "L40", "L50", "L60", "L70")
    assert source.files == paths
    assert "id_L10" not in source.frame.columns
    assert plain(source, "line", "picture", "name_L10", "name_L30", "name_L50", "split", "doi", "reason", "detail") == [
        ("1", "a.jpg", "Parus major", "Paridae", "Aves", "train", "10.1/x", None, None),
        ("2", "b.jpg", None, None, None, "train", "10.1/x", "no usable label", "the image has no annotation"),
        ("1", "c.jpg", "Certhia familiaris", "Certhiidae", "Aves", "val", "10.1/x", None, None),
        ("0", "d.jpg", None, None, None, None, None, "no record names it", None),
    ]
    assert source.warnings == (
        "train2018.json and val2018.json: a category has the id 0, which stands for an unknown taxon; the names of "
        "categories count, not their ids",
    )


def test_2019_taxonomy_apart_and_times_of_day(tmp_path):
    images = [
        {"id": 7, "file_name": "a.jpg", "date": "2014-06-11 10:30:00"},
        {"id": 8, "file_name": "b.jpg", "date": "2014-06-12 00:00:00"},
    ]
    known = [{"id": 1, "name": "1", "supercategory": "Birds"}, {"id": 2, "name": "2", "supercategory": "Birds"}]
    path = write(tmp_path / "train2019.json", small(images=images, categories=known), "a.jpg b.jpg")
    apart = write(tmp_path / "categories.json", [GREAT_TIT, {"id": 3, "name": "Poa annua"}])
    source = coco.read(path, categories=apart)
    assert plain(source, "id_L10", "name_L10", "name_L30", "date") == [
        ("1", "Parus major", "Paridae", "2014-06-11 10:30:00"),
        ("2", "2", None, "2014-06-12 00:00:00"),
    ]
    assert source.files == (path, apart)
    assert plain(coco.read(path, categories=write(apart, {"categories": [GREAT_TIT]})), "name_L10")[0] == (
        "Parus major",
    )
    strange = '[{"id": 1, "name": NaN, "genus": 1e999, "family": "\\ud800"}]'
    assert plain(coco.read(path, categories=write(apart, strange)), "name_L10", "name_L30")[0] == ("1", "\ufffd")
    for content, message in (
        ("{", "is not JSON"),
        ("3", "no array of categories"),
        ("[" * 99999, "is not JSON"),
        ([{"name": "x"}], "it has no id"),
        ('[{"id": 1, "name": "x", "name": "y"}]', "name stands twice"),
    ):
        with pytest.raises(UserError, match=message):
            coco.read(path, categories=write(apart, content))
    with pytest.raises(UserError, match="do not exist"):
        coco.read(path, categories=tmp_path / "none.json")


def test_2021_places_dates_and_occurrences(tmp_path):
    image = {
        "width": 500,
        "height": 375,
        "license": 0,
        "rights_holder": "Ana Böhm",
        "date": "2015-07-16 00:00:00+00:00",
        "latitude": 54.63067,
        "longitude": -5.0,
        "location_uncertainty": 77,
    }
    images = [{"id": i, "file_name": f"train/{i}.jpg", **image} for i in range(5)]
    images[2]["latitude"] = None
    images[3]["date"] = "2016-07-16 00:00:00+00:00"
    more = {"specific_epithet": "major", "common_name": "Great Tit", "image_dir_name": "00000_Animalia"}
    content = small(
        images=images,
        annotations=[{"id": i, "image_id": i, "category_id": 1} for i in range(5)],
        categories=[{**GREAT_TIT, **more}, {**TREECREEPER, "common_name": None}],
        licenses=LICENSES,
    )
    path = write(tmp_path / "train.json", content, " ".join(f"train/{i}.jpg" for i in range(5)))
    source = coco.read(path)
    assert source.warnings == ()
    names = ("picture", "id_L10", "common_L10", "name_L70", "date", "latitude", "longitude", "uncertainty", "license")
    assert plain(source, *names)[0] == (
        "train/0.jpg",
        "1",
        "Great Tit",
        "Animalia",
        "2015-07-16",  # midnight of all of them says that the time is not known
        "54.63067",
        "-5",
        "77",
        "Public Domain",
    )
    same = source.frame["occurrence"].to_list()
    assert same[0] == same[1] == same[4] == "1 2015-07-16 00:00:00+00:00 54.63067 -5 Ana Böhm"
    assert same[2:4] == [None, None]


def test_every_image_has_a_reason_or_a_picture(tmp_path):
    images: list[Any] = [
        {"id": 1, "file_name": "a.jpg"},
        {"id": 2, "file_name": "none.jpg"},
        {"id": 3, "file_name": "../a.jpg"},
        {"id": 4, "file_name": "/etc/passwd"},
        {"id": 5, "file_name": "a\0.jpg"},
        {"id": 6, "file_name": "a.jpg\n"},
        {"id": 7, "file_name": ""},
        {"id": 8},
        {"id": 9, "file_name": ["a.jpg"]},
        {"id": 10, "file_name": "a.jpg"},
        {"id": 11, "file_name": "a.jpg"},
        {"id": 11, "file_name": "b.jpg"},
        {"file_name": "a.jpg"},
        {"id": 12, "file_name": "a.jpg"},
        {"id": 13, "file_name": "a.jpg"},
        {"id": 14, "file_name": "\U0001f98b\u202e\ud800.jpg"},
        {"id": 15, "file_name": "a.jpg", "latitude": {"deg": 1}},
        {"id": 16, "file_name": True},
        "x",
        {"id": 17, "file_name": "a.jpg"},
    ]
    annotations: list[Any] = [{"id": i, "image_id": i, "category_id": 1} for i in range(1, 18) if i != 13]
    annotations += [
        {"id": 100, "image_id": 10, "category_id": 2},
        {"id": 101, "image_id": 12, "category_id": 99},
        {"id": 102, "image_id": "no\nimage", "category_id": 1},
        {"id": 103, "category_id": 1},
        None,
        {"id": 104, "image_id": 17},
    ]
    text = json.dumps(small(images=images, annotations=annotations)).replace(
        '"id": 17, "file', '"id": 0, "id": 17, "file'
    )
    source = coco.read(write(tmp_path / "t.json", text, "a.jpg b.jpg"))
    assert plain(source, "line", "picture", "reason", "detail") == [
        ("1", "a.jpg", None, None),
        ("2", "none.jpg", "no such picture", None),
        ("3", "../a.jpg", "unsafe path", "'..' in the path"),
        (
            "4",
            "/etc/passwd",
            "unsafe path",
            "an absolute path out of the folder; write it relative to the folder of pictures",
        ),
        ("5", "a\0.jpg", "unsafe path", "a control character in the path"),
        ("6", "a.jpg\n", "unsafe path", "a control character in the path"),
        ("7", None, "no picture named", None),
        ("8", None, "no picture named", None),
        ("9", None, "malformed record", "image 9: file_name is an array, not a single value"),
        ("10", "a.jpg", "malformed record", "annotated as different categories: 1, 2"),
        ("11", "a.jpg", "malformed record", "2 images have the id 11"),
        ("12", "b.jpg", "malformed record", "2 images have the id 11"),
        ("13", "a.jpg", "malformed record", "image 13 has no id"),
        ("14", "a.jpg", "malformed record", "annotation 18 is of category 99, which has no entry"),
        ("15", "a.jpg", "no usable label", "the image has no annotation"),
        ("16", "\U0001f98b\u202e\ufffd.jpg", "no such picture", None),
        ("17", "a.jpg", "malformed record", "image 17: latitude is an object, not a single value"),
        ("18", "true", "no such picture", None),
        ("19", None, "malformed record", "image 19: the entry is no object"),
        ("20", "a.jpg", "malformed record", "image 20: id stands twice in the entry"),
        ("19", None, "malformed record", r"annotation 19 is of image no\nimage, which has no entry"),
        ("20", None, "malformed record", "annotation 20 names no image"),
        ("21", None, "malformed record", "annotation 21: the entry is no object"),
    ]


def test_an_annotation_without_a_category_is_said(tmp_path):
    content = small(annotations=[{"id": 1, "image_id": 7}, {"id": 2, "image_id": 8, "category_id": 1, "x": {}}])
    source = coco.read(write(tmp_path / "t.json", content, "a.jpg b.jpg"))
    assert plain(source, "reason", "detail") == [
        ("malformed record", "annotation 1 names no category"),
        (None, None),
    ]


def test_ids_are_compared_as_they_are_written(tmp_path):
    images = [{"id": "007", "file_name": "a.jpg"}, {"id": 8, "file_name": "b.jpg"}]
    source = coco.read(write(tmp_path / "t.json", small(images=images), "a.jpg b.jpg"))
    assert plain(source, "picture", "reason", "detail") == [
        ("a.jpg", "no usable label", "the image has no annotation"),
        ("b.jpg", None, None),
        (None, "malformed record", "annotation 1 is of image 7, which has no entry"),
    ]


def test_ids_that_are_no_taxon_ids(tmp_path):
    categories = [{"id": "p-1", "name": "Parus major"}, {"id": "p-2", "name": "Parus major"}]
    annotations = [{"id": 1, "image_id": 7, "category_id": "p-1"}, {"id": 2, "image_id": 8, "category_id": "p-2"}]
    content = small(categories=categories, annotations=annotations)
    source = coco.read(write(tmp_path / "t.json", content, "a.jpg b.jpg"))
    assert plain(source, "name_L10") == [("Parus major",), ("Parus major",)]
    assert source.levels == ("L10",)
    assert source.warnings == (
        "t.json: a category has the id p-1, which cannot be the id of a taxon; the names of categories "
        "count, not their ids",
        "t.json: 2 categories share their name with another and become one, e.g. Parus major",
    )


def test_pictures_that_are_elsewhere(tmp_path):
    source = coco.read(write(tmp_path / "t.json", small()))
    assert source.frame["reason"].to_list() == ["no such picture"] * 2
    assert len(source.warnings) == 1
    assert "no picture is where it is named (a.jpg)" in source.warnings[0]


def test_mapping(tmp_path):
    images = [
        {"id": 7, "path": "a.jpg", "user_id": 5, "obs": "x", "license": "CC-BY", "date": "?"},
        {"id": 8, "path": "b.jpg", "user_id": 6, "obs": "x", "license": 3},
    ]
    path = write(tmp_path / "t.json", small(images=images), "a.jpg b.jpg")
    mapping = {"picture": "path", "observer": "user_id", "occurrence": "obs", "date": "", "subset_A": "user_id"}
    source = coco.read(path, mapping=mapping)
    assert plain(source, "picture", "observer", "occurrence", "license", "subset_A") == [
        ("a.jpg", "5", "x", "CC-BY", "5"),
        ("b.jpg", "6", "x", "3", "6"),
    ]
    assert "date" not in source.frame.columns
    with pytest.raises(UserError, match=r"--map colour: no such column of images"):
        coco.read(path, mapping={"colour": "x"})
    with pytest.raises(UserError, match=r"--map observer=nobody: no image of t\.json has a value of that name"):
        coco.read(path, mapping={"observer": "nobody"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (small(annotations=[]), r"t\.json has no annotations: such a file names pictures for a test"),
        ({"images": [], "categories": []}, r"t\.json has no annotations"),
        ({"images": []}, r"there is no array 'categories'"),
        ({"type": "FeatureCollection", "features": []}, r"there is no array 'images'"),
        (small(images={"7": "a.jpg"}), "'images' is not an array"),
        (small(categories=[GREAT_TIT, {"name": "x"}]), "entry 2 of 'categories' cannot be used: it has no id"),
        (small(categories=["x"]), "entry 1 of 'categories' cannot be used: the entry is no object"),
        (
            small(categories=[GREAT_TIT, {**GREAT_TIT, "name": "Parus\nminor"}]),
            r"category 1 has the name 'Parus major' and 'Parus\\+nminor'",
        ),
        (json.dumps(small())[:-30], r"t\.json is cut off or not valid JSON"),
        ("[" * 99999, r"there is no '{'"),
        ('{"images": ' + "[" * 99999, "nested too deeply"),
    ],
)
def test_what_is_no_file_of_annotations(tmp_path, content, message):
    with pytest.raises(UserError, match=message) as error:
        coco.read(write(tmp_path / "t.json", content))
    assert "\n" not in str(error.value)


def test_two_files_that_do_not_fit(tmp_path):
    first = write(tmp_path / "a.json", small(), "a.jpg b.jpg")
    other = write(tmp_path / "b.json", small(categories=[{**GREAT_TIT, "name": "Parus minor"}, TREECREEPER]))
    with pytest.raises(
        UserError, match=r"a\.json and b\.json: category 1 has the name 'Parus major' and 'Parus minor'"
    ):
        coco.read(first, validation=other)
    with pytest.raises(UserError, match="the same file"):
        coco.read(first, validation=first)
    with pytest.raises(UserError, match="do not exist"):
        coco.read(tmp_path / "none.json")
    with pytest.raises(UserError, match=r"picture folder .* does not exist"):
        coco.read(first, pictures=tmp_path / "none")


SCALARS = st.none() | st.booleans() | st.integers(0, 4) | st.sampled_from(["1", "a.jpg", "b.jpg", "../a.jpg", "\ud800"])
ANYTHING = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.sampled_from(["id", "x"]), SCALARS, max_size=2)
IDS = st.integers(0, 4) | ANYTHING
FILES = st.sampled_from(["a.jpg", "b.jpg", "c.jpg", "none.jpg", "../a.jpg", ""]) | ANYTHING
IMAGES = st.fixed_dictionaries({"id": IDS, "file_name": FILES}, optional={"license": ANYTHING, "date": ANYTHING})
ANNOTATIONS = st.fixed_dictionaries({"image_id": IDS}, optional={"category_id": st.integers(1, 3) | ANYTHING})


def is_orphan(annotation: Any, images: list[Any]) -> bool:
    """Whether no image has the id that an annotation names."""

    def key(entry: Any, name: str) -> str | None:
        value = entry.get(name) if isinstance(entry, dict) else None
        return None if value is None or isinstance(value, list | dict) else str(value).replace("\ud800", "\ufffd")

    named = key(annotation, "image_id")
    return named is None or named not in {key(image, "id") for image in images}


@settings(max_examples=60, deadline=None)
@given(
    images=st.lists(IMAGES | ANYTHING, max_size=8),
    annotations=st.lists(ANNOTATIONS | ANYTHING, min_size=1, max_size=8),
    licenses=st.lists(st.fixed_dictionaries({"id": IDS}, optional={"name": ANYTHING, "url": ANYTHING}), max_size=3),
)
def test_every_entry_and_every_file_is_one_row(tmp_path_factory, images, annotations, licenses):
    folder = tmp_path_factory.mktemp("c")
    content = small(images=images, annotations=annotations, licenses=licenses)
    path = write(folder / "t.json", content, "p/a.jpg p/b.jpg p/c.jpg")
    frame = coco.read(path, pictures=folder / "p").frame
    orphans = sum(is_orphan(annotation, images) for annotation in annotations)
    records = frame.filter(pl.col("line") > 0)
    assert records["line"].to_list()[: len(images)] == list(range(1, len(images) + 1))
    assert records.height == len(images) + orphans
    rest = frame.filter(pl.col("line") == 0)["picture"].to_list()
    assert sorted(rest) == sorted({"a.jpg", "b.jpg", "c.jpg"} - set(records["picture"]))
    assert records.filter(pl.col("reason").is_null())["picture"].is_in(["a.jpg", "b.jpg", "c.jpg"]).all()
    assert records.filter(pl.col("reason").is_null())["id_L10"].null_count() == 0


def test_spellings_of_one_name_are_one_class_whatever_their_ids(tmp_path):
    names = ["Parus major", "PARUS MAJOR", "Parus major Linnaeus, 1758", "Certhia familiaris", "unidentified"]
    content = small(
        images=[{"id": number, "file_name": f"{number}.jpg"} for number in range(5)],
        annotations=[{"id": number, "image_id": number, "category_id": 10 + number} for number in range(5)],
        categories=[{"id": 10 + number, "name": name} for number, name in enumerate(names)],
    )
    source = coco.read(write(tmp_path / "a.json", content, "0.jpg 1.jpg 2.jpg 3.jpg 4.jpg"))
    taxa = label_rows(source.frame, source.levels, {}, 1)
    assert taxa.taxon[:, 0].tolist() == [10, 10, 10, 13, 0]
    assert source.frame["written_L10"].to_list() == [None, *names[1:3], None, "unidentified"]
