"""`reference/config.md`: every key of the configuration as it is declared, and the page that explains it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from docs.making.markdown import MADE, code, sentence, table
from linnaeus_jax.config import get_config
from linnaeus_jax.config.defaults import declared
from linnaeus_jax.config.keys import key
from linnaeus_jax.config.sections.model import HEAD_OPTIONS

#: beginning of a key -> the page that explains it; the longest that fits counts
PAGES = {
    "experiment": "checkpoints.md",
    "experiment.log_level": "debug_flags.md",
    "experiment.tensorboard": "wandb_tensorboard.md",
    "experiment.wandb": "wandb_tensorboard.md",
    "env": "performance.md",
    "env.output": "checkpoints.md",
    "env.plugins": "extending.md",
    "parallel": "clusters.md",
    "data": "your_data.md",
    "data.autobatch": "performance.md",
    "data.batch_size": "performance.md",
    "data.batch_size_val": "validation.md",
    "data.crop_fraction": "augmentation.md",
    "data.h5": "data_files.md",
    "data.h5.train_val_split": "your_data.md",
    "data.hybrid.allow_missing_images": "my_run_is_broken.md",
    "data.hybrid.verify_images": "my_run_is_broken.md",
    "data.img_size": "models.md",
    "data.interpolation": "augmentation.md",
    "data.meta": "metadata.md",
    "data.num_workers": "performance.md",
    "data.out_of_region": "validation.md",
    "data.partial": "losses.md",
    "data.prefetch": "performance.md",
    "data.resize_mode": "augmentation.md",
    "data.sampler": "mixing.md",
    "data.task_keys_h5": "data_files.md",
    "data.worker_processes": "performance.md",
    "model": "models.md",
    "model.label_smoothing": "losses.md",
    "model.missing_metadata": "metadata.md",
    "model.pretrained": "models.md",
    "train": "schedules.md",
    "train.auto_resume": "checkpoints.md",
    "train.clip": "optimizers.md",
    "train.compute_dtype": "performance.md",
    "train.deterministic": "performance.md",
    "train.ema": "optimizers.md",
    "train.gradient_checkpointing": "performance.md",
    "train.matmul_precision": "performance.md",
    "train.nonfinite_limit": "my_run_is_broken.md",
    "train.phase1_mask_null_loss": "losses.md",
    "train.preserve_checkpoint_schedule": "checkpoints.md",
    "train.resume_skip_optimizer": "checkpoints.md",
    "train.seed": "checkpoints.md",
    "train.skip_validation": "checkpoints.md",
    "lr_scheduler": "schedules.md",
    "optimizer": "optimizers.md",
    "loss": "losses.md",
    "loss.grad_weighting.task.exclude_config": "optimizers.md",
    "aug": "augmentation.md",
    "schedule": "schedules.md",
    "schedule.checkpoint": "checkpoints.md",
    "schedule.meta_masking": "metadata.md",
    "schedule.metrics": "metrics.md",
    "schedule.mixup": "mixing.md",
    "schedule.null_masking": "losses.md",
    "schedule.validation": "validation.md",
    "metrics": "metrics.md",
    "debug": "debug_flags.md",
    "debug.crash_bundle": "overflow.md",
    "debug.infs": "overflow.md",
    "debug.jsonl": "event_log.md",
    "debug.nans": "overflow.md",
    "debug.profiler": "profiling.md",
    "debug.stall_seconds": "my_run_is_broken.md",
    "debug.underflow_overflow": "overflow.md",
}

#: open node -> what stands for the name of an entry
ENTRIES = {
    "data.meta.components": "<component>",
    "lr_scheduler.parameter_groups": "<group>",
    "optimizer.parameter_groups": "<group>",
    "model.classification.heads": "<task>",
}


def _shown(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def meaning_of(path: str) -> str:
    """What a key means, as a cell of the table."""
    key = declared()[path]
    rivals = f" Give this or {' or '.join(map(code, key.rivals))}." if key.rivals else ""
    return sentence(key.meaning) + rivals


def _default(path: str) -> str:
    key = declared()[path]
    return code(_shown(key.default)) + (f", counts as {key.counts:g}" if key.counts is not None else "")


def fitting(path: str) -> list[str]:
    """The beginnings in `PAGES` that fit a key: whole parts of it, or parts of its last name up to an underscore."""
    return [prefix for prefix in PAGES if f"{path}.".startswith(f"{prefix}.") or path.startswith(f"{prefix}_")]


def page_of(path: str) -> str:
    """The page that explains a key.

    Raises:
      KeyError: `PAGES` has none.
    """
    if not fitting(path):
        raise KeyError(path)
    return PAGES[max(fitting(path), key=len)]


# ---- the page

INTRODUCTION = """# Configuration keys

