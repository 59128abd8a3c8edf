"""Tables of text: what Python's csv reads is read in blocks, and nothing is lost."""

from __future__ import annotations

import csv
import io

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading import delimited
from linnaeus_jax.reading.delimited import Dialect, RecordReader, TextSource, find_dialect


def source(data: bytes) -> TextSource:
    stream = io.BytesIO(data)
    return TextSource(stream, "t.csv", len(data), stream.tell)


def read(data: bytes, dialect: Dialect | None = None) -> pl.DataFrame:
    reader = RecordReader(source(data), dialect or find_dialect(data[:1000]))
    positions = {name: place for place, name in enumerate(reader.header)}
    frames = list(reader.read(positions, len(reader.header)))
    assert frames, "no records"
    return pl.concat(frames)


def records(frame: pl.DataFrame) -> list[tuple]:
    """Good records, missing as ""."""
    names = [name for name in frame.columns if name not in ("line", "reason", "detail")]
    return frame.filter(pl.col("reason").is_null()).select(pl.col(names).fill_null("")).rows()


def test_line_numbers_and_embedded_line_ends():
    frame = read(b'a,b\r\n1,"two\r\nlines, ""quoted"""\r\n\r\n3,four\r\n')
    assert frame["line"].to_list() == [2, 5]
    assert records(frame) == [("1", 'two\r\nlines, "quoted"'), ("3", "four")]


def test_ragged_lines_are_rows_with_a_reason_at_their_place():
    frame = read(b"a\tb\n1\t2\n3\n4\t5\t6\n7\t8\n9\t\0\n")
    assert frame["line"].to_list() == [2, 3, 4, 5, 6]
    assert frame["a"].to_list() == ["1", None, None, "7", None]
    assert frame["detail"].to_list() == [
        None,
        "1 fields where the header has 2",
        "3 fields where the header has 2",
        None,
        "a NUL byte in the text; if it is in UTF-16 or UTF-32, name it with --encoding",
    ]


def test_quotes_that_are_not_quotes():
    data = b'gbifID\tnote\n1\t"the big one\n2\t5" tall\n3\t"\n'
    assert find_dialect(data).quote is None
    assert records(read(data)) == [("1", '"the big one'), ("2", '5" tall'), ("3", '"')]
    # where quotes count, one inside of a field is text, and one that is never closed costs its own line alone
    frame = read(data.replace(b"gbifID", b"other"))
    assert records(frame) == [("2", '5" tall')]
    assert frame["detail"].to_list() == ["text behind a closing quote", None, delimited._UNCLOSED]


def test_an_unclosed_quote_does_not_swallow_the_table(monkeypatch):
    monkeypatch.setattr(delimited, "BLOCK", 64)
    monkeypatch.setattr(delimited, "LONGEST_SPAN", 10)
    lines = [f"{number},x" for number in range(100)]
    lines[40] = '40,"x'
    frame = read(("a,b\n" + "\n".join(lines)).encode())
    assert frame.height == 100
    assert frame.filter(pl.col("reason").is_not_null())["line"].to_list() == [42]


@pytest.mark.parametrize("separator", list(",\t;|"))
def test_the_separator_is_found(separator):
    others = "".join(3 * other for other in ",\t;|" if other != separator)
    data = f'"x{others}y"{separator}b{separator}c\n1{separator}2{separator}3\n'.encode()
    assert find_dialect(data).separator == separator
    assert records(read(data)) == [("1", "2", "3")]


def test_encodings():
    text = "name,place\nÄsche,Zürich\nNoël,Ñuñoa\n"
    wanted = [("Äsche", "Zürich"), ("Noël", "Ñuñoa")]
    for data in (text.encode(), text.encode("utf-8-sig"), text.encode("utf-16")):
        reader = RecordReader(source(data), Dialect())
        assert reader.header == ["name", "place"]
        assert records(pl.concat(reader.read({"name": 0, "place": 1}, 2))) == wanted
        assert reader.warnings == []
    for name in ("utf-16-le", "utf-16-be"):
        reader = RecordReader(source(text.encode(name)), Dialect())
        assert reader.header == ["name", "place"]
        assert records(pl.concat(reader.read({"name": 0, "place": 1}, 2))) == wanted
        assert reader.warnings == [f"t.csv: read as {name}, as its NUL bytes show; --encoding names another"]
    mixed = text.encode() + "Åland,x\n".encode("latin-1")
    reader = RecordReader(source(mixed), Dialect())
    assert records(pl.concat(reader.read({"name": 0, "place": 1}, 2))) == [*wanted, ("Åland", "x")]
    assert reader.warnings == ["t.csv: 1 lines are not UTF-8 and were read as Latin-1"]
    declared = RecordReader(source(text.encode("cp1252")), Dialect(encoding="windows-1252"))
    assert records(pl.concat(declared.read({"name": 0, "place": 1}, 2))) == wanted


def test_old_mac_line_ends():
    assert records(read(b"a,b\r1,2\r3,4\r")) == [("1", "2"), ("3", "4")]


