"""Reading files of weights: what they hold, and one clear message for each that cannot be used."""

from __future__ import annotations

import argparse
import hashlib
import json
import pickle
import sys
import types
import zipfile
from collections import OrderedDict
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.weights import files
from linnaeus_jax.weights.files import read_state, write_state
from linnaeus_jax.weights.torch_files import MAGIC

ARRAYS = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "a.bias": np.zeros(2, np.float32)}


def refusal(path) -> str:
    """The message about a file."""
    with pytest.raises(UserError) as caught:
        read_state(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "out" / "x.safetensors"
    arrays = ARRAYS | {"count": np.asarray(7, np.int64), "index": np.arange(4).reshape(2, 2).T}
    write_state(path, arrays, {"model": "mFormerV1", "classes": {"taxa_L10": [0, 5]}})
    state = read_state(path)
    assert state.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(state.arrays[name], array)
        assert state.arrays[name].dtype == array.dtype
        assert state.arrays[name].shape == array.shape
    assert state.facts == {"model": "mFormerV1", "classes": {"taxa_L10": [0, 5]}}
    assert state.metadata["format"] == "pt"
    assert state.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert state.notes == ()
    assert [found.name for found in path.parent.iterdir()] == ["x.safetensors"]
    beside = tmp_path / "beside"
    beside.touch()
    assert path.stat().st_mode == beside.stat().st_mode  # others may read it where the umask lets them


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "x.safetensors"
    write_state(path, ARRAYS, {})
    before = path.read_bytes()
    with pytest.raises(TypeError):
        write_state(path, ARRAYS, {"not JSON": object()})
    with pytest.raises(UserError, match=r"must end in \.safetensors"):
        write_state(tmp_path / "x.pth", ARRAYS, {})
    with pytest.raises(UserError, match="cannot be written"):
        write_state(path / "below.safetensors", ARRAYS, {})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16])
def test_floating_point_becomes_float32(tmp_path, dtype):
    path = tmp_path / "x.safetensors"
    save_file({"a": np.array([1.5, -2.0], dtype)}, path)
    array = read_state(path).arrays["a"]
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, [1.5, -2.0])


@pytest.mark.parametrize(
    ("names", "plain", "notes"),
    [
        (["module.a.b", "module.c"], ["a.b", "c"], ["prefix 'module.' left out"]),
        (["module._orig_mod.a", "module._orig_mod.c"], ["a", "c"], ["'module.'", "'_orig_mod.'"]),
        (["model.a.b", "model.c", "model.d", "criterion.weight"], ["a.b", "c", "criterion.weight", "d"], ["'model.'"]),
        (["a.b", "module.c", "d"], ["a.b", "d", "module.c"], []),
        (["module.a", "module.b", "a"], ["a", "module.a", "module.b"], []),
    ],
)
def test_prefixes_of_wrappers(tmp_path, names, plain, notes):
    path = tmp_path / "x.safetensors"
    save_file({name: np.zeros(1, np.float32) for name in names}, path)
    state = read_state(path)
    assert sorted(state.arrays) == plain
    assert len(state.notes) == len(notes)
    for note, part in zip(state.notes, notes):
        assert part in note


def test_files_that_are_none(tmp_path):
    missing, other, empty = tmp_path / "no.pth", tmp_path / "x.h5", tmp_path / "x.safetensors"
    assert "does not exist" in refusal(missing)
    assert "is a directory" in refusal(tmp_path)
    other.write_bytes(b"12345678")
    assert "is no file of weights; known are .safetensors, .pth" in refusal(other)
    save_file({}, empty)
    assert "holds no array" in refusal(empty)


@pytest.mark.parametrize("length", [0, 5, 100, -1])
def test_truncated_safetensors(tmp_path, length):
    path = tmp_path / "x.safetensors"
    save_file(ARRAYS, path)
    path.write_bytes(path.read_bytes()[:length])
    assert "truncated" in refusal(path)


