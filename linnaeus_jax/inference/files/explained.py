"""What moved the answers for many pictures: a PNG for each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from linnaeus_jax.inference.answers import AnswerOptions
from linnaeus_jax.inference.files.picture_list import PictureFile
from linnaeus_jax.inference.files.predicting import Job
from linnaeus_jax.inference.model import Model
from linnaeus_jax.inference.paths import NotFiniteError
from linnaeus_jax.inference.pictures import PictureError
from linnaeus_jax.reading.exif import observation_of
from linnaeus_jax.reading.metadata import Observation
from linnaeus_jax.system import file_name


def explain_files(
    explain: Callable[[Model, bytes, Observation, AnswerOptions], Any],
    out: Path,
    model: Model,
    jobs: Sequence[Job],
    options: AnswerOptions,
    exif: bool,
    say: Callable[[str], None],
    progress: Callable[[int, int], None],
) -> int:
    """Writes what `explain` makes of each picture that has an answer; PNGs that are there already are kept. Returns how
    many have none because the outputs of the model are not finite."""
    written = not_finite = 0
    for done, job in enumerate(jobs, 1):
        path = png_of(out, job.picture)
        if not path.exists() and not job.picture.fault:
            try:
                data = job.picture.path.read_bytes()
                observation = job.observation or (observation_of(data)[0] if exif else Observation())
                explanation = explain(model, data, observation, options)
            except (OSError, PictureError):  # told with the predictions
                continue
            except NotFiniteError as error:
                say(f"{job.picture.name} is not explained: {error}")
                not_finite += 1
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            explanation.save(path)
            written += 1
        progress(done, len(jobs))
    say(f"{out}: {written} explanations written")
    return not_finite


def png_of(out: Path, picture: PictureFile) -> Path:
    """Where the explanation of a picture goes; pictures of one name in several arguments are told apart."""
    number = hashlib.sha256(picture.name.encode()).hexdigest()[:8]
    return out.joinpath(*map(file_name, f"{picture.relative}.{number}.png".split("/")))
