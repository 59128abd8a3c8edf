"""A write that fails names its file, what is free and what to do, by any library; nothing half-written stays."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from PIL import Image

from linnaeus_jax import system
from linnaeus_jax.config.errors import UserError, described
from linnaeus_jax.config.exit_status import exit_status
from linnaeus_jax.data.hdf5 import write_hdf5
from linnaeus_jax.files import replaced_directory, replaced_file, write_json
from linnaeus_jax.reporting.metrics_log import MetricsLog
from linnaeus_jax.run.checkpoints import CheckpointError, Checkpoints
from linnaeus_jax.run.failures import as_infrastructure_error
from linnaeus_jax.weights.files import write_state

pytestmark = pytest.mark.needs("linux")
LIMIT = 4096
NOISE = np.random.default_rng(0).integers(0, 256, 1 << 16, np.uint8)


@contextlib.contextmanager
def small_files() -> Iterator[None]:
    """Within the block the system refuses what makes a file larger than `LIMIT` bytes, as a disk that is full."""
    before = system.resource.getrlimit(system.resource.RLIMIT_FSIZE)
    system.resource.setrlimit(system.resource.RLIMIT_FSIZE, (LIMIT, before[1]))
    try:
        yield
    finally:
        system.resource.setrlimit(system.resource.RLIMIT_FSIZE, before)


def by_hdf5(path: Path) -> None:
    with write_hdf5(path) as file:
        assert not path.exists()
        for number in range(50):
            file[f"column_{number}"] = NOISE[:1000]
        file.create_dataset("texts", data=np.array(["x" * 99] * 999, object), dtype=h5py.string_dtype())
        file.create_dataset("chunks", data=NOISE, chunks=(64,), compression="gzip")


class Writer:
    """Has its file as an attribute."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)

    def write(self) -> None:
        try:
            for _ in range(2):  # the first write does what it can
                self._file.write(NOISE.tobytes())
        finally:
            self._file.close()


def by_numpy(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, NOISE)


WRITERS: dict[str, Callable[[Path], object]] = {
    "bytes": lambda path: path.write_bytes(NOISE.tobytes()),
    "an attribute": lambda path: Writer(path).write(),
    "NumPy": by_numpy,
    "HDF5": by_hdf5,
    "Polars": lambda path: pl.DataFrame({"x": NOISE}).write_parquet(path, compression="uncompressed"),
    "Pillow": lambda path: Image.fromarray(NOISE.reshape(256, 256)).save(path, "png"),
    "a copy": lambda path: shutil.copyfile(__file__, path),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the file that cannot be closed
def test_a_file_that_cannot_be_written_is_named(tmp_path, capsys, writer):
    out = tmp_path / "out"
    for path in (out / "file", out / "folder" / "file"):

        def write(path: Path = path) -> None:
            if path.parent == out:
                with replaced_file(path) as unfinished:
                    WRITERS[writer](unfinished)
            else:
                with replaced_directory(path.parent) as folder:
                    WRITERS[writer](folder / path.name)

        with small_files():
            assert exit_status(write) == 2
        said = capsys.readouterr().err
        assert said.startswith((f"{path}: File too large", f"{path.parent}: File too large"))
        assert "raise the limit of file sizes (ulimit -f), or choose another place" in said
        assert said.count("\n") == 1
        assert list(out.iterdir()) == []
        assert exit_status(write) == 0
        shutil.rmtree(out)


@pytest.mark.parametrize("writer", [name for name in WRITERS if name not in ("Polars", "a copy")])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_so_is_one_that_nothing_replaces(tmp_path, capsys, writer):
    def write() -> None:
        WRITERS[writer](tmp_path / "file")

    with small_files():
        assert exit_status(write) == 2
    assert capsys.readouterr().err.startswith(f"{tmp_path / 'file'}: File too large; ")


def test_weights_and_logs(tmp_path):
    with small_files():
        with pytest.raises(UserError, match=rf"{tmp_path}/w\.safetensors cannot be written: File too large; raise"):
            write_state(tmp_path / "w.safetensors", {"a": NOISE}, {})
        log = MetricsLog(tmp_path / "log.jsonl")
        with pytest.raises(UserError, match=rf"cannot write {log.path}: File too large; .*; then rerun the command"):
            log.write("x", 0, 0, {"text": "x" * 2 * LIMIT})
    assert not (tmp_path / "w.safetensors").exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of threads that go on
def test_a_checkpoint(tmp_path):
    with contextlib.closing(Checkpoints(tmp_path / "checkpoints")) as checkpoints:
        state = {"a": jnp.asarray(NOISE)}
        checkpoints.save(1, state, {})
        checkpoints.wait()

        def save() -> None:
            checkpoints.save(2, state, {})
            checkpoints.wait()

        with small_files(), pytest.raises(CheckpointError) as caught:
            save()
    said = str(caught.value)
    assert f"{tmp_path}/checkpoints" in said
    assert "File too large; raise the limit" in said
    assert said.endswith("then rerun the command to resume from the newest checkpoint")
    with contextlib.closing(Checkpoints(tmp_path / "checkpoints")) as checkpoints:
        assert checkpoints.steps() == [1]


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (OSError(errno.ENOSPC, "full", "a", None, "b"), "b"),
        (OSError(errno.EIO, "broken", "a", None, "b"), "a"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), None),
        (OSError("Can't write (time = now\n, filename = '/x/y.h5', errno = 28, buf = 0)"), "/x/y.h5"),
        (ValueError("RESOURCE_EXHAUSTED: Error writing local file \"/x/d\": full [os_error_code='28']"), "/x/d"),
        (RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"), None),
    ],
)
def test_errors_of_every_library_are_those_of_the_system(error, name):
    found = system.write_error(error)
    assert found is not None
    assert found.filename == name
    assert found.strerror == os.strerror(found.errno or 0)
    failure = as_infrastructure_error(error)
    assert failure is not None
    assert "out of memory" not in str(failure)
    assert "\n" not in str(failure)
    with pytest.raises(OSError, match=f"{name or '/the/folder'}"), system.naming(Path("/the/folder")):
        raise error


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), OSError("a.h5: cut"), OSError(errno.ENOENT, "no", "x"), RuntimeError("RESOURCE_EXHAUSTED")],
)
def test_other_errors_are_none_of_writing(error):
    assert system.write_error(error) is None
    with pytest.raises(type(error)) as caught, system.naming(Path("x")):
        raise error
    assert caught.value is error


def test_a_full_disk_says_how_much_is_free(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=3 << 19)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage if path == tmp_path else None)
    said = described(OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "new" / "x.h5")))
    assert said == (
        f"{tmp_path}/new/x.h5: No space left on device (it takes more than the 1.5 MiB that are free); free space "
        "there, or choose another place"
    )


def test_files_in_memory_have_no_name():
    def write(file: io.BytesIO) -> None:
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError) as caught:
        write(io.BytesIO())
    found = system.write_error(caught.value)
    assert found is not None
    assert found.filename is None


def test_json_on_a_full_device(tmp_path):
    """A real ENOSPC."""

    def write() -> None:
        with open("/dev/full", "w", encoding="utf-8") as file:
            json.dump({}, file)
            file.flush()

    with pytest.raises(OSError) as caught:
        write()
    assert described(caught.value).startswith("/dev/full: No space left on device (it takes more than the ")
    write_json(tmp_path / "x.json", {})
