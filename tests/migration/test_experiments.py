from __future__ import annotations

import itertools
import json
import logging
import time
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import yaml

from linnaeus_jax.checks.config import config_errors
from linnaeus_jax.config import ConfigError, get_config, load_yaml
from linnaeus_jax.config.open_nodes import entry
from linnaeus_jax.config.saved import config_from_json
from linnaeus_jax.config.tree import known_keys
from linnaeus_jax.config.typed import typed
from linnaeus_jax.config.yaml_values import parse_list
from linnaeus_jax.migration.keys import VARIANTS
from linnaeus_jax.models import build_model
from linnaeus_jax.registry import MODELS
from linnaeus_jax.step.program import model_from_config

FILES = ("debug_example", "debug_profiler", "debug_scenarios", "metrics", "scheduling")

#: where the keys of the documents arrive, where that is not simply their name in lower case
MOVED = {
    **{
        f"METRICS.{kind}_{unit}": f"schedule.metrics.{kind}_{unit}".lower()
        for kind, unit in itertools.product(("STEP", "CONSOLE", "WANDB", "LR", "PIPELINE"), ("INTERVAL", "FRACTION"))
    },
    "SCHEDULE.MIXUP.USE_GPU": None,
}


def blocks(fixtures):
    for name in FILES:
        yield from filter(None, yaml.safe_load_all((fixtures / "yaml" / f"{name}.yaml").read_text()))


def flatten(node, prefix=""):
    for key, value in node.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def plain(value):
    """What a YAML 1.1 value of the documents means."""
    if isinstance(value, list):
        return tuple(plain(item) for item in value)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            pass
    return value


def get(config, dotted):
    for part in dotted.split("."):
        config = config[part]
    return config


