"""Bad configurations: values, files, YAML and command lines."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.saved import flatten
from linnaeus_jax.config.tree import FILTER_KEYS, kind_of
from tests.campaign.inputs_given import CHECK, DRAW, Given, Made
from tests.forks import MAIN

LONG = 10**5
EMPTY = "(" * 15 + ")" * 15
#: kind of a key -> texts that no key of the kind may have
NEVER = {
    int: ("inf", "-inf", "nan", "1e999", "9" * LONG, f"-{'9' * LONG}", "1.5", "many", "1,2", "{}", "1e300", "True"),
    float: ("inf", "-inf", "nan", "1e999", "9" * LONG, "many", "1,2", "{}", "1" * 400, "0x10", "True"),
    bool: ("2", "maybe", "1,2", "nan", "9" * LONG, "-1", "{}", "None"),
    tuple: ("(" * LONG, "{1: 2}", "[1", EMPTY, "[" * 19 + "1" + "]" * 19),
}
#: texts for keys of texts: names that do not exist, things that paths and terminals cannot take
TEXTS = ("no such thing", "../../outside", "line\nbreak", "x" * LONG, "\x1b[31mred", "[bold]", "{output_dir}/{nothing}")
#: numbers at the edge of what a key may have
EDGES = ("0", "-1", "1000000000000", "1e30", "1e-30", "4294967296")
#: keys of texts that are only shown, or matter only to what this configuration has switched off -> why
FREE = {
    "experiment.wandb.": "W&B is off",
    "data.dataset.": "names for people",
    "env.output.bucket.": "copies are off",
    "data.hybrid.": "pictures come from an HDF5 file",
    "debug.profiler.output_dir": "the profiler is off",
    "debug.jsonl.dir": "nothing is trained here, so no event log is written",
    "env.compilation_cache_dir": "a directory of the user's choice",
    "env.output.base_dir": "nothing is trained here, so no run directory is made",
    "experiment.": "a name that can be a directory",
    "model.pretrained": "this program does not read weights",
    "aug.autoaug.policy": "policies are only looked at",
    "data.sampler.class_balance_task": "classes are not balanced",
    "train.early_stop.metric": "early stopping is off",
    "data.meta.components.": "the component is off",
}


def _config(made: Made, *overrides: str) -> tuple[str, ...]:
    return (f"--config={made.config}", *overrides)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:12]}...({len(text)})")


def fuzzed(made: Made, rng: random.Random, count: int) -> list[Given]:
    """Values of the tree's own keys: texts that their kind never has, edges of numbers, texts of any kind."""
    config, given = get_config(), []
    for key in flatten(config.to_dict()):
        path = tuple(key.split("."))
        if any(part in FILTER_KEYS for part in path):
            continue
        kind = kind_of(config, path)
        if kind is str:
            reason = next((why for prefix, why in FREE.items() if key.startswith(prefix)), "")
            choices = [(text, reason) for text in TEXTS]
        else:
            choices = [(text, "Python reads it as ()" if text == EMPTY else "") for text in NEVER[kind or str]]
            if kind in (int, float):
                choices += [(text, "within the bounds of its key, and an update is drawn") for text in EDGES]
        given += [(key, text, reason) for text, reason in choices]
    return [
        Given(
            "value of a key",
            f"{key}={_short(text)}",
            DRAW,
            (*_config(made, f"--config.{key}={text}"), "--out=out.png", "--images=1"),
            accepted=reason,
            may_write=("out.png",) if reason else (),
        )
        for key, text, reason in rng.sample(given, count)
    ]


