"""Single-place faults of the kind that people make, and whether the fast tests of their room see them.

    python -m tests.mutations [ROOM ...]        (make mutations)

Each fault is put into a copy of the checkout, where the named tests then run until the first one fails. A fault that
passes is listed at the end, and the exit status is 1 if more than `MAY_PASS` do. Takes about a quarter of a minute for
each fault. A fault that has become the same program is replaced by another; texts that have moved are listed before
anything runs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
MAY_PASS = 3
TIMEOUT = 600


@dataclass(frozen=True)
class Fault:
    """`old`, which stands once in `path` below the package, becomes `new`; `tests` are to fail."""

    path: str
    old: str
    new: str
    tests: str

    @property
    def room(self) -> str:
        """The subpackage."""
        return self.path.split("/")[0]


def faults(path: str, tests: str, *pairs: tuple[str, str]) -> list[Fault]:
    """Several faults of one file."""
    return [Fault(path, old, new, tests) for old, new in pairs]


FAULTS = [
    *faults(
        "step/objective.py",
        "tests/step/test_objective.py tests/step/test_train_step.py",
        ("return jax.random.fold_in(stream(self.seed, name), step)", "return stream(self.seed, name)"),
        ('jax.random.fold_in(self.key("mix", step), index)', 'self.key("mix", step)'),
        ("jax.random.fold_in(self.key(name, step), index) for", "self.key(name, step) for"),
        ("~targets.null).numerator", "targets.loss_mask).numerator"),
    ),
    *faults(
        "step/train_step.py",
        "tests/step/test_objective.py tests/step/test_train_step.py",
        ("gradnorm=_select(finite, gradnorm_state, state.gradnorm)", "gradnorm=gradnorm_state"),
        ("micro, targets, labelled, step, index, how", "micro, targets, counts, step, index, how"),
        ("jnp.isfinite(update.norm) & jnp.isfinite(loss)", "jnp.isfinite(update.norm)"),
        ("in_a_row = jnp.where(finite, 0,", "in_a_row = jnp.where(finite, state.skipped_in_a_row,"),
        ("model_state=_select(finite, sums.model_state, state.model_state)", "model_state=state.model_state"),
    ),
    *faults(
        "step/evaluation.py",
        "tests/step/test_evaluation.py",
        ("rarity = jnp.where(label[:, 0] == 0, -1, rarity)", "rarity = jnp.where(label[:, -1] == 0, -1, rarity)"),
        ("valid & (predicted[:, t] == label[:, t])", "predicted[:, t] == label[:, t]"),
        ('valid = batch["meta_valid"] & component_mask[None, :]', 'valid = batch["meta_valid"]'),
    ),
    *faults(
        "learning/augmentation.py",
        "tests/learning/test_augmentation.py",
        ("moment(image, axis=(0, 1), keepdims=True)", "moment(image, keepdims=True)"),
        ("if k > slot]", "if k >= slot]"),
        ("row < top + h", "row <= top + h"),
        ("sign = jnp.where(argument < 0.5, -1.0, 1.0)", "sign = 1.0"),
    ),
    *faults(
        "learning/mixing.py",
        "tests/learning/test_mixing.py",
        ("*box, box_lam = cutmix_box(1 - pasted, draws.centre, height, width)",
         "*box, box_lam = cutmix_box(1 - pasted, draws.centre, width, height)"),
        ("weight * image + (1 - weight) * of_partner(image)", "(1 - weight) * image + weight * of_partner(image)"),
        ("mixed = draws.active & (group >= 0) & (partner != row)", "mixed = draws.active & (partner != row)"),
        ("(~valid | (draws.pick >= 0.5)[:, None])", "(draws.pick >= 0.5)[:, None]"),
    ),
    *faults(
        "learning/losses.py",
        "tests/learning",
        ("(1.0 - label_smoothing - each) * picked", "(1.0 - label_smoothing) * picked"),
        ("factor = jnp.where(loss_mask, weight[:, None], 0.0)", "factor = weight[:, None]"),
    ),
    *faults(
        "learning/null_masking.py",
        "tests/learning/test_null_masking.py",
        ("jnp.where(partner_label == 0, 1.0 - lam, 0.0) > 0.5", "jnp.where(partner_label == 0, lam, 0.0) > 0.5"),
        ("~null | (uniforms < probability)", "~null | (uniforms > probability)"),
    ),
    *faults(
        "learning/meta_masking.py",
        "tests/learning/test_meta_masking.py",
        ("partial = ~full & (draws.partial < p_partial)", "partial = draws.partial < p_partial"),
        ("bounds), valid & ~drop, kind", "bounds), valid, kind"),
    ),
    *faults(
        "learning/smoothing.py",
        "tests/learning/test_smoothing.py",
        ("np.exp(-2.0 * beta * np.arange(1, depth + 1))", "np.exp(-beta * np.arange(1, depth + 1))"),
        ("distance[near] = 2.0 * (k + 1)", "distance[near] = 2.0 * k"),
    ),
    *faults(
        "learning/gradnorm.py",
        "tests/learning/test_gradnorm.py",
        ("target = jnp.where(active, average * ratio**alpha, 0.0)", "target = jnp.where(active, average * ratio, 0.0)"),
        ("jnp.where(active & ~state.initialized, losses, state.initial_losses)", "losses"),
    ),
    *faults(
        "weights/torch_files.py",
        "tests/weights/test_torch_files.py",
        ("values[tensor.offset :], tensor.shape", "values, tensor.shape"),
        ("if self._big and storage.dtype.itemsize > 1:", "if not self._big and storage.dtype.itemsize > 1:"),
        ("np.negative(array) if tensor.negative else array", "array"),
    ),
    *faults(
        "models/transformer.py",
        "tests/models/test_attention.py tests/models/test_dropout.py",
        ("keys = (subkey(key, 0), subkey(key, 1))", "keys = (subkey(key, 0), subkey(key, 0))"),
        ("grad = (grad * scale).astype(q.dtype)", "grad = grad.astype(q.dtype)"),
    ),
    *faults(
        "models/hierarchy.py",
        "tests/models/test_hierarchy.py",
        ("jnp.where(self.parents[None, :] >= 0, values, without) if len(self.orphans) else values", "values"),
        ("jnp.log(prob_BP + PRIOR_EPSILON)", "jnp.log(prob_BP)"),
    ),
    *faults(
        "metrics/extras.py",
        "tests/metrics",
        ("member = membership.astype(bool) & inputs.rows", "member = membership.astype(bool)"),
        ("agree.append((parent < 0) | (parent == coarser))", "agree.append(parent == coarser)"),
        ("- 2 * jnp.exp(log_p_label) + 1", "- jnp.exp(log_p_label) + 1"),
        ("np.arange(1, 1 + errors.shape[1])", "np.arange(errors.shape[1])"),
    ),
    *faults(
        "metrics/phase.py",
        "tests/metrics",
        ("_total(inputs.counted & right)", "_total(rows & right)"),
        ("jnp.where(rows & ~inputs.labelled, loss, 0.0)", "jnp.where(~inputs.labelled, loss, 0.0)"),
    ),
    *faults(
        "schedules/kinds.py",
        "tests/schedules",
        ("[spec.stable_steps - 1]", "[spec.stable_steps]"),
        ("optax.linear_schedule(spec.warmup_lr, spec.peak, spec.warmup_steps)",
         "optax.linear_schedule(0.0, spec.peak, spec.warmup_steps)"),
        ("alpha=low / peak", "alpha=low"),
    ),
    *faults(
        "schedules/early_stop.py",
        "tests/schedules/test_early_stop.py",
        ("(1 if spec.higher_is_better else -1)", "(-1 if spec.higher_is_better else 1)"),
        ("not in_warmup and learning_rate < spec.min_lr", "learning_rate < spec.min_lr"),
    ),
    *faults(
        "schedules/triggers.py",
        "tests/schedules",
        ("(step >= warmup_steps) & (step % max(1, interval) == 0)", "step % max(1, interval) == 0"),
    ),
    *faults(
        "data/plans.py",
        "tests/data/test_plans.py",
        ("while len(self._plans) > 2:", "while len(self._plans) > 20:"),
        ('np.searchsorted(self.boundaries, step, side="right")', "np.searchsorted(self.boundaries, step)"),
    ),
    *faults(
        "data/samplers.py",
        "tests/data/test_class_balance.py",
        ("offset = float(keys[-1] >> np.uint64(11)) * 2.0**-53", "offset = 0.5"),
        ("(rank < more[label[order]])", "(rank <= more[label[order]])"),
    ),
    *faults(
        "data/splits.py",
        "tests/data/test_splits.py tests/data/test_dataset.py",
        ("columns = sorted({column, *self.null_columns})", "columns = sorted({*self.null_columns})"),
    ),
    *faults(
        "data/metadata.py",
        "tests/data/test_metadata.py",
        ("filled &= ~_null_elevation(source.values, item, file)", "filled &= ~_null_elevation(values, item, file)"),
        ('item.name.upper() == "ELEVATION" or ', ""),
    ),
    *faults(
        "data/metadata.py",
        "tests/building tests/reading/test_metadata.py",
        ("phi, lam = np.deg2rad(latitude)", "lam, phi = np.deg2rad(latitude)"),
    ),
    *faults(
        "taxonomy/tree.py",
        "tests/taxonomy",
        ("return 1.0 - self.counts[0] / sum(self.counts)", "return self.counts[0] / sum(self.counts)"),
    ),
    *faults(
        "metrics/judged.py",
        "tests/metrics/test_judged.py tests/inference/test_calibration.py",
        ("sure = (self.predicted >= first) & (self.probability >= threshold)", "sure = self.probability >= threshold"),
        ("np.where(self.right, self.probability, -self.probability)",
         "np.where(self.right, -self.probability, self.probability)"),
    ),
]  # fmt: skip


def stale(table: Sequence[Fault]) -> list[str]:
    """Why faults cannot be made: their text does not stand once in its file, or their tests are not there."""
    problems = []
    for fault in table:
        path = ROOT / "linnaeus_jax" / fault.path
        count = path.read_text(encoding="utf-8").count(fault.old) if path.exists() else 0
        if count != 1:
            problems.append(f"{fault.path}: {fault.old!r} stands {count} times, not once")
        if fault.old == fault.new:
            problems.append(f"{fault.path}: {fault.old!r} is replaced by itself")
        missing = [name for name in fault.tests.split() if not (ROOT / name).exists()]
        problems += [f"{fault.path}: {name} does not exist" for name in missing]
    return problems


def run_tests(tree: Path, tests: str) -> bool:
    """Whether the tests fail in that copy of the checkout."""
    names = [name for name in tests.split() if (tree / name).exists()]
    env = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "JAX_COMPILATION_CACHE_DIR": os.environ.get("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".jax_cache")),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *names]
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if done.returncode not in (0, 1, 2):
        raise SystemExit(f"pytest ended with status {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode != 0


def main(argv: Sequence[str]) -> int:
    """Command line; 1 where more faults pass than may."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    rooms = sorted({fault.room for fault in FAULTS})
    parser.add_argument("rooms", nargs="*", choices=[*rooms, []], metavar="ROOM", help=f"of {', '.join(rooms)}")
    chosen = parser.parse_args(argv).rooms
    if problems := stale(FAULTS):
        print(*problems, sep="\n", file=sys.stderr)
        return 1
    console, passed = Console(), list[Fault]()
    wanted = [fault for fault in FAULTS if not chosen or fault.room in chosen]
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        for name in filter(None, files.split("\0")):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).exists():
                shutil.copy2(ROOT / name, tree / name)
        for number, fault in enumerate(wanted, 1):
            path, started = tree / "linnaeus_jax" / fault.path, time.monotonic()
            text = path.read_text()
            path.write_text(text.replace(fault.old, fault.new))
            seen = run_tests(tree, fault.tests)
            path.write_text(text)
            passed += [] if seen else [fault]
            seconds = time.monotonic() - started
            console.print(
                f"{number}/{len(wanted)} {fault.path}: {'seen' if seen else 'PASSED'}, {seconds:.0f} s", markup=False
            )
    if passed:
        table = Table("file", "was", "became", title="faults that the tests do not see")
        for fault in passed:
            table.add_row(fault.path, fault.old, fault.new)
        console.print(table, markup=False)
    console.print(f"{len(wanted) - len(passed)} of {len(wanted)} faults seen", markup=False)
    return int(len(passed) > MAY_PASS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
