"""Many pictures through a model: in order, whatever is among them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image

from linnaeus_jax.backend import GPU, PLAIN, tracing_for
from linnaeus_jax.inference.answers import AnswerOptions
from linnaeus_jax.inference.files.picture_list import PictureFile
from linnaeus_jax.inference.files.predicting import Job, batch_for, predict_files
from linnaeus_jax.reading.metadata import Observation

BROKEN = {3: b"", 4: b"no picture", 11: None}
GIVEN = {5: Observation(52.5, 13.4, "2024-05-17", 34), 6: Observation(latitude=91, longitude=0)}


def write_picture(path: Path, pixels: np.ndarray, exif: Image.Exif | None = None) -> None:
    buffer = io.BytesIO()
    # an Exif without entries in its first directory is false
    Image.fromarray(pixels).save(buffer, "PNG" if exif is None else "JPEG", exif=b"" if exif is None else exif)
    path.write_bytes(buffer.getvalue())


@pytest.fixture(scope="module")
def files(tmp_path_factory, pictures) -> list[PictureFile]:
    """Twelve files, three of which cannot be read; the second one has EXIF data."""
    folder = tmp_path_factory.mktemp("pictures")
    exif = Image.Exif()
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = "2024:05:17 10:20:30"
    found = []
    for number, pixels in enumerate(pictures.pixels):
        path = folder / f"{number}.png"
        if number not in BROKEN:
            write_picture(path, pixels, exif if number == 1 else None)
        elif BROKEN[number] is not None:
            path.write_bytes(BROKEN[number] or b"")
        found.append(PictureFile(path, path.name, path.name))
    return found


def test_answers_are_those_of_the_model_in_order(model, files):
    jobs = [Job(file, GIVEN.get(number)) for number, file in enumerate(files)]
    options = model.answers.options()
    parts = list(predict_files(model, jobs, options, exif=True))
    assert len(parts) == 2
    rows = [row for part in parts for row in part.rows(model.answers, options)]
    assert [row["file"] for row in rows] == [file.name for file in files]
    assert {number: row["no_answer"] for number, row in enumerate(rows) if "no_answer" in row} == {
        3: "empty file",
        4: "10 bytes that no image decoder understands",
        11: "No such file or directory",
    }
    sources = [row.get("metadata_from", "") for row in rows]
    assert sources == ["", "exif", "", "", "", "table", *[""] * 6]
    for number, row in enumerate(rows):
        if number in BROKEN:
            continue
        known = ({1: Observation(date="2024-05-17")} | GIVEN).get(number, Observation())
        given = {name: getattr(known, name) for name in ("latitude", "longitude", "date", "elevation")}
        alone = model.predict(files[number].path, **given)[0].to_json()
        for taxon, other in zip(row["path"], alone["path"], strict=True):
            assert taxon.pop("probability") == pytest.approx(other.pop("probability"), abs=1e-5)
            assert taxon == other
        assert (row["inputs"], row["notes"]) == (alone["inputs"], alone["notes"])


def test_exif_is_left_alone(model, files):
    for job in (Job(files[1], Observation()), Job(files[1])):
        [part] = predict_files(model, [job], model.answers.options(), exif=job.observation is not None)
        assert part.inputs == [()]
        assert part.metadata_from == [""]


def test_nothing_but_unreadable_pictures(model, tmp_path):
    missing = PictureFile(tmp_path / "x.jpg", "x.jpg", "x.jpg")
    jobs = [Job(PictureFile(missing.path, "two", "two", "a name that is not UTF-8"))] + [Job(missing)] * 70
    options = model.answers.options()
    parts = list(predict_files(model, jobs, options))
    assert [len(part.pictures) for part in parts] == [64, 7]  # told as it goes
    assert parts[0].reasons[0] == "a name that is not UTF-8"
    assert all(part.names == part.predictions(model.answers, options) == [] for part in parts)
    assert list(predict_files(model, [], options)) == []


@pytest.mark.parametrize(
    ("fault", "reason"), [(MemoryError("too large"), "MemoryError: too large"), (ValueError(), "ValueError")]
)
def test_a_decoder_that_fails_costs_one_picture(model, files, monkeypatch, fault, reason):
    preprocess = type(model.bundle.preprocessing).decode

    def failing(self, data):
        if len(data) == files[2].path.stat().st_size:
            raise fault
        return preprocess(self, data)

    monkeypatch.setattr(type(model.bundle.preprocessing), "decode", failing)
    [part] = predict_files(model, [Job(file) for file in files[1:4]], model.answers.options())
    assert list(part.reasons) == ["", reason, "empty file"]
    assert part.names == [files[1].name] == [row["file"] for row in part.rows(model.answers, AnswerOptions())][:1]


def test_reading_stays_a_bounded_number_of_pictures_ahead(model, files, monkeypatch):
    read: list[str] = []
    preprocess = type(model.bundle.preprocessing).decode

    def counted(self, picture):
        read.append("")
        return preprocess(self, picture)

    monkeypatch.setattr(type(model.bundle.preprocessing), "decode", counted)
    results = predict_files(model, [Job(files[0])] * 500, model.answers.options(), threads=2)
    next(results)
    results.close()
    assert len(read) <= 3 * 8 + (8 + 4 * 4) + 8  # batches under way, what is read ahead, and the one being filled


@pytest.mark.parametrize(
    ("pictures", "side", "asked", "batch"),
    [(1, 48, 0, 1), (2, 48, 0, 8), (9, 48, 0, 64), (10_000, 48, 0, 64), (3, 224, 256, 256), (10_000, 224, 0, 8)],
)
def test_one_batch_size_for_all(pictures, side, asked, batch, monkeypatch):
    monkeypatch.delenv(PLAIN, raising=False)
    assert batch_for(pictures, (side, side), asked) == batch
    with tracing_for(GPU):
        assert batch_for(pictures, (side, side), asked) == (64 if batch == 8 and pictures > 8 else batch)
    monkeypatch.setenv(PLAIN, "small-batches")
    assert batch_for(pictures, (side, side), asked) == (64 if batch == 8 and pictures > 8 else batch)