#: overrides that are nonsense although each value has the right type
NONSENSE = (
    ("schedule.checkpoint.best_metric=val/no_such_metric",),
    ("schedule.checkpoint.best_metric=val_mask_TEMPORAL/loss",),
    ("schedule.checkpoint.best_metric=train/loss/x",),
    ("schedule.checkpoint.best_metric=val/subset/none/none/acc1_taxa_L10", "schedule.checkpoint.keep_top_n=1"),
    ("schedule.checkpoint.best_metric=val_mask_meta/chain_accuracy",),
    ("train.early_stop.active=true", "train.early_stop.metric=nonsense"),
    ("train.early_stop.active=true", "train.early_stop.metric=val_mask_meta/loss"),
    ("lr_scheduler.name=wsd", "lr_scheduler.stable_duration_fraction=1.5"),
    ("lr_scheduler.name=wsd", "lr_scheduler.decay_duration_fraction=1.5"),
    ("lr_scheduler.name=wsd", "lr_scheduler.stable_duration_fraction=0.9", "lr_scheduler.decay_duration_fraction=0.9"),
    ("loss.grad_weighting.task.init_weights=1,2",),
    ("loss.grad_weighting.task.init_weights=0,0,0",),
    ("loss.grad_weighting.task.init_weights=1,2,nan",),
    ("metrics.taxa_subsets=((birds,taxa_L10,424242),)",),
    ("metrics.taxa_subsets=((birds,taxa_L99,1000),)",),
    ("metrics.taxa_subsets=((birds,taxa_L10,-1),)",),
    ("metrics.taxa_subsets=((a/b,taxa_L10,1000),)",),
    ("metrics.taxa_subsets=birds",),
    ("schedule.meta_masking.partial.enabled=true",),
    ("schedule.meta_masking.partial.enabled=true", "schedule.meta_masking.partial.whitelist=((NONE,),)"),
    ("schedule.meta_masking.partial.enabled=true", "schedule.meta_masking.partial.whitelist=((),)"),
    ("schedule.validation.partial_mask_meta.enabled=true",),
    ("schedule.validation.final_epoch.exhaustive_partial_meta_validation=true",),
    ("lr_scheduler.parameter_groups.enabled=true", "lr_scheduler.parameter_groups.ghosts.min_lr=0.1"),
    ("optimizer.parameter_groups.enabled=true", "optimizer.parameter_groups.ghosts.lr_multiplier=2"),
    ("data.num_workers=1000000",),
    ("data.worker_processes=1000000",),
    ("data.prefetch.num_io_threads=1000000",),
    ("data.hybrid.verify_images.num_workers=1000000",),
    ("experiment.name=..",),
    ("experiment.name=a/../../b",),
    ("experiment.name=a\nb",),
    ("experiment.name=a\x00b",),
    (f"experiment.name={'n' * LONG}",),
    (f"experiment.name={'n' * 121}",),
    ("experiment.project=",),
    ("data.task_keys_h5=",),
    ("data.task_keys_h5=taxa_L30,taxa_L10",),
    ("data.task_keys_h5=taxa_L10,taxa_L10",),
    ("data.task_keys_h5=taxa_L99",),
    ("data.img_size=1000000",),
    ("data.img_size=33",),
    ("data.batch_size=1000000000",),
    ("data.batch_size=4", "data.batch_size_per_device=4"),
    ("data.h5.train_val_split_ratio=1",),
    ("data.h5.train_val_split_ratio=0",),
    ("data.meta.components.TEMPORAL.dim=7",),
    ("data.meta.components.TEMPORAL.idx=1",),
    ("data.meta.components.TEMPORAL.source=nothing",),
    ("data.meta.components.MINE.enabled=true",),
    ("model.convnext_stages.dims=0,0,0,0",),
    ("model.convnext_stages.dims=8,8,16",),
    ("model.convnext_stages.depths=100000000,1",),
    ("model.rope_stages.depths=100000000,1",),
    ("model.rope_stages.num_heads=3,5",),
    ("model.rope_stages.num_heads=0,0",),
    ("model.type=resnet",),
    ("model.variant=huge",),
    ("model.drop_rate=2",),
    ("model.drop_path_rate=-1",),
    ("model.pretrained=/no/such/file.pth",),
    ("train.epochs=1000000000000",),
    ("train.epochs=0",),
    ("train.accumulation_steps=1000000000",),
    ("train.seed=-1",),
    ("optimizer.betas=0.9",),
    ("optimizer.betas=0.9,1.5",),
    ("optimizer.name=nothing",),
    ("schedule.metrics.step_interval=5", "schedule.metrics.step_fraction=0.5"),
    ("schedule.validation.interval_fraction=7",),
    ("schedule.mixup.group_levels=taxa_L99",),
    ("schedule.mixup.level_switch_epochs=1,2,3",),
    ("schedule.mixup.cutmix.minmax=0.9,0.1",),
    ("aug.std=0,1,1",),
    ("aug.random_resized_crop.enabled=true", "aug.random_resized_crop.scale=2,3"),
    ("aug.autoaug.policy=none-such",),
    ("env.plugins=/no/such/plugin.py",),
    ("env.plugins=no_such_module",),
    ("env.output.bucket.enabled=true",),
    ("debug.profiler.schedule=1,2",),
    ("debug.underflow_overflow.trace_batch_nums=-1",),
    ("loss.task_specific.train.funcs=NoLoss",),
    ("loss.task_specific.train.funcs=TaxonomyAwareLabelSmoothing",),
    ("data.h5.labels_path=/no/such/labels.h5",),
    ("data.h5.images_path=/no/such/images.h5",),
    ("data.h5.labels_path=/dev/null",),
    ("data.h5.labels_path=/",),
)


