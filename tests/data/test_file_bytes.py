"""Files that are read at any place."""

from __future__ import annotations

import os
import resource

import pytest

from linnaeus_jax.data.h5_direct import FileBytes


def test_more_files_than_a_process_may_open_at_first(tmp_path):
    path = tmp_path / "bytes"
    path.write_bytes(b"abc")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = len(os.listdir("/proc/self/fd")) + 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, before[1]))
    try:
        files = [FileBytes(path) for _ in range(50)]
        assert bytes(files[-1].read(1, 2)) == b"bc"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_what_the_system_reads_in_pieces(tmp_path, monkeypatch):
    path = tmp_path / "bytes"
    path.write_bytes(b"0123456789")
    read = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, into, start: read(file, [into[0][:2]], start))
    assert bytes(FileBytes(path).read(1, 7)) == b"1234567"
    with pytest.raises(OSError, match="ends after 10 bytes"):
        FileBytes(path).read(5, 7)
