"""The whole default configuration tree, one function per section.

Names are the documented upper-case names in lower case. Three conventions hold everywhere:

* A quantity that may be given in steps, as a fraction or in epochs has one key per unit, all unset
  (``None``) here; its default lives in ``linnaeus_jax.schedules.alternatives``. ``0`` means "off".
* Sequences are tuples, so that flags can override them.
* Open nodes (keyed by names of data: metadata components, heads, parameter groups) hold user-chosen keys;
  every entry is filled up with the defaults of its kind by ``complete_open_nodes``.
"""

from __future__ import annotations

from ml_collections.config_dict import ConfigDict, placeholder

from linnaeus_jax.config.open_nodes import Section, alternatives, complete_open_nodes


def get_config() -> ConfigDict:
    """Returns the locked default tree. Every key has an effect or stands in the importer's compatibility table."""
    sections = (
        experiment,
        env,
        parallel,
        data,
        model,
        train,
        lr_scheduler,
        optimizer,
        loss,
        aug,
        schedule,
        metrics,
        debug,
    )
    config = ConfigDict({section.__name__: section() for section in sections})
    return complete_open_nodes(config).lock()


def experiment() -> Section:
    return dict(
        project="linnaeus",
        group="default",
        name="run",
        log_level_main="INFO",  # console level of the main log
        log_level_h5data="INFO",  # console level of the data log
        log_level_validation="INFO",  # console level while validating
        wandb=dict(
            enabled=False,
            project="",  # empty: experiment.project
            entity="",
            tags=(),
            notes="",
            resume=False,
            mode="online",  # online | offline | disabled
            run_id="",  # empty: a new id, kept over resumes
        ),
        tensorboard=dict(enabled=False),
    )


def env() -> Section:
    return dict(
        output=dict(
            base_dir="runs",
            bucket=dict(
                enabled=False,
                # rclone remote, e.g. "b2:my-bucket/linnaeus", or a local directory; <project>/<group>/<name> below
                remote="",
                executable="rclone",
                timeout_seconds=600,  # of the final synchronisation at exit
            ),
        ),
        plugins=(),  # modules or .py files that register metrics and subsets, see linnaeus_jax.metrics
        # directory of XLA's persistent compilation cache; auto: in the user's cache directory; empty: off
        compilation_cache_dir="auto",
        keep_freed_memory=True,  # glibc: no page is cleared and mapped again at every update; False: a smaller process
    )


def parallel() -> Section:
    return dict(
        fsdp=False,  # parameters, moving average and optimizer state split over the devices; False: whole on each
    )