def test_empty_files():
    for data in (b"", b"\n\n", b"\xef\xbb\xbf"):
        with pytest.raises(UserError, match=r"t\.csv is empty"):
            RecordReader(source(data), Dialect())
    assert list(RecordReader(source(b"a,b\n"), Dialect()).read({"a": 0}, 2)) == []
    assert list(RecordReader(source(b"a,b"), Dialect()).read({"a": 0}, 2)) == []


def test_a_line_without_end(monkeypatch):
    monkeypatch.setattr(delimited, "BLOCK", 16)
    monkeypatch.setattr(delimited, "LONGEST_RECORD", 100)
    with pytest.raises(UserError, match=r"t\.csv: line 2 is longer than"):
        read(b"a,b\n" + b"x" * 1000)


FIELDS = st.text(st.sampled_from('ab",\t\n é\U0001f98b"'), max_size=6)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(FIELDS, FIELDS, FIELDS), min_size=1, max_size=20), st.sampled_from(["\n", "\r\n"]), st.data())
def test_what_csv_writes_is_read(table, end, data):
    """Whatever the cells hold, in blocks of any size; only records of nothing at all are not told from blank lines."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator=end)
    writer.writerow(["a", "b", "c"])
    writer.writerows(table)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delimited, "BLOCK", data.draw(st.integers(1, 60)))
        frame = read(text.getvalue().encode(), Dialect())
    assert records(frame) == table
    assert frame["reason"].null_count() == frame.height


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from('ab",,,\n\n\n"é'), max_size=60), st.integers(1, 60))
def test_any_text_at_all(body, block):
    """Every line that is not blank is in exactly one row, and good rows are what csv reads where it reads all."""
    data = ("a,b\n" + body + "\n").encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delimited, "BLOCK", block)
        reader = RecordReader(source(data), Dialect())
        frames = list(reader.read({"a": 0, "b": 1}, 2))
    frame = pl.concat(frames) if frames else None
    found = [] if frame is None else list(zip(frame["line"], frame["reason"]))
    assert [line for line, _ in found] == sorted({line for line, _ in found})
    if body.count('"') == 0:
        wanted = [(place, len(line.split(",")) == 2) for place, line in enumerate(body.split("\n"), 2) if line]
        assert [(line, reason is None) for line, reason in found] == wanted
        return
    try:
        fields = [record for record in csv.reader(io.StringIO(body + "\n", newline=""), strict=True) if record]
    except csv.Error:
        return
    assert len(found) == len(fields)
    assert (records(frame) if frame is not None else []) == [tuple(record) for record in fields if len(record) == 2]


@pytest.mark.parametrize("name", ["klingon", "base64", "undefined", "idna", "utf-16", "a\0b", "rot13"])
def test_encodings_that_cannot_be_used_are_refused(name):
    data = "image,species\na.jpg,Parus mäjor\n".encode()
    with pytest.raises(UserError, match=r"t\.csv"):
        read(data, Dialect(encoding=name))


@pytest.mark.parametrize("first", ["sep=;", "SEP=;\r", '"sep=;"', "\ufeffsep=;"])
def test_the_first_line_of_excel_names_the_separator(first):
    frame = read(f"{first}\na,b;c\n1,5;x\n".encode())
    assert frame.columns == ["line", "a,b", "c", "reason", "detail"]
    assert frame["line"].to_list() == [3]
    assert records(frame) == [("1,5", "x")]


@pytest.mark.parametrize("separator", ["\t", ","])
@pytest.mark.parametrize("also", ["", 'x@y "z" w@v\n'], ids=["quotes in order", "and not"])
@pytest.mark.parametrize("places", [(1, 1), (0, 2)], ids=["one column", "two columns"])
def test_stray_quotes_that_swallow_records_are_said(separator, also, places):
    lines = [[f"p{number}.jpg", f"s{number}", "n"] for number in range(30)]
    lines[2][places[0]] = '"' + lines[2][places[0]]
    lines[27][places[1]] += '"'
    text = "a@b@c\n" + also + "".join("@".join(line) + "\n" for line in lines)
    data = text.replace("@", separator).encode()
    reader = RecordReader(source(data), find_dialect(data))
    found = pl.concat(reader.read({"a": 0, "b": 1}, 3))
    (warning,) = reader.warnings
    first = 4 + bool(also)
    assert "quotes make 1 records of 26 lines that each have the fields of a record" in warning
    assert f"lines {first} to {first + 25}." in warning
    assert "--quotes none" in warning
    assert found.height == 5 + bool(also)
    plain = RecordReader(source(data), find_dialect(data, quote=None))
    assert pl.concat(plain.read({"a": 0, "b": 1}, 3)).height == 30 + bool(also)
    assert plain.warnings == []


def test_a_quoted_text_of_several_lines_is_not_said():
    data = b'a,b,c\n1,"two, three\nfour, five, six\n",x\n2,"y\nz",x\n3,"","u\n\nv"\n'
    reader = RecordReader(source(data), find_dialect(data))
    assert pl.concat(reader.read({"a": 0}, 3))["a"].to_list() == ["1", "2", "3"]
    assert reader.warnings == []
