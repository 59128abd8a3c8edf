"""Files of torch.save, read without PyTorch: what is taken, what is not made, and what a file may cost."""

from __future__ import annotations

import contextlib
import io
import pickle
import struct
import sys
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.weights import pickles, torch_files
from linnaeus_jax.weights.files import read_state
from linnaeus_jax.weights.pickles import Name, PickleError, Record, Unpickler

PARTS = ["weights_original.pth", "weights_original_old.pth", "weights_original_protocol4.pth"]
#: what make_fixtures.py writes
BASE = np.arange(24.0, dtype=np.float32).reshape(4, 6)
HELD: dict[str, Any] = {
    "fc.weight": np.arange(6.0, dtype=np.float32).reshape(2, 3),
    "fc.bias": np.array([0.5, -0.5], np.float32),
    "turned": BASE.T,
    "part": BASE[1:3, ::2],
    "row": np.ones((2, 3), np.float32),
    "half": np.array([1.5, -2.0], np.float32),
    "brain": np.array([0.25, -4.0], np.float32),
    "double": np.float32(1.25),
    "mask": np.array([True, False, True]),
    "norm.num_batches_tracked": np.int64(7),
    "small": np.array([-1, 2], np.int8),
    "empty": np.zeros((0, 4), np.float32),
}