def data() -> Section:
    return dict(
        batch_size=placeholder(int),  # rows of one micro-batch over all devices of all processes; None: 64, or
        batch_size_per_device=placeholder(int),  # as many for each device; give one of the two
        autobatch=dict(
            enabled=False,  # True: batch_size_per_device is the largest that fits, found before anything is resolved
            target_memory_fraction=0.8,  # of a device's memory that an update may take
            min_batch_size=1,  # rows on each device
            max_batch_size=512,
            device_memory_gb=0.0,  # 10^9 bytes of one device; 0: as the device says, which CPUs do not
        ),
        batch_size_val=128,  # rows over all devices; <= 0: as the micro-batch; rounded up to the devices
        img_size=384,
        resize_mode="squash",  # squash | center_crop | pad: pictures that are not square
        reduced_decode=True,  # JPEG decoded at 1/2, 3/8, 1/4 or 1/8 where that still has img_size pixels
        num_workers=2,  # threads (not processes) of the Grain loader; each reads whole batches
        worker_processes=0,  # > 0: processes read instead, for decoders that hold the GIL
        dataset=dict(name="", version="", clade=""),
        task_keys_h5=("taxa_L10", "taxa_L20", "taxa_L30", "taxa_L40"),  # finest first
        sampler=dict(
            type="grouped",  # grouped | standard
            grouped_mode="mixed-pairs",  # mixed-pairs | strict-group
            leftovers="keep",  # keep | drop rows that no pair or group could take
            class_balance="none",  # none | sqrt | equal: draws of a class by its rows, their square root, or equally
            class_balance_task="",  # the rank whose classes are balanced; empty: the finest
        ),
        partial=dict(levels=False),
        out_of_region=dict(include=True),
        upward_major_check=False,
        upward_major_mode="all-finer",  # all-finer | no-gaps
        meta=dict(
            active=True,
            components=dict(
                TEMPORAL=dict(source="temporal", dim=2, idx=0),
                SPATIAL=dict(source="spatial", dim=3, idx=1),
                ELEVATION=dict(source="elevation_broadrange_2", dim=10, idx=2, enabled=False),
            ),
        ),
        h5=dict(
            train_labels_path="",
            val_labels_path="",
            labels_path="",
            train_images_path="",
            val_images_path="",
            images_path="",
            train_val_split_ratio=0.9,
            train_val_split_seed=42,
            use_split_column=True,  # False: split at random even where the labels file has a dataset `split`
        ),
        hybrid=dict(
            use_hybrid=False,
            images_dir="",
            train_images_dir="",  # empty: images_dir
            val_images_dir="",
            file_extension=".jpg",
            allow_missing_images=False,
            verify_images=dict(
                enabled=False,
                max_missing_ratio=0.0,
                max_missing_count=0,
                num_workers=8,
                chunk_size=1000,
                log_missing=True,
                report_path="{output_dir}/assets/missing_images_report.json",
            ),
        ),
        prefetch=dict(
            mem_cache_size=10 * 1024**3,  # bytes of decoded images kept (hybrid data)
            max_processed_batches=4,  # finished batches waiting for the device
            # threads that decode, shared by all batches; None: one for each core here, at most 32
            num_io_threads=placeholder(int),
        ),
        parent_conflict_limit=0.2,  # largest share of rows that may contradict the majority parent
    )


def model() -> Section:
    return dict(
        type="mFormerV1",
        variant="sm",  # tiny | sm | md | lg | xl; the keys below override the variant where they are set
        drop_rate=(),  # one number, or one per transformer stage
        attn_drop_rate=(),  # likewise
        drop_path_rate=placeholder(float),
        label_smoothing=0.1,
        only_last_cls=False,
        missing_metadata="zero",  # zero | mask: the token of missing metadata embeds zeros, or is not attended to
        # ---- mFormerV1
        convnext_stages=dict(depths=(), dims=(), layer_scale_init_value=1e-6),
        rope_stages=dict(
            depths=(),
            num_heads=(),
            mlp_ratio=(4.0,),  # one, or one per stage
            rope_mixed=True,  # False: fixed frequencies along the two axes
            rope_theta=10000.0,
            rope_mode="rotary",  # rotary | cos_only
            rope_init="random_direction",  # random_direction | rope_vit
        ),
        # ---- mFormerV0
        conv_stages=dict(embed_dims=(), out_channels=(), depths=(), stride_seqs=()),
        attention_stages=dict(dims=(), depths=(), num_heads=(), mlp_ratio=(4.0,), stride_seqs=()),
        compat="",  # metafg: padding and norms of published MetaFormer weights
        # ---- heads and how they are computed
        classification=dict(
            heads=ConfigDict(),
            hierarchy_mode="refine",  # refine | reference_unrefined: every head gives its own logits
        ),
        depthwise_impl="auto",  # auto | lax | shift
        attn_impl="auto",  # auto | xla | cudnn
        scan_layers=False,  # one compiled body for the long transformer stage
        # ---- initial weights
        pretrained="",  # file (.safetensors, .pth) or run directory that a new run takes its initial weights from
        pretrained_source="",  # metaformer | stitched_convnext_ropevit; empty: weights of this model
        pretrained_convnext="",  # files of a stitched start
        pretrained_ropevit="",
        pretrained_strict=True,  # False: what does not fit keeps its random initial value
        pretrained_classes="",  # JSON {task: {taxon id: row}} of the file's heads, where the file does not say it
        pretrained_attn_scale="standard",  # standard | squared: the weights were trained with scale 1 / head_dim
    )


