"""Selective mixup and cutmix: fixtures, rates, untouched rows, and no images between devices."""

import functools
import os
import re
import subprocess
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from scipy import stats

from linnaeus_jax.config import defaults
from linnaeus_jax.learning import mixing
from linnaeus_jax.learning.branches import computed_if
from linnaeus_jax.learning.mixing import MixDraws, MixSettings
from tests.npz import load_npz

BOUNDS = ((0, 2), (2, 5))


class Mixed(NamedTuple):
    """A mixed micro-batch."""

    image: Any
    meta: Any
    valid: Any
    partner_label: Any
    lam: Any


@functools.partial(jax.jit, static_argnames=("settings", "bounds"))
def mix_drawn(image, meta, valid, label, partner, group, draws, *, settings, bounds) -> Mixed:
    inputs = mixing.mix_inputs(image, meta, valid, partner, group, draws, settings=settings, bounds=bounds)
    size = image.shape[1:3]
    return Mixed(*inputs, *mixing.mix_labels(label, partner, group, draws, settings=settings, image_size=size))


@pytest.fixture(scope="module")
def golden(fixtures):
    return load_npz(fixtures / "learning_mixing.npz")


def drawn(active, cutmix, lam, pick, centre) -> MixDraws:
    kinds = zip((active, cutmix, lam, pick, centre), (bool, bool, np.float32, np.float32, np.int32), strict=True)
    return MixDraws(*jax.device_put([np.asarray(value, kind) for value, kind in kinds]))


def mix_golden(golden, mix_settings, cutmix, aux=None):
    bounds = tuple(tuple(b) for b in golden["bounds"].tolist())
    mask = golden["mask"]
    draws = drawn(True, cutmix, golden["lam"], golden["pick"], golden["centres"])
    label = np.stack([golden["labels/taxa_L10"], golden["labels/taxa_L20"]], axis=1).astype(np.int32)
    mixed = mix_drawn(
        golden["images"].transpose(0, 2, 3, 1),
        golden["aux"] if aux is None else aux,
        np.stack([mask[:, a:b].all(axis=1) for a, b in bounds], axis=1),
        label,
        golden["perm"].astype(np.int32),
        golden["group_ids"].astype(np.int32),
        draws,
        settings=mix_settings,
        bounds=bounds,
    )
    columns = np.repeat(np.arange(len(bounds)), [b - a for a, b in bounds])
    return mixed, np.asarray(mixed.valid)[:, columns], label


