"""Making a row: pixels and features once for a set, then training, bundle and answers, each a process of its own.

Every step leaves a file that appears when it is whole, so that the same command goes on after an interruption.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from benchmarks.common import machine_info
from benchmarks.real import figures
from benchmarks.real.labels import read_labels
from benchmarks.real.rows import HEAD, IDEAS, ROWS, TRUNKS, Row
from benchmarks.real.sets import SIDES, Rows
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.files import write_atomically

#: pictures whose answers are timed
PICTURES = 64
PLUGIN, MINUTES = (Path(__file__).with_name(name) for name in ("features.py", "minutes.py"))
TORCH, TORCH_TUNED = (Path(__file__).with_name(name) for name in ("torch_net.py", "torch_tuned.py"))


@dataclass
class Cost:
    """What processes took: CPU-seconds of user and system, seconds, peak memory in MB of the largest."""

    cpu: float = 0.0
    wall: float = 0.0
    peak: float = 0.0

    def add(self, other: Cost) -> None:
        self.cpu, self.wall, self.peak = self.cpu + other.cpu, self.wall + other.wall, max(self.peak, other.peak)

    def to_json(self) -> dict[str, float]:
        """CPU-minutes, minutes, megabytes."""
        return {
            "cpu_minutes": round(self.cpu / 60, 2),
            "minutes": round(self.wall / 60, 2),
            "peak_mb": round(self.peak),
        }


@dataclass(frozen=True)
class Place:
    """Where one set under one split is made.

    Attributes:
      name: of the split, as `sets.SPLITS` has it.
      scheme: how its rows are split.
      out: everything that is made.
      weights: folder of the .tflite files.
      torch_python: interpreter that has torch and timm.
      minutes: budget of networks that PyTorch trains; 0: as the row has it.
    """

    name: str
    rows: Rows
    scheme: str
    data: Path
    out: Path
    results: Path
    weights: str
    torch_python: str = sys.executable
    minutes: float = 0.0

    def result(self, row: str, seed: int) -> Path:
        """The JSON file of a row."""
        return self.results / self.name / f"{row}-{seed}.json"


def run(command: Sequence[str], log: Path, start: Sequence[str] = (sys.executable, "-m")) -> Cost:
    """Runs a module, or what `start` says; its output goes to a file.

    Raises:
      UserError: it failed; the message has the last lines.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    with log.open("w") as file:
        process = subprocess.Popen([*start, *command], stdout=file, stderr=subprocess.STDOUT)
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.terminate()
            process.wait()
            raise
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        last = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        shown = " ".join(("python", *start[1:], *command))
        raise UserError(f"{shown}\nended with {process.returncode}; its last lines:\n{last}")
    return Cost(usage.ru_utime + usage.ru_stime, time.perf_counter() - started, usage.ru_maxrss / 1024)


def once(path: Path, make: Callable[[], Cost], *, goes_on: bool = False) -> Cost:
    """The cost of what is at `path`, made now by `make()` unless it was before; kept beside it.

    Args:
      goes_on: what an ended program has left is of use to its next start, whose cost alone counts then.
    """
    kept = path.with_name(f"{path.name}.cost.json")
    if not kept.is_file():
        if path.is_dir() and not goes_on:
            shutil.rmtree(path)
        write_atomically(kept, json.dumps(vars(make())))
    return Cost(**json.loads(kept.read_text()))


def pixels(place: Place, size: int) -> tuple[Path, Cost]:
    """The data set of all rows at one size, built by `build_dataset`; the side of each row is that of seed 0."""
    folder = place.out / place.rows.of.name / f"pixels-{size}"

    def make() -> Cost:
        folder.parent.mkdir(parents=True, exist_ok=True)
        table = folder.with_suffix(".csv")
        place.rows.write(table, place.rows.sides(place.scheme, 0))
        command = ["linnaeus_jax.tools.build_dataset", "--table", table, "--pictures", place.data, "--out", folder]
        command += ["--ranks", ",".join(place.rows.of.ranks), "--names", "plain", "--split", "given"]
        command += ["--size", size, "--force"]
        return run(list(map(str, command)), folder.with_suffix(".log"))

    return folder, once(folder, make)


