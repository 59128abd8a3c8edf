"""Atomic writes: the old or the new file, readable by whom the umask says, and nothing else left."""

from __future__ import annotations

import math
import os
import stat
from pathlib import Path

import pytest

from linnaeus_jax import files
from linnaeus_jax.files import DamagedFileError, json_text, read_json, write_json


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


def test_a_log_that_grows_while_its_digest_is_made_is_no_damage(tmp_path, monkeypatch):
    run = files.RunDirectory(tmp_path)
    run.create()
    run.metrics_log.write_text("one row\n")
    made = files.sha256_of

    def growing(path, size=None):
        with path.open("a") as file:
            file.write("another\n")
        return made(path, size)

    with monkeypatch.context() as patched:
        patched.setattr(files, "sha256_of", growing)
        with run.writing(run.metrics_log):
            pass
    run.check(run.metrics_log)
    text = run.metrics_log.read_text()
    run.metrics_log.write_text("two" + text[3:])
    with pytest.raises(files.DamagedFileError, match=r"metrics_log\.jsonl is damaged or was changed"):
        run.check(run.metrics_log)


def test_digests_are_of_what_is_on_the_disk(tmp_path, monkeypatch):
    """A power failure must not leave the digest of a log without the log."""
    run, calls = files.RunDirectory(tmp_path), []
    run.create()
    real = os.fsync

    def synced(descriptor):
        calls.append(os.readlink(f"/proc/self/fd/{descriptor}").removeprefix(f"{tmp_path}/"))
        real(descriptor)

    with run.writing(run.metrics_log):
        run.metrics_log.write_text("one row\n")
        monkeypatch.setattr(os, "fsync", synced)
    assert calls[:2] == ["logs/metrics_log.jsonl", "logs"]
    assert calls[2].startswith("digests.json.")
    calls.clear()
    files.make_directory(tmp_path / "new" / "inside")
    assert calls == [str(tmp_path), "new"]


def test_an_older_version_s_digests_have_no_sizes(tmp_path):
    (tmp_path / "part").mkdir()
    file = tmp_path / "part" / "file"
    file.write_text("content")
    files.write_digests(tmp_path, ["part"])
    files.write_json(tmp_path / files.DIGESTS, {"part/file": files.sha256_of(file)})
    assert files.check_digests(tmp_path, "part") is False
    file.write_text("content, and more")
    with pytest.raises(files.DamagedFileError, match="part/file is damaged or was changed"):
        files.check_digests(tmp_path, "part")
    files.write_digests(tmp_path, ["part"], step=3)
    assert files.check_digests(tmp_path, "part", 3) is True
    file.write_text("content, and more than that")
    with pytest.raises(files.DamagedFileError, match="it has 27 of 17 bytes"):
        files.check_digests(tmp_path, "part", 3)


@pytest.mark.parametrize("exchange", [True, False])
def test_a_directory_that_cannot_be_replaced_stays(tmp_path, monkeypatch, exchange):
    path, replace = tmp_path / "bundle", os.replace
    with files.replaced_directory(path) as new:
        (new / "file").write_text("old")

    def failing(source, target):
        if str(source).endswith(".tmp"):
            raise OSError(5, "Input/output error")
        replace(source, target)

    with monkeypatch.context() as patched:
        if exchange:
            patched.setattr(files, "sync_tree", failing_sync)
        else:
            patched.setattr(files.system, "exchange", lambda *_: False)
            patched.setattr(os, "replace", failing)
        with pytest.raises(OSError, match="Input/output error"), files.replaced_directory(path) as new:
            (new / "file").write_text("new")
    assert (path / "file").read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["bundle"]
    monkeypatch.setattr(files.system, "exchange", files.system.exchange if exchange else lambda *_: False)
    with files.replaced_directory(path) as new:
        (new / "file").write_text("new")
    assert (path / "file").read_text() == "new"
    assert [found.name for found in tmp_path.iterdir()] == ["bundle"]


def test_a_file_is_no_directory_to_replace(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotADirectoryError, match="file"), files.replaced_directory(tmp_path / "file"):
        pass
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "inner").mkdir()
    (tmp_path / "link").symlink_to("inner")
    with files.replaced_directory(tmp_path / "link") as new:
        (new / "x").write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "inner" / "x").read_text() == "new"


def failing_sync(path):
    raise OSError(5, "Input/output error", str(path))


def test_file_systems_that_do_not_sync_directories_are_used(tmp_path, monkeypatch):
    real = os.fsync

    def unsupported(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(22, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", unsupported)
    files.write_json(tmp_path / "new" / "x.json", {})
    with files.replaced_directory(tmp_path / "y") as new:
        (new / "file").write_text("text")
    assert (tmp_path / "y" / "file").exists()


def test_links_and_pipes_in_a_tree_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    files.sync_tree(tmp_path)


@pytest.mark.parametrize(("number", "held"), [(11, False), (13, False), (37, None), (95, None)])
def test_a_lock_that_is_taken_is_told_from_a_file_system_without_any(tmp_path, monkeypatch, caplog, number, held):
    def refused(*_):
        raise OSError(number, "refused")

    monkeypatch.setattr("fcntl.flock", refused)
    with (tmp_path / "lock").open("w") as file:
        assert files.locked(file) is held
    assert ("this file system has no locks" in caplog.text) is (held is None)


def test_json_is_strict(tmp_path):
    value = {"a": [math.nan, {"b": -math.inf}], "c": 1.5}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == {"a": [None, {"b": None}], "c": 1.5}
    assert json_text({"a": (math.inf,)}, separators=(",", ":")) == '{"a":[null]}'
    (tmp_path / "twice.json").write_text('{"a": {"x": 1, "y": 2, "x": 3}}')
    with pytest.raises(DamagedFileError, match=r"twice\.json is no JSON \(the key 'x' stands in it twice\)"):
        read_json(tmp_path / "twice.json")


#: modules with json.dumps whose text is hashed, compared, shown or read again at once, or forbids NaN itself
OWN_JSON = {
    "config/saved.py",
    "debugging/event_log.py",
    "files.py",
    "inference/bundle/files.py",
    "inference/files/camtrap_dp.py",  # rows by orjson
    "inference/files/darwin_core.py",  # likewise
    "inference/files/megadetector.py",  # streams; strict, too
    "inference/files/prediction_files.py",
    "inference/files/prediction_lines.py",
    "inference/files/unfinished.py",
    "inference/server/connections.py",
    "inference/server/decoder_process.py",
    "reporting/metrics_log.py",
    "reporting/report.py",
    "reporting/wandb_sink.py",
    "run/identity.py",
    "run/processes.py",
    "run/stored.py",
    "building/steps/plan.py",
    "tools/analyze_debug_logs.py",
    "weights/files.py",
    "weights/hub_settings.py",
}


def test_json_is_written_by_one_function():
    package = Path(files.__file__).parent
    own = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if "json.dump" in path.read_text()}
    assert own - {"inference/server/serving.py"} == OWN_JSON  # orjson writes null
