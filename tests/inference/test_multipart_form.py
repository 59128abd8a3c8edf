"""Forms are read as they were written, whatever the bytes of their files."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnaeus_jax.inference.server.multipart_form import MAX_TEXT, FormError, read_form

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
    assert [(part.name, part.text) for part in parts[:2]] == list(fields.items())
    assert [(part.filename, part.data) for part in parts[2:-1]] == [file for _, file in files]


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        ("multipart/form-data", b"", "no boundary"),
        (KIND, b"", "ends early"),
        (KIND, b"no form", "boundary"),
        (KIND, b"--mark\r\nContent-Disposition: form-data; name=a\r\n\r\nx", "ends early"),
        (KIND, b"--mark\r\nContent-Disposition: form-data\r\n\r\nx\r\n--mark--\r\n", "no name"),
        (
            KIND,
            b"--mark\r\nContent-Disposition: form-data; name=a\r\n\r\n" + bytes(MAX_TEXT + 1) + b"\r\n--mark--",
            "more than",
        ),
        (f"multipart/form-data; boundary={'x' * 300}", b"", "exceeds"),
    ],
)
def test_broken_forms(kind, body, words):
    with pytest.raises(FormError, match=words):
        read_form(kind, body)


def test_text_that_is_none():
    (part,) = read_form(KIND, b"--mark\r\nContent-Disposition: form-data; name=a\r\n\r\n\xff\r\n--mark--\r\n")
    with pytest.raises(FormError, match="a is no UTF-8"):
        _ = part.text
