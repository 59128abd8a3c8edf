"""A run with everything on that knows secrets, on data with hostile texts: no secret is in a file or on the terminal,
and no text is a command to the terminal or markup of a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.forks import call

#: environment variable -> its value
ENVIRONMENT = {
    "WANDB_API_KEY": "0123456789abcdef" * 2 + "01234567",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG+bPxRfiCY",
    "RCLONE_CONFIG_REMOTE_PASS": "obscured-4711-rclone",
}
REMOTE, LOGIN, TOKEN = "pa55-of-the-remote", "pa55-of-a-login", "t0ken-of-an-address"
#: sets the title of a terminal and clears it, is wrong markup of rich, a formula and a program of a page
HOSTILE = "\x1b]0;pwned\x07\x1b[2J[/b] $\\frac$ <script>alert(1)</script>\u202e"
PLUGIN = Path(__file__).parents[1] / "extending" / "model_example.py"
CONFIG = f"""
from pathlib import Path
import h5py
from linnaeus_jax.data.taxon_names import GROUP
from tests.tiny import tiny_config, write_tiny_data

HOSTILE = {HOSTILE!r}

def write_data(folder):
    if folder.exists():
        return
    labels, _ = write_tiny_data(folder)
    with h5py.File(labels, "a") as file:
        for task in ("taxa_L10", "taxa_L20", "taxa_L30"):
            ids = sorted(set(file[task][:].tolist()) - {{0}})
            file[f"{{GROUP}}/{{task}}/taxon_id"] = ids
            file[f"{{GROUP}}/{{task}}/name"] = [f"{{HOSTILE}} {{taxon}}" for taxon in ids]
        rows = len(file["taxa_L10"])
        file["subset_place"] = [HOSTILE.replace("/", ""), "elsewhere"] * (rows // 2)
        for column in ("license", "rights_holder"):
            file[column] = [HOSTILE] * rows

def get_config():
    write_data(Path(__file__).parent / "data")
    config = tiny_config(
        Path(__file__).parent / "data",
        train__epochs=1,
        env__output__bucket__enabled=True,
        env__output__bucket__remote=":sftp,host=h,user=u,pass={REMOTE}:runs",
        env__output__bucket__executable=str(Path(__file__).parent / "rclone"),
        experiment__wandb__enabled=True,
        experiment__wandb__mode="offline",
        experiment__wandb__notes="data of https://me:{LOGIN}@host/x?token={TOKEN}",
        experiment__wandb__tags=("https://me:{LOGIN}@host", "two"),
        experiment__tensorboard__enabled=True,
        data__dataset__name=HOSTILE,
        data__dataset__clade="from https://host/?access_token={TOKEN}",
        debug__jsonl__enabled=True,
    )
    config.env.plugins = ({str(PLUGIN)!r},)
    config.model.type, config.model.variant = "SmallNet", "narrow"
    for name, value in config.debug.items():
        if value is False and name not in ("nans", "infs"):
            config.debug[name] = True
    return config
"""
#: fails as rclone does, and says what it was asked, with its environment
RCLONE = '#!/bin/sh\necho "Failed to $*: $AWS_SECRET_ACCESS_KEY $RCLONE_CONFIG_REMOTE_PASS" >&2; exit 1\n'


def started(work: Path, said: Path, *arguments: str) -> str:
    """What a program of the package prints; its status is 0, or 2 where it is refused."""
    environment = {**ENVIRONMENT, "TMPDIR": str(work), "JAX_NUM_CPU_DEVICES": "1"}
    done = call(arguments[0], arguments[1:], said, seconds=600, directory=work, environment=environment)
    assert done.status in (0, 2), done.error
    return done.out + done.error


@pytest.mark.slow
def test_no_secret_is_in_a_file_or_on_the_terminal(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    said = tmp_path_factory.mktemp("said")
    secrets = (*ENVIRONMENT.values(), REMOTE, LOGIN, TOKEN)
    (tmp_path / "config.py").write_text(CONFIG)
    (tmp_path / "rclone").write_text(RCLONE)
    (tmp_path / "rclone").chmod(0o755)
    main = ("linnaeus_jax.main", "--config=config.py", "--workdir=run")
    told = started(tmp_path, said, *main)
    assert "Failed to cat :sftp,host=h,user=u,pass=<redacted>:runs" in told
    told += started(tmp_path, said, *main, "--config.train.epochs=2")
    told += started(tmp_path, said, *main, f"--config.env.output.bucket.timeout_seconds=https://me:{LOGIN}@host")
    told += started(tmp_path, said, "linnaeus_jax.tools.bundle", "run", "bundle", "--without-data")
    told += started(tmp_path, said, "linnaeus_jax.tools.report", "run", "--out", "page.html")
    told += started(tmp_path, said, "linnaeus_jax.tools.evaluate", "run", "--json")
    for tool in ("verify_dataset", "describe_dataset"):
        images = ("--images", "data/images.h5")
        out = ("--out", "description") if tool == "describe_dataset" else ()
        told += started(tmp_path, said, f"linnaeus_jax.tools.{tool}", "data/labels.h5", *images, *out)
    assert [secret for secret in secrets if secret in told] == []
    assert "<script>" in told
    assert not {"\x1b", "\x07", "\u202e"} & set(told)
    written = {path for path in tmp_path.rglob("*") if path.is_file()} - {tmp_path / "config.py"}
    names = {path.name for path in written}
    assert {"config.json", "report.html", "debug_log_rank0.txt", "bundle.json", "page.html"} < names
    for kind in (".wandb", "tfevents"):  # whose texts are not compressed
        assert any(kind in path.name and b"https://<redacted>@host" in path.read_bytes() for path in written), kind
    for path in written - {tmp_path / "data" / "labels.h5"}:
        content = path.read_bytes()
        assert path.suffix not in (".html", ".txt") or b"\x1b" not in content, path
        assert path.suffix != ".html" or b"<script" not in content, path
        assert [secret for secret in secrets if secret.encode() in content] == [], path
