"""The state of a run on the device, from one update to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from linnaeus_jax.learning.gradnorm import GradNormState
from linnaeus_jax.metrics.extras import NO_EXTRAS, PhaseExtras
from linnaeus_jax.metrics.phase import Sums, empty_sums
from linnaeus_jax.models.batch_norm import MOMENT_COUNTS


class TrainState(struct.PyTreeNode):
    """The training state; replicated over the mesh, donated to every update."""

    #: int32 [], updates attempted: the clock of every schedule
    step: jax.Array
    #: float32 parameters
    params: Any
    #: non-trainable collections of the model, {} where there are none: batch statistics, and how many batches each of
    #: them is of
    model_state: Any
    opt_state: Any
    #: task weights and what GradNorm remembers
    gradnorm: GradNormState
    #: exponential moving average of `params`, or None
    ema: Any
    #: int32 [], updates skipped because of non-finite values: all, and since the last good one
    skipped: jax.Array
    skipped_in_a_row: jax.Array
    #: sums since the last log point; None in the arrays of a checkpoint
    interval: Statistics

    @property
    def arrays(self) -> TrainState:
        """What a checkpoint holds as arrays; its host part has the sums since the last log point, which do not affect
        training, and the counts of batches, which only training needs."""
        kept = {name: tree for name, tree in self.model_state.items() if name != MOMENT_COUNTS}
        return self.replace(interval=None, model_state=kept)  # type: ignore[no-any-return]

    @property
    def eval_params(self) -> Any:
        """What evaluation uses: the average where one is kept."""
        return self.params if self.ema is None else self.ema


class Statistics(struct.PyTreeNode):
    """What training logs, merged by addition: of one micro-batch, of one update, or of all since the last log point."""

    sums: Sums
    #: float32 [], sum over updates of the gradient norm before clipping; int32 [], finite updates in it
    grad_norm: jax.Array
    updates: jax.Array
    #: int32 [K], samples whose component is valid after mixing and masking
    meta_valid: jax.Array
    #: int32 [T], null labels seen and kept in the loss
    null_total: jax.Array
    null_included: jax.Array

    @classmethod
    def zeros(cls, tasks: tuple[str, ...], components: int, extras: PhaseExtras = NO_EXTRAS) -> Statistics:
        """The neutral element of `metrics.phase.add`."""
        return cls(
            sums=empty_sums(tasks, extras),
            grad_norm=jnp.zeros((), jnp.float32),
            updates=jnp.zeros((), jnp.int32),
            meta_valid=jnp.zeros(components, jnp.int32),
            null_total=jnp.zeros(len(tasks), jnp.int32),
            null_included=jnp.zeros(len(tasks), jnp.int32),
        )

    def to_json(self) -> dict[str, Any]:
        """Fetched sums by name, exactly."""
        leaves = jax.tree_util.tree_leaves_with_path(self)
        return {jax.tree_util.keystr(path): np.asarray(leaf).tolist() for path, leaf in leaves}

    def from_json(self, stored: Mapping[str, Any]) -> Statistics | None:
        """What `to_json` gave, with names, shapes and dtypes as here; None where it was made for other statistics."""
        leaves, tree = jax.tree_util.tree_flatten_with_path(self)
        names = [jax.tree_util.keystr(path) for path, _ in leaves]
        if set(names) != set(stored) or any(np.shape(stored[name]) != x.shape for name, (_, x) in zip(names, leaves)):
            return None
        return jax.tree.unflatten(tree, [np.asarray(stored[name], x.dtype) for name, (_, x) in zip(names, leaves)])