@pytest.mark.parametrize("text", ["{", "", "[" * 100_000, '{"a":' * 100_000, "NaN{"])
def test_metadata_that_are_no_json(tmp_path, text):
    path = tmp_path / "x.safetensors"
    save_file(ARRAYS, path, {files.FACTS: text})
    assert "no JSON" in refusal(path)


NO_FACT: list[Any] = [None, -1, 1.5, [None], [[]], [["a"]], {"a": None}, {"a": [{}]}, {"a": [""]}, {"a": {"b": 1}}]


@pytest.mark.parametrize(
    "facts",
    [
        [],
        3,
        "text",
        None,
        *({key: value} for key in files._FACTS for value in NO_FACT),
        {"img_size": [0, 32]},
        {"img_size": [1e400, 32]},
        {"img_size": [32]},
        {"img_size": [True, True]},
        {"classes": {"a": [10**30]}},
        {"classes": {"a": [1.5]}},
        *({"settings": {"a": value}} for value in (1e400, -1, [1e400], [1, []])),
        {"classes": {"a": "text"}},
    ],
)
def test_facts_that_are_none(tmp_path, facts):
    """Each is one message that names the key, before anything of it is used."""
    path = tmp_path / "x.safetensors"
    save_file(ARRAYS, path, {files.FACTS: json.dumps(facts)})
    text = refusal(path)
    assert "export it again" in text
    assert len(text) < 400 + len(str(path))
    if isinstance(facts, dict):
        assert repr(next(iter(facts))) in text


@pytest.mark.parametrize(
    "header", ["{", "[]", '{"a":1}', '{"a":' * 9000, '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,9]}}']
)
def test_headers_of_safetensors_that_are_none(tmp_path, header):
    path = tmp_path / "x.safetensors"
    for length in (len(header), 2**62, 2**64 - 1):
        path.write_bytes(length.to_bytes(8, "little") + header.encode() + bytes(4))
        assert "cannot be read as .safetensors" in refusal(path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_arrays_that_are_not_finite(tmp_path, value):
    path = tmp_path / "x.safetensors"
    save_file(ARRAYS | {"b.weight": np.array([0, value], np.float32), "c": np.array(value, np.float32)}, path)
    assert "b.weight (and 1 more arrays) holds NaN or infinity" in refusal(path)


def test_complex_numbers_are_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file(ARRAYS | {"b.weight": np.zeros(2, np.complex64)}, path)
    assert "b.weight" in refusal(path)


# ---- files of torch.save; how their arrays are read is tested in test_torch_files.py


class Runs:
    """Its pickle calls a function when it is read."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def as_torch_file(path, pickled: bytes):
    """A file as torch.save makes it, around a pickle."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/version", "3\n")
    return path


def hostile(tmp_path):
    """(name, bytes of a pickle) that would leave a file behind if it were run."""
    import os

    mark = tmp_path / "ran"
    inner = Runs(os.system, f"touch {mark}")
    return mark, {
        "alone": pickle.dumps(inner),
        "among arrays": pickle.dumps({"model": OrderedDict(a=inner)}),
        "protocol 0": pickle.dumps(inner, protocol=0),
        "protocol 2": pickle.dumps(inner, protocol=2),
        "builtins": pickle.dumps(Runs(eval, f"open({str(mark)!r}, 'w')")),
    }


@pytest.mark.parametrize("kind", ["alone", "among arrays", "protocol 0", "protocol 2", "builtins"])
def test_a_pickle_that_runs_code_is_refused(tmp_path, kind):
    mark, pickles = hostile(tmp_path)
    path = as_torch_file(tmp_path / "x.pth", pickles[kind])
    text = refusal(path)
    assert "would run code when read" in text
    assert "builtins.eval" in text if kind == "builtins" else "posix.system" in text
    assert not mark.exists()


def test_a_pickle_that_runs_code_in_the_old_format_is_refused(tmp_path):
    mark, pickles = hostile(tmp_path)
    path = tmp_path / "x.pt"
    before: tuple[object, ...] = (MAGIC, 1001, {})
    head = b"".join(pickle.dumps(part, protocol=2) for part in before)
    path.write_bytes(head + pickles["protocol 2"])
    assert "truncated" in refusal(path)
    path.write_bytes(head + pickles["protocol 2"] + pickle.dumps([], protocol=2))
    assert "would run code when read: posix.system" in refusal(path)
    path.write_bytes(pickles["protocol 2"])
    assert "a pickle, but no file of torch.save" in refusal(path)
    assert not mark.exists()