def train() -> Section:
    return dict(
        epochs=300,
        seed=0,
        accumulation_steps=0,  # 0 means 1
        clip_grad=5.0,  # <= 0: off
        clip_mode="norm",  # norm | adaptive
        compute_dtype="auto",  # auto: bfloat16 on accelerators, float32 on CPU
        matmul_precision="auto",  # auto | tensorfloat32 | float32: of float32 products on GPUs; auto: TensorFloat-32
        deterministic=False,  # GPU kernels that add in a fixed order; slower, since scatters and some convolutions wait
        auto_resume=True,
        resume_skip_optimizer=False,
        preserve_checkpoint_schedule=False,
        skip_validation=False,  # on resume: drop validations that were still pending
        phase1_mask_null_loss=False,
        nonfinite_limit=10,  # consecutive non-finite updates skipped before the run stops
        # recompute activations in the backward pass; None: where a device lacks the memory otherwise, never on a CPU
        gradient_checkpointing=dict(enabled_normal_steps=placeholder(bool), enabled_gradnorm_steps=placeholder(bool)),
        ema=dict(enabled=False, decay=0.9999),
        early_stop=dict(
            active=False,
            metric="val_loss",
            **alternatives("patience", float),
            min_delta=placeholder(float),
            max_steps=placeholder(int),
            max_loss=placeholder(float),
            min_lr=placeholder(float),
            max_grad_norm=placeholder(float),
        ),
    )


def lr_scheduler() -> Section:
    return dict(
        name="cosine",  # cosine | linear | step | wsd
        base_lr=1e-4,
        reference_bs=512,
        scaling="linear",  # linear | sqrt
        **alternatives("warmup", float),
        warmup_lr=5e-7,
        min_lr=1e-5,
        **alternatives("decay"),
        decay_rate=0.1,
        stable_duration_fraction=0.8,
        decay_duration_fraction=0.1,
        decay_type="cosine",  # cosine | linear
        parameter_groups=ConfigDict(
            dict(enabled=False), sort_keys=False
        ),  # + one node per optimizer group, see lr_group
    )


def optimizer() -> Section:
    return dict(
        name="adamw",  # adamw | adam | sgd | lamb | lion | muon | ademamix
        eps=1e-8,
        betas=(0.9, 0.999, 0.9999),
        momentum=0.9,
        weight_decay=0.05,
        alpha=5.0,
        t_alpha_beta3=placeholder(int),
        muon=dict(momentum=0.95, nesterov=True, ns_steps=5),
        layer_decay=1.0,  # LR factor per layer below the heads; 1: off
        # + one node per group, see optimizer_group; the first match wins
        parameter_groups=ConfigDict(
            dict(enabled=False, default=dict(optimizer="", weight_decay=placeholder(float), lr_multiplier=1.0)),
            sort_keys=False,
        ),
    )


def loss() -> Section:
    return dict(
        task_specific=dict(train=dict(funcs=("CrossEntropyLoss",)), val=dict(funcs=("CrossEntropyLoss",))),
        taxonomy_smoothing=dict(enabled=(), alpha=0.1, beta=1.0, fallback_to_uniform=True),
        grad_weighting=dict(
            class_weights=dict(
                train=True,
                val=False,
                method=("none",),  # none | smoothing | capping | exponential | logarithmic, one or one per task
                smoothing_factor=(0.1,),
                cap=(20.0,),
                base=(2.0,),
                log_base=(10.0,),
                normalize=False,  # rescale so that the sample mean of the weights is 1
            ),
            task=dict(
                type="gradnorm",  # gradnorm | static
                gradnorm_enabled=True,
                init_weights=(),
                init_strategy="inverse_density",  # inverse_density | class_complexity
                alpha=1.5,
                update_interval=100,
                gradnorm_warmup_steps=0,
                gradnorm_rule="mult",  # mult | paper
                gradnorm_kappa=0.5,
                gradnorm_lr=0.025,
                zero_aux_info=True,
                use_linear_heads_for_gradnorm_reforward=True,  # measure without the refinement of hierarchical heads
                exclude_config=dict(type="name", patterns=("head", "meta_"), match_type="contains"),
            ),
        ),
    )


