"""What lies beside a file of weights of a hub and says how its pictures were prepared, its licence and its classes.

Read are timm's config.json (with its `pretrained_cfg`), OpenCLIP's open_clip_config.json, and config.json with
preprocessor_config.json of transformers. Only what cannot be told from the arrays is taken from them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linnaeus_jax.config.errors import UserError, described
from linnaeus_jax.data.preprocessing import LEAST_CROP, PILLOW_FILTERS, Preprocessing

CONFIG, PREPROCESSOR, OPEN_CLIP = "config.json", "preprocessor_config.json", "open_clip_config.json"
#: the files, in the order in which they are fetched
DESCRIPTIONS = (CONFIG, PREPROCESSOR, OPEN_CLIP)
#: keys of the configuration that must be given where nothing says how pictures were prepared
ASKED = ("data.img_size", "aug.mean", "aug.std")
#: a number of Pillow -> the filter of that name here
RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
#: those of CLIP, which OpenCLIP takes where its file says nothing
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
#: side from which on ConvNeXt's processor of transformers squashes pictures instead of cutting them
SQUASHED_FROM = 384
#: largest side that is believed
MOST = 4096


@dataclass(frozen=True)
class HubSettings:
    """What descriptions beside a file say of it.

    Attributes:
      files: the descriptions, for messages.
      pictures: how they were prepared; None: not said, or in a way that this program does not have, see `reason`.
      reason: why `pictures` is None, "" where nothing is said of them.
      licence: of the weights, as the description has it; "" unknown.
      labels: names of the classes of the classifier, in order.
      architecture: name of the network at its source: of timm, or `model_type` of transformers; "" unknown.
      model: settings of the network as the source calls them: timm's `model_args`, OpenCLIP's `vision_cfg`, those of
        transformers (its `vision_config` where it has one).
      classes: number of the classifier's classes; None: not said.
    """

    files: tuple[Path, ...] = ()
    pictures: Preprocessing | None = None
    reason: str = ""
    licence: str = ""
    labels: tuple[str, ...] = ()
    architecture: str = ""
    model: Mapping[str, Any] = field(default_factory=dict)
    classes: int | None = None

    @property
    def where(self) -> str:
        """The files' names, for messages."""
        return " and ".join(map(str, self.files))


class _Unknown(Exception):
    """A way of preparing pictures that this program does not have; the message says which."""


def hub_settings(weights: str | Path) -> HubSettings:
    """What the descriptions in the directory of a file of weights say; all fields empty where there are none.

    Raises:
      UserError: one that cannot be read, or that holds a value of another form than its kind has; the message names
        file, key and value.
    """
    directory = Path(weights).parent
    found = {name: directory / name for name in DESCRIPTIONS if (directory / name).is_file()}
    trees = {name: _read(path) for name, path in found.items()}
    config = trees.get(CONFIG, {})
    if "pretrained_cfg" in config or "architecture" in config:
        return _of_timm(found[CONFIG], config)
    if "model_cfg" in trees.get(OPEN_CLIP, {}):
        return _of_open_clip(found[OPEN_CLIP], trees[OPEN_CLIP])
    if "model_type" in config or "architectures" in config or PREPROCESSOR in trees:
        return _of_transformers(found, config, trees.get(PREPROCESSOR, {}))
    return HubSettings()


def _read(path: Path) -> dict[str, Any]:
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {described(error)}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no JSON ({error}); fetch it anew, or remove it") from error
    if not isinstance(tree, dict):
        raise UserError(f"{path} holds no JSON object but a {type(tree).__name__}; fetch it anew, or remove it")
    return tree


