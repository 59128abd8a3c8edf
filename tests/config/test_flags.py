from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from linnaeus_jax.config import ConfigError, load_config

YAML_CONFIG = Path(__file__).parents[2] / "configs" / "yaml.py"


@pytest.fixture
def base(tmp_path):
    path = tmp_path / "base.py"
    path.write_text(
        "from linnaeus_jax.config import get_config as default\n\n"
        "def get_config(epochs='7'):\n"
        "    config = default()\n"
        "    config.train.epochs = int(epochs)\n"
        "    return config\n"
    )
    return str(path)


def override(base, *overrides):
    return load_config([f"--config={base}", *(f"--config.{text}" for text in overrides)])


def messages(argv):
    with pytest.raises(ConfigError) as caught:
        load_config(argv)
    return caught.value.messages


def test_typed_overrides(base):
    config, extra = override(
        base,
        "train.epochs=3",
        "train.clip_grad=1",
        "train.ema.enabled=TRUE",
        "aug.autoaug.policy=3a",
        "schedule.mixup.enabled=0",
        "schedule.validation.interval_steps=1e3",
        "train.early_stop.max_loss=2.5",
        "train.early_stop.max_loss=None",
        "lr_scheduler.warmup_fraction=5e-2",
        "loss.grad_weighting.class_weights.method=none",
        "experiment.wandb.tags=a,b",
        "data.task_keys_h5=(taxa_L10,taxa_L20)",
        "optimizer.betas=(0.9,0.95)",
        "schedule.meta_masking.partial.whitelist=((TEMPORAL,),(SPATIAL,ELEVATION))",
        "loss.taxonomy_smoothing.enabled=(true,false)",
        "debug.profiler.schedule=1,1,3,1",
        "aug.random_resized_crop.scale=()",
        "experiment.wandb.notes=a, b=c: (d)",
        "data.meta.components.ELEVATION.enabled=true",
        "optimizer.parameter_groups.enabled=true",
        "optimizer.parameter_groups.Heads.lr_multiplier=2",
        "optimizer.parameter_groups.Heads.filter.type=name",
        "optimizer.parameter_groups.Heads.filter.patterns=head.,meta_",
        "loss.grad_weighting.task.exclude_config.patterns=head",
        "debug.nans",
    )
    train = config.train
    assert (train.epochs, train.clip_grad, train.ema.enabled) == (3, 1.0, True)
    assert isinstance(train.clip_grad, float)
    assert (config.aug.autoaug.policy, config.schedule.mixup.enabled) == ("3a", False)
    assert (config.schedule.validation.interval_steps, train.early_stop.max_loss) == (1000, None)
    assert config.lr_scheduler.warmup_fraction == 0.05
    assert config.loss.grad_weighting.class_weights.method == ("none",)
    assert config.experiment.wandb.tags == ("a", "b")
    assert config.data.task_keys_h5 == ("taxa_L10", "taxa_L20")
    assert config.optimizer.betas == (0.9, 0.95)
    assert config.schedule.meta_masking.partial.whitelist == (("TEMPORAL",), ("SPATIAL", "ELEVATION"))
    assert config.loss.taxonomy_smoothing.enabled == (True, False)
    assert config.debug.profiler.schedule == (1, 1, 3, 1)
    assert config.aug.random_resized_crop.scale == ()
    assert config.experiment.wandb.notes == "a, b=c: (d)"
    assert config.data.meta.components.ELEVATION.enabled
    heads = config.optimizer.parameter_groups.Heads
    assert (heads.lr_multiplier, heads.weight_decay, heads.frozen) == (2.0, None, False)
    assert heads.filter.to_dict() == {"type": "name", "patterns": ("head.", "meta_")}
    assert config.loss.grad_weighting.task.exclude_config.patterns == ("head",)
    assert config.debug.nans
    assert config.is_locked
    assert extra["overrides"]["train.epochs"] == 3
    assert extra["workdir"] is None


def test_options_and_documented_switches(base, tmp_path):
    config, extra = load_config(
        ["--config", f"{base}:9", "--workdir", "/w", "--skip-validation", "--debug", "underflow_overflow"]
        + ["--no-enable_debug_logger", "--debug_log_dir", "./logs/debug", "--config.train.seed", "-1"]
    )
    assert (config.train.epochs, config.train.seed, config.train.skip_validation) == (9, -1, True)
    assert config.debug.underflow_overflow.enabled
    assert (config.debug.jsonl.enabled, config.debug.jsonl.dir) == (False, "./logs/debug")
    assert (extra["workdir"], extra["skip_validation"], extra["config_file"]) == ("/w", True, f"{base}:9")
    assert load_config([f"--config={base}", "--enable_debug_logger"])[0].debug.jsonl.enabled

    path = tmp_path / "experiment.yaml"
    path.write_text("TRAIN: {EPOCHS: 4}")
    config, _ = load_config([f"--config={YAML_CONFIG}:{path}", "--config.debug.loss.taxonomy_smoothing=true"])
    assert (config.train.epochs, config.debug.loss.taxonomy_smoothing) == (4, True)