@pytest.mark.parametrize("case", ["mixup", "cutmix", "cutmix_minmax"])
def test_golden_batches(golden, case):
    minmax = tuple(golden["cutmix_minmax/minmax"].tolist()) if case == "cutmix_minmax" else None
    both = MixSettings(block=6, mixup=True, cutmix=True, minmax=minmax)
    mixed, mask, label = mix_golden(golden, both, case != "mixup")
    np.testing.assert_allclose(
        np.asarray(mixed.image).transpose(0, 3, 1, 2), golden[f"{case}/images"], rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(mixed.meta, golden[f"{case}/aux"])
    np.testing.assert_array_equal(mask, golden[f"{case}/mask"])
    lam = np.asarray(mixed.lam)[:, None]
    for task, name in enumerate(("taxa_L10", "taxa_L20")):
        eye = np.eye(golden[f"targets/{name}"].shape[1], dtype=np.float32)
        target = lam * eye[label[:, task]] + (1 - lam) * eye[np.asarray(mixed.partner_label)[:, task]]
        np.testing.assert_allclose(target, golden[f"{case}/targets/{name}"], rtol=1e-5, atol=1e-6)


def test_zeros_are_values(golden):
    mixed, mask, _ = mix_golden(golden, MixSettings(block=6, mixup=True), False, golden["zeros/aux_in"])
    np.testing.assert_array_equal(mixed.meta, golden["zeros/want_aux"])
    np.testing.assert_array_equal(mask, golden["zeros/want_mask"])
    # and what neither row knows becomes zeros, whatever stands there
    unknown = np.where(golden["mask"], golden["aux"], 7)
    mixed, _, _ = mix_golden(golden, MixSettings(block=6, mixup=True), False, unknown)
    rows = (golden["group_ids"] >= 0) & (golden["perm"] != np.arange(len(unknown)))
    np.testing.assert_array_equal(np.asarray(mixed.meta)[rows], golden["mixup/aux"][rows])


def test_minmax_bounds_the_pasted_share():
    image = np.stack([np.zeros((20, 20, 3), np.float32), np.ones((20, 20, 3), np.float32)])
    label = np.array([[1], [2]], np.int32)
    for lam, want in ((0.0, 0.25), (1.0, 0.09)):  # all the partner -> high bound, nothing of it -> low bound
        draws = drawn(True, True, lam, np.zeros(2), np.full((2, 2), 10))
        mixed = mix_drawn(
            image,
            np.zeros((2, 5), np.float32),
            np.ones((2, 2), bool),
            label,
            np.array([1, 0], np.int32),
            np.zeros(2, np.int32),
            draws,
            settings=MixSettings(block=2, cutmix=True, minmax=(0.0901, 0.2501)),
            bounds=BOUNDS,
        )
        np.testing.assert_allclose(np.asarray(mixed.image)[0].mean(), want, rtol=1e-5)
        np.testing.assert_allclose(mixed.lam, 1 - want, rtol=1e-5)


def test_boxes(golden):
    for height, width, lam, row, column, *want in golden["box_table"]:
        centre = jnp.array([row, column], jnp.int32)
        *box, kept = mixing.cutmix_box(jnp.float32(lam), centre, int(height), int(width))
        assert [int(x) for x in box] == want[:4]
        np.testing.assert_allclose(kept, want[4], rtol=1e-5, atol=1e-6)


@functools.partial(jax.jit, static_argnames="mix_settings")
def mix(image, meta, valid, label, partner, group, key, p_mix, mix_settings) -> Mixed:
    """A micro-batch mixed with the draws of `key`."""
    draws = mixing.draw_mix(key, p_mix, image.shape[0], image.shape[1:3], mix_settings)
    return mix_drawn(image, meta, valid, label, partner, group, draws, settings=mix_settings, bounds=BOUNDS)


def batch(size, block, rng) -> tuple[Any, Any, Any, Any, Any, Any]:
    """A planned batch of random groups, as arguments of `mix`."""
    group = rng.integers(-1, 3, size).astype(np.int32)
    partner = np.arange(size, dtype=np.int32)
    for start in range(0, size, block):
        for g in range(3):
            members = start + np.flatnonzero(group[start : start + block] == g)
            partner[members] = np.roll(members, 1)
    image = rng.random((size, 10, 6, 3), np.float32)  # higher than wide: neither side may stand for the other
    valid = rng.random((size, 2)) < 0.6
    meta = np.where(valid[:, [0, 0, 1, 1, 1]], rng.random((size, 5)), 0).astype(np.float32)
    return image, meta, valid, rng.integers(0, 9, (size, 2)).astype(np.int32), partner, group


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), cutmix=st.booleans(), minmax=st.sampled_from([None, (0.2, 0.6)]))
def test_rows_are_mixtures_of_themselves_and_their_partner(seed, cutmix, minmax):
    args = batch(8, 4, np.random.default_rng(seed))
    image, meta, valid, label, partner, group = args
    mix_settings = MixSettings(block=4, mixup=not cutmix, cutmix=cutmix, minmax=minmax)
    out = jax.device_get(mix(*args, jax.random.key(seed), 1.0, mix_settings))
    alone = (group < 0) | (partner == np.arange(8))
    other = np.where(alone, np.arange(8), partner)
    np.testing.assert_array_equal(out.lam[alone], 1)
    np.testing.assert_array_equal(out.image[alone], image[alone])
    np.testing.assert_array_equal(out.meta[alone], meta[alone])
    np.testing.assert_array_equal(out.partner_label, label[other])
    np.testing.assert_array_equal(out.valid, valid | valid[other])
    assert (out.lam >= 0).all()
    assert (out.lam <= 1).all()
    if cutmix:
        pasted = (np.asarray(out.image) != image).any(axis=-1).mean(axis=(1, 2))
        np.testing.assert_allclose(pasted, 1 - out.lam, atol=1e-6)
        if minmax:
            assert pasted.max() <= minmax[1] + 1e-6
    else:
        lam = np.asarray(out.lam)[:, None, None, None]
        np.testing.assert_allclose(out.image, lam * image + (1 - lam) * image[other], rtol=1e-5, atol=1e-6)
    for k, (a, b) in enumerate(BOUNDS):
        own = (np.asarray(out.meta)[:, a:b] == meta[:, a:b]).all(axis=1)
        theirs = (np.asarray(out.meta)[:, a:b] == meta[other][:, a:b]).all(axis=1)
        assert (own | theirs).all()
        assert theirs[~valid[:, k] & valid[other][:, k]].all()


