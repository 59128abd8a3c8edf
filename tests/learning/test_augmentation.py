"""Augmentation in the step: identity when off, independence of the batch, laws of every draw, order of operators."""

import dataclasses
import functools
import re
from types import SimpleNamespace

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from scipy import stats

from linnaeus_jax.config import defaults
from linnaeus_jax.learning import augmentation, pixel_ops
from linnaeus_jax.learning.augmentation import AugmentSettings, augment
from linnaeus_jax.learning.pixel_ops import OP_CODE
from linnaeus_jax.learning.policies import POLICY_NAMES, Policy, get_policy
from linnaeus_jax.tools.show_augmentations import render
from tests.compiling import LIKE_USERS

N = 100_000
FULL = AugmentSettings(
    hflip_prob=0.5,
    vflip_prob=0.3,
    crop_scale=(0.6, 1.0),
    color_jitter=0.4,
    policy="randaugment",
    num_ops=3,
    erase_prob=0.5,
    erase_count=2,
)
KEY = jax.random.key(7)
run = jax.jit(augment, static_argnames="settings")


def images(batch=8, height=12, width=10, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (batch, height, width, 3), np.uint8)


#: what `FULL` is tried on, compiled once for all tests
IMAGE, ROW = images(24, 16, 18, seed=4), np.arange(50, 74, dtype=np.int32)


def uniforms(*shape):
    return jnp.asarray(np.random.default_rng(2).random(shape, np.float32))


def within(count, total, p):
    assert stats.binomtest(int(count), int(total), p).pvalue > 1e-4


def test_off_is_the_identity():
    image = images()
    out = run(image, np.arange(8, dtype=np.int32), KEY, settings=AugmentSettings())
    np.testing.assert_allclose(out, image / np.float32(255), rtol=1e-6)


def test_normalize_is_all_that_evaluation_does():
    image, mean, std = images(), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    want = (image / 255 - np.array(mean)) / np.array(std)
    normalize = jax.jit(augmentation.normalize, static_argnums=(1, 2))
    np.testing.assert_allclose(normalize(image, mean, std), want, rtol=1e-5, atol=1e-6)
    dark = np.ones((1, 2, 2, 3), np.uint8)  # the dtype decides about the scale, not the largest value
    np.testing.assert_allclose(normalize(dark, (0.0,) * 3, (1.0,) * 3), 1 / 255, rtol=1e-6)
    floats = dark.astype(np.float32)
    np.testing.assert_array_equal(normalize(floats, (0.0,) * 3, (1.0,) * 3), floats)


def test_results_follow_the_row_not_the_batch():
    whole = np.asarray(run(IMAGE, ROW, KEY, settings=FULL))
    order = np.random.default_rng(1).permutation(len(ROW))
    np.testing.assert_array_equal(run(IMAGE[order], ROW[order], KEY, settings=FULL), whole[order])
    again = np.asarray(run(IMAGE, ROW, jax.random.fold_in(KEY, 1), settings=FULL))
    assert (np.abs(again - whole).max(axis=(1, 2, 3)) > 0.01).all()
    assert whole.min() >= 0
    assert whole.max() <= 1


@pytest.mark.slow
def test_sharded_batches_exchange_nothing():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    rows = NamedSharding(mesh, P("data"))
    args = (jax.device_put(IMAGE, rows), jax.device_put(ROW, rows), jax.device_put(KEY, NamedSharding(mesh, P())))
    compiled = jax.jit(augment, static_argnames="settings", out_shardings=rows).lower(*args, settings=FULL).compile()
    assert not re.findall(
        r"all-gather|all-to-all|collective-permute|all-reduce|reduce-scatter", compiled.as_text() or ""
    )
    np.testing.assert_allclose(compiled(*args), run(IMAGE, ROW, KEY, settings=FULL), atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        (FULL, {}),
        # with a blur: how its sums are rounded decides about single grey levels
        pytest.param(
            AugmentSettings(policy="hybrid_v0", crop_scale=(0.3, 0.9), erase_prob=0.7, erase_mode="const"),
            LIKE_USERS,
            marks=pytest.mark.slow,
        ),
        (AugmentSettings(policy="3a", hflip_prob=0.5, color_jitter=0.4, erase_prob=0.7, erase_mode="rand"), LIKE_USERS),
    ],
    ids=["full, randaugment", "hybrid_v0, const", "3a, rand"],
)
def test_a_loop_over_images_agrees_with_the_whole_batch(settings, options, monkeypatch):
    results = []
    for loop in (True, False):
        if settings is FULL and not loop and jax.device_count() > 1:  # the form of several devices
            results.append(np.asarray(run(IMAGE, ROW, KEY, settings=FULL)))
            continue
        monkeypatch.setattr(augmentation, "_one_by_one", lambda loop=loop: loop)
        compiled = jax.jit(lambda x, r, k: augment(x, r, k, settings)).lower(IMAGE, ROW, KEY)
        assert ("stablehlo.while" in compiled.as_text()) or not loop
        results.append(np.asarray(compiled.compile(options)(IMAGE, ROW, KEY)))
    tolerance = 1e-5
    if settings.policy == "hybrid_v0" and not LIKE_USERS:
        # jaxlib after 0.10 rounds the sum of a blur otherwise, whose last bit decides between two grey levels
        assert (np.abs(results[0] - results[1]) > tolerance).mean() < 1e-4
        tolerance += 1 / 255
    np.testing.assert_allclose(results[0], results[1], rtol=0, atol=tolerance)


