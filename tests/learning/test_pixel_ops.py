"""Pixel operators against Pillow's results, and the policy tables against the published ones."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageFilter, ImageOps

from linnaeus_jax.learning import pixel_ops
from linnaeus_jax.learning.pixel_ops import OP_CODE, TABLE_OPS
from linnaeus_jax.learning.policies import (
    POLICY_NAMES,
    RANDAUGMENT_OPS,
    get_policy,
    operator_argument,
    sub_policies,
)
from tests.npz import load_npz


@pytest.fixture(scope="module")
def golden(fixtures):
    return load_npz(fixtures / "learning_pixelops.npz")


def cases(golden, prefixes):
    return [(k.split("/")[0], float(k.split("/")[1]), golden[k]) for k in golden if k.split("/")[0] in prefixes]


@pytest.fixture(scope="module")
def color_op():
    """All operators in one graph, as a policy slot has them."""
    present = (*TABLE_OPS, *pixel_ops.BLEND_OPS)
    return jax.jit(lambda image, op, value: pixel_ops.apply_color_op(image, op, value, present))


def test_table_operators_are_exact(golden, color_op):
    checked = cases(golden, set(TABLE_OPS) - {"contrast", "brightness"})
    assert len(checked) == 10
    for name, value, want in checked:
        got = color_op(golden["image"], OP_CODE[name], value)
        np.testing.assert_array_equal(got, want, err_msg=f"{name} {value}")
    # Pillow computes in float64 and truncates: 120 levels between 113 and 233 often stay one short
    picture = np.random.default_rng(0).choice(np.r_[113:233], golden["image"].shape).astype(np.uint8)
    picture[0, 0], picture[0, 1] = 113, 232
    want = ImageOps.autocontrast(Image.fromarray(picture))
    np.testing.assert_array_equal(color_op(picture, OP_CODE["autocontrast"], 0.0), want)


def test_equalize_follows_pillow():
    """Pictures of more pixels than there are levels, each channel of a distribution of its own."""
    flattened = jax.jit(lambda image: pixel_ops.equalize_table(pixel_ops.histogram(image)))
    for seed in range(4):
        share = np.random.default_rng(seed).beta(2, 5, (40, 48, 3))
        picture = (255 * share ** [0.3, 1, 2]).astype(np.uint8).clip(0, 60 if seed % 2 else 255)  # a full last level
        table = np.asarray(flattened(picture))
        got = np.stack([table[channel][picture[..., channel]] for channel in range(3)], axis=2)
        np.testing.assert_array_equal(got, ImageOps.equalize(Image.fromarray(picture)))


def test_blends_are_within_one_grey_level(golden, color_op):
    checked = cases(golden, {"color", "contrast", "brightness", "sharpness"})
    assert len(checked) == 9
    for name, value, want in checked:
        got = np.asarray(color_op(golden["image"], OP_CODE[name], value), int)
        assert np.abs(got - want).max() <= 1, (name, value)


@pytest.mark.parametrize("sigma", [0.1, 0.3, 0.7, 1.0, 1.9, 2.0, 4.0, 15.0])
def test_blur_follows_pillow(golden, color_op, sigma):
    """Pillow rounds after each of its six passes, which is what the differences are."""
    pictures = [golden["image"], np.random.default_rng(0).integers(0, 256, golden["image"].shape, np.uint8)]
    for picture in pictures:
        want = np.asarray(Image.fromarray(picture).filter(ImageFilter.GaussianBlur(sigma)), int)
        got = np.asarray(color_op(picture, OP_CODE["blur"], sigma), int)
        assert np.abs(got - want).mean() <= 1
        assert np.abs(got - want).max() <= 3


def test_blur_of_the_fixture_is_within_the_bound(golden, color_op):
    ((_, sigma, want),) = cases(golden, {"gaussian_blur"})
    got = np.asarray(color_op(golden["image"], OP_CODE["blur"], sigma), int)
    assert np.abs(got - want).mean() <= 2


@pytest.mark.parametrize("op", [lambda x: pixel_ops.gaussian_blur(x, 1.5), lambda x: pixel_ops.grey(jnp.float32(x))])
def test_products_of_pixels_are_exact_on_every_device(op):
    """Also where products of matrices are rounded to fewer bits by default."""
    with jax.default_matmul_precision("bfloat16"):
        program = jax.make_jaxpr(op)(np.zeros((6, 4, 3), np.uint8))
    assert 0 < str(program).count("dot_general") == str(program).count("(Precision.HIGHEST, Precision.HIGHEST)")


def test_blur_keeps_flat_pictures():
    flat, blur = np.full((5, 7, 3), 90, np.uint8), jax.jit(pixel_ops.gaussian_blur)
    for sigma in (0.0, 0.5, 30.0):
        np.testing.assert_allclose(blur(flat, sigma), 90.0, rtol=1e-5)


def test_geometry_follows_pillow(golden):
    image = golden["image"]
    height, width, _ = image.shape
    checked = [key for key in golden if "_fill" in key]
    assert len(checked) == 9

    @jax.jit
    def moved(op, value):
        matrix = pixel_ops.affine_matrix(op, value, height, width)
        assert matrix.shape == (2, 3)
        x, y = pixel_ops.affine_points(matrix, *pixel_ops.pixel_centres(height, width))
        return x, y, jnp.round(pixel_ops.sample(jnp.asarray(image), x, y)), pixel_ops.outside(x, y, height, width)

    for key in checked:
        name, value = key.split("/")
        op, mode, fill = name.rsplit("_", 2)
        x, y, out, outside = (np.asarray(part) for part in moved(OP_CODE[op], np.float32(value)))
        if mode == "nearest":
            row, column = (np.floor(z).astype(int).clip(0, n - 1) for z, n in ((y, height), (x, width)))
            out = image[row, column]
        out = np.where(outside[..., None], int(fill[4:]), out)
        off = np.abs(np.asarray(out, int) - golden[key]).max(axis=-1)
        assert (off <= 2).mean() >= 0.99, key


def test_other_operators_leave_the_image_alone(golden, color_op):
    for name in (pixel_ops.IDENTITY, *pixel_ops.AFFINE_OPS):
        np.testing.assert_array_equal(color_op(golden["image"], OP_CODE[name], -17.5), golden["image"])


def test_flat_images_survive_statistics():
    image, names = jax.device_put(np.full((5, 7, 3), 90, np.uint8)), ("equalize", "autocontrast", "contrast")
    apply = jax.jit(lambda code, visible: pixel_ops.apply_color_op(image, code, 1.5, names, visible=visible))
    for name in names:
        assert apply(OP_CODE[name], np.zeros((5, 7), bool)).shape == image.shape
        np.testing.assert_array_equal(apply(OP_CODE[name], None), image)


def test_statistics_use_visible_pixels_only():
    image = np.random.default_rng(0).integers(50, 100, (8, 8, 3), np.uint8)
    image[:4] = 255
    visible = np.arange(8)[:, None] >= np.full((1, 8), 4)
    flat = jnp.asarray(image)
    out = pixel_ops.apply_color_op(flat, OP_CODE["equalize"], 0.0, ("equalize",), visible=jnp.asarray(visible))
    want = pixel_ops.apply_color_op(flat[4:], OP_CODE["equalize"], 0.0, ("equalize",))
    np.testing.assert_array_equal(out[4:], want)


def test_policy_tables_are_the_published_ones(fixtures):
    published = json.loads((fixtures / "learning_autoaug_policies.json").read_text())
    assert {*published, "randaugment"} == set(POLICY_NAMES)
    for name, subs in published.items():
        assert [[list(op) for op in sub] for sub in sub_policies(name)] == subs


@pytest.mark.parametrize(
    ("name", "level", "want"),
    [
        ("ShearX", 8, ("shear_x", 0, 0.24)),
        ("ShearY", 8, ("shear_y", 0, 0.24)),
        ("Rotate", 9, ("rotate", 0, 27)),
        ("TranslateYRel", 9, ("translate_y", 0, 0.405)),
        ("Color", 9, ("color", 1.72, 0)),
        ("PosterizeOriginal", 8, ("posterize", 7, 0)),
        ("PosterizeIncreasing", 10, ("posterize", 1, 0)),
        ("Solarize", 3, ("solarize", 76, 0)),
        ("SolarizeAdd", 7, ("solarize_add", 77, 0)),
        ("Desaturate", 10, ("color", 0, 0)),
        ("GaussianBlurRand", 10, ("blur", 0.1, 1.9)),
    ],
)
def test_levels_become_arguments(name, level, want):
    op, base, delta = operator_argument(name, level)
    assert op == want[0]
    np.testing.assert_allclose((base, delta), want[1:], rtol=1e-12)


def test_policies_in_numbers():
    policy = get_policy("hybrid_v0")
    assert policy.op.shape == (28, 2)
    assert policy.joint
    random = get_policy("randaugment", 3, 5.0)
    assert random.op.shape == (len(RANDAUGMENT_OPS), 3)
    assert not random.joint
    with pytest.raises(ValueError, match="unknown augmentation policy 'origina1'"):
        sub_policies("origina1")
    with pytest.raises(ValueError, match="unknown policy operator 'Twirl'"):
        operator_argument("Twirl", 1)


def test_what_lies_outside():
    """The edge at 0 is of the picture, that at its size is not."""
    at = jnp.array([-0.01, 0.0, 5.99, 6.0, 6.01])
    inside = jnp.full(5, 2.0)
    assert pixel_ops.outside(inside, at, 6, 9).tolist() == [True, False, False, True, True]
    assert pixel_ops.outside(at * 9 / 6, inside, 6, 9).tolist() == [True, False, False, True, True]
