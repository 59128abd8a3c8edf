"""Files of `torch.save`, read without PyTorch, in both of its forms.

Since version 1.6 such a file is a zip archive: `data.pkl` is the pickle of what was saved, `data/KEY` are the values of
each storage. Before that it is a row of pickles (a number, a version, facts about the machine, what was saved, the keys
of the storages), behind which the values of each storage stand with their count. In both, a tensor in the pickle names
its storage, where it begins in it, its shape and its strides.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.weights.pickles import MOST_BYTES, Name, PickleError, Record, Unpickler, put

#: first number of a file from before the zip format
MAGIC = 0x1950A86A20F9469CFC6C
#: arrays may be this many times as large as the file, which compression and shared storages explain, and `ROOM` bytes
GROWTH, ROOM = 16, 1 << 26
#: kind of storage in `torch`, and dtype given as a name of `torch` -> dtype
_STORAGES = {
    "Float": np.dtype(np.float32),
    "Double": np.dtype(np.float64),
    "Half": np.dtype(np.float16),
    "BFloat16": np.dtype(ml_dtypes.bfloat16),
    "Long": np.dtype(np.int64),
    "Int": np.dtype(np.int32),
    "Short": np.dtype(np.int16),
    "Char": np.dtype(np.int8),
    "Byte": np.dtype(np.uint8),
    "Bool": np.dtype(np.bool_),
    "ComplexFloat": np.dtype(np.complex64),
    "ComplexDouble": np.dtype(np.complex128),
    "Untyped": np.dtype(np.uint8),
}
_DTYPES = {
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "float8_e4m3fnuz": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "float8_e5m2fnuz": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "bool": np.dtype(np.bool_),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "half": np.dtype(np.float16),
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    **{
        name: np.dtype(name)
        for name in "float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 complex64".split()
    },
}


@dataclass(frozen=True)
class Storage:
    """Where the values of tensors lie: `count` values of `dtype` from number `start` of storage `key` on."""

    key: str
    dtype: np.dtype[Any]
    count: int
    start: int = 0


@dataclass(frozen=True, eq=False)
class Tensor:
    """An array that has not been read yet.

    Attributes:
      storage: where its values lie.
      offset, shape, strides: which of them, in values.
      negative: its values count with the other sign.
      problem: why it cannot be read; "" where it can.
    """

    storage: Storage | None = None
    offset: int = 0
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    negative: bool = False
    problem: str = ""


@dataclass(eq=False)
class TorchFile:
    """What a file holds, while it is open.

    Attributes:
      tree: what was saved: dicts, lists, texts, numbers, with `Tensor` for arrays and `Record` for all else.
      not_made: names of Python that the file asks for and that were not made.
    """

    path: Path
    tree: Any
    not_made: tuple[str, ...]
    _bytes_of: Callable[[Storage], bytes]
    _left: int
    _last: tuple[str, bytes] = ("", b"")
    _big: bool = False

    def array(self, name: str, tensor: Tensor) -> np.ndarray:
        """The values of a tensor, contiguous.

        Args:
          name: of the tensor, for messages.

        Raises:
          UserError: they are no plain array, are not in the file, or are far more than the file is large.
        """
        problem = tensor.problem or _outside(tensor)
        if problem or tensor.storage is None:
            raise UserError(f"{self.path}: {name} cannot be read: {problem}")
        storage = tensor.storage
        self._spend(name, math.prod(tensor.shape) * max(4, storage.dtype.itemsize))
        try:
            values = self._values(name, storage)
        except UserError:
            raise
        except Exception as error:  # a damaged file may raise anything
            raise UserError(f"{self.path}: {name} cannot be read: {error}; fetch the file again") from error
        strides = tuple(storage.dtype.itemsize * stride for stride in tensor.strides)
        view = np.lib.stride_tricks.as_strided(values[tensor.offset :], tensor.shape, strides, writeable=False)
        array = np.array(view, order="C")
        if storage.dtype == np.bool_:
            return array.view(np.uint8) != 0
        return np.negative(array) if tensor.negative else array

    def _values(self, name: str, storage: Storage) -> np.ndarray:
        """All values of a storage; those of the last one are kept, since tensors share them one after the other."""
        if self._last[0] != storage.key:
            self._last = "", b""
            data = self._bytes_of(storage)
            self._spend(name, len(data))
            self._last = storage.key, data
        start, needed = storage.start * storage.dtype.itemsize, storage.count * storage.dtype.itemsize
        data = self._last[1]
        if len(data) < start + needed:
            raise ValueError(f"its storage has {len(data)} of {start + needed} bytes; it is truncated or damaged")
        values = np.frombuffer(data, storage.dtype, storage.count, start)
        if self._big and storage.dtype.itemsize > 1:
            values = values.view(f"u{storage.dtype.itemsize}").byteswap().view(storage.dtype)
        return values

    def _spend(self, name: str, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise UserError(
                f"{self.path}: its arrays, at {name}, become more than {GROWTH} times as large as the file; this is no "
                "usual file of weights; save its arrays again, each with .contiguous()"
            )


@contextmanager
def opened(path: Path) -> Iterator[TorchFile]:
    """A file of `torch.save`; nothing that it names is imported or called.

    Raises:
      UserError: it is damaged, is none, or costs more than a file of weights does.
    """
    with ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("rb"))
            is_archive = file.read(2) == b"PK"
            file.seek(0)
            found = _archive(path, stack.enter_context(zipfile.ZipFile(file))) if is_archive else _row(path, file)
        except UserError:
            raise
        except zipfile.BadZipFile as error:
            raise UserError(f"{path} is truncated or damaged ({error}); fetch it again") from error
        except Exception as error:  # a damaged file may raise anything
            raise UserError(
                f"{path} is truncated or no file of weights ({error or type(error).__name__}); fetch it again"
            ) from error
        yield found


def _archive(path: Path, archive: zipfile.ZipFile) -> TorchFile:
    """The form since version 1.6."""
    members = set(archive.namelist())
    if any(name.endswith("/constants.pkl") for name in members):
        raise UserError(
            f"{path} is a TorchScript program, which would run code, and was refused; save its weights alone "
            "(torch.save(model.state_dict(), file))"
        )
    found = min((name for name in members if f"/{name}".endswith("/data.pkl")), key=len, default="")
    if not found:
        raise UserError(f"{path} is an archive, but none of torch.save; give a file of weights")
    root, unpacked, size = found.removesuffix("data.pkl"), archive.getinfo(found).file_size, path.stat().st_size
    if unpacked > min(MOST_BYTES, _limit(size)):
        raise UserError(
            f"{path}: its pickle becomes {unpacked / 1e6:,.0f} MB when unpacked, in a file of {size / 1e6:,.1f} MB; "
            "this is no usual file of weights and was refused; fetch it from whoever published it"
        )

    def bytes_of(storage: Storage) -> bytes:
        name = f"{root}data/{storage.key}"
        if name not in members:
            raise ValueError(f"the archive has no {name!r:.80}; the file is damaged")
        if archive.getinfo(name).file_size > _limit(size):
            raise ValueError("its storage is far larger than the file; this is no usual file of weights")
        return archive.read(name)

    reader = Unpickler(io.BytesIO(archive.read(found)), _BUILDERS, _stored)
    tree = reader.load()
    big = False
    if f"{root}byteorder" in members:
        with archive.open(f"{root}byteorder") as word:
            big = word.read(8).strip() == b"big"
    return TorchFile(path, tree, tuple(reader.not_made), bytes_of, _limit(size), _big=big)


def _row(path: Path, file: IO[bytes]) -> TorchFile:
    """The form before version 1.6."""
    seen: dict[str, Storage] = {}

    def stored(pid: Any) -> Any:
        found = _stored(pid)
        if isinstance(found, Storage):
            seen.setdefault(found.key, found)
        return found

    reader = Unpickler(file, _BUILDERS, stored)
    if reader.load() != MAGIC:
        raise UserError(f"{path} is a pickle, but no file of torch.save; give a file of weights")
    reader.load()  # version
    reader.load()  # facts about the machine; the values are little-endian whatever they say
    tree, keys = reader.load(), reader.load()
    places: dict[str, tuple[int, int]] = {}
    size = path.stat().st_size
    for key in keys if isinstance(keys, list) else []:
        if not isinstance(key, str) or key not in seen:
            raise PickleError("it has a storage that nothing uses")
        count, at = file.read(8), file.tell()
        length = int.from_bytes(count, "little") * seen[key].dtype.itemsize
        if len(count) < 8 or at + length > size:
            raise PickleError(f"it has {size - at} of {length} bytes of a storage")
        places[key] = at, length
        file.seek(at + length)

    def bytes_of(storage: Storage) -> bytes:
        if storage.key not in places:
            raise ValueError("its storage is not in the file, which is damaged")
        at, length = places[storage.key]
        file.seek(at)
        return file.read(length)

    return TorchFile(path, tree, tuple(reader.not_made), bytes_of, _limit(size))


def _limit(size: int) -> int:
    """Bytes that the arrays of a file of `size` bytes may have."""
    return GROWTH * size + ROOM


def _outside(tensor: Tensor) -> str:
    """Why a tensor does not lie within its storage; "" where it does."""
    storage = tensor.storage
    if storage is None:
        return "it has no values"
    if len(tensor.shape) > 64:
        return f"it has {len(tensor.shape)} axes"
    numbers = (tensor.offset, storage.count, storage.start, *tensor.shape, *tensor.strides)
    if len(tensor.shape) != len(tensor.strides) or not all(type(n) is int and 0 <= n < 1 << 48 for n in numbers):
        return "its shape or strides are none; the file is damaged"
    last = tensor.offset + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides))
    if all(tensor.shape) and last >= storage.count:
        return f"it needs {last + 1} values of a storage of {storage.count}; the file is damaged"
    return ""


# ---- what the pickle is made of


def _stored(pid: Any) -> Any:
    """The storage that a pickle refers to."""
    if not isinstance(pid, tuple) or len(pid) < 2:
        raise PickleError("it refers to what is not in the file")
    if pid[0] == "module":  # a model that was saved whole, before the zip format
        return pid[1]
    if pid[0] != "storage" or len(pid) < 5 or not isinstance(pid[1], Name) or type(pid[4]) is not int:
        raise PickleError("it refers to what is not in the file")
    kind = pid[1].full.rpartition(".")[2].removesuffix("Storage")
    if kind not in _STORAGES:
        return Tensor(problem=f"its values are {pid[1].full:.80}, which is no plain array; save it dequantized")
    dtype, view = _STORAGES[kind], pid[5] if len(pid) > 5 else None
    if isinstance(view, tuple) and len(view) == 3 and all(type(number) is int for number in view[1:]):
        return Storage(str(pid[2])[:200], dtype, view[2], view[1])
    return Storage(str(pid[2])[:200], dtype, pid[4])


def _tensor(storage: Any = None, offset: Any = 0, shape: Any = (), strides: Any = (), *rest: Any) -> Tensor:
    """`torch._utils._rebuild_tensor_v2`, and `_rebuild_tensor` before it."""
    if isinstance(storage, Tensor):
        return storage
    if not isinstance(storage, Storage) or not isinstance(shape, tuple) or not isinstance(strides, tuple):
        return Tensor(problem="its parts are not those of an array; the file is damaged")
    flags = rest[2] if len(rest) > 2 and isinstance(rest[2], dict) else {}
    return Tensor(storage, offset, shape, strides, bool(flags.get("neg")))


def _typed_tensor(storage: Any = None, offset: Any = 0, shape: Any = (), strides: Any = (), *rest: Any) -> Tensor:
    """`torch._utils._rebuild_tensor_v3`, whose storage is of bytes and whose dtype is given by name."""
    name = rest[2].full.removeprefix("torch.") if len(rest) > 2 and isinstance(rest[2], Name) else "?"
    if name not in _DTYPES or not isinstance(storage, Storage):
        return Tensor(problem=f"its dtype {name:.40} is none of those that are known")
    dtype = _DTYPES[name]
    typed = Storage(storage.key, dtype, storage.count * storage.dtype.itemsize // dtype.itemsize, storage.start)
    return _tensor(typed, offset, shape, strides, *rest[:2], *rest[3:])


def _first(value: Any = None, *rest: Any) -> Any:
    """What only wraps its first argument."""
    return value


def _from_type(function: Any = None, kind: Any = None, arguments: Any = (), state: Any = None) -> Any:
    """`torch._tensor._rebuild_from_type_v2`: a tensor of a derived class."""
    known = isinstance(function, Name) and function.full in _BUILDERS and isinstance(arguments, tuple)
    return _BUILDERS[function.full](*arguments) if known else Record("torch._tensor._rebuild_from_type_v2")


def _dict(pairs: Any = (), *rest: Any) -> dict[Any, Any]:
    """An `OrderedDict` of pairs, as Python 2 has it."""
    made: dict[Any, Any] = {}
    if isinstance(pairs, dict):
        return pairs
    if isinstance(pairs, list):
        for pair in pairs:
            if isinstance(pair, list | tuple) and len(pair) == 2:
                put(made, list(pair))
        pairs.clear()  # or one long list could be copied again and again
    return made


def _no_array(problem: str) -> Callable[..., Tensor]:
    tensor = Tensor(problem=problem)
    return lambda *arguments: tensor


_BUILDERS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _dict,
    "collections.defaultdict": lambda *factory: {},
    "builtins.dict": _dict,
    "__builtin__.dict": _dict,
    "_codecs.encode": _first,  # bytes, in protocol 2
    "torch.Size": _first,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _typed_tensor,
    "torch._utils._rebuild_parameter": _first,
    "torch._utils._rebuild_parameter_with_state": _first,
    "torch.nn.parameter.Parameter": _first,
    "torch._tensor._rebuild_from_type_v2": _from_type,
    "torch._utils._rebuild_qtensor": _no_array("it is quantized; save it with .dequantize()"),
    **dict.fromkeys(
        ("torch._utils._rebuild_sparse_tensor", "torch._utils._rebuild_sparse_csr_tensor"),
        _no_array("it is sparse; save it with .to_dense()"),
    ),
    **dict.fromkeys(
        ("torch._utils._rebuild_meta_tensor_no_storage", "torch._utils._rebuild_wrapper_subclass"),
        _no_array("it has no values (device meta)"),
    ),
    **dict.fromkeys(
        ("torch._utils._rebuild_device_tensor_from_numpy", "torch._utils._rebuild_nested_tensor"),
        _no_array("it is no plain array; save it with .cpu(), nested ones as single arrays"),
    ),
}