def test_a_row_without_a_group_is_never_mixed():
    """Whatever partner it is given."""
    image, meta, valid, label, partner, group = batch(8, 4, np.random.default_rng(0))
    group[:2], partner[:2] = -1, (1, 0)
    mix_settings = MixSettings(block=4, mixup=True)
    out = jax.device_get(mix(image, meta, valid, label, partner, group, jax.random.key(0), 1.0, mix_settings))
    np.testing.assert_array_equal(out.image[:2], image[:2])
    np.testing.assert_array_equal(out.lam[:2], 1)
    np.testing.assert_array_equal(out.partner_label[:2], label[:2])


def test_gate_switch_and_share_follow_their_laws():
    n = 100_000
    mix_settings = MixSettings(mixup=True, cutmix=True, mixup_alpha=0.4, cutmix_alpha=2.0, switch_prob=0.3)
    draw = jax.jit(jax.vmap(lambda key: mixing.draw_mix(key, 0.7, 1, (6, 8), mix_settings)))
    draws = jax.tree.map(np.asarray, draw(jax.random.split(jax.random.key(0), n)))
    assert stats.binomtest(int(draws.active.sum()), n, 0.7).pvalue > 1e-4
    assert stats.binomtest(int(draws.cutmix.sum()), n, 0.3).pvalue > 1e-4
    for kind, alpha in ((True, 2.0), (False, 0.4)):
        lam = draws.lam[draws.cutmix == kind]
        sd = np.sqrt(1 / (4 * (2 * alpha + 1)))  # of Beta(alpha, alpha)
        assert abs(lam.mean() - 0.5) < 5 * sd / np.sqrt(len(lam))
        assert stats.kstest(lam, stats.beta(alpha, alpha).cdf).pvalue > 1e-4
    assert set(np.unique(draws.centre[..., 0])) == set(range(7))
    assert set(np.unique(draws.centre[..., 1])) == set(range(9))


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 8.0, 100.0])
def test_lam_follows_a_symmetric_beta_distribution(alpha):
    n = 100_000
    lam = np.asarray(jax.jit(mixing.symmetric_beta, static_argnums=2)(jax.random.key(3), alpha, (n,)), np.float64)
    assert lam.min() >= 0
    assert lam.max() <= 1  # and so none is NaN
    law = stats.beta(alpha, alpha)
    variance = 1 / (4 * (2 * alpha + 1))
    moments = {1: 0.0, 2: variance, 3: 0.0, 4: 3 * variance**2 * (2 * alpha + 1) / (2 * alpha + 3)}
    for power, moment in moments.items():  # of the distance from 1/2
        values = (lam - 0.5) ** power
        assert abs(values.mean() - moment) < 5 * values.std() / np.sqrt(n)
    # numbers next to 1 are rounded to it, and 0 where they are below the least float32: both sides one by one
    least = lam[(lam < 0.5) & (lam > 1e-30)]
    low = law.cdf(1e-30)
    assert stats.kstest(least, lambda x: (law.cdf(x) - low) / (0.5 - low)).pvalue > 1e-4
    above = lam[(lam > 0.5) & (lam < 1 - 1e-5)]
    rest = law.sf(1 - 1e-5)
    assert stats.kstest(1 - above, lambda x: (law.cdf(x) - rest) / (0.5 - rest)).pvalue > 1e-4
    assert stats.binomtest(int((lam < 0.5).sum()), n, 0.5).pvalue > 1e-4


def test_draws_belong_to_their_key_and_need_no_loop():
    """Before a loop of unknown length the host of a GPU waits, and in each round of it."""
    mix_settings = MixSettings(block=4, mixup=True, cutmix=True, mixup_alpha=0.3)

    def draw(key: jax.Array) -> MixDraws:
        return mixing.draw_mix(key, 0.5, 4, (8, 8), mix_settings)

    keys, compiled = (jax.random.key(0), jax.random.key(1)), jax.jit(draw)
    one, again, other = (float(compiled(key).lam) for key in (keys[0], keys[0], keys[1]))
    assert one == again != other
    lowered = compiled.trace(keys[0]).lower(lowering_platforms=("cuda",)).as_text()
    assert "stablehlo.while" not in lowered


