"""The rows of the tables: what is trained, from which weights, with which settings."""

from __future__ import annotations

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


def _mobilenet(name: str) -> Trunk:
    file = f"{{weights}}/mobilenet_v2_1.0_224_{name}quant.tflite"
    title = {"": "MobileNetV2", "inat_bird_": "MobileNetV2 birds", "inat_insect_": "MobileNetV2 insects"}[name]
    return Trunk(title, file, {"type": "EfficientNet", "variant": "mobilenet_v2"}, 224, 0.03)


TRUNKS = {
    "lite0": Trunk("Lite0", "package:efficientnet-lite0", {"type": "EfficientNet", "variant": "lite0"}, 224, 0.035),
    "lite2": Trunk("Lite2", "package:efficientnet-lite2", {"type": "EfficientNet", "variant": "lite2"}, 260, 0.075),
    "mobilenet": _mobilenet(""),
    "birds": _mobilenet("inat_bird_"),
    "insects": _mobilenet("inat_insect_"),
}


@dataclass(frozen=True)
class Row:
    """One line of a table.

    Attributes:
      title: as the table has it.
      trunks: whose features are used, one after the other; none: from nothing.
      how: "head" on stored features, "control" (logistic regression of scikit-learn on the same features), or
        "pictures" (the generated configuration with `settings`).
      settings: config keys that differ from the generated configuration.
      size: of the pictures, where no trunk says it.
      minutes: about so many CPU-minutes beside the features, for 2,600 training rows.
    """

    title: str
    trunks: tuple[str, ...]
    how: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    size: int = 0
    minutes: float = 1.0

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


def _tuned(trunk: str, blocks: int, minutes: float, **settings: Any) -> Row:
    changed = {key.replace("__", "."): value for key, value in settings.items()}
    title = f"{TRUNKS[trunk].title}, last {blocks} blocks"
    return Row(title, (trunk,), "pictures", {"train.tune": f"last:{blocks}", **changed}, 0, minutes)


def _nothing(kind: str, variant: str, size: int, minutes: float, **settings: Any) -> Row:
    changed = {key.replace("__", "."): value for key, value in settings.items()}
    model = {"model.type": kind, "model.variant": variant, "model.pretrained": "", "train.tune": "full"}
    own = {"data.meta.active": False, "train.epochs": 20}
    title = f"{kind}-{variant} from nothing, {size} px"
    return Row(title, (), "pictures", model | own | changed, size, minutes)


ROWS: dict[str, Row] = {
    **{f"head-{name}": _head(name) for name in TRUNKS},
    **{
        f"control-{name}": Row(f"{trunk.title}, logistic regression (scikit-learn)", (name,), "control")
        for name, trunk in TRUNKS.items()
    },
    "control-lite2-insects": Row(
        "Lite2 and MobileNetV2 insects, logistic regression (scikit-learn)", ("lite2", "insects"), "control"
    ),
    "last5-lite0": _tuned("lite0", 5, 25),
    "last6-lite2": _tuned("lite2", 6, 60),
    # one change at a time, beside head-lite0
    "head-lite0-dates": _head("lite0", "with metadata", data__meta__active=True),
    "head-lite0-views4": Row(
        "Lite0, head, 4 augmented views", ("lite0",), "pictures", HEAD | {"train.tune_views": 4}, 0, 12
    ),
    "head-lite0-gradnorm": _head("lite0", "GradNorm", loss__grad_weighting__task__type="gradnorm"),
    **{f"nothing-v1-tiny-{size}": _nothing("mFormerV1", "tiny", size, 10) for size in (64, 96)},
    **{f"nothing-v0-tiny-{size}": _nothing("mFormerV0", "tiny", size, 20) for size in (64, 96)},
    **{f"nothing-lite0-{size}": _nothing("EfficientNet", "lite0", size, 20) for size in (64, 96)},
}
