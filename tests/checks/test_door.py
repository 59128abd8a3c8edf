"""No program uses a value before it is checked: odd values of every key, and what each program does with them."""

from __future__ import annotations

import copy
import math
import random
import re
from pathlib import Path

import numpy as np
import pytest

import linnaeus_jax
from linnaeus_jax.config.defaults import declared
from linnaeus_jax.config.values import problem
from linnaeus_jax.weights.files import write_state
from tests.checks.odd_values import ODD, PROGRAMS, REFUSED, TAKEN, stopping, verdict, with_value
from tests.tiny import TASKS, tiny_config

#: pairs of key and value that every program is tried with, of all
TRIED = 60
#: what programs used unchecked, with status 70 or a plan that `main` refuses
USED = {
    "data.h5.train_val_split_ratio": math.nan,
    "data.h5.train_val_split_seed": 10**29,
    "data.meta.components.*.dim": 10**29,
    "model.convnext_stages.depths": (10**9, 1),
    "aug.mean": (math.nan, 0.0, 0.0),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with data and a file of weights."""
    made = tmp_path_factory.mktemp("home")
    arrays = {"head.taxa_L10.classifier.weight": np.zeros((8, 16), np.float32)}
    write_state(made / "weights.safetensors", arrays, {"model": "mFormerV1"})
    tiny_config(made / "data")
    return made


@pytest.mark.parametrize("value", ODD, ids=[repr(value)[:20] for value in ODD])
def test_no_key_holds_what_is_no_number_or_no_text(value):
    """Every value is judged without an error of the program, and what fits no key is held by none."""
    judged = {key: problem(rule, value, TASKS) for key, rule in declared().items()}
    items = value if isinstance(value, tuple) else (value,)
    odd = any(isinstance(x, float) or x == "a\0b" for x in items)
    large = any(isinstance(x, int) and abs(x) > 10**12 for x in items)
    taken = [key for key, wrong in judged.items() if not wrong]
    assert [key for key in taken if odd or (large and declared()[key].kind is not float)] == []
    assert all(len(wrong) < 2000 and "\n" not in wrong for wrong in judged.values())


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_checks_before_it_uses(program, home):
    config = tiny_config(home / "data")
    with stopping():
        assert verdict(program, copy.deepcopy(config).lock(), home) == (TAKEN, "")
        for key, value in USED.items():
            tree = with_value(config, key, value)
            assert tree is not None
            status, said = verdict(program, tree, home)
            assert status == REFUSED, key
            assert key.rpartition(".")[2] in said


def test_every_program_that_loads_a_configuration_is_known():
    """Its name stands in `PROGRAMS`; what reads a saved one makes a `Config` of it by `typed` or `checked`."""
    package = Path(linnaeus_jax.__file__).parent
    loads = {
        path for path in package.rglob("*.py") if re.search(r"= load_config\(|load_config\(rest\)", path.read_text())
    }
    assert {path.stem for path in loads} <= set(PROGRAMS)
    assert [
        path.name
        for path in loads
        if not re.search(r"checked\(|apply_weight_requirements\(|preview_|run\(", path.read_text())
    ] == []


@pytest.mark.slow
def test_odd_values_end_as_in_training(home):
    config, rng = tiny_config(home / "data"), random.Random(7)
    pairs = rng.sample([(key, value) for key in declared() for value in ODD], 4 * TRIED)
    trees = [(key, value, tree) for key, value in pairs if (tree := with_value(config, key, value)) is not None]
    ends = {}
    with stopping():
        for key, value, tree in trees[:TRIED]:
            ends[key, repr(value)[:40]] = {program: verdict(program, tree, home)[0] for program in PROGRAMS}
    assert {key: found for key, found in ends.items() if not set(found.values()) <= {REFUSED, TAKEN}} == {}
    # files that some programs do without
    free = ("data.h5.labels_path", "data.h5.images_path", "model.pretrained", "model.pretrained_classes")
    assert {key: found for key, found in ends.items() if len(set(found.values())) > 1 and key[0] not in free} == {}