def test_flips_are_exact_and_at_their_rates():
    image = np.tile(np.arange(4, dtype=np.uint8).reshape(1, 2, 2, 1), (N, 1, 1, 3))
    settings = AugmentSettings(hflip_prob=0.5, vflip_prob=0.2)
    out = np.asarray(run(image, np.arange(N, dtype=np.int32), KEY, settings=settings))[..., 0].reshape(N, 4)
    first = np.round(out[:, 0] * 255).astype(int)  # the pixel that came to the top left tells the flips
    order = {0: (0, 1, 2, 3), 1: (1, 0, 3, 2), 2: (2, 3, 0, 1), 3: (3, 2, 1, 0)}
    np.testing.assert_allclose(out, np.array([order[f] for f in first], np.float32) / 255, rtol=1e-6)
    within(np.isin(first, (1, 3)).sum(), N, 0.5)
    within(np.isin(first, (2, 3)).sum(), N, 0.2)


def test_crop_windows_stay_within_bounds():
    scale, ratio = (0.3, 0.9), (0.7, 1.1)
    windows = jax.jit(jax.vmap(lambda u: augmentation.crop_window(u, 40, 30, scale, ratio)))(uniforms(N, 22))
    left, top, width, height = (np.asarray(x, np.float64) for x in windows)
    tolerance = 1e-4
    assert min(left.min(), top.min()) >= -tolerance
    assert (left + width).max() <= 30 + tolerance
    assert (top + height).max() <= 40 + tolerance
    share = width * height / 1200
    assert scale[0] - tolerance <= share.min() < 0.31
    assert 0.85 < share.max() <= scale[1] + tolerance
    assert ratio[0] - tolerance <= (width / height).min()
    assert (width / height).max() <= ratio[1] + tolerance
    # what never fits becomes the largest central window of an allowed shape
    fallback = jax.jit(lambda u: augmentation.crop_window(u, 40, 30, (1.0, 1.0), (2.0, 2.0)))(uniforms(22))
    np.testing.assert_allclose(fallback, (0, 12.5, 30, 15), rtol=1e-6)


def test_crops_read_their_window():
    ramp = np.broadcast_to(np.arange(40, dtype=np.uint8)[None, :, None] * 6, (40, 40, 3))
    out = run(
        np.stack([ramp] * 64), np.arange(64, dtype=np.int32), KEY, settings=AugmentSettings(crop_scale=(0.5, 0.5))
    )
    slope = np.diff(np.asarray(out)[:, 20, :, 0] * 255 / 6, axis=1)
    inner = slope[:, 2:-2]
    np.testing.assert_allclose(inner, inner[:, :1].repeat(35, axis=1), atol=1e-3)
    width = inner[:, 0] * 40
    assert (width**2 / 800 > 0.74).all()  # area 800 and ratio in [3/4, 4/3]
    assert (width**2 / 800 < 1.34).all()


