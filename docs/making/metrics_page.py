"""`reference/metrics.md`: every name under which a run logs a value, see `metrics/table.py` and `metrics/logged.py`."""

from __future__ import annotations

from docs.making.markdown import MADE, code, sentence, table
from linnaeus_jax.metrics.logged import LOGGED, PARTS, Logged
from linnaeus_jax.metrics.table import BUILT_IN, RISK_LEVELS, MetricInfo

#: metric -> sections of the run report that show it
REPORTED = {
    "loss": "Overview",
    "loss_unweighted": "Loss, Results per phase",
    "chain_accuracy": "Overview, Accuracy, Results per phase",
    "partial_chain_accuracy": "Overview, Accuracy, Results per phase",
    "acc1": "Overview, Accuracy, Subsets",
    "non_null/acc1": "Results per phase, What each metadata component is worth",
    **dict.fromkeys(
        (
            *("taxonomic_distance", "ece", "nll", "brier", "aurc", "consistency_rate"),
            *(f"coverage_at_risk_{percent}" for percent in RISK_LEVELS),
        ),
        "Mistakes and confidence",
    ),
}
_APART = "without metrics.track_null_vs_non_null, and for ranks that metrics.null_vs_non_null_tasks does not name"
#: metric -> when it is not there
ABSENT = {
    "null/acc1": f"{_APART}; where every row has a label",
    "null/loss": "as `null/acc1`",
    "non_null/acc1": "where no row has a label",
    "non_null/loss": f"{_APART}; where no row has a label",
    "partial_chain_accuracy": "where no row has a label at any rank",
    "taxonomic_distance": "where no labelled row is wrong",
    **dict.fromkeys(
        ("error_rate", "ece", "brier", "nll", "perplexity", "aurc", *(f"coverage_at_risk_{x}" for x in RISK_LEVELS)),
        "where no row has a label at the rank",
    ),
}

INTRODUCTION = """# Logged names

Every name under which a run logs a value: what it is, in which unit, and where it stands. What the metrics mean, with
examples, and how the log is read: [metrics](../metrics.md). Sending them elsewhere:
[W&B and TensorBoard](../wandb_tensorboard.md).

```python
import json

rows = [json.loads(line) for line in open("runs/demo/logs/metrics_log.jsonl")]
print([row["val/chain_accuracy"] for row in rows if "val/chain_accuracy" in row])
```

`logs/metrics_log.jsonl` has a JSON object on every line, with four fields that every row has, and the values under
their names. NaN and infinity are the texts `"NaN"`, `"Infinity"` and `"-Infinity"`.

| field | what it is |
| --- | --- |
| `event` | kind of the row, see below |
| `global_step` | optimizer updates completed |
| `epoch` | index of the epoch, from 0 |
| `timestamp` | seconds since 1970 |

| event | when | W&B, TensorBoard |
| --- | --- | --- |
| `train` | every `schedule.metrics.wandb_interval` updates; rates every `lr_interval`, the input pipeline every \
`pipeline_interval`, GradNorm when it has measured | row of the step |
| `step` | every `schedule.metrics.step_interval` updates, what no `train` row of the same update holds | no |
| `epoch` | at the end of every epoch, after its validations | row of the step |
| `probe` | when a probe has measured | row of the step |
| `final` | at the end of the run | W&B: summary of the run; TensorBoard: scalars |

A value that was not measured is absent, never 0. `--config.debug.wandb_metrics=True` shows every row that is sent.

## Metrics

| part of a name | what it stands for |
| --- | --- |
{parts}

A metric `m` of the table below is logged as

| name | what it is |
| --- | --- |
| `train/m` | of the last update, with augmentation, mixing and dropout |
| `train/step_avg_m` | mean over the updates since W&B's last row |
| `train/epoch_avg_m` | mean over the epoch |
| `val/m`, `<phase>/m` | over the validation rows |
| `final_train_m`, `final_<phase>_m` | best of the run, each by itself |

"each rank" means that `_<task>` follows, "whole" that it does not. A mean over ranks leaves out those without a value.
Best values at the end of the run (`final_...`) include `null/...` and `non_null/...` of every rank."""


def _metric_row(name: str, info: MetricInfo) -> tuple[str, ...]:
    of = [text for text, on in (("whole", info.whole), ("each rank", info.per_task)) if on]
    phases = " and ".join({"train": "training", "val": "validation"}[phase] for phase in info.phases)
    better = "higher" if info.higher_is_better else "lower"
    return (
        code(name),
        sentence(f"{info.label}: {info.formula}"),
        info.unit,
        better,
        ", ".join(of),
        phases,
        sentence(ABSENT[name]) if name in ABSENT else "",
        REPORTED.get(name, ""),
    )


def _logged_row(logged: Logged) -> tuple[str, ...]:
    absent = sentence(logged.absent) if logged.absent else ""
    return code(logged.pattern), sentence(logged.meaning), logged.unit, ", ".join(logged.rows), absent, logged.shown


def _group(logged: Logged) -> str:
    """Heading under which a pattern stands."""
    if logged.rows == ("final",):
        return "End of a run"
    if logged.rows == ("probe",):
        return "Plugins"
    if logged.rows == ("epoch",):
        training = logged.pattern.startswith(("train/", "core/train_"))
        return "An epoch of training" if training else "Validation and early stopping"
    first = logged.pattern.partition("/")[0]
    groups = {"schedule": "Schedules", "meta_masking": "Schedules", "pipeline": "Input pipeline"}
    if first in ("gradnorm", "task_weights") and "total_norm" not in logged.pattern:
        return "GradNorm"
    return groups.get(first, "Schedules" if "null_inclusion" in logged.pattern else "Training, by updates")


def make() -> str:
    """The text of the page."""
    parts = "\n".join(f"| {code(f'<{name}>')} | {meaning} |" for name, meaning in PARTS.items())
    columns = ("metric", "what it is", "unit", "better", "of", "in", "when absent", "report")
    pieces = [INTRODUCTION.replace("{parts}", parts)]
    pieces.append(table(columns, [_metric_row(name, info) for name, info in BUILT_IN.items()]))
    pieces.append(
        "What has the unit `fraction` lies in [0, 1] and is shown to people in percent. In the tables below, rows "
        "`train` are those of the events `train` and `step`.\n"
        "Metrics and subsets of your own are logged under the same names, see [extending](../extending.md)."
    )
    groups: dict[str, list[Logged]] = {}
    for logged in LOGGED:
        groups.setdefault(_group(logged), []).append(logged)
    for heading, members in groups.items():
        columns = ("name", "what it is", "unit", "rows", "when absent", "shown in")
        pieces += [f"## {heading}", table(columns, [_logged_row(logged) for logged in members])]
    return "\n\n".join([*pieces, MADE]) + "\n"
