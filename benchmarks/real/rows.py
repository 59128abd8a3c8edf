"""The rows of the tables: what is trained, from which weights, with which settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Trunk:
    """Published weights.

    Attributes:
      title: as tables have it.
      weights: `model.pretrained`; {weights} stands for --weights.
      settings: of the model.
      size: side of the pictures in pixels.
      seconds: CPU-seconds of the forward pass of one picture, for what is said before the start.
    """

    title: str
    weights: str
    settings: Mapping[str, Any]
    size: int
    seconds: float


def _mobilenet(name: str, size: int = 224) -> Trunk:
    file = f"{{weights}}/mobilenet_v2_1.0_224_{name}quant.tflite"
    title = {"": "MobileNetV2", "inat_bird_": "MobileNetV2 birds", "inat_insect_": "MobileNetV2 insects"}[name]
    if size != 224:
        title += f" at {size} px"
    return Trunk(title, file, {"type": "EfficientNet", "variant": "mobilenet_v2"}, size, 0.03 * (size / 224) ** 2)


_LITE2 = Trunk("Lite2", "package:efficientnet-lite2", {"type": "EfficientNet", "variant": "lite2"}, 260, 0.075)
TRUNKS = {
    "lite0": Trunk("Lite0", "package:efficientnet-lite0", {"type": "EfficientNet", "variant": "lite0"}, 224, 0.035),
    "lite2": _LITE2,
    "mobilenet": _mobilenet(""),
    "birds": _mobilenet("inat_bird_"),
    "insects": _mobilenet("inat_insect_"),
    "insects-260": _mobilenet("inat_insect_", 260),  # beside Lite2, whose pictures all trunks of a model get
    "lite2-320": dataclasses.replace(_LITE2, title="Lite2 at 320 px", size=320, seconds=0.115),
    "insects-320": _mobilenet("inat_insect_", 320),
}


@dataclass(frozen=True)
class Row:
    """One line of a table.

    Attributes:
      title: as the table has it.
      trunks: whose features are used, one after the other; none: from nothing.
      how: "head" on stored features, "control" (logistic regression of scikit-learn on the same features), "knn" (the
        nearest training rows by the same, or by the vectors of the bundle of the row `tuned`), or
        "pictures" (the generated configuration with `settings`), or "torch" (a network of timm, see `torch_net`, or
        with a trunk its last blocks, see `torch_tuned`).
      settings: config keys that differ from the generated configuration; {task} in a key stands for every rank.
      size: of the pictures, where no trunk says it.
      minutes: about so many CPU-minutes beside the features, for 2,600 training rows; of "torch" its budget.
      hidden: share of the training rows whose finest label is hidden.
      network: of "torch", as the program that trains it calls it.
      tuned: of "knn", the row whose bundle gives the vectors.
    """

    title: str
    trunks: tuple[str, ...]
    how: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    size: int = 0
    minutes: float = 1.0
    hidden: float = 0.0
    network: str = ""
    tuned: str = ""

    @property
    def side(self) -> int:
        """Pixels of the pictures."""
        return self.size or max(TRUNKS[name].size for name in self.trunks)


#: training of heads on stored features
HEAD = {"train.tune": "head", "train.tune_views": 0, "train.epochs": 37}


def _head(trunk: str, what: str = "", **settings: Any) -> Row:
    changed = {key.replace("__", "."): value for key, value in settings.items()}
    title = f"{TRUNKS[trunk].title}, head" + (f", {what}" if what else "")
    return Row(title, (trunk,), "head", HEAD | changed)


def _pair(first: str, second: str) -> Row:
    return Row(f"{TRUNKS[first].title} and {TRUNKS[second].title}, heads", (first, second), "head", HEAD)


def _views(*trunks: str) -> Row:
    """Heads on the features of the pictures and of four augmented views of each."""
    title = " and ".join(TRUNKS[trunk].title for trunk in trunks)
    return Row(
        f"{title}, head{'s' * (len(trunks) > 1)}, 4 views", trunks, "pictures", HEAD | {"train.tune_views": 4}, 0, 15
    )


#: what comparisons of ideas have in common: heads on features of Lite0 that begin as drawn, the best of 7 checkpoints
IDEA = {
    "train.tune": "head",
    "train.tune_views": 0,
    "train.fit_heads": False,
    "train.epochs": 37,
    "schedule.validation.interval_epochs": 6,
    "schedule.checkpoint.interval_epochs": 6,
    "metrics.baselines": False,
}


def _idea(title: str, hidden: float = 0.0, **settings: Any) -> Row:
    """One change beside `idea-plain`."""
    changed = {key.replace("__", "."): value for key, value in settings.items()}
    return Row(title, ("lite0",), "head", IDEA | changed, hidden=hidden)


def _heads(kind: str) -> dict[str, Any]:
    return {"model__classification__heads__{task}__type": kind}


#: share of the finest labels that is hidden where null labels are compared
HIDDEN = 0.2

#: what comparisons of mixing and augmentation have in common: all blocks of Lite0 on small pictures
PICTURES: dict[str, Any] = {
    "train.tune": "full",
    "train.epochs": 12,
    "lr_scheduler.base_lr": 5e-3,
    "data.img_size": 96,
    "metrics.baselines": False,
}


def _pictures(title: str, **settings: Any) -> Row:
    """One change beside `idea-pictures-plain`."""
    changed = {key.replace("__", "."): value for key, value in settings.items()}
    return Row(title, ("lite0",), "pictures", PICTURES | changed, PICTURES["data.img_size"], 15)


_WEIGHTS: dict[str, Any] = {"method": ("smoothing",), "normalize": True}

IDEAS: dict[str, Row] = {
    "idea-plain": _idea("linear heads, cross entropy, static weights"),
    "idea-conditional": _idea("conditional heads", **_heads("ConditionalClassifier")),
    "idea-path": _idea("path heads", **_heads("PathSoftmax")),
    "idea-taxonomy": _idea("taxonomy smoothing", loss__taxonomy_smoothing__enabled=(True,)),
    "idea-smoothing": _idea("label smoothing", loss__task_specific__train__funcs=("LabelSmoothingCrossEntropy",)),
    "idea-class-weights": _idea(
        "class weights N / n",
        **{f"loss__grad_weighting__class_weights__{key}": value for key, value in _WEIGHTS.items()},
    ),
    "idea-balanced": _idea("classes drawn by the root of their rows", data__sampler__class_balance="sqrt"),
    "idea-dates": _idea("dates, hidden from half of the rows at first, from a tenth later", data__meta__active=True),
    "idea-dates-always": _idea("dates, never hidden", data__meta__active=True, schedule__meta_masking__enabled=False),
    "idea-hidden-left-out": _idea("rows with a hidden label left out", HIDDEN, data__partial__levels=False),
    "idea-hidden-counts": _idea("hidden labels count as a class", HIDDEN, train__phase1_mask_null_loss=False),
    "idea-hidden-never": _idea("hidden labels never count", HIDDEN, train__phase1_mask_null_loss=True),
    "idea-hidden-schedule": _idea(
        "hidden labels count more and more",
        HIDDEN,
        train__phase1_mask_null_loss=False,
        schedule__null_masking__enabled=True,
        schedule__null_masking__end_fraction=1.0,
    ),
    "idea-pictures-plain": _pictures("all blocks, augmentation as generated, static weights"),
    "idea-pictures-light": _pictures(
        "the same without jitter and erasing", aug__color_jitter=0.0, aug__random_erase__prob=0.0
    ),
    "idea-pictures-mixup": _pictures(
        "the same with mixup within the finest class", schedule__mixup__prob__enabled=True
    ),
    "idea-pictures-cutmix": _pictures(
        "the same with cutmix within the finest class",
        schedule__mixup__prob__enabled=True,
        schedule__mixup__cutmix__enabled=True,
        schedule__mixup__switch_prob=1.0,
    ),
    "idea-pictures-gradnorm": _pictures("the same with GradNorm", loss__grad_weighting__task__type="gradnorm"),
}


def _tuned(trunk: str, blocks: int, views: int, minutes: float, *, how: str = "last") -> Row:
    """`how` auto: as generated configurations train without an accelerator."""
    title = f"{TRUNKS[trunk].title}, {'fitted heads or ' if how == 'auto' else ''}last {blocks} blocks"
    settings = {"train.tune": f"{how}:{blocks}", "train.tune_views": views}
    return Row(title, (trunk,), "pictures", settings, 0, minutes)


def _whole(trunk: str) -> Row:
    """As generated configurations tune on an accelerator."""
    settings = {"train.tune": "full", "train.epochs": 20, "lr_scheduler.base_lr": 5e-3}
    return Row(f"{TRUNKS[trunk].title}, all blocks", (trunk,), "pictures", settings, 0, 300)


def _nearest(tuned: str, blocks: int) -> Row:
    """The nearest rows by the vectors of a tuned trunk, beside its heads."""
    which = f"last {blocks} blocks" if blocks else "all blocks"
    return Row(f"Lite2, {which}, nearest rows", ("lite2",), "knn", tuned=tuned)


def _with_dates(row: Row) -> Row:
    """The same with what is known of the pictures, as the generated configuration of dated pictures has it."""
    return dataclasses.replace(
        row, title=f"{row.title}, with dates", settings={**row.settings, "data.meta.active": True}
    )


def _nothing(kind: str, variant: str, size: int, minutes: float, **settings: Any) -> Row:
    changed = {key.replace("__", "."): value for key, value in settings.items()}
    model = {"model.type": kind, "model.variant": variant, "model.pretrained": "", "train.tune": "full"}
    own: dict[str, Any] = {"data.meta.active": False, "train.epochs": 20}
    if size == 64:  # of fish, as many as take the minutes of mFormerV1-tiny
        own["train.epochs"] = {"mFormerV1": 20, "mFormerV0": 8, "EfficientNet": 3}[kind]
    if variant == "tiny":  # as generated configurations have it
        own["model.weight_init"] = "fan_in"
    if size == 32:  # many small pictures
        own |= {"data.batch_size": 128, "data.batch_size_val": 500, "lr_scheduler.base_lr": 8e-3}
    title = f"{kind}-{variant} from nothing, {size} px" + (", Muon" if "optimizer.name" in changed else "")
    return Row(title, (), "pictures", model | own | changed, size, minutes)


def _torch_tuned(trunk: str, blocks: int, views: int, minutes: float) -> Row:
    """`_tuned` by PyTorch, in a number of CPU-minutes."""
    title = f"{TRUNKS[trunk].title}, last {blocks} blocks (PyTorch)"
    return Row(title, (trunk,), "torch", {}, 0, minutes, network=f"efficientnet-{trunk}:{blocks}:{views}")


def _torch(network: str, size: int, minutes: float) -> Row:
    return Row(f"timm {network} from nothing (PyTorch), {size} px", (), "torch", {}, size, minutes, network=network)


_ALONE = {name: trunk for name, trunk in TRUNKS.items() if not name.startswith("insects-")}
ROWS: dict[str, Row] = {
    **{f"head-{name}": _head(name) for name in _ALONE},
    **{
        f"control-{name}": Row(f"{trunk.title}, logistic regression (scikit-learn)", (name,), "control")
        for name, trunk in _ALONE.items()
    },
    **{f"knn-{name}": Row(f"{_ALONE[name].title}, nearest rows", (name,), "knn") for name in ("lite0", "lite2")},
    "knn-last6-lite2": _nearest("last6-lite2", 6),
    "knn-full-lite2": _nearest("full-lite2", 0),
    "head-lite2-insects": _pair("lite2", "insects-260"),
    "head-lite2-insects-dates": _with_dates(_pair("lite2", "insects-260")),
    "head-lite2-insects-320-dates": _with_dates(_pair("lite2-320", "insects-320")),
    "views4-lite2": _views("lite2"),
    "views4-lite2-insects-dates": _with_dates(_views("lite2", "insects-260")),
    "control-lite2-insects": Row(
        "Lite2 and MobileNetV2 insects at 260 px, logistic regression (scikit-learn)",
        ("lite2", "insects-260"),
        "control",
    ),
    "last5-lite0": _tuned("lite0", 5, 4, 15),
    "auto5-lite0": _tuned("lite0", 5, 4, 20, how="auto"),
    "generated-lite0": Row("Lite0, as the generated configuration is", ("lite0",), "pictures", {}, 0, 15),
    "auto6-lite2": _tuned("lite2", 6, 3, 50, how="auto"),
    "auto6-lite2-320": _tuned("lite2-320", 6, 3, 70, how="auto"),
    "last5-lite0-dates": _with_dates(_tuned("lite0", 5, 4, 15)),
    "last6-lite2": _tuned("lite2", 6, 3, 40),
    "last6-lite2-320": _tuned("lite2-320", 6, 3, 60),
    "torch-last6-lite2": _torch_tuned("lite2", 6, 1, 27.0),
    "full-lite2": _whole("lite2"),
    "full-lite2-320": _whole("lite2-320"),
    "full-lite2-dates": _with_dates(_whole("lite2")),
    **IDEAS,
    **{f"nothing-v1-tiny-{size}": _nothing("mFormerV1", "tiny", size, 10) for size in (32, 64, 96)},
    "nothing-v1-tiny-32-muon": _nothing("mFormerV1", "tiny", 32, 10, optimizer__name="muon"),
    **{f"nothing-v0-tiny-{size}": _nothing("mFormerV0", "tiny", size, 20) for size in (32, 64, 96)},
    **{f"nothing-lite0-{size}": _nothing("EfficientNet", "lite0", size, 20) for size in (32, 64, 96)},
    **{f"torch-resnet10t-{size}": _torch("resnet10t", size, minutes) for size, minutes in ((32, 10), (64, 6), (96, 4))},
}
