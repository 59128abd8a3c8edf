"""The tool that shows what a model takes of a file, and writes it as a file of its own."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from linnaeus_jax.run.saved_weights import read_run
from linnaeus_jax.tools import export_weights, import_weights
from linnaeus_jax.weights.files import IMAGE, read_state
from linnaeus_jax.weights.importing import read_pretrained
from tests.npz import load_npz
from tests.run.saved_run import contents, save_run
from tests.tiny import tiny_config


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folder with a run, its export and a config file."""
    root = tmp_path_factory.mktemp("import")
    save_run(root / "run", tiny_config(root / "data"), {3: 0.2})
    assert export_weights.main([str(root / "run"), str(root / "w.safetensors")]) == 0
    (root / "config.py").write_text(
        "from pathlib import Path\n"
        "from tests.tiny import tiny_config\n\n\n"
        "def get_config():\n"
        f"    return tiny_config(Path({str(root / 'data')!r}))\n"
    )
    return root


@pytest.fixture
def call(saved, capsys):
    def run(*arguments, config=()):
        status = import_weights.main([f"--config={saved / 'config.py'}", *config, *map(str, arguments)])
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return run


def test_an_export_and_a_run_are_taken_whole(call, saved, tmp_path):
    before = contents(saved)
    for source in ("w.safetensors", "run"):
        status, text, _ = call(saved / source, "--out", tmp_path / f"{source}.out.safetensors")
        assert status == 0
        assert "(100.0% of" in text
        assert f"classes: of {saved / 'data' / 'labels.h5'}" in text
        assert "written:" in text
    assert contents(saved) == before
    first, second = (load_file(tmp_path / f"{source}.out.safetensors") for source in ("w.safetensors", "run"))
    assert first.keys() == second.keys()
    for name, array in read_state(saved / "w.safetensors").arrays.items():
        np.testing.assert_array_equal(first[name], array)
        np.testing.assert_array_equal(second[name], array)
    of_export, *of_copies = (
        read_state(path).facts[IMAGE] for path in (saved / "w.safetensors", *sorted(tmp_path.glob("*.safetensors")))
    )
    assert of_copies == [of_export, of_export]  # how pictures were prepared travels with the weights


def test_json(call, saved):
    status, text, _ = call(saved / "w.safetensors", "--json")
    tree = json.loads(text)
    assert status == 0
    assert tree["coverage"]["counts"]["loaded"] == len(tree["coverage"]["rows"])
    assert tree["files"][0]["sha256"] == read_state(saved / "w.safetensors").sha256


def test_the_keys_of_the_config_are_read(call, saved):
    assert call(config=[f"--config.model.pretrained={saved / 'w.safetensors'}"])[0] == 0
    status, text, _ = call(saved / "run", config=["--config.model.pretrained=x.pth"])
    assert status == 0
    assert str(saved / "run" / "checkpoints") in text


def test_without_labels_the_classes_are_those_of_the_weights(call, saved, tmp_path):
    status, text, _ = call(saved / "w.safetensors", config=["--config.data.h5.labels_path=no.h5"])
    assert status == 0
    assert "of the weights themselves (no.h5 is not there)" in text
    assert "(100.0% of" in text
    anonymous = tmp_path / "x.safetensors"
    save_file(load_file(saved / "w.safetensors"), anonymous)
    status, text, _ = call(anonymous, config=["--config.data.h5.labels_path="])
    assert status == 0
    assert "the config names no labels file" in text


def test_what_does_not_fit_is_shown_and_nothing_is_written(call, saved, tmp_path):
    out = tmp_path / "out.safetensors"
    arguments = (saved / "w.safetensors", "--out", out)
    status, text, error = call(*arguments, config=["--config.model.rope_stages.depths=2,1"])
    assert status == 2
    assert "not in the file" in text
    assert "missing in the file: stages.2.1" in error
    assert not out.exists()
    config = ["--config.model.rope_stages.depths=2,1", "--config.model.pretrained_strict=False"]
    assert call(*arguments, config=config)[0] == 0
    state = read_state(out)
    assert "stages.2.1.norm1.bias" in state.facts["left_at_initial"]
    assert "stages.2.1.norm1.bias" not in state.arrays
    # what was left out is known to a strict import of the file
    assert call(out, config=config[:1])[0] == 0


