"""Many pictures through a model: in order, whatever is among them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image

from linnaeus_jax.inference.metadata import Observation
from linnaeus_jax.inference.picture_list import PictureFile
from linnaeus_jax.inference.predicting import Job, batch_for, predict_files

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


def test_results_are_those_of_the_model_in_order(model, files):
    jobs = [Job(file, GIVEN.get(number)) for number, file in enumerate(files)]
    batches = list(predict_files(model, jobs, model.answers.options(), exif=True))
    results = [result for batch in batches for result in batch]
    assert len(batches) == 2
    assert [result.name for result in results] == [file.name for file in files]
    reasons = {number: result.reason for number, result in enumerate(results) if result.prediction is None}
    assert reasons == {
        3: "empty file",
        4: "10 bytes that no image decoder understands",
        11: "No such file or directory",
    }
    assert [result.metadata_from for result in results] == ["", "exif", "", "", "", "table", *[""] * 6]
    for number, result in enumerate(results):
        if result.prediction is None:
            continue
        given = {1: Observation(date="2024-05-17")} | GIVEN
        known = given.get(number, Observation())
        alone = model.predict(
            files[number].path,
            latitude=known.latitude,
            longitude=known.longitude,
            date=known.date,
            elevation=known.elevation,
        )[0]
        assert result.prediction.path[-1].taxon_id == alone.path[-1].taxon_id
        assert result.prediction.path[-1].probability == pytest.approx(alone.path[-1].probability, abs=1e-5)
        assert (result.prediction.inputs, result.prediction.notes) == (alone.inputs, alone.notes)


def test_exif_is_left_alone(model, files):
    for job in (Job(files[1], Observation()), Job(files[1])):
        [[result]] = predict_files(model, [job], model.answers.options(), exif=job.observation is not None)
        assert result.prediction is not None
        assert result.prediction.inputs == ()


def test_nothing_but_unreadable_pictures(model, tmp_path):
    missing = PictureFile(tmp_path / "x.jpg", "x.jpg", "x.jpg")
    jobs = [Job(PictureFile(missing.path, "two", "two", "a name that is not UTF-8"))] + [Job(missing)] * 70
    batches = list(predict_files(model, jobs, model.answers.options()))
    assert [len(batch) for batch in batches] == [64, 7]  # told as it goes
    assert batches[0][0].reason == "a name that is not UTF-8"
    assert all(result.prediction is None for batch in batches for result in batch)
    assert list(predict_files(model, [], model.answers.options())) == []


def test_reading_stays_a_bounded_number_of_pictures_ahead(model, files, monkeypatch):
    read: list[str] = []
    preprocess = type(model.bundle.preprocessing).read

    def counted(self, picture):
        read.append("")
        return preprocess(self, picture)

    monkeypatch.setattr(type(model.bundle.preprocessing), "read", counted)
    results = predict_files(model, [Job(files[0])] * 500, model.answers.options(), threads=2)
    next(results)
    results.close()
    assert len(read) <= 3 * 8 + (8 + 4) + 8  # batches under way, what is read ahead, and the one being filled


@pytest.mark.parametrize(
    ("pictures", "asked", "batch"), [(1, 0, 1), (2, 0, 8), (9, 0, 64), (10_000, 0, 64), (3, 256, 256)]
)
def test_one_batch_size_for_all(pictures, asked, batch):
    assert batch_for(pictures, asked) == batch
