"""How good a trained run is on its validation rows, for its bundle: temperatures and what the card says."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.credits import license_counts
from linnaeus_jax.data.labels import occurrence_numbers
from linnaeus_jax.data.splits import Split
from linnaeus_jax.inference import conformal, sets
from linnaeus_jax.inference.answers import Answers
from linnaeus_jax.inference.bundle.bundle import Bundle, Calibration
from linnaeus_jax.inference.bundle.exemplars import Exemplars
from linnaeus_jax.inference.bundle.members import OTHERS
from linnaeus_jax.inference.bundle.statistics import MOST_FEATURES, FeatureStatistics
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.inference.forward import layers_of, of_runs
from linnaeus_jax.inference.paths import NOT_FINITE, Logits, NotFiniteError, finite_rows, some
from linnaeus_jax.inference.pooling import LEAST_GROUPS
from linnaeus_jax.inference.quality import features as features_of
from linnaeus_jax.inference.quality.calibration import fit, judge
from linnaeus_jax.inference.quality.measured_novelty import fit as fit_novelty
from linnaeus_jax.inference.quality.measured_sets import set_scores
from linnaeus_jax.inference.quality.occurrences import OccurrenceSums, Together
from linnaeus_jax.metrics.judged import Judged, joined
from linnaeus_jax.metrics.phases import MAIN, WITHOUT_METADATA
from linnaeus_jax.run.evaluate import EvaluateError, Loaded, evaluate, load, test_split
from linnaeus_jax.run.frozen_trunk import folds_by_occurrence, out_of_fold

log = logging.getLogger("linnaeus_jax")

#: most rows that are measured, and most bytes of their logits
MOST_ROWS, MOST_BYTES = 20_000, 1 << 30
WITH, WITHOUT = MAIN.name, WITHOUT_METADATA.name
CONSISTENCY = {"ranks": "documented", "paths": "path"}


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a run that its model was not fitted to, and what it says of them.

    Attributes:
      logits: phase -> task -> float32 [N, C]; the phases are `WITH` all metadata and, where there are any, `WITHOUT`.
      labels: int32 [N, T], class indices, finest rank first.
      subsets: (kind, name, bool [N]) of every subset that the run measures.
      total: validation rows, of which N were drawn.
      not_finite: rows that were drawn and are not among the N, because the outputs of the model are not finite.
      licences: of the training rows, by name; {} where the labels file has none.
      test: logits with all metadata, task -> float32 [n, C], and labels int32 [n, T] of the test rows of the labels
        file, or of as many drawn from them; None where it sets none aside.
      folds: the rows are those that the heads were fitted to, and `logits` are by heads of other folds.
      group: int64 [N], the same number for rows of one occurrence; of none where folds tore them apart.
      features: layer -> float32 [N, D] of the N rows, see `features.of_rows`; {}: they are not wanted.
      trained: features [n, D] by layer and labels int32 [n, T] of a sample of the training rows, likewise.
      added: how many of the N rows are pictures of taxa that were added to the model.
    """

    logits: Mapping[str, Logits]
    labels: NDArray[np.int32]
    subsets: tuple[tuple[str, str, NDArray[np.bool_]], ...]
    total: int
    licences: Mapping[str, int]
    not_finite: int = 0
    test: tuple[Logits, NDArray[np.int32]] | None = None
    folds: bool = False
    group: NDArray[np.int64] | None = None
    features: Mapping[str, NDArray[np.float32]] = dataclasses.field(default_factory=dict)
    trained: tuple[Mapping[str, NDArray[np.float32]], NDArray[np.int32]] | None = None
    added: int = 0

    @property
    def kind(self) -> str:
        """What the rows are, in words."""
        said = "training and validation rows" if self.folds else "validation rows"
        said += f" and {self.added:,} pictures of added taxa" if self.added else ""
        return said + ", each by heads that were fitted to others" * bool(self.folds or self.added)


@dataclass(frozen=True, eq=False)
class Measured:
    """What a card says; `ranks` is every rank by itself, `paths` the most probable path.

    Attributes:
      rows: what was measured on.
      raw: `ranks` of the logits as they are.
      judged: (phase, "ranks" or "paths") -> answers by temperatures that were fitted on other rows.
      calibration: fitted on all the rows.
      set_score: float64 [N], see `sets.scores`, by temperatures that were fitted on other rows; NaN where the label has
        taxa below it.
      test: answers by paths for the test rows, where there are some.
      together: occurrences of several pictures, where there are enough.
      novelty: how well left out taxa are told from known ones, see `measured_novelty.fit`; None: it was not measured.
    """

    rows: Rows
    raw: Judged
    judged: Mapping[tuple[str, str], Judged]
    calibration: Calibration
    set_score: NDArray[np.float64]
    test: Judged | None = None
    together: Together | None = None
    novelty: Mapping[str, Any] | None = None


