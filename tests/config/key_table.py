"""Every key of the configuration: another value than the default, and what that value visibly changes.

A row is compared on two sites: its `given` settings without and with the value. `see` must differ, and be `want` with
the value. Rows with the same `group` share both sites, whose `given` stands in `GROUPS`. `*` in a key stands for an
entry of an open node (`effects.ENTRIES`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np

from linnaeus_jax.config.plugins import import_plugins
from linnaeus_jax.debugging import flag_texts
from linnaeus_jax.debugging.flags import FLAGS, leaf
from linnaeus_jax.run import frozen_trunk
from tests.config.effects import Site

DIFFERENT = object()
#: key -> what will show its effect, once its feature is there
PENDING: dict[str, str] = {}


@dataclass(frozen=True)
class Row:
    value: Any
    see: Callable[[Site], Any]
    want: Any = DIFFERENT
    given: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""


def at(path: str) -> Callable[[Site], Any]:
    """Sees a dotted path of attributes, keys and indices."""

    def step(node: Any, part: str) -> Any:
        if part.lstrip("-").isdigit():
            return node[int(part)]
        return node[part] if isinstance(node, Mapping) else getattr(node, part)

    return lambda site: functools.reduce(step, path.split("."), site)


def rate(update: int, group: str = "default") -> Callable[[Site], Any]:
    return lambda site: round(site.rate(update, group), 9)


def fires(stage: str) -> Callable[[Site], Any]:
    return lambda site: site.firing(stage)


def probability(name: str, update: int) -> Callable[[Site], Any]:
    return lambda site: round(float(getattr(site.probabilities, name)(update)), 6)


def outcome(path: str) -> Callable[[Site], Any]:
    return lambda site: site.outcome(at(path))


def moved(name: str) -> Callable[[Site], Any]:
    """How an update changes a parameter of the small program."""
    return lambda site: site.moved()[name]


def shape(name: str) -> Callable[[Site], Any]:
    """Of a parameter of the network."""
    return lambda site: site.shapes()[name]


def refused(key: str) -> Callable[[Site], Any]:
    """Whether validation objects to the key."""
    return lambda site: key in site.errors


def imported(site: Site) -> list[str]:
    """The modules that a run imports as plugins."""
    with mock.patch("importlib.import_module") as importing:
        import_plugins(site.config.copy_and_resolve_references())
    return [call.args[0] for call in importing.call_args_list]


def rows_of(path: str) -> Callable[[Site], Any]:
    return lambda site: len(at(path)(site))


GROUPS: dict[str, Mapping[str, Any]] = {
    "program": {
        "loss.grad_weighting.task.type": "gradnorm",
        "loss.grad_weighting.task.gradnorm_enabled": True,
        "aug.random_resized_crop.enabled": True,
        "train.ema.enabled": True,
    },
    "run": {"metrics.track_null_vs_non_null": True},
}
TABLE: dict[str, Row] = {}


def add(prefix: str, **rows: Row) -> None:
    TABLE.update({f"{prefix}.{name}" if prefix else name: row for name, row in rows.items()})


# ---- experiment and env
add(
    "experiment",
    project=Row("moths", at("root"), "runs/moths/default/run"),
    group=Row("night", at("root"), "runs/linnaeus/night/run"),
    name=Row("first", at("root"), "runs/linnaeus/default/first"),
    log_level_main=Row("WARNING", at("run.levels.0"), "WARNING", group="run"),
    log_level_h5data=Row("ERROR", at("run.levels.1"), "ERROR", group="run"),
    log_level_validation=Row("DEBUG", at("run.levels.2"), "DEBUG", group="run"),
)
WANDB = {"experiment.wandb.enabled": True}
add(
    "experiment.wandb",
    enabled=Row(True, lambda s: s.sinks()[0], ["W&B"]),
    project=Row("moths", lambda s: s.wandb("project"), "moths", WANDB),
    entity=Row("people", lambda s: s.wandb("entity"), "people", WANDB),
    tags=Row(("a", "b"), lambda s: s.wandb("tags"), ["a", "b"], WANDB),
    notes=Row("why", lambda s: s.wandb("notes"), "why", WANDB),
    resume=Row(True, lambda s: s.wandb("resume"), "must", WANDB),
    mode=Row("offline", lambda s: s.wandb("mode"), "offline", WANDB),
)
add("experiment.tensorboard", enabled=Row(True, lambda s: s.sinks()[0], ["TensorBoard"]))
BUCKET = {"env.output.bucket.enabled": True, "env.output.bucket.remote": "b2:here"}
add(
    "env.output",
    base_dir=Row("elsewhere", at("root"), "elsewhere/linnaeus/default/run"),
)
add(
    "env.output.bucket",
    enabled=Row(True, lambda s: s.copies is not None, True, {"env.output.bucket.remote": "b2:here"}),
    remote=Row("b2:there", at("copies.remote"), "b2:there/linnaeus/default/run", BUCKET),
    executable=Row("/opt/rclone", at("copies.executable"), "/opt/rclone", BUCKET),
    timeout_seconds=Row(5, at("copies.timeout"), 5, BUCKET),
)
add(
    "env",
    plugins=Row(("colorsys",), imported, ["colorsys"]),
    compilation_cache_dir=Row(".jax_cache", lambda s: s.process.get("jax_compilation_cache_dir"), ".jax_cache"),
    keep_freed_memory=Row(False, at("process.freed"), False),
)
add("parallel", fsdp=Row(True, at("run.placement.fsdp"), True, group="run"))

# ---- data
KINDS = ("labels", "images")
TWO_FILES = {
    "data.h5.labels_path": "",
    "data.h5.images_path": "",
    **{f"data.h5.train_{kind}_path": f"HOME/data/{kind}.h5" for kind in KINDS},
    **{f"data.h5.val_{kind}_path": f"HOME/other/{kind}.h5" for kind in KINDS},
}
SPLIT_LABELS = {key: value for key, value in TWO_FILES.items() if not (value and "images" in key)}
HYBRID = {"data.h5.images_path": "", "data.hybrid.use_hybrid": True, "data.hybrid.images_dir": "HOME/photos"}
WIDE = {**HYBRID, "data.hybrid.images_dir": "HOME/wide"}
HOLES = {**HYBRID, "data.hybrid.images_dir": "HOME/holes"}
VERIFY = {
    **HOLES,
    "data.hybrid.verify_images.enabled": True,
    "data.hybrid.verify_images.max_missing_ratio": 1.0,
    "data.hybrid.verify_images.max_missing_count": 100,
}
OTHER_LABELS = "HOME/other/labels.h5"
AUTOBATCH = {"data.autobatch.enabled": True, "data.autobatch.device_memory_gb": 1.0}
add(
    "data.autobatch",
    enabled=Row(True, lambda s: s.rows_by_memory, 8, {"data.autobatch.device_memory_gb": 1.0}),
    target_memory_fraction=Row(0.45, lambda s: s.rows_by_memory, 4, AUTOBATCH),
    min_batch_size=Row(200, lambda s: s.outcome(lambda s: s.rows_by_memory), given=AUTOBATCH),
    max_batch_size=Row(6, lambda s: s.rows_by_memory, 6, AUTOBATCH),
    device_memory_gb=Row(2.0, lambda s: s.rows_by_memory, 16, AUTOBATCH),
)
add(
    "data",
    batch_size=Row(8, at("inputs.plans.steps_per_epoch.0"), 12),
    batch_size_per_device=Row(8, at("inputs.plans.steps_per_epoch.0"), 12, {"data.batch_size": None}),
    batch_size_val=Row(8, lambda s: len(s.inputs.eval_loader(s.inputs.dataset.val, s.inputs.images["val"])), 3),
    img_size=Row(64, lambda s: s.inputs.images["train"].image_shape, (64, 64, 3)),
    resize_mode=Row(
        "pad", lambda s: s.first_image().any(axis=(1, 2)).tolist(), [False] * 5 + [True] * 21 + [False] * 6, WIDE
    ),
    interpolation=Row("bicubic", lambda s: s.first_image().tolist(), given=WIDE),
    crop_fraction=Row(0.5, lambda s: s.first_image().tolist(), given={**WIDE, "data.resize_mode": "center_crop"}),
    reduced_decode=Row(False, lambda s: s.first_image().tolist(), given=WIDE),
    num_workers=Row(5, lambda s: s.reading()["threads"], 5),
    worker_processes=Row(2, at("inputs.reading.worker_processes"), 2),
    task_keys_h5=Row(
        ("taxa_L20", "taxa_L30"),
        lambda s: s.batch["label"].shape,
        (1, 16, 2),
        {"schedule.mixup.group_levels": ("taxa_L20",)},
    ),
    upward_major_check=Row(True, rows_of("dataset.train")),
    upward_major_mode=Row("no-gaps", rows_of("dataset.train"), 96, {"data.upward_major_check": True}),
    parent_conflict_limit=Row(0.001, outcome("dataset.num_classes")),
)


def _reported(text: str, site: Site) -> bool:
    return text in site.dataset.report()


add(
    "data.dataset",
    **{
        key: Row(text, functools.partial(_reported, text), True)
        for key, text in (("name", "Moths"), ("version", "v7"), ("clade", "Noctuidae"))
    },
)
add(
    "data.sampler",
    type=Row("standard", lambda s: bool((s.plan().partner[0, 0] != np.arange(16)).any()), False),
    grouped_mode=Row("strict-group", lambda s: s.plan().partner[0, 0].tolist()),
    leftovers=Row("drop", at("inputs.plans.steps_per_epoch.0"), given={"schedule.mixup.min_group_size": 8}),
    class_balance=Row("equal", lambda s: s.drawn("taxa_L20")[1:]),
    class_balance_task=Row("taxa_L30", lambda s: s.drawn("taxa_L10"), given={"data.sampler.class_balance": "equal"}),
)
add("data.partial", levels=Row(True, rows_of("dataset.train"), 96, {"data.partial.levels": False}))
add("data", hide_taxa=Row(("1000",), lambda s: 1000 in s.dataset.classes["taxa_L10"], False))
add("data.out_of_region", include=Row(False, lambda s: len(s.dataset.train) + len(s.dataset.val), 100))
add("data.meta", active=Row(False, lambda s: s.batch["meta"].shape, (1, 16, 0)))
add(
    "data.meta.components.*",
    enabled=Row(False, lambda s: s.batch["meta"].shape, (1, 16, 2)),
    source=Row("temporal", outcome("dataset.meta_dim"), 4, {"data.meta.components.*.dim": 2}),
    columns=Row(("spatial_y",), outcome("dataset.meta_dim"), 3, {"data.meta.components.*.dim": 1}),
    dim=Row(1, outcome("dataset.meta_dim"), 3, {"data.meta.components.*.columns": ("spatial_y",)}),
    idx=Row(
        7,
        lambda s: [c.name for c in s.dataset.components],
        ["TEMPORAL", "SPATIAL"],
        {"data.meta.components.TEMPORAL.idx": 5},
    ),
    allow_missing=Row(False, lambda s: s.dataset.meta_label_density["train"]["SPATIAL"], 100.0),
    oor_mask=Row(True, lambda s: int(s.dataset.train.table.meta_valid[:20, 1].sum()), 0),
)
add(
    "data.h5",
    labels_path=Row(OTHER_LABELS, lambda s: len(s.dataset.train.table), 60),
    images_path=Row("HOME/other/images.h5", outcome("inputs.images.train.image_shape")),
    train_labels_path=Row(OTHER_LABELS, rows_of("dataset.train"), 60, TWO_FILES),
    val_labels_path=Row("HOME/data/labels.h5", rows_of("dataset.val"), 120, TWO_FILES),
    train_images_path=Row("HOME/other/images.h5", outcome("inputs.images.train.image_shape"), given=TWO_FILES),
    val_images_path=Row("HOME/data/images.h5", outcome("inputs.images.val.image_shape"), given=TWO_FILES),
    train_val_split_ratio=Row(0.5, rows_of("dataset.train"), 60),
    train_val_split_seed=Row(7, lambda s: s.dataset.train.rows.tolist()),
    use_split_column=Row(
        False, rows_of("dataset.train"), 48, {f"data.h5.{kind}_path": f"HOME/given/{kind}.h5" for kind in KINDS}
    ),
)
add(
    "data.hybrid",
    use_hybrid=Row(
        True,
        lambda s: type(s.inputs.images["train"]).__name__,
        "FolderImages",
        {"data.hybrid.images_dir": "HOME/photos"},
    ),
    images_dir=Row("HOME/photos", lambda s: s.image_path("train"), "HOME/photos/image_0.jpg", HOLES),
    train_images_dir=Row(
        "HOME/photos",
        lambda s: s.image_path("train"),
        "HOME/photos/image_0.jpg",
        {**HOLES, **SPLIT_LABELS, "data.hybrid.val_images_dir": "HOME/data"},
    ),
    val_images_dir=Row(
        "HOME/photos",
        lambda s: s.image_path("val"),
        "HOME/photos/image_0.jpg",
        {**HOLES, **SPLIT_LABELS, "data.hybrid.train_images_dir": "HOME/data"},
    ),
    file_extension=Row(".png", lambda s: s.image_path("train"), "HOME/photos/image_0.jpg.png", HYBRID),
    allow_missing_images=Row(True, lambda s: s.outcome(Site.read_all), 117, HOLES),
)
add(
    "data.hybrid.verify_images",
    enabled=Row(True, lambda s: s.outcome(Site.read_all), given={**HYBRID, "data.hybrid.images_dir": "HOME/holes"}),
    max_missing_ratio=Row(
        1.0,
        outcome("inputs.dataset.filters.0.kept"),
        117,
        {**VERIFY, "data.hybrid.verify_images.max_missing_ratio": 0.0},
    ),
    max_missing_count=Row(
        100, outcome("inputs.dataset.filters.0.kept"), 117, {**VERIFY, "data.hybrid.verify_images.max_missing_count": 0}
    ),
    num_workers=Row(3, lambda s: s.verification()["num_workers"], 3, VERIFY),
    chunk_size=Row(50, lambda s: s.verification()["chunk_size"], 50, VERIFY),
    log_missing=Row(
        False,
        lambda s: s.report("assets/missing_images_report.json")["missing_indices"],
        "Logging disabled (3 found)",
        VERIFY,
    ),
    report_path=Row("{output_dir}/lost.json", lambda s: s.report("lost.json").get("missing_count"), 3, VERIFY),
)
add(
    "data.prefetch",
    mem_cache_size=Row(4096, Site.cached, 3072, HYBRID),
    max_processed_batches=Row(9, lambda s: s.reading()["buffer"], 9),
    num_io_threads=Row(3, lambda s: s.reading()["decoding"], 3, HYBRID),
)

# ---- model
VARIANT = {
    "model.convnext_stages.dims": (),
    "model.convnext_stages.depths": (),
    "model.rope_stages.depths": (),
    "model.rope_stages.num_heads": (),
}
V0 = {**VARIANT, "model.type": "mFormerV0"}
add(
    "model",
    type=Row("mFormerV9", refused("model.type"), True),
    variant=Row("md", at("model.rope_depths"), (10, 2), VARIANT),
    drop_rate=Row((0.1,), at("model.drop_rate"), (0.1, 0.1)),
    attn_drop_rate=Row((0.2, 0.3), at("model.attn_drop_rate"), (0.2, 0.3)),
    attn_drop_kind=Row("keys", at("model.attn_drop_kind"), "keys"),
    drop_path_rate=Row(0.3, at("model.drop_path_rate"), 0.3),
    label_smoothing=Row(
        0.2,
        lambda s: s.criterion().function.keywords["label_smoothing"],
        0.2,
        {"loss.task_specific.train.funcs": ("LabelSmoothingCrossEntropy",)},
    ),
    only_last_cls=Row(True, lambda s: any(name.startswith("aggregate") for name in s.shapes()), False),
    missing_metadata=Row("mask", at("model.missing_metadata"), "mask"),
    metadata_fusion=Row("late", at("model.metadata_fusion"), "late"),
    weight_init=Row("fan_in", at("model.weight_init"), "fan_in"),
    compat=Row("metafg", at("model.norms_patches"), False, V0),
    depthwise_impl=Row("shift", at("model.depthwise_impl"), "shift"),
    attn_impl=Row("xla", at("model.attn_impl"), "xla"),
    scan_layers=Row(True, at("model.scan_layers"), True),
)
add(
    "model.convnext_stages",
    depths=Row((2, 1), lambda s: "stages.0.1.norm.weight" in s.shapes(), True),
    dims=Row((8, 8, 8, 16), shape("downsample_layers.1.conv.weight"), (2, 2, 8, 8)),
    layer_scale_init_value=Row(0.1, at("model.layer_scale_init_value"), 0.1),
)
add(
    "model.rope_stages",
    depths=Row((2, 2), lambda s: "stages.3.1.norm1.weight" in s.shapes(), True),
    num_heads=Row((2, 2), shape("stages.2.0.attn.freqs"), (2, 2, 4)),
    mlp_ratio=Row((2.0, 3.0), shape("stages.3.0.mlp.fc1.weight"), (16, 48)),
    rope_mixed=Row(False, lambda s: "stages.2.0.attn.freqs" in s.shapes(), False),
    rope_theta=Row(100.0, at("model.rope_theta"), 100.0),
    rope_mode=Row("cos_only", at("model.rope_mode"), "cos_only"),
    rope_init=Row("rope_vit", at("model.rope_init"), "rope_vit"),
)
add(
    "model.conv_stages",
    embed_dims=Row((8,), shape("stage_0.3.weight"), (3, 3, 6, 8), V0),
    out_channels=Row((12, 20), shape("stage_2.0._project_conv.weight"), (1, 1, 48, 20), V0),
    depths=Row((2, 1), lambda s: "stage_1.1._bn0.weight" in s.shapes(), True, V0),
    stride_seqs=Row(((1,), (2,)), at("model.strides"), ((1,), (2,)), V0),
)
add(
    "model.attention_stages",
    dims=Row((48, 64), shape("stage_4.0.attn.proj.weight"), (64, 64), V0),
    depths=Row((1, 2), lambda s: "stage_4.1.norm1.weight" in s.shapes(), True, V0),
    num_heads=Row((2, 2), shape("stage_3.0.attn.relative_position_bias_table"), (10, 2), V0),
    mlp_ratio=Row((2.0, 3.0), shape("stage_4.0.mlp.fc1.weight"), (128, 384), V0),
    stride_seqs=Row(((1, 1), (2,)), refused("model.attention_stages.stride_seqs"), True, V0),
)
TRUNK = ("EfficientNet", "tiny", (), (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
add(
    "model",
    trunks=Row(
        (TRUNK, TRUNK),
        at("model.trunks.1.variant"),
        "tiny",
        {**VARIANT, "model.type": "Joined", "model.variant": "sources"},
    ),
)
add(
    "model.efficientnet",
    nominal_size=Row(96, at("model.nominal_size"), 96, {**VARIANT, "model.type": "EfficientNet"}),
    padding=Row("symmetric", at("model.conv_padding"), "symmetric", {**VARIANT, "model.type": "EfficientNet"}),
    norm_eps=Row(1e-4, at("model.norm_eps"), 1e-4, {**VARIANT, "model.type": "EfficientNet"}),
)
CONVNEXT = {**VARIANT, "model.type": "ConvNeXt", "model.variant": "test"}
add(
    "model.convnext",
    use_grn=Row(True, lambda s: "stages.0.0.grn.gamma" in s.shapes(), True, CONVNEXT),
    stem=Row("overlap", shape("downsample_layers.0.0.weight"), (3, 3, 3, 8), CONVNEXT),
    act=Row("silu", at("model.act"), "silu", CONVNEXT),
    kernel_sizes=Row((3,), shape("stages.0.0.dwconv.weight"), (3, 3, 1, 8), CONVNEXT),
    norm_eps=Row(1e-5, at("model.norm_eps"), 1e-5, CONVNEXT),
    head_norm_eps=Row(1e-5, at("model.head_norm_eps"), 1e-5, CONVNEXT),
    head_norm_first=Row(True, at("model.head_norm_first"), True, CONVNEXT),
    head_hidden_size=Row(16, lambda s: s.shapes().get("pre_logits.weight"), (64, 16), CONVNEXT),
)
VIT = {**VARIANT, "model.type": "ViT", "model.variant": "tiny"}
add(
    "model.vit",
    patch_size=Row(32, shape("patch_embed.proj.weight"), (32, 32, 3, 48), VIT),
    dim=Row(24, shape("patch_embed.cls_token"), (1, 1, 24), VIT),
    depth=Row(1, lambda s: "blocks.1.norm1.weight" in s.shapes(), False, VIT),
    num_heads=Row(4, at("model.num_heads"), 4, VIT),
    hidden=Row(8, shape("blocks.0.mlp.fc1.weight"), (48, 8), VIT),
    activation=Row("swiglu", shape("blocks.0.mlp.fc1.weight"), (48, 384), VIT),
    layer_scale=Row(0.1, lambda s: "blocks.0.ls1.gamma" in s.shapes(), True, VIT),
    epsilon=Row(1e-5, at("model.epsilon"), 1e-5, VIT),
    qkv_bias=Row(False, lambda s: "blocks.0.attn.qkv.bias" in s.shapes(), False, VIT),
    patch_bias=Row(False, lambda s: "patch_embed.proj.bias" in s.shapes(), False, VIT),
    class_token=Row(
        False,
        lambda s: "patch_embed.cls_token" in s.shapes(),
        False,
        {**VIT, "model.vit.pool": "avg", "model.vit.placed_tokens": 0},
    ),
    registers=Row(2, lambda s: s.shapes().get("patch_embed.reg_token"), (1, 2, 48), VIT),
    positions=Row("", lambda s: "patch_embed.pos_embed" in s.shapes(), False, VIT),
    placed_tokens=Row(0, at("model.placed_tokens"), 0, VIT),
    rope=Row("bfloat16", at("model.rope"), "bfloat16", VIT),
    rope_grid=Row(24, at("model.rope_grid"), 24, VIT),
    sub_norm=Row("mlp", lambda s: "blocks.0.mlp.norm.weight" in s.shapes(), True, VIT),
    pre_norm=Row(True, lambda s: "norm_pre.weight" in s.shapes(), True, VIT),
    pool=Row("map", lambda s: "attn_pool.latent" in s.shapes(), True, VIT),
    norm=Row("features", lambda s: "fc_norm.weight" in s.shapes(), True, VIT),
    projection=Row(5, lambda s: s.shapes().get("proj.weight"), (48, 5), VIT),
)
add(
    "model.classification",
    hierarchy_mode=Row(
        "reference_unrefined",
        lambda s: [bool(spec.parents) for spec in s.model.head_specs],
        [False, False, False],
        {"model.classification.heads.taxa_L10.type": "ConditionalClassifier"},
    ),
)
CONDITIONAL = {"model.classification.heads.taxa_L10.type": "ConditionalClassifier"}


def of_head(option: str) -> Callable[[Site], Any]:
    return lambda site: dict(site.model.head_specs[0].options)[option]


add(
    "model.classification.heads.*",
    type=Row("Deep", refused("taxa_L10.type"), True),
    use_bias=Row(False, lambda s: "head.taxa_L10.fc.bias" in s.shapes(), False),
    routing_strategy=Row("hard", of_head("routing_strategy"), "hard", CONDITIONAL),
    temperature=Row(2.0, of_head("temperature"), 2.0, CONDITIONAL),
    orphan_prior=Row("epsilon", of_head("orphan_prior"), "epsilon", CONDITIONAL),
)

# ---- train
CUT = {**VARIANT, "model.type": "EfficientNet"}
STOP = {"train.early_stop.active": True}
add(
    "train",
    epochs=Row(5, fires("CHECKPOINT"), (0, 1, 2, 3, 4)),
    seed=Row(3, lambda s: s.plan().index.tolist()),
    accumulation_steps=Row(2, lambda s: s.plan().index.shape, (3, 2, 16)),
    clip_grad=Row(0.5, lambda s: round(float(s.trained()[1].clipped_norm), 4), 0.5),
    clip_mode=Row(
        "adaptive", lambda s: s.moved()["stem.weight"], given={"optimizer.name": "sgd", "train.clip_grad": 0.01}
    ),
    compute_dtype=Row("bfloat16", Site.precision, "bfloat16"),
    matmul_precision=Row("float32", lambda s: s.process.get("jax_default_matmul_precision"), "float32"),
    deterministic=Row(True, at("process.flags"), "--xla_gpu_deterministic_ops=true"),
    auto_resume=Row(False, lambda s: s.outcome(Site.resumed)),
    tune=Row("head", lambda s: s.program.stored and s.program.stored.shape, (1, 1280), CUT),
    tune_views=Row(7, at("program.views"), 8, {**CUT, "train.tune": "head"}),
    fit_heads=Row(False, Site.fits_heads, False, {**CUT, "train.tune": "head"}),
    fit_rows=Row("train", lambda s: frozen_trunk.fits_all(s.config.train.fit_rows, s.dataset), False),
    tune_dir=Row("shared", Site.stored_file, "shared/val-0123456789abcdef.bin"),
    resume_skip_optimizer=Row(True, lambda s: s.outcome(Site.resumed), 18, {"optimizer.name": "sgd"}),
    preserve_checkpoint_schedule=Row(True, Site.planned_epochs, 3, {"train.epochs": 5}),
    skip_validation=Row(True, Site.skips_validation, True),
    phase1_mask_null_loss=Row(True, Site.losses),
    nonfinite_limit=Row(3, Site.tolerated, 3),
)
add(
    "train.gradient_checkpointing",
    enabled_normal_steps=Row(True, at("recomputes"), (True, False)),
    enabled_gradnorm_steps=Row(True, at("recomputes"), (False, True)),
)
add(
    "train.ema",
    enabled=Row(True, lambda s: s.trained()[0].ema is not None, True),
    decay=Row(0.5, lambda s: s.moved(60, averaged=True), given={"train.ema.enabled": True}),
)
add(
    "train.early_stop",
    active=Row(True, Site.stopped, (30, "max_steps"), {"train.early_stop.max_steps": 30}),
    metric=Row("val_acc1_taxa_L20", Site.stopped, None, {**STOP, "train.early_stop.patience_steps": 30}),
    patience_steps=Row(30, Site.stopped, (60, "patience"), STOP),
    patience_epochs=Row(2.0, Site.stopped, (90, "patience"), STOP),
    patience_fraction=Row(0.5, Site.stopped, (90, "patience"), STOP),
    min_delta=Row(
        0.1, lambda s: s.stopped((1.0, 0.95, 0.91)), (60, "patience"), {**STOP, "train.early_stop.patience_steps": 30}
    ),
    max_steps=Row(60, Site.stopped, (60, "max_steps"), STOP),
    max_loss=Row(1.05, Site.stopped, (60, "max_loss"), STOP),
    min_lr=Row(1e-3, Site.stopped, (60, "min_lr"), STOP),
    max_grad_norm=Row(5.0, Site.stopped, (30, "max_grad_norm"), STOP),
)

# ---- learning rate: peak 3e-3 after 2 of 90 updates
BIASES = {
    "optimizer.parameter_groups.enabled": True,
    "optimizer.parameter_groups.*.filter": {"type": "name", "patterns": ("bias",), "match_type": "endswith"},
}
SLOW = {"optimizer.parameter_groups.*.lr_multiplier": 0.1}
STEP, WSD = {"lr_scheduler.name": "step", "lr_scheduler.decay_steps": 80}, {"lr_scheduler.name": "wsd"}
NO_WARMUP = {"lr_scheduler.warmup_steps": None}
OWN = {**BIASES, "lr_scheduler.parameter_groups.enabled": True}
add(
    "lr_scheduler",
    name=Row("linear", rate(24)),
    base_lr=Row(1e-3, rate(2), 1e-3),
    reference_bs=Row(32, rate(2), 1.5e-3),
    scaling=Row("sqrt", rate(2), 1.5e-3, {"lr_scheduler.reference_bs": 64}),
    warmup_steps=Row(10, rate(10), 3e-3),
    warmup_fraction=Row(0.1, rate(9), 3e-3, NO_WARMUP),
    warmup_epochs=Row(1.0, rate(30), 3e-3, NO_WARMUP),
    warmup_lr=Row(1e-6, rate(0), 1e-6),
    min_lr=Row(1e-4, rate(90), 1e-4),
    decay_steps=Row(10, rate(12), 3e-4, {"lr_scheduler.name": "step"}),
    decay_fraction=Row(0.5, rate(47), 3e-4, {"lr_scheduler.name": "step"}),
    decay_rate=Row(0.5, rate(82), 1.5e-3, STEP),
    stable_duration_fraction=Row(0.5, rate(60), 1e-5, WSD),
    decay_duration_fraction=Row(0.2, rate(80), given=WSD),
    decay_type=Row("linear", rate(74), given=WSD),
)
add(
    "lr_scheduler.parameter_groups",
    enabled=Row(True, rate(90, "biases"), 1e-4, {**BIASES, "lr_scheduler.parameter_groups.*.min_lr": 1e-4}),
)
add(
    "lr_scheduler.parameter_groups.*",
    name=Row("linear", rate(24, "biases"), given=OWN),
    min_lr=Row(1e-4, rate(90, "biases"), 1e-4, OWN),
    warmup_lr=Row(1e-6, rate(0, "biases"), 1e-6, OWN),
    delay_steps=Row(20, rate(19, "biases"), 0.0, OWN),
    delay_fraction=Row(0.2, rate(17, "biases"), 0.0, OWN),
    delay_epochs=Row(1.0, rate(29, "biases"), 0.0, OWN),
    warmup_steps=Row(20, rate(20, "biases"), 3e-3, OWN),
    warmup_fraction=Row(0.2, rate(18, "biases"), 3e-3, OWN),
    warmup_epochs=Row(1.0, rate(30, "biases"), 3e-3, OWN),
    decay_steps=Row(10, rate(12, "biases"), 3e-4, {**OWN, **STEP}),
    decay_fraction=Row(0.5, rate(47, "biases"), 3e-4, {**OWN, **STEP}),
    decay_rate=Row(0.5, rate(82, "biases"), 1.5e-3, {**OWN, **STEP}),
)

# ---- optimizer
SGD, MUON, ADEMAMIX = {"optimizer.name": "sgd"}, {"optimizer.name": "muon"}, {"optimizer.name": "ademamix"}
add(
    "optimizer",
    name=Row("lion", Site.transformed),
    eps=Row(1.0, Site.transformed),
    betas=Row((0.5, 0.5), Site.transformed),
    momentum=Row(0.5, Site.transformed, given=SGD),
    weight_decay=Row(0.2, moved("stem.weight")),
    alpha=Row(1.0, Site.transformed, given=ADEMAMIX),
    t_alpha_beta3=Row(100, Site.transformed, given=ADEMAMIX),
    layer_decay=Row(0.5, moved("stem.weight")),
)
add(
    "optimizer.muon",
    momentum=Row(0.2, Site.transformed, given=MUON),
    nesterov=Row(False, Site.transformed, given=MUON),
    ns_steps=Row(2, Site.transformed, given=MUON),
)
add(
    "optimizer.parameter_groups",
    enabled=Row(True, moved("stem.bias"), given={**SLOW, **{key: BIASES[key] for key in BIASES if "filter" in key}}),
)
add(
    "optimizer.parameter_groups.default",
    optimizer=Row("sgd", moved("stem.weight"), given=BIASES),
    weight_decay=Row(0.3, moved("stem.weight"), given=BIASES),
    lr_multiplier=Row(0.1, rate(2), 3e-4, BIASES),
)
add(
    "optimizer.parameter_groups.*",
    filter=Row({"type": "dimension", "dimensions": (2,)}, moved("stem.weight"), given={**BIASES, **SLOW}),
    optimizer=Row("sgd", moved("stem.bias"), given=BIASES),
    weight_decay=Row(
        0.3,
        moved("stem.weight"),
        given={**BIASES, "optimizer.parameter_groups.*.filter": {"type": "dimension", "dimensions": (2,)}},
    ),
    lr_multiplier=Row(0.1, rate(2, "biases"), 3e-4, BIASES),
    frozen=Row(True, moved("stem.bias"), [0.0] * 8, BIASES),
)

# ---- loss
SMOOTHED = {"loss.taxonomy_smoothing.enabled": (True,)}


def weighted(method: str) -> dict[str, Any]:
    return {"loss.grad_weighting.class_weights.method": (method,)}


def weights(site: Site) -> list[float]:
    found = site.class_weights()
    return [1.0] if found is None else np.round(found, 5).tolist()


LABEL_SMOOTHING = ("LabelSmoothingCrossEntropy",)
add(
    "loss.task_specific",
    **{"train.funcs": Row(LABEL_SMOOTHING, Site.losses), "val.funcs": Row(LABEL_SMOOTHING, Site.val_losses)},
)
add(
    "loss.taxonomy_smoothing",
    enabled=Row((True,), Site.losses),
    alpha=Row(0.3, lambda s: round(float(s.smoothing()[1, 1]), 6), 0.7, SMOOTHED),
    beta=Row(2.0, Site.losses, given=SMOOTHED),
    fallback_to_uniform=Row(False, lambda s: s.outcome(lambda s: s.criterion().name), given=SMOOTHED),
)
add(
    "loss.grad_weighting.class_weights",
    train=Row(False, Site.losses, given=weighted("capping")),
    val=Row(True, Site.val_losses, given=weighted("capping")),
    method=Row(("smoothing",), Site.losses),
    smoothing_factor=Row((5.0,), Site.losses, given=weighted("smoothing")),
    cap=Row((2.0,), lambda s: max(weights(s)), 2.0, weighted("capping")),
    base=Row((1.1,), Site.losses, given=weighted("exponential")),
    log_base=Row((2.0,), Site.losses, given=weighted("logarithmic")),
    normalize=Row(True, Site.losses, given=weighted("smoothing")),
)
EVERY = "loss.grad_weighting.task.update_interval"
WEIGHTS = {"model.pretrained": "w.pth"}
STITCHED = {"model.pretrained_source": "stitched_convnext_ropevit"}


def weights_of(what: str, without: str = "") -> Callable[[Site], Any]:
    """A part of the weights that a run would start from, or why there are none."""
    return lambda site: site.outcome(lambda site: at(what)(site.initial_weights(without)))


add(
    "model",
    pretrained=Row("w.pth", Site.read_weights, ["w.pth"]),
    features=Row(("c", "r"), Site.read_weights, ["c", "r"]),
    pretrained_source=Row(
        "metaformer", lambda s: s.initial_weights().coverage.counts(), given=WEIGHTS | {"model.type": "mFormerV0"}
    ),
    pretrained_convnext=Row("c", Site.read_weights, ["c", "r"], {"model.pretrained_ropevit": "r"} | STITCHED),
    pretrained_ropevit=Row("r", Site.read_weights, ["c", "r"], {"model.pretrained_convnext": "c"} | STITCHED),
    pretrained_strict=Row(
        False, lambda s: str(weights_of("coverage", "norm_1.weight")(s)).startswith("error"), False, given=WEIGHTS
    ),
    pretrained_classes=Row("classes.json", weights_of("files.0.path"), given=WEIGHTS),
    pretrained_attn_scale=Row(
        "squared",
        lambda s: s.initial_weights().arrays["stages.2.0.attn.qkv.weight"][0, 0].item(),
        0.25,
        given=WEIGHTS,
    ),
)
GRADNORM = {"loss.grad_weighting.task.type": "gradnorm", "loss.grad_weighting.task.gradnorm_enabled": True}
add(
    "loss.grad_weighting.task",
    type=Row("static", Site.weights, given=GRADNORM),
    gradnorm_enabled=Row(False, Site.weights, given=GRADNORM),
    init_weights=Row((3.0, 2.0, 1.0), Site.weights, [3.0, 2.0, 1.0]),
    init_strategy=Row("class_complexity", Site.weights),
    alpha=Row(0.5, lambda s: s.weights(updates=2), given=GRADNORM),
    update_interval=Row(7, Site.gradnorm_updates, [0, 7, 14, 21, 28, 35], GRADNORM),
    gradnorm_warmup_steps=Row(11, Site.gradnorm_updates, [14, 21, 28, 35], {**GRADNORM, EVERY: 7}),
    gradnorm_rule=Row("paper", Site.weights, given=GRADNORM),
    gradnorm_kappa=Row(0.9, Site.weights, given=GRADNORM),
    gradnorm_lr=Row(0.1, Site.weights, given={**GRADNORM, "loss.grad_weighting.task.gradnorm_rule": "paper"}),
    zero_aux_info=Row(False, Site.weights, given={**GRADNORM, "schedule.meta_masking.enabled": False}),
    use_linear_heads_for_gradnorm_reforward=Row(
        False, Site.weights, given={**GRADNORM, "model.classification.heads.taxa_L10.type": "ConditionalClassifier"}
    ),
    exclude_config=Row({"type": "name", "patterns": ("head", "norm")}, Site.weights, given=GRADNORM),
)

# ---- augmentation
AUG = "program.objective.augmentation"
add(
    "aug",
    mean=Row((0.1, 0.2, 0.3), at("program.objective.preprocessing.mean"), (0.1, 0.2, 0.3), group="program"),
    std=Row((0.4, 0.5, 0.6), at("program.evaluation.preprocessing.std"), (0.4, 0.5, 0.6), group="program"),
    hflip_prob=Row(0.2, at(f"{AUG}.hflip_prob"), 0.2, group="program"),
    vflip_prob=Row(0.3, at(f"{AUG}.vflip_prob"), 0.3, group="program"),
    color_jitter=Row(0.7, at(f"{AUG}.color_jitter"), 0.7, group="program"),
)
add(
    "aug.random_resized_crop",
    enabled=Row(False, at(f"{AUG}.crop_scale"), None, {"aug.random_resized_crop.enabled": True}),
    scale=Row((0.3, 0.9), at(f"{AUG}.crop_scale"), (0.3, 0.9), group="program"),
    ratio=Row((0.5, 2.0), at(f"{AUG}.crop_ratio"), (0.5, 2.0), group="program"),
)
add(
    "aug.autoaug",
    policy=Row("randaugment", at(f"{AUG}.policy"), "randaugment", group="program"),
    num_ops=Row(3, at(f"{AUG}.num_ops"), 3, group="program"),
    magnitude=Row(4.0, at(f"{AUG}.magnitude"), 4.0, group="program"),
)
add(
    "aug.random_erase",
    prob=Row(0.6, at(f"{AUG}.erase_prob"), 0.6, group="program"),
    mode=Row("const", at(f"{AUG}.erase_mode"), "const", group="program"),
    count=Row(2, at(f"{AUG}.erase_count"), 2, group="program"),
    area_range=Row((0.1, 0.2), at(f"{AUG}.erase_area"), (0.1, 0.2), group="program"),
    aspect_ratio=Row((0.5, 2.0), at(f"{AUG}.erase_ratio"), (0.5, 2.0), group="program"),
)

# ---- schedule: 3 epochs of 30 updates
SPARSE = {
    "schedule.validation.interval_epochs": 0,
    "schedule.validation.mask_meta_interval_epochs": 0,
    "schedule.checkpoint.interval_epochs": 0,
}
PARTIAL_VALIDATION = {
    "schedule.validation.partial_mask_meta.enabled": True,
    "schedule.validation.partial_mask_meta.whitelist": (("SPATIAL",),),
}


def intervals(prefix: str, stage: str, at_end: bool, given: Mapping[str, Any]) -> dict[str, Row]:
    """Every 2 epochs; after 60 updates; after a third of the run."""
    last = (2,) if at_end else ()
    return {
        f"{prefix}interval_epochs": Row(2, fires(stage), (2,), given),
        f"{prefix}interval_steps": Row(60, fires(stage), (1, *last), given),
        f"{prefix}interval_fraction": Row(0.5, fires(stage), (1, 2), given),
    }


add(
    "schedule",
    step_trigger_mode=Row("exact", fires("VALIDATION_NORMAL"), (2,), {"schedule.validation.interval_steps": 45}),
)
add(
    "schedule.validation",
    **intervals("", "VALIDATION_NORMAL", True, {}),
    **intervals("mask_meta_", "VALIDATION_MASK_META", False, {}),
    at_end=Row(False, fires("VALIDATION_NORMAL"), (), SPARSE),
)
add(
    "schedule.validation.partial_mask_meta",
    enabled=Row(
        True,
        fires("VALIDATION_PARTIAL_MASK_META"),
        (0, 1, 2),
        {
            "schedule.validation.partial_mask_meta.whitelist": (("SPATIAL",),),
            "schedule.validation.partial_mask_meta.interval_epochs": 1,
        },
    ),
    **intervals("", "VALIDATION_PARTIAL_MASK_META", False, PARTIAL_VALIDATION),
    whitelist=Row(
        (("TEMPORAL",), ("SPATIAL",)),
        lambda s: s.phases(0),
        ("val", "val_mask_meta", "val_mask_TEMPORAL", "val_mask_SPATIAL"),
        {**PARTIAL_VALIDATION, "schedule.validation.partial_mask_meta.interval_epochs": 1},
    ),
)
add(
    "schedule.validation.final_epoch",
    exhaustive_partial_meta_validation=Row(
        True,
        fires("VALIDATION_EXHAUSTIVE"),
        (2,),
        {"schedule.validation.final_epoch.exhaustive_meta_components": ("SPATIAL",)},
    ),
    exhaustive_meta_components=Row(
        ("SPATIAL", "TEMPORAL"),
        lambda s: s.phases(2),
        ("val", "val_mask_meta", "val_mask_TEMPORAL", "val_mask_SPATIAL", "val_mask_TEMPORAL_SPATIAL"),
        {
            "schedule.validation.final_epoch.exhaustive_partial_meta_validation": True,
            "schedule.validation.final_epoch.exhaustive_meta_components": ("SPATIAL",),
        },
    ),
)
add(
    "schedule.checkpoint",
    **intervals("", "CHECKPOINT", True, {}),
    at_end=Row(False, fires("CHECKPOINT"), (), SPARSE),
    keep_top_n=Row(1, Site.kept, [10, 30]),
    keep_last_n=Row(2, Site.kept, [20, 30]),
    best_metric=Row("val/loss", at("run.epoch_end.best_metric"), "val/loss", group="run"),
)
MASK, NULL, MIX = "meta_mask", "null_mask", "mix"
RAMP = {"schedule.meta_masking.end_steps": 50}
add(
    "schedule.meta_masking",
    enabled=Row(False, probability(MASK, 0), 0.0),
    start_prob=Row(0.5, probability(MASK, 0), 0.5),
    end_prob=Row(0.2, probability(MASK, 50), 0.2, RAMP),
    end_steps=Row(10, probability(MASK, 10), 0.0),
    end_fraction=Row(0.5, probability(MASK, 45), 0.0),
)
PARTIAL = {
    "schedule.meta_masking.partial.enabled": True,
    "schedule.meta_masking.partial.whitelist": (("TEMPORAL",), ("SPATIAL",)),
}
ONLY_PARTIAL = {
    **PARTIAL,
    "schedule.meta_masking.start_prob": 0.0,
    "schedule.meta_masking.end_prob": 0.0,
    "schedule.meta_masking.partial.start_prob": 1.0,
    "schedule.meta_masking.partial.end_prob": 1.0,
}


def masked(site: Site) -> Any:
    """The metadata that the model sees."""
    return site.seen()["meta"]


add(
    "schedule.meta_masking.partial",
    enabled=Row(
        True, probability("partial_active", 20), 1.0, {"schedule.meta_masking.partial.whitelist": (("SPATIAL",),)}
    ),
    start_steps=Row(30, probability("partial_active", 20), 0.0, PARTIAL),
    start_fraction=Row(0.5, probability("partial_active", 20), 0.0, PARTIAL),
    end_steps=Row(10, probability("partial_active", 80), 0.0, PARTIAL),
    end_fraction=Row(0.5, probability("partial_active", 80), 0.0, PARTIAL),
    start_prob=Row(0.2, probability("partial_mask", 0), 0.2, PARTIAL),
    end_prob=Row(0.4, probability("partial_mask", 90), 0.4, PARTIAL),
    prob_end_steps=Row(10, probability("partial_mask", 10), 0.7, PARTIAL),
    prob_end_fraction=Row(0.1, probability("partial_mask", 9), 0.7, PARTIAL),
    weights=Row((1e-9, 1.0), masked, given=ONLY_PARTIAL),
    whitelist=Row((("SPATIAL",),), masked, given=ONLY_PARTIAL),
)
NULLS = {"schedule.null_masking.enabled": True}
add(
    "schedule.null_masking",
    enabled=Row(True, probability(NULL, 0), 0.0),
    start_prob=Row(0.5, probability(NULL, 0), 0.5, NULLS),
    end_prob=Row(0.2, probability(NULL, 20000), 0.2, NULLS),
    end_steps=Row(10, probability(NULL, 10), 1.0, NULLS),
    end_fraction=Row(0.5, probability(NULL, 45), 1.0, NULLS),
)
MIXED = {"schedule.mixup.prob.enabled": True, "schedule.mixup.prob.end_steps": 50}


def pictures(site: Site) -> Any:
    """The pictures that the model sees."""
    return site.seen()["image"]


UNENDING = {"schedule.mixup.prob.enabled": True}
BLOCKS = {"data.sampler.grouped_mode": "strict-group", "data.batch_size": 8, "schedule.mixup.mix_block": 8}
BOTH = {**MIXED, "schedule.mixup.cutmix.enabled": True}
add(
    "schedule.mixup",
    enabled=Row(False, pictures, given={**BOTH, "schedule.mixup.switch_prob": 0.0}),
    alpha=Row(0.3, pictures, given=MIXED),
    switch_prob=Row(0.0, pictures, given={**BOTH, "schedule.mixup.switch_prob": 1.0}),
    group_levels=Row(("taxa_L20",), lambda s: s.plan().index.tolist()),
    level_switch_steps=Row(
        (7,),
        at("inputs.levels.of_epoch"),
        ("taxa_L10", "taxa_L10", "taxa_L20"),
        {"schedule.mixup.group_levels": ("taxa_L10", "taxa_L20")},
    ),
    level_switch_epochs=Row(
        (1,),
        at("inputs.levels.of_epoch"),
        ("taxa_L10", "taxa_L20", "taxa_L20"),
        {"schedule.mixup.group_levels": ("taxa_L10", "taxa_L20")},
    ),
    min_group_size=Row(1000, lambda s: int(s.dataset.train.group("taxa_L10").max()), -1),
    exclude_null_samples=Row(False, lambda s: int((s.dataset.train.group("taxa_L30") < 0).sum()), 0),
    null_task_keys=Row(("taxa_L30",), lambda s: int((s.dataset.train.group("taxa_L30") < 0).sum()), 0),
    mix_block=Row(4, lambda s: s.plan().partner.tolist(), given=BLOCKS),
)
add(
    "schedule.mixup.cutmix",
    enabled=Row(True, pictures, given={**MIXED, "schedule.mixup.switch_prob": 1.0}),
    alpha=Row(0.1, pictures, given={**BOTH, "schedule.mixup.switch_prob": 1.0}),
    minmax=Row((0.4, 0.5), pictures, given={**BOTH, "schedule.mixup.switch_prob": 1.0}),
)
add(
    "schedule.mixup.prob",
    enabled=Row(False, pictures, given=MIXED),
    start_prob=Row(0.5, probability(MIX, 0), 0.5, MIXED),
    end_prob=Row(0.7, probability(MIX, 90), 0.7, MIXED),
    end_steps=Row(50, probability(MIX, 0), 1.0, UNENDING),
    end_fraction=Row(0.5, probability(MIX, 0), 1.0, UNENDING),
)
for stream in ("step", "console", "wandb", "lr", "pipeline"):
    key = f"schedule.metrics.{stream}"
    see = functools.partial(Site.logs, stream=stream)
    TABLE[f"{key}_interval"] = Row(7, see, [7, 14, 21, 28])
    TABLE[f"{key}_fraction"] = Row(0.1, see, [9, 18, 27], {f"{key}_interval": None})

# ---- metrics
add(
    "metrics",
    taxa_subsets=Row((("first", "taxa_L30", 30),), at("dataset.taxa_subset_names"), ("first",)),
    rarity_percentiles=Row((50,), at("dataset.rarity_names"), ("lt_p50", "ge_p50")),
    track_null_vs_non_null=Row(
        True, lambda s: s.run.host.tracker.null_tasks, ("taxa_L10",), {"metrics.track_null_vs_non_null": False}
    ),
    null_vs_non_null_tasks=Row(("taxa_L20",), lambda s: s.run.host.tracker.null_tasks, ("taxa_L20",), group="run"),
    baselines=Row(False, Site.baselines, [], group="run"),
)

# ---- debug; tests/debugging/test_session.py shows in a run with everything on that each flag has its say there
DETECTOR = {"debug.underflow_overflow.enabled": True}
PROFILER = {"debug.profiler.enabled": True}
GRADNORM_FLAGS = ("loss.gradnorm_memory", "loss.gradnorm_metrics", "loss.verbose_gradnorm_logging")


def flag_row(flag: str) -> Row:
    """Flags that look into the step add a probe, those of GradNorm comment on its updates, others on any run."""
    mark = f"[DEBUG_{leaf(flag).upper()}]"
    if any(text.point == "targets" for text in flag_texts.TEXTS if text.flag == flag):
        return Row(True, lambda s: "flags" in [probe.name for probe in s.session.probes()], True)
    if flag in GRADNORM_FLAGS:
        return Row(True, lambda s: mark in s.said(), True)
    return Row(True, lambda s: mark in s.log(), True, group="short")


#: settings of the changed site alone
ALSO: dict[str, Mapping[str, Any]] = {"short": {"experiment.wandb.enabled": True}}
GROUPS["short"] = {}
TABLE["experiment.wandb.run_id"] = Row("chosen", Site.run_id, "chosen", group="short")
TABLE |= {f"debug.{flag}": flag_row(flag) for flag in FLAGS}
add(
    "debug",
    early_exit_after_n_optimizer_steps=Row(8, Site.last_step, 8, group="short"),
    stall_seconds=Row(0.01, lambda s: "nothing has finished for 0 s" in s.log(), True, group="short"),
    nans=Row(True, at("looked_for"), ("nan",)),
    infs=Row(True, at("looked_for"), ("inf",)),
    crash_bundle=Row(True, at("session.writes_bundle"), True),
)
add(
    "debug.underflow_overflow",
    enabled=Row(True, at("session.detector.enabled"), True),
    max_frames_to_save=Row(5, at("session.monitor.max_frames_to_save"), 5, DETECTOR),
    trace_batch_nums=Row((1, 3), lambda s: sorted(s.session.monitor.trace_batch_nums), [1, 3], DETECTOR),
    abort_after_batch_num=Row(4, at("session.monitor.abort_after_batch_num"), 4, DETECTOR),
    gradients=Row(True, at("session.detector.gradients"), True, DETECTOR),
)
add(
    "debug.jsonl",
    enabled=Row(False, lambda s: len(s.session.probes()), 0),
    dir=Row("{output_dir}/events", lambda s: any(s.ran.glob("events/debug_log_*.jsonl")), True, group="short"),
)
add(
    "debug.profiler",
    enabled=Row(True, lambda s: [update for update, *_ in s.traces()], [2, 7]),
    output_dir=Row("{output_dir}/traces", lambda s: s.traces()[0][1], "traces", PROFILER),
    schedule=Row((0, 1, 1, 3), lambda s: [update for update, *_ in s.traces()], [1, 3, 5], PROFILER),
    record_shapes=Row(True, lambda s: s.traces()[0][2], 2, PROFILER),
    with_stack=Row(True, lambda s: s.traces()[0][3], 1, PROFILER),
    device_memory=Row(
        True, Site.memory_profiles, ["device_memory_cycle_0001.prof", "device_memory_cycle_0002.prof"], PROFILER
    ),
)
