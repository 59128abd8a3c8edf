"""docs/migration.md and docs/migration_keys.md: the documented YAML of the original trains, with the notes that are
shown, and the tables of keys are those of the program (UPDATE_DOCS=1 writes them)."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import yaml

from linnaeus_jax.config import get_config, load_config, load_yaml
from linnaeus_jax.config.defaults import declared
from linnaeus_jax.config.keys import value_of
from linnaeus_jax.config.tree import known_keys
from linnaeus_jax.config.typed import typed
from linnaeus_jax.migration.experiments import target_key
from linnaeus_jax.migration.keys import ALIASES, COMPATIBILITY
from linnaeus_jax.run import trainer
from tests.step import toy
from tests.tiny import TASKS, write_tiny_data

ROOT = Path(__file__).parents[2]
PAGE, KEYS = ROOT / "docs" / "migration.md", ROOT / "docs" / "migration_keys.md"
BLOCKS = ROOT / "tests" / "fixtures" / "yaml"
#: every key of the original with its default value
DEFAULTS = ROOT / "tests" / "fixtures" / "migration" / "original_defaults.yaml"
UPDATES = 20
#: other values that mean the same here: one loss for all ranks, no rank, "as the optimizer", another form of a filter
SAME = (
    "loss.task_specific.train.funcs",
    "loss.task_specific.val.funcs",
    "loss.taxonomy_smoothing.enabled",
    "loss.grad_weighting.task.exclude_config",
    "optimizer.parameter_groups.default.optimizer",
    "optimizer.parameter_groups.default.weight_decay",
)
#: keys of the original without a value of their own, or with one that `load_yaml` reads itself
BASES = ("BASE", "MODEL.BASE")


def flattened(node: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of the leaves; filters and empty sections count as leaves."""
    for key, value in node.items():
        if isinstance(value, dict) and value and key != "EXCLUDE_CONFIG":
            yield from flattened(value, (*path, key))
        else:
            yield (*path, key)


def original_keys() -> list[tuple[str, ...]]:
    return [path for path in flattened(yaml.safe_load(DEFAULTS.read_text())) if ".".join(path) not in BASES]


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines: list[tuple[str, ...]] = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def shown(value: Any) -> str:
    if value in ("", (), None):
        return {"": "empty", (): "empty"}.get(value, "None")
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def same_names() -> str:
    """Section -> keys whose path stays, in upper case."""
    known, sections = set(known_keys(get_config())) | {"model.classification.heads"}, dict[str, list[str]]()
    for path in original_keys():
        target = target_key(path)
        if ".".join(target).lower() == ".".join(path).lower() and ".".join(target) in known:
            sections.setdefault(path[0], []).append(".".join(path[1:]))
    return table(
        ("section", "keys"),
        [(f"`{name}`", " ".join(f"`{key}`" for key in keys)) for name, keys in sections.items()],
    )


def other_names() -> str:
    rows = dict[str, tuple[str, str]]()
    for old, new in ALIASES.items():
        unit = old.rpartition("_")[2]
        if old.startswith("METRICS."):
            rows[unit] = (f"`METRICS.*_{unit}`", f"`schedule.metrics.*_{unit.lower()}`")
        else:
            rows[old] = (f"`{old}`", f"`{new}`")
    return table(("there", "here"), list(rows.values()))


def without_counterpart() -> str:
    reasons = dict[str, list[str]]()
    for pattern, reason in COMPATIBILITY.items():
        reasons.setdefault(reason, []).append(f"`{pattern}`")
    return table(("keys (`*` stands for anything)", "why"), [(" ".join(keys), why) for why, keys in reasons.items()])


def other_defaults() -> dict[str, tuple[Any, Any]]:
    """Key of the tree -> default of the original, default here, where they mean different things."""
    theirs, ours = load_yaml(DEFAULTS), get_config()
    members = {path for path, found in declared().items() if found.quantity}
    found = {}
    for key in known_keys(ours):
        if key not in members and key not in SAME and value_of(theirs, key) != value_of(ours, key):
            found[key] = value_of(theirs, key), value_of(ours, key)
    return found


def defaults_table() -> str:
    rows = [(f"`{key}`", shown(there), shown(here)) for key, (there, here) in other_defaults().items()]
    return table(("key here", "default there", "default here"), rows)


SECTIONS = {
    "Keys that keep their name": same_names,
    "Keys that have another name": other_names,
    "Keys without a counterpart": without_counterpart,
    "Defaults that differ": defaults_table,
}