def refusal(path) -> str:
    """The message about a file."""
    with pytest.raises(UserError) as caught:
        read_state(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def saved(path, pickled: bytes, members: dict[str, bytes] | None = None, compression: int = zipfile.ZIP_STORED):
    """A file in the zip form around a pickle, with storages by key."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", pickled)
        for key, data in (members or {}).items():
            archive.writestr(f"archive/data/{key}", data)
    return path


class Global:
    """Is pickled as a name, whatever that is."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class Called:
    """Is pickled as a call of a name."""

    def __init__(self, module: str, name: str, *arguments: object) -> None:
        self.what, self.arguments = Global(module, name), arguments


class Stored:
    """Is pickled as a storage."""

    def __init__(self, kind: str, key: str, count: object) -> None:
        self.pid = "storage", Global("torch", kind), key, "cpu", count


class Pickler(pickle._Pickler):
    """Writes the three classes above without importing what they name."""

    write: Callable[[bytes], None]

    def save(self, obj, save_persistent_id=True):
        if isinstance(obj, Global):
            self.write(f"c{obj.module}\n{obj.name}\n".encode())
        elif isinstance(obj, Called):
            self.save(obj.what)
            self.save(obj.arguments)
            self.write(pickle.REDUCE)
        elif isinstance(obj, Stored):
            self.save(obj.pid)
            self.write(pickle.BINPERSID)
        else:
            super().save(obj, save_persistent_id)  # type: ignore[misc]


def pickled(tree: object) -> bytes:
    """A pickle of protocol 2."""
    file = io.BytesIO()
    Pickler(file, 2).dump(tree)
    return file.getvalue()


def tensor(kind: str, key: str, count: object, offset: object, shape: object, strides: object, *more: object) -> Called:
    """A tensor as torch.save writes it."""
    storage = Stored(kind, key, count)
    return Called("torch._utils", "_rebuild_tensor_v2", storage, offset, shape, strides, False, {}, *more)


@pytest.mark.parametrize("name", PARTS)
def test_a_checkpoint_with_all_that_training_keeps(fixtures, name, monkeypatch):
    """Optimizers, schedulers, settings, sets, defaultdicts and NumPy numbers are beside the arrays; none is made."""
    for module in ("torch", "yacs", "yacs.config"):
        monkeypatch.setitem(sys.modules, module, None)  # an import of it fails
    state = read_state(fixtures / name)
    assert list(state.arrays) == list(HELD)
    for key, array in HELD.items():
        np.testing.assert_array_equal(state.arrays[key], array)
        assert state.arrays[key].dtype == array.dtype
        assert state.arrays[key].flags.c_contiguous
        assert state.arrays[key].flags.writeable
    notes = "; ".join(state.notes)
    assert "taken from its key 'model'" in notes
    assert "not made: torch.optim.adamw.AdamW, torch.optim.lr_scheduler.CosineAnnealingLR, yacs.config.CfgNode" in notes


@pytest.mark.parametrize("kind", ["yacs.config.CfgNode", "easydict.EasyDict", "mine.Weights"])
def test_weights_in_a_kind_of_dict(tmp_path, kind):
    module, _, name = kind.rpartition(".")
    one = pickled(tensor("FloatStorage", "0", 2, 0, (2,), (1,)))[2:-1]
    node = f"c{module}\n{name}\n".encode() + b")\x81(X\x01\x00\x00\x00a" + one + b"u"
    path = saved(tmp_path / "x.pth", b"\x80\x02}X\x05\x00\x00\x00model" + node + b"s.", {"0": struct.pack("<2f", 1, 2)})
    np.testing.assert_array_equal(read_state(path).arrays["a"], [1, 2])


@pytest.mark.needs("torch")
def test_files_of_pytorch_are_read_as_pytorch_reads_them(tmp_path):
    import torch

    rng = torch.Generator().manual_seed(0)
    base = torch.randn(3, 4, 5, generator=rng)
    tensors = {
        "base": base,
        "turned": base.permute(2, 0, 1),
        "view": base[1:, ::2, 3],
        "parameter": torch.nn.Parameter(base[0]),
        "buffer": torch.nn.Buffer(torch.ones(2)),
        "half": base.to(torch.float16).transpose(0, 2),
        "float8": torch.tensor([0.5, 2.0]).to(torch.float8_e4m3fn),
        "unsigned": torch.tensor([3, 2**31], dtype=torch.uint32),
        "short": torch.arange(5, dtype=torch.int16),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "negative": torch._neg_view(torch.tensor([1.0, -2.0])),
        "scalar": torch.tensor(2.5, requires_grad=True),
    }
    for zipped in (True, False):
        here = {n: t for n, t in tensors.items() if zipped or n not in ("float8", "unsigned")}
        torch.save({"state_dict": here}, tmp_path / "x.pt", _use_new_zipfile_serialization=zipped)
        state = read_state(tmp_path / "x.pt")
        assert list(state.arrays) == list(here)
        for name, value in here.items():
            wanted = value.detach().resolve_neg()
            wanted = wanted.float() if wanted.is_floating_point() else wanted
            np.testing.assert_array_equal(state.arrays[name], wanted.numpy())


def test_values_of_a_big_endian_machine(tmp_path):
    path = saved(
        tmp_path / "x.pt",
        pickled(
            {"a": tensor("FloatStorage", "0", 2, 0, (2,), (1,)), "b": tensor("BFloat16Storage", "1", 1, 0, (), ())}
        ),
        {"0": struct.pack(">2f", 1.5, -2), "1": b"\x3f\x80"},
    )
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/byteorder", "big")
    state = read_state(path)
    np.testing.assert_array_equal(state.arrays["a"], np.array([1.5, -2], np.float32))
    assert state.arrays["b"] == 1


def test_values_that_count_with_the_other_sign(tmp_path):
    made = tensor("FloatStorage", "0", 2, 0, (2,), (1,), {"neg": True})
    path = saved(tmp_path / "x.pt", pickled({"a": made}), {"0": struct.pack("<2f", 1.5, -2)})
    np.testing.assert_array_equal(read_state(path).arrays["a"], [-1.5, 2])


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (Called("torch._utils", "_rebuild_qtensor", 1), "it is quantized"),
        (Called("torch._utils", "_rebuild_sparse_tensor", 1), "it is sparse"),
        (Called("torch._utils", "_rebuild_meta_tensor_no_storage", 1), "no values (device meta)"),
        (tensor("QInt8Storage", "0", 2, 0, (2,), (1,)), "QInt8Storage, which is no plain array"),
        (tensor("FloatStorage", "0", 2, 0, (3,), (1,)), "needs 3 values of a storage of 2"),
        (tensor("FloatStorage", "0", 2, 1, (2,), (1,)), "needs 3 values of a storage of 2"),
        (tensor("FloatStorage", "0", 2, -1, (2,), (1,)), "shape or strides are none"),
        (tensor("FloatStorage", "0", 2, 0, (2,), (-1,)), "shape or strides are none"),
        (tensor("FloatStorage", "0", 2, 0, (2, 1), (1,)), "shape or strides are none"),
        (tensor("FloatStorage", "0", 2, 0, ("2",), (1,)), "shape or strides are none"),
        (tensor("FloatStorage", "0", 2, 0, (2**70,), (0,)), "shape or strides are none"),
        (tensor("FloatStorage", "0", 2, 0, (1,) * 70, (0,) * 70), "70 axes"),
        (tensor("FloatStorage", "0", 2, 0, 2, 1), "its parts are not those of an array"),
        (tensor("FloatStorage", "0", 9, 0, (9,), (1,)), "8 of 36 bytes"),
        (tensor("FloatStorage", "5", 2, 0, (2,), (1,)), "archive has no 'archive/data/5'"),
        (tensor("FloatStorage", "../../../etc/passwd", 2, 0, (2,), (1,)), "archive has no"),
        (tensor("FloatStorage", "0", 2, 0, (1 << 40,), (0,)), "more than 16 times as large as the file"),
        (tensor("FloatStorage", "0", 2, 0, (0, 1 << 40, 1 << 40), (0, 0, 0)), ""),
    ],
)
def test_arrays_that_cannot_be_read(tmp_path, made, words):
    path = saved(tmp_path / "x.pt", pickled({"model": {"mine": made}}), {"0": struct.pack("<2f", 1, 2)})
    if words:
        text = refusal(path)
        assert words in text
        assert "mine" in text
    # beside the weights it harms nothing
    good = tensor("FloatStorage", "0", 2, 0, (2,), (1,))
    saved(path, pickled({"model": {"good": good}, "optimizer": {"mine": made}}), {"0": struct.pack("<2f", 1, 2)})
    assert list(read_state(path).arrays) == ["good"]


