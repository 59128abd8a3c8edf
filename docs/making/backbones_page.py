"""`reference/backbones.md`: published weights side by side with what `benchmarks.backbones` measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docs.making.markdown import MADE, code, table
from linnaeus_jax.weights import formats  # noqa: F401  # which registers them
from linnaeus_jax.weights.backbones import costs_of
from linnaeus_jax.weights.formats.base import Known, known_weights
from linnaeus_jax.weights.hub_models import HUB_MODELS, HubModel

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "backbones.json"

INTRODUCTION = """# Which backbone?

The weights that this program knows by name. `linnaeus models --pretrained` lists the same, with
the preprocessing of each; [models](../models.md#pretrained-weights) says what else can be read.

* **Without a GPU, any kind of pictures**: Lite0 with `train.tune=last:5`, see
  [a good classifier without a GPU](../without_a_gpu.md). The generated configuration chooses it.
* **More accurate, for 2.5 times the time**: Lite2 with pictures of 260 px.
* **Birds or insects, at once**: the MobileNetV2 of iNaturalist become a bundle
  [without any training](../using_a_model.md).
* **On a GPU**: mFormerV1 and its weights, see [models](../models.md#families-and-sizes), or a trunk of a hub, below.
"""

HUBS = """## Trunks of hubs

Fetched by their names, `--config.model.pretrained=NAME`; `linnaeus models --pretrained --hub` lists the same. The
licence is as the source says it; some forbid commercial use, and DINOv3's is Meta's own, which asks for consent on its
page. Parameters and GMAC are those of the trunk alone, at the size that is given; files of CLIP hold a text tower, too.
How accurate each is on your pictures this table does not tell: heads on stored features measure it, see
[models](../models.md#pretrained-weights)."""


def make() -> str:
    """The page."""
    report = json.loads(RESULTS.read_text())
    rates = {row["network"]: row["pictures_per_cpu_s"] for row in report["rows"]}
    columns = ["backbone", "parameters", "GMAC", "pictures per CPU-second", "download", "licence", "trained by and on"]
    columns += ["good for", "how to get it"]
    rows = [_row(known, rates) for known in known_weights()]
    machine = report["machine"]
    measured = (
        "GMAC: 10^9 multiply-adds of one picture of the size that is given. Pictures per CPU-second: their features, "
        f"{report['rows'][0]['batch']} at once, on one thread of {machine['cpu']}, measured by "
        f"`{report['command']}` on {report['date']} at a load of {machine['load']}; a dash is not measured."
    )
    hubs = table(HUB_COLUMNS, [_hub_row(hub) for hub in HUB_MODELS])
    return "\n\n".join([INTRODUCTION.strip(), table(columns, rows), measured, HUBS, hubs, MADE]) + "\n"


HUB_COLUMNS = ["backbone", "parameters", "GMAC", "download", "licence", "trained by and on", "good for"]


def _hub_row(hub: HubModel) -> list[str]:
    return [
        f"{code(hub.name)}, {hub.side} px",
        f"{hub.parameters:.1f} million",
        f"{hub.gmac:.2f}",
        f"{hub.megabytes:.0f} MB",
        hub.licence,
        hub.source,
        hub.purpose,
    ]


def _row(known: Known, rates: dict[str, Any]) -> list[str]:
    costs = costs_of(known)
    side = known.preprocessing.size[0]
    rate = rates.get(f"{known.type}-{known.variant}-{side}")
    name = f"package:{known.name}" if known.package else known.name
    return [
        f"{code(name)}, {side} px",
        f"{costs['parameters'] / 1e6:.1f} million" if costs else "–",
        f"{costs['multiply_adds'] / 1e9:.2f}" if costs else "–",
        "–" if rate is None else f"{rate:.0f}",
        f"{known.megabytes:.1f} MB",
        known.licence,
        known.source,
        known.purpose or "–",
        f"[file]({known.get})" if known.get.startswith("http") else code(known.get),
    ]
