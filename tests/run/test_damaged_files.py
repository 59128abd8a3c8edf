"""Files of a run that were damaged, changed or lost are named, and never taken for what the run wrote."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from linnaeus_jax.files import DAMAGED_LOG, DamagedFileError, RunDirectory, read_json
from linnaeus_jax.reporting.class_tables import CURVES_FILE
from linnaeus_jax.reporting.report import warnings
from linnaeus_jax.reporting.run_record import RunRecord
from linnaeus_jax.run import read_errors
from linnaeus_jax.run.damaged_files import note_damaged_log, set_damaged_aside
from linnaeus_jax.tools import report
from tests.reporting.helpers import make_run


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A finished run whose digests were kept."""
    directory = RunDirectory(make_run(tmp_path / "run"))
    with directory.writing(directory.metrics_log, directory.root / CURVES_FILE, directory.config_json):
        pass
    return directory


def flip(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))


@pytest.mark.parametrize("file", ["logs/metrics_log.jsonl", "config.json"])
def test_no_report_of_other_numbers_than_were_written(run, capsys, file):
    flip(run.root / file, b"1", b"2")
    assert report.main([str(run.root), "--out", str(run.root / "out.html")]) == 2
    said = capsys.readouterr().err
    assert f"{run.root / file} is damaged or was changed" in said
    assert not (run.root / "out.html").exists()


@pytest.mark.parametrize(("damage", "reason"), [("changed", "is damaged or was changed"), ("lost", "is missing")])
def test_a_run_that_goes_on_after_a_damaged_log_says_so(run, caplog, damage, reason):
    events = run.logs / "tensorboard"
    events.mkdir()
    rows = run.metrics_log.read_bytes()
    note_damaged_log(run, 200, expected=True)
    assert not (run.logs / DAMAGED_LOG).exists()
    if damage == "lost":
        run.metrics_log.unlink()
    else:
        flip(run.metrics_log, b'"epoch":0', b'"epoch":1')
    note_damaged_log(run, 200, expected=True)
    assert f"metrics_log.jsonl {reason}" in caplog.text
    assert read_json(run.logs / DAMAGED_LOG)["200"].startswith(reason)
    assert not events.exists()  # its points would be replaced by those of the log
    assert len(list(run.logs.glob("tensorboard_before_update_200.*"))) == 1
    with run.writing(run.metrics_log):  # the run goes on with what there is
        run.metrics_log.write_bytes(rows)
    assert any(f"restarted after 200 updates with a metrics log that {reason}" in x for x in warnings(record(run)))


def record(run: RunDirectory) -> RunRecord:
    return RunRecord.load(run.root)


def test_a_log_that_no_digest_knows_is_missed_where_there_were_rows(tmp_path, caplog):
    run = RunDirectory(tmp_path)
    run.create()
    note_damaged_log(run, 3, expected=False)
    assert not caplog.text
    note_damaged_log(run, 3, expected=True)
    assert "metrics_log.jsonl is missing" in caplog.text


def test_what_a_report_lacks_is_named(run):
    flip(run.root / CURVES_FILE, b"1", b"2")
    with pytest.raises(DamagedFileError, match=r"validation_curves\.json is damaged"):
        record(run).json(CURVES_FILE)
    (run.root / CURVES_FILE).unlink()
    with pytest.raises(DamagedFileError, match=r"validation_curves\.json is missing; restore it .* or remove"):
        record(run).json(CURVES_FILE)


def test_only_damaged_results_are_set_aside(run, monkeypatch):
    monkeypatch.setattr(read_errors, "WAITS", ())
    curves = run.root / CURVES_FILE
    content = curves.read_bytes()

    def fails(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(run, "check", fails)
        with pytest.raises(OSError, match="Input/output error"):
            set_damaged_aside(run, curves)
    assert curves.read_bytes() == content
    flip(curves, b"1", b"2")
    set_damaged_aside(run, curves)
    assert not curves.exists()
    assert curves.with_name(f"{curves.name}.damaged").exists()
