"""Files of weights: reading them without running anything that they hold, and writing them.

Read are .safetensors files, and files of `torch.save` whose pickle asks for nothing but tensors and the settings that
training programs keep beside them, which are not made; the latter need PyTorch (the extra `linnaeus_jax[torch]`).
Whatever is wrong with a file is one `UserError`, raised before anything of
it is used.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import ml_dtypes  # noqa: F401  # gives numpy the dtypes bfloat16 and float8, which safetensors files may hold
import numpy as np

from linnaeus_jax.config.errors import UserError, described
from linnaeus_jax.files import replaced_file, sha256_of

#: suffixes of files that `torch.save` writes
TORCH_SUFFIXES = (".pth", ".pt", ".bin", ".ckpt")
#: key of this program's JSON within the metadata of a .safetensors file
FACTS = "linnaeus_jax"
#: where the parameters of a training checkpoint lie, in the order in which they are looked for
CONTAINERS = ("model", "state_dict_ema", "state_dict", "model_state_dict", "ema")
#: what wrappers of a PyTorch model put in front of every name
PREFIXES = ("module.", "_orig_mod.", "model.")
#: first number of a file of `torch.save` from before the zip format
TORCH_MAGIC = 0x1950A86A20F9469CFC6C
#: what the pickle of a tensor asks for
TENSOR_PARTS = re.compile(
    r"collections\.OrderedDict|_codecs\.encode|torch\.(\w*Storage|Size|device|Tensor|b?float\d\w*|u?int\d+|double|half|long|bool)"
    r"|torch\._utils\._rebuild_\w+|torch\._tensor\._rebuild_\w+|torch\.storage\.\w*Storage|torch\.nn\.parameter\.Parameter"
)
#: settings and numbers that training programs keep beside the tensors; inert objects take their place
BESIDE_TENSORS = (
    "argparse.Namespace",
    "yacs.config.CfgNode",
    "pathlib.PosixPath",
    "numpy.dtype",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray.scalar",
)
#: those of them that are dicts, whose entries PyTorch sets in dicts alone
DICTS_BESIDE = ("yacs.config.CfgNode",)
NEEDS_TORCH = "pip install 'linnaeus_jax[torch]' (or pip install torch), or convert it where PyTorch is installed"


@dataclass(frozen=True, eq=False)
class StateFile:
    """The arrays of one file of weights.

    Attributes:
      path: the file, or the checkpoint of a run.
      sha256: of the file, in hexadecimal.
      arrays: name -> array as the file has it, without the prefixes of wrappers; floating point is float32.
      metadata: of a .safetensors file; where this program wrote it, `metadata["linnaeus_jax"]` is a dict, see `facts`.
      notes: what a reader should know: which container was taken, which prefixes were left out.
    """

    path: Path
    sha256: str
    arrays: dict[str, np.ndarray]
    metadata: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def facts(self) -> dict[str, Any]:
        """What this program wrote about the weights (`exporting.facts`); {} in files of other programs."""
        facts = self.metadata.get(FACTS, {})
        return facts if isinstance(facts, dict) else {}


def read_state(path: str | Path, containers: Sequence[str] = CONTAINERS) -> StateFile:
    """Reads a file of weights; nothing in it is executed.

    Args:
      path: a .safetensors file, or one of `torch.save` (.pth, .pt, .bin, .ckpt).
      containers: keys under which the parameters may lie, the first that is there counts; else the whole file is taken.

    Raises:
      UserError: no such file, not a file of weights, truncated, a pickle that would run code, no array, an array with
        NaN or infinity or of a dtype that is no number, or PyTorch is needed and missing.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        raise UserError(f"{path} is a directory; give a file of weights (.safetensors, {', '.join(TORCH_SUFFIXES)})")
    if not path.is_file():
        raise UserError(f"the file of weights {path} does not exist; check the path")
    metadata: dict[str, Any] = {}
    notes: list[str] = []
    if path.suffix == ".safetensors":
        arrays, metadata = _read_safetensors(path)
    elif path.suffix in TORCH_SUFFIXES:
        arrays = _take_container(path, _read_torch(path), containers, notes)
    else:
        raise UserError(f"{path} is no file of weights; known are .safetensors and {', '.join(TORCH_SUFFIXES)}")
    if not arrays:
        raise UserError(f"{path} holds no array; is it a file of weights?")
    arrays = {name: _as_number(path, name, array) for name, array in arrays.items()}
    _check_finite(path, arrays)
    arrays = _without_prefixes(arrays, notes)
    return StateFile(path, sha256_of(path), arrays, metadata, tuple(notes))


