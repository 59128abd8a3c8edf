"""What may be written of a config, and the background copy of a run directory."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from pathlib import Path

import pytest

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.training.remote_sync import RemoteSync
from linnaeus_jax.training.run_directory import REDACTED, RunDirectory, config_difference, plain, redacted


def test_secrets_are_hidden():
    tree = {
        "wandb": {"api_key": "k-123", "project": "p"},
        "APP_KEY": "k-456",
        "url": "https://user:pass@host/x",
        "list": [{"password": "p-1"}],
        "empty_token": "",
    }
    text = json.dumps(redacted(tree))
    for secret in ("k-123", "k-456", "user:pass", "p-1"):
        assert secret not in text
    assert redacted(tree)["wandb"] == {"api_key": REDACTED, "project": "p"}
    assert redacted(tree)["empty_token"] == ""


def test_config_difference_names_leaves():
    old, new = get_config(), get_config()
    new.train.epochs = 7
    assert config_difference(plain(old), plain(new)) == [("train.epochs", 300, 7)]


def test_directory_from_config_and_placeholder(tmp_path):
    config = get_config()
    config.env.output.base_dir = str(tmp_path)
    directory = RunDirectory.of(config, None)
    assert directory.root == tmp_path / "linnaeus" / "default" / "run"
    assert directory.resolve("{output_dir}/assets/profiler") == directory.root / "assets" / "profiler"
    assert directory.resolve("logs/debug") == directory.root / "logs" / "debug"


def test_the_run_keeps_the_id_of_its_first_start(tmp_path):
    directory = RunDirectory(tmp_path)
    assert directory.keep_run_id("first") == "first"
    assert RunDirectory(tmp_path).keep_run_id("second") == "first"


def script(path: Path, text: str) -> str:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return str(path)


COPY = 'test "$1" = copy && mkdir -p "$3" && cp -r "$2/." "$3"\n'


@pytest.fixture
def source(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    return tmp_path / "run"


def test_copies_on_request_and_at_the_end(source, tmp_path):
    sync = RemoteSync(source, str(tmp_path / "remote"), script(tmp_path / "rclone", COPY), timeout=30)
    sync.request()
    deadline = time.monotonic() + 20
    while not (tmp_path / "remote" / "config.json").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    (source / "late.txt").write_text("written after the last request")
    sync.close()
    assert (tmp_path / "remote" / "late.txt").exists()
    assert sync.failures == 0
    assert "remote-sync" not in {thread.name for thread in threading.enumerate()}


def test_failure_warns_and_stops_nothing(source, tmp_path, caplog):
    sync = RemoteSync(source, "nowhere:", script(tmp_path / "rclone", "echo no such remote >&2; exit 3\n"), timeout=30)
    sync.request()
    sync.close()
    assert sync.failures >= 1
    assert "no such remote" in caplog.text
    assert "training goes on" in caplog.text


def test_missing_program_warns(source, caplog):
    sync = RemoteSync(source, "nowhere:", "/no/such/rclone", timeout=30)
    sync.close()
    assert "/no/such/rclone" in caplog.text


def test_slow_last_copy_is_ended(source, tmp_path, caplog):
    sync = RemoteSync(source, "x:", script(tmp_path / "rclone", "exec sleep 60\n"), timeout=0.5)
    started = time.monotonic()
    sync.close()
    assert time.monotonic() - started < 20
    assert "was ended" in caplog.text


@pytest.mark.skipif(
    not any(os.access(f"{p}/rclone", os.X_OK) for p in os.environ["PATH"].split(":")), reason="no rclone"
)
def test_real_rclone_with_a_local_remote(source, tmp_path):
    sync = RemoteSync(source, str(tmp_path / "remote"), "rclone", timeout=60)
    sync.close()
    assert (tmp_path / "remote" / "config.json").read_text() == "{}"