def write(tmp_path, text, name="experiment.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def changed(config):
    default = get_config()
    return {key for key in known_keys(config) if get(config, key) != get(default, key)}


def test_every_documented_block_arrives(fixtures, tmp_path):
    found = list(blocks(fixtures))
    assert len(found) == 17
    for block in found:
        config = load_yaml(write(tmp_path, yaml.safe_dump(block)))
        arrived = set()
        for spelled, value in flatten(block):
            target = MOVED.get(spelled, spelled.lower())
            if target is None:
                continue
            arrived.add(target)
            want = None if spelled.endswith("_FRACTION") and value == 0 else plain(value)
            assert get(config, target) == want, spelled
        assert changed(config) <= arrived
        assert config.is_locked


def test_documents_merged_in_order(fixtures, tmp_path):
    text = "\n---\n".join((fixtures / "yaml" / f"{name}.yaml").read_text() for name in FILES)
    config = load_yaml(write(tmp_path, text))
    assert config.lr_scheduler.base_lr == 5e-5
    assert config.lr_scheduler.min_lr == 1e-6
    assert config.debug.profiler.schedule == (2, 1, 5, 3)
    assert config.debug.loss.gradnorm_metrics
    assert config.debug.validation_metrics
    assert config.schedule.metrics.step_interval == 50  # the last document
    assert config.schedule.metrics.pipeline_interval == 250
    assert config.schedule.metrics.step_fraction is None
    assert config.schedule.meta_masking.partial.whitelist == (("TEMPORAL",), ("SPATIAL",), ("SPATIAL", "ELEVATION"))
    assert config.schedule.mixup.prob.end_fraction == 0.4
    assert config.experiment.wandb.tags == ("experiment1", "v1")
    assert config.train.early_stop.patience_steps == 10000


def test_names_keep_their_case_and_filters_are_whole(tmp_path):
    config = load_yaml(
        write(
            tmp_path,
            """
DATA: {META: {COMPONENTS: {ELEVATION: {ENABLED: True, DIM: 6}, Habitat: {SOURCE: habitat, DIM: 4, IDX: 3}}}}
MODEL: {CLASSIFICATION: {HEADS: {taxa_L20: {TYPE: Linear, BIAS: False, IN_FEATURES: 768}, taxa_L10: {}}}}
LR_SCHEDULER: {PARAMETER_GROUPS: {ENABLED: True, HEADS: {WARMUP_STEPS: 5}}}
OPTIMIZER:
  BETAS: (0.9, 0.95)
  PARAMETER_GROUPS:
    ENABLED: True
    NO_DECAY:
      WEIGHT_DECAY: 0
      FILTER: {TYPE: or, FILTERS: [{TYPE: dimension, DIMENSIONS: [1]}, {TYPE: name, PATTERNS: [Freqs]}]}
    HEADS: {LR_MULTIPLIER: 2, FILTER: {TYPE: name, PATTERNS: [head.]}}
    DEFAULT: {WEIGHT_DECAY: 1e-2}
LOSS: {GRAD_WEIGHTING: {TASK: {EXCLUDE_CONFIG: {TYPE: dimension, DIMENSIONS: [1]}}}}
""",
        )
    )
    assert config.data.meta.components.ELEVATION.dim == 6
    assert config.data.meta.components.ELEVATION.source == "elevation_broadrange_2"
    assert config.data.meta.components.Habitat.to_dict() == {
        **entry("data.meta.components").to_dict(),
        "source": "habitat",
        "dim": 4,
        "idx": 3,
    }
    assert config.model.classification.heads.taxa_L20.to_dict() == {"type": "Linear", "use_bias": False}
    assert config.model.classification.heads.taxa_L10.use_bias
    assert config.lr_scheduler.parameter_groups.HEADS.warmup_steps == 5
    groups = config.optimizer.parameter_groups
    assert [key for key in groups._fields if key.isupper()] == ["NO_DECAY", "HEADS"]
    assert groups.NO_DECAY.filter.to_dict() == {
        "type": "or",
        "filters": ({"type": "dimension", "dimensions": (1,)}, {"type": "name", "patterns": ("Freqs",)}),
    }
    assert (groups.NO_DECAY.weight_decay, groups.HEADS.lr_multiplier, groups.default.weight_decay) == (0.0, 2.0, 0.01)
    assert config.optimizer.betas == (0.9, 0.95)
    assert config.loss.grad_weighting.task.exclude_config.to_dict() == {"type": "dimension", "dimensions": (1,)}


def test_spellings_and_values(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        config = load_yaml(
            write(
                tmp_path,
                """
SCHEDULE:
  MIX:
    USE_GPU: True
    SWITCH_PROB: 0.25
    NULL_TASK_KEYS: None
    MIXUP: {ENABLED: False, ALPHA: 2}
    CUTMIX: {ENABLED: True, MINMAX: [0.2, 0.8]}
  MIXUP: {ALPHA: 2.0, USE_GPU: True}
  VALIDATION: {INTERVAL_EPOCHS: 0, INTERVAL_STEPS: 1e3, INTERVAL_FRACTION: None, MASK_META_INTERVAL_EPOCHS: 0}
LOSS: {GRAD_WEIGHTING: {CLASS: {METHOD: capping, CAP: 10}}}
TRAIN: {AMP_OPT_LEVEL: O1, START_EPOCH: 3, EARLY_STOP: {MAX_LOSS: None}}
LR_SCHEDULER: {REFERENCE_LR: 5e-5, TOTAL_STEPS: 100, WARMUP_EPOCHS: 3}
MODEL:
  CONVNEXT_STAGES: {DEPTHS: [3, 3, 9, 3], DIMS: [8, 8, 16, 16]}
  ROPE_STAGES: {ROPE_MIXED: True, DIMS: [16, 16]}
  AGGREGATION: {X: 1}
DATA: {PIN_MEMORY: True, H5: {LABELS_PATH: None}}
AUG: {SINGLE_AUG_DEVICE: gpu, USE_OPENCV: True}
DEBUG:
""",
            )
        )
    mixup = config.schedule.mixup
    assert (mixup.enabled, mixup.alpha, mixup.switch_prob, mixup.null_task_keys) == (False, 2.0, 0.25, ())
    assert (mixup.cutmix.enabled, mixup.cutmix.minmax) == (True, (0.2, 0.8))
    validation = config.schedule.validation
    assert (validation.interval_epochs, validation.interval_steps, validation.interval_fraction) == (None, 1000, None)
    assert validation.mask_meta_interval_epochs == 0  # no rival: off
    assert config.loss.grad_weighting.class_weights.method == ("capping",)
    assert config.loss.grad_weighting.class_weights.cap == (10,)
    assert config.train.compute_dtype == "bfloat16"
    assert config.lr_scheduler.warmup_epochs == 3.0
    assert config.model.convnext_stages.depths == (3, 3)
    assert config.data.h5.labels_path == ""
    notes = [record.getMessage() for record in caplog.records]
    assert len(notes) == len(set(notes)) == 8
    assert "AUG.SINGLE_AUG_DEVICE, AUG.USE_OPENCV have no effect: augmentation runs inside the compiled step" in notes
    assert "LR_SCHEDULER.TOTAL_STEPS has no effect: the number of steps follows from the data and train.epochs" in notes


def test_base_files(tmp_path):
    write(tmp_path, "TRAIN: {EPOCHS: 1, SEED: 1}\nDATA: {BATCH_SIZE: 1}", "root.yaml")
    (tmp_path / "archs").mkdir()
    write(tmp_path, "BASE: ../root.yaml\nTRAIN: {EPOCHS: 2}", "archs/arch.yaml")
    config = load_yaml(write(tmp_path, "BASE: ['', archs/arch.yaml]\nTRAIN: {SEED: 3}"))
    assert (config.train.epochs, config.train.seed, config.data.batch_size_per_device) == (2, 3, 1)
    write(tmp_path, "BASE: experiment.yaml", "root.yaml")
    with pytest.raises(ConfigError, match=r"circle: experiment.yaml -> arch.yaml -> root.yaml -> experiment.yaml"):
        load_yaml(tmp_path / "experiment.yaml")
    with pytest.raises(ConfigError, match=r"cannot be read \(named by BASE in a.yaml\).*did you mean root.yaml"):
        load_yaml(write(tmp_path, "BASE: rot.yaml", "a.yaml"))


def test_all_errors_at_once_with_lines(tmp_path):
    text = """TRAIN:
  EPOCH: 3
  EPOCHS: many
  SEED: 1
  SEED: 2
SCHEDULE:
  MIX: {MIXUP: {ALPHA: 1.0}}
  MIXUP: {ALPHA: 0.5}
OPTIMIZER: 5
MODEL: {ROPE_STAGES: {ROPE_MIXED: no way}, CLASSIFICATION: {HEADS: {taxa_L10: {TYP: Linear}}}}
DATA: {IMG_SIZE: 3.5, BATCH_SIZE_VAL: None, NUM_WORKERS: {X: 1}}
"""
    with pytest.raises(ConfigError) as caught:
        load_yaml(write(tmp_path, text))
    messages = caught.value.messages
    for part in (
        "experiment.yaml:2: unknown key TRAIN.EPOCH; did you mean TRAIN.EPOCHS?",
        "experiment.yaml:3: train.epochs = 'many': expected an integer (now 300)",
        "experiment.yaml:5: TRAIN.SEED is already given in line 4; keep one",
        "experiment.yaml:8: SCHEDULE.MIXUP.ALPHA = 0.5 contradicts SCHEDULE.MIX.MIXUP.ALPHA = 1.0 (experiment.yaml:7)",
        "experiment.yaml:9: optimizer = 5: this is a section",
        "experiment.yaml:10: model.rope_stages.rope_mixed = 'no way': expected true or false",
        "experiment.yaml:10: unknown key MODEL.CLASSIFICATION.HEADS.taxa_L10.TYP",
        "experiment.yaml:11: data.img_size = 3.5: expected an integer",
        "experiment.yaml:11: data.batch_size_val = None: expected an integer",
        "experiment.yaml:11: unknown key DATA.NUM_WORKERS.X",
    ):
        assert any(message.startswith(part) for message in messages), (part, messages)
    assert len(messages) == 10
    assert str(caught.value).splitlines()[0].startswith("1. ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("TRAIN: [1", r"experiment.yaml:\d: not valid YAML"),
        ("- 1", "a document must be a mapping"),
        ("TRAIN: {AMP_OPT_LEVEL: O9}", "choose one of O0"),
        ("TRAIN: !!python/name:os.system ''", "not valid YAML"),
        ("OPTIMIZER: {PARAMETER_GROUPS: {A: {FILTER: head}}}", "expected a filter"),
        (
            "MODEL: {CONVNEXT_STAGES: {DIMS: [4, 8, 8, 8]}, ROPE_STAGES: {DIMS: [8, 16]}}",
            r"MODEL.ROPE_STAGES.DIMS = \[8, 16\] must be the last two of MODEL.CONVNEXT_STAGES.DIMS = \[4, 8, 8, 8\]",
        ),
        ("MODEL: {ROPE_STAGES: {DIMS: [8, 16]}}", "MODEL.CONVNEXT_STAGES.DIMS = not given; set that key"),
        ("MODEL: {IN_CHANS: 1}", "MODEL.IN_CHANS = 1: only images with three channels are offered; set it to 3"),
        ("MODEL: {IMG_SIZE: 64}", "MODEL.IMG_SIZE = 64 differs from DATA.IMG_SIZE = 384; remove the first"),
    ],
)
def test_other_errors(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        load_yaml(write(tmp_path, text))


def test_keys_with_one_value_are_accepted(tmp_path, caplog):
    config = load_yaml(write(tmp_path, "MODEL: {IN_CHANS: 3, IMG_SIZE: 64}\nDATA: {IMG_SIZE: 64}"))
    assert config.data.img_size == 64
    assert not {"in_chans", "img_size"} & set(config.model)
    assert "MODEL.IN_CHANS has no effect: images always have three channels" in caplog.messages
    assert "MODEL.IMG_SIZE has no effect: the model takes images of data.img_size" in caplog.messages


def test_the_seed_is_kept_and_each_key_of_misc_has_its_own_reason(tmp_path, caplog):
    config = load_yaml(write(tmp_path, "MISC: {SEED: 42, OUTPUT: out, SAVE_FREQ: 1, PRINT_FREQ: 50}"))
    assert config.train.seed == 42
    assert changed(config) == {"train.seed"}
    assert [message.partition(" ")[0] for message in caplog.messages] == [
        "MISC.OUTPUT",
        "MISC.SAVE_FREQ",
        "MISC.PRINT_FREQ",
    ]
    assert len({message.partition(": ")[2] for message in caplog.messages}) == 3


def test_a_config_saved_by_an_earlier_version_loads():
    saved = get_config().to_dict()
    saved["model"] |= {"in_chans": 3, "img_size": 384}
    assert config_from_json(saved).to_dict() == get_config().to_dict()


ARCHITECTURE = """
MODEL:
  TYPE: mFormerV1
  NAME: mFormerV1_small
  DROP_RATE: 0.0
  DROP_PATH_RATE: 0.25
  ATTN_DROP_RATE: 0.0
  LABEL_SMOOTHING: 0.1
  ONLY_LAST_CLS: false
  EXTRA_TOKEN_NUM: 3
  IN_CHANS: 3
  USE_FLASH_ATTN: true
  CONVNEXT_STAGES: {DEPTHS: [1, 2, 9, 3], DIMS: [8, 8, 16, 32], LAYER_SCALE_INIT_VALUE: 1.0e-6}
  ROPE_STAGES:
    DEPTHS: [2, 1]
    DIMS: [16, 32]
    NUM_HEADS: [2, 4]
    MLP_RATIO: [2.0, 3.0]
    ROPE_THETA: 10000.0
    ROPE_MIXED: True
  AGGREGATION: {TYPE: Conv1d, PARAMETERS: {in_channels: 32, out_channels: 32, kernel_size: 2, bias: true}}
  CLASSIFICATION: {HEADS: {}}
  NORMALIZATION: {CONV_NORM_LAYER: LayerNormChannelsFirst, ATTENTION_NORM_LAYER: LayerNorm, ACTIVATION_LAYER: GELU}
"""


def kernel_shapes(config):
    """Shape of every kernel and bias of the model that a configuration describes, by its path."""
    tasks, components = {"taxa_L10": 5, "taxa_L20": 3}, (SimpleNamespace(name="SPATIAL", start=0, stop=3),)
    dataset: Any = SimpleNamespace(
        tasks=tuple(tasks), components=components, num_classes=tasks, tree=SimpleNamespace(parent={})
    )
    model = model_from_config(typed(config), dataset)
    tree = jax.eval_shape(model.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 64, 64, 3), np.float32))["params"]
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): x.shape for path, x in jax.tree.leaves_with_path(tree)
    }


