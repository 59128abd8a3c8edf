"""Files of weights: reading them without running anything that they hold, and writing them.

Read are .safetensors files, files of `torch.save`, of which only the arrays are made (`torch_files.py`), and those of
TensorFlow Lite (`tflite_files.py`). Whatever is wrong with a file is one `UserError`, raised before anything of it is
used.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  # gives numpy the dtypes bfloat16 and float8, which safetensors files may hold
import numpy as np

from linnaeus_jax.config.errors import UserError, described
from linnaeus_jax.files import json_text, replaced_file, sha256_of
from linnaeus_jax.mistakes import shortened
from linnaeus_jax.weights import tflite_files, torch_files
from linnaeus_jax.weights.pickles import Record
from linnaeus_jax.weights.torch_files import Tensor

#: suffixes of files that `torch.save` writes
TORCH_SUFFIXES = (".pth", ".pt", ".bin", ".ckpt")
#: suffixes of files of weights
SUFFIXES = (".safetensors", *TORCH_SUFFIXES, tflite_files.SUFFIX)
#: end of the name of a file that says which of its neighbours holds which array
INDEX_SUFFIX = ".index.json"
#: one of several files that hold the arrays of one model
SHARD = re.compile(r"(?P<stem>.+)-\d{5}-of-\d{5}(?P<suffix>\.\w+)")
#: key of this program's JSON within the metadata of a .safetensors file
FACTS = "linnaeus_jax"
#: key within it: the fields of `data.preprocessing.Preprocessing`
IMAGE = "image"
#: key within it: {key within the `model` section: value} of what the trunk needs beside family and variant
SETTINGS = "settings"
#: key within the metadata of a .tflite file: its `Graph`
GRAPH = "graph"
#: where the parameters of a training checkpoint lie, in the order in which they are looked for
CONTAINERS = ("model", "state_dict_ema", "model_ema", "state_dict", "model_state_dict", "ema", "module", "teacher")
#: what wrappers of a PyTorch model put in front of every name
PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.")


@dataclass(frozen=True, eq=False)
class StateFile:
    """The arrays of one file of weights.

    Attributes:
      path: the file, or the checkpoint of a run.
      sha256: of the file, in hexadecimal.
      arrays: name -> array as the file has it, without the prefixes of wrappers; floating point is float32.
      metadata: of a .safetensors file; where this program wrote it, `metadata["linnaeus_jax"]` is a dict, see `facts`.
      notes: what a reader should know: which container was taken, which prefixes were left out.
      parts: the files, where this stands for several, which are read for one model; it has no arrays of its own then.
    """

    path: Path
    sha256: str
    arrays: dict[str, np.ndarray]
    metadata: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    parts: tuple[StateFile, ...] = ()

    @property
    def facts(self) -> dict[str, Any]:
        """What this program wrote about the weights (`exporting.facts`); {} in files of other programs."""
        facts: dict[str, Any] = self.metadata.get(FACTS, {})
        return facts


def read_state(path: str | Path, containers: Sequence[str] = CONTAINERS) -> StateFile:
    """Reads a file of weights; nothing in it is executed.

    Args:
      path: a .safetensors or .tflite file, or one of `torch.save` (.pth, .pt, .bin, .ckpt); of weights in several files
        their index (.index.json), or one of them with the index beside it.
      containers: keys under which the parameters may lie, the first that is there counts; else the whole file is taken.

    Raises:
      UserError: no such file, not a file of weights, truncated, far larger when unpacked, no array, an array with NaN
        or infinity or of a dtype that is no number, or facts about the weights that are none.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        raise UserError(f"{path} is a directory; give a file of weights ({', '.join(SUFFIXES)})")
    if not path.is_file():
        raise UserError(f"the file of weights {path} does not exist; check the path")
    metadata: dict[str, Any] = {}
    notes: list[str] = []
    if shard := SHARD.fullmatch(path.name):
        index = path.with_name(f"{shard['stem']}{shard['suffix']}{INDEX_SUFFIX}")
        if not index.is_file():
            raise UserError(f"{path} is one of several files of weights; put their index {index.name} beside it")
        path = index
    if path.name.endswith(INDEX_SUFFIX):
        arrays = _read_shards(path, containers, notes)
    elif path.suffix == ".safetensors":
        arrays, metadata = _read_safetensors(path)
    elif path.suffix in TORCH_SUFFIXES:
        arrays = _read_torch(path, containers, notes)
    elif path.suffix == tflite_files.SUFFIX:
        arrays, metadata[GRAPH] = tflite_files.read_tflite(path)
    else:
        raise UserError(f"{path} is no file of weights; known are {', '.join(SUFFIXES)}")
    if not arrays:
        raise UserError(f"{path} holds no array; is it a file of weights?")
    arrays = {name: _as_number(path, name, array) for name, array in arrays.items()}
    _check_finite(path, arrays)
    arrays = _without_prefixes(arrays, notes)
    return StateFile(path, _digest(path), arrays, metadata, tuple(notes))


