"""Names of unknown origin on one line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnaeus_jax.reading.text import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Parus major", "Parus major"),
        ("Übersee-Möwe, 大山雀, הציפור", "Übersee-Möwe, 大山雀, הציפור"),
        ("two\nlines\r\tand\0NUL", r"two\nlines\r\tand\0NUL"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("gnp.\u202egpj", r"gnp.\u202egpj"),
        ("a\u2028b\u200bc\ufeff", r"a\u2028b\u200bc\ufeff"),
        ("butterfly \U0001f98b", r"butterfly \U0001f98b"),
        ("snow \u2603", "snow \u2603"),
        ("C:\\bird", "C:\\\\bird"),
        ("\ud800", r"\ud800"),
        (b"caf\xc3\xa9 \xff", r"café \xff"),
        (b"a\nb", r"a\nb"),
    ],
)
def test_examples(text, shown):
    assert printable(text) == shown


def test_long_text_is_cut():
    assert printable("x" * 500, limit=10) == "x" * 10 + "..."
    assert printable(b"x" * 500, limit=10) == "x" * 10 + "..."
    assert printable("x" * 10, limit=10) == printable(b"x" * 10, limit=10) == "x" * 10


@given(st.text() | st.binary())
def test_always_one_printable_line_that_can_be_encoded(text):
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown.splitlines()) <= 1
    shown.encode("utf-8")