def test_an_architecture_file_means_what_it_says_stage_by_stage(tmp_path, caplog):
    config = load_yaml(write(tmp_path, ARCHITECTURE))
    assert config.model.rope_stages.mlp_ratio == (2.0, 3.0)
    assert load_yaml(write(tmp_path, "MODEL: {ROPE_STAGES: {MLP_RATIO: 3}}")).model.rope_stages.mlp_ratio == (3,)
    assert config.model.drop_path_rate == 0.25
    found = kernel_shapes(config)
    blocks = {(int(name.split(".")[1]), int(name.split(".")[2])) for name in found if name.startswith("stages.")}
    assert blocks == {(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0)}
    assert [found[f"downsample_layers.{i}.conv.kernel"][2:] for i in range(3)] == [(8, 8), (8, 16), (16, 32)]
    assert [found[f"stages.{stage}.0.mlp.fc1.kernel"] for stage in (2, 3)] == [(16, 32), (32, 96)]
    assert [found[f"stages.{stage}.0.attn.freqs"][1] for stage in (2, 3)] == [2, 4]  # heads
    assert len(caplog.messages) == len(set(caplog.messages))


def test_model_base(tmp_path, monkeypatch, caplog):
    archs = tmp_path / "configs" / "archs"
    archs.mkdir(parents=True)
    (tmp_path / "configs" / "experiments").mkdir()
    write(archs, ARCHITECTURE + "TRAIN: {EPOCHS: 7}\n", "small.yaml")
    write(archs, "ROPE_STAGES: {MLP_RATIO: [5.0, 6.0]}\nDROP_PATH_RATE: 0.5", "bare.yaml")  # is all MODEL
    experiment = "MODEL: {{BASE: {}, DROP_PATH_RATE: 0.125}}"
    names = "['configs/archs/small.yaml', '', configs/archs/bare.yaml]"
    config = load_yaml(write(tmp_path, experiment.format(names), "configs/experiments/a.yaml"))
    assert config.model.convnext_stages.dims == (8, 8, 16, 32)  # found from a folder above, like the others
    assert config.model.rope_stages.mlp_ratio == (5.0, 6.0)  # a later base wins over an earlier one
    assert config.model.drop_path_rate == 0.125  # and the file itself over all of them
    assert config.train.epochs == get_config().train.epochs
    assert "small.yaml:24: TRAIN.EPOCHS is not read: MODEL.BASE reads only MODEL" in caplog.messages

    monkeypatch.setenv("CONFIG_DIR", str(archs.parent))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path = write(elsewhere, experiment.format("archs/small.yaml"), "b.yaml")
    assert load_yaml(path).model.rope_stages.mlp_ratio == (2.0, 3.0)
    monkeypatch.delenv("CONFIG_DIR")
    with pytest.raises(ConfigError, match=r"archs/small.yaml: cannot be read \(named by BASE in b.yaml\)"):
        load_yaml(path)
    write(archs, "MODEL: {BASE: ring.yaml}", "ring.yaml")
    with pytest.raises(ConfigError, match=r"circle: ring\.yaml -> ring\.yaml"):
        load_yaml(archs / "ring.yaml")


