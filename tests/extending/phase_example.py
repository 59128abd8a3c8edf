"""Validation of mirrored pictures, beside that of the pictures as they are.

config.env.plugins = ("phase_example.py",)
config.train.early_stop.metric = "val_mirrored/loss"
"""

from linnaeus_jax.metrics import Phase, register_phase


def mirror(pictures):
    """uint8 [B, H, W, 3] -> the same, left and right swapped."""
    return pictures[:, :, ::-1]


register_phase(Phase("val_mirrored", view=mirror, label="mirrored pictures"))
