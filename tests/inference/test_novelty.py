"""What is said of new taxa: against scipy and counts by hand, what thresholds promise, and where it is said."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.files import read_sealed, sealed
from linnaeus_jax.inference.answers import AnswerOptions, Answers
from linnaeus_jax.inference.bundle.bundle import Calibration
from linnaeus_jax.inference.bundle.files import STATISTICS, read_bundle, write_bundle
from linnaeus_jax.inference.bundle.statistics import FeatureStatistics
from linnaeus_jax.inference.changed_paths import ChangedPaths
from linnaeus_jax.inference.files.picture_list import PictureFile
from linnaeus_jax.inference.files.predicting import Job, predict_files
from linnaeus_jax.inference.files.prediction_lines import JsonLines
from linnaeus_jax.inference.forward import BLOCK, FUSED, TRUNK
from linnaeus_jax.inference.model import Model
from linnaeus_jax.inference.novelty import CONSTANT, INPUTS, KINDS, Novelty, novelty_text
from linnaeus_jax.inference.paths import some
from linnaeus_jax.inference.pooling import Pooling
from linnaeus_jax.inference.quality import measured_novelty
from linnaeus_jax.inference.quality.measured_novelty import BOUNDS, fit, judged, told_apart
from linnaeus_jax.inference.quality.prior_fitting import prior_of
from linnaeus_jax.inference.server.schemas import PredictForm, PredictionOut
from linnaeus_jax.reading.metadata import Observation
from linnaeus_jax.tools import predict
from linnaeus_jax.weights.files import read_state, write_state
from tests.inference.serving_helpers import serving
from tests.inference.test_prior import occurrences
from tests.inference.test_sets import five

WIDTH = 12
#: of the taxa of `five`: places of genera, and of species around them; the species of the genus 23 lie around its place
RNG = np.random.default_rng(3)
GENUS = 12 * RNG.normal(size=(3, WIDTH))
SPECIES = np.concatenate([GENUS[[0, 0, 0, 1, 1]] + 3 * RNG.normal(size=(5, WIDTH)), GENUS[[2]]])
LABELS = np.array([[0, 0, 0], [1, 0, 0], [2, 0, 0], [3, 1, 0], [4, 1, 0], [-1, 2, 1]])


def statistics_of(x, labels, **how) -> FeatureStatistics:
    found = FeatureStatistics.of(x, labels, **how)
    assert found is not None
    return found


def drawn(rows, seed, known=range(6)):
    """Features and labels of some rows of each species, a normal distribution around its place."""
    species = np.tile(np.asarray(known), rows)
    x = SPECIES[species] + np.random.default_rng(seed).normal(size=(len(species), WIDTH))
    return x.astype(np.float32), LABELS[species]


def logits_of(x, known=range(6)):
    """What heads would say that know only some species, by the distances of the places."""
    species = np.isin(np.arange(6), known)
    finest = -0.5 * np.where(species, cdist(x, SPECIES) ** 2, 1e3)
    genus = np.stack([finest[:, :3].max(axis=1), finest[:, 3:5].max(axis=1), finest[:, 5]], axis=1)
    family = np.stack([genus[:, :2].max(axis=1), genus[:, 2]], axis=1)
    named = dict(zip(five().tasks, (finest[:, :5], genus, family), strict=True))
    return {task: z.astype(np.float32) for task, z in named.items()} | {TRUNK: x}


def uncalibrated():
    counts = {"taxa_L10": [50] * 5, "taxa_L20": [0, 0, 50], "taxa_L30": [0, 0]}
    return Calibration.none(five().tasks, counts)


@pytest.fixture(scope="module")
def novelty() -> Novelty:
    statistics = statistics_of(*drawn(100, 0))
    x, labels = drawn(60, 1)
    fitted, numbers = fit(logits_of(x), labels, five(), uncalibrated(), statistics)
    assert numbers is not None
    assert numbers["rows"] == 360
    assert numbers["left_out"] == 300, "the genus without species has no sister"
    assert numbers["auroc"] > 0.95
    return Novelty(ChangedPaths(five(), fitted.path_counts), fitted, statistics)


@pytest.mark.parametrize("shrinkage", [0.0, 0.2, 1.0])
def test_distances_are_those_of_mahalanobis(shrinkage):
    x, labels = drawn(40, 0)
    statistics = statistics_of(x, labels)
    means = np.stack([x[(labels == each).all(axis=1)].mean(axis=0, dtype=float) for each in statistics.label])
    place = [int(np.flatnonzero((statistics.label == each).all(axis=1))[0]) for each in labels]
    covariance = np.cov((x - means[place]).T, bias=True)
    shrunk = (1 - shrinkage) * covariance + shrinkage * np.trace(covariance) / WIDTH * np.eye(WIDTH)
    far = 50 * np.random.default_rng(1).normal(size=(30, WIDTH)).astype(np.float32)
    expected = cdist(far, means, "mahalanobis", VI=np.linalg.inv(shrunk)) ** 2
    found = dataclasses.replace(statistics, shrinkage=shrinkage).distances(far)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert statistics.count.tolist() == [40] * 6


def test_the_score_is_that_of_pytorch_ood():
    """Of 0.4.0, `Mahalanobis`, in float64: half the distance by the sum of the products, which are not divided by N."""
    rng, label = np.random.default_rng(0), np.repeat(np.arange(3), 14)
    x = rng.normal(size=(42, 6)) + 4 * label[:, None]
    far = 3 * rng.normal(size=(5, 6)) + 5
    statistics = FeatureStatistics.of(x, label[:, None], directions=6)
    assert statistics is not None
    found = dataclasses.replace(statistics, shrinkage=0.0).distances(far).min(axis=1) / (2 * len(x))
    np.testing.assert_allclose(found, [0.77168214, 0.97676609, 0.4091817, 1.66550117, 0.78549903], rtol=1e-6)


def test_the_directions_that_are_left_out_share_a_variance():
    x, labels = drawn(40, 0)
    x[:, 0] *= 9
    whole, few = statistics_of(x, labels), statistics_of(x, labels, directions=1)
    assert few.axes.shape == (WIDTH, 1)
    np.testing.assert_allclose(few.rest, np.sort(whole.variance)[:-1].mean(), rtol=1e-5)
    covariance = few.axes @ few.axes.T * (few.variance[0] - few.rest) + few.rest * np.eye(WIDTH)
    shrunk = 0.2 * covariance + 0.8 * np.trace(covariance) / WIDTH * np.eye(WIDTH)
    expected = cdist(x[:20], few.mean, "mahalanobis", VI=np.linalg.inv(shrunk)) ** 2
    np.testing.assert_allclose(few.distances(x[:20]), expected, rtol=1e-5)
    assert FeatureStatistics.of(np.ones_like(x), labels) is None, "there is no variance"


def test_the_stated_share_of_known_rows_is_called_new(novelty):
    x, _ = drawn(2000, 2)
    for share in (0.02, 0.05, 0.2):
        kind = novelty(logits_of(x), share)["kind"]
        assert abs((kind == 1).mean() - share) < 0.6 * share + 0.01
        assert (kind == 2).mean() < share


def test_new_species_are_put_below_their_genus_and_other_things_are_outside(novelty):
    near = GENUS[[0, 1]].repeat(200, axis=0) + 4 * np.random.default_rng(4).normal(size=(400, WIDTH))
    found = novelty(logits_of(near.astype(np.float32)), 0.05)
    assert (found["kind"] > 0).mean() > 0.9
    new = found["kind"] == 1
    assert (found["index"][new] == np.arange(2).repeat(200)[new]).mean() > 0.95
    assert (found["task"][new] == 1).mean() > 0.95
    assert (found["probability"][new & (found["task"] >= 0)] >= 0.5).all()
    x = 300 + 40 * np.random.default_rng(5).normal(size=(50, WIDTH)).astype(np.float32)
    assert (novelty(logits_of(x), 0.05)["kind"] == 2).all()
    every = novelty(logits_of(x), 0.05, every=True)
    assert (every["task"] >= 0).any()
    assert (novelty(logits_of(x), 0.05)["task"] == -1).all(), "of what is outside, no taxon is said"


def test_a_species_that_no_model_knows_is_told_as_well_as_one_that_is_left_out(novelty):
    known = [0, 2, 3, 4, 5]
    statistics = statistics_of(*drawn(100, 0, known))
    x, labels = drawn(60, 1, known)
    fitted, left_out = fit(logits_of(x, known), labels, five(), uncalibrated(), statistics)
    assert left_out is not None
    hidden = Novelty(ChangedPaths(five(), fitted.path_counts), fitted, statistics)
    (x, labels), (x_new, _) = drawn(500, 6, known), drawn(500, 6, [1])
    found = hidden(logits_of(np.concatenate([x, x_new]), known), 0.05, every=True)
    apart = told_apart(found["known"][: len(x)], found["known"][len(x) :])
    assert apart["auroc"] > 0.95
    assert abs(apart["auroc"] - left_out["auroc"]) < 0.05
    lost = np.where(np.arange(3) == 0, -2, LABELS[1])
    numbers = judged(found, np.concatenate([labels, np.tile(lost, (500, 1))]), -2)
    assert numbers["known"]["rows"] == 2500
    assert numbers["new"]["rows"] == 500
    assert numbers["outside"] == {"rows": 0, "said": dict.fromkeys(KINDS), "auroc": None, "false_positives": None}
    assert numbers["new"]["right_parent"] > 0.95
    assert numbers["new"]["auroc"] == apart["auroc"]


def test_rows_of_the_statistics_themselves_are_measured_by_other_folds():
    x, labels = drawn(8, 0)  # few rows: the distance to a mean of which a row is a part is far too small
    statistics = statistics_of(x, labels)
    own, _ = fit(logits_of(x), labels, five(), uncalibrated(), statistics)
    others, _ = fit(logits_of(x), labels, five(), uncalibrated(), statistics, folds=True)
    fresh = drawn(300, 9)[0]
    paths = ChangedPaths(five(), own.path_counts)
    said = {
        name: (Novelty(paths, each, statistics)(logits_of(fresh), 0.1)["kind"] > 0).mean()
        for name, each in (("own", own), ("others", others))
    }
    assert said["others"] < said["own"]


@pytest.mark.parametrize("folds", [False, True])
def test_what_is_outside_is_told_by_another_layer_where_there_is_one(folds):
    """Features of a trained trunk are the same for what is far, those before its trained blocks are not."""
    rng, before = np.random.default_rng(0), f"{BLOCK}1"

    def rows(number, seed):
        x, labels = drawn(number, seed)
        return {TRUNK: x, before: rng.normal(size=(len(x), 5)).astype(np.float32)}, labels

    features, labels = rows(80, 0)
    statistics = FeatureStatistics.of_layers(features, labels)
    assert statistics is not None
    assert statistics.layers == (TRUNK, before)
    assert statistics.outside is not None
    assert statistics.outside.count.tolist() == [480]
    judging, labels = (features, labels) if folds else rows(60, 1)
    fitted, _ = fit({**logits_of(judging[TRUNK]), **judging}, labels, five(), uncalibrated(), statistics, folds=folds)
    answers = Answers(five(), fitted, statistics)
    fresh, _ = rows(500, 2)
    logits = {**logits_of(fresh[TRUNK]), **fresh}
    said = answers.answered(logits, options := answers.options(novelty=0.1)).novelty
    assert abs((said["kind"] == 2).mean() - 0.1) < 0.03
    np.testing.assert_allclose(said["outside"], statistics.outside.distances(fresh[before])[:, 0])
    far = {**logits, before: fresh[before] + 9}
    assert (answers.answered(far, options).novelty["kind"] == 2).all()
    assert answers.novelty is not None
    assert not answers.novelty.can_judge(logits_of(fresh[TRUNK]))
    pooling = Pooling(answers)
    alone = answers.answered(pooling.pooled(terms := pooling.terms(far), np.ones(len(terms), int)), options).novelty
    for name in ("outside", "known"):
        np.testing.assert_allclose(alone[name], answers.answered(far, options).novelty[name], rtol=1e-6)


def test_energies_and_bundles_from_before_there_were_any(novelty):
    """Against scipy; weights that a bundle does not have are 0."""
    x, _ = drawn(3, 3)
    logits, ranks = logits_of(x), novelty.calibration.ranks
    inputs = novelty.inputs(logits, np.ones(len(x)))
    np.testing.assert_allclose(inputs[:, 2], logsumexp(logits["taxa_L10"].astype(float) / ranks["taxa_L10"], axis=1))
    weights = {"constant": 0.3, "log_probability": 1.5, "log_distance": -0.5}
    score = 1 / (1 + np.exp(-(0.3 + 1.5 * inputs[:, 0] - 0.5 * inputs[:, 1])))
    np.testing.assert_allclose(novelty.known(inputs, weights), score)
    assert (novelty.known(inputs, weights | {"energy": 0.1}) != score).all()


def test_areas_are_those_of_all_pairs():
    rng = np.random.default_rng(0)
    known, new = rng.integers(0, 9, 50), rng.integers(-3, 6, 40)
    pairs = (known[:, None] > new).mean() + 0.5 * (known[:, None] == new).mean()
    found = told_apart(known, new)
    np.testing.assert_allclose(found["auroc"], pairs)
    least = max(value for value in known if (known >= value).mean() >= 0.95)
    np.testing.assert_allclose(found["false_positives"], (new >= least).mean())


def test_few_rows_and_lonely_taxa_give_no_thresholds():
    statistics = statistics_of(*drawn(100, 0))
    x, labels = drawn(2, 1)
    before = uncalibrated()
    fitted, _ = fit(logits_of(x), labels, five(), before, statistics)
    few = Novelty(ChangedPaths(five(), fitted.path_counts), fitted, statistics)
    assert few.possible(0.1)
    assert not few.possible(0.05)
    assert Answers(five(), fitted, statistics).options().novelty is None
    with pytest.raises(UserError, match=r"^novelty 0\.05 needs more than the 12 validation rows that .*; ask for a "):
        Answers(five(), fitted, statistics).options(novelty=0.05)
    unlabelled = np.full_like(labels, -1)
    assert fit(logits_of(x), unlabelled, five(), before, statistics) == (before, None)


@pytest.mark.parametrize("asked", [0, -0.05, 0.6, 0.055, "no", float("nan"), float("inf")])
def test_a_share_that_cannot_be_is_refused(novelty, asked):
    answers = Answers(five(), novelty.calibration, novelty.statistics)
    with pytest.raises(UserError, match=r"^novelty is .*; give auto, off, or a share from 0\.01 to 0\.5 in steps of 0"):
        answers.options(novelty=asked)
    assert answers.options().novelty == answers.options(novelty="0.05").novelty == 0.05
    assert answers.options(novelty="off").novelty is None
    older = Answers(five(), uncalibrated())
    assert older.options().novelty is None
    with pytest.raises(UserError, match=r"^novelty 0\.05 needs statistics of training rows .*: make its bundle anew"):
        older.options(novelty=0.05)


def test_answers_stay_as_they_are_and_blocks_do_not_matter(novelty, monkeypatch):
    answers = Answers(five(), novelty.calibration, novelty.statistics)
    x, _ = drawn(9, 3)
    x[:5] *= 40
    logits = logits_of(x)
    plain = answers(some(logits, np.arange(len(x))), answers.options(novelty="off"))
    assert plain == Answers(five(), novelty.calibration)(logits, answers.options(novelty="off"))
    said = answers(logits, answers.options())
    nothing: Any = {"novelty": "", "novelty_taxon": None, "known_score": 0.0, "outside_score": 0.0}
    assert [dataclasses.replace(each, **nothing) for each in said] == plain
    assert [each.novelty for each in said[:5]] == ["outside"] * 5
    monkeypatch.setattr("linnaeus_jax.inference.answers.BLOCK", 1)
    assert [each.novelty for each in answers(logits, answers.options())] == [each.novelty for each in said]
    assert {"novelty", "novelty_taxon", "known_score", "outside_score"} <= said[0].to_json().keys()
    assert not {"novelty", "known_score"} & plain[0].to_json().keys()


def test_what_people_read():
    taxon = {"rank": "genus", "taxon_id": 21, "name": "Parus"}
    assert novelty_text({"novelty": "new_below", "novelty_taxon": taxon}) == "new below genus Parus"
    assert novelty_text({"novelty": "new_below", "novelty_taxon": None}) == "new, below no probable taxon"
    assert novelty_text({"novelty": "outside"}) == "outside: like no training picture"
    assert novelty_text({"novelty": "known"}) == novelty_text({}) == ""


# ---- of a bundle


def test_statistics_are_part_of_a_bundle(judging, tmp_path):
    write_bundle(judging, tmp_path / "a")
    read = read_bundle(tmp_path / "a")
    assert read.calibration == judging.calibration
    rows = {FUSED: RNG.normal(size=(9, 5)), f"{BLOCK}1": RNG.normal(size=(9, 4))}
    made = FeatureStatistics.of_layers(rows, np.tile([[1, 1, 1]], (9, 1)))
    assert made is not None
    both = dataclasses.replace(judging.statistics, outside=(before := made.outside))
    both.write(tmp_path / STATISTICS)
    again = FeatureStatistics.read(tmp_path / STATISTICS, judging.taxonomy)
    assert read.statistics is not None
    assert read.statistics.outside is None
    assert again.layers == (FUSED, f"{BLOCK}1")
    for wanted, found in ((judging.statistics, read.statistics), (both, again), (before, again.outside)):
        for name, value in vars(wanted).items():
            if not name.startswith("_") and name != "outside":
                np.testing.assert_array_equal(getattr(found, name), value)
    state = read_state(tmp_path / STATISTICS)
    write_state(tmp_path / STATISTICS, state.arrays | {"outside/count": np.array([0])}, state.facts)
    with pytest.raises(ValueError, match="holds counts or variances that cannot be"):
        FeatureStatistics.read(tmp_path / STATISTICS, judging.taxonomy)
    with pytest.raises(UserError, match="its feature statistics are of 'block_1', which its model does not give"):
        Model(dataclasses.replace(judging, statistics=both))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"label": np.full((3, 3), 9, np.int32)}, "names classes that the model does not have"),
        ({"label": np.zeros((3, 2), np.int32)}, "holds no feature statistics of 3 ranks"),
        ({"count": np.array([0, 4, 4])}, "holds counts or variances that cannot be"),
        ({"variance": np.zeros(16, np.float32)}, "holds"),
        ({"mean": np.zeros(3, np.float32)}, "holds no feature statistics"),
        ({"mean": np.full((3, 16), np.nan, np.float32)}, "NaN"),
        ({"rest": np.array([-1.0], np.float32)}, "holds counts or variances that cannot be"),
    ],
)
def test_statistics_of_strangers_are_refused(judging, tmp_path, change, said):
    path = tmp_path / STATISTICS
    judging.statistics.write(path)
    state = read_state(path)
    write_state(path, {**state.arrays, **change}, state.facts)
    with pytest.raises((UserError, ValueError), match=said):
        FeatureStatistics.read(path, judging.taxonomy)


@pytest.mark.parametrize(
    "value",
    [
        {"weights": {}},
        {"outside": {}, "new": {}},
        {"weights": 3},
        [],
        {"weights": {"constant": 1, "a": 1}, "outside": {}, "new": {}},
        {"weights": {"energy": 1}, "outside": {}, "new": {}},
        {"weights": {"constant": "1"}, "outside": {}, "new": {}},
    ],
)
def test_thresholds_of_strangers_are_refused(judging, tmp_path, value):
    write_bundle(judging, tmp_path / "a")
    about = read_sealed(tmp_path / "a" / "bundle.json")
    about["calibration"]["novelty"] = value
    (tmp_path / "a" / "bundle.json").write_text(json.dumps(sealed(about)))
    with pytest.raises(UserError, match=r"calibration\.novelty is .*; weights and thresholds, .* is needed"):
        read_bundle(tmp_path / "a")


def test_features_of_another_model_are_refused(judging):
    with pytest.raises(UserError, match=r"^the feature statistics are of 16 features, but the model has 5; make the "):
        judging.statistics.distances(np.zeros((2, 5)))


def test_python_and_files_say_the_same(judging, model, shared, pictures, monkeypatch):
    write_bundle(judging, Path("judging"))
    mine = Model(judging, buckets=(2, 8))
    mine.forward, mine._others = model.forward, model._others  # compiled already
    said = mine.predict(list(pictures.pixels[:8]))
    assert {each.novelty for each in said} <= set(KINDS)
    assert len({each.novelty for each in said}) > 1
    off = mine.predict(list(pictures.pixels[:8]), novelty="off")
    assert off == model.predict(list(pictures.pixels[:8])), "bit for bit as without statistics"
    assert predict.main(["judging", "photos", "--out", "p.csv", "--gallery", "p.html"]) == 0
    assert predict.main(["judging", "photos", "--out", "p.jsonl"]) == 0
    assert predict.main(["judging", "photos", "--out", "off.csv", "--novelty", "off"]) == 0
    with Path("p.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = [json.loads(line) for line in Path("p.jsonl").read_text().splitlines()]
    page = Path("p.html").read_text()
    for row, line, one in zip(rows, lines, said, strict=True):
        assert row["novelty"] == line["novelty"] == one.novelty
        taxon = one.novelty_taxon
        assert row["novelty_taxon_id"] == (str(taxon.taxon_id) if taxon else "")
        assert row["novelty_taxon"] == (taxon.name if taxon else "")
        np.testing.assert_allclose(float(row["outside_score"]), one.outside_score, rtol=1e-3)
        np.testing.assert_allclose(float(row["known_score"]), line["known_score"], rtol=1e-3)
        assert (line["novelty_taxon"] or {}).get("taxon_id") == (taxon.taxon_id if taxon else None)
        assert novelty_text(line) in page
    assert "novelty" not in Path("off.csv").read_text().splitlines()[0]
    assert predict.main(["judging", "photos", "--novelty", "2"]) == 2


def test_pictures_of_one_thing_are_judged_by_their_means(novelty):
    """A picture alone as it is; of several false alarms are rarer, and the scores tell new taxa better apart."""
    pooling = Pooling(answers := Answers(five(), novelty.calibration, novelty.statistics))
    options, found = answers.options(novelty=0.1), {}
    x, _ = drawn(120, 9)
    x = x.reshape(120, 6, WIDTH).swapaxes(0, 1).reshape(-1, WIDTH)  # 24 occurrences of 5 of each species
    shift = np.float32(3 * np.eye(WIDTH)[0])
    for kind, logits in (("known", logits_of(x)), ("new", logits_of(x + shift))):
        terms = pooling.terms(logits)
        one = answers.answered(logits, options).novelty
        single = answers.answered(pooling.pooled(terms, np.ones(len(terms), int)), options).novelty
        for name in ("outside", "known", "probability"):
            np.testing.assert_allclose(single[name], one[name], rtol=1e-6)
        np.testing.assert_array_equal(single[["kind", "task", "index"]], one[["kind", "task", "index"]])
        sums = terms.reshape(-1, 5, *terms.shape[1:]).sum(axis=1)
        several = answers.answered(pooling.pooled(sums, np.full(len(sums), 5)), options).novelty
        np.testing.assert_allclose(several["outside"], one["outside"].reshape(-1, 5).mean(axis=1), rtol=1e-9)
        found[kind] = one, several
    alone, together = zip(*found.values(), strict=True)
    assert np.mean(together[0]["kind"] > 0) <= np.mean(alone[0]["kind"] > 0) <= 0.13
    areas = [np.mean(known["known"][:, None] > new["known"]) for known, new in (alone, together)]
    assert areas[1] > areas[0] > 0.7


def test_occurrences_say_the_same_in_python_in_files_and_over_http(judging, model, shared, pictures):
    write_bundle(judging, Path("judging"))
    mine = Model(judging, buckets=(2, 8))
    mine.forward, mine._others = model.forward, model._others  # compiled already
    names = [f"photos/{number}.png" for number in range(3)]
    known: dict[str, Any] = {"date": "2024-05-17"}
    [one] = mine.predict(names, together="all", **known)
    assert one.novelty
    each = mine.predict(names, **known)
    assert one.outside_score == pytest.approx(np.mean([single.outside_score for single in each]), rel=1e-4)
    assert mine.predict(names, together="all", novelty="off", **known)[0].novelty == ""
    Path("t.csv").write_text("file,id,date\n" + "".join(f"{number}.png,a,2024-05-17\n" for number in range(3)))
    assert predict.main(["judging", *names, "--meta", "t.csv", "--together", "id", "--out", "p.jsonl"]) == 0
    rows = [json.loads(Path("p.jsonl").read_text())]
    with serving(mine) as url:
        files = [("images", (name, Path(name).read_bytes())) for name in names]
        fields = {"together": "true", "compare": "true", **known}
        answer = httpx.post(f"{url}/predict", files=files, data=fields, timeout=60).json()
    rows += answer["predictions"]
    for row in rows:
        assert (row["novelty"], row["known_score"], row["outside_score"]) == (
            one.novelty,
            pytest.approx(one.known_score, rel=1e-3),
            pytest.approx(one.outside_score, rel=1e-3),
        )
    alone = mine.predict(names, together="all")[0]
    assert alone.outside_score != pytest.approx(one.outside_score, rel=1e-3)
    assert rows[1]["without_metadata"]["outside_score"] == pytest.approx(alone.outside_score, rel=1e-3)


def test_the_server_takes_and_says_it(novelty):
    answers = Answers(five(), novelty.calibration, novelty.statistics)
    x, _ = drawn(5, 3)
    x[:9] *= 40
    answered = answers.answered(logits_of(x), options := answers.options())
    said = answers.predictions(answered, options)
    nothing = [()] * len(x)
    objects = JsonLines(five(), AnswerOptions()).objects(answered, options, nothing, nothing)
    assert json.loads(json.dumps(objects)) == json.loads(json.dumps([each.to_json() for each in said]))
    assert [PredictionOut.model_validate(each).novelty for each in objects] == [each.novelty for each in said]
    assert PredictForm.model_validate({"novelty": "0.1"}).novelty == 0.1
    assert PredictForm.model_validate({"novelty": "off"}).novelty == "off"
    assert PredictForm.model_validate({}).novelty == "auto"


def test_a_prior_counts_beside_what_is_new(judging, pictures, tmp_path):
    """The outputs then hold features, too."""
    both = Model(judging, buckets=(8,)).with_prior(prior_of(occurrences(), ("L10", "L20", "L30"), 2.0, 50_000)[0])
    options, where = both.answers.options(), ("52.1", "13.2", "2024-05-17")
    jobs = []
    for number, pixels in enumerate(pictures.pixels[:3]):
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        jobs.append(Job(PictureFile(tmp_path / f"{number}.png", str(number), str(number)), Observation(*where)))
    (part,) = predict_files(both, jobs, options)
    found = part.predictions(both.answers, options)
    known: dict[str, Any] = dict(zip(("latitude", "longitude", "date"), where))
    assert [each.to_json() for each in found] == [
        each.to_json() for each in both.predict([job.picture.path for job in jobs], **known)
    ]
    assert all(each.novelty and each.prior_text is not None for each in found)
    without = both.predict([jobs[0].picture.path], **known, novelty="off")
    assert without[0].path == found[0].path


@pytest.mark.parametrize("apart", [1.0, 10.0])
def test_weights_are_the_best_of_their_penalised_loss(apart):
    """By the slope of the loss written out, which is 0 within the bounds; for rows that any weights tell apart, too."""
    rng = np.random.default_rng(1)
    signs = np.array([1.0 if BOUNDS[name][0] == 0 else -1.0 for name in INPUTS])
    known = rng.normal(size=(40, 3)) * [1, 2, 5] + apart * signs * [1, 2, 5]
    new = rng.normal(size=(10, 3)) * [1, 2, 5]
    found = measured_novelty._weights(known, new)
    x = np.concatenate([known, new])
    mean, scale = x.mean(axis=0), x.std(axis=0)

    def loss(w):
        margin = np.repeat([1, -1], [40, 10]) * ((x - mean) / scale @ w[1:] + w[0])
        return (np.repeat([25 / 40, 25 / 10], [40, 10]) * np.log1p(np.exp(-margin))).sum() + 0.5 * w[1:] @ w[1:]

    raw = np.array([found[name] for name in INPUTS])
    assert (raw * signs > 0).all()
    best = np.array([found[CONSTANT] + mean @ raw, *(raw * scale)])
    slope = [(loss(best + 1e-5 * away) - loss(best - 1e-5 * away)) / 2e-5 for away in np.eye(4)]
    np.testing.assert_allclose(slope, 0, atol=1e-3)
