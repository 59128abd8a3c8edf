"""Failures of the world around a run are one line with what to do; those of the program are not hidden."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import sys
import threading
from types import SimpleNamespace

import jax
import pytest
from absl import logging as absl_logging

from linnaeus_jax.data.images import ImageReadError
from linnaeus_jax.reporting.logs import LogFile
from linnaeus_jax.run.failures import as_infrastructure_error, background_errors

FULL = "/dev/full"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "/run/x"),
            r"/run/x: No space left on device \(it takes more than the \d+\.\d MiB that are free\); free space there",
        ),
        (OSError(errno.EFBIG, "File too large"), "ulimit -f"),
        (PermissionError(errno.EACCES, "Permission denied", "/run/x"), "restore the permission"),
        (OSError("data.h5: cut\nshort"), "data.h5: cut short; then rerun"),
        (ImageReadError("row 3: x.jpg: gone"), "row 3: x.jpg: gone"),
        (RuntimeError("can't start new thread"), "out of memory"),
        (MemoryError(), r"out of memory: lower data\.batch_size"),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 12 GB"), r"out of memory \(RESOURCE_EXHAUSTED: 12 GB\)"),
    ],
)
def test_what_the_world_did_is_one_line(error, says):
    with pytest.raises(Exception, match=says) as found:
        raise as_infrastructure_error(error) or AssertionError("not explained")
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("error", [ValueError("x"), jax.errors.JaxRuntimeError("INTERNAL: x"), RuntimeError("x")])
def test_faults_of_the_program_are_none_of_the_world(error):
    assert as_infrastructure_error(error) is None


def test_a_log_on_a_full_disk_says_so_once(tmp_path, capsys):
    (tmp_path / "log.txt").symlink_to(FULL)
    handler = LogFile(tmp_path / "log.txt")
    for _ in range(3):
        handler.handle(logging.LogRecord("x", logging.INFO, "x", 1, "text", None, None))
    handler.close()
    out, err = capsys.readouterr()
    assert " ".join(out.split()).count("cannot be written ([Errno 28] No space left on device)") == 1
    assert not err


def test_arrays_of_a_save_that_failed_print_no_tracebacks(caplog, capfd):
    async def write(steps: int) -> None:
        for _ in range(steps):
            await asyncio.sleep(0)
        raise ValueError("No space left on device")

    async def shards(steps: int) -> None:
        await asyncio.gather(*map(write, range(steps, 10)))

    async def save() -> None:
        # as orbax: the loop ends at the first error, when others have failed just now
        await asyncio.gather(*map(write, range(10)), *map(shards, range(10)))

    caplog.set_level("DEBUG", "linnaeus_jax")
    with background_errors():
        loop = asyncio.new_event_loop()
        with pytest.raises(ValueError, match="No space left"):
            loop.run_until_complete(save())
        # as of a file that orbax writes in a thread
        loop.create_future().set_exception(OSError(errno.ENOSPC, "No space left on device"))
        loop.close()
        gc.collect()
        logging.getLogger("asyncio").error("another")
    shown = [record.getMessage() for record in caplog.records if not getattr(record, "files_only", False)]
    assert shown == ["another"]
    hidden = [record for record in caplog.records if getattr(record, "files_only", False)]
    assert hidden
    assert all(record.exc_info for record in hidden)
    assert "Traceback" not in capfd.readouterr().err


def test_tracebacks_of_libraries_go_to_the_log_files(caplog, capsys, monkeypatch):
    def fails() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def logs() -> None:
        try:
            fails()
        except OSError:
            absl_logging.exception("saving failed")

    ignored: list[sys.UnraisableHookArgs] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    caplog.set_level("DEBUG", "linnaeus_jax")
    with background_errors():
        for work in (fails, logs):
            thread = threading.Thread(target=work, name="writer")
            thread.start()
            thread.join()
        for text in ("Event loop is closed", "another"):  # as a thread of tensorstore prints them
            sys.unraisablehook(SimpleNamespace(exc_value=RuntimeError(text)))
    assert sys.unraisablehook == ignored.append
    assert [str(args.exc_value) for args in ignored] == ["another"]
    assert "Traceback" not in capsys.readouterr().err
    shown = [record.getMessage() for record in caplog.records if not getattr(record, "files_only", False)]
    assert shown == ["writer ended: [Errno 28] No space left on device"]
    hidden = [record for record in caplog.records if getattr(record, "files_only", False)]
    assert [bool(record.exc_info) for record in hidden] == [True, True, True]
