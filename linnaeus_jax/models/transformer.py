"""Transformer blocks and stages, whatever the attention: residual sums, drop path, recomputation, one body for all.

Tokens are [extra tokens ..., patches in row-major order]. An attention adds to `SelfAttention` what it knows of the
positions of patches: `models/rotary.py` turns queries and keys, `models/relative.py` adds a learned bias to the logits.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import FrozenDict

from linnaeus_jax import backend
from linnaeus_jax.mistakes import InputError
from linnaeus_jax.models.layers import (
    Dropout,
    Dtype,
    LayerNorm,
    LayerScale,
    Linear,
    Mlp,
    Residual,
    Softmax,
    drop_path_scales,
    subkey,
)
from linnaeus_jax.models.operations import DerivedByHand, wide

ATTN_IMPLS = ("auto", "xla", "cudnn")
#: what `attn_drop_rate` is the rate of: single weights, or keys for all queries of a head
ATTN_DROP_KINDS = ("weights", "keys")


def check_attn_impl(attn_impl: str, dtype: Dtype, attn_drop_rate: float, attn_drop_kind: str) -> None:
    """Raises InputError where `model.attn_impl` cannot be had here."""
    device, bfloat16 = backend.target(), jnp.dtype(dtype) == jnp.bfloat16
    drops_weights = attn_drop_rate > 0 and attn_drop_kind == "weights"
    if attn_impl == "cudnn" and (device != "gpu" or not bfloat16 or drops_weights):
        raise InputError(
            "model.attn_impl = 'cudnn' needs a GPU, bfloat16 and attn_drop_rate 0 or attn_drop_kind 'keys' (here: "
            f"{device}, {jnp.dtype(dtype)}, {attn_drop_rate}, '{attn_drop_kind}'); use 'auto'"
        )


class SelfAttention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017); a subclass says in `_placed` where the patches are.

    Logits and softmax are float32. `attn_impl`: `cudnn` is the fused kernel (bfloat16 on GPU, no dropout of single
    weights), whose gradient `jax.vmap` cannot map and which shows no module its softmax; `xla` is the plain form, exact
    on every platform; `auto` takes `cudnn` where it can be had and positions are no learned bias, else `xla`. The
    kernel takes a bias in bfloat16.

    `attn_drop_kind`: `weights` drops each attention weight on its own. `keys` drops the weights of all queries of a
    head to a key together. A weight is dropped with the same probability and scaled alike, but what is left out is a
    value, so the kernel can be had.
    """

    num_heads: int
    drop_rate: float = 0.0
    attn_drop_rate: float = 0.0
    attn_impl: str = "auto"
    dtype: Dtype = jnp.float32
    attn_drop_kind: str = "weights"
    qkv_bias: bool = True
    norm_epsilon: float = 0.0  # of a norm before the last map; 0: there is none

    learned_bias: ClassVar[bool] = False  # whether `_placed` gives a bias

    @nn.compact
    def __call__(
        self,
        x_BND: jax.Array,
        grid: tuple[int, int],
        key: jax.Array | None = None,
        *,
        key_mask_BN: jax.Array | None = None,
        padding: int = 0,
    ) -> jax.Array:
        """Maps tokens [B, N, D] to [B, N, D].

        Args:
          x_BND: tokens; the last H*W of them, but for the padding, are the patches of `grid`.
          grid: (H, W).
          key: of dropout; None: no dropout.
          key_mask_BN: bool [B, N], the tokens that others may look at; None: all.
          padding: how many tokens behind the patches only fill up their number, see `padding_for`: none looks at them.
        """
        batch, tokens, dim = x_BND.shape
        qkv = Linear(3 * dim, use_bias=self.qkv_bias, dtype=self.dtype, name="qkv")(x_BND)
        qkv = qkv.reshape(batch, tokens, 3, self.num_heads, dim // self.num_heads)
        if padding:  # what the kernel leaves there as gradients is not to be relied on
            within_N = (jnp.arange(tokens) < tokens - padding)[None, :, None, None, None]
            qkv = jnp.where(within_N, qkv, jnp.zeros_like(qkv))
        q, k, bias_hNN = self._placed(qkv[:, :, :2], grid, padding)
        with jax.named_scope("attend"):
            out = self._attend(q, k, qkv[:, :, 2], key, bias_hNN, key_mask_BN, padding)
        out = out.reshape(batch, tokens, dim)
        out = LayerNorm(self.norm_epsilon, dtype=self.dtype, name="norm")(out) if self.norm_epsilon else out
        out = Linear(dim, dtype=self.dtype, name="proj")(out)
        return Dropout(self.drop_rate, name="proj_drop")(out, subkey(key, 1))

    @nn.nowrap
    def _placed(
        self, qk_BN2hd: jax.Array, grid: tuple[int, int], padding: int
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Queries and keys [B, N, heads, d] that know their positions, and a float32 bias [heads, N, N] or None."""
        raise NotImplementedError

    @nn.nowrap
    def _attend(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        key: jax.Array | None,
        bias_hNN: jax.Array | None,
        key_mask_BN: jax.Array | None,
        padding: int,
    ) -> jax.Array:
        scale = q.shape[-1] ** -0.5
        if self.attn_drop_kind == "keys":
            v = Dropout(self.attn_drop_rate, shared_axes=(-1,), name="attn_drop")(v, subkey(key, 0))
        if self.takes_kernel(q.shape[-1]):
            return fused_attention(q, k, v, scale, bias_hNN, key_mask_BN, padding=padding)
        if padding:
            raise ValueError("only the fused kernel needs padding")
        logits = attention_logits(q, k, scale)
        if bias_hNN is not None:
            logits = logits + bias_hNN[None]
        where = None if key_mask_BN is None else key_mask_BN[:, None, None, :]
        probs = Softmax(name="softmax")(logits, where=where)
        if self.attn_drop_kind == "weights":
            probs = Dropout(self.attn_drop_rate, name="attn_drop")(probs, subkey(key, 0))
        # heads first, which XLA on CPU multiplies four times as fast as heads between tokens and channels
        out = jnp.einsum("bhnm,bhmd->bhnd", probs.astype(v.dtype), v.swapaxes(1, 2))
        return out.swapaxes(1, 2)

    @nn.nowrap
    def takes_kernel(self, head_dim: int) -> bool:
        """Whether the fused kernel computes it: bfloat16 alone, and heads of a multiple of 8 up to 128 channels."""
        if self.attn_impl != "auto":
            return self.attn_impl == "cudnn"
        fits = jnp.dtype(self.dtype) == jnp.bfloat16 and head_dim % 8 == 0 and head_dim <= 128
        drops_weights = self.attn_drop_rate > 0.0 and self.attn_drop_kind == "weights"
        return fits and not (self.learned_bias or drops_weights) and _has_flash_kernels()

    @nn.nowrap
    def padding_for(self, tokens: int, dim: int) -> int:
        """How many tokens to append to `tokens` of `dim` channels: 1 where the kernel would append one in each call."""
        return tokens % 2 if self.takes_kernel(dim // self.num_heads) else 0


def _has_flash_kernels() -> bool:
    """Whether the devices are NVIDIA GPUs from Ampere on."""
    if not backend.FUSED_ATTENTION.here():
        return False
    if backend.traced_elsewhere():
        return True
    device = jax.local_devices()[0]
    return "rocm" not in device.client.platform_version and float(getattr(device, "compute_capability", "8.0")) >= 8.0


@functools.partial(DerivedByHand, nondiff_argnums=(2,))
def attention_logits(q: jax.Array, k: jax.Array, scale: float) -> jax.Array:
    """scale * q k of [B, N, heads, d] and [B, M, heads, d]: [B, heads, N, M], float32 or wider.

    Their cotangent has the dtype of `q` before it enters the products of the backward pass.
    """
    q, k = q.swapaxes(1, 2), k.swapaxes(1, 2)
    return jnp.einsum("bhnd,bhmd->bhnm", q, k, preferred_element_type=wide(q.dtype)) * scale


def _attention_logits_fwd(q: jax.Array, k: jax.Array, scale: float) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return attention_logits(q, k, scale), (q, k)


def _attention_logits_bwd(
    scale: float, saved: tuple[jax.Array, jax.Array], grad: jax.Array
) -> tuple[jax.Array, jax.Array]:
    q, k = saved
    grad = (grad * scale).astype(q.dtype)
    q, k = q.swapaxes(1, 2), k.swapaxes(1, 2)
    grad_q, grad_k = jnp.einsum("bhnm,bhmd->bhnd", grad, k), jnp.einsum("bhnm,bhnd->bhmd", grad, q)
    return grad_q.swapaxes(1, 2), grad_k.swapaxes(1, 2)


attention_logits.defvjp(_attention_logits_fwd, _attention_logits_bwd)


def fused_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    scale: float,
    bias_hNN: jax.Array | None = None,
    key_mask_BN: jax.Array | None = None,
    *,
    padding: int = 0,
    implementation: Literal["xla", "cudnn"] = "cudnn",
) -> jax.Array:
    """softmax(scale * q k + bias) v of [B, N, heads, d] in one kernel, see `jax.nn.dot_product_attention`.

    cuDNN has a backward pass for even N only, so an odd number of tokens gets one more that is beyond the length of
    every row; callers that have appended it themselves say so by `padding`, and use no gradient of it. Tokens that
    nobody may look at are beyond it, too, once keys and values are in another order, which a softmax does not see: a
    mask would be a bias of every row, whose gradient cuDNN does not have. Their gradient is 0.

    Raises:
      ValueError: a bias and a mask together.
    """
    batch, tokens = q.shape[:2]
    if odd := tokens % 2:
        q, k, v = (jnp.pad(x, ((0, 0), (0, 1), (0, 0), (0, 0))) for x in (q, k, v))
        bias_hNN = None if bias_hNN is None else jnp.pad(bias_hNN, ((0, 0), (0, 1), (0, 1)))
        key_mask_BN = None if key_mask_BN is None else jnp.pad(key_mask_BN, ((0, 0), (0, 1)))
    lengths_B = None
    if key_mask_BN is not None:
        if bias_hNN is not None:
            raise InputError(
                "model.attn_impl = 'cudnn' cannot mask tokens where positions are a learned bias; use model.attn_impl "
                "= 'auto' or model.missing_metadata = 'zero'"
            )
        visible_first = jnp.argsort(~key_mask_BN, axis=1, stable=True)[..., None, None]
        k, v = (jnp.take_along_axis(x, visible_first, axis=1) for x in (k, v))
        lengths_B = key_mask_BN.sum(axis=1, dtype=jnp.int32)
        within = (jnp.arange(k.shape[1])[None] < lengths_B[:, None])[..., None, None]
        k, v = (jnp.where(within, x, jnp.zeros_like(x)) for x in (k, v))  # and so the gradients are
    elif odd or padding:
        lengths_B = jnp.full(batch, tokens - padding, jnp.int32)
    out = jax.nn.dot_product_attention(
        q,
        k,
        v,
        None if bias_hNN is None else bias_hNN[None].astype(q.dtype),
        scale=scale,
        key_value_seq_lengths=lengths_B,
        implementation=implementation,
    )
    return out[:, :tokens]


class TransformerBlock(nn.Module):
    """Pre-norm transformer block: attention, then MLP, each with its own residual sum and drop path.

    `scales_2B` are the multipliers of the two branches (None: 1), `key` that of dropout (None: off), `key_mask_BN` the
    tokens that others may look at (None: all), `padding` how many of the last are none. With `remat` attention and MLP
    are recomputed in the backward pass, each on its own; norms and sums are kept. `layer_scale` is the initial scale of
    every channel of both branches (0: no such parameter), `activation` is that of the MLP, which has a norm with
    `mlp_norm`, see `Mlp`.
    """

    attention_type: type[SelfAttention]
    attention: Mapping[str, Any]  # its arguments
    mlp_ratio: float = 4.0
    remat: bool = False
    epsilon: float = 1e-5
    activation: str = "gelu"
    layer_scale: float = 0.0
    mlp_norm: bool = False
    prevent_cse: bool = True

    @nn.compact
    def __call__(
        self,
        x_BND: jax.Array,
        grid: tuple[int, int],
        scales_2B: jax.Array | None,
        key: jax.Array | None,
        *,
        key_mask_BN: jax.Array | None = None,
        padding: int = 0,
    ) -> jax.Array:
        dim, dtype, drop_rate = x_BND.shape[-1], self.attention["dtype"], self.attention["drop_rate"]
        scales = (None, None) if scales_2B is None else (scales_2B[0], scales_2B[1])
        keys = (subkey(key, 0), subkey(key, 1))
        attn = self.attention_type(**self.attention, name="attn")
        norm = self.epsilon if self.mlp_norm else 0.0
        mlp = Mlp(int(dim * self.mlp_ratio + 1e-6), dim, drop_rate, dtype, self.activation, norm, name="mlp")

        def call_attn(module: nn.Module, x: jax.Array, key: jax.Array | None, mask: jax.Array | None) -> jax.Array:
            return module(x, grid, key, key_mask_BN=mask, padding=padding)

        def call_mlp(module: nn.Module, x: jax.Array, key: jax.Array | None) -> jax.Array:
            return module(x, key)

        if self.remat:
            call_attn = nn.remat(call_attn, prevent_cse=self.prevent_cse)
            call_mlp = nn.remat(call_mlp, prevent_cse=self.prevent_cse)
        y = call_attn(attn, LayerNorm(self.epsilon, dtype=dtype, name="norm1")(x_BND), keys[0], key_mask_BN)
        y = LayerScale(self.layer_scale, dtype, name="ls1")(y) if self.layer_scale else y
        x_BND = Residual(name="residual1")(x_BND, y, scales[0])
        y = call_mlp(mlp, LayerNorm(self.epsilon, dtype=dtype, name="norm2")(x_BND), keys[1])
        y = LayerScale(self.layer_scale, dtype, name="ls2")(y) if self.layer_scale else y
        return Residual(name="residual2")(x_BND, y, scales[1])


class TransformerStage(nn.Module):
    """A sequence of transformer blocks, one per entry of `drop_path_rates`.

    Parameters lie under the position of each block ("0", "1", ...). With `scan` they are stacked inside the step and
    one block, named "layer", is compiled for all: names, optimizer state and checkpoints do not change.
    """

    attention_type: type[SelfAttention]
    attention: Mapping[str, Any]  # its arguments
    drop_path_rates: tuple[float, ...]
    mlp_ratio: float = 4.0
    remat: bool = False
    scan: bool = False
    form: Mapping[str, Any] = FrozenDict()  # further arguments of the blocks

    @nn.compact
    def __call__(
        self,
        x_BND: jax.Array,
        grid: tuple[int, int],
        *,
        train: bool,
        key_mask_BN: jax.Array | None = None,
        which: slice = slice(None),
    ) -> jax.Array:
        """Maps tokens [B, N, D] to [B, N, D].

        Args:
          key_mask_BN: bool [B, N], the tokens that others may look at; None: all.
          which: the blocks that are run.
        """
        depth, tokens = len(self.drop_path_rates), x_BND.shape[1]
        if padding := self.attention_type(**self.attention, parent=None).padding_for(tokens, x_BND.shape[2]):
            x_BND = jnp.pad(x_BND, ((0, 0), (0, padding), (0, 0)))
            key_mask_BN = None if key_mask_BN is None else jnp.pad(key_mask_BN, ((0, 0), (0, padding)))
        scales_L2B: jax.Array | None = None
        keys_L: jax.Array | None = None
        if train and any(self.drop_path_rates):
            scales_L2B = drop_path_scales(self.make_rng("drop_path"), self.drop_path_rates, 2, x_BND.shape[0])
        if train and (self.attention["drop_rate"] > 0 or self.attention["attn_drop_rate"] > 0):
            keys_L = jax.random.split(self.make_rng("dropout"), depth)
        run = range(depth)[which]
        if self.scan and run and not self.is_initializing():
            drops = jax.tree.map(lambda x: x[which], (scales_L2B, keys_L))
            x_BND = self._scan(x_BND, grid, run, drops, key_mask_BN, padding)
            return x_BND[:, :tokens] if padding else x_BND
        for i in run:
            block = self._block(str(i), prevent_cse=True)
            scales_2B = None if scales_L2B is None else scales_L2B[i]
            key = None if keys_L is None else keys_L[i]
            x_BND = block(x_BND, grid, scales_2B, key, key_mask_BN=key_mask_BN, padding=padding)
        return x_BND[:, :tokens] if padding else x_BND

    @nn.nowrap
    def _block(self, name: str, *, prevent_cse: bool) -> TransformerBlock:
        return TransformerBlock(
            self.attention_type,
            self.attention,
            self.mlp_ratio,
            self.remat,
            **self.form,
            prevent_cse=prevent_cse,
            name=name,
        )

    def _scan(
        self,
        x_BND: jax.Array,
        grid: tuple[int, int],
        which: range,
        drops_L: tuple[jax.Array | None, jax.Array | None],
        key_mask_BN: jax.Array | None,
        padding: int,
    ) -> jax.Array:
        def stacked(variables: dict) -> dict:
            blocks = [variables["params"][str(i)] for i in which]
            return {"params": {"layer": jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks)}}

        def one(block: nn.Module, x: jax.Array, drops: tuple) -> tuple[jax.Array, None]:
            return block(x, grid, *drops, key_mask_BN=key_mask_BN, padding=padding), None

        def run(stage: TransformerStage, x: jax.Array) -> jax.Array:
            block = stage._block("layer", prevent_cse=False)
            scanned = nn.scan(one, variable_axes={True: 0}, split_rngs={True: True}, length=len(which))
            return scanned(block, x, drops_L)[0]

        return nn.map_variables(run, "params", trans_in_fn=stacked)(self, x_BND)
