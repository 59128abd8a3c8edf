"""Bodies that are small and would cost much: refused before they are read value by value."""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Iterator

import pytest
from fastapi import HTTPException

from linnaeus_jax.inference.server.requests import Limits, parse_request
from linnaeus_jax.inference.server.schemas import MAX_TAXA, TOLD_ERRORS

MANY = 1_000_000
IMAGE = b'{"images":["aGk="],'
KEYS = b",".join(b'"%d":1' % number for number in range(MANY))
ALMOST = Limits().values - 10
FEW_KEYS = b",".join(b'"%d":1' % number for number in range(ALMOST))


def form(**fields: bytes) -> bytes:
    parts = [
        b'--mark\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (name.encode(), value)
        for name, value in fields.items()
    ]
    image = b'--mark\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\nx\r\n'
    return b"".join([image, *parts, b"--mark--\r\n"])


BODIES = {
    "numbers for pictures": b'{"images":[' + b"1," * MANY + b"1]}",
    "lists for pictures": b'{"images":[' + b"[]," * MANY + b"1]}",
    "pictures": b'{"images":[' + b'"aGk=",' * MANY + b'"aGk="]}',
    "observations": IMAGE + b'"metadata":[' + b"{}," * MANY + b"{}]}",
    "numbers for observations": IMAGE + b'"metadata":[' + b"1," * MANY + b"1]}",
    "keys": IMAGE + KEYS + b"}",
    "keys of a picture": b'{"images":[{' + KEYS + b"}]}",
    "keys of an observation": IMAGE + b'"metadata":[{' + KEYS + b"}]}",
    "components": IMAGE + b'"components":{' + KEYS + b"}}",
    "numbers of a component": IMAGE + b'"components":{"a":[' + b'"x",' * MANY + b"1]}}",
    "taxa": IMAGE + b'"restrict":[' + b"[]," * MANY + b"1]}",
    "taxa, as many as may be read": IMAGE + b'"restrict":[' + b"[]," * (ALMOST // 2) + b"1]}",
    "keys, as many as may be read": IMAGE + FEW_KEYS + b"}",
    "keys of a picture, as many as may be read": b'{"images":[{' + FEW_KEYS + b"}]}",
    "components, as many as may be read": IMAGE + b'"components":{' + FEW_KEYS + b"}}",
    "pictures, as many as may be read": b'{"images":[' + b"1," * ALMOST + b"1]}",
    "observations, as many as may be read": IMAGE + b'"metadata":[' + b"{}," * (ALMOST // 2) + b"{}]}",
    "a long key": IMAGE + b'"' + b"k" * 10 * MANY + b'":1}',
    "digits": IMAGE + b'"latitude":' + b"9" * 10 * MANY + b"}",
    "depth": b"[" * 10 * MANY,
    "a long date": IMAGE + b'"date":"' + b"1" * 10 * MANY + b'"}',
}
FORMS = {
    "taxa of a form": form(restrict=b"1" + b"," * MANY),
    "lines of taxa of a form": form(restrict=b"1" + b"\n" * MANY + b"1"),
    "observations of a form": form(metadata=b"[" + b"{}," * (MANY // 4) + b"{}]"),
    "components of a form": form(components=b"{" + KEYS[:MANY] + b"}"),
    "fields": form(**{f"f{number}": b"1" for number in range(900)}),
    "depth of a form": form(metadata=b"[" * MANY),
    "line ends": b"--mark\r\n" + b"\r\n" * (5 * MANY),
    "almost the mark": form(latitude=b"1").replace(b"\r\nx\r\n", b"\r\n" + b"\r\n--mar" * (2 * MANY) + b"\r\n", 1),
}


@pytest.fixture
def own_time_alone() -> Iterator[None]:
    """Nothing looks for garbage meanwhile, which takes a second where many tests have run before."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("own_time_alone")
@pytest.mark.parametrize("name", [*BODIES, *FORMS])
def test_refused_at_once_and_in_few_words(name):
    body, kind = (
        (BODIES[name], "application/json") if name in BODIES else (FORMS[name], "multipart/form-data; boundary=mark")
    )
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    if name == "almost the mark":  # a file as any other
        parse_request(kind, body, Limits())
    else:
        with pytest.raises(HTTPException) as refused:
            parse_request(kind, body, Limits())
        assert refused.value.status_code in (400, 413, 422)
        assert len(refused.value.detail) < 1000
    assert time.process_time() - start < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024  # KiB


def test_what_is_right_is_read_however_much_it_is():
    taxa = b",".join(b"%d" % number for number in range(MAX_TAXA))
    pictures = b",".join([b'{"name":"a, b","data":"aGk="}'] * 32)
    metadata = b",".join([b'{"latitude":1,"components":{"a":[' + b",".join([b"1"] * 500) + b"]}}"] * 32)
    lists = b'"restrict":[%s],"always_report":[%s]' % (taxa, taxa)
    parsed = parse_request(
        "application/json", b'{"images":[%s],"metadata":[%s],%s}' % (pictures, metadata, lists), Limits()
    )
    assert len(parsed.names) == len(parsed.observations) == 32
    assert len(parsed.request.always_report) == MAX_TAXA
    lines = taxa.replace(b",", b" ,\n")
    assert len(
        parse_request("multipart/form-data; boundary=mark", form(always_report=lines), Limits()).request.always_report
    )


def test_errors_are_told_by_their_place():
    def told(body: bytes) -> str:
        with pytest.raises(HTTPException) as refused:
            parse_request("application/json", body, Limits())
        return refused.value.detail

    assert told(b'{"images":["aGk=", 1, 2]}').startswith("images.1: Input should be")
    assert "images.2" not in told(b'{"images":["aGk=", 1, 2]}')
    assert told(IMAGE + b'"metadata":[{}, {"latitude": "x"}]}').startswith("metadata.1.latitude: ")
    assert told(IMAGE + b'"path":1}').startswith("path: Extra inputs")
    many = told(IMAGE + b",".join(b'"k%d":1' % number for number in range(20)) + b"}")
    assert many.endswith(f"; and {20 - TOLD_ERRORS} more")
    assert "53000 values" in told(IMAGE + KEYS + b"}")