@dataclass(frozen=True, eq=False)
class _Outputs:
    """What one run says of the rows that were drawn, finite or not.

    Attributes:
      logits, test, trained, folds: see `Rows`; those of `WITH` have features, too, under the names of their layers.
      rows: what tells these rows, and those that the run was trained on, from others.
    """

    loaded: Loaded
    split: Split
    total: int
    logits: Mapping[str, Logits]
    test: tuple[Logits, NDArray[np.int32]] | None
    trained: tuple[Logits, NDArray[np.int32]] | None
    folds: bool
    rows: tuple[Any, ...]


def read_rows(
    bundle: Bundle,
    progress: Callable[[int, int], None] | None = None,
    *,
    runs: Sequence[Bundle] = (),
    most_rows: int = MOST_ROWS,
    seed: int = 0,
    novelty: bool = False,
) -> Rows:
    """Evaluates the weights of a bundle, which was read from a run, on a sample of the run's validation rows.

    Args:
      runs: of a bundle of several, each by itself.
      novelty: features, too, and those of a sample of the training rows.

    Raises:
      UserError: the data of the run cannot be read, it has no validation rows, or other runs were trained on them.
      NotFiniteError: the outputs of the model are finite for none of them.
    """
    runs = runs or (bundle,)
    most = most_rows, MOST_BYTES // len(runs)
    outputs = [_outputs(run, progress, *most, seed, novelty=novelty) for run in runs]
    first, split = outputs[0], outputs[0].split
    for run, found in zip(runs, outputs, strict=True):
        _check_rows(runs[0], first, run, found)

    def together(found: Sequence[Logits]) -> dict[str, NDArray[np.float32]]:
        return {name: np.asarray(z) for name, z in of_runs(found, bundle.variables).items()}

    def finite_ones(found: Sequence[tuple[Logits, NDArray[np.int32]]]) -> tuple[Logits, NDArray[np.int32]] | None:
        said = together([each for each, _ in found])
        kept = finite_rows(said)
        return (some(said, kept), found[0][1][kept]) if kept.any() else None

    logits = {phase: together([each.logits[phase] for each in outputs]) for phase in first.logits}
    features = {layer: logits[WITH].pop(layer) for layer in [*logits[WITH]] if layer not in bundle.tasks}
    finite = np.logical_and.reduce([finite_rows(of_phase) for of_phase in logits.values()])
    if not finite.any():
        raise NotFiniteError(f"none of {len(finite)} validation rows of {bundle.source} has an answer: {NOT_FINITE}")
    trained = finite_ones([each.trained for each in outputs if each.trained]) if first.trained else None
    return Rows(
        {phase: some(of_phase, finite) for phase, of_phase in logits.items()},
        split.labels[finite],
        tuple((kind, name, rows[finite]) for kind, name, rows in _subsets(first.loaded, split)),
        first.total,
        license_counts(first.loaded.dataset.train.table.path, np.sort(first.loaded.dataset.train.rows)),
        int(np.count_nonzero(~finite)),
        finite_ones([each.test for each in outputs if each.test]) if first.test else None,
        first.folds,
        occurrence_numbers([(split.table, split.rows[finite])])
        if all(not each.folds or folds_by_occurrence(each.loaded.experiment.directory) for each in outputs)
        else None,
        some(features, finite),
        trained,
    )


