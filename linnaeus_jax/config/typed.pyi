# Written by `make reference` from the declarations in config/sections.
from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from linnaeus_jax.config.section import Duration, Section

def typed(config: ConfigDict) -> Config: ...
def sections(declared: Mapping[str, Any] = ..., path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]: ...
def class_name(path: str) -> str: ...

class Config(Section):
    experiment: ExperimentConfig
    env: EnvConfig
    parallel: ParallelConfig
    data: DataConfig
    model: ModelConfig
    train: TrainConfig
    lr_scheduler: LrSchedulerConfig
    optimizer: OptimizerConfig
    loss: LossConfig
    aug: AugConfig
    schedule: ScheduleConfig
    metrics: MetricsConfig
    debug: DebugConfig

class ExperimentConfig(Section):
    project: str
    group: str
    name: str
    log_level_main: str
    log_level_h5data: str
    log_level_validation: str
    wandb: ExperimentWandbConfig
    tensorboard: ExperimentTensorboardConfig

class ExperimentWandbConfig(Section):
    enabled: bool
    project: str
    entity: str
    tags: tuple[str, ...]
    notes: str
    resume: bool
    mode: str
    run_id: str

class ExperimentTensorboardConfig(Section):
    enabled: bool

class EnvConfig(Section):
    output: EnvOutputConfig
    plugins: tuple[str, ...]
    compilation_cache_dir: str
    keep_freed_memory: bool

class EnvOutputConfig(Section):
    base_dir: str
    bucket: EnvOutputBucketConfig

class EnvOutputBucketConfig(Section):
    enabled: bool
    remote: str
    executable: str
    timeout_seconds: int

class ParallelConfig(Section):
    fsdp: bool

class DataConfig(Section):
    batch_size: int | None
    batch_size_per_device: int | None
    autobatch: DataAutobatchConfig
    batch_size_val: int | None
    img_size: int
    resize_mode: str
    interpolation: str
    crop_fraction: float
    reduced_decode: bool
    num_workers: int
    worker_processes: int
    dataset: DataDatasetConfig
    task_keys_h5: tuple[str, ...]
    sampler: DataSamplerConfig
    partial: DataPartialConfig
    hide_taxa: tuple[str, ...]
    out_of_region: DataOutOfRegionConfig
    upward_major_check: bool
    upward_major_mode: str
    meta: DataMetaConfig
    h5: DataH5Config
    hybrid: DataHybridConfig
    prefetch: DataPrefetchConfig
    parent_conflict_limit: float

class DataAutobatchConfig(Section):
    enabled: bool
    target_memory_fraction: float
    min_batch_size: int
    max_batch_size: int
    device_memory_gb: float | None

class DataDatasetConfig(Section):
    name: str
    version: str
    clade: str

class DataSamplerConfig(Section):
    type: str
    grouped_mode: str
    leftovers: str
    class_balance: str
    class_balance_task: str

class DataPartialConfig(Section):
    levels: bool

class DataOutOfRegionConfig(Section):
    include: bool

class DataMetaConfig(Section):
    active: bool
    components: DataMetaComponentsConfig

class DataMetaComponentsConfig(Section):
    def __getitem__(self, name: str) -> DataMetaComponentsEntryConfig: ...

class DataMetaComponentsEntryConfig(Section):
    enabled: bool
    source: str
    columns: tuple[str, ...]
    dim: int
    idx: int
    allow_missing: bool
    oor_mask: bool

class DataH5Config(Section):
    train_labels_path: str
    val_labels_path: str
    labels_path: str
    train_images_path: str
    val_images_path: str
    images_path: str
    train_val_split_ratio: float
    train_val_split_seed: int
    use_split_column: bool

class DataHybridConfig(Section):
    use_hybrid: bool
    images_dir: str
    train_images_dir: str
    val_images_dir: str
    file_extension: str
    allow_missing_images: bool
    verify_images: DataHybridVerifyImagesConfig

class DataHybridVerifyImagesConfig(Section):
    enabled: bool
    max_missing_ratio: float | None
    max_missing_count: int | None
    num_workers: int | None
    chunk_size: int
    log_missing: bool
    report_path: str

class DataPrefetchConfig(Section):
    mem_cache_size: int
    max_processed_batches: int
    num_io_threads: int | None

