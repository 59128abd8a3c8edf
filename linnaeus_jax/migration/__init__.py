"""For those who come from Polli Linnaeus: its experiments in YAML, its command lines and its bundles.

Nothing below imports this: `register` puts the readers into registries, and each is imported at its first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linnaeus_jax import registry

#: options of other programs' documented command lines that are none of this program
OPTIONS = ("cfg", "opts", "datadir", "metapath", "val_metapath", "saving_path")
#: the file that only bundles of the original have
INFERENCE_CONFIG = "inference_config.yaml"


def register() -> None:
    """Makes `config.load_yaml`, the command line and `linnaeus_jax.load` know them."""
    registry.CONFIG_FORMATS.register("yaml")(_experiment)
    registry.BUNDLE_LAYOUTS.register(INFERENCE_CONFIG)(_bundle)
    for option in OPTIONS:
        registry.COMMAND_OPTIONS.register(option)(_command)


def _experiment(path: str | Path, inside: Path | None = None) -> Any:
    from linnaeus_jax.migration.experiments import load_experiment

    return load_experiment(path, inside)


def _bundle(path: Path) -> Any:
    from linnaeus_jax.migration.bundles import read_original_bundle

    return read_original_bundle(path)


def _command(argv: Sequence[str]) -> str:
    from linnaeus_jax.migration.command_lines import replacement

    return replacement(argv)
