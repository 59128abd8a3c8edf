"""A run directory with everything that a run can write, without training one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from linnaeus_jax.config.saved import plain
from linnaeus_jax.data.baselines import BASELINES_FILE
from linnaeus_jax.files import RunDirectory, write_json
from linnaeus_jax.metrics import names
from linnaeus_jax.metrics.metric import MetricInfo, per_task
from linnaeus_jax.reporting.metrics_log import MetricsLog
from linnaeus_jax.reporting.mistakes import MISTAKES_FILE, write_mistakes
from linnaeus_jax.reporting.run_record import PLUGIN_METRICS_FILE
from linnaeus_jax.schedules.learning_rate import build_scheduler
from linnaeus_jax.schedules.probabilities import build_probabilities
from linnaeus_jax.schedules.summary import write_summary
from linnaeus_jax.schedules.values import on_host
from tests.schedules.helpers import make_config, make_schedule

TASKS = ("taxa_L10", "taxa_L20", "taxa_L40")
NAMES = {
    "1005": {"name": "Passer domesticus", "common_name": "house sparrow"},
    "1004": {"name": "<script>alert(1)</script>", "common_name": ""},
}
STEPS, EPOCHS, EVERY = 40, 8, 5


def phase_values(rng: np.random.Generator, skill: float, tasks: Sequence[str] = TASKS) -> dict[str, float]:
    """Results of one validation phase for a `skill` between 0 and 1."""
    values = {"loss": 3 * (1 - skill), "loss_unweighted": 3 * (1 - skill), "loss_weighted": 5 * (1 - skill)}
    values |= {"chain_accuracy": skill**2, "partial_chain_accuracy": skill**1.5}
    for depth, task in enumerate(tasks):
        top = 100 * skill ** (1 / (1 + depth)) + float(rng.normal())
        values |= {f"acc1_{task}": top, f"acc3_{task}": min(100.0, top + 5), f"non_null/acc1_{task}": top - 1}
    return values


def extras(rng: np.random.Generator, skill: float) -> dict[str, float]:
    """What a validation measures beyond the base."""
    values = {"consistency_rate": 0.9 + 0.1 * skill, "unsureness": 0.6 - 0.5 * skill}
    values |= {f"mean_place_{task}": 3 - skill for task in TASKS}
    for task in TASKS:
        values |= {f"taxonomic_distance_{task}": 5 - skill, f"ece_{task}": 0.1 * (1 - skill), f"aurc_{task}": 0.1}
        values |= {f"coverage_at_risk_{level}_{task}": skill * level / 10 for level in (1, 5, 10)}
    subsets = {"rarity": ["lt_p5", "p5_p50", "p50_p95", "ge_p95"], "taxa": ["birds", "plants"]}
    for kind, members in subsets.items():
        for place, name in enumerate(members):
            values[f"subset/{kind}/{name}/count"] = 100.0 * (place + 1)
            values |= {f"subset/{kind}/{name}/acc1_{task}": 20.0 * (place + 1) * skill for task in TASKS}
    return values


def curves(rng: np.random.Generator) -> dict[str, Any]:
    """Curves of the last validation."""
    found: dict[str, Any] = {}
    for task in TASKS:
        mean = np.linspace(0.1, 0.97, 12)
        coverage = np.linspace(0.01, 1, 800)
        found[task] = {
            "reliability": np.stack([mean, mean**1.2, np.full(12, 50)], axis=1).tolist(),
            "risk_coverage": np.stack([coverage, 0.3 * coverage**2], axis=1).tolist(),
            "distance": {"0": 800, "2": 120, "4": 60, "6": 20},
            "class_counts": [[40] * 30, rng.integers(0, 41, 30).tolist()],
        }
    return {"val": found}


class Noise:
    """Images of 300 x 200 pixels."""

    image_shape = (200, 300, 3)

    def __len__(self) -> int:
        return 20

    def read(self, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
        out[...] = np.random.default_rng(0).integers(0, 255, (len(rows), 20, 30, 3)).repeat(10, 1).repeat(10, 2)
        return np.ones(len(rows), bool)


def write_credits(path: Path) -> str:
    """A labels file of 20 rows of which row 17 says whose picture it is."""
    texts = {"license": "CC-BY-NC 4.0", "rights_holder": "J. <b>Doe\u202e", "source_doi": "10.15468/dl.abc"}
    with h5py.File(path, "w") as file:
        file["img_identifiers"] = [f"{row}.jpg" for row in range(20)]
        for name, text in texts.items():
            file[name] = [text if row == 17 else "" for row in range(20)]
    return str(path)


def make_run(root: Path, *, skill: float = 0.8, **settings: Any) -> Path:
    """Writes a finished run of 320 updates; `settings` are dotted keys with `__` for dots."""
    rng = np.random.default_rng(int(100 * skill))
    changed = {key.replace("__", "."): value for key, value in settings.items()}
    changed = {"experiment.name": root.name, "data.task_keys_h5": TASKS, "train.epochs": EPOCHS, **changed}
    changed = {"lr_scheduler.min_lr": 0.0, **changed}  # a rate that falls
    resolved = make_schedule(changed, steps_per_epoch=STEPS)
    directory = RunDirectory(root)
    directory.create()
    write_json(directory.config_json, plain(make_config(changed)))
    write_json(directory.assets / "versions.json", {"jax": "0.10.2", "device": "1 x cpu"})
    write_json(directory.assets / "num_classes.json", dict.fromkeys(TASKS, 30))
    write_json(
        directory.assets / "class_to_idx.json",
        {t: {"null": 0, **{str(1000 + i): i for i in range(1, 30)}} for t in TASKS},
    )
    write_json(directory.assets / "validation_curves.json", curves(rng))
    write_json(directory.assets / "taxon_names.json", {TASKS[0]: NAMES})
    labels = write_credits(root / "labels.h5")
    mistakes: dict[str, list[dict[str, Any]]] = {
        "pairs": [{"label": 5, "predicted": 4, "rows": 9}, {"label": 3, "predicted": 0, "rows": 2}],
        "confident": [
            {"row": 17, "label": 5, "predicted": 4, "probability": 0.995},
            {"row": 3, "label": 2, "predicted": 0, "probability": 0.9},
        ],
    }
    write_mistakes(directory.root / MISTAKES_FILE, dict.fromkeys(TASKS, mistakes), Noise(), labels)
    write_json(
        directory.metadata / "task_label_density.json",
        {"train": dict.fromkeys(TASKS, 90.0), "val": dict.fromkeys(TASKS, 91.0)},
    )
    weights = {"files": [{"path": "weights.safetensors", "sha256": "0f"}]}
    coverage = {"summary": "168 of 169 arrays of the model are of the file", "counts": {"loaded": 168, "initial": 1}}
    write_json(directory.metadata / "pretrained.json", {**weights, "coverage": coverage})
    write_json(directory.metadata / "class_label_counts.json", {"train": {t: list(range(30)) for t in TASKS}})
    percent = {"commonest": dict.fromkeys(TASKS, 4.5), "colours": dict.fromkeys(TASKS, 43.9)}
    write_json(
        directory.root / BASELINES_FILE, {"rows": {"train": [3000, 9000], "val": [900, 900]}, "percent": percent}
    )
    unsureness = MetricInfo("unsureness", "1 - p of the best class", "fraction", higher_is_better=False)
    mean_place = per_task("mean_place", "mean place of the label", "", higher=False)
    of_plugins = {"unsureness": unsureness, "mean_place": mean_place}
    write_json(
        directory.root / PLUGIN_METRICS_FILE, {name: dataclasses.asdict(one) for name, one in of_plugins.items()}
    )
    write_summary(resolved, directory.assets)
    write_rows(directory.metrics_log, resolved, rng, skill)
    return root


def write_rows(path: Path, resolved: Any, rng: np.random.Generator, skill: float) -> None:
    log = MetricsLog(path)
    steps = np.arange(STEPS * EPOCHS)
    rates = on_host(build_scheduler(resolved))(steps)
    masking = on_host(build_probabilities(resolved).by_name())(steps)["meta_mask_prob"]
    for step in range(EVERY, STEPS * EPOCHS + 1, EVERY):
        epoch, progress = (step - 1) // STEPS, step / (STEPS * EPOCHS)
        now = phase_values(rng, skill * progress)
        row: dict[str, Any] = {f"train/step_avg_{name}": value for name, value in now.items() if "/" not in name}
        row |= names.update_row(now, {})
        row |= {f"train/lr/{group}": float(rate[step - 1]) for group, rate in rates.items()}
        row["schedule/meta_mask_prob"] = float(masking[step - 1])
        row["train/grad_norm"] = float(np.exp(rng.normal()))
        row["train/skipped_updates"] = int(step > 100)
        row |= {f"gradnorm/weight/{task}": 1 + 0.3 * float(rng.normal()) * progress for task in TASKS}
        row |= {"train/images_per_sec": 400 + 10 * float(rng.normal()), "pipeline/wait_share": 0.1}
        log.write("train", step, epoch, row)
        if step % STEPS == 0:
            row = names.phase_row("train", now)
            if epoch % 2:
                row |= {f"val/{name}": value for name, value in (now | extras(rng, skill * progress)).items()}
                for place, masked in enumerate(("meta", "TEMPORAL", "SPATIAL")):
                    found = phase_values(rng, skill * progress * (0.6 + 0.1 * place))
                    row |= {f"val_mask_{masked}/{name}": value for name, value in found.items()}
                    if masked == "meta":
                        row |= {f"val_mask/{name}": value for name, value in found.items()}
            log.write("epoch", step, epoch, row)
    log.write(
        "final", STEPS * EPOCHS, EPOCHS - 1, {"final_val_loss": 3 * (1 - skill), "final_val_chain_accuracy": skill}
    )
