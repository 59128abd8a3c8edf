"""Models: hierarchical image classifiers that also take metadata, in Flax Linen, channels last."""

from linnaeus_jax.models.convnext_family import ConvNeXt
from linnaeus_jax.models.efficientnet import EfficientNet
from linnaeus_jax.models.factory import build_model
from linnaeus_jax.models.family import ModelFamily
from linnaeus_jax.models.heads import ClassificationHeads, HeadSpec, HierarchicalHead
from linnaeus_jax.models.joined import Joined
from linnaeus_jax.models.mformer_v0 import MFormerV0
from linnaeus_jax.models.mformer_v1 import MFormerV1
from linnaeus_jax.models.names import ParameterInfo, initial_variables, parameter_table
from linnaeus_jax.models.vit import ViT

__all__ = [
    "ClassificationHeads",
    "ConvNeXt",
    "EfficientNet",
    "HeadSpec",
    "HierarchicalHead",
    "Joined",
    "MFormerV0",
    "MFormerV1",
    "ModelFamily",
    "ParameterInfo",
    "ViT",
    "build_model",
    "initial_variables",
    "parameter_table",
]
