"""A trained model in Python: `linnaeus_jax.load("bundle").predict(pictures)`."""

from __future__ import annotations

import copy
import itertools
import logging
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.preprocessing import Preprocessing
from linnaeus_jax.files import RunDirectory
from linnaeus_jax.inference.answers import MIN_CONFIDENCE, TOP_K, AnswerOptions, Answers
from linnaeus_jax.inference.boxed_pictures import boxed
from linnaeus_jax.inference.bundle.bundle import Bundle, bundle_of_run
from linnaeus_jax.inference.forward import FUSED, TRUNK, Forward, has_layer, usual_buckets
from linnaeus_jax.inference.onnx_forward import AUTO, OnnxForward, in_onnxruntime
from linnaeus_jax.inference.paths import EVIDENCE, NOT_FINITE, Logits, NotFiniteError, finite_rows, some
from linnaeus_jax.inference.pictures import Picture, PictureError, called, read_views
from linnaeus_jax.inference.pooling import Pooling, Sums, united
from linnaeus_jax.inference.prior import Prior, read_prior
from linnaeus_jax.inference.results import Prediction
from linnaeus_jax.inference.running import by_number, run_rows
from linnaeus_jax.mistakes import shortened
from linnaeus_jax.reading.box_cuts import Cut, from_training, of_facts
from linnaeus_jax.reading.metadata import Encoded, Observation
from linnaeus_jax.step import process

Said = TypeVar("Said")
log = logging.getLogger("linnaeus_jax")