def _digest(path: Path) -> str:
    """Of a file, in hexadecimal; of an index, of the digests of its files."""
    if not path.name.endswith(INDEX_SUFFIX):
        return sha256_of(path)
    digests = [sha256_of(path.with_name(name)) for name in shards_of(path)]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def write_state(path: str | Path, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
    """Writes a .safetensors file; a reader or a crash sees the old file or the whole new one.

    Args:
      arrays: name -> array, in PyTorch's layout if PyTorch is to read them.
      facts: JSON types, kept as `metadata["linnaeus_jax"]`; {}: the file says nothing of itself, as one of another
        program.

    Raises:
      UserError: the name does not end in .safetensors, or the file cannot be written.
    """
    from safetensors.numpy import save_file

    path = check_target(path)
    packed = {name: np.ascontiguousarray(array).reshape(np.shape(array)) for name, array in arrays.items()}
    try:
        with replaced_file(path) as unfinished:
            unfinished.touch()
            mode = unfinished.stat().st_mode  # as the umask has it; safetensors lets nobody but the owner read
            about = {FACTS: json_text(dict(facts))} if facts else {}
            save_file(packed, unfinished, {"format": "pt", **about})
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
    from safetensors import safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            metadata: dict[str, Any] = dict(file.metadata() or {})
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dict
    except Exception as error:  # a damaged file may raise anything
        raise UserError(
            f"{path} cannot be read as .safetensors: {_one_line(error)}; truncated or of another kind; fetch it anew"
        ) from error
    if FACTS in metadata:
        try:
            metadata[FACTS] = json.loads(metadata[FACTS])
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}: its metadata {FACTS!r} are no JSON ({error}); export the run again") from error
        _check_facts(path, metadata[FACTS])
    return arrays, metadata


def shards_of(index: Path) -> list[str]:
    """The names of the files that an index (.index.json) speaks of, which lie beside it.

    Raises:
      UserError: it cannot be read, or is no index.
    """
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    except OSError as error:
        raise UserError(f"{index} cannot be read: {described(error)}") from error
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{index} is no index of files of weights, {{'weight_map': {{array: file}}}}") from error
    names = sorted({name if isinstance(name, str) else "" for name in places})
    if not names or not all(re.fullmatch(r"[\w.-]+", name) and name.strip(".") for name in names):
        raise UserError(f"{index}: weight_map names {', '.join(map(repr, names))[:200] or 'no file'}; fetch it anew")
    return names


def _read_shards(index: Path, containers: Sequence[str], notes: list[str]) -> dict[str, np.ndarray]:
    """The arrays of all files of an index."""
    arrays: dict[str, np.ndarray] = {}
    names = shards_of(index)
    for name in names:
        path = index.with_name(name)
        if not path.is_file():
            raise UserError(f"{index} speaks of {name}, which does not lie beside it; fetch all {len(names)} files")
        safe = path.suffix == ".safetensors"
        arrays |= _read_safetensors(path)[0] if safe else _read_torch(path, containers, notes)
    missing = sorted({*json.loads(index.read_text(encoding="utf-8"))["weight_map"]} - {*arrays})
    if missing:
        raise UserError(f"{index} speaks of {missing[0]!r:.100}, which its files do not hold; fetch them anew")
    notes.append(f"{len(names)} files of one model")
    return arrays


def _check_facts(path: Path, facts: Any) -> None:
    """Raises UserError where what the file says of its weights has not the form that `exporting.facts` gives it."""
    if not isinstance(facts, dict):
        raise UserError(f"{path}: its metadata {FACTS!r} are a {type(facts).__name__}, not an object; export it again")
    for key, (fits, form) in _FACTS.items():
        if key in facts and not fits(facts[key]):
            shown = json.dumps(facts[key])
            shown = f"{shown[:60]}..." if len(shown) > 63 else shown
            raise UserError(f"{path}: {key!r} of its metadata {FACTS!r} is {shown}; {form} is needed; export it again")


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _whole(value: Any, least: int = 0) -> bool:
    return type(value) is int and least <= value < 1 << 63


