"""`reference/config.md`: every key of the configuration, its default, what it may be and what it means.

Keys, order and meanings are read from the source of `config/defaults.py` and `config/open_nodes.py`: the comment above
a key, or behind it, is its meaning.
"""

from __future__ import annotations

import ast
import inspect
import io
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from ml_collections import ConfigDict

import linnaeus_jax.data.samplers  # noqa: F401  registers its entries
from docs.making.markdown import MADE, code, sentence, table
from linnaeus_jax.checks.tables import ANY_CASE, CHOICES, MAX_FLOAT, MAX_INTEGER, NOT_EMPTY, TUPLES, WITHIN, Items
from linnaeus_jax.config import defaults, get_config, open_nodes
from linnaeus_jax.config.derived import value_of
from linnaeus_jax.learning.augmentation import ERASE_MODES
from linnaeus_jax.learning.policies import POLICY_NAMES
from linnaeus_jax.models.depthwise import DEPTHWISE_IMPLS
from linnaeus_jax.models.heads import HIERARCHY_MODES, ROUTING_STRATEGIES
from linnaeus_jax.models.hierarchy import ORPHAN_PRIORS
from linnaeus_jax.models.metaformer import MISSING_METADATA
from linnaeus_jax.models.mformer_v0 import COMPATS
from linnaeus_jax.models.rotary import ROPE_INITS, ROPE_MODES
from linnaeus_jax.models.transformer import ATTN_DROP_KINDS, ATTN_IMPLS
from linnaeus_jax.registry import HEADS, MODELS, SAMPLERS
from linnaeus_jax.schedules.alternatives import ALTERNATIVES, AlternativeSet
from linnaeus_jax.weights.settings import ATTN_SCALES, sources

#: keys whose choices are checked elsewhere than in `checks.tables`
MORE_CHOICES: dict[str, Sequence[str]] = {
    "data.sampler.type": tuple(SAMPLERS),
    "model.type": tuple(MODELS),
    "model.missing_metadata": MISSING_METADATA,
    "model.rope_stages.rope_mode": ROPE_MODES,
    "model.rope_stages.rope_init": ROPE_INITS,
    "model.compat": COMPATS,
    "model.depthwise_impl": DEPTHWISE_IMPLS,
    "model.attn_impl": ATTN_IMPLS,
    "model.attn_drop_kind": ATTN_DROP_KINDS,
    "model.classification.hierarchy_mode": HIERARCHY_MODES,
    "model.classification.heads.*.type": tuple(HEADS),
    "model.classification.heads.*.routing_strategy": ROUTING_STRATEGIES,
    "model.classification.heads.*.orphan_prior": tuple(ORPHAN_PRIORS),
    "model.pretrained_source": sources(),
    "model.pretrained_attn_scale": ATTN_SCALES,
    "aug.autoaug.policy": ("", *POLICY_NAMES),
    "aug.random_erase.mode": ERASE_MODES,
}
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

#: open node -> (what stands for the name of an entry, function that makes one)
ENTRIES = {
    "data.meta.components": ("<component>", "meta_component"),
    "lr_scheduler.parameter_groups": ("<group>", "lr_group"),
    "optimizer.parameter_groups": ("<group>", "optimizer_group"),
}
HEAD = "model.classification.heads"
UNITS = {"steps": "updates", "fraction": "share of all updates", "epochs": "epochs"}


@dataclass(frozen=True)
class Key:
    """One key: its dotted path, `*` for an entry of an open node, and the comment that says what it means."""

    path: str
    comment: str

    @property
    def section(self) -> str:
        return self.path.rpartition(".")[0]


# ---- reading the source


