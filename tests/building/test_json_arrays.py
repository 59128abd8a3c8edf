"""JSON read element by element."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnaeus_jax.building.sources import json_arrays
from linnaeus_jax.building.sources.json_arrays import DUPLICATE_KEY, JsonArrays
from linnaeus_jax.config.errors import UserError


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "a.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def arrays(path: Path) -> dict[str, list | None]:
    found: dict[str, list | None] = {}
    for key, elements in JsonArrays(path):
        found[key] = None if elements is None else [*(found.get(key) or []), *elements]
    return found


def as_text(value):
    """What `JsonArrays` makes of a value: numbers as they are written."""
    if isinstance(value, dict):
        return {key: as_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_text(item) for item in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return json.dumps(value).removesuffix(".0")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(
    content=st.dictionaries(st.text(max_size=5), st.lists(VALUES, max_size=6) | VALUES, max_size=4),
    indent=st.sampled_from([None, 1]),
    ascii_only=st.booleans(),
    block=st.integers(1, 40),
    batch=st.integers(1, 4),
)
def test_the_same_as_json(tmp_path_factory, content, indent, ascii_only, block, batch):
    text = json.dumps(content, indent=indent, ensure_ascii=ascii_only)
    path = write(tmp_path_factory.mktemp("j"), text.encode("utf-8", "surrogatepass"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_arrays, "BLOCK", block)
        patch.setattr(json_arrays, "BATCH", batch)
        found = arrays(path)
    assert found == {key: as_text(value) if isinstance(value, list) else None for key, value in content.items()}


def test_numbers_and_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(json_arrays, "BATCH", 2)
    path = write(tmp_path, b'\xef\xbb\xbf {"a": [1, 2.50, 3.0, NaN, -Infinity], "b": [], "c": {}, "d": 1}\n\n')
    assert list(JsonArrays(path)) == [
        ("a", ["1", "2.50"]),
        ("a", ["3", None]),
        ("a", [None]),
        ("b", []),
        ("c", None),
        ("d", None),
    ]
    assert list(JsonArrays(write(tmp_path, "{}"))) == []


def test_a_key_that_stands_twice_in_an_element(tmp_path):
    assert arrays(write(tmp_path, '{"a": [{"b": 1, "c": 2, "b": 3}]}')) == {
        "a": [{"b": "3", "c": "2", DUPLICATE_KEY: "b"}]
    }


def test_progress(tmp_path, monkeypatch):
    monkeypatch.setattr(json_arrays, "BLOCK", 10)
    calls = []
    path = write(tmp_path, '{"a": [1, 2, 3, 4, 5]}')
    list(JsonArrays(path, lambda *call: calls.append(call)))
    assert calls == [("reading a.json", 10, 22), ("reading a.json", 20, 22), ("reading a.json", 22, 22)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cut off or not valid JSON: there is no '{' where one must stand"),
        ("[1]", "there is no '{' where one must stand"),
        ('{"a": [1, 2', r"cut off or not valid JSON: .* \(in entry 2 of 'a', character 11\)"),
        ('{"a": [{"b": "cd', r"cut off or not valid JSON: Unterminated string .* \(in entry 1 of 'a'"),
        ('{"a": [1]', "cut off"),
        ('{"a": [1],', "cut off"),
        ('{"a"', "cut off"),
        ('{"a": [1,]}', r"a.json is not valid JSON: Expecting value \(in entry 2 of 'a', character 9\)"),
        ('{"a": [1 2]}', "is not valid JSON: there is no '\\]' where one must stand"),
        ('{"a": [1]} x', "something stands behind its end"),
        ('{"a": [1], "a": [2]}', "'a' stands twice"),
        ('{"a": [1], 5: 1}', "where a name must begin"),
        ('{"a": [' + "[" * 100_000 + "]" * 100_000 + "]}", "entry 1 of 'a' is nested too deeply"),
        (b'{"a": ["\xff"]}', "is not in UTF-8"),
        ("{}".encode("utf-16"), "is not in UTF-8"),
        (b'{"a": ["\xc3', "is not in UTF-8"),
        (b"\x1f\x8b\x08\0", "is packed; unpack it"),
    ],
)
def test_what_is_no_json(tmp_path, text, message):
    with pytest.raises(UserError, match=message) as error:
        arrays(write(tmp_path, text))
    assert "\n" not in str(error.value)


def test_an_element_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(json_arrays, "LONGEST_ELEMENT", 100)
    monkeypatch.setattr(json_arrays, "BLOCK", 16)
    path = write(tmp_path, json.dumps({"a": ["x" * 50, "y" * 5000]}))
    with pytest.raises(UserError, match="longer than 100 characters"):
        arrays(path)
