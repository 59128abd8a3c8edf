"""Lists of files with labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from linnaeus_jax.building.sources import lists
from linnaeus_jax.building.sources.lists import ListFile
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading.schema import SourceRows
from tests.building.test_folders import tree

RANKS = (":fine", ":coarse")
CLASSES = """Class Name (str),Class ID (int),Coarse Class Name (str),Coarse Class ID (int),Iconic Image Path (str)
Golden-Delicious,0,Apple,0,/iconic/0.jpg
Pink-Lady,1,Apple,0,/iconic/1.jpg
Banana,2,Banana,1,/iconic/2.jpg
"""
TRAIN = "train/a/1.jpg, 0, 0\ntrain/a/2 b.jpg, 1, 0\n"
TEST = "test/3.jpg, 2, 1\n"


def pictures(root: Path) -> Path:
    return tree(root, "train/a/1.jpg", "train/a/2 b.jpg", "test/3.jpg")


def read(root: Path, **texts: Any) -> pl.DataFrame:
    """The rows of lists NAME=TEXT, with the options that begin with "_"."""
    return source(root, **texts).frame


def source(root: Path, **texts: Any) -> SourceRows:
    options = {key[1:]: texts.pop(key) for key in list(texts) if key.startswith("_")}
    given = []
    for name, text in texts.items():
        (root / f"{name}.txt").write_text(text)
        given.append(ListFile.parse(str(root / f"{name}.txt")))
    chosen: dict[str, Any] = {"ranks": RANKS, "pictures": root} | options
    return lists.read(given, **chosen)


def labelled(frame: pl.DataFrame) -> list[tuple]:
    names = [name for name in frame.columns if name.startswith("name_")]
    sides = ["split"] if "split" in frame.columns else []
    return frame.select("line", "picture", *sides, pl.col(names).cast(pl.String)).rows()


def test_one_list_for_each_split(tmp_path):
    found = source(pictures(tmp_path), train=TRAIN, test=TEST)
    assert found.levels == RANKS
    assert labelled(found.frame) == [
        (1, "train/a/1.jpg", "train", "0", "0"),
        (2, "train/a/2 b.jpg", "train", "1", "0"),
        (1, "test/3.jpg", "test", "2", "1"),
    ]
    assert found.links == {"picture": "path", "name_:fine": "fine", "name_:coarse": "coarse"}
    assert found.frame["reason"].null_count() == 3


@pytest.mark.parametrize(
    ("train", "options"),
    [
        ("train/a/1.jpg\t0\t0\r\ntrain/a/2 b.jpg\t1\t0\r\n", {}),
        ("\ufefftrain/a/1.jpg;0;0\n\ntrain/a/2 b.jpg;1;0", {}),
        ("train/a/1.jpg 0 0\ntrain/a/2 b.jpg 1 0\n", {}),
        ('"train/a/1.jpg","0","0",\n"train/a/2 b.jpg","1","0",\n', {}),
        ("# a comment\nfile,coarse,fine\ntrain/a/1.jpg,0,0\ntrain/a/2 b.jpg,0,1\n", {}),
        ("7,0,train/a/1.jpg,0\n8,0,train/a/2 b.jpg,1\n", {"_columns": ("-", "coarse", "path", "fine")}),
        ("0,train/a/1.jpg,0\n1,train/a/2 b.jpg,0\n", {}),
        ("/a/1.jpg,0,0\n./a/2 b.jpg,1,0\n", {}),
        ("data/train/a/1,0,0\ndata/train/a/2 b,1,0\n", {"_columns": ("path", "fine", "coarse")}),
    ],
)
def test_lists_as_people_write_them(tmp_path, train, options):
    assert labelled(read(pictures(tmp_path), train=train, **options).head(2)) == [
        (place, f"train/a/{name}.jpg", "train", str(label), "0")
        for place, (name, label) in zip(found_lines(train), (("1", 0), ("2 b", 1)))
    ]


def found_lines(text: str) -> list[int]:
    return [number for number, line in enumerate(text.splitlines(), 1) if "/1" in line or "/2 b" in line]


def test_labels_of_one_field_of_folders_and_of_a_header(tmp_path):
    pictures(tmp_path)
    assert labelled(read(tmp_path, all="train/a/1.jpg parrot\ntest/3.jpg dog\n", _ranks=()).head(2)) == [
        (1, "train/a/1.jpg", "parrot"),
        (2, "test/3.jpg", "dog"),
    ]
    assert labelled(read(tmp_path, train="train/a/1\n").head(1)) == [
        (1, "train/a/1.jpg", "train", "a", "train"),
    ]
    spaces = read(tmp_path, train="train/a/2 b.jpg Granny Smith\ntest/3.jpg Gala", _ranks=(":fine",)).head(1)
    assert labelled(spaces) == [(1, "train/a/2 b.jpg", "train", "Granny Smith")]
    found = source(tmp_path, val="image,kind,sort\ntrain/a/1.jpg,0,x\n", _ranks=())
    assert found.levels == (":kind", ":sort")
    assert found.frame["reason"].to_list()[1:] == ["no record names it"] * 2


@pytest.mark.parametrize(
    ("files", "fine", "coarse"),
    [
        ({"classes.csv": CLASSES}, "Pink-Lady", "Apple"),
        ({"fine=f.txt": "Golden Delicious\nPink Lady\nBanana\n"}, "Pink Lady", "0"),
        ({"fine=f.txt": "0 Golden Delicious\n2 Banana\n1 Pink Lady", "coarse=c.txt": "x 0\ny 1\n"}, "Pink Lady", "x"),
        ({"names.json": '{"0": ["n1", "Golden"], "1": ["n2", "Pink"], "2": ["n3", "B"]}'}, "Pink", "0"),
        ({"names.csv": "0,Golden\n1,Pink\n2,B\n"}, "Pink", "0"),
    ],
)
def test_names_of_numbered_classes(tmp_path, files, fine, coarse):
    given = []
    for name, text in files.items():
        rank, _, file = name.rpartition("=")
        (tmp_path / file).write_text(text)
        given.append(f"{rank}={tmp_path / file}" if rank else str(tmp_path / file))
    found = source(pictures(tmp_path), train=TRAIN, test=TEST, _class_names=given)
    assert labelled(found.frame)[1][3:] == (fine, coarse)
    assert any("coarse: its classes are called by their numbers" in each for each in found.warnings) == (coarse == "0")


def test_coarser_ranks_may_come_from_the_class_names(tmp_path):
    (tmp_path / "classes.csv").write_text(CLASSES)
    found = source(pictures(tmp_path), train="train/a/1.jpg 1\n", _class_names=[str(tmp_path / "classes.csv")])
    assert labelled(found.frame)[0] == (1, "train/a/1.jpg", "train", "Pink-Lady", "Apple")


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ({"train": TRAIN + "test/3.jpg, 2"}, {}, r"train.txt: 1 lines .* than line 1, which has 3: line 3 has 2"),
        ({"train": TRAIN, "test": "test/3.jpg, 2"}, {}, "test.txt has 2 fields on each line, train.txt 3"),
        ({"train": TRAIN, "val": "./train/a/1.jpg,0,0"}, {}, r"stand in two lists: train/a/1.jpg in train.txt, line 1"),
        ({"train": TRAIN + "train/a/1.jpg,1,0"}, {}, r"have two labels: .* train.txt, line 1 and train.txt, line 3"),
        ({"train": "\n"}, {}, "train.txt is empty"),
        ({"train": TRAIN}, {"_ranks": ()}, r"2 labels on each line \(.*, 0, 0\): name them with --ranks"),
        ({"train": TRAIN}, {"_ranks": (":fine",)}, "--ranks names 1 .fine.*--columns path,fine,-"),
        ({"train": TRAIN}, {"_columns": ("path", "fin", "coarse")}, "--columns path,fin,coarse: .* fine, coarse, or -"),
        ({"train": "x/1.jpg,0,0\nx/2.jpg,0,0"}, {}, "none of the 2 pictures of train.txt .*--pictures"),
        ({"train": TRAIN}, {"_class_names": ["nowhere.txt"]}, "nowhere.txt does not exist"),
    ],
)
def test_what_is_wrong_is_one_message(tmp_path, texts, options, message):
    with pytest.raises(UserError, match=message):
        read(pictures(tmp_path), **texts, **options)


def test_a_list_that_is_not_there_and_an_unknown_split(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.txt does not exist"):
        lists.read([ListFile.parse(f"train={tmp_path}/nowhere.txt")], ranks=RANKS)
    with pytest.raises(UserError, match="'extra' is no side of a split; there are train, val and test"):
        ListFile.parse("extra=x.txt")
    (tmp_path / "short.txt").write_text("a\n")
    with pytest.raises(UserError, match="1 classes of fine have no name: 1; names are there for 0 to 0"):
        read(pictures(tmp_path), train=TRAIN, _class_names=[f"fine={tmp_path}/short.txt"])
    (tmp_path / "two.csv").write_text("0,a\n0,b\n")
    with pytest.raises(UserError, match="fine 0 has two names, a and b"):
        read(tmp_path, train=TRAIN, _class_names=[str(tmp_path / "two.csv")])


def test_missing_pictures_are_rows_and_a_warning(tmp_path):
    found = source(pictures(tmp_path), train=TRAIN + "train/a/9.jpg,1,0\ntrain/a/1.jpg,0,0\n")
    assert found.frame["reason"].to_list() == [None, None, "no such picture", "no record names it"]
    assert "train.txt names 1 pictures that are not there: line 3 train/a/9.jpg" in found.warnings
    assert "1 lines name a picture again with the same labels and are left out" in found.warnings


def test_folders_further_out_than_the_ranks_of_a_list_of_paths(tmp_path):
    kinds = [(side, *kind) for side in ("train", "test") for kind in ("xa", "xb", "yc")]
    paths = [f"{side}/{order}/{kind}/{side}{kind}.jpg" for side, order, kind in kinds]
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"x")
    file = tmp_path / "all.txt"
    file.write_text("\n".join(paths))
    with pytest.raises(UserError, match=r"such as x and y: .* --ranks species,family; .* --columns path"):
        lists.read([ListFile(None, file)])
    alone = lists.read([ListFile(None, file)], columns=["path"])
    assert alone.frame["name_L10"].cast(pl.String).to_list() == ["a", "b", "c"] * 2
    both = lists.read([ListFile(None, file)], ranks=["L10", "L30"])
    assert both.frame["name_L30"].cast(pl.String).to_list() == ["x", "x", "y"] * 2
