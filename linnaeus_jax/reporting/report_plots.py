"""The figures of the run report, as self-contained `<img>` elements; a figure without data is an empty string."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from linnaeus_jax.metrics.judged import LEAST_ROWS
from linnaeus_jax.metrics.names import CHAINS
from linnaeus_jax.metrics.table import BUILT_IN
from linnaeus_jax.reporting.alerts import WAIT_SHARE
from linnaeus_jax.reporting.figures import COLORS, DASHES, MARKERS, grid, image, labels, legend, literal
from linnaeus_jax.reporting.metrics_log import RunError
from linnaeus_jax.reporting.run_record import RunRecord
from linnaeus_jax.schedules.learning_rate import build_scheduler
from linnaeus_jax.schedules.resolved import ResolvedSchedule
from linnaeus_jax.schedules.summary import curves
from linnaeus_jax.schedules.values import on_host
from linnaeus_jax.taxonomy.ranks import task_name

#: points per curve; more could not be told apart on 1200 pixels
POINTS = 500
#: name of a planned probability -> metric that says what was applied
APPLIED = {
    "meta mask": "schedule/meta_mask_prob",
    "partial mask": "schedule/partial_mask_prob",
    "null inclusion": "schedule/null_mask_prob",
    "mixing": "schedule/mixup_prob",
}
UPDATES = "optimizer updates"
#: limits of y around 0 to 100 %
PERCENT = (-2.0, 102.0)

#: one report, several runs: label -> run
Runs = Mapping[str, RunRecord]


@dataclass(frozen=True)
class Curve:
    """One line of a panel."""

    label: str
    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    color: str
    dash: str = "-"
    marker: str = ""
    width: float = 1.6


@dataclass(frozen=True)
class Panel:
    """One pair of axes; without `limits`, y fits its curves."""

    title: str
    curves: Sequence[Curve]
    y_label: str
    x_label: str = UPDATES
    limits: tuple[float, float] | None = None
    log_scale: bool = False


def thinned(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most `POINTS` points: means over equal stretches of a longer series."""
    if len(x) <= POINTS:
        return x, y
    parts = np.array_split(np.arange(len(x)), POINTS)
    return np.array([x[part].mean() for part in parts]), np.array([y[part].mean() for part in parts])


def panels(title: str, content: Sequence[Panel], *, columns: int = 3, height: float = 2.7) -> str:
    """Panels of curves, without those that hold no finite value."""
    from matplotlib.ticker import LogLocator, NullFormatter

    content = [replace(panel, curves=[c for c in panel.curves if np.isfinite(c.y).any()]) for panel in content]
    content = [panel for panel in content if panel.curves]
    if not content:
        return ""
    figure, axes = grid(len(content), columns, height)
    end = max(float(np.max(curve.x)) for panel in content for curve in panel.curves)
    for axis, panel in zip(axes, content, strict=True):
        for curve in panel.curves:
            x, y = np.asarray(curve.x, np.float64), np.asarray(curve.y, np.float64)
            single = len(x) == 1 and not curve.marker
            x, y = thinned(x, np.where(np.isfinite(y), y, np.nan))
            axis.plot(
                x,
                y,
                color=curve.color,
                linestyle=curve.dash,
                marker="o" if single else curve.marker,
                ms=4.5,
                lw=curve.width,
                label=literal(curve.label),
            )
        labels(axis, literal(panel.title), panel.x_label, panel.y_label)
        axis.set_xlim(-0.02 * end, 1.02 * end)
        if len(content) > 1:  # narrow ones, in which numbers of updates would touch
            axis.locator_params(axis="x", nbins=5)
        if panel.log_scale and any(np.any(np.asarray(curve.y) > 0) for curve in panel.curves):
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.yaxis.set_minor_formatter(NullFormatter())
        axis.yaxis.set_major_formatter("{x:g}")
        if panel.limits is not None:
            axis.set_ylim(*panel.limits)
    legend(figure, axes)
    return image(figure, title)


def bars(
    title: str, groups: Sequence[str], content: Mapping[str, Sequence[float | None]], y_label: str, x_label: str
) -> str:
    """Grouped bars with their values: legend label -> one value per group (None: no bar)."""
    content = {label: values for label, values in content.items() if any(v is not None for v in values)}
    if not content:
        return ""
    figure, (panel,) = grid(1, 1, 3.0)
    width = 0.8 / len(content)
    for index, (label, values) in enumerate(content.items()):
        where = np.arange(len(groups)) + (index - (len(content) - 1) / 2) * width
        heights = [np.nan if value is None else value for value in values]
        drawn = panel.bar(where, heights, width * 0.92, color=COLORS[index % len(COLORS)], label=literal(label))
        if len(groups) * len(content) <= 48:
            texts = ["" if value is None else f"{value:.1f}" for value in values]
            panel.bar_label(drawn, labels=texts, fontsize=7, padding=1)
    panel.axhline(0, color="black", lw=0.6)
    panel.margins(y=0.15)
    panel.set_xlim(-0.6, len(groups) - 0.4)
    if not any(value for values in content.values() for value in values):
        panel.set_ylim(-1, 1)
    panel.set_xticks(range(len(groups)), list(map(literal, groups)), fontsize=9)
    panel.grid(visible=False, axis="x")
    panel.set_xlabel(x_label, fontsize=9)
    panel.set_ylabel(y_label, fontsize=9)
    legend(figure, [panel])
    return image(figure, title)