class _Fields:
    """The values of one section of a description, each checked when it is taken; None stands for a missing one."""

    def __init__(self, path: Path, tree: Any, name: str = "") -> None:
        self.path, self.name = path, name
        self.tree: Mapping[str, Any] = self._checked("", tree, isinstance(tree, dict), "an object")

    def _checked(self, key: str, value: Any, fits: bool, form: str) -> Any:
        if not fits:
            where, shown = ".".join(filter(None, (self.name, key))), json.dumps(value)
            shown = f"{shown[:60]}..." if len(shown) > 63 else shown
            raise UserError(f"{self.path}: {where} = {shown} is not {form}; fetch it anew, or mend or remove it")
        return value

    def _value(self, key: str, default: Any) -> Any:
        value = self.tree.get(key)
        return default if value is None else value

    def section(self, key: str) -> _Fields:
        """A part of it, empty where it is missing."""
        return _Fields(self.path, self._value(key, {}), f"{self.name}.{key}".lstrip("."))

    def text(self, key: str) -> str:
        value = self._value(key, "")
        return str(self._checked(key, value, isinstance(value, str), "a text"))

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        return bool(self._checked(key, value, value in (True, False), "true or false"))

    def number(self, key: str, default: float, low: float, high: float) -> float:
        value = self._value(key, default)
        fits = _number(value) and low < value <= high
        return float(self._checked(key, value, fits, f"a number above {low:g} and at most {high:g}"))

    def count(self, key: str) -> int | None:
        value = self.tree.get(key)
        fits = value is None or (type(value) is int and 0 <= value < 1 << 31)
        found: int | None = self._checked(key, value, fits, "a number of classes")
        return found

    def channels(self, key: str, default: tuple[float, ...], *, positive: bool = False) -> tuple[float, ...]:
        """One number for each of three channels."""
        value = self._value(key, list(default))
        value = [value] * 3 if _number(value) else value
        fits = isinstance(value, list) and len(value) == 3 and all(map(_number, value))
        fits = fits and (not positive or min(value) > 0)
        form = f"three numbers{' above 0' if positive else ''}, one for each of red, green and blue"
        return tuple(float(each) for each in self._checked(key, value, fits, form))

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._value(key, [])
        fits = isinstance(value, list) and all(isinstance(each, str) for each in value)
        return tuple(self._checked(key, value, fits, "a list of texts"))

    def choice(self, key: str, default: str, choices: Mapping[str, str]) -> str:
        """What a word of the source is called here; `_Unknown` where it is a word without counterpart."""
        word = (self.text(key) or default).lower()
        if word not in choices:
            raise _Unknown(f"{self.path}: {self.name}.{key} = {word!r} is none of {', '.join(choices)}")
        return choices[word]

    def sides(self, key: str) -> dict[str, int]:
        """A size: {"side": n} of one number, else as the object has it, e.g. {"height": n, "width": n}."""
        value = self.tree.get(key)
        if value is None:
            return {}
        pairs: Any = {"side": value} if not isinstance(value, dict | list) else value
        pairs = dict(zip(("height", "width"), pairs)) if isinstance(pairs, list) and len(pairs) == 2 else pairs
        fits = isinstance(pairs, dict) and bool(pairs)
        fits = fits and all(type(side) is int and 1 <= side <= MOST for side in pairs.values())
        return dict(self._checked(key, pairs if fits else value, fits, f"a size in whole pixels from 1 to {MOST}"))


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _square(pairs: Mapping[str, int], what: str) -> int:
    """The side of a square size."""
    if len({*pairs.values()}) != 1:
        raise _Unknown(f"{what} is {' x '.join(map(str, pairs.values())) or 'not said'}, not one square size")
    return next(iter(pairs.values()))


def _made(where: str, **fields: Any) -> tuple[Preprocessing | None, str]:
    """(pictures, why not)."""
    try:
        return Preprocessing(**fields), ""
    except ValueError as error:
        return None, f"{where}: {error}"


# ---- timm


def _of_timm(path: Path, config: Mapping[str, Any]) -> HubSettings:
    fields = _Fields(path, config)
    old = "pretrained_cfg" not in config  # everything stood on the outermost level
    pretrained = fields if old else fields.section("pretrained_cfg")
    try:
        pictures, reason = _pictures_of_timm(pretrained) if pretrained.tree.get("input_size") else (None, "")
    except _Unknown as error:
        pictures, reason = None, str(error)
    pool = fields.text("global_pool")
    labels = fields.texts("label_names") or pretrained.texts("label_names") or pretrained.texts("labels")
    return HubSettings(
        (path,),
        pictures,
        reason,
        pretrained.text("license"),
        labels,
        fields.text("architecture") or pretrained.text("architecture"),
        {**({"global_pool": pool} if pool else {}), **fields.section("model_args").tree},
        fields.count("num_classes"),
    )


