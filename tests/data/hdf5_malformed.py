"""Ways in which a data set of an HDF5 file can be another than a reader expects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import h5py
import numpy as np

Change = Callable[[h5py.File, str], None]
ROWS = 60


def _as(make: Callable[[h5py.File], Any], **options: Any) -> Change:
    """Another data set under the same name, with the values that `make` gives."""

    def change(file: h5py.File, name: str) -> None:
        del file[name]
        file.create_dataset(name, data=make(file), **options)

    return change


def _linked(link: Callable[[str], Any]) -> Change:
    def change(file: h5py.File, name: str) -> None:
        del file[name]
        file[name] = link(name)

    return change


def _low_level(kind: Any, *, shape: tuple[int, ...] = (ROWS,), settings: Any = None) -> Change:
    """A data set of which nothing was ever written, of a type that h5py has no word for."""

    def change(file: h5py.File, name: str) -> None:
        del file[name]
        h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create_simple(shape), settings)

    return change


def _filtered() -> Any:
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_chunk((ROWS,))
    settings.set_filter(h5py.h5z.FILTER_SZIP + 30000, h5py.h5z.FLAG_OPTIONAL, ())
    return settings


def _unknown_filter(file: h5py.File, name: str) -> None:
    _low_level(h5py.h5t.NATIVE_UINT32, settings=_filtered())(file, name)
    file[name].id.write_direct_chunk((0,), b"\1" * ROWS)


def _group(file: h5py.File, name: str) -> None:
    del file[name]
    file.create_group(name)


def _named_type(file: h5py.File, name: str) -> None:
    del file[name]
    file[name] = np.dtype("f8")


def _in_a_circle(file: h5py.File, name: str) -> None:
    del file[name]
    file[name] = file["/"]


def _references(kind: Any) -> Change:
    def change(file: h5py.File, name: str) -> None:
        del file[name]
        file.create_dataset(name, (ROWS,), dtype=kind)

    return change


def _removed(file: h5py.File, name: str) -> None:
    del file[name]


def _unwritten(shape: tuple[int, ...], kind: Any, **options: Any) -> Change:
    def change(file: h5py.File, name: str) -> None:
        del file[name]
        file.create_dataset(name, shape, kind, **options)

    return change


def _null(file: h5py.File, name: str) -> None:
    del file[name]
    file[name] = h5py.Empty("f4")


def _attributes(value: Any) -> Change:
    """Attributes that readers ask for, with another value."""

    def change(file: h5py.File, name: str) -> None:
        for attribute in ("column_names", "scales", "sha256_of_texts", "config_json", "provenance", "names"):
            for item in (file, file[name], file.get("metadata", file)):
                if attribute in item.attrs:
                    del item.attrs[attribute]
                item.attrs.create(attribute, **value) if isinstance(value, dict) else item.attrs.create(
                    attribute, value
                )

    return change


_PAIR = np.dtype([("a", "u4"), ("b", "S4")])

#: what it is -> the change of a data set, given by its name
MALFORMED: dict[str, Change] = {
    "compound": _as(lambda _: np.zeros(ROWS, _PAIR)),
    "array type": _as(lambda _: np.zeros(ROWS, np.dtype(("u4", (3,))))),
    "elements that are arrays": _low_level(h5py.h5t.array_create(h5py.h5t.NATIVE_UINT32, (3,))),
    "enum": _as(lambda _: np.zeros(ROWS, h5py.enum_dtype({"a": 0, "b": 1}, "u1"))),
    "bool": _as(lambda _: np.zeros(ROWS, bool)),
    "bits": _low_level(h5py.h5t.STD_B8LE),
    "opaque": _as(lambda _: np.zeros(ROWS, "V7")),
    "time": _low_level(h5py.h5t.UNIX_D32LE),
    "object references": _references(h5py.ref_dtype),
    "region references": _references(h5py.regionref_dtype),
    "lists of numbers": _unwritten((ROWS,), h5py.vlen_dtype("i4")),
    "complex": _as(lambda _: np.zeros(ROWS, "c8")),
    "half": _as(lambda _: np.zeros(ROWS, "f2")),
    "long double": _as(lambda _: np.zeros(ROWS, np.longdouble)),
    "big-endian": _as(lambda _: np.zeros(ROWS, ">i8")),
    "negative": _as(lambda _: np.full(ROWS, -1, "i8")),
    "largest": _as(lambda _: np.full(ROWS, 2**64 - 1, "u8")),
    "texts": _as(lambda _: np.array(["a"] * ROWS, object), dtype=h5py.string_dtype()),
    "short texts": _as(lambda _: np.array([b"\xff\x00a"] * ROWS, "S3")),
    "texts of NUL": _as(lambda _: np.zeros(ROWS, "S3")),
    "scalar": _as(lambda _: 5),
    "scalar text": _as(lambda _: "5"),
    "no values": _null,
    "no rows": _as(lambda _: np.zeros(0, "u4")),
    "no columns": _as(lambda _: np.zeros((ROWS, 0), "f4")),
    "two axes": _as(lambda _: np.zeros((ROWS, 2), "f4")),
    "four axes": _as(lambda _: np.zeros((ROWS, 1, 1, 1), "u1")),
    "one row": _as(lambda _: np.zeros(1, "u4")),
    "never written": _unwritten((ROWS,), "u4"),
    "texts never written": _unwritten((ROWS,), h5py.string_dtype()),
    "many rows never written": _unwritten((10**10,), "u4", chunks=(1 << 16,)),
    "many texts never written": _unwritten((10**9,), h5py.string_dtype(), fillvalue=b"x" * 999, chunks=(1 << 16,)),
    "wide texts": _as(lambda _: np.full(4, b"x" * (1 << 20), f"S{1 << 20}"), compression="gzip"),
    "huge chunk": _unwritten((ROWS,), "u4", chunks=(1 << 29,), maxshape=(None,), compression="gzip"),
    "unknown filter": _unknown_filter,
    "a group": _group,
    "a type": _named_type,
    "a circle": _in_a_circle,
    "removed": _removed,
    "linked to itself": _linked(lambda name: h5py.SoftLink(f"/{name}")),
    "linked to nothing": _linked(lambda _: h5py.SoftLink("/nothing")),
    "linked into a file that is not there": _linked(lambda _: h5py.ExternalLink("gone.h5", "/x")),
    "attributes of numbers": _attributes(np.zeros(3)),
    "attributes of text": _attributes("x"),
    "attributes with two axes": _attributes(np.zeros((2, 2))),
    "attributes without values": _attributes(h5py.Empty("f4")),
    "attributes of references": _attributes({"data": None, "shape": (1,), "dtype": h5py.ref_dtype}),
    "attributes of pairs": _attributes(np.zeros(2, _PAIR)),
    "attributes of bytes": _attributes(np.array([b"\xff"])),
    "deep JSON": _attributes("[" * 30000),
    "JSON of a number": _attributes("1" * 5000),
    "JSON of a list": _attributes("[1, 2]"),
}
