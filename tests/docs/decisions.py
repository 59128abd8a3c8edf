"""What the tests of the manual do not type as it stands, page by page, and why."""

from __future__ import annotations

#: blocks marked `needs:`, page -> (what it needs, first line of the block) -> why it cannot run in a test
NOT_RUN: dict[str, dict[tuple[str, str], str]] = {
    "docs/checkpoints.md": {
        (
            "account",
            "linnaeus train --config=configs/quickstart.py --config.env.output.bucket.enabled=True"
            " --config.env.output.bucket.remote=b2:my-bucket/linnaeus --workdir=runs/demo",
        ): "needs rclone and an account of a storage service; tests/run/test_remote_sync.py has a program in its place",
    },
    "docs/clusters.md": {
        ("cluster", "#!/bin/bash"): "a batch script of Slurm; tests/docs/test_clusters.py runs it without Slurm",
    },
    "docs/performance.md": {
        (
            "gpu",
            "linnaeus autobatch --config=configs/mformer_v1_sm.py --fractions 0.6,0.8",
        ): "CPUs do not say how much memory they have; tests/run/test_autobatch.py gives it",
        (
            "gpu",
            "python -m benchmarks.train_step --model mFormerV1-sm --img-size 384 --batch 64 --no-remat --updates 10 "
            "--torch convnext_tiny",
        ): "measures a GPU beside PyTorch; tests/test_train_step_benchmark.py measures this machine",
    },
    "docs/exports.md": {
        (
            "network",
            "pip install 'linnaeus-jax[onnx]' && pip install --no-deps jax2onnx",
        ): "installs into the environment that is tested; .ci/run does so before the tests that need it",
    },
    "docs/wandb_tensorboard.md": {
        (
            "account",
            "linnaeus train --config=configs/quickstart.py --workdir=runs/watched"
            " --config.experiment.wandb.enabled=True",
        ): "needs an account of W&B; tests/reporting/test_wandb_sink.py has a server in its place",
        (
            "account",
            'linnaeus debug replay-metrics runs/demo --project=moths --name="demo, again"',
        ): "needs an account of W&B; tests/reporting/test_wandb_sink.py has a server in its place",
    },
}

#: commands that something else types: page -> line -> file and name of a test, or a script that has the command
TYPED_ELSEWHERE: dict[str, dict[str, str]] = {
    "README.md": {
        "make demo": ("tests/tools/test_mains.py::test_make_demo_and_its_baselines"),
        "make test": ".ci/run",
        "make setup": ".ci/newcomer",
        ". .venv/bin/activate": ".ci/newcomer",
    },
    "docs/exports.md": {
        "linnaeus export bundle exported_onnx --onnx": (
            "tests/inference/test_onnx.py::test_the_example_answers_as_that_of_jax_does"
        ),
        "linnaeus export bundle exported_int8 --onnx --int8 photos": (
            "tests/inference/test_onnx.py::test_quantized_convolutions_answer_alike_in_a_quarter_of_the_bytes"
        ),
    },
    "docs/clusters.md": dict.fromkeys(
        (
            "for i in 0 1; do",
            (
                "linnaeus train --config=configs/quickstart.py --workdir=runs/two"
                " --coordinator=localhost:8476 --processes=2 --process=$i &"
            ),
            "done; wait",
        ),
        "tests/docs/test_clusters.py::test_two_processes_on_one_machine",
    ),
    "docs/your_data.md": dict.fromkeys(("make setup", ". .venv/bin/activate"), ".ci/newcomer")
    | dict.fromkeys(
        (
            "linnaeus build --folders pictures --out data/mine --size 96",
            "linnaeus train --config=data/mine/config.py --workdir=runs/mine",
            "$ linnaeus train --config=data/mine/config.py --workdir=runs/mine",
        ),
        "tests/docs/test_your_data.py::test_a_newcomer_has_a_report_after_four_commands",
    ),
}

#: the run of the workspace; the pages find it as `runs/demo`
FIRST_RUN = "linnaeus train --config=configs/quickstart.py --config.train.epochs=3 --workdir=runs/first"
#: commands that are typed while the workspace is made: page -> line -> run directory, beside it what was printed
TYPED_BEFORE: dict[str, dict[str, str]] = {"docs/first_run.md": {f"$ {FIRST_RUN}": "runs/first"}}

#: pages that show what depends on how the compiler fuses operations; the commands of others are compiled as in tests
COMPILED_AS_USERS = ("docs/overflow.md",)

#: pages that train anew, and show nothing of the data: they find a demo of a fifth of its rows
FEWER_ROWS = ("docs/growing.md",)

#: commands that take minutes as they stand, or find their work done: page -> line -> what is typed behind them
SHORTENED: dict[str, dict[str, str]] = {
    "docs/first_run.md": {
        # the run of the workspace, which is complete
        "linnaeus train --config=configs/quickstart.py --workdir=runs/demo": (
            "--config.train.epochs=3 --config.experiment.tensorboard.enabled=true"
        ),
    },
    "README.md": {"linnaeus train --config=data/mine/config.py --workdir=runs/mine": "--config.train.epochs=2"},
    "docs/profiling.md": {
        (
            "linnaeus train --config=configs/quickstart.py --workdir=runs/profiled --config.train.epochs=1"
            " --config.debug.early_exit_after_n_optimizer_steps=30 --config.debug.profiler.enabled=true"
            " --config.debug.profiler.schedule=10,1,5,1 --config.debug.profiler.device_memory=true"
            " --config.schedule.metrics.pipeline_interval=10"
        ): "--config.train.epochs=3",
    },
    "docs/performance.md": {"$ linnaeus check --config=configs/quickstart.py": "--config.train.epochs=3"},
    "docs/migration.md": {
        (
            "$ linnaeus train --config=configs/yaml.py:moths.yaml --config.train.epochs=1 --workdir=runs/moths"
        ): "--config.debug.early_exit_after_n_optimizer_steps=8",
    },
}