def test_a_damaged_storage_is_named(tmp_path):
    path = saved(
        tmp_path / "x.pt", pickled({"mine": tensor("FloatStorage", "0", 2, 0, (2,), (1,))}), {"0": b"12345678"}
    )
    content = path.read_bytes()
    path.write_bytes(content.replace(b"12345678", b"12345670"))
    assert "mine cannot be read: Bad CRC-32" in refusal(path)


@pytest.mark.parametrize("cut", [0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
@pytest.mark.parametrize("name", PARTS)
def test_what_is_cut_is_refused(fixtures, tmp_path, name, cut):
    content = (fixtures / name).read_bytes()
    path = tmp_path / "x.pth"
    path.write_bytes(content[: int(cut * len(content))])
    assert "truncated" in refusal(path)


@pytest.mark.parametrize("name", PARTS)
def test_any_damage_is_a_message(fixtures, tmp_path, name):
    """Bytes of the pickles replaced at random: the file is refused, or what was beside the weights is another."""
    content, rng = bytearray((fixtures / name).read_bytes()), np.random.default_rng(0)
    path = tmp_path / "x.pth"
    for _ in range(150):
        damaged = bytearray(content)
        for at in rng.integers(0, len(content), rng.integers(1, 4)):
            damaged[at] = rng.integers(256)
        path.write_bytes(damaged)
        with contextlib.suppress(UserError):
            read_state(path)


# ---- what costs much


def cost(path) -> tuple[float, int]:
    """Seconds and largest memory until a file is refused or read."""
    tracemalloc.start()
    start = time.monotonic()
    try:
        refusal(path)
    finally:
        seconds, (_, peak) = time.monotonic() - start, tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return seconds, peak


def test_a_pickle_that_unpacks_to_gigabytes_is_refused_unread(tmp_path):
    path = tmp_path / "x.pth"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("a/data.pkl", "w") as f,
    ):
        for _ in range(160):
            f.write(b"N0" * (1 << 19))  # 1 MB each
    assert path.stat().st_size < 2_000_000
    assert "its pickle becomes 168 MB when unpacked" in refusal(path)
    assert cost(path)[1] < 30_000_000


def test_a_storage_that_unpacks_to_gigabytes_is_refused_unread(tmp_path):
    path = tmp_path / "x.pth"
    saved(
        path,
        pickled({"a": tensor("ByteStorage", "0", 1 << 27, 0, (2,), (1,))}),
        {"0": bytes(1 << 27)},
        zipfile.ZIP_DEFLATED,
    )
    assert "far larger than the file" in refusal(path)
    assert cost(path)[1] < 30_000_000


def test_arrays_that_are_shared_a_thousand_times_are_refused(tmp_path):
    one = tensor("FloatStorage", "0", 1 << 18, 0, (1 << 18,), (1,))
    path = saved(tmp_path / "x.pth", pickled({str(i): one for i in range(1000)}), {"0": bytes(1 << 20)})
    assert "more than 16 times as large as the file" in refusal(path)


def _nested(protocol: int) -> bytes:
    """Lists, tuples and dicts that each hold the last one twice, sixty deep."""
    tree: object = "lol"
    for _ in range(60):
        tree = [tree, tree]
    return pickle.dumps(tree, protocol)


#: the tuple number i holds that before it twice: hashing the last one goes through 2 ** 60
_TUPLES = b"\x80\x02)q\x000" + b"".join(b"h%ch%c\x86q%c0" % (i, i, i + 1) for i in range(60)) + b"h\x3c"

COSTLY = {
    "instructions": b"\x80\x02" + b"N0" * 60_000 + b"}.",
    "empty sets": b"\x80\x04(" + b"\x8f" * 110_000 + b"l.",
    "a place in the memo": b"\x80\x02}r\xff\xff\xff\xff.",
    "a long text": b"\x80\x02X\xff\xff\xff\xffabc.",
    "long bytes": b"\x80\x04\x8e" + b"\xff" * 5 + b"\x00" * 3 + b".",
    "a long bytearray": b"\x80\x05\x96" + b"\xff" * 5 + b"\x00" * 3 + b".",
    "a long frame": b"\x80\x04\x95" + b"\xff" * 5 + b"\x00" * 3 + b"}.",
    "a long number": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "digits": b"I" + b"7" * 1_000_000 + b"\n.",
    "lists in lists": _nested(2),
    "deep lists": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "deep tuples": b"\x80\x02)" + b"\x85" * 100_000 + b".",
    "deep records": b"\x80\x02N" + b"\x85q\x01cm\nC\nh\x01R" * 30_000 + b".",
    "a tuple as key": b"\x80\x02}" + _TUPLES[2:] + b"Ns.",
    "a tuple in a set": b"\x80\x04\x8f(" + _TUPLES[2:] + b"\x90.",
    "a tuple in a frozenset": b"\x80\x04(" + _TUPLES[2:] + b"\x91.",
    "a deep tuple as key": b"\x80\x02})" + b"\x85" * 100_000 + b"Ns.",
    "keys of one hash": b"\x80\x02}("
    + b"".join(b"\x8a\x0a" + (i * (2**61 - 1)).to_bytes(10, "little") + b"N" for i in range(30_000))
    + b"u.",
    "a list made into dicts": b"\x80\x02]q\x01("
    + b"NN\x86" * 30_000
    + b"e0"
    + b"ccollections\nOrderedDict\nh\x01\x85R0" * 10_000
    + b"}.",
    "itself": b"\x80\x02]q\x00h\x00a.",
    "a dict of itself": b"\x80\x02}q\x00X\x05\x00\x00\x00modelh\x00s.",
}


@pytest.mark.parametrize("name", COSTLY)
def test_costly_pickles_are_refused_soon(tmp_path, name, monkeypatch):
    if name in ("instructions", "empty sets"):
        monkeypatch.setattr(pickles, "MOST_OPCODES", 100_000)
    path = saved(tmp_path / "x.pth", COSTLY[name])
    start = time.monotonic()
    text = refusal(path)
    assert time.monotonic() - start < 30  # minutes and gigabytes without the limits
    assert len(text) < 1000
    if name in ("instructions", "empty sets"):
        assert "more than 100,000 instructions" in text


def test_the_limit_of_bytes_holds_in_both_forms(tmp_path, monkeypatch):
    monkeypatch.setattr(pickles, "MOST_BYTES", 1 << 12)
    content = pickle.dumps({"a": "x" * 5000}, 2)
    assert "beside the arrays" in refusal(saved(tmp_path / "x.pth", content))
    lines = b"(" + b"V%0100d\n" % 1 * 60 + b"l."  # texts, a line each
    assert "beside the arrays" in refusal(saved(tmp_path / "x.pth", lines))
    before: tuple[object, ...] = (torch_files.MAGIC, 1001, {})
    head = b"".join(pickle.dumps(part, 2) for part in before)
    (tmp_path / "y.pth").write_bytes(head + content + pickle.dumps([], 2))
    assert "beside the arrays" in refusal(tmp_path / "y.pth")


# ---- nothing is imported or called


@pytest.mark.parametrize(
    "stream",
    [
        b"cos\nsystem\n(X\x04\x00\x00\x00echotR.",
        b"(ios\nsystem\n.",
        b"(cos\nsystem\nX\x01\x00\x00\x00ao.",
        b"\x80\x02cbuiltins\neval\nX\x01\x00\x00\x001\x85\x81.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x01a\x85R.",
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85}\x92.",
        b"\x80\x02cno_such_module\nthing\n)R}b.",
        b"\x80\x02cos\nsystem\n}X\x01\x00\x00\x00aX\x01\x00\x00\x00bsb.",
        b"\x80\x02\x82\x01)R.",
        b"\x80\x02cbuiltins\ngetattr\ncos\npath\nX\x06\x00\x00\x00system\x86RX\x01\x00\x00\x00a\x85R.",
    ],
)
def test_every_way_to_call_makes_a_record(stream, monkeypatch):
    monkeypatch.setattr("builtins.__import__", None)
    reader = Unpickler(io.BytesIO(stream), {}, lambda pid: None)
    try:
        made = reader.load()
    finally:
        monkeypatch.undo()
    assert type(made) in (Record, Name)


@pytest.mark.parametrize(
    "stream", [b"", b"N", b"\x80\x02NR.", b"\x80\x02K\x01)R.", b"}K\x01K\x02K\x03s.", b"\xff", b"0.", b"h\x07."]
)
def test_streams_that_are_no_pickle(stream):
    with pytest.raises(PickleError):
        Unpickler(io.BytesIO(stream), {}, lambda pid: None).load()


def test_keys_that_could_be_costly_to_hash_are_records():
    most = pickles.LARGEST_KEY
    keys = ("a", most, -most, most + 1, -most - 1, (1, 2))
    made = Unpickler(io.BytesIO(pickle.dumps(dict.fromkeys(keys))), {}, lambda pid: None).load()
    assert [key if key in keys else key.arguments[0] for key in made] == list(keys)
    assert [isinstance(key, Record) for key in made] == [False] * 3 + [True] * 3
