"""Evaluation by itself: only named columns are masked, counts do not depend on batches or devices, names of phases."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.data.loader import EvalLoader
from linnaeus_jax.learning.meta_masking import component_mask
from linnaeus_jax.metrics.phases import Phase
from linnaeus_jax.run.evaluate import EvaluateError, parse_phases
from linnaeus_jax.run.inputs import Inputs, split_arrays
from linnaeus_jax.step import placement, row_scores
from linnaeus_jax.step.evaluation import ENTERING, Evaluation, EvaluationProgram, Evaluator
from linnaeus_jax.step.placement import Placement
from linnaeus_jax.step.program import Program
from linnaeus_jax.step.row_scores import update_curves
from tests.step.programs import build
from tests.tiny import TASKS, tiny_config

COMPONENTS = ("TEMPORAL", "SPATIAL")
PHASES = {
    "val": (),
    "val_mask_meta": None,
    "val_mask_TEMPORAL": ("TEMPORAL",),
    "val_mask_SPATIAL": ("SPATIAL",),
}


class Spy(nn.Module):
    """A model without parameters whose logits are its inputs: the five metadata columns, then the mean colours."""

    classes: tuple[int, ...]

    def encode_image(self, image: jax.Array) -> jax.Array:
        return image.mean(axis=(1, 2))

    def encode_tokens(self, features: jax.Array, meta: jax.Array, *, meta_valid_BK: jax.Array) -> jax.Array:
        return jnp.concatenate([meta, features], axis=1)

    def classify(self, tokens: jax.Array) -> dict[str, jax.Array]:
        wide = jnp.concatenate([tokens, tokens[:, :1]], axis=1)
        return {task: wide[:, :count] for task, count in zip(TASKS, self.classes, strict=True)}


@pytest.fixture(scope="module")
def spied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Program, Inputs]:
    """Program and inputs of tiny data, with the spy in place of the model."""
    directory = tmp_path_factory.mktemp("spy")
    config = tiny_config(directory, metrics__taxa_subsets=(("left", "taxa_L30", 30), ("right", "taxa_L30", 31)))
    program, inputs, _ = build(config, directory)
    model = Spy(tuple(inputs.dataset.num_classes[task] for task in TASKS))
    return replace(program, evaluation=replace(program.evaluation, model=model)), inputs


def evaluate(spied: tuple[Program, Inputs], batch_size: int, devices: int = 1, **options: Any) -> Evaluation:
    program, inputs = spied
    placement = Placement(jax.devices()[:devices])
    split = inputs.dataset.train  # 96 rows, a multiple of neither 7 nor 64
    loader = EvalLoader(split_arrays(split), split.rows, inputs.images["train"], batch_size)
    weights = placement.replicate(np.ones(len(TASKS), np.float32))
    phases = parse_phases(",".join(PHASES), COMPONENTS)
    try:
        return Evaluator(program.evaluation, placement).run({}, {}, weights, loader, phases, **options)
    finally:
        loader.close()


@pytest.fixture(scope="module")
def captured(spied) -> Evaluation:
    return evaluate(spied, 64, logits=True)


class Failing(Spy):
    """Has no finite output for what was taken in a month of a large sine."""

    def classify(self, tokens: jax.Array) -> dict[str, jax.Array]:
        return {task: jnp.where(tokens[:, :1] > 0.9, jnp.nan, z) for task, z in Spy.classify(self, tokens).items()}


def test_rows_without_a_finite_output_are_counted_once(spied) -> None:
    program, inputs = spied
    model = Failing(program.evaluation.model.classes)
    failing = replace(program, evaluation=replace(program.evaluation, model=model))
    count = int((inputs.dataset.train.meta[:, 0] > 0.9).sum())
    assert count > 3
    found = evaluate((failing, inputs), 64).not_finite
    assert found == {"val": count, "val_mask_meta": 0, "val_mask_TEMPORAL": 0, "val_mask_SPATIAL": count}


def test_only_the_named_columns_are_masked(spied, captured) -> None:
    stored = spied[1].dataset.train.meta
    columns = {"TEMPORAL": slice(0, 2), "SPATIAL": slice(2, 5)}
    assert np.count_nonzero(stored) > 300
    for name, masked in PHASES.items():
        expected = stored.copy()
        for component in COMPONENTS if masked is None else masked:
            expected[:, columns[component]] = 0
        np.testing.assert_array_equal(captured.predictions[name].logits["taxa_L10"][:, :5], expected, err_msg=name)


def test_predictions_are_rows_in_split_order(spied, captured) -> None:
    split = spied[1].dataset.train
    for found in captured.predictions.values():
        np.testing.assert_array_equal(found.row, split.rows)
        np.testing.assert_array_equal(found.label, split.labels)
        for t, task in enumerate(TASKS):
            z = found.logits[task].astype(np.float64)
            np.testing.assert_array_equal(found.predicted[:, t], z.argmax(axis=1))
            np.testing.assert_allclose(found.probability[:, t], 1 / np.exp(z - z.max(1)[:, None]).sum(1), rtol=1e-5)


def test_class_weights_are_in_the_losses_that_are_not_called_unweighted(spied, captured) -> None:
    program, inputs = spied
    rng = np.random.default_rng(0)
    class_weights = {task: rng.uniform(0.5, 2, inputs.dataset.num_classes[task]).astype(np.float32) for task in TASKS}
    weighting = replace(program, evaluation=replace(program.evaluation, class_weights=class_weights))
    found, label = evaluate((weighting, inputs), 64).metrics["val"], inputs.dataset.train.labels
    means = []
    for t, task in enumerate(TASKS):
        z = captured.predictions["val"].logits[task].astype(np.float64)
        raw = np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(z)), label[:, t]]
        means.append(np.mean(raw * class_weights[task][label[:, t]]))
        assert found[f"loss_{task}"] == pytest.approx(means[-1], rel=1e-5)
    assert found["loss"] == pytest.approx(np.mean(means), rel=1e-5)
    for name in ("loss_unweighted", "loss_weighted", "chain_accuracy", "nll", "acc1_taxa_L10"):
        assert found[name] == pytest.approx(captured.metrics["val"][name])


@pytest.mark.parametrize(("batch_size", "devices"), [(1, 1), (7, 1), (14, 2), (64, 2)])
def test_counts_do_not_depend_on_batches_or_devices(spied, captured, batch_size, devices) -> None:
    found = evaluate(spied, batch_size, devices)
    assert found.predictions == {}
    for phase in PHASES:
        for name, value in captured.sums[phase].items():
            other = found.sums[phase][name]
            if np.issubdtype(value.dtype, np.integer):
                np.testing.assert_array_equal(other, value, err_msg=f"{phase} {name}")
            else:
                np.testing.assert_allclose(other, value, rtol=1e-5, err_msg=f"{phase} {name}")
        assert found.sums[phase]["count"] == 96
    for task in TASKS:
        assert found.mistakes[task]["pairs"] == captured.mistakes[task]["pairs"]
        entries = zip(found.mistakes[task]["confident"], captured.mistakes[task]["confident"], strict=True)
        for one, other in entries:
            assert one == other | {"probability": pytest.approx(other["probability"], rel=1e-5)}
        for name, value in captured.metrics[phase].items():
            assert found.metrics[phase][name] == pytest.approx(value, rel=1e-5), f"{phase} {name}"


def test_rows_of_unknown_species_are_in_no_rarity_bin(spied, captured) -> None:
    _, inputs = spied
    split, names = inputs.dataset.train, inputs.dataset.rarity_names
    known = split.labels[:, 0] != 0
    assert 0 < known.sum() < len(known)
    expected = np.bincount(split.rarity[known], minlength=len(names))
    assert not np.array_equal(expected, np.bincount(split.rarity, minlength=len(names)))
    np.testing.assert_array_equal(captured.sums["val"]["subset/rarity/count"], expected)


def test_the_host_runs_two_batches_ahead_and_reads_once(spied, monkeypatch) -> None:
    added: list[int] = []
    waited: list[int] = []
    real, wait = Evaluator._add_batch, jax.block_until_ready

    def add_batch(self: Evaluator, *arguments: Any) -> Any:
        added.append(len(added))
        return real(self, *arguments)

    def block_until_ready(x: Any) -> Any:
        waited.append(len(added))
        return wait(x)

    monkeypatch.setattr(Evaluator, "_add_batch", add_batch)
    monkeypatch.setattr(placement.jax, "block_until_ready", block_until_ready)
    before = placement.fetch.calls
    evaluate(spied, 7)
    assert len(added) == 14
    assert waited == list(range(3, 15)), "from the third batch on, the one two batches before is waited for"
    assert placement.fetch.calls == before + 1


@pytest.mark.parametrize("held", [1, 500, 1 << 24])
def test_risk_coverage_equals_that_of_the_predictions(spied, captured, monkeypatch, held) -> None:
    """Exactly, row by row, wherever the scores waited for the end."""
    monkeypatch.setattr(row_scores, "HELD_NUMBERS", held)
    found = evaluate(spied, 7)
    rows, task = captured.predictions["val"], TASKS[0]  # all of what the spy sees, so that no two rows are tied
    known = rows.label[:, 0] != 0
    probability = rows.probability[known, 0]
    assert len(np.unique(probability)) == known.sum()
    wrong = (rows.predicted != rows.label)[known, 0][np.argsort(-probability)]
    risk = np.cumsum(wrong) / np.arange(1, known.sum() + 1)
    assert found.metrics["val"][f"aurc_{task}"] == pytest.approx(risk.mean(), rel=1e-9)
    for level in (1, 5, 10):
        covered = np.flatnonzero(risk <= level / 100).max(initial=-1) + 1
        assert found.metrics["val"][f"coverage_at_risk_{level}_{task}"] == pytest.approx(covered / known.sum())


def test_mistakes_are_those_of_the_predictions(captured) -> None:
    rows = captured.predictions["val"]
    place = {int(row): k for k, row in enumerate(rows.row)}
    for t, task in enumerate(TASKS):
        wrong = (rows.label[:, t] != 0) & (rows.predicted[:, t] != rows.label[:, t])
        found = captured.mistakes[task]
        pairs, counts = np.unique(np.stack([rows.label, rows.predicted])[:, wrong, t], axis=1, return_counts=True)
        count = dict(zip(map(tuple, pairs.T.tolist()), counts.tolist(), strict=True))
        assert [pair["rows"] for pair in found["pairs"]] == sorted(count.values(), reverse=True)[: len(found["pairs"])]
        assert all(count[pair["label"], pair["predicted"]] == pair["rows"] for pair in found["pairs"])
        best = np.sort(rows.probability[wrong, t])[::-1]
        assert [entry["probability"] for entry in found["confident"]] == pytest.approx(best[: len(found["confident"])])
        for entry in found["confident"]:
            k = place[entry["row"]]
            assert (entry["label"], entry["predicted"]) == (rows.label[k, t], rows.predicted[k, t])


def test_a_phase_tells_the_model_which_components_it_hides(spied, monkeypatch) -> None:
    program, inputs = spied
    told: dict[str, jax.Array] = {}
    evaluation = replace(program.evaluation, extras=replace(program.evaluation.extras, custom=()))
    known = inputs.dataset.train.meta_valid[:4]
    assert known.any(axis=0).all()

    def encode_tokens(self: Spy, features: jax.Array, meta: jax.Array, *, meta_valid_BK: jax.Array) -> jax.Array:
        told["valid"] = meta_valid_BK
        return jnp.concatenate([meta, features], axis=1)

    monkeypatch.setattr(Spy, "encode_tokens", encode_tokens)
    meta = jnp.asarray(inputs.dataset.train.meta[:4])
    batch = {"label": jnp.ones((4, 3), jnp.int32), "weight": jnp.ones(4), "row": jnp.arange(4), "meta": meta}
    batch |= {"meta_valid": jnp.asarray(known), "rarity": jnp.zeros(4, jnp.int32)}
    batch |= {"taxa_subset": jnp.zeros((4, 2), bool)}

    @jax.jit  # of which only what the model is told is computed
    def seen(mask: jax.Array) -> list[jax.Array]:
        evaluation.outputs({}, {}, jnp.zeros((4, 3)), meta, known & mask[None])
        by_logits = told.pop("valid")
        evaluation.phase({}, {}, jnp.ones(3), (jnp.zeros((4, 3)), {}), batch, mask, evaluation.empty_sums())
        return [by_logits, told.pop("valid")]

    for mask in ([True, True], [False, True], [True, False]):
        for valid in seen(jnp.asarray(mask)):
            np.testing.assert_array_equal(valid, known & mask)


def test_padding_is_no_hit_of_a_class(spied) -> None:
    evaluation = spied[0].evaluation
    label = jnp.array([[1, 1, 1], [1, 1, 1], [0, 0, 0]])
    predicted = jnp.array([[1, 2, 1], [1, 1, 1], [0, 0, 0]])
    batch = {"label": label, "weight": jnp.array([1.0, 0.0, 0.0])}  # as padding, rows of any label
    for task, hits in zip(TASKS, (1, 0, 1), strict=True):
        counts = evaluation._class_sums(predicted, batch)[f"classes/{task}"]
        assert counts[1].tolist() == [1, hits]
        assert counts.sum() == 1 + hits


def test_counts_of_classes_are_kept_of_one_phase(spied, captured) -> None:
    rows = captured.predictions["val"]
    for t, task in enumerate(TASKS):
        total, right = captured.curves["val"][task]["class_counts"]
        assert total == np.bincount(rows.label[:, t], minlength=len(total)).tolist()
        hit = rows.label[:, t] == rows.predicted[:, t]
        assert right == np.bincount(rows.label[hit, t], minlength=len(total)).tolist()
        of_classes = [r / n for r, n, label in zip(right, total, range(len(total)), strict=True) if n and label]
        assert captured.metrics["val"][f"macro_acc1_{task}"] == pytest.approx(100 * np.mean(of_classes))
        others = (found[task] for phase, found in captured.curves.items() if phase != "val")
        assert not any("class_counts" in found for found in others)


def black(pictures: jax.Array) -> jax.Array:
    return pictures * 0


class Counted:
    """A compiled function that counts its calls."""

    def __init__(self, function: Any) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return self.function(*args)

    def _cache_size(self) -> int:
        return self.function._cache_size()


def test_pictures_are_computed_once_for_all_phases_of_one_view(spied, captured, monkeypatch) -> None:
    program, inputs = spied
    split, place = inputs.dataset.train, Placement(jax.devices()[:1])
    evaluator = Evaluator(program.evaluation, place)
    monkeypatch.setattr(evaluator, "_features", counted := Counted(evaluator._features))
    views = (Phase("val_black", view=black), Phase("val_black_too", masked=None, view=black))
    phases = (*parse_phases("val,val_mask_meta", COMPONENTS), *views)
    with contextlib.closing(EvalLoader(split_arrays(split), split.rows, inputs.images["train"], 64)) as loader:
        found = evaluator.run({}, {}, place.replicate(np.ones(3, np.float32)), loader, phases, logits=True)
    assert counted.calls == 2 * 2  # batches and views
    logits = {name: rows.logits["taxa_L10"] for name, rows in found.predictions.items()}
    for name in ("val", "val_mask_meta"):
        np.testing.assert_array_equal(logits[name], captured.predictions[name].logits["taxa_L10"])
    np.testing.assert_array_equal(logits["val_black"][:, :5], logits["val"][:, :5])  # metadata
    assert np.ptp(logits["val"][:, 5]) > 0.01
    for name in ("val_black", "val_black_too"):
        assert np.ptp(logits[name][:, 5]) == 0
    assert not logits["val_black_too"][:, :5].any()


def test_curves_of_other_phases_stay(tmp_path) -> None:
    path = tmp_path / "curves.json"
    update_curves(path, {"val": {"a": 1}, "val_mask_meta": {"a": 2}})
    update_curves(path, {"val": {"a": 3}})
    assert json.loads(path.read_text()) == {"val": {"a": 3}, "val_mask_meta": {"a": 2}}


@pytest.mark.parametrize(
    ("names", "components", "masks"),
    [
        ("val", COMPONENTS, {"val": [1, 1]}),
        ("val_no_mask, val_mask_meta", COMPONENTS, {"val_no_mask": [1, 1], "val_mask_meta": [0, 0]}),
        ("val_mask_SPATIAL_TEMPORAL", COMPONENTS, {"val_mask_SPATIAL_TEMPORAL": [0, 0]}),
        ("val_mask_A_B", ("A", "A_B", "B"), {"val_mask_A_B": [1, 0, 1]}),
        (
            "all",
            COMPONENTS,
            {"val": [1, 1], "val_mask_meta": [0, 0], "val_mask_TEMPORAL": [0, 1], "val_mask_SPATIAL": [1, 0]},
        ),
        ("all", (), {"val": []}),
    ],
)
def test_phase_names(names, components, masks) -> None:
    found = parse_phases(names, components)
    assert {one.name: component_mask(components, one.masked).astype(int).tolist() for one in found} == masks


@pytest.mark.parametrize("names", ["train", "val_mask_DEPTH", "val_mask_TEMPORAL_TEMPORAL", "val_TEMPORAL", "val_mask"])
def test_wrong_phase_names(names) -> None:
    with pytest.raises(EvaluateError, match=rf"'{names}' is no phase.*TEMPORAL, SPATIAL"):
        parse_phases(names, COMPONENTS)


def test_what_enters_a_block_is_that_of_no_other():
    """Of data that enter one, where the features of another are wanted."""
    evaluation: Any = SimpleNamespace(block=1, model=SimpleNamespace(apply=lambda variables, x, block, method: x))
    x = jnp.arange(24.0).reshape(2, 2, 2, 3)
    for entering, found in ((None, False), (2, False), (1, True)):
        evaluation.entering = entering
        _, vectors = EvaluationProgram.features(evaluation, {}, {}, x)
        assert (ENTERING in vectors) == found
    np.testing.assert_allclose(vectors[ENTERING], np.mean(x, axis=(1, 2)))