#: overrides that are right to be accepted -> why
SENSIBLE = {
    "train.early_stop.active=true train.early_stop.metric=val_mask_meta/loss": "this phase runs by default",
    "schedule.checkpoint.best_metric=val_mask_meta/chain_accuracy": "this phase runs by default",
    "data.h5.train_val_split_ratio=1": "training without validation is allowed, and said",
    "lr_scheduler.name=wsd lr_scheduler.stable_duration_fraction=0.9 lr_scheduler.decay_duration_fraction=0.9": (
        "the run ends within the decay, of which the summary warns"
    ),
    "metrics.taxa_subsets=((birds,taxa_L10,424242),)": "other data may have the taxon; it is said",
    "data.img_size=33": "a model takes pictures of any size",
}


def nonsense(made: Made) -> Iterator[Given]:
    """Values that do not fit each other, the data, or any machine."""
    for overrides in NONSENSE:
        name = " ".join(_short(text) for text in overrides)
        flags = [f"--config.{text}" for text in overrides]
        weights = overrides[0].startswith("model.pretrained")
        program, extra = (CHECK, ("--out=out.png",)) if weights else (DRAW, ("--out=out.png", "--images=1"))
        reason = SENSIBLE.get(" ".join(overrides), "")
        written = ("out.png",) if reason else ()
        yield Given("nonsense", name, program, (*_config(made, *flags), *extra), accepted=reason, may_write=written)


#: what a configuration file may do, by name; TINY is replaced by the sound file's text
FILES = {
    "empty": "",
    "no function": "config = 1\n",
    "syntax": "def get_config(:\n",
    "bytes": "\x00\x01\x02",
    "raises": "def get_config():\n    raise RuntimeError('mine')\n",
    "raises on import": "1 / 0\n",
    "sys.exit": "import sys\n\ndef get_config():\n    sys.exit(0)\n",
    "sys.exit on import": "raise SystemExit('bye')\n",
    "keyboard interrupt": "def get_config():\n    raise KeyboardInterrupt\n",
    "generator exit": "def get_config():\n    raise GeneratorExit\n",
    "recursion": "def get_config():\n    return get_config()\n",
    "returns None": "def get_config():\n    pass\n",
    "returns a dict": "def get_config():\n    return {'train': {}}\n",
    "returns a number": "def get_config():\n    return 7\n",
    "returns an empty tree": "from ml_collections import ConfigDict\n\ndef get_config():\n    return ConfigDict()\n",
    "returns a foreign tree": (
        "from ml_collections import ConfigDict\n\ndef get_config():\n    return ConfigDict({'lr': 1, 'train': 3})\n"
    ),
    "needs two arguments": "def get_config(a, b):\n    return a\n",
    "imports what is not there": "import no_such_module\n",
    "yields": "def get_config():\n    yield 1\n",
    "is a class": "class get_config:\n    pass\n",
    "is async": "async def get_config():\n    return 1\n",
    "memory": "def get_config():\n    raise MemoryError\n",
    "exception without text": "def get_config():\n    raise Exception\n",
    "exception whose text raises": (
        "class Bad(Exception):\n    def __str__(self):\n        raise ValueError\n\ndef get_config():\n    raise Bad\n"
    ),
}
#: what is done to a sound tree before it is returned
EDITS = {
    "deletes a section": "del config.train",
    "deletes a key": "del config.data.h5",
    "deletes a nested key": "del config.optimizer.betas",
    "section becomes a number": "config.train = 5",
    "key becomes a section": "config.train.epochs = {'a': 1}",
    "unknown key": "config.train.epoch = 7",
    "list for a number": "config.train.epochs = [1, 2]",
    "text for a number": "config.train.epochs = 'many'",
    "None for a section": "config.model = None",
    "object": "config.experiment.name = object()",
    "function": "config.train.epochs = lambda: 3",
    "array": "import numpy; config.aug.mean = tuple(numpy.array([float('nan')] * 3))",
    "NaN": "config.lr_scheduler.base_lr = float('nan')",
    "huge": "config.train.epochs = 10**100",
    "bytes": "config.experiment.name = b'run'",
    "nested component": "config.data.meta.components.TEMPORAL = 3",
    "component without keys": "del config.data.meta.components.TEMPORAL.dim",
    "group is a number": "config.optimizer.parameter_groups.mine = 3",
    "head is a text": "config.model.classification.heads.taxa_L10 = 'Linear'",
    "filter is a text": "config.loss.grad_weighting.task.exclude_config = 'head'",
    "filter of itself": ("config.loss.grad_weighting.task.exclude_config = {'type': 'and', 'filters': 3}"),
    "tree within itself": "config.train.ema = config",
    "surrogate": "config.experiment.name = chr(0xD800)",
    "set": "config.data.task_keys_h5 = {'taxa_L10'}",
    "deep tuple": "t = ()\n    for _ in range(100000): t = (t,)\n    config.metrics.taxa_subsets = t",
}


