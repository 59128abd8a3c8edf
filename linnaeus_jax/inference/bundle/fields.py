"""What the fields of bundle.json may hold: each is checked by itself before anything is made of it."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from linnaeus_jax.data.preprocessing import INTERPOLATIONS, LEAST_CROP, RESIZE_MODES, crop_conflict

#: sides of a picture, in pixels
LARGEST_SIDE = 4096
#: of values from 0 to 1, as `aug.std` has it
LEAST_DEVIATION = 1e-6
#: numbers within the settings of a model; its family knows more
LARGEST_SETTING = 1e9
#: in a bundle
MOST_RUNS = 16
#: how deep objects and lists may lie within each other
DEEPEST = 20
_WAVE = re.compile(r"elev_0+(?:\.0+)?_(?:sin|cos)")

#: whether a value is what a field needs
Check = Callable[[Any], bool]


class FieldError(ValueError):
    """A field that holds what it cannot; the message names it, its value and what it needs."""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _list_of(check: Check, length: int | None = None) -> Check:
    def is_list(value: Any) -> bool:
        return isinstance(value, list) and length in (None, len(value)) and all(map(check, value))

    return is_list


def _one_of(choices: Sequence[str]) -> tuple[str, Check]:
    return f"one of {', '.join(choices)}", lambda value: _is_text(value) and value in choices


def _is_share(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= 1


def _thresholds(value: Any) -> bool:
    return _is_object(value) and all(map(_is_share, value.values()))


def _set_thresholds(value: Any) -> bool:
    return _is_object(value) and all(_is_share(p) or (p and _list_of(_is_share)(p)) for p in value.values())


def _groups(value: Any) -> bool:
    return _list_of(_is_count)(value) and value[:1] in ([], [0]) and sorted(set(value)) == value


def _novelty(value: Any) -> bool:
    if not _is_object(value) or not all(map(_is_object, value.values())):
        return False
    whole = set(value) == {"weights", "outside", "new"} and set(NOVELTY_WEIGHTS[:1]) <= set(value["weights"])
    numbers = all(map(_is_number, itertools.chain(*(each.values() for each in value.values()))))
    return not value or (whole and numbers and set(value["weights"]) <= set(NOVELTY_WEIGHTS))


def _counts(value: Any) -> bool:
    return _is_object(value) and all(map(_list_of(_is_count), value.values()))


def _temperatures(value: Any) -> bool:
    return _is_object(value) and all(_is_number(t) and 1e-3 <= t <= 1e3 for t in value.values())


#: of `inference.novelty`: the constant, and one for each of its inputs; those of earlier versions may be missing
NOVELTY_WEIGHTS = ("constant", "log_probability", "log_distance", "energy")

#: field -> what it needs, whether a value is that; those of `_OPTIONAL` may be missing
_FIELDS: dict[str, tuple[str, Check]] = {
    "facts": ("an object", _is_object),
    "plugins": ("a list of names", _list_of(_is_text)),
    "model": ("an object", _is_object),
    "model.type": ("the name of a model family", _is_text),
    "model.variant": ("the name of a size", _is_text),
    "image": ("an object", _is_object),
    "image.size": (
        f"two equal integers from 1 to {LARGEST_SIDE}",
        lambda value: _list_of(_is_count, 2)(value) and value[0] == value[1] and 1 <= value[0] <= LARGEST_SIDE,
    ),
    "image.resize_mode": _one_of(RESIZE_MODES),
    "image.interpolation": _one_of(INTERPOLATIONS),
    "image.crop_fraction": (
        f"a number from {LEAST_CROP} to 1",
        lambda value: _is_number(value) and LEAST_CROP <= value <= 1,
    ),
    "image.reduced_decode": ("true or false", _is_flag),
    "image.mean": ("three numbers from 0 to 1", _list_of(lambda value: _is_number(value) and 0 <= value <= 1, 3)),
    "image.std": (
        "three numbers above 0, at most 1",
        _list_of(lambda value: _is_number(value) and LEAST_DEVIATION <= value <= 1, 3),
    ),
    "metadata": ("a list of objects with name and columns", _list_of(_is_object)),
    "date_is_midnight": ("true or false", _is_flag),
    "ranks": ("a list of ranks", _list_of(_is_text)),
    "runs": (f"a number of runs from 2 to {MOST_RUNS}", lambda value: _is_count(value) and 2 <= value <= MOST_RUNS),
    "calibration": ("an object", _is_object),
    "calibration.ranks": ("a temperature from 0.001 to 1000 for each rank", _temperatures),
    "calibration.paths": ("a temperature from 0.001 to 1000 for each rank", _temperatures),
    "calibration.rows": ("a number of rows", _is_count),
    "calibration.coverage": ("a probability for each level of coverage", _thresholds),
    "calibration.coverage_rows": ("a number of rows", _is_count),
    "calibration.path_counts": ("numbers of rows, a list for each rank", _counts),
    "calibration.sets": ("a share, or a list of shares, for each level of coverage", _set_thresholds),
    "calibration.set_rows": ("a number of rows", _is_count),
    "calibration.set_groups": ("numbers of rows that rise from 0", _groups),
    "calibration.dependence": ("a number from 0 to 1", _is_share),
    "calibration.dependence_groups": ("a number of occurrences", _is_count),
    "calibration.novelty": ("weights and thresholds, an object of numbers each", _novelty),
    "calibration.novelty_rows": ("a number of rows", _is_count),
    "facts.title": ("a text", _is_text),
    "facts.step": ("a number of updates", _is_count),
    "facts.steps": ("a list of numbers of updates", _list_of(_is_count)),
    "facts.weights": ("a text", _is_text),
    "facts.licence": ("a text", _is_text),
    "facts.initial weights": ("a text", _is_text),
    "facts.taxonomy": ("a text", _is_text),
    "facts.measured": ("an object", _is_object),
    "facts.names": ("a text", _is_text),
    "facts.boxes": ("an object", _is_object),
    "facts.added": ("an object", _is_object),
}
_OPTIONAL = (
    "facts.",
    "image.crop_fraction",
    "plugins",
    "date_is_midnight",
    "ranks",
    "runs",
    "calibration.rows",
    "calibration.coverage",
    "calibration.path_counts",
    "calibration.set",
    "calibration.dependence",
    "calibration.novelty",
)
#: settings of models that are lists of widths
_WIDTHS = ("dims", "embed_dims", "out_channels", "num_heads")
#: sections without other fields
_CLOSED = ("image", "calibration")


def check_fields(about: Mapping[str, Any]) -> None:
    """Raises FieldError for the first field of a bundle.json that cannot be used, whatever its digest says."""
    for path, value in leaves(about, "", DEEPEST):
        if isinstance(value, float) and not math.isfinite(value):
            raise FieldError(f"{path} is {value}; a finite number is needed")
        if path.startswith("model.") and isinstance(value, (int, float)) and abs(value) > LARGEST_SETTING:
            raise FieldError(f"{path} is {_short(value)}; a number of at most {LARGEST_SETTING:g} is needed")
    for path, (needed, check) in _FIELDS.items():
        section, _, key = path.rpartition(".")
        node = about[section] if section else about
        if key not in node:
            if not path.startswith(_OPTIONAL):
                raise FieldError(f"{path} is missing; {needed} is needed")
        elif not check(node[key]):
            raise FieldError(f"{path} is {_short(node[key])}; {needed} is needed")
    for section in _CLOSED:
        known = {path.rpartition(".")[2] for path in _FIELDS if path.startswith(f"{section}.")}
        if unknown := sorted(set(about[section]) - known):
            raise FieldError(f"{section} has {unknown[0][:100]!r}, which this program does not know")
    picture = about["image"]
    if conflict := crop_conflict(picture["resize_mode"], picture.get("crop_fraction", 1)):
        raise FieldError(f"image.{conflict}")
    _check_metadata(about["metadata"])


def _check_metadata(components: list[dict[str, Any]]) -> None:
    names = [component.get("name") for component in components]
    for place, component in enumerate(components):
        columns = component.get("columns")
        if not _is_text(names[place]) or names.index(names[place]) != place:
            raise FieldError(f"metadata.{place}.name is {_short(names[place])}; a name of its own is needed")
        if not columns or not _list_of(_is_text)(columns):
            raise FieldError(f"metadata.{place}.columns is {_short(columns)}; a list of the names of columns is needed")
        if wrong := [column for column in columns if _WAVE.fullmatch(column)]:
            raise FieldError(f"metadata.{place}.columns holds {wrong[0]!r}; a wave of more than 0 m is needed")


def check_ranks(about: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Raises FieldError where fields are not those of the ranks in the other files of the bundle.

    Args:
      sizes: task -> number of classes, finest rank first.
    """
    tasks = tuple(sizes)
    if about.get("ranks", list(tasks)) != list(tasks):
        raise FieldError(f"ranks is {_short(about['ranks'])}; {list(tasks)} is needed, as in the other files")
    for kind in ("ranks", "paths"):
        if set(about["calibration"][kind]) != set(tasks):
            raise FieldError(
                f"calibration.{kind} is {_short(about['calibration'][kind])}; a temperature for each of "
                f"{', '.join(tasks)} is needed"
            )
    counts, groups = about["calibration"].get("path_counts", {}), about["calibration"].get("set_groups", [])
    shares = about["calibration"].get("sets", {}).values()
    if any(len(p) != len(groups) if isinstance(p, list) else groups for p in shares) or (groups and not counts):
        raise FieldError(
            "calibration.sets does not fit set_groups; a share for each group, and path_counts, are needed"
        )
    if counts and {task: len(each) for task, each in counts.items()} != dict(sizes):
        raise FieldError(
            "calibration.path_counts does not fit the classes; a number of rows for each of "
            + ", ".join(f"{count} classes of {task}" for task, count in sizes.items())
            + " is needed"
        )


def check_sizes(model: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Raises FieldError where the model has more layers than its file of weights has arrays, or wider ones than any of
    them: to find out by building it could take all memory, or for ever."""
    widest = max((max(array.shape, default=1) for array in arrays.values()), default=1)
    for path, value in leaves(model, "model", DEEPEST):
        key = path.split(".")[-2] if path[-1:].isdigit() else ""
        most = {"depths": len(arrays)}.get(key, widest if key in _WIDTHS else LARGEST_SETTING)
        if isinstance(value, (int, float)) and value > most:
            raise FieldError(
                f"{path} is {_short(value)}, but the weights are {len(arrays)} arrays of at most {widest} rows "
                "or columns"
            )


def leaves(value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    """(path, value) of everything that is no object and no list.

    Raises:
      FieldError: it is more than `depth` deep.
    """
    if not isinstance(value, (dict, list)):
        yield path, value
        return
    if not depth:
        raise FieldError(f"{path[:100]} is nested more than {DEEPEST} deep")
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in items:
        yield from leaves(each, f"{path}.{str(key)[:100]}" if path else str(key)[:100], depth - 1)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