def _number(value: Any) -> bool:
    return _whole(value) or (isinstance(value, float) and math.isfinite(value))


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(_whole(side, 1) and side < 1 << 20 for side in value)


def _ids(value: Any) -> bool:
    lists = value.values() if isinstance(value, dict) else (None,)
    return all(isinstance(ids, list) and all(_whole(taxon, -1) for taxon in ids) for ids in lists)


def _settings(value: Any) -> bool:
    def fits(item: Any) -> bool:
        if isinstance(item, list):
            return all(map(_number, item)) or all(isinstance(each, list) and each for each in item)
        return isinstance(item, bool | str) or _number(item)

    return isinstance(value, dict) and all(map(fits, value.values()))


#: key of the facts that is used -> (what it must be, in words)
_FACTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("model", "variant"), (lambda value: isinstance(value, str), "a text")),
    **dict.fromkeys(("tasks", "notes", "left_at_initial"), (_texts, "a list of texts")),
    "img_size": (_sizes, "[height, width] in pixels"),
    "classes": (_ids, "{task: [taxon ids]}"),
    "head types": (lambda value: isinstance(value, dict) and _texts(list(value.values())), "{task: name}"),
    SETTINGS: (_settings, "{key: number, text, true or false, list of numbers, or list of lists}"),
    "original": (lambda value: isinstance(value, bool), "true or false"),
}


def _read_torch(path: Path, containers: Sequence[str], notes: list[str]) -> dict[str, np.ndarray]:
    """The arrays of a file of `torch.save` under their names, from the first container that there is."""
    with torch_files.opened(path) as file:
        tree = _entries(file.tree)
        if tree is None:
            raise UserError(_holds(path, f"{_kind(file.tree)} instead of names and arrays", file.not_made))
        found = [key for key in containers if _tensors(_entries(tree.get(key)) or {})]
        taken = _entries(tree[found[0]]) if found else tree
        tensors = _tensors(taken or {})
        if not tensors:
            keys = ", ".join(f"{key!r:.60}" for key in list(tree)[:5] if isinstance(key, str | int)) or "none"
            raise UserError(_holds(path, f"no array (its keys: {keys})", file.not_made))
        if found:
            others = f"; {', '.join(map(repr, found[1:]))} beside it not used" if found[1:] else ""
            notes.append(f"taken from its key {found[0]!r}{others}")
            if taken and len(tensors) < len(taken):
                notes.append(f"{len(taken) - len(tensors)} entries that are no arrays not used")
        if file.not_made:
            notes.append(f"objects of Python beside the arrays not made: {_names(file.not_made)}")
        return {name: file.array(name, tensor) for name, tensor in tensors.items()}


def _entries(value: Any) -> Mapping[Any, Any] | None:
    """What lies under keys, also in a kind of dict that was not made; None: nothing does."""
    return value.entries if isinstance(value, Record) else value if isinstance(value, dict) else None


def _tensors(tree: Mapping[Any, Any]) -> dict[str, Tensor]:
    return {
        str(name): value for name, value in tree.items() if isinstance(name, str | int) and isinstance(value, Tensor)
    }


def _kind(value: Any) -> str:
    return f"the object {_names([value.name])}" if isinstance(value, Record) else f"a {type(value).__name__}"


def _names(names: Iterable[str]) -> str:
    """The first of the names that a pickle asks for; what is no name is shown as a text."""
    shown = [name if re.fullmatch(r"[\w.<>]{1,100}", name) else f"{name!r:.100}" for name in names]
    return shortened(shown)


def _holds(path: Path, what: str, not_made: Sequence[str]) -> str:
    """The message about a file without arrays."""
    if not not_made:
        return f"{path} holds {what}; is it a file of weights?"
    return (
        f"{path} holds {what}, but objects that would run code when read: {_names(not_made)}; it was refused and "
        "nothing of it was run. If you trust whoever made it, let PyTorch save its tensors alone, which does run it: "
        "torch.save(torch.load(FILE, weights_only=False).state_dict(), 'weights.pth')"
    )


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
