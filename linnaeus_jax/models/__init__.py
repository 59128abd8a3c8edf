"""Models: hierarchical image classifiers that also take metadata, in Flax Linen, channels last."""

from linnaeus_jax.models.mformer_v1 import MFormerV1
from linnaeus_jax.models.names import (
    STAGES,
    ParameterInfo,
    canonical_name,
    flax_path,
    layer_index,
    num_layers,
    parameter_table,
    params_from_torch,
    params_to_torch,
    stage_of,
)
from linnaeus_jax.models.registry import build_model, model_variants, register_model