def test_code_beside_the_weights_is_not_run(tmp_path, fixtures):
    """The arrays are read, and the note says what was not made."""
    mark, pickles = hostile(tmp_path)
    path = tmp_path / "x.pth"
    with zipfile.ZipFile(fixtures / "weights_tiny.pth") as archive, zipfile.ZipFile(path, "w") as copy:
        for name in archive.namelist():
            content = archive.read(name)
            if name.endswith("data.pkl"):
                content = content[:-1] + pickles["protocol 2"][2:-1].join([b"X\x04\x00\x00\x00more", b"s."])
            copy.writestr(name, content)
    state = read_state(path)
    assert "norm.weight" in state.arrays
    assert "objects of Python beside the arrays not made: posix.system" in state.notes
    assert not mark.exists()


def test_what_is_no_file_of_torch(tmp_path):
    path = tmp_path / "x.pth"
    path.write_bytes(pickle.dumps({"a": 1}))
    assert "a pickle, but no file of torch.save" in refusal(path)
    path.write_bytes(b"<html>not found</html>")
    assert "truncated or no file of weights" in refusal(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "nothing")
    assert "an archive, but none of torch.save" in refusal(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/constants.pkl", "")
    assert "TorchScript" in refusal(path)
    as_torch_file(path, pickle.dumps({"a": 1}))
    path.write_bytes(path.read_bytes()[:-30])
    assert "is truncated" in refusal(path)
    as_torch_file(path, pickle.dumps({"a": 1})[:-3])
    assert "truncated or no file of weights" in refusal(path)


def test_a_way_into_pytorch_that_runs_code_is_refused(tmp_path):
    inner = pickle.dumps(Runs(eval, "1"))
    path = as_torch_file(
        tmp_path / "x.pth", b"ctorch.storage\n_load_from_bytes\n" + pickle.dumps((inner,), 2)[2:-1] + b"R."
    )
    assert "would run code when read: torch.storage._load_from_bytes" in refusal(path)


def test_a_file_of_torch(fixtures):
    state = read_state(fixtures / "weights_tiny.pth")
    assert sorted(state.arrays) == ["cls_token_1", "half", "norm.bias", "norm.num_batches_tracked", "norm.weight"]
    np.testing.assert_array_equal(state.arrays["norm.weight"], np.arange(4, dtype=np.float32))
    assert {name: str(array.dtype) for name, array in state.arrays.items()} == {
        "cls_token_1": "float32",
        "half": "float32",
        "norm.bias": "float32",
        "norm.num_batches_tracked": "int64",
        "norm.weight": "float32",
    }
    assert state.notes == (
        "taken from its key 'model'; 'state_dict_ema' beside it not used",
        "1 entries that are no arrays not used",
        "prefix 'module.' left out",
    )


@pytest.mark.needs("torch")
@pytest.mark.parametrize("key", [*files.CONTAINERS, ""])
def test_containers(tmp_path, key):
    import torch

    path, tensors = tmp_path / "x.pt", {"a.b": torch.ones(2)}
    torch.save({key: tensors, "epoch": 3} if key else tensors, path)
    state = read_state(path)
    assert list(state.arrays) == ["a.b"]
    assert state.notes == ((f"taken from its key {key!r}",) if key else ())


@pytest.mark.needs("torch")
def test_the_old_format_of_torch(tmp_path):
    import torch

    path = tmp_path / "x.bin"
    torch.save({"a": torch.ones(2, dtype=torch.bfloat16)}, path, _use_new_zipfile_serialization=False)
    np.testing.assert_array_equal(read_state(path).arrays["a"], np.ones(2, np.float32))


@pytest.mark.needs("torch")
def test_other_contents_of_torch(tmp_path):
    import torch

    path = tmp_path / "x.pth"
    torch.save({"epoch": 3, "note": "x"}, path)
    assert "holds no array (its keys: 'epoch', 'note')" in refusal(path)
    torch.save([torch.ones(2)], path)
    assert "holds a list instead of names and arrays; is it a file of weights?" in refusal(path)
    torch.save(torch.nn.Linear(2, 2), path)
    assert "would run code when read: torch.nn.modules.linear.Linear" in refusal(path)
    torch.save({"a": torch.ones(2, dtype=torch.complex64)}, path)
    assert "a is of dtype complex64" in refusal(path)
    torch.save({"a": torch.tensor([float("nan")])}, path)
    assert "a holds NaN" in refusal(path)
    torch.save({"a": torch.ones(1000)}, path)
    path.write_bytes(path.read_bytes()[:-500])
    assert "truncated" in refusal(path)


@pytest.mark.needs("torch")
def test_settings_beside_the_tensors_are_not_made(tmp_path, monkeypatch):
    """Checkpoints of DeiT hold a Namespace, those of MetaFormer a CfgNode, many a NumPy number."""
    import torch

    made = []

    class CfgNode(dict):
        frozen = False

        def __setstate__(self, state):
            made.append(state)

    CfgNode.__module__, CfgNode.__qualname__ = "yacs.config", "CfgNode"
    module = types.ModuleType("yacs.config")
    monkeypatch.setattr(module, "CfgNode", CfgNode, raising=False)
    monkeypatch.setitem(sys.modules, "yacs", types.ModuleType("yacs"))
    monkeypatch.setitem(sys.modules, "yacs.config", module)
    node = CfgNode(TRAIN=CfgNode(EPOCHS=3))
    node.frozen = True
    beside = {"config": node, "args": argparse.Namespace(lr=0.1), "max_accuracy": np.float64(0.5), "epoch": 3}
    torch.save({"model": {"stem.0.bias": torch.ones(2)}, **beside, "out": tmp_path}, tmp_path / "w.pth")
    state = read_state(tmp_path / "w.pth")
    np.testing.assert_array_equal(state.arrays["stem.0.bias"], np.ones(2, np.float32))
    assert list(state.arrays) == ["stem.0.bias"]
    assert not made


# ---- weights in several files


def in_two_files(directory, changed: Any = None) -> Any:
    """The index of two files that hold the arrays."""
    names, places = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)], {}
    for name, (key, array) in zip(names, ARRAYS.items(), strict=True):
        save_file({f"module.{key}": array}, directory / name)
        places[f"module.{key}"] = name
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places} if changed is None else changed))
    return index


