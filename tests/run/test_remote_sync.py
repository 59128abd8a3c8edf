"""Background copies of a run directory, with a scripted rclone and, where it is installed, the real one."""

from __future__ import annotations

import json
import logging
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from linnaeus_jax.run.remote_sync import RemoteSync, RemoteSyncError, remote_directory
from linnaeus_jax.run.trainer import UserError, run
from tests.needs import program
from tests.step import toy
from tests.tiny import tiny_config

ID = "run_id.txt"
#: what rclone does between local directories, as far as it is used here
RCLONE = """
echo "$@" >> "$0.calls"
case "$1" in
  cat) test -f "$2" || exit 3; cat "$2";;
  lsf) test -d "$2" || exit 3; ls "$2";;
  copyto) mkdir -p "${3%/*}" && cp "$2" "$3";;
  copy) case "$*" in *"--exclude /stored/**"*) left="--exclude ./stored";; esac
    mkdir -p "$3" && tar -C "$2" --exclude ./checkpoints $left -c . | tar -C "$3" -x;;
  sync) rm -rf "$3" && mkdir -p "$3" && tar -C "$2" --exclude '*tmp*' -c . | tar -C "$3" -x;;
  *) exit 64;;
esac
"""


def script(path: Path, text: str) -> str:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return str(path)


@pytest.fixture(params=["scripted", pytest.param("real", marks=pytest.mark.needs("rclone"))])
def rclone(request, tmp_path) -> str:
    if request.param == "real":
        return str(program("rclone"))
    return script(tmp_path / "rclone", RCLONE)


@pytest.fixture
def source(tmp_path) -> Path:
    return run_directory(tmp_path / "run", "one")


def run_directory(path: Path, run_id: str) -> Path:
    path.mkdir()
    (path / ID).write_text(run_id + "\n")
    (path / "config.json").write_text("{}")
    return path


def checkpoint(source: Path, step: int) -> Path:
    path = source / "checkpoints" / f"ckpt_step_{step}"
    (path / "state").mkdir(parents=True)
    (path / "state" / "array").write_text(str(step))
    (source / "checkpoints" / f"boundary_{step}.json").write_text("{}")
    return path


@pytest.fixture
def syncing() -> Iterator[Callable[..., RemoteSync]]:
    """Makes copiers and ends those that the test left open."""
    made = []

    def make(source: Path, remote: str | Path, executable: str, timeout: float = 60) -> RemoteSync:
        made.append(RemoteSync(source, str(remote), ID, executable, timeout))
        return made[-1]

    yield make
    for sync in made:
        sync.close()
    assert "remote-sync" not in {thread.name for thread in threading.enumerate()}


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize(
    ("remote", "expected"),
    [("b2:", "b2:p/g/n"), ("b2:bucket/x", "b2:bucket/x/p/g/n"), ("/mnt/copies/", "/mnt/copies/p/g/n")],
)
def test_names_below_the_remote(remote, expected):
    assert remote_directory(remote, "p", "g", "n") == expected


def test_copies_on_request_and_at_the_end(source, tmp_path, rclone, syncing, caplog):
    sync = syncing(source, tmp_path / "remote", rclone)
    sync.claim()
    assert names(tmp_path / "remote") == [ID], "the mark comes first"
    (source / "stored").mkdir()
    (source / "stored" / "train.bin").write_text("of this machine's disk, and larger than all else")
    sync.request()
    wait_for((tmp_path / "remote" / "config.json").exists)
    (source / "late.txt").write_text("written after the last request")
    sync.close()
    assert names(tmp_path / "remote") == ["config.json", "late.txt", ID]
    assert "training goes on" not in caplog.text


def test_retention_acts_remotely(source, tmp_path, rclone, syncing, caplog):
    remote = tmp_path / "remote"
    sync = syncing(source, remote, rclone)
    sync.claim()
    for step in (6, 12, 18):
        checkpoint(source, step)
        (source / "checkpoints" / "ckpt_step_24.orbax-checkpoint-tmp-1").mkdir(exist_ok=True)
        (source / "checkpoints" / "ckpt_step_24.orbax-checkpoint-tmp-1" / "half").write_text("")
        sync.request()
        array = remote / "checkpoints" / f"ckpt_step_{step}" / "state" / "array"
        wait_for(lambda: array.exists() and sync._process.returncode is not None)  # noqa: B023
    for step in (6, 12):  # retention keeps one
        shutil.rmtree(source / "checkpoints" / f"ckpt_step_{step}")
        (source / "checkpoints" / f"boundary_{step}.json").unlink()
    sync.close()
    assert names(remote / "checkpoints") == ["boundary_18.json", "ckpt_step_18"]
    assert names(remote) == ["checkpoints", "config.json", ID]
    assert "training goes on" not in caplog.text


def test_remote_checkpoints_outlive_local_ones_that_all_vanish(source, tmp_path, rclone, syncing):
    sync = syncing(source, tmp_path / "remote", rclone)
    sync.claim()
    checkpoint(source, 6)
    sync.request()
    array = tmp_path / "remote" / "checkpoints" / "ckpt_step_6" / "state" / "array"
    wait_for(lambda: array.exists() and sync._process.returncode is not None)
    shutil.rmtree(source / "checkpoints")
    (source / "checkpoints").mkdir()
    (source / "late.txt").write_text("")
    sync.close()
    assert (tmp_path / "remote" / "late.txt").exists()
    assert array.read_text() == "6"


