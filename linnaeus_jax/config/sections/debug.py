"""What helps to find a fault."""

from __future__ import annotations

from linnaeus_jax.config.keys import key, unset

DEBUG = dict(
    # ---- flags: each adds lines `[DEBUG_<FLAG>] ...` to the debug log; see also loss below
    scheduling=key(False, "what is due at each end of an epoch and why, rates and probabilities"),
    checkpoint=key(False, "what is saved, restored and removed, and how a checkpoint differs from what is needed"),
    dataloader=key(False, "the input pipeline: settings, first batch, queues and rates; of every process"),
    augmentation=key(False, "settings of the augmentation and what each stage does to the first pictures"),
    optimizer=key(False, "group, optimizer, decay and rate of every parameter, and gradients of each log point"),
    distributed=key(False, "processes, devices and how the state is placed on them; of every process"),
    model_build=key(False, "parameters of the model by part"),
    training_loop=key(False, "lengths of epochs and what is compiled"),
    validation_metrics=key(False, "sums and metrics of every validation phase"),
    dump_metrics=key(False, "the first validation batch, and all metrics at every end of an epoch"),
    wandb_metrics=key(False, "every row that is sent to W&B"),
    verbose_debug=key(False, "settings of the losses in full, and other long texts"),
    train_metrics=key(False, "every row of training metrics"),
    loss=dict(
        taxonomy_smoothing=key(False, "the tree, the smoothing of each rank, and what it does to the first labels"),
        null_masking=key(False, "null labels: how many, which count, and whether the counts fit the schedule"),
        class_weighting=key(False, "class weights, and what they do to the first labels"),
        gradnorm_memory=key(False, "device memory before and after GradNorm measures"),
        gradnorm_metrics=key(False, "norms, targets and weights whenever GradNorm has measured"),
        verbose_gradnorm_logging=key(False, "whole rows of metrics whenever GradNorm has measured"),
    ),
    early_exit_after_n_optimizer_steps=key(
        0,
        "end training after so many updates, without a checkpoint at that point; 0: off",
        within="[0, inf)",
        off="[0, 0]",
    ),
    stall_seconds=key(
        600.0,
        "seconds without a finished update or validation batch until a warning says what waits; 0: never",
        within="[0, inf)",
    ),
    nans=key(False, "end the run at the first NaN and name the operation that made it"),
    infs=key(False, "end the run at the first infinity and name the operation that made it"),
    crash_bundle=key(False, "save the first update with NaN or infinite values, for linnaeus debug replay"),
    underflow_overflow=dict(
        enabled=key(False, "look at every module call of every update, and report what led to a NaN or infinity"),
        max_frames_to_save=key(21, "module calls before the bad one that are reported", within="[1, inf)"),
        trace_batch_nums=key(
            (), "updates, counted from 0, of which every module call is printed", items=int, within="[0, inf)"
        ),
        abort_after_batch_num=unset(int, "end the run after this update; None: not", within="[0, inf)"),
        gradients=key(False, "look at the backward pass, too"),
    ),
    jsonl=dict(
        enabled=key(True, "write the event log, which linnaeus debug events reads"),
        dir=key(
            "{output_dir}/logs/debug", "folder of the event log; {output_dir} is the run directory", not_empty=True
        ),
    ),
    profiler=dict(
        enabled=key(False, "trace some updates"),
        output_dir=key(
            "{output_dir}/assets/profiler", "folder of the traces; {output_dir} is the run directory", not_empty=True
        ),
        schedule=key(
            (1, 1, 3, 2),
            "updates to wait, to warm up and to record in each cycle, and number of cycles (0: to the end)",
            items=int,
            lengths=(4,),
            within="[0, inf)",
        ),
        record_shapes=key(False, "record the shapes of arrays in the trace"),
        with_stack=key(False, "record the lines of Python code in the trace"),
        device_memory=key(False, "also write a profile of the device's memory, for pprof, at the end of every cycle"),
    ),
)