class Model:
    """A trained model.

    Attributes:
      bundle: what it is made of.
      forward: the compiled forward pass.
      answers: from logits to predictions.

    Args:
      runtime: of the forward pass, see `in_onnxruntime`.
    """

    def __init__(self, bundle: Bundle, buckets: Sequence[int] | None = None, runtime: str = AUTO) -> None:
        self.bundle = bundle
        buckets = buckets or usual_buckets(bundle.preprocessing.size)
        if in_onnxruntime(bundle, runtime):
            self.forward: Forward = OnnxForward(bundle, bundle.onnx, buckets)
        else:
            self.forward = Forward(bundle.model, bundle.variables, bundle.preprocessing, buckets)
        for layer in () if bundle.statistics is None else bundle.statistics.layers:
            if not has_layer(bundle.model, layer):
                raise UserError(
                    f"{bundle.source}: its feature statistics are of {layer[:20]!r}, which its model does not give "
                    "beside the answers; make the bundle again from its run"
                )
        self.answers = Answers(bundle.taxonomy, bundle.calibration, bundle.statistics)
        self._others: dict[tuple[str, ...], Forward] = {}

    def predict(
        self,
        images: Picture | Iterable[Picture],
        *,
        boxes: Sequence[Any] | None = None,
        latitude: Any = None,
        longitude: Any = None,
        date: Any = None,
        elevation: Any = None,
        components: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        novelty: float | str = AUTO,
        top_k: int = TOP_K,
        min_confidence: float = MIN_CONFIDENCE,
        consistency: str = "path",
        restrict: str | int | Iterable[str | int] | None = None,
        always_report: str | int | Iterable[str | int] = (),
        coverage: float | None = None,
        class_balance: float = 0.0,
        as_sets: bool = False,
        prior: str | os.PathLike[str] | None = None,
        together: Any = None,
        pool: str = EVIDENCE,
        views: int = 1,
    ) -> list[Prediction]:
        """One prediction per picture, in their order; with `together` one per occurrence, in the order of the first of
        each.

        Args:
          images: one picture or several: paths, bytes of files, Pillow images, or uint8 arrays [h, w, 3].
          boxes: of every picture its boxes, see `given_boxes`, cut out as for the training of the model (`cut`). The
            prediction of a picture is then that of the box which answers for it, see `answering`, and has those of all
            as `boxes`; a picture of which no box is taken is answered whole.
          latitude, longitude, date, elevation: one value for all pictures or one for each, see `Observation`; None or
            NaN: unknown.
          components: numbers of metadata components by name, for those that are not computed from the above.
          top_k, min_confidence, consistency, restrict, always_report, coverage, class_balance, as_sets, novelty:
            see `Answers.options`.
          prior: file of `linnaeus prior build`; places and dates then count beside the picture, see `prior`.
          together: of every picture which occurrence it shows, any value that can be a key; pictures with the same one
            are answered together, those with None or NaN by themselves. One value for all: all of them.
          pool: how these are pooled: "evidence" or "mean", see `inference.pooling`.
          views: of each picture, pooled likewise, from 1 to 12: whole, mirrored, five crops and their mirrors.

        Raises:
          PictureError: a picture that cannot be read, with its position.
          NotFiniteError: the outputs of the model for an image are not finite; the message has its position.
          UserError, ValueError: arguments that do not fit the model or each other.
        """
        model = self if prior is None else self.with_prior(read_prior(Path(prior)))
        options = model.answers.options(
            top_k=top_k,
            min_confidence=min_confidence,
            consistency=consistency,
            restrict=restrict,
            always_report=always_report,
            coverage=coverage,
            class_balance=class_balance,
            as_sets=as_sets,
            novelty=novelty,
        )

        pictures: list[Any] = [images] if _is_one(images) else list(images)  # type: ignore[arg-type]
        known = {"latitude": latitude, "longitude": longitude, "date": date, "elevation": elevation}
        known |= {"components": components, "together": together}
        seen = None
        if boxes is not None:
            seen = boxed(pictures, [boxes] if _is_one(images) else boxes, self.cut)
            if together is not None and (gone := set(range(len(pictures))).difference(seen.picture)):
                name = called(pictures[min(gone)], min(gone))
                raise UserError(f"{name}: {seen.seen[min(gone)][0][1]}; leave its boxes out, or the picture")
            each = {name: _each(value, len(pictures), name) for name, value in known.items()}
            known = {name: [values[number] for number in seen.picture] for name, values in each.items()}
            known["notes"], pictures = seen.notes, seen.images
        groups = known.pop("together")
        if together is not None or views != 1:
            pooling = Pooling(model.answers, pool, views)
            found = model._together(pictures, groups, pooling, options, **known)
            return found if seen is None or together is not None else seen.answers(found)

        def answer(logits: Logits, encoded: Encoded) -> list[Prediction | None]:
            return model.answered(logits, encoded, lambda z, of: model.answers(z, options, self.inputs(of), of.notes))

        found = self._of_all(pictures, self.forward_for(options), answer, **known)
        return found if seen is None else seen.answers(found)

    @property
    def cut(self) -> Cut:
        """How boxes are cut out of pictures: as for the training, or as is usual."""
        return of_facts(self.bundle.facts) or Cut()

    def _together(
        self, pictures: Sequence[Any], together: Any, pooling: Pooling, options: AnswerOptions, **known: Any
    ) -> list[Prediction]:
        """One prediction per occurrence; raises as `predict`."""
        pooling.check(options)
        named = _each(together, len(pictures), "together")
        groups = [(number,) if name is None or name != name else name for number, name in enumerate(named)]
        encoded = self._encoded(len(pictures), **known)
        given = by_number(encoded, encoded.without()) if pooling.needs_alone(encoded) else by_number(encoded)
        first = {group: number for number, group in reversed(list(enumerate(groups)))}
        sums, bad, answered = Sums(groups), list[int](), dict[Hashable, Prediction]()
        inputs, notes = united(groups, self.inputs(encoded)), united(groups, encoded.notes)

        def read(number: int) -> tuple[int, NDArray[np.uint8]]:
            return number, _read(pictures[number], number, self.bundle.preprocessing, pooling.views)

        def finish(numbers: list[int], _: Sequence[Encoded], found: list[Logits]) -> tuple[list[int], NDArray[Any]]:
            return numbers, pooling.terms(*found)

        for numbers, terms in run_rows(self.forward_for(options), range(len(pictures)), read, given, finish, threads=1):
            bad += [number for number, one in zip(numbers, terms) if not np.isfinite(one).all()]
            if whole := sums.add([groups[number] for number in numbers], terms):
                said = ([of[group] for group in whole] for of in (inputs, notes))
                observed = [encoded.observations[first[group]] for group in whole]
                pooled = self.answers.located(pooling.pooled(*sums.take(whole)), observed)
                found = self.answers(pooled, options, *said)
                answered.update(zip(whole, found, strict=True))
        _refuse_not_finite(pictures, bad)
        return [answered[group] for group in dict.fromkeys(groups)]

    def with_prior(self, prior: Prior, cut: float = 0.0) -> Model:
        """The same model with a prior of places and dates; taxa that are less than `cut` times as common are excluded.

        Raises:
          UserError: a prior of other taxa.
        """
        same = copy.copy(self)
        same.answers = self.answers.with_prior(prior, cut)
        return same

    def embed(
        self,
        images: Picture | Iterable[Picture],
        *,
        with_metadata: bool = False,
        normalize: bool = False,
        components: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        **known: Any,
    ) -> NDArray[np.float32]:
        """Feature vectors float32 [N, D] of pictures, in their order: what the heads of the model are given.

        Args:
          images, components: see `predict`.
          with_metadata: after place, date and so on have joined; without, what is given of them is not used.
          normalize: to length 1.
          known: `latitude`, `longitude`, `date` and `elevation`, see `predict`.

        Raises:
          PictureError, NotFiniteError, ValueError: see `predict`.
          UserError: `with_metadata` of a model that takes none.
        """
        layer = self.layer(with_metadata)
        forward = self.giving(layer)

        def vectors(found: Logits, encoded: Encoded) -> list[NDArray[np.float32] | None]:
            return self.answered(found, encoded, lambda one, _: unit(one[layer]) if normalize else one[layer])

        pictures: list[Any] = [images] if _is_one(images) else list(images)  # type: ignore[arg-type]
        rows = self._of_all(pictures, forward, vectors, components=components, **known)
        return np.stack(rows) if rows else np.zeros((0, forward.width(layer)), np.float32)

    def vectors(self, pictures: Sequence[Any], layers: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Layer -> float32 [N, D] of at least one picture, without metadata; see `embed`."""

        def rows(found: Logits, encoded: Encoded) -> list[tuple[NDArray[np.float32], ...] | None]:
            return self.answered(found, encoded, lambda one, _: zip(*(one[layer] for layer in layers), strict=True))

        columns = zip(*self._of_all(pictures, self.giving(*layers), rows, components=None), strict=True)
        return {layer: np.stack(column) for layer, column in zip(layers, columns, strict=True)}

    def layer(self, with_metadata: bool) -> str:
        """The layer whose vectors are meant. Raises UserError for metadata of a model that takes none."""
        if with_metadata and not self.bundle.encoder.components:
            raise UserError("the model takes no metadata, so that there are no vectors with them; leave metadata out")
        return FUSED if with_metadata else TRUNK

    def giving(self, *layers: str, logits: bool = False) -> Forward:
        """The forward pass with other outputs, made at its first use; see `Forward.giving`."""
        key = (*layers, *["logits"] * logits)
        if key not in self._others:
            self._others[key] = self.forward.giving(*layers, logits=logits)
        return self._others[key]

    def forward_for(self, options: AnswerOptions) -> Forward:
        """The forward pass that gives what answers need."""
        if options.novelty is None or self.answers.novelty is None:
            return self.forward
        return self.giving(*self.answers.novelty.statistics.layers, logits=True)

    def _of_all(
        self,
        pictures: Sequence[Any],
        forward: Forward,
        answer: Callable[[Logits, Encoded], Sequence[Said | None]],
        **known: Any,
    ) -> list[Said]:
        """What `answer` makes of every picture.

        Raises:
          NotFiniteError: it made None of some of them.
        """
        encoded = by_number(self._encoded(len(pictures), **known))

        def read(number: int) -> tuple[int, NDArray[np.uint8]]:
            return number, self.read([pictures[number]], first=number)[0]

        def finish(_: list[int], given: Sequence[Encoded], found: list[Logits]) -> Sequence[Said | None]:
            return answer(found[0], given[0])

        # one thread: the same Pillow image may stand in the list twice, and it is not safe to load it in two
        parts = run_rows(forward, range(len(pictures)), read, encoded, finish, threads=1)
        predictions = list(itertools.chain.from_iterable(parts))
        _refuse_not_finite(pictures, [number for number, said in enumerate(predictions) if said is None])
        return [said for said in predictions if said is not None]

    def _encoded(self, count: int, notes: Sequence[tuple[str, ...]] = (), **known: Any) -> Encoded:
        """Metadata of some pictures, and after `notes` of each what cannot be used."""
        encoded = self.bundle.encoder.encode(observe(count, **known))
        return replace(encoded, notes=[(*a, *b) for a, b in zip(notes, encoded.notes)]) if notes else encoded

    def answered(
        self, logits: Logits, known: Encoded, answer: Callable[[Logits, Encoded], Iterable[Said]]
    ) -> list[Said | None]:
        """What `answer` makes of every row with finite logits; None of the others, which it is not given.

        Args:
          logits: task -> float32 [N, C].
          known: metadata of the N rows.
        """
        finite = finite_rows(logits)
        if finite.all():
            return list(answer(self.answers.located(logits, known.observations), known))
        rows = np.flatnonzero(finite)
        kept = known.take(rows.tolist()) if len(rows) else known
        said = iter(answer(self.answers.located(some(logits, rows), kept.observations), kept) if len(rows) else ())
        return [next(said) if good else None for good in finite.tolist()]

    def read(self, pictures: Sequence[Picture], first: int = 0) -> NDArray[np.uint8]:
        """Pixels uint8 [N, H, W, 3].

        Raises:
          PictureError: a picture that cannot be read; it is called by its path, or by its number from `first` on.
        """
        pixels = np.empty((len(pictures), *self.bundle.preprocessing.size, 3), np.uint8)
        for number, picture in enumerate(pictures):
            pixels[number] = _read(picture, first + number, self.bundle.preprocessing)
        return pixels

    def predict_pixels(
        self, pixels: NDArray[np.uint8], encoded: Encoded, options: AnswerOptions | None = None
    ) -> list[Prediction]:
        """Predictions of pixels uint8 [N, H, W, 3] with their metadata, at least one row."""
        options = options or AnswerOptions()
        outputs = self.forward_for(options)(pixels, encoded.meta, encoded.valid)
        logits = self.answers.located(outputs, encoded.observations)
        return self.answers(logits, options, self.inputs(encoded), encoded.notes)

    def inputs(self, encoded: Encoded) -> list[tuple[str, ...]]:
        """Names of the metadata components that are known, of every row."""
        names = [component.name for component in self.bundle.encoder.components]
        return [tuple(name for name, on in zip(names, row) if on) for row in encoded.valid.tolist()]


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Vectors [N, D] of length 1; those of length 0 stay."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(length > 0, length, 1), np.float32)


def load(
    source: str | os.PathLike[str],
    *,
    checkpoint: str | int = "best",
    buckets: Sequence[int] | None = None,
    plugins: Sequence[str] = (),
    keep_freed_memory: bool = False,
    runtime: str = AUTO,
) -> Model:
    """The model of a bundle, or of a run directory.

    Args:
      source: a bundle made by `linnaeus bundle`, one in the layout of the original, or a run.
      checkpoint: of a run: "best", "newest" or a step.
      buckets: batch sizes that are compiled, each at its first use; None: those of 1, 8 and 64 that suit the device.
      plugins: modules and .py files that a bundle needs; none is imported because a bundle says so. A run directory
        is trusted like its configuration.
      keep_freed_memory: on Linux and CPUs memory that a forward pass frees stays with this process for the next one,
        as in the programs of this package: a quarter of the CPU time of a small network. It holds for all that the
        process does, until it ends, and works best before other threads are started.
      runtime: "xla", "onnx", or "auto", see `in_onnxruntime`.

    Raises:
      UserError: no bundle and no run, or files that do not belong together.
    """
    if keep_freed_memory:
        process.keep_freed_memory(process.LARGEST_KEPT)
    bundle = read_bundle_or_run(source, checkpoint, plugins)
    if remark := from_training(None, of_facts(bundle.facts), "give it what is in the boxes"):
        log.warning("%s", remark)
    return Model(bundle, buckets, runtime)


def read_bundle_or_run(
    source: str | os.PathLike[str], checkpoint: str | int = "best", plugins: Sequence[str] = ()
) -> Bundle:
    """What `load` makes its model from."""
    from linnaeus_jax.inference.bundle.files import is_bundle, read_bundle, told_by

    path = Path(source).expanduser()
    if is_bundle(path):
        return read_bundle(path, plugins)
    directory = RunDirectory(path)
    if directory.config_json.is_file() and directory.checkpoints.is_dir():
        return bundle_of_run(path, checkpoint)
    raise UserError(
        f"{path} is neither a bundle (it holds no {' or '.join(told_by())}) nor a run directory; make a "
        "bundle with linnaeus bundle RUN OUT"
    )


def observe(count: int, **given: Any) -> list[Observation]:
    """Observations of some pictures; values are one for all or one for each of them.

    Raises:
      ValueError: another number of values.
    """
    columns = {name: _each(value, count, name) for name, value in given.items()}
    columns["components"] = [value or {} for value in columns["components"]]
    return [Observation(**{name: column[row] for name, column in columns.items()}) for row in range(count)]


def _each(value: Any, count: int, name: str) -> list[Any]:
    if isinstance(value, (str, bytes, Mapping)) or not np.iterable(value):
        return [value] * count
    value = list(value)
    if len(value) != count:
        raise ValueError(f"{name} holds {len(value)} values for {count} pictures; give one, or one for each")
    return value


def _read(picture: Picture, number: int, how: Preprocessing, views: int = 1) -> NDArray[np.uint8]:
    """As `read_views`; raises PictureError with what the picture is called."""
    try:
        return read_views(picture, how, views)
    except PictureError as error:
        raise PictureError(f"{called(picture, number)}: {error}") from error


def _refuse_not_finite(pictures: Sequence[Picture], numbers: Sequence[int]) -> None:
    """Raises NotFiniteError that names some of these pictures, if there are any."""
    if bad := [called(pictures[number], number) for number in numbers]:
        raise NotFiniteError(f"{shortened(bad)}: {NOT_FINITE}")


def _is_one(images: Any) -> bool:
    if isinstance(images, np.ndarray):
        return images.ndim < 4 and images.dtype.kind in "buif"  # not an array of paths or of pictures
    return isinstance(images, (str, bytes, bytearray, memoryview, os.PathLike, Image.Image))
