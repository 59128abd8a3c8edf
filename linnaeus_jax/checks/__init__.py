"""Every rule that a configuration must obey, all errors at once."""

from linnaeus_jax.checks.config import config_errors, validate_schedule_config

__all__ = [
    "config_errors",
    "validate_schedule_config",
]
