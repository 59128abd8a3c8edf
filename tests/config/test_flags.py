from __future__ import annotations

import functools
import os
import shlex
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest

from linnaeus_jax.checks.config import config_errors
from linnaeus_jax.config import ConfigError, load_config
from linnaeus_jax.config.keys import value_of
from linnaeus_jax.demo.generate import MIN_ROWS, write_demo
from tests.forks import call

ROOT = Path(__file__).parents[2]
YAML_CONFIG = ROOT / "configs" / "yaml.py"


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


def test_shipped_configurations_have_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config(["--config=quickstart"])[0].experiment.name == "quickstart"
    (tmp_path / "a.yaml").write_text("TRAIN: {EPOCHS: 9}")
    assert load_config(["--config=yaml:a.yaml"])[0].train.epochs == 9
    assert messages(["--config=quickstrat"]) == ["--config=quickstrat: there is no such file; did you mean quickstart?"]


def test_typed_overrides(base):
    config, workdir = override(
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
    assert workdir is None


def test_options_and_documented_switches(base, tmp_path):
    config, workdir = load_config(
        ["--config", f"{base}:9", "--workdir", "/w", "--skip-validation", "--debug", "underflow_overflow"]
        + ["--no-enable_debug_logger", "--debug_log_dir", "./logs/debug", "--config.train.seed", "-1"]
    )
    assert (config.train.epochs, config.train.seed, config.train.skip_validation) == (9, -1, True)
    assert config.debug.underflow_overflow.enabled
    assert (config.debug.jsonl.enabled, config.debug.jsonl.dir) == (False, "./logs/debug")
    assert workdir == "/w"
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
        (
            "from linnaeus_jax.config import get_config as d\n\ndef get_config():\n    c = d()\n"
            "    c.data.meta.components.HABITAT = {}\n    return c\n",
            "config is locked. A new entry, such as a metadata component, is added within `with config.unlocked():`",
        ),
        (
            "from linnaeus_jax.config import get_config as d\n\ndef get_config():\n    d().train.epoch = 1\n",
            'Did you mean "epochs" instead of "epoch"?',
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


def test_a_misspelt_folder_is_seen_through(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "data" / "grocery" / "config.py"
    path.parent.mkdir(parents=True)
    path.write_text("")
    (tmp_path / "other").mkdir()
    meant = "there is no such file; did you mean data/grocery/config.py?"
    for given in ("data/grocry/config.py", "dta/grocery/confg.py", "data/grocery/config"):
        assert messages([f"--config={given}"]) == [f"--config={given}: {meant}"]
    assert messages([f"--config={tmp_path}/data/grocry/config.py"])[0].endswith(f"did you mean {path}?")
    assert messages(["--config=nowhere/at/all.py"]) == ["--config=nowhere/at/all.py: there is no such file"]
    path.with_name("build.py").write_text("")
    (found,) = messages(["--config=data/grocery"])
    assert "this is a directory; give a Python file with get_config(); did you mean data/grocery/config.py?" in found
    assert messages(["--config=other"])[0].endswith("this is a directory; give a Python file with get_config()")


@pytest.mark.parametrize("name", ["pipe.py", "yaml:pipe.yaml", "yaml:base.yaml", "plugin"])
def test_a_pipe_or_a_device_is_no_configuration(tmp_path, monkeypatch, base, name):
    """To open a pipe waits for whoever writes into it."""
    monkeypatch.chdir(tmp_path)
    for pipe in ("pipe.py", "pipe.yaml"):
        os.mkfifo(pipe)
    Path("base.yaml").write_text("BASE: pipe.yaml\n")
    arguments = [f"--config={base}", "--config.env.plugins=pipe.py"] if name == "plugin" else [f"--config={name}"]
    (found,) = messages(arguments)
    assert "this is a pipe (FIFO)" in found
    assert "did you mean" not in found


def test_a_device_and_a_folder_are_named(tmp_path):
    assert "this is a device" in messages(["--config=/dev/null"])[0]
    assert "this is a device" in messages(["--config=yaml:/dev/zero"])[0]
    (tmp_path / "a.yaml").mkdir()
    assert messages([f"--config=yaml:{tmp_path}/a.yaml"]) == [f"{tmp_path}/a.yaml: this is a directory; give a file"]


def replacement(command):
    """The printed command without the program, and the notes below it."""
    (text,) = messages(shlex.split(command))
    first, line, *notes = text.splitlines()
    assert first == "these are options of another program; use instead:"
    assert line.startswith("  linnaeus train ")
    assert all(note.startswith("  # ") for note in notes)
    return shlex.split(line)[2:], "\n".join(notes)


TRAIN_SCRIPT = (
    "--datadir {0}/photos --metapath {0}/train.json --val_metapath {0}/val.json --saving_path {0}/ckpt "
    "--enable_debug_logger --debug_log_dir ./logs/debug ... other args ..."
)


def test_other_programs_command_lines_end_with_the_replacement():
    found, notes = replacement("--cfg /path/to/config.yaml --opts DEBUG.LOSS.TAXONOMY_SMOOTHING true")
    assert found == ["--config=configs/yaml.py:/path/to/config.yaml", "--config.debug.loss.taxonomy_smoothing=true"]
    assert notes == ""
    found, notes = replacement(TRAIN_SCRIPT.format("/path/to"))
    assert found == [
        "--config=configs/quickstart.py",
        "--config.data.hybrid.use_hybrid=true",
        "--config.data.hybrid.images_dir=/path/to/photos",
        "--config.data.h5.images_path=",
        "--config.data.h5.labels_path=",
        "--config.data.h5.train_labels_path=/path/to/train.h5",
        "--config.data.h5.val_labels_path=/path/to/val.h5",
        "--workdir=/path/to/ckpt",
        "--enable_debug_logger",
        "--debug_log_dir=./logs/debug",
    ]
    assert "/path/to/train.h5 stands for train.json as a labels file, see docs/your_data.md" in notes
    assert (ROOT / "docs" / "your_data.md").is_file()
    assert "... other args ... is left out: no option before it" in notes
    _, notes = replacement(
        "--cfg a.yaml --opts TRAIN.EPOCH 3 DATA.PIN_MEMORY true MODEL.IN_CHANS 3 TRAIN.AMP_OPT_LEVEL O9 ODD --lr 1"
    )
    assert "TRAIN.EPOCH is left out: there is no such key; did you mean train.epochs?" in notes
    assert "DATA.PIN_MEMORY is left out: JAX manages" in notes
    assert "MODEL.IN_CHANS is left out: images always have three channels" in notes
    assert "TRAIN.AMP_OPT_LEVEL is left out: TRAIN.AMP_OPT_LEVEL = 'O9': choose one of O0" in notes
    assert "ODD is left out: it has no value" in notes
    assert "--lr is left out" in notes


@pytest.mark.parametrize(
    ("command", "key", "value"),
    [
        ("--cfg YAML", "train.epochs", 4),
        ("--cfg YAML --opts DEBUG.LOSS.TAXONOMY_SMOOTHING true", "debug.loss.taxonomy_smoothing", True),
        ("--cfg YAML --opts DATA.BATCH_SIZE 32 TRAIN.AMP_OPT_LEVEL O0", "data.batch_size_per_device", 32),
        ("--cfg YAML --opts TRAIN.AMP_OPT_LEVEL O1", "train.compute_dtype", "bfloat16"),
        ("--cfg YAML --opts METRICS.LR_INTERVAL 5 ENV.OUTPUT.BUCKET.APP_KEY hush", "schedule.metrics.lr_interval", 5),
        ("--cfg YAML --opts OPTIMIZER.BETAS '(0.9, 0.95)' --debug underflow_overflow", "optimizer.betas", (0.9, 0.95)),
        ("--opts DATA.BATCH_SIZE 32", "data.batch_size_per_device", 32),
        ("--cfg=YAML --skip-validation --no-enable_debug_logger", "debug.jsonl.enabled", False),
        (TRAIN_SCRIPT.format("/there"), "data.h5.val_labels_path", "/there/val.h5"),
        ("--datadir '/my photos' --metapath all.json", "data.h5.labels_path", "all.h5"),
        ("--datadir photos", "data.h5.labels_path", "LABELS.h5"),
        ("--metapath all.json --val_metapath some.json", "data.hybrid.images_dir", "IMAGES"),
        ("--val_metapath some.json", "data.h5.train_labels_path", "LABELS.h5"),
        ("--datadir photos --saving_path out --config.train.epochs=2", "train.epochs", 2),
    ],
)
def test_every_replacement_is_a_valid_command(tmp_path, monkeypatch, command, key, value):
    monkeypatch.chdir(ROOT)
    path = tmp_path / "experiment.yaml"
    path.write_text("TRAIN: {EPOCHS: 4}\nDATA: {BATCH_SIZE: 8, H5: {LABELS_PATH: l.h5, IMAGES_PATH: i.h5}}")
    found, notes = replacement(command.replace("YAML", str(path)))
    config, _ = load_config(found)
    assert config_errors(config) == []
    assert value_of(config, key) == value
    assert "hush" not in " ".join(found) + notes


@pytest.mark.slow
def test_the_printed_command_trains(tmp_path):
    """What is printed for the documented line, run as printed on pictures in a folder; it stops after one update."""
    write_demo(tmp_path / "demo", rows=MIN_ROWS)
    (tmp_path / "photos").mkdir()
    with h5py.File(tmp_path / "demo" / "images.h5") as images, h5py.File(tmp_path / "demo" / "labels.h5") as labels:
        for name, picture in zip(labels["img_identifiers"].asstr(), images["images"]):
            cv2.imwrite(str(tmp_path / "photos" / f"{name}.jpg"), picture[..., ::-1])
        held_out = np.arange(MIN_ROWS) % 5 == 0
        for split, rows in (("train", ~held_out), ("val", held_out)):
            with h5py.File(tmp_path / f"{split}.h5", "w") as file:
                for name, column in labels.items():
                    if isinstance(column, h5py.Dataset):
                        file.create_dataset(name, data=column[:][rows]).attrs.update(column.attrs)
    start = functools.partial(call, directory=ROOT, environment={"JAX_NUM_CPU_DEVICES": "1"})
    printed = start("linnaeus_jax.main", shlex.split(TRAIN_SCRIPT.format(tmp_path)), tmp_path / "printed", seconds=120)
    assert printed.status == 2
    linnaeus, verb, *arguments = shlex.split(printed.error.splitlines()[1])
    assert (linnaeus, verb) == ("linnaeus", "train")
    few = ("debug.early_exit_after_n_optimizer_steps=1", "data.batch_size=8", "data.img_size=32")
    command = [*arguments, *(f"--config.{key}" for key in few)]
    done = start("linnaeus_jax.main", command, tmp_path / "trained", seconds=600)
    assert done.status == 0, done.error
    assert (tmp_path / "ckpt" / "report.html").exists()
    assert list((tmp_path / "ckpt" / "logs" / "debug").glob("debug_log_*.jsonl"))


def test_help(capsys):
    with pytest.raises(SystemExit) as caught:
        load_config(["--help"])
    assert caught.value.code == 0
    assert "--config.a.b=VALUE" in capsys.readouterr().out


@pytest.mark.parametrize("number", ["inf", "-inf", "nan", "9" * 100_000])
def test_what_is_no_integer_is_one_short_line(base, number):
    (message,) = messages([f"--config={base}", f"--config.train.epochs={number}"])
    assert "expected an integer" in message
    assert len(message) < 200


@pytest.mark.parametrize("text", ["(" * 100_000, "(" * 100_000 + ")" * 100_000, "[" * 30 + "1" + "]" * 30])
def test_lists_within_lists_have_an_end(base, text):
    (message,) = messages([f"--config={base}", f"--config.aug.mean={text}"])
    assert "expected a list" in message
    assert len(message) < 250


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("import sys; sys.exit(3)", "the file ends the program by sys.exit"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})", "its text cannot be had"),
        ("return __import__('ml_collections').ConfigDict()", "the configuration lacks aug, data, debug and"),
        ("return __import__('ml_collections').ConfigDict({'data': 3})", "lacks aug, data, debug and"),
        ("c = default(); c.unlock(); del c.train.epochs; return c", "lacks train.epochs; begin with"),
        ("return 3", "returned int, not a ConfigDict"),
        (
            "c = default(); c.optimizer.parameter_groups.unlock(); c.optimizer.parameter_groups.x = 3; return c",
            "section",
        ),
        (
            "t = ()\n    for _ in range(10**5): t = (t,)\n    c = default(); c.metrics.taxa_subsets = t; return c",
            "nested without end",
        ),
    ],
)
def test_config_files_that_are_none(tmp_path, body, message):
    path = tmp_path / "wrong.py"
    path.write_text(f"from linnaeus_jax.config import get_config as default\n\ndef get_config():\n    {body}\n")
    (found,) = messages([f"--config={path}"])
    assert message in found


def test_keys_that_nothing_reads_are_unknown(tmp_path):
    """An unlocked tree takes them; a filter is read as a whole."""
    path = tmp_path / "more.py"
    path.write_text(
        "from linnaeus_jax.config import get_config as default\n\n"
        "def get_config():\n    c = default(); c.unlock(); c.train.epoch = 7; c.nothing = 1\n"
        "    c.loss.grad_weighting.task.exclude_config.more = 1; return c\n"
    )
    assert messages([f"--config={path}"]) == [
        f"--config={path}: nothing: unknown key",
        f"--config={path}: train.epoch: unknown key; did you mean train.epochs?",
    ]


def test_entries_of_open_nodes_may_be_left_out(tmp_path):
    path = tmp_path / "fewer.py"
    path.write_text(
        "from linnaeus_jax.config import get_config as default\n\n"
        "def get_config():\n    c = default(); c.unlock(); del c.data.meta.components.ELEVATION; return c\n"
    )
    assert "ELEVATION" not in load_config([f"--config={path}"])[0].data.meta.components
