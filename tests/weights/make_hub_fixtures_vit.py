"""Records small vision transformers with random weights by the programs of their sources; once, by hand:

    pip install torch==2.14.1 torchvision==0.29.1 timm==1.0.31 open_clip_torch==3.3.0 transformers==5.24.0 birder
    python -m tests.weights.make_hub_fixtures_vit

It writes tests/fixtures/hub_vit.npz, see `hub_vit.py`. Meta's own programs are not packaged: of their files the names
are theirs and timm computes, with the positions as Meta computes them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import timm
import torch
import torch.nn.functional as F
import transformers as hf
from safetensors.numpy import load_file, save_file
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer

from tests.weights.hub_vit import SIZES, drawn_array, pictures

OUT = Path(__file__).parents[1] / "fixtures" / "hub_vit.npz"
SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 3}
CLASSES = 3
Compute = Callable[[torch.Tensor, tuple[int, int]], tuple[torch.Tensor, torch.Tensor | None]]


class Case:
    """One recording; `run` gives features and, where there is a classifier, logits."""

    def __init__(self, names: dict[str, Any], run: Compute, description: Any = None, keys: Any = None) -> None:
        self.names, self.run, self.description, self.keys = names, run, description or {}, keys or {}


def shapes_of(module: Any) -> dict[str, Any]:
    return {name: tuple(array.shape) for name, array in module.state_dict().items()}


def fill(module: Any) -> None:
    """Gives every array of a module its drawn values."""
    state = {name: torch.from_numpy(drawn_array(name, array.shape)) for name, array in module.state_dict().items()}
    module.load_state_dict(state)
    module.eval()


# ---- timm


def timm_run(model: Any) -> Compute:
    def run(x: torch.Tensor, size: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = model.forward_features(x)
        return model.forward_head(tokens, pre_logits=True), model.forward_head(tokens)

    return run


def timm_case(kind: Any, description: Any = None, keys: Any = None, prefix: str = "", **options: Any) -> Case:
    model = kind(**{**SMALL, "dynamic_img_size": True, **options})
    names = {f"{prefix}{name}": shape for name, shape in shapes_of(model).items()}
    model.load_state_dict({n: torch.from_numpy(drawn_array(f"{prefix}{n}", s)) for n, s in shapes_of(model).items()})
    model.eval()
    args = {"num_heads": options.get("num_heads", 4)}
    about = {"architecture": "vit_test", "global_pool": options.get("global_pool", ""), "model_args": args}
    if act := options.get("act_layer"):
        args["act_layer"] = act if isinstance(act, str) else act.__name__.lower()
    return Case(names, timm_run(model), {"config.json": {**about, **(description or {})}}, keys)


DINOV3: dict[str, Any] = {
    "use_rot_pos_emb": True,
    "use_abs_pos_emb": False,
    "rope_type": "dinov3",
    "rope_temperature": 100,
    "rope_rotate_half": True,
    "init_values": 1e-5,
    "num_reg_tokens": 4,
    "use_fc_norm": False,
    "norm_layer": lambda dim, **kwargs: timm.layers.LayerNorm(dim, eps=1e-5, **kwargs),
}


def timm_cases() -> Iterator[tuple[str, Case]]:
    clip_norm = {"norm_layer": DINOV3["norm_layer"], "pre_norm": True}
    vit = VisionTransformer
    yield "timm_augreg", timm_case(vit)
    yield "timm_no_description", timm_case(vit, keys={"vit.num_heads": 4})
    yield "timm_avg_fc_norm", timm_case(vit, global_pool="avg", num_heads=2)
    yield "timm_avg_norm_before", timm_case(vit, global_pool="avg", fc_norm=False)
    yield "timm_no_qkv_bias", timm_case(vit, qkv_bias=False, depth=3)
    yield "timm_no_class_token", timm_case(vit, class_token=False, global_pool="avg")
    yield "timm_deit3", timm_case(vit, init_values=1e-6, no_embed_class=True)
    yield "timm_registers_placed", timm_case(vit, reg_tokens=3)
    yield "timm_dinov2_reg", timm_case(vit, reg_tokens=4, no_embed_class=True, init_values=1e-5)
    yield "timm_clip_quick", timm_case(vit, act_layer="quick_gelu", **clip_norm)
    yield "timm_clip", timm_case(vit, **clip_norm)
    yield "timm_siglip", timm_case(vit, class_token=False, global_pool="map", act_layer="gelu_tanh")
    yield "timm_siglip_open_clip", timm_case(vit, class_token=False, global_pool="map", prefix="visual.trunk.")
    packed = {"mlp_layer": timm.layers.SwiGLUPacked, "act_layer": torch.nn.SiLU, "mlp_ratio": 2.66667 * 2}
    yield "timm_dinov2_swiglu", timm_case(vit, init_values=1e-5, **packed)
    yield "timm_no_final_norm", timm_case(vit, final_norm=False, mlp_ratio=3.0)
    yield "timm_patch4", timm_case(vit, patch_size=4, embed_dim=48, num_heads=3)
    yield "timm_dinov3", timm_case(Eva, qkv_bias=False, global_pool="avg", **DINOV3)
    yield "timm_dinov3_token", timm_case(Eva, qkv_bias=False, global_pool="token", **DINOV3)
    yield "timm_dinov3_qkvb", timm_case(Eva, global_pool="avg", **DINOV3)
    yield "timm_dinov3_swiglu", timm_case(Eva, qkv_bias=False, swiglu_mlp=True, swiglu_align_to=8, **DINOV3)


EVA02: dict[str, Any] = {"swiglu_mlp": True, "use_rot_pos_emb": True, "ref_feat_shape": (16, 16), "mlp_ratio": 8 / 3}


def eva_cases() -> Iterator[tuple[str, Case]]:
    """With the options that timm gives to the architectures that are named."""
    apart: dict[str, Any] = {"qkv_fused": False, "scale_mlp": True}
    about = {"architecture": "eva02_tiny_patch14_224"}
    yield "timm_eva02_tiny", timm_case(Eva, about, **EVA02)
    about = {"architecture": "eva02_base_patch14_448"}
    yield "timm_eva02_base", timm_case(Eva, about, **EVA02, **apart)
    about = {"architecture": "eva02_base_patch16_clip_224"}
    clip: dict[str, Any] = {"scale_attn_inner": True, "global_pool": "token"}
    yield "timm_eva02_clip", timm_case(Eva, about, prefix="visual.trunk.", **EVA02, **apart, **clip)
    args = {"num_heads": 4, "ref_feat_shape": [4, 4]}
    yield "timm_eva02_grid", timm_case(Eva, {"model_args": args}, **{**EVA02, "ref_feat_shape": (4, 4)})
    yield "timm_eva", timm_case(Eva, {"architecture": "eva_giant_patch14_224"}, mlp_ratio=4.3637)
    gap: dict[str, Any] = {"class_token": False, "num_reg_tokens": 2, "use_rot_pos_emb": True, "use_abs_pos_emb": False}
    gap |= {"ref_feat_shape": (16, 16), "init_values": 1e-5}
    yield "timm_rope_gap", timm_case(Eva, {"architecture": "vit_medium_patch16_rope_reg1_gap_256"}, **gap)
    norms: dict[str, Any] = {
        "scale_attn_norm": True,
        "scale_mlp_norm": True,
        "norm_layer": DINOV3["norm_layer"],
        "global_pool": "avg",
    }
    yield "timm_beit3", timm_case(VisionTransformer, {"architecture": "beit3_base_patch16_224"}, **norms)
    about = {"architecture": "vit_so400m_patch16_siglip_256"}
    siglip: dict[str, Any] = {"class_token": False, "global_pool": "map", "act_layer": "gelu_tanh"}
    case = timm_case(VisionTransformer, about, **siglip)
    case.description["config.json"]["model_args"].pop("act_layer")  # which timm's files do not say
    yield "timm_siglip_by_name", case


# ---- Meta's names, timm's arithmetic


def meta_case(model: Any, names: dict[str, Any], prepare: Callable[[Any, tuple[int, int]], None]) -> Case:
    module = __import__(type(model).__module__, fromlist=["checkpoint_filter_fn"])
    state = {name: torch.from_numpy(drawn_array(name, shape)) for name, shape in names.items()}
    state = module.checkpoint_filter_fn(dict(state), model)
    model.load_state_dict(state)
    model.eval()

    def run(x: torch.Tensor, size: tuple[int, int]) -> tuple[torch.Tensor, None]:
        prepare(model, size)
        return model.forward_head(model.forward_features(x), pre_logits=True), None

    return Case(names, run, keys={"vit.num_heads": 4})


def meta_cases() -> Iterator[tuple[str, Case]]:
    model = VisionTransformer(**{**SMALL, "num_classes": 0, "init_values": 1e-5, "dynamic_img_size": True})
    names = {**shapes_of(model), "mask_token": (1, 32)}
    table = torch.from_numpy(drawn_array("pos_embed", names["pos_embed"]))

    def with_offset(model: Any, size: tuple[int, int]) -> None:
        grid = size[0] // 8, size[1] // 8
        patches = table[:, 1:].reshape(1, 4, 4, -1).permute(0, 3, 1, 2)
        if grid != (4, 4):
            scale = tuple((side + 0.1) / 4 for side in grid)
            patches = F.interpolate(patches, scale_factor=scale, mode="bicubic")
        assert patches.shape[2:] == grid
        patches = patches.permute(0, 2, 3, 1).reshape(1, -1, 32)
        model.pos_embed = torch.nn.Parameter(torch.cat([table[:, :1], patches], dim=1))
        model.patch_embed.grid_size = grid

    yield "meta_dinov2", meta_case(model, names, with_offset)
    model = VisionTransformer(
        **{**SMALL, "num_classes": 0, "init_values": 1e-5, "reg_tokens": 4, "no_embed_class": True},
        dynamic_img_size=True,
    )
    names = {name: shape for name, shape in shapes_of(model).items() if name not in ("reg_token", "pos_embed")}
    names |= {"pos_embed": (1, 17, 32), "register_tokens": (1, 4, 32), "mask_token": (1, 32)}
    yield "meta_dinov2_reg", meta_case(model, names, lambda model, size: None)
    model = Eva(**{**SMALL, "num_classes": 0, "global_pool": "token", "dynamic_img_size": True, **DINOV3})
    names = {}
    for name, shape in shapes_of(model).items():
        theirs = name.replace("reg_token", "storage_tokens").replace("gamma_1", "ls1.gamma")
        theirs = theirs.replace("gamma_2", "ls2.gamma")
        if name.endswith("q_bias"):
            names |= {theirs.replace("q_bias", f"qkv.bias{mask}"): (96,) for mask in ("", "_mask")}
        elif not name.endswith("v_bias"):
            names[theirs] = shape
    names |= {"mask_token": (1, 32), "rope_embed.periods": (2,)}
    model.rope.periods.copy_(model.rope.periods.bfloat16().float())
    yield "meta_dinov3_bfloat16", meta_case(model, names, lambda model, size: None)


# ---- OpenCLIP


def clip_case(quick: bool = False, whole: bool = True, keys: Any = None, said: bool = True, **vision: Any) -> Case:
    config = {"image_size": 32, "patch_size": 8, "width": 32, "layers": 2, "head_width": 8, **vision}
    text = {"context_length": 6, "vocab_size": 10, "width": 16, "heads": 2, "layers": 1}
    model: Any = open_clip.model.CLIP(24, config, text, quick_gelu=quick)
    part = model if whole else model.visual
    fill(part)
    state = {name: array.clone() for name, array in model.state_dict().items()}

    def run(x: torch.Tensor, size: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        other: Any = open_clip.model.CLIP(24, {**config, "image_size": size}, text, quick_gelu=quick)
        resized = dict(state)
        open_clip.model.resize_pos_embed(resized, other)
        other.load_state_dict(resized)
        other.eval()
        visual, projected = other.visual, other.encode_image(x)
        visual.proj = None
        return visual(x), projected

    about = {"model_cfg": {"embed_dim": 24, "vision_cfg": config, "text_cfg": text, "quick_gelu": quick}}
    return Case(shapes_of(part), run, {"open_clip_config.json": about} if said else None, keys)


def clip_cases() -> Iterator[tuple[str, Case]]:
    yield "open_clip", clip_case()
    yield "open_clip_quick", clip_case(quick=True, layers=3)
    given = {"vit.num_heads": 4, "vit.activation": "quick_gelu"}
    yield "open_clip_tower", clip_case(quick=True, whole=False, said=False, keys=given)
    yield "open_clip_options", clip_case(ls_init_value=0.1, pool_type="avg", final_ln_after_pool=True, mlp_ratio=3.0)
    yield "open_clip_no_ln_pre", clip_case(no_ln_pre=True, head_width=16)


# ---- transformers

HIDDEN = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
MLP = {"intermediate_size": 64}


def hf_case(model: Any, run: Compute, *, in_memory: bool = False) -> Case:
    """By the names of a saved file, as hubs have them; or by those of the module."""
    config = json.loads(model.config.to_json_string())
    if in_memory:
        fill(model)
        return Case(shapes_of(model), run, {"config.json": config})
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        file = Path(directory) / "model.safetensors"
        names = {name: array.shape for name, array in load_file(file).items()}
        save_file({name: drawn_array(name, shape) for name, shape in names.items()}, file, {"format": "pt"})
        config = json.loads((Path(directory) / "config.json").read_text())
        loaded, said = type(model).from_pretrained(directory, output_loading_info=True)
        assert not said["missing_keys"], said
        model.load_state_dict(loaded.state_dict())
        model.eval()
    return Case(names, run, {"config.json": config})


def hf_cases() -> Iterator[tuple[str, Case]]:
    def pooled(x: torch.Tensor, size: tuple[int, int], **more: Any) -> tuple[torch.Tensor, None]:
        return model(pixel_values=x, **more).pooler_output, None

    def resizing(x: torch.Tensor, size: tuple[int, int]) -> tuple[torch.Tensor, None]:
        return pooled(x, size, interpolate_pos_encoding=True)

    def classified(x: torch.Tensor, size: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = model.vit(pixel_values=x, interpolate_pos_encoding=True).last_hidden_state
        return tokens[:, 0], model(pixel_values=x, interpolate_pos_encoding=True).logits

    model: Any = hf.ViTForImageClassification(hf.ViTConfig(**HIDDEN, **MLP, num_labels=CLASSES))
    yield "hf_vit", hf_case(model, classified)
    yield "hf_vit_in_memory", hf_case(model, classified, in_memory=True)
    model = hf.Dinov2Model(hf.Dinov2Config(**HIDDEN, mlp_ratio=2))
    yield "hf_dinov2", hf_case(model, pooled)
    yield "hf_dinov2_in_memory", hf_case(model, pooled, in_memory=True)
    model = hf.Dinov2Model(hf.Dinov2Config(**HIDDEN, use_swiglu_ffn=True))
    yield "hf_dinov2_swiglu", hf_case(model, pooled)
    yield "hf_dinov2_swiglu_in_memory", hf_case(model, pooled, in_memory=True)
    model = hf.Dinov2WithRegistersModel(hf.Dinov2WithRegistersConfig(**HIDDEN, num_register_tokens=3))
    yield "hf_dinov2_reg", hf_case(model, pooled)
    model = hf.DINOv3ViTModel(hf.DINOv3ViTConfig(**HIDDEN, **MLP, num_register_tokens=4))
    yield "hf_dinov3", hf_case(model, pooled)
    yield "hf_dinov3_in_memory", hf_case(model, pooled, in_memory=True)
    model = hf.DINOv3ViTModel(
        hf.DINOv3ViTConfig(**HIDDEN, **MLP, use_gated_mlp=True, hidden_act="silu", num_register_tokens=2)
    )
    yield "hf_dinov3_gated", hf_case(model, pooled)
    model = hf.CLIPVisionModel(hf.CLIPVisionConfig(**HIDDEN, **MLP))
    yield "hf_clip_vision", hf_case(model, resizing)
    model = hf.SiglipVisionModel(hf.SiglipVisionConfig(**HIDDEN, **MLP))
    yield "hf_siglip_vision", hf_case(model, resizing)
    text = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 40, **MLP}
    text |= {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, "max_position_embeddings": 6}
    vision = {**HIDDEN, **MLP, "hidden_act": "gelu"}
    model = hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=24))

    def tower(x: torch.Tensor, size: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor | None]:
        found = model.vision_model(pixel_values=x, interpolate_pos_encoding=True).pooler_output
        return found, model.visual_projection(found) if hasattr(model, "visual_projection") else None

    yield "hf_clip", hf_case(model, tower)
    model = hf.SiglipForImageClassification(hf.SiglipConfig(vision_config={**HIDDEN, **MLP}, num_labels=CLASSES))

    def averaged(x: torch.Tensor, size: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = model.vision_model(pixel_values=x, interpolate_pos_encoding=True).last_hidden_state
        return tokens.mean(1), model(pixel_values=x, interpolate_pos_encoding=True).logits

    yield "hf_siglip_classifier", hf_case(model, averaged)
    model = hf.SiglipModel(hf.SiglipConfig(text_config=text, vision_config={**HIDDEN, **MLP}))
    yield "hf_siglip", hf_case(model, tower)


# ---- Birder


def birder_cases() -> Iterator[tuple[str, Case]]:
    from birder.net.vit import ViT

    base = {"patch_size": 8, "num_layers": 2, "num_heads": 4, "hidden_dim": 32, "mlp_dim": 64, "drop_path_rate": 0.0}
    for name, options in (
        ("birder", {}),
        ("birder_reg", {"num_reg_tokens": 3, "layer_scale_init_value": 1e-5, "pos_embed_special_tokens": False}),
        ("birder_reg_placed", {"num_reg_tokens": 2}),
        ("birder_avg", {"class_token": False, "norm_after_pool": True, "qkv_bias": False}),
        ("birder_map", {"class_token": False, "attn_pool_head": True, "attn_pool_norm_eps": 1e-6}),
    ):
        model = ViT(3, CLASSES, config={**base, **options}, size=(32, 32))
        fill(model)

        def run(x: torch.Tensor, size: tuple[int, int], model: Any = model) -> tuple[torch.Tensor, torch.Tensor]:
            state = {name: array.clone() for name, array in model.state_dict().items()}
            if size != model.size:
                model.adjust_size(size)
            found = model.embedding(x), model(x)
            model.adjust_size((32, 32))
            model.load_state_dict(state)
            return found

        yield name, Case(shapes_of(model), run, keys={"vit.num_heads": 4})


def main() -> None:
    """Writes the file."""
    kept: dict[str, np.ndarray] = {}
    for cases in (timm_cases, eva_cases, meta_cases, clip_cases, hf_cases, birder_cases):
        for name, case in cases():
            if name == "timm_no_description":
                case.description = {}
            about = {"names": case.names, "description": case.description, "keys": case.keys}
            kept[f"{name}/about"] = np.array(json.dumps(about, default=list))
            for size in SIZES:
                x = torch.from_numpy(pictures(size)).permute(0, 3, 1, 2)
                with torch.no_grad():
                    found = case.run(x, size)
                key = f"{name}/{size[0]}x{size[1]}"
                kept |= {
                    f"{key}/{what}": each.numpy()
                    for what, each in zip(("features", "logits"), found)
                    if each is not None
                }
            print(name, {key: array.shape for key, array in kept.items() if key.startswith(f"{name}/32")})
    np.savez_compressed(OUT, **kept)  # type: ignore[arg-type]
    print(OUT.stat().st_size)


if __name__ == "__main__":
    main()
