"""Forms are read as they were written, whatever the bytes of their files."""

from __future__ import annotations

import tempfile

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnaeus_jax.inference.server.requests import MAX_TEXT, FormError, read_form

KIND = "multipart/form-data; boundary=mark"
#: bytes that look like the parser's own marks
PIECES = st.sampled_from([b"\r\n", b"--", b"--mark", b"\r\n--mar", b"\r\n--mark\n", b"\r", b"\0", b"a" * 50, b"\r\n--"])


@given(st.lists(st.lists(PIECES).map(b"".join).filter(lambda data: b"\r\n--mark" not in b"\r\n" + data), max_size=4))
def test_files_come_back(contents):
    files = [("images", (f"ä {number}.jpg", data)) for number, data in enumerate(contents)]
    fields = {"latitude": "48.2", "name": "ü"}
    request = httpx.Request(
        "POST", "http://x/", data=fields, files=[*files, ("last", ("x", b""))], headers={"Content-Type": KIND}
    )
    parts = read_form(request.headers["content-type"], request.read())
    assert parts[:2] == list(fields.items())
    assert parts[2:-1] == files


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        ("multipart/form-data", b"", "Missing boundary"),
        (KIND, b"", "ends early"),
        (KIND, b"no form", "boundary"),
        (KIND, b"--mark\r\nContent-Disposition: form-data; name=a\r\n\r\nx", "ends early"),
        (KIND, b"--mark\r\nContent-Disposition: form-data\r\n\r\nx\r\n--mark--\r\n", '"name" must be provided'),
        (
            KIND,
            b"--mark\r\nContent-Disposition: form-data; name=a\r\n\r\n" + bytes(MAX_TEXT + 1) + b"\r\n--mark--",
            "exceeded maximum size of 1024KB",
        ),
        (f"multipart/form-data; boundary={'x' * 300}", b"", "exceeds"),
    ],
)
def test_broken_forms(kind, body, words):
    with pytest.raises(FormError, match=words):
        read_form(kind, body)


def test_text_that_is_not_utf_8_is_read_as_latin_1():
    form = b"--mark\r\nContent-Disposition: form-data; name=a\r\n\r\nM\xf6we\r\n--mark--\r\n"
    assert read_form(KIND, form) == [("a", "Möwe")]


def test_a_large_file_is_not_written_to_a_disk(monkeypatch):
    head = b'--mark\r\nContent-Disposition: form-data; name=images; filename="a"\r\n\r\n'
    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "rollover", lambda _: pytest.fail("it was"))
    ((_, file),) = read_form(KIND, head + bytes(2**22) + b"\r\n--mark--\r\n")
    assert file == ("a", bytes(2**22))
