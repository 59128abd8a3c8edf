"""What a build has written is on the disk before it counts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from linnaeus_jax.building.steps import build as building
from linnaeus_jax.building.steps.pixels import StreamedBytes


def test_what_is_written_of_pixels_is_seen_by_other_programs_at_once(tmp_path):
    file = StreamedBytes(tmp_path / "pixels")
    before = (tmp_path / "pixels").stat().st_size
    file.write(b"few")
    assert (tmp_path / "pixels").stat().st_size == before + 3
    file.close()


def test_names_are_on_the_disk_before_what_they_are_made_of_is_removed(tmp_path, monkeypatch):
    """Each change of the folder is on the disk before the next one may be."""
    work, done = tmp_path / building.WORK, []
    for name in ("a", "b"):
        work.mkdir(exist_ok=True)
        (work / name).write_text(name)

    def noted(name, function):
        def call(*args):
            done.append((name, *(Path(each).name for each in args)))
            return function(*args)

        return call

    for module, name in ((building, "sync"), (building, "sync_tree"), (os, "replace"), (shutil, "rmtree")):
        monkeypatch.setattr(module, name, noted(name, getattr(module, name)))
    building.commit(work, tmp_path, ("a", "b"))
    out, ended = tmp_path.name, f"{work.name}-done"
    done = [each for each in done if "commit.json" not in each]
    assert done[0] == ("sync_tree", work.name)
    assert done[1:4] == [("replace", "a", "a"), ("replace", "b", "b"), ("sync", out)]
    assert done[4:] == [("replace", work.name, ended), ("sync", out), ("rmtree", ended)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
