"""Documented command lines of other programs, translated: of Polli Linnaeus, and of a MetaFormer for its data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.flags import COMMAND, QUICKSTART, SWITCHES, option_name
from linnaeus_jax.config.paths import typed_command
from linnaeus_jax.config.tree import kind_of, nearest_key
from linnaeus_jax.migration import OPTIONS
from linnaeus_jax.migration.experiments import excuse_of, target_key, target_value


def replacement(argv: Sequence[str]) -> str:
    """This program's command for a documented command line of another one."""
    given, notes = _foreign_options(argv)
    words = COMMAND.split()

    def add(flag: str, value: str) -> None:
        words.append(f"--{flag}={value}")

    if "cfg" in given:
        add("config", f"configs/yaml.py:{' '.join(given['cfg'])}")
    else:
        add("config", " ".join(given.get("config", [QUICKSTART])))
    for key, value in _foreign_overrides(given.get("opts", []), notes):
        if key == "data.batch_size_per_device" and "cfg" not in given:
            add("config.data.batch_size", "None")  # the file gives this one
        add(f"config.{key}", value)
    for key, value in _foreign_data(given, notes):
        add(f"config.{key}", value)
    if "saving_path" in given:
        add("workdir", " ".join(given["saving_path"]))
    for name, values in given.items():
        if name in SWITCHES:
            words.append(f"--{name.replace('no_enable', 'no-enable')}")
        elif name.startswith("config.") or name in ("workdir", "debug", "debug_log_dir"):
            add(name, " ".join(values))
        elif name not in (*OPTIONS, "config"):
            notes.append(f"--{name} is left out: it has no translation")
    return "\n  ".join([typed_command(*words), *(f"# {note}" for note in notes)])


def _foreign_options(argv: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Values by option of a command line whose options take one value, but for --opts; and what belongs to none."""
    given, stray, name = dict[str, list[str]](), list[str](), ""
    for token in argv:
        if token.startswith("--"):
            name, _, value = token[2:].partition("=")
            name = name if name.startswith("config.") else option_name(token)
            given.setdefault(name, []).extend([value] if "=" in token else [])
        elif name == "opts" or (name and name not in SWITCHES and not given[name]):
            given[name].append(token)
        else:
            stray.append(token)
    return given, [f"{' '.join(stray)} is left out: no option before it"] if stray else []


def _foreign_overrides(opts: Sequence[str], notes: list[str]) -> Iterator[tuple[str, str]]:
    """(key of the tree, text) for the pairs of --opts."""
    for key, value in zip(opts[::2], opts[1::2], strict=False):
        target = target_key(tuple(key.split(".")))
        dotted = ".".join(target)
        try:
            kind_of(get_config(), target)
            yield dotted, target_value(target, key, value)
        except ValueError as error:
            notes.append(f"{key} is left out: {error}")
        except KeyError:
            near = nearest_key(get_config(), dotted)
            hint = f"; did you mean {near}?" if near else ""
            notes.append(f"{key} is left out: " + (excuse_of(key) or f"there is no such key{hint}"))
    if len(opts) % 2:
        notes.append(f"{opts[-1]} is left out: it has no value")


def _foreign_data(given: Mapping[str, Sequence[str]], notes: list[str]) -> Iterator[tuple[str, str]]:
    """(key, text) for pictures in a folder and annotations in one or two files; empties what the config names."""
    if not {"datadir", "metapath", "val_metapath"} & set(given):
        return
    folder = " ".join(given.get("datadir", ())) or "IMAGES"
    if "datadir" not in given:
        notes.append("IMAGES stands for the folder of your pictures")
    yield from (("data.hybrid.use_hybrid", "true"), ("data.hybrid.images_dir", folder), ("data.h5.images_path", ""))
    labels = dict[str, str]()
    for option in ("metapath", "val_metapath"):
        if option in given:
            source = Path(" ".join(given[option]))
            labels[option] = str(source.with_suffix(".h5"))
            notes.append(f"{labels[option]} stands for {source.name} as a labels file, see docs/your_data.md")
    if "metapath" not in labels:
        labels["metapath"] = "LABELS.h5"
        notes.append("LABELS.h5 stands for your labels file, see docs/your_data.md")
    if "val_metapath" not in labels:
        yield "data.h5.labels_path", labels["metapath"]  # split at start
        return
    yield "data.h5.labels_path", ""
    yield "data.h5.train_labels_path", labels["metapath"]
    yield "data.h5.val_labels_path", labels["val_metapath"]
