"""Files, folders and patterns -> pictures, and their parts."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.inference.files.picture_list import PictureFile, list_pictures, of_shard, stamp_of
from linnaeus_jax.reading.paths import Shard


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    for name in ("b.jpg", "a.PNG", "notes.txt", ".hidden.jpg", "sub/c.jpeg", "sub/deep/d.tif"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(*given: str, recursive: bool = True) -> list[str]:
    return [picture.name for picture in list_pictures(given, recursive=recursive)]


def test_folders_give_their_pictures_in_order(folder):
    everything = ["photos/a.PNG", "photos/b.jpg", "photos/sub/c.jpeg", "photos/sub/deep/d.tif"]
    assert names("photos") == names("photos/") == everything
    assert names("photos", recursive=False) == everything[:2]
    assert names(str(folder / "photos"))[0] == str(folder / "photos" / "a.PNG")
    assert [picture.relative for picture in list_pictures(["photos"])] == [
        "a.PNG",
        "b.jpg",
        "sub/c.jpeg",
        "sub/deep/d.tif",
    ]


def test_files_are_taken_as_they_are_and_as_often_as_they_are_named(folder):
    told: list[str] = []
    given = ["photos/notes.txt", "photos/b.jpg", "photos", "./photos/b.jpg"]
    found = [picture.name for picture in list_pictures(given, say=told.append)]
    everything = ["photos/a.PNG", "photos/b.jpg", "photos/sub/c.jpeg", "photos/sub/deep/d.tif"]
    assert found == ["photos/notes.txt", "photos/b.jpg", *everything, "./photos/b.jpg"]
    named_twice = f"1 pictures are named several times, and have an answer for each: {folder / 'photos/b.jpg'}"
    assert told[-1] == named_twice
    assert len(names("photos", "photos")) == 8


def test_patterns(folder):
    assert names("photos/**/*.jp*g") == ["photos/b.jpg", "photos/sub/c.jpeg"]
    (folder / "photos" / "odd[1].jpg").touch()  # a name that looks like a pattern is a name first
    assert names("photos/odd[1].jpg") == ["photos/odd[1].jpg"]
    assert names("photos/s*") == ["photos/sub/c.jpeg", "photos/sub/deep/d.tif"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("photos/none.jpg", r"photos/none.jpg does not exist; give files, folders or patterns"),
        ("photos/*.webp", r"no file fits the pattern photos/\*.webp"),
        ("empty", r"no pictures below empty"),
    ],
)
def test_nothing_there(folder, given, message):
    (folder / "empty").mkdir()
    with pytest.raises(UserError, match=message):
        list_pictures([given])


def test_names_that_cannot_be_written_are_faults(folder):
    os.close(os.open(os.fsencode(str(folder / "photos")) + b"/\xff.jpg", os.O_CREAT))
    (folder / "photos" / "two\nlines.jpg").touch()
    faults = {picture.name: picture.fault for picture in list_pictures(["photos"]) if picture.fault}
    assert faults == {
        "photos/\\udcff.jpg": "a name that is not UTF-8",
        "photos/two\nlines.jpg": "a control character in the path",
    }


def test_a_folder_that_cannot_be_read_is_a_fault(folder, monkeypatch):
    listed = os.scandir

    def scandir(path):
        if str(path).endswith("deep"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    faults = {picture.name: picture.fault for picture in list_pictures(["photos"]) if picture.fault}
    assert faults == {"photos/sub/deep": "cannot be read: Permission denied"}


def test_a_change_is_seen_by_the_size_and_by_the_time(folder):
    (picture,) = list_pictures(["photos/b.jpg"])
    stamps = set()
    for content, seconds in ((b"", 5), (b"a", 5), (b"a", 6)):
        picture.path.write_bytes(content)
        os.utime(picture.path, (seconds, seconds))
        stamps.add(stamp_of(picture))
    assert len(stamps) == 3


def test_links_are_followed(folder):
    os.symlink(folder / "photos" / "sub", folder / "photos" / "again")
    os.symlink(folder / "photos", folder / "photos" / "sub" / "round")  # would never end
    found = names("photos")
    assert "photos/again/c.jpeg" in found
    assert len(found) < 20


def test_shards_are_disjoint_cover_all_and_do_not_depend_on_the_others():
    def pictures(count: int, folder: str) -> list[PictureFile]:
        return [PictureFile(Path(f"{folder}/{i}.jpg"), f"{folder}/{i}.jpg", f"{i}.jpg") for i in range(count)]

    many = pictures(500, "a")
    parts = [of_shard(many, Shard(i, 4)) for i in (1, 2, 3, 4)]
    assert sorted(p.name for part in parts for p in part) == sorted(p.name for p in many)
    assert all(80 < len(part) < 170 for part in parts)
    fewer = of_shard(pictures(100, "/mounted/elsewhere"), Shard(2, 4))
    assert [p.relative for p in fewer] == [p.relative for p in parts[1] if int(p.path.stem) < 100]
    assert of_shard(many, Shard(1, 1)) == many


def test_thumbnails_of_systems_are_answered_only_where_they_are_named(folder):
    thumbnail = "photos/sub/@eaDir/c.jpeg/SYNOPHOTO_THUMB_M.jpg"
    for name in (thumbnail, "photos/#recycle/e.jpg"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).touch()
    everything, said = names("photos"), list[str]()
    assert not any("@" in name or "#" in name for name in everything)
    listed = list_pictures(["photos/**/*.*", "photos/*"], say=said.append)
    assert {picture.name for picture in listed} == {*everything, "photos/notes.txt"}
    assert said[0] == "photos/**/*.*: 3 files or folders of systems and programs are left aside"
    assert names(thumbnail) == [thumbnail]
    assert names("photos/#recycle") == names("photos/#recycle/*.jpg") == ["photos/#recycle/e.jpg"]
