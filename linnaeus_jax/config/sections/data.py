"""Files, rows and pictures."""

from __future__ import annotations

from linnaeus_jax.config.keys import key, unset

#: least share of the shorter side that a crop keeps, since the whole picture is enlarged as much
LEAST_CROP = 0.25

DATA = dict(
    batch_size=unset(
        int,
        "rows of one micro-batch over all devices of all processes; None: 64, unless batch_size_per_device is given",
        within="[1, 1048576]",
    ),
    batch_size_per_device=unset(
        int, "rows of one micro-batch on each device; give this or batch_size, not both", within="[1, 1048576]"
    ),
    autobatch=dict(
        enabled=key(
            False,
            "find the largest batch_size_per_device that fits the memory of a device, before anything else is decided",
        ),
        target_memory_fraction=key(0.8, "share of a device's memory that an update may take", within="(0, 1]"),
        min_batch_size=key(1, "least rows on each device; an error where even they do not fit", within="[1, 1048576]"),
        max_batch_size=key(512, "most rows on each device", within="[1, 1048576]"),
        device_memory_gb=key(
            0.0,
            "memory of one device in 10^9 bytes; 0: as the device says, which CPUs do not",
            within="[0, inf)",
            off="[0, 0]",
        ),
    ),
    batch_size_val=key(
        128,
        "rows of a validation batch over all devices, rounded up to a multiple of them; 0 or less: as the micro-batch",
        within="(-inf, 1048576]",
        off="(-inf, 0]",
    ),
    img_size=key(384, "height and width of the model's input in pixels", within="[32, 4096]"),
    resize_mode=key(
        "squash",
        "how pictures that are not square become so: squash, cut out the centre, or pad with black",
        choices="linnaeus_jax.data.preprocessing:RESIZE_MODES",
    ),
    interpolation=key(
        "area",
        "area, or Pillow's nearest, nearest_exact, bilinear, bicubic or lanczos, as pretrained weights may need",
        choices="linnaeus_jax.data.preprocessing:INTERPOLATIONS",
    ),
    crop_fraction=key(
        1.0,
        "share of the shorter side that center_crop keeps; 0.875 with img_size 224 cuts these out of 256 pixels",
        within=f"[{LEAST_CROP}, 1]",
    ),
    reduced_decode=key(
        True, "area: decode JPEG at 1/2, 3/8, 1/4 or 1/8 of its size where that still has img_size pixels"
    ),
    num_workers=key(2, "threads that put whole batches together; 0: the main thread does", within="[0, 1024]"),
    worker_processes=key(
        0,
        "processes that read instead of threads, for decoders that hold Python's lock; 0: threads",
        within="[0, 1024]",
    ),
    dataset=dict(
        name=key("", "name of the data set, for the log"),
        version=key("", "version of the data set, for the log"),
        clade=key("", "clade of the data set, for the log"),
    ),
    task_keys_h5=key(
        ("taxa_L10", "taxa_L20", "taxa_L30", "taxa_L40"),
        "columns of the labels file that are learned, one task each, finest rank first",
        items=str,
    ),
    sampler=dict(
        type=key(
            "grouped",
            "grouped: rows of a batch come with a partner of their group to be mixed with; standard: random order",
            choices="linnaeus_jax.data.samplers:SAMPLERS",
            refused_elsewhere=True,
        ),
        grouped_mode=key(
            "mixed-pairs",
            "mixed-pairs: a batch holds pairs of many groups; strict-group: a batch is of one group",
            choices=("mixed-pairs", "strict-group"),
        ),
        leftovers=key("keep", "keep or drop the rows that no pair or group could take", choices=("keep", "drop")),
        class_balance=key(
            "none",
            "how often a class is drawn: by its rows (none), by their square root, or all classes equally",
            choices="linnaeus_jax.data.samplers:CLASS_BALANCE",
        ),
        class_balance_task=key("", "rank whose classes are balanced; empty: the finest"),
    ),
    partial=dict(
        levels=key(False, "use rows whose label is unknown (null) at some rank; False: they are left out"),
    ),
    hide_taxa=key(
        (),
        "names or ids of taxa whose rows, and those of all below, are not used: to measure what is said of new ones",
        items=str,
    ),
    out_of_region=dict(
        include=key(True, "use rows that the labels file marks as outside the region (`in_region` = 0)"),
    ),
    upward_major_check=key(False, "leave out rows whose known ranks do not form the pattern of upward_major_mode"),
    upward_major_mode=key(
        "all-finer",
        "all-finer: no rank is null below a known one; no-gaps: no rank is null above a known one",
        choices=("all-finer", "no-gaps"),
    ),
    meta=dict(
        active=key(True, "False: the model gets no metadata at all"),
        components=dict(
            TEMPORAL=dict(source="temporal", dim=2, idx=0),
            SPATIAL=dict(source="spatial", dim=3, idx=1),
            ELEVATION=dict(source="elevation_broadrange_2", dim=10, idx=2, enabled=False),
        ),
    ),
    h5=dict(
        train_labels_path=key("", "labels file of the training rows, of data in two files"),
        val_labels_path=key("", "labels file of the validation rows, of data in two files"),
        labels_path=key("", "labels file of data in one file, which is split"),
        train_images_path=key("", "pictures of train_labels_path; the suffix decides how they are read"),
        val_images_path=key("", "pictures of val_labels_path"),
        images_path=key("", "pictures of labels_path"),
        train_val_split_ratio=key(0.9, "share of training rows where one file is split at random", within="[0, 1]"),
        train_val_split_seed=key(42, "seed of the random split", within="[0, 4294967295]"),
        use_split_column=key(
            True, "take the split that the labels file says in its dataset `split`; False: split at random all the same"
        ),
    ),
    hybrid=dict(
        use_hybrid=key(False, "pictures are files in a folder, labels a labels file"),
        images_dir=key("", "folder of the pictures"),
        train_images_dir=key("", "folder of the training pictures, of data in two files; empty: images_dir"),
        val_images_dir=key("", "folder of the validation pictures, of data in two files; empty: images_dir"),
        file_extension=key(".jpg", "added to identifiers of the labels file that lack it, to make file names"),
        allow_missing_images=key(
            False,
            "a picture that cannot be read is black and counts in no loss, with a warning; False: it ends the run",
        ),
        verify_images=dict(
            enabled=key(False, "look for every picture before the start; rows without one are left out"),
            max_missing_ratio=key(
                0.0,
                "largest share of missing pictures with which a run starts; below 0: no limit",
                within="(-inf, 1]",
                off="(-inf, 0)",
            ),
            max_missing_count=key(
                0,
                "largest number of missing pictures with which a run starts; below 0: no limit",
                within="(-inf, inf)",
                off="(-inf, 0)",
            ),
            num_workers=key(8, "threads that look; 0: one for each core", within="[0, 1024]", off="[0, 0]"),
            chunk_size=key(1000, "rows per piece of work", within="[1, inf)"),
            log_missing=key(True, "list the missing pictures in the report"),
            report_path=key(
                "{output_dir}/assets/missing_images_report.json",
                "JSON file of the result; {output_dir} is the run directory",
                not_empty=True,
            ),
        ),
    ),
    prefetch=dict(
        mem_cache_size=key(10 * 1024**3, "bytes of decoded pictures that are kept; 0: none", within="[0, 1e15]"),
        max_processed_batches=key(4, "finished batches that may wait for the device", within="[1, 1024]"),
        num_io_threads=unset(
            int,
            "threads that decode pictures, shared by all batches; None: one for each core, at most 32",
            within="[0, 1024]",
        ),
    ),
    parent_conflict_limit=key(
        0.2,
        "largest share of a class's rows that may name another parent than most do; beyond it the run ends",
        within="[0, 1]",
    ),
)

#: An entry of `data.meta.components`.
COMPONENT = dict(
    enabled=key(True, "use the component"),
    source=key("", "dataset of the labels file that holds its columns"),
    columns=key((), "names of the columns to take, in this order; empty: all of them, in the file's order", items=str),
    dim=key(0, "number of columns", within="[0, 65536]"),
    idx=key(0, "place in the metadata vector, ascending; below 0: the component is not used", within="(-inf, inf)"),
    allow_missing=key(True, "False: leave out rows in which the component is not known"),
    oor_mask=key(False, "the component counts as missing in rows outside the region (`in_region` = 0)"),
)
