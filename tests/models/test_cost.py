"""Parameters and multiply-adds of every published size, and the rules by which traces are counted."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from linnaeus_jax.models import ModelFamily
from linnaeus_jax.models.cost import activation_bytes, forward_multiply_adds, multiply_adds, parameters_by_stage
from linnaeus_jax.models.heads import ClassificationHeads, head_specs
from tests.conftest import FIXTURES
from tests.models.builds import build

PUBLISHED = json.loads((FIXTURES / "models_counts.json").read_text())
VARIANTS = [name.split("_") for name in PUBLISHED["variants"]]


def published(family, variant, size, *, metadata=True, **settings):
    components = [(name, columns) for name, columns, _ in PUBLISHED["meta"]] if metadata else ()
    given = {"components": components, "num_classes": PUBLISHED["num_classes"], "img_size": size}
    return build(type=family, variant=variant, **given, **settings)


@pytest.mark.parametrize(("family", "variant"), VARIANTS)
def test_parameters(family, variant):
    size = 224 if variant == "md" else 384  # tables of relative positions grow with the picture
    expected = PUBLISHED["variants"][f"{family}_{variant}"][str(size)]
    form = {"depthwise_impl": "lax"}  # one operation to trace; parameters do not depend on it
    stages = parameters_by_stage(published(family, variant, size, **form))
    assert sum(stages.values()) == expected["total"]
    assert stages["heads.classification_heads"] == expected["heads"]
    assert stages["heads.meta_heads"] == expected["meta_heads"]
    bare = parameters_by_stage(published(family, variant, size, metadata=False, **form))
    assert sum(bare.values()) == expected["total_without_meta"]
    assert "heads.meta_heads" not in bare


@pytest.mark.parametrize(
    ("family", "variant", "size"),
    [
        pytest.param(*names, size, marks=[] if names[1] in ("sm", "md") else pytest.mark.slow)
        for names in VARIANTS
        for size in (224, 384)
    ],
)
@pytest.mark.slow
def test_multiply_adds(family, variant, size):
    expected = PUBLISHED["variants"][f"{family}_{variant}"][str(size)]["flops"] / 2
    # the number does not depend on the form, see below: that with the fewest operations to trace
    form = {} if variant == "sm" else {"depthwise_impl": "lax", "scan_layers": True}
    assert forward_multiply_adds(published(family, variant, size, **form)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted({family for family, _ in VARIANTS}))
def test_multiply_adds_do_not_depend_on_how_a_number_is_computed(family):
    small = {"family": family, "variant": "tiny", "size": 64}
    forms: tuple[dict[str, Any], ...] = (
        {},
        {"scan_layers": True},
        {"depthwise_impl": "lax", "scan_layers": True},
        {"depthwise_impl": "shift"},
        {"remat": True},
        {"dtype": jnp.bfloat16},
    )
    assert len({forward_multiply_adds(published(**small, **form)) for form in forms}) == 1


def counted(function, *shapes):
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return multiply_adds(jax.make_jaxpr(function)(*arrays).jaxpr)


@jax.custom_vjp
def own_gradient(a, b):
    return a @ b


own_gradient.defvjp(lambda a, b: (a @ b, (a, b)), lambda kept, grad: (grad @ kept[1].T, kept[0].T @ grad))


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (lambda a, b: a @ b, [(3, 4), (4, 5)], 60),
        (lambda a, b: jnp.einsum("bnhd,bmhd->bhnm", a, b), [(2, 3, 4, 5), (2, 6, 4, 5)], 2 * 4 * 3 * 6 * 5),
        (lambda a, b: jnp.tanh(jax.jit(jnp.matmul)(a, b)) + 1, [(3, 4), (4, 5)], 60),
        (jax.checkpoint(jnp.matmul), [(3, 4), (4, 5)], 60),
        (lambda a, b: jnp.einsum("nc,c->n", a, b), [(3, 4), (4,)], 0),
        (lambda a, b: jax.lax.platform_dependent(a, b, cpu=jnp.matmul, default=jnp.add), [(4, 4), (4, 4)], 0),
        (own_gradient, [(3, 4), (4, 5)], 60),
        (lambda a, b: jax.lax.scan(lambda x, _: (x @ b, None), a, length=7)[0], [(3, 4), (4, 4)], 7 * 48),
        (lambda a, b: jax.lax.cond(a.sum() > 0, lambda: a @ b, lambda: a @ b @ b, *()), [(3, 4), (4, 4)], 2 * 48),
        (lambda a, b: jax.lax.while_loop(lambda x: x.sum() > 0, jnp.tanh, a), [(3, 4), (4, 4)], 0),
        (
            lambda x, k: jax.lax.conv_general_dilated(
                x, k, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
            ),
            [(2, 9, 9, 3), (3, 3, 3, 8)],
            2 * 4 * 4 * 8 * 27,
        ),
        (
            lambda x, k: jax.lax.conv_general_dilated(
                x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=8
            ),
            [(1, 5, 5, 8), (3, 3, 1, 8)],
            5 * 5 * 8 * 9,
        ),
    ],
)
def test_what_counts(function, shapes, expected):
    assert counted(function, *shapes) == expected


def test_a_loop_of_unknown_length_cannot_be_counted():
    with pytest.raises(ValueError, match="loop of unknown length"):
        counted(lambda a, b: jax.lax.while_loop(lambda x: x.sum() > 0, lambda x: x @ b, a), (3, 4), (4, 4))


class Means(ModelFamily):
    """The mean colour of a picture, its sine, and one head."""

    def setup(self) -> None:
        self.head = ClassificationHeads(self.head_specs, name="head")

    def encode_image(self, image_BHWC: jax.Array, **_: Any) -> jax.Array:
        return image_BHWC.astype(self.dtype).mean(axis=(1, 2))

    def encode_tokens(self, features: jax.Array, meta_BD: jax.Array | None = None, **_: Any) -> jax.Array:
        return jnp.sin(features)


def test_what_the_backward_pass_keeps():
    fields = {"img_size": (8, 8), "dtype": jnp.float32, "remat": False, "missing_metadata": "zero"}
    model = Means(components=(), head_specs=head_specs({"t": 7}, {}), **fields)
    assert activation_bytes(model) == 3 * 4  # the head's input; the gradient of nothing else reads the picture


@pytest.mark.slow
def test_recomputation_keeps_less():
    small = {"family": "mFormerV1", "variant": "tiny", "size": 64}
    assert activation_bytes(published(**small, remat=True)) < 0.5 * activation_bytes(published(**small))


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted({family for family, _ in VARIANTS}))
def test_a_scan_keeps_as_much_as_its_layers(family):
    model = published(family, "sm", 224, remat=True)
    assert activation_bytes(model.clone(scan_layers=True)) == pytest.approx(activation_bytes(model), rel=0.05)