EXPERIMENT = """
BASE: []
EXPERIMENT: {PROJECT: moths, GROUP: night, NAME: first, TAGS: [a, b], NOTES: why, CODE_VERSION: v7, WANDB: {KEY: hush}}
MODEL:
  TYPE: mFormerV1
  BASE: [arch.yaml]
  PRETRAINED_SOURCE: stitched_convnext_ropevit
  PRETRAINED_CONVNEXT: left.pth
  PRETRAINED_ROPEVIT: right.pth
  FIND_UNUSED_PARAMETERS: True
  CLASSIFICATION:
    HEADS:
      taxa_L10: {TYPE: ConditionalClassifier, ROUTING_STRATEGY: soft, TEMPERATURE: 1.0, USE_BIAS: True}
      taxa_L20: {TEMPERATURE: 0.5, TYPE: ConditionalClassifier, ROUTING_STRATEGY: hard, USE_BIAS: True}
LOSS: {GRAD_WEIGHTING: {TASK: {USE_LINEAR_HEADS_FOR_GRADNORM_REFORWARD: False}}}
DATA: {TASK_KEYS_H5: [taxa_L10, taxa_L20], DATASET_META: {}, H5: {LABELS_PATH: l.h5, IMAGES_PATH: i.h5}}
AUG: {FROM: '', AUTOAUG: {COLOR_JITTER: 0.3}}
VAL: {CROP: True}
ENV:
  TACC: False
  INPUT: {BASE_DIR: /data, BUCKET: {APP_KEY: hush}}
  OUTPUT:
    BASE_DIR: /runs
    BUCKET: {ENABLED: True, REMOTE: b2, BUCKET: moths, APP_KEY_ID: hush, APP_KEY: hush}
"""


