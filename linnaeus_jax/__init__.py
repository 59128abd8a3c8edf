"""Hierarchical, multi-task image classification with metadata, as one compiled JAX program."""

__version__ = "0.1.0"