@pytest.mark.parametrize(
    ("mix_settings", "p_mix"),
    [
        (MixSettings(block=4), 1.0),
        (MixSettings(block=4, mixup=True), 0.0),
        (MixSettings(block=4, mixup=True, mixup_alpha=0.0), 1.0),
        (MixSettings(block=4, cutmix=True, cutmix_alpha=0.0, minmax=(0.2, 0.5)), 1.0),
    ],
)
def test_off_is_the_identity(mix_settings, p_mix):
    args = batch(8, 4, np.random.default_rng(0))
    out = mix(*args, jax.random.key(0), p_mix, mix_settings)
    for got, want in zip(out, (*args[:4], np.ones(8))):
        np.testing.assert_array_equal(got, want)


def test_settings_and_wrong_inputs():
    config = defaults.get_config().schedule.mixup
    assert MixSettings.from_config(config, 4) == MixSettings(block=4, mixup=True)
    config.cutmix.minmax = (0.1, 0.2)
    assert MixSettings.from_config(config, 4).minmax == (0.1, 0.2)
    args = batch(4, 4, np.random.default_rng(0))
    for image, block, match in ((args[0], 3, "mix_block = 3"), ((args[0] * 255).astype(np.uint8), 4, "not uint8")):
        with pytest.raises(ValueError, match=match):
            mix(image, *args[1:], jax.random.key(0), 1.0, MixSettings(block=block, mixup=True))


def check_sharded_mixing(devices, size, block):
    """Compiles mixing with rows sharded over `devices`: no collective, and the result of one device."""
    mesh = jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,))
    rows = NamedSharding(mesh, P("data"))
    args = batch(size, block, np.random.default_rng(1))
    mix_settings = MixSettings(block=block, mixup=True, cutmix=True)

    def run(image: Any, meta: Any, valid: Any, label: Any, partner: Any, group: Any) -> Mixed:
        key = jax.random.key(5)
        return mix(image, meta, valid, label, partner, group, key, 1.0, mix_settings)

    sharded = [jax.device_put(x, rows) for x in args]
    compiled = jax.jit(run, out_shardings=rows).lower(*sharded).compile()
    assert not re.findall(
        r"all-gather|all-to-all|collective-permute|all-reduce|reduce-scatter", compiled.as_text() or ""
    )
    for got, want in zip(compiled(*sharded), jax.jit(run)(*args)):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_two_devices_exchange_nothing():
    check_sharded_mixing(2, 8, 2)


@pytest.mark.slow
def test_eight_devices_exchange_nothing():
    code = "from tests.learning.test_mixing import check_sharded_mixing as c; c(8, 64, 8); print('ok')"
    env = {**os.environ, "JAX_NUM_CPU_DEVICES": "8", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=200)
    assert done.stdout.strip() == "ok", done.stderr


def test_settings_that_never_mix_leave_every_row_as_it_is():
    image, meta = np.ones((4, 2, 2, 3), np.float32), np.ones((4, 1), np.float32)
    valid, partner = np.ones((4, 1), bool), np.array([1, 0, 3, 2], np.int32)
    label, group = np.arange(8, dtype=np.int32).reshape(4, 2), np.zeros(4, np.int32)
    draws = drawn(True, False, np.full(4, 0.3), np.zeros(4), np.zeros((4, 2)))
    out = mix_drawn(image, meta, valid, label, partner, group, draws, settings=MixSettings(), bounds=((0, 1),))
    expected = Mixed(image, meta, valid, label, np.ones(4, np.float32))
    jax.tree.map(np.testing.assert_array_equal, out, expected)
    assert [x.dtype for x in out] == [x.dtype for x in expected]


@pytest.mark.parametrize("active", [True, False])
def test_a_select_does_what_the_branch_does(active, monkeypatch):
    image, results = np.arange(6, dtype=np.float32), []
    for backend in ("cpu", "gpu"):
        monkeypatch.setattr(jax, "default_backend", lambda backend=backend: backend)
        jaxpr = jax.make_jaxpr(lambda on: computed_if(on, lambda x: 2 * x, image, store=True))(jnp.bool_(active))
        assert ("cond" in str(jaxpr)) == (backend == "cpu")
        results.append(jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, jnp.bool_(active))[0])
    np.testing.assert_array_equal(results[0], image * (1 + active))
    np.testing.assert_array_equal(results[0], results[1])