def test_an_experiment_of_the_original(tmp_path, caplog):
    write(tmp_path, ARCHITECTURE, "arch.yaml")
    config = load_yaml(write(tmp_path, EXPERIMENT))
    assert config.experiment.wandb.tags == ("a", "b")
    assert config.experiment.wandb.notes == "why"
    assert config.aug.color_jitter == 0.3
    assert config.env.output.bucket.remote == "b2:moths"
    assert config.model.pretrained_source == "stitched_convnext_ropevit"
    assert (config.model.pretrained_convnext, config.model.pretrained_ropevit) == ("left.pth", "right.pth")
    assert config.model.classification.heads.taxa_L20.temperature == 0.5
    assert not config.loss.grad_weighting.task.use_linear_heads_for_gradnorm_reforward
    notes = "\n".join(caplog.messages)
    for part in (
        "ENV.OUTPUT.BUCKET.BUCKET is now part of env.output.bucket.remote = 'b2:moths'",
        "ENV.OUTPUT.BUCKET.APP_KEY_ID, ENV.OUTPUT.BUCKET.APP_KEY have no effect: rclone keeps its own credentials",
        "EXPERIMENT.WANDB.KEY has no effect: the environment variable WANDB_API_KEY",
        "ENV.TACC, ENV.INPUT.BASE_DIR, ENV.INPUT.BUCKET.APP_KEY have no effect: paths are read as given",
    ):
        assert part in notes
    assert "hush" not in notes + config.to_json()
    assert config_errors(config) == []
    with pytest.raises(ConfigError) as caught:
        load_yaml(write(tmp_path, "ENV: {OUTPUT: {BUCKET: {APP_KEY: hush, app_key: other, APP_KEYS: hush}}}"))
    assert len(caught.value.messages) == 2
    assert "hush" not in str(caught.value)