def write_state(path: str | Path, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
    """Writes a .safetensors file; a reader or a crash sees the old file or the whole new one.

    Args:
      arrays: name -> array, in PyTorch's layout if PyTorch is to read them.
      facts: JSON types, kept as `metadata["linnaeus_jax"]`.

    Raises:
      UserError: the name does not end in .safetensors, or the file cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    path = check_target(path)
    packed = {name: np.ascontiguousarray(array).reshape(np.shape(array)) for name, array in arrays.items()}
    try:
        with replaced_file(path) as unfinished:
            unfinished.touch()
            mode = unfinished.stat().st_mode  # as the umask has it; safetensors lets nobody but the owner read
            try:
                save_file(packed, unfinished, {"format": "pt", FACTS: json.dumps(dict(facts))})
            except SafetensorError as error:  # which has the number of the system's error in its text alone
                if number := re.search(r"(?:os error|code:) (\d+)", str(error)):
                    raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
                raise
            unfinished.chmod(mode)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {described(error).removeprefix(f'{path}: ')}") from error


def check_target(path: str | Path) -> Path:
    """Where a file of weights can be written.

    Raises:
      UserError: the name does not end in .safetensors.
    """
    path = Path(path).expanduser()
    if path.suffix != ".safetensors":
        raise UserError(f"{path} must end in .safetensors, the format that is written")
    return path


def _read_safetensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            metadata: dict[str, Any] = dict(file.metadata() or {})
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dict
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path} cannot be read as .safetensors: {_one_line(error)}; truncated or of another kind; fetch it anew"
        ) from error
    if FACTS in metadata:
        try:
            metadata[FACTS] = json.loads(metadata[FACTS])
        except ValueError as error:
            raise UserError(f"{path}: its metadata {FACTS!r} are no JSON ({error}); export the run again") from error
    return arrays, metadata


def _read_torch(path: Path) -> Any:
    """The tree of a file of `torch.save`, with tensors as leaves."""
    _refuse_code(path)
    try:
        import torch
    except ImportError as error:
        raise UserError(f"{path} is a file of PyTorch, which is not installed: {NEEDS_TORCH}") from error
    try:
        inert = [(OrderedDict if name in DICTS_BESIDE else _Inert, name) for name in BESIDE_TENSORS]
        with torch.serialization.safe_globals(inert):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(_refused(path, _one_line(error))) from error
    except Exception as error:  # a damaged file may raise anything
        raise UserError(f"{path} cannot be read by PyTorch: {_one_line(error)}; is it truncated?") from error


class _Inert:
    """Stands for whatever a pickle makes out of tensors; takes every call and does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


class _AsksForCode(Exception):
    """Names what a pickle asks for beside tensors."""


class _Looker(pickle.Unpickler):
    """Goes through a pickle with inert objects and stops at the first thing that is no tensor."""

    def find_class(self, module: str, name: str) -> Any:
        if TENSOR_PARTS.fullmatch(f"{module}.{name}") or f"{module}.{name}" in BESIDE_TENSORS:
            return _Inert
        raise _AsksForCode(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        return _Inert()


def _refuse_code(path: Path) -> None:
    """Raises UserError where a file of `torch.save` is damaged, is none, or asks for anything but tensors."""
    try:
        with path.open("rb") as file:
            for stream in _pickles(path, file):
                _Looker(stream).load()
    except _AsksForCode as error:
        raise UserError(_refused(path, str(error))) from error
    except UserError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise UserError(f"{path} is truncated or no file of weights ({_one_line(error)}); fetch it again") from error


def _pickles(path: Path, file: IO[bytes]) -> Iterator[IO[bytes]]:
    """The pickles of a file of `torch.save`: one in a zip archive, or four in a row before version 1.6."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
            if any(name.endswith("/constants.pkl") for name in members):
                raise UserError(
                    f"{path} is a TorchScript program, which would run code, and was refused; save its weights alone "
                    "(torch.save(model.state_dict(), file))"
                )
            pickles = [name for name in members if name == "data.pkl" or name.endswith("/data.pkl")]
            if not pickles:
                raise UserError(f"{path} is an archive, but none of torch.save; give a file of weights")
            yield io.BytesIO(archive.read(pickles[0]))
        return
    if file.read(2) == b"PK":
        raise UserError(f"{path} is truncated: the end of the archive is missing; fetch it again")
    file.seek(0)
    if _Looker(file).load() != TORCH_MAGIC:
        raise UserError(f"{path} is a pickle, but no file of torch.save; give a file of weights")
    for _ in range(3):  # version, system, the tree
        yield file


def _refused(path: Path, what: str) -> str:
    return (
        f"{path} asks for more than tensors and would run code when read: {what}; it was refused and nothing of it was "
        "run. If you trust whoever made it, let PyTorch save its tensors alone, which does run it: "
        "torch.save(torch.load(FILE, weights_only=False)['model'], 'weights.pth')"
    )


def _take_container(path: Path, tree: Any, containers: Sequence[str], notes: list[str]) -> dict[str, Any]:
    """The tensors of a PyTorch file under their names, from the first container that there is."""
    if not isinstance(tree, Mapping):
        raise UserError(f"{path} holds a {type(tree).__name__} instead of names and arrays; is it a file of weights?")
    found = [key for key in containers if isinstance(tree.get(key), Mapping) and _tensors(tree[key])]
    taken = tree[found[0]] if found else tree
    if found:
        others = f"; {', '.join(map(repr, found[1:]))} beside it not used" if found[1:] else ""
        notes.append(f"taken from its key {found[0]!r}{others}")
    tensors = _tensors(taken)
    if not tensors:
        keys = ", ".join(map(repr, list(taken)[:5])) or "none"
        raise UserError(f"{path} holds no array (its keys: {keys}); is it a file of weights?")
    if found and len(tensors) < len(taken):
        notes.append(f"{len(taken) - len(tensors)} entries that are no arrays not used")
    return {name: _from_torch(path, name, tensor) for name, tensor in tensors.items()}


def _tensors(tree: Mapping[Any, Any]) -> dict[str, Any]:
    import torch

    return {str(name): value for name, value in tree.items() if isinstance(value, torch.Tensor)}


def _from_torch(path: Path, name: str, tensor: Any) -> np.ndarray:
    try:
        tensor = tensor.detach()
        return np.asarray((tensor.float() if tensor.is_floating_point() else tensor).contiguous().numpy())
    except (TypeError, RuntimeError) as error:
        raise UserError(f"{path}: {name} ({tensor.dtype}) cannot be used: {_one_line(error)}") from error


def _as_number(path: Path, name: str, array: np.ndarray) -> np.ndarray:
    """Every floating-point dtype as float32; integers and booleans as they are."""
    if array.dtype.kind in "biu":
        return array
    if array.dtype.kind == "c" or not np.can_cast(array.dtype, np.float64):
        raise UserError(f"{path}: {name} is of dtype {array.dtype}; floating point and integers can be read")
    return np.asarray(array, np.float32)


def _check_finite(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    bad = [name for name, array in arrays.items() if array.dtype.kind == "f" and not np.isfinite(array).all()]
    if bad:
        more = f" (and {len(bad) - 1} more arrays)" if len(bad) > 1 else ""
        raise UserError(f"{path}: {bad[0]}{more} holds NaN or infinity; take a checkpoint from before it happened")


def _without_prefixes(arrays: dict[str, np.ndarray], notes: list[str]) -> dict[str, np.ndarray]:
    """Leaves out what wrappers put in front of the names; entries of the wrapper itself stay as they are."""
    for _ in range(len(PREFIXES) + 1):  # they may stand in any order, and one of them twice
        for prefix in PREFIXES:
            with_it = [name for name in arrays if name.startswith(prefix)]
            renamed = {name.removeprefix(prefix): array for name, array in arrays.items()}
            if 2 * len(with_it) > len(arrays) and len(renamed) == len(arrays):
                arrays = renamed
                notes.append(f"prefix {prefix!r} left out")
    return arrays


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{text[:300]}..." if len(text) > 300 else text or type(error).__name__
