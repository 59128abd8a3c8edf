"""How many rows a batch has: given for all devices together, or for one."""

from __future__ import annotations

from ml_collections import ConfigDict

#: where neither key is given
DEFAULT = 64


def global_batch_size(config: ConfigDict, devices: int) -> int:
    """Rows of one micro-batch over all devices of all processes.

    Raises:
      ValueError: both `data.batch_size` and `data.batch_size_per_device` are given.
    """
    whole, share = config.data.batch_size, config.data.batch_size_per_device
    if share is None:
        return DEFAULT if whole is None else whole
    if whole is not None:
        raise ValueError(
            f"data.batch_size = {whole} (rows over all devices) and data.batch_size_per_device = {share} are both "
            "given; set one of them to None"
        )
    return share * devices


__all__ = ["global_batch_size"]
