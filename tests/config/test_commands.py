"""Commands that are printed can be typed, and names can be read where a terminal knows ASCII alone."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from linnaeus_jax.config import paths
from linnaeus_jax.config.redaction import sanitize
from linnaeus_jax.migration.command_lines import replacement
from linnaeus_jax.reporting.next_steps import next_steps
from linnaeus_jax.tools.make_demo import training

NAMES = ("a b", "it's", 'say "so"', "$HOME", "für", "a;b", "*", "-x", "back\\slash", "`ls`", "#1")


def words(line: str) -> list[str]:
    """What a shell makes of a command; a remark is none."""
    return shlex.split(line, comments=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_shell_gets_the_names_of_printed_commands(name):
    done = subprocess.run(
        ["sh", "-c", paths.typed_command("printf", "%s\\n", Path(name))], capture_output=True, check=True
    )
    assert Path(os.fsdecode(done.stdout[:-1])) == Path(name)
    run, bundle = Path(name) / "run", Path(name) / "run_bundle"
    typed = [words(line)[1:] for line in next_steps(run, Path(name)).splitlines()[1:]]
    assert [[Path(word) for word in line[1:]] for line in typed] == [[run, bundle], [bundle, Path(name)], [bundle]]
    assert not any(word.startswith("-") for line in typed for word in line)
    assert f"--config.data.h5.labels_path={name}/labels.h5" in words(training(Path(name)))
    assert f"--workdir={name}" in words(replacement(["--cfg", "x.yaml", "--saving_path", name]).splitlines()[0])
    assert f"--config.a={name}" in words(paths.program("train", f"--config.a={name}"))


def test_windows_quotes_as_its_shell_reads(monkeypatch):
    monkeypatch.setattr(paths.os, "name", "nt")
    assert paths.program("train", "--config=a b/c.py") == 'linnaeus train "--config=a b/c.py"'


def test_every_printed_command_is_made_in_one_place():
    """But for those without a name that is the user's, such as PICTURES or a placeholder in capitals."""
    package = Path(paths.__file__).parents[1]
    found = [
        f"{path.relative_to(package)}:{number}"
        for path in package.rglob("*.py")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if path != Path(paths.__file__)
        and ("shlex" in line or ("python -m linnaeus_jax" in line and ("%s" in line or "{" in line.split("-m")[1])))
    ]
    assert found == []


PRINTED = """
import sys
from linnaeus_jax import tools
from linnaeus_jax.config.errors import UserError
@tools.command()
def main(argv):
    from linnaeus_jax.reporting.logs import console
    from linnaeus_jax.reporting.tables import table
    console.print(table("→ ½", ["Zoë"], [["Ærø …"], ["鳥"]]))
    print("plain Łódź — é", *argv)
    raise UserError(f"{argv[0]} is no bundle")
sys.exit(main())
"""


@pytest.mark.parametrize("encoding", ["ascii", "ascii:surrogateescape", "latin-1", "utf-8"])
def test_names_are_readable_on_every_terminal(encoding, tmp_path):
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("LC_", "LANG"))}
    environ |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": encoding}
    (tmp_path / "printed.py").write_text(PRINTED, encoding="utf-8")
    given = "für Anaïs/–x".encode()
    done = subprocess.run(
        [sys.executable, tmp_path / "printed.py", given], capture_output=True, env=environ, check=False
    )
    out, error = (text.decode(encoding.partition(":")[0]) for text in (done.stdout, done.stderr))
    assert done.returncode == 2, error
    assert "Traceback" not in error
    if encoding == "utf-8":
        assert error == "für Anaïs/–x is no bundle\n"
        assert "→ ½" in out
        assert "│ Ærø … │" in out
    elif encoding == "latin-1":
        assert error == "für Anaïs/-x is no bundle\n"
    else:
        assert error == "fur Anais/-x is no bundle\n"
        assert "-> 12" in out
        assert "plain Lodz - e fur Anais/-x" in out
        assert "Zoe" in out
        assert "\\u9ce5" in out, "what has no form in ASCII is an escape"


def test_undecodable_bytes_stay_escapes():
    assert sanitize(os.fsdecode("für".encode())) == "für"
    assert sanitize("f\udcc3\udcbcr \udcff \ud800") == "f\\udcc3\\udcbcr \\udcff \\ud800"
    assert sanitize("f\udcc3\udcbcr \udcff") == "für \\udcff"
