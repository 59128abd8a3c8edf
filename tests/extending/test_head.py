"""A head in one file of the user's own is configured, checked, trained, resumed and evaluated like the linear one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from linnaeus_jax.checks import config_errors
from linnaeus_jax.config import complete_open_nodes, load_config
from linnaeus_jax.config.errors import ConfigError
from linnaeus_jax.config.plugins import import_plugins
from linnaeus_jax.run import trainer
from linnaeus_jax.run.checkpoints import Checkpoints
from tests.extending.common import EXAMPLES, train_resume_evaluate
from tests.tiny import tiny_config

PLUGIN = str(EXAMPLES / "head_example.py")
HEAD = "model.classification.heads.taxa_L10"


@pytest.mark.slow
def test_a_head_is_trained_resumed_and_evaluated(tmp_path, monkeypatch, capsys):
    outcome = train_resume_evaluate(
        tmp_path,
        ("head_example.py", "model_example.py"),
        monkeypatch,
        capsys,
        model__type="SmallNet",
        model__variant="narrow",
        model__classification__heads__taxa_L10__type="Cosine",
        model__classification__heads__taxa_L10__learn_scale=True,
        model__classification__heads__taxa_L10__scale=8,
    )
    saved = json.loads((outcome.run / "config.json").read_text())["model"]["classification"]["heads"]
    assert saved == {"taxa_L10": {"type": "Cosine", "scale": 8.0, "learn_scale": True}}
    checkpoints = Checkpoints(outcome.run / "checkpoints")
    meta = checkpoints.newest_meta()
    checkpoints.close()
    assert meta is not None
    assert meta["identity"]["optimizer"].keys() >= {
        "head.taxa_L10.weight",
        "head.taxa_L10.temperature",
        "head.taxa_L20.fc.bias",
    }
    assert meta["identity"]["model"]["head_specs"][0][2:4] == ["Cosine", [["learn_scale", True], ["scale", 8.0]]]
    outcome.config.model.classification.heads.taxa_L10.scale = 4.0
    outcome.config.train.epochs = 3
    with pytest.raises(trainer.UserError, match=r"another model or optimizer: model.head_specs.*is 8.0 in the check"):
        trainer.run(outcome.config, outcome.run)


@pytest.fixture
def flags(tmp_path):
    """Flags of a run; the config file completes the entry of one task as Linear before any plugin is imported."""
    (tmp_path / "config.py").write_text(
        "from linnaeus_jax.config import complete_open_nodes, get_config\n"
        "from ml_collections import ConfigDict\n"
        "def get_config(make=get_config):\n"
        "    config = make()\n"
        "    with config.unlocked():\n"
        "        config.model.classification.heads.taxa_L10 = ConfigDict()\n"
        "    return complete_open_nodes(config)\n"
    )
    return [f"--config={tmp_path / 'config.py'}", f"--config.env.plugins={PLUGIN}"]


def head_of(config: ConfigDict) -> dict[str, object]:
    options: dict[str, object] = config.model.classification.heads.taxa_L10.to_dict()
    return options


def test_options_from_the_command_line(flags):
    config, _ = load_config([*flags, f"--config.{HEAD}.scale=4", f"--config.{HEAD}.type=Cosine"])
    assert head_of(config) == {"type": "Cosine", "scale": 4.0, "learn_scale": False}
    back, _ = load_config([*flags, f"--config.{HEAD}.type=Cosine", f"--config.{HEAD}.type=Linear"])
    assert head_of(back) == {"type": "Linear", "use_bias": True}


def test_options_from_yaml(tmp_path):
    heads = "MODEL: {CLASSIFICATION: {HEADS: {taxa_L10: {SCALE: 4, TYPE: Cosine}}}}\n"
    (tmp_path / "experiment.yaml").write_text(f"ENV: {{PLUGINS: ['{PLUGIN}']}}\n{heads}")
    config, _ = load_config([f"--config={Path('configs/yaml.py').absolute()}:{tmp_path / 'experiment.yaml'}"])
    assert head_of(config) == {"type": "Cosine", "scale": 4.0, "learn_scale": False}


@pytest.mark.parametrize("given", [{}, {"use_bias": True}, {"scale": 4.0}])
def test_options_from_python(given, tmp_path):
    """Whether the entry was completed before the plugin was known or not."""
    config = tiny_config(tmp_path, env__plugins=(PLUGIN,))
    with config.unlocked():
        config.model.classification.heads.taxa_L10 = ConfigDict({"type": "Cosine", **given})
    complete_open_nodes(config)
    import_plugins(config)
    complete_open_nodes(config)
    given.pop("use_bias", None)
    assert head_of(config) == {"type": "Cosine", "scale": 16.0, "learn_scale": False, **given}
    assert config_errors(config) == []


def test_errors_name_key_value_and_choices(flags, tmp_path):
    cosine = [*flags, f"--config.{HEAD}.type=Cosine"]
    with pytest.raises(ConfigError, match=rf"{HEAD}.use_bias: unknown key; did you mean --config.{HEAD}"):
        load_config([*cosine, f"--config.{HEAD}.use_bias=false"])
    with pytest.raises(ConfigError, match=rf"{HEAD}.scale = 'big': expected a number"):
        load_config([*cosine, f"--config.{HEAD}.scale=big"])
    config = tiny_config(tmp_path, env__plugins=(PLUGIN,))
    import_plugins(config)
    for head, message in (
        ({"type": "Cosinus"}, f"{HEAD}.type = 'Cosinus' is unknown; choose one of Linear, Cond"),
        ({"type": "Cosine", "scale": -1.0}, f"{HEAD}: scale = -1.0 must be above 0"),
        (
            {"type": "Cosine", "temperature": 2.0},
            f"{HEAD}.temperature = 2.0 is no option of Cosine; its options: scale, lea",
        ),
    ):
        with config.unlocked():
            config.model.classification.heads.taxa_L10 = ConfigDict(head)
        errors = config_errors(config)
        assert len(errors) == 1
        assert errors[0].startswith(message)