ARCHITECTURE_V0 = """
MODEL:
  TYPE: mFormerV0
  NAME: mFormerV0_small
  DROP_RATE: 0.1
  ATTN_DROP_RATE: 0.25
  DROP_PATH_RATE: 0.2
  PRETRAINED: None
  PRETRAINED_SOURCE: None
  COMPAT: metafg
  CONV_STAGES:
    STEM_OUT: 64
    EMBED_DIMS: [8, 96]
    OUT_CHANNELS: [12, 16]
    DEPTHS: [2, 3]
    STRIDE_SEQS: [[1, 1], [2, 1, 1]]
  ATTENTION_STAGES:
    ATTENTION_TYPE: RelativeAttention
    DIMS: [16, 32]
    DEPTHS: [2, 1]
    NUM_HEADS: [2, 4]
    MLP_RATIO: [2.0, 3.0]
    STRIDE_SEQS: "[[2, 1], [2]]"
DATA: {META: {MASK_MODE: attend_mask}}
"""


def test_an_architecture_of_mformer_v0(tmp_path, caplog):
    config = load_yaml(write(tmp_path, ARCHITECTURE_V0))
    model = config.model
    assert (model.type, model.variant, model.compat) == ("mFormerV0", "sm", "metafg")
    assert (model.drop_rate, model.attn_drop_rate, model.drop_path_rate) == ((0.1,), (0.25,), 0.2)
    assert model.conv_stages.stride_seqs == ((1, 1), (2, 1, 1))
    assert model.attention_stages.stride_seqs == ((2, 1), (2,))
    assert (model.pretrained, model.pretrained_source, model.missing_metadata) == ("", "", "mask")
    notes = "\n".join(caplog.messages)
    assert "MODEL.CONV_STAGES.STEM_OUT has no effect: the stem's width is the first of conv_stages.embed_dims" in notes
    assert "MODEL.ATTENTION_STAGES.ATTENTION_TYPE has no effect: mFormerV0 always has relative attention" in notes
    assert config_errors(config.copy_and_resolve_references()) == config_errors(get_config())  # those of missing data
    found = kernel_shapes(config)
    assert [found[f"stage_{stage}.0.attn.qkv.kernel"] for stage in (3, 4)] == [(16, 48), (32, 96)]
    assert [found[f"stage_{stage}.0.mlp.fc1.kernel"] for stage in (3, 4)] == [(16, 32), (32, 96)]
    assert [found[f"stage_{stage}.0._project_conv.kernel"][-1] for stage in (1, 2)] == [12, 16]
    assert found["stage_0.3.kernel"][-1] == 8
    assert {name.split(".")[1] for name in found if name.startswith("stage_2.")} == {"0", "1", "2"}
    assert found["stage_4.0.attn.relative_position_bias_table"] == (23 * 23 + 1, 4)  # 384 px: a grid of 12 x 12


def test_settings_of_the_other_family_are_one_error(tmp_path):
    config = load_yaml(write(tmp_path, ARCHITECTURE_V0.replace("TYPE: mFormerV0", "TYPE: mFormerV1")))
    (error,) = [error for error in config_errors(config) if error.startswith("model")]
    assert error.startswith("model.conv_stages.embed_dims, model.conv_stages.out_channels, ")
    assert "are settings of mFormerV0, but model.type = 'mFormerV1': remove them (the defaults: ()" in error
    assert error.endswith("), or change model.type")