def _text_file(text: str, name: str, directory: Path) -> None:
    (directory / name).write_text(text, encoding="utf-8", errors="surrogatepass")


def _of_file(name: str, program: str, *extra: str, prepare: Callable[[Path], None]) -> Given:
    interrupted = name.startswith("keyboard interrupt")
    return Given(
        "configuration file",
        name,
        program,
        ("--config=config.py", *extra),
        prepare,
        "it cannot be told from Ctrl-C" if interrupted else "",
        status=130 if interrupted else 0,
    )


def python_files(made: Made) -> Iterator[Given]:
    """Configuration files that are no programs, fail, or return something else."""
    edited = "from pathlib import Path\n\nfrom tests.tiny import tiny_config\n\n\ndef get_config():\n"
    edited += f"    config = tiny_config(Path({str(made.data)!r})).unlock()\n    config.train.epochs = 2\n"
    texts = FILES | {name: f"{edited}    {edit}\n    return config\n" for name, edit in EDITS.items()}
    extra = ("--out=out.png", "--images=1")
    for name, text in texts.items():
        prepare = partial(_text_file, text, "config.py")
        yield _of_file(name, DRAW, *extra, prepare=prepare)
    for name in ("empty", "recursion", "sys.exit", "keyboard interrupt", "returns an empty tree", "memory"):
        prepare = partial(_text_file, texts[name], "config.py")
        yield _of_file(f"{name}, train", MAIN, "--workdir=w", prepare=prepare)


def _bomb(width: int, depth: int) -> str:
    """YAML whose aliases stand for `width ** depth` texts."""
    rows = ["a0: &a0 [" + ",".join(["lol"] * width) + "]"]
    rows += [f"a{i}: &a{i} [" + ",".join([f"*a{i - 1}"] * width) + "]" for i in range(1, depth)]
    return "\n".join(rows) + "\n"


def _merges(count: int) -> str:
    """YAML whose merge keys double at each level."""
    rows = ["X0: &x0 {A: 1, B: 2}"]
    rows += [f"X{i}: &x{i}\n  <<: [{', '.join([f'*x{i - 1}'] * 9)}]\n  K{i}: 1" for i in range(1, count)]
    return "\n".join(rows) + "\n"


YAML = {
    "bomb of lists": _bomb(10, 10),
    "bomb of tags": "EXPERIMENT:\n  TAGS: &t [a,b]\n" + _bomb(9, 12),
    "bomb of merges": _merges(12),
    "deep flow": "TRAIN: " + "[" * LONG + "]" * LONG + "\n",
    "deep mapping": "TRAIN: " + "{a: " * LONG + "1" + "}" * LONG + "\n",
    "deep blocks": "\n".join(" " * i + f"A{i}:" for i in range(3000)) + "\n",
    "alias of itself": "TRAIN: &a\n  EPOCHS: *a\n",
    "list of itself": "AUG:\n  MEAN: &a [*a, *a]\n",
    "merge of itself": "TRAIN: &a\n  <<: *a\n  EPOCHS: 3\n",
    "merge of a list": "TRAIN:\n  <<: [1, 2]\n",
    "unknown alias": "TRAIN: *nothing\n",
    "python object": "TRAIN: !!python/object/apply:os.system ['touch pwned']\n",
    "unknown tag": "TRAIN:\n  EPOCHS: !mine 3\n",
    "key is a list": "? [1, 2]\n: 3\n",
    "key is a mapping": "TRAIN:\n  ? {a: 1}\n  : 3\n",
    "key is empty": "TRAIN:\n  : 3\n",
    "key is a number": "1: 2\n",
    "list at the top": "- 1\n- 2\n",
    "number at the top": "42\n",
    "huge number": "TRAIN:\n  EPOCHS: " + "9" * LONG + "\n",
    "infinity": "TRAIN:\n  EPOCHS: .inf\n",
    "not a number": "LR_SCHEDULER:\n  BASE_LR: .nan\n",
    "date": "TRAIN:\n  EPOCHS: 2020-01-01\n",
    "impossible date": "TRAIN:\n  EPOCHS: 2020-99-99\n",
    "binary": "TRAIN:\n  EPOCHS: !!binary aGVsbG8=\n",
    "bad binary": "TRAIN:\n  EPOCHS: !!binary '*'\n",
    "base sixty": "TRAIN:\n  EPOCHS: 99:99:99:99:99:99:99:99:99\n",
    "set": "TRAIN:\n  EPOCHS: !!set {1, 2}\n",
    "omap": "TRAIN:\n  EPOCHS: !!omap [1]\n",
    "pairs": "TRAIN:\n  EPOCHS: !!pairs [1]\n",
    "tab": "TRAIN:\n\tEPOCHS: 3\n",
    "control character": "TRAIN:\n  EPOCHS: \x01\n",
    "unfinished": "TRAIN: {EPOCHS: [1, 2\n",
    "base is itself": "BASE: [config.yaml]\n",
    "base is a folder": "BASE: [.]\n",
    "base is a device": "BASE: [/dev/null, /no/such]\n",
    "base is a mapping": "BASE: {a: 1}\n",
    "bases of many": "BASE: [" + ",".join(["config.yaml"] * 50) + "]\n",
    "plugins is a number": "ENV:\n  PLUGINS: 3\n",
    "section is a list": "TRAIN: [1, 2]\n",
    "section is a text": "DATA: none\n",
    "filter is a list": "LOSS:\n  GRAD_WEIGHTING:\n    TASK:\n      EXCLUDE_CONFIG: [1, 2]\n",
    "widths are a number": "MODEL:\n  ROPE_STAGES:\n    DIMS: 3\n  CONVNEXT_STAGES:\n    DIMS: 4\n",
    "unknown keys": "\n".join(f"NOTHING{i}: {i}" for i in range(20)) + "\n",
    "large": "EXPERIMENT:\n  NAME: " + "x" * 30_000_000 + "\n",
    "many keys": "\n".join(f"K{i}: {i}" for i in range(60_000)) + "\n",
}