def test_all_errors_at_once(base):
    found = messages(
        [f"--config={base}", "--config.train.epoch=3", "--config.train.epochs=three", "--config.TRAIN.SEED=1"]
        + ["--config.train.ema=1", "--config.train.deterministic=maybe", "--wokdir=x", "stray", "--workdir"]
        + ["--debug=tpu", "--config.schedule.mixup.group_levels={a", "--config.train.seed=None"]
    )
    for part in (
        "--config.train.epoch: unknown key; did you mean --config.train.epochs?",
        "--config.train.epochs = 'three': expected an integer (now 7)",
        "--config.TRAIN.SEED: unknown key; did you mean --config.train.seed?",
        "--config.train.ema = '1': this is a section; set one of its keys: decay, enabled",
        "--config.train.deterministic = 'maybe': expected true or false (now False)",
        "--wokdir is not an option; did you mean --workdir?",
        "'stray' is not an option",
        "--workdir needs a value: --workdir=VALUE",
        "--debug 'tpu' is unknown; the only choice is underflow_overflow",
        "--config.schedule.mixup.group_levels = '{a': expected a list",
        "--config.train.seed = None: expected an integer",
    ):
        assert any(message.startswith(part) for message in found), (part, found)
    assert len(found) == 11


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "--config is missing; for a first run use --config=configs/quickstart.py"),
        (["--config=a.yaml"], "--config=a.yaml: YAML is loaded by --config=configs/yaml.py:a.yaml"),
        ([f"--config={YAML_CONFIG}"], f"--config={YAML_CONFIG}: needs an argument: --config={YAML_CONFIG}:PATH"),
        (["--config=a.py", "--config=b.py"], "there is no such file"),
    ],
)
def test_config_file_errors(argv, message):
    assert message in messages(argv)[-1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def get_config(:\n", "bad.py:1: SyntaxError"),
        ("x = 1\n", "has no function get_config()"),
        ("def get_config():\n    return {}\n", "returned dict, not a ConfigDict"),
        (
            "from linnaeus_jax.config import get_config as d\n\ndef get_config():\n    c = d()\n    c.aug.epoch = 1\n",
            "bad.py:5: AttributeError",
        ),
        ("def get_config():\n    return 1 / 0\n", "bad.py:2: ZeroDivisionError: division by zero"),
    ],
)
def test_broken_config_file_is_one_line(tmp_path, text, message):
    path = tmp_path / "bad.py"
    path.write_text(text)
    (found,) = messages([f"--config={path}"])
    assert message in found
    assert "\n" not in found


def test_missing_file_names_the_nearest(base):
    assert messages([f"--config={base[:-4]}.py"])[0].endswith(f"did you mean {base}?")


def test_other_programs_command_lines_end_with_the_replacement():
    (text,) = messages(shlex.split("--cfg /path/to/config.yaml --opts DEBUG.LOSS.TAXONOMY_SMOOTHING true"))
    assert text.splitlines()[1].strip() == (
        "python -m linnaeus_jax.main --config=configs/yaml.py:/path/to/config.yaml "
        "--config.debug.loss.taxonomy_smoothing=true"
    )
    (text,) = messages(
        shlex.split(
            "--datadir /path/to/data --metapath /path/to/train.json --val_metapath /path/to/val.json "
            "--saving_path ./ckpt --enable_debug_logger --debug_log_dir ./logs/debug"
        )
    )
    assert text.splitlines()[1].strip() == (
        "python -m linnaeus_jax.main --config=configs/quickstart.py --config.data.hybrid.use_hybrid=true "
        "--config.data.hybrid.images_dir=/path/to/data --config.data.h5.train_labels_path=/path/to/train.h5 "
        "--config.data.h5.val_labels_path=/path/to/val.h5 --workdir=./ckpt --enable_debug_logger "
        "--debug_log_dir=./logs/debug"
    )
    (text,) = messages(
        shlex.split("--cfg a.yaml --opts TRAIN.EPOCH 3 DATA.PIN_MEMORY true METRICS.LR_INTERVAL 5 ODD --lr 1")
    )
    assert "--config.schedule.metrics.lr_interval=5" in text
    assert "TRAIN.EPOCH is left out: there is no such key; did you mean train.epochs?" in text
    assert "DATA.PIN_MEMORY is left out: JAX manages" in text
    assert "ODD is left out: it has no value" in text
    assert "--lr is left out" in text


def test_help(capsys):
    with pytest.raises(SystemExit) as caught:
        load_config(["--help"])
    assert caught.value.code == 0
    assert "--config.a.b=VALUE" in capsys.readouterr().out