def test_policies_draw_what_their_table_says():
    for name in ("v0r", "3a", "randaugment"):
        policy = get_policy(name)
        draw = jax.jit(jax.vmap(lambda u, p=policy: augmentation.draw_policy(u, p)))
        drawn = draw(uniforms(N, 3, policy.op.shape[1]))
        op, value = (np.asarray(x) for x in drawn)
        for slot in range(op.shape[1]):
            for code in np.unique(policy.op):
                if code != OP_CODE["identity"]:
                    share = np.where(policy.op[:, slot] == code, policy.prob[:, slot], 0).mean()
                    within((op[:, slot] == code).sum(), N, share)
        if name == "3a":
            sigma = value[op == OP_CODE["blur"]]
            assert 0.1 <= sigma.min() < 0.11
            assert 1.99 < sigma.max() < 2.0
        if name == "randaugment":
            angle = value[op == OP_CODE["rotate"]]
            np.testing.assert_allclose(np.abs(angle), 27, rtol=1e-6)
            within((angle > 0).sum(), angle.size, 0.5)
    joint = get_policy("original")
    pairs, _ = jax.jit(jax.vmap(lambda u: augmentation.draw_policy(u, joint)))(uniforms(2000, 3, 2))
    allowed = {(a, b) for x, y in joint.op for a in (x, 0) for b in (y, 0)}
    assert {tuple(pair) for pair in np.asarray(pairs).tolist()} <= allowed


def one_policy(first, second):
    ops, bases = zip(first, second)
    return Policy(
        op=np.array([[OP_CODE[name] for name in ops]], np.int32),
        prob=np.ones((1, 2), np.float32),
        base=np.array([bases], np.float32),
        delta=np.zeros((1, 2), np.float32),
        joint=True,
    )


def test_operators_act_in_order(monkeypatch):
    image = images(1, 20, 24, seed=3)
    turn, darken, shift = ("rotate", 20.0), ("brightness", 0.25), ("translate_x", 0.25)

    @jax.jit
    def move(picture, code, value):
        centres = pixel_ops.pixel_centres(20, 24)
        points = pixel_ops.affine_points(pixel_ops.affine_matrix(code, value, 20, 24), *centres)
        out = jnp.round(pixel_ops.sample(picture, *points)).astype(jnp.uint8)
        return jnp.where(pixel_ops.outside(*points, 20, 24)[..., None], jnp.uint8(pixel_ops.FILL), out)

    def moved(picture, op):
        return move(picture, OP_CODE[op[0]], op[1])

    @functools.partial(jax.jit, static_argnums=1)
    def colored(picture, op):
        return pixel_ops.apply_color_op(picture, OP_CODE[op[0]], op[1], (op[0],))

    def ran(first, second):
        monkeypatch.setattr(augmentation, "get_policy", lambda *_: one_policy(first, second))
        row, settings = np.arange(1, dtype=np.int32), AugmentSettings(policy="v0r")
        return np.round(np.asarray(jax.jit(lambda x, r: augment(x, r, KEY, settings))(image, row))[0] * 255)

    start = image[0]
    np.testing.assert_array_equal(ran(turn, darken), colored(moved(start, turn), darken))
    late_fill = ran(darken, turn)  # resampled before darkening: equal up to the rounding of grey levels
    np.testing.assert_allclose(late_fill, np.asarray(moved(colored(start, darken), turn), int), atol=1)
    assert (late_fill == pixel_ops.FILL).all(axis=-1).any()
    two = np.asarray(moved(moved(start, turn), shift), int)  # a shift by whole pixels needs no second resampling
    np.testing.assert_allclose(ran(turn, shift), two, atol=1)


@pytest.mark.slow
@pytest.mark.parametrize(("here", "devices", "loop"), [(True, 1, True), (True, 2, False), (False, 1, False)])
def test_stages_loop_over_images_that_lie_on_one_device(monkeypatch, here, devices, loop):
    monkeypatch.setattr(augmentation.backend, "ONE_PICTURE_AT_A_TIME", SimpleNamespace(here=lambda: here))
    monkeypatch.setattr(jax, "device_count", lambda: devices)
    assert augmentation._one_by_one() is loop


@pytest.mark.parametrize("policy", [name for name in POLICY_NAMES if name not in ("originalr", "v0r")])
def test_every_policy_runs(policy):
    image = images(16, 16, 16)
    out = np.asarray(run(image, np.arange(16, dtype=np.int32), KEY, settings=AugmentSettings(policy=policy)))
    assert np.isfinite(out).all()
    assert out.min() >= 0
    assert out.max() <= 1
    assert (np.abs(out - image / 255).max(axis=(1, 2, 3)) > 0.02).sum() >= 8


