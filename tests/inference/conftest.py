"""A small model with random weights and a taxonomy of three ranks, for everything that uses models."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from PIL import Image

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.tree import assign
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.data.taxon_names import TaxonNames
from linnaeus_jax.inference import model as models
from linnaeus_jax.inference.answers import Answers
from linnaeus_jax.inference.bundle.bundle import Bundle, Calibration
from linnaeus_jax.inference.bundle.files import write_bundle
from linnaeus_jax.inference.bundle.statistics import FeatureStatistics
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.inference.forward import FUSED
from linnaeus_jax.inference.model import Model
from linnaeus_jax.models.factory import build_model
from linnaeus_jax.models.names import abstract_variables
from linnaeus_jax.reading.metadata import Component, MetadataEncoder
from linnaeus_jax.taxonomy.tree import TaxonomyTree

#: task -> (taxon id, name, parent's index in the next task); class 0 is null
TAXA = {
    "taxa_L10": [
        (11, "Parus major", 1),
        (12, "Parus minor", 1),
        (13, "Passer domesticus", 2),
        (14, "Incertae sedis", -1),
    ],
    "taxa_L20": [(21, "Parus", 1), (22, "Passer", 2)],
    "taxa_L30": [(31, "Paridae", -1), (32, "Passeridae", -1)],
}
COMPONENTS = (
    Component("TEMPORAL", ("month_sin", "month_cos")),
    Component("SPATIAL", ("spatial_x", "spatial_y", "spatial_z")),
    Component("ELEVATION", ("elev_100_sin", "elev_100_cos", "elev_1000_sin", "elev_1000_cos")),
)


def small_taxonomy() -> Taxonomy:
    rows = {task: [(0, "", -1), *taxa] for task, taxa in TAXA.items()}
    classes = {task: np.array([taxon for taxon, _, _ in taxa], np.int64) for task, taxa in rows.items()}
    parents = {task: np.array([parent for _, _, parent in taxa]) for task, taxa in rows.items()}
    saved = {task: {str(t): {"name": n, "common_name": ""} for t, n, _ in taxa} for task, taxa in TAXA.items()}
    tree = TaxonomyTree(tuple(rows), {task: len(taxa) for task, taxa in rows.items()}, parents)
    return Taxonomy(tree, TaxonNames.from_json(classes, saved))


def small_bundle(components: tuple[Component, ...] = COMPONENTS) -> Bundle:
    """mFormerV1 of the smallest size for pictures of 32 x 32, not calibrated; the same weights every time."""
    config = get_config()
    keys = {
        "variant": "tiny",
        "convnext_stages.depths": (1, 1),
        "convnext_stages.dims": (8, 8, 16, 16),
        "rope_stages.depths": (1, 1),
        "rope_stages.num_heads": (2, 2),
    }
    for key, value in keys.items():
        assign(config, ("model", *key.split(".")), value)
    taxonomy = small_taxonomy()
    model = build_model(
        config.model,
        components=[(component.name, len(component.columns)) for component in components],
        num_classes=taxonomy.tree.num_classes,
        img_size=32,
        parents=taxonomy.tree.parent,
    )
    rng = np.random.default_rng(0)

    def drawn(path, like):  # compiling `model.init` takes longer than all that the tests compute
        if len(like.shape) < 2:
            return np.full(like.shape, path[-1].key != "bias", like.dtype)
        # heads that answer differently to different pictures
        width = 0.5 if path[0].key == "head" else np.prod(like.shape[:-1]) ** -0.5
        return rng.normal(0, width, like.shape).astype(like.dtype)

    params = jax.tree_util.tree_map_with_path(drawn, abstract_variables(model)["params"])
    return Bundle(
        source=Path("small"),
        settings=config.model,
        model=model,
        variables={"params": params},
        preprocessing=Preprocessing((32, 32)),
        encoder=MetadataEncoder(components),
        taxonomy=taxonomy,
        calibration=Calibration.none(taxonomy.tasks),
        facts={"title": "small", "step": 7, "weights": "last"},
    )


@pytest.fixture(scope="session")
def bundle() -> Bundle:
    return small_bundle()


@pytest.fixture(scope="session")
def model(bundle: Bundle) -> Model:
    """With buckets of 2 and 8 rows, which are compiled at their first use."""
    return Model(bundle, buckets=(2, 8))


@pytest.fixture(scope="session")
def pictures() -> SimpleNamespace:
    """`pixels` uint8 [12, 40, 50, 3], different pictures."""
    return SimpleNamespace(pixels=np.random.default_rng(1).integers(0, 256, (12, 40, 50, 3), dtype=np.uint8))


@pytest.fixture(scope="session")
def judging(bundle, model, pictures):
    """The small bundle with statistics by which its pictures are of known, new and other taxa."""
    forward = model.giving(FUSED, logits=True)
    rows = len(pictures.pixels)
    known = model.read(list(pictures.pixels))
    x = forward(known, *forward.zeros(rows)[1:])[FUSED]
    label = np.array([[1, 1, 1], [2, 1, 1], [3, 2, 2]] * 4)
    found = FeatureStatistics.of(x, label)
    assert found is not None
    statistics = dataclasses.replace(found, layer=FUSED)
    distance = np.sort(statistics.distances(x).min(axis=1))
    thresholds = {"outside": {"95": float(distance[8:10].mean())}, "new": {"95": -0.5}}
    weights = {"constant": 2.0, "log_probability": 1.0, "log_distance": 0.0}
    calibration = dataclasses.replace(bundle.calibration, novelty={"weights": weights, **thresholds}, novelty_rows=99)
    return dataclasses.replace(bundle, calibration=calibration, statistics=statistics)


@pytest.fixture(scope="session")
def trained(bundle, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("trained") / "bundle"
    write_bundle(bundle, path)
    return str(path)


@pytest.fixture
def shared(model, monkeypatch, tmp_path, pictures) -> Path:
    """A folder with `photos` of eight pictures and one that is none; models share what is compiled."""

    def one(bundle, buckets, runtime="auto"):
        same = copy.copy(model)
        same.bundle, same.answers = bundle, Answers(bundle.taxonomy, bundle.calibration, bundle.statistics)
        return same

    monkeypatch.setattr(models, "Model", one)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for number, pixels in enumerate(pictures.pixels[:8]):
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.png")
    (tmp_path / "photos" / "broken.jpg").write_text("no picture")
    return tmp_path