def test_tables_of_keys_are_those_of_the_program():
    text = KEYS.read_text()
    for title, make in SECTIONS.items():
        section = re.search(rf"^## {title}\n.*?(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
        assert section, title
        rows = make()
        (old,) = re.findall(r"(?:^\|.*\n)+", section[0], flags=re.MULTILINE)
        changed = section[0].replace(old, rows)
        if os.environ.get("UPDATE_DOCS"):
            text = text.replace(section[0], changed)
            KEYS.write_text(text)
        assert section[0] == changed or os.environ.get("UPDATE_DOCS"), f"write it anew with UPDATE_DOCS=1:\n{changed}"


def test_alternatives_have_the_defaults_of_the_original():
    """Intervals and durations that no file mentions: the defaults differ in form alone."""
    tree = load_yaml(DEFAULTS)
    tree.experiment.name = tree.experiment.project = tree.data.hybrid.verify_images.report_path = "was empty"
    theirs, ours = typed(tree), typed(get_config())
    for path, found in declared().items():
        if found.quantity and "*" not in path and not path.startswith("schedule.metrics."):
            quantity = f"{path.rpartition('.')[0]}.{found.quantity}"
            before, now = value_of(theirs, quantity), value_of(ours, quantity)
            assert before == now or before[:2] == now[:2], quantity


def test_the_base_file_of_the_page_restores_the_defaults(tmp_path):
    """All but names, threads and a path, which change nothing that is learned; and a file wins over its base."""
    pattern = re.compile(r"<!-- file: original_defaults.yaml -->\n```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)
    (block,) = pattern.findall(KEYS.read_text())
    (tmp_path / "original_defaults.yaml").write_text(block)
    (tmp_path / "experiment.yaml").write_text(
        "BASE: [original_defaults.yaml]\nDATA: {SAMPLER: {GROUPED_MODE: mixed-pairs}}"
    )
    config = load_yaml(tmp_path / "experiment.yaml")
    others = ("experiment.", "env.", "data.num_workers", "data.prefetch.", "data.hybrid.", "data.sampler.")
    for key, (there, _) in other_defaults().items():
        if not key.startswith(others):
            assert value_of(config, key) == there, key
    assert config.data.sampler.grouped_mode == "mixed-pairs"


def notes_of_page() -> dict[str, list[str]]:
    """Name of a documented block -> the notes that the page shows below it."""
    (block,) = re.findall(r"```text\n(debug_example\.yaml.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    notes, name = dict[str, list[str]](), ""
    for line in block.splitlines():
        if line.startswith(" "):
            notes[name].append(line.strip())
        else:
            name = line.partition(":")[0]
            notes[name] = []
    return notes


def data_with_elevation(directory: Path) -> tuple[Path, Path]:
    labels, images = write_tiny_data(directory, rows=160)
    with h5py.File(labels, "a") as file:
        angles = np.random.default_rng(1).random((160, 5)) * 6
        values = np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(160, 10).astype(np.float32)
        file["elevation_broadrange_2"] = values
        columns = [f"elev_{scale}_{wave}" for scale in (100, 1000, 2000, 4000, 5000) for wave in ("sin", "cos")]
        file["elevation_broadrange_2"].attrs["column_names"] = columns
    return labels, images


@pytest.mark.slow
def test_documented_blocks_train(tmp_path, monkeypatch, one_device, caplog):
    """Each file of documented blocks as it stands, with a small model and small data: 20 updates, the shown notes."""
    toy.register(monkeypatch)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    labels, images = data_with_elevation(tmp_path / "data")
    small = {
        "model.type": "toy",
        "model.variant": "tiny",
        "data.h5.labels_path": labels,
        "data.h5.images_path": images,
        "data.h5.train_val_split_ratio": 0.8,
        "data.task_keys_h5": ",".join(TASKS),
        "data.img_size": 32,
        "data.batch_size": 24,
        "data.batch_size_val": 24,
        "data.meta.components.ELEVATION.enabled": True,
        "aug.random_resized_crop.enabled": False,  # no block is about it, and it is half of the time of compiling
        "aug.color_jitter": 0.0,
        "aug.random_erase.prob": 0.0,
        "train.epochs": 5,
    }
    expected = notes_of_page()
    assert set(expected) == {path.name for path in BLOCKS.glob("*.yaml")}
    configs = {}
    for name, notes in expected.items():  # before the first run, which takes the loggers over
        caplog.clear()
        with caplog.at_level(logging.WARNING, "linnaeus_jax.config"):
            argv = [f"--config={ROOT}/configs/yaml.py:{BLOCKS / name}"]
            configs[name], _ = load_config([*argv, *(f"--config.{key}={value}" for key, value in small.items())])
        assert [record.message for record in caplog.records] == notes, name
    for name, config in configs.items():
        run = tmp_path / name
        trainer.run(config, run)
        assert json.loads((run / "progress.json").read_text())["global_step"] == UPDATES
        rows = [json.loads(line) for line in (run / "logs" / "metrics_log.jsonl").read_text().splitlines()]
        assert [row["event"] for row in rows if row["event"] in ("epoch", "final")] == ["epoch"] * 5 + ["final"]
