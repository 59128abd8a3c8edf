"""The configuration: default tree, command line, experiments written as YAML, and its one exception."""

from linnaeus_jax.config.defaults import complete_open_nodes, get_config
from linnaeus_jax.config.errors import ConfigError
from linnaeus_jax.config.flags import load_config
from linnaeus_jax.config.yaml_values import load_yaml

__all__ = [
    "ConfigError",
    "complete_open_nodes",
    "get_config",
    "load_config",
    "load_yaml",
]
