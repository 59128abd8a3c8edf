"""Picture folders: what is in them, and that no path leads out of one."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pytest

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading.picture_folder import find_files, list_files, open_folder, relative_to, unclaimed

#: how such a path is to be written
RELATIVE = "; write it relative to the folder of pictures"


def touch(root: Path, *paths: str) -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"x")
    return root


def found(root: Path, *named: str | None, whole: bool = False, **options) -> list[tuple]:
    listing = list_files(root, **options) if whole else None
    return find_files(pl.Series("named", named, dtype=pl.String), root, listing, **options).rows()


@pytest.fixture
def root(tmp_path):
    return touch(
        tmp_path / "pictures", "b/2.JPG", "b/10.jpg", "a.png", "b/c/deep.webp", "b/note.txt", ".hidden.jpg", "out/x.jpg"
    )


def test_listing_is_sorted_and_leaves_out_hidden_files_and_folders_asked_for(root):
    (root / ".cache").mkdir()
    touch(root, ".cache/y.jpg")
    listing = list_files(root, leave_out=[root / "out"])
    assert listing.files == ["a.png", "b/10.jpg", "b/2.JPG", "b/c/deep.webp", "b/note.txt"]
    assert listing.pictures() == ["a.png", "b/10.jpg", "b/2.JPG", "b/c/deep.webp"]
    assert listing.folders == ["", "b", "b/c"]
    assert listing.refused == {}


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    "named",
    [
        "b/c/deep.webp",
        "./b/c/deep.webp",
        "b//c/deep.webp",
        "b\\c\\deep.webp",
        "b/c/deep",
        "b/c/deep.WEBP",
        "{root}/b/c/deep.webp",
        "file://{root}/b/c/deep.webp",
    ],
)
def test_ways_to_name_a_file(root, named, whole):
    assert found(root, named.format(root=root), whole=whole) == [("b/c/deep.webp", None, None)]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    ("named", "detail"),
    [
        ("../x.jpg", "'..' in the path"),
        ("b/../../x.jpg", "'..' in the path"),
        ("b/../a.png", "'..' in the path"),
        ("..\\x.jpg", "'..' in the path"),
        ("/etc/passwd", f"an absolute path out of the folder{RELATIVE}"),
        ("C:\\x.jpg", f"an absolute path out of the folder{RELATIVE}"),
        ("\\\\server\\share\\x.jpg", f"an absolute path out of the folder{RELATIVE}"),
        ("a\0.png", "a control character in the path"),
        ("a\n.png", "a control character in the path"),
    ],
)
def test_paths_that_are_refused(root, named, detail, whole):
    assert found(root, named, whole=whole) == [(named, "unsafe path", detail)]


@pytest.mark.parametrize("start", ["C:\\Users\\me\\", "\\\\server\\share\\", "/home/else/", "file:///D:/", "c:/b/"])
def test_paths_of_another_computer_are_cut_where_one_start_fits_all(root, start):
    separator = "\\" if "\\" in start else "/"
    named = pl.Series(
        [start + name.replace("/", separator) for name in ("b/2.JPG", "a.png", "b/c/none.jpg")] + [None, "a.png"]
    )
    cut, (said,) = relative_to(named, root)
    assert cut.to_list() == ["b/2.JPG", "a.png", "b/c/none.jpg", None, "a.png"]
    assert said.startswith("3 absolute paths of another computer are read without ")
    assert said.endswith(" is b/2.JPG below pictures")


def test_paths_of_another_computer_that_fit_in_several_ways_are_left_out_and_told(root):
    """Two cameras whose pictures have the same names."""
    named = pl.Series(["D:\\cam1\\a.png", "D:\\cam2\\a.png"])
    cut, (said,) = relative_to(named, root)
    assert cut.to_list() == named.to_list()
    assert "2 starts of them lead to files below pictures: D:/cam1, D:/cam2; write them relative" in said
    for nothing in (["D:\\cam1\\z.png"], ["/etc/passwd"], ["C:\\..\\a.png\\"], ["a.png", "b/2.JPG"]):
        assert relative_to(pl.Series(nothing), root)[1] == []
    inside = pl.Series([str(root / "a.png")])
    assert relative_to(inside, root)[1] == []


@pytest.mark.parametrize("whole", [False, True])
def test_missing_and_ambiguous(root, whole):
    touch(root, "b/10.png", "d/one.jpg", "d/one.JPG")
    assert found(root, "b/11.jpg", "nowhere/1.jpg", "b/10", "d/one.Jpg", None, "b", whole=whole) == [
        ("b/11.jpg", "no such picture", None),
        ("nowhere/1.jpg", "no such picture", None),
        ("b/10", "no such picture", "2 files fit: b/10.jpg, b/10.png"),
        ("d/one.Jpg", "no such picture", "2 files fit: d/one.JPG, d/one.jpg"),
        (None, None, None),
        ("b", "no such picture", None),
    ]


@pytest.mark.parametrize("whole", [False, True])
def test_links(root, tmp_path, whole):
    outside = touch(tmp_path / "pictures of others", "secret.jpg")  # the name begins as that of the folder
    (root / "inner.jpg").symlink_to(root / "a.png")
    (root / "inner").symlink_to(root / "b")
    (root / "loop").symlink_to(root)
    (root / "file.jpg").symlink_to(outside / "secret.jpg")
    (root / "folder").symlink_to(outside)
    named = ("inner.jpg", "inner/2.JPG", "file.jpg", "folder/secret.jpg")
    inner = found(root, *named[:2], whole=whole)
    assert inner[0] == ("inner.jpg", None, None)
    assert inner[1] in [("inner/2.JPG", None, None), ("b/2.JPG", None, None)]
    refused = [(name, "unsafe path", "a link that leads out of the folder") for name in named[2:]]
    assert found(root, *named[2:], whole=whole) == refused
    assert found(root, *named[2:], whole=whole, follow_links=True) == [(name, None, None) for name in named[2:]]
    listing = list_files(root)
    assert set(listing.refused) == {"file.jpg", "folder"}
    assert "folder/secret.jpg" in list_files(root, follow_links=True).files
    ring = touch(tmp_path / "ring", "a/p.jpg")
    (ring / "a/back").symlink_to(ring)
    assert list_files(ring, follow_links=True).files == ["a/p.jpg"]


def test_names_that_are_not_text(root):
    touch(root, "new\nline.jpg", "right\u202etoleft.jpg", "\U0001f98b.jpg", "cafe\u0301.jpg")
    (root / os.fsdecode(b"bad\xff")).mkdir()
    (root / os.fsdecode(b"bad\xff/p.jpg")).write_bytes(b"")
    listing = list_files(root)
    assert listing.refused == {
        "bad\udcff/p.jpg": "a name that is not UTF-8",
        "new\nline.jpg": "a control character in the path",
    }
    rest = unclaimed(listing, pl.Series([], dtype=pl.String)).filter(pl.col("reason") == "unsafe path")
    assert rest.select("picture", "detail").rows() == [
        ("bad\\udcff/p.jpg", "a name that is not UTF-8"),
        ("new\nline.jpg", "a control character in the path"),
    ]
    assert "new\nline.jpg" not in unclaimed(listing, pl.Series(["new\nline.jpg"]))["picture"], "its record says it"
    assert found(root, "\U0001f98b.jpg", "caf\u00e9.jpg", "right\u202etoleft.jpg") == [
        ("\U0001f98b.jpg", None, None),
        ("cafe\u0301.jpg", None, None),
        ("right\u202etoleft.jpg", None, None),
    ]


def test_unclaimed_pictures(root):
    (root / "gone").symlink_to("/etc")
    rest = unclaimed(list_files(root), pl.Series(["a.png", None, "b/2.JPG"]))
    assert rest.select("picture", "reason", "detail").rows() == [
        ("b/10.jpg", "no record names it", None),
        ("b/c/deep.webp", "no record names it", None),
        ("out/x.jpg", "no record names it", None),
        ("gone", "unsafe path", "a link that leads out of the folder"),
    ]


def test_no_such_folder(tmp_path):
    with pytest.raises(UserError, match=r"picture folder '.*nowhere' does not exist"):
        open_folder(tmp_path / "nowhere")
    touch(tmp_path, "file")
    with pytest.raises(UserError, match="is not a folder"):
        open_folder(tmp_path / "file")


#: what lies beside pictures on disks of Synology, QNAP, macOS, Windows and Linux, and in folders of programs
OF_SYSTEMS = [
    *("@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg", "a/@eaDir/1.jpg/SYNOPHOTO_THUMB_XL.jpg", "a/SYNOFILE_THUMB_S.png"),
    *("#recycle/a/2.jpg", "#snapshot/x/3.jpg", "@Recycle/4.jpg", ".@__thumb/s8001.jpg", "@Recently-Snapshot/5.jpg"),
    *("$RECYCLE.BIN/S-1-5-21/$R1.jpg", "RECYCLER/6.jpg", "System Volume Information/7.png", "FOUND.000/8.jpg"),
    *(".Trash-1000/files/9.jpg", ".Trashes/501/10.jpg", "lost+found/11.jpg", ".thumbnails/normal/12.png"),
    *("__MACOSX/a/._1.jpg", "a/._1.jpg", ".AppleDouble/1.jpg", "Network Trash Folder/13.jpg"),
    *("Catalog Previews.lrdata/0/14.jpg", ".picasaoriginals/15.jpg", "a/CaptureOne/Cache/16.jpg", ".git/17.png"),
    *(
        "Fotos.photoslibrary/r/1.jpg",
        ".ipynb_checkpoints/1-checkpoint.png",
        "a/__pycache__/18.png",
        "Thumbnails/19.jpg",
    ),
]


def test_what_systems_made_for_themselves_is_left_aside_and_counted(tmp_path):
    touch(tmp_path, "a/1.jpg", "b.lr/2.jpg", "a/recycled paper.jpg", "a/Thumbs.db", ".DS_Store", *OF_SYSTEMS)
    listing = list_files(tmp_path)
    assert listing.pictures() == ["a/1.jpg", "a/recycled paper.jpg", "b.lr/2.jpg"]
    assert sorted(listing.of_systems) == sorted(OF_SYSTEMS)
    assert set(listing.folders) == {"", "a", "b.lr"}
    (warning,) = listing.warnings()
    assert warning.startswith(f"{len(OF_SYSTEMS)} pictures are left aside, since they are thumbnails, trash or ")
    assert "@eaDir 2" in warning
    assert unclaimed(listing, pl.Series(["a/1.jpg"])).select("picture").to_series().to_list() == [
        "a/recycled paper.jpg",
        "b.lr/2.jpg",
    ]


@pytest.mark.parametrize("path", ["@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg", "lost+found/11.jpg", ".Trashes/501/10.jpg"])
def test_a_folder_of_a_system_that_is_named_is_read(tmp_path, path):
    touch(tmp_path, "a/1.jpg", *OF_SYSTEMS)
    top = tmp_path / path.partition("/")[0]
    inside = path.partition("/")[2]
    assert list_files(tmp_path, [path.rpartition("/")[0]]).files == ([path] if "SYNO" not in path else [])
    if "SYNO" not in path:
        assert list_files(top).pictures() == [inside]
    for listing in (None, list_files(tmp_path)):
        assert find_files(pl.Series([path]), tmp_path, listing).row(0) == (path, None, None)
