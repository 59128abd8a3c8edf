"""Of a run in float32 nothing is computed or counted in 16 bits, and no number in 64."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.step import toy
from tests.step.programs import build
from tests.tiny import tiny_config

#: float16, bfloat16, int16, uint16, and all of 64 bits, as JAX prints them
OTHER_WIDTHS = re.compile(r"\b(?:bf16|[fiu]16|[fiu]64)\[")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    directory = tmp_path_factory.mktemp("types")
    with pytest.MonkeyPatch.context() as patch:
        toy.register(patch, toy.ToyWithHeads)
        config = tiny_config(
            directory,
            model__type="toy",
            train__ema__enabled=True,
            train__tune_views=1,
            aug__vflip_prob=0.5,
            aug__random_resized_crop__enabled=True,
            aug__color_jitter=0.4,
            aug__autoaug__policy="randaugment",
            aug__random_erase__prob=0.5,
            loss__taxonomy_smoothing__enabled=(True,),
            loss__grad_weighting__class_weights__method=("smoothing",),
            loss__grad_weighting__class_weights__val=True,
            loss__grad_weighting__task__type="gradnorm",
            metrics__track_null_vs_non_null=True,
            metrics__taxa_subsets=(("left", "taxa_L30", 30), ("right", "taxa_L30", 31)),
            schedule__mixup__prob__enabled=True,
            schedule__mixup__cutmix__enabled=True,
            schedule__meta_masking__partial__enabled=True,
            schedule__meta_masking__partial__whitelist=(("TEMPORAL",), ("SPATIAL",)),
            schedule__null_masking__enabled=True,
        )
        program, inputs, _ = build(config, directory)
        other = next(iter(inputs.eval_loader(inputs.dataset.val, inputs.source(inputs.dataset.val))))
        with inputs.train_loader(0, 1) as loader:
            yield program, next(iter(loader))[1], other


@pytest.mark.parametrize("name", ["plain", "gradnorm"])
def test_update(built, name):
    program, batch, _ = built
    state = jax.eval_shape(program.initial_state)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(state)} == {"bool", "float32", "int32"}
    text = str(jax.make_jaxpr(program.train_step(name))(state, batch))
    assert not OTHER_WIDTHS.findall(text)


def test_evaluation(built):
    program, batch, _ = built
    evaluation = program.evaluation
    state = jax.eval_shape(program.initial_state)
    rows = {name: jnp.asarray(x)[0] for name, x in batch.items() if name != "key"}

    def phase(params, model_state, sums):
        seen = evaluation.features(params, model_state, rows["image"])
        weights = jnp.ones(len(evaluation.tasks))
        return evaluation.phase(params, model_state, weights, seen, rows, jnp.array([True, False]), sums, ("score",))

    sums = jax.eval_shape(evaluation.empty_sums)
    text = str(jax.make_jaxpr(phase)(state.params, state.model_state, sums))
    assert not OTHER_WIDTHS.findall(text)


def test_batch(built):
    """Each type is that of one kind: pictures, yes or no, whole numbers, real ones."""
    _, batch, other = built
    kinds = {name: np.asarray(x).dtype for name, x in batch.items()}
    assert {str(kind) for kind in kinds.values()} <= {"uint8", "bool", "int32", "float32"}
    assert {name: np.asarray(x).dtype for name, x in other.items()} == kinds