def labels(place: Place, built: Path, seed: int, hidden: float = 0.0) -> Path:
    """The labels file of a data set with the sides of one seed; `hidden`: see `Row`."""
    ending = f"-hidden-{hidden:g}" if hidden else ""
    path = place.out / place.name / f"labels-{built.name}-{seed}{ending}.h5"
    if not path.is_file():
        with_sides(place, built, path, place.rows.sides(place.scheme, seed), hidden=hidden, seed=seed)
    return path


def with_sides(
    place: Place, built: Path, path: Path, sides: Sequence[str], *, hidden: float = 0.0, seed: int = 0
) -> None:
    """A copy of a data set's labels file with other sides, and a share of the finest labels of training rows hidden."""
    path.parent.mkdir(parents=True, exist_ok=True)
    side = {Path(name).as_posix(): SIDES.index(each) for name, each in zip(place.rows.paths, sides, strict=True)}
    unfinished = path.with_suffix(".part")
    shutil.copyfile(built / "labels.h5", unfinished)
    with h5py.File(unfinished, "r+") as file:
        names = [name.decode() for name in file["img_identifiers"][:]]
        chosen = np.array([side[name] for name in names])
        file["split"][:] = chosen
        drawn = np.random.default_rng(seed).random(len(names)) < hidden
        file[tasks_of(built)[0]][np.flatnonzero(drawn & (chosen == SIDES.index("train")))] = 0
    unfinished.rename(path)


def features(place: Place, trunk: str) -> tuple[Path, Cost]:
    """float16 [rows, D] of what a trunk makes of every picture as it is, in a .features file, and what it cost.

    They are what a run of one epoch stores of its training and validation rows, which together are all rows here.
    """
    built, cost = pixels(place, TRUNKS[trunk].size)
    path = place.out / place.rows.of.name / f"{trunk}.features"

    def make() -> Cost:
        work = path.with_suffix("")
        both = work.with_name(f"{work.name}.h5")
        sides = ["train" if side == "train" else "val" for side in place.rows.sides(place.scheme, 0)]
        with_sides(place, built, both, sides)
        flags = settings(
            place, (trunk,), HEAD | {"train.epochs": 1, "metrics.baselines": False, "data.h5.labels_path": str(both)}
        )
        took = train(built, work, flags, seed=0)
        with h5py.File(both) as file:
            side = file["split"][:]
        stored = {
            k: np.fromfile(work / "stored" / f"{name}.bin", np.float16) for k, name in enumerate(("train", "val"))
        }
        width = stored[0].size // int((side == 0).sum())
        values = np.empty((len(side), width), np.float16)
        for k, one in stored.items():
            values[side == k] = one.reshape(-1, width)
        unfinished = path.with_suffix(".part")
        with unfinished.open("wb") as file:  # a name would get another ending
            np.save(file, values)
        unfinished.rename(path)
        shutil.rmtree(work)
        return took

    mine = once(path, make)
    cost.add(mine)
    return path, cost


def settings(place: Place, trunks: Sequence[str], changed: Mapping[str, Any]) -> dict[str, Any]:
    """Config keys of a row that begins from a trunk, or from several beside each other."""
    sources = [TRUNKS[trunk] for trunk in trunks]
    weights = [source.weights.format(weights=place.weights) for source in sources]
    given: dict[str, Any] = {"data.img_size": max(source.size for source in sources)}
    if len(sources) == 1:
        given |= {f"model.{key}": value for key, value in sources[0].settings.items()}
        given |= {"model.pretrained": weights[0]}
    else:
        given |= {"model.pretrained": "", "model.features": ",".join(weights)}
    return given | {"data.meta.active": False} | dict(changed)