@pytest.mark.needs("rclone")
def test_nothing_is_deleted_when_a_transfer_fails(source, tmp_path, syncing, caplog):
    remote = tmp_path / "remote"
    sync = syncing(source, remote, "rclone")
    sync.claim()
    checkpoint(source, 6)
    sync.request()
    array = remote / "checkpoints" / "ckpt_step_6" / "state" / "array"
    wait_for(lambda: array.exists() and sync._process.returncode is not None)
    shutil.rmtree(source / "checkpoints" / "ckpt_step_6")
    checkpoint(source, 12)
    (remote / "checkpoints" / "ckpt_step_12").write_text("in the way")  # a directory cannot be made here
    sync.close()
    assert caplog.text.count("training goes on") == 1
    assert array.exists()


def test_remote_of_another_run_is_refused_and_untouched(source, tmp_path, rclone, syncing):
    first = syncing(source, tmp_path / "remote", rclone)
    first.claim()
    first.close()
    other = run_directory(tmp_path / "other", "two")
    (other / "config.json").write_text("[]")
    second = syncing(other, tmp_path / "remote", rclone)
    with pytest.raises(RemoteSyncError, match=r"holds run one and this is run two; choose another experiment.name"):
        second.claim()
    second.close()
    assert (tmp_path / "remote" / "config.json").read_text() == "{}"
    resumed = syncing(source, tmp_path / "remote", rclone)
    resumed.claim()
    assert resumed.claimed


def test_remote_with_files_of_unknown_origin_is_refused(source, tmp_path, rclone, syncing):
    (tmp_path / "remote").mkdir()
    (tmp_path / "remote" / "thesis.tex").write_text("")
    with pytest.raises(RemoteSyncError, match=r"holds thesis.tex and more but no run_id.txt"):
        syncing(source, tmp_path / "remote", rclone).claim()
    assert names(tmp_path / "remote") == ["thesis.tex"]


def test_unreachable_remote_warns_and_stops_nothing(source, tmp_path, syncing, caplog):
    sync = syncing(source, "nowhere:", script(tmp_path / "rclone", "echo no such remote >&2; exit 1\n"))
    sync.claim()
    assert not sync.claimed
    sync.close()
    assert caplog.text.count("training goes on") == 2
    assert "no such remote" in caplog.text


def test_remote_that_could_not_be_reached_at_the_start_is_asked_before_the_first_copy(
    source, tmp_path, syncing, caplog
):
    away = script(tmp_path / "rclone", "exit 1\n")
    sync = syncing(source, tmp_path / "remote", away)
    sync.claim()
    run_directory(tmp_path / "remote", "two")
    script(tmp_path / "rclone", RCLONE)
    with caplog.at_level(logging.ERROR):
        sync.close()
    assert "holds run two and this is run one" in caplog.text
    assert (tmp_path / "remote" / ID).read_text() == "two\n"
    assert not any(line.startswith(("copy", "sync")) for line in Path(f"{away}.calls").read_text().splitlines())


def test_missing_program_warns(source, syncing, caplog):
    syncing(source, "nowhere:", "/no/such/rclone").close()
    assert "/no/such/rclone" in caplog.text


def test_slow_last_copy_is_ended(source, tmp_path, syncing, caplog):
    slow = RCLONE.replace("  copy)", "  copy) exec sleep 60;;\n  never)")
    sync = syncing(source, tmp_path / "remote", script(tmp_path / "rclone", slow), timeout=0.5)
    sync.claim()
    started = time.monotonic()
    sync.close()
    assert time.monotonic() - started < 20
    assert "was ended" in caplog.text


@pytest.mark.slow
def test_the_remote_of_a_run_holds_what_retention_keeps_and_refuses_another_run(tmp_path, monkeypatch):
    """The run is stopped early at a boundary where no checkpoint was due."""
    toy.register(monkeypatch)
    config = tiny_config(
        tmp_path / "data",
        model__type="toy",
        experiment__name="moths",
        train__epochs=6,
        train__early_stop__active=True,
        train__early_stop__max_steps=24,
        schedule__validation__interval_epochs=2,
        schedule__checkpoint__interval_epochs=1,
        schedule__checkpoint__keep_last_n=1,
        env__output__bucket__enabled=True,
        env__output__bucket__remote=str(tmp_path / "remote"),
        env__output__bucket__executable=script(tmp_path / "rclone", RCLONE),
    )
    final = run(config, tmp_path / "run")
    assert final["final_val_loss"] > 0
    kept = ["boundary_24.json", "ckpt_step_24"]
    assert names(tmp_path / "run" / "checkpoints") == kept
    remote = tmp_path / "remote" / "linnaeus" / "default" / "moths"
    assert names(remote / "checkpoints") == kept
    assert (remote / ID).read_text() == (tmp_path / "run" / ID).read_text()
    ranking = json.loads((remote / "checkpoints" / "boundary_24.json").read_text())["ranking"]
    assert list(ranking) == ["24"], "the closing checkpoint is ranked by its closing validation"
    with pytest.raises(UserError, match=r"holds run \w+ and this is run \w+; choose another experiment\.name"):
        run(config, tmp_path / "other")
    assert names(remote / "checkpoints") == kept