def aug() -> Section:
    return dict(
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        hflip_prob=0.5,
        vflip_prob=0.0,
        random_resized_crop=dict(enabled=True, scale=(0.6, 1.0), ratio=(0.75, 1.3333333333333333)),
        color_jitter=0.4,  # strength of brightness, contrast and saturation changes; 0: off
        autoaug=dict(
            policy="", num_ops=2, magnitude=9.0
        ),  # "" | original | originalr | v0r | 3a | hybrid_v0 | randaugment
        random_erase=dict(prob=0.25, mode="pixel", count=1, area_range=(0.02, 0.4), aspect_ratio=(0.3, 3.3)),
    )


def schedule() -> Section:
    return dict(
        step_trigger_mode="crossing",  # crossing | exact
        validation=dict(
            **alternatives("interval", int),
            **alternatives("mask_meta_interval", int),
            at_end=True,
            partial_mask_meta=dict(enabled=False, **alternatives("interval", int), whitelist=()),
            final_epoch=dict(exhaustive_partial_meta_validation=False, exhaustive_meta_components=()),
        ),
        checkpoint=dict(
            **alternatives("interval", int),
            at_end=True,
            keep_top_n=0,
            keep_last_n=0,
            best_metric="",  # empty: val/partial_chain_accuracy, else val/chain_accuracy, else -val/loss
        ),
        meta_masking=dict(
            enabled=True,
            start_prob=1.0,
            end_prob=0.0,
            **alternatives("end"),
            partial=dict(
                enabled=False,
                **alternatives("start"),
                **alternatives("end"),
                start_prob=0.01,
                end_prob=0.7,
                **alternatives("prob_end"),
                whitelist=(),
                weights=(),
            ),
        ),
        null_masking=dict(enabled=False, start_prob=0.0, end_prob=1.0, **alternatives("end")),
        mixup=dict(
            enabled=True,
            alpha=1.0,
            cutmix=dict(enabled=False, alpha=1.0, minmax=()),
            switch_prob=0.5,  # probability of cutmix where both are enabled
            group_levels=("taxa_L10",),
            level_switch_steps=(),
            level_switch_epochs=(),
            prob=dict(enabled=True, start_prob=1.0, end_prob=0.2, **alternatives("end")),
            min_group_size=4,
            exclude_null_samples=True,
            null_task_keys=(),  # empty: all tasks
            mix_block=placeholder(int),  # rows among which partners are drawn; None: smallest factor of the batch
        ),
        metrics={
            f"{kind}_{unit}": placeholder(int if unit == "interval" else float)
            for kind in ("step", "console", "wandb", "lr", "pipeline")
            for unit in ("interval", "fraction")
        },
    )


def metrics() -> Section:
    return dict(
        taxa_subsets=(),  # of (name, task, taxon id)
        rarity_percentiles=(1, 5, 25, 50, 75, 90, 95, 99),
        track_null_vs_non_null=False,
        null_vs_non_null_tasks=("taxa_L10",),
    )


def debug() -> Section:
    flags = (
        "scheduling checkpoint dataloader augmentation optimizer distributed model_build training_loop "
        "validation_metrics dump_metrics wandb_metrics verbose_debug train_metrics"
    ).split()
    loss_flags = (
        "taxonomy_smoothing null_masking class_weighting gradnorm_memory gradnorm_metrics verbose_gradnorm_logging"
    ).split()
    return dict(
        **dict.fromkeys(flags, False),
        loss=dict.fromkeys(loss_flags, False),
        early_exit_after_n_optimizer_steps=0,
        stall_seconds=600.0,  # without a finished update or validation batch until a warning says what waits; 0: never
        nans=False,
        infs=False,
        crash_bundle=False,  # save the first non-finite update so that tools.replay can repeat it
        underflow_overflow=dict(
            enabled=False,
            max_frames_to_save=21,
            trace_batch_nums=(),
            abort_after_batch_num=placeholder(int),
            gradients=False,  # frames of the backward pass, too
        ),
        jsonl=dict(enabled=True, dir="{output_dir}/logs/debug"),
        profiler=dict(
            enabled=False,
            output_dir="{output_dir}/assets/profiler",
            schedule=(1, 1, 3, 2),
            record_shapes=False,
            with_stack=False,
            device_memory=False,  # also a device memory profile, for pprof, at the end of every cycle
        ),
    )
