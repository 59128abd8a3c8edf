import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linnaeus_jax.models import relative
from tests.npz import load_npz


@pytest.fixture(scope="module")
def golden(fixtures):
    return load_npz(fixtures / "models_relpos.npz")


@pytest.mark.parametrize(("height", "width", "extra"), [(2, 2, 1), (2, 3, 3), (4, 4, 2)])
def test_index(golden, height, width, extra):
    index = relative.relative_position_index((height, width), extra)
    np.testing.assert_array_equal(index, golden[f"index_h{height}_w{width}_e{extra}"])


@pytest.mark.parametrize(("grid", "extra"), [((2, 3), 3), ((4, 1), 1), ((1, 1), 0), ((5, 4), 4)])
def test_bias_is_the_gathered_table(grid, extra):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(relative.table_rows(grid), 3)).astype(np.float32)
    index = relative.relative_position_index(grid, extra)

    @jax.jit
    def run(table, cotangents):
        bias, pullback = jax.vjp(lambda table: relative.gathered_bias(table, grid, extra), table)
        return bias, jax.tree.map(pullback, cotangents)

    expected_bias = table[index].transpose(2, 0, 1)
    cotangent = rng.normal(size=expected_bias.shape).astype(np.float32)
    cotangent -= cotangent.mean(axis=2, keepdims=True)  # as behind a softmax
    expected = np.zeros(table.shape, np.float64)
    np.add.at(expected, index, cotangent.transpose(1, 2, 0).astype(np.float64))
    of_extra_alone = cotangent.copy()
    of_extra_alone[:, extra:] = 0
    bias, ((gradient,), (nothing,)) = run(table, (cotangent, of_extra_alone))
    np.testing.assert_array_equal(bias, expected_bias)
    np.testing.assert_allclose(gradient, expected, atol=1e-5, rtol=1e-5)
    assert not np.any(nothing)


@pytest.mark.parametrize(("old", "new"), [(4, 6), (3, 2)])
@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_resized_tables(golden, old, new, kind):
    table = kind(golden[f"interp_{old}_{new}/table"])
    resized = relative.resize_table(table, (old, old), (new, new))
    assert isinstance(resized, type(table))
    assert resized.dtype == np.float32
    np.testing.assert_allclose(resized, golden[f"interp_{old}_{new}/last_row_is_extra"], atol=1e-5)


def test_tables_that_are_not_resized_are_returned_and_wrong_ones_refused():
    table = np.zeros((relative.table_rows((3, 2)), 4), np.float32)
    assert relative.resize_table(table, (3, 2), (3, 2)) is table
    assert relative.resize_table(table, (3, 2), (2, 5)).shape == (relative.table_rows((2, 5)), 4)
    with pytest.raises(ValueError, match=r"a table of the grid \(3, 3\) has 26 rows, this one 16"):
        relative.resize_table(table, (3, 3), (4, 4))


def test_bicubic_weights_sum_to_one_and_are_the_identity_at_the_same_size():
    np.testing.assert_allclose(relative.bicubic_matrix(9, 14).sum(axis=1), 1.0, atol=1e-12)
    np.testing.assert_array_equal(relative.bicubic_matrix(7, 7), np.eye(7))
