"""The model and its first weights."""

from __future__ import annotations

from linnaeus_jax.config.keys import Section, key, unset

#: blocks of a stage; widths of layers and numbers of heads: larger models fit no device
BLOCKS, WIDTH, WIDTH_OR_NONE = "[1, 1000]", "[1, 65536]", "[0, 65536]"
_NUM_HEADS = key((), "attention heads of the two transformer stages; empty: the variant's", items=int, within=WIDTH)
_MLP_RATIO = key(
    (4.0,),
    "width of the MLP relative to the stage's: one number, or one per stage",
    items=float,
    lengths=(1, 2),
    within="(0, 64]",
)

MODEL = dict(
    type=key("mFormerV1", "model family", choices="linnaeus_jax.models.factory:MODELS", refused_elsewhere=True),
    variant=key("sm", "size of the family; the keys below override it where they are set"),
    drop_rate=key(
        (),
        "dropout of the transformer stages: one number, or one per stage; empty: the variant's",
        items=float,
        within="[0, 1)",
    ),
    attn_drop_rate=key(
        (),
        "dropout of attention weights: one number, or one per stage; empty: the variant's",
        items=float,
        within="[0, 1)",
    ),
    attn_drop_kind=key(
        "weights",
        "weights: each attention weight is dropped on its own; keys: those of all queries of a head "
        "to a key together, which fused attention can do",
        choices="linnaeus_jax.models.transformer:ATTN_DROP_KINDS",
        refused_elsewhere=True,
    ),
    drop_path_rate=unset(
        float, "largest rate of stochastic depth, reached at the last block; None: the variant's", within="[0, 1)"
    ),
    label_smoothing=key(
        0.1, "probability spread over the other classes by the loss LabelSmoothingCrossEntropy", within="[0, 1)"
    ),
    only_last_cls=key(
        False, "True: the heads see the class token of the last stage alone; False: those of both transformer stages"
    ),
    missing_metadata=key(
        "zero",
        "zero: missing metadata become the token of a zero vector; mask: their token is not attended to",
        choices="linnaeus_jax.models.settings:MISSING_METADATA",
        refused_elsewhere=True,
    ),
    metadata_fusion=key(
        "",
        "how metadata join: tokens, beside the patches; late, added to the finished features, which "
        "it leaves as they are at first; empty: as the family does (mFormerV1, mFormerV0: tokens; "
        "others: late)",
    ),
    # ---- mFormerV1, the first section also of ConvNeXt
    convnext_stages=dict(
        depths=key(
            (), "blocks of the two ConvNeXt stages, of ConvNeXt of all; empty: the variant's", items=int, within=BLOCKS
        ),
        dims=key((), "widths of all stages; empty: the variant's", items=int, within=WIDTH),
        layer_scale_init_value=key(
            1e-6, "initial scale of each block's branch; 0: no such parameter", within="[0, inf)"
        ),
    ),
    rope_stages=dict(
        depths=key((), "blocks of the two transformer stages; empty: the variant's", items=int, within=BLOCKS),
        num_heads=_NUM_HEADS,
        mlp_ratio=_MLP_RATIO,
        rope_mixed=key(True, "learned rotary frequencies for each head; False: fixed ones along the two axes"),
        rope_theta=key(10000.0, "base of the rotary frequencies", within="(0, inf)"),
        rope_mode=key(
            "rotary",
            "rotary turns each pair of features by its angle; cos_only multiplies by the cosine, as some weights need",
            choices="linnaeus_jax.models.rotary:ROPE_MODES",
            refused_elsewhere=True,
        ),
        rope_init=key(
            "random_direction",
            "how the learned rotary frequencies begin",
            choices="linnaeus_jax.models.rotary:ROPE_INITS",
            refused_elsewhere=True,
        ),
    ),
    # ---- mFormerV0
    conv_stages=dict(
        embed_dims=key(
            (), "width of the stem (first number; others have no effect); empty: the variant's", items=int, within=WIDTH
        ),
        out_channels=key((), "widths of the two MBConv stages; empty: the variant's", items=int, within=WIDTH),
        depths=key((), "blocks of the two MBConv stages; empty: the variant's", items=int, within=BLOCKS),
        stride_seqs=key(
            (), "stride of each block, one tuple per MBConv stage; empty: the very first block halves", items=tuple
        ),
    ),
    attention_stages=dict(
        dims=key((), "widths of the two transformer stages; empty: the variant's", items=int, within=WIDTH),
        depths=key((), "blocks of the two transformer stages; empty: the variant's", items=int, within=BLOCKS),
        num_heads=_NUM_HEADS,
        mlp_ratio=_MLP_RATIO,
        stride_seqs=key(
            (), "stride of each block, one tuple per stage; empty: the first block of each stage halves", items=tuple
        ),
    ),
    compat=key(
        "",
        "metafg: padding and norms of published MetaFormer weights; empty: those of this program",
        choices="linnaeus_jax.models.mformer_v0:COMPATS",
        refused_elsewhere=True,
    ),
    # ---- EfficientNet
    efficientnet=dict(
        nominal_size=unset(
            int,
            "side in pixels of the pictures that SAME padding is computed for; 0: that of the data; "
            "None: the variant's",
            within="[0, 4096]",
        ),
        padding=unset(
            str,
            "same: TensorFlow's padding; symmetric: as much on all sides, as in weights made with PyTorch; None: same",
        ),
        norm_eps=unset(
            float, "epsilon of the norms; None: 1e-3 with same, 1e-5 with symmetric padding", within="(0, 1]"
        ),
    ),
    # ---- ViT; published weights say what they need
    vit=dict(
        patch_size=unset(int, "side of a patch in pixels; None: the variant's", within="[1, 4096]"),
        dim=unset(int, "width of the tokens; None: the variant's", within=WIDTH),
        depth=unset(int, "blocks; None: the variant's", within=BLOCKS),
        num_heads=unset(int, "attention heads of each block; None: the variant's", within=WIDTH),
        hidden=unset(
            int, "width of the MLPs, with swiglu of each of its two halves; None: the variant's", within=WIDTH
        ),
        activation=unset(str, "of the MLPs: gelu, gelu_tanh, quick_gelu or swiglu; None: the variant's"),
        layer_scale=unset(
            float,
            "initial scale of each block's branches; 0: no such parameters; None: the variant's",
            within="[0, inf)",
        ),
        epsilon=unset(float, "of the norms; None: the variant's", within="(0, 1]"),
        qkv_bias=unset(bool, "queries, keys and values have a bias; None: the variant's"),
        patch_bias=unset(bool, "patches have a bias; None: the variant's"),
        class_token=unset(bool, "there is a class token; None: the variant's"),
        registers=unset(
            int, "tokens beside the class token that nothing is read from; None: the variant's", within="[0, 4096]"
        ),
        positions=unset(
            str,
            "how the learned table of positions is resized for other pictures: antialias, bicubic, or "
            "offset, which is bicubic with another step; empty: there is none; None: the variant's",
        ),
        placed_tokens=unset(
            int,
            "of class token and registers, how many have an entry in that table; None: the variant's",
            within="[0, 4097]",
        ),
        rope=unset(
            str,
            "rotary positions: DINOv3's with periods in float32 or bfloat16, or grid, EVA-02's; empty: none; "
            "None: the variant's",
        ),
        rope_grid=unset(
            int,
            "side in patches of the grid that rope=grid stretches over every picture; None: the variant's",
            within="[1, 4096]",
        ),
        sub_norm=unset(
            str,
            "a norm before the last map of each mlp, of each attention, or of both; empty: none; None: the variant's",
        ),
        pre_norm=unset(bool, "a norm before the first block; None: the variant's"),
        pool=unset(
            str,
            "what becomes the features: the class token, avg, the mean of the patches; or map, "
            "pooling by attention; None: the variant's",
        ),
        norm=unset(str, "the last norm: of tokens before pooling, of features after it, or none; None: the variant's"),
        projection=unset(
            int,
            "width of a linear map of the features without bias; 0: none; None: the variant's",
            within=WIDTH_OR_NONE,
        ),
    ),
    # ---- Joined
    trunks=key(
        (),
        "trunks whose features are concatenated, each (family, variant, settings, mean, std); model.features sets them",
        items=tuple,
    ),
    # ---- ConvNeXt, beside convnext_stages
    convnext=dict(
        use_grn=key(False, "global response normalisation in the blocks, as in V2; V2 has no layer scale"),
        stem=key(
            "patch",
            "patch: 4x4 patches; overlap, overlap_tiered, overlap_act: two 3x3 convolutions, as some weights need",
        ),
        act=key("gelu", "activation: gelu, gelu_tanh or silu"),
        kernel_sizes=key((), "sides of the depthwise kernels: one number, or one per stage; empty: 7"),
        norm_eps=key(1e-6, "epsilon of the norms", within="(0, 1]"),
        head_norm_eps=unset(float, "that of the last norm; None: norm_eps", within="(0, 1]"),
        head_norm_first=key(False, "the last norm acts before the mean over the picture, not after it"),
        head_hidden_size=key(
            0, "features of a layer with GELU after the last norm; 0: no such layer", within=WIDTH_OR_NONE
        ),
    ),
    # ---- heads and how they are computed
    classification=dict(
        heads={},  # an entry for each task, see `HEAD`
        hierarchy_mode=key(
            "refine",
            "refine: hierarchical heads use the coarser ranks; reference_unrefined: every head gives its own logits",
            choices="linnaeus_jax.models.heads:HIERARCHY_MODES",
            refused_elsewhere=True,
        ),
    ),
    depthwise_impl=key(
        "auto",
        "how depthwise convolutions are computed: auto takes shift on CPU and lax elsewhere",
        choices="linnaeus_jax.models.depthwise:DEPTHWISE_IMPLS",
        refused_elsewhere=True,
    ),
    attn_impl=key(
        "auto",
        "how attention is computed: auto takes cudnn where the GPU has it, and xla elsewhere",
        choices="linnaeus_jax.models.transformer:ATTN_IMPLS",
        refused_elsewhere=True,
    ),
    scan_layers=key(False, "compile one body for the blocks of the long transformer stage, which compiles faster"),
    # ---- initial weights
    weight_init=key(
        "normal",
        "how random weights of linear maps and convolutions begin: normal, with deviation 0.02; fan_in, with that of "
        "1 / sqrt(inputs), from which small models learn faster. EfficientNet and MBConv have their own",
        choices="linnaeus_jax.models.initial:WEIGHT_INITS",
    ),
    pretrained=key(
        "",
        "from which a new run takes its initial weights: a file (.safetensors, .pth, .tflite), a run, "
        "a bundle, package:NAME, hf:OWNER/REPO[/FILE] or timm:NAME; empty: random ones",
    ),
    features=key(
        (),
        "two or more of these instead: their trunks beside each other, their features concatenated for the heads",
        items=str,
    ),
    pretrained_source=key(
        "",
        "kind of the weights; empty: by the names in the file; metaformer and stitched_convnext_ropevit must be named",
        choices="linnaeus_jax.weights.settings:sources",
        refused_elsewhere=True,
    ),
    pretrained_convnext=key("", "file of the ConvNeXt weights, with pretrained_source = stitched_convnext_ropevit"),
    pretrained_ropevit=key("", "file of the RoPE-ViT weights, likewise"),
    pretrained_strict=key(True, "an array that does not fit is an error; False: it keeps its random initial value"),
    pretrained_classes=key(
        "", "JSON file {task: {taxon id: row}} of the heads in the weights, where they do not say it themselves"
    ),
    pretrained_attn_scale=key(
        "standard",
        "standard: attention scale 1 / sqrt(head width); squared: the weights were trained with 1 / head width",
        choices="linnaeus_jax.weights.settings:ATTN_SCALES",
        refused_elsewhere=True,
    ),
)