def test_heads_of_the_original(tmp_path, caplog):
    heads = "MODEL: {{CLASSIFICATION: {{HIERARCHY_MODE: reference_unrefined, HEADS: {{taxa_L10: {{{}}}}}}}}}"
    routed = "TYPE: HierarchicalSoftmax, USE_BIAS: False, ROUTING_STRATEGY: soft, TEMPERATURE: 1.0"
    config = load_yaml(write(tmp_path, heads.format(routed)))
    assert config.model.classification.heads.taxa_L10.to_dict() == {
        "type": "HierarchicalSoftmax",
        "use_bias": False,
        "orphan_prior": "neutral",
    }
    assert config.model.classification.hierarchy_mode == "reference_unrefined"
    assert "TEMPERATURE have no effect: HierarchicalSoftmax always routes softly, at temperature 1" in caplog.text
    given = "TYPE: ConditionalClassifier, ROUTING_STRATEGY: gumbel, ORPHAN_PRIOR: epsilon"
    head = load_yaml(write(tmp_path, heads.format(given))).model.classification.heads.taxa_L10
    assert (head.routing_strategy, head.orphan_prior, head.temperature) == ("gumbel", "epsilon", 1.0)
    for wrong, message in (
        ("TYPE: Conv1d", r"taxa_L10.TYPE = 'Conv1d': a convolution over one position is an affine map; write Linear"),
        ("TYPE: LinearHead", r"taxa_L10.TYPE = 'LinearHead': the original has no head of this name; write Linear"),
        ("TEMPERATURE: 2.0", r"TEMPERATURE = 2.0: a head of TYPE Linear does not route; ConditionalClassifier does"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_yaml(write(tmp_path, heads.format(wrong)))
    with pytest.raises(ConfigError, match=r"META.MASK_MODE = 'drop': choose zero or attend_mask"):
        load_yaml(write(tmp_path, "META: {MASK_MODE: drop}"))


def test_empty_file_is_the_default(tmp_path):
    assert changed(load_yaml(write(tmp_path, "# nothing\n---\n"))) == set()


BOMBS = {
    "aliases": "A0: &a0 [x, x]\n" + "".join(f"A{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 7)),
    "merges": "X0: &x0 {A: 1}\n"
    + "".join(f"X{i}: &x{i} {{<<: [{', '.join([f'*x{i - 1}'] * 9)}]}}\n" for i in range(1, 7)),
    "an alias within itself": "TRAIN: &a\n  EPOCHS: *a\n",
    "depth": "TRAIN: " + "[" * 4000 + "]" * 4000,
    "moderate depth": "TRAIN: " + "[" * 60 + "]" * 60,
    "length": "EXPERIMENT: {NAME: " + "x" * 300_000 + "}",
    "bytes": "TRAIN: \udcff",
    "a key that is a list": "? [1, 2]\n: 3\n",
    "a number of 5000 digits": f"TRAIN: {{EPOCHS: {'9' * 5000}}}",
    "an impossible date": "TRAIN: {EPOCHS: 2020-99-99}",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_hostile_yaml_ends_at_once_with_its_file(tmp_path, bomb):
    path = tmp_path / "bomb.yaml"
    path.write_text(BOMBS[bomb], errors="surrogateescape")
    with pytest.raises(ConfigError, match=r"bomb\.yaml"):
        load_yaml(path)


def test_bases_that_double_end(tmp_path):
    for i in range(12):
        (tmp_path / f"{i}.yaml").write_text(f"BASE: [{i + 1}.yaml, {i + 1}.yaml]\n")
    (tmp_path / "12.yaml").write_text("TRAIN: {EPOCHS: 3}\n")
    with pytest.raises(ConfigError, match="more than 200 documents"):
        load_yaml(tmp_path / "0.yaml")


PUBLISHED = {
    "mFormerV0_sm": "{EMBED_DIMS: [64, 96], OUT_CHANNELS: [96, 192], DEPTHS: [2, 3], STRIDE_SEQS: [[2, 1], [1, 1, 1]]}|"
    "{ATTENTION_TYPE: RelativeAttention, EMBED_DIMS: [384, 768], DEPTHS: [5, 2], NUM_HEADS: [8, 8], "
    "MLP_RATIO: [4.0, 4.0], STRIDE_SEQS: [[2, 1, 1, 1, 1], [2, 1]]}",
    "mFormerV0_md": "{EMBED_DIMS: [64, 96], OUT_CHANNELS: [96, 192], DEPTHS: [2, 6], "
    "STRIDE_SEQS: [[2, 1], [1, 1, 1, 1, 1, 1]]}|{EMBED_DIMS: [384, 768], DEPTHS: [14, 2], NUM_HEADS: [8, 8], "
    "MLP_RATIO: [4.0, 4.0], STRIDE_SEQS: [[2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], [2, 1]]}",
    "mFormerV0_lg": "{EMBED_DIMS: [128, 128], OUT_CHANNELS: [128, 256], DEPTHS: [2, 6], "
    "STRIDE_SEQS: [[2, 1], [1, 1, 1, 1, 1, 1]]}|{EMBED_DIMS: [512, 1024], DEPTHS: [14, 2], NUM_HEADS: [8, 8], "
    "MLP_RATIO: [4.0, 4.0], STRIDE_SEQS: [[2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], [2, 1]]}",
    "mFormerV1_lg": "{DEPTHS: [3, 3, 27, 3], DIMS: [192, 384, 768, 1536]}|{DEPTHS: [10, 2], NUM_HEADS: [12, 24]}",
    "mFormerV1_xl": "{DEPTHS: [3, 3, 27, 3], DIMS: [256, 512, 1024, 2048]}|{DEPTHS: [22, 2], NUM_HEADS: [16, 32]}",
}


def published(name, *, model_name=None):
    """The architecture file of a published size, as Polli Linnaeus spells it."""
    first, second = PUBLISHED[name].split("|")
    sections = (
        ("CONV_STAGES", "ATTENTION_STAGES") if name.startswith("mFormerV0") else ("CONVNEXT_STAGES", "ROPE_STAGES")
    )
    named = "" if model_name is None else f"  NAME: {model_name}\n"
    return f"MODEL:\n  TYPE: {name.partition('_')[0]}\n{named}  {sections[0]}: {first}\n  {sections[1]}: {second}\n"


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_are_those_that_their_files_say(tmp_path, fixtures, name, caplog):
    counts = json.loads((fixtures / "models_counts.json").read_text())
    config = load_yaml(write(tmp_path, published(name, model_name=name)))
    assert (config.model.type, config.model.variant) == tuple(name.split("_"))
    assert "MODEL.NAME" not in caplog.text
    model = build_model(
        config.model,
        components=[(component, dim) for component, dim, _ in counts["meta"]],
        num_classes=counts["num_classes"],
        img_size=224,
        parents={},
    )
    family, _, variant = name.partition("_")
    sizes = {field: value for field, value in MODELS[family].variants[variant].items() if isinstance(value, tuple)}
    assert {field: getattr(model, field) for field in sizes} == sizes
    if family == "mFormerV1":
        return  # tests/models counts it
    params = jax.eval_shape(model.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 224, 224, 3), np.float32))["params"]
    total = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))
    assert total == counts["variants"][name]["224"]["total"]


