"""Loads an experiment written as YAML: `--config=configs/yaml.py:experiment.yaml`."""

from ml_collections import ConfigDict

from linnaeus_jax.config import load_yaml


def get_config(path: str) -> ConfigDict:
    """The default tree with the settings of the YAML file at `path`."""
    return load_yaml(path)