def phase_curve(
    runs: Runs, label: str, phase: str, name: str, order: int, *, scale: float = 1.0, dots: bool = True
) -> list[Curve]:
    """Curves of one metric of a phase, of the runs that have it; `dots` where they are of whole epochs.

    Phases differ by marker, and by colour where there is one run; with several, the colour is that of the run.
    """
    drawn = []
    for index, (run_label, run) in enumerate(runs.items()):
        if f"{phase}/{name}" not in run.names:
            continue
        x, y = run.series(f"{phase}/{name}")
        several = len(runs) > 1
        drawn.append(
            Curve(
                f"{run_label}: {label}" if several else label,
                x,
                y * scale,
                COLORS[(index if several else order) % len(COLORS)],
                dash=":" if several and not dots else "-",
                marker=MARKERS[order % len(MARKERS)] if dots else "",
                width=1.6 if dots else 1.0,
            )
        )
    return drawn


def training_curve(runs: Runs, name: str, scale: float = 1.0) -> list[Curve]:
    """Means between log points; over epochs where the log points have none."""
    fine = phase_curve(runs, "training", "train", f"step_avg_{name}", 0, scale=scale, dots=False)
    return fine or phase_curve(runs, "training", "train", f"epoch_avg_{name}", 0, scale=scale)


def losses(runs: Runs, phases: Mapping[str, str]) -> str:
    """Mean loss over the ranks, training against validation, and one panel for all validation phases."""
    train = training_curve(runs, "loss_unweighted")
    lines = {
        phase: phase_curve(runs, label, phase, "loss_unweighted", order)
        for order, (phase, label) in enumerate(phases.items(), 1)
    }
    unit = "mean loss over ranks [nats]"
    content = [Panel("training and validation", train + lines.get("val", []), unit)]
    if len(phases) > 1:
        content.append(Panel("validation phases", [line for phase in lines.values() for line in phase], unit))
    return panels("losses", content, columns=2, height=3.4)


def accuracies(runs: Runs, tasks: Sequence[str]) -> str:
    """Top-1 accuracy per rank and of whole chains, training against validation."""
    kinds = [(f"{BUILT_IN['acc1'].label}, {task_name(task)}", f"acc1_{task}", 1.0) for task in tasks]
    for name, chain in zip(CHAINS, ("chain", "partial chain"), strict=True):
        kinds.append((f"{BUILT_IN[name].label} ({chain})", name, BUILT_IN[name].scale))
    content = []
    for title, name, scale in kinds:
        drawn = training_curve(runs, name, scale) + phase_curve(runs, "validation", "val", name, 1, scale=scale)
        content.append(Panel(title, drawn, "accuracy [%]"))
    limits = percent_limits([curve.y for panel in content for curve in panel.curves])
    return panels("accuracies", [replace(panel, limits=limits) for panel in content], height=2.5)