def test_rows_of_other_classes_are_written_with_their_ids(call, saved, tmp_path):
    state = read_state(saved / "w.safetensors")
    facts = json.loads(json.dumps(state.facts))
    facts["classes"]["taxa_L10"] = [0, 1003, 5, 6, 7, 8, 9, 10, 1001]
    other, out = tmp_path / "other.safetensors", tmp_path / "out.safetensors"
    save_file(state.arrays, other, {"linnaeus_jax": json.dumps(facts)})
    status, text, _ = call(other, "--out", out)
    assert status == 0
    assert "3 of 9 rows by taxon id" in text
    written = read_state(out)
    assert written.facts["classes"]["taxa_L10"] == [0, 1001, 1003]
    rows = state.arrays["head.taxa_L10.fc.weight"][[0, 8, 1]]
    np.testing.assert_array_equal(written.arrays["head.taxa_L10.fc.weight"], rows)
    saved_weights = read_run(saved / "run")
    again = read_pretrained({"type": "mFormerV1", "pretrained": str(out)}, saved_weights.model, saved_weights.classes)
    assert again.rows["head.taxa_L10.fc.bias"].sum() == 3


def test_a_stitched_start_becomes_one_file(call, tmp_path, fixtures):
    golden, out = load_npz(fixtures / "models_stitch.npz"), tmp_path / "out.safetensors"
    for part in ("convnext", "ropevit"):
        arrays = {name.removeprefix(f"{part}/"): golden[name] for name in golden if name.startswith(f"{part}/")}
        save_file(arrays, tmp_path / f"{part}.safetensors")
    sizes = [
        "--config.model.convnext_stages.dims=4,8,12,16",
        "--config.model.rope_stages.depths=2,1",
        "--config.model.rope_stages.num_heads=2,2",
    ]
    files = [f"--config.model.pretrained_{part}={tmp_path / part}.safetensors" for part in ("convnext", "ropevit")]
    source = "--config.model.pretrained_source=stitched_convnext_ropevit"
    status, text, _ = call("--out", out, config=[*sizes, *files, source])
    assert status == 0
    assert "neither file has it" in text
    status, text, _ = call(out, config=sizes)
    assert status == 0
    assert "so the file says of itself" in text
    assert "epsilon 1e-6" in text
    status, _, text = call(config=[*sizes, *files])
    assert status == 2
    assert "is read with model.pretrained_source" in text


@pytest.mark.needs("torch")
def test_a_file_of_torch_is_converted_once(call, saved, tmp_path):
    import torch

    tensors = {f"module.{name}": torch.from_numpy(a) for name, a in load_file(saved / "w.safetensors").items()}
    path, out = tmp_path / "x.pth", tmp_path / "out.safetensors"
    torch.save({"model": tensors, "epoch": 1}, path)
    status, text, _ = call(path, "--out", out)
    assert status == 0
    assert "taken from its key 'model'; prefix 'module.' left out" in text
    assert "cos_only" in text
    status, text, _ = call(out)
    assert status == 0
    assert "cos_only" in text  # the file remembers where it comes from


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no weights are named"),
        (["no.pth"], "no.pth does not exist"),
        (["{root}/data"], "give the directory of a run"),
        (["{root}/w.safetensors", "--out=x.pth"], "must end in .safetensors"),
    ],
)
def test_errors(call, saved, arguments, words):
    status, _, error = call(*(argument.format(root=saved) for argument in arguments))
    assert status == 2
    assert words in error
