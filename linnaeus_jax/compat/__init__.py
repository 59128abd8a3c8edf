"""Every use of a part of a library that the library does not promise to keep, one module for each library.

Each function says what happens where the part is missing. `SEEN` has the versions with which all of them were there;
a test compares it with the versions that the tests run with, so that whoever raises one looks here. Nothing is imported
here: JAX is imported late by programs that may do without it.
"""

from __future__ import annotations

#: library -> oldest and newest version with which its parts below were seen
SEEN = {
    "jax": ("0.10.2", "0.12.0.1"),
    "flax": ("0.12.8", "0.12.12"),
    "orbax-checkpoint": ("0.12.8", "0.12.8"),
    "wandb": ("0.31.0", "0.31.0"),
    "grain": ("0.2.18", "0.2.18"),
}
