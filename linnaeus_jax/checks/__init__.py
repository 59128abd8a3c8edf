"""Every rule that a configuration must obey, all errors at once."""

from linnaeus_jax.checks.config import checked, config_errors, validate_schedule_config

__all__ = [
    "checked",
    "config_errors",
    "validate_schedule_config",
]