def test_weights_in_several_files_are_read_by_their_index(tmp_path):
    index = in_two_files(tmp_path)
    state = read_state(index)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(state.arrays[name], array)
    assert state.path == index
    assert state.notes == ("2 files of one model", "prefix 'module.' left out")
    one = read_state(tmp_path / "model-00002-of-00002.safetensors")
    assert (one.path, one.sha256) == (index, state.sha256)
    save_file({"module.a.bias": ARRAYS["a.bias"] + 1}, tmp_path / "model-00002-of-00002.safetensors")
    assert read_state(index).sha256 != state.sha256


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ([], "is no index of files of weights"),
        ({"weight_map": {}}, "weight_map names no file"),
        ({"weight_map": {"a": "../w.safetensors"}}, "weight_map names '../w.safetensors'"),
        ({"weight_map": {"a": 3}}, "weight_map names ''"),
        (
            {"weight_map": {"a": "other.safetensors"}},
            "other.safetensors, which does not lie beside it; fetch all 1 files",
        ),
        ({"weight_map": {"b": "model-00001-of-00002.safetensors"}}, "speaks of 'b', which its files do not hold"),
    ],
)
def test_an_index_that_does_not_fit_its_files(tmp_path, changed, words):
    assert words in refusal(in_two_files(tmp_path, changed))


def test_one_of_several_files_without_the_index(tmp_path):
    index = in_two_files(tmp_path)
    index.unlink()
    assert "put their index model.safetensors.index.json beside it" in refusal(
        tmp_path / "model-00001-of-00002.safetensors"
    )
