"""Where a run writes, who it is, and what may be written of a config."""

from __future__ import annotations

import json

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.saved import REDACTED, config_difference, plain, redacted
from linnaeus_jax.files import RunDirectory


def test_secrets_are_hidden():
    tree = {
        "wandb": {"api_key": "k-123", "project": "p"},
        "APP_KEY": "k-456",
        "url": "https://user:pass@host/x",
        "list": [{"password": "p-1"}],
        "empty_token": "",
    }
    text = json.dumps(redacted(tree))
    for secret in ("k-123", "k-456", "user:pass", "p-1"):
        assert secret not in text
    assert redacted(tree)["wandb"] == {"api_key": REDACTED, "project": "p"}
    assert redacted(tree)["empty_token"] == ""


def test_config_difference_names_leaves():
    old, new = get_config(), get_config()
    new.train.epochs = 7
    assert config_difference(plain(old), plain(new)) == [("train.epochs", 300, 7)]


def test_directory_from_config_and_placeholder(tmp_path):
    config = get_config()
    config.env.output.base_dir = str(tmp_path)
    directory = RunDirectory.of(config, None)
    assert directory.root == tmp_path / "linnaeus" / "default" / "run"
    assert directory.resolve("{output_dir}/assets/profiler") == directory.root / "assets" / "profiler"
    assert directory.resolve("logs/debug") == directory.root / "logs" / "debug"


def test_the_run_keeps_the_id_of_its_first_start(tmp_path):
    directory = RunDirectory(tmp_path)
    assert directory.keep_run_id("first") == "first"
    assert RunDirectory(tmp_path).keep_run_id("second") == "first"