def _pictures_of_timm(fields: _Fields) -> tuple[Preprocessing | None, str]:
    size = fields.tree["input_size"]
    fits = isinstance(size, list) and len(size) == 3 and all(type(side) is int and 1 <= side <= MOST for side in size)
    channels, height, width = fields._checked("input_size", size, fits, "[channels, height, width]")
    if channels != 3:
        raise _Unknown(f"{fields.path}: the network takes {channels} channels instead of 3")
    side = _square({"height": height, "width": width}, f"{fields.path}: input_size")
    share = fields.number("crop_pct", 0.875, 0, 1)
    mode = fields.choice("crop_mode", "center", {"center": "center_crop", "squash": "squash"})
    if mode == "squash" and math.floor(side / share) != side:
        raise _Unknown(f"{fields.path}: crop_mode squash with crop_pct {share:g} squashes pictures and cuts them then")
    return _made(
        str(fields.path),
        size=(side, side),
        resize_mode=mode,
        interpolation=_interpolation(fields, "bilinear"),
        mean=fields.channels("mean", (0.485, 0.456, 0.406)),
        std=fields.channels("std", (0.229, 0.224, 0.225), positive=True),
        crop_fraction=share if mode == "center_crop" else 1.0,
    )


def _interpolation(fields: _Fields, default: str) -> str:
    return fields.choice("interpolation", default, {name: name for name in PILLOW_FILTERS})


# ---- OpenCLIP


def _of_open_clip(path: Path, config: Mapping[str, Any]) -> HubSettings:
    fields = _Fields(path, config)
    model = fields.section("model_cfg")
    vision = model.section("vision_cfg")
    try:
        pictures, reason = _pictures_of_open_clip(fields.section("preprocess_cfg"), vision)
    except _Unknown as error:
        pictures, reason = None, str(error)
    settings = {"quick_gelu": model.flag("quick_gelu", False), **vision.tree}
    return HubSettings((path,), pictures, reason, architecture=vision.text("timm_model_name"), model=settings)


def _pictures_of_open_clip(fields: _Fields, vision: _Fields) -> tuple[Preprocessing | None, str]:
    pairs = fields.sides("size") or vision.sides("image_size") or {"side": 224}
    side = _square(pairs, f"{fields.path}: the size of pictures")
    modes = {"shortest": "center_crop", "squash": "squash", "longest": "pad"}
    mode = fields.choice("resize_mode", "shortest", modes)
    if mode == "pad" and fields.tree.get("fill_color") not in (None, 0):
        raise _Unknown(f"{fields.path}: fill_color = {fields.tree['fill_color']!r}; borders are black here")
    return _made(
        str(fields.path),
        size=(side, side),
        resize_mode=mode,
        interpolation=_interpolation(fields, "bicubic"),
        mean=fields.channels("mean", CLIP_MEAN),
        std=fields.channels("std", CLIP_STD, positive=True),
    )


# ---- transformers


def _of_transformers(found: Mapping[str, Path], config: Mapping[str, Any], processor: Mapping[str, Any]) -> HubSettings:
    files = tuple(found[name] for name in (CONFIG, PREPROCESSOR) if name in found)
    whole = _Fields(files[0], config)
    vision = whole.section("vision_config")
    pictures, reason = None, ""
    if processor:
        try:
            pictures, reason = _pictures_of_transformers(_Fields(found[PREPROCESSOR], processor))
        except _Unknown as error:
            reason = str(error)
    labels = _labels_by_index(whole.section("id2label"))
    return HubSettings(
        files,
        pictures,
        reason,
        whole.text("license"),
        labels,
        vision.text("model_type") or whole.text("model_type"),
        {**(vision.tree or whole.tree), "architectures": whole.texts("architectures")},
        len(labels) or None,
    )


def _labels_by_index(fields: _Fields) -> tuple[str, ...]:
    """Names of {"0": name, ...}; () where they are made up, LABEL_0 and so on."""
    names = fields.tree
    fits = {*names} == {str(index) for index in range(len(names))} and all(isinstance(n, str) for n in names.values())
    fields._checked("", dict(names), fits, 'an object {"0": name, ...} without gaps')
    ordered = tuple(names[str(index)] for index in range(len(names)))
    return () if all(re.fullmatch(r"LABEL_\d+", name) for name in ordered) else ordered


