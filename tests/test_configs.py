"""Every shipped configuration: no errors, a schedule without warnings, a model of the published size."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path

import pytest

from linnaeus_jax.checks import config_errors
from linnaeus_jax.config import load_config
from linnaeus_jax.config.typed import typed
from linnaeus_jax.learning.optimizers import build_optimizer
from linnaeus_jax.models import parameter_table
from linnaeus_jax.tools import model_info, schedule
from tests.conftest import FIXTURES

CONFIGS = Path(__file__).parents[1] / "configs"
COUNTS = json.loads((FIXTURES / "models_counts.json").read_text())
#: config -> the published size that it trains
SIZES = {
    **{
        f"mformer_{family}_{variant}": f"mFormer{family.upper()}_{variant}"
        for family, variants in (("v0", ("sm", "md", "lg")), ("v1", ("sm", "md", "lg", "xl")))
        for variant in variants
    },
    "inaturalist": "mFormerV1_md",
    "finetune_pretrained": "mFormerV1_sm",
    "finetune_groups": "mFormerV1_sm",
}
#: configs whose schedule leaves something to its defaults, which the summary says
WARNS = ("finetune_groups", "quickstart")


@pytest.fixture(scope="module", params=sorted(path.stem for path in CONFIGS.glob("*.py") if path.stem != "yaml"))
def name(request):
    return request.param


@pytest.fixture(scope="module")
def config(name):
    """The config, with data where it names none."""
    config, _ = load_config([f"--config={CONFIGS / name}.py"])
    if not config.data.h5.labels_path:
        config.data.h5.labels_path, config.data.h5.images_path = "labels.h5", "images.h5"
    return config


def test_no_errors(config):
    assert config_errors(config) == []


def test_the_docstring_names_its_command(name):
    text = ast.get_docstring(ast.parse((CONFIGS / f"{name}.py").read_text()))
    assert text is not None
    assert f"--config=configs/{name}.py" in text


def test_the_schedule_resolves(name, config, capsys):
    resolved = schedule.run(typed(config), dataset_size=2_700_000, devices=8)
    assert resolved.total_steps > 0
    assert "9. Warnings\n   none" in capsys.readouterr().out or name in WARNS


def test_the_model_has_the_published_size_and_every_group_has_parameters(name, config):
    if name in SIZES:
        for component in config.data.meta.components.values():
            component.enabled = True  # the published sizes have all three
    config.model.depthwise_impl = "lax"  # one operation to trace; parameters do not depend on it
    model = model_info.built(typed(config), model_info.sizes_of(typed(config), None))
    parameters = parameter_table(model)
    if name in SIZES:
        expected = COUNTS["variants"][SIZES[name]][str(config.data.img_size)]["total"]
        assert sum(math.prod(row.shape) for row in parameters) == expected
    settings = typed(config).optimizer
    optimizer = build_optimizer(settings, parameters, layer_index=model.layer_index, stage_of=model.stage_of)
    groups = {group for group in settings.parameter_groups if group not in ("enabled", "default")}
    assert {row.group for row in optimizer.rows} == groups | {"default"}
    factors = {row.lr_multiplier for row in optimizer.rows}
    assert (min(factors) < 1) == (settings.layer_decay != 1 or name == "finetune_groups")


def test_every_size_has_a_file():
    assert {*SIZES.values()} == {*COUNTS["variants"]}
