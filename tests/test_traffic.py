"""Counting the bytes of products, convolutions and reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from benchmarks import bytes_moved, other_commit, traffic


def counted(function: Callable[..., Any], *arguments: jax.Array) -> list[tuple[str, int]]:
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    return [(operation.kind, operation.bytes) for operation in traffic.operations(jaxpr)]


def test_operands_and_results_count_once_and_elements_are_free() -> None:
    a, b = jnp.zeros((4, 8), jnp.bfloat16), jnp.zeros((8, 2), jnp.bfloat16)
    assert counted(lambda a, b: jnp.tanh(a) @ b, a, b) == [("product", 2 * (32 + 16 + 8))]
    assert counted(lambda a: jnp.sum(a.astype(jnp.float32) ** 2, axis=1), a) == [("reduction", 4 * (32 + 4))]
    image, kernel = jnp.zeros((1, 6, 6, 3)), jnp.zeros((3, 3, 3, 5))
    dimensions = lax.conv_dimension_numbers(image.shape, kernel.shape, ("NHWC", "HWIO", "NHWC"))

    def convolution(x: jax.Array, k: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, k, (1, 1), "VALID", dimension_numbers=dimensions)

    assert counted(convolution, image, kernel) == [("convolution", 4 * (108 + 135 + 80))]


def test_loops_count_by_their_rounds_and_conditionals_by_the_dearest_branch() -> None:
    x, flag = jnp.zeros((4, 4)), jnp.array(True)
    product = ("product", 4 * 48)
    assert counted(lambda x: lax.scan(lambda c, _: (c @ c, None), x, length=7)[0], x) == [(product[0], 7 * product[1])]
    assert counted(lambda f, x: lax.cond(f, lambda: x @ x @ x, lambda: x @ x), flag, x) == [product] * 2
    assert counted(jax.jit(lambda x: jax.checkpoint(lambda x: x @ x)(x)), x) == [product]


def test_a_choice_by_platform_is_that_of_a_gpu() -> None:
    def chosen(x: jax.Array) -> jax.Array:
        y: jax.Array = lax.platform_dependent(x, cpu=lambda x: x @ x @ x, default=lambda x: x @ x)
        return y

    x = jnp.zeros((4, 4))
    assert counted(chosen, x) == [("product", 4 * 48)]
    assert not list(traffic.conditionals(jax.make_jaxpr(chosen)(x).jaxpr))


def test_kernels_count_as_a_whole() -> None:
    q = jnp.zeros((1, 6, 2, 8), jnp.bfloat16)
    with traffic.as_on_gpu():
        found = counted(lambda q: jax.nn.dot_product_attention(q, q, q, implementation="cudnn"), q)
    assert found == [("kernel", 4 * q.nbytes)]


@pytest.mark.slow
def test_a_step_is_counted_by_part_and_phase() -> None:
    jaxpr = traffic.traced_step("mFormerV1-tiny", 32, 8, True, {})
    found = list(traffic.operations(jaxpr))
    assert not list(traffic.conditionals(jaxpr))  # on a GPU the host would wait for each
    phases = {(operation.part, operation.phase) for operation in found}
    assert {phase for part, phase in phases if part == "linear layers of MLPs"} == {"forward", "recomputed", "backward"}
    assert {part for part, _ in phases} >= set(traffic.PARTS) - {"rest of the blocks", "rest of the model"}


def test_the_table_is_sorted_and_summed() -> None:
    new = {"a": {"product, forward": 1e6}, "b": {"product, backward": 2e6, "kernel, forward": 1e6}}
    rows = bytes_moved.table(new, {"a": {"product, forward": 8e6}})
    assert [row["part"] for row in rows] == ["b", "a", "sum"]
    assert rows[0] == {"part": "b", "mb": 3, "forward_mb": 1, "recomputed_mb": 0, "backward_mb": 2, "baseline_mb": 0}
    assert rows[-1] == {"part": "sum", "mb": 4, "baseline_mb": 8, "ratio": 0.5, "limit": 0.55, "within": True}


def test_an_unknown_commit_is_said() -> None:
    with pytest.raises(SystemExit, match="cannot check out 'no such commit'"):
        with other_commit.worktree("no such commit"):
            pass
