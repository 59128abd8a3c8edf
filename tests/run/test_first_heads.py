"""Where heads begin that train on what is stored of the pictures."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from linnaeus_jax.files import RunDirectory
from linnaeus_jax.run import first_heads
from linnaeus_jax.run.experiment import preview_experiment
from linnaeus_jax.run.first_heads import with_fitted_heads
from tests.run.test_stored import config_of
from tests.tiny import TASKS


class Features:
    """Stored features of 1,280 numbers in three views, which say the species of a row; one row cannot be read."""

    views, image_shape, dtype = 3, (1280,), np.dtype(np.float16)

    def __init__(self, label):
        rng = np.random.default_rng(0)
        self.centre, self.label = rng.normal(size=(99, 1280)), label
        self.seen = set()

    def __len__(self):
        return len(self.label)

    def read(self, rows, out):
        row, view = np.divmod(rows, self.views)
        self.seen.update(view.tolist())
        noise = np.random.default_rng(rows.tolist()).normal(size=(len(rows), 1280))
        out[...] = self.centre[self.label[row]] + noise
        out[row == 5] = 0
        return row != 5


def built(tmp_path, **changes):
    config = config_of(tmp_path / "data", "head", **changes)
    experiment = preview_experiment(config, RunDirectory(tmp_path / "run"))
    label = experiment.inputs.dataset.train.table.label[:, 0].astype(int)
    features = Features(label)
    experiment.inputs.stored.update(dict.fromkeys(("train", "val"), features))
    return experiment, features


def accuracy(experiment, features, params):
    """Of each head on the plain view of the training rows."""
    rows = experiment.inputs.dataset.train.rows
    rows = rows[rows != 5]
    x = np.empty((len(rows), 1280), np.float16)
    features.read(rows * features.views, x)
    logits = experiment.program.model.apply({"params": params}, x.astype(np.float32), method="classify")
    label = experiment.inputs.dataset.train.table.label[rows]
    return {task: float((np.argmax(logits[task], 1) == label[:, k]).mean()) for k, task in enumerate(TASKS)}


def test_heads_begin_at_the_discriminants_and_the_rest_as_it_was(tmp_path, capsys, monkeypatch):
    experiment, features = built(tmp_path, train__ema__enabled=True)
    label = features.label
    before = experiment.initial_state()
    after = with_fitted_heads(experiment, before)
    assert features.seen == {0, 1, 2}
    assert min(accuracy(experiment, features, after.params).values()) > 0.9
    assert accuracy(experiment, features, before.params)[TASKS[0]] < 0.5
    assert "begin at the linear discriminants of the features" in capsys.readouterr().out
    rest = [{**dict(state.params), "head": None} for state in (before, after)]
    jax.tree.map(np.testing.assert_array_equal, *rest)
    jax.tree.map(np.testing.assert_array_equal, after.ema, after.params)
    assert str(jax.tree.structure(before)) == str(jax.tree.structure(after))
    experiment.inputs.stored.update(dict.fromkeys(("train", "val"), Features(label)))
    again = with_fitted_heads(experiment, before)
    jax.tree.map(np.testing.assert_array_equal, again.params, after.params)
    samples: list[Any] = []

    def nothing(halves, sample):
        samples.append(sample)
        return {}

    monkeypatch.setattr(first_heads, "fitted", nothing)
    assert with_fitted_heads(experiment, before) is before
    second_half = experiment.inputs.dataset.train.rows[1::2]
    assert len(samples[0][0]) == len(second_half[second_half != 5]), "the scale is of rows that the first has not seen"


@pytest.mark.parametrize("why", ["off", "full", "type", "loaded"])
def test_heads_stay_as_they_are_where_nothing_is_to_be_fitted(tmp_path, why):
    changes: dict[str, Any] = {"train__fit_heads": False} if why == "off" else {}
    experiment, features = built(tmp_path, **changes)
    if why == "full":
        experiment = dataclasses.replace(experiment, program=dataclasses.replace(experiment.program, stored=None))
    if why == "type":
        model = experiment.program.model
        specs = tuple(spec._replace(type="ConditionalClassifier") for spec in model.head_specs)
        program = dataclasses.replace(experiment.program, model=model.clone(head_specs=specs))
        experiment = dataclasses.replace(experiment, program=program)
    if why == "loaded":
        names = frozenset(f"head.{task}.fc.weight" for task in TASKS)
        weights: Any = type("Weights", (), {"coverage": type("C", (), {"whole": staticmethod(lambda: names)})})
        experiment = dataclasses.replace(experiment, weights=weights)
    state: Any = object()
    assert with_fitted_heads(experiment, state) is state
    assert not features.seen
