"""Explanations: what is withheld and covered is what they say, and the picture of them can be looked at."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from linnaeus_jax.inference.quality.explaining import ALL, explain
from linnaeus_jax.reading.metadata import Observation


def with_forward(model, forward) -> Any:
    """The model with another forward pass, in batches of 64 rows."""
    batches = SimpleNamespace(buckets=(64,), dispatch=lambda *arrays: SimpleNamespace(result=lambda: forward(*arrays)))
    return SimpleNamespace(
        bundle=model.bundle, read=model.read, inputs=model.inputs, answers=model.answers, forward=batches
    )


def test_metadata_are_withheld_one_by_one(model, pictures, tmp_path):
    picture, given = pictures.pixels[0], Observation(10, 20, "2024-02")
    options = model.answers.options(min_confidence=0)
    explanation = explain(model, picture, given, options, grid=2, window=0.5)
    assert list(explanation.metadata) == ["TEMPORAL", "SPATIAL", ALL]
    assert explanation.taxon == explanation.prediction.answer
    rank = [taxon.rank for taxon in explanation.prediction.path].index(explanation.taxon.rank)
    left: dict[str, dict[str, Any]] = {
        "TEMPORAL": {"latitude": 10, "longitude": 20},
        "SPATIAL": {"date": "2024-02"},
        ALL: {},
    }
    for name, without in left.items():
        [prediction] = model.predict(picture, **without, top_k=9)
        assert explanation.without[name].inputs == prediction.inputs
        probability = {t.taxon_id: t.probability for t in prediction.top[explanation.taxon.rank]}
        change = math.log(probability[explanation.taxon.taxon_id]) - math.log(explanation.taxon.probability)
        assert explanation.metadata[name] == pytest.approx(change, abs=1e-4)
        assert explanation.without[name].path[rank].probability == pytest.approx(
            prediction.path[rank].probability, abs=1e-5
        )
    explanation.save(tmp_path / "why.png")
    with Image.open(tmp_path / "why.png") as image:
        assert image.format == "PNG"
        assert image.width > 2 * image.height
        assert len(image.getcolors(1 << 20) or ()) > 100
    assert model.forward.compilations <= len(model.forward.buckets)


def test_the_heat_is_where_the_answer_comes_from(model):
    """The probability of a species grows with the brightness of one corner, and falls with that of another."""

    def forward(image, meta, valid):
        bright = image[:, :8, 24:].mean(axis=(1, 2, 3)) / 255 - image[:, 24:, :8].mean(axis=(1, 2, 3)) / 255
        zeros = {task: np.zeros((len(image), n), np.float32) for task, n in sizes.items()}
        zeros["taxa_L10"][:, 3] = 9 * bright + 5
        return zeros

    sizes = model.bundle.taxonomy.tree.num_classes
    explanation = explain(with_forward(model, forward), np.full((32, 32, 3), 255, np.uint8))
    assert explanation.heat.shape == (32, 32)
    assert explanation.heat[:8, 24:].mean() > 0.1
    assert explanation.heat[24:, :8].mean() < -0.1
    assert not explanation.heat[:8, :8].any()  # no square covers one of these pixels and one of those corners
    assert explanation.metadata == {}


def test_what_is_covered_has_the_mean_colour(model):
    """So that nothing changes where a picture of that colour alone is covered."""

    def forward(image, meta, valid):
        zeros = {task: np.zeros((len(image), n), np.float32) for task, n in sizes.items()}
        zeros["taxa_L10"][:, 3] = 5 + image.std(axis=(1, 2)).sum(axis=1)
        return zeros

    sizes = model.bundle.taxonomy.tree.num_classes
    mean = np.round(255 * np.array(model.bundle.preprocessing.mean)).astype(np.uint8)
    assert not explain(with_forward(model, forward), np.broadcast_to(mean, (32, 32, 3)).copy()).heat.any()


def test_an_unknown_picture_is_explained_too(model, tmp_path):
    def forward(image, meta, valid):
        return {task: np.eye(1, n, dtype=np.float32).repeat(len(image), 0) * 20 for task, n in sizes.items()}

    sizes = model.bundle.taxonomy.tree.num_classes
    explanation = explain(with_forward(model, forward), np.zeros((32, 32, 3), np.uint8), grid=4)
    assert explanation.prediction.answer is None
    assert (explanation.taxon.rank, explanation.taxon.label) == ("family", "unknown")
    assert not explanation.heat.any()
    explanation.save(tmp_path / "why.png")


def test_without_an_answer_the_finest_known_taxon_is_explained(model):
    """Parus minor, which no option is sure enough of."""

    def forward(image, meta, valid):
        z = {task: np.zeros((len(image), n), np.float32) for task, n in model.bundle.taxonomy.tree.num_classes.items()}
        for task, index in zip(z, (2, 1, 1)):
            z[task][:, index] = 5
        return z

    options = model.answers.options(min_confidence=1.0)
    explanation = explain(with_forward(model, forward), np.zeros((32, 32, 3), np.uint8), options=options, grid=4)
    assert explanation.prediction.answer is None
    assert [taxon.name for taxon in explanation.prediction.path] == ["Paridae", "Parus", "Parus minor"]
    assert explanation.taxon == explanation.prediction.path[-1]


def test_squares_that_leave_gaps(model, pictures):
    for grid, window in ((3, 0.25), (8, 0.0), (8, 1.5)):
        with pytest.raises(ValueError, match="leave gaps; give a larger grid or window"):
            explain(model, pictures.pixels[0], grid=grid, window=window)