def percent_limits(values: Iterable[ArrayLike]) -> tuple[float, float]:
    """Limits of y for percentages: from 0, or where all are 50 or more from the ten below the least."""
    finite = [y[np.isfinite(y)] for y in (np.asarray(each, np.float64) for each in values)]
    least = min((float(y.min()) for y in finite if y.size), default=0.0)
    bottom = min(10 * (least // 10), 90.0) if least >= 50 else 0.0
    margin = (100 - bottom) / 50
    return bottom - margin, 100 + margin


def schedules(run: RunRecord) -> tuple[str, float | None]:
    """Planned and applied learning rates and probabilities; also the largest relative difference of the rates.

    Raises:
      RunError: another version wrote the schedule.
    """
    if "resolved" not in run.schedule:
        return "", None
    try:
        resolved = ResolvedSchedule.from_dict(run.schedule["resolved"])
    except KeyError as error:
        raise RunError(
            f"{run.root}/assets/schedule_summary.json lacks the field {error}: another version wrote it; use that "
            "version, or remove the file to leave the schedules out"
        ) from error
    steps = np.unique(np.linspace(0, resolved.total_steps - 1, 4 * POINTS).astype(np.int64))
    rates, probabilities, worst = on_host(build_scheduler(resolved)), on_host(curves(resolved)), None
    names = [spec.group for spec in resolved.learning_rates if not spec.frozen]
    # panel, name, what is planned at given steps, metric that says what was applied
    planned = [("learning rate", name, rates, f"train/lr/{name}") for name in names]
    planned += [("probabilities", name, probabilities, APPLIED[name]) for name in curves(resolved)]
    drawn: dict[str, list[Curve]] = {"learning rate": [], "probabilities": []}
    for index, (panel, name, plan, metric) in enumerate(planned):
        color = COLORS[index % len(COLORS)]
        drawn[panel].append(Curve(f"{name}, planned", steps, plan(steps)[name], color))
        updates, applied = run.series(metric)
        if len(updates):
            x = updates - 1  # a row after `n` updates tells what the last of them used, that of step n - 1
            if panel == "learning rate":
                expected = plan(x)[name]
                gap = float(np.max(np.abs(applied - expected) / np.maximum(np.abs(expected), 1e-30)))
                worst = max(worst or 0.0, gap)
            every = max(1, len(x) // 60)
            drawn[panel].append(Curve(f"{name}, applied", x[::every], applied[::every], color, "", "."))
    content = [
        Panel("learning rate", drawn["learning rate"], "learning rate"),
        Panel("probabilities", drawn["probabilities"], "probability", limits=(-0.03, 1.03)),
    ]
    return panels("schedules", content, columns=2, height=2.9), worst


def speed(runs: Runs, _: Sequence[str]) -> str:
    """Images per second and share of waiting, over the run."""
    rates, waits = [], []
    for index, (label, run) in enumerate(runs.items()):
        color = COLORS[index % len(COLORS)]
        rates.append(Curve(label, *run.series("train/images_per_sec"), color))
        x, y = run.series(WAIT_SHARE)
        waits.append(Curve(label, x, 100 * y, color))
    fastest = max((float(np.max(line.y)) for line in rates if len(line.y)), default=1.0)
    content = [
        Panel("throughput", rates, "images per second", limits=(0.0, 1.1 * max(fastest, 1.0))),
        Panel("waiting for data", waits, "share of time [%]", limits=PERCENT),
    ]
    return panels("speed", content, columns=2)


def gradients(runs: Runs, tasks: Sequence[str]) -> str:
    """Gradient norm, and GradNorm's task weights where they move."""
    norms, weights = [], []
    several = len(runs) > 1
    for index, (label, run) in enumerate(runs.items()):
        norms.append(Curve(label, *run.series("train/grad_norm"), COLORS[index % len(COLORS)]))
        for order, task in enumerate(tasks):
            color = COLORS[(index if several else order + 1) % len(COLORS)]
            name = f"{label}: weight of {task_name(task)}" if several else f"weight of {task_name(task)}"
            weights.append(Curve(name, *run.series(f"gradnorm/weight/{task}"), color, DASHES[order % len(DASHES)]))
    content = [
        Panel("gradient norm before clipping", norms, "L2 norm", log_scale=True),
        Panel("task weights", weights, "weight"),
    ]
    return panels("gradients", content, columns=2)


def confidence(curves: Mapping[str, Mapping[str, Any]]) -> str:
    """Reliability and risk-coverage of one run: task -> `reliability` and `risk_coverage`."""
    reliable: list[Curve] = []
    risk: list[Curve] = []
    for index, (task, one) in enumerate(curves.items()):
        color, joined = COLORS[index % len(COLORS)], DASHES[index % len(DASHES)]  # equal curves show both
        if one.get("reliability"):
            mean, right, rows = np.asarray(one["reliability"], np.float64).T
            for some, label, dash in ((rows >= LEAST_ROWS, task, joined), (rows < LEAST_ROWS, "", "none")):
                reliable.append(Curve(label, 100 * mean[some], 100 * right[some], color, dash, marker="o"))
        if one.get("risk_coverage"):
            coverage, wrong = np.asarray(one["risk_coverage"], np.float64).T
            risk.append(Curve(task, 100 * coverage, 100 * wrong, color, joined))
    if reliable:
        reliable.append(Curve("perfectly calibrated", (0, 100), (0, 100), "#999999", "--", width=1.0))
    content = [
        Panel(
            f"reliability; dots of fewer than {LEAST_ROWS} rows are not joined",
            reliable,
            "right predictions [%]",
            "confidence [%]",
        ),
        Panel(
            "risk against coverage",
            risk,
            "errors among the answered [%]",
            "answered, most confident first [%]",
            limits=None if any(np.any(line.y) for line in risk) else (-0.02, 1.0),  # nothing is wrong
        ),
    ]
    return panels("confidence", content, columns=2, height=3.2)


def distances(curves: Mapping[str, Mapping[str, Any]]) -> str:
    """Share of the validation rows by taxonomic distance between label and prediction, one group per distance; ""
    without errors."""
    tasks = {task: one["distance"] for task, one in curves.items() if sum(one.get("distance", {}).values())}
    steps = sorted({int(edges) for counts in tasks.values() for edges, rows in counts.items() if int(edges) and rows})
    content = {
        task: [100 * counts[str(edges)] / sum(counts.values()) if str(edges) in counts else None for edges in steps]
        for task, counts in tasks.items()
    }
    return bars(
        "errors by taxonomic distance",
        [str(edges) for edges in steps],
        content,
        "labelled rows [%]",
        "taxonomic distance of the error [edges between label and prediction]",
    )