class ModelConfig(Section):
    type: str
    variant: str
    drop_rate: tuple[float, ...]
    attn_drop_rate: tuple[float, ...]
    attn_drop_kind: str
    drop_path_rate: float | None
    label_smoothing: float
    only_last_cls: bool
    missing_metadata: str
    metadata_fusion: str
    convnext_stages: ModelConvnextStagesConfig
    rope_stages: ModelRopeStagesConfig
    conv_stages: ModelConvStagesConfig
    attention_stages: ModelAttentionStagesConfig
    compat: str
    efficientnet: ModelEfficientnetConfig
    vit: ModelVitConfig
    trunks: tuple[Any, ...]
    convnext: ModelConvnextConfig
    classification: ModelClassificationConfig
    depthwise_impl: str
    attn_impl: str
    scan_layers: bool
    weight_init: str
    pretrained: str
    features: tuple[str, ...]
    pretrained_source: str
    pretrained_convnext: str
    pretrained_ropevit: str
    pretrained_strict: bool
    pretrained_classes: str
    pretrained_attn_scale: str

class ModelConvnextStagesConfig(Section):
    depths: tuple[int, ...]
    dims: tuple[int, ...]
    layer_scale_init_value: float

class ModelRopeStagesConfig(Section):
    depths: tuple[int, ...]
    num_heads: tuple[int, ...]
    mlp_ratio: tuple[float, ...]
    rope_mixed: bool
    rope_theta: float
    rope_mode: str
    rope_init: str

class ModelConvStagesConfig(Section):
    embed_dims: tuple[int, ...]
    out_channels: tuple[int, ...]
    depths: tuple[int, ...]
    stride_seqs: tuple[Any, ...]

class ModelAttentionStagesConfig(Section):
    dims: tuple[int, ...]
    depths: tuple[int, ...]
    num_heads: tuple[int, ...]
    mlp_ratio: tuple[float, ...]
    stride_seqs: tuple[Any, ...]

class ModelEfficientnetConfig(Section):
    nominal_size: int | None
    padding: str | None
    norm_eps: float | None

class ModelVitConfig(Section):
    patch_size: int | None
    dim: int | None
    depth: int | None
    num_heads: int | None
    hidden: int | None
    activation: str | None
    layer_scale: float | None
    epsilon: float | None
    qkv_bias: bool | None
    patch_bias: bool | None
    class_token: bool | None
    registers: int | None
    positions: str | None
    placed_tokens: int | None
    rope: str | None
    rope_grid: int | None
    sub_norm: str | None
    pre_norm: bool | None
    pool: str | None
    norm: str | None
    projection: int | None

class ModelConvnextConfig(Section):
    use_grn: bool
    stem: str
    act: str
    kernel_sizes: tuple[Any, ...]
    norm_eps: float
    head_norm_eps: float | None
    head_norm_first: bool
    head_hidden_size: int

class ModelClassificationConfig(Section):
    heads: ModelClassificationHeadsConfig
    hierarchy_mode: str

class ModelClassificationHeadsConfig(Section):
    def __getitem__(self, name: str) -> ModelClassificationHeadsEntryConfig: ...

class ModelClassificationHeadsEntryConfig(Section):
    type: str
    use_bias: bool
    routing_strategy: str
    temperature: float
    orphan_prior: str

class TrainConfig(Section):
    epochs: int
    seed: int
    accumulation_steps: int
    clip_grad: float | None
    clip_mode: str
    compute_dtype: str
    matmul_precision: str
    deterministic: bool
    auto_resume: bool
    tune: str
    tune_views: int
    fit_heads: bool
    fit_rows: str
    tune_dir: str
    resume_skip_optimizer: bool
    preserve_checkpoint_schedule: bool
    skip_validation: bool
    phase1_mask_null_loss: bool
    nonfinite_limit: int | None
    gradient_checkpointing: TrainGradientCheckpointingConfig
    ema: TrainEmaConfig
    early_stop: TrainEarlyStopConfig

class TrainGradientCheckpointingConfig(Section):
    enabled_normal_steps: bool | None
    enabled_gradnorm_steps: bool | None

class TrainEmaConfig(Section):
    enabled: bool
    decay: float

