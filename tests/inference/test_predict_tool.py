"""`tools.predict` from its command line to what it writes and prints."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from linnaeus_jax.inference.bundle.files import write_bundle
from linnaeus_jax.inference.files import predicting
from linnaeus_jax.inference.pictures import read_picture
from linnaeus_jax.tools import predict
from tests.campaign.pictures_made import jpeg_of_scans


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> SimpleNamespace:
    status = predict.main(list(arguments))
    said = capsys.readouterr()
    return SimpleNamespace(status=status, out=" ".join(said.out.split()), err=said.err)


def read(path: str) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_answers_are_printed(shared, trained, capsys):
    result = run(capsys, trained, "photos", "--min-confidence", "0.9999")
    assert result.status == 0
    assert "the probabilities are not calibrated" in result.out
    assert "8 pictures predicted, at 0.9999 or more: 8 unknown" in result.out
    assert "metadata from EXIF data: TEMPORAL for 0, SPATIAL for 0, ELEVATION for 0 of 8 pictures" in result.out
    assert "1 of 9 pictures cannot be read" in result.out
    assert "broken.jpg" in result.out
    assert [path.name for path in shared.iterdir()] == ["photos"]


def test_answers_for_a_coverage(shared, trained, bundle, capsys):
    result = run(capsys, trained, "photos", "--coverage", "0.9")
    assert result.status == 2
    assert "coverage 0.9 needs thresholds that were measured on validation rows, and this model has none" in result.err
    with pytest.raises(SystemExit):
        run(capsys, trained, "photos", "--coverage", "0.9", "--min-confidence", "0.4")
    measured = dataclasses.replace(bundle.calibration, coverage={"90": 0.9998, "50": 0.0}, coverage_rows=9)
    write_bundle(dataclasses.replace(bundle, calibration=measured), shared / "measured")
    result = run(capsys, "measured", "photos", "--coverage", "0.9", "--out", "a.csv")
    assert result.status == 0
    assert "8 pictures predicted, for a coverage of 0.9, at 0.9998 or more: 8 unknown" in result.out
    assert {row["answer_name"] for row in read("a.csv")} == {"unknown"}
    result = run(capsys, "measured", "photos", "--coverage", "0.5")  # the finest answers are right as often
    assert "8 pictures predicted, for a coverage of 0.5, at any probability: 8 to species" in result.out
    again = run(capsys, "measured", "photos", "--out", "a.csv")
    assert again.status == 2
    assert "--force" in again.err
    result = run(capsys, "measured", "photos", "--coverage", "0.95")
    assert "needs at least 19 validation rows labelled at the finest rank" in result.err


def test_a_file_with_a_table_and_what_is_said_of_it(shared, trained, capsys):
    Path("t.csv").write_text("file,lat,lon,date\n" + "".join(f"{i}.png,5{i},13,2024-05-17\n" for i in range(7)))
    arguments = [trained, "photos", "--meta", "t.csv", "--out", "p.csv", "--gallery", "look.html"]
    result = run(capsys, *arguments)
    assert "2 of 9 pictures have no row in t.csv: photos/7.png, photos/broken.jpg" in result.out
    assert "metadata from the table t.csv: TEMPORAL for 7, SPATIAL for 7, ELEVATION for 0 of 8 pictures" in result.out
    assert "1 of 9 pictures cannot be read, listed in p.csv.unreadable.csv" in result.out
    assert "look.html: 8 pictures" in result.out
    assert [row["file"] for row in read("p.csv")] == [f"photos/{i}.png" for i in range(8)]
    assert [row["inputs"] for row in read("p.csv")] == ["TEMPORAL SPATIAL"] * 7 + [""]
    assert read("p.csv.unreadable.csv") == [
        {"file": "photos/broken.jpg", "reason": "10 bytes that no image decoder understands"}
    ]
    before = Path("p.csv").read_bytes()
    again = run(capsys, *arguments)
    assert "p.csv is complete: nothing is left to do" in again.out
    assert "8 pictures predicted" in again.out
    refused = run(capsys, *arguments, "--top-k", "2")
    assert refused.status == 2
    assert "p.csv was begun with other inputs: top_k was 5, now 2" in refused.err
    assert Path("p.csv").read_bytes() == before
    assert run(capsys, *arguments, "--top-k", "2", "--force").status == 0
    assert all(len(json.loads(row["top"])["species"]) == 2 for row in read("p.csv"))


def test_restricted_and_always_reported(shared, trained, capsys):
    Path("r.txt").write_text("\ufeff# local list\nParus minor  # seen\n\n13\n", "utf-8")
    Path("a.txt").write_text("Parus major\n32\n")
    options = ["--restrict", "r.txt", "--always-report", "a.txt", "--min-confidence", "0"]
    assert run(capsys, trained, "photos", "--out", "p.csv", *options).status == 0
    rows = read("p.csv")
    assert all("Parus major" not in row["top"] + row["answer_name"] for row in rows)
    assert {row["always_Parus major"] for row in rows} == {"0"}
    assert all(0 <= float(row["always_Passeridae"]) <= 1 for row in rows)
    assert run(capsys, trained, "photos", "--consistency", "documented", "--out", "d.jsonl", "--force").status == 0
    lines = [json.loads(line) for line in Path("d.jsonl").read_text().splitlines()]
    assert [taxon["rank"] for taxon in lines[0]["path"]] == ["family", "genus", "species"]


def test_goes_on_where_it_stopped(shared, trained, capsys, monkeypatch):
    run(capsys, trained, "photos", "--out", "whole.csv")
    from linnaeus_jax.inference.files import predicting

    through = predicting.predict_files
    asked = []

    def stopped(model, jobs, *others, **options):
        asked.append(len(jobs))
        yield from list(through(model, jobs[:5], *others, **options))
        raise KeyboardInterrupt

    monkeypatch.setattr(predicting, "predict_files", stopped)
    assert run(capsys, trained, "photos", "--out", "p.csv").status == 130
    assert not Path("p.csv").exists()

    def counted(model, jobs, *others, **options):
        asked.append(len(jobs))
        return through(model, jobs, *others, **options)

    monkeypatch.setattr(predicting, "predict_files", counted)
    capsys.readouterr()
    result = run(capsys, trained, "photos", "--out", "p.csv")
    assert "going on after 5 of 9 pictures" in result.out
    assert asked == [9, 4]
    for one, other in zip(read("p.csv"), read("whole.csv"), strict=True):
        assert float(one.pop("answer_probability") or 0) == pytest.approx(
            float(other.pop("answer_probability") or 0), abs=1e-5
        )
        assert (one["file"], one["answer_name"]) == (other["file"], other["answer_name"])
    assert not Path("p.csv.unfinished").exists()


def test_a_picture_that_changed_meanwhile_is_predicted_again(shared, trained, capsys, monkeypatch):
    arguments = [trained, "photos", "--out", "p.jsonl"]
    run(capsys, *arguments)
    whole = Path("p.jsonl").read_text().splitlines()
    assert run(capsys, *arguments).status == 0
    picture = shared / "photos" / "3.png"
    old, status = picture.read_bytes(), picture.stat()
    picture.write_bytes((shared / "photos" / "0.png").read_bytes())
    result = run(capsys, *arguments)
    assert (result.status, result.err.count("\n")) == (2, 1)
    assert "p.jsonl is complete, but some of its pictures have changed since; begin anew with --force" in result.err
    picture.write_bytes(old)
    os.utime(picture, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert "is complete: nothing is left to do" in run(capsys, *arguments).out

    through = predicting.predict_files

    def stopped(model, jobs, *others, **options):
        yield from through(model, jobs[:2], *others, **options)
        yield from through(model, jobs[2:5], *others, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(predicting, "predict_files", stopped)
        assert run(capsys, *arguments, "--force").status == 130
    picture.write_bytes((shared / "photos" / "0.png").read_bytes())
    result = run(capsys, *arguments)
    assert result.status == 0
    assert "photos/3.png has changed since it was read: it and what follows are done again" in result.out
    assert "going on after 2 of 9 pictures" in result.out
    differing = []
    for row, before in zip(Path("p.jsonl").read_text().splitlines(), whole, strict=True):
        taxa, others = (json.loads(text)["path"] for text in (row, before))
        if any(abs(one["probability"] - other["probability"]) > 1e-4 for one, other in zip(taxa, others, strict=True)):
            differing.append(json.loads(row)["file"])
    assert differing == ["photos/3.png"]


def test_files_that_are_left_aside_and_pictures_that_cannot_be_read_are_named(shared, trained, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    for name, content in {
        "IMG_0001": b"x",
        "a.dng": b"x",
        "b.heic": b"\0\0\0\x18ftypheic" + bytes(40),
        "c.jfif": (shared / "photos" / "0.png").read_bytes(),
        "scans.jpe": jpeg_of_scans(64, 64, 5000),
    }.items():
        (shared / "photos" / name).write_bytes(content)
    os.mkfifo("pipe.jpg")
    result = run(capsys, trained, "photos", "pipe.jpg", "--out", "p.csv")
    assert "photos: 2 files are left aside, since their suffix is not one of pictures: none 1, .dng 1" in result.out
    reasons = {row["file"]: row["reason"] for row in read("p.csv.unreadable.csv")}
    assert reasons == {
        "photos/broken.jpg": "10 bytes that no image decoder understands",
        "photos/b.heic": "a HEIC picture; to read it: pip install pillow-heif",
        "photos/scans.jpe": "a JPEG of 4096 pixels with 1001 or more scans, which would take too long",
        "pipe.jpg": "not a regular file",
    }
    assert "photos/c.jfif" in [row["file"] for row in read("p.csv")]


def test_shards(shared, trained, capsys):
    found = []
    for part in ("1/3", "2/3", "3/3"):
        out = f"p{part[0]}.csv"
        assert run(capsys, trained, "photos", "--shard", part, "--out", out).status in (0, 2)
        found += [row["file"] for row in read(out)] if Path(out).exists() else []
    assert sorted(found) == [f"photos/{i}.png" for i in range(8)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["photos", "--out", "p.txt"], "p.txt must end in one of .csv, .jsonl, .parquet"),
        (["photos", "--force"], "--force replaces the file of --out; give one"),
        (["photos", "--checkpoint", "best"], "--checkpoint chooses a checkpoint of a run"),
        (["photos", "--shard", "0/2"], "--shard 0/2: give i/n with i from 1 to n"),
        (["photos", "--map", "latitude=x"], "--map names columns of the table --meta"),
        (["photos", "--meta", "none.csv"], "table 'none.csv' does not exist"),
        (["photos", "--restrict", "none.txt"], "none.txt cannot be read: No such file or directory"),
        (["photos", "--top-k", "0"], "top_k is 0; give at least 1"),
        (["photos", "--gallery", "photos"], "--gallery photos is a folder; give another name"),
        (["photos", "--explain", "photos/broken.jpg"], "--explain photos/broken.jpg is a file; give another name"),
        (["photos", "--batch-size", "-1"], "--batch-size and --threads are counts"),
        (["nothing"], "nothing does not exist"),
    ],
)
def test_wrong_arguments_are_one_message(shared, trained, capsys, arguments, message):
    result = run(capsys, trained, *arguments)
    assert result.status == 2
    assert message in result.err
    assert [path.name for path in shared.iterdir()] == ["photos"]


def test_no_picture_can_be_read(shared, trained, capsys):
    assert run(capsys, trained, "photos/broken.jpg").status == 2
    assert run(capsys, str(shared), "photos").status == 2


def test_explanations(shared, trained, capsys, monkeypatch):
    def explain(model, picture, observation, options):
        read_picture(picture, model.bundle.preprocessing)
        return SimpleNamespace(save=lambda path: path.write_text(f"{observation.date} {options.top_k}"))

    monkeypatch.setitem(sys.modules, "linnaeus_jax.inference.quality.explaining", SimpleNamespace(explain=explain))
    Path("t.csv").write_text("file,date\n0.png,2024-05\n")
    arguments = [trained, "photos", "--meta", "t.csv", "--explain", "why"]
    run(capsys, *arguments)
    found = sorted(Path("why").iterdir())
    assert [path.name.split(".")[0] for path in found] == [str(i) for i in range(8)]
    assert found[0].read_text() == "2024-05 5"
    found[0].write_text("kept")
    run(capsys, *arguments)
    assert found[0].read_text() == "kept"


@pytest.mark.slow
def test_killed_and_given_again_in_processes(trained, tmp_path):
    """A process that is killed in the middle leaves nothing half-written, and the next one goes on."""
    folder = tmp_path / "photos"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(3000):
        Image.fromarray(rng.integers(0, 256, (64, 64, 3), np.uint8)).save(folder / f"{number:04d}.jpg")
    command = [sys.executable, "-m", "linnaeus_jax.tools.predict", trained, "photos", "--batch-size", "8"]
    subprocess.run([*command, "--out", "whole.csv"], cwd=tmp_path, check=True, capture_output=True)
    process = subprocess.Popen([*command, "--out", "p.csv"], cwd=tmp_path)
    log = tmp_path / "p.csv.unfinished" / "progress.jsonl"
    while process.poll() is None and not (log.exists() and log.stat().st_size > 1000):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "p.csv").exists()
    done = json.loads(log.read_text().rpartition("\n")[0].splitlines()[-1])["summary"]["pictures"]
    assert 0 < done < 3000
    again = subprocess.run([*command, "--out", "p.csv"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert f"going on after {done:,} of 3,000 pictures" in again.stdout
    one, other = ((tmp_path / name).read_text().splitlines() for name in ("p.csv", "whole.csv"))
    assert [line.split(",")[:4] for line in one] == [line.split(",")[:4] for line in other]
