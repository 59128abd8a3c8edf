"""Names, output and devices of a run."""

from __future__ import annotations

from linnaeus_jax.config.keys import key

LOG_LEVELS = ("debug", "info", "warning", "error", "critical")

EXPERIMENT = dict(
    project=key(
        "linnaeus",
        "first folder below env.output.base_dir of a run without --workdir, and the project in W&B",
        not_empty=True,
    ),
    group=key("default", "second folder, and the group in W&B"),
    name=key("run", "third folder, and the name of the run in W&B", not_empty=True),
    log_level_main=key(
        "INFO", "level of the run's messages on the console; the debug files get all", choices=LOG_LEVELS, any_case=True
    ),
    log_level_h5data=key("INFO", "level on the console of messages about data", choices=LOG_LEVELS, any_case=True),
    log_level_validation=key("INFO", "level on the console while a validation runs", choices=LOG_LEVELS, any_case=True),
    wandb=dict(
        enabled=key(False, "send the metrics to Weights & Biases"),
        project=key("", "project in W&B; empty: experiment.project"),
        entity=key("", "user or team in W&B; empty: the default of the account"),
        tags=key((), "tags of the run in W&B", items=str),
        notes=key("", "notes of the run in W&B"),
        resume=key(
            False,
            "True: the run must be on the server already, else W&B stays off; False: go on with it if it is there",
        ),
        mode=key(
            "online",
            "online sends at once, offline keeps files for `wandb sync`, disabled does nothing; "
            "online obeys WANDB_MODE",
            choices=("online", "offline", "disabled"),
        ),
        run_id=key("", "id of the run in W&B; empty: a new one at the first start, kept over resumes in run_id.txt"),
    ),
    tensorboard=dict(
        enabled=key(False, "write event files to logs/tensorboard of the run directory; needs the package tensorboard"),
    ),
)

ENV = dict(
    output=dict(
        base_dir=key(
            "runs", "run directories without --workdir are <base_dir>/<project>/<group>/<name>", not_empty=True
        ),
        bucket=dict(
            enabled=key(False, "copy the run directory to another place after checkpoints and at the end"),
            remote=key(
                "",
                'rclone remote such as "b2:my-bucket/linnaeus", or a local directory; '
                "<project>/<group>/<name> below it",
            ),
            executable=key("rclone", "program that copies to a remote", not_empty=True),
            timeout_seconds=key(600, "seconds that the last copy may take at the end of the run", within="[1, inf)"),
        ),
    ),
    plugins=key(
        (),
        "modules or .py files of your own, imported before anything else, which register heads, losses, metrics, ...",
        items=str,
    ),
    compilation_cache_dir=key(
        "auto",
        "directory of compiled programs, for a quick next start; auto: in the user's cache directory; empty: off",
    ),
    keep_freed_memory=key(
        True,
        "Linux: keep freed memory for the next update instead of giving it back to the system; False: "
        "a smaller process",
    ),
)

PARALLEL = dict(
    fsdp=key(
        False, "True: each device holds a part of parameters, moving average and optimizer state; False: a whole copy"
    ),
)
