"""Optimizers as registered functions: what is subtracted from the parameters per unit of learning rate.

An optimizer is a function ``(*, option=default, ...) -> optax.GradientTransformation``, registered by name:

    @OPTIMIZERS.register("signum")
    def signum(*, beta: float = 0.9): ...

It returns what turns gradients into what is subtracted per unit of learning rate, such as `optax.scale_by_adam`; the
step applies learning rate and sign. Its options are the keys ``optimizer.signum.<option>``; a ValueError that it raises
is a config error. Keyword-only arguments without a default are given by name: the keys of the `optimizer` section
(`betas`, `eps`, `momentum`, ...), `ndim` (see `Optimizer`, by path) and `add_decay`, the transform that adds
``weight_decay * parameter``. Where a function does not ask for `add_decay`, the decay is decoupled: it is added after
the function's transform.

An optimizer that treats every element of a leaf on its own, as Adam does, is marked with `@elementwise`: small leaves
are then gathered before its update, which compiles much faster and changes no number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from linnaeus_jax.config.typed import OptimizerConfig
from linnaeus_jax.mistakes import InputError
from linnaeus_jax.registry import OPTIMIZERS, required_kwargs

FROZEN = "frozen"

Path = tuple[str, ...]


def elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks an optimizer whose update of an element depends on nothing but that element's own history."""
    function.elementwise = True  # type: ignore[attr-defined]
    return function


def is_elementwise(name: str) -> bool:
    """Whether the optimizer of that name is marked so."""
    return name != FROZEN and getattr(OPTIMIZERS[name], "elementwise", False)


def _path(keys: tuple[Any, ...]) -> Path:
    return tuple(key.key for key in keys)


def build_transform(
    name: str,
    settings: OptimizerConfig,
    decay: Mapping[Path, float] | None = None,
    ndim: Mapping[Path, int] | None = None,
) -> optax.GradientTransformation:
    """The transform of one optimizer, or of frozen parameters, with weight decay but without learning rate and sign.

    Args:
      settings: the `optimizer` section of the configuration.
      decay: weight decay of every parameter; None: it is only tried whether the transform can be built.
      ndim: axes of one layer's parameter.

    Raises:
      ValueError: whatever the registered function raises, beginning with ``optimizer.<name>``.
    """
    if name == FROZEN:
        return optax.set_to_zero()

    def decayed(keys: tuple[Any, ...], update: jax.Array, weight: jax.Array) -> jax.Array:
        amount = (decay or {})[_path(keys)]
        return update + amount * weight if amount else update

    add_decay = optax.stateless(lambda updates, params: jax.tree_util.tree_map_with_path(decayed, updates, params))
    given = {**settings, "add_decay": add_decay, "ndim": ndim or {}}
    with OPTIMIZERS.wrap_errors(name):
        transform = OPTIMIZERS.bind(name, settings.get(name) or {}, given)()
        if not isinstance(transform, optax.GradientTransformation):
            raise InputError(f"must return an optax.GradientTransformation, not {transform!r}")
    return transform if "add_decay" in required_kwargs(OPTIMIZERS[name]) else optax.chain(transform, add_decay)


@OPTIMIZERS.register("adamw")
@elementwise
def adamw(*, betas: Sequence[float], eps: float) -> optax.GradientTransformation:
    """Adam (Kingma and Ba, 2015) with decoupled weight decay (Loshchilov and Hutter, 2019)."""
    b1, b2, *_ = betas
    return optax.scale_by_adam(b1, b2, eps)


@OPTIMIZERS.register("adam")
@elementwise
def adam(
    *, betas: Sequence[float], eps: float, add_decay: optax.GradientTransformation
) -> optax.GradientTransformation:
    """Adam with the decay added to the gradient, as torch's."""
    return optax.chain(add_decay, adamw(betas=betas, eps=eps))


@OPTIMIZERS.register("sgd")
@elementwise
def sgd(*, momentum: float, add_decay: optax.GradientTransformation) -> optax.GradientTransformation:
    """SGD with Nesterov momentum and the decay added to the gradient, as torch's."""
    return optax.chain(add_decay, optax.trace(momentum, nesterov=True))