def yaml_files(made: Made) -> Iterator[Given]:
    """YAML that is none, never ends, or says something else."""
    loader = Path(__file__).parents[2] / "configs" / "yaml.py"
    for name, text in YAML.items():
        prepare = partial(_text_file, text, "config.yaml")
        arguments = (f"--config={loader}:config.yaml", "--steps-per-epoch=10")
        yield Given("YAML", name, "linnaeus_jax.tools.schedule", arguments, prepare)


#: arguments of the training program that it cannot take
LINES: tuple[tuple[str, ...], ...] = (
    (),
    ("--config",),
    ("--config=",),
    ("--config=.",),
    ("--config=/dev/null",),
    ("--config=/no/such.py",),
    ("--config=x.yaml",),
    ("positional",),
    ("--nothing",),
    ("--config.train.epochs=3",),
    ("--config=TINY", "--config.nothing=3"),
    ("--config=TINY", "--config.=3"),
    ("--config=TINY", "--config..=3"),
    ("--config=TINY", "--config.train=3"),
    ("--config=TINY", "--config.train.epochs"),
    ("--config=TINY", "--config=TINY"),
    ("--config=TINY", "--workdir=a", "--workdir=b"),
    ("--config=TINY", "--workdir=/dev/null/run"),
    ("--config=TINY", "--workdir=TINY"),
    ("--config=TINY", "--workdir=/proc/run"),
    ("--config=TINY", "--debug=nothing"),
    ("--config=TINY", "--enable_debug_logger", "--no-enable_debug_logger"),
    ("--config=TINY", "--skip-validation=1"),
    ("--config=TINY", "--processes=0", "--process=0"),
    ("--config=TINY", "--processes=2"),
    ("--config=TINY", "--processes=x", "--process=y"),
    ("--config=TINY", "--process=5"),
    ("--cfg", "a.yaml", "--opts", "TRAIN.EPOCHS"),
    ("--config=TINY:argument",),
    ("--config=TINY", f"--{'x' * LONG}"),
    ("--config=TINY", f"--config.{'a.' * 5000}b=1"),
    ("--config=TINY", "--config.\udcff=1"),
    ("--config=TINY", "--config.experiment.name=\udcff"),
    ("--config=TINY", "--config.env.plugins=TINY/x"),
    ("--config=TINY", "--config.data.meta.components.X.enabled.y=1"),
    ("--config=TINY", "--config.optimizer.parameter_groups.x.filter.type.a.b=1"),
    ("--config=TINY", "--config.model.classification.heads.taxa_L10.type=Nothing"),
)


def command_lines(made: Made) -> Iterator[Given]:
    """Arguments that make no sense."""
    for line in LINES:
        arguments = tuple(text.replace("TINY", str(made.config)) for text in line)
        yield Given("command line", " ".join(map(_short, line)), MAIN, arguments)