def joined(place: Place, trunks: Sequence[str], made: Sequence[Path]) -> Path:
    """The features of several trunks beside each other, as one file; of one trunk its own."""
    if len(made) == 1:
        return made[0]
    path = place.out / place.rows.of.name / f"{'+'.join(trunks)}.features"
    if not path.is_file():
        unfinished = path.with_suffix(".part")
        with unfinished.open("wb") as file:
            np.save(file, np.concatenate([np.load(each, mmap_mode="r") for each in made], axis=1))
        unfinished.rename(path)
    return path


def of_tasks(changed: Mapping[str, Any], tasks: Sequence[str]) -> dict[str, Any]:
    """Settings with a key for every rank in place of one with {task}."""
    return {key.format(task=task): value for key, value in changed.items() for task in (tasks if "{" in key else ("",))}


def train(built: Path, work: Path, flags: Mapping[str, Any], seed: int) -> Cost:
    """Trains by the configuration of a data set and other settings."""
    command = ["linnaeus_jax.main", f"--config={built / 'config.py'}", f"--workdir={work}"]
    for key, value in (dict(flags) | {"train.seed": seed}).items():
        command.append(f"--config.{key}={value}")
    return run(command, work.with_suffix(".log"))


def make_row(place: Place, name: str, row: Row, seed: int, command: str, *, timed: bool = True) -> dict[str, Any]:
    """Makes a row and writes its JSON file and the arrays beside it; returns what the file says.

    Args:
      timed: measure the latency of the bundle of seed 0, too.
    """
    work = place.out / place.name / f"{name}-{seed}"
    result = place.result(name, seed)
    result.parent.mkdir(parents=True, exist_ok=True)
    before, cost = Cost(), Cost()
    extra: dict[str, Any] = {}
    arrays = work.with_name(f"{work.name}.npz")
    made: list[tuple[Path, Cost]] = []
    if row.how in ("pictures", "torch") or row.tuned:
        built, before = pixels(place, row.side)
    else:
        built, _ = pixels(place, row.side)
        made = [features(place, trunk) for trunk in row.trunks]
        for _, each in made:
            before.add(each)
    split = labels(place, built, seed, row.hidden)
    if row.how in ("control", "knn"):
        if row.tuned:
            made = [tuned_vectors(place, built, row.tuned, seed, command)]
            before.add(made[0][1])
        tasks = ",".join(tasks_of(built))
        ranks = ",".join(place.rows.of.ranks)
        given_by = [str(split), str(arrays), tasks, ranks, *(str(path) for path, _ in made)]
        cost.add(run([f"benchmarks.real.{row.how}", *given_by], work.with_suffix(".log")))
    elif row.how == "torch":
        inputs = torch_inputs(place, built, split, arrays.with_suffix(".in.npz"))
        command_line = [str(inputs), str(arrays), row.network, str(place.minutes or row.minutes), str(seed)]
        start = (place.torch_python, str(TORCH_TUNED if row.trunks else TORCH))
        cost.add(once(arrays, lambda: run(command_line, work.with_suffix(".log"), start)))
        versions = figures.read(arrays)["versions"].tolist()
        extra["network"] = {"name": row.network, "minutes": place.minutes or row.minutes, "versions": versions}
        extra["curve"] = [[round(x, 4) for x in point] for point in figures.read(arrays)["curve"].tolist()]
    else:
        given = {"data.h5.labels_path": str(split)} | of_tasks(row.settings, tasks_of(built))
        if row.how == "head":
            stored = joined(place, row.trunks, [path for path, _ in made])
            given |= {"data.h5.images_path": str(stored), "env.plugins": str(PLUGIN)}
        nothing = {"data.img_size": row.side, "env.plugins": str(MINUTES)}
        flags = settings(place, row.trunks, given) if row.trunks else given | nothing
        cost.add(once(work, lambda: train(built, work, flags, seed), goes_on=True))
        bundle = work.with_name(f"{work.name}-bundle")
        judging = ["benchmarks.real.judging", str(work), str(bundle), str(arrays)]
        cost.add(once(arrays, lambda: run(judging, work.with_suffix(".judging.log"))))
        if timed and seed == 0 and name not in IDEAS:
            extra["latency"] = latency(place, bundle, arrays.with_suffix(".latency.json"))
        extra["bundle_mb"] = round(sum(f.stat().st_size for f in bundle.rglob("*") if f.is_file()) / 1e6, 1)
        if not row.trunks:
            extra["curve"] = curve(work, tasks_of(built)[0])
        extra["settings"] = {key: value for key, value in row.settings.items() if key not in ("env.plugins",)}
    shutil.copyfile(arrays, result.with_suffix(".npz"))
    report = {
        "set": place.name,
        "title": place.rows.of.title,
        "repository": ", ".join(place.rows.of.repositories),
        "licence": place.rows.of.licence,
        "split": place.scheme,
        "row": name,
        "row_title": row.title,
        "seed": seed,
        "pixels": row.side,
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine_info(),
        "cost": cost.to_json(),
        "cost_of_pixels_and_features": before.to_json(),
        "pictures": pictures_of(split),
        **extra,
        "figures": figures.figures(figures.read(result.with_suffix(".npz"))),
    }
    write_atomically(result, json.dumps(report, indent=1) + "\n")
    return report


