"""The run directory: where everything a run writes lies, and what of the config may be written there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from linnaeus_jax.files import write_atomically

#: parts of a key that mark its value as a secret
SECRET_MARKS = ("api_key", "app_key", "password", "secret", "token", "credential")
REDACTED = "<redacted>"


class RunDirectory:
    """`root` with its documented subdirectories; nothing is created before `create()`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.checkpoints = root / "checkpoints"
        self.logs = root / "logs"
        self.assets = root / "assets"
        self.metadata = root / "metadata"
        self.config_json = root / "config.json"
        self.progress_json = root / "progress.json"
        self.run_id_file = root / "run_id.txt"
        self.metrics_log = self.logs / "metrics_log.jsonl"

    @classmethod
    def of(cls, config: ConfigDict, workdir: str | Path | None) -> RunDirectory:
        """`workdir`, or `<env.output.base_dir>/<project>/<group>/<name>`."""
        names = config.experiment
        default = Path(config.env.output.base_dir) / names.project / names.group / names.name
        return cls(Path(workdir) if workdir else default)

    def create(self) -> None:
        """Makes the directories.

        Raises:
          OSError: naming the directory that could not be made.
        """
        for directory in (self.checkpoints, self.logs, self.assets, self.metadata):
            directory.mkdir(parents=True, exist_ok=True)

    def keep_run_id(self, wanted: str) -> str:
        """The identity of the run in external trackers: that of an earlier start, else `wanted`, which is kept."""
        if not self.run_id_file.exists():
            write_atomically(self.run_id_file, wanted + "\n")
        return self.run_id_file.read_text().strip()

    def resolve(self, path: str) -> Path:
        """A directory from the config: `{output_dir}` is the run directory, relative paths lie below it."""
        return self.root / path.replace("{output_dir}", str(self.root.resolve()))


def redacted(tree: Any) -> Any:
    """A copy of a plain tree with the values of secret keys and user:password parts of URLs hidden."""
    if isinstance(tree, dict):
        return {
            key: REDACTED if value and any(mark in str(key).lower() for mark in SECRET_MARKS) else redacted(value)
            for key, value in tree.items()
        }
    if isinstance(tree, (list, tuple)):
        return [redacted(item) for item in tree]
    if isinstance(tree, str) and "://" in tree and "@" in tree:
        scheme, rest = tree.split("://", 1)
        return f"{scheme}://{REDACTED}@{rest.rsplit('@', 1)[1]}"
    return tree


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key -> leaf of a nested dict."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat.update(flatten(value, f"{prefix}.{key}" if prefix else str(key)))
    return flat


def config_difference(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """(key, old value, new value) of every leaf that differs between two plain config trees."""
    before, after = flatten(old), flatten(new)
    missing = "<absent>"
    return [
        (key, before.get(key, missing), after.get(key, missing))
        for key in sorted(before.keys() | after.keys())
        if before.get(key, missing) != after.get(key, missing)
    ]


def resume_notes(step: int, meta: dict[str, Any], config: dict[str, Any], versions: dict[str, Any]) -> list[str]:
    """What to know when a run continues at `step`: how config and versions differ from those in the saved `meta`."""
    notes = [
        f"config changed: {key}: {old!r} -> {new!r}" for key, old, new in config_difference(meta["config"], config)
    ]
    notes += [
        f"version changed: {name}: {old} -> {versions.get(name)}"
        for name, old in meta["versions"].items()
        if versions.get(name) != old
    ]
    return notes or [f"resuming at update {step} with the same configuration and versions"]


def plain(config: ConfigDict) -> dict[str, Any]:
    """The config as JSON types, secrets hidden."""
    return json.loads(json.dumps(redacted(config.to_dict())))
