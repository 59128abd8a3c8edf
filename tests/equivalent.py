"""Drawn faults that are the same program, see `tests.mutations`."""

from __future__ import annotations

_TUNED = "a number that was found by trial: others near it do as well"
_SMALL = "the numbers that it holds are small"
_PROMOTED = "joined with arrays of the wider type, which the result has"

#: (file, line, what is changed) -> why nobody can tell the two apart
EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        "schedules/plot.py",
        "corners += [k for spec in specs if len(spec.drops()) < 100 for drop in spec.drops() for k in (drop - 1, "
        "drop)]",
        "'drop - 1' -> 'drop + 1'",
    ): "where the points of a plot lie",
    ("step/process.py", "_LEAST_FRAGMENT, _LARGEST_FRAGMENT = 2**13, 2**26", "'2' -> '3'"): _TUNED,
    (
        "learning/discriminant.py",
        "SHRINKAGE, SCALES = 0.2, np.exp(np.linspace(-4.0, 1.0, 21))",
        "'4.0' -> '8.0'",
    ): _TUNED,
    ("building/steps/splits.py", "split = np.full(units, TRAIN, np.int64)", "'np.int64' -> 'np.int32'"): _SMALL,
    ("learning/regression.py", "total, slopes = jnp.float32(0), []", "'jnp.float32' -> 'jnp.float16'"): _PROMOTED,
    (
        "data/labels.py",
        "text_hashes(table.path, OCCURRENCE)[rows] if OCCURRENCE in table.offered else np.zeros(len(rows), np.int64)",
        "'np.int64' -> 'np.int32'",
    ): _PROMOTED,
    (
        "inference/paths.py",
        'scores = np.take(np.concatenate([log_p, nothing], axis=1), self.classes[:, place], axis=1, mode="wrap")',
        "' axis=1), self.classes[:, place], axis=1, mode=\"wrap\")' -> ' axis=1), self.classes[:, place], axis=1)'",
    ): "-1 is the last in either mode, of which this one is quicker",
    (
        "learning/pixel_ops.py",
        "return jnp.clip(start + factor * (image.astype(jnp.float32) - start), 0, 255).astype(jnp.uint8)",
        "'255' -> '256'",
    ): "256 as uint8 is 255 in XLA, and so is all between",
    (
        "schedules/sanity.py",
        "if 0 < spec.warmup_steps < SHORTEST_WARMUP and spec.peak > SHORTEST_WARMUP * spec.warmup_lr:",
        "'spec.peak > SHORTEST_WARMUP * spec.warmup_lr' -> 'spec.peak >= SHORTEST_WARMUP * spec.warmup_lr'",
    ): "a rule of thumb, at its very edge",
    (
        "inference/quality/extending.py",
        "outside = np.concatenate([kept.outside, half[-1] if len(half) > 1 else half[0][:, :0]])",
        "'-1' -> '1'",
    ): "there are two",
    (
        "learning/regression.py",
        "if regression_products(len(x_MD), x_MD.shape[1], classes, len(sums)) <= MOST_PRODUCTS and any(ways.values()):",
        "'D), x_MD.shape[1], classes, len(sums)) <= MOST_PRODUCTS' -> "
        "'D), x_MD.shape[1], classes, len(sums)) < MOST_PRODUCTS'",
    ): _TUNED,
    (
        "learning/mixing.py",
        'return jax.vmap(lambda block, i: block.at[i].get(mode="promise_in_bounds"))(rows, position).reshape(x.shape)',
        "'block.at[i].get(mode=\"promise_in_bounds\")' -> 'block.at[i].get()'",
    ): "all are in bounds, which other modes look at once more",
    (
        "data/baselines.py",
        "gram[np.diag_indices_from(gram)] += np.float32(ridge)",
        "'np.float32' -> 'np.float16'",
    ): _TUNED,
    (
        "taxonomy/scientific_names.py",
        "enough = len(latin) >= _LEAST_LATIN * votes and len(alone) >= _LEAST_ALONE * votes",
        "'len(latin) >= _LEAST_LATIN * votes' -> 'len(latin) > _LEAST_LATIN * votes'",
    ): _TUNED,
    ("building/steps/splits.py", "split = np.full(len(size), TRAIN, np.int64)", "'np.int64' -> 'np.int32'"): _SMALL,
    (
        "data/portable_images.py",
        "if marker == 0xFF or marker == 0x01 or 0xD0 <= marker <= 0xD7:  # padding, and markers that stand alone",
        "'0xD7' -> '216'",
    ): "the marker of the start, which no picture has twice",
    (
        "learning/mixing.py",
        "take_partner = mixed[:, None] & of_partner(valid) & (~valid | (draws.pick >= 0.5)[:, None])",
        "'draws.pick >= 0.5' -> 'draws.pick > 0.5'",
    ): "one of 8 million values that are drawn",
    (
        "data/h5_images.py",
        "np.array([number[run[3]] for run in found], np.int64),",
        "'np.int64' -> 'np.int32'",
    ): _SMALL,
    ("data/h5_images.py", "np.array([run[2] for run in found], np.int64),", "'np.int64' -> 'np.int32'"): _SMALL,
    (
        "step/process.py",
        'facts = hashlib.sha256(f"{platform.machine()} {_cpu_features()}".encode()).hexdigest()[:12]',
        "'12' -> '13'",
    ): "a name",
    (
        "taxonomy/ranks.py",
        "given = [task for task in listed if task in set(tasks)]",
        "'set(tasks)' -> 'tasks'",
    ): "what is in a set is in the list that it is of",
    (
        "learning/smoothing.py",
        "alone = total <= MIN_ROW_WEIGHT",
        "'total <= MIN_ROW_WEIGHT' -> 'total < MIN_ROW_WEIGHT'",
    ): (_TUNED),
    (
        "building/steps/starter_config.py",
        "if accelerated and rows >= 2000 and img_size > 96:",
        "'rows >= 2000' -> 'rows > 2000'",
    ): _TUNED,
    ("metrics/judged.py", "PAIRS, ROWS = 20, 6", "'20' -> '21'"): _TUNED,
    (
        "data/labels_file.py",
        "CHUNK = 1 << 17  # rows of texts decoded at a time, to bound the number of Python strings alive",
        "'17' -> '18'",
    ): _TUNED,
    (
        "data/subsets.py",
        'names[kind] = tuple(sorted(values, key=lambda x: (0, int(x), "") if x.isdecimal() else (1, 0, x)))',
        "'1' -> '2'",
    ): ("numbers stand first either way"),
    (
        "data/hdf5.py",
        "if not set(filters) <= {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}:",
        "'set(filters) <= {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FIL' -> "
        "'set(filters) < {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILT'",
    ): "HDF5 makes no texts with checksums, so that never all three are there",
    (
        "learning/growing.py",
        "change = found.reshape(slope.shape).astype(np.float32) * length",
        "'np.float32' -> 'np.float16'",
    ): "finer than what 15 iterations leave",
    (
        "building/steps/machine.py",
        "while time.perf_counter() < end:",
        "'time.perf_counter() < end' -> 'time.perf_counter() <= end'",
    ): "a clock that counts nanoseconds",
    (
        "taxonomy/scientific_names.py",
        "enough = len(latin) >= _LEAST_LATIN * votes and len(alone) >= _LEAST_ALONE * votes",
        "'len(alone) >= _LEAST_ALONE * votes' -> 'len(alone) > _LEAST_ALONE * votes'",
    ): _TUNED,
    (
        "inference/answers.py",
        "best = np.empty((len(probability), count), np.int64)",
        "'np.int64' -> 'np.int32'",
    ): _SMALL,
    (
        "data/picture_costs.py",
        'if order is None or len(raw) < 16 or raw[2:4] not in (b"\\0*", b"*\\0", b"\\0+", b"+\\0"):',
        "'len(raw) < 16' -> 'len(raw) <= 16'",
    ): "no entry of a directory fits into 16 bytes",
    (
        "data/samplers.py",
        'order = np.argsort(random_keys(seed, epoch, "order", len(whole)), kind="stable")',
        '\'np.argsort(random_keys(seed, epoch, "order", len(whole)), kind="stable")\' -> '
        "\"np.argsort(random_keys(seed, epoch, 'order', len(whole)))\"",
    ): "keys of 64 bits are not equal",
    (
        "metrics/metric.py",
        "label_logit = jnp.take_along_axis(logits, label[:, None], axis=1)",
        "'p.take_along_axis(logits, label[:, None], axis=1)' -> 'p.take_along_axis(logits, label[:, None])'",
    ): "the last axis of two, which is meant without it",
    ("data/samplers.py", "dealt = np.empty(len(place), np.int64)", "'np.int64' -> 'np.int32'"): _SMALL,
    (
        "data/portable_images.py",
        'kept = raw[at + 4 : at + 4 + int.from_bytes(raw[at - 4 : at], "big")] if at >= 0 else b""',
        "'at >= 0' -> 'at > 0'",
    ): "a PNG begins with its signature",
    (
        "inference/quality/evaluating.py",
        "if sums is not None and terms is not None:",
        "'sums is not None and terms is not None' -> 'sums is not None or terms is not None'",
    ): "both are None, or neither",
    (
        "inference/quality/evaluating.py",
        "if sums is not None and terms is not None:",
        "'sums is not None and terms is not None' -> 'sums is not None'",
    ): "both are None, or neither",
    (
        "inference/paths.py",
        "start, stop = np.zeros(count, np.int64), np.zeros(count, np.int64)",
        "'np.int64' -> 'np.int32'",
    ): _SMALL,
    (
        "building/steps/finish.py",
        'given = frame["split"].replace_strict(names, default=-1, return_dtype=pl.Int64).to_numpy()',
        "'1' -> '2'",
    ): "any number below 0 is none of a split",
    (
        "data/samplers.py",
        'rest = rest[np.argsort(random_keys(seed, epoch, "leftovers", len(rest)), kind="stable")].reshape(-1, unit)',
        '\'np.argsort(random_keys(seed, epoch, "leftovers", len(rest)), kind="stable")\' -> '
        "\"np.argsort(random_keys(seed, epoch, 'leftovers', len(rest)))\"",
    ): "keys of 64 bits are not equal",
    ("data/plans.py", "position = np.arange(batch, dtype=np.int32)", "'np.int32' -> 'np.int16'"): _PROMOTED,
    (
        "data/plans.py",
        "self.steps_per_epoch = np.array([steps[level] for level in self._levels], np.int64)",
        "'np.int64' -> 'np.int32'",
    ): _SMALL,
    (
        "building/steps/picture_lists.py",
        "group = connected_components(graph, directed=False)[1].astype(np.int64)",
        "'np.int64' -> 'np.int32'",
    ): _SMALL,
    (
        "data/picture_costs.py",
        'size = self._tags["count"].astype(np.float64) * _TAG_BYTES[self._tags["type"]]',
        "'np.float64' -> 'np.float32'",
    ): "compared with four times the size of the file, and more",
    (
        "learning/pixel_ops.py",
        "weight = jnp.concatenate([~jnp.any(hit, keepdims=True), hit]).astype(jnp.float32)",
        "'jnp.float32' -> 'jnp.float16'",
    ): "zeros and ones",
    (
        "data/image_checks.py",
        "places = np.linspace(0, len(rows) - 1, min(len(rows), most)).round().astype(np.int64)",
        "'np.int64' -> 'np.int32'",
    ): _SMALL,
    (
        "learning/update.py",
        "clipped, _ = transform.update(layers, transform.init(weights), weights)",
        "'transform.init(weights)' -> 'weights'",
    ): "optax's clipping has no state",
    (
        "metrics/extras.py",
        "index = jnp.arange(logits.shape[1], dtype=jnp.int32)[None, :]",
        "'jnp.arange(logits.shape[1], dtype=jnp.int32)' -> 'jnp.arange(logits.shape[1])'",
    ): "JAX counts with 32 bits",
    (
        "learning/augmentation.py",
        "return jax.lax.cond(uniform[0, 0] < settings.erase_prob, erased, lambda: image)",
        "'uniform[0, 0] < settings.erase_prob' -> 'uniform[0, 0] <= settings.erase_prob'",
    ): "one of 8 million values that are drawn",
    ("step/objective.py", "grad_norm=jnp.zeros((), jnp.float32),", "'jnp.float32' -> 'jnp.float16'"): (
        "that of the update takes its place"
    ),
    ("learning/mixing.py", "row, column = centre[..., 0], centre[..., 1]", "'1' -> '2'"): (
        "JAX takes an index behind the last for the last"
    ),
    (
        "step/train_step.py",
        "params = merge_params(trained, frozen)",
        "'merge_params(trained, frozen)' -> 'merge_params(frozen, trained)'",
    ): "each has what the other lacks",
    (
        "learning/gradnorm.py",
        "return jnp.sum(jnp.where(active, values, 0.0)) / jnp.maximum(jnp.sum(active, dtype=jnp.float32), 1.0)",
        "'jnp.sum(active, dtype=jnp.float32)' -> 'jnp.sum(active)'",
    ): _PROMOTED,
    (
        "building/steps/splits.py",
        "wanted = np.floor(units * fraction + 0.5).astype(np.int64)",
        "'np.int64' -> 'np.int32'",
    ): _SMALL,
    (
        "data/portable_images.py",
        "fits = bits == 16 or int(values.max(initial=0)) < 1 << bits",
        "'values.max(initial=0)' -> 'values.max()'",
    ): "an image has pixels",
    (
        "data/hdf5.py",
        "if total > size:",
        "'total > size' -> 'total >= size'",
    ): "a file holds more than its texts",
    (
        "data/metadata.py",
        "return (np.abs(values[:, 0::2]) <= 1e-8).all(axis=1) & (np.abs(values[:, 1::2] - 1) <= 1e-8 + 1e-5)"
        ".all(axis=1)",
        "'np.abs(values[:, 1::2] - 1) <= 1e-8 + 1e-5' -> 'np.abs(values[:, 1::2] - 1) < 1e-08 + 1e-05'",
    ): _TUNED,
    ("data/coverage.py", "if np.ptp(share) < 1e-9:", "'np.ptp(share) < 1e-9' -> 'np.ptp(share) <= 1e-09'"): _TUNED,
    (
        "inference/quality/card.py",
        "shown = coverage >= LEAST_COVERAGE",
        "'coverage >= LEAST_COVERAGE' -> 'coverage > LEAST_COVERAGE'",
    ): "where a curve of a plot begins",
    (
        "data/metadata.py",
        "return (np.abs(values[:, 0::2]) <= 1e-8).all(axis=1) & (np.abs(values[:, 1::2] - 1) <= 1e-8 + 1e-5)"
        ".all(axis=1)",
        "'np.abs(values[:, 0::2]) <= 1e-8' -> 'np.abs(values[:, 0::2]) < 1e-08'",
    ): _TUNED,
    (
        "data/picture_costs.py",
        "if marker in _SOF and len(raw) >= start + 7:",
        "'len(raw) >= start + 7' -> 'len(raw) > start + 7'",
    ): "a file that ends there has no pixels",
    ("step/objective.py", "updates=jnp.zeros((), jnp.int32),", "'jnp.int32' -> 'jnp.int16'"): (
        "that of the update takes its place"
    ),
    ("schedules/resolved.py", "if step <= end:", "'step <= end' -> 'step < end'"): "the next epoch begins there",
    (
        "building/steps/corrections.py",
        "ids[above] = self.classes[self.tasks[above]][index] if index > 0 else 0",
        "'index > 0' -> 'index >= 0'",
    ): "the id of class 0 is 0",
}