def tuned_vectors(place: Place, built: Path, tuned: str, seed: int, command: str) -> tuple[Path, Cost]:
    """float32 [rows, D] of every picture by the bundle of another row, which is made first where it is not yet."""
    work = place.out / place.name / f"{tuned}-{seed}"
    bundle, path = work.with_name(f"{work.name}-bundle"), work.with_name(f"{work.name}.npy")
    if not bundle.is_dir():
        make_row(place, tuned, ROWS[tuned], seed, command.replace(f"knn-{tuned}", tuned), timed=False)
    embed = ["linnaeus_jax.tools.embed", bundle, built, "--dtype", "float32", "--out", path]
    return path, once(path, lambda: run(list(map(str, embed)), path.with_suffix(".embed.log")))


def torch_inputs(place: Place, built: Path, split: Path, path: Path) -> Path:
    """What `benchmarks.real.torch_net` reads of a data set: pixels, labels as of `read_labels`, sides."""
    label, names = read_labels(split, tasks_of(built))
    with h5py.File(built / "images.h5") as images, h5py.File(split) as labels:
        arrays = {"pixels": images["images"][:], "side": labels["split"][:]}
    np.savez(path, label=label, names=names, ranks=np.array(place.rows.of.ranks), **arrays)
    return path


def curve(run_directory: Path, task: str) -> list[list[float]]:
    """Minutes since the start, and accuracy of the validation rows at one rank, at every validation of a run."""
    found = []
    for line in (run_directory / "logs" / "metrics_log.jsonl").read_text().splitlines():
        row = json.loads(line)
        if "val/minutes" in row:
            found.append([round(row["val/minutes"], 4), round(row[f"val/acc1_{task}"] / 100, 4)])
    return found


def latency(place: Place, bundle: Path, out: Path) -> dict[str, Any]:
    """How long a bundle takes for an answer; see `benchmarks.real.latency`."""
    sides = place.rows.sides(place.scheme, 0)
    pictures = [str(place.data / path) for path, side in zip(place.rows.paths, sides, strict=True) if side == "test"]
    run(["benchmarks.real.latency", str(bundle), str(out), *pictures[:PICTURES]], out.with_suffix(".log"))
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def pictures_of(labels_file: Path) -> dict[str, int]:
    """How many pictures each side has; those with the same bytes as another one were left out."""
    with h5py.File(labels_file) as file:
        side = file["split"][:]
    return {name: int((side == place).sum()) for place, name in enumerate(SIDES)}


def tasks_of(built: Path) -> list[str]:
    """Names of the label columns of a data set, finest first, as its configuration has them."""
    config = runpy.run_path(str(built / "config.py"))["get_config"]()
    return list(config.data.task_keys_h5)