class TrainEarlyStopConfig(Section):
    active: bool
    metric: str
    patience: Duration | None
    min_delta: float | None
    max_steps: int | None
    max_loss: float | None
    min_lr: float | None
    max_grad_norm: float | None

class LrSchedulerConfig(Section):
    name: str
    base_lr: float
    reference_bs: int
    scaling: str
    warmup: Duration | None
    warmup_lr: float
    min_lr: float
    decay: Duration | None
    decay_rate: float
    stable_duration_fraction: float
    decay_duration_fraction: float
    decay_type: str
    parameter_groups: LrSchedulerParameterGroupsConfig

class LrSchedulerParameterGroupsConfig(Section):
    enabled: bool
    def __getitem__(self, name: str) -> LrSchedulerParameterGroupsEntryConfig: ...

class LrSchedulerParameterGroupsEntryConfig(Section):
    name: str | None
    min_lr: float | None
    warmup_lr: float | None
    delay: Duration | None
    warmup: Duration | None
    decay: Duration | None
    decay_rate: float | None

class OptimizerConfig(Section):
    name: str
    eps: float
    betas: tuple[float, ...]
    momentum: float
    weight_decay: float
    alpha: float
    t_alpha_beta3: int | None
    muon: OptimizerMuonConfig
    layer_decay: float
    parameter_groups: OptimizerParameterGroupsConfig

class OptimizerMuonConfig(Section):
    momentum: float
    nesterov: bool
    ns_steps: int

class OptimizerParameterGroupsConfig(Section):
    enabled: bool
    default: OptimizerParameterGroupsDefaultConfig
    def __getitem__(self, name: str) -> OptimizerParameterGroupsEntryConfig: ...

class OptimizerParameterGroupsDefaultConfig(Section):
    optimizer: str
    weight_decay: float | None
    lr_multiplier: float

class OptimizerParameterGroupsEntryConfig(Section):
    filter: Mapping[str, Any]
    optimizer: str
    weight_decay: float | None
    lr_multiplier: float
    frozen: bool

class LossConfig(Section):
    task_specific: LossTaskSpecificConfig
    taxonomy_smoothing: LossTaxonomySmoothingConfig
    grad_weighting: LossGradWeightingConfig

class LossTaskSpecificConfig(Section):
    train: LossTaskSpecificTrainConfig
    val: LossTaskSpecificValConfig

class LossTaskSpecificTrainConfig(Section):
    funcs: tuple[str, ...]

class LossTaskSpecificValConfig(Section):
    funcs: tuple[str, ...]

class LossTaxonomySmoothingConfig(Section):
    enabled: tuple[bool, ...]
    alpha: float
    beta: float
    fallback_to_uniform: bool

class LossGradWeightingConfig(Section):
    class_weights: LossGradWeightingClassWeightsConfig
    task: LossGradWeightingTaskConfig

class LossGradWeightingClassWeightsConfig(Section):
    train: bool
    val: bool
    method: tuple[str, ...]
    smoothing_factor: tuple[float, ...]
    cap: tuple[float, ...]
    base: tuple[float, ...]
    log_base: tuple[float, ...]
    normalize: bool

class LossGradWeightingTaskConfig(Section):
    type: str
    gradnorm_enabled: bool
    init_weights: tuple[float, ...]
    init_strategy: str
    alpha: float
    update_interval: int
    gradnorm_warmup_steps: int
    gradnorm_rule: str
    gradnorm_kappa: float
    gradnorm_lr: float
    zero_aux_info: bool
    use_linear_heads_for_gradnorm_reforward: bool
    exclude_config: LossGradWeightingTaskExcludeConfigConfig

class LossGradWeightingTaskExcludeConfigConfig(Section):
    type: str
    patterns: tuple[Any, ...]
    match_type: str

class AugConfig(Section):
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    hflip_prob: float
    vflip_prob: float
    random_resized_crop: AugRandomResizedCropConfig
    color_jitter: float
    autoaug: AugAutoaugConfig
    random_erase: AugRandomEraseConfig

class AugRandomResizedCropConfig(Section):
    enabled: bool
    scale: tuple[float, float]
    ratio: tuple[float, float]

class AugAutoaugConfig(Section):
    policy: str
    num_ops: int
    magnitude: float

class AugRandomEraseConfig(Section):
    prob: float
    mode: str
    count: int
    area_range: tuple[float, float]
    aspect_ratio: tuple[float, float]

