"""Where a run writes, who it is, and what may be written of a config."""

from __future__ import annotations

import json

import pytest

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.derived import default_workdir
from linnaeus_jax.config.redaction import REDACTED, redacted
from linnaeus_jax.config.saved import config_difference, plain
from linnaeus_jax.config.typed import typed
from linnaeus_jax.files import RunDirectory, replaced_file


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


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("https://user:pw@host/x", f"https://{REDACTED}@host/x"),
        ("https://host/path@v1", "https://host/path@v1"),
        ("https://host/x?a=1&access_token=s3cr3t#part", f"https://host/x?a=1&access_token={REDACTED}#part"),
        (":sftp,host=h,user=u,pass=s3cr3t:runs/a", f":sftp,host=h,user=u,pass={REDACTED}:runs/a"),
        (':s3,secret_access_key="a:b,c",region=eu:bucket', f":s3,secret_access_key={REDACTED},region=eu:bucket"),
        ("blocks.*token", "blocks.*token"),
    ],
)
def test_secrets_within_texts_are_hidden(text, safe):
    assert redacted({"remote": text}) == {"remote": safe}


def test_structure_is_never_hidden():
    config = get_config()
    groups = config.optimizer.parameter_groups
    with groups.unlocked():
        groups.meta_tokens = {"filter": "token", "lr_multiplier": 0.5}
    saved = plain(config)
    assert saved["optimizer"]["parameter_groups"]["meta_tokens"] == {"filter": "token", "lr_multiplier": 0.5}
    tree = {"num_tokens": 3, "token": 4, "tokens": "all", "key": "name", "access_keys": [], "credentials": {"a": 1}}
    assert redacted(tree) == tree
    assert redacted({"wandb_token": "x", "AWS_SECRET_ACCESS_KEY": "y", "token": ["z"]}) == {
        "wandb_token": REDACTED,
        "AWS_SECRET_ACCESS_KEY": REDACTED,
        "token": [REDACTED],
    }


def test_config_difference_names_leaves():
    old, new = get_config(), get_config()
    new.train.epochs = 7
    assert config_difference(plain(old), plain(new)) == [("train.epochs", 300, 7)]


def test_what_a_kill_left_unfinished_is_removed(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.create()
    with replaced_file(directory.logs / "a.json") as unfinished:
        unfinished.write_text("whole")
        left = directory.logs / unfinished.name.replace("a.json", "b.json")
        left.write_text("half")
    (directory.logs / "a.json").unlink()
    mine = directory.logs / "notes.tmp"
    mine.write_text("kept")
    folder = left.with_name(left.name.replace("b.json", "c"))
    (folder / "d").mkdir(parents=True)
    assert left.exists()
    directory.remove_unfinished()
    assert list(directory.logs.iterdir()) == [mine]


def test_directory_from_config_and_placeholder(tmp_path):
    config = get_config()
    config.env.output.base_dir = str(tmp_path)
    directory = RunDirectory(default_workdir(typed(config)))
    assert directory.root == tmp_path / "linnaeus" / "default" / "run"
    assert directory.resolve("{output_dir}/assets/profiler") == directory.root / "assets" / "profiler"
    assert directory.resolve("logs/debug") == directory.root / "logs" / "debug"


def test_the_run_keeps_the_id_of_its_first_start(tmp_path):
    directory = RunDirectory(tmp_path)
    assert directory.keep_run_id("first") == "first"
    assert RunDirectory(tmp_path).keep_run_id("second") == "first"