@pytest.mark.parametrize("model_name", [None, "", "moths"])
def test_the_name_of_the_file_says_the_size_too(tmp_path, model_name):
    (tmp_path / "mFormerV0_lg.yaml").write_text(published("mFormerV0_lg", model_name=model_name))
    assert load_yaml(tmp_path / "mFormerV0_lg.yaml").model.variant == "lg"
    base = write(tmp_path, "MODEL: {BASE: [mFormerV0_lg.yaml]}\n")
    assert load_yaml(base).model.variant == "lg"
    given = write(tmp_path, "MODEL: {BASE: [mFormerV0_lg.yaml], VARIANT: md}\n")
    assert load_yaml(given).model.variant == "md"


@pytest.mark.parametrize("name", ["mFormerV1_huge", "mFormerV0_lg", "lg", "mFormerV1_lg_2"])
def test_a_name_that_is_no_size_of_the_family_has_no_effect(tmp_path, caplog, name):
    config = load_yaml(write(tmp_path, f"MODEL: {{TYPE: mFormerV1, NAME: {name}}}"))
    assert config.model.variant == "sm"
    assert "MODEL.NAME has no effect" in caplog.text


def test_sizes_that_names_say_are_those_of_the_families():
    for family, sizes in VARIANTS.items():
        assert set(sizes) == set(MODELS[family].variants) - {"tiny"}


def test_two_names_of_the_widths_must_agree(tmp_path):
    with pytest.raises(ConfigError, match="two names of one key"):
        load_yaml(write(tmp_path, "MODEL: {ATTENTION_STAGES: {EMBED_DIMS: [8, 16], DIMS: [8, 32]}}"))


@pytest.mark.parametrize(
    "number",
    [
        ":".join("1" * 100_000),
        ":".join("1" * 180) + ".5",
        ":".join("1" * 50_000) + ".5",
        "1" * 50_000,
        "0x" + "f" * 9999,
    ],
)
def test_a_number_without_end_is_refused_unread(tmp_path, number):
    """YAML 1.1 reads 1:1:1 to the base of 60, and 10⁵ such digits in many seconds."""
    start = time.monotonic()
    with pytest.raises(ConfigError, match=r"experiment\.yaml:2: a number of \d+ characters; numbers have at most 100"):
        load_yaml(write(tmp_path, f"TRAIN:\n  SEED: {number}"))
    if ":" in number:
        with pytest.raises(ValueError, match=r"1:1:1"):
            parse_list(f"1,{number}")
    assert time.monotonic() - start < 2


def test_a_file_that_is_too_long_is_refused_whole(tmp_path):
    longest = "TRAIN: {SEED: 3}\n#"
    path = write(tmp_path, longest + " " * (2**18 - len(longest)))
    assert load_yaml(path).train.seed == 3
    path = write(tmp_path, longest + " " * (2**18 - len(longest)) + "\nTRAIN: {SEED: 4}")
    with pytest.raises(ConfigError, match=r"experiment\.yaml: more than 262144 bytes are no experiment"):
        load_yaml(path)