@OPTIMIZERS.register("lamb")
def lamb(
    *, betas: Sequence[float], eps: float, add_decay: optax.GradientTransformation
) -> optax.GradientTransformation:
    """LAMB (You et al., 2020)."""
    return optax.chain(adamw(betas=betas, eps=eps), add_decay, optax.scale_by_trust_ratio())


@OPTIMIZERS.register("lion")
@elementwise
def lion(*, betas: Sequence[float]) -> optax.GradientTransformation:
    """Lion (Chen et al., 2023)."""
    b1, b2, *_ = betas
    return optax.scale_by_lion(b1, b2)


@OPTIMIZERS.register("muon")
def muon(
    *,
    momentum: float,
    nesterov: bool,
    ns_steps: int,
    ndim: Mapping[Path, int],
    add_decay: optax.GradientTransformation,
) -> optax.GradientTransformation:
    """Muon (Jordan et al., 2024), for matrices and convolution kernels."""
    return optax.chain(optax.trace(momentum, nesterov=nesterov), _orthogonalize(ns_steps, ndim), add_decay)


@OPTIMIZERS.register("ademamix")
@elementwise
def ademamix(
    *, betas: Sequence[float], eps: float, alpha: float, t_alpha_beta3: int | None
) -> optax.GradientTransformation:
    """AdEMAMix (Pagliardini et al., 2024).

    Raises:
      ValueError: fewer than three betas.
    """
    if len(betas) < 3:
        raise InputError(f"optimizer.betas = {tuple(betas)}: need 3 numbers in [0, 1)")
    b1, b2, last_beta3 = betas
    last_alpha, beta3 = _ademamix_schedules(alpha, b1, last_beta3, t_alpha_beta3)
    return optax.contrib.scale_by_ademamix(b1, b2, beta3, last_alpha, eps)


def _orthogonalize(ns_steps: int, ndim: Mapping[Path, int]) -> optax.GradientTransformation:
    """Replaces each momentum matrix by sqrt(max(1, out / in)) times its Newton-Schulz orthogonalisation (float32).

    The momentum before it need not be normalised, since orthogonalisation ignores scale. Kernels are read as matrices
    whose last axis is the output and whose other axes, but leading scan axes, are the input.
    """

    def dimensions(updates: optax.Updates) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda keys, u: optax.contrib.MuonDimensionNumbers(
                tuple(range(u.ndim - ndim[_path(keys)], u.ndim - 1)), u.ndim - 1
            ),
            updates,
        )

    # With beta 0 the transformation keeps a copy of the gradient that nothing reads: state is made and dropped here.
    newton_schulz = optax.contrib.scale_by_muon(
        beta=0.0, nesterov=False, ns_steps=ns_steps, eps=1e-7, weight_dimension_numbers=dimensions
    )

    def update(updates: optax.Updates, params: optax.Params | None) -> optax.Updates:
        del params
        matrices, _ = newton_schulz.update(updates, newton_schulz.init(updates))

        def scale(keys: tuple[Any, ...], x: jax.Array) -> jax.Array:
            fan_in = math.prod(x.shape[x.ndim - ndim[_path(keys)] : -1])
            return math.sqrt(max(1.0, x.shape[-1] / fan_in)) * x

        return jax.tree_util.tree_map_with_path(scale, matrices)

    return optax.stateless(update)


def _ademamix_schedules(alpha: float, beta1: float, beta3: float, warmup: int | None) -> tuple[Any, Any]:
    """AdEMAMix' ramps of alpha and beta3 over `warmup` updates (None: constants), as functions of the count.

    beta3 rises so that the half-life of the slow average grows linearly (Pagliardini et al., 2024).
    """
    if warmup is None:
        return alpha, beta3
    log1, log3 = math.log(beta1), math.log(beta3)

    def progress(count: jax.Array) -> jax.Array:
        return jnp.minimum((count + 1) / warmup, 1.0)  # optax counts updates from 0, the ramp from 1

    def beta3_at(count: jax.Array) -> jax.Array:
        t = progress(count)
        return jnp.minimum(jnp.exp(log1 * log3 / ((1.0 - t) * log3 + t * log1)), beta3)

    return (lambda count: alpha * progress(count)), beta3_at
