"""The metadata vector: order, columns, and the one rule of validity."""

from __future__ import annotations

import numpy as np
import pytest

from linnaeus_jax.config import get_config
from linnaeus_jax.data.metadata import (
    ComponentSettings,
    SourceColumns,
    build_metadata,
    component_layout,
    component_settings,
)

TEMPORAL = ComponentSettings("TEMPORAL", "temporal", (), 4)
NAMES = ("month_sin", "month_cos", "hour_sin", "hour_cos")


def build(item, values, names=(), in_region=None):
    values = np.asarray(values, np.float32)
    sources = {item.source: SourceColumns(values, tuple(names))}
    return build_metadata((item,), sources, in_region, rows=len(values))


def test_settings_follow_idx(caplog):
    meta = get_config().data.meta
    assert [item.name for item in component_settings(meta)] == ["TEMPORAL", "SPATIAL"]
    meta.components.TEMPORAL.idx = 5
    assert [item.name for item in component_settings(meta)] == ["SPATIAL", "TEMPORAL"]
    assert "is negative" not in caplog.text
    meta.components.SPATIAL.idx = -1
    assert [item.name for item in component_settings(meta)] == ["TEMPORAL"]
    assert "SPATIAL.idx = -1 is negative" in caplog.text
    meta.components.ELEVATION.enabled, meta.components.ELEVATION.idx = True, 5
    with pytest.raises(ValueError, match="are both 5"):
        component_settings(meta)
    meta.active = False
    assert component_settings(meta) == ()


def test_settings_need_source_and_dim(caplog):
    meta = get_config().data.meta
    meta.components.SPATIAL.oor_mask, meta.components.SPATIAL.allow_missing = True, False
    component_settings(meta)
    assert "drops every out-of-region row" in caplog.text
    meta.components.SPATIAL.dim = 0
    with pytest.raises(ValueError, match=r"data\.meta\.components\.SPATIAL is enabled: set its source"):
        component_settings(meta)


def test_layout_is_a_running_sum():
    layout = component_layout([TEMPORAL, ComponentSettings("SPATIAL", "spatial", (), 3)])
    assert [(item.name, item.start, item.stop) for item in layout] == [("TEMPORAL", 0, 4), ("SPATIAL", 4, 7)]


def test_validity_by_value(caplog):
    values = [[0, 1, 0, 0], [0, 0, 0, 0], [1, np.nan, 0, 0], [np.inf, 1, 0, 0], [0.5, -0.5, 0.25, 1]]
    meta, valid = build(TEMPORAL, values)
    assert valid[:, 0].tolist() == [True, False, False, False, True]
    np.testing.assert_array_equal(meta[[0, 4]], np.asarray(values, np.float32)[[0, 4]])
    assert not meta[1:4].any()
    assert "is not finite in 2 rows: missing there" in caplog.text


def test_both_null_patterns_of_elevation():
    item = ComponentSettings("HEIGHT", "elevation_broadrange_2", (), 4)
    values = [[0, 1, 0, 1], [0, 0, 0, 0], [1e-9, 1 - 1e-6, 0, 1], [0, 1, 0.1, 0.99], [0, -1, 0, 1]]
    assert build(item, values)[1][:, 0].tolist() == [False, False, False, True, True]
    assert build(ComponentSettings("ELEVATION", "height", (), 4), values)[1][:, 0].tolist()[:3] == [False] * 3
    assert build(ComponentSettings("ELEVATION", "height", (), 4), values)[1][:, 0].tolist() == [False] * 3 + [True] * 2
    assert build(ComponentSettings("SPATIAL", "spatial", (), 4), values)[1][0, 0]  # only elevations have this null
    # judged on the full vector: a column that says 0 m at one scale beside others that do not is an elevation
    part = ComponentSettings("ELEVATION", "elevation_broadrange_2", ("month_sin", "month_cos"), 2)
    assert build(part, values, NAMES)[1][:, 0].tolist() == [False, False, False, True, True]


def test_elevation_of_odd_width_is_null(caplog):
    meta, valid = build(ComponentSettings("ELEVATION", "elevation_1", (), 3), [[0.5, 0.5, 0.5]])
    assert not valid.any()
    assert not meta.any()
    assert "odd number of columns" in caplog.text


def test_columns_in_the_requested_order():
    item = ComponentSettings("TEMPORAL", "temporal", ("month_cos", "month_sin"), 2)
    meta, valid = build(item, [[1, 2, 3, 4], [0, 0, 3, 4]], NAMES)
    assert meta.tolist() == [[2, 1], [0, 0]]
    assert valid[:, 0].tolist() == [True, False]  # judged on the selected columns


def test_out_of_region_rows_are_masked_on_request(caplog):
    values, inside = [[1, 1, 1, 1]] * 2, np.array([True, False])
    assert build(TEMPORAL, values, in_region=inside)[1].all()
    masked = ComponentSettings("TEMPORAL", "temporal", (), 4, oor_mask=True)
    meta, valid = build(masked, values, in_region=inside)
    assert valid[:, 0].tolist() == [True, False]
    assert not meta[1].any()
    assert build(masked, values)[1].all()
    assert "has no dataset in_region" in caplog.text


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (ComponentSettings("TEMPORAL", "temporal", ("minute",), 1), "no column 'minute' .*it has month_sin"),
        (ComponentSettings("TEMPORAL", "temporal", (), 2), "gives 4 columns but .*dim = 2; set dim to 4"),
        (ComponentSettings("TEMPORAL", "temporal", ("month_sin",), 2), "gives 1 columns"),
    ],
)
def test_unusable_settings(item, message):
    with pytest.raises(ValueError, match=message):
        build(item, np.ones((2, 4)), NAMES)


def test_columns_need_names():
    with pytest.raises(ValueError, match="column_names is absent"):
        build(ComponentSettings("TEMPORAL", "temporal", ("month_sin",), 1), np.ones((2, 4)))
