"""The program where the system lacks what Linux has: `other_system/sitecustomize.py` takes it away."""

from __future__ import annotations

import ast
import base64
import contextlib
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from linnaeus_jax import system
from linnaeus_jax.config import get_config
from linnaeus_jax.config.derived import default_workdir
from linnaeus_jax.config.typed import typed
from linnaeus_jax.data.h5_direct import FileBytes
from linnaeus_jax.inference.files.explained import png_of
from linnaeus_jax.inference.files.picture_list import PictureFile
from tests.source import is_named, nodes_of

ROOT = Path(__file__).parents[1]
PACKAGE, OTHER_SYSTEM = ROOT / "linnaeus_jax", ROOT / "tests" / "other_system"
PLUGIN = ROOT / "tests" / "extending" / "model_example.py"
SPECIES = ("Parus major", "Turdus merula?", "NUL", "Aves: sp.")
#: file of the package -> how it does without what it names
DOES_WITHOUT = {
    "system.py": "all of it",
    "config/memory_limit.py": "begins with system.CAN_FORK",
    "step/process.py": "use_batch_scheduling says whether there is such a policy",
}
#: calls of `open` that open no file as text
NO_TEXT = r"(os|Image|sinks|self|opened|self\._zip|archive|experiment\.debug)\.open\(|open\(path, 'r\+b' if "

IMPORT_ALL = """
import importlib, pkgutil, linnaeus_jax
for module in pkgutil.walk_packages(linnaeus_jax.__path__, "linnaeus_jax."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""
IN_PYTHON = """
import sys, linnaeus_jax
if __name__ == "__main__":
    model = linnaeus_jax.load(sys.argv[1], plugins=[sys.argv[2]])
    print(model.predict([sys.argv[3]])[0])
"""


def nodes() -> Iterator[tuple[str, ast.AST]]:
    """File of the package, and a node of its syntax tree."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        yield from ((name, node) for node in nodes_of(path))