def test_jitter_scales_brightness_within_bounds():
    grey = np.full((2000, 2, 2, 3), 100, np.uint8)  # uniform grey: contrast and saturation have no effect
    out = run(grey, np.arange(2000, dtype=np.int32), KEY, settings=AugmentSettings(color_jitter=0.4))
    factor = np.asarray(out)[:, 0, 0, 0] * 2.55
    assert 0.6 - 1e-5 <= factor.min() < 0.61
    assert 1.39 < factor.max() <= 1.4 + 1e-5


@pytest.mark.parametrize(("height", "width", "fits"), [(10, 100, False), (100, 10, False), (11, 91, True)])
def test_a_rectangle_as_high_or_wide_as_the_image_erases_nothing(height, width, fits):
    """A square of a tenth of 1,000 pixels has sides of 10."""
    _, _, high, wide = augmentation.erase_rectangle(jnp.zeros(4), height, width, (0.1, 0.1), (1.0, 1.0))
    assert (int(high), int(wide)) == ((10, 10) if fits else (0, 0))


def test_erased_rectangles():
    area, ratio = (0.02, 0.4), (0.3, 3.3)
    rectangle = jax.jit(jax.vmap(lambda u: augmentation.erase_rectangle(u, 400, 300, area, ratio)))
    top, left, h, w = (np.asarray(x, np.float64) for x in rectangle(uniforms(N, 4)))
    fits = h > 0
    assert fits.mean() > 0.9
    assert (w[~fits] == 0).all()
    assert top.min() == left.min() == 0
    assert (top + h).max() <= 400
    assert (left + w).max() <= 300
    h, w = h[fits], w[fits]
    assert ((h + 0.5) * (w + 0.5) >= area[0] * 120_000).all()
    assert ((h - 0.5) * (w - 0.5) <= area[1] * 120_000).all()
    assert ((h + 0.5) / (w - 0.5) >= ratio[0]).all()
    assert ((h - 0.5) / (w + 0.5) <= ratio[1]).all()


def test_erasing_rate():
    image = np.tile(np.array([90, 110], np.uint8)[None, None, :, None], (N, 8, 4, 3))
    settings = AugmentSettings(erase_prob=0.25, erase_mode="const", erase_area=(0.1, 0.3), erase_ratio=(0.5, 2.0))
    out = np.asarray(run(image, np.arange(N, dtype=np.int32), KEY, settings=settings)) * 255
    changed = np.logical_or.reduce(np.abs(out - image) > 1e-3, axis=-1)
    erased = changed.max(axis=(1, 2))
    within(erased.sum(), N, 0.25)
    level = out.max(axis=(1, 2, 3), where=changed[..., None], initial=0)
    np.testing.assert_array_equal(level, np.where(erased, out.min((1, 2, 3), where=changed[..., None], initial=255), 0))
    assert stats.kstest(level[erased] / 255, "uniform").pvalue > 1e-4


@pytest.mark.parametrize(("mode", "law"), [("pixel", stats.norm(100, 10)), ("rand", stats.uniform(0, 255))])
def test_erased_pixels_are_noise(mode, law):
    image = np.tile(np.array([90, 110], np.uint8)[None, None, :, None], (3, 96, 48, 3))
    settings = AugmentSettings(erase_prob=1.0, erase_mode=mode, erase_area=(0.3, 0.3), erase_ratio=(0.9, 1.1))
    out = np.asarray(run(image, np.arange(3, dtype=np.int32), KEY, settings=settings)) * 255
    for before, after in zip(image, out):  # images share the noise at different offsets, so each is judged alone
        changed = (np.abs(after - before) > 1e-3).any(axis=-1)
        assert 0.25 < changed.mean() < 0.32
        assert stats.kstest(after[changed].ravel(), law.cdf).pvalue > 1e-4
        assert abs(np.corrcoef(after[changed][1:, 0], after[changed][:-1, 0])[0, 1]) < 0.12