class _Source:
    """The comments of a module by line, and the keys of its trees."""

    def __init__(self, module: ModuleType) -> None:
        text = inspect.getsource(module)
        self.functions = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
        self.constants = {
            node.target.id: node.value
            for node in ast.parse(text).body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        }
        self.trailing: dict[int, str] = {}
        self.whole: dict[int, str] = {}  # lines with nothing but a comment
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                kind = self.whole if token.line.lstrip().startswith("#") else self.trailing
                kind[token.start[0]] = token.string.lstrip("# ").strip()

    def comment(self, first: int, last: int) -> str:
        """The comment behind the last line of a key, else the lines of comment right above its first line."""
        if last in self.trailing:
            return self.trailing[last]
        lines: list[str] = []
        line = first - 1
        while line in self.whole and not self.whole[line].startswith(("----", "+")):
            lines.insert(0, self.whole[line])
            line -= 1
        return " ".join(lines)

    def keys(self, function: str, path: str) -> Iterator[Key]:
        """The keys of the tree that a function returns."""
        returned = next(node for node in ast.walk(self.functions[function]) if isinstance(node, ast.Return))
        yield from self._of(returned.value, path)

    def _of(self, node: ast.expr | None, path: str) -> Iterator[Key]:
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ConfigDict" and node.args:
            node = node.args[0]
        assert isinstance(node, ast.Call)
        for keyword in node.keywords:
            comment = self.comment(keyword.lineno, keyword.value.end_lineno or keyword.lineno)
            if keyword.arg is None:  # **alternatives(...)
                assert isinstance(keyword.value, ast.Call)
                made = getattr(defaults, ast.unparse(keyword.value.func))(
                    *[getattr(arg, "value", float) for arg in keyword.value.args]
                )
                yield from (Key(f"{path}.{name}", comment) for name in made)
            elif _is_section(keyword.value):
                yield from self._of(keyword.value, f"{path}.{keyword.arg}")
            else:
                yield Key(f"{path}.{keyword.arg}", comment)

    def head_options(self) -> Iterator[Key]:
        """The options of the built-in heads, each once."""
        options = self.constants["HEAD_OPTIONS"]
        assert isinstance(options, ast.Dict)
        found: dict[str, str] = {}
        for one in options.values:
            assert isinstance(one, ast.Dict)
            for key, value in zip(one.keys, one.values, strict=True):
                assert isinstance(key, ast.Constant)
                comment = self.comment(key.lineno, value.end_lineno or key.lineno)
                found[key.value] = found.get(key.value) or comment
        yield from (Key(f"{HEAD}.*.{name}", comment) for name, comment in found.items())


