"""What leaves the program: no secret, and nothing that a terminal would obey."""

from __future__ import annotations

import io
import json
import logging
from contextlib import nullcontext
from pathlib import Path

import pytest
from rich.table import Table

from linnaeus_jax.config import load_yaml
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.config.exit_status import exit_status
from linnaeus_jax.config.redaction import REDACTED, redacted, sanitize
from linnaeus_jax.reporting.logs import PlainConsole, log_to_files, setup_logging

SECRET = "s3cr3t/Va1ue+"
REMOTE = f"https://me:{SECRET.replace('/', '')}@host/x"


def test_values_of_secret_environment_variables_are_hidden_wherever_they_stand(monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("RCLONE_CONFIG_B2_PASS", "another one")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path))  # a path is no secret
    monkeypatch.setenv("TOKEN", "short")
    text = f"403 for {SECRET} and another one below {tmp_path}: short"
    assert sanitize(text) == f"403 for {REDACTED} and {REDACTED} below {tmp_path}: short"
    assert redacted({"a": [SECRET, 1, None]}) == {"a": [REDACTED, 1, None]}
    monkeypatch.setenv("OTHER_TOKEN", f"{SECRET}-and-more")  # begins like another one
    assert sanitize(f"{SECRET}-and-more") == REDACTED


def test_commands_to_the_terminal_are_escaped():
    text = "a\x1b]0;title\x07\r\x9b31m b\u202ec\u2066\ud800\tNotre Dame: façade, 東京, 🦋\nnext"
    assert (
        sanitize(text) == "a\\x1b]0;title\\x07\\x0d\\x9b31m b\\u202ec\\u2066\\ud800\tNotre Dame: façade, 東京, 🦋\nnext"
    )


def test_a_console_prints_text_as_text():
    table = Table("[red]column", title="[b]title[/b]")
    table.add_row("[/] :bug: \x1b[31m")
    out = io.StringIO()
    console = PlainConsole(file=out, force_terminal=True, width=100, color_system=None)
    console.print(f"[/nothing] :bug: {REMOTE}\x1b]0;x\x07")
    console.print(table)
    text = out.getvalue()
    for word in ("[/nothing] :bug:", REDACTED, "\\x1b]0;x\\x07", "[red]column", "[b]title[/b]", "[/] :bug: \\x1b[31m"):
        assert word in text
    assert "\x1b]" not in text
    assert "\x1b[31m" not in text


def test_logs_hold_neither(tmp_path, capsys):
    try:
        setup_logging(tmp_path, process=0, level="INFO", data_level="INFO")
        log = logging.getLogger("linnaeus_jax")
        try:
            raise ValueError(f"cannot reach {REMOTE}")
        except ValueError:
            log.exception("copying to %s failed \x1b[2J", REMOTE)
        log_to_files(REMOTE)
    finally:
        for name in ("linnaeus_jax", "linnaeus_jax.data"):
            for handler in list(logging.getLogger(name).handlers):
                logging.getLogger(name).removeHandler(handler)
                handler.close()
            logging.getLogger(name).propagate = True
    for text in ((tmp_path / "debug_log_rank0.txt").read_text(), "".join(capsys.readouterr())):
        assert "Traceback" in text
        assert f"https://{REDACTED}@host/x" in text
        assert "s3cr3t" not in text
        assert "\\x1b[2J" in text


def test_messages_of_errors_hold_neither(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def fail(kind: type[Exception]) -> None:
        raise kind(f"{REMOTE} \x1b[2J")

    assert exit_status(lambda: fail(UserError)) == 2
    assert exit_status(lambda: fail(RuntimeError)) == 70
    told = capsys.readouterr().err
    assert told.count(f"https://{REDACTED}@host/x \\x1b[2J") == 2
    (written,) = tmp_path.glob("*.traceback.txt")
    assert "s3cr3t" not in told + written.read_text()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"https://me:{SECRET.replace('/', '')}@host/x", f"https://{REDACTED}@host/x"),
        ("https://me@host/x", f"https://{REDACTED}@host/x"),
        ("https://me:p@ss@host/x", f"https://{REDACTED}@host/x"),
        (str(Path("https://me:secret@host/x.pth")), f"https:/{REDACTED}@host/x.pth"),
        (str(Path("below") / "sftp://me:p@ss@host//x"), f"below/sftp:/{REDACTED}@host/x"),
        ("HTTPS:///me:secret@host", f"HTTPS:///{REDACTED}@host"),
        ("remote:/photos@home/2024:05", "remote:/photos@home/2024:05"),
        ("https://host/a@b and you@example.org", "https://host/a@b and you@example.org"),
        ("C:/me@home: x", "C:/me@home: x"),
    ],
)
def test_logins_within_addresses(text, wanted):
    """Also where a `Path` has made one slash of two."""
    assert sanitize(text) == wanted
    assert redacted({"path": text}) == {"path": wanted}


@pytest.mark.parametrize("key", ["API_KEY", "REMOTE"])
def test_yaml_messages_hold_no_secret(tmp_path, caplog, key):
    value = SECRET if key == "API_KEY" else f":sftp,host=h,pass={SECRET}"
    path = tmp_path / "a.yaml"
    path.write_text(f"ENV: {{OUTPUT: {{BUCKET: {{{key}: {json.dumps(value)}, BUCKET: b}}}}}}\n")
    with pytest.raises(UserError) if key == "API_KEY" else nullcontext() as error:
        load_yaml(path)
    assert error is None or SECRET not in str(error.value)
    assert SECRET not in caplog.text
