"""Atomic writes: the old or the new file, readable by whom the umask says, and nothing else left."""

from __future__ import annotations

import os
import stat

import pytest

from linnaeus_jax import files


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_files_obey_the_umask(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        files.write_json(tmp_path / "x.json", {"a": 1})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x.json").stat().st_mode) == mode


def test_a_failed_write_leaves_the_old_file_alone(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    files.write_json(path, {"a": 1})

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_json(path, {"a": 2})
    assert path.read_text() == '{\n "a": 1\n}\n'
    assert [found.name for found in tmp_path.iterdir()] == ["x.json"]


def test_digests_tell_what_a_run_wrote_from_what_is_there(tmp_path):
    run = files.RunDirectory(tmp_path)
    run.create()
    tree, log = run.assets / "tree.json", run.metrics_log
    with run.writing(tree, log, run.config_json):
        files.write_json(tree, {"a": 1})
        log.write_text("one row\n")
    with log.open("a") as file:  # it grows, which is no damage
        file.write("another\n")
    for path in (tree, log, run.config_json, run.progress_json):  # the last two were not written
        run.check(path)
    sound = tree.read_bytes(), log.read_bytes()

    tree.write_bytes(sound[0].replace(b"1", b"2"))
    with pytest.raises(files.DamagedFileError, match=r"tree\.json is damaged or was changed.* remove .*digests\.json"):
        run.read_json(tree)
    tree.unlink()
    with pytest.raises(files.DamagedFileError, match=r"tree\.json is missing"):
        run.check(tree)
    log.write_text("one")
    with pytest.raises(files.DamagedFileError, match="it has 3 of 8 bytes"):
        run.check(log)

    killed = run.writing(tree)
    killed.__enter__()
    tree.write_text("{}")
    run.check(tree)  # nothing is said of the file
    (tmp_path / files.DIGESTS).write_text('{"assets/tree.json": 3}')
    with pytest.raises(files.DamagedFileError, match=r"digests\.json is damaged; remove it"):
        run.check(tree)
    with run.writing(tree):
        files.write_json(tree, {})
    run.check(tree)


def test_the_identity_of_a_run_outlasts_its_file(tmp_path):
    run = files.RunDirectory(tmp_path)
    assert [run.keep_run_id("first"), run.keep_run_id("second")] == ["first", "first"]
    for damaged in (b"", b"\xff\xfe", b"fir3t\n"):
        run.run_id_file.write_bytes(damaged)
        assert run.keep_run_id("third", saved="first") == "first"
        assert run.run_id_file.read_text() == "first\n"


def test_an_error_while_a_file_is_replaced_names_the_file_itself(tmp_path):
    """Not the one that it was written to first, which nobody knows."""
    (tmp_path / "x.json").mkdir()
    with pytest.raises(OSError, match=r"x\.json'") as found:
        files.write_atomically(tmp_path / "x.json", "text")
    assert ".tmp" not in str(found.value)
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