def _is_section(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = getattr(node.func, "id", "")
    return (name == "dict" and bool(node.keywords)) or (name == "ConfigDict" and bool(node.args))


def read_keys() -> list[Key]:
    """Every key in the order of the tree, those of an entry after the keys of its open node."""
    own, entries = _Source(defaults), _Source(open_nodes)
    keys: list[Key] = []
    for section in get_config().to_dict():
        assert section in own.functions
    order = [name for name in own.functions if name in get_config()]
    for section in order:
        keys += own.keys(section, section)
    for node, (_, function) in ENTRIES.items():
        named = {f"{node}.{name}" for name in value_of(get_config(), node)} if "meta" in node else set()
        keys = [key for key in keys if key.section not in named]  # built-in entries
        keys = _after(keys, node, [*entries.keys(function, f"{node}.*")])
    head = Key(f"{HEAD}.*.type", "head of the task, whose options stand beside it")
    keys = [key for key in keys if key.path != HEAD]
    return _after(keys, "model.classification", [head, *entries.head_options()])


def _after(keys: Sequence[Key], node: str, new: Sequence[Key]) -> list[Key]:
    """`new` behind the last key of a node, or of the node before it where it has none."""
    while not (places := [i for i, key in enumerate(keys) if key.path.startswith(f"{node}.")]):
        node = node.rpartition(".")[0]
    return [*keys[: places[-1] + 1], *new, *keys[places[-1] + 1 :]]


# ---- what a key may be


def _alternatives() -> dict[str, tuple[AlternativeSet, str]]:
    """Key -> its set and unit, those of the groups included."""
    found = {}
    for alternatives in ALTERNATIVES.values():
        for unit in alternatives.keys:
            found[alternatives.path(unit)] = alternatives, unit
    group = "lr_scheduler.parameter_groups.*"
    for name in ("warmup", "decay"):
        one = replace(ALTERNATIVES[name], node=group)
        found |= {one.path(unit): (one, unit) for unit in one.keys}
    return found


SETS = _alternatives()
_TYPES = {bool: "bool", int: "int", float: "float", str: "text", tuple: "tuple", ConfigDict: "mapping"}


def default_of(path: str) -> tuple[Any, str]:
    """The default value of a key and the name of its type."""
    config = get_config()
    node, star, name = path.partition(".*.")
    if not star:
        section, _, leaf = path.rpartition(".")
        parent = value_of(config, section)
        return parent[leaf], _TYPES[parent.get_type(leaf)]
    if node == HEAD:
        options = {"type": "Linear"} | {k: v for one in open_nodes.HEAD_OPTIONS.values() for k, v in one.items()}
        return options[name], _TYPES[type(options[name])]
    entry: ConfigDict = getattr(open_nodes, ENTRIES[node][1])()
    return entry[name], _TYPES[entry.get_type(name)]


def _shown(value: Any) -> str:
    if isinstance(value, ConfigDict):
        return "{}" if not len(value) else repr(value.to_dict())
    if value == 10 * 1024**3:
        return "10737418240"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _interval(text: str) -> str:
    low, high = (part.strip() for part in text[1:-1].split(","))
    if (low, high) == ("-inf", "inf"):
        return "finite"
    if low == "-inf":
        return f"at most {high}"
    if high == "inf":
        return f"above {low}" if text[0] == "(" else f"{low} or more"
    return f"in {text}"


def _choices(names: Any) -> str:
    return ", ".join(code(str(name)) if name else '`""`' for name in names)


def _items(items: Items) -> str:
    kind = {int: "integers", float: "numbers", str: "texts", bool: "bools", tuple: "tuples"}[items.kind]
    parts = ["one per task, or one for all" if items.per_task else ""]
    if items.lengths:
        parts[0] = f"{' or '.join(map(str, items.lengths))} {kind}"
    elif not items.per_task:
        parts[0] = kind
    if items.within:
        parts.append(f"each {_interval(items.within)}")
    if items.choices:
        parts.append(f"of {_choices(items.choices)}")
    if items.optional:
        parts.append("or empty")
    return ", ".join(parts)


def values_of(path: str) -> str:
    """What a key may be, as a cell of the table."""
    value, kind = default_of(path)
    text = f"{kind} or None" if value is None else kind
    if path in SETS:
        unit = SETS[path][1]
        bounds = "in (0, 1], or 0" if unit == "fraction" else "0 or more"
        return f"{text}: {UNITS[unit]}, {bounds}"
    choices = CHOICES.get(path) or MORE_CHOICES.get(path)
    if choices is not None:
        upper = "; also in upper case" if path.startswith(ANY_CASE) else ""
        return f"{text}: {_choices(choices)}{upper}"
    if path in WITHIN:
        return f"{text}: {_interval(WITHIN[path])}"
    if path in TUPLES:
        return f"{text}: {_items(TUPLES[path])}"
    return f"{text}, not empty" if path in NOT_EMPTY else text


def meaning_of(key: Key) -> str:
    """What a key means, as a cell of the table."""
    text = sentence(key.comment)
    if key.path in SETS:
        alternatives, unit = SETS[key.path]
        others = [code(name) for other, name in alternatives.keys.items() if other != unit]
        text += f" Give this or {' or '.join(others)}."
    return text


def _default(key: Key) -> str:
    value, _ = default_of(key.path)
    text = code(_shown(value))
    if key.path in SETS and ".*." not in key.path:
        alternatives, unit = SETS[key.path]
        if alternatives.default.unit == unit:
            return f"{text}, counts as {alternatives.default.value:g}"
    return text


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
$ python -m linnaeus_jax.main --config=configs/quickstart.py --config.train.epoch=3
--config.train.epoch: unknown key; did you mean --config.train.epochs?
```

A wrong key is answered with the nearest right one, a value out of range with what it may be, all errors at once.

* Tuples are typed as `1,2` or `(1,2)`; one value serves as a tuple of one. `None` unsets a key whose type says
  "or None".
* A duration has one key for each unit: optimizer updates (`_steps`, `_interval`), a share of all updates of the run
  (`_fraction`), epochs (`_epochs`). Give one of them and leave the others `None`; `0` switches it off. Where all are
  `None`, the default counts that the table shows.
* Integers are at most {most} in size, and numbers finite and at most {largest:g}.
* `<component>`, `<group>` and `<task>` stand for names: every entry has the keys that are shown.
* Options of your own heads, losses, metrics and so on are keys, too, see [extending](../extending.md).
"""


def _entry_name(path: str) -> str:
    node = path.partition(".*")[0]
    return ENTRIES[node][0] if node in ENTRIES else "<task>"


def shown_path(path: str) -> str:
    """The path as readers see it, with a word for the name of an entry."""
    return path.replace("*", _entry_name(path))


def make() -> str:
    """The text of the page."""
    keys = read_keys()
    groups: dict[str, list[Key]] = {}
    for key in keys:
        groups.setdefault(key.section, []).append(key)
    tops: dict[str, list[str]] = {}
    for section in groups:
        tops.setdefault(section.partition(".")[0], []).append(section)
    for top, sections in tops.items():
        sections.sort(key=lambda section, top=top: section != top)
    contents = [f"* [{top}](#{top}){_below(sections)}" for top, sections in tops.items()]
    parts = [
        INTRODUCTION.format(most="10^12" if MAX_INTEGER == 10**12 else MAX_INTEGER, largest=MAX_FLOAT),
        "\n".join(contents),
    ]
    for top, sections in tops.items():
        if top not in groups:
            parts.append(f"## {top}")
        for section in sections:
            parts.append(f"{'##' if section == top else '###'} {_heading(section)}")
            parts.append(_section_note(section))
            columns = ("key", "default", "type: values", "meaning", "see")
            parts.append(table(columns, [_row(key) for key in groups[section]]))
    parts.append(MADE)
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _row(key: Key) -> tuple[str, ...]:
    path = key.path
    return code(shown_path(path)), _default(key), values_of(path), meaning_of(key), _see(page_of(path))


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
    if section == f"{HEAD}.*":
        heads = [
            f"`{name}`: {', '.join(code(option) for option in options)}"
            for name, options in open_nodes.HEAD_OPTIONS.items()
        ]
        text = "An entry is named like a rank; ranks without an entry have a `Linear` head. Options by type:"
        return f"{text} {'; '.join(heads)}."
    if section == "loss.grad_weighting.task.exclude_config":
        return "A parameter filter; another `type` has other keys."
    return ""
