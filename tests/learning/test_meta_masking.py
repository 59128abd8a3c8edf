"""Metadata masking: fixture with explicit draws, rates, tables, validation masks."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from linnaeus_jax.learning import meta_masking as mm
from tests.npz import load_npz

NAMES = ("TEMPORAL", "SPATIAL", "ELEVATION")
BOUNDS = ((0, 2), (2, 5), (5, 15))


def masking(table, bounds=BOUNDS):
    combos, log_weights = table
    return jax.jit(partial(mm.mask_metadata, combos=combos, log_weights=log_weights, bounds=bounds))


draw_masks = jax.jit(mm.draw_masks)


@pytest.fixture(scope="module")
def golden_masking(fixtures):
    """Bounds of the fixture's components, and a program for all of its scenarios."""
    setting = json.loads((fixtures / "learning_metamask.json").read_text())
    bounds = [tuple(setting["bounds"][name]) for name in NAMES]
    return bounds, masking(mm.combo_table(setting["whitelist"], setting["weights"], NAMES), bounds)


@pytest.mark.parametrize("scenario", ["both", "full_only", "partial_only", "all", "off"])
def test_explicit_draws(fixtures, golden_masking, scenario):
    golden = load_npz(fixtures / "learning_metamask.npz")
    bounds, run = golden_masking
    p_full, p_partial = golden[f"{scenario}/p"]
    valid = np.stack([golden["mask"][:, a:b].all(axis=1) for a, b in bounds], axis=1)
    meta, got_valid, kind = run(
        golden["aux"],
        valid,
        draws=mm.MaskDraws(*jax.device_put([golden[u].astype(np.float32) for u in ("u_full", "u_part", "u_combo")])),
        p_full=p_full,
        p_partial=p_partial,
        partial_active=p_partial >= 0,
    )
    np.testing.assert_array_equal(meta, golden[f"{scenario}/aux"])
    columns = mm.column_components(bounds, 15)
    np.testing.assert_array_equal(np.asarray(got_valid)[:, columns], golden[f"{scenario}/mask"])
    kind = np.asarray(kind)
    np.testing.assert_array_equal(kind == mm.PARTIAL, golden[f"{scenario}/combo_idx"] >= 0)
    np.testing.assert_array_equal(kind == mm.FULL, golden["u_full"] < np.float32(p_full))
    np.testing.assert_allclose(100 * np.mean(got_valid, axis=0), golden[f"{scenario}/valid_pct"], rtol=1e-6)


def test_rates():
    n, p_full, p_partial = 100_000, 0.3, 0.4
    run = masking(mm.combo_table([("TEMPORAL",), ("SPATIAL", "ELEVATION"), ("SPATIAL",)], (3.0, 1.0, 0.0), NAMES))
    meta, valid, kind = run(
        np.ones((n, 15), np.float32),
        np.ones((n, 3), bool),
        draws=draw_masks(jax.random.split(jax.random.key(3), n)),
        p_full=p_full,
        p_partial=p_partial,
        partial_active=True,
    )
    valid, kind = np.asarray(valid), np.asarray(kind)

    def within(count, total, p):
        assert stats.binomtest(int(count), int(total), p).pvalue > 1e-4

    within((kind == mm.FULL).sum(), n, p_full)
    within((kind == mm.PARTIAL).sum(), n, (1 - p_full) * p_partial)
    some = valid[kind == mm.PARTIAL]
    within((~some[:, 0]).sum(), len(some), 0.75)
    np.testing.assert_array_equal(some[:, 1], some[:, 2])  # the combination of weight 0 never occurs
    np.testing.assert_array_equal(valid[kind == mm.NONE], True)
    np.testing.assert_array_equal(np.asarray(meta) != 0, valid[:, mm.column_components(BOUNDS, 15)])


def test_draws_follow_the_row_not_the_position():
    keys = jax.jit(lambda key: jax.vmap(lambda r: jax.random.fold_in(key, r))(jnp.arange(8)))(jax.random.key(0))
    draws, swapped = draw_masks(keys), draw_masks(keys[::-1])
    np.testing.assert_array_equal(draws.combo, np.asarray(swapped.combo)[::-1])


def test_inactive_partial_and_empty_whitelist():
    meta, valid = np.ones((4, 15), np.float32), np.ones((4, 3), bool)
    draws = draw_masks(jax.random.split(jax.random.key(0), 4))
    for whitelist, active in (([("SPATIAL",)], False), ((), True)):
        run = masking(mm.combo_table(whitelist, (), NAMES))
        out, _, kind = run(meta, valid, draws=draws, p_full=0.0, p_partial=1.0, partial_active=active)
        np.testing.assert_array_equal(out, meta)
        np.testing.assert_array_equal(kind, mm.NONE)


def test_probabilities_of_the_table_are_shares_of_the_weights():
    _, logarithms = mm.combo_table([("SPATIAL",), ("TEMPORAL",), ("ELEVATION", "SPATIAL")], (3, 0, 4096), NAMES)
    assert logarithms.dtype == np.float32
    np.testing.assert_allclose(np.exp(np.float64(logarithms)), np.array([3, 0, 4096]) / 4099, rtol=1e-6)


def test_an_empty_combination_is_refused():
    with pytest.raises(ValueError, match=r"whitelist\[0\] is empty"):
        mm.combo_table([()], (), NAMES)


def test_validation_masks():
    keep = mm.component_mask(NAMES, ("SPATIAL",))
    shown = jax.jit(lambda meta, keep: mm.zero_components(meta, keep, BOUNDS))
    out = np.asarray(shown(np.ones((2, 15), np.float32), keep[None, :]))
    np.testing.assert_array_equal(out[:, 2:5], 0)
    assert out.sum() == 2 * 12
    assert not mm.component_mask(NAMES, None).any()
    assert mm.component_mask(NAMES, ()).all()
    with pytest.raises(ValueError, match="validation phase masks 'HEIGHT'"):
        mm.component_mask(NAMES, ("HEIGHT",))


def test_components_tile_the_columns():
    for bounds, columns in ((BOUNDS, 16), (((0, 2), (3, 5)), 5)):
        with pytest.raises(ValueError, match="without gap or overlap"):
            mm.column_components(bounds, columns)
