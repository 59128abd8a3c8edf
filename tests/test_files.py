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
