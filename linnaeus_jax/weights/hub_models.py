"""Well-known trunks of hubs: what they are, their size and licence, and the name that fetches them.

A table of facts, for people to choose from; nothing is read by it, and no digest of these files is known. Sides,
licences and sizes of timm's are those of its own configurations (timm 1.0.31: `generate_default_cfgs`, 4 bytes for each
number of the network). BioCLIP and BioCLIP 2 are as their model cards say (MIT; ViT-B/16 and ViT-L/14 of OpenCLIP with
their text towers), Birder's as in its table of weights (birder 0.8.4) and its model card, the classifier of iNaturalist
2021 as in its model card (CC-BY-NC-4.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from linnaeus_jax.config.defaults import complete_open_nodes, get_config
from linnaeus_jax.config.tree import assign
from linnaeus_jax.models import ModelFamily, build_model
from linnaeus_jax.models.cost import forward_multiply_adds, parameters_by_stage


class HubModel(NamedTuple):
    """One trunk.

    Attributes:
      name: for `model.pretrained`, which fetches it.
      source: who trained it, on what.
      megabytes: size of the file.
      parameters, gmac: millions of parameters of the trunk, and 10^9 multiply-adds of a picture, as `costs_of` counts
        them, which takes some seconds of each.
      licence: of the weights, an SPDX identifier where there is one.
      side: of the pictures that it was trained on or made for, in pixels.
      type, variant: as `model.type` and `model.variant` call them.
      settings: key within the `model` section -> value that the variant does not have, as far as it counts for costs.
      purpose: what it is good for, a few words.
    """

    name: str
    source: str
    megabytes: float
    parameters: float
    gmac: float
    licence: str
    side: int
    type: str
    variant: str
    settings: Mapping[str, Any]
    purpose: str


APACHE, MIT, DINOV3_LICENCE, NOT_COMMERCIAL = "Apache-2.0", "MIT", "DINOv3 License (Meta's own)", "CC-BY-NC-4.0"
_LAION, _LVD, _WEB = "LAION-2B, pictures with texts", "LVD-142M, without labels", "LVD-1689M, without labels"
_SCALED = {"layer_scale": 1e-5}
_REGISTERS = {**_SCALED, "registers": 4, "placed_tokens": 0}
_DINOV3 = {**_REGISTERS, "positions": "", "rope": "float32", "qkv_bias": False}
_CLIP = {"pre_norm": True, "patch_bias": False}
_SIGLIP = {"class_token": False, "placed_tokens": 0, "pool": "map"}
_EVA02 = {"activation": "swiglu", "rope": "grid", "pool": "avg", "norm": "features"}
_V2 = {"convnext.use_grn": True, "convnext_stages.layer_scale_init_value": 0.0}


def _vit(
    name: str,
    source: str,
    megabytes: float,
    parameters: float,
    gmac: float,
    licence: str,
    side: int,
    variant: str,
    purpose: str,
    **fields: Any,
) -> HubModel:
    settings = {f"vit.{field}": value for field, value in fields.items()}
    return HubModel(name, source, megabytes, parameters, gmac, licence, side, "ViT", variant, settings, purpose)


def _convnext(*facts: Any, **settings: Any) -> HubModel:
    return _vit(*facts)._replace(type="ConvNeXt", settings=settings)


_FINE = "features for fine differences"
_TEXTS = "features that agree with words"
_SUPERVISED = "a plain trunk to train further"
HUB_MODELS: tuple[HubModel, ...] = (
    _vit("timm:vit_small_patch14_dinov2.lvd142m", f"Meta (DINOv2), {_LVD}", 88.2, 22.1, 46.70, APACHE, 518, "s14",
         _FINE, **_SCALED),
    _vit("timm:vit_base_patch14_dinov2.lvd142m", f"Meta (DINOv2), {_LVD}", 346.3, 86.6, 151.57, APACHE, 518, "b14",
         _FINE, **_SCALED),
    _vit("timm:vit_large_patch14_dinov2.lvd142m", f"Meta (DINOv2), {_LVD}", 1217.5, 304.4, 506.80, APACHE, 518, "l14",
         _FINE, **_SCALED),
    _vit("timm:vit_small_patch14_reg4_dinov2.lvd142m", f"Meta (DINOv2, registers), {_LVD}", 88.2, 22.1, 46.88, APACHE,
         518, "s14", _FINE, **_REGISTERS),
    _vit("timm:vit_base_patch14_reg4_dinov2.lvd142m", f"Meta (DINOv2, registers), {_LVD}", 346.3, 86.6, 152.12,
         APACHE, 518, "b14", _FINE, **_REGISTERS),
    _vit("timm:vit_large_patch14_reg4_dinov2.lvd142m", f"Meta (DINOv2, registers), {_LVD}", 1217.5, 304.4, 508.55,
         APACHE, 518, "l14", _FINE, **_REGISTERS),
    _vit("timm:vit_small_patch16_dinov3.lvd1689m", f"Meta (DINOv3), {_WEB}", 86.3, 21.6, 6.25, DINOV3_LICENCE, 256,
         "s16", _FINE, **_DINOV3),
    _vit("timm:vit_base_patch16_dinov3.lvd1689m", f"Meta (DINOv3), {_WEB}", 342.6, 85.6, 23.57, DINOV3_LICENCE, 256,
         "b16", _FINE, **_DINOV3),
    _vit("timm:vit_large_patch16_dinov3.lvd1689m", f"Meta (DINOv3), {_WEB}", 1212.3, 303.1, 82.37, DINOV3_LICENCE,
         256, "l16", _FINE, **_DINOV3),
    _convnext("timm:convnext_tiny.dinov3_lvd1689m", f"Meta (DINOv3), {_WEB}", 111.3, 27.8, 4.45, DINOV3_LICENCE, 224,
              "tiny", _FINE),
    _vit("hf:birder-project/vit_reg4_so150m_p14_ls_dino-v2-bio/vit_reg4_so150m_p14_ls_dino-v2-bio-252px.pt",
         "Birder (Bio-DINO), 31 million pictures of organisms, without labels", 534.9, 133.7, 47.30, APACHE, 252,
         "b14", "features of organisms", dim=896, depth=18, num_heads=14, hidden=2320,
         **_REGISTERS),
    _vit("hf:imageomics/bioclip", "Imageomics (BioCLIP), TreeOfLife-10M, pictures with names", 599.0, 85.8, 17.56,
         MIT, 224, "b16", "features that agree with names of organisms", **_CLIP),
    _vit("hf:imageomics/bioclip-2", "Imageomics (BioCLIP 2), TreeOfLife-200M, pictures with names", 1711.0, 303.2,
         81.01, MIT, 224, "l14", "features that agree with names of organisms", **_CLIP),
    _vit("timm:vit_large_patch14_clip_336.laion2b_ft_augreg_inat21", f"timm, {_LAION}, then iNaturalist 2021", 1259.0,
         303.5, 190.96, NOT_COMMERCIAL, 336, "l14", "answers for 10,000 species without any training", **_CLIP),
    _vit("timm:vit_base_patch16_clip_224.openai", "OpenAI (CLIP), 400 million pictures with texts", 344.8, 85.8,
         17.56, APACHE, 224, "b16", _TEXTS, **_CLIP),
    _vit("timm:vit_base_patch16_clip_224.laion2b", f"OpenCLIP, {_LAION}", 344.8, 85.8, 17.56, APACHE, 224, "b16",
         _TEXTS, **_CLIP),
    _vit("timm:vit_base_patch16_siglip_224.v2_webli", "Google (SigLIP 2), WebLI, pictures with texts", 371.5, 92.9,
         17.71, APACHE, 224, "b16", _TEXTS, **_SIGLIP),
    _vit("timm:vit_so400m_patch14_siglip_384.webli", "Google (SigLIP), WebLI, pictures with texts", 1712.9, 428.2,
         335.17, APACHE, 384, "l14", _TEXTS, dim=1152, depth=27, num_heads=16, hidden=4304, **_SIGLIP),
    _vit("timm:eva02_tiny_patch14_224.mim_in22k", "BAAI (EVA-02), ImageNet-22k, without labels", 22.0, 5.5, 1.70, MIT,
         224, "s14", "small, with attention", dim=192, num_heads=3, hidden=512, **_EVA02),
    _vit("timm:eva02_small_patch14_224.mim_in22k", "BAAI (EVA-02), ImageNet-22k, without labels", 86.5, 21.6, 6.12,
         MIT, 224, "s14", "to train further", hidden=1024, **_EVA02),
    _vit("timm:eva02_base_patch14_224.mim_in22k", "BAAI (EVA-02), ImageNet-22k, without labels", 343.0, 85.8, 23.16,
         MIT, 224, "b14", "to train further", hidden=2048, sub_norm="mlp", **_EVA02),
    _vit("timm:eva02_large_patch14_224.mim_m38m", "BAAI (EVA-02), Merged-38M, without labels", 1213.1, 303.3, 81.00,
         MIT, 224, "l14", "to train further", hidden=2730, sub_norm="mlp", **_EVA02),
    _vit("timm:vit_small_patch16_224.augreg_in21k_ft_in1k", "Google, ImageNet-21k", 88.2, 21.7, 4.60, APACHE, 224,
         "s16", _SUPERVISED),
    _vit("timm:vit_base_patch16_224.augreg2_in21k_ft_in1k", "Google and timm, ImageNet-21k", 346.3, 85.8, 17.56,
         APACHE, 224, "b16", _SUPERVISED),
    _vit("timm:deit3_small_patch16_224.fb_in22k_ft_in1k", "Meta (DeiT III), ImageNet-22k", 88.2, 21.7, 4.60, APACHE,
         224, "s16", _SUPERVISED, layer_scale=1e-6, placed_tokens=0),
    _vit("timm:deit3_base_patch16_224.fb_in22k_ft_in1k", "Meta (DeiT III), ImageNet-22k", 346.3, 85.8, 17.56, APACHE,
         224, "b16", _SUPERVISED, layer_scale=1e-6, placed_tokens=0),
    _convnext("timm:convnext_tiny.fb_in22k", "Meta (ConvNeXt), ImageNet-22k", 178.5, 27.8, 4.45, APACHE, 224, "tiny",
              _SUPERVISED),
    _convnext("timm:convnextv2_atto.fcmae_ft_in1k", "Meta (ConvNeXt V2), ImageNet", 14.8, 3.4, 0.55, NOT_COMMERCIAL,
              224, "atto", "small, without attention", **_V2),
)  # fmt: skip


def model_of(hub: HubModel, **more: Any) -> ModelFamily:
    """Its network with a single small head and no metadata; `more` are further keys within the `model` section."""
    model = complete_open_nodes(get_config()).model.unlock()
    model.type, model.variant = hub.type, hub.variant
    for key, value in {**hub.settings, **more}.items():
        assign(model, tuple(key.split(".")), value)
    return build_model(model, components=(), num_classes={"class": 2}, img_size=hub.side)


def costs_of(hub: HubModel) -> tuple[int, int]:
    """Parameters without heads, and multiply-adds of a forward pass of one picture; nothing is compiled."""

    def of(model: ModelFamily) -> tuple[int, int]:
        parts = parameters_by_stage(model)
        trunk = sum(count for part, count in parts.items() if not part.startswith("heads"))
        return trunk, forward_multiply_adds(model)

    if hub.type != "ViT":
        return of(model_of(hub))
    depth: int = model_of(hub).depth  # type: ignore[attr-defined]
    one, two = (of(model_of(hub, **{"vit.depth": blocks})) for blocks in (1, 2))  # all blocks are alike
    parameters, multiply_adds = (a + (depth - 1) * (b - a) for a, b in zip(one, two))
    return parameters, multiply_adds