def _pictures_of_transformers(fields: _Fields) -> tuple[Preprocessing | None, str]:
    kind = fields.text("image_processor_type") or fields.text("feature_extractor_type")
    mode, side, share = _resizing(fields, convnext=kind.startswith("ConvNext"))
    resample = fields.tree.get("resample")
    if type(resample) is not int or resample not in RESAMPLE:
        raise _Unknown(f"{fields.path}: resample = {resample!r} is none of {', '.join(map(str, RESAMPLE))}")
    factor = fields.number("rescale_factor", 1 / 255, 0, 1) if fields.flag("do_rescale", True) else 1.0
    offset = 1.0 if fields.flag("rescale_offset", False) and fields.flag("do_rescale", True) else 0.0
    mean: tuple[float, ...] = (0.0,) * 3
    std: tuple[float, ...] = (1.0,) * 3
    if fields.flag("do_normalize", True):
        for key in ("image_mean", "image_std"):
            if fields.tree.get(key) is None:
                raise _Unknown(f"{fields.path}: {key} is missing")
        mean, std = fields.channels("image_mean", mean), fields.channels("image_std", std, positive=True)
    scale = 255 * factor  # of values in [0, 1]
    scale = 1.0 if abs(scale - 1) < 1e-6 else scale
    return _made(
        str(fields.path),
        size=(side, side),
        resize_mode=mode,
        interpolation=RESAMPLE[resample],
        mean=tuple((value + offset) / scale for value in mean),
        std=tuple(value / scale for value in std),
        crop_fraction=share,
    )


def _resizing(fields: _Fields, *, convnext: bool) -> tuple[str, int, float]:
    """(resize mode, side, crop fraction)."""
    if not fields.flag("do_resize", True):
        raise _Unknown(f"{fields.path}: do_resize = false, so the size of pictures is not said")
    size, crop = fields.sides("size"), fields.sides("crop_size")
    cuts = fields.flag("do_center_crop", bool(crop))
    if convnext:
        side = _square({key: size[key] for key in ("shortest_edge", "side") if key in size}, f"{fields.path}: size")
        if side >= SQUASHED_FROM:
            return "squash", side, 1.0
        return "center_crop", side, fields.number("crop_pct", 224 / 256, 0, 1)
    by_edge = "shortest_edge" in size or ("side" in size and cuts)
    if {*size} - {"shortest_edge", "side", "height", "width"}:
        raise _Unknown(f"{fields.path}: size = {json.dumps(size)} is no size of a square")
    side = _square(size, f"{fields.path}: size")
    if not cuts:
        if by_edge:
            raise _Unknown(f"{fields.path}: size = {json.dumps(size)} without do_center_crop is no square")
        return "squash", side, 1.0
    cut = _square(crop, f"{fields.path}: crop_size") if crop else side
    if not by_edge and cut != side:
        raise _Unknown(f"{fields.path}: pictures of {side} x {side} pixels are cut to {cut} after they are squashed")
    if cut > side or cut < LEAST_CROP * side:
        raise _Unknown(f"{fields.path}: crop_size {cut} does not suit size {side}")
    return ("center_crop", cut, _fraction(cut, side)) if by_edge else ("squash", side, 1.0)


def _fraction(cut: int, side: int) -> float:
    """Share of the shorter side such that floor(cut / share) is `side`."""
    share = cut / side
    while math.floor(cut / share) < side:
        share = math.nextafter(share, 0)
    return share


# ---- where nothing is said


def asked(settings: HubSettings, path: Path, missing: Sequence[str] = ASKED) -> str:
    """The message about weights of which nothing says how their pictures were prepared.

    Args:
      missing: keys of the configuration that are not given.
    """
    why = settings.reason or (
        f"{settings.where} does not say how" if settings.files else f"none of {', '.join(DESCRIPTIONS)} lies beside it"
    )
    given = " ".join(f"--config.{key}={'SIDE' if key == 'data.img_size' else 'R,G,B'}" for key in missing)
    also = f", or give {given} (and data.resize_mode, data.interpolation, data.crop_fraction)" if missing else ""
    return f"how pictures were prepared for {path} is not known: {why}; put its source's description there{also}"