_USE_BIAS = key(True, "add a learned bias to every class")
_ORPHAN_PRIOR = key(
    "neutral",
    "what a class without a parent gets: a prior of 1 (neutral), or nearly 0 (epsilon)",
    choices="linnaeus_jax.models.hierarchy:ORPHAN_PRIORS",
    refused_elsewhere=True,
)
#: built-in head -> its options
HEAD_OPTIONS: dict[str, Section] = {
    "Linear": dict(use_bias=_USE_BIAS),
    "ConditionalClassifier": dict(
        use_bias=_USE_BIAS,
        routing_strategy=key(
            "soft",
            "how the next coarser rank enters: by its probabilities (soft); by its best class, but while training "
            "(hard); by probabilities with random noise while training (gumbel)",
            choices="linnaeus_jax.models.heads:ROUTING_STRATEGIES",
            refused_elsewhere=True,
        ),
        temperature=key(1.0, "divides the logits of the coarser rank", within="(0, inf)"),
        orphan_prior=_ORPHAN_PRIOR,
    ),
    "HierarchicalSoftmax": dict(use_bias=_USE_BIAS, orphan_prior=_ORPHAN_PRIOR),
    "PathSoftmax": dict(use_bias=_USE_BIAS),
}
#: An entry of `model.classification.heads`, with the options of all built-in heads.
HEAD: Section = {
    "type": key(
        "Linear",
        "head of the task, whose options stand beside it",
        choices="linnaeus_jax.models.heads:HEADS",
        refused_elsewhere=True,
    )
} | {name: option for options in HEAD_OPTIONS.values() for name, option in options.items()}