def test_erased_pixels_follow_the_moments_of_their_channel():
    image = np.empty((64, 64, 3), np.float32)
    image[:, ::2], image[:, 1::2] = (40, 120, 205), (60, 120, 195)  # means 50, 120, 200; deviations 10, 0, 5
    settings = AugmentSettings(erase_prob=1.0, erase_mode="pixel", erase_area=(0.3, 0.3), erase_ratio=(0.9, 1.1))
    noise = np.random.default_rng(0).standard_normal(2 * image.size, np.float32)
    uniform = np.asarray([[0.0, 0.1, 0, 0, 0], [0.5, 0.5, 0.3, 0.3, 0.5]], np.float32)
    out = np.asarray(jax.jit(augmentation.random_erase, static_argnums=3)(image, uniform, noise, settings))
    changed = (out != image).any(axis=-1)
    rectangle_of = jax.jit(lambda u: augmentation.erase_rectangle(u, 64, 64, (0.3, 0.3), (0.9, 1.1)))
    top, left, height, width = map(int, rectangle_of(uniform[1, :4]))
    rectangle = np.zeros((64, 64), bool)
    rectangle[top : top + height, left : left + width] = True
    np.testing.assert_array_equal(changed, rectangle)
    erased = out[changed]
    np.testing.assert_allclose(erased.mean(axis=0), (50, 120, 200), atol=1.5)
    np.testing.assert_allclose(erased.std(axis=0), (10, 0, 5), atol=0.8)


def test_statistics_of_a_slot_leave_out_the_fill_of_later_slots_alone():
    image, mask = np.full((4, 8, 3), 40, np.uint8), np.zeros((4, 8), bool)
    image[:, 4:], image[:, :1], mask[:, :1] = 60, pixel_ops.FILL, True
    color_slot = jax.jit(augmentation._color_slot, static_argnums=(4, 5))
    op, value = np.int32(OP_CODE["autocontrast"]), np.float32(0)
    for slot, filled, top in ((0, {0: mask}, pixel_ops.FILL), (1, {0: mask}, pixel_ops.FILL), (0, {1: mask}, 60)):
        out = color_slot(image, op, value, filled, slot, ("autocontrast",))
        np.testing.assert_array_equal(out[:, 4:], (60 - 40) * 255 // (top - 40))
        np.testing.assert_array_equal(out[:, 1:4], 0)


def test_stages_can_be_looked_at():
    stages = augmentation.cumulative_settings(FULL)
    assert [name for name, _ in stages] == ["input", "crop", "flip", "randaugment", "colour jitter", "random erasing"]
    assert stages[-1][1] == FULL
    assert [name for name, _ in augmentation.cumulative_settings(AugmentSettings())] == ["input"]
    image, row = images(), np.arange(8, dtype=np.int32)
    geometry = [dataclasses.replace(s, policy="") for _, s in stages[-2:]]
    before, after = (run(image, row, KEY, settings=s) for s in geometry)
    unchanged = (np.asarray(before) == np.asarray(after)).mean()  # erasing leaves what it does not cover as it was
    assert 0.3 < unchanged < 1


def test_settings_come_from_the_configuration():
    aug = defaults.get_config().aug
    want = AugmentSettings(hflip_prob=0.5, crop_scale=(0.6, 1.0), color_jitter=0.4, erase_prob=0.25)
    assert AugmentSettings.from_config(aug) == want
    assert hash(want) == hash(AugmentSettings.from_config(aug))
    aug.random_resized_crop.enabled = False
    assert AugmentSettings.from_config(aug).crop_scale is None
    aug.autoaug.policy = "v0"
    aug.random_erase.mode = "noise"
    aug.random_erase.area_range = (0.4, 0.02)
    aug.random_resized_crop.scale = (1.0, 0.5)
    errors = augmentation.validate(aug)
    keys = ("autoaug.policy", "random_erase.mode", "random_resized_crop.scale", "random_erase.area_range")
    assert [line.split(" is ")[0] for line in errors] == [f"aug.{key}" for key in keys]
    assert "'v0'; it must be '' (off) or one of original" in errors[0]


def test_floats_are_refused():
    with pytest.raises(ValueError, match="takes uint8 images, not float32"):
        augment(jnp.ones((1, 2, 2, 3)), jnp.arange(1), KEY, FULL)


def test_contact_sheet(tmp_path):
    image, row = images(), np.arange(8, dtype=np.int32)
    stages = {
        name: np.asarray(run(image, row, KEY, settings=settings))[:2]
        for name, settings in augmentation.cumulative_settings(AugmentSettings(hflip_prob=1.0))
    }
    np.testing.assert_allclose(stages["flip"], stages["input"][:, :, ::-1], rtol=1e-6)
    render(tmp_path / "sheet.png", stages, ["a", "b"], {"flip": ["flipped", "flipped"]})
    sheet = cv2.imread(str(tmp_path / "sheet.png"))
    assert sheet is not None
    assert sheet.std() > 10
