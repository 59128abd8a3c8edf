"""The kinds of weight files, one file each; importing this registers them, in the order in which files are tried."""

from linnaeus_jax.weights.formats import (  # noqa: I001  # their order counts
    linnaeus,
    metaformer,
    convnext,
    vit,
    stitched_convnext_ropevit,
    efficientnet,
    mobilenet_v2_tflite,
    timm_efficientnet,
)

__all__ = [
    "convnext",
    "efficientnet",
    "linnaeus",
    "metaformer",
    "mobilenet_v2_tflite",
    "stitched_convnext_ropevit",
    "timm_efficientnet",
    "vit",
]