def taken_away(name: str) -> Any:
    """A constant of `other_system/sitecustomize.py`, which is not imported, since it acts at once."""
    for node in ast.parse((OTHER_SYSTEM / "sitecustomize.py").read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise KeyError(name)


def test_what_a_system_lacks_is_named_in_one_file():
    names = {f"{module}.{name}" for module, names in taken_away("NAMES").items() for name in names.split()}
    modules, found = set(taken_away("MODULES")), set()
    for path, node in nodes():
        imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        imported += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if modules & set(imported) or is_named(node, names):
            found.add(path)
    assert found == set(DOES_WITHOUT)


def names_no_encoding(call: ast.Call) -> bool:
    """Whether a call may read or write text in the encoding that the system happens to have."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    keywords = {keyword.arg for keyword in call.keywords}
    if "encoding" in keywords:
        return False
    if name in ("run", "Popen", "check_output"):
        return bool(keywords & {"text", "universal_newlines"})
    if name in ("read_text", "write_text") and isinstance(call.func, ast.Attribute):
        return len(call.args) == (name == "write_text")
    texts = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return name == "open" and not any(re.fullmatch("[rwax+]*b[rwax+]*", text) for text in texts)


def test_every_text_file_is_opened_with_an_encoding():
    calls = [(path, node) for path, node in nodes() if isinstance(node, ast.Call) and names_no_encoding(node)]
    assert [f"{path}:{call.lineno}" for path, call in calls if not re.match(NO_TEXT, ast.unparse(call))] == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("run 3", "run 3"),
        ("Ünïcode 日本", "Ünïcode 日本"),
        ("lr=1e-3, wd: 0.1", "lr=1e-3, wd_ 0.1"),
        ('<a|b?"c*>\\/d', "_a_b__c____d"),
        ("a\tb\x7f", "a_b_"),
        ("NUL", "NUL_"),
        ("con.txt", "con_.txt"),
        ("COM1", "COM1_"),
        ("nullarbor", "nullarbor"),
        ("trailing. .", "trailing_"),
        ("..", "_"),
        ("", "_"),
    ],
)
def test_names_of_files_are_names_on_every_system(text, name):
    assert system.file_name(text) == name
    assert system.file_name(name) == name


def test_the_directory_of_a_run_has_names_of_every_system(tmp_path):
    config = get_config()
    config.env.output.base_dir = str(tmp_path)
    config.experiment.project, config.experiment.group, config.experiment.name = "birds", "aux", "lr: 3/x."
    assert default_workdir(typed(config)) == tmp_path / "birds" / "aux_" / "lr_ 3" / "x_"
    earlier = tmp_path / "birds" / "aux" / "lr: 3" / "x."
    earlier.mkdir(parents=True)  # by an earlier version
    assert default_workdir(typed(config)) == earlier


def test_explanations_have_names_of_every_system(tmp_path):
    picture = PictureFile(tmp_path / "x", "x", "Aves: sp./a?.jpg", "")
    assert png_of(tmp_path, picture).relative_to(tmp_path).as_posix() == "Aves_ sp_/a_.jpg.2d711642.png"


def test_a_file_is_read_at_any_place_without_a_call_for_it(tmp_path, monkeypatch):
    path, content = tmp_path / "bytes", np.random.default_rng(0).integers(0, 256, 1 << 16).astype(np.uint8)
    content.tofile(path)
    monkeypatch.delattr(os, "preadv")
    file = FileBytes(path)
    places = np.random.default_rng(1).integers(0, (1 << 16) - 64, 2000).tolist()
    with ThreadPoolExecutor(8) as pool:
        for place, read in zip(places, pool.map(lambda place: file.read(place, 64), places), strict=True):
            np.testing.assert_array_equal(read, content[place : place + 64])


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(OTHER_SYSTEM), str(ROOT)])
    own = {"PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", "WANDB_MODE": "disabled", "JAX_NUM_CPU_DEVICES": "1"}
    return {**os.environ, **own, **more}


def python(*arguments: str | Path, folder: Path) -> str:
    """What a Python program prints."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, encoding="utf-8", timeout=300)
    assert done.returncode == 0, f"{arguments}\n{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


def tool(name: str, *arguments: str | Path, folder: Path) -> str:
    return python("-m", f"linnaeus_jax.tools.{name}", *arguments, folder=folder)


def test_every_module_is_imported(tmp_path):
    python("-c", IMPORT_ALL, folder=tmp_path)


def write_pictures(folder: Path) -> None:
    """Twelve pictures of each species, in folders, and a table that names them as Windows does."""
    rng = np.random.default_rng(0)
    lines = ["file;species;genus;date"]
    for number, name in enumerate(SPECIES):
        (folder / "pictures" / f"kind {number}").mkdir(parents=True)
        for index in range(12):
            pixels = rng.integers(0, 60, (40, 48, 3)) + 60 * np.array([number & 1, number >> 1, 1])
            place = Path(f"kind {number}", f"{index}.jpg")
            Image.fromarray(pixels.astype(np.uint8)).save(folder / "pictures" / place)
            lines.append(f"kind {number}\\{index}.jpg;{name};Genus {number // 2};2024-05-{index + 1:02d}")
    (folder / "records.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


@contextlib.contextmanager
def serving(bundle: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Address of a server, and what it says before it answers."""
    command = [sys.executable, "-m", "linnaeus_jax.tools.serve", str(bundle), "--port", "0", "--buckets", "1"]
    command += ["--decoders", "1", "--plugins", str(PLUGIN)]
    streams: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8"}
    with subprocess.Popen(command, cwd=folder, env=environment(PYTHONUNBUFFERED="1"), **streams) as server:
        said = ""
        try:
            for line in server.stdout or ():
                said += line
                if address := re.search(r"http://\S+/", line):
                    break
            else:
                raise AssertionError(said)
            yield address[0], said
        finally:
            server.terminate()


@pytest.mark.slow
def test_from_folders_to_answers(tmp_path):
    write_pictures(tmp_path)
    picture, run, bundle = tmp_path / "pictures" / "kind 0" / "0.jpg", tmp_path / "run", tmp_path / "bundle"
    tool("build_dataset", "--folders", "pictures", "--out", "folders", "--size", "32", folder=tmp_path)
    table = ("--table", "records.csv", "--pictures", "pictures")
    assert "no such picture" not in tool("build_dataset", *table, "--out", "data", "--size", "32", folder=tmp_path)
    tool("verify_dataset", "data/labels.h5", "--images", "data/images.h5", folder=tmp_path)
    tool("describe_dataset", "data/labels.h5", "--images", "data/images.h5", "--out", "described", folder=tmp_path)

    train = ["-m", "linnaeus_jax.main", "--config=data/config.py", f"--workdir={run}", "--config.model.type=SmallNet"]
    train += [f"--config.env.plugins=('{PLUGIN}',)", "--config.model.variant=narrow", "--config.data.batch_size=8"]
    train += ["--config.data.worker_processes=1", "--config.train.epochs=1"]
    python(*train, folder=tmp_path)
    python(*train[:-1], "--config.train.epochs=2", folder=tmp_path)
    assert "resumed after" in (run / "logs" / "debug_log_rank0.txt").read_text("utf-8")
    assert (run / "report.html").exists()

    tool("bundle", run, bundle, folder=tmp_path)
    plugin = ("--plugins", PLUGIN)
    data = ("--labels", "data/labels.h5", "--images", "data/images.h5")
    tool("evaluate", bundle, *data, "--report", "evaluated.html", *plugin, folder=tmp_path)
    tool("export", bundle, "exported", "--platforms", "cpu", *plugin, folder=tmp_path)
    tool("predict", bundle, "pictures", "--out", "answers.csv", "--gallery", "gallery.html", *plugin, folder=tmp_path)
    assert not (tmp_path / "answers.csv.unfinished").exists()
    assert len((tmp_path / "answers.csv").read_text("utf-8").splitlines()) == 1 + 12 * len(SPECIES)
    (tmp_path / "in_python.py").write_text(IN_PYTHON, encoding="utf-8")
    assert "species" in python("in_python.py", bundle, PLUGIN, picture, folder=tmp_path)
    with serving(bundle, tmp_path) as (address, said):
        assert "this system sets no limit to the memory of a decoder" in said
        body = json.dumps({"images": [base64.b64encode(picture.read_bytes()).decode()]}).encode()
        request = urllib.request.Request(f"{address}predict", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["predictions"]


HELD = """
import multiprocessing, os, signal, threading, time
from concurrent.futures import ProcessPoolExecutor
from linnaeus_jax.system import interrupts_held
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background of a shell
    threading.Thread(target=time.sleep, args=(2,), daemon=True).start()  # the signal reaches it
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        try:
            with interrupts_held():
                os.kill(os.getpid(), signal.SIGINT)
                masks = pool.map(signal.pthread_sigmask, [signal.SIG_BLOCK] * 4, [()] * 4)
                print([signal.SIGINT in mask for mask in masks])
        except KeyboardInterrupt:
            print("interrupted", signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""


@pytest.mark.needs("linux")
def test_ctrl_c_waits_until_processes_are_started_and_does_not_reach_them(tmp_path):
    """Whichever thread it reaches."""
    (tmp_path / "held.py").write_text(HELD)
    done = subprocess.run([sys.executable, tmp_path / "held.py"], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[True, True, True, True]\ninterrupted set()\n"