class ScheduleConfig(Section):
    step_trigger_mode: str
    validation: ScheduleValidationConfig
    checkpoint: ScheduleCheckpointConfig
    meta_masking: ScheduleMetaMaskingConfig
    null_masking: ScheduleNullMaskingConfig
    mixup: ScheduleMixupConfig
    metrics: ScheduleMetricsConfig

class ScheduleValidationConfig(Section):
    interval: Duration | None
    mask_meta_interval: Duration | None
    at_end: bool
    partial_mask_meta: ScheduleValidationPartialMaskMetaConfig
    final_epoch: ScheduleValidationFinalEpochConfig

class ScheduleValidationPartialMaskMetaConfig(Section):
    enabled: bool
    interval: Duration | None
    whitelist: tuple[Any, ...]

class ScheduleValidationFinalEpochConfig(Section):
    exhaustive_partial_meta_validation: bool
    exhaustive_meta_components: tuple[str, ...]

class ScheduleCheckpointConfig(Section):
    interval: Duration | None
    at_end: bool
    keep_top_n: int
    keep_last_n: int
    best_metric: str

class ScheduleMetaMaskingConfig(Section):
    enabled: bool
    start_prob: float
    end_prob: float
    end: Duration | None
    partial: ScheduleMetaMaskingPartialConfig

class ScheduleMetaMaskingPartialConfig(Section):
    enabled: bool
    start: Duration | None
    end: Duration | None
    start_prob: float
    end_prob: float
    prob_end: Duration | None
    whitelist: tuple[Any, ...]
    weights: tuple[float, ...]

class ScheduleNullMaskingConfig(Section):
    enabled: bool
    start_prob: float
    end_prob: float
    end: Duration | None

class ScheduleMixupConfig(Section):
    enabled: bool
    alpha: float
    cutmix: ScheduleMixupCutmixConfig
    switch_prob: float
    group_levels: tuple[str, ...]
    level_switch_steps: tuple[int, ...]
    level_switch_epochs: tuple[int, ...]
    prob: ScheduleMixupProbConfig
    min_group_size: int
    exclude_null_samples: bool
    null_task_keys: tuple[str, ...]
    mix_block: int | None

class ScheduleMixupCutmixConfig(Section):
    enabled: bool
    alpha: float
    minmax: tuple[float, ...]

class ScheduleMixupProbConfig(Section):
    enabled: bool
    start_prob: float
    end_prob: float
    end: Duration | None

class ScheduleMetricsConfig(Section):
    step: Duration | None
    console: Duration | None
    wandb: Duration | None
    lr: Duration | None
    pipeline: Duration | None

class MetricsConfig(Section):
    taxa_subsets: tuple[Any, ...]
    rarity_percentiles: tuple[float, ...]
    track_null_vs_non_null: bool
    null_vs_non_null_tasks: tuple[str, ...]
    baselines: bool

class DebugConfig(Section):
    scheduling: bool
    checkpoint: bool
    dataloader: bool
    augmentation: bool
    optimizer: bool
    distributed: bool
    model_build: bool
    training_loop: bool
    validation_metrics: bool
    dump_metrics: bool
    wandb_metrics: bool
    verbose_debug: bool
    train_metrics: bool
    loss: DebugLossConfig
    early_exit_after_n_optimizer_steps: int | None
    stall_seconds: float
    nans: bool
    infs: bool
    crash_bundle: bool
    underflow_overflow: DebugUnderflowOverflowConfig
    jsonl: DebugJsonlConfig
    profiler: DebugProfilerConfig

class DebugLossConfig(Section):
    taxonomy_smoothing: bool
    null_masking: bool
    class_weighting: bool
    gradnorm_memory: bool
    gradnorm_metrics: bool
    verbose_gradnorm_logging: bool

class DebugUnderflowOverflowConfig(Section):
    enabled: bool
    max_frames_to_save: int
    trace_batch_nums: tuple[int, ...]
    abort_after_batch_num: int | None
    gradients: bool

class DebugJsonlConfig(Section):
    enabled: bool
    dir: str

class DebugProfilerConfig(Section):
    enabled: bool
    output_dir: str
    schedule: tuple[int, int, int, int]
    record_shapes: bool
    with_stack: bool
    device_memory: bool
