"""The whole default configuration tree, one function per section.

Names are the documented upper-case names in lower case. Four conventions hold everywhere:

* A quantity that may be given in steps, as a fraction or in epochs has one key per unit, all unset
  (``None``) here; its default lives in ``linnaeus_jax.schedules.alternatives``. ``0`` means "off".
* Sequences are tuples, so that flags can override them.
* Open nodes (keyed by names of data: metadata components, heads, parameter groups) hold user-chosen keys;
  every entry is filled up with the defaults of its kind by ``complete_open_nodes``.
* The comment above a key, or behind it, is its meaning in ``docs/reference/config.md``, which ``make reference``
  writes: one or two plain sentences. Choices and bounds stand in ``checks.tables``, texts of debug flags in
  ``debugging.flags``.
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
        # first folder below env.output.base_dir of a run without --workdir, and the project in W&B
        project="linnaeus",
        group="default",  # second folder, and the group in W&B
        name="run",  # third folder, and the name of the run in W&B
        log_level_main="INFO",  # level of the run's messages on the console; the debug files get all
        log_level_h5data="INFO",  # level on the console of messages about data
        log_level_validation="INFO",  # level on the console while a validation runs
        wandb=dict(
            enabled=False,  # send the metrics to Weights & Biases
            project="",  # project in W&B; empty: experiment.project
            entity="",  # user or team in W&B; empty: the default of the account
            tags=(),  # tags of the run in W&B
            notes="",  # notes of the run in W&B
            # True: the run must be on the server already, else W&B stays off; False: go on with it if it is there
            resume=False,
            # online sends at once, offline keeps files for `wandb sync`, disabled does nothing; online obeys WANDB_MODE
            mode="online",
            run_id="",  # id of the run in W&B; empty: a new one at the first start, kept over resumes in run_id.txt
        ),
        tensorboard=dict(
            enabled=False,  # write event files to logs/tensorboard of the run directory; needs the package tensorboard
        ),
    )


def env() -> Section:
    return dict(
        output=dict(
            # run directories without --workdir are <base_dir>/<project>/<group>/<name>
            base_dir="runs",
            bucket=dict(
                enabled=False,  # copy the run directory to another place after checkpoints and at the end
                # rclone remote such as "b2:my-bucket/linnaeus", or a local directory; <project>/<group>/<name> below it
                remote="",
                executable="rclone",  # program that copies to a remote
                timeout_seconds=600,  # seconds that the last copy may take at the end of the run
            ),
        ),
        # modules or .py files of your own, imported before anything else, which register heads, losses, metrics, ...
        plugins=(),
        # directory of compiled programs, for a quick next start; auto: in the user's cache directory; empty: off
        compilation_cache_dir="auto",
        # Linux: keep freed memory for the next update instead of giving it back to the system; False: a smaller process
        keep_freed_memory=True,
    )


def parallel() -> Section:
    return dict(
        # True: each device holds a part of parameters, moving average and optimizer state; False: a whole copy
        fsdp=False,
    )


def data() -> Section:
    return dict(
        # rows of one micro-batch over all devices of all processes; None: 64, unless batch_size_per_device is given
        batch_size=placeholder(int),
        # rows of one micro-batch on each device; give this or batch_size, not both
        batch_size_per_device=placeholder(int),
        autobatch=dict(
            # find the largest batch_size_per_device that fits the memory of a device, before anything else is decided
            enabled=False,
            target_memory_fraction=0.8,  # share of a device's memory that an update may take
            min_batch_size=1,  # least rows on each device; an error where even they do not fit
            max_batch_size=512,  # most rows on each device
            # memory of one device in 10^9 bytes; 0: as the device says, which CPUs do not
            device_memory_gb=0.0,
        ),
        # rows of a validation batch over all devices, rounded up to a multiple of them; 0 or less: as the micro-batch
        batch_size_val=128,
        img_size=384,  # height and width of the model's input in pixels
        # how pictures that are not square become so: squash, cut out the centre, or pad with black
        resize_mode="squash",
        # area, or Pillow's nearest, nearest_exact, bilinear, bicubic or lanczos, as pretrained weights may need
        interpolation="area",
        # share of the shorter side that center_crop keeps; 0.875 with img_size 224 cuts these out of 256 pixels
        crop_fraction=1.0,
        # area: decode JPEG at 1/2, 3/8, 1/4 or 1/8 of its size where that still has img_size pixels
        reduced_decode=True,
        num_workers=2,  # threads that put whole batches together; 0: the main thread does
        # processes that read instead of threads, for decoders that hold Python's lock; 0: threads
        worker_processes=0,
        dataset=dict(
            name="",  # name of the data set, for the log
            version="",  # version of the data set, for the log
            clade="",  # clade of the data set, for the log
        ),
        # columns of the labels file that are learned, one task each, finest rank first
        task_keys_h5=("taxa_L10", "taxa_L20", "taxa_L30", "taxa_L40"),
        sampler=dict(
            # grouped: rows of a batch come with a partner of their group to be mixed with; standard: random order
            type="grouped",
            # mixed-pairs: a batch holds pairs of many groups; strict-group: a batch is of one group
            grouped_mode="mixed-pairs",
            leftovers="keep",  # keep or drop the rows that no pair or group could take
            # how often a class is drawn: by its rows (none), by their square root, or all classes equally
            class_balance="none",
            class_balance_task="",  # rank whose classes are balanced; empty: the finest
        ),
        partial=dict(
            # use rows whose label is unknown (null) at some rank; False: they are left out
            levels=False,
        ),
        out_of_region=dict(
            # use rows that the labels file marks as outside the region (`in_region` = 0)
            include=True,
        ),
        upward_major_check=False,  # leave out rows whose known ranks do not form the pattern of upward_major_mode
        # all-finer: no rank is null below a known one; no-gaps: no rank is null above a known one
        upward_major_mode="all-finer",
        meta=dict(
            active=True,  # False: the model gets no metadata at all
            components=dict(
                TEMPORAL=dict(source="temporal", dim=2, idx=0),
                SPATIAL=dict(source="spatial", dim=3, idx=1),
                ELEVATION=dict(source="elevation_broadrange_2", dim=10, idx=2, enabled=False),
            ),
        ),
        h5=dict(
            train_labels_path="",  # labels file of the training rows, of data in two files
            val_labels_path="",  # labels file of the validation rows, of data in two files
            labels_path="",  # labels file of data in one file, which is split
            train_images_path="",  # pictures of train_labels_path; the suffix decides how they are read
            val_images_path="",  # pictures of val_labels_path
            images_path="",  # pictures of labels_path
            train_val_split_ratio=0.9,  # share of training rows where one file is split at random
            train_val_split_seed=42,  # seed of the random split
            # take the split that the labels file says in its dataset `split`; False: split at random all the same
            use_split_column=True,
        ),
        hybrid=dict(
            use_hybrid=False,  # pictures are files in a folder, labels a labels file
            images_dir="",  # folder of the pictures
            train_images_dir="",  # folder of the training pictures, of data in two files; empty: images_dir
            val_images_dir="",  # folder of the validation pictures, of data in two files; empty: images_dir
            file_extension=".jpg",  # added to identifiers of the labels file that lack it, to make file names
            # a picture that cannot be read is black and counts in no loss, with a warning; False: it ends the run
            allow_missing_images=False,
            verify_images=dict(
                enabled=False,  # look for every picture before the start; rows without one are left out
                max_missing_ratio=0.0,  # largest share of missing pictures with which a run starts; below 0: no limit
                max_missing_count=0,  # largest number of missing pictures with which a run starts; below 0: no limit
                num_workers=8,  # threads that look; 0: one for each core
                chunk_size=1000,  # rows per piece of work
                log_missing=True,  # list the missing pictures in the report
                # JSON file of the result; {output_dir} is the run directory
                report_path="{output_dir}/assets/missing_images_report.json",
            ),
        ),
        prefetch=dict(
            mem_cache_size=10 * 1024**3,  # bytes of decoded pictures that are kept; 0: none
            max_processed_batches=4,  # finished batches that may wait for the device
            # threads that decode pictures, shared by all batches; None: one for each core, at most 32
            num_io_threads=placeholder(int),
        ),
        # largest share of a class's rows that may name another parent than most do; beyond it the run ends
        parent_conflict_limit=0.2,
    )


def model() -> Section:
    return dict(
        type="mFormerV1",  # model family
        variant="sm",  # size of the family; the keys below override it where they are set
        drop_rate=(),  # dropout of the transformer stages: one number, or one per stage; empty: the variant's
        attn_drop_rate=(),  # dropout of attention weights: one number, or one per stage; empty: the variant's
        # weights: each attention weight is dropped on its own; keys: those of all queries of a head to a key together,
        # which fused attention can do
        attn_drop_kind="weights",
        # largest rate of stochastic depth, reached at the last block; None: the variant's
        drop_path_rate=placeholder(float),
        label_smoothing=0.1,  # probability spread over the other classes by the loss LabelSmoothingCrossEntropy
        # True: the heads see the class token of the last stage alone; False: those of both transformer stages
        only_last_cls=False,
        # zero: missing metadata become the token of a zero vector; mask: their token is not attended to
        missing_metadata="zero",
        # how metadata join: tokens, beside the patches; late, added to the finished features, which it leaves as they
        # are at first; empty: as the family does (mFormerV1, mFormerV0: tokens; others: late)
        metadata_fusion="",
        # ---- mFormerV1, the first section also of ConvNeXt
        convnext_stages=dict(
            depths=(),  # blocks of the two ConvNeXt stages, of ConvNeXt of all; empty: the variant's
            dims=(),  # widths of all stages; empty: the variant's
            layer_scale_init_value=1e-6,  # initial scale of each block's branch; 0: no such parameter
        ),
        rope_stages=dict(
            depths=(),  # blocks of the two transformer stages; empty: the variant's
            num_heads=(),  # attention heads of the two transformer stages; empty: the variant's
            mlp_ratio=(4.0,),  # width of the MLP relative to the stage's: one number, or one per stage
            rope_mixed=True,  # learned rotary frequencies for each head; False: fixed ones along the two axes
            rope_theta=10000.0,  # base of the rotary frequencies
            # rotary turns each pair of features by its angle; cos_only multiplies by the cosine, as some weights need
            rope_mode="rotary",
            rope_init="random_direction",  # how the learned rotary frequencies begin
        ),
        # ---- mFormerV0
        conv_stages=dict(
            embed_dims=(),  # width of the stem (first number; others have no effect); empty: the variant's
            out_channels=(),  # widths of the two MBConv stages; empty: the variant's
            depths=(),  # blocks of the two MBConv stages; empty: the variant's
            stride_seqs=(),  # stride of each block, one tuple per MBConv stage; empty: the very first block halves
        ),
        attention_stages=dict(
            dims=(),  # widths of the two transformer stages; empty: the variant's
            depths=(),  # blocks of the two transformer stages; empty: the variant's
            num_heads=(),  # attention heads of the two transformer stages; empty: the variant's
            mlp_ratio=(4.0,),  # width of the MLP relative to the stage's: one number, or one per stage
            stride_seqs=(),  # stride of each block, one tuple per stage; empty: the first block of each stage halves
        ),
        compat="",  # metafg: padding and norms of published MetaFormer weights; empty: those of this program
        # ---- EfficientNet
        efficientnet=dict(
            # side in pixels of the pictures that SAME padding is computed for; 0: that of the data; None: the variant's
            nominal_size=placeholder(int),
            # same: TensorFlow's padding; symmetric: as much on all sides, as in weights made with PyTorch; None: same
            padding=placeholder(str),
            norm_eps=placeholder(float),  # epsilon of the norms; None: 1e-3 with same, 1e-5 with symmetric padding
        ),
        # ---- ViT; published weights say what they need
        vit=dict(
            patch_size=placeholder(int),  # side of a patch in pixels; None: the variant's
            dim=placeholder(int),  # width of the tokens; None: the variant's
            depth=placeholder(int),  # blocks; None: the variant's
            num_heads=placeholder(int),  # attention heads of each block; None: the variant's
            hidden=placeholder(int),  # width of the MLPs, with swiglu of each of its two halves; None: the variant's
            activation=placeholder(str),  # of the MLPs: gelu, gelu_tanh, quick_gelu or swiglu; None: the variant's
            # initial scale of each block's branches; 0: no such parameters; None: the variant's
            layer_scale=placeholder(float),
            epsilon=placeholder(float),  # of the norms; None: the variant's
            qkv_bias=placeholder(bool),  # queries, keys and values have a bias; None: the variant's
            patch_bias=placeholder(bool),  # patches have a bias; None: the variant's
            class_token=placeholder(bool),  # there is a class token; None: the variant's
            registers=placeholder(int),  # tokens beside the class token that nothing is read from; None: the variant's
            # how the learned table of positions is resized for other pictures: antialias, bicubic, or offset, which is
            # bicubic with another step; empty: there is none; None: the variant's
            positions=placeholder(str),
            # of class token and registers, how many have an entry in that table; None: the variant's
            placed_tokens=placeholder(int),
            # DINOv3's rotary positions with periods in float32 or bfloat16; empty: none; None: the variant's
            rope=placeholder(str),
            pre_norm=placeholder(bool),  # a norm before the first block; None: the variant's
            # what becomes the features: the class token, avg, the mean of the patches; or map, pooling by attention
            # None: the variant's
            pool=placeholder(str),
            # the last norm: of tokens before pooling, of features after it, or none; None: the variant's
            norm=placeholder(str),
            # width of a linear map of the features without bias; 0: none; None: the variant's
            projection=placeholder(int),
        ),
        # ---- Joined
        # trunks whose features are concatenated, each (family, variant, settings, mean, std); model.features sets them
        trunks=(),
        # ---- ConvNeXt, beside convnext_stages
        convnext=dict(
            use_grn=False,  # global response normalisation in the blocks, as in V2; V2 has no layer scale
            # patch: 4x4 patches; overlap, overlap_tiered, overlap_act: two 3x3 convolutions, as some weights need
            stem="patch",
            act="gelu",  # activation: gelu, gelu_tanh or silu
            kernel_sizes=(),  # sides of the depthwise kernels: one number, or one per stage; empty: 7
            norm_eps=1e-6,  # epsilon of the norms
            head_norm_eps=placeholder(float),  # that of the last norm; None: norm_eps
            head_norm_first=False,  # the last norm acts before the mean over the picture, not after it
            head_hidden_size=0,  # features of a layer with GELU after the last norm; 0: no such layer
        ),
        # ---- heads and how they are computed
        classification=dict(
            heads=ConfigDict(),
            # refine: hierarchical heads use the coarser ranks; reference_unrefined: every head gives its own logits
            hierarchy_mode="refine",
        ),
        depthwise_impl="auto",  # how depthwise convolutions are computed: auto takes shift on CPU and lax elsewhere
        attn_impl="auto",  # how attention is computed: auto takes cudnn where the GPU has it, and xla elsewhere
        scan_layers=False,  # compile one body for the blocks of the long transformer stage, which compiles faster
        # ---- initial weights
        # from which a new run takes its initial weights: a file (.safetensors, .pth, .tflite), a run, a bundle,
        # package:NAME, hf:OWNER/REPO[/FILE] or timm:NAME; empty: random ones
        pretrained="",
        # two or more of these instead: their trunks beside each other, their features concatenated for the heads
        features=(),
        # kind of the weights; empty: by the names in the file; metaformer and stitched_convnext_ropevit must be named
        pretrained_source="",
        pretrained_convnext="",  # file of the ConvNeXt weights, with pretrained_source = stitched_convnext_ropevit
        pretrained_ropevit="",  # file of the RoPE-ViT weights, likewise
        pretrained_strict=True,  # an array that does not fit is an error; False: it keeps its random initial value
        # JSON file {task: {taxon id: row}} of the heads in the weights, where they do not say it themselves
        pretrained_classes="",
        # standard: attention scale 1 / sqrt(head width); squared: the weights were trained with 1 / head width
        pretrained_attn_scale="standard",
    )


def train() -> Section:
    return dict(
        epochs=300,  # passes over the training rows
        seed=0,  # seed of everything random: initial weights, order of rows, augmentation, dropout
        accumulation_steps=0,  # micro-batches of one update; 0 means 1
        # limit of the gradient: its global norm, or with clip_mode = adaptive its ratio to the weights; 0 or less: off
        clip_grad=5.0,
        # norm scales the whole gradient down to the limit; adaptive limits each output unit relative to its weights
        clip_mode="norm",
        compute_dtype="auto",  # precision of the model; auto: bfloat16 on accelerators, float32 on CPU
        # precision of float32 products on GPUs; auto: TensorFloat-32
        matmul_precision="auto",
        # GPU: take kernels that add in a fixed order, so that a run can be repeated bit for bit; slower
        deterministic=False,
        # go on from the newest checkpoint of the run directory; False: an error if it has one
        auto_resume=True,
        # what trains: full, everything; head, what follows the trunk; last:N, that and the last N blocks of the trunk.
        # What the other blocks make of each picture is then computed once, before the first update
        tune="full",
        tune_views=4,  # augmented views of each training picture that are stored beside the picture itself
        # tune head: linear heads begin at the linear discriminants of the stored features; False: as they are drawn
        fit_heads=True,
        tune_dir="",  # folder of what is stored, which runs may share; empty: stored/ of the run directory
        # on resume, start the optimizer state anew and keep parameters, step and schedule
        resume_skip_optimizer=False,
        preserve_checkpoint_schedule=False,  # on resume, keep the number of epochs that the checkpoint was made with
        skip_validation=False,  # on resume, leave out validations that were still to be made at the checkpoint
        phase1_mask_null_loss=False,  # null labels never count in the training loss, whatever null_masking says
        nonfinite_limit=10,  # updates in a row with NaN or infinite values, all skipped, that end the run; 0: no limit
        gradient_checkpointing=dict(
            # compute activations again in the backward pass to save memory; None: where a device lacks it, never on CPU
            enabled_normal_steps=placeholder(bool),
            # the same for updates in which GradNorm measures; None: where a device lacks memory, never on CPU
            enabled_gradnorm_steps=placeholder(bool),
        ),
        ema=dict(
            enabled=False,  # keep a moving average of the parameters, which is evaluated, bundled and exported instead
            decay=0.9999,  # weight of the old average at every update; smaller in the first updates
        ),
        early_stop=dict(
            active=False,  # end training early by the conditions below, checked at the end of every epoch
            metric="val_loss",  # metric whose improvement patience waits for: <phase>_<metric>
            # how long the metric may go without improvement; default 2000 updates, 0: no such condition
            **alternatives("patience", float),
            min_delta=placeholder(float),  # least gain that counts as improvement; None: any
            max_steps=placeholder(int),  # end after so many updates; None or 0: no such condition
            max_loss=placeholder(float),  # end where the metric is a loss and exceeds this; None: no such condition
            min_lr=placeholder(float),  # end where the highest learning rate falls below this after warmup; None: not
            max_grad_norm=placeholder(float),  # end where the last gradient norm exceeds this; None: no such condition
        ),
    )


def lr_scheduler() -> Section:
    return dict(
        name="cosine",  # course of the learning rate after warmup
        base_lr=1e-4,  # peak learning rate at an effective batch (rows of one update) of reference_bs
        reference_bs=512,  # effective batch for which base_lr holds as it is
        # the peak grows with effective batch / reference_bs (linear) or its square root (sqrt)
        scaling="linear",
        # length of the rise from warmup_lr to the peak; 0: none
        **alternatives("warmup", float),
        warmup_lr=5e-7,  # learning rate of the first update; not scaled, lowered to the peak where it is above it
        min_lr=1e-5,  # learning rate at the end; not scaled, lowered to the peak where it is above it
        # of `step`: updates between two drops
        **alternatives("decay"),
        decay_rate=0.1,  # of `step`: factor of each drop
        stable_duration_fraction=0.8,  # of `wsd`: share of the updates after warmup at the peak
        decay_duration_fraction=0.1,  # of `wsd`: share of the updates after warmup that fall to min_lr
        decay_type="cosine",  # of `wsd`: shape of the fall
        parameter_groups=ConfigDict(
            dict(
                enabled=False,  # use the overrides of single parameter groups
            ),
            sort_keys=False,
        ),  # + one node per optimizer group, see open_nodes.lr_group
    )


def optimizer() -> Section:
    return dict(
        name="adamw",  # optimizer of all parameters whose group names no other
        eps=1e-8,  # added to the denominator of Adam and its relatives
        # decay of the running moments of Adam and its relatives; ademamix needs three, the others take the first two
        betas=(0.9, 0.999, 0.9999),
        momentum=0.9,  # of sgd
        weight_decay=0.05,  # of parameters with two or more axes; biases and norms have none
        alpha=5.0,  # of ademamix: weight of the slow average
        t_alpha_beta3=placeholder(int),  # of ademamix: updates in which alpha and the third beta rise; None: at once
        muon=dict(
            momentum=0.95,  # of muon
            nesterov=True,  # Nesterov momentum in muon
            ns_steps=5,  # Newton-Schulz steps that make a matrix orthogonal in muon
        ),
        layer_decay=1.0,  # factor of the learning rate for each layer further below the heads; 1: off
        # + one node per group, see open_nodes.optimizer_group; the first match wins
        parameter_groups=ConfigDict(
            dict(
                enabled=False,  # use the parameter groups; a parameter is of the first group whose filter selects it
                default=dict(
                    optimizer="",  # optimizer of the parameters of no other group; empty: optimizer.name
                    weight_decay=placeholder(float),  # weight decay of these parameters; None: optimizer.weight_decay
                    lr_multiplier=1.0,  # factor of the learning rate of these parameters
                ),
            ),
            sort_keys=False,
        ),
    )


def loss() -> Section:
    return dict(
        task_specific=dict(
            train=dict(
                funcs=("CrossEntropyLoss",),  # training loss: one, or one per task
            ),
            val=dict(
                funcs=("CrossEntropyLoss",),  # validation loss: one, or one per task
            ),
        ),
        taxonomy_smoothing=dict(
            # which tasks have the smoothing of TaxonomyAwareLabelSmoothing: one value or one per task; empty: none
            enabled=(),
            alpha=0.1,  # probability moved from the true class to related ones
            beta=1.0,  # how fast it falls with distance in the tree: exp(-beta * edges)
            # where no class of a rank has a parent, spread alpha evenly; False: that is an error
            fallback_to_uniform=True,
        ),
        grad_weighting=dict(
            class_weights=dict(
                train=True,  # weight the training loss by class
                val=False,  # weight the validation loss by class
                # how weights follow from the training rows n of a class among all N; one value, or one per task
                method=("none",),
                smoothing_factor=(0.1,),  # of smoothing: N / (n + smoothing_factor)
                cap=(20.0,),  # of capping: the smaller of N / n and cap
                base=(2.0,),  # of exponential: base ** (N / n)
                log_base=(10.0,),  # of logarithmic: 1 / (1 + log_b(n / N * (b - 1) + 1))
                normalize=False,  # rescale so that the mean weight over the training rows is 1
            ),
            task=dict(
                # gradnorm moves the task weights while training, static keeps the initial ones
                type="gradnorm",
                gradnorm_enabled=True,  # False: the weights stay, as with type = static
                init_weights=(),  # initial weights, one per task; empty: by init_strategy
                # inverse_density: 1 / share of labelled rows; class_complexity: also by the logarithm of the classes
                init_strategy="inverse_density",
                alpha=1.5,  # of GradNorm: strength of the pull on tasks that learn slowly; 0: equal gradient norms
                update_interval=100,  # updates between two measurements of GradNorm
                gradnorm_warmup_steps=0,  # updates before the first measurement of GradNorm
                gradnorm_rule="mult",  # mult: damped fixed point; paper: gradient step of the publication
                gradnorm_kappa=0.5,  # of the rule mult: damping; 1 equalises in one update
                gradnorm_lr=0.025,  # of the rule paper: size of a step
                zero_aux_info=True,  # measure without metadata
                use_linear_heads_for_gradnorm_reforward=True,  # measure without the refinement of hierarchical heads
                exclude_config=dict(
                    # kind of the parameter filter that selects what GradNorm leaves out; other kinds have other keys
                    type="name",
                    patterns=("head", "meta_"),  # patterns of the filter
                    match_type="contains",  # how a pattern matches a name: contains, startswith, endswith, regex
                ),
            ),
        ),
    )


def aug() -> Section:
    return dict(
        mean=(0.485, 0.456, 0.406),  # subtracted from red, green and blue, of values in [0, 1]
        std=(0.229, 0.224, 0.225),  # divides what mean leaves
        hflip_prob=0.5,  # probability of a mirror image, left to right
        vflip_prob=0.0,  # probability of a mirror image, top to bottom
        random_resized_crop=dict(
            enabled=True,  # cut out a random part and resize it to img_size
            scale=(0.6, 1.0),  # least and largest area of the part, as a share of the picture, in (0, 1]
            ratio=(0.75, 1.3333333333333333),  # least and largest width / height of the part
        ),
        color_jitter=0.4,  # strength of random brightness, contrast and saturation; 0: off
        autoaug=dict(
            policy="",  # table of random operations (AutoAugment) or randaugment; empty: off
            num_ops=2,  # of randaugment: operations per picture
            magnitude=9.0,  # of randaugment: strength in [0, 10]
        ),
        random_erase=dict(
            prob=0.25,  # probability that rectangles of a picture are erased
            mode="pixel",  # what fills them: noise like the picture (pixel), one grey (const), uniform noise (rand)
            count=1,  # number of rectangles
            area_range=(0.02, 0.4),  # least and largest area erased, as a share of the picture
            aspect_ratio=(0.3, 3.3),  # least and largest height / width of a rectangle
        ),
    )


def schedule() -> Section:
    return dict(
        # crossing: an interval in steps fires at the first end of an epoch from each multiple on; exact: only at one
        step_trigger_mode="crossing",
        validation=dict(
            # how often the validation with all metadata runs, at ends of epochs; default every epoch, 0: never
            **alternatives("interval", int),
            # how often the validation without metadata runs; default every epoch, 0: never
            **alternatives("mask_meta_interval", int),
            at_end=True,  # validate at the end of the run in any case
            partial_mask_meta=dict(
                enabled=False,  # validate with some metadata components masked
                # how often these validations run; default never
                **alternatives("interval", int),
                whitelist=(),  # combinations of components that are masked, such as (("TEMPORAL",), ("SPATIAL",))
            ),
            final_epoch=dict(
                # at the end of the run, mask every combination of the components below
                exhaustive_partial_meta_validation=False,
                exhaustive_meta_components=(),  # components of these combinations: n of them make 2^n - 1 phases
            ),
        ),
        checkpoint=dict(
            # how often a checkpoint is saved, at ends of epochs; also before every validation; default every epoch
            **alternatives("interval", int),
            at_end=True,  # save one at the end of the run in any case
            keep_top_n=0,  # best checkpoints that are kept; 0 here and in keep_last_n: all are kept
            keep_last_n=0,  # newest checkpoints that are kept; 0 here and in keep_top_n: all are kept
            # metric that ranks checkpoints; empty: val/partial_chain_accuracy, else val/chain_accuracy, else val/loss
            best_metric="",
        ),
        meta_masking=dict(
            enabled=True,  # hide all metadata of random rows while training, with a probability that changes linearly
            start_prob=1.0,  # probability at the first update
            end_prob=0.0,  # probability from the end on
            # end of the change; unset or 0: 5000 updates
            **alternatives("end"),
            partial=dict(
                enabled=False,  # hide one combination of components of random rows that are not hidden altogether
                # first update; unset or 0: the beginning
                **alternatives("start"),
                # update from which on nothing is hidden in part any more; unset or 0: the end of the run
                **alternatives("end"),
                start_prob=0.01,  # probability at the first update of the run
                end_prob=0.7,  # probability from the end of its change on
                # end of the change of the probability; 0: that of the masking of all metadata
                **alternatives("prob_end"),
                whitelist=(),  # combinations of components to hide; needed where partial masking is enabled
                weights=(),  # how often each combination is drawn, in their order; empty: equally often
            ),
        ),
        null_masking=dict(
            # let null labels count in the training loss with a probability that changes linearly; False: they count
            enabled=False,
            start_prob=0.0,  # probability that a null label counts, at the first update
            end_prob=1.0,  # probability from the end on
            # end of the change; default 15000 updates
            **alternatives("end"),
        ),
        mixup=dict(
            enabled=True,  # mix pictures of one group: lam of one plus 1 - lam of its partner
            alpha=1.0,  # lam is drawn from Beta(alpha, alpha); 0: nothing is mixed
            cutmix=dict(
                enabled=False,  # paste a rectangle of the partner instead
                alpha=1.0,  # share of the own picture is drawn from Beta(alpha, alpha); 0: nothing is pasted
                minmax=(),  # least and largest share that is pasted; empty: as drawn
            ),
            switch_prob=0.5,  # probability of cutmix where both are enabled
            # ranks whose classes are the groups, one after the other in the course of the run
            group_levels=("taxa_L10",),
            level_switch_steps=(),  # updates at which the next rank of group_levels begins, at the next epoch
            level_switch_epochs=(),  # epochs at which the next rank of group_levels begins
            prob=dict(
                enabled=True,  # False: nothing is ever mixed
                start_prob=1.0,  # probability that a micro-batch is mixed, at the first update
                end_prob=0.2,  # probability from the end on
                # end of the linear change; unset or 0: end_prob holds from the start
                **alternatives("end"),
            ),
            min_group_size=4,  # rows of smaller groups are never mixed
            exclude_null_samples=True,  # rows with a null label are never mixed
            null_task_keys=(),  # ranks whose null labels exclude_null_samples looks at; empty: all
            # consecutive rows of a batch among which partners are drawn; None: the smallest factor of the batch size
            mix_block=placeholder(int),
        ),
        metrics=dict(
            # updates between rows that only the metrics log gets; default 50, 0 or less: none
            **log_interval("step"),
            # updates between lines on the console; default 100, 0 or less: none
            **log_interval("console"),
            # updates between rows for W&B and TensorBoard; default that of step_interval, 0 or less: none
            **log_interval("wandb"),
            # updates between values of the learning rate of each group; default 100, 0 or less: none
            **log_interval("lr"),
            # updates between values of the input pipeline; default 250, 0 or less: none
            **log_interval("pipeline"),
        ),
    )


def log_interval(stream: str) -> Section:
    """Unset keys of the distance between two log points of a stream, in updates or as a fraction of all updates."""
    return {f"{stream}_interval": placeholder(int), f"{stream}_fraction": placeholder(float)}


def metrics() -> Section:
    return dict(
        # subsets of the validation rows below a taxon, each (name, task, taxon id), measured one by one
        taxa_subsets=(),
        # percentiles of the rows per class that divide the classes into subsets, from rare to common; empty: none
        rarity_percentiles=(1, 5, 25, 50, 75, 90, 95, 99),
        track_null_vs_non_null=False,  # show accuracy and loss apart for rows with and without a label
        null_vs_non_null_tasks=("taxa_L10",),  # ranks of which track_null_vs_non_null shows them
        # before the first update compute what simple models reach in validation: the commonest class, the colours of
        # the pictures, the features that train.tune has stored; a run that ends below says so
        baselines=True,
    )


def debug() -> Section:
    return dict(
        # ---- flags: each adds lines `[DEBUG_<FLAG>] ...` to the debug log; see also loss below
        scheduling=False,  # what is due at each end of an epoch and why, rates and probabilities
        checkpoint=False,  # what is saved, restored and removed, and how a checkpoint differs from what is needed
        dataloader=False,  # the input pipeline: settings, first batch, queues and rates; of every process
        augmentation=False,  # settings of the augmentation and what each stage does to the first pictures
        optimizer=False,  # group, optimizer, decay and rate of every parameter, and gradients of each log point
        distributed=False,  # processes, devices and how the state is placed on them; of every process
        model_build=False,  # parameters of the model by part
        training_loop=False,  # lengths of epochs and what is compiled
        validation_metrics=False,  # sums and metrics of every validation phase
        dump_metrics=False,  # the first validation batch, and all metrics at every end of an epoch
        wandb_metrics=False,  # every row that is sent to W&B
        verbose_debug=False,  # settings of the losses in full, and other long texts
        train_metrics=False,  # every row of training metrics
        loss=dict(
            taxonomy_smoothing=False,  # the tree, the smoothing of each rank, and what it does to the first labels
            null_masking=False,  # null labels: how many, which count, and whether the counts fit the schedule
            class_weighting=False,  # class weights, and what they do to the first labels
            gradnorm_memory=False,  # device memory before and after GradNorm measures
            gradnorm_metrics=False,  # norms, targets and weights whenever GradNorm has measured
            verbose_gradnorm_logging=False,  # whole rows of metrics whenever GradNorm has measured
        ),
        # end training after so many updates, without a checkpoint at that point; 0: off
        early_exit_after_n_optimizer_steps=0,
        # seconds without a finished update or validation batch until a warning says what waits; 0: never
        stall_seconds=600.0,
        nans=False,  # end the run at the first NaN and name the operation that made it
        infs=False,  # end the run at the first infinity and name the operation that made it
        crash_bundle=False,  # save the first update with NaN or infinite values, so that tools.replay can repeat it
        underflow_overflow=dict(
            enabled=False,  # look at every module call of every update, and report what led to a NaN or infinity
            max_frames_to_save=21,  # module calls before the bad one that are reported
            trace_batch_nums=(),  # updates, counted from 0, of which every module call is printed
            abort_after_batch_num=placeholder(int),  # end the run after this update; None: not
            gradients=False,  # look at the backward pass, too
        ),
        jsonl=dict(
            enabled=True,  # write the event log, which tools.analyze_debug_logs reads
            dir="{output_dir}/logs/debug",  # folder of the event log; {output_dir} is the run directory
        ),
        profiler=dict(
            enabled=False,  # trace some updates
            output_dir="{output_dir}/assets/profiler",  # folder of the traces; {output_dir} is the run directory
            # updates to wait, to warm up and to record in each cycle, and number of cycles (0: to the end)
            schedule=(1, 1, 3, 2),
            record_shapes=False,  # record the shapes of arrays in the trace
            with_stack=False,  # record the lines of Python code in the trace
            device_memory=False,  # also write a profile of the device's memory, for pprof, at the end of every cycle
        ),
    )