Every key of the configuration, with its default, what it may be, and the page that explains it. A key is set on the
command line (`--config.train.epochs=3`), in a configuration file (`config.train.epochs = 3`), or in YAML
([migration](../migration.md) says which of its names differ).

```text
$ linnaeus train --config=configs/quickstart.py --config.train.epoch=3
--config.train.epoch: unknown key; did you mean --config.train.epochs?
```

A wrong key is answered with the nearest right one, a value out of range with what it may be, all errors at once.

* Tuples are typed as `1,2` or `(1,2)`; one value serves as a tuple of one. `None` unsets a key whose type says
  "or None".
* A duration has one key for each unit: optimizer updates (`_steps`, `_interval`), a share of all updates of the run
  (`_fraction`), epochs (`_epochs`). Give one of them and leave the others `None`; `0` switches it off. Where all are
  `None`, the default counts that the table shows.
* Numbers are finite. Where no bound is shown, integers are at most {most} in size and other numbers {largest:g}.
* `<component>`, `<group>` and `<task>` stand for names: every entry has the keys that are shown.
* Options of your own heads, losses, metrics and so on are keys, too, see [extending](../extending.md).
"""


def shown_path(path: str) -> str:
    """The path as readers see it, with a word for the name of an entry."""
    node, star, _ = path.partition(".*")
    return path.replace("*", ENTRIES[node]) if star else path


def make() -> str:
    """The text of the page."""
    groups: dict[str, list[str]] = {}
    for path in declared():
        groups.setdefault(path.rpartition(".")[0], []).append(path)
    tops: dict[str, list[str]] = {}
    for section in groups:
        tops.setdefault(section.partition(".")[0], []).append(section)
    for top, sections in tops.items():
        sections.sort(key=lambda section, top=top: section != top)
    contents = [f"* [{top}](#{top}){_below(sections)}" for top, sections in tops.items()]
    parts = [
        INTRODUCTION.format(most=key(0, "").bounds[1], largest=key(0.0, "").bounds[1]),
        "\n".join(contents),
    ]
    for top, sections in tops.items():
        if top not in groups:
            parts.append(f"## {top}")
        for section in sections:
            parts.append(f"{'##' if section == top else '###'} {_heading(section)}")
            parts.append(_section_note(section))
            columns = ("key", "default", "type: values", "meaning", "see")
            parts.append(table(columns, [_row(path) for path in groups[section]]))
    parts.append(MADE)
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _row(path: str) -> tuple[str, ...]:
    values = declared()[path].values(code)
    return code(shown_path(path)), _default(path), values, meaning_of(path), _see(page_of(path))


def _heading(section: str) -> str:
    """Without the angle brackets of an entry's name, which are no part of an anchor."""
    return shown_path(section).replace("<", "").replace(">", "")


def _link(section: str) -> str:
    heading = _heading(section)
    return f"[{heading.partition('.')[2]}](#{heading.replace('.', '')})"


def _below(sections: Sequence[str]) -> str:
    links = [_link(section) for section in sections if "." in section]
    return f": {', '.join(links)}" if links else ""


def _see(page: str) -> str:
    return f"[{page.removesuffix('.md')}](../{page})"


def _section_note(section: str) -> str:
    if section == "data.meta.components.*":
        entries: Mapping[str, Mapping[str, Any]] = get_config().data.meta.components.to_dict()
        given = [
            f'`{name}` (`source="{one["source"]}"`, `dim={one["dim"]}`, `idx={one["idx"]}`'
            + ("" if one["enabled"] else ", not enabled")
            + ")"
            for name, one in sorted(entries.items(), key=lambda item: item[1]["idx"])
        ]
        return f"Entries that are there: {', '.join(given)}. A new name makes a new entry."
    if section == "lr_scheduler.parameter_groups.*":
        return "An entry is named like a group of `optimizer.parameter_groups`; what is `None` is as in `lr_scheduler`."
    if section == "optimizer.parameter_groups.*":
        return "A new name makes a new group. Groups are tried in the order in which they are given."
    if section == "model.classification.heads.*":
        heads = [f"`{name}`: {', '.join(code(option) for option in options)}" for name, options in HEAD_OPTIONS.items()]
        text = "An entry is named like a rank; ranks without an entry have a `Linear` head. Options by type:"
        return f"{text} {'; '.join(heads)}."
    if section == "loss.grad_weighting.task.exclude_config":
        return "A parameter filter; another `type` has other keys."
    return ""