def _outputs(
    bundle: Bundle,
    progress: Callable[[int, int], None] | None,
    most_rows: int,
    most_bytes: int,
    seed: int,
    *,
    novelty: bool,
) -> _Outputs:
    try:
        loaded = load(bundle.source, str(bundle.facts["step"]))
    except UserError as error:
        raise UserError(
            f"{error}. The bundle's probabilities are calibrated on the validation rows of the run, so its data must "
            "be where its configuration says; without them, use --without-data"
        ) from error
    whole = loaded.dataset.val
    if not len(whole):
        raise UserError(f"{bundle.source} has no validation rows to calibrate on; use --without-data")
    phases = (MAIN, WITHOUT_METADATA) if bundle.encoder.components else (MAIN,)
    row_bytes = 4 * len(phases) * sum(bundle.taxonomy.tree.num_classes.values())
    most_rows = min(most_rows, max(1, most_bytes // row_bytes))
    loaded = _with_weights(loaded, bundle)
    folds = None if bundle.facts["step"] else out_of_fold(loaded.experiment.directory, loaded.dataset)
    features: Mapping[str, NDArray[np.float32]] = {}
    if folds is not None:
        whole, of_folds = folds
        split = whole.sample(most_rows, seed)
        if novelty:
            found = features_of.of_rows(loaded, split, progress)
            features, split = found.features, split.take(np.flatnonzero(found.read))
        place = {row: at for at, row in enumerate(whole.rows.tolist())}
        some_rows = some(of_folds, np.array([place[row] for row in split.rows.tolist()], np.int64))
        logits: dict[str, Logits] = {phase.name: some_rows for phase in phases}  # fitted without metadata
    else:
        split = whole.sample(most_rows, seed)
        found = features_of.outputs(loaded, split, phases, progress, features=novelty)
        logits, features, split = {**found.logits}, found.features, split.take(np.flatnonzero(found.read))
    logits[WITH] = {**logits[WITH], **features}
    test = _test_rows(loaded, most_rows, seed, progress)
    trained = features_of.of_trained(loaded, MOST_ROWS, seed, progress) if novelty and folds is None else None
    labels = [split.labels, *(of[1] for of in (test, trained) if of)]
    rows = (loaded.training_rows, split.rows.tobytes(), [each.tobytes() for each in labels])
    return _Outputs(loaded, split, len(whole), logits, test, trained, folds is not None, rows)


def _check_rows(first: Bundle, wanted: _Outputs, run: Bundle, found: _Outputs) -> None:
    """Raises UserError where one run was trained on rows that another one is judged by."""
    if wanted.folds != found.folds:
        fitted, other = (run, first) if found.folds else (first, run)
        raise UserError(
            f"the heads of {fitted.source} (step 0) are fitted to its validation rows, too, those of {other.source} "
            "are not: they cannot be calibrated together; leave one out, or choose a --checkpoint that all have"
        )
    if wanted.rows != found.rows:
        raise UserError(
            f"{run.source} was trained on or validated by other rows than {first.source}, so that none are left to "
            "calibrate both on; give runs of the same data with the same data.h5.train_val_split_seed, or use "
            "--without-data"
        )


def _test_rows(
    loaded: Loaded, most_rows: int, seed: int, progress: Callable[[int, int], None] | None
) -> tuple[Logits, NDArray[np.int32]] | None:
    if not len(loaded.dataset.test_rows):
        return None
    try:
        split = test_split(loaded).sample(most_rows, seed)
    except EvaluateError as error:
        log.warning("test rows are not measured: %s", error)
        return None
    found = evaluate(loaded, (MAIN,), split, logits=True, progress=progress).predictions[WITH]
    return found.logits, found.label


def measure(rows: Rows, bundle: Bundle, seed: int = 0) -> Measured:
    """Judges every row by temperatures that were fitted on the half of the rows without it."""
    taxonomy, path_counts = bundle.taxonomy, bundle.calibration.path_counts
    halves = np.array_split(np.random.default_rng(seed).permutation(len(rows.labels)), 2)
    parts: dict[tuple[str, str], list[Judged]] = {}
    score, paths = np.empty(len(rows.labels)), len(Answers(taxonomy, bundle.calibration).paths.classes)
    sums = OccurrenceSums(np.arange(len(rows.labels)) if rows.group is None else rows.group, paths, seed)
    for own, other in ((halves[0], halves[1]), (halves[1], halves[0])):
        fitted = fit(some(rows.logits[WITH], other), rows.labels[other], taxonomy, path_counts)
        answers = Answers(taxonomy, fitted)
        score[own] = set_scores(some(rows.logits[WITH], own), rows.labels[own], answers)
        alone = some(rows.logits[WITHOUT], own) if WITHOUT in rows.logits else None
        sums.add(own, answers, some(rows.logits[WITH], own), alone)
        for phase, logits in rows.logits.items():
            for name, consistency in CONSISTENCY.items():
                one = judge(some(logits, own), rows.labels[own], answers, consistency)
                parts.setdefault((phase, name), []).append(one)
    back = np.argsort(np.concatenate(halves))
    judged = {key: joined(each).take(back) for key, each in parts.items()}
    raw = judge(rows.logits[WITH], rows.labels, Answers(taxonomy, Calibration.none(taxonomy.tasks)), "documented")
    fitted = fit(rows.logits[WITH], rows.labels, taxonomy, path_counts)
    test = None if rows.test is None else judge(*rows.test, Answers(taxonomy, fitted))
    together = None
    if len(sums.counts) >= LEAST_GROUPS:
        together = sums.judged(rows.labels, judged[WITH, "paths"], Answers(taxonomy, fitted))
        fitted = dataclasses.replace(fitted, dependence=together.dependence, dependence_groups=together.groups)
    return Measured(rows, raw, judged, fitted, score, test, together)


def calibrated(bundle: Bundle, measured: Measured) -> Bundle:
    """The bundle with temperatures of all the rows, and thresholds of answers and sets by what other rows gave."""
    fitted = measured.calibration
    score = conformal.scores(measured.judged[WITH, "paths"], bundle.taxonomy.first)
    found = dataclasses.replace(fitted, coverage=conformal.thresholds(score), coverage_rows=len(score))
    found = with_sets(found, bundle.taxonomy, measured.set_score, measured.rows.labels)
    return dataclasses.replace(bundle, calibration=found)


def with_sets(
    calibration: Calibration, taxonomy: Taxonomy, score: NDArray[np.float64], labels: NDArray[np.integer]
) -> Calibration:
    """With thresholds of sets, of groups of taxa by their training rows where these are known.

    Args:
      score: [N], see `set_scores`.
      labels: int [N, T].
    """
    answers, rows = Answers(taxonomy, calibration), ~np.isnan(score)
    score, leaf = score[rows], answers.leaves.of(labels[rows])
    if answers.trained is not None and len(groups := sets.groups(answers.trained, leaf)) > 1:
        found = sets.thresholds_of_groups(score, sets.group_of(answers.trained, groups)[leaf])
        return dataclasses.replace(calibration, sets=found, set_rows=len(score), set_groups=groups)
    return dataclasses.replace(calibration, sets=sets.thresholds(score), set_rows=len(score), set_groups=[])


def with_novelty(bundle: Bundle, measured: Measured) -> tuple[Bundle, Measured]:
    """The calibrated bundle with statistics of features, thresholds by them, and rows that are kept for `extend`; and
    what was measured of these. Both as they are where there are too few rows."""
    rows, layer = measured.rows, layers_of(bundle.model)[0]
    if not rows.features or rows.features[layer].shape[1] > MOST_FEATURES:
        return bundle, measured
    statistics = FeatureStatistics.of_layers(*(rows.trained or (rows.features, rows.labels)))
    if statistics is None:
        return bundle, measured
    logits = {**rows.logits[WITH], **rows.features}
    given = (bundle.taxonomy, bundle.calibration, statistics)
    calibration, numbers = fit_novelty(logits, rows.labels, *given, folds=rows.folds)
    kept = None
    if not bundle.encoder.components and OTHERS not in bundle.variables:  # see `extending.check_extendable`
        kept = Exemplars.of((rows.features, rows.labels), rows.trained, rows.logits[WITH] if rows.folds else None)
    bundle = dataclasses.replace(bundle, calibration=calibration, statistics=statistics, exemplars=kept)
    return bundle, dataclasses.replace(measured, novelty=numbers)


def _components(loaded: Loaded) -> Sequence[str]:
    return loaded.experiment.program.evaluation.component_names


def _with_weights(loaded: Loaded, bundle: Bundle) -> Loaded:
    """The same with exactly the weights of the bundle."""
    place = loaded.experiment.placement.replicate
    params = place(bundle.variables["params"])
    others = place({name: tree for name, tree in bundle.variables.items() if name != "params"})
    state = loaded.state.replace(params=params, ema=None, model_state=others)  # type: ignore[attr-defined]
    return dataclasses.replace(loaded, state=state)


def _subsets(loaded: Loaded, split: Split) -> Iterator[tuple[str, str, NDArray[np.bool_]]]:
    extras = loaded.experiment.program.evaluation.extras
    own = {kind: split.subsets[:, column] for column, kind in enumerate(extras.kinds)}
    unknown = loaded.dataset.null_possible & (split.labels[:, 0] == 0)  # is neither rare nor common
    member = {"taxa": split.taxa_subset, "rarity": np.where(unknown, -1, split.rarity), **own}
    for metric in extras.subset_metrics:
        if metric.kind in member:
            of_kind = member[metric.kind]
            for position, name in enumerate(metric.names):
                inside = of_kind[:, position] if of_kind.ndim == 2 else of_kind == position
                yield metric.kind, name, np.asarray(inside, bool)
