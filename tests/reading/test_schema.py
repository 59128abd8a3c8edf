"""The table that all sources are read into."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from linnaeus_jax.reading import schema


def test_every_constant_is_a_reason():
    named = {value for key, value in vars(schema).items() if key.isupper() and isinstance(value, str) and " " in value}
    assert named == set(schema.REASONS)
    assert len(set(schema.REASONS)) == len(schema.REASONS)


def test_standard_frame_has_what_is_always_there_and_nothing_foreign():
    frame = pl.DataFrame({"picture": ["a.jpg"], "subset_b": [1], "foreign": [2], "name_L20": ["G"], "id_L10": [7]})
    out = schema.standard_frame(frame, ("L10", "L20"))
    assert out.columns == ["line", "picture", "id_L10", "name_L20", "subset_b", "reason", "detail"]
    assert out.schema["line"] == pl.Int64
    types = {name: str(kind) for name, kind in out.schema.items()}
    assert types == dict.fromkeys(out.columns, "String") | dict(
        line="Int64", id_L10="Categorical", name_L20="Categorical"
    )
    assert out.row(0) == (0, "a.jpg", "7", "G", "1", None, None)


def test_source_rows_need_no_links_or_warnings():
    source = schema.SourceRows(pl.DataFrame(), Path("x"), ("L10",), ())
    assert dict(source.links) == {}
    assert source.warnings == ()
